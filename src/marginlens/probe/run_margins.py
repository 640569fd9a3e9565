"""How max-margin every head of a model is, layer after layer, so that only one layer's tokens are held at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from marginlens.data.tokens import FloatArray, IntArray
from marginlens.probe.heads.max_margin import HeadMargin, MarginMatch, layer_margins, selected_tokens
from marginlens.probe.heads.max_margin_sample import MaxMarginSettings, QuerySample, real_tokens, sample_queries
from marginlens.probe.heads.selection import select_tokens
from marginlens.probe.measures import QUANTITIES, MaxMarginMeasures
from marginlens.probe.models.adapters import adapter_for
from marginlens.probe.models.image_inputs import ImageInputs
from marginlens.probe.models.inputs import Inputs
from marginlens.probe.models.reading import read_attention
from marginlens.probe.settings import ProbeSettings
from marginlens.progress import Progress
from marginlens.svm.solution import Status

_REASONS = {  # why a head has no correlation, by what its SVM ended with; OPTIMAL: the head's own W has no direction
    Status.INFEASIBLE: "there is no max-margin solution: no W makes all their selections.",
    Status.INACCURATE: "there is no max-margin solution that is proved: no W makes all their selections, or it was not found.",
    Status.TRIVIAL: "there is no max-margin solution: their queries have nothing to choose between.",
    Status.OPTIMAL: "there is no correlation with the max-margin solution: their own W is zero.",
}
_BASELINES = ("random_selections", "random_matrix", "random_head")


def probe_margins(
    model: Any, inputs: Inputs, settings: ProbeSettings, progress: Progress
) -> tuple[MaxMarginMeasures | None, tuple[str, ...]]:
    """The max-margin numbers of all heads on `settings.max_margin_inputs` of the inputs, and what there is to say about them.

    With rotary positions no one W gives all the logits of a query: None without an offset; with one, the selections in question are
    those that W at this offset makes among the tokens that a query sees, and a note says how often the model makes the same.
    """
    adapter = adapter_for(model)
    rotary = adapter.rotary
    if rotary and settings.offset is None:
        progress.advance(adapter.n_layers * adapter.n_heads)
        return None, (
            "There is no max-margin part: with rotary positions no single W gives all the logits of a query. State an offset to have it "
            "for W at that offset.",
        )
    asked = MaxMarginSettings(queries_per_input=settings.queries, seed=settings.seed)
    some = spread_inputs(inputs, settings.max_margin_inputs)
    arrays = {field.name: np.full((adapter.n_layers, adapter.n_heads), np.nan) for field in fields(MaxMarginMeasures)}
    without: Counter[Status] = Counter()
    n_asked, agreed = 0, np.full((adapter.n_layers, adapter.n_heads), np.nan)
    for layer in range(adapter.n_layers):
        sample = layer_sample(model, some, layer, asked)
        heads = adapter.layer_maps(layer, settings.offset).heads
        for head, found in enumerate(layer_margins(sample, heads, asked)):
            for name, number in _numbers(found).items():
                arrays[name][layer, head] = number
            if np.isnan(found.own.correlation):
                without[found.own.status] += 1
        if rotary:
            made = np.stack([selected_tokens(sample, head) for head in heads])
            agreed[layer] = np.mean(made == model_selections(model, some, layer, sample), axis=1)
        n_asked = max(n_asked, len(sample))
        progress.advance(adapter.n_heads)
    notes = _notes(n_asked, len(some), without)
    return MaxMarginMeasures(**arrays), (*notes, *((_at_offset(settings.offset, agreed),) if rotary else ()))


def _notes(n_queries: int, n_inputs: int, without: Mapping[Status, int]) -> tuple[str, ...]:
    asked = (
        f"The max-margin part asks each head about up to {n_queries} queries of {n_inputs} inputs: the max-margin solution is the shortest "
        "W under which each of these selects the same token by a logit margin of at least 1."
    )
    return (asked, *(f"For {without[status]} heads {why}" for status, why in _REASONS.items() if without.get(status)))


def is_on_some_heads(note: str) -> bool:
    """Whether a note counts heads without a correlation, which curves over checkpoints say for all of them together."""
    return note.endswith(tuple(_REASONS.values()))


def _at_offset(offset: int | None, agreed: FloatArray) -> str:
    return (
        f"The max-margin part is about W at offset {offset}, not about the heads at all offsets: its selections are those that this W "
        f"makes among the tokens that a query sees, as if each stood {offset} positions before the query. They are the selections of the "
        f"model itself in {np.mean(agreed):.0%} of these queries (mean over heads, from {np.min(agreed):.0%} to {np.max(agreed):.0%})."
    )


def model_selections(model: Any, inputs: Inputs, layer: int, sample: QuerySample) -> IntArray:
    """(n_heads, n_queries) which of `sample.tokens` the model itself selects, with all tokens at their own positions."""
    chosen: dict[int, IntArray] = {}
    for batch in inputs.batches():
        (reading,) = read_attention(model, batch.inputs, layers=[layer])
        visible = reading.visible.cpu().numpy()
        selected = select_tokens(reading.logits.detach().cpu().double().numpy(), visible).selected
        for row, place in enumerate(batch.index.tolist()):
            real = visible[row].any(axis=1)
            chosen[place] = (np.cumsum(real) - 1)[selected[row][:, real]]  # (n_heads, n_real), without the padding
    ordered = [chosen[place] for place in sorted(chosen)]
    starts = np.concatenate([[0], np.cumsum([one.shape[1] for one in ordered])])
    return np.stack([starts[i] + ordered[i][:, position] for i, position in sample.places.tolist()], axis=1)


def layer_sample(model: Any, inputs: Inputs, layer: int, settings: MaxMarginSettings) -> QuerySample:
    """Queries drawn from what one layer reads on all the inputs, in the inputs' own order."""
    tokens: dict[int, Any] = {}
    for batch in inputs.batches():
        (reading,) = read_attention(model, batch.inputs, layers=[layer])
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
    for baseline in _BASELINES:
        draws: Sequence[MarginMatch] = getattr(found, baseline)
        for name in QUANTITIES:
            known = [number for number in (getattr(one, name) for one in draws) if np.isfinite(number)]
            numbers[f"{name}_{baseline}"] = float(np.mean(known)) if known else float("nan")
    return numbers
