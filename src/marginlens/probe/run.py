"""Probe a model, or the checkpoints of a training run: run it over a user's inputs, and measure every attention head on the way."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

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
from marginlens.probe.result import (
    BASELINES,
    MEASURE_TITLES,
    NEGLIGIBLE,
    CheckpointCurves,
    ProbeResult,
    ProbeSettings,
)
from marginlens.result import counted
from marginlens.runtime.model_folders import checkpoint_folders, step_and_name
from marginlens.runtime.progress import ProgressCallback, as_progress
from marginlens.runtime.threads import single_blas_thread
from marginlens.status import Status
from marginlens.typing import BoolArray, FloatArray, IntArray

NORMS = ("frobenius", "spectral", "nuclear")
_MAX_READ_BYTES = 2**28  # of what layers read, in memory at a time: all layers of a model for a few short inputs
_SINGLE_PRECISION_RTOL = 1e-4  # deviation of a measured W from what a module computes that rounding explains
_MAX_CHECKED_TOKENS = 64  # of the input on which a reading is compared with the model's own attention
_WHY_NO_SOLUTION = {  # why a head has no correlation, by what its SVM ended with
    Status.INFEASIBLE: "there is no max-margin solution: no W makes all their selections.",
    Status.INACCURATE: "there is no max-margin solution that is proved: no W makes all their selections, or it was not found.",
    Status.TRIVIAL: "there is no max-margin solution: all their queries are tied, and select nothing.",
}
_WITHOUT_MAPS = (
    "Examples, sinks by name and preferences are left out: the layers of this model do not all attend to the tokens of an input (it has "
    "windows, or tokens that it makes itself)."
)
_WITHOUT_CROSS = (
    "Cross-attention is left out: it goes to what another model makes of another input. Probe an EncoderDecoderModel of both to have it "
    "measured."
)
_TIES_LEFT_OUT = "are tied: different tokens share their largest logit, up to rounding, and they are left out."


def probe_model(
    model: Any, inputs: Any, settings: ProbeSettings | None = None, *, progress: ProgressCallback | None = None
) -> ProbeResult:
    """Measure every attention head of a model on a set of inputs.

    The model runs batch by batch, and of each batch only sums are kept, so that memory does not grow with the number of inputs.

    Args:
        model: a loaded Hugging Face model, or what `load_model` gave, with any attention; it is left as it was found. What is read of its
            layers is compared once with the attention that it hands out on a short input. It then runs by torch's fused attention where
            that reads the same, and no map of tokens by tokens is made but for the examples; else by "eager".
        inputs: what `encode_texts` or `prepare_images` gave; with a model from `load_model` also plain texts or images.
        settings: see `ProbeSettings`.
        progress: called with the work done and the work in all.
    Returns:
        Arrays over layers and heads, and a few inputs with their attention. To check it: `read_attention` gives the maps of a batch,
        `soft_sparsity` and the others the numbers of these.
    """
    with readable(model, inputs) as found:
        return _probe(found, settings or ProbeSettings(), progress)


class Readable(NamedTuple):
    """A model whose layers can be read, the part of it that reads the inputs, and its adapter."""

    loaded: LoadedModel
    network: Any
    adapter: Adapter
    inputs: Inputs


@contextmanager
def readable(model: Any, inputs: Any) -> Iterator[Readable]:
    """The model with attention by which it can be read: fused, after one comparison with its own maps on a short input, or eager."""
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


def _short(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The first tokens of a batch of texts; images as they are."""
    ids = inputs.get("input_ids")
    if ids is None or np.ndim(ids) != 2:
        return dict(inputs)
    n_tokens = np.shape(ids)[1]
    return {
        name: value[:, :_MAX_CHECKED_TOKENS] if np.ndim(value) >= 2 and np.shape(value)[1] == n_tokens else value
        for name, value in inputs.items()
    }


