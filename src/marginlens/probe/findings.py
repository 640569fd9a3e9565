"""Findings of a probe and of curves over checkpoints: facts with numbers computed from the result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from marginlens.probe.measures import (
    BASELINES,
    HEAD_KINDS,
    MIN_RELATIVE_CHANGE,
    MIN_TREND_CHECKPOINTS,
    NEGLIGIBLE,
    SIGNIFICANCE,
    rank_test,
    ranked_heads,
)
from marginlens.typing import BoolArray, FloatArray
from marginlens.words import Fact, percent

if TYPE_CHECKING:
    from marginlens.probe.result import CheckpointCurves, ProbeResult

# A median that is this many times another is called larger.
CLEAR_RATIO = 1.25
# A head with at least this correlation is called close to its max-margin solution.
CLOSE_CORRELATION = 0.5
# Heads whose values of nnz/T lie within this range are called equally sparse.
ALIKE_RANGE = 0.02
STRONG_RANK = 0.3
# The share of all attention from which on the most attended token of an input is called a sink.
SINK_SHARE = 0.3
N_NAMED_HEADS = 4


# ---- one model


def main_results(result: ProbeResult) -> tuple[Fact, ...]:
    """State the main results, the headline first: how near heads are to their max-margin directions, if that was measured, and
    what they select.
    """
    kinds = Fact("probe.head_kinds", _kind_numbers(result))
    own = result.measures.get("correlation", np.empty((0, 0)))
    n_known, n_close = int(np.isfinite(own).sum()), int(np.sum(np.nan_to_num(own) >= CLOSE_CORRELATION))
    if not n_known:
        return (kinds,)
    best = _largest(own)
    numbers = {"n_close": n_close, "n_known": n_known, "head": result.head_name(*best), "largest": float(own[best])}
    numbers |= {"random": float(result["correlation_random_head"][best]), "limit": CLOSE_CORRELATION}
    if n_close:
        case = "one_near" if n_close == 1 else "several_near"
    else:
        case = "only" if n_known == 1 else "none" if n_known == np.sum(result.kinds != "") else "none_of_known"
    headline = Fact("probe.near_max_margin", {**numbers, "case": case})
    if result.w_offset is not None:
        headline = Fact("probe.at_offset", {"sentence": headline, "offset": result.w_offset})
    return headline, kinds


def _kind_numbers(result: ProbeResult) -> dict[str, Any]:
    """Count the heads of each kind, the sink heads, and those of them that have a kind beside the sink."""
    n_sinks = int(np.sum(result.kinds_beside != ""))
    named = np.where(result.kinds_beside == "content", "", result.kinds_beside)
    numbers = {"n_sinks": n_sinks, "n_named": int(np.sum(named != "")), "beside": _counted_kinds(named)}
    return {"kinds": _counted_kinds(result.kinds), **numbers, "case": "sinks" if numbers["n_named"] else "plain"}


def findings(result: ProbeResult) -> tuple[Fact, ...]:
    """Describe sparsity, its relation to the weights, what heads select, and how max-margin they are.

    Args:
        result: a probe of one model.

    Returns:
        One fact for each finding; `str` of it is its text.
    """
    parts = [_sparsity, _weights, _selections, _preferences]
    if result.has_max_margin:
        parts += [_correlation, _margins]
    return tuple(fact for part in parts for fact in part(result))


def _known(result: ProbeResult, name: str) -> FloatArray:
    """Return the finite numbers of a measure; none if the probe does not have it."""
    values = result.measures.get(name, np.empty(0))
    return np.asarray(values[np.isfinite(values)])


def _counted_kinds(kinds: npt.NDArray[np.str_]) -> list[Fact]:
    """Count the heads of each kind, in the order of `HEAD_KINDS`."""
    counts = {kind: int(np.sum(kinds == kind)) for kind in HEAD_KINDS}
    return [Fact(f"head_kind_count.{kind}", {"count": count}) for kind, count in counts.items() if count]


def _largest(values: FloatArray) -> tuple[int, int]:
    """Return layer and head of the largest number."""
    return divmod(int(np.nanargmax(values)), values.shape[1])


def _sparsity(result: ProbeResult) -> list[Fact]:
    share = result["relative_nnz"]
    sparsest, evenest = _largest(-share), _largest(share)
    numbers = {
        "n_tokens": result.mean_tokens,
        "n_attended": float(np.nanmean(result["nnz"])),
        "sparsest": result.head_name(*sparsest),
        "evenest": result.head_name(*evenest),
        "low": float(share[sparsest]),
        "high": float(share[evenest]),
    }
    case = "alike" if share[evenest] - share[sparsest] < ALIKE_RANGE else "different"
    facts = [Fact("probe.sparsity", {**numbers, "case": case})]
    if result.n_layers > 1:
        means = [values[np.isfinite(values)].mean() if np.isfinite(values).any() else np.nan for values in share]
        is_stack = all(name.isdecimal() for name in result.layer_names)
        cases = ["unknown" if np.isnan(mean) else "plain" if is_stack else "named" for mean in means]
        layers = [
            Fact("probe.layer_mean", {"mean": float(mean), "layer": result.layer_name(layer), "case": case})
            for layer, (mean, case) in enumerate(zip(means, cases, strict=True))
        ]
        facts.append(Fact("probe.layer_sparsity", {"layers": layers, "case": "stack" if is_stack else "parts"}))
    return facts


def _weights(result: ProbeResult) -> list[Fact]:
    norms, share = result["frobenius"].ravel(), result["relative_nnz"].ravel()
    known = np.isfinite(norms) & np.isfinite(share)
    rank, p_value = rank_test(norms[known], share[known])
    if known.sum() < 3 or np.isnan(rank):
        return []
    case = "chance"
    if p_value <= SIGNIFICANCE:
        case = ("sparser" if rank < 0.0 else "evener") if abs(rank) > STRONG_RANK else "slightly"
        case = case if case != "slightly" else "slightly_sparser" if rank < 0.0 else "slightly_evener"
    numbers = {"n_heads": int(known.sum()), "rank": float(rank), "p_value": float(p_value), "case": case}
    return [Fact("probe.norms_and_sparsity", numbers)]


def _selections(result: ProbeResult) -> list[Fact]:
    decisive = result["decisive_share"]
    facts = [Fact("probe.selections", {"decisive": float(np.nanmean(decisive))})]
    tied = result["tied_share"]
    if np.nan_to_num(tied).any():
        most = _largest(tied)
        numbers = {
            "n_tied": int(np.sum(np.nan_to_num(tied) > 0)),
            "n_heads": int(np.isfinite(decisive).sum()),
            "head": result.head_name(*most),
            "share": float(tied[most]),
        }
        facts.append(Fact("probe.ties", numbers))
    return facts


def _preferences(result: ProbeResult) -> list[Fact]:
    contested, strict = _known(result, "contested_share"), _known(result, "strict_share")
    if not contested.size or not strict.size:
        return []
    return [Fact("probe.preferences", {"contested": float(contested.mean()), "strict": float(strict.mean())})]


def _correlation(result: ProbeResult) -> list[Fact]:
    own, random = (result[f"correlation{ending}"] for ending in BASELINES)
    if not np.isfinite(own).any():
        return [Fact("probe.no_correlation")]
    best = _largest(own)
    numbers = {
        **_spread(own),
        "random": _median(random),
        **_above(own, random),
        "compared": Fact(f"compared.{_compared(own, random)}"),
        "head": result.head_name(*best),
        "largest": float(own[best]),
        "offset": result.w_offset,
        "case": "own" if result.w_offset is None else "at_offset",
    }
    return [Fact("probe.correlation", numbers)]


def _compared(own: FloatArray, random: FloatArray) -> str:
    """Return whether the typical head is "more", "less" or "about_as" max-margin as a random one."""
    if not np.isfinite(random).any() or not np.nanmedian(random) > 0.0:
        return "about_as"
    ratio = float(np.nanmedian(own) / np.nanmedian(random))
    return "more" if ratio > CLEAR_RATIO else "less" if ratio < 1.0 / CLEAR_RATIO else "about_as"


def _margins(result: ProbeResult) -> list[Fact]:
    own = result["margin_ratio"]
    if not np.isfinite(own).any():
        return []
    numbers = {
        **_spread(own),
        "random": _median(result["margin_ratio_random_head"]),
        "low_median": _median(result["low_ratio"]),
        "low_random": _median(result["low_ratio_random_head"]),
    }
    return [Fact("probe.margins", numbers)]


def _spread(values: FloatArray) -> dict[str, float]:
    return {"median": _median(values), "low": float(np.nanmin(values)), "high": float(np.nanmax(values))}


def _above(own: FloatArray, baseline: FloatArray) -> dict[str, int]:
    """Count the numbers that exceed their baseline, among those that have one."""
    known = np.isfinite(own) & np.isfinite(baseline)
    return {"n_above": int(np.sum(own[known] > baseline[known])), "n_known": int(known.sum())}


def _median(values: FloatArray) -> float:
    return float(np.nanmedian(values)) if np.isfinite(values).any() else float("nan")


# ---- over training


def training_findings(curves: CheckpointCurves) -> tuple[Fact, ...]:
    """Describe whether attention gets sparser while the weights grow, how margins change, and how max-margin the heads become.

    Args:
        curves: the measures of a probe over checkpoints.

    Returns:
        One fact for each finding; `str` of it is its text.
    """
    shown = {measure.name for measure in curves.shown}
    decisive = curves.by_layer("decisive_share")[[0, -1], -1]
    margins = {"change": curves.change("margin_median"), "first": float(decisive[0]), "last": float(decisive[1])}
    return (
        *(_sparser(curves, name) for name in ("relative_nnz", "first_relative_nnz") if name in shown),
        Fact("curve.margins", margins),
        *(_max_margin(curves, name) for name in ("correlation", "margin_ratio") if name in curves.measures),
    )


def _sparser(curves: CheckpointCurves, name: str) -> Fact:
    """Return the statement of paper A's Figs 6 and 7, layer by layer."""
    has_norms = bool(np.isfinite(curves["frobenius"]).any())
    numbers = {"queries": Fact(f"curve_queries.{name}"), "change": curves.change(name), "n_layers": curves.n_layers}
    if has_norms:
        numbers["norm_change"] = curves.change("frobenius")
    norms = "with_norms" if has_norms else "without_norms"
    if not curves.can_have_trend:
        counts = {"n_checkpoints": len(curves.names), "least": MIN_TREND_CHECKPOINTS}
        return Fact("curve.too_few_checkpoints", {**numbers, **counts, "case": norms})
    falls, grows = curves.has_trend(name, sign=-1), curves.has_trend("frobenius", sign=1)
    numbers |= {"n_falling": int(falls.sum()), "n_growing": int(grows.sum()), "case": norms}
    trend = Fact("curve.sparsity", numbers)
    if not has_norms:
        return trend
    # The rule is stated once, with the first of both curves.
    level = Fact(
        "curve.trend_rule", {"change": MIN_RELATIVE_CHANGE, "level": SIGNIFICANCE, "n_layers": curves.n_layers}
    )
    verdict = _verdict(curves, name, falls & grows)
    parts = {"trend": trend, "verdict": verdict, "rule": level}
    return Fact("curve.sparsity_and_norms", {**parts, "case": "with_rule" if name == "relative_nnz" else "alone"})


