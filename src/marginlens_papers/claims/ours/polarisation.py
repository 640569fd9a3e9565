"""X Thm 3: trained with its head on one input of orthogonal tokens, attention ends at the token that scores highest at the start."""

from __future__ import annotations

from typing import Any

import numpy as np

import marginlens as ml
from marginlens.theory.bias_table import ON_BOTH
from marginlens.typing import Figure, FloatArray
from marginlens_papers.claim import Claim, Effort, Finding, Progress, Run

SEED = 71
N_TOKENS = 8
HEAD = 0.1  # spread of the head at the start
STEP, N_STEPS = 0.1, 1000
SAVED = tuple(sorted({round(float(k)) for k in np.geomspace(1, N_STEPS, 25)}))
PREDICTED = "start of the theorem"
CONTROLS = {"attention starts anywhere": 1.0, "tokens are not orthogonal": 0.0}  # by the spread of p(0)


class X_V(Claim):
    labels = ("X Thm 3",)
    runs = (Run(ON_BOTH, ml.GradientDescent(STEP)),)

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Train head and attention on random orthogonal tokens, and on two kinds of problems that the theorem leaves out."""
        count = 2000 if effort is Effort.PAPER else 100
        rng = np.random.default_rng(SEED)
        progress.expect(1 + len(CONTROLS))
        found = {PREDICTED: _trained(_orthogonal(count, rng), 0.0, rng)}
        progress.advance()
        for name, spread in CONTROLS.items():
            data = _orthogonal(count, rng) if spread else _gaussian(count, rng)
            found[name] = _trained(data, spread, rng)
            progress.advance()
        run = found[PREDICTED]
        shares = {name: float(np.mean(each["ends"] == each["best"])) for name, each in found.items()}
        numbers = {
            "share_at_the_token_of_the_highest_score": shares[PREDICTED],
            "share_that_keep_the_order_of_all_tokens": float(np.mean(run["ordered"])),
            "largest_loss_of_a_lead": float(np.max(-np.diff(run["lead"], axis=1), initial=0.0)),
            "median_entropy_at_the_end": float(np.median(run["entropy"][:, -1])),
            "share_from_any_attention": shares["attention starts anywhere"],
            "share_of_tokens_that_are_not_orthogonal": shares["tokens are not orthogonal"],
        }
        measured = (
            f"{int(np.sum(run['ends'] == run['best']))} of {count} runs end at the token that scores highest at the start, and "
            f"{int(np.sum(run['ordered']))} keep the order of all {N_TOKENS} tokens. The median entropy falls from {np.log(N_TOKENS):.2f} "
            f"to {numbers['median_entropy_at_the_end']:.1g}, and no lead of the winner's logit ever shrinks. If attention starts anywhere, "
            f"{100 * numbers['share_from_any_attention']:.0f}% end at that token, and "
            f"{100 * numbers['share_of_tokens_that_are_not_orthogonal']:.0f}% if tokens and keys are not orthogonal."
        )
        return Finding(measured, numbers, {"found": found, "shares": shares})

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """The entropy of attention over the steps, and how often the token of the highest score wins."""
        figure, (left, right) = ml.plotting.figure(2, width=5.4, height=4.0)
        entropy = finding.arrays["found"][PREDICTED]["entropy"]
        left.plot(SAVED, entropy[:60].T, color=ml.plotting.LOCAL, lw=0.8, alpha=0.5)
        left.plot(SAVED, np.median(entropy, axis=0), color=ml.plotting.INK, lw=2.0)
        left.set(xscale="log", xlabel="step", ylabel="entropy of attention (nats)", title="Attention polarises")
        shares = finding.arrays["shares"]
        right.barh(list(shares)[::-1], list(shares.values())[::-1], color=ml.plotting.GLOBAL, height=0.55)
        for k, share in enumerate(list(shares.values())[::-1]):
            right.text(share + 0.02, k, f"{100 * share:.1f}%", va="center")
        right.set(xlim=(0.0, 1.2), xlabel="runs that end at the token of the highest score")
        right.set_title("Who wins can be read off the head")
        return {"winners": figure}


def _orthogonal(count: int, rng: np.random.Generator) -> ml.TokenDataset:
    """Inputs whose tokens, and whose keys, are random rotations of the unit vectors, with random labels."""
    X, K = (np.linalg.qr(rng.standard_normal((count, N_TOKENS, N_TOKENS)))[0] for _ in range(2))
    return ml.TokenDataset(X[:, None], rng.choice([-1.0, 1.0], (count, 1)), K=K[:, None])


def _gaussian(count: int, rng: np.random.Generator) -> ml.TokenDataset:
    """Inputs of random tokens and keys of about the same length."""
    X, K = (rng.standard_normal((count, 1, N_TOKENS, N_TOKENS)) / np.sqrt(N_TOKENS) for _ in range(2))
    return ml.TokenDataset(X, rng.choice([-1.0, 1.0], (count, 1)), K=K)


def _trained(data: ml.TokenDataset, spread: float, rng: np.random.Generator) -> dict[str, Any]:
    """Runs from small random heads: the best token at the start, where each ends, entropies and leads at the saved steps."""
    count = len(data)
    v, p = HEAD * rng.standard_normal((count, N_TOKENS)), spread * rng.standard_normal((count, N_TOKENS))
    risk = ml.JointRisk(data, ml.CorrelationLoss())
    steps = ml.GradientDescent(STEP)
    run = ml.descend(risk, optimizer=steps, n_steps=N_STEPS, start=(v, p), record=ml.Record(list(SAVED)))
    scores = data.scores(v)[:, 0]
    best = np.argmax(scores, axis=-1)
    logits = np.einsum("btd,bsd->bst", data.K[:, 0], risk.split(run.saved["x"]).p)
    others = np.arange(N_TOKENS) != best[:, None]
    lead = np.min(
        np.where(others[:, None], np.take_along_axis(logits, best[:, None, None], -1) - logits, np.inf), axis=-1
    )
    return {
        "best": best,
        "ends": run.selected[:, 0],
        "ordered": np.all(np.argsort(logits[:, -1], axis=-1) == np.argsort(scores, axis=-1), axis=-1),
        "entropy": _entropy(logits),
        "lead": lead,
    }


def _entropy(logits: FloatArray) -> FloatArray:
    """Of the softmax over the last axis, in nats."""
    logits = logits - np.max(logits, axis=-1, keepdims=True)
    total = np.sum(np.exp(logits), axis=-1)
    return np.asarray(np.log(total) - np.sum(np.exp(logits) * logits, axis=-1) / total)
