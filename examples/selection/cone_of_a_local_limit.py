"""
The cone of a local limit
=========================

Around every locally optimal direction lies a cone from which descent ends at that direction (A Thm 3). `basin_cone` computes its width
and the radius from which on it is proved. Here starts fill the cone and a circle around it, and every one in the cone is followed.

`Open its problem in the lab <../../lab/index.html#A-F2>`_
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
# Descent from a circle of starts within the radius of the proof, from one at that radius, and from three arcs inside the cone, from border
# to border. The theorem is about plain gradient descent; normalised steps are the same descent at a visible speed.
half, axis = np.arccos(1.0 - cone.mu), np.arctan2(*optima.directions[row][::-1])
angles = 2.0 * np.pi * (np.arange(N_STARTS) + 0.5) / N_STARTS
across = axis + np.linspace(-0.99 * half, 0.99 * half, N_STARTS // 4)
places = [(0.3, angles), (1.0, angles), (1.2, across), (1.5, across), (1.8, across)]
starts = cone.proven_radius * np.concatenate(
    [radius * np.stack([np.cos(turn), np.sin(turn)], axis=-1) for radius, turn in places]
)
step = ml.NormalizedGD(0.02 * cone.proven_radius)
run = ml.descend(data.repeat(len(starts)), v, optimizer=step, n_steps=N_STEPS, start=starts)
reached = run.selected[:, 0] == optima.selections[row, 0]

# %%
# Every start in the cone ends at the local limit. The theorem is cautious: many starts outside do so too.
cosines = ml.correlation(starts, optima.directions[row])
inside = (cosines >= 1.0 - cone.mu) & (np.linalg.norm(starts, axis=-1) >= cone.proven_radius)
print(f"{reached[inside].sum()} of {inside.sum()} starts in the cone end at the local limit")
print(f"{reached[~inside].sum()} of {(~inside).sum()} outside it do")
fig, ax = plt.subplots(figsize=(6.4, 4.8), layout="constrained")
rim = 1.25 * cone.proven_radius
edge = axis + np.linspace(-half, half, 50)
outline = np.stack([np.cos(edge), np.sin(edge)], axis=-1)
sector = np.concatenate([cone.proven_radius * outline, 4.0 * rim * outline[::-1]])
ax.fill(*sector.T, color=ml.plotting.TINTS[ml.plotting.LOCAL], label="the cone of the theorem", zorder=0)
ax.scatter(*starts[reached].T, s=22, color=ml.plotting.LOCAL, label="starts that end at the local limit", zorder=3)
ax.scatter(*starts[~reached].T, s=22, color=ml.plotting.GLOBAL, label="at the global limit", zorder=3)
for direction, is_global in zip(optima.directions, optima.is_global, strict=True):
    ml.plotting.ray(ax, direction, 4.0 * rim, color=ml.plotting.GLOBAL if is_global else ml.plotting.LOCAL)
ax.set(
    xlim=(-1.7 * rim, 1.7 * rim),
    ylim=(-rim, 1.35 * rim),
    aspect="equal",
    title="All starts in the cone end at its axis",
)
ax.set(xlabel="first coordinate of p", ylabel="second coordinate of p")
ax.legend(loc="upper right", frameon=True)
plt.show()
