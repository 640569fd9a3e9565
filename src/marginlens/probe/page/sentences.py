"""What the numbers of a probe, and the curves over checkpoints, say in sentences; every number in them is computed from the result."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from marginlens.probe.result import (
    BASELINES,
    HEAD_KINDS,
    MIN_TREND_CHECKPOINTS,
    NEGLIGIBLE,
    CheckpointCurves,
    ProbeResult,
    rank_test,
    ranked_heads,
)
from marginlens.result import counted
from marginlens.typing import BoolArray, FloatArray

_CLEAR_RATIO = 1.25  # of two medians, from which on one is said to be larger
_ALIKE = 0.02  # smallest and largest nnz/T of heads that are said to be alike lie this close
SIGNIFICANCE = 0.05  # of a rank correlation; over checkpoints shared out over the layers
MIN_RELATIVE_CHANGE = 0.05  # of the first value: a smaller change over training is no finding, however steady
SINK_SHARE = 0.3  # of all attention, from which on the most attended token of an input is called a sink
_N_HEADS = 4  # that an answer names


# ---- one model


def main_result(result: ProbeResult) -> str:
    """What a reader should know first: what most heads are, and how max-margin the typical one is where that was asked."""
    most, others = _kinds(result)[0], f"of {counted(int(np.sum(result.kinds != '')), 'head')}"
    said = most.replace(" ", f" {others} {'is a' if most.startswith('1 ') else 'are'} ", 1)
    compared = _compared(result)
    if not compared:
        return f"{said}."
    own, chance = (_median(result[f"correlation{ending}"]) for ending in BASELINES)
    return f"{said}, and the typical head is {compared} a random one (correlation {own} against {chance})."


def _kinds(result: ProbeResult) -> list[str]:
    """How many heads are of which kind, the most frequent first: 62 first-token heads."""
    known = Counter(kind for kind in result.kinds.ravel().tolist() if kind)
    return [counted(count, HEAD_KINDS[kind].title) for kind, count in known.most_common()]


def findings(result: ProbeResult) -> tuple[str, ...]:
    """Sentences on sparsity, on how it goes with the weights, on what heads select and on how max-margin they are."""
    parts = [_sparsity, _weights, _selections, _preferences]
    if result.has_max_margin:
        parts += [_correlation, _margins]
    return tuple(sentence for part in parts for sentence in part(result))


def _largest(values: FloatArray) -> tuple[int, int]:
    """Layer and head of the largest number."""
    return divmod(int(np.nanargmax(values)), values.shape[1])


def _sparsity(result: ProbeResult) -> list[str]:
    share = result["relative_nnz"]
    sparsest, evenest = _largest(-share), _largest(share)
    counted = (
        f"A query sees {result.mean_tokens:.1f} tokens on average and attends to {np.nanmean(result['nnz']):.1f} of them (soft count, "
        "mean over heads)."
    )
    if share[evenest] - share[sparsest] < _ALIKE:
        ends = f"{share[sparsest]:.3f} to {share[evenest]:.3f}"
        counted += f" All heads are about equally sparse: nnz/T from {ends}."
    else:
        counted += (
            f" The sparsest head is {result.head_name(*sparsest)} with nnz/T {share[sparsest]:.2f}, the most even one "
            f"{result.head_name(*evenest)} with {share[evenest]:.2f}."
        )
    if result.n_layers < 2:
        return [counted]
    layers = (values[np.isfinite(values)] for values in share)
    means = [f"{values.mean():.2f}" if values.size else "–" for values in layers]
    if all(name.isdecimal() for name in result.layer_names):
        return [counted, f"From the first layer to the last, the mean nnz/T of the heads is {', '.join(means)}."]
    by_name = (f"{mean} in {name}" for name, mean in zip(result.layer_names, means, strict=True))
    return [counted, f"The mean nnz/T of the heads is {', '.join(by_name)}."]


def _weights(result: ProbeResult) -> list[str]:
    norms, share = result["frobenius"].ravel(), result["relative_nnz"].ravel()
    known = np.isfinite(norms) & np.isfinite(share)
    rank, p_value = rank_test(norms[known], share[known])
    if known.sum() < 3 or np.isnan(rank):
        return []
    correlation = f"the rank correlation of the Frobenius norm of W with nnz/T is {_signed(rank)}"
    if p_value > SIGNIFICANCE:
        return [
            f"Over all {int(known.sum())} heads, {correlation}, which chance alone gives often (p = {p_value:.2g}): nothing can be said "
            "about larger weights and sparsity."
        ]
    relation = f"{'on the whole' if abs(rank) > 0.3 else 'only slightly'} {'sparser' if rank < 0.0 else 'less sparse'}"
    return [f"Over all heads, {correlation}: heads with larger key-query weights are {relation}."]


def _selections(result: ProbeResult) -> list[str]:
    n_heads = int(np.isfinite(result["decisive_share"]).sum())
    said = (
        f"By what most of their queries select there are {', '.join(_kinds(result))}. On average "
        f"{np.nanmean(result['decisive_share']):.0%} of a head's selections are decisive: the selected token holds more than half of the "
        "attention."
    )
    tied = result["tied_share"]
    if np.nan_to_num(tied).any():
        share = tied[_largest(tied)]
        said += (
            f" In {int(np.sum(np.nan_to_num(tied) > 0))} of {counted(n_heads, 'head')} some queries select nothing, being tied: several "
            f"tokens share their largest logit, up to rounding, most often in {result.head_name(*_largest(tied))}, in "
            f"{f'{share:.0%}' if share >= 0.1 else f'{100 * share:.2g}%'} of its queries."
        )
    return [said]


def _preferences(result: ProbeResult) -> list[str]:
    contested, strict = result["contested_share"], result["strict_share"]
    if not np.isfinite(contested).any() or not np.isfinite(strict).any():
        return []
    return [
        f"A head decides {np.nanmean(contested):.0%} of the pairs of tokens it chooses between now one way, now the other (mean over "
        f"heads); of its clear preferences, {_percent(float(np.nanmean(strict)))} are in no cycle."
    ]


def _compared(result: ProbeResult) -> str:
    """How the typical head's correlation with its max-margin solution stands to that of random heads; empty where it is not known."""
    own, chance = (result.measures.get(f"correlation{ending}", np.full(1, np.nan)) for ending in BASELINES)
    if not np.isfinite(own).any():
        return ""
    comparable = np.isfinite(chance).any() and np.nanmedian(chance) > 0.0
    ratio = float(np.nanmedian(own) / np.nanmedian(chance)) if comparable else 1.0
    if 1.0 / _CLEAR_RATIO <= ratio <= _CLEAR_RATIO:
        return "about as max-margin as"
    return f"{'more' if ratio > 1.0 else 'less'} max-margin than"