def _probe(found: Readable, options: ProbeSettings, progress: ProgressCallback | None) -> ProbeResult:
    """`probe_model` for a model whose layers can be read."""
    began = time.perf_counter()
    loaded, network, adapter, data = found
    size = (adapter.n_layers, adapter.n_heads)
    exists = np.arange(size[1]) < np.array([[adapter.shape(layer).n_heads] for layer in range(size[0])])
    tokens = LayerTokens(data, adapter)
    has_maps = tokens.are_known
    total = len(data) + (size[0] * size[1] if options.max_margin else 0)
    report = as_progress(progress) or (lambda done, total: None)
    norms, notes, has_finite_weights = head_norms(adapter, options.offset)
    sums, examples = MeasureSums(*size), ExampleMaps(tokens, options)
    selections, sinks, done = SelectionRecorder(tokens), SinkRecorder(tokens), 0
    report(done, total)
    for batch in data.batches():
        for reading in read_layers(adapter, batch.inputs):
            measured = LayerNumbers(reading, tuple(NEGLIGIBLE))
            if has_maps and reading.layer == 0:  # else layers see other tokens than the input's
                has_maps = measured.received.shape[-1] == max(map(len, batch.tokens))
            names = tokens.of_batch(reading.layer, batch, reading.kind) if has_maps else None
            sums.add(measured, names)
            if has_maps:
                examples.add(measured, batch)
                sinks.add(measured, batch)
                selections.add(measured, batch)
        done += len(batch.index)
        report(done, total)
    if not sums.n_queries.any():
        raise InputError("inputs", "inputs with at least two tokens each", "none in which a query sees two")
    if not sums.is_finite.any():
        raise InputError(
            "No head can be measured: the model's attention is not finite in any layer. Its weights are not finite, or overflow in half "
            "precision (give it float32 weights)."
        )
    notes += _notes_on_missing_heads(sums.is_finite | ~exists, has_finite_weights)
    if adapter.reads_weights and any(LEFT_OUT in name for name, _ in adapter.model.named_modules()):
        notes += [_WITHOUT_CROSS]
    preferences, graphs, shares = selections.preferences(options.preferences if has_maps else 0, sums.is_finite)
    if not has_maps:
        notes += [_WITHOUT_MAPS]
    elif preferences and selections.count < len(data):
        notes += [f"What heads prefer over what is counted on the first {selections.count} inputs."]
    elif options.preferences and not preferences:
        notes += ["Token preferences were not computed: they need at least two inputs of moderate length."]
    separated: dict[str, FloatArray] = {}
    if options.max_margin:
        heads_done = lambda count: report(done + count, total)  # noqa: E731
        separated, more = max_margin_measures(adapter, data, options, sums.is_finite, heads_done)
        notes += more
    if data.n_truncated:
        cut = "1 text was" if data.n_truncated == 1 else f"{data.n_truncated} texts were"
        notes += [f"{cut} cut to the {data.max_tokens} tokens that the model can read."]
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
        examples=examples.examples() if has_maps else (),
        preferences=preferences,
        graphs=graphs,
        notes=tuple(notes),
        sinks=sinks.sinks() if has_maps else (),
        head_sinks=sinks.head_sinks() if has_maps else {},
        layer_names=adapter.layer_names,
        weights_missing=adapter.reason if isinstance(adapter, AttentionOnlyAdapter) else "",
        seconds=time.perf_counter() - began,
    )