def _verdict(curves: CheckpointCurves, name: str, both: BoolArray) -> Fact:
    """Return whether attention gets sparser while the norm grows: in all layers, in some or in none."""
    if not both.any():
        return Fact("curve.verdict", {"case": "none"})
    falls, grows = (curves.change_amount(curve, both) for curve in (name, "frobenius"))
    layers = [curves.layer_title(layer) for layer in np.flatnonzero(both).tolist()]
    return Fact(
        "curve.verdict", {"falls": falls, "grows": grows, "layers": layers, "case": "all" if both.all() else "some"}
    )


def _max_margin(curves: CheckpointCurves, name: str) -> Fact:
    """Return one number of the max-margin part in the last layer, and that of random heads."""
    known = curves.has_measure(name)
    own, quantity = curves.by_layer(name)[known, -1], Fact(f"curve_quantity.{name}")
    if not np.isfinite(own).any():
        return Fact("curve.max_margin", {"quantity": quantity, "case": "unknown"})
    random = curves.by_layer(f"{name}_random_head")[known, -1]
    numbers = {"change": curves.change(name), "first": float(random[0]), "last": float(random[-1])}
    return Fact("curve.max_margin", {"quantity": quantity, **numbers, **_above(own, random), "case": "known"})


# ---- advice: where the sinks are, how sparse attention can be made


