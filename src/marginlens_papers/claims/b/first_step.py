"""B Lemmas 2, 11 and 12, Eq. (14): initial embeddings concentrate, and the first step moves them along v."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.stats import norm

import marginlens as ml
from marginlens.data.labelled import LabelledSequences
from marginlens.data.sequence_generators import Levels, level_sequences
from marginlens.embeddings.models import Parameters, initial_parameters
from marginlens.embeddings.one_step import first_step, log_of_pairs
from marginlens.typing import Axes, Figure
from marginlens_papers.claim import Claim, Effort, Finding, Progress
from marginlens_papers.claims import drawing
from marginlens_papers.claims.b.first_step_bounds import (
    ProvedBound,
    first_step_errors,
    first_step_loss,
    first_step_norms,
    initial_concentration,
    initial_orthogonality,
)
from marginlens_papers.claims.drawing import level
from marginlens_papers.claims.random_data import balanced_sequences

STEP_SEED, DELTA, RATE = 21, 0.01, 1.0
MOST_TOKENS = 24


class B_L2(Claim):
    labels = ("B Lemma 2", "B Eq. (4)", "B Eq. (5)", "B Eq. (6)")

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Take the step for every kind of data, width and initialisation, and measure the part that is not along α_s v."""
        paper = effort is Effort.PAPER
        widths = 2 ** np.arange(4, 19 if paper else 16, 1 if paper else 2)
        kinds = {name: make(np.random.default_rng([STEP_SEED, k])) for k, (name, make) in enumerate(KINDS.items())}
        progress.expect(len(widths))
        errors: dict[str, list[float]] = {name: [] for name in kinds}
        ratios, steps = [], 0
        for d in widths.tolist():
            seeds = max(2, min(30 if paper else 6, 2**16 // d))
            largest, relative = np.zeros((len(kinds), seeds)), []
            for seed in range(seeds):
                start = initial_parameters(MOST_TOKENS, d, np.random.default_rng([STEP_SEED, d, seed]), np.float64)
                for k, data in enumerate(kinds.values()):
                    step = first_step(Parameters(start.E[: data.n_vocabulary], start.p, start.v), RATE, data)
                    found = first_step_errors(step, DELTA)
                    largest[k, seed], steps = found.value, steps + 1
                    ratios.append(found.value / found.bound)
                    relative.append(found.value / float(0.5 * RATE * np.abs(step.alpha).max()))
            for k, name in enumerate(kinds):
                errors[name].append(float(np.mean(largest[k])))
            progress.advance()
        exponents = {name: float(np.polyfit(np.log(widths), np.log(line), 1)[0]) for name, line in errors.items()}
        numbers = {
            "violations": float(np.sum(~(np.array(ratios) <= 1.0))),
            "largest_ratio_to_bound": float(np.max(ratios)),
            "slowest_exponent": float(np.max(list(exponents.values()))),
            "steepest_exponent": min(exponents.values()),
            "median_exponent": float(np.median(list(exponents.values()))),
            "alignment_error_at_largest_d": float(np.max(relative)),
            "steps": float(steps),
        }
        measured = (
            f"{numbers['violations']:.0f} of {steps:,} steps are above the bound; the largest error is "
            f"{numbers['largest_ratio_to_bound']:.3f} of it. Errors fall like $d^({numbers['median_exponent']:.3f})$ "
            "(median over kinds of "
            f"data; from {min(exponents.values()):.3f} to {max(exponents.values()):.3f}), where the bound has $d^(-1/4)$. At d = "
            f"{widths[-1]:,} the largest error is at most {numbers['alignment_error_at_largest_d']:.3f} of the largest displacement "
            "(η₀/2) $max|α_s|$. The bound is below the largest possible displacement η₀/2 only beyond d = 22⁴ = 234,256."
        )
        arrays = {"d": widths, "errors": errors, "exponents": exponents}
        return Finding(measured, numbers, arrays)

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """The largest error over the width for each kind of data, with the bound."""
        fig, (ax,) = ml.plotting.figure(1, width=7.4, height=4.6)
        d = finding.arrays["d"].astype(float)
        ax.loglog(d, 11.0 * d**-0.25, color=ml.plotting.INK, lw=2.0)
        ax.text(d[1], 11.0 * d[1] ** -0.25 * 1.25, "bound 11 d$^{-1/4}$", ha="left", va="bottom")
        marks = "osD^vP"
        for (name, line), colour, mark in zip(
            finding.arrays["errors"].items(), ml.plotting.ACCENTS, marks, strict=False
        ):
            label = f"{name}: d$^{{{finding.arrays['exponents'][name]:.2f}}}$"
            ax.loglog(d, line, color=colour, lw=1.6, marker=mark, ms=4, label=label)
        guide = 0.3 * finding.arrays["errors"]["uniform"][0] * (d / d[0]) ** -0.5
        ax.loglog(d, guide, color=ml.plotting.PATH, ls="--", lw=1.2)
        ax.text(d[len(d) // 2], 0.8 * guide[len(d) // 2], "slope −1/2", ha="right", va="top")
        ax.set(xlabel="width d", ylabel="largest ‖err‖ / η₀", ylim=(None, 60.0))
        ax.set_title("What the first step leaves besides α$_s$ v")
        ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        return {"errors": fig}


def _uniform(rng: np.random.Generator) -> LabelledSequences:
    return LabelledSequences(rng.integers(20, size=(60, 10)), rng.choice([-1.0, 1.0], size=60), 20)


def _levels(rng: np.random.Generator) -> LabelledSequences:
    return level_sequences(60, 12, rng, Levels(deltas=(0.3, 0.1), sizes=(4, 3), n_irrelevant=10, share=0.3))


def _ragged(rng: np.random.Generator) -> LabelledSequences:
    lists = [rng.integers(20, size=rng.integers(1, 21)) for _ in range(50)]
    return LabelledSequences(lists, rng.choice([-1.0, 1.0], size=50), 20)


def _filled(rng: np.random.Generator) -> LabelledSequences:
    positive = [[0] * 6] * 20
    return LabelledSequences([*positive, *rng.integers(1, 12, size=(20, 6)).tolist()], [1.0] * 20 + [-1.0] * 20, 12)


KINDS: dict[str, Callable[[np.random.Generator], LabelledSequences]] = {
    "uniform": _uniform,
    "K-level": _levels,
    "one decisive token": lambda rng: balanced_sequences(40, 8, 4, 14, rng),
    "lengths 1 to 20": _ragged,
    "one token fills half": _filled,
    "n = T = 2": lambda rng: LabelledSequences([[0, 1], [2, 1]], [1.0, -1.0], 3),
}


START_SEED, WIDTH, STEP_WIDTH, STEP_DELTA = 22, 256, 2048, 0.01
DELTAS = np.geomspace(1e-3, 0.5, 14)
SIZES = (1, 2, 10, 50)  # |S|
NARROW = (1, 2, 4, 8, 16, 64)  # d
NARROW_SIZES, NARROW_DELTAS = (2, 10, 20), (0.05, 0.5)
RATES = (0.001, 0.005, 0.05, 0.5, 1.0, 10.0, 100.0, 1e3)


class B_I(Claim):
    labels = ("B Eq. (14)", "B' Eq. (22)", "B Lemma 11", "B Lemma 12")

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Count how often each inequality fails over fresh initialisations."""
        paper = effort is Effort.PAPER
        trials, steps = (6000, 60) if paper else (1000, 5)
        progress.expect(len(SIZES) + len(NARROW) + steps)
        failures, norm_failures = np.zeros((len(SIZES), len(DELTAS))), 0
        for k, size in enumerate(SIZES):
            bounds = np.sqrt([log_of_pairs(size, delta) / WIDTH for delta in DELTAS])
            rng = np.random.default_rng([START_SEED, size])
            for _ in range(trials if size < 50 else trials // 3):
                products, norms = initial_concentration(initial_parameters(size, WIDTH, rng, np.float64), STEP_DELTA)
                failures[k] += ~(products.value <= bounds)
                norm_failures += not norms.holds
            progress.advance()
        counts = np.array([trials if size < 50 else trials // 3 for size in SIZES])
        frequency = failures / counts[:, None]
        narrow = _narrow(trials // 3, progress)
        lemmas = _steps(steps, progress)
        ratio = np.where(
            counts[1:, None] * DELTAS >= 10.0, frequency[1:] / DELTAS, 0.0
        )  # where ten failures would be allowed
        normal = np.stack([_normal_frequency(size) for size in SIZES])
        over_normal = (frequency / normal)[counts[:, None] * normal >= 100.0]
        promised = np.array([lemma["promised"] for lemma in lemmas], dtype=bool)
        broken = np.array([not lemma["loss_holds"] for lemma in lemmas], dtype=bool)
        rate = np.array([lemma["rate"] for lemma in lemmas])
        numbers = {
            "largest_failure_frequency_over_delta": float(ratio.max()),
            "smallest_frequency_over_normal": float(over_normal.min()),
            "largest_frequency_over_normal": float(over_normal.max()),
            "norm_failures": float(norm_failures),
            "largest_failure_frequency_over_delta_where_promised": _worst(narrow, promised=True),
            "largest_failure_frequency_over_delta_elsewhere": _worst(narrow, promised=False),
            "narrow_cells_where_promised": float(sum(cell["promised"] for cell in narrow)),
            "lemma_11_failures": float(sum(not lemma["norms_hold"] for lemma in lemmas)),
            "lemma_12_failures_where_promised": float(np.sum(broken & promised)),
            "steps_where_lemma_12_is_promised": float(promised.sum()),
            "lemma_12_failures_elsewhere": float(np.sum(broken & ~promised)),
            "failure_frequency_of_one_token_at_half": float(frequency[0, -1]),
        }
        low, high = drawing.proportion_interval(failures[0, -1], counts[0])
        elsewhere = sorted(set(rate[broken & ~promised].tolist()))
        where = f", all of them at η₀ ≥ {elsewhere[0]:g}" if elsewhere else ""
        measured = (
            f"Eq. (14) fails at most {ratio.max():.2f} times as often as δ allows (|S| ≥ 2, {counts[1:].sum():,} initialisations), and "
            f"{norm_failures} norms exceed 2. Lemma 11 fails in {numbers['lemma_11_failures']:.0f} of {len(lemmas)} steps, Lemma 12 in "
            f"{np.sum(broken & promised)} of the {promised.sum()} whose η₀ lets d = 2,048 be enough; of {np.sum(~promised)} steps beyond "
            f"its condition {np.sum(broken & ~promised)} break its inequality{where}."
        )
        note = (
            "For a vocabulary of one token Eq. (14) is not true for large δ, as $log|S|²$ vanishes. At δ = .5 it fails with frequency "
            f"{frequency[0, -1]:.3f} (95% interval {low:.3f} to {high:.3f}). From two tokens on it holds at d = 256 with room to spare; "
            f"but it needs a width, of which the paper does not speak: {_examples(narrow)}. From the width on that initial_concentration "
            f"asks for it fails at most {_worst(narrow, promised=True):.2f} times as often as δ allows, B' Eq. (22) included."
        )
        arrays = {"frequency": frequency, "trials": counts, "lemmas": lemmas, "narrow": narrow}
        return Finding(measured, numbers, arrays, note)

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """How often Eq. (14) fails against δ and against d, and the loss after the step with Lemma 12's bound."""
        fig, (left, middle, right) = ml.plotting.figure(3, width=5.0, height=4.4)
        _draw_narrow(middle, finding.arrays["narrow"])
        frequency, trials = finding.arrays["frequency"], finding.arrays["trials"]
        left.loglog(DELTAS, DELTAS, color=ml.plotting.INK, lw=2.0)
        left.text(1.6e-2, 2.2e-2, "allowed", ha="left", va="bottom", rotation=38)
        for size, line, n, colour in zip(SIZES, frequency, trials, ml.plotting.ACCENTS, strict=False):
            seen = line * n >= 4.0
            look: dict[str, Any] = {"fmt": "o", "ms": 3.5, "lw": 1.0, "color": colour, "label": f"|S| = {size}"}
            drawing.share_points(left, DELTAS[seen], (line * n)[seen], n, **look)
            left.loglog(DELTAS, _normal_frequency(size), color=colour, lw=1.2, alpha=0.7)
        left.set(xlabel="δ", ylabel="frequency of failure", ylim=(1e-4, 1.0), xlim=(8e-4, 0.6))
        left.set_title("Eq. (14): points counted, lines for\n2|S| + 1 independent normal products")
        left.legend(loc="upper left")
        _draw_loss(right, finding.arrays["lemmas"])
        return {"concentration": fig}


def _narrow(trials: int, progress: Progress) -> list[dict[str, Any]]:
    """How often Eq. (14), and B' Eq. (22), fail at small widths, and whether they are promised there."""
    found = []
    for d in NARROW:
        for size in NARROW_SIZES:
            rng = np.random.default_rng([START_SEED, 200, d, size])
            starts = [initial_parameters(size, d, rng, np.float64) for _ in range(trials)]
            values = [[bound.value for bound in _bounds(start, NARROW_DELTAS[0])] for start in starts]  # whatever δ is
            for delta in NARROW_DELTAS:
                bounds = _bounds(starts[0], delta)
                broken = ~(np.array(values) <= [bound.bound for bound in bounds])  # (trials, 4)
                parts = (
                    ("B Eq. (14)", broken[:, :2].any(axis=1), bounds[0].promised),
                    ("B' Eq. (22)", broken.any(axis=1), bounds[2].promised),
                )
                for name, failures, promised in parts:
                    cell = {"name": name, "d": d, "size": size, "delta": delta, "trials": trials, "promised": promised}
                    found.append({**cell, "frequency": float(failures.mean())})
        progress.advance()
    return found


def _bounds(start: Parameters, delta: float) -> tuple[ProvedBound, ...]:
    """The two inequalities of Eq. (14), and the two that B' Eq. (22) adds."""
    return (*initial_concentration(start, delta), *initial_orthogonality(start, delta))


def _worst(narrow: list[dict[str, Any]], *, promised: bool) -> float:
    return max(cell["frequency"] / cell["delta"] for cell in narrow if cell["promised"] is promised)


def _examples(narrow: list[dict[str, Any]]) -> str:
    """The frequencies of failure of Eq. (14) at δ = .05 for some small widths, in words."""
    chosen = ((1, 20), (2, 10))
    rows = [
        cell
        for cell in narrow
        if cell["name"] == "B Eq. (14)" and cell["delta"] == 0.05 and (cell["d"], cell["size"]) in chosen
    ]
    return " and ".join(
        f"at d = {row['d']}, |S| = {row['size']} and δ = .05 it fails in {row['frequency']:.0%} of draws"
        for row in rows
    )


def _normal_frequency(size: int) -> Any:
    """How often the largest of 2|S| + 1 independent normal products would exceed the bound, for every δ."""
    tail = 2.0 * norm.sf(np.sqrt([log_of_pairs(size, delta) for delta in DELTAS]))
    return -np.expm1((2 * size + 1) * np.log1p(-tail))


def _steps(n_starts: int, progress: Progress) -> list[dict[str, Any]]:
    """Lemmas 11 and 12 for every rate from each of `n_starts` initialisations."""
    found = []
    for seed in range(n_starts):
        rng = np.random.default_rng([START_SEED, 100, seed])
        data = balanced_sequences(12, 6, 3, 10, rng)
        start = initial_parameters(data.n_vocabulary, STEP_WIDTH, rng, np.float64)
        for rate in RATES:
            step = first_step(start, rate, data)
            norms, loss = first_step_norms(step, STEP_DELTA), first_step_loss(step, STEP_DELTA)
            found.append(
                {
                    "rate": rate,
                    "norms_hold": all(bound.holds and bound.promised for bound in norms),
                    "promised": loss.promised,
                    "loss_holds": loss.holds,
                    "loss": loss.value,
                    "bound": loss.bound,
                }
            )
        progress.advance()
    return found


def _draw_narrow(ax: Axes, narrow: list[dict[str, Any]]) -> None:
    for size, colour in zip(NARROW_SIZES, ml.plotting.ACCENTS, strict=False):
        for name, style in (("B Eq. (14)", "-"), ("B' Eq. (22)", ":")):
            line = [cell for cell in narrow if (cell["name"], cell["size"], cell["delta"]) == (name, size, 0.05)]
            d, seen = np.array([cell["d"] for cell in line]), np.array([cell["frequency"] for cell in line])
            n, promised = line[0]["trials"], np.array([cell["promised"] for cell in line])
            shown = np.maximum(seen, 0.3 / n)  # none at all, below the axis' last count
            label = f"|S| = {size}, {name.removeprefix('B ')}"
            ax.loglog(d, shown, color=colour, ls=style, lw=1.4, label=label)
            ax.loglog(d[promised], shown[promised], "o", ms=6, color=colour)
            ax.loglog(d[~promised], shown[~promised], "o", ms=6, markerfacecolor="white", color=colour)
    level(ax, 0.05, "δ", side="right")
    ax.set_xticks(NARROW, [str(d) for d in NARROW])
    ax.minorticks_off()
    ax.set(xlabel="width d", ylabel="frequency of failure at δ = .05", title="Small widths: filled where promised")
    ax.legend(loc="upper right", fontsize=8)


def _draw_loss(ax: Axes, lemmas: list[dict[str, Any]]) -> None:
    rate = np.array([lemma["rate"] for lemma in lemmas])
    loss, bound = (np.array([lemma[name] for lemma in lemmas]) for name in ("loss", "bound"))
    order = np.array(RATES)
    mean = [np.array([values[rate == value].mean() for value in RATES]) for values in (loss, bound)]
    extremes = np.array([[loss[rate == value].min(), loss[rate == value].max()] for value in RATES]).T
    ax.fill_between(order, *extremes, color=ml.plotting.TINTS[ml.plotting.LOCAL], lw=0)
    ax.semilogx(order, mean[0], color=ml.plotting.LOCAL, marker="o", ms=4, label="loss after the step (mean, range)")
    ax.semilogx(order, mean[1], color=ml.plotting.GLOBAL, marker="s", ms=4, label="bound of Lemma 12")
    last = max(lemma["rate"] for lemma in lemmas if lemma["promised"])
    ax.axvspan(order[0] / 1.3, last, color=ml.plotting.FAINT, alpha=0.6, lw=0)
    ax.text(
        last * 1.3, 0.97, "d is enough to the left", transform=ax.get_xaxis_transform(), ha="left", va="top", fontsize=9
    )
    ax.set(xlabel="step η₀", ylabel="loss", yscale="log", xlim=(order[0] / 1.3, order[-1] * 1.3))
    ax.set_title("Lemma 12 at d = 2,048")
    ax.legend(loc="upper right", bbox_to_anchor=(1.0, 0.88))
