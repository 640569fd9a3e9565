"""
Graph-SVM against descent
=========================

For next tokens the role of the max-margin problem is played by the Graph-SVM: the shortest W that ranks every token above those of lower
priority (C Thm 1). Descent on the log-loss turns towards its solution, whatever the start.
"""

import matplotlib.pyplot as plt
import numpy as np

import marginlens as ml

plt.rcParams.update(ml.plotting.STYLE)
N_DATASETS = 8
N_STEPS = 20_000

# %%
# Random sequences over six tokens whose label is their token of highest priority: no two tokens are equal.
datasets = [ml.data.acyclic_sequences(6, 8, 6, 4, seed) for seed in range(N_DATASETS)]
print(datasets[0])

# %%
# The limit from the data, and normalised descent on each.
steps = ml.plotting.recorded_steps(N_STEPS, 50)
cosines = []
for ds in datasets:
    limit = ml.graph_svm(ds).x
    run = ml.descend(ds, optimizer=ml.NormalizedGD(0.05), n_steps=N_STEPS, record=ml.Record(steps))
    cosines.append(ml.correlation(run.saved["x"][1:], limit, axes=2))

# %%
# One line for each dataset: all come to the direction of the Graph-SVM.
fig, ax = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
ax.plot(run.saved.steps[1:], 1.0 - np.transpose(cosines), color=ml.plotting.LOCAL, alpha=0.7)
ax.set(xscale="log", yscale="log", xlabel="step", ylabel="1 - cosine with the Graph-SVM solution")
ax.set_title("The data alone say where W goes")
plt.show()
