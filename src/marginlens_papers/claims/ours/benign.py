"""X F: head and attention that memorise flipped labels still classify well, from a ratio of signal to noise of about 1/√n on."""

from __future__ import annotations

from typing import Any

import numpy as np

import marginlens as ml
from marginlens.data import signal_and_noise
from marginlens.optimizers import Blockwise
from marginlens.theory.bias_table import ON_BOTH
from marginlens.typing import Figure, FloatArray
from marginlens_papers.claim import Claim, Effort, Finding, Progress, Run
from marginlens_papers.claims.drawing import heat_map

SEED = 91
WIDTH, NARROW = 2000, 6  # of the noise: far more than the inputs, and far fewer in the control
FLIPPED = 0.1
RULE, N_STEPS = Blockwise(ml.NormalizedGD(0.5)), 200
N_TESTED = 400
SIZES = (20, 40, 80, 160)
MULTIPLES = (0.5, 1.0, 1.25, 1.5, 1.75, 2.0, 3.0, 4.5)  # of 1/√n
LOW, HIGH = 1.0, 3.0  # multiples up to which, and from which on, cells are judged
RIGHT = 0.75  # test accuracy that marks the threshold, half-way from chance to one


class X_F(Claim):
    labels = ("X F",)
    runs = (Run(ON_BOTH, RULE),)

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Train head and attention for every size and ratio of signal to noise, and test on new inputs with true labels."""
        sizes, n_seeds = (SIZES, 2) if effort is Effort.PAPER else (SIZES[::3], 1)
        cells = [(n, multiple) for n in sizes for multiple in MULTIPLES]
        found = {
            cell: np.mean([_accuracies(*cell, WIDTH, seed) for seed in range(n_seeds)], axis=0)
            for cell in progress.each(cells, more=1)
        }
        narrow = _accuracies(sizes[-1], HIGH, NARROW, 0)[0]
        progress.advance()
        trained, tested = (np.array([[found[n, multiple][k] for multiple in MULTIPLES] for n in sizes]) for k in (0, 1))
        thresholds = np.array([_threshold(row) / np.sqrt(n) for n, row in zip(sizes, tested, strict=True)])
        slope = float(np.polyfit(np.log(sizes), np.log(thresholds), 1)[0])
        below, above = (
            np.array([chosen(m) for m in MULTIPLES]) for chosen in (lambda m: m <= LOW, lambda m: m >= HIGH)
        )
        numbers = {
            "smallest_training_accuracy": float(trained.min()),
            "smallest_test_accuracy_above": float(tested[:, above].min()),
            "largest_test_accuracy_below": float(tested[:, below].max()),
            "slope_of_the_threshold": slope,
            "training_accuracy_with_narrow_noise": float(narrow),
        }
        fitted, above_least, below_most = (numbers[name] for name in list(numbers)[:3])
        measured = (
            f"All training labels are fitted, the flipped ones too (smallest accuracy {fitted:.3f}). New inputs are classified correctly "
            f"from a ratio of {HIGH:g}/√n on ({above_least:.3f} or more), and hardly better than by chance up to {LOW:g}/√n "
            f"({below_most:.2f} at most). The ratio at which accuracy crosses {RIGHT:g} falls like n^{slope:.2f}. With noise of "
            f"{NARROW - 2} coordinates, which cannot be remembered, training accuracy is {narrow:.2f}."
        )
        return Finding(measured, numbers, {"sizes": sizes, "tested": tested, "thresholds": thresholds})

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """Test accuracy by size and ratio, and the threshold with 1/√n."""
        sizes, tested, thresholds = (finding.arrays[name] for name in ("sizes", "tested", "thresholds"))
        figure, (left, right) = ml.plotting.figure(2, width=5.4, height=4.0)
        columns = [f"{multiple:g}" for multiple in MULTIPLES]
        heat_map(left, tested, rows=[str(n) for n in sizes], columns=columns, form=".2f")
        left.set(xlabel="signal over noise, times √n", ylabel="inputs n")
        left.set_title("Test accuracy; training accuracy is 1")
        right.loglog(sizes, thresholds, "o", color=ml.plotting.GLOBAL, ms=7, label=f"where accuracy crosses {RIGHT:g}")
        line = np.exp(np.mean(np.log(thresholds * np.sqrt(sizes)))) / np.sqrt(sizes)
        right.loglog(sizes, line, color=ml.plotting.INK, ls="--", lw=1.2, label="a multiple of $1/√n$")
        right.set(xlabel="inputs n", ylabel="ratio of signal to noise")
        right.set_xticks(sizes, [str(n) for n in sizes])
        right.set_yticks((0.15, 0.2, 0.3), ("0.15", "0.2", "0.3"))
        right.minorticks_off()
        right.legend(frameon=False)
        right.set_title("Where overfitting turns benign")
        return {"map": figure}


def _accuracies(n: int, multiple: float, width: int, seed: int) -> tuple[float, float]:
    """The share of training labels that are fitted, and the share of new inputs that are classified correctly."""
    signal = multiple / np.sqrt(n)
    data, _ = signal_and_noise(n, width, signal, np.random.default_rng([SEED, seed, n]), flipped=FLIPPED)
    run = ml.descend(ml.JointRisk(data), optimizer=RULE, n_steps=N_STEPS)
    head, attention = ml.JointRisk(data).split(run.final)
    new, _ = signal_and_noise(N_TESTED, width, signal, np.random.default_rng([SEED, seed, n, 1]))
    fitted, right = (float(np.mean(ml.AttentionRisk(some, head).margins(attention) > 0.0)) for some in (data, new))
    return fitted, right


def _threshold(accuracies: FloatArray) -> Any:
    """The multiple of 1/√n at which the accuracy first crosses `RIGHT`, interpolated on the grid."""
    k = int(np.argmax(accuracies >= RIGHT))
    if accuracies[k] < RIGHT or k == 0:
        return MULTIPLES[k]
    return np.interp(RIGHT, accuracies[k - 1 : k + 1], MULTIPLES[k - 1 : k + 1])
