"""
Coordinate descent selects with few coordinates
===============================================

Coordinate descent ends at the largest margin in ℓ1 (F Thm 1, on attention), whose weights have few coordinates: a token is selected
by a handful of them, although every coordinate would help a little.
"""

import matplotlib.pyplot as plt
import numpy as np

import marginlens as ml

plt.rcParams.update(ml.plotting.STYLE)
N_STEPS = 20_000

# %%
# Two inputs of five tokens in twenty dimensions; coordinate descent, and normalised gradient descent beside it.
data, v = ml.data.sphere_tokens(1, 2, 5, 20, rng=1)
risk = ml.AttentionRisk(data[0], v[0])
sparse = ml.descend(risk, optimizer=ml.CoordinateDescent(0.02), n_steps=N_STEPS)
dense = ml.descend(risk, optimizer=ml.NormalizedGD(0.02), n_steps=N_STEPS)

# %%
# The best ℓ1 margin comes with a bracket that proves it.
solution = ml.att_svm(risk.data, sparse.selected, norm=ml.L1())
rows, _ = risk.margin_rows(sparse.selected)
share = np.min(rows @ sparse.final) / ml.L1().value(sparse.final) / solution.margin
print(f"coordinate descent attains {share:.3f} of the best ℓ1 margin, proved to {solution.bracket().gap:.0e}")

# %%
# The weights, each divided by its largest entry.
weights = {"gradient descent": dense.final, "coordinate descent": sparse.final, "largest ℓ1 margin": solution.x}
fig, ax = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
order = np.argsort(-np.abs(solution.x), kind="stable")
for k, (name, p) in enumerate(weights.items()):
    bars = np.abs(p)[order] / np.abs(p).max()
    ax.bar(np.arange(20) + 0.27 * (k - 1), bars, 0.27, color=ml.plotting.ACCENTS[(1, 0, 5)[k]], label=name)
ax.set(xlabel="coordinate of p, largest first", ylabel="size, relative to the largest", xticks=[0, 5, 10, 15, 19])
ax.set_title("Coordinate descent leaves most coordinates at zero")
ax.grid(visible=False, axis="x")
ax.legend()
plt.show()
