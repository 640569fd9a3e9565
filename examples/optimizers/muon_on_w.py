"""
Muon on the key-query matrix
============================

Muon moves W along the polar factor of its gradient. On attention it ends at the largest margin in the spectral norm (F Thm 2): all
singular values grow together, where gradient descent leaves most of them small.
"""

import matplotlib.pyplot as plt
import numpy as np

import marginlens as ml

plt.rcParams.update(ml.plotting.STYLE)
N_STEPS = 4000

# %%
# Six inputs of eight tokens in ten dimensions, each with a query of its own.
rng = np.random.default_rng(0)
data, v = ml.data.sphere_tokens(1, 6, 8, 10, rng=0)
risk = ml.AttentionRisk(data[0], v[0]).as_matrix(rng.standard_normal((6, 10)))

# %%
# Normalised gradient descent, and Muon without and with momentum.
rules = {
    "gradient descent": ml.NormalizedGD(0.05),
    "Muon, no momentum": ml.Muon(0.05, momentum=0.0, nesterov=False),
    "Muon": ml.Muon(0.05),
}
runs = {name: ml.descend(risk, optimizer=rule, n_steps=N_STEPS) for name, rule in rules.items()}

# %%
# The share of the best spectral margin that each run attains, for the tokens that it selects.
for name, run in runs.items():
    best = ml.theory.implicit_bias(rules["Muon"], risk, selected=run.selected).solution
    rows, _ = risk.margin_rows(run.selected)
    share = np.min(np.einsum("rqd,qd->r", rows, run.final)) / ml.Spectral().value(run.final) / best.margin
    print(f"{name:17s} {share:.3f} of the best spectral margin")

# %%
# Six queries make a W of rank six. Muon has no small singular values among them.
fig, ax = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
for (name, run), colour in zip(
    runs.items(), (ml.plotting.LOCAL, ml.plotting.GLOBAL, ml.plotting.ACCENTS[3]), strict=True
):
    values = np.linalg.svd(run.final, compute_uv=False)[:6]
    ax.plot(np.arange(1, 7), values / values[0], "o-", color=colour, label=name)
ax.set(xlabel="singular value of W", ylabel="size, relative to the largest", ylim=(0.0, 1.05), xticks=range(1, 7))
ax.set_title("Muon grows all singular directions alike")
ax.legend(loc="lower left")
plt.show()
