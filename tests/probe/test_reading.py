"""Reading attention: it is the model's own, in the precision in which it ran, or refused; the model stays as it was found."""

from __future__ import annotations

import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from marginlens.errors import InputError
from marginlens.probe import ProbeSettings, probe_model, probe_page, read_attention
from marginlens.probe.models.adapters import adapter_for
from marginlens.probe.models.adapters.base import logit_rounding
from refusals import refused
from tiny_transformers import TEXT, TEXTS, encoded, tiny_bert, tiny_gpt2, tiny_llama, tiny_vit

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
nn = torch.nn
pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a processor without bfloat16 emulates it


def ids() -> dict[str, Any]:
    return {"input_ids": torch.tensor([[2, 5, 6, 7, 8, 9, 3], [2, 9, 11, 5, 12, 6, 3]])}


def of_another_class(model: Any, layer: int, forward: Callable[..., Any]) -> Any:
    """The model with one attention layer of a class that has all the names of its family and another forward."""
    module = adapter_for(model).attention_module(layer)
    module.__class__ = type("Other", (type(module),), {"forward": forward})
    return model


def with_distances(self: Any, hidden_states: Any, attention_mask: Any = None, **others: Any) -> Any:
    """A bias that falls with the distance, as ALiBi adds it."""
    place = torch.arange(hidden_states.shape[1])
    nearer = -0.5 * (place[:, None] - place).abs().to(hidden_states)
    return super(type(self), self).forward(
        hidden_states, nearer if attention_mask is None else attention_mask + nearer, **others
    )


def with_another_scale(self: Any, *args: Any, **others: Any) -> Any:
    self.scaling = 0.1
    return super(type(self), self).forward(*args, **others)


def with_a_sink(self: Any, *args: Any, **others: Any) -> Any:
    """Part of every query's attention goes to no token."""
    values, attention = super(type(self), self).forward(*args, **others)
    return values, 0.9 * attention


@pytest.mark.parametrize("forward", [with_distances, with_another_scale, with_a_sink])
@pytest.mark.parametrize("layer", [0, 1])
def test_a_layer_with_unknown_attention_is_refused_by_name(forward: Any, layer: int) -> None:
    model = of_another_class(tiny_bert(), layer, forward)
    with refused("model") as caught:
        list(read_attention(model, ids()))
    assert f"encoder.layer.{layer}.attention.self of type Other" in caught.value.got
    with refused("model"):
        probe_model(model, encoded(model))
    list(read_attention(model, ids(), layers=[1 - layer]))  # the other one is as it was


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
    with refused("model") as caught:
        list(read_attention(tiny_llama(), ids()))
    assert "layers.0.self_attn of type LlamaAttention" in caught.value.got


def test_a_wrong_number_of_heads_is_refused() -> None:
    model = tiny_bert()
    model.config.num_attention_heads = 4
    with refused("model") as caught:
        list(read_attention(model, ids()))
    assert "(2 inputs, 2 heads, 7 tokens)" in caught.value.got


@pytest.mark.parametrize("output", [lambda made: (made[0], None), lambda made: (made[0],)])
def test_a_layer_that_hides_its_attention_is_refused(output: Any) -> None:
    def hiding(self: Any, *args: Any, **others: Any) -> Any:
        return output(super(type(self), self).forward(*args, **others))

    model = of_another_class(tiny_bert(), 1, hiding)
    with refused("model") as caught:
        list(read_attention(model, ids()))
    assert "layer.1.attention.self of type Other" in caught.value.got
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize(
    ("tuned", "got"),
    [
        (
            {"is_prompt_learning": True, "peft_type": types.SimpleNamespace(value="PROMPT_TUNING")},
            "PROMPT_TUNING",
        ),
        (
            {"is_prompt_learning": False, "alora_invocation_tokens": [5]},
            "activated LoRA",
        ),
    ],
)
def test_peft_tuning_that_changes_the_input_is_refused(tuned: dict[str, Any], got: str) -> None:
    base = tiny_bert()
    around = types.SimpleNamespace(
        base_model=base, config=base.config, active_peft_config=types.SimpleNamespace(**tuned)
    )
    with refused("model") as caught:
        adapter_for(around)
    assert got in caught.value.got


