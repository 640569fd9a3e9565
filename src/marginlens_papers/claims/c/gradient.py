"""C Eqs (19) to (23), Lemmas 5 and 6: the gradient of the next-token risk, its smoothness, and where it points."""

from __future__ import annotations

from typing import Any

import numpy as np

import marginlens as ml
from marginlens.data.sequence_generators import acyclic_sequences, cyclic_sequences
from marginlens.typing import Figure
from marginlens_papers.claim import Claim, Effort, Finding, Progress

SEED = 19
STEPS = 100
BEYOND = 8.0  # the control's step, times the inverse of the sharp constant


class C_L(Claim):
    labels = ("C Eq. (19)", "C Eq. (23)", "C Lemma 5", "C Lemma 6")

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Measure the four statements on random datasets."""
        count = 150 if effort is Effort.PAPER else 20
        found: dict[str, list[Any]] = {
            name: [] for name in ("differences", "matrix", "printed", "L", "sharp", "descent", "beyond", "pull")
        }
        for j in progress.each(range(count)):
            rng = np.random.default_rng([SEED, j])
            data = random_sequences(rng)
            W = rng.normal(size=(data.d_model, data.d_model)) * 10.0 ** rng.uniform(-1, 0.7)
            risk = ml.NextTokenRisk(data)
            gradient = risk.gradient(W).value()
            size = np.linalg.norm(gradient)
            found["differences"].append(_off_differences(risk, W, gradient, rng))
            found["matrix"].append(np.linalg.norm(gradient - matrix_form(data, W, others=True)) / size)
            found["printed"].append(np.linalg.norm(gradient - matrix_form(data, W, others=False)) / size)
            L, sharp, slopes = risk.smoothness(), risk.sharp_smoothness(), _slopes(risk, rng)
            found["L"].append(slopes / L)
            found["sharp"].append(slopes / sharp)
            found["descent"].append(_decrease(data, W, 1.0 / L))
            found["beyond"].append(_decrease(data, W, BEYOND / sharp))
            found["pull"].append(_pull(rng))
        arrays = {name: np.concatenate([np.atleast_1d(value) for value in values]) for name, values in found.items()}
        numbers = {
            "gradient_against_differences": float(arrays["differences"].max()),
            "gradient_against_matrix_form": float(arrays["matrix"].max()),
            "printed_form_of_eq_19": float(arrays["printed"].min()),
            "largest_share_of_L": float(arrays["L"].max()),
            "largest_share_of_sharp_L": float(arrays["sharp"].max()),
            "lemma_5_smallest_ratio": float(arrays["descent"].min()),
            "lemma_5_smallest_ratio_beyond": float(arrays["beyond"].min()),
            "lemma_6_violations": float(np.sum(~(arrays["pull"] > 0.0))),
            "lemma_6_smallest_cosine": float(arrays["pull"].min()),
            "pairs": float(arrays["L"].size),
        }
        measured = (
            f"On {count} datasets the formula agrees with differences of the risk to {numbers['gradient_against_differences']:.0e} and "
            f"with the matrix form to {numbers['gradient_against_matrix_form']:.0e}. Slopes between {arrays['L'].size:,} pairs reach "
            f"{numbers['largest_share_of_L']:.3f} L at most (median {np.median(arrays['L']):.4f}) and "
            f"{numbers['largest_share_of_sharp_L']:.4f} of our sharper constant. With η = 1/L each of {arrays['descent'].size:,} steps "
            f"lowers the risk by at least {numbers['lemma_5_smallest_ratio']:.3f} times what Lemma 5 promises; with η eight times the "
            f"inverse of the sharper constant {100 * np.mean(arrays['beyond'] < 1.0):.0f}% do not. Lemma 6: "
            f"{numbers['lemma_6_violations']:.0f} violations in {arrays['pull'].size:,}, smallest cosine "
            f"{numbers['lemma_6_smallest_cosine']:.1e}."
        )
        note = (
            "The last line of Eq. (19) prints the sum over $O_i$, which is zero; the line after it has the right set. Eq. (21) bounds "
            "$‖X_i‖$ by $‖E‖$, which repeated tokens break, but L holds with room to spare: the curvature is at most $‖E‖⁴/2$, so L is at "
            "least 4 $√T_max$ times too large. The proof of Lemma 6 writes −1, but the constraint only gives at most −1."
        )
        return Finding(measured, numbers, arrays, note)

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """How much of the Lipschitz constants is used, how much of Lemma 5's promise, and the cosines of Lemma 6."""
        fig, (left, middle, right) = ml.plotting.figure(3, width=4.4, height=3.8)
        arrays = finding.arrays
        bins = np.geomspace(1e-5, 2.0, 61).tolist()
        for name, colour, label in (
            ("L", ml.plotting.LOCAL, "L of Eq. (23)"),
            ("sharp", ml.plotting.GLOBAL, "sharper L"),
        ):
            left.hist(np.maximum(arrays[name], 1e-5), bins=bins, histtype="step", lw=2, color=colour, label=label)
        left.axvline(1.0, color=ml.plotting.INK, ls="--", lw=1.2)
        left.set(xscale="log", xlabel="slope of ∇L between two points,\nover the constant", ylabel="pairs of points")
        left.set_title("Eq. (23): never reached")
        left.legend(loc="upper left")
        for name, colour, label in (
            ("beyond", ml.plotting.NEITHER, "η = 8/sharper L"),
            ("descent", ml.plotting.LOCAL, "η = 1/L"),
        ):
            values = np.clip(arrays[name], -0.5, 2.1)
            fill = name == "beyond"
            heights, edges = np.histogram(values, bins=np.linspace(-0.5, 2.1, 53))
            middle.stairs(heights / heights.sum(), edges, fill=fill, color=colour, lw=2, label=label)
        middle.axvline(1.0, color=ml.plotting.INK, ls="--", lw=1.2)
        middle.set(xlabel="decrease of the risk over η/2 ‖∇L‖²", ylabel="share of steps", yscale="log", ylim=(1e-4, 9))
        middle.set_title("Lemma 5")
        middle.legend(loc="upper left")
        right.hist(arrays["pull"], bins=np.linspace(-1.0, 1.0, 61).tolist(), color=ml.plotting.GLOBAL)
        right.axvline(0.0, color=ml.plotting.INK, ls="--", lw=1.2)
        right.set(xlabel=r"cosine of −∇L with $W^{\rm mm}$", ylabel="gradients", xticks=[-1.0, -0.5, 0.0, 0.5, 1.0])
        right.set_title("Lemma 6")
        return {"smoothness": fig}