def head_norms(adapter: Adapter, offset: int | None = None) -> tuple[dict[str, FloatArray], list[str], BoolArray]:
    """Frobenius, spectral and nuclear norm of every head's W, what there is to say about them, and whose weights are finite.

    nan where positions are rotary and no `offset` is given at which to take W, and where a head's weights are not finite. All arrays are
    (n_layers, n_heads).
    """
    is_finite = np.ones((adapter.n_layers, adapter.n_heads), dtype=bool)
    norms = {name: np.full(is_finite.shape, np.nan) for name in NORMS}
    if isinstance(adapter, AttentionOnlyAdapter):
        return norms, [
            f"W is not read, so that it has no norms and there is no max-margin part: {adapter.reason}. All other measures are those of "
            f"the model's attention as it hands it out. {GUIDE} says in five steps how to add a family."
        ], is_finite  # fmt: skip
    if adapter.rotary and offset is None:
        return norms, [
            "W has no norms here: rotary positions give this model a key-query matrix for every offset of query and key, but none "
            "that is free of positions. State an offset to have W measured there."
        ], is_finite  # fmt: skip
    notes = []
    if adapter.rotary:
        notes = [f"W and its norms are those at offset {offset}, query position minus key position."]
        if adapter.longest_text is not None:
            notes.append(
                f"They are those of texts of at most {adapter.longest_text} tokens: longer ones have other rotary frequencies."
            )
    elif offset is not None:
        notes = [
            f"The offset {offset} is without effect: this model has no rotary positions, and one W for all offsets."
        ]
    if adapter.beyond_w:
        notes.append(f"W and its norms leave out what else the logits of this family have: {adapter.beyond_w}.")
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
        accuracy = "up to rounding" if worst < _SINGLE_PRECISION_RTOL else f"to within {worst:.1%}"
        notes.append(
            f"In {len(deviations)} of {adapter.n_layers} layers queries or keys do not come from plain weights, but from modules that are "
            f"wrapped, quantised or hooked: W is measured there from what these compute, which it gives {accuracy}."
        )
    return norms, notes, is_finite


def _notes_on_missing_heads(is_finite: BoolArray, has_finite_weights: BoolArray) -> list[str]:
    """Which heads have no numbers, and why: weights that are not finite, what a layer reads, or the head's logits."""
    notes = []
    if not has_finite_weights.all():
        notes.append(
            f"{_heads(~has_finite_weights)}: weights that are not finite (nan or infinity), so that nothing is measured."
        )
    is_missing_layer: BoolArray = np.asarray(~is_finite.any(axis=1) & has_finite_weights.any(axis=1))
    missing = np.flatnonzero(is_missing_layer).tolist()
    if missing:
        layers = f"Layer {missing[0]}" if len(missing) == 1 else f"Layers {', '.join(map(str, missing))}"
        notes.append(
            f"{layers}: what the heads read, or all their logits, are not finite, as after a layer with such weights; only the norms "
            "of W are measured."
        )
    others = ~is_finite & has_finite_weights & ~is_missing_layer[:, None]
    if others.any():
        notes.append(
            f"{_heads(others)}: attention that is not finite, perhaps from overflow in half precision; not measured."
        )
    return notes


def _heads(which: BoolArray) -> str:
    names = [f"L{layer}H{head}" for layer, head in np.argwhere(which).tolist()]
    return f"Head {names[0]}" if len(names) == 1 else f"Heads {', '.join(names)}"


# ---- how max-margin the heads are


