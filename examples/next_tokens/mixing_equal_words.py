"""
What becomes of words that are equal
====================================

Two words that rank each other both ways form a component: no weights can rank them. Among them attention keeps a soft mix, which the
cyclic correction computes (C Thm 2): W grows along the Graph-SVM and stays finite on the cyclic part.
"""

import matplotlib.pyplot as plt
import numpy as np

import marginlens as ml

plt.rcParams.update(ml.plotting.STYLE)
N_STEPS = 20_000

# %%
# Random sequences with random labels over six tokens; some tokens tie.
ds = ml.data.cyclic_sequences(6, 8, 6, 4, 1)
graphs = ml.priority_graphs(ds)
for last, graph in graphs.items():
    print(f"after {last}: {[part.tolist() for part in graph.components if len(part) > 1] or 'no ties'}")

# %%
# The mix among equals: the shortest minimiser of the log-loss over the cyclic part.
correction = ml.cyclic_correction(ds, graphs=graphs)
print(correction.status.value)
subspace = ml.graphs.cyclic_subspace(ds.E, graphs)

# %%
# Descent, and the two parts of its weights: along the cyclic subspace and across it.
record = ml.Record(ml.plotting.recorded_steps(N_STEPS, 50))
run = ml.descend(ds, optimizer=ml.GradientDescent(1.0), n_steps=N_STEPS, record=record)
cyclic = np.array([subspace.project(W) for W in run.saved["x"][1:]])
rest = run.saved["x"][1:] - cyclic

# %%
# The part that ranks grows for ever; the part that mixes settles at the correction.
fig, ax = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
ax.plot(run.saved.steps[1:], np.linalg.norm(rest, axis=(1, 2)), color=ml.plotting.LOCAL, label="part that ranks")
ax.plot(run.saved.steps[1:], np.linalg.norm(cyclic, axis=(1, 2)), color=ml.plotting.GLOBAL, label="part that mixes")
size = np.linalg.norm(correction.x)
ax.axhline(size, color=ml.plotting.GLOBAL, ls="--", lw=1.2, label="norm of the cyclic correction")
ax.set(xscale="log", yscale="log", xlabel="step", ylabel="norm", title="Ranks grow, mixtures settle")
ax.legend()
plt.show()
