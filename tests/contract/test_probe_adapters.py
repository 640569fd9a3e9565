"""Every adapter: our attention against the model's own, our key-query maps against the logits, on random small models."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marginlens.errors import InputError
from marginlens.probe.models.adapters import ADAPTERS, adapter_for, supported_families
from marginlens.probe.models.loading import load_model
from marginlens.probe.models.reading import read_attention
from marginlens.testing import check_adapter
from refusals import raised
from tiny_families import MODELS, NO_FLOAT64, TEXTUAL, batch_for, small_model

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

SINGLE = 1e-5  # what is promised in float32
DOUBLE = 1e-10  # and in float64


PADDINGS = ("none", "right", "left")
WITH_ALL_MAPS = [name for name in MODELS if name != "swin"]  # whose output has one map for each stage
DOUBLES = [name for name in MODELS if name not in NO_FLOAT64]
ROTARY = [name for name in MODELS if any(name.split()[0] in kind.families for kind in ADAPTERS if kind.rotary)]
PLAIN_ROTARY = [
    "llama",
    "llama yarn, wide heads",
    "mistral",
    "gemma",
    "starcoder2",
    "qwen2",
    "gemma2 uncapped",
]
CAUSAL = [
    *ROTARY,
    *(name for name in MODELS if name.startswith("gpt2")),
    "bert decoder",
    "opt",
    "bloom",
    "clip_text_model",
]
CAUSAL.remove("modernbert")
LOCAL_LAYERS = ("gemma2", "gemma2 uncapped", "gemma3_text", "olmo3", "gpt_oss")  # all but the second
NAN_IN_DOUBLE = ("opt", "bloom", "clip", "clip_text_model")
TWO_STACKS = ("t5", "bart", "clip")  # whose layers do not all see the same tokens


def own_attention(model: Any, batch: dict[str, Any]) -> Any:
    """The attention of every layer as the model's own output has it, in the order of the adapter's layers."""
    adapter = adapter_for(model)
    inputs = adapter.complete(dict(batch))
    with torch.no_grad():
        output = model(**inputs, output_attentions=True)
    if model.config.model_type == "clip":
        return (*output.text_model_output.attentions, *output.vision_model_output.attentions)
    if getattr(output, "cross_attentions", None) is None or "decoder_attentions" not in output:
        return output.attentions
    pairs = zip(output.decoder_attentions, output.cross_attentions, strict=True)
    return (*output.encoder_attentions, *(maps for pair in pairs for maps in pair))


def worst_difference(model: Any, batch: dict[str, Any], readings: Iterable[Any] | None = None) -> float:
    """Largest difference to the model's own attention over the rows of real tokens; a NaN of either counts as infinity."""
    own, worst, n_layers = own_attention(model, batch), 0.0, 0
    for reading in readings or read_attention(model, batch):
        assert own[reading.layer].std() > 0.02, "nearly uniform attention would make the comparison easy"
        rows = reading.visible.any(dim=-1)  # (B, T)
        apart = (reading.attention - own[reading.layer]).abs().transpose(1, 2)[rows]
        worst = max(worst, math.inf if bool(apart.isnan().any()) else float(apart.max()))
        n_layers += 1
    assert n_layers == len(own)
    return worst


@pytest.mark.parametrize("name", MODELS)
def test_every_family_passes_the_adapter_contract(name: str) -> None:
    dtype = torch.float32 if name in NO_FLOAT64 else torch.float64
    check_adapter(small_model(name, dtype), batch_for(name, dtype))


@pytest.mark.parametrize("name", WITH_ALL_MAPS)
def test_attention_and_mask_equal_the_models_in_float32(name: str) -> None:
    model = small_model(name, torch.float32)
    for padding in PADDINGS if name in TEXTUAL else ("none",):
        batch = batch_for(name, torch.float32, padding)
        readings = list(read_attention(model, batch))
        assert worst_difference(model, batch, readings) <= SINGLE, padding
        if name in TEXTUAL and name.split(maxsplit=1)[0] not in TWO_STACKS:
            for reading in readings:
                assert torch.equal(reading.visible, visible_tokens(name, batch, reading.layer))
                hidden = ~reading.visible[:, None].expand(reading.logits.shape)
                hidden = hidden & reading.visible.any(-1)[:, None, :, None]
                assert bool((reading.logits[hidden] == -math.inf).all())
                assert bool((reading.attention[hidden] == 0).all())


def visible_tokens(name: str, batch: dict[str, Any], layer: int) -> Any:
    """What the tokens of a text may see in a layer, from the family's windows and the padding."""
    real = batch.get("attention_mask", torch.ones_like(batch["input_ids"])).bool()
    everything = torch.ones(11, 11, dtype=torch.bool)
    window = 99
    if name in ("mistral", "starcoder2") or (name in LOCAL_LAYERS and layer != 1):
        window = 4
    elif name == "qwen2" and layer >= 1:
        window = 3
    near = everything.triu(1 - window)
    if name == "modernbert" and layer % 2:  # three tokens on either side
        near = everything.triu(-3).tril(3)
    return real[:, :, None] & real[:, None, :] & near & (everything.tril() if name in CAUSAL else everything)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "padding"),
    [
        (name, padding)
        for name in DOUBLES
        if name in WITH_ALL_MAPS
        for padding in PADDINGS
        if padding == "none" or name in TEXTUAL
    ],
)
def test_attention_equals_the_models_in_float64(name: str, padding: str) -> None:
    model, batch = small_model(name, torch.float64), batch_for(name, torch.float64, padding)
    if any(bool(one.isnan().any()) for one in own_attention(model, batch)):
        # transformers takes the lowest float64 through a softmax in float32: a query that sees nothing becomes NaN
        assert name in (*ROTARY, *NAN_IN_DOUBLE)
        with raised(InputError, "not finite", "layer"):
            read_attention(model, batch)
        if name in NAN_IN_DOUBLE:  # which take no mask of another's
            return
        batch = with_mask_of_our_own(model, batch)
    assert worst_difference(model, batch) <= DOUBLE