def _correlation(result: ProbeResult) -> list[str]:
    own, chance = (result[f"correlation{ending}"] for ending in BASELINES)
    if not np.isfinite(own).any():
        return ["No head can be compared with a max-margin solution: the notes below say why."]
    at, whose = "", "its own selections"
    if result.w_offset is not None:
        at, whose = f" at offset {result.w_offset}", "the selections that this W makes"
    best = _largest(own)
    return [
        f"The correlation of a head's W{at} with the max-margin solution for {whose} has median {_median(own)} over heads ({_ends(own)}). "
        f"That of a random W at the selections it makes itself is {_median(chance)}, which {_count_above(own, chance)} heads exceed: by "
        f"this measure the typical head is {_compared(result)} a random one. The largest correlation is that of "
        f"{result.head_name(*best)}, {own[best]:.3f}."
    ]


def _margins(result: ProbeResult) -> list[str]:
    own = result["margin_ratio"]
    if not np.isfinite(own).any():
        return []
    return [
        f"The smallest margin of a head, at unit norm, is {_median(own)} of the best possible one (median over heads, {_ends(own)}), "
        f"against {_median(result['margin_ratio_random_head'])} for a random W at the selections it makes itself; the margin that 95% of "
        f"the constraints exceed is {_median(result['low_ratio'])} of the best, against {_median(result['low_ratio_random_head'])}."
    ]


def _count_above(own: FloatArray, baseline: FloatArray) -> str:
    """How many numbers exceed their baseline, of those that have one: 3 of 5."""
    known = np.isfinite(own) & np.isfinite(baseline)
    return f"{int(np.sum(own[known] > baseline[known]))} of {int(known.sum())}"


def _median(values: FloatArray) -> str:
    return _signed(float(np.nanmedian(values))) if np.isfinite(values).any() else "unknown"


def _ends(values: FloatArray) -> str:
    return f"from {_signed(float(np.nanmin(values)))} to {_signed(float(np.nanmax(values)))}"


def _signed(number: float) -> str:
    """Three decimals, or two digits of a small number."""
    return (f"{number:.3f}" if abs(number) >= 0.1 or number == 0.0 else f"{number:.2g}").replace("-", "−")


# ---- over training


