"""Probe a model, or the checkpoints of a training run: run it on a user's inputs and measure every attention head."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from marginlens.errors import InputError
from marginlens.probe.accumulators import (
    ExampleMaps,
    LayerNumbers,
    LayerTokens,
    MeasureSums,
    SelectionRecorder,
    SinkRecorder,
)
from marginlens.probe.heads.max_margin import (
    SAME_TOKEN_RTOL,
    HeadMargin,
    MaxMarginSettings,
    QuerySample,
    layer_margins,
    sample_queries,
    selected_tokens,
)
from marginlens.probe.measures import BASELINES, MAX_MARGIN_GROUPS, NEGLIGIBLE
from marginlens.probe.models.adapters import GUIDE, Adapter
from marginlens.probe.models.adapters.attention_only import AttentionOnlyAdapter
from marginlens.probe.models.adapters.base import LEFT_OUT, LayerKind, LayerReading, logit_rounding
from marginlens.probe.models.inputs import Inputs, check_memory
from marginlens.probe.models.loading import (
    FUSED,
    LoadedModel,
    as_inputs,
    as_loaded,
    attention_implementation,
    load_model,
    tower_for,
)
from marginlens.probe.models.reading import adapter_of_batch, fused_reading, read_layers
from marginlens.probe.result import CheckpointCurves, ProbeResult, ProbeSettings
from marginlens.runtime.model_folders import checkpoint_folders, step_and_name
from marginlens.runtime.progress import ProgressCallback, as_progress
from marginlens.runtime.threads import single_blas_thread
from marginlens.status import Status
from marginlens.typing import ArrayLike, BoolArray, FloatArray, IntArray
from marginlens.words import Fact

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NORMS = ("frobenius", "spectral", "nuclear")
_MAX_READ_BYTES = 2**28  # of what layers read, in memory at a time: all layers of a model for a few short inputs
_SINGLE_PRECISION_RTOL = 1e-4  # deviation of a measured W from what a module computes that rounding explains
_MAX_CHECKED_TOKENS = 64  # of the input on which a reading is compared with the model's own attention
# The text of why a head has no correlation, by the status of its SVM.
_NO_SOLUTION = {Status.INFEASIBLE: "infeasible", Status.INACCURATE: "inaccurate", Status.TRIVIAL: "trivial"}
# Notes that count heads: curves have one note for all checkpoints together instead.
_NOTES_OF_HEADS = ("note.no_solution", "note.ties")


def probe_model(
    model: PreTrainedModel | LoadedModel,
    inputs: Inputs | ArrayLike,
    settings: ProbeSettings | None = None,
    *,
    progress: ProgressCallback | None = None,
) -> ProbeResult:
    """Measure every attention head of a model on a set of inputs.

    The model runs batch by batch and only sums are kept, so memory does not grow with the number of inputs.

    Args:
        model: a loaded Hugging Face model, or the result of `load_model`, with any attention implementation; it is left
            unchanged. The reading of its layers is compared once with its own attention on a short input. If torch's fused
            attention gives the same reading, it is used, and maps of tokens by tokens are computed only for the examples;
            otherwise "eager" is used.

        inputs: the result of `encode_texts` or `prepare_images`; with a model from `load_model` also plain texts or images.

        settings: see `ProbeSettings`.

        progress: called as `progress(done, total)`.

    Returns:
        Arrays over layers and heads, and a few inputs with their attention. To check them, use `read_attention` for the maps of
        a batch, and `soft_sparsity` and the like for their measures.

    Examples:
        >>> from marginlens.data import write_samples
        >>> from marginlens.probe import load_model, probe_model, read_texts
        >>> written = write_samples("samples")
        >>> texts = read_texts("samples/sentences.txt")[:20]
        >>> result = probe_model(load_model("samples/tiny-model"), texts)
        >>> print(result.kinds)
        [['previous' 'next' 'first' 'same']
         ['separator' 'even' 'content' 'content']]
        >>> print(result.shown[0].title, result["relative_nnz"].shape)
        nnz/T (2, 4)
    """
    with readable(model, inputs) as found:
        return _probe(found, settings or ProbeSettings(), progress)


class Readable(NamedTuple):
    """A model whose layers can be read, the part of it that reads the inputs, and its adapter."""

    loaded: LoadedModel
    network: PreTrainedModel
    adapter: Adapter
    inputs: Inputs


@contextmanager
def readable(model: PreTrainedModel | LoadedModel, inputs: Inputs | ArrayLike) -> Iterator[Readable]:
    """Return the model with an attention implementation that can be read: fused, after a comparison with its own maps on a
    short input, or eager.
    """
    with attention_implementation(model, "eager"):
        loaded = as_loaded(model)
        data = as_inputs(loaded, inputs)
        network = tower_for(loaded.model, data)
        shortest = _short(next(data.subset([int(np.argmin(data.lengths))]).batches()).inputs)
        adapter = adapter_of_batch(network, shortest)
    is_fused = fused_reading(adapter, loaded.model, shortest)
    if not is_fused:
        check_memory(data, adapter.n_heads)
    with attention_implementation(loaded.model, FUSED if is_fused else "eager"):
        yield Readable(loaded, network, adapter, data)


def _short(inputs: Mapping[str, npt.NDArray[np.generic]]) -> dict[str, npt.NDArray[np.generic]]:
    """Return the first tokens of a batch of texts; images as they are."""
    ids = inputs.get("input_ids")
    if ids is None or np.ndim(ids) != 2:
        return dict(inputs)
    n_tokens = np.shape(ids)[1]
    return {
        name: value[:, :_MAX_CHECKED_TOKENS] if np.ndim(value) >= 2 and np.shape(value)[1] == n_tokens else value
        for name, value in inputs.items()
    }


class _Recorded(NamedTuple):
    """The record of one run of a model over all inputs."""

    sums: MeasureSums
    examples: ExampleMaps
    selections: SelectionRecorder
    sinks: SinkRecorder
    # Whether layers attend to the tokens of an input, so that examples, sinks and preferences have names.
    has_maps: bool


def _probe(found: Readable, options: ProbeSettings, progress: ProgressCallback | None) -> ProbeResult:
    """Probe a model whose layers can be read; see `probe_model`."""
    began = time.perf_counter()
    loaded, network, adapter, data = found
    n_layers, n_heads = adapter.n_layers, adapter.n_heads
    total = len(data) + (n_layers * n_heads if options.max_margin else 0)
    report = as_progress(progress) or (lambda done, total: None)
    norms, notes, has_finite_weights = head_norms(adapter, options.offset)
    recorded = _recorded(found, options, lambda done: report(done, total))
    sums, has_maps = recorded.sums, recorded.has_maps
    is_head = np.arange(n_heads) < np.array([[adapter.shape(layer).n_heads] for layer in range(n_layers)])
    notes += _notes_on_missing_heads(sums.is_finite | ~is_head, has_finite_weights)
    n_rows = options.preferences if has_maps else 0
    preferences, graphs, shares = recorded.selections.preferences(n_rows, sums.is_finite)
    notes += _notes_on_parts(found, options, recorded, has_preferences=bool(preferences))
    separated: dict[str, FloatArray] = {}
    if options.max_margin:
        separated, more = max_margin_measures(
            adapter, data, options, sums.is_finite, lambda done: report(len(data) + done, total)
        )
        notes += more
    if data.n_truncated:
        notes.append(Fact("note.truncated", {"count": data.n_truncated, "max_tokens": data.max_tokens}))
    return ProbeResult(
        model=loaded.name,
        family=str(network.config.model_type),
        n_inputs=len(data),
        n_queries=int(sums.n_queries[0]),
        mean_tokens=float(sums.n_visible.sum() / sums.n_queries.sum()),
        measures={**sums.measures(), **norms, **shares, **separated},
        margins=sums.margins,
        settings=options,
        w_offset=options.offset if adapter.rotary else None,
        examples=recorded.examples.examples() if has_maps else (),
        preferences=preferences,
        graphs=graphs,
        notes=tuple(notes),
        sinks=recorded.sinks.sinks() if has_maps else (),
        head_sinks=recorded.sinks.head_sinks() if has_maps else {},
        layer_names=adapter.layer_names,
        weights_missing=str(adapter.reason) if isinstance(adapter, AttentionOnlyAdapter) else "",
        seconds=time.perf_counter() - began,
    )


def _recorded(found: Readable, options: ProbeSettings, report: Callable[[int], None]) -> _Recorded:
    """Run the model batch by batch, and sum up the measures of its layers."""
    adapter, data = found.adapter, found.inputs
    tokens, sums = LayerTokens(data, adapter), MeasureSums(adapter.n_layers, adapter.n_heads)
    examples, selections, sinks = ExampleMaps(tokens, options), SelectionRecorder(tokens), SinkRecorder(tokens)
    has_maps, done = tokens.are_known, 0
    report(done)
    for batch in data.batches():
        for reading in read_layers(adapter, batch.inputs):
            if has_maps and reading.layer == 0:  # else layers see other tokens than the input's
                has_maps = reading.grouped_keys.shape[2] == max(map(len, batch.tokens))
            names = tokens.of_batch(reading.layer, batch, reading.kind) if has_maps else None
            measured = LayerNumbers(reading, tuple(NEGLIGIBLE), names)
            sums.add(measured, names)
            if has_maps:
                for recorder in (examples, sinks, selections):
                    recorder.add(measured, batch)
        done += len(batch.index)
        report(done)
    if not sums.n_queries.any():
        raise InputError("inputs", "inputs with at least two tokens each", "none in which a query sees two")
    if not sums.is_finite.any():
        raise InputError(
            "model",
            "a model whose attention is finite in some layer",
            "attention that is finite in none",
            "Its weights are not finite, or overflow in half precision: give it float32 weights.",
        )
    return _Recorded(sums, examples, selections, sinks, has_maps)


def _notes_on_parts(
    found: Readable, options: ProbeSettings, recorded: _Recorded, *, has_preferences: bool
) -> list[Fact]:
    """Note which parts of the model, and which parts of the result, are left out."""
    notes, adapter = [], found.adapter
    if adapter.reads_weights and any(LEFT_OUT in name for name, _ in adapter.model.named_modules()):
        notes.append(Fact("note.without_cross"))
    if not recorded.has_maps:
        notes.append(Fact("note.without_maps"))
    elif has_preferences and recorded.selections.count < len(found.inputs):
        notes.append(Fact("note.preferences_of_first_inputs", {"count": recorded.selections.count}))
    elif options.preferences and not has_preferences:
        notes.append(Fact("note.no_preferences"))
    return notes


def head_norms(adapter: Adapter, offset: int | None = None) -> tuple[dict[str, FloatArray], list[Fact], BoolArray]:
    """Compute Frobenius, spectral and nuclear norm of every head's W, what there is to say about them, and whose weights are finite.

    The norms are nan if positions are rotary and no `offset` is given, or if a head's weights are not finite. All arrays are
    (n_layers, n_heads).
    """
    is_finite = np.ones((adapter.n_layers, adapter.n_heads), dtype=bool)
    norms = {name: np.full(is_finite.shape, np.nan) for name in NORMS}
    if isinstance(adapter, AttentionOnlyAdapter):
        return norms, [Fact("note.weights_not_read", {"reason": adapter.reason, "guide": GUIDE})], is_finite
    if adapter.rotary and offset is None:
        return norms, [Fact("note.offset_needed_for_norms")], is_finite
    notes = []
    if adapter.rotary:
        notes = [Fact("note.norms_at_offset", {"offset": offset})]
        if adapter.longest_text is not None:
            notes.append(Fact("note.norms_of_short_texts", {"n_tokens": adapter.longest_text}))
    elif offset is not None:
        notes = [Fact("note.offset_without_effect", {"offset": offset})]
    if adapter.beyond_w:
        notes.append(Fact("note.beyond_w", {"what": adapter.beyond_w}))
    deviations = []
    with single_blas_thread():  # factors of this size are not worth a second thread
        for layer in range(adapter.n_layers):
            maps = adapter.layer_maps(layer, offset)
            heads = slice(0, len(maps.heads))
            is_finite[layer, heads] = [head is not None for head in maps.heads]
            for name in NORMS:
                norms[name][layer, heads] = [np.nan if head is None else getattr(head, name) for head in maps.heads]
            deviations += [] if maps.deviation is None else [maps.deviation]
    if deviations:
        worst = max(deviations)
        case = "rounding" if worst < _SINGLE_PRECISION_RTOL else "approximate"
        counts = {"n_layers": len(deviations), "total": adapter.n_layers}
        notes.append(Fact("note.measured_maps", {**counts, "deviation": worst, "case": case}))
    return norms, notes, is_finite


def _notes_on_missing_heads(is_finite: BoolArray, has_finite_weights: BoolArray) -> list[Fact]:
    """Note which heads have no numbers, and why: weights that are not finite, what a layer reads, or the head's logits."""
    notes = []
    if not has_finite_weights.all():
        notes.append(Fact("note.weights_not_finite", _heads(~has_finite_weights)))
    is_missing_layer: BoolArray = np.asarray(~is_finite.any(axis=1) & has_finite_weights.any(axis=1))
    missing = np.flatnonzero(is_missing_layer).tolist()
    if missing:
        notes.append(Fact("note.layers_not_finite", {"layers": missing, "count": len(missing)}))
    others = ~is_finite & has_finite_weights & ~is_missing_layer[:, None]
    if others.any():
        notes.append(Fact("note.attention_not_finite", _heads(others)))
    return notes


