"""
The regularisation path beside descent
======================================

Descent grows the weights step by step; the regularisation path asks for the best weights of every length (A Eq. 9).
Both end at the max-margin direction, and neither is ahead at every length (A Thms 2 and 4).

`Open its problem in the lab <../../lab/index.html#A-F1c>`_
"""

import matplotlib.pyplot as plt
import numpy as np

import marginlens as ml

plt.rcParams.update(ml.plotting.STYLE)
N_STEPS = 20_000

# %%
# Three inputs of seven tokens in the plane; the first token of each scores 1, the others .5.
data, v = ml.data.figure_1c()
limit = ml.att_svm(data, data.optimal(v))
print(limit)

# %%
# The path: the smallest risk in balls from radius 1 to 10,000. Radii far beyond where float64 sees a difference of risks are no harder.
radii = np.geomspace(1.0, 1e4, 25)
path = ml.path(data, radii, head=v)
print(path)

# %%
# Normalised descent, recorded densely at first and sparsely later.
steps = ml.plotting.recorded_steps(N_STEPS)
run = ml.descend(data, v, optimizer=ml.NormalizedGD(0.5), n_steps=N_STEPS, record=ml.Record(steps, ("x", "norm")))

# %%
# In the end both approach the max-margin direction at the rate 1/‖p‖. The dips are where a curve crosses it on the way.
curves = {
    "regularisation path": (radii, path.points, ml.plotting.LOCAL),
    "normalised descent": (run.saved["norm"][1:], run.saved["x"][1:], ml.plotting.GLOBAL),
}
fig, ax = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
for name, (norm, points, colour) in curves.items():
    ax.plot(norm, np.degrees(ml.angle(points, limit.x)), color=colour, label=name)
ax.set(xscale="log", yscale="log", xlabel="norm of p", ylabel="angle to the max-margin direction, degrees")
ax.set_title("Two ways to grow, one direction")
ax.legend()
plt.show()
