"""Probe a model: run it over a user's inputs once, and measure every attention head on the way."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from marginlens.data.tokens import BoolArray, FloatArray
from marginlens.errors import InputError, reject
from marginlens.probe.example_maps import ExampleMaps
from marginlens.probe.models.adapters import Adapter, adapter_for
from marginlens.probe.models.inputs import Inputs, as_inputs, as_loaded, check_length
from marginlens.probe.models.reading import InputBatch, LayerReading, finite_heads, read_attention
from marginlens.probe.models.text_inputs import TextInputs
from marginlens.probe.pages.findings import head_name
from marginlens.probe.result import ProbeResult
from marginlens.probe.run_margins import probe_margins, selections
from marginlens.probe.run_preferences import KeptSelections
from marginlens.probe.running import RunningMeasures
from marginlens.probe.settings import ProbeSettings
from marginlens.runtime.progress import Progress, Silence

_NORMS = ("frobenius", "spectral", "nuclear")
_ROUNDED = 1e-4  # deviation of a measured W from what a module computes, up to which it is that of single precision


def probe_model(
    model: Any, inputs: Any, settings: ProbeSettings | None = None, *, progress: Progress | None = None
) -> ProbeResult:
    """Measure every attention head of a model on a set of inputs.

    The model runs batch by batch, and of each batch only sums are kept, so that memory does not grow with the number of inputs.

    Args:
        model: a loaded Hugging Face model with attn_implementation="eager", or what `load_model` gave.
        inputs: what `encode_texts` or `prepare_images` gave; with a model from `load_model` also plain texts or images.
        settings: see `ProbeSettings`.
        progress: told how far it is.
    Returns:
        Arrays over layers and heads, and a few inputs with their attention. To check it: `read_attention` gives the maps of a batch,
        `soft_sparsity` and the others the numbers of these.
    """
    asked, watch = settings or ProbeSettings(), progress or Silence()
    loaded = as_loaded(model)
    adapter, given = adapter_for(loaded.model), as_inputs(loaded, inputs)
    check_length(given, adapter.n_heads)
    began = time.perf_counter()
    watch.expect(probe_units(loaded.model, given, asked))
    size = (adapter.n_layers, adapter.n_heads)
    sums, examples, kept = (
        RunningMeasures(*size),
        ExampleMaps(given, asked, size[0] * size[1]),
        KeptSelections(given, *size),
    )
    norms, notes, weights_finite = _norms(adapter, asked.offset)
    for batch in given.batches():
        for reading in read_attention(loaded.model, batch.inputs, allow_nan=True):
            _measure(reading, batch, (sums, examples, kept))
        watch.advance(len(batch.index))
    if not sums.n_queries.any():
        raise reject("inputs", "inputs with at least two tokens each", "none in which a query sees two")
    measured = sums.measured
    if not measured.any():
        raise InputError(
            "No head can be measured: the model's attention is not finite in any layer. Its weights are not finite, or overflow in half "
            "precision (give it float32 weights)."
        )
    notes += _unmeasured(measured, weights_finite)
    preferences, graphs, shares = kept.finished(asked.preferences, measured)
    if preferences and kept.count < len(given):
        notes += (f"What heads prefer over what is counted on the first {kept.count} inputs.",)
    elif asked.preferences and not preferences:
        notes += ("What heads prefer over what is left out: it takes two inputs, and they must not be very long.",)
    found = None
    if asked.max_margin:
        found, more = probe_margins(loaded.model, given, asked, watch, measured)
        notes += more
    if isinstance(given, TextInputs) and given.n_truncated:
        cut = "1 text was" if given.n_truncated == 1 else f"{given.n_truncated} texts were"
        notes += (f"{cut} cut to the {given.max_tokens} tokens that the model can read.",)
    return ProbeResult(
        model=loaded.name,
        family=str(loaded.model.config.model_type),
        n_inputs=len(given),
        n_queries=int(sums.n_queries[0]),
        mean_tokens=float(sums.n_seen.sum() / sums.n_queries.sum()),
        heads=sums.finished({**norms, **shares}),
        margins=sums.margins,
        settings=asked,
        w_offset=asked.offset if adapter.rotary else None,
        max_margin=found,
        examples=examples.finished(),
        preferences=preferences,
        graphs=graphs,
        notes=notes,
        seconds=time.perf_counter() - began,
    )


def probe_units(model: Any, inputs: Inputs, settings: ProbeSettings) -> int:
    """How many units of work a probe tells its progress: one for each input, and one for each head of the max-margin part."""
    adapter = adapter_for(model)
    return len(inputs) + (adapter.n_layers * adapter.n_heads if settings.max_margin else 0)


def head_norms(adapter: Adapter, offset: int | None = None) -> tuple[dict[str, FloatArray], tuple[str, ...]]:
    """Frobenius, spectral and nuclear norm of every head's W, (n_layers, n_heads) each, and what there is to say about them.

    nan where positions are rotary and no `offset` is given at which to take W, and where a head's weights are not finite.
    """
    norms, notes, _ = _norms(adapter, offset)
    return norms, notes


def _norms(adapter: Adapter, offset: int | None) -> tuple[dict[str, FloatArray], tuple[str, ...], BoolArray]:
    """What `head_norms` gives, and (n_layers, n_heads) whose weights are finite, as far as they were looked at."""
    finite = np.ones((adapter.n_layers, adapter.n_heads), dtype=bool)
    norms = {name: np.full((adapter.n_layers, adapter.n_heads), np.nan) for name in _NORMS}
    notes: tuple[str, ...] = ()
    if adapter.rotary:
        if offset is None:
            return (
                norms,
                (
                    "W has no norms here: rotary positions give this model a key-query matrix for every offset of query and key, but none "
                    "that is free of positions. State an offset to have W measured there.",
                ),
                finite,
            )
        notes = (f"W and its norms are those at offset {offset}, query position minus key position.",)
    elif offset is not None:
        notes = (
            f"The offset {offset} is without effect: this model has no rotary positions, and one W for all offsets.",
        )
    deviations = []
    with threadpool_limits(1, user_api="blas"):  # factors of this size are not worth a second thread
        for layer in range(adapter.n_layers):
            maps = adapter.layer_maps(layer, offset)
            finite[layer] = [head is not None for head in maps.heads]
            for name in _NORMS:
                norms[name][layer] = [np.nan if head is None else getattr(head, name) for head in maps.heads]
            deviations += [] if maps.deviation is None else [maps.deviation]
    return norms, (*notes, *_measured(deviations, adapter.n_layers)), finite


def _unmeasured(measured: BoolArray, weights_finite: BoolArray) -> tuple[str, ...]:
    """Which heads have no numbers, and why: weights that are not finite, what a layer reads, or the head's logits."""
    notes = []
    bad_weights = np.argwhere(~weights_finite).tolist()
    if bad_weights:
        notes.append(
            f"{_named(bad_weights)}: weights that are not finite (nan or infinity), so that nothing is measured."
        )
    whole = [layer for layer in range(len(measured)) if not measured[layer].any() and weights_finite[layer].any()]
    if whole:
        layers = f"Layer {whole[0]}" if len(whole) == 1 else f"Layers {', '.join(map(str, whole))}"
        notes.append(
            f"{layers}: what the heads read, or all their logits, are not finite, as after a layer with such weights; only the norms "
            "of W are measured."
        )
    others = [at for at in np.argwhere(~measured & weights_finite).tolist() if at[0] not in whole]
    if others:
        notes.append(
            f"{_named(others)}: attention that is not finite, perhaps from overflow in half precision; not measured."
        )
    return tuple(notes)


