"""
A loss of your own
==================

The theory needs a smooth decreasing loss, not the logistic one (A Assumption A). A loss of your own is a small class with two methods; the
direction that descent reaches does not depend on it, only the speed does.
"""

from dataclasses import dataclass

import matplotlib.pyplot as plt
import numpy as np

import marginlens as ml

plt.rcParams.update(ml.plotting.STYLE)
N_STEPS = 1000

# %%
# :math:`\ell(u) = -\arctan u` decreases everywhere, and its slope fades like a power, not like an exponential.


@dataclass(frozen=True)
class HeavyTail(ml.losses.Loss):
    def value(self, u):
        return -np.arctan(u)

    def log_abs_derivative(self, u):  # the sign is read off the value
        return -np.log1p(np.square(u))


# %%
# One input whose optimal token scores 1 and the others the same, so that A Thm 2 leaves no choice of limit.
rng = np.random.default_rng(0)
data, v = ml.data.scored_tokens(rng.standard_normal((1, 5, 3)), [[1.0, 0.2, 0.2, 0.2, 0.2]])
prediction = ml.predict_limit(data, v, loss=HeavyTail())
print(prediction.why)

# %%
# Plain gradient descent with it, beside the losses that come with the library.
losses = {
    "-arctan, yours": HeavyTail(),
    "logistic": ml.Logistic(),
    "exponential": ml.Exponential(),
    "-u": ml.CorrelationLoss(),
}
step, record = ml.GradientDescent(1.0), ml.Record(1)
runs = {
    name: ml.descend(data, v, loss=loss, optimizer=step, n_steps=N_STEPS, record=record)
    for name, loss in losses.items()
}

# %%
# Four losses, one direction: only the pace differs.
fig, ax = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
for (name, run), colour in zip(runs.items(), ml.plotting.ACCENTS, strict=False):
    path = run.saved["x"][1:]
    ax.plot(run.saved.steps[1:], np.degrees(ml.angle(path, prediction.direction)), color=colour, label=name)
ax.set(xscale="log", xlabel="step", ylabel="angle to the predicted direction, degrees", ylim=(0.0, None))
ax.set_title("The loss sets the pace, not the direction")
ax.legend(title="loss")
plt.show()
