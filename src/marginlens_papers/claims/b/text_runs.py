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
from marginlens_papers.claim import Bound, Claim, Effort, Finding, Progress, Words
from marginlens_papers.claims.b.embedding_runs import FREQUENT, EmbeddingRun, EmbeddingSettings, embedding_runs

if TYPE_CHECKING:
    from marginlens_papers.claims.b.token_panels import TokenPoints

SOURCES = {"imdb": "IMDB", "yelp": "Yelp"}
CONTROLS = {  # data of another size than the claims', kept to tell the size of the data from its kind
    "imdb-11408": "a random 11,408 of IMDB's reviews",
    "yelp-all": "all 21,007 Yelp reviews, not balanced",
}
# Ways to read how the paper trained. Its Section 2 keeps v fixed, its App. E trains all parameters; the layer norm of Eq. (36) may have a
# gain and a bias, or neither.
READINGS = {
    "fixed": "v fixed",
    "trained": "v trained",
    "affine_fixed": "v fixed, affine layer norm",
    "affine_trained": "v trained, affine layer norm",
}
CONFIDENCE = 0.95
N_BINS = 20  # of equal width, between the lowest and the highest posterior difference
FALL = 0.02  # a fall of a rank correlation that is worth a word
DECADES = 3.0  # between the losses of one layer and of two; the paper's are 4 apart
EXCELLENT = 0.8  # a correlation from which agreement may be called excellent, or one quantity proportional to the other


SENTENCES = {  # the measured numbers that are judged
    "loss": "training loss at the stated settings",
    "v": "mean rank correlation of $⟨E_s, v⟩$ with the posterior difference",
    "p": "mean rank correlation of $⟨E_s, p⟩$ with its modulus",
    "v_linear": "mean linear correlation of $⟨E_s, v⟩$ with the posterior difference",
    "p_linear": "mean linear correlation of $⟨E_s, p⟩$ with its modulus",
}


# ---- numbers
@dataclass(frozen=True)
class Ranks:
    """Spearman's correlation of ⟨E_s, v⟩ with the posterior difference (`v`) and of ⟨E_s, p⟩ with its modulus (`p`).

    Each is (estimate, low, high), a 95% interval over the `n_tokens` tokens. `linear_v` and `linear_p` are Pearson's correlations of the
    same pairs, which are 1 if one is proportional to the other; `trend_v` and `trend_p` those of their means by `bin_means`.
    """

    v: tuple[float, float, float]
    p: tuple[float, float, float]
    linear_v: float
    linear_p: float
    trend_v: float
    trend_p: float
    n_tokens: int

    def __str__(self) -> str:
        v, p = (f"{estimate:.3f} [{low:.3f}, {high:.3f}]" for estimate, low, high in (self.v, self.p))
        return f"{v} (v) and {p} (p) over {self.n_tokens:,} tokens"


def spearman(x: FloatArray, y: FloatArray) -> FloatArray:
    """Spearman's correlation along the last axis, ties sharing their mean rank; NaN if nothing differs."""
    return pearson(rankdata(x, axis=-1), rankdata(y, axis=-1))


def pearson(x: FloatArray, y: FloatArray) -> FloatArray:
    """Pearson's correlation along the last axis; NaN if nothing differs."""
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
    pairs = ((v, d), (p, np.abs(d)))
    estimates = [float(spearman(*pair)) for pair in pairs]
    v_ranks, p_ranks = ((estimate, *spearman_interval(estimate, len(tokens))) for estimate in estimates)
    linear_v, linear_p = (float(pearson(*pair)) for pair in pairs)
    trend_v, trend_p = (float(pearson(*(bin_means(d, values) for values in pair))) for pair in pairs)
    return Ranks(v_ranks, p_ranks, linear_v, linear_p, trend_v, trend_p, len(tokens))


def bin_means(position: FloatArray, values: FloatArray) -> FloatArray:
    """The mean of values in each of 20 bins of equal width, without empty bins."""
    low, high = position.min(initial=np.inf), position.max(initial=-np.inf)
    bins = np.clip(((position - low) * (N_BINS / max(high - low, 1e-300))).astype(int), 0, N_BINS - 1)
    counts = np.bincount(bins, minlength=N_BINS)
    return np.asarray(np.bincount(bins, values, N_BINS)[counts > 0] / counts[counts > 0])


def frequent_ranks(run: EmbeddingRun) -> Ranks:
    """The correlations over the tokens with at least 200 occurrences."""
    known = run.statistics
    return ranks_of(known.posterior_difference, run.a, run.b, np.flatnonzero(known.count >= FREQUENT))


def of_order(exponent: int) -> Bound:
    """Losses that a reader may call of the order of 10^exponent: it is the nearest power of ten, or the place of the first digit."""
    return Bound(10.0 ** (exponent - 0.5), 10.0 ** (exponent + 1))


