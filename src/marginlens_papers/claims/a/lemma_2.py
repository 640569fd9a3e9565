"""A Lemmas 2 and 11: with positive labels and a head in the range of Wᵀ, the optimal tokens can be separated."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from marginlens import plotting
from marginlens.data import TokenDataset
from marginlens.svm import Status, att_svm
from marginlens.theory import constructive_separator
from marginlens_papers.claim import Bound, Effort, Finding, Progress

ID = "A-L2"
LABELS = ("A Lemma 2", "A Lemma 11", "A ATT-SVM")
TITLE = "When all labels are +1, the optimal tokens are separable, by a direction read off the head"
STATEMENT = (
    "If every label is +1, every optimal token is strictly best and v lies in the range of Wᵀ (any v, if W has full rank), then "
    "ATT-SVM is feasible for the optimal tokens, and p = (Wᵀ)⁺v divided by the smallest score gap satisfies it."
)
PROTOCOL = (
    "Random tokens, n from 1 to 12, T from 2 to 10, d from 2 to 20; W = I, random of full rank, random of rank about d/2 with v in "
    "its range, and d_key ≠ d. The constructed point's smallest margin is recomputed and ATT-SVM solved. Controls break one condition "
    "at a time: random labels, or a head outside the range of a low-rank W."
)
PAPER_VALUE = "–"
EXPECTED = {
    "smallest_margin": Bound(low=1 - 1e-9),
    "infeasible": Bound(high=0),
    "shortest_exceeds_constructed": Bound(high=0),
    "infeasible_share_with_random_labels": Bound(low=0.05),
    "infeasible_share_with_head_outside": Bound(low=0.05),
}
SEED = 2


def compute(effort: Effort, progress: Progress) -> Finding:
    """Construct, verify and solve; then break the conditions."""
    problems = 600 if effort is Effort.PAPER else 60
    progress.expect(problems)
    margins, lengths, infeasible, longer = [], [], 0, 0
    broken = {"labels": [0, 0], "head": [0, 0]}
    for j in range(problems):
        rng = np.random.default_rng([SEED, j])
        n, T, d = int(rng.integers(1, 13)), int(rng.integers(2, 11)), int(rng.integers(2, 21))
        X, W, v = rng.normal(size=(n, T, d)), *_weights(j % 4, d, rng)
        data = TokenDataset(X, np.ones(n), W=W)
        found = constructive_separator(data, v)
        solution = att_svm(data, data.optimal(v))
        margins.append(found.margin)
        infeasible += solution.status is not Status.OPTIMAL
        longer += bool(np.linalg.norm(solution.x) > np.linalg.norm(found.p) * (1 + 1e-9))
        lengths.append(float(np.linalg.norm(found.p) / np.linalg.norm(solution.x)))
        labels = rng.choice([-1.0, 1.0], size=n)
        _count(broken["labels"], TokenDataset(X, labels, W=W), v)
        if j % 4 == 2:
            _count(broken["head"], data, rng.normal(size=d))
        progress.advance()
    shares = {name: bad / total for name, (bad, total) in broken.items()}
    measured = (
        f"Smallest margin of the constructed point {min(margins):.12f} over {problems} problems, {infeasible} infeasible. It is longer "
        f"than the max-margin solution by a median factor of {np.median(lengths):.1f}. With random labels "
        f"{100 * shares['labels']:.0f}% are infeasible, and with a head outside the range of a low-rank W "
        f"{100 * shares['head']:.0f}%: both conditions matter."
    )
    numbers = {
        "smallest_margin": float(np.min(margins)),
        "infeasible": float(infeasible),
        "shortest_exceeds_constructed": float(longer),
        "infeasible_share_with_random_labels": shares["labels"],
        "infeasible_share_with_head_outside": shares["head"],
        "median_length_ratio": float(np.median(lengths)),
    }
    return Finding(measured, numbers, {"margins": np.array(margins), "lengths": np.array(lengths)})


def _weights(kind: int, d: int, rng: np.random.Generator) -> tuple[Any, Any]:
    """A key-query matrix of one of four kinds and a head in the range of its transpose."""
    if kind == 0:
        return np.eye(d), rng.normal(size=d)
    if kind == 1:
        return rng.normal(size=(d, d)), rng.normal(size=d)
    rank = max(1, d // 2)
    rows = d if kind == 2 else int(rng.integers(1, d + 4))
    W = rng.normal(size=(rows, min(rank, rows))) @ rng.normal(size=(min(rank, rows), d))
    return W, W.T @ rng.normal(size=rows)


def _count(tally: list[int], data: TokenDataset, v: Any) -> None:
    tally[0] += att_svm(data, data.optimal(v)).status is Status.INFEASIBLE
    tally[1] += 1


def draw(finding: Finding) -> dict[str, Figure]:
    """How much longer the constructed separator is than the shortest one."""
    fig, (ax,) = plotting.figure(1, width=6.0, height=3.6)
    lengths = finding.arrays["lengths"]
    bins = np.geomspace(1, max(10.0, float(lengths.max()) * 1.01), 40)
    ax.hist(lengths, bins=bins.tolist(), color=plotting.LOCAL, weights=np.full(len(lengths), 1 / len(lengths)))
    ax.axvline(1, color=plotting.INK, ls="--", lw=1.2)
    ax.set(xscale="log", xlabel="‖constructed p‖ / ‖max-margin p‖", ylabel="share of problems")
    ax.set_title("The constructed separator exists always, but is not the shortest")
    return {"length": fig}
