"""B Figs 1, 3 and 4: embeddings trained on IMDB and Yelp follow the posterior difference, with one layer and with two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import norm, rankdata

import marginlens as ml
from marginlens.typing import Axes, Figure, FloatArray, IntArray
from marginlens_papers.archive import ArchivedRun, archived_runs
from marginlens_papers.claim import Bound, Claim, Effort, Finding, Progress, Verdict, Words
from marginlens_papers.embeddings.settings import TrainingSettings
from marginlens_papers.embeddings.train import FREQUENT

if TYPE_CHECKING:
    from marginlens_papers.embeddings.token_panels import TokenPoints

SOURCES = {"imdb": "IMDB", "yelp": "Yelp"}
CONTROLS = {  # data of another size than the claims', kept to tell the size of the data from its kind
    "imdb-11408": "a random 11,408 of IMDB's reviews",
    "yelp-all": "all 21,007 Yelp reviews, not balanced",
}
CONFIDENCE = 0.95
FALL = 0.02  # a fall of a rank correlation that is worth a word
EXCELLENT = 0.8  # a correlation from which agreement may be called excellent, or one quantity proportional to the other


# ---- numbers
@dataclass(frozen=True)
class Ranks:
    """Spearman's correlation of ⟨E_s, v⟩ with the posterior difference (`v`) and of ⟨E_s, p⟩ with its modulus (`p`).

    Each is (estimate, low, high), a 95% interval over the `n_tokens` tokens. `linear_v` and `linear_p` are Pearson's correlations of the
    same pairs, which are 1 where one is proportional to the other.
    """

    v: tuple[float, float, float]
    p: tuple[float, float, float]
    linear_v: float
    linear_p: float
    n_tokens: int

    def __str__(self) -> str:
        v, p = (f"{estimate:.3f} [{low:.3f}, {high:.3f}]" for estimate, low, high in (self.v, self.p))
        return f"{v} (v) and {p} (p) over {self.n_tokens:,} tokens"


def spearman(x: FloatArray, y: FloatArray) -> FloatArray:
    """Spearman's correlation along the last axis, ties sharing their mean rank; NaN where nothing differs."""
    return pearson(rankdata(x, axis=-1), rankdata(y, axis=-1))


def pearson(x: FloatArray, y: FloatArray) -> FloatArray:
    """Pearson's correlation along the last axis; NaN where nothing differs."""
    u, w = (values - values.mean(axis=-1, keepdims=True) for values in (x, y))
    size = np.sqrt(np.sum(u * u, axis=-1) * np.sum(w * w, axis=-1))
    return np.asarray(np.divide(np.sum(u * w, axis=-1), size, out=np.full_like(size, np.nan), where=size > 0.0))


def spearman_interval(estimate: float, n: int) -> tuple[float, float]:
    r"""A 95% interval of Spearman's correlation of n pairs, by Fisher's transform.

    .. math:: \tanh\bigl(\operatorname{artanh} r \pm z \sqrt{(1 + r^2/2)/(n - 3)}\bigr)

    The variance is Bonett and Wright's (2000).
    """
    if n <= 3 or not abs(estimate) < 1.0:
        return (estimate, estimate) if abs(estimate) == 1.0 else (-1.0, 1.0)
    half = float(norm.ppf(0.5 + 0.5 * CONFIDENCE)) * np.sqrt((1.0 + 0.5 * estimate**2) / (n - 3))
    low, high = np.tanh(np.arctanh(estimate) + np.array([-half, half]))
    return float(low), float(high)


def ranks_of(difference: FloatArray, a: FloatArray, b: FloatArray, tokens: IntArray) -> Ranks:
    """Both rank correlations over some tokens, with their intervals, and both linear ones."""
    d, p, v = difference[tokens], a[tokens], b[tokens]
    found = [float(spearman(v, d)), float(spearman(p, np.abs(d)))]
    v_ranks, p_ranks = ((result, *spearman_interval(result, len(tokens))) for result in found)
    return Ranks(v_ranks, p_ranks, float(pearson(v, d)), float(pearson(p, np.abs(d))), len(tokens))


def frequent_ranks(run: ArchivedRun) -> Ranks:
    """The correlations over the tokens with at least 200 occurrences."""
    known = run.statistics
    return ranks_of(known.posterior_difference, run.a, run.b, np.flatnonzero(known.count >= FREQUENT))