def reading_of(settings: EmbeddingSettings) -> str:
    """Which of the `READINGS` a run follows."""
    return f"{'affine_' if settings.affine else ''}{'trained' if settings.train_v else 'fixed'}"


def is_stated(run: EmbeddingRun) -> bool:
    """Whether a run has all of the paper's settings for text, in any of the readings.

    Seed, device and the rounding of products on a GPU are not among them.
    """
    given = run.settings
    free = ("train_v", "affine", "seed", "device", "tf32")
    stated = EmbeddingSettings(given.layers, **{name: getattr(given, name) for name in free})
    return run.finished and given == stated


# ---- runs that differ in nothing but the seed
@dataclass(frozen=True, eq=False)
class Seeds:
    """Runs of one setting on one dataset, one for each seed, and the correlations at the end of each."""

    runs: tuple[EmbeddingRun, ...]
    ranks: tuple[Ranks, ...]

    @property
    def title(self) -> str:
        """The dataset, the differences from the paper's settings, and the number of seeds."""
        run = self.runs[0]
        given, usual = run.settings, EmbeddingSettings()
        stopped = sorted(int(run.epochs[-1]) for run in self.runs if not run.finished)
        reading = READINGS[reading_of(given)]
        said = [SOURCES.get(run.source, run.source), f"rate {given.learning_rate:g}", reading]
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

    def trend(self, letter: str) -> float:
        """The mean correlation of the means over 20 bins."""
        return float(np.mean([getattr(rank, f"trend_{letter}") for rank in self.ranks]))

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
            f"Pearson {self.linear('v'):.2f} and {self.linear('p'):.2f}, of means over {N_BINS} bins {self.trend('v'):.2f} and "
            f"{self.trend('p'):.2f}."
        )


def by_setting(runs: Sequence[EmbeddingRun]) -> list[Seeds]:
    """Runs on one dataset grouped by all settings but the seed, in the order in which these first occur; stopped runs are separate."""
    groups: dict[Any, list[EmbeddingRun]] = {}
    for run in runs:
        shared = replace(run.settings, seed=0, device="cpu", tf32=False)
        groups.setdefault((run.source, shared, run.finished), []).append(run)
    ordered = [sorted(group, key=lambda run: run.settings.seed) for group in groups.values()]
    return [Seeds(tuple(group), tuple(frequent_ranks(run) for run in group)) for group in ordered]


def stated_runs(groups: Sequence[Seeds]) -> dict[str, Seeds]:
    """The finished runs at the paper's settings, by reading."""
    return {reading_of(group.runs[0].settings): group for group in groups if group.stated}


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


def stated_bounds(judged: Mapping[str, Sequence[str]], exponent: int) -> dict[str, Bound]:
    """What the paper says about both datasets: the loss's order at its settings, excellent agreement, proportionality."""
    bounds = {name: of_order(exponent) if name == "loss" else Bound(low=EXCELLENT) for name in SENTENCES}
    return {
        f"{source}_{reading}_{name}": bound
        for source, readings in judged.items()
        for reading in readings
        for name, bound in bounds.items()
    }


def words_of(judged: Mapping[str, Sequence[str]], sentences: Mapping[str, str]) -> dict[str, Words]:
    """The sentence on each number, for every dataset and reading that is judged."""
    return {
        f"{source}_{reading}_{name}": Words(f"{SOURCES[source]}, {READINGS[reading]}: {sentence}")
        for source, readings in judged.items()
        for reading in readings
        for name, sentence in sentences.items()
    }


