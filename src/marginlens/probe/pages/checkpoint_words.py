"""What the curves over checkpoints say, in sentences; every number in them is computed from the curves."""

from __future__ import annotations

import numpy as np

from marginlens.data.tokens import BoolArray
from marginlens.probe.checkpoint_curves import CheckpointCurves
from marginlens.probe.measures import SETTINGS
from marginlens.probe.pages.page_words import above

_TREND = 0.7  # rank correlation with the step from which on a curve is said to fall or grow


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
    return f"{ends} ({_rank(rank)})" if np.isfinite(rank) else ends


def falls(curves: CheckpointCurves, name: str) -> BoolArray:
    """(n_layers,) whether a layer's mean ends below its first value, with a rank correlation with the step of −0.7 or less."""
    means, ranks = curves.by_layer(name), curves.trend(name)
    return np.asarray((means[-1] < means[0]) & (ranks <= -_TREND))


def grows(curves: CheckpointCurves, name: str) -> BoolArray:
    """(n_layers,) whether a layer's mean ends above its first value, with a rank correlation with the step of 0.7 or more."""
    means, ranks = curves.by_layer(name), curves.trend(name)
    return np.asarray((means[-1] > means[0]) & (ranks >= _TREND))


def _sparser(curves: CheckpointCurves, name: str, whose: str) -> str:
    """The statement of paper A's Figs 6 and 7, layer by layer."""
    known = {one.name for one in curves.shown}
    if name not in known:
        return ""
    sparser, n = falls(curves, name), curves.n_layers
    ranks = ", with the rank correlation with the step in brackets" if name == "relative_nnz" else ""
    falling = f"falls in {int(sparser.sum())} of {n} layers (the last layer: {change(curves, name)}{ranks})"
    counted = f"nnz/T of {whose}, the mean over heads, {falling}"
    if "frobenius" not in known:
        return f"{counted}. The norm of W is not known here, so that nothing is said about sparsity beside it."
    larger = grows(curves, "frobenius")
    both = int((sparser & larger).sum())
    weights = f"the Frobenius norm of W grows in {int(larger.sum())} (the last layer: {change(curves, 'frobenius')})"
    if both == n:
        verdict = "So attention gets sparser while the key-query weights grow, as paper A's Figs 6 and 7 say."
    elif both:
        where = ", ".join(str(one) for one in np.flatnonzero(sparser & larger))
        verdict = f"So attention gets sparser while the key-query weights grow, as paper A's Figs 6 and 7 say, in layer {where} only."
    else:
        verdict = (
            "So in no layer does attention get sparser while the key-query weights grow, which is not what paper A's Figs 6 and 7 "
            "say."
        )
    return f"{counted}; {weights}. {verdict}"


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