def order(loss: float) -> int:
    """The exponent of the power of ten that is nearest to a loss, on a logarithmic scale."""
    return round(_decades(loss))


def _decades(loss: float) -> float:
    return float(np.log10(max(loss, 1e-300)))


def is_stated(run: ArchivedRun) -> bool:
    """Whether a run has all of the paper's settings for text; seed, device and the rounding of products on a GPU are not among them."""
    given = run.settings
    stated = replace(TrainingSettings(given.layers), seed=given.seed, device=given.device, tf32=given.tf32)
    return run.finished and given == stated


# ---- runs that differ in nothing but the seed
@dataclass(frozen=True, eq=False)
class Seeds:
    """Runs of one setting on one dataset, one for each seed, and the correlations at the end of each."""

    runs: tuple[ArchivedRun, ...]
    ranks: tuple[Ranks, ...]

    @property
    def title(self) -> str:
        """The dataset and what differs from the paper's settings, and how many seeds there are."""
        run = self.runs[0]
        given, usual = run.settings, TrainingSettings()
        stopped = sorted(int(run.epochs[-1]) for run in self.runs if not run.finished)
        said = [SOURCES.get(run.source, run.source), f"rate {given.learning_rate:g}"]
        if given.epochs != usual.epochs:
            said.append(f"{given.epochs} epochs")
        if stopped:
            said.append(f"stopped after epoch {' and '.join(map(str, stopped))} of {given.epochs}")
        if given.spread != usual.spread:
            said.append(f"entries of size {given.spread / given.d_model**0.5:.2g} at the start")
        return ", ".join(said)

    @property
    def stated(self) -> bool:
        """Whether these are finished runs at the paper's settings."""
        return all(is_stated(run) for run in self.runs)

    @property
    def loss(self) -> float:
        """The median training loss at the end."""
        return float(np.median([run.loss for run in self.runs]))

    def mean(self, letter: str) -> float:
        """The mean rank correlation at the end; `letter` is "v" or "p"."""
        return float(np.mean([getattr(rank, letter)[0] for rank in self.ranks]))

    def linear(self, letter: str) -> float:
        """The mean linear correlation at the end."""
        return float(np.mean([getattr(rank, f"linear_{letter}") for rank in self.ranks]))

    def lowest(self, letter: str) -> float:
        """The lowest end of all seeds' intervals."""
        return min(getattr(rank, letter)[1] for rank in self.ranks)

    def peak(self, letter: str) -> tuple[float, int]:
        """The mean over seeds of the highest rank correlation of any epoch, and the median epoch at which it was."""
        curves = [run.curves[f"correlation_{letter}"] for run in self.runs]
        best = [int(np.nanargmax(curve)) for curve in curves]
        heights = [curve[k] for curve, k in zip(curves, best, strict=True)]
        return float(np.mean(heights)), int(np.median([run.epochs[k] for run, k in zip(self.runs, best, strict=True)]))

    def sentence(self) -> str:
        """What was measured, with the range over seeds."""
        runs, (v, at), (p, p_at) = self.runs, self.peak("v"), self.peak("p")
        seeds = "one seed" if len(runs) == 1 else f"{len(runs)} seeds"
        held_out = [run for run in runs if np.isfinite(run.held_out_loss)]
        other = (
            f"held-out loss {_losses([run.held_out_loss for run in held_out])} and accuracy "
            f"{_range([run.held_out_accuracy for run in held_out])}, "
            if held_out
            else ""
        )
        return (
            f"{self.title} ({seeds}): training loss {_losses([run.loss for run in runs])} and accuracy "
            f"{_range([run.accuracy for run in runs])}, {other}Spearman {_range([rank.v[0] for rank in self.ranks])} (v; highest {v:.2f} "
            f"after epoch {at}) and {_range([rank.p[0] for rank in self.ranks])} (p; highest {p:.2f} after epoch {p_at}), "
            f"Pearson {self.linear('v'):.2f} and {self.linear('p'):.2f}."
        )