def random_sequences(rng: np.random.Generator) -> ml.SequenceDataset:
    """A dataset with embeddings of any length, sequences of one to seven tokens, repeated ones too, and labels among them."""
    K, d, n = (int(rng.integers(2, 9)) for _ in range(3))
    sequences = [rng.integers(K, size=int(rng.integers(1, 8))) for _ in range(n)] + [np.array([0, 1, 1])]
    labels = [int(rng.choice(sequence)) for sequence in sequences]
    return ml.SequenceDataset(sequences, labels, rng.normal(size=(K, d)) / np.sqrt(d))


def matrix_form(data: ml.SequenceDataset, W: Any, *, others: bool) -> Any:
    """Eq. (19) at W: its second line, -1/(γᵀs) Xᵀ (diag s - s sᵀ) γ x̄ᵀ, if `others`; else its last line as printed."""
    total = np.zeros((data.d_model, data.d_model))
    for i in range(len(data)):
        ids, y = data[i]
        X, last = data.E[ids], data.E[data.last[i]]
        logits = X @ W @ last
        s = np.exp(logits - logits.max())
        s /= s.sum()
        gamma = (ids == y).astype(np.float64)
        if others:
            total -= np.outer(X.T @ ((np.diag(s) - np.outer(s, s)) @ gamma) / (gamma @ s), last)
        else:
            total += np.outer((X - data.E[y]).T @ (s * gamma), last)
    return total / len(data)


def _off_differences(risk: ml.NextTokenRisk, W: Any, gradient: Any, rng: np.random.Generator, h: float = 1e-3) -> Any:
    """How far the gradient is from central differences of the risk, extrapolated once, along random directions; relative."""
    off = []
    for along in rng.normal(size=(6, *W.shape)):
        along /= np.linalg.norm(along)
        near, far = ((risk.value(W + step * along) - risk.value(W - step * along)) / (2 * step) for step in (h, 2 * h))
        off.append(abs((4.0 * near - far) / 3.0 - np.sum(gradient * along)) / np.linalg.norm(gradient))
    return np.array(off)


def _slopes(risk: ml.NextTokenRisk, rng: np.random.Generator, count: int = 6) -> Any:
    """‖∇L(W) - ∇L(V)‖/‖W - V‖ for random pairs, every other one along the direction of largest curvature between them."""
    found = []

    def slope(W: Any, along: Any) -> Any:
        return (risk.gradient(W + along).value() - risk.gradient(W).value()) / np.linalg.norm(along)

    for k in range(count):
        W, along = rng.normal(size=risk.shape) * 10.0 ** rng.uniform(-2, 1), rng.normal(size=risk.shape)
        if k % 2:
            for _ in range(5):  # power iteration
                along = slope(W, 1e-4 * along / np.linalg.norm(along))
        along *= 10.0 ** rng.uniform(-3, -1 if k % 2 else 2) / np.linalg.norm(along)
        found.append(np.linalg.norm(slope(W, along)))
    return np.array(found)


def _decrease(data: ml.SequenceDataset, W: Any, eta: float) -> Any:
    """(L(τ) - L(τ+1)) / (η/2 ‖∇L‖²) along plain descent, at steps whose decrease is clearly more than rounding."""
    run = ml.descend(
        data, optimizer=ml.GradientDescent(eta), n_steps=STEPS, start=W, record=ml.Record(steps=1, keep=("x", "risk"))
    )
    risks, points = run.saved["risk"], run.saved["x"]
    promised = np.sum(np.diff(points, axis=0) ** 2, axis=(1, 2)) / (2.0 * eta)  # W(τ+1) - W(τ) = -η ∇L
    clear = ~(promised <= 1e-10 * (1.0 + np.abs(risks[:-1])))
    return -np.diff(risks)[clear] / promised[clear]


def _pull(rng: np.random.Generator, count: int = 10) -> Any:
    """Cosines of -∇L with W^mm at random points."""
    acyclic = bool(rng.integers(2))
    data = (acyclic_sequences if acyclic else cyclic_sequences)(6, 8, 4, 4, rng)
    solution = ml.graph_svm(data.E, ml.priority_graphs(data)).x
    size = float(np.linalg.norm(solution))
    if not size > 0.0:  # nothing is strict, or nothing separates
        return np.empty(0)
    risk, found = ml.NextTokenRisk(data), []
    for _ in range(count):
        W = rng.normal(size=solution.shape) * 10.0 ** rng.uniform(-2, 4 if acyclic else 1) / 8
        slope = risk.gradient(W).array
        found.append(-np.sum(slope * solution) / (size * np.linalg.norm(slope)))
    return np.array(found)
