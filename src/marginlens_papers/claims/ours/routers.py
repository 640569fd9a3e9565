"""X-R5: routers on frozen experts. A mean that all inputs share leaves experts without inputs; centred inputs bring them back."""

from __future__ import annotations

from typing import Any

import numpy as np

import marginlens as ml
from marginlens.typing import Figure, FloatArray, IntArray
from marginlens_papers.claim import Claim, Effort, Finding, Progress

SEED = 5
N_INPUTS, N_EXPERTS, WIDTH = 8, 4, 12
RATIOS = (0, 1, 2, 4)  # ‖mean of the inputs‖ over their spread
SIZE = 0.2  # of a normalised step; the inputs' distances from their mean have root mean square 1
MEASURES = ("used", "at_best", "at_favourite", "predicted", "proved", "right_if_proved")


class X_R5(Claim):
    labels = ("X Thm 1", "A Lemma 1")

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Predict and train gates on inputs with means of several sizes, then on centred inputs and with a bias."""
        count, n_steps = (100, 20_000) if effort is Effort.PAPER else (6, 8_000)
        progress.expect(len(RATIOS) + 2)
        rows: dict[str, dict[str, FloatArray]] = {}
        effects = problems(count, 0.0)[1]
        for ratio in RATIOS:
            rows[f"mean_{ratio}"] = _ends(problems(count, ratio)[0], effects, n_steps)
            progress.advance()
        inputs = problems(count, RATIOS[-1])[0]
        with_one = np.concatenate([inputs, np.ones((*inputs.shape[:-1], 1))], axis=-1)
        for name, changed in (("centred", _scaled(inputs - inputs.mean(axis=1, keepdims=True))), ("bias", with_one)):
            rows[name] = _ends(changed, effects, n_steps)
            progress.advance()
        numbers = {f"{measure}_{name}": float(np.mean(row[measure])) for name, row in rows.items() for measure in row}
        numbers["favourite_gain"] = numbers[f"at_favourite_mean_{RATIOS[-1]}"] - numbers["at_favourite_mean_0"]
        best = np.argmax(effects, axis=-1)
        numbers["needed"] = float(np.mean(_n_used(best)))
        for measure in ("predicted", "proved", "right_if_proved"):
            numbers[measure] = float(np.mean(np.concatenate([row[measure] for row in rows.values()])))
        return Finding(_sentence(numbers, count * len(rows)), numbers, {"rows": rows})

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """Experts used, and inputs at their best expert, against the size of the mean."""
        figure, panels = ml.plotting.figure(2, width=8.0, height=3.6)
        rows, numbers = finding.arrays["rows"], finding.numbers
        shown = (("used", "experts that win an input", (1.0, N_EXPERTS)), ("at_best", "share of inputs", (0.0, 1.02)))
        for axes, (measure, label, limits) in zip(panels, shown, strict=True):
            mean = np.array([numbers[f"{measure}_mean_{ratio}"] for ratio in RATIOS])
            error = [
                1.96 * np.std(rows[f"mean_{ratio}"][measure]) / len(rows["centred"][measure]) ** 0.5 for ratio in RATIOS
            ]
            axes.errorbar(RATIOS, mean, error, color=ml.plotting.LOCAL, marker="o", capsize=3, label="as they are")
            axes.axhline(numbers[f"{measure}_centred"], color=ml.plotting.GLOBAL, label="centred")
            axes.set(xlabel="‖mean of inputs‖ / spread", ylabel=label, ylim=limits)
        panels[0].axhline(numbers["needed"], color=ml.plotting.INK, ls="--", lw=1.2, label="best for some input")
        favourite = [numbers[f"at_favourite_mean_{ratio}"] for ratio in RATIOS]
        panels[1].plot(RATIOS, favourite, color=ml.plotting.PATH, marker="s", label="at the best expert on average")
        panels[0].set_title("Experts used")
        panels[1].set_title("Inputs at their best expert")
        for axes in panels:
            axes.legend(frameon=False, loc="lower left")
        return {"experts": figure}


def problems(count: int, ratio: float) -> tuple[FloatArray, FloatArray]:
    """Inputs (count, n_inputs, d), Gaussian around a mean of this size, and uniform effects of the experts, independent of them."""
    rng = np.random.default_rng(SEED)
    effects = rng.uniform(-1.0, 1.0, (count, N_INPUTS, N_EXPERTS))
    deviations = rng.standard_normal((count, N_INPUTS, WIDTH))
    mean = rng.standard_normal((count, 1, WIDTH))
    mean *= ratio * WIDTH**0.5 / np.linalg.norm(mean, axis=-1, keepdims=True)
    return _scaled(mean + deviations), effects


def _scaled(inputs: FloatArray) -> FloatArray:
    """Give the deviations of each problem's inputs from their mean the root mean square length 1."""
    deviations = inputs - inputs.mean(axis=1, keepdims=True)
    return inputs / np.sqrt(np.mean(np.sum(deviations**2, axis=-1), axis=-1))[:, None, None]


def _ends(inputs: FloatArray, effects: FloatArray, n_steps: int) -> dict[str, FloatArray]:
    """Where gates from zero end, one number for each problem, or for each proved one."""
    risk = ml.risk.router(inputs, effects)
    predictions: Any = ml.predict_limit(risk, max_problems=1)
    outcomes = [prediction.outcome for prediction in predictions]
    selected = ml.descend(risk, optimizer=ml.NormalizedGD(SIZE), n_steps=n_steps).selected
    predicted = np.all(np.array([outcome.selected for outcome in outcomes]) == selected, axis=-1)
    proved = np.array([outcome.proved for outcome in outcomes])
    favourite = np.argmax(np.sum(effects, axis=1), axis=-1)
    measures = (
        _n_used(selected),
        np.mean(selected == np.argmax(effects, axis=-1), axis=-1),
        np.mean(selected == favourite[:, None], axis=-1),
        predicted,
        proved,
        predicted[proved],
    )
    return dict(zip(MEASURES, map(np.asarray, measures), strict=True))


def _n_used(selected: IntArray) -> FloatArray:
    """How many experts win at least one input of each problem, (count,)."""
    return np.sum([np.any(selected == expert, axis=-1) for expert in range(N_EXPERTS)], axis=0)


def _sentence(numbers: dict[str, float], n_runs: int) -> str:
    used = ", ".join(f"{numbers[f'used_mean_{ratio}']:.2f}" for ratio in RATIOS)
    best = ", ".join(f"{numbers[f'at_best_mean_{ratio}']:.0%}" for ratio in RATIOS)
    favourite = [numbers[f"at_favourite_mean_{ratio}"] for ratio in (RATIOS[0], RATIOS[-1])]
    return (
        f"With a mean of 0, 1, 2 and 4 times the spread, {used} of {N_EXPERTS} experts win an input ({numbers['needed']:.2f} are the best "
        f"for one), and {best} of the inputs end at their best expert; {favourite[0]:.0%} and {favourite[1]:.0%} end at the expert that is "
        f"best on average, with no mean and with the largest. Centred, the latter inputs use {numbers['used_centred']:.2f} experts, "
        f"{numbers['at_best_centred']:.0%} at their best one; with a bias in the gate instead, {numbers['used_bias']:.2f}. All winners are "
        f"predicted in {numbers['predicted']:.1%} of {n_runs:,} runs and the limit of the flow is proved in {numbers['proved']:.1%}; of "
        f"these {numbers['right_if_proved']:.1%} are right."
    )