def by_setting(runs: Sequence[ArchivedRun]) -> list[Seeds]:
    """Runs on one dataset grouped by all that they share but the seed, in the order in which settings first come."""
    groups: dict[Any, list[ArchivedRun]] = {}
    for run in runs:
        shared = replace(run.settings, seed=0, device="cpu", tf32=False)
        groups.setdefault((run.source, shared), []).append(run)
    ordered = [sorted(group, key=lambda run: run.settings.seed) for group in groups.values()]
    return [Seeds(tuple(group), tuple(frequent_ranks(run) for run in group)) for group in ordered]


def deciding(groups: Sequence[Seeds], exponent: int) -> Seeds:
    """The runs that a claim is judged by: those at the paper's settings if their loss is of the paper's order, else the nearest.

    Runs from another start than the theory's are shown and decide nothing.
    """
    usual = [group for group in groups if group.runs[0].settings.spread == TrainingSettings().spread]
    stated = [group for group in usual if group.stated and order(group.loss) == exponent]
    return stated[0] if stated else min(usual, key=lambda item: abs(_decades(item.loss) - exponent))


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.3f}", f"{max(values):.3f}"
    return low if low == high else f"{low}–{high}"


def _losses(values: Sequence[float]) -> str:
    low, high = loss_text(min(values)), loss_text(max(values))
    return low if low == high else f"{low}–{high}"


def loss_text(loss: float) -> str:
    """A loss in a few digits."""
    return f"{loss:.3f}" if loss >= 0.01 else f"{loss:.1e}"


# ---- the claims on real text


def stated_bounds(exponent: int) -> dict[str, Bound]:
    """What the paper's words say of both datasets: the loss's order at its settings, excellent agreement, proportionality."""
    orders = {f"{source}_stated_loss_order": Bound(exponent, exponent) for source in SOURCES}
    measures = [f"{source}_{letter}{kind}" for source in SOURCES for kind in ("", "_linear") for letter in "vp"]
    return orders | dict.fromkeys(measures, Bound(low=EXCELLENT))


class TextRuns(Claim):
    """A claim on the archived runs of one depth, which are held against the paper's words and nothing else."""

    layers: int
    exponent: int  # of the power of ten that the paper gives for the loss
    explanation: str  # closes the note
    expected = {}
    known = Verdict.DOES_NOT_HOLD
    words = {
        f"{source}_{name}": Words(f"{title}: {sentence}")
        for source, title in SOURCES.items()
        for name, sentence in {
            "stated_loss_order": "order of the training loss at the stated settings, as a power of ten",
            "v": "mean rank correlation of $⟨E_s, v⟩$ with the posterior difference",
            "p": "mean rank correlation of $⟨E_s, p⟩$ with its modulus",
            "v_linear": "mean linear correlation of $⟨E_s, v⟩$ with the posterior difference",
            "p_linear": "mean linear correlation of $⟨E_s, p⟩$ with its modulus",
        }.items()
    }

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Measure every archived run of this depth on IMDB and Yelp."""
        groups = {source: by_setting(archived_runs(source, self.layers)) for source in SOURCES}
        chosen = {source: deciding(each, self.exponent) for source, each in groups.items()}
        numbers: dict[str, float] = {}
        for source, found in progress.each(list(chosen.items())):
            at_stated = stated_loss(groups[source])
            numbers |= {f"{source}_stated_loss": at_stated, f"{source}_stated_loss_order": _order(at_stated)}
            numbers |= {f"{source}_loss": found.loss, f"{source}_seeds": len(found.runs)}
            for letter in "vp":
                numbers[f"{source}_{letter}"] = found.mean(letter)
                numbers[f"{source}_{letter}_at_least"] = found.lowest(letter)
                numbers[f"{source}_{letter}_linear"] = found.linear(letter)
                numbers[f"{source}_{letter}_peak"] = found.peak(letter)[0]
            numbers[f"{source}_held_out_accuracy"] = float(np.mean([run.held_out_accuracy for run in found.runs]))
        all_groups = [group for each in groups.values() for group in each]
        measured = " ".join(group.sentence() for group in all_groups)
        differences = _notes(groups, chosen, self.exponent)
        tried = _tried(all_groups, chosen)
        note = " ".join([*differences, tried, _weakening(chosen), self.explanation, control_sentences(self.layers)])
        return Finding(measured, numbers, {"groups": all_groups}, note=note.strip(), archived=tuple(numbers))

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """The paper's two panels for the first seed of every setting, and how losses and correlations went."""
        figures = {}
        groups: Sequence[Seeds] = finding.arrays["groups"]
        for group in groups:
            run, found = group.runs[0], group.ranks[0]
            layers = "one layer" if run.settings.layers == 1 else "two layers"
            seed = f", seed {run.settings.seed}" if len(group.runs) > 1 else ""
            reached = f"training loss {loss_text(run.loss)}, Spearman {found.v[0]:.2f} (v), {found.p[0]:.2f} (p)"
            name = run.name.replace("-", "_").replace(".", "_")
            figures[name] = panels(run, f"{group.title}, {layers}{seed}: {reached}")
        figures["training"] = training_curves(groups)
        return figures


