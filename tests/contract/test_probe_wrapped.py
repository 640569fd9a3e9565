"""Projections that are no plain linear layers: W is what they compute, or there is none and one sentence says why."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from marginlens.errors import InputError
from marginlens.probe.models.adapters import adapter_for
from marginlens.probe.models.adapters.base import AFFINE_RTOL, affine_map, is_plain
from marginlens.probe.models.reading import read_attention
from marginlens.probe.result import ProbeSettings
from marginlens.probe.run import probe_model
from refusals import raised
from tiny_transformers import encoded, tiny_bert, tiny_gpt2, tiny_llama, tiny_vit

torch = pytest.importorskip("torch")
nn = torch.nn

BARS = {torch.float32: 1e-5, torch.float64: 1e-10}  # the adapters' own bars, relative to the logits
MEASURED = 1e-12  # entries of W in float64, measured against the weights that they are made of
HALF = 2e-3  # of W in float16, which has three digits, relative to W as a whole
FAMILIES: dict[str, Callable[[], Any]] = {
    "bert": tiny_bert,
    "vit": tiny_vit,
    "gpt2": tiny_gpt2,
    "llama": tiny_llama,
}


class Lora(nn.Module):
    """A projection and beside it a scaled product of low rank, behind dropout, as adapters for fine-tuning add it."""

    def __init__(self, base: Any, seed: int = 0, rank: int = 2, scale: float = 1.5) -> None:
        super().__init__()
        weight = matrix_of(base)
        generator = torch.Generator().manual_seed(seed)
        down, up = (
            torch.randn(size, generator=generator).to(weight) for size in ((rank, len(weight)), (weight.shape[1], rank))
        )
        self.base, self.scale, self.dropout = base, scale, nn.Dropout(0.5)
        self.down, self.up = nn.Parameter(0.3 * down), nn.Parameter(0.3 * up)
        self.weight, self.bias = base.weight, base.bias  # what a reader of weights alone would find

    def forward(self, x: Any) -> Any:
        return self.base(x) + self.scale * (self.dropout(x) @ self.down.T @ self.up.T)

    @property
    def matrix(self) -> Any:
        return (matrix_of(self.base) + self.scale * (self.up @ self.down).T).detach()


class Packed(nn.Module):
    """A projection as 8-bit numbers with a factor, whose weight is a method, as quantised layers have it."""

    def __init__(self, base: Any, *, rounds_inputs: bool = False) -> None:
        super().__init__()
        weight = matrix_of(base).detach()
        self.factor = float(weight.abs().max()) / 127.0
        self.register_buffer("packed", torch.round(weight / self.factor).to(torch.int8))
        self.register_buffer("offset", weight.new_zeros(weight.shape[1]) if base.bias is None else base.bias.detach())
        self.rounds_inputs = rounds_inputs

    def weight(self) -> Any:
        return self.packed

    def forward(self, x: Any) -> Any:
        if self.rounds_inputs:
            step = (x.max() - x.min()).clamp(min=1e-12) / 255.0
            x = torch.round(x / step) * step
        return x @ (self.packed.to(x) * self.factor) + self.offset.to(x)


class Bent(nn.Module):
    """A projection followed by something that is not linear, in some of its outputs."""

    def __init__(self, base: Any, outputs: slice = slice(None), bend: Callable[[Any], Any] = torch.tanh) -> None:
        super().__init__()
        self.base, self.outputs, self.bend = base, outputs, bend

    def forward(self, x: Any) -> Any:
        made = self.base(x).clone()
        made[..., self.outputs] = self.bend(made[..., self.outputs])
        return made


def matrix_of(base: Any) -> Any:
    """(d_in, d_out) of a plain layer."""
    return (base.weight.T if isinstance(base, nn.Linear) else base.weight).detach()


def replaced(model: Any, make: Callable[[Any], Any]) -> Any:
    """The model with every query and key projection replaced."""
    adapter = adapter_for(model)
    for layer in range(adapter.n_layers):
        module = adapter.attention_module(layer)
        for name in adapter.projections:
            setattr(module, name, make(getattr(module, name)))
    return model


def batch_for(model: Any) -> dict[str, Any]:
    if model.config.model_type == "vit":
        return {"pixel_values": torch.randn((3, 1, 6, 6), generator=torch.Generator().manual_seed(1)).to(model.dtype)}
    return {"input_ids": torch.tensor([[2, 5, 6, 7, 8, 9, 3], [2, 9, 11, 5, 12, 6, 3]])}


def logits_of_maps(model: Any, reading: Any, head: int) -> tuple[Any, Any]:
    """The logits of one head as its key-query maps give them, (B, T, T), and the model's own, where a token is visible."""
    adapter, tokens = adapter_for(model), reading.inputs.double().numpy()
    n = tokens.shape[1]
    ours = np.zeros((len(tokens), n, n))
    for offset in range(1 - n, n) if adapter.rotary else (None,):
        map_ = adapter.key_query(reading.layer, head, offset)
        made = (tokens @ (map_.matrix @ tokens.transpose(0, 2, 1) + map_.bias_column[:, None])).transpose(0, 2, 1)
        at = np.ones((n, n), dtype=bool) if offset is None else np.subtract.outer(np.arange(n), np.arange(n)) == offset
        ours[:, at] = made[:, at]
    seen = reading.visible.numpy()
    return np.where(seen, ours, np.nan), np.where(seen, reading.logits[:, head].double().numpy(), np.nan)