def test_a_model_with_lazily_loaded_weights_is_read() -> None:
    model, plain = tiny_bert(), list(read_attention(tiny_bert(), ids()))
    weights = dict(model.state_dict())
    for name, module in model.named_modules():
        if module._parameters:
            module._hf_hook = None  # where accelerate keeps what loads the weights
            module.forward = _loading(module, {one: weights[f"{name}.{one}"] for one in module._parameters})
    for module in model.modules():
        for name, weight in module._parameters.items():
            module._parameters[name] = nn.Parameter(weight.to("meta"))
    assert model.device.type == "meta"
    for one, before in zip(read_attention(model, ids()), plain, strict=True):
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


SINGLE = 1e-5  # relative, between rows of one batch in float32
SAME_LENGTHS = 0.01  # queries and keys of a model with and without autocast differ in length by less than this
HALVES = (torch.bfloat16, torch.float16)


def sharp(make: Any) -> Any:
    """A tiny model in float32, whose logits are so large that half precision shows in its attention."""
    model = make().float()
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if name.endswith(("query.weight", "q_proj.weight", "c_attn.weight")):
                weights.mul_(4.0)
    return model


def inputs_of(make: Any) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    if make is tiny_vit:
        return {"pixel_values": torch.randn((3, 1, 6, 6), generator=generator)}
    return {"input_ids": torch.randint(3, 15, (3, 9), generator=generator)}


def cast(dtype: Any) -> Any:
    return nullcontext() if dtype is None else torch.autocast("cpu", dtype=dtype)


def worst_difference(readings: Any, own: Any) -> float:
    return max(float((one.attention - own[one.layer]).abs().max()) for one in readings)


@pytest.mark.parametrize("make", [tiny_bert, tiny_gpt2, tiny_llama, tiny_vit])
@pytest.mark.parametrize(("ran", "consumed"), [(None, HALVES[0]), *((a, b) for a in HALVES for b in (a, None))])
def test_a_layer_is_read_in_the_precision_in_which_it_ran(make: Any, ran: Any, consumed: Any) -> None:
    model, given = sharp(make), inputs_of(make)
    with torch.no_grad(), cast(ran):
        own = model(**given, output_attentions=True).attentions
    with torch.no_grad(), cast(HALVES[0] if ran is None else None):
        other = model(**given, output_attentions=True).attentions
    with cast(ran):
        readings = read_attention(model, given)
    with cast(consumed):
        apart = worst_difference(readings, own)
    rounded = 0.0 if own[0].dtype == torch.float32 else torch.finfo(own[0].dtype).eps / 2  # of a probability, at most 1
    assert apart <= SINGLE + rounded
    assert max(float((a - b).abs().max()) for a, b in zip(own, other, strict=True)) > 2.0 * (SINGLE + rounded)
    assert not torch.is_autocast_enabled("cpu")


def test_gpt2_with_upcast_setting_multiplies_in_float32_under_autocast() -> None:
    model, given = sharp(tiny_gpt2), inputs_of(tiny_gpt2)
    model.config.reorder_and_upcast_attn = True
    for block in model.h:
        block.attn.reorder_and_upcast_attn = True
    with torch.no_grad(), cast(torch.bfloat16):
        own = model(**given, output_attentions=True).attentions
        assert worst_difference(read_attention(model, given), own) <= torch.finfo(torch.bfloat16).eps / 2


@pytest.mark.parametrize("make", [tiny_bert, tiny_llama])  # whose queries are rounded, or turned in float32
@pytest.mark.parametrize("dtype", HALVES)
def test_logits_multiplied_in_half_precision_are_tied_up_to_its_rounding(make: Any, dtype: Any) -> None:
    model, given = sharp(make), inputs_of(make)
    assert adapter_for(model).model.dtype == torch.float32
    plain = next(read_attention(model, given)).rounding
    with cast(dtype):
        coarse = next(read_attention(model, given)).rounding
    expected = plain * (logit_rounding(dtype) / logit_rounding(torch.float32))
    assert torch.allclose(coarse, expected, rtol=SAME_LENGTHS, atol=0.0)


def test_hidden_attention_is_refused_with_a_remedy() -> None:
    model = tiny_bert()
    model.set_attn_implementation("sdpa")
    with refused("model") as caught:
        read_attention(model, ids())
    assert "sdpa" in caught.value.got
    assert 'attn_implementation="eager"' in caught.value.remedy
    model.set_attn_implementation("eager")
    assert len(list(read_attention(model, ids()))) == 2


