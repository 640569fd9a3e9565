"""
How fast is the limit reached?
==============================

Weights of attention grow for ever, and the growth slows down: under plain gradient descent their norm rises like the logarithm
of the steps, because gradients fall like :math:`e^{-\\text{margin}\\cdot\\|p\\|}`. The angle to the limit falls with the norm,
not with the steps, so normalised steps arrive exponentially sooner.
"""

import matplotlib.pyplot as plt
import numpy as np

import marginlens as ml

plt.rcParams.update(ml.plotting.STYLE)
N_STEPS = 100_000

# %%
# A problem whose limit is certain from every start: one input, all other tokens with the same score.
rng = np.random.default_rng(3)
data, v = ml.data.scored_tokens(rng.standard_normal((1, 6, 4)), [[1.0, 0.2, 0.2, 0.2, 0.2, 0.2]])
limit = ml.predict_limit(data, v)
print(limit.why)

# %%
# The same problem with three rules for the length of a step.
rules = {
    "constant, 1": ml.GradientDescent(1.0),
    "constant, 10": ml.GradientDescent(10.0),
    "normalised, .1": ml.NormalizedGD(0.1),
}
record = ml.Record(ml.plotting.recorded_steps(N_STEPS), ("x", "norm"))
runs = {name: ml.descend(data, v, optimizer=rule, n_steps=N_STEPS, record=record) for name, rule in rules.items()}
for name, run in runs.items():
    print(
        f"{name:14s} norm {run.norm:9.1f}, {np.degrees(ml.angle(run.final, limit.direction)):.4f} degrees from the limit"
    )

# %%
# Left: plain descent crawls. Right: over the norm all rules lie on one curve.
fig, (left, right) = plt.subplots(1, 2, figsize=(6.4, 4.0), layout="constrained")
for (name, run), colour in zip(runs.items(), ml.plotting.ACCENTS, strict=False):
    norm, angle = run.saved["norm"][1:], np.degrees(ml.angle(run.saved["x"][1:], limit.direction))
    left.plot(run.saved.steps[1:], norm, color=colour, label=name)
    right.plot(norm, angle, color=colour)
left.set(xscale="log", yscale="log", xlabel="step", ylabel="norm of p")
right.set(xscale="log", yscale="log", xlabel="norm of p", ylabel="angle to the limit, degrees")
left.legend(title="steps")
fig.suptitle("Steps set the norm, the norm sets the angle")
plt.show()