def disagreement(model: Any) -> float:
    """How far logits from W are from the model's own, up to a constant of the query, relative to the logits; NaN counts as infinity."""
    worst = 0.0
    for reading in read_attention(model, batch_for(model)):
        for head in range(adapter_for(model).n_heads):
            ours, own = logits_of_maps(model, reading, head)
            apart = own - ours
            spread = np.nanmax(apart, axis=-1) - np.nanmin(apart, axis=-1)
            found = float(spread.max() / np.nanmax(np.abs(own)))
            worst = max(worst, math.inf if math.isnan(found) else found)
    return worst


def own_difference(model: Any) -> float:
    """How far the attention that is read is from the model's own."""
    with torch.no_grad():
        own = model(**batch_for(model), output_attentions=True).attentions
    return max(float((one.attention - own[one.layer]).abs().max()) for one in read_attention(model, batch_for(model)))


@pytest.mark.parametrize("dtype", BARS)
@pytest.mark.parametrize("wrap", [Lora, Packed, lambda plain: plain])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_from_w_equal_the_models(family: str, wrap: Any, dtype: Any) -> None:
    model = replaced(FAMILIES[family]().to(dtype), wrap).eval()
    assert own_difference(model) <= BARS[dtype]
    rotary_in_single = 1e-5 if family == "llama" else 0.0  # transformers rounds cosines and sines to float32
    assert disagreement(model) <= max(BARS[dtype], rotary_in_single)


# ---- what else may stand around a linear layer


def doubled_by_a_hook(layer: Any) -> None:
    layer.register_forward_hook(lambda module, args, output: 2.0 * output)


def parametrised(layer: Any) -> None:
    class Doubled(nn.Module):
        def forward(self, weight: Any) -> Any:
            return 2.0 * weight

    nn.utils.parametrize.register_parametrization(layer, "weight", Doubled())


def another_forward(layer: Any) -> None:
    layer.forward = lambda x: 2.0 * nn.functional.linear(x, layer.weight, layer.bias)


@pytest.mark.parametrize("change", [doubled_by_a_hook, parametrised, another_forward])
def test_a_wrapped_linear_layer_is_not_plain(change: Callable[[Any], None]) -> None:
    layer = nn.Linear(6, 4, dtype=torch.float64)
    expected = 2.0 * layer.weight.T.detach().clone()
    assert is_plain(layer)
    change(layer)
    assert not is_plain(layer)
    found = affine_map(layer, 6, "layer", torch.empty(0, dtype=torch.float64))
    assert float((found.W - expected).abs().max()) <= MEASURED


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float16, HALF)])
def test_a_large_bias_keeps_the_digits_of_w(dtype: Any, tolerance: float) -> None:
    layer = nn.Linear(32, 16)
    with torch.no_grad():
        layer.weight.mul_(0.05)
        layer.bias.copy_(torch.linspace(-3.0, 3.0, 16))
    layer = layer.to(dtype)
    expected = layer.weight.T.detach().double()
    layer.register_forward_hook(lambda module, args, output: output)
    found = affine_map(layer, 32, "layer", torch.empty(0, dtype=dtype))
    assert float((found.W - expected).norm() / expected.norm()) <= tolerance


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_a_quantized_torch_layer_is_measured() -> None:
    from torch.ao.nn.quantized.dynamic import Linear

    supported = [one for one in ("onednn", "qnnpack") if one in torch.backends.quantized.supported_engines]
    before = torch.backends.quantized.engine
    weight = torch.randn((24, 32), generator=torch.Generator().manual_seed(0))
    try:
        torch.backends.quantized.engine = supported[0]
        layer = Linear(32, 24)
        packed = torch.quantize_per_tensor(weight, float(weight.abs().max()) / 127.0, 0, torch.qint8)
        layer.set_weight_bias(packed, torch.ones(24))
        found = affine_map(layer, 32, "layer", torch.empty(0))
    finally:
        torch.backends.quantized.engine = before
    assert float((found.W - packed.dequantize().T.double()).abs().max()) <= 1e-5
    assert found.deviation is not None
    assert 1e-3 < found.deviation < AFFINE_RTOL  # its inputs are rounded to eight bits


