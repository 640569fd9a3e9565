"""
Predict the limit, then train
=============================

Softmax attention trained by gradient descent ends at a max-margin direction, but a problem can have several.
From a start inside the cone around a locally optimal direction the limit is certain (A Thm 3): every condition is checked before
the first step, and the answer is a direction that proves itself.

`Open its problem in the lab <../../lab/index.html#A-F8>`_
"""

import matplotlib.pyplot as plt
import numpy as np

import marginlens as ml

plt.rcParams.update(ml.plotting.STYLE)
N_STEPS = 200_000

# %%
# Two inputs of two tokens in the plane. Token 0 of each scores 1, token 1 scores 0.
# Two directions are locally optimal: the global one, and one that misses the best token of the second input.
data, v = ml.data.figure_8()
ml.locally_optimal_directions(data, v)

# %%
# Around the second one lies a cone. We start near its edge, beyond the radius from which the proof holds.
local = ml.token_optimality(data, v, [0, 1])
cone = ml.basin_cone(data, v, local.selected)
tilt = np.arccos(1.0 - 0.9 * cone.mu)
across = np.array([-local.direction[1], local.direction[0]])
start = 1.1 * cone.proven_radius * (np.cos(tilt) * local.direction + np.sin(tilt) * across)

# %%
# Which theorem applies from there?
prediction = ml.predict_limit(data, v, start=start)
print(prediction.verdicts[2])
print(prediction.why)

# %%
# So far out a plain step has the length :math:`e^{-\text{margin}\cdot\|p\|}`; normalised steps show the same descent at a visible speed.
record = ml.Record(ml.plotting.recorded_steps(N_STEPS))
run = ml.descend(data, v, optimizer=ml.NormalizedGD(1.0), n_steps=N_STEPS, start=start, record=record)
cosine = ml.correlation(run.final, prediction.direction)
print(f"selects {run.selected}, cosine with the prediction {cosine:.6f}")

# %%
# The angle to the predicted direction falls over the whole run, while the other locally optimal direction stays far away.
other = ml.locally_optimal_directions(data, v).directions
other = other[np.argmin(ml.correlation(other, prediction.direction))]
steps = run.saved.steps + 1
fig, ax = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
ax.plot(steps, np.degrees(ml.angle(run.saved["x"], other)), color=ml.plotting.GLOBAL, label="to the global direction")
ax.plot(
    steps,
    np.degrees(ml.angle(run.saved["x"], prediction.direction)),
    color=ml.plotting.LOCAL,
    label="to the predicted, local direction",
)
ax.set(
    xscale="log", yscale="log", xlabel="step", ylabel="angle in degrees", title="Descent goes where the theorem says"
)
ax.legend(loc="center left")
plt.show()
