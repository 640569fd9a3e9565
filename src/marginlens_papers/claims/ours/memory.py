"""X N6: momentum and Adam reach their norm's margin while their memory fades faster than gradients fall; what happens beyond."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import marginlens as ml
from marginlens.data import sphere_queries, sphere_tokens
from marginlens.optimizers import PowerDecay
from marginlens.theory.bias_table import ON_P, ON_W
from marginlens.theory.implicit_bias import implicit_bias
from marginlens.typing import Figure, FloatArray, IntArray
from marginlens_papers.claim import Bound, Claim, Effort, Finding, Progress, Run, Words
from marginlens_papers.claims.ours.norm_runs import norms_of, smallest_lead

SEED = 67
RATIOS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
CLOCK, LATE_CLOCK = 200.0, 20_000.0  # steps, each counted as min(ηγ, rate)
BELOW, BEYOND, FAR_BEYOND = 0.8, 1.5, 12.0  # ratios of ηγ to the memory's rate
FALLING_FROM, FALLING_STEPS = 16.0, 64  # first ratio of falling steps; their number over that at which it is one
RULES: dict[str, tuple[Any, ...]] = {  # by name, with a size to be replaced
    **{
        name: tuple(ml.SteepestDescent(norm, 1.0, *memory) for memory in ((0.5, False), (0.9, False), (0.95, True)))
        for name, norm in (("sign", ml.LInf()), ("normalised", ml.L2()), ("Muon", ml.Spectral()))
    },
    "Adam": (ml.Adam(1.0, (0.5, 0.5)), ml.Adam(1.0, (0.9, 0.99)), ml.Adam(1.0), ml.Adam(1.0, (0.99, 0.5))),
}
SHORT, _, USUAL, UNBOUNDED = RULES["Adam"]
FALLING = {"sign": RULES["sign"][1], "normalised": RULES["normalised"][1], "Muon": RULES["Muon"][2], "Adam": SHORT}
CHECKED = {
    **{f"share_below_{name}": (Bound(low=0.95), f"{name}, short memory: mean share of its margin") for name in RULES},
    **{f"share_beyond_{name}": (Bound(high=0.8), f"{name}, long memory: mean share") for name in RULES},
    **{
        f"late_change_beyond_{name}": (Bound(-0.05, 0.05), f"{name}, long memory: gain of the last half of the steps")
        for name in list(RULES)[:3]
    },
    **{f"share_falling_{name}": (Bound(low=0.9), f"{name}, steps $t^(-1/2)$: mean share at the end") for name in RULES},
    "share_late_Adam": (Bound(low=0.9), f"Adam, long memory, after {LATE_CLOCK / CLOCK:g} times as long: mean share"),
    "share_of_unbounded_Adam": (Bound(high=0.4), "Adam with β = (.99, .5): mean share"),
}


def _largest(rule: Any) -> float:
    """ηγ at the largest ratio: the rate at which the memory of a rule fades, times that."""
    rate = -np.log(rule.momentum) if isinstance(rule, ml.SteepestDescent) else -0.5 * np.log(rule.betas[1])
    return float(round(rate * (RATIOS[2] if rule is UNBOUNDED else RATIOS[-1]), 3))


class X_N6(Claim):
    labels = ("X N6",)
    protocol = (
        "n = 4, T = 6, d = 30 (p: sign, normalised, Adam) and n = 4, T = 5, d = 6 with a query per input (W: Muon), all on the sphere, "
        f"6 problems, from zero. Ratio: ηγ over log(1/β) or ½ log(1/β₂), γ the certified best margin of the tokens that the run selects; "
        f"steps until ηγ, or the rate if that is less, adds up to about {CLOCK:g}. Below: ratio ≤ {BELOW:g}; beyond: ≥ {BEYOND:g}, for "
        f"Adam ≥ {FAR_BEYOND:g}. Late: Adam with β = (.5, .5) from ratio 16 on to {LATE_CLOCK:,.0f}. Falling: $t^(-1/2)$ from ratio "
        f"{FALLING_FROM:g} on, {FALLING_STEPS} times the steps after which it is one. Bars were set after pilots on seeds 901 to 904, "
        "which also showed that Adam goes on beyond its rate, although it had been expected to stop there."
    )
    expected = {name: bound for name, (bound, _) in CHECKED.items()}
    words = {name: Words(sentence) for name, (_, sentence) in CHECKED.items()}
    runs = (
        *(
            Run(ON_W if name == "Muon" else ON_P, rule, _largest(rule))
            for name, rules in RULES.items()
            for rule in rules
        ),
        *(Run(ON_W if name == "Muon" else ON_P, replace(rule, size=PowerDecay(1.0))) for name, rule in FALLING.items()),
    )

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Run every memory at every ratio, constant and falling."""
        paper = effort is Effort.PAPER
        count, rng = 6 if paper else 3, np.random.default_rng(SEED)
        on_p = ml.AttentionRisk(*sphere_tokens(count, 4, 6, 30, rng))
        data, heads, queries = sphere_queries(count, 4, 5, 6, rng)
        risks = {name: ml.AttentionRisk(data, heads).as_matrix(queries) if name == "Muon" else on_p for name in RULES}
        ratios: dict[Any, tuple[float, ...]] = {
            rule: RATIOS if paper else RATIOS[1::2] for rules in RULES.values() for rule in rules
        }
        ratios[USUAL] = (0.5, 2.0, 8.0, 32.0) if paper else (32.0,)
        ratios[UNBOUNDED] = RATIOS[:4:2]
        progress.expect(len(ratios) + len(FALLING) + 1)
        constant: dict[Any, FloatArray] = {}
        for name, rules in RULES.items():
            for rule in rules:
                clock = CLOCK if paper or rule != USUAL else CLOCK / 4.0
                constant[rule] = np.concatenate([_shares(risks[name], rule, r, clock) for r in ratios[rule]], axis=1)
                progress.advance()
        falling = {}
        for name, rule in FALLING.items():
            falling[name] = _shares(risks[name], rule, FALLING_FROM, 0.0)
            progress.advance()
        late = _shares(on_p, SHORT, 16.0, LATE_CLOCK)
        progress.advance()
        arrays = {"constant": constant, "falling": falling, "late": late}
        numbers = _numbers(arrays)
        return Finding(_sentence(numbers), numbers, arrays)

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """Shares against the ratio, a panel for each optimizer."""
        from matplotlib.figure import Figure

        fig = Figure(figsize=(7.2, 7.4), layout="constrained")
        panels = dict(zip(RULES, fig.subplots(2, 2, sharex=True, sharey=True).flat, strict=True))
        for name, rules in RULES.items():
            for k, rule in enumerate(rules):
                ratio, _, share = finding.arrays["constant"][rule]
                decays = rule.betas if name == "Adam" else (rule.momentum,)
                label = ", ".join(f"{decay:g}" for decay in decays) + ", Nesterov" * getattr(rule, "nesterov", False)
                panels[name].plot(ratio, share, "osD^"[k], color=ml.plotting.ACCENTS[k], ms=5, alpha=0.7, label=label)
            panels[name].axvline(1.0, color=ml.plotting.INK, lw=1.2, ls="--")
            panels[name].set(xscale="log", title=name)
        panels["Adam"].plot(*finding.arrays["late"][::2], "k*", ms=8, label="0.5, 0.5, 100 times as long")
        panels["Adam"].xaxis.set_major_formatter("{x:g}")
        for ax in panels.values():
            ax.set(
                ylabel="share of the best margin", xlabel="how fast gradients fall ÷\nhow fast the optimizer forgets"
            )
            ax.label_outer()
        panels["sign"].text(0.85, 0.02, "memory\nfades\nfaster", ha="right", color=ml.plotting.PATH)
        legends = (("sign", "Momentum of the others", "left", 1), ("Adam", "β₁, β₂ of Adam", "right", 2))
        for name, title, side, n_columns in legends:
            dots = panels[name].get_legend_handles_labels()[0]
            fig.legend(handles=dots, title=title, loc=f"outside lower {side}", ncols=n_columns, alignment="left")
        return {"map": fig}


