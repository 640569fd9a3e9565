"""
Five optimizers, five limits
============================

One problem of the plane, one start, five rules of steps: each ends at the largest margin in the norm of its own steps (F Thm 1,
on attention). The limit is where the smallest ball of that norm touches the region of margin one.
"""

import matplotlib.pyplot as plt
import numpy as np

import marginlens as ml

plt.rcParams.update(ml.plotting.STYLE)
N_STEPS = 20_000

# %%
# One input whose first token is the best; its key less those of the others is (2, 1), (2.5, 2.5) and (3.6, -.2).
rows = np.array([[2.0, 1.0], [2.5, 2.5], [3.6, -0.2]])
data = ml.TokenDataset(np.concatenate([[[0.0, 0.0]], -rows])[None], [1.0])
risk = ml.AttentionRisk(data, np.array([0.4, 0.3]))

# %%
# Each optimizer from the same start, and the margin problem in its norm.
optimizers = {
    "coordinate, ℓ1": ml.CoordinateDescent(0.02),
    "mirror, ℓ1.5": ml.MirrorDescent(1.5, 0.02, normalized=True),
    "gradient, ℓ2": ml.NormalizedGD(0.02),
    "steepest, ℓ3": ml.SteepestDescent(ml.Lp(3), 0.02),
    "sign, ℓ∞": ml.SignDescent(0.02),
}
start, record = np.array([-0.3, 0.2]), ml.Record(1)
runs = {
    name: ml.descend(risk, optimizer=rule, n_steps=N_STEPS, start=start, record=record)
    for name, rule in optimizers.items()
}
limits = {name: ml.theory.implicit_bias(rule, risk, selected=[0]) for name, rule in optimizers.items()}
for name, limit in limits.items():
    p, norm = runs[name].final, limit.norm
    share = (rows @ p).min() / norm.value(p) / limit.solution.margin
    print(f"{name:14s} attains {share:.4f} of the best margin in its norm")

# %%
# In the shaded region p has margin one. Dots are the limits, solid lines the paths, which end up parallel to the dashed rays.
angle = np.linspace(0.0, 2.0 * np.pi, 801)
circle = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
x, y = np.meshgrid(np.linspace(-0.6, 1.9, 300), np.linspace(-0.6, 1.3, 300))
fig, ax = plt.subplots(figsize=(6.4, 4.8), layout="constrained")
ax.contourf(x, y, (np.stack([x, y], -1) @ rows.T).min(-1), levels=[1.0, 1e9], colors=["#EDE7DA"], zorder=0)
for (name, limit), colour in zip(limits.items(), ml.plotting.ACCENTS, strict=False):
    point = limit.solution.x
    ball = circle * limit.norm.value(point) / np.array([[limit.norm.value(unit)] for unit in circle])
    ax.plot(*ball.T, color=colour, lw=1.0, alpha=0.6)
    ax.plot(*np.outer([1.0, 6.0], point).T, color=colour, lw=1.0, ls="--")
    ax.plot(*runs[name].saved["x"].T, color=colour)
    ax.scatter(*point, color=colour, s=45, zorder=4, label=name)
ml.plotting.starts(ax, start, label="start")
ax.set(
    xlim=(-0.6, 1.9), ylim=(-0.6, 1.3), aspect="equal", title="Each optimizer ends where the ball of its norm touches"
)
ax.set(xlabel="first coordinate of p", ylabel="second coordinate of p")
ax.legend(loc="upper left", frameon=True)
plt.show()
