"""
Mirror descent, and a margin for every p
========================================

Mirror descent with the potential of ℓp ends at the largest margin in ℓp (E Fig 4). Three runs on one problem, judged in three norms, make a
cross table: nobody wins in a norm that is not theirs.
"""

import matplotlib.pyplot as plt
import numpy as np

import marginlens as ml

plt.rcParams.update(ml.plotting.STYLE)
N_STEPS = 50_000

# %%
# Six inputs of eight tokens in ten dimensions. The mirror image of the weights grows in steps of equal length, the weights themselves like
# its (p - 1)-th root; so p = 3 takes longer steps.
data, v = ml.data.sphere_tokens(1, 6, 8, 10, rng=3)
risk = ml.AttentionRisk(data[0], v[0])
norms = {1.75: ml.Lp(1.75), 2: ml.L2(), 3: ml.Lp(3)}
sizes = {1.75: 1.0, 2: 1.0, 3: 1000.0}
runs = {p: ml.descend(risk, optimizer=ml.MirrorDescent(p, sizes[p], normalized=True), n_steps=N_STEPS) for p in norms}


# %%
# The share of the best margin in a norm, for the tokens that a run selects.
def share(run, norm):
    rows, _ = risk.margin_rows(run.selected)
    return np.min(rows @ run.final) / norm.value(run.final) / ml.att_svm(risk.data, run.selected, norm=norm).margin


table = np.array([[share(run, norm) for norm in norms.values()] for run in runs.values()])

# %%
# The diagonal is the largest of its row and of its column, and close to one.
fig, ax = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
image = ax.imshow(table, cmap="Blues", vmin=0.9, vmax=1.0)
for (i, j), value in np.ndenumerate(table):
    ax.text(
        j, i, f"{value:.3f}", ha="center", va="center", color="white" if value > 0.96 else ml.plotting.INK, fontsize=13
    )
names = [f"ℓ{p:g}" for p in norms]
ax.set(xticks=range(3), yticks=range(3), xticklabels=names, yticklabels=names)
ax.set(xlabel="margin measured in", ylabel="mirror descent with", title="The best margin is on the diagonal")
ax.grid(visible=False)
fig.colorbar(image, label="share of the best margin")
plt.show()