class TextRuns(Claim):
    """A claim on the archived runs of one depth, which are compared with the paper's words and nothing else."""

    layers: int
    exponent: int  # of the power of ten that the paper gives for the loss
    judged: Mapping[str, Sequence[str]]  # the readings of which finished runs are kept, by dataset
    explanation: str  # closes the note
    expected = {}

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Measure every archived run of this depth on IMDB and Yelp."""
        groups = {source: by_setting(embedding_runs(source, self.layers)) for source in SOURCES}
        numbers: dict[str, float] = {}
        chosen = []
        for source, readings in progress.each(list(self.judged.items())):
            stated = stated_runs(groups[source])
            chosen += [stated[reading] for reading in readings if reading in stated]
            for reading in readings:
                numbers |= _numbers(f"{source}_{reading}_", stated.get(reading))
        contrasts, contrast = self.contrasts(numbers)
        numbers |= contrasts
        all_groups = [group for each in groups.values() for group in each]
        measured = " ".join(group.sentence() for group in all_groups)
        sentences = [
            self.gist(numbers),
            contrast,
            *_conventions(chosen, self.exponent),
            _trend(chosen),
            _agreement(all_groups, chosen),
            _weakening(chosen),
            self.explanation,
            control_sentences(self.layers),
        ]
        note = " ".join(sentence for sentence in sentences if sentence)
        return Finding(measured, numbers, {"groups": all_groups}, note=note, archived=tuple(numbers))

    def contrasts(self, numbers: Mapping[str, float]) -> tuple[dict[str, float], str]:
        """More numbers, which compare the losses with those of other models, and a sentence on them; none here."""
        return {}, ""

    def gist(self, numbers: Mapping[str, float]) -> str:
        """How much of the paper's words the numbers meet, in one short sentence."""
        met = {name: bound.holds(numbers[name]) for name, bound in self.as_stated.items()}
        losses = [holds for name, holds in met.items() if name.endswith("_loss")]
        others = [holds for name, holds in met.items() if not name.endswith(("_loss", "_contrast"))]
        return (
            f"{sum(others) or 'None'} of {len(others)} correlations with the posterior difference {'reach' if any(others) else 'reaches'} "
            f"{EXCELLENT:g}, and the loss is of the paper's order in {sum(losses) or 'none'} of {len(losses)} pairs of a dataset and a "
            "reading."
        )

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
            figures[name] = panels(run, f"{group.title}, {layers}{seed}\n{reached}")
        figures["training"] = training_curves(groups)
        in_order = list(self.figures)  # that of claims.toml, whose first figure is that of the tile
        return dict(sorted(figures.items(), key=lambda item: in_order.index(item[0])))


class B_F3(TextRuns):
    labels = ("B Fig 3", "B App. E", "B Eq. (37)")
    layers, exponent = 1, -1
    judged = dict.fromkeys(SOURCES, ("fixed", "trained"))
    as_stated = stated_bounds(judged, -1)
    words = words_of(judged, SENTENCES)
    explanation = (
        "A loss of .69, that of a model that has learned nothing, is of this order too. At the stated rate an AdamW step is half as long "
        "as the entries of an embedding at the start, 1/√2048 = .022, and if v is trained, where training on IMDB ends depends on the "
        "seed; entries of size one at the start do not help on Yelp."
    )


class B_F14(TextRuns):
    labels = ("B Fig 1", "B Fig 4", "B Eq. (36)", "B Eq. (37)")
    layers, exponent = 2, -5
    judged = dict.fromkeys(SOURCES, tuple(READINGS))
    as_stated = stated_bounds(judged, -5) | {
        f"{source}_{reading}_contrast": Bound(low=DECADES)
        for source, readings in judged.items()
        for reading in readings
    }
    words = words_of(judged, SENTENCES | {"contrast": "powers of ten by which two layers end below one layer in loss"})
    explanation = (
        "At the stated rate an AdamW step is half as long as the entries of an embedding at the start, 1/√2048 = .022; at .0003 the loss "
        "goes far below the paper's order without gain and bias, and those runs end before epoch 500, when it has long passed 1e-5."
    )

    def contrasts(self, numbers: Mapping[str, float]) -> tuple[dict[str, float], str]:
        """By how many powers of ten two layers end below one layer, with v fixed in both or trained in both."""
        contrasts, losses = {}, []
        for source, readings in self.judged.items():
            one_layer = stated_runs(by_setting(embedding_runs(source, 1)))
            for reading in readings:
                single = one_layer.get(reading.removeprefix("affine_"))
                ends = [float("nan") if single is None else single.loss, numbers[f"{source}_{reading}_loss"]]
                contrasts[f"{source}_{reading}_contrast"] = float(np.log10(ends[0] / ends[1]))
                one, two = (loss_text(loss) if np.isfinite(loss) else "not finished" for loss in ends)
                seeds = ", one seed" if numbers.get(f"{source}_{reading}_seeds") == 1 else ""
                losses.append(f"{SOURCES[source]}, {READINGS[reading]}: {one} with one layer and {two} with two{seeds}")
        met = sum(self.as_stated[name].holds(number) for name, number in contrasts.items())
        return contrasts, (
            f"Two layers end {DECADES:g} powers of ten or more below one layer in {met or 'none'} of {len(contrasts)}; the losses at the "
            f"stated settings: {'; '.join(losses)}."
        )


def _numbers(start: str, group: Seeds | None) -> dict[str, float]:
    """The numbers of the runs of one dataset and reading, NaN if none is finished."""
    if group is None:
        return {f"{start}{name}": float("nan") for name in SENTENCES}
    numbers = {"loss": group.loss, "seeds": len(group.runs)}
    for letter in "vp":
        numbers |= {letter: group.mean(letter), f"{letter}_at_least": group.lowest(letter)}
        numbers |= {f"{letter}_linear": group.linear(letter), f"{letter}_trend": group.trend(letter)}
        numbers[f"{letter}_peak"] = group.peak(letter)[0]
    numbers["held_out_accuracy"] = float(np.mean([run.held_out_accuracy for run in group.runs]))
    return {f"{start}{name}": number for name, number in numbers.items()}