def _shares(risk: Any, rule: Any, ratio: float, clock: float) -> FloatArray:
    """(3, batch): each run's own ratio, and its share of the best margin after half of the steps and after all of them.

    Steps are constant; if `clock` is zero they fall from this ratio on.
    """
    _, rate, usual = _memory(risk, rule, risk.best_tokens())
    size, falls = ratio / float(np.median(usual)), clock == 0.0
    n = int(FALLING_STEPS * ratio**2 if falls else clock / (rate[0] * min(ratio, 1.0)))
    sized = replace(rule, size=PowerDecay(size) if falls else size)
    run = ml.descend(risk, optimizer=sized, n_steps=n, record=ml.Record([n // 2, n]))
    margin, _, ratios = _memory(risk, rule, run.selected)
    norm = getattr(rule, "norm", ml.LInf())
    shares = [
        smallest_lead(risk, x, run.selected) / norms_of(norm, x) / margin for x in np.moveaxis(run.saved["x"], 1, 0)
    ]
    return np.stack([size * ratios, *shares])


def _memory(risk: Any, rule: Any, selected: IntArray) -> FloatArray:
    """(3, batch): the best margin γ in the rule's norm, the rate of its memory, and their ratio, as `ml.predict` has them."""
    biases: Any = implicit_bias(rule, risk, selected=selected)
    return np.array([list(bias.conditions[-1].numbers.values())[:3] for bias in biases]).T


def _numbers(arrays: dict[str, Any]) -> dict[str, float]:
    numbers = {"share_late_Adam": float(arrays["late"][2].mean())}
    for name, rules in RULES.items():
        runs = [arrays["constant"][rule] for rule in rules if rule != UNBOUNDED]
        ratio, middle, share = np.concatenate(runs, axis=1)
        beyond = ratio >= (FAR_BEYOND if name == "Adam" else BEYOND)
        numbers[f"share_below_{name}"] = float(share[ratio <= BELOW].mean())
        numbers[f"share_beyond_{name}"] = float(share[beyond].mean())
        numbers[f"late_change_beyond_{name}"] = float((share - middle)[beyond].mean())
        numbers[f"share_falling_{name}"] = float(arrays["falling"][name][2].mean())
    numbers["share_of_usual_Adam"] = float(arrays["constant"][USUAL][2, -3:].mean())
    numbers["share_of_unbounded_Adam"] = float(arrays["constant"][UNBOUNDED][2].mean())
    return numbers


def _sentence(numbers: dict[str, float]) -> str:
    def each(number: str) -> str:
        return ", ".join(f"{name} {numbers[f'{number}_{name}']:.3f}" for name in RULES)

    return (
        f"Mean share of the own margin if memory fades faster than gradients fall: {each('share_below')}; if it does not: "
        f"{each('share_beyond')}, of which the last half of the steps changed {each('late_change_beyond')}. Adam goes on: after a "
        f"hundred times as long it has {numbers['share_late_Adam']:.3f}; with its usual β = (.9, .999) and the longest steps it has "
        f"{numbers['share_of_usual_Adam']:.3f}, with β = (.99, .5) {numbers['share_of_unbounded_Adam']:.3f}. Falling steps: "
        f"{each('share_falling')}."
    )