class NamedHead(NamedTuple):
    """A head, the address of its part of the page, and a number or a name about it."""

    name: str
    address: str
    detail: str


class Answer(NamedTuple):
    """A question with its answer, a table with rows of formatted numbers, and heads to look at.

    Attributes:
        question: the question.

        answer: the fact that answers the question.

        columns: the headings of the table's columns.

        rows: the rows of the table; empty if there is no table.

        named: a description of the heads below.

        heads: the heads to look at first.

        note: an explanation of the numbers; None if none is needed.
    """

    question: Fact
    answer: Fact
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    named: str = ""
    heads: tuple[NamedHead, ...] = ()
    note: Fact | None = None


def answers(result: ProbeResult) -> tuple[Answer, ...]:
    """Say where the sinks of a model are, and how much of its attention can be left out, if that was measured."""
    return tuple(answer for answer in (_sinks(result), _leaving_out(result)) if answer)


def _sinks(result: ProbeResult) -> Answer | None:
    share = result.measures.get("sink_share", np.empty(0))
    if not np.isfinite(share).any():
        return None
    n_sinks = int(np.sum(np.nan_to_num(share) >= SINK_SHARE))
    numbers = {"n_sinks": n_sinks, "n_heads": int(np.isfinite(share).sum()), "limit": SINK_SHARE}
    rows = tuple((name, percent(part), percent(expected)) for name, part, expected in result.sinks)
    strongest = sorted(result.head_sinks.items(), key=lambda item: item[1].expected - item[1].share)[:N_NAMED_HEADS]
    heads = tuple(_named(result, at, f"{row.name}, {percent(row.share)}") for at, row in strongest)
    if not heads:  # names of tokens are not known, or none has more than its part
        order = [at for at in ranked_heads(share) if share[at] >= SINK_SHARE][:N_NAMED_HEADS]
        heads = tuple(_named(result, at, percent(float(share[at]))) for at in order)
    return Answer(
        Fact("question.sinks"),
        Fact("answer.sinks", numbers),
        ("token", "attention", "if even") if rows else (),
        rows,
        "Strongest",
        heads,
        Fact("answer_note.sinks") if rows else None,
    )