class B_F3(TextRuns):
    labels = ("B Fig 3", "B App. E", "B Eq. (37)")
    layers, exponent = 1, -1
    as_stated = stated_bounds(-1)
    explanation = (
        "At the stated rate an AdamW step is half as long as the entries of an embedding at the start, 1/√2048 = .022, and where "
        "training on IMDB ends depends on the seed; entries of size one at the start do not help on Yelp."
    )


class B_F14(TextRuns):
    labels = ("B Fig 1", "B Fig 4", "B Eq. (36)", "B Eq. (37)")
    layers, exponent = 2, -5
    as_stated = stated_bounds(-5) | {f"{source}_contrast": Bound(low=3.0) for source in SOURCES}
    words = TextRuns.words | {
        f"{source}_contrast": Words(f"{title}: powers of ten by which two layers end below one layer in loss")
        for source, title in SOURCES.items()
    }
    explanation = (
        "At the stated rate an AdamW step is half as long as the entries of an embedding at the start, 1/√2048 = .022; at .0003 the loss "
        "goes far below the paper's order, and those runs end before epoch 500, when it has long passed 1e-5."
    )

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Measure the two-layer runs, and their losses beside the one-layer runs'."""
        finding = super().compute(effort, progress)
        contrasts, losses = {}, []
        for source, title in SOURCES.items():
            one_layer, two_layers = stated_losses(source)
            contrasts[f"{source}_contrast"] = float(np.log10(one_layer / two_layers))
            ends = [loss_text(loss) if np.isfinite(loss) else "not finished" for loss in (one_layer, two_layers)]
            losses.append(f"{title} {ends[0]} with one layer and {ends[1]} with two")
        contrast = f"The losses at the stated settings: {'; '.join(losses)}."
        numbers = {**finding.numbers, **contrasts}
        return replace(finding, numbers=numbers, note=f"{contrast} {finding.note}", archived=tuple(numbers))


def stated_loss(groups: Sequence[Seeds]) -> float:
    """The median training loss of the finished runs at the paper's settings, NaN where there is none."""
    return next((group.loss for group in groups if group.stated), float("nan"))


def stated_losses(source: str) -> tuple[float, float]:
    """The median training losses at the paper's settings on one dataset, of one layer and of two."""
    one_layer, two_layers = (stated_loss(by_setting(archived_runs(source, layers))) for layers in (1, 2))
    return one_layer, two_layers


def control_sentences(layers: int) -> str:
    """What the kept runs of this depth on data of other sizes ended at, at the stated settings."""
    said = []
    for source, words in CONTROLS.items():
        for run in archived_runs(source, layers):
            when = "" if run.finished else f" when stopped after epoch {int(run.epochs[-1])}"
            said.append(f"{words}: {loss_text(run.loss)}{when}")
    return f"Training loss at the stated settings on other sizes of data: {'; '.join(said)}." if said else ""


def _order(loss: float) -> float:
    return float(order(loss)) if np.isfinite(loss) else float("nan")