def max_margin_measures(
    adapter: Adapter,
    inputs: Inputs,
    settings: ProbeSettings,
    is_finite: BoolArray,
    progress: Callable[[int], None] = lambda done: None,
) -> tuple[dict[str, FloatArray], list[str]]:
    """The max-margin measures of all heads on `settings.max_margin_inputs` of the inputs, and what there is to say about them.

    With rotary positions no one W gives all the logits of a query: none without an offset; with one, the selections in question are
    those that W at this offset makes among the tokens that a query sees, and a note says how often the model makes the same. So it is
    where logits have more than W, as a bias by distance. Cross-attention is left out: its tokens are not its queries'.
    Heads that are not finite, (n_layers, n_heads), get nan.
    """
    n_layers, n_heads = is_finite.shape
    if not adapter.reads_weights:
        progress(n_layers * n_heads)
        return {}, []
    if adapter.rotary and settings.offset is None:
        progress(n_layers * n_heads)
        return {}, [
            "There is no max-margin part: with rotary positions no single W gives all the logits of a query. State an offset to have it "
            "for W at that offset."
        ]
    rounding = max(SAME_TOKEN_RTOL, logit_rounding(adapter.model.dtype))
    options = MaxMarginSettings(queries_per_input=settings.queries, seed=settings.seed, rounding=rounding)
    count = min(settings.max_margin_inputs, len(inputs))
    used = _evenly(inputs, count)
    names = [name + ending for name in MEASURE_TITLES for ending in BASELINES]
    arrays = {name: np.full(is_finite.shape, np.nan) for name in (*names, "n_constraints", "n_tied", "residual")}
    unsolved: Counter[Status] = Counter()
    n_queries, agreement = 0, np.full(is_finite.shape, np.nan)
    wanted = [k for k in range(n_layers) if is_finite[k].any() and adapter.kind(k) is not LayerKind.CROSS]
    for layer, sample, model_selected in _layer_samples(adapter, used, wanted, options):
        maps = adapter.layer_maps(layer, settings.offset).heads
        heads = {k: head for k, head in enumerate(maps) if head is not None and is_finite[layer, k]}
        if heads:
            for k, margin in zip(heads, layer_margins(sample, list(heads.values()), options), strict=True):
                for name, number in _numbers(margin).items():
                    arrays[name][layer, k] = number
                if np.isnan(margin.own.correlation):
                    unsolved[margin.own.status] += 1
            if model_selected is not None:
                for k, head in heads.items():
                    selected = selected_tokens(sample, head, rounding)
                    is_unique = (selected >= 0) & (model_selected[k] >= 0)
                    if is_unique.any():
                        agreement[layer, k] = np.mean(selected[is_unique] == model_selected[k][is_unique])
            n_queries = max(n_queries, len(sample))
        progress((layer + 1) * n_heads)
    progress(n_layers * n_heads)
    asked = f"{counted(n_queries, 'query', 'queries')} of {counted(count, 'input')}"
    notes = [
        f"The max-margin part asks each head about up to {asked}: the max-margin solution is the shortest "
        "W under which each of these selects the same token by a logit margin of at least 1.",
        *(
            f"For {_count_heads(unsolved[status])} {why}"
            for status, why in _WHY_NO_SOLUTION.items()
            if unsolved[status]
        ),
    ]
    tied = arrays["n_tied"][arrays["n_tied"] > 0]
    if tied.size:
        notes.append(f"In {_count_heads(tied.size)} some of these queries, {int(tied.max())} at most, {_TIES_LEFT_OUT}")
    if any(adapter.kind(layer) is LayerKind.CROSS for layer in range(n_layers)):
        notes.append(
            "The max-margin part leaves out cross-attention, whose queries are not among the tokens they select."
        )
    if not adapter.gives_logits:
        known = agreement[np.isfinite(agreement)]
        same = "in none of these queries, which are all tied"
        if known.size:
            same = (
                f"in {known.mean():.0%} of these queries (mean over heads, from {known.min():.0%} to {known.max():.0%})"
            )
        about, made = "W alone", "as if logits had nothing else"
        if adapter.rotary:
            about = f"W at offset {settings.offset}, not about the heads at all offsets"
            made = f"as if each stood {settings.offset} positions before the query"
        notes.append(
            f"The max-margin part is about {about}: its selections are those that this W makes among the tokens that a query sees, {made}. "
            f"They are the selections of the model itself {same}."
        )
    return arrays, notes


