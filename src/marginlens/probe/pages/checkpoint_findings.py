"""What the curves over checkpoints say, in sentences; every number in them is computed from the curves."""

from __future__ import annotations

import numpy as np

from marginlens.data.tokens import BoolArray, FloatArray
from marginlens.probe.checkpoint_curves import CheckpointCurves
from marginlens.probe.measures import SETTINGS
from marginlens.probe.pages.findings import above

MIN_CHECKPOINTS = (
    6  # fewer cannot tell a trend from chance: with five, one order in 60 is perfect, and there are several layers
)
SIGNIFICANCE = 0.05  # chance of calling any layer's curve a trend where there is none; shared out over the layers
MIN_RELATIVE_CHANGE = 0.05  # of the first value: a smaller change is no finding, however steady


def training_findings(curves: CheckpointCurves) -> tuple[str, ...]:
    """Sentences on whether attention gets sparser while the weights grow, on margins, and on how max-margin the heads become."""
    said = [
        _sparser(curves, "relative_nnz", "all queries"),
        _sparser(curves, "first_relative_nnz", "the query of the first token, whose maps paper A shows"),
        _margins(curves),
        _max_margin(
            curves, "correlation", "The correlation of W with the max-margin solution for the head's selections"
        ),
        _max_margin(curves, "margin_ratio", "The smallest margin over the best possible one"),
    ]
    return tuple(one for one in said if one)


def change(curves: CheckpointCurves, name: str, layer: int = -1) -> str:
    """First and last number of one layer's mean, with the rank correlation: 0.93 → 0.31 (−1.00)."""
    curve, rank = curves.by_layer(name)[:, layer], curves.trend(name)[layer]
    ends = f"{_number(curve[0])} → {_number(curve[-1])}"
    return f"{ends} ({_rank(rank)})" if np.isfinite(rank) and len(curves.names) >= MIN_CHECKPOINTS else ends


def falls(curves: CheckpointCurves, name: str) -> BoolArray:
    """(n_layers,) whether a layer's mean falls by more than chance explains, and by 5% of its first value at least."""
    return _changes(curves, name, sign=-1)


def grows(curves: CheckpointCurves, name: str) -> BoolArray:
    """(n_layers,) whether a layer's mean grows by more than chance explains, and by 5% of its first value at least."""
    return _changes(curves, name, sign=1)


def _changes(curves: CheckpointCurves, name: str, sign: int) -> BoolArray:
    """Three conditions: enough checkpoints, a permutation test of the rank correlation with the step, and the size of the change."""
    if len(curves.names) < MIN_CHECKPOINTS:
        return np.zeros(curves.n_layers, dtype=bool)
    tests = curves.trend_tests(name)
    level = (
        SIGNIFICANCE / curves.n_layers
    )  # Bonferroni: at most this share of runs without a trend shows one in some layer
    significant = np.array([test.p_value <= level and sign * test.correlation > 0.0 for test in tests])
    return significant & (sign * np.nan_to_num(curves.relative_change(name)) >= MIN_RELATIVE_CHANGE)