def _notes(groups: Mapping[str, Sequence[Seeds]], chosen: Mapping[str, Seeds], exponent: int) -> list[str]:
    """What differs from the paper's loss and settings, dataset by dataset."""
    said = []
    for source, each in groups.items():
        title, found, at_stated = SOURCES[source], chosen[source], stated_loss(each)
        if not np.isfinite(at_stated):
            said.append(
                f"No run on {title} is finished at the stated settings, at which the paper has a loss near 1e{exponent}."
            )
        elif order(at_stated) != exponent:
            where = "below" if order(at_stated) < exponent else "above"
            said.append(
                f"At the stated settings {title} ends at loss {loss_text(at_stated)}, {where} the paper's order 1e{exponent}."
            )
        if not found.stated:
            said.append(
                f"{title} is judged by the runs at {found.title.split(', ', 1)[1]}, whose loss {loss_text(found.loss)} is nearest."
            )
    return said


def _tried(groups: Sequence[Seeds], chosen: Mapping[str, Seeds]) -> str:
    """How many runs there are, and how far from chance those are that the claim is judged by."""
    lowest = min(found.lowest(letter) for found in chosen.values() for letter in "vp")
    return (
        f"Tried: {sum(len(group.runs) for group in groups)} runs at {len(groups)} settings. In those that decide, the lower ends of all "
        f"seeds' intervals of rank correlations are {lowest:.2f} or more, where tokens that follow nothing would have ends below 0."
    )


def _weakening(chosen: Mapping[str, Seeds]) -> str:
    """How much of the agreement training to the end takes away."""
    parts = []
    for source, found in chosen.items():
        courses = []
        for letter in "vp":
            (highest, epoch), last = found.peak(letter), found.mean(letter)
            falls = highest - last > FALL
            courses.append(
                f"{letter} falls from {highest:.2f} (epoch {epoch}) to {last:.2f}"
                if falls
                else f"{letter} stays at {last:.2f}"
            )
        parts.append(f"{SOURCES[source]}: {', '.join(courses)}")
    return f"What training to convergence makes of Spearman's correlations, which the paper shows at convergence: {'; '.join(parts)}."


# ---- pictures
def points_of(run: Any) -> TokenPoints:
    """The points of a kept run, or of one just trained."""
    from marginlens_papers.embeddings.token_panels import TokenPoints

    known = run.statistics
    names = getattr(run, "names", None)
    return TokenPoints.of(known.posterior_difference, run.a, run.b, known.count, names)


def panels(run: Any, title: str) -> Figure:
    """The two panels of one run, with a dozen telling tokens named."""
    from marginlens_papers.embeddings.token_panels import draw_tokens

    return draw_tokens(points_of(run), title=title)


def training_curves(groups: Sequence[Seeds]) -> Figure:
    """Losses and both rank correlations over the epochs: a colour for each setting, a line for each seed."""
    fig, (left, middle, right) = ml.plotting.figure(3, width=4.6, height=4.8)
    styles = [(colour, width) for width in (1.6, 3.0) for colour in ml.plotting.ACCENTS]
    for (colour, width), group in zip(cycle(styles), groups, strict=False):
        line: Any = {"color": colour, "linewidth": width, "alpha": 0.8}
        for k, run in enumerate(group.runs):
            left.plot(run.epochs, run.curves["loss"], label=group.title if k == 0 else None, **line)
            measured = np.isfinite(run.curves["held_out_loss"])
            left.plot(run.epochs[measured], run.curves["held_out_loss"][measured], linestyle="--", **line)
            middle.plot(run.epochs, run.curves["correlation_v"], **line)
            right.plot(run.epochs, run.curves["correlation_p"], **line)
    left.set(yscale="log", ylabel="mean loss", title="Training loss, and held-out loss (dashed)")
    middle.set(ylabel="Spearman's correlation", ylim=(-0.1, 1.0), title="$⟨E_s, v⟩$ with the posterior difference")
    right.set(ylabel="Spearman's correlation", ylim=(-0.1, 1.0), title="$⟨E_s, p⟩$ with its modulus")
    for ax in (left, middle, right):
        _epochs(ax, [run for group in groups for run in group.runs])
    handles, labels = left.get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=min(3, len(labels)), fontsize=10)
    return fig


def _epochs(ax: Axes, runs: Sequence[ArchivedRun]) -> None:
    ax.set(xscale="log", xlabel="epoch (dotted: the rate falls to a tenth)")
    for epoch in sorted(
        {milestone for run in runs for milestone in run.settings.milestones if milestone < run.epochs[-1]}
    ):
        ax.axvline(epoch, color=ml.plotting.PATH, linestyle=":", linewidth=1.0)
