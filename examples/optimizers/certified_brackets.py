"""
A run that proves its own margin
================================

How good is a direction when nobody has solved the margin problem? The residual attention of a run is itself a dual certificate: `bracket`
turns it into proved bounds on the smallest norm, without a solver. The bracket closes as training goes on.
"""

import matplotlib.pyplot as plt
import numpy as np

import marginlens as ml

plt.rcParams.update(ml.plotting.STYLE)
STEPS = [10, 30, 100, 300, 1000, 3000, 10_000]

# %%
# Six inputs of eight tokens in ten dimensions, with queries, so that the weights are a matrix.
data, v, z = ml.data.sphere_queries(1, 6, 8, 10, rng=3)
risk = ml.AttentionRisk(data[0], v[0]).as_matrix(z[0])

# %%
# Steepest descent in the spectral norm, stopped at several lengths; each run gives its own bracket.
rule = ml.SteepestDescent(ml.Spectral(), 0.3)
runs = [ml.descend(risk, optimizer=rule, n_steps=n) for n in STEPS]
brackets = [run.bracket(ml.Spectral()) for run in runs]
print(brackets[-1])

# %%
# The solver's answer for comparison: it lies in every bracket whose run selects the same tokens.
best = ml.theory.implicit_bias(rule, risk, selected=runs[-1].selected).solution
norm = ml.Spectral().value(best.x)
same = np.array([np.array_equal(run.selected, runs[-1].selected) for run in runs])
steps = np.array(STEPS)[same]
lower = np.array([bracket.lower for bracket in brackets])[same] / norm
upper = np.array([bracket.upper for bracket in brackets])[same] / norm

# %%
# Both bounds, relative to the true smallest norm.
fig, ax = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
ax.fill_between(steps, lower, upper, color=ml.plotting.TINTS[ml.plotting.LOCAL])
ax.plot(steps, upper, "o-", color=ml.plotting.GLOBAL, label="upper bound, from the weights")
ax.plot(steps, lower, "o-", color=ml.plotting.LOCAL, label="lower bound, from residual attention")
ax.axhline(1.0, color=ml.plotting.INK, lw=1.0, ls="--", label="what the solver finds")
ax.set(xscale="log", xlabel="steps of training", ylabel="smallest norm, relative to the true one")
ax.set_title("A run brackets the best margin by itself")
ax.legend()
plt.show()
