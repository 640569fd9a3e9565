"""
Two starts, two limits
======================

A problem can have several locally optimal directions (A Fig 1b). The start decides which one descent takes, and a token with the second
best score can win for ever. Here the plane of starts is coloured by where each start ends.

`Open its problem in the lab <../../lab/index.html#A-F1b>`_
"""

import matplotlib.pyplot as plt
import numpy as np

import marginlens as ml

plt.rcParams.update(ml.plotting.STYLE)
N_STEPS = 10_000
GRID = 61

# %%
# Three tokens: (-.1, 1) with score 1, (1, 0) with score .9 and (0, 0) with score 0.
data, v = ml.data.figure_1b()
optima = ml.locally_optimal_directions(data, v)
print(optima)

# %%
# Descent from a whole grid of starts is one call: a batch of the same problem. It is enough to ask which token a run selects.
x, y = np.meshgrid(np.linspace(-2.0, 3.0, GRID), np.linspace(-2.0, 2.0, GRID))
grid = np.stack([x.ravel(), y.ravel()], axis=-1)
ends = ml.descend(data.repeat(len(grid)), v, optimizer=ml.NormalizedGD(0.1), n_steps=500, start=grid).selected[:, 0]

# %%
# Six starts on a line are followed to the end.
starts = np.array([(0.0, height) for height in (1.0, 0.5, 0.0, -0.5, -1.0, -1.5)])
many = data.repeat(len(starts))
run = ml.descend(many, v, optimizer=ml.NormalizedGD(0.1), n_steps=N_STEPS, start=starts, record=ml.Record(1))
limits = ml.att_svm(many, run.selected).x
print("cosines with the max-margin directions:", np.round(ml.correlation(run.final, limits), 4))

# %%
# The lower starts end at the token with score .9: it beats its neighbours, which is enough.
colours = np.where(optima.is_global, ml.plotting.GLOBAL, ml.plotting.LOCAL)
fig, ax = plt.subplots(figsize=(6.4, 4.8), layout="constrained")
tints = [ml.plotting.TINTS[ml.plotting.GLOBAL], ml.plotting.TINTS[ml.plotting.LOCAL]]
ax.contourf(x, y, ends.reshape(x.shape), levels=[-0.5, 0.5, 1.5], colors=tints)
for direction, is_global, colour in zip(optima.directions, optima.is_global, colours, strict=True):
    ml.plotting.ray(ax, direction, 4.0, color=colour, label="global limit" if is_global else "local limit")
for path in run.saved["x"]:
    ml.plotting.arrowed_path(ax, path[:40])
ml.plotting.starts(ax, starts)
ml.plotting.scatter_input_tokens(ax, data.K[0], data.scores(v)[0], ml.plotting.INK, 50.0)
ax.set(xlim=(-2.0, 3.0), ylim=(-2.0, 2.0), aspect="equal", title="The start decides which token wins")
ax.set(xlabel="first coordinate of p", ylabel="second coordinate of p")
ax.text(-1.9, 0.2, "from here to the token\nwith score 1", color=ml.plotting.GLOBAL)
ax.text(0.9, -1.8, "from here to the token\nwith score .9", color=ml.plotting.LOCAL)
ax.legend(loc="upper right", frameon=True)
plt.show()
