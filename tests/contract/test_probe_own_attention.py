"""What is read is the model's own attention: models that look like a supported family and attend otherwise are refused."""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from typing import Any

import pytest

from marginlens.errors import InputError
from marginlens.probe.models.adapters import adapter_for
from marginlens.probe.models.adapters.base import logit_rounding
from marginlens.probe.models.reading import read_attention
from marginlens.probe.run import probe_model
from tiny_transformers import encoded, tiny_bert, tiny_gpt2, tiny_llama, tiny_vit

torch = pytest.importorskip("torch")
nn = torch.nn

OTHERWISE = r"The module {} of type {} attends otherwise than its family does, so that it cannot be read as one of it: its attention {}"
IDS = [[2, 5, 6, 7, 8, 9, 3], [2, 9, 11, 5, 12, 6, 3]]


def batch() -> dict[str, Any]:
    return {"input_ids": torch.tensor(IDS)}


def of_another_class(model: Any, layer: int, forward: Callable[..., Any]) -> Any:
    """The model with one attention layer of a class that has all the names of its family and another forward."""
    module = adapter_for(model).attention_module(layer)
    module.__class__ = type("Other", (type(module),), {"forward": forward})
    return model


# ---- the same names, another attention


def with_distances(self: Any, hidden_states: Any, attention_mask: Any = None, **others: Any) -> Any:
    """A bias that falls with the distance, as ALiBi adds it."""
    place = torch.arange(hidden_states.shape[1])
    nearer = -0.5 * (place[:, None] - place).abs().to(hidden_states)
    return super(type(self), self).forward(
        hidden_states, nearer if attention_mask is None else attention_mask + nearer, **others
    )


def with_norm_inside(self: Any, hidden_states: Any, attention_mask: Any = None, **others: Any) -> Any:
    return super(type(self), self).forward(nn.functional.normalize(hidden_states, dim=-1), attention_mask, **others)


def with_another_scale(self: Any, *args: Any, **others: Any) -> Any:
    self.scaling = 0.1
    return super(type(self), self).forward(*args, **others)


def with_a_sink(self: Any, *args: Any, **others: Any) -> Any:
    """Part of every query's attention goes to no token."""
    values, attention = super(type(self), self).forward(*args, **others)
    return values, 0.9 * attention


@pytest.mark.parametrize("forward", [with_distances, with_norm_inside, with_another_scale, with_a_sink])
@pytest.mark.parametrize("layer", [0, 1])
def test_a_layer_that_attends_otherwise_is_refused_by_name(forward: Any, layer: int) -> None:
    model = of_another_class(tiny_bert(), layer, forward)
    said = OTHERWISE.format(rf"encoder\.layer\.{layer}\.attention\.self", "Other", r"differs by up to 0\.\d+\.$")
    with pytest.raises(InputError, match=said):
        list(read_attention(model, batch()))
    with pytest.raises(InputError, match=said):
        probe_model(model, encoded(model))
    list(read_attention(model, batch(), layers=[1 - layer]))  # the other one is as it was


def with_gaps(self: Any, *args: Any, **others: Any) -> Any:
    """Attention that is no number at one query."""
    values, attention = super(type(self), self).forward(*args, **others)
    attention = attention.clone()
    attention[0, 0, 3] = math.nan
    return values, attention


def test_attention_that_is_no_number_is_not_taken_for_what_is_read() -> None:
    model = of_another_class(tiny_bert(), 1, with_gaps)
    with pytest.raises(
        InputError, match=r"layer\.1\.attention\.self of type Other .*: its attention differs by up to nan"
    ):
        list(read_attention(model, batch()))


def test_half_precision_excuses_no_more_than_its_rounding() -> None:
    model = of_another_class(tiny_bert().half(), 1, with_a_sink)
    with pytest.raises(
        InputError, match=r"layer\.1\.attention\.self of type Other .*: its attention differs by up to 0\.0"
    ):
        list(read_attention(model, batch()))


def test_capped_logits_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.llama import modeling_llama as code

    def capped(
        module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: float, **others: Any
    ) -> Any:
        keys, values = (code.repeat_kv(one, module.num_key_value_groups) for one in (key, value))
        logits = 10.0 * torch.tanh(query @ keys.transpose(2, 3) * scaling / 10.0) + attention_mask
        attention = torch.softmax(logits, dim=-1)
        return (attention @ values).transpose(1, 2).contiguous(), attention

    monkeypatch.setattr(code, "eager_attention_forward", capped)
    said = OTHERWISE.format(r"layers\.0\.self_attn", "LlamaAttention", r"differs by up to")
    with pytest.raises(InputError, match=said):
        list(read_attention(tiny_llama(), batch()))