def training_findings(curves: CheckpointCurves) -> tuple[str, ...]:
    """Sentences on whether attention gets sparser while the weights grow, on margins, and on how max-margin the heads become."""
    shown = {measure.name for measure in curves.shown}
    queries = {
        "relative_nnz": "all queries",
        "first_relative_nnz": "the query of the first token, whose maps paper A shows",
    }
    quantities = {
        "correlation": "The correlation of W with the max-margin solution for the head's selections",
        "margin_ratio": "The smallest margin over the best possible one",
    }
    decisive = [f"{share:.0%}" for share in curves.by_layer("decisive_share")[[0, -1], -1]]
    return (
        *(_sparser(curves, name, whose) for name, whose in queries.items() if name in shown),
        f"The median logit margin by which the heads of the last layer select goes {change(curves, 'margin_median')}; the selected token "
        f"holds more than half of the attention in {decisive[0]} of the queries at first and in {decisive[1]} at last.",
        *(_max_margin(curves, name, words) for name, words in quantities.items() if name in curves.measures),
    )


def change(curves: CheckpointCurves, name: str, layer: int = -1) -> str:
    """First and last number of one layer's mean, with the rank correlation: 0.93 → 0.31 (−1.00)."""
    curve, rank = curves.by_layer(name)[curves.has_measure(name), layer], curves.trends(name)[layer].correlation
    if not len(curve):
        return "–"
    ends = f"{_number(curve[0])} → {_number(curve[-1])}"
    return f"{ends} ({rank:.2f})".replace("-", "−") if np.isfinite(rank) and curves.can_have_trend else ends


def has_trend(curves: CheckpointCurves, name: str, sign: int) -> BoolArray:
    """(n_layers,) whether a layer's mean grows (sign 1) or falls (-1) by more than chance explains, and by 5% of its first value at least.

    Three conditions: enough checkpoints, a permutation test of the rank correlation with the step, and the size of the change.
    """
    # Bonferroni: at most this share of runs without a trend shows one in some layer
    level = SIGNIFICANCE / curves.n_layers
    is_significant = [test.p_value <= level and sign * test.correlation > 0.0 for test in curves.trends(name)]
    is_large = sign * np.nan_to_num(curves.relative_change(name)) >= MIN_RELATIVE_CHANGE
    return np.array(is_significant) & is_large & curves.can_have_trend


def _sparser(curves: CheckpointCurves, name: str, whose: str) -> str:
    """The statement of paper A's Figs 6 and 7, layer by layer."""
    n, has_norms = curves.n_layers, np.isfinite(curves["frobenius"]).any()
    if not curves.can_have_trend:
        norms = f", the Frobenius norm of W {change(curves, 'frobenius')}" if has_norms else ""
        return (
            f"nnz/T of {whose}, the mean over heads of the last layer, goes {change(curves, name)}{norms}. Whether attention gets sparser "
            f"while the key-query weights grow, as in paper A's Figs 6 and 7, {len(curves.names)} checkpoints cannot say: a trend is told "
            f"from chance with {MIN_TREND_CHECKPOINTS} or more."
        )
    sparser = has_trend(curves, name, sign=-1)
    ranks = ", with the rank correlation with the step in brackets" if name == "relative_nnz" else ""
    falling = f"falls in {int(sparser.sum())} of {counted(n, 'layer')} (the last layer: {change(curves, name)}{ranks})"
    said = f"nnz/T of {whose}, the mean over heads, {falling}"
    if not has_norms:
        return f"{said}. The norm of W is not known here, so that nothing is said about sparsity beside it."
    larger = has_trend(curves, "frobenius", sign=1)
    both = sparser & larger
    weights = f"the Frobenius norm of W grows in {int(larger.sum())} (the last layer: {change(curves, 'frobenius')})"
    statement, figures = "attention gets sparser while the key-query weights grow", "paper A's Figs 6 and 7 say"
    if both.any():
        falls, grows = (_percents(np.abs(curves.relative_change(curve)[both])) for curve in (name, "frobenius"))
        where = "" if both.all() else f", in {', '.join(map(curves.layer_title, np.flatnonzero(both).tolist()))} only"
        verdict = f"So {statement}, as {figures}{where}: nnz/T falls by {falls}, the norm grows by {grows}."
    else:
        statement = statement.replace("gets", "get")
        verdict = f"So in no layer does {statement} by more than chance explains, which is not what {figures}."
    if name == "relative_nnz":  # what is called a fall or a growth, said once
        verdict += (
            f" (A curve falls or grows where its last value differs from its first by {MIN_RELATIVE_CHANGE:.0%} or more and a permutation "
            f"test of its rank correlation with the step gives p ≤ {SIGNIFICANCE:g}{f'/{n}, for {n} layers' if n > 1 else ''}.)"
        )
    return f"{said}; {weights}. {verdict}"


def _percents(shares: FloatArray) -> str:
    """Changes in percent; beyond ten times as whole multiples."""
    if shares.min() >= 10.0:
        low, high = f"{shares.min() + 1.0:.0f}", f"{shares.max() + 1.0:.0f}"
        return f"a factor of {low}" if low == high else f"a factor of {low} to {high}"
    low, high = f"{shares.min():.0%}", f"{shares.max():.0%}"
    return low if low == high else f"{low} to {high}"


