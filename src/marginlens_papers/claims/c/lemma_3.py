"""C Lemma 3 and Theorem 4: the next-token risk is convex, strictly so on S_cyc, and has no finite critical point."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from marginlens import plotting
from marginlens.data import SequenceDataset
from marginlens.data.random_sequences import cyclic_sequences
from marginlens.dynamics import Record
from marginlens.dynamics.descend import descend
from marginlens.graphs import priority_graphs
from marginlens.graphs.subspace import cyclic_subspace
from marginlens.losses.next_token import LogLoss, NextTokenLoss, SquaredLoss
from marginlens.optimizers import GradientDescent
from marginlens.risk.next_token import gradient_of, nexttoken_hessian, nexttoken_risk
from marginlens.risk.next_token_heads import Head
from marginlens.risk.next_token_smoothness import nexttoken_smoothness
from marginlens.risk.sequence_batch import SequenceBatch
from marginlens.svm.graph import graph_svm
from marginlens_papers.claim import Bound, Effort, Finding, Progress

ID = "C-L3"
LABELS = ("C Lemma 3", "C Thm 4", "C Eq. (24)")
TITLE = "The log-loss is convex in W, strictly on S_cyc, and has no finite critical point"
STATEMENT = (
    "Under the log-loss and C Eᵀ = I the training risk is convex in W and strictly convex on S_cyc. Where W^mm is not zero no finite W has "
    "a zero gradient, and gradient descent with steps up to 1/L diverges."
)
PROTOCOL = (
    "Random cyclic datasets (K from 3 to 6, d from 2 to 5, n from 5 to 15, T = 4). Risks at points between random pairs; spectra of "
    "Hessians from differences of exact gradients, on the whole space and on S_cyc, and against Eq. (24). Controls that must fail: the "
    "squared loss, and the log-loss with the general head c_y = e_y + 2 ē/‖ē‖². Theorem 4: plain descent with η = 1/L for 100,000 "
    "steps (quick: 10,000)."
)
PAPER_VALUE = "–"
EXPECTED = {
    "largest_excess_over_the_chord": Bound(high=1e-13),
    "share_above_the_chord_squared_loss": Bound(low=0.01),
    "share_above_the_chord_general_head": Bound(low=0.001),
    "smallest_eigenvalue": Bound(high=1e-8, low=-1e-8),
    "hessian_against_eq_24": Bound(high=1e-7),
    "smallest_eigenvalue_on_S_cyc": Bound(low=1e-6),
    "norms_that_do_not_grow": Bound(high=0),
    "gradients_that_do_not_shrink": Bound(high=0),
}
SEED = 24
LOG = LogLoss()


def compute(effort: Effort, progress: Progress) -> Finding:
    """Hold chords, spectra and long runs of plain descent against the two statements."""
    count, n_steps = (100, 100_000) if effort is Effort.PAPER else (10, 10_000)
    progress.expect(count + 1)
    found: dict[str, list[Any]] = {
        name: [] for name in ("log", "squared", "general", "whole", "cyclic", "formula", "rank")
    }
    strict: list[SequenceDataset] = []
    for j in range(count):
        rng = np.random.default_rng([SEED, j])
        ds = cyclic_sequences(int(rng.integers(3, 7)), int(rng.integers(2, 6)), int(rng.integers(5, 16)), 4, rng)
        mean = ds.E.mean(axis=0)
        for name, loss, head in (
            ("log", LOG, None),
            ("squared", SquaredLoss(), None),
            ("general", LOG, ds.E + 2.0 * mean / np.sum(mean**2)),
        ):
            found[name].append(_above_chord(ds, rng, head, loss))
        W = rng.normal(size=(ds.d_model, ds.d_model)) * rng.uniform(0.0, 2.0)
        hessian, formula = _hessian(ds, W), nexttoken_hessian(ds, W)
        found["formula"].append(np.abs(hessian - formula).max() / np.abs(formula).max())
        found["whole"].append(np.linalg.eigvalsh(hessian)[0] / np.linalg.norm(hessian, 2))
        basis = cyclic_subspace(ds.E, priority_graphs(ds)).basis.reshape(-1, W.size)
        inside = (W.ravel() @ basis.T) @ basis  # the lemma speaks of points of S_cyc
        there = _hessian(ds, inside.reshape(W.shape))
        found["cyclic"].append(np.linalg.eigvalsh(basis @ there @ basis.T)[0] / np.linalg.norm(there, 2))
        found["rank"].append(len(basis))
        solution = graph_svm(ds.E, priority_graphs(ds)).x
        if np.linalg.norm(solution) > 0.0:
            strict.append(ds)
        progress.advance()
    steps, norms, slopes = _descents(strict[:20], n_steps)
    progress.advance()
    chords = {name: np.concatenate(found[name]) for name in ("log", "squared", "general")}
    numbers = {
        "largest_excess_over_the_chord": float(np.max(chords["log"])),
        "share_above_the_chord_squared_loss": float(np.mean(chords["squared"] > 1e-9)),
        "share_above_the_chord_general_head": float(np.nanmean(chords["general"] > 1e-9)),
        "smallest_eigenvalue": float(np.min(found["whole"])),
        "hessian_against_eq_24": float(np.max(found["formula"])),
        "smallest_eigenvalue_on_S_cyc": float(np.min(found["cyclic"])),
        "norms_that_do_not_grow": float(np.sum(~(np.diff(norms[:, -20:], axis=1) > 0.0))),
        "gradients_that_do_not_shrink": float(np.sum(~(np.diff(slopes[:, -20:], axis=1) < 0.0))),
        "smallest_log_gradient": float(slopes.min()),
        "runs": float(len(norms)),
    }
    above = {name: 100 * numbers[f"share_above_the_chord_{name}"] for name in ("squared_loss", "general_head")}
    measured = (
        f"Of {chords['log'].size:,} points between random pairs {np.sum(~(chords['log'] <= 1e-13))} lie above their chord by more than "
        f"rounding; with the squared loss {above['squared_loss']:.0f}% do, with a general head {above['general_head']:.1f}%. Relative to "
        f"the largest, the smallest eigenvalue is {numbers['smallest_eigenvalue']:.0e} on the whole space and "
        f"{numbers['smallest_eigenvalue_on_S_cyc']:.1e} on S_cyc. In {len(norms)} runs of {n_steps:,} steps the norm grows to "
        f"{norms[:, -1].min():.1f} … {norms[:, -1].max():.1f}, and log ‖∇L‖ falls to {slopes[:, -1].min():.1f} … {slopes[:, -1].max():.1f}."
    )
    arrays = {
        **chords,
        "whole": np.array(found["whole"]),
        "cyclic": np.array(found["cyclic"]),
        "rank": np.array(found["rank"]),
    }
    return Finding(measured, numbers, {**arrays, "steps": steps, "norms": norms, "slopes": slopes})


def _above_chord(ds: SequenceDataset, rng: np.random.Generator, head: Any, loss: NextTokenLoss, count: int = 20) -> Any:
    """L(λ W + (1-λ) V) less the chord, relative to 1 + its ends, for random pairs; nan where a risk is not finite."""
    out = []
    for _ in range(count):
        W, V = rng.normal(size=(2, ds.d_model, ds.d_model)) * 10.0 ** rng.uniform(-1, 1.5)
        share = rng.uniform(0.1, 0.9)
        inner, first, last = (
            nexttoken_risk(ds, one, head=head, loss=loss) for one in (share * W + (1 - share) * V, W, V)
        )
        ends = share * first + (1 - share) * last
        out.append((inner - ends) / (1.0 + abs(first) + abs(last)) if np.isfinite(inner + ends) else np.nan)
    return np.array(out)


def _hessian(ds: SequenceDataset, W: Any, h: float = 2e-4) -> Any:
    """(d², d²) from central differences of exact gradients, extrapolated once; symmetrised."""
    batch, head, size = SequenceBatch.of((ds,)), Head(ds.n_vocabulary), W.size
    out = np.empty((size, size))
    for k, unit in enumerate(np.eye(size).reshape(size, *W.shape)):
        near, far = (
            (
                gradient_of(batch, (W + a * unit)[None], head, LOG).value()
                - gradient_of(batch, (W - a * unit)[None], head, LOG).value()
            )
            / (2 * a)
            for a in (h, 2 * h)
        )
        out[k] = ((4.0 * near - far) / 3.0).ravel()
    return 0.5 * (out + out.T)


def _descents(datasets: list[SequenceDataset], n_steps: int) -> tuple[Any, Any, Any]:
    """Plain descent with η = 1/L: steps kept, norms and log gradient norms (n_runs, n_kept)."""
    steps = np.unique(np.geomspace(1, n_steps, 60).astype(int))
    norms, slopes = [], []
    for ds in datasets:
        record = Record(steps=steps.tolist(), keep=("x", "norm"))
        run = descend(ds, optimizer=GradientDescent(1.0 / nexttoken_smoothness(ds)), n_steps=n_steps, record=record)
        batch, head = SequenceBatch.of((ds,)), Head(ds.n_vocabulary)
        norms.append(run.saved["norm"])
        slopes.append([gradient_of(batch, W[None], head, LOG).log_norm for W in run.saved["x"]])
    return steps, np.array(norms), np.array(slopes)


def draw(finding: Finding) -> dict[str, Figure]:
    """Chords for the log-loss and the two controls, spectra on S_cyc, and the growth of the norm."""
    fig, (left, middle, right) = plotting.figure(3, width=4.4, height=3.8)
    arrays = finding.arrays
    bins = np.linspace(-0.5, 0.3, 65)
    for name, colour, label in (
        ("log", plotting.LOCAL, "log-loss, C Eᵀ = I"),
        ("squared", plotting.ACCENTS[3], "squared loss"),
        ("general", plotting.NEITHER, "log-loss, general head"),
    ):
        heights, edges = np.histogram(np.clip(arrays[name][np.isfinite(arrays[name])], -0.5, 0.3), bins=bins)
        left.stairs(heights / heights.sum(), edges, fill=name == "general", color=colour, lw=2, label=label)
    left.axvline(0.0, color=plotting.INK, ls="--", lw=1.2)
    left.set(xlabel="risk between two points less the chord,\nrelative", ylabel="share of pairs", yscale="log")
    left.set_title("Lemma 3: below the chord")
    left.legend(loc="upper left", fontsize=9)
    jitter = np.random.default_rng(0).uniform(-0.15, 0.15, size=len(arrays["rank"]))
    middle.scatter(arrays["rank"] + jitter, arrays["cyclic"], s=22, color=plotting.GLOBAL, label="on S_cyc")
    middle.scatter(
        arrays["rank"] + jitter,
        np.maximum(np.abs(arrays["whole"]), 1e-18),
        s=22,
        color=plotting.NEITHER,
        label="on all W (modulus)",
    )
    middle.set(
        yscale="log", xlabel="dimension of S_cyc", ylabel="smallest eigenvalue\nover the largest", ylim=(1e-19, 5)
    )
    middle.set_xticks(np.unique(arrays["rank"]).tolist())
    middle.set_title("Strictly convex on S_cyc")
    middle.legend(loc="center right")
    for line in arrays["norms"]:
        right.plot(arrays["steps"], line, color=plotting.PATH, lw=1.2, alpha=0.8)
    right.set(xscale="log", xlabel="steps of plain descent, η = 1/L", ylabel="‖W‖")
    right.set_title("Theorem 4: W diverges")
    return {"convexity": fig}
