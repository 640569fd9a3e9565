"""Lemma 1: enough dimensions make the data of next-token prediction separable."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

import marginlens as ml
from marginlens_ntp.contexts import Contexts, ntp_contexts
from marginlens_papers.claim import Bound, Claim, Effort, FigureText, Finding, Paper, Progress, Unit, Words

N_CONTEXTS = 6
N_DRAWS = {Effort.PAPER: 100, Effort.QUICK: 10}
WIDTHS = (2, 3, 4, 5, 6, 7, 8)
CONTROL_WIDTH = 3  # where next to nothing is separable
CONSISTENT_RTOL = 1e-9  # residual up to which equations count as solvable
SEED = 0


class Draw(NamedTuple):
    """What one draw gave: whether it is separable and compatible, and how well the two ways to decide this agree."""

    separable: bool
    compatible: bool
    proof_residual: float  # of the solution, or of the proof that there is none
    least_margin: float  # of the closed-form weights
    norm_ratio: float  # of the shortest weights to the closed-form ones


class NTP_L1(Claim):
    source = Paper(
        "NTP", "Christos Thrampoulidis", "Implicit Optimization Bias of Next-Token Prediction in Linear Models", 2024
    )
    labels = ("NTP Lemma 1",)
    title = "More dimensions than contexts: next-token data are separable"
    statement = (
        "Let m distinct contexts have embeddings $h_j$ in d dimensions. Where d > m and the embeddings have full rank, there are weights "
        "W whose logits are equal among the tokens that follow a context and larger by 1 than those of all other tokens, and weights "
        "whose logits differ by the log-odds of the tokens that follow: the data are separable and compatible."
    )
    protocol = (
        "m = 6 Gaussian contexts, each followed by 3 of 8 tokens; 100 draws for each d from 2 to 8. Two ways: the closed form "
        "$W = L H^+$ with logits L of 1 and 0, and the shortest W by marginlens, with its proof of optimality or of infeasibility. "
        "d = m counts among "
        "the wide ones, since independent contexts are all that the closed form needs. The control is d = 3."
    )
    paper_value = "separable and compatible whenever d > m"
    expected = {
        "separable_share": Bound(low=1.0),
        "compatible_share": Bound(low=1.0),
        "largest_proof_residual": Bound(high=1e-9),
        "least_margin_of_closed_form": Bound(low=1.0 - 1e-9),
        "largest_norm_ratio": Bound(high=1.0 + 1e-9),
        "separable_share_of_control": Bound(high=0.2),
    }
    words = {
        "separable_share": Words("Share of separable draws with d ≥ m", Unit.SHARE),
        "compatible_share": Words("Share of compatible draws with d ≥ m", Unit.SHARE),
        "largest_proof_residual": Words("Largest residual of a solution, or of a proof that there is none"),
        "least_margin_of_closed_form": Words("Smallest margin of the closed form $L H^+$"),
        "largest_norm_ratio": Words("Largest norm of the shortest weights over that of the closed form"),
        "separable_share_of_control": Words("Share of separable draws with d = 3, half of m", Unit.SHARE),
    }
    figures = {
        "separable": FigureText(
            "Share of draws that are separable and compatible, over the dimension d; the line is at d = m.",
            "Two curves over the dimension: both rise from below one half at d = 2 to one; the separable share is one from 6 on.",
        )
    }

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Decide every draw in both ways."""
        draws = {
            d: [
                _decide(ntp_contexts(N_CONTEXTS, d, rng=np.random.default_rng((SEED, d, k))))
                for k in range(N_DRAWS[effort])
            ]
            for d in progress.each(WIDTHS)
        }
        wide = [draw for d in WIDTHS if d >= N_CONTEXTS for draw in draws[d]]
        shares = {d: (_share(row, "separable"), _share(row, "compatible")) for d, row in draws.items()}
        numbers = {
            "separable_share": _share(wide, "separable"),
            "compatible_share": _share(wide, "compatible"),
            "largest_proof_residual": max(draw.proof_residual for row in draws.values() for draw in row),
            "least_margin_of_closed_form": min(draw.least_margin for draw in wide),
            "largest_norm_ratio": max(draw.norm_ratio for draw in wide),
            "separable_share_of_control": shares[CONTROL_WIDTH][0],
        }
        measured = (
            f"{len(wide)} draws with d ≥ m: {numbers['separable_share']:.0%} separable, the shortest weights at most "
            f"{numbers['largest_norm_ratio']:.2f} times as long as the closed form; with d = {CONTROL_WIDTH}, "
            f"{numbers['separable_share_of_control']:.0%} are separable."
        )
        return Finding(measured, numbers, {"d": WIDTHS, "shares": [shares[d] for d in WIDTHS]})

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """The shares over the dimension."""
        figure = Figure(figsize=(6, 3), layout="constrained")
        axes = figure.add_subplot()
        separable, compatible = np.transpose(finding.arrays["shares"])
        axes.plot(finding.arrays["d"], separable, "o-", label="separable")
        axes.plot(finding.arrays["d"], compatible, "s--", label="compatible")
        axes.axvline(N_CONTEXTS, color="grey", lw=1)
        axes.set(xlabel="dimension d", ylabel="share of draws", ylim=(-0.05, 1.05))
        axes.legend()
        return {"separable": figure}


def _decide(contexts: Contexts) -> Draw:
    """Whether a draw is separable and compatible, by a solver with proofs and by the closed form."""
    C, A, odds = contexts.equalities, contexts.margins, contexts.log_odds
    solution = ml.least_distance(A, np.ones(len(A)), equalities=C)
    separable = solution.status is ml.Status.OPTIMAL
    residual = solution.kkt_residual() if separable else solution.certificate_residual()
    fitted = np.linalg.lstsq(C, odds, rcond=None)[0]
    compatible = np.max(np.abs(C @ fitted - odds)) <= CONSISTENT_RTOL * np.max(np.abs(odds))
    closed = _closed_form(contexts).ravel()
    ratio = float(np.linalg.norm(solution.x) / np.linalg.norm(closed)) if separable else np.inf
    return Draw(separable, bool(compatible), float(residual), float(np.min(A @ closed)), ratio)


def _closed_form(contexts: Contexts) -> np.ndarray:
    """W = L H^+, (n_vocabulary, d_model): logits of 1 for tokens that follow a context and 0 for others, where the contexts allow it."""
    logits = np.zeros((contexts.n_vocabulary, len(contexts.H)))
    for j, tokens in enumerate(contexts.support):
        logits[tokens, j] = 1.0
    return logits @ np.linalg.pinv(contexts.H.T)


def _share(draws: list[Draw], name: str) -> float:
    return float(np.mean([getattr(draw, name) for draw in draws]))
