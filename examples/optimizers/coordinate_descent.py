"""F Thm 1, on attention: coordinate descent ends at the largest margin in ℓ1, whose weights have few coordinates."""

import numpy as np

import marginlens as ml

# Data: two inputs of five tokens in twenty dimensions.
data, v = ml.data.sphere_tokens(1, 2, 5, 20, rng=1)
risk = ml.AttentionRisk(data[0], v[0])

# Solve: coordinate descent, and normalised gradient descent beside it.
size = 0.02
sparse = ml.descend(risk, optimizer=ml.CoordinateDescent(size), n_steps=20_000)
dense = ml.descend(risk, optimizer=ml.NormalizedGD(size), n_steps=20_000)
solution = ml.att_svm(risk.data, sparse.selected, norm=ml.L1())

# Look: the share of the best ℓ1 margin, and how many coordinates carry a hundredth of the largest or more.
rows, _ = risk.margin_rows(sparse.selected)
share = np.min(rows @ sparse.final) / ml.L1().value(sparse.final) / solution.margin
print(f"coordinate descent attains {share:.3f} of the best ℓ1 margin, proved to {solution.bracket().gap:.0e}")
for name, weights in (("coordinate", sparse.final), ("gradient", dense.final), ("ℓ1 solution", solution.x)):
    print(f"{name:11s} uses {np.sum(np.abs(weights) > 0.01 * np.abs(weights).max())} of 20 coordinates")

# What to notice: a token is selected by a handful of coordinates, although every coordinate would help a little.