# ---- what has no W


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_a_projection_that_is_not_affine_is_refused_by_name(family: str) -> None:
    model = replaced(FAMILIES[family](), Bent)
    where = {"bert": "encoder.layer.1.attention.self.query", "gpt2": "h.1.attn.c_attn"}[family]
    with raised(InputError, where, "Bent", "affine map"):
        adapter_for(model).key_query(1, 0)
    assert own_difference(model) <= BARS[torch.float64]  # attention can still be read


def clipped(x: Any) -> Any:
    return x.clamp(-4.0, 4.0)


def noisy(x: Any) -> Any:
    return x + torch.randn_like(x)


def along_the_text(x: Any) -> Any:
    return x + x.roll(1, dims=-2)


@pytest.mark.parametrize(
    ("module", "why"),
    [
        *((Bent(nn.Linear(8, 8), bend=bend), "misses the affine map") for bend in (clipped, noisy, along_the_text)),
        (Bent(nn.Linear(8, 8), bend=torch.log), "gives numbers that are not finite"),
        (nn.Flatten(), "one vector for each token"),
    ],
)
def test_projections_affine_only_at_unit_vectors_are_refused(module: Any, why: str) -> None:
    with raised(InputError, type(module).__name__, why):
        affine_map(module, 8, "layer", torch.empty(0))


def test_changes_of_values_do_not_matter() -> None:
    model = tiny_gpt2()
    expected = adapter_for(model).key_query(0, 1).matrix
    replaced(model, lambda base: Bent(base, slice(32, 48)))
    assert np.abs(adapter_for(model).key_query(0, 1).matrix - expected).max() <= MEASURED


# ---- a whole probe


def test_a_probe_measures_what_wrapped_heads_compute() -> None:
    wrapped, merged = replaced(tiny_bert(), Lora), tiny_bert()
    for layer in range(2):
        to, made = (adapter_for(model).attention_module(layer) for model in (merged, wrapped))
        with torch.no_grad():
            for name in ("query", "key"):
                getattr(to, name).weight.copy_(getattr(made, name).matrix.T)
    asked = ProbeSettings(max_margin=True, queries=2)
    found, expected = (probe_model(model, encoded(model), asked) for model in (wrapped.train(), merged))
    for name in (
        "frobenius",
        "spectral",
        "nuclear",
        "nnz",
        "margin_median",
        "correlation",
        "margin_ratio",
        "low_ratio",
    ):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-6, atol=0.0, err_msg=name)
    assert all(module.training for module in wrapped.modules())
    assert found.notes[0].code == "note.measured_maps"
    assert (found.notes[0].numbers["n_layers"], found.notes[0].numbers["case"]) == (2, "rounding")
    assert "note.measured_maps" not in [note.code for note in expected.notes]


def test_a_probe_reports_the_accuracy_of_a_measured_w() -> None:
    model = tiny_bert()
    rough = adapter_for(model).attention_module(1)
    rough.query = Packed(rough.query, rounds_inputs=True)
    deviation = adapter_for(model).layer_maps(1).deviation
    assert 1e-3 < deviation < AFFINE_RTOL
    (note,) = (note for note in probe_model(model, encoded(model)).notes if note.code == "note.measured_maps")
    assert (note.numbers["n_layers"], note.numbers["case"]) == (1, "approximate")
    assert note.numbers["deviation"] == deviation