def _evenly(inputs: Inputs, count: int) -> Inputs:
    """`count` of the inputs, evenly spread over all, or all where they are fewer."""
    count = min(count, len(inputs))
    return inputs.subset([k * len(inputs) // count for k in range(count)])


def _count_heads(count: int) -> str:
    return f"{count} head" if count == 1 else f"{count} heads"


class _ReadInput(NamedTuple):
    """What one layer reads of one input, or of one of its windows, without padding."""

    tokens: FloatArray  # (n_tokens, d_model)
    visible: BoolArray  # (n_tokens, n_tokens)
    selected: IntArray | None  # (n_heads, n_tokens) by the model itself, where W does not give its logits


def _layer_samples(
    adapter: Adapter, inputs: Inputs, layers: Sequence[int], settings: MaxMarginSettings
) -> Iterator[tuple[int, QuerySample, IntArray | None]]:
    """For each layer queries drawn from what it reads, in the order of the inputs, and what the model itself selects for them.

    The latter is (n_heads, n_queries), indices into `sample.tokens` with all tokens at their own positions; -1 in a tie. It is None where
    W gives the model's logits, and so its selections. The model runs up to the first layer, and then for as many of the others at a time as
    `_MAX_READ_BYTES` holds.
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
    """What a layer reads of the inputs of a batch, by their index and the number of the window."""
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
    """(n_heads, n_queries) the token of the sample that each of its queries selects in the model, -1 in a tie."""
    starts = np.concatenate([[0], np.cumsum([len(found.tokens) for found in read])])
    columns = []
    for i, position in sample.positions.tolist():
        selected = read[i].selected
        assert selected is not None
        among = selected[:, position]
        columns.append(np.where(among >= 0, starts[i] + among, -1))
    return np.stack(columns, axis=1)


def _numbers(margin: HeadMargin) -> dict[str, float]:
    """The measures of one head by name; those of random heads are means over the draws."""
    numbers = {
        "n_tied": float(margin.n_tied),
        "n_constraints": margin.own.n_constraints,
        "residual": margin.own.residual,
    }
    for ending in BASELINES:
        matches = getattr(margin, ending[1:]) if ending else (margin.own,)
        for name in MEASURE_TITLES:
            values = np.array([getattr(match, name) for match in matches], dtype=float)
            values = values[np.isfinite(values)]
            numbers[name + ending] = float(np.mean(values)) if values.size else float("nan")
    return numbers


# ---- the checkpoints of a training run


def probe_checkpoints(
    folders: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    inputs: Any,
    settings: ProbeSettings | None = None,
    *,
    trust_pickle: bool = False,
    device: str = "cpu",
    progress: ProgressCallback | None = None,
) -> CheckpointCurves:
    """The measures of a probe over training: sparsity, norms, margins and selections of every head at every checkpoint.

    Args:
        folders: a folder whose subfolders are checkpoints that `save_pretrained` wrote, or such folders in the order of training.
        inputs: what `probe_model` takes, the same for all checkpoints; texts are read with the first checkpoint's tokenizer.
        settings: see `ProbeSettings`; no examples are kept. With `max_margin` the SVM of every head is solved at every checkpoint, on
            queries at the same places, so that each number stands beside that of random heads there.
        trust_pickle, device: as in `load_model`.
        progress: called with the work done and the work in all.
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
            expected = f"checkpoints of one model, with {first[0]} layers of {first[1]} heads as the first"
            raise InputError("folders", expected, f"{str(folder)!r} with {shape[0]} layers of {shape[1]} heads")
    measures = {name: np.stack([result[name] for result in results]) for name in results[0].measures}
    times_noted = Counter(note for result in results for note in result.notes)
    of_heads = (*_WHY_NO_SOLUTION.values(), _TIES_LEFT_OUT)  # counts of heads: said for all checkpoints together
    notes = [note for note, times in times_noted.items() if times == len(results) and not note.endswith(of_heads)]
    # of heads at each checkpoint
    n_missing = np.isnan(measures.get("correlation", np.zeros((1, 1, 1)))).sum(axis=(1, 2))
    if n_missing.any():
        notes.append(
            f"At {int(np.sum(n_missing > 0))} of {len(n_missing)} checkpoints some heads, {int(n_missing.max())} at most, have no "
            "max-margin solution to compare with, since no W makes all their selections or all their queries are tied; the curves leave "
            "these heads out."
        )
    return CheckpointCurves(
        model=f"{results[0].family}, {results[0].size_words}",
        names=tuple(folder.name for folder in checkpoints),
        steps=_steps(checkpoints),
        measures=measures,
        n_inputs=len(data),
        notes=tuple(notes),
        layer_names=results[0].layer_names,
    )


def _steps(folders: Sequence[Path]) -> FloatArray:
    """The numbers in the folders' names where all have one and they increase, else 0, 1, 2, …"""
    numbers = np.array([step_and_name(folder)[0] for folder in folders])
    increasing = np.isfinite(numbers).all() and bool(np.all(np.diff(numbers) > 0.0))
    return numbers if increasing else np.arange(float(len(folders)))