def _heads(which: BoolArray) -> dict[str, Any]:
    names = [f"L{layer}H{head}" for layer, head in np.argwhere(which).tolist()]
    return {"heads": names, "count": len(names)}


# ---- how max-margin the heads are


class _MarginPart(NamedTuple):
    """The results of the max-margin part, layer by layer; arrays are (n_layers, n_heads)."""

    arrays: dict[str, FloatArray]
    # How many heads have no solution, by the status of their SVM.
    unsolved: Counter[Status]
    # The share of queries for which the model itself selects what W selects; nan if W gives the model's logits.
    agreement: FloatArray

    @classmethod
    def empty(cls, shape: tuple[int, ...]) -> _MarginPart:
        names = [name + ending for name in MAX_MARGIN_GROUPS for ending in BASELINES]
        arrays = {name: np.full(shape, np.nan) for name in (*names, "n_constraints", "n_tied", "residual")}
        return cls(arrays, Counter(), np.full(shape, np.nan))

    def add(self, layer: int, head: int, margin: HeadMargin) -> None:
        for name, number in _numbers(margin).items():
            self.arrays[name][layer, head] = number
        if np.isnan(margin.own.correlation):
            self.unsolved[margin.own.status] += 1


def max_margin_measures(
    adapter: Adapter,
    inputs: Inputs,
    settings: ProbeSettings,
    is_finite: BoolArray,
    progress: Callable[[int], None] = lambda done: None,
) -> tuple[dict[str, FloatArray], list[Fact]]:
    """Compute the max-margin measures of all heads on `settings.max_margin_inputs` of the inputs, and notes on them.

    With rotary positions no single W gives all the logits of a query. Without an offset there are then no measures. With an
    offset, the measures refer to the selections of W at this offset among the tokens that a query sees, and a note says how
    often the model makes the same selections. The same holds if logits have other parts than W, such as a distance bias.
    Cross-attention is left out, because its tokens are not its queries.

    Args:
        adapter: the adapter of the model.

        inputs: all inputs of the probe.

        settings: how many inputs and queries are used, and the offset.

        is_finite: (n_layers, n_heads) heads whose attention is finite; the others get nan.

        progress: called with the number of finished heads.

    Returns:
        The measures by name, each (n_layers, n_heads), and the notes.
    """
    n_layers, n_heads = is_finite.shape
    if not adapter.reads_weights or (adapter.rotary and settings.offset is None):
        progress(n_layers * n_heads)
        return {}, [Fact("note.offset_needed_for_margins")] if adapter.reads_weights else []
    rounding = max(SAME_TOKEN_RTOL, logit_rounding(adapter.model.dtype))
    options = MaxMarginSettings(queries_per_input=settings.queries, seed=settings.seed, rounding=rounding)
    used = _evenly(inputs, settings.max_margin_inputs)
    part, n_queries = _MarginPart.empty(is_finite.shape), 0
    wanted = [k for k in range(n_layers) if is_finite[k].any() and adapter.kind(k) is not LayerKind.CROSS]
    for layer, sample, model_selected in _layer_samples(adapter, used, wanted, options):
        maps = adapter.layer_maps(layer, settings.offset).heads
        heads = {k: head for k, head in enumerate(maps) if head is not None and is_finite[layer, k]}
        for k, margin in zip(heads, layer_margins(sample, list(heads.values()), options) if heads else (), strict=True):
            part.add(layer, k, margin)
        if model_selected is not None:
            for k, head in heads.items():
                selected = selected_tokens(sample, head, rounding)
                part.agreement[layer, k] = _agreement(selected, model_selected[k])
        n_queries = max(n_queries, len(sample))
        progress((layer + 1) * n_heads)
    progress(n_layers * n_heads)
    counts = {"n_queries": n_queries, "n_inputs": len(used)}
    return part.arrays, [Fact("note.max_margin_asked", counts), *_margin_notes(adapter, settings, part)]