def control_sentences(layers: int) -> str:
    """The final losses of the kept runs of this depth on data of other sizes, at the stated settings."""
    said = []
    for source, words in CONTROLS.items():
        for run in embedding_runs(source, layers):
            when = "" if run.finished else f" when stopped after epoch {int(run.epochs[-1])}"
            said.append(f"{words}: {loss_text(run.loss)}{when}")
    return f"Training loss with v trained on other sizes of data: {'; '.join(said)}." if said else ""


def _conventions(chosen: Sequence[Seeds], exponent: int) -> list[str]:
    """Which losses are of the paper's order by one convention but not by the other."""
    split = []
    for group in chosen:
        logarithm = float(np.log10(max(group.loss, 1e-300)))
        nearest, first_digit = round(logarithm), int(np.floor(logarithm))
        if nearest != first_digit and exponent in (nearest, first_digit):
            split.append(f"{group.title} ({loss_text(group.loss)}: 1e{nearest} and 1e{first_digit})")
    if not split:
        return []
    return [
        f"A loss counts as of the order of 1e{exponent} if that is its nearest power of ten or the place of its first digit, which "
        f"differ for {'; '.join(split)}."
    ]


def _trend(chosen: Sequence[Seeds]) -> str:
    """How closely means over bins follow the posterior difference, while single tokens scatter."""
    v, p = ([group.trend(letter) for group in chosen] for letter in "vp")
    single = [group.linear(letter) for group in chosen for letter in "vp"]
    clear = sum(group.trend("v") >= EXCELLENT and group.trend("p") >= EXCELLENT for group in chosen)
    return (
        f"Means over {N_BINS} bins of the posterior difference correlate with it at {_two_digits(v)} (v) and with its modulus at "
        f"{_two_digits(p)} (p). In {clear} of {len(chosen)} settings both are {EXCELLENT:g} or more: there the shape of the paper's "
        f"figures is reproduced on average. Means leave out the scatter: token by token Pearson's correlations are {_two_digits(single)}."
    )


def _two_digits(values: Sequence[float]) -> str:
    low, high = (f"{value:.2f}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def _agreement(groups: Sequence[Seeds], chosen: Sequence[Seeds]) -> str:
    """How many runs there are, and how far from chance those are that the claim is judged by."""
    lowest = min(group.lowest(letter) for group in chosen for letter in "vp")
    stopped = sum(not run.finished for group in groups for run in group.runs)
    return (
        f"Kept: {sum(len(group.runs) for group in groups)} runs{f', {stopped} of them stopped before the last epoch' if stopped else ''}. "
        f"In those that decide, the lower ends of all seeds' intervals of rank correlations are {lowest:.2f} or more; tokens that follow "
        "nothing would have ends below 0."
    )


def _weakening(chosen: Sequence[Seeds]) -> str:
    """How much of the agreement is lost by training to the end."""
    parts = []
    for group in chosen:
        courses = []
        for letter in "vp":
            (highest, epoch), last = group.peak(letter), group.mean(letter)
            falls = highest - last > FALL
            courses.append(
                f"{letter} falls from {highest:.2f} (epoch {epoch}) to {last:.2f}"
                if falls
                else f"{letter} stays at {last:.2f}"
            )
        parts.append(f"{group.title}: {', '.join(courses)}")
    return f"What training to convergence makes of Spearman's correlations, which the paper shows at convergence: {'; '.join(parts)}."


# ---- pictures
def points_of(run: Any) -> TokenPoints:
    """The points of a kept run, or of one just trained."""
    from marginlens_papers.claims.b.token_panels import TokenPoints

    known = run.statistics
    names = getattr(run, "names", None)
    return TokenPoints.of(known.posterior_difference, run.a, run.b, known.count, names)


def panels(run: Any, title: str) -> Figure:
    """The two panels of one run, with the names of a dozen tokens."""
    from marginlens_papers.claims.b.token_panels import draw_tokens

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
    fig.legend(handles, labels, loc="outside lower center", ncols=3 if len(labels) < 7 else 2, fontsize=10)
    return fig


def _epochs(ax: Axes, runs: Sequence[EmbeddingRun]) -> None:
    ax.set(xscale="log", xlabel="epoch (dotted: the rate falls to a tenth)")
    for epoch in sorted(
        {milestone for run in runs for milestone in run.settings.milestones if milestone < run.epochs[-1]}
    ):
        ax.axvline(epoch, color=ml.plotting.PATH, linestyle=":", linewidth=1.0)
