"""F Thm 1, on attention: one problem of the plane, five optimizers, and five limits, each the largest margin in a norm of its own.

Usage: python examples/optimizers/five_optimizers_five_limits.py [PICTURE.png]
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import marginlens as ml

# Data: one input whose first token is the best; its keys less those of the others are (2, 1), (2.5, 2.5) and (3.6, -.2).
rows = np.array([[2.0, 1.0], [2.5, 2.5], [3.6, -0.2]])
data = ml.TokenDataset(np.concatenate([[[0.0, 0.0]], -rows])[None], [1.0])
risk = ml.AttentionRisk(data, np.array([0.4, 0.3]))

# Solve: each optimizer from the same start, and the margin problem in its norm.
optimizers = {
    "coordinate, ℓ1": ml.CoordinateDescent(0.02),
    "mirror, ℓ1.5": ml.MirrorDescent(1.5, 0.02, normalized=True),
    "gradient, ℓ2": ml.NormalizedGD(0.02),
    "steepest, ℓ3": ml.SteepestDescent(ml.Lp(3), 0.02),
    "sign, ℓ∞": ml.SignDescent(0.02),
}
start, record = np.array([-0.3, 0.2]), ml.Record(1)
runs = {
    name: ml.descend(risk, optimizer=rule, n_steps=20_000, start=start, record=record)
    for name, rule in optimizers.items()
}
limits = {name: ml.theory.implicit_bias(rule, risk, selected=[0]) for name, rule in optimizers.items()}

# Look: the share of the best margin, and the picture: where p has margin one, and the smallest ball of each norm that reaches it.
figure = Figure(figsize=(7.0, 6.0), layout="constrained")
axes = figure.add_subplot()
angle = np.linspace(0.0, 2.0 * np.pi, 2001)
circle = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
for name, colour in zip(runs, ("#C4420F", "#B07A00", "#1E7A46", "#0F6FB4", "#7A3FA0"), strict=True):
    norm, solution, path = limits[name].norm, limits[name].solution, runs[name].saved["x"]
    share = (rows @ path[-1]).min() / norm.value(path[-1]) / solution.margin
    print(f"{name:14s} limit {np.round(solution.x, 3)}, share of its best margin {share:.4f}")
    ball = circle * norm.value(solution.x) / np.array([[norm.value(point)] for point in circle])
    axes.plot(*ball.T, color=colour, lw=1.0, alpha=0.6)
    axes.plot(*np.outer([1.0, 6.0], solution.x).T, color=colour, lw=1.0, ls="--")
    axes.plot(*path.T, color=colour, lw=2.0)
    axes.scatter(*solution.x, color=colour, s=45, zorder=4, label=name)
x, y = np.meshgrid(np.linspace(-0.6, 1.9, 400), np.linspace(-0.6, 1.5, 400))
axes.contourf(x, y, (np.stack([x, y], -1) @ rows.T).min(-1), levels=[1.0, 1e9], colors=["#EDE7DA"], zorder=0)
axes.scatter(*start, color="white", edgecolor="black", s=45, zorder=4, label="start")
axes.set(xlim=(-0.6, 1.9), ylim=(-0.6, 1.5), aspect="equal", title="Five optimizers, five limits")
axes.set(xlabel="first coordinate of p", ylabel="second coordinate of p")
axes.legend(loc="upper left", fontsize=9)
place = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp()) / "five_limits.png"
figure.savefig(place, dpi=150)
print(f"The picture is at {place}")

# What to notice: nothing but the rule of the steps differs, and each run ends where the ball of its own norm touches the region.