def _agreement(selected: IntArray, model_selected: IntArray) -> float:
    """Return the share of queries for which two selections agree, among those that both make; nan if there are none."""
    is_unique = (selected >= 0) & (model_selected >= 0)
    return float(np.mean(selected[is_unique] == model_selected[is_unique])) if is_unique.any() else float("nan")


def _margin_notes(adapter: Adapter, settings: ProbeSettings, part: _MarginPart) -> list[Fact]:
    """Note which heads have no solution, which queries were tied, and what the part is about if W does not give the model's logits."""
    notes = [
        Fact("note.no_solution", {"count": part.unsolved[status], "case": case})
        for status, case in _NO_SOLUTION.items()
        if part.unsolved[status]
    ]
    tied = part.arrays["n_tied"][part.arrays["n_tied"] > 0]
    if tied.size:
        notes.append(Fact("note.ties", {"n_heads": tied.size, "most": int(tied.max())}))
    if any(adapter.kind(layer) is LayerKind.CROSS for layer in range(adapter.n_layers)):
        notes.append(Fact("note.max_margin_without_cross"))
    if not adapter.gives_logits:
        known = part.agreement[np.isfinite(part.agreement)]
        agreement = Fact("note.agreement", {"case": "tied"})
        if known.size:
            shares = {"mean": float(known.mean()), "low": float(known.min()), "high": float(known.max())}
            agreement = Fact("note.agreement", {**shares, "case": "known"})
        case = "at_offset" if adapter.rotary else "alone"
        notes.append(Fact("note.max_margin_of_w", {"offset": settings.offset, "agreement": agreement, "case": case}))
    return notes