def _sparser(curves: CheckpointCurves, name: str, whose: str) -> str:
    """The statement of paper A's Figs 6 and 7, layer by layer."""
    known = {one.name for one in curves.shown}
    if name not in known:
        return ""
    n = curves.n_layers
    if len(curves.names) < MIN_CHECKPOINTS:
        norms = f", the Frobenius norm of W {change(curves, 'frobenius')}" if "frobenius" in known else ""
        return (
            f"nnz/T of {whose}, the mean over heads of the last layer, goes {change(curves, name)}{norms}. Whether attention gets sparser "
            f"while the key-query weights grow, as in paper A's Figs 6 and 7, {len(curves.names)} checkpoints cannot say: a trend is told "
            f"from chance with {MIN_CHECKPOINTS} or more."
        )
    sparser = falls(curves, name)
    ranks = ", with the rank correlation with the step in brackets" if name == "relative_nnz" else ""
    falling = f"falls in {int(sparser.sum())} of {n} layers (the last layer: {change(curves, name)}{ranks})"
    counted = f"nnz/T of {whose}, the mean over heads, {falling}"
    if "frobenius" not in known:
        return f"{counted}. The norm of W is not known here, so that nothing is said about sparsity beside it."
    larger = grows(curves, "frobenius")
    both = int((sparser & larger).sum())
    sizes = _sizes(curves, name, sparser & larger) if both else ""
    weights = f"the Frobenius norm of W grows in {int(larger.sum())} (the last layer: {change(curves, 'frobenius')})"
    if both == n:
        verdict = f"So attention gets sparser while the key-query weights grow, as paper A's Figs 6 and 7 say{sizes}."
    elif both:
        where = ", ".join(str(one) for one in np.flatnonzero(sparser & larger))
        verdict = (
            "So attention gets sparser while the key-query weights grow, as paper A's Figs 6 and 7 say, in layer "
            f"{where} only{sizes}."
        )
    else:
        verdict = (
            "So in no layer does attention get sparser while the key-query weights grow by more than chance explains, which is not what "
            "paper A's Figs 6 and 7 say."
        )
    return f"{counted}; {weights}. {verdict}{_test_in_words(n) if name == 'relative_nnz' else ''}"


def _sizes(curves: CheckpointCurves, name: str, layers: BoolArray) -> str:
    """How large the two changes are in these layers: : nnz/T falls by 20% to 40%, the norm grows by 8%."""
    falling, growing = (_percents(100.0 * np.abs(curves.relative_change(one)[layers])) for one in (name, "frobenius"))
    return f": nnz/T falls by {falling}, the norm grows by {growing}"


def _percents(values: FloatArray) -> str:
    low, high = f"{values.min():.0f}%", f"{values.max():.0f}%"
    return low if low == high else f"{low} to {high}"


def _test_in_words(n_layers: int) -> str:
    """What is called a fall or a growth, said once."""
    return (
        f" (A curve falls or grows where its last value differs from its first by {MIN_RELATIVE_CHANGE:.0%} or more and a permutation test "
        f"of its rank correlation with the step gives p ≤ {SIGNIFICANCE:g}"
        f"{f'/{n_layers}, for {n_layers} layers' if n_layers > 1 else ''}.)"
    )


def _margins(curves: CheckpointCurves) -> str:
    return (
        f"The median logit margin by which the heads of the last layer select goes {change(curves, 'margin_median')}; the selected token "
        f"holds more than half of the attention in {_share(curves, 0)} of the queries at first and in {_share(curves, -1)} at last."
    )


def _share(curves: CheckpointCurves, place: int) -> str:
    return f"{curves.by_layer('decisive_share')[place, -1]:.0%}"


def _max_margin(curves: CheckpointCurves, name: str, words: str) -> str:
    """One number of the max-margin part in the last layer, beside its baselines."""
    if name not in curves.measures:
        return ""
    own = curves.by_layer(name)[:, -1]
    if not np.isfinite(own).any():
        return f"{words} is known at no checkpoint in the last layer: no W makes the selections of its heads, or these are all tied."
    titles = {ending: title for ending, (title, _) in SETTINGS.items() if ending}
    baselines = {title: curves.by_layer(name + ending)[:, -1] for ending, title in titles.items()}
    beside = ", ".join(f"{_number(one[0])} → {_number(one[-1])} for {title}" for title, one in baselines.items())
    chance = baselines[titles["_random_head"]]
    return (
        f"{words}, the mean over the heads of the last layer, goes {change(curves, name)}. The baselines: {beside}. It exceeds that of a "
        f"random head, weights drawn at random at the selections that they make themselves, at {above(own, chance)} checkpoints."
    )


def _rank(value: float) -> str:
    return f"{value:.2f}".replace("-", "−")


def _number(value: float) -> str:
    """Three digits; a dash where there is none."""
    if not np.isfinite(value):
        return "–"
    plain = f"{value:.3g}" if 1e-3 <= abs(value) < 1e4 or value == 0.0 else f"{value:.1e}"
    return plain.replace("-", "−")