def _leaving_out(result: ProbeResult) -> Answer | None:
    known = {error: _known(result, name) for error, name in NEGLIGIBLE.items()}
    known = {error: shares for error, shares in known.items() if shares.size}
    if not known:
        return None
    rows = tuple(
        (
            f"{error:g}",
            percent(float(shares.mean())),
            f"{percent(float(shares.min()))} to {percent(float(shares.max()))}",
            f"{int(np.sum(shares >= 0.5))} of {len(shares)}",
        )
        for error, shares in known.items()
    )
    error, shares = next(iter(known.items()))
    by_head = result[NEGLIGIBLE[error]]
    return Answer(
        Fact("question.leaving_out"),
        Fact("answer.leaving_out", {"n_tokens": result.mean_tokens, "share": float(shares.mean()), "error": error}),
        ("error", "left out, mean", "by head", "heads with half"),
        rows,
        f"Most at {error:g}",
        tuple(_named(result, at, percent(float(by_head[at]))) for at in ranked_heads(by_head)[:N_NAMED_HEADS]),
        Fact("answer_note.leaving_out"),
    )


def _named(result: ProbeResult, at: tuple[int, int], detail: str) -> NamedHead:
    return NamedHead(result.head_name(*at), f"#L{at[0]}H{at[1]}", detail)
