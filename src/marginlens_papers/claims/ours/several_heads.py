"""X H1: several heads under one value head each go to the largest margin of the tokens that they select."""

from __future__ import annotations

import numpy as np

import marginlens as ml
from marginlens.data import sphere_tokens
from marginlens.risk import MultiHeadRisk
from marginlens.typing import Figure, FloatArray, IntArray
from marginlens_papers.claim import Bound, Claim, Effort, Finding, Progress, Words

SEED = 70
N_HEADS, START, STEPS, SIZE = 3, 3.0, 20_000, 0.3
JOINT_SIZE = 0.6
EUCLIDEAN = ml.L2()
CHECKED = {
    "smallest_median_share_by_head": (
        Bound(low=0.98),
        "Steps of each head for itself: its share of its own best margin, median",
    ),
    "median_joint_share": (Bound(low=0.95), "Steps of all heads together: share of the best joint margin, median"),
    "largest_median_share_of_control": (
        Bound(high=0.6),
        "Control, the best margin of another head's tokens: share, median",
    ),
    "median_share_in_another_norm": (
        Bound(high=0.9),
        "Control, the same heads in ℓ∞: share of the best margin there, median",
    ),
    "share_that_differ": (Bound(low=0.03), "Inputs on which two heads select different tokens"),
}


class X_H(Claim):
    labels = ("X H1",)
    protocol = (
        f"n = 4 inputs, T = 6 tokens, d = 30, tokens and head v on the sphere, logistic loss; {N_HEADS} heads with weights of their own, "
        f"whose outputs are averaged, from normal weights of standard deviation {START:g}; 12 problems. {STEPS:,} steps of length {SIZE:g} "
        f"of every head (max-row norm), and of length {JOINT_SIZE:g} of all heads together (Frobenius). Share: a head's smallest lead over "
        "its length, over the best such margin for the tokens that it selects; of all heads together, the smallest lead of any of them "
        "over the length of all, over $(Σ_h γ_h^(-2))^(-1/2)$. Controls: the same heads measured in ℓ∞, in which their steps are not "
        "steepest, and compared with the tokens of the next head, if these differ."
    )
    expected = {name: bound for name, (bound, _) in CHECKED.items()}
    words = {name: Words(sentence) for name, (_, sentence) in CHECKED.items()}

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Train the heads apart and together."""
        count, rng = 12 if effort is Effort.PAPER else 4, np.random.default_rng(SEED)
        data, v = sphere_tokens(count, 4, 6, 30, rng)
        risk = MultiHeadRisk(data, v, N_HEADS)
        start = START * rng.normal(size=(count, *risk.shape))
        progress.expect(2)
        apart = ml.descend(risk, optimizer=ml.SteepestDescent(ml.MaxRow(), SIZE), n_steps=STEPS, start=start)
        progress.advance()
        together = ml.descend(
            risk, optimizer=ml.SteepestDescent(ml.Frobenius(), JOINT_SIZE), n_steps=STEPS, start=start
        )
        progress.advance()
        tokens = risk.by_head(apart.selected)  # (count, n_inputs, n_heads)
        own = _shares(data, apart.final, tokens)
        in_another_norm = _shares(data, apart.final, tokens, ml.LInf())
        others = np.roll(tokens, -1, axis=-1)
        differs = np.any(others != tokens, axis=1)
        control = _shares(data, apart.final, others)[differs]
        best = _margins(data, risk.by_head(together.selected))
        leads = risk.token_margins(together.final).min(axis=1)  # (count, n_heads)
        lengths = np.linalg.norm(together.final.reshape(count, -1), axis=1)
        joint = leads.min(axis=1) / lengths * np.sqrt(np.sum(best**-2.0, axis=1))
        numbers = {
            "smallest_median_share_by_head": float(np.median(own, axis=0).min()),
            "median_joint_share": float(np.median(joint)),
            "largest_median_share_of_control": float(np.median(control)) if control.size else np.nan,
            "median_share_in_another_norm": float(np.median(in_another_norm)),
            "share_that_differ": float(np.mean(others != tokens)),
            "smallest_share_by_head": float(own.min()),
            "smallest_joint_share": float(joint.min()),
        }
        sentence = (
            f"Trained each for itself, heads have {numbers['smallest_median_share_by_head']:.4f} of their own best margin or more in the "
            f"median over the problems ({numbers['smallest_share_by_head']:.3f} at least); together {numbers['median_joint_share']:.4f} of "
            f"the best joint margin. Of the best ℓ∞ margin they have {numbers['median_share_in_another_norm']:.2f}. Two heads select "
            f"different tokens on {100 * numbers['share_that_differ']:.0f}% of the inputs, and measured by another head's tokens they "
            f"have {numbers['largest_median_share_of_control']:.2f} of the margin."
        )
        return Finding(sentence, numbers, {"own": own, "in_another_norm": in_another_norm, "joint": joint})

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """Shares of all heads, and of the control."""
        fig, (ax,) = ml.plotting.figure(1)
        groups = {"own tokens": finding.arrays["own"].ravel(), "all heads together": finding.arrays["joint"]}
        groups["the same in ℓ∞"] = finding.arrays["in_another_norm"].ravel()
        for k, shares in enumerate(groups.values()):
            spread = np.linspace(-0.2, 0.2, len(shares)) if len(shares) > 1 else [0.0]
            ax.plot(k + np.asarray(spread), np.sort(shares), "o", ms=4, color=ml.plotting.ACCENTS[k])
        ax.set_xticks(range(len(groups)), list(groups))
        ax.axhline(1.0, color=ml.plotting.INK, lw=1.0)
        ax.set(ylim=(0.0, 1.05), ylabel="share of the best margin", title=f"{N_HEADS} heads under one value head")
        return {"shares": fig}


def _margins(data: ml.TokenDataset, tokens: IntArray, norm: ml.Norm = EUCLIDEAN) -> FloatArray:
    """(count, n_heads) the best margins of the tokens (count, n_inputs, n_heads)."""
    found = [np.asarray(ml.att_svm(data, tokens[..., h], norm=norm).margin) for h in range(tokens.shape[-1])]
    return np.stack(found, axis=-1)


def _shares(data: ml.TokenDataset, points: FloatArray, tokens: IntArray, norm: ml.Norm = EUCLIDEAN) -> FloatArray:
    """(count, n_heads) the smallest lead of these tokens over the norm of each head, over the best."""
    logits = np.einsum("bitd,bhd->biht", data.X, points)
    chosen = np.take_along_axis(logits, tokens[..., None], axis=-1)
    rest = np.where(np.arange(logits.shape[-1]) == tokens[..., None], -np.inf, logits).max(axis=-1)
    norms = np.array([[norm.value(p) for p in heads] for heads in points])
    return (chosen[..., 0] - rest).min(axis=1) / norms / _margins(data, tokens, norm)
