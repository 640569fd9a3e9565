"""
An optimizer of your own
========================

An optimizer is a class with two methods, and it then works on every risk of the library: on p, on W, on the factors of W, on next tokens.
Heavy-ball momentum on normalised gradients is the example. With a decay of .9 the weights grow ten times as fast, towards the same limit.
"""

from dataclasses import dataclass

import matplotlib.pyplot as plt
import numpy as np

import marginlens as ml

plt.rcParams.update(ml.plotting.STYLE)
N_STEPS = 3000

# %%
# The velocity is the state, which descent carries from step to step.


@dataclass(frozen=True)
class Momentum:
    size: float = 0.1
    decay: float = 0.9

    def init(self, x0):
        return np.zeros_like(x0)

    def update(self, gradient, velocity):
        velocity = self.decay * velocity - self.size * gradient.direction()
        return velocity, velocity  # the step, and the next state


# %%
# One input of four tokens whose last coordinate is the score, so that A Thm 2 leaves no choice of limit.
rng = np.random.default_rng(1)
X = np.concatenate([rng.standard_normal((1, 4, 4)), [[[1.0], [0.2], [0.2], [0.2]]]], axis=-1)
data, v = ml.TokenDataset(X, [1.0]), np.array([0.0, 0.0, 0.0, 0.0, 1.0])
limit = ml.att_svm(data, data.optimal(v)).x
of_p = ml.AttentionRisk(data, v)

# %%
# Plain descent and yours on p, then yours on the matrix W and on its factors, without a line more.
record = ml.Record(ml.plotting.recorded_steps(N_STEPS, 100))
plain = ml.descend(of_p, optimizer=ml.NormalizedGD(0.1), n_steps=N_STEPS, record=record)
momentum = ml.descend(of_p, optimizer=Momentum(), n_steps=N_STEPS, record=record)
on_W = ml.descend(of_p.as_matrix([1.0]), optimizer=Momentum(), n_steps=N_STEPS)
of_factors = of_p.as_factors([1.0], width=1)
on_factors = ml.descend(of_factors, optimizer=Momentum(), n_steps=N_STEPS, start=0.1 * np.ones(of_factors.shape))
cosines = {
    "W": ml.correlation(on_W.final[0], limit),
    "the factors of W": ml.correlation(of_factors.matrix(on_factors.final)[0], limit),
}

# %%
# And on a next-token layer, whose limit is the solution of the Graph-SVM. `marginlens.testing.check_optimizer(Momentum())` says whether a
# class of yours fulfils the contract.
sequences = ml.data.acyclic_sequences(4, 6, 3, 4, 0)
on_sequences = ml.descend(sequences, optimizer=Momentum(), n_steps=N_STEPS)
cosines["next tokens"] = ml.correlation(on_sequences.final, ml.graph_svm(sequences).x, axes=2)
for name, cosine in cosines.items():
    print(f"on {name}: cosine with the limit {cosine:.4f}")


# %%
# A decay of .9 is ten steps for one: so much faster do the weights grow. How much sooner do they come within one degree of the limit?
def steps_to(run, degrees):
    return run.saved.steps[np.argmax(np.degrees(ml.angle(run.saved["x"], limit)) < degrees)]


sooner = steps_to(plain, 1.0) / steps_to(momentum, 1.0)
faster = momentum.norm / plain.norm
print(f"the norm is {faster:.1f} times as large, one degree is reached {sooner:.1f} times sooner")

# %%
# The same way, sooner.
fig, ax = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
for name, run, colour in (("plain", plain, ml.plotting.LOCAL), ("your momentum", momentum, ml.plotting.GLOBAL)):
    ax.plot(run.saved.steps[1:], np.degrees(ml.angle(run.saved["x"][1:], limit)), color=colour, label=name)
ax.set(xscale="log", yscale="log", xlabel="step", ylabel="angle to the max-margin direction, degrees")
ax.set_title(f"Momentum: the same limit, {sooner:.0f} times sooner")
ax.legend()
plt.show()