def with_mask_of_our_own(model: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """The same batch with the causal mask and the padding as one mask of -1e38, which float32 can hold."""
    real = batch["attention_mask"].bool()
    seen = torch.ones(11, 11, dtype=torch.bool).tril() & real[:, None, :]
    mask = torch.zeros(seen.shape, dtype=torch.float64).masked_fill(~seen, torch.finfo(torch.float32).min)
    return {"input_ids": batch["input_ids"], "attention_mask": mask[:, None]}


@pytest.mark.parametrize("name", PLAIN_ROTARY)
def test_rotary_key_query_map_gives_the_logits_at_its_offset(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In all digits of float64, where the cosines and sines are not rounded to float32 as transformers does."""
    model = small_model(name, torch.float64)
    adapter = adapter_for(model)
    rotary = adapter.model.rotary_emb
    monkeypatch.setattr(rotary, "forward", lambda x, position_ids: _rotation(rotary, position_ids))
    for reading in read_attention(model, batch_for(name, torch.float64, "none")):
        tokens = reading.inputs.numpy()
        bias = adapter.attention_module(reading.layer).k_proj.bias
        for head, offset in ((0, 0), (1, 1), (2, 2), (3, 2)):
            map_ = adapter.key_query(reading.layer, head, offset)
            queries, keys = tokens[:, offset:], tokens[:, : 11 - offset]
            ours = np.einsum("bnx,xz,bnz->bn", keys, map_.matrix, queries) + keys @ map_.bias_column
            if bias is not None:  # constant among tokens at one offset, so that a KeyQueryMap leaves it out
                width, group = adapter.shape(0).d_head, adapter.key_head(head)
                b_K = bias.detach().numpy()[group * width : (group + 1) * width]
                rotation = adapter.rotation(reading.layer, offset)
                ours = ours + map_.scale * (queries @ map_.W_Q + map_.b_Q) @ rotation.T @ b_K
            own = np.diagonal(reading.logits[:, head].numpy(), -offset, axis1=1, axis2=2)
            assert np.abs(own - ours).max() <= DOUBLE * np.abs(own).max()


def _rotation(rotary: Any, position_ids: Any) -> tuple[Any, Any]:
    angles = position_ids[..., None].double() * rotary.inv_freq.double()
    doubled = torch.cat((angles, angles), dim=-1)
    return doubled.cos() * rotary.attention_scaling, doubled.sin() * rotary.attention_scaling


def test_a_learned_sink_takes_the_missing_attention() -> None:
    model, batch = small_model("gpt_oss", torch.float32), batch_for("gpt_oss", torch.float32, "left")
    for reading, own in zip(read_attention(model, batch), own_attention(model, batch), strict=True):
        rows = reading.visible.any(dim=-1)[:, None].expand(reading.sink.shape)
        lacking = (1.0 - own.sum(dim=-1))[rows]
        assert float((reading.sink[rows] - lacking).abs().max()) <= SINGLE
        assert float(lacking.min()) > 0.0
        assert float(lacking.std()) > 0.02  # else to read a constant would do
    (llama, *_) = read_attention(small_model("llama", torch.float32), batch_for("llama", torch.float32))
    assert llama.sink is None


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_grouped_keys_are_repeated_to_their_query_heads(name: str) -> None:
    model = small_model(name, torch.float32)
    adapter = adapter_for(model)
    assert [adapter.key_head(head) for head in range(4)] == [0, 0, 1, 1]
    reading = next(read_attention(model, batch_for(name, torch.float32, "none")))
    assert reading.keys.shape == reading.queries.shape == (3, 4, 11, 6)
    assert torch.equal(reading.keys[:, 0], reading.keys[:, 1])
    assert not torch.equal(reading.keys[:, 1], reading.keys[:, 2])


def test_every_family_is_checked_here() -> None:
    models = [small_model(name, torch.float32) for name in MODELS]
    assert {model.config.model_type for model in models} == set(supported_families())
    assert {type(adapter_for(model)) for model in models} == set(ADAPTERS)


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_the_guide_lists_every_family_with_its_adapter(adapter: type) -> None:
    guide = (Path(__file__).resolve().parents[2] / "docs/adapters.md").read_text(encoding="utf-8")
    (row,) = (
        line.split("|") for line in guide.splitlines() if line.startswith("| `") and f"`{adapter.__name__}`" in line
    )
    assert set(adapter.families) <= set(row[2].replace(" ", "").split(","))


# ---- the real weights of MiniLM


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", SINGLE), ("float64", DOUBLE)])
def test_minilm_with_real_weights_passes_the_adapter_contract(dtype: str, tolerance: float) -> None:
    loaded = load_model("minilm")
    model = loaded.model.to(getattr(torch, dtype))
    texts = ["A tall tower of wood.", "He paid; she laughed, and they both went home late in the rain.", "Yes"]
    encoded = loaded.tokenizer(texts, padding=True, return_tensors="pt")
    batch = {"input_ids": encoded["input_ids"], "attention_mask": encoded["attention_mask"]}
    assert int(batch["attention_mask"].min()) == 0
    assert worst_difference(model, batch) <= tolerance
