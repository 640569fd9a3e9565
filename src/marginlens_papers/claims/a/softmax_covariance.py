"""A Lemma 3: the softmax covariance of logits and scores is its first order around one token, up to 2ΓA(1 - s)²."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from scipy.special import log_softmax

from marginlens import plotting
from marginlens.theory import key_inequality
from marginlens_papers.claim import Bound, Effort, Finding, Progress

ID = "A-K3"
LABELS = ("A Lemma 3",)
TITLE = "The key inequality on the softmax covariance"
STATEMENT = (
    "For any probabilities s, scores γ and logits a, the covariance aᵀ(diag(s) - ssᵀ)γ differs from Σ_{t≥2} (a₁ - a_t) s_t (γ₁ - γ_t) "
    "by at most 2ΓA(1 - s₁)², with Γ the spread of γ and A the largest |a_t|."
)
PROTOCOL = (
    "Random s (softmax of normal logits, scaled from .1 to 1,000 so that 1 - s₁ runs down to e^-thousands), γ and a normal, "
    "heavy-tailed, or two-valued at their extremes, where the bound is attained; T from 2 to 40. Both sides as logarithms. Where "
    "1 - s₁ is not small, the left side is also formed by the definition."
)
PAPER_VALUE = "–"
ROUNDING = 1e-12  # of a ratio of two sums of forty terms
EXPECTED = {
    "violations": Bound(high=0),
    "largest_ratio": Bound(low=0.99, high=1.0 + ROUNDING),  # attained: no constant below 1.98 would do
    "definition_disagreement": Bound(high=1e-9),
}
SEED = 3


def compute(effort: Effort, progress: Progress) -> Finding:
    """Draw random instances of every kind and compare the two sides."""
    samples = 20_000 if effort is Effort.PAPER else 1_000
    kinds = ("normal", "heavy-tailed", "two-valued")
    sizes = (2, 3, 6, 40)
    progress.expect(len(kinds) * len(sizes))
    ratios: dict[str, list[np.ndarray]] = {kind: [] for kind in kinds}
    violations, disagreement, faintest = 0, [], 0.0
    for row, kind in enumerate(kinds):
        for T in sizes:
            rng = np.random.default_rng([SEED, row, T])
            log_s = log_softmax(rng.normal(size=(samples, T)) * 10.0 ** rng.uniform(-1, 3, size=(samples, 1)), axis=-1)
            gamma, a = (_values(kind, rng, (samples, T)) for _ in range(2))
            found = key_inequality(log_s, gamma, a)
            left, bound = np.asarray(found.log_left), np.asarray(found.log_bound)
            ratio = np.where(np.isneginf(left), -np.inf, left - np.where(np.isneginf(left), 0.0, bound))
            ratios[kind].append(np.exp(ratio))
            violations += int(np.sum(~(ratio <= ROUNDING)))
            disagreement.append(_against_definition(log_s, gamma, a, np.exp(found.log_left)))
            faintest = min(faintest, float(np.min(np.asarray(found.log_bound)[np.isfinite(found.log_bound)])))
            progress.advance()
    every = {kind: np.concatenate(values) for kind, values in ratios.items()}
    largest = float(np.max([values.max() for values in every.values()]))
    measured = (
        f"{violations} violations in {sum(map(len, every.values())):,} instances, with bounds down to e^{faintest:.0f}. The "
        f"largest ratio of the two sides is {largest:.4f} (two-valued γ and a), so the constant 2 cannot be made smaller; for normal γ "
        f"and a the median is {np.median(every['normal']):.3f}."
    )
    numbers = {
        "violations": float(violations),
        "largest_ratio": largest,
        "definition_disagreement": float(np.max(disagreement)),
    }
    return Finding(measured, numbers, {"ratios": every})


def _values(kind: str, rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    if kind == "normal":
        return rng.normal(size=shape)
    if kind == "heavy-tailed":
        return rng.standard_t(1.5, size=shape)
    signs = np.ones(shape) * rng.choice([-1.0, 1.0], size=(shape[0], 1))  # the first token against all others
    signs[:, 1:] *= -1.0
    flip = rng.random(shape) < 0.2 * rng.integers(0, 2, size=(shape[0], 1))
    return np.where(flip, -signs, signs)


def _against_definition(log_s: np.ndarray, gamma: np.ndarray, a: np.ndarray, left: np.ndarray) -> float:
    """Largest disagreement with the left side formed as it is written, relative to the sums in it, where it does not cancel."""
    s = np.exp(log_s)
    covariance = np.sum(a * s * gamma, axis=-1) - np.sum(a * s, axis=-1) * np.sum(s * gamma, axis=-1)
    first = np.sum((a[:, :1] - a[:, 1:]) * s[:, 1:] * (gamma[:, :1] - gamma[:, 1:]), axis=-1)
    scale = np.max(np.abs(a), axis=-1) * np.max(np.abs(gamma), axis=-1)
    return float(np.max(np.abs(np.abs(covariance - first) - left) / scale))


def draw(finding: Finding) -> dict[str, Figure]:
    """Distribution of left over right."""
    fig, (ax,) = plotting.figure(1, width=6.4, height=3.6)
    bins = np.linspace(0, 1, 51)
    for (kind, ratio), colour in zip(finding.arrays["ratios"].items(), plotting.ACCENTS, strict=False):
        heights, edges = np.histogram(ratio, bins=bins)
        ax.stairs(heights / len(ratio), edges, color=colour, lw=1.8, label=f"{kind} γ and a")
    ax.axvline(1, color=plotting.INK, ls="--", lw=1.2)
    ax.text(0.985, 0.6, "bound", ha="right", va="center", transform=ax.get_xaxis_transform())
    ax.set(xlabel="left side / bound", ylabel="share of instances", yscale="log", xlim=(0, 1.04))
    ax.set_title("How much of the bound is used")
    ax.legend(loc="upper center")
    return {"ratio": fig}
