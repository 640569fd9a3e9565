"""
The cone of a local limit
=========================

Around every locally optimal direction lies a cone in which descent cannot leave that direction (A Thm 3). `basin_cone` computes
its width and the radius from which on it holds; starts outside it may go either way.
"""

import matplotlib.pyplot as plt
import numpy as np

import marginlens as ml

plt.rcParams.update(ml.plotting.STYLE)
N_STARTS = 48
N_STEPS = 2000

# %%
# One input of three tokens: (1, 0) is locally optimal although another token scores higher.
data, v = ml.data.cone_example()
optima = ml.locally_optimal_directions(data, v)
print(optima)

# %%
# The cone of the local direction: all p whose cosine with it is at least 1 - μ, beyond a radius.
row = int(np.flatnonzero(~optima.is_global)[0])
cone = ml.basin_cone(data, v, optima.selections[row])
print(cone)

# %%
# Descent from a circle of starts inside the radius of the proof and from one beyond it.
angles = 2.0 * np.pi * (np.arange(N_STARTS) + 0.5) / N_STARTS
circle = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
radii = (0.3 * cone.proven_radius, 1.0 * cone.proven_radius)
starts = np.concatenate([radius * circle for radius in radii])
step = ml.NormalizedGD(0.02 * cone.proven_radius)
run = ml.descend(data.repeat(len(starts)), v, optimizer=step, n_steps=N_STEPS, start=starts)
reached = run.selected[:, 0] == optima.selections[row, 0]

# %%
# Every start in the cone ends at the local limit. The theorem is cautious: many starts outside do so too.
half = np.arccos(1.0 - cone.mu)
axis = np.arctan2(*optima.directions[row][::-1])
fig, ax = plt.subplots(figsize=(6.4, 4.8), layout="constrained")
rim = 1.25 * cone.proven_radius
edge = axis + np.linspace(-half, half, 50)
outline = np.stack([np.cos(edge), np.sin(edge)], axis=-1)
sector = np.concatenate([cone.proven_radius * outline, 4.0 * rim * outline[::-1]])
ax.fill(*sector.T, color=ml.plotting.TINTS[ml.plotting.LOCAL], label="the cone: certain", zorder=0)
ax.scatter(*starts[reached].T, s=22, color=ml.plotting.LOCAL, label="starts that end at the local limit", zorder=3)
ax.scatter(*starts[~reached].T, s=22, color=ml.plotting.GLOBAL, label="at the global limit", zorder=3)
for direction, is_global in zip(optima.directions, optima.is_global, strict=True):
    ml.plotting.ray(ax, direction, 4.0 * rim, color=ml.plotting.GLOBAL if is_global else ml.plotting.LOCAL)
ax.set(
    xlim=(-1.7 * rim, 1.7 * rim), ylim=(-rim, 1.35 * rim), aspect="equal", title="Inside the cone the limit is certain"
)
ax.set(xlabel="first coordinate of p", ylabel="second coordinate of p")
ax.legend(loc="upper right", frameon=True)
plt.show()
