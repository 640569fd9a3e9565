"""Attention read under autocast is that of the precision in which the model ran, wherever the readings are consumed."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from marginlens.probe.models.adapters import adapter_for
from marginlens.probe.models.adapters.base import logit_rounding
from marginlens.probe.models.reading import read_attention
from tiny_transformers import tiny_bert, tiny_gpt2, tiny_llama, tiny_vit

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a processor without bfloat16 emulates it

SINGLE = 1e-5  # the project's bar for float32
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


def batch(make: Any) -> dict[str, Any]:
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
    model, given = sharp(make), batch(make)
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


def test_an_autocast_that_the_model_enters_itself() -> None:
    model, given = sharp(tiny_bert), batch(tiny_bert)
    model.forward = torch.autocast("cpu", dtype=torch.bfloat16)(model.forward)  # as mixed precision wraps a model
    with torch.no_grad():
        own = model(**given, output_attentions=True).attentions
    assert worst_difference(read_attention(model, given), own) <= SINGLE


def test_gpt2_multiplies_in_float32_under_autocast_where_it_says_so() -> None:
    model, given = sharp(tiny_gpt2), batch(tiny_gpt2)
    model.config.reorder_and_upcast_attn = True
    for block in model.h:
        block.attn.reorder_and_upcast_attn = True
    with torch.no_grad(), cast(torch.bfloat16):
        own = model(**given, output_attentions=True).attentions
        assert worst_difference(read_attention(model, given), own) <= torch.finfo(torch.bfloat16).eps / 2


@pytest.mark.parametrize("make", [tiny_bert, tiny_llama])  # whose queries are rounded, or turned in float32
@pytest.mark.parametrize("dtype", HALVES)
def test_logits_multiplied_in_half_precision_are_tied_up_to_its_rounding(make: Any, dtype: Any) -> None:
    model, given = sharp(make), batch(make)
    assert adapter_for(model).model.dtype == torch.float32
    plain = next(read_attention(model, given)).rounding
    with cast(dtype):
        coarse = next(read_attention(model, given)).rounding
    expected = plain * (logit_rounding(dtype) / logit_rounding(torch.float32))
    assert torch.allclose(coarse, expected, rtol=SAME_LENGTHS, atol=0.0)
