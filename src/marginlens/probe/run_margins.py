"""How max-margin every head of a model is, layer after layer, so that only one layer's tokens are held at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from marginlens.data.tokens import BoolArray, FloatArray, IntArray
from marginlens.probe.heads.max_margin import HeadMargin, MarginMatch, layer_margins, selected_tokens
from marginlens.probe.heads.max_margin_sample import SAME, MaxMarginSettings, QuerySample, real_tokens, sample_queries
from marginlens.probe.heads.selection import Selection, select_tokens
from marginlens.probe.measures import QUANTITIES, MaxMarginMeasures
from marginlens.probe.models.adapters import adapter_for
from marginlens.probe.models.adapters.base import logit_rounding
from marginlens.probe.models.image_inputs import ImageInputs
from marginlens.probe.models.inputs import Inputs
from marginlens.probe.models.reading import LayerReading, finite_heads, read_attention
from marginlens.probe.settings import ProbeSettings
from marginlens.runtime.progress import Progress
from marginlens.svm.solution import Status

_REASONS = {  # why a head has no correlation, by what its SVM ended with
    Status.INFEASIBLE: "there is no max-margin solution: no W makes all their selections.",
    Status.INACCURATE: "there is no max-margin solution that is proved: no W makes all their selections, or it was not found.",
    Status.TRIVIAL: "there is no max-margin solution: all their queries are tied, and select nothing.",
}
_LEFT_OUT = "are tied: different tokens share their largest logit, up to rounding, and they are left out."
_BASELINES = ("random_selections", "random_matrix", "random_head")


def probe_margins(
    model: Any, inputs: Inputs, settings: ProbeSettings, progress: Progress, measured: BoolArray
) -> tuple[MaxMarginMeasures | None, tuple[str, ...]]:
    """The max-margin numbers of all heads on `settings.max_margin_inputs` of the inputs, and what there is to say about them.

    With rotary positions no one W gives all the logits of a query: None without an offset; with one, the selections in question are
    those that W at this offset makes among the tokens that a query sees, and a note says how often the model makes the same.
    Heads that are not `measured`, (n_layers, n_heads), get nan.
    """
    adapter = adapter_for(model)
    rotary = adapter.rotary
    if rotary and settings.offset is None:
        progress.advance(adapter.n_layers * adapter.n_heads)
        return None, (
            "There is no max-margin part: with rotary positions no single W gives all the logits of a query. State an offset to have it "
            "for W at that offset.",
        )
    rounding = max(SAME, logit_rounding(adapter.model.dtype))
    asked = MaxMarginSettings(queries_per_input=settings.queries, seed=settings.seed, rounding=rounding)
    some = spread_inputs(inputs, settings.max_margin_inputs)
    arrays = {field.name: np.full((adapter.n_layers, adapter.n_heads), np.nan) for field in fields(MaxMarginMeasures)}
    without: Counter[Status] = Counter()
    n_asked, agreed = 0, np.full((adapter.n_layers, adapter.n_heads), np.nan)
    for layer in range(adapter.n_layers):
        maps = adapter.layer_maps(layer, settings.offset).heads
        finite = [head for head, one in enumerate(maps) if one is not None and measured[layer, head]]
        if not finite:
            progress.advance(adapter.n_heads)
            continue
        sample = layer_sample(model, some, layer, asked)
        heads = [one for head, one in enumerate(maps) if one is not None and measured[layer, head]]
        for head, found in zip(finite, layer_margins(sample, heads, asked), strict=True):
            for name, number in _numbers(found).items():
                arrays[name][layer, head] = number
            if np.isnan(found.own.correlation):
                without[found.own.status] += 1
        if rotary:
            made = np.stack([selected_tokens(sample, head, rounding) for head in heads])
            agreed[layer, finite] = agreement(made, model_selections(model, some, layer, sample)[finite])
        n_asked = max(n_asked, len(sample))
        progress.advance(adapter.n_heads)
    notes = (*_notes(n_asked, len(some), without), *_ties(arrays["n_tied"]))
    return MaxMarginMeasures(**arrays), (*notes, *((_at_offset(settings.offset, agreed),) if rotary else ()))


def _notes(n_queries: int, n_inputs: int, without: Mapping[Status, int]) -> tuple[str, ...]:
    asked = (
        f"The max-margin part asks each head about up to {n_queries} queries of {n_inputs} inputs: the max-margin solution is the shortest "
        "W under which each of these selects the same token by a logit margin of at least 1."
    )
    return (
        asked,
        *(f"For {n_heads(without[status])} {why}" for status, why in _REASONS.items() if without.get(status)),
    )


def n_heads(count: int) -> str:
    """1 head, 2 heads."""
    return f"{count} head" if count == 1 else f"{count} heads"


def _ties(n_tied: FloatArray) -> tuple[str, ...]:
    some = int(np.sum(n_tied > 0))
    return (f"In {n_heads(some)} some of these queries, {int(n_tied.max())} at most, {_LEFT_OUT}",) if some else ()


def is_on_some_heads(note: str) -> bool:
    """Whether a note counts heads without a correlation, or with ties, which curves over checkpoints say for all of them together."""
    return note.endswith((*_REASONS.values(), _LEFT_OUT))


def agreement(made: IntArray, own: IntArray) -> FloatArray:
    """(n_heads,) the share of the queries without a tie for which both rows select the same token; nan where all are tied."""
    sole = (made >= 0) & (own >= 0)
    known = sole.sum(axis=1)
    return np.where(known > 0, np.sum(sole & (made == own), axis=1) / np.maximum(known, 1), np.nan)


def _at_offset(offset: int | None, agreed: FloatArray) -> str:
    known = agreed[np.isfinite(agreed)]
    same = (
        f"in {known.mean():.0%} of these queries (mean over heads, from {known.min():.0%} to {known.max():.0%})"
        if known.size
        else "in none of these queries, which are all tied"
    )
    return (
        f"The max-margin part is about W at offset {offset}, not about the heads at all offsets: its selections are those that this W "
        f"makes among the tokens that a query sees, as if each stood {offset} positions before the query. They are the selections of the "
        f"model itself {same}."
    )


def selections(reading: LayerReading) -> Selection:
    """What every query of a layer selects on one batch; nothing, with margin nan, in a head whose attention is not finite."""
    logits, rounding = (one.detach().cpu().double().numpy() for one in (reading.logits, reading.rounding))
    visible, finite = reading.visible.cpu().numpy(), finite_heads(reading)
    if finite.all():
        return select_tokens(logits, visible, rounding)
    chosen = select_tokens(
        np.where(finite[:, None, None], logits, 0.0), visible, np.where(finite[:, None], rounding, 0.0)
    )
    return Selection(
        np.where(finite[:, None], chosen.selected, -1),
        np.where(finite[:, None], chosen.margin, np.nan),
        np.where(finite[:, None], chosen.n_tied, 0),
    )


def model_selections(model: Any, inputs: Inputs, layer: int, sample: QuerySample) -> IntArray:
    """(n_heads, n_queries) which of `sample.tokens` the model itself selects, with all tokens at their own positions; -1 in a tie."""
    chosen: dict[int, IntArray] = {}
    for batch in inputs.batches():
        (reading,) = read_attention(model, batch.inputs, layers=[layer], allow_nan=True)
        visible = reading.visible.cpu().numpy()
        selected = selections(reading).sole
        for row, place in enumerate(batch.index.tolist()):
            real = visible[row].any(axis=1)
            among = selected[row][:, real]  # (n_heads, n_real), without the padding
            chosen[place] = np.where(among >= 0, (np.cumsum(real) - 1)[among], -1)
    ordered = [chosen[place] for place in sorted(chosen)]
    starts = np.concatenate([[0], np.cumsum([one.shape[1] for one in ordered])])
    found = [(starts[i], ordered[i][:, position]) for i, position in sample.places.tolist()]
    return np.stack([np.where(one >= 0, start + one, -1) for start, one in found], axis=1)


def layer_sample(model: Any, inputs: Inputs, layer: int, settings: MaxMarginSettings) -> QuerySample:
    """Queries drawn from what one layer reads on all the inputs, in the inputs' own order."""
    tokens: dict[int, Any] = {}
    for batch in inputs.batches():
        (reading,) = read_attention(model, batch.inputs, layers=[layer], allow_nan=True)
        read, seen = real_tokens(reading.inputs.detach().cpu().double().numpy(), reading.visible.cpu().numpy())
        tokens |= dict(zip(batch.index.tolist(), zip(read, seen, strict=True), strict=True))
    ordered = [tokens[place] for place in sorted(tokens)]
    return sample_queries([one for one, _ in ordered], [one for _, one in ordered], settings)


def spread_inputs(inputs: Inputs, count: int) -> Inputs:
    """At most `count` inputs, evenly spread over all of them."""
    places = np.arange(min(count, len(inputs))) * len(inputs) // min(count, len(inputs))
    if isinstance(inputs, ImageInputs):
        return replace(inputs, pixel_values=inputs.pixel_values[places])
    return replace(
        inputs,
        texts=tuple(inputs.texts[place] for place in places),
        ids=tuple(inputs.ids[place] for place in places),
        tokens=tuple(inputs.tokens[place] for place in places),
    )


def _numbers(found: HeadMargin) -> dict[str, float]:
    numbers = {name: float(getattr(found.own, name)) for name in (*QUANTITIES, "n_constraints", "residual")}
    numbers["n_tied"] = float(found.n_tied)
    for baseline in _BASELINES:
        draws: Sequence[MarginMatch] = getattr(found, baseline)
        for name in QUANTITIES:
            known = [number for number in (getattr(one, name) for one in draws) if np.isfinite(number)]
            numbers[f"{name}_{baseline}"] = float(np.mean(known)) if known else float("nan")
    return numbers