def _named(heads: list[list[int]]) -> str:
    names = [head_name(layer, head) for layer, head in heads]
    return f"Head {names[0]}" if len(names) == 1 else f"Heads {', '.join(names)}"


def _measured(deviations: list[float], n_layers: int) -> tuple[str, ...]:
    """What there is to say where W could not be read from weights."""
    if not deviations:
        return ()
    worst = max(deviations)
    accuracy = "up to rounding" if worst < _ROUNDED else f"to within {worst:.1%}"
    return (
        f"In {len(deviations)} of {n_layers} layers queries or keys do not come from plain weights, but from modules that are wrapped, "
        f"quantised or hooked: W is measured there from what these compute, which it gives {accuracy}.",
    )


Parts = tuple[RunningMeasures, ExampleMaps, KeptSelections]


def _measure(reading: LayerReading, batch: InputBatch, parts: Parts) -> None:
    """Hand what one layer computed on one batch to everything that is kept of it."""
    sums, examples, kept = parts
    visible = reading.visible.cpu().numpy()
    chosen = selections(reading)
    attention = reading.attention.detach().cpu().double().numpy()
    finite = finite_heads(reading)
    if not finite.all():
        attention = np.where(finite[:, None, None], attention, 0.0)
    sums.add(reading.layer, attention, visible, chosen)
    examples.add(reading.layer, batch, attention, chosen)
    kept.add(reading.layer, batch, visible, chosen)


__all__ = ["Inputs", "head_norms", "probe_model", "probe_units"]