def _evenly(inputs: Inputs, count: int) -> Inputs:
    """Choose `count` of the inputs, evenly spread over all, or all if there are fewer."""
    count = min(count, len(inputs))
    return inputs.subset([k * len(inputs) // count for k in range(count)])


class _ReadInput(NamedTuple):
    """The tokens that one layer reads from one input, or from one of its windows, without padding."""

    tokens: FloatArray  # (n_tokens, d_model)
    visible: BoolArray  # (n_tokens, n_tokens)
    selected: IntArray | None  # (n_heads, n_tokens) by the model itself, if W does not give its logits


def _layer_samples(
    adapter: Adapter, inputs: Inputs, layers: Sequence[int], settings: MaxMarginSettings
) -> Iterator[tuple[int, QuerySample, IntArray | None]]:
    """Draw queries for each layer from what it reads, in the order of the inputs, with what the model itself selects for them.

    The selections are (n_heads, n_queries), indices into `sample.tokens`, -1 in a tie; they are None if W gives the model's
    logits and hence its selections. The model runs up to the first layer, and then for as many other layers at a time as fit in
    `_MAX_READ_BYTES`.
    """
    start, size = 0, 1
    while start < len(layers):
        group = list(layers[start : start + size])
        read: dict[int, dict[tuple[int, int], _ReadInput]] = {layer: {} for layer in group}
        for batch in inputs.batches():
            for reading in read_layers(adapter, batch.inputs, group):
                read[reading.layer] |= _read_inputs(reading, batch.index, with_selected=not adapter.gives_logits)
        start += size
        size = max(
            1, _MAX_READ_BYTES // sum(found.tokens.nbytes + found.visible.nbytes for found in read[group[0]].values())
        )
        for layer in group:
            ordered = [found for _, found in sorted(read.pop(layer).items())]
            sample = sample_queries([X for X, _, _ in ordered], [mask for _, mask, _ in ordered], settings)
            yield layer, sample, None if adapter.gives_logits else _selected_by_model(ordered, sample)


def _read_inputs(reading: LayerReading, index: IntArray, *, with_selected: bool) -> dict[tuple[int, int], _ReadInput]:
    """Return what a layer reads of the inputs of a batch, by their index and the number of the window."""
    tokens, visible = reading.inputs.detach().cpu().double().numpy(), reading.visible.cpu().numpy()
    selected = LayerNumbers(reading).unique if with_selected else None
    n_windows, found = len(tokens) // len(index), {}
    for row in range(len(tokens)):
        real = visible[row].any(axis=1)
        among = None
        if selected is not None:
            among = selected[row][:, real]
            among = np.where(among >= 0, (np.cumsum(real) - 1)[among], -1)
        place = int(index[row // n_windows]), row % n_windows
        found[place] = _ReadInput(tokens[row][real], visible[row][np.ix_(real, real)], among)
    return found


def _selected_by_model(read: Sequence[_ReadInput], sample: QuerySample) -> IntArray:
    """Return the token of the sample that each of its queries selects in the model, (n_heads, n_queries), -1 in a tie."""
    starts = np.concatenate([[0], np.cumsum([len(found.tokens) for found in read])])
    columns = []
    for i, position in sample.positions.tolist():
        selected = read[i].selected
        assert selected is not None
        among = selected[:, position]
        columns.append(np.where(among >= 0, starts[i] + among, -1))
    return np.stack(columns, axis=1)


def _numbers(margin: HeadMargin) -> dict[str, float]:
    """Return the measures of one head by name; those of random heads are means over the draws."""
    numbers = {
        "n_tied": float(margin.n_tied),
        "n_constraints": margin.own.n_constraints,
        "residual": margin.own.residual,
    }
    for ending in BASELINES:
        matches = getattr(margin, ending[1:]) if ending else (margin.own,)
        for name in MAX_MARGIN_GROUPS:
            values = np.array([getattr(match, name) for match in matches], dtype=float)
            values = values[np.isfinite(values)]
            numbers[name + ending] = float(np.mean(values)) if values.size else float("nan")
    return numbers


# ---- the checkpoints of a training run


def probe_checkpoints(
    folders: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    inputs: Inputs | ArrayLike,
    settings: ProbeSettings | None = None,
    *,
    trust_pickle: bool = False,
    device: str = "cpu",
    progress: ProgressCallback | None = None,
) -> CheckpointCurves:
    """Measure the heads of a model at every checkpoint of its training.

    Args:
        folders: a folder whose subfolders are checkpoints that `save_pretrained` wrote, or such folders in the order of training.

        inputs: inputs as in `probe_model`, the same for all checkpoints; texts are read with the first checkpoint's tokenizer.

        settings: see `ProbeSettings`; no examples are kept. With `max_margin`, the SVM of every head is solved at every
            checkpoint, on queries at the same positions, with random heads for comparison.

        trust_pickle: whether to accept weights in pickle form, which can run code.

        device: the device that the models run on, as torch names it.

        progress: called as `progress(done, total)`.

    Returns:
        Curves of shape (n_checkpoints, n_layers, n_heads), one for each measure.
    """
    checkpoints = checkpoint_folders(folders)
    options = replace(settings or ProbeSettings(), examples=0)
    data: Any = None
    results: list[ProbeResult] = []
    for k, folder in enumerate(checkpoints):
        loaded = load_model(folder, trust_pickle=trust_pickle, device=device)
        data = as_inputs(loaded, inputs) if data is None else data

        def report(done: int, total: int, k: int = k) -> None:
            if progress is not None:
                progress(k * total + done, len(checkpoints) * total)

        results.append(probe_model(loaded, data, options, progress=report))
        first, shape = (result["nnz"].shape for result in (results[0], results[-1]))
        if shape != first:
            raise InputError(
                "folders",
                f"checkpoints of one model, with {first[0]} layers of {first[1]} heads as the first",
                f"{str(folder)!r} with {shape[0]} layers of {shape[1]} heads",
            )
    measures = {name: np.stack([result[name] for result in results]) for name in results[0].measures}
    return CheckpointCurves(
        model=f"{results[0].family}, {results[0].size_words}",
        names=tuple(folder.name for folder in checkpoints),
        steps=_steps(checkpoints),
        measures=measures,
        n_inputs=len(data),
        notes=tuple(_notes_of_checkpoints(results, measures)),
        layer_names=results[0].layer_names,
    )


def _notes_of_checkpoints(results: Sequence[ProbeResult], measures: Mapping[str, FloatArray]) -> list[Fact]:
    """Return the notes that all checkpoints share, and one on heads without a max-margin solution at some of them."""
    first, *others = results
    notes = [
        note
        for note in first.notes
        if note.code not in _NOTES_OF_HEADS and all(note in result.notes for result in others)
    ]
    n_missing = np.isnan(measures.get("correlation", np.zeros((1, 1, 1)))).sum(axis=(1, 2))  # at each checkpoint
    if n_missing.any():
        counts = {"n_checkpoints": int(np.sum(n_missing > 0)), "total": len(n_missing), "most": int(n_missing.max())}
        notes.append(Fact("note.checkpoints_without_solution", counts))
    return notes


def _steps(folders: Sequence[Path]) -> FloatArray:
    """Return the numbers in the folders' names if all have one and they increase, else 0, 1, 2, …"""
    numbers = np.array([step_and_name(folder)[0] for folder in folders])
    increasing = np.isfinite(numbers).all() and bool(np.all(np.diff(numbers) > 0.0))
    return numbers if increasing else np.arange(float(len(folders)))