def test_another_number_of_heads_is_refused() -> None:
    model = tiny_bert()
    model.config.num_attention_heads = 4
    shapes = r"has shape \(2 inputs, 2 heads, 7 tokens\), not \(2 inputs, 4 heads, 7 tokens\)\.$"
    with pytest.raises(InputError, match=OTHERWISE.format(r"encoder\.layer\.0\.attention\.self", ".*", shapes)):
        list(read_attention(model, batch()))


@pytest.mark.parametrize("output", [lambda made: (made[0], None), lambda made: (made[0],)])
def test_a_layer_that_hides_its_attention_is_refused(output: Any) -> None:
    def hiding(self: Any, *args: Any, **others: Any) -> Any:
        return output(super(type(self), self).forward(*args, **others))

    model = of_another_class(tiny_bert(), 1, hiding)
    with pytest.raises(
        InputError, match=r"layer\.1\.attention\.self of type Other does not hand out its attention, .*eager"
    ):
        list(read_attention(model, batch()))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_what_a_hook_makes_of_the_outputs_does_not_matter() -> None:
    model = tiny_bert()
    plain = list(read_attention(model, batch()))
    model.encoder.layer[1].attention.self.register_forward_hook(lambda module, args, output: (0.0 * output[0], None))
    for one, before in zip(read_attention(model, batch()), plain, strict=True):
        assert torch.equal(one.attention, before.attention)


@pytest.mark.parametrize("make", [tiny_bert, tiny_gpt2, tiny_llama, tiny_vit])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_with_large_logits_is_rounding_alone(make: Any, dtype: Any) -> None:
    model = make().to(dtype)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if name.endswith(("query.weight", "q_proj.weight", "c_attn.weight")):
                weights.mul_(10.0)
    given = {"pixel_values": torch.randn(2, 1, 6, 6)} if make is tiny_vit else batch()
    assert len(list(read_attention(model, given))) == 2


# ---- what stands around a model


@pytest.mark.parametrize(
    ("tuned", "said"),
    [
        (
            {"is_prompt_learning": True, "peft_type": types.SimpleNamespace(value="PROMPT_TUNING")},
            r"that reads the tokens it is given alone; got one with a learned prompt \(PROMPT_TUNING\) instead\.$",
        ),
        (
            {"is_prompt_learning": False, "alora_invocation_tokens": [5]},
            r"the same for all tokens; got an activated LoRA, which starts at a token of the text instead\.$",
        ),
    ],
)
def test_tuning_that_changes_what_a_model_reads_is_refused(tuned: dict[str, Any], said: str) -> None:
    base = tiny_bert()
    around = types.SimpleNamespace(
        base_model=base, config=base.config, active_peft_config=types.SimpleNamespace(**tuned)
    )
    with pytest.raises(InputError, match=said):
        adapter_for(around)


def test_a_model_without_weights_is_refused() -> None:
    with pytest.raises(InputError, match="must be a model with weights; got one on the meta device, which has none"):
        adapter_for(tiny_bert().to("meta"))


def test_a_model_all_of_whose_weights_are_loaded_when_they_are_used() -> None:
    model, plain = tiny_bert(), list(read_attention(tiny_bert(), batch()))
    weights = dict(model.state_dict())
    for name, module in model.named_modules():
        if module._parameters:
            module._hf_hook = None  # where accelerate keeps what loads the weights
            module.forward = _loading(module, {one: weights[f"{name}.{one}"] for one in module._parameters})
    for module in model.modules():
        for name, weight in module._parameters.items():
            module._parameters[name] = nn.Parameter(weight.to("meta"))
    assert model.device.type == "meta"
    for one, before in zip(read_attention(model, batch()), plain, strict=True):
        assert torch.equal(one.attention, before.attention)
    assert adapter_for(model).key_query(1, 0).matrix.shape == (16, 16)


def _loading(module: Any, weights: dict[str, Any]) -> Callable[..., Any]:
    forward = module.forward

    def loaded(*args: Any, **others: Any) -> Any:
        kept = dict(module._parameters)
        module._parameters.update({name: nn.Parameter(weight) for name, weight in weights.items()})
        try:
            return forward(*args, **others)
        finally:
            module._parameters.update(kept)

    return loaded


@pytest.mark.parametrize(("precision", "digits"), [("highest", 23), ("high", 10), ("medium", 7)])
def test_products_that_may_round_their_factors_are_held_to_that_precision(precision, digits):
    usual = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        single, double = logit_rounding(torch.float32), logit_rounding(torch.float64)
    finally:
        torch.set_float32_matmul_precision(usual)
    assert 1.0 <= single * 2.0**digits <= 4.0
    assert double == 4.0 * torch.finfo(torch.float64).eps
