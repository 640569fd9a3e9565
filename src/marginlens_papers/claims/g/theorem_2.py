"""G Theorem 2: gradient descent of a next-token decoder keeps log-odds in F, and grows along W^mm orthogonally to it."""

from __future__ import annotations

from typing import Any

import numpy as np

import marginlens as ml
from marginlens.result.palette import ACCENTS
from marginlens.typing import Figure, FloatArray
from marginlens_papers.claim import Claim, Effort, Finding, Progress

SEED = 0
SIZES = {Effort.PAPER: (6, 100_000), Effort.QUICK: (2, 10_000)}  # datasets and steps
FIRST_LOOK, LATE = 100, 30  # steps before curves begin; exponents are fitted from the last step over this on
N_CONTEXTS, WIDTH, N_TOKENS, N_NEXT = 4, 5, 6, 3


def random_contexts(rng: np.random.Generator) -> ml.ContextDataset:
    """Gaussian contexts, more dimensions than contexts, each followed by three of six tokens one to five times."""
    counts = np.zeros((N_CONTEXTS, N_TOKENS))
    for row in counts:
        row[rng.choice(N_TOKENS, N_NEXT, replace=False)] = rng.integers(1, 6, N_NEXT)
    return ml.ContextDataset(rng.standard_normal((N_CONTEXTS, WIDTH)), counts)


class G_T2(Claim):
    labels = ("G Thm 2", "G Lemma 2", "G Def 1", "G NTP-SVM")

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Train on every dataset, and compare the run with the limits of its own data and of data with other supports."""
        n_datasets, n_steps = SIZES[effort]
        runs = [_follow(np.random.default_rng((SEED, k)), n_steps) for k in progress.each(range(n_datasets))]
        late = runs[0]["t"] >= n_steps / LATE
        slopes = {name: [_slope(run["t"][late], run[name][late]) for run in runs] for name in ("distance", "excess")}
        numbers = {
            "worst_exponent_of_distance": max(slopes["distance"], key=lambda slope: abs(slope + 1.0)),
            "worst_exponent_of_excess": max(slopes["excess"], key=lambda slope: abs(slope + 1.0)),
            "largest_final_distance": max(float(run["distance"][-1]) for run in runs),
            "smallest_final_cosine": min(float(run["cosine"][-1]) for run in runs),
            "largest_share_of_the_lack_that_stays": max(_remaining(1.0 - run["cosine"][late]) for run in runs),
            "smallest_growth": min(run["growth"] for run in runs),
            "largest_growth": max(run["growth"] for run in runs),
            "largest_control_cosine": max(run["control_cosine"] for run in runs),
            "smallest_control_distance": min(run["control_distance"] for run in runs),
        }
        measured = (
            f"{n_datasets} datasets, {n_steps:,} steps: distance to W* at most {numbers['largest_final_distance']:.1e}, falling like "
            f"t^{numbers['worst_exponent_of_distance']:.2f}, cross-entropy less entropy like t^{numbers['worst_exponent_of_excess']:.2f}; "
            f"cosine with W^mm at least {numbers['smallest_final_cosine']:.3f}, against at most {numbers['largest_control_cosine']:.3f} "
            f"with that of other supports."
        )
        kept = ("t", "cosine", "distance", "excess")
        return Finding(measured, numbers, {"runs": [{name: run[name] for name in kept} for run in runs]})

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """The three quantities over the steps."""
        figure, axes = ml.plotting.figure(3, width=3.4, height=3.2)
        labels = {
            "cosine": "1 − cosine with $W^{mm}$",
            "distance": "$‖P_F W − W^*‖$",
            "excess": "cross-entropy − entropy",
        }
        for ax, (name, label) in zip(axes, labels.items(), strict=True):
            for run in finding.arrays["runs"]:
                t, values = np.asarray(run["t"]), np.asarray(run[name])
                ax.loglog(t, 1.0 - values if name == "cosine" else values, color=ACCENTS[0], lw=1)
            if name != "cosine":
                first = np.asarray(finding.arrays["runs"][0][name])[0]
                ax.loglog(t, first * t[0] / t, color="0.5", ls="--", lw=1, label="1/t")
                ax.legend()
            ax.set(xlabel="steps", title=label)
        return {"limits": figure}


def _follow(rng: np.random.Generator, n_steps: int) -> dict[str, Any]:
    """One dataset: the distances of a run from zero to each limit, and to those of data with tokens renamed."""
    data = random_contexts(rng)
    risk, priority, finite = ml.ContextRisk(data), ml.ntp_svm(data), ml.nexttoken.finite_part(data)
    t = np.unique(np.geomspace(FIRST_LOOK, n_steps, 25).astype(np.int64))
    steps = ml.GradientDescent(1.0 / risk.smoothness())
    points = ml.descend(risk, optimizer=steps, n_steps=n_steps, record=ml.Record(t.tolist())).saved["x"]
    along = np.tensordot(points, priority.x, axes=2) * priority.margin**2  # multiples of W^mm
    renamed = ml.ContextDataset(data.H, np.roll(data.counts.toarray(), 1, axis=1))
    return {
        "t": t,
        "cosine": np.array([float(ml.correlation(W.ravel(), priority.x.ravel())) for W in points]),
        "distance": np.array([finite.distance(W) for W in points]),
        "excess": risk.excess(points),
        "growth": float(np.polyfit(np.log(t[t >= n_steps / LATE]), along[t >= n_steps / LATE], 1)[0]),
        "control_cosine": float(ml.correlation(points[-1].ravel(), ml.ntp_svm(renamed).x.ravel())),
        "control_distance": ml.nexttoken.finite_part(renamed).distance(points[-1]),
    }


def _remaining(values: FloatArray) -> float:
    """The last of some values over the first."""
    return float(values[-1] / values[0])


def _slope(t: Any, values: Any) -> float:
    return float(np.polyfit(np.log(t), np.log(values), 1)[0])
