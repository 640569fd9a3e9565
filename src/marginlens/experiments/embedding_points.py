"""Kept training runs beside the papers' words on them: rank correlations with intervals, orders of losses, panels and curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import rankdata

from marginlens.data.tokens import FloatArray, IntArray
from marginlens.embeddings.keeping import KeptRun, kept_runs
from marginlens.embeddings.picture import TokenPoints, draw_tokens
from marginlens.embeddings.results import FREQUENT
from marginlens.embeddings.settings import TrainingSettings
from marginlens.experiments import drawing
from marginlens.experiments.claim import Bound, Effort, Finding, Progress

SOURCES = {"imdb": "IMDB", "yelp": "Yelp"}
CONFIDENCE = 0.95
SEED = 3


# ---- numbers


@dataclass(frozen=True)
class Ranks:
    """Spearman's correlation of ⟨E_s, v⟩ with the posterior difference (`v`) and of ⟨E_s, p⟩ with its modulus (`p`).

    Each is (estimate, low, high), the ends being those of a 95% percentile bootstrap over the `n_tokens` tokens.
    """

    v: tuple[float, float, float]
    p: tuple[float, float, float]
    n_tokens: int

    def __str__(self) -> str:
        v, p = (f"{one:.3f} [{low:.3f}, {high:.3f}]" for one, low, high in (self.v, self.p))
        return f"{v} (v) and {p} (p) over {self.n_tokens:,} tokens"


def spearman(x: FloatArray, y: FloatArray) -> FloatArray:
    """Spearman's correlation along the last axis, ties sharing their mean rank; NaN where nothing differs."""
    ranks = [rankdata(one, axis=-1) for one in (x, y)]
    u, w = (one - one.mean(axis=-1, keepdims=True) for one in ranks)
    size = np.sqrt(np.sum(u * u, axis=-1) * np.sum(w * w, axis=-1))
    return np.asarray(np.divide(np.sum(u * w, axis=-1), size, out=np.full_like(size, np.nan), where=size > 0.0))


def ranks_of(difference: FloatArray, a: FloatArray, b: FloatArray, tokens: IntArray, *, resamples: int = 1000) -> Ranks:
    """Both rank correlations over some tokens, with intervals from drawing as many tokens again with replacement."""
    d, p, v = difference[tokens], a[tokens], b[tokens]
    drawn = np.random.default_rng(SEED).integers(len(tokens), size=(resamples, len(tokens)))

    def with_interval(x: FloatArray, y: FloatArray) -> tuple[float, float, float]:
        tail = 50.0 * (1.0 - CONFIDENCE)
        low, high = np.nanpercentile(spearman(x[drawn], y[drawn]), [tail, 100.0 - tail])
        return float(spearman(x, y)), float(low), float(high)

    return Ranks(with_interval(v, d), with_interval(p, np.abs(d)), len(tokens))


def frequent_ranks(run: KeptRun, resamples: int) -> Ranks:
    """The rank correlations over the tokens with at least 200 occurrences."""
    known = run.statistics
    tokens = np.flatnonzero(known.count >= FREQUENT)
    return ranks_of(known.posterior_difference, run.a, run.b, tokens, resamples=resamples)


def order(loss: float) -> int:
    """The exponent of the power of ten that is nearest to a loss, on a logarithmic scale."""
    return round(_decades(loss))


def _decades(loss: float) -> float:
    return float(np.log10(max(loss, 1e-300)))


def is_stated(run: KeptRun) -> bool:
    """Whether a run has all of the paper's settings for text."""
    given = run.settings
    return run.finished and given == TrainingSettings(given.layers, seed=given.seed, device=given.device)


def deciding(runs: Sequence[KeptRun], exponent: int) -> KeptRun:
    """The run that a claim is held against: at the paper's settings if its loss is of the paper's order or below it, else the nearest."""
    reached = [run for run in runs if order(run.loss) <= exponent]
    stated = [run for run in reached if is_stated(run)]
    return stated[0] if stated else min(reached or runs, key=lambda run: abs(_decades(run.loss) - exponent))


# ---- the claims on real text


def text_bounds(exponent: int) -> dict[str, Bound]:
    """What decides a claim on IMDB and Yelp: a final loss of the paper's order or below, and both rank correlations surely above zero."""
    bounds = {}
    for source in SOURCES:
        bounds[f"{source}_loss_order"] = Bound(high=exponent)
        bounds |= {f"{source}_{letter}_at_least": Bound(low=0.0) for letter in "vp"}
    return bounds


def text_finding(layers: int, exponent: int, effort: Effort, progress: Progress, explained: str) -> Finding:
    """Measure every kept run of this depth on IMDB and Yelp.

    Args:
        layers: 1 or 2. exponent: of the power of ten that the paper gives for the loss. explained: closes the note where it is missed.
    """
    resamples = 1000 if effort is Effort.PAPER else 200
    runs = {source: kept_runs(source, layers) for source in SOURCES}
    progress.expect(sum(map(len, runs.values())))
    ranks: dict[str, Ranks] = {}
    for run in (one for each in runs.values() for one in each):
        ranks[run.name] = frequent_ranks(run, resamples)
        progress.advance()
    chosen = {source: deciding(each, exponent) for source, each in runs.items()}
    numbers: dict[str, float] = {}
    for source, run in chosen.items():
        found = ranks[run.name]
        numbers |= {f"{source}_loss_order": order(run.loss), f"{source}_loss": run.loss}
        numbers |= {f"{source}_v": found.v[0], f"{source}_v_at_least": found.v[1]}
        numbers |= {f"{source}_p": found.p[0], f"{source}_p_at_least": found.p[1]}
    everyone = [run for each in runs.values() for run in each]
    measured = " ".join(
        f"{_name(run)}: loss {_loss(run.loss)}, accuracy {run.accuracy:.3f}, Spearman {ranks[run.name]}."
        for run in everyone
    )
    note = _note(runs, chosen, exponent)
    if note and any(order(run.loss) != exponent for run in everyone):
        note = f"{note} {explained}"
    return Finding(measured, numbers, {"runs": everyone, "ranks": ranks}, note=note)