def _max_margin(curves: CheckpointCurves, name: str, words: str) -> str:
    """One number of the max-margin part in the last layer, beside that of random heads."""
    known = curves.has_measure(name)
    own = curves.by_layer(name)[known, -1]
    if not np.isfinite(own).any():
        return f"{words} is known at no checkpoint in the last layer: no W makes the selections of its heads, or these are all tied."
    chance = curves.by_layer(f"{name}_random_head")[known, -1]
    return (
        f"{words}, the mean over the heads of the last layer, goes {change(curves, name)}. That of a random head, weights drawn at random "
        f"at the selections that they make themselves, goes {_number(chance[0])} → {_number(chance[-1])}, and is exceeded at "
        f"{_count_above(own, chance)} checkpoints."
    )


def _number(value: float) -> str:
    """Three digits; a dash where there is none."""
    if not np.isfinite(value):
        return "–"
    return (f"{value:.3g}" if 1e-3 <= abs(value) < 1e4 or value == 0.0 else f"{value:.1e}").replace("-", "−")


# ---- advice: where the sinks are, how sparse attention can be made


class NamedHead(NamedTuple):
    """A head, with a number or a word about it."""

    name: str
    address: str  # of its part of the page
    says: str


class Answer(NamedTuple):
    """A question, a sentence, a table, and heads to look at."""

    question: str
    sentence: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    named: str = ""  # what the heads below are
    heads: tuple[NamedHead, ...] = ()
    note: str = ""  # how the numbers are meant


def answers(result: ProbeResult) -> tuple[Answer, ...]:
    """What was measured of the two questions."""
    return tuple(answer for answer in (_sinks(result), _leaving_out(result)) if answer)


def _sinks(result: ProbeResult) -> Answer | None:
    question = "Where are the sinks?"
    share = result.measures.get("sink_share", np.empty(0))
    if not np.isfinite(share).any():
        return None
    n_sinks = int(np.sum(np.nan_to_num(share) >= SINK_SHARE))
    known = counted(int(np.isfinite(share).sum()), "head")
    said = f"In {n_sinks} of {known} one token of an input gets {SINK_SHARE:.0%} or more of all attention."
    rows = tuple((name, _percent(part), _percent(expected)) for name, part, expected in result.sinks)
    strongest = sorted(result.head_sinks.items(), key=lambda item: item[1].expected - item[1].share)[:_N_HEADS]
    heads = tuple(_named(result, at, f"{row.name}, {_percent(row.share)}") for at, row in strongest)
    note = (
        "Attention over all heads, beside what a token would get if all that queries see had the same." if rows else ""
    )
    if not heads:  # names of tokens are not known, or none has more than its part
        order = [at for at in ranked_heads(share) if share[at] >= SINK_SHARE][:_N_HEADS]
        heads = tuple(_named(result, at, _percent(share[at])) for at in order)
    return Answer(question, said, ("token", "attention", "if even") if rows else (), rows, "Strongest", heads, note)


def _leaving_out(result: ProbeResult) -> Answer | None:
    question = "How sparse can attention be made?"
    known = {error: result.measures.get(name, np.empty(0)) for error, name in NEGLIGIBLE.items()}
    known = {error: share for error, share in known.items() if np.isfinite(share).any()}
    if not known:
        return None
    rows = tuple(
        (
            f"{error:g}",
            _percent(float(np.nanmean(share))),
            f"{_percent(float(np.nanmin(share)))} to {_percent(float(np.nanmax(share)))}",
            f"{int(np.sum(np.nan_to_num(share) >= 0.5))} of {int(np.isfinite(share).sum())}",
        )
        for error, share in known.items()
    )
    error, share = next(iter(known.items()))
    most = ranked_heads(share)[:_N_HEADS]
    return Answer(
        question,
        f"Of the {result.mean_tokens:.1f} tokens that a query sees on average, {_percent(float(np.nanmean(share)))} can be left out at "
        f"an error of {error:g}.",
        ("error", "left out, mean", "by head", "heads with half"),
        rows,
        f"Most at {error:g}",
        tuple(_named(result, at, _percent(share[at])) for at in most),
        "The error is the total variation between the attention and what is left of it, at every query; exact.",
    )


def _named(result: ProbeResult, at: tuple[int, int], says: str) -> NamedHead:
    return NamedHead(result.head_name(*at), f"#L{at[0]}H{at[1]}", says)


def _percent(share: float) -> str:
    """Whole percent, with a digit more where that would say all or nothing of what is not."""
    return f"{share:.0%}" if share in (0.0, 1.0) or 0.095 <= share < 0.995 else f"{share:.1%}"
