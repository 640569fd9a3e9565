"""
Training the head and attention together
========================================

When the head v learns too, scores are not given: v moves towards the max-margin classifier of the selected tokens, and p towards
a max-margin selection (A Thms 5 and 6). An input whose token is no support vector of the head is selected without a margin, and
p goes to the solution of a relaxed problem.

`Open its problem in the lab <../../lab/index.html#A-F3b>`_
"""

import matplotlib.pyplot as plt
import numpy as np

import marginlens as ml

plt.rcParams.update(ml.plotting.STYLE)
N_STEPS = 100_000

# %%
# Three inputs of two tokens in the plane, the first of each at the origin. The last input's second token, (.5, 1.5), lies so
# high that it is no support vector of the head.
data = ml.data.figure_3b()
risk = ml.JointRisk(data)
prediction = ml.predict_limit(risk)
print(prediction.why)

# %%
# Two candidates for the direction of p: the full margin problem, and the one that asks nothing but a tie of the third input.
limits = prediction.details
print("p^mm", limits.p_mm.x, "p^relax", limits.p_relax.x, "v", limits.v_direction)

# %%
# One call trains both; normalised steps on v and on p, so that both norms grow alike.
rule = ml.optimizers.Blockwise(ml.NormalizedGD(0.1))
record = ml.Record(ml.plotting.recorded_steps(N_STEPS))
run = ml.descend(risk, optimizer=rule, n_steps=N_STEPS, record=record)
v, p = run.saved["x"][1:, :2], run.saved["x"][1:, 2:]

# %%
# The plane of tokens: attention first heads for the full problem, then turns to the relaxed one; the darker a ray, the later.
fig, ax = plt.subplots(figsize=(6.4, 4.6), layout="constrained")
rays = p[np.linalg.norm(p, axis=1) > 0.0][::3]
rays /= np.linalg.norm(rays, axis=1, keepdims=True)
for (x, y), strength in zip(rays, np.linspace(0.1, 0.8, len(rays)), strict=True):
    ax.plot([0.0, x], [0.0, y], color=ml.plotting.INK, alpha=strength, lw=0.8)
arrows = {"$p^{relax}$": (limits.p_relax.x, ml.plotting.LOCAL), "$p^{mm}$": (limits.p_mm.x, ml.plotting.GLOBAL)}
arrows["limit of v"] = (limits.v_direction, ml.plotting.ACCENTS[3])
for name, (direction, colour) in arrows.items():
    ax.annotate(
        "", 1.25 * direction / np.linalg.norm(direction), (0.0, 0.0), arrowprops={"color": colour, "width": 1.5}
    )
    ax.plot([], [], color=colour, lw=3, label=name)
for k, shape in enumerate("o^s"):
    ax.plot(*data.X[k].T, shape, color=ml.plotting.NEITHER, markersize=9, label=f"tokens of input {k}")
ax.set(xlabel="first coordinate", ylabel="second coordinate", aspect="equal", xlim=(-0.4, 2.8))
fig.suptitle("Trained with its head, attention goes to the relaxed margin")
ax.legend(loc="center right")
plt.show()
