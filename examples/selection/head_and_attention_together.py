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
# The head finds its classifier at once; attention first heads for the full problem, then turns to the relaxed one.
curves = {
    "p to $p^{relax}$": (p, limits.p_relax.x, ml.plotting.LOCAL, "-"),
    "p to $p^{mm}$": (p, limits.p_mm.x, ml.plotting.GLOBAL, "-"),
    "v to its limit": (v, limits.v_direction, ml.plotting.INK, "--"),
}
fig, ax = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
for name, (points, direction, colour, dashes) in curves.items():
    angle = np.maximum(np.degrees(ml.angle(points, direction)), 1e-4)
    ax.plot(run.saved.steps[1:], angle, dashes, color=colour, label=name)
ax.set(xscale="log", yscale="log", xlabel="step", ylabel="angle in degrees", ylim=(1e-3, 200.0))
ax.set_title("Trained with its head, attention goes to the relaxed margin")
ax.legend(loc="lower left")
plt.show()