def _name(run: KeptRun) -> str:
    told = [SOURCES.get(run.source, run.source), f"rate {run.settings.learning_rate:g}"]
    told += [] if run.finished else [f"stopped at epoch {int(run.epochs[-1])} of {run.settings.epochs}"]
    told += [f"{int(run.epochs[-1])} epochs"] if run.finished and run.settings.epochs != 500 else []
    told += [f"spread {run.settings.spread:g}"] if run.settings.spread != 1.0 else []
    return ", ".join(told)


def _loss(loss: float) -> str:
    return f"{loss:.3f}" if loss >= 0.01 else f"{loss:.1e}"


def _note(runs: Mapping[str, Sequence[KeptRun]], chosen: Mapping[str, KeptRun], exponent: int) -> str:
    """What differs from the paper's loss and settings, dataset by dataset."""
    said = []
    for source, each in runs.items():
        title, run = SOURCES[source], chosen[source]
        at_stated = [one for one in each if is_stated(one)]
        if at_stated and order(at_stated[0].loss) < exponent:
            said.append(f"{title} ends at loss {_loss(at_stated[0].loss)}, below the paper's order 1e{exponent}.")
        if at_stated and order(at_stated[0].loss) > exponent:
            path = at_stated[0].curves["loss"]
            best = int(np.argmin(path))
            lowest = f"its lowest, {_loss(path[best])}, was after epoch {int(at_stated[0].epochs[best])}"
            ended = f"At the stated settings {title} ends at loss {_loss(at_stated[0].loss)}, not near 1e{exponent}"
            said.append(f"{ended}; {lowest}." if path[best] < 0.9 * at_stated[0].loss else f"{ended}.")
        if not at_stated:
            said.append(
                f"No run on {title} is finished at the stated settings, at which the paper has a loss near 1e{exponent}."
            )
        if not is_stated(run) and order(run.loss) <= exponent:
            said.append(f"{title} is judged by the run at {_name(run).split(', ', 1)[1]}, which reaches it.")
        if order(run.loss) > exponent and len(each) > len(at_stated):
            said.append(f"No kept run on {title} ends near 1e{exponent}: the nearest has {_loss(run.loss)}.")
    return " ".join(said)


# ---- pictures


def text_figures(finding: Finding) -> dict[str, Figure]:
    """The paper's two panels for every run, and how loss and correlations went."""
    figures = {}
    for run in finding.arrays["runs"]:
        found = finding.arrays["ranks"][run.name]
        layers = "one layer" if run.settings.layers == 1 else "two layers"
        title = f"{_name(run)}, {layers}: loss {_loss(run.loss)}, Spearman {found.v[0]:.2f} (v), {found.p[0]:.2f} (p)"
        figures[run.name.replace("-", "_").replace(".", "_")] = panels(run, title)
    figures["training"] = training_curves(finding.arrays["runs"])
    return figures


def points_of(run: Any) -> TokenPoints:
    """The points of a kept run, or of one just trained."""
    known = run.statistics
    names = getattr(run, "names", None)
    return TokenPoints.of(known.posterior_difference, run.a, run.b, known.count, names)


def panels(run: Any, title: str) -> Figure:
    """The two panels of one run, with a dozen telling tokens named."""
    return draw_tokens(points_of(run), title=title)


def training_curves(runs: Sequence[KeptRun]) -> Figure:
    """Loss and both rank correlations over the epochs, a colour for each run."""
    fig, (left, right) = drawing.figure(2, width=5.6, height=4.4)
    for colour, run in zip(cycle(drawing.ACCENTS), runs, strict=False):
        left.plot(run.epochs, run.curves["loss"], color=colour, label=_name(run))
        right.plot(run.epochs, run.curves["correlation_v"], color=colour)
        right.plot(run.epochs, run.curves["correlation_p"], color=colour, linestyle="--")
    left.set(yscale="log", ylabel="mean loss of the epoch", title="Training loss")
    right.set(ylabel="Spearman's correlation", ylim=(-0.1, 1.0), title="Agreement with the posterior difference")
    styles: Any = {"color": drawing.INK}
    right.plot([], [], label="⟨E_s, v⟩ with it", **styles)
    right.plot([], [], linestyle="--", label="⟨E_s, p⟩ with its modulus", **styles)
    for ax in (left, right):
        _epochs(ax, runs)
        ax.legend(loc="best", fontsize=9)
    return fig


def _epochs(ax: Axes, runs: Sequence[KeptRun]) -> None:
    ax.set(xscale="log", xlabel="epoch")
    for epoch in sorted({one for run in runs for one in run.settings.milestones if one < run.epochs[-1]}):
        ax.axvline(epoch, color=drawing.PATH, linestyle=":", linewidth=1.0)
