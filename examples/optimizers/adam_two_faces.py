"""
Adam's two faces
================

Adam moves like sign descent while gradients are above its ε, and like gradient descent when they have fallen below (claim X-N5).
Gradients of attention fall like :math:`e^{-\\text{margin}\\cdot\\|p\\|}`, so the turn comes when the norm has grown like log(1/ε);
gradients kept in the log domain let it be watched at any ε.
"""

import matplotlib.pyplot as plt
import numpy as np

import marginlens as ml

plt.rcParams.update(ml.plotting.STYLE)
N_STEPS = 12_000

# %%
# One input of four tokens in the plane, of which the first is the best.
rows = np.array([[2.0, 1.0], [2.5, 2.5], [3.6, -0.2]])
data = ml.TokenDataset(np.concatenate([[[0.0, 0.0]], -rows])[None], [1.0])
risk = ml.AttentionRisk(data, np.array([0.4, 0.3]))

# %%
# Adam with four ε from the same start.
record = ml.Record(20, ("norm",))
runs = {
    eps: ml.descend(risk, optimizer=ml.Adam(0.02, (0.9, 0.95), eps), n_steps=N_STEPS, start=[0.1, -0.2], record=record)
    for eps in (0.0, 1e-60, 1e-40, 1e-20)
}

# %%
# The turn: the step at which the norm falls a tenth behind that of ε = 0.
free = runs[0.0].saved["norm"]
turns = {eps: int(np.argmax(run.saved["norm"] < 0.9 * free)) for eps, run in runs.items() if eps > 0.0}
for eps, row in turns.items():
    print(f"ε = {eps:g} turns at step {runs[eps].saved.steps[row]}")

# %%
# The turn comes later in proportion to log(1/ε); with ε = 0 Adam is sign descent for ever, and its norm grows evenly.
limit = ml.att_svm(data, [0], norm=ml.LInf()).x
for eps, run in runs.items():
    print(f"ε = {eps:g}: {np.degrees(ml.angle(run.final, limit)):.2f} degrees from the ℓ∞ limit")
fig, ax = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
for (eps, run), colour in zip(runs.items(), ml.plotting.ACCENTS, strict=False):
    ax.plot(run.saved.steps, run.saved["norm"], color=colour, label=f"ε = {eps:g}")
    if eps > 0.0:
        ax.plot(run.saved.steps[turns[eps]], run.saved["norm"][turns[eps]], "o", color=colour, markersize=8)
ax.set(xlabel="step", ylabel="norm of p", title="Adam stops being sign descent when gradients reach ε")
ax.legend(loc="upper left")
plt.show()