@pytest.mark.parametrize(
    "given",
    [
        {"attention_mask": np.ones((1, 2))},
        {"input_ids": [[1, 2, 3], [1, 2]]},
        {"input_ids": [[1, 2]], "adapter_names": ["one"]},
        {"input_ids": [1, 2, 3]},
        {"input_ids": np.zeros((2, 0), dtype=int)},
        {"inputs_embeds": np.zeros((0, 5, 16))},
        {"input_ids": [[1, 2]], "past_key_values": ()},
        {"input_ids": [[1, 2]], "attention_mask": np.ones((1, 1, 2, 2), dtype=bool)},
    ],
)
def test_a_batch_is_whole_inputs_in_arrays(given: Any) -> None:
    with refused("batch"):
        read_attention(tiny_bert(), given)


def test_missing_layers_and_heads_are_refused() -> None:
    model = tiny_bert()
    with refused("layer"):
        read_attention(model, ids(), layers=[0, 2])
    with refused("head"):
        adapter_for(model).key_query(0, 2)


def test_rotary_models_without_an_offset_have_no_matrix() -> None:
    adapter = adapter_for(tiny_llama())
    for offset in (None, 1.5):
        with pytest.raises(InputError) as refused:
            adapter.key_query(0, 0, offset)  # type: ignore[arg-type]
        assert refused.value.argument == "offset"
    assert adapter.key_query(0, 0, 0).matrix.shape == (16, 16)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_length_dependent_rotary_frequencies_use_those_of_short_texts(kind: str) -> None:
    rope = {"rope_type": kind, "factor": 2.0, "rope_theta": 100.0}
    if kind == "longrope":
        rope |= {"short_factor": [1.5, 1.2], "long_factor": [3.0, 2.0], "original_max_position_embeddings": 8}
    config = transformers.LlamaConfig(**TEXT, num_attention_heads=4, rope_parameters=rope, attn_implementation="eager")
    torch.manual_seed(0)
    model = transformers.LlamaModel(config).double().eval()
    adapter, ids = adapter_for(model), torch.arange(3, 9)[None]
    longest = adapter.longest_text
    assert longest == (8 if kind == "longrope" else config.max_position_embeddings)
    (reading, *_) = read_attention(model, {"input_ids": ids})
    assert len(list(read_attention(model, {"input_ids": ids.repeat(1, longest)}))) == 2  # other frequencies, for now
    head, x = adapter.key_query(0, 0, 2), reading.inputs[0].numpy()
    for query in range(2, 6):
        logit = x[query - 2] @ head.matrix @ x[query]
        # The model rotates in float32, so an error is relative to the vectors and not to their product.
        scale = np.linalg.norm(x[query - 2]) * np.linalg.norm(head.matrix) * np.linalg.norm(x[query])
        assert logit == pytest.approx(float(reading.logits[0, 0, query, query - 2]), rel=0.0, abs=1e-6 * scale)


def test_layers_have_the_requested_order_and_later_ones_do_not_run() -> None:
    model, calls = tiny_bert(), []
    for place, layer in enumerate(model.encoder.layer):
        layer.attention.self.register_forward_hook(lambda *_, place=place: calls.append(place))
    everything = {reading.layer: reading for reading in read_attention(model, ids())}
    assert calls == [0], "the last layer needs its inputs only"
    chosen = list(read_attention(model, ids(), layers=[1, 0, 1, 1]))
    assert [reading.layer for reading in chosen] == [1, 0, 1, 1]
    for reading in chosen:
        assert torch.equal(reading.attention, everything[reading.layer].attention)
    calls.clear()
    assert len(list(read_attention(model, ids(), layers=[0]))) == 1
    assert calls == []
    assert list(read_attention(model, ids(), layers=[])) == []


def test_several_threads_read_one_model() -> None:
    model, rng = tiny_bert(), np.random.default_rng(0)
    batches = [{"input_ids": rng.integers(1, 15, (4, 5))} for _ in range(12)]

    def logits(one: dict[str, Any]) -> list[Any]:
        return [reading.logits for reading in read_attention(model, one)]

    one_by_one = [logits(one) for one in batches]
    with ThreadPoolExecutor(4) as pool:
        for ours, expected in zip(pool.map(logits, batches), one_by_one, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(ours, expected, strict=True))
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_a_token_hidden_from_itself_by_one_head_is_not_padding() -> None:
    mask = torch.zeros((1, 2, 5, 5))
    mask[:, 0, 2, 2] = mask[:, 1, 3, 1] = mask[:, :, 4, 0] = mask[:, :, :, 3] = torch.finfo(torch.float32).min
    for reading in read_attention(tiny_bert(), {"input_ids": ids()["input_ids"][:1, :5], "attention_mask": mask}):
        expected = torch.ones((5, 5), dtype=torch.bool)
        expected[:, 3] = expected[3] = expected[4, 0] = False  # token 3 does not see itself in any head: it is padding
        assert torch.equal(reading.visible[0], expected)
        assert (reading.attention[0, :, 2, 2] > 0.0).tolist() == [False, True]


HALF = 5e-3  # of nnz/T between float16 and float32 weights; float16 has three digits


def in_training(dtype):
    """A classifier with much dropout, half of whose modules are in training mode."""
    config = tiny_bert().config
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.5
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.BertForSequenceClassification(config).to(dtype).train()
    getattr(
        model, "activation_checkpointing_enable", model.gradient_checkpointing_enable
    )()  # a newer name of transformers
    model.bert.encoder.layer[0].eval()
    return model


def state(model):
    hooks = sum(len(one._forward_pre_hooks) + len(one._forward_hooks) for one in model.modules())
    return [one.training for one in model.modules()], hooks, torch.is_grad_enabled()


def test_a_half_precision_classifier_in_training_mode_is_unchanged():
    half, single = in_training(torch.float16), in_training(torch.float32)
    before = state(half)
    found = probe_model(half, encoded(half))
    again = probe_model(half, encoded(half))  # dropout would make every run another
    assert np.array_equal(found["relative_nnz"], again["relative_nnz"])
    expected = probe_model(single, encoded(single))
    assert np.allclose(found["relative_nnz"], expected["relative_nnz"], rtol=0.0, atol=HALF)
    readings, repeated = (list(read_attention(half, ids())) for _ in range(2))
    assert all(torch.equal(a.attention, b.attention) for a, b in zip(readings, repeated, strict=True))
    assert not readings[0].attention.requires_grad
    assert state(half) == before


@pytest.mark.parametrize("problem", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_run_leaves_the_model_unchanged(problem):
    model = in_training(torch.float32)

    def stop(*arguments):
        raise problem

    handle = model.bert.encoder.layer[0].register_forward_pre_hook(stop)
    before = state(model)
    (batch,) = encoded(model, TEXTS[:1]).batches()
    with pytest.raises(problem):
        read_attention(model, batch.inputs)
    assert state(model) == before
    handle.remove()


def test_overflowing_half_precision_logits_have_statistics_without_maps():
    model = tiny_bert(sharpness=1e4).half()
    for layer in model.encoder.layer[:1]:
        layer.attention.self.key.weight.data.mul_(1e-4)
        layer.attention.self.key.bias.data.mul_(1e-4)
    with refused("model"):
        list(read_attention(model, next(iter(encoded(model).batches())).inputs))
    result = probe_model(model, encoded(model))
    assert np.isfinite(result["nnz"]).all()
    assert not any(note.code.endswith("not_finite") for note in result.notes)


def test_a_head_with_one_nan_is_named_and_others_are_unaffected():
    model, broken = tiny_bert(), tiny_bert()
    with torch.no_grad():
        name = next(
            name for name, _ in broken.named_parameters() if "layer.1" in name and name.endswith("query.weight")
        )
        dict(broken.named_parameters())[name][3, 5] = float("nan")  # rows 0 to 7 make the queries of head 0
    settings = ProbeSettings(max_margin=True, queries=1)
    sound, found = (probe_model(one, encoded(one), settings) for one in (model, broken))
    for measure in ("nnz", "frobenius", "margin_median", "decisive_share", "self_share", "contested_share"):
        whole, rest = sound[measure], found[measure]
        assert np.isnan(rest[1, 0]), measure
        rest[1, 0] = whole[1, 0]
        np.testing.assert_array_equal(rest, whole)
    assert np.isnan(found["correlation"][1, 0])
    assert np.isfinite(found["correlation"][[0, 0, 1], [0, 1, 1]]).all()
    assert found.notes[0].code == "note.weights_not_finite"
    assert found.notes[0].numbers["heads"] == ["L1H0"]
    assert str(found.notes[0]) in probe_page(found)
    with pytest.raises(InputError) as refused:
        adapter_for(broken).key_query(1, 0)
    assert refused.value.argument == "head"


def test_a_model_without_any_finite_attention_is_refused():
    model = tiny_bert()
    with torch.no_grad():
        model.embeddings.word_embeddings.weight.fill_(float("nan"))
    with pytest.raises(InputError) as refused:
        probe_model(model, encoded(model))
    assert refused.value.argument == "model"
