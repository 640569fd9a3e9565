"""A ATT-SVM: some selections cannot be made by any weights, and a Farkas certificate proves it in a line.

No p selects the tokens α exactly when nonnegative multiples, not all zero, of the differences k_α - k_t add up to zero.
"""

import numpy as np

import marginlens as ml

# Data: one input with the corners of a square and a token inside it.
X = np.array([[(1.0, 1.0), (-1.0, 1.0), (-1.0, -1.0), (1.0, -1.0), (0.2, 0.1)]])
data = ml.TokenDataset(X, [1.0])

# Solve: a corner, then the token inside.
corner, inside = ml.att_svm(data, [0]), ml.att_svm(data, [4])
print(f"corner: {corner.status.value} margin {corner.margin:.3f}, p = {corner.x}")
print(f"inside: {inside.status.value}")

# Look: the certificate, one weight per other token, and what it adds up to.
weights = inside.certificate / inside.certificate.sum()
for (_, selected, other), weight, row in zip(inside.pairs, weights, inside.rows, strict=True):
    print(f"  {weight:.4f} × (k_{selected} - k_{other}) = {weight:.4f} × {np.round(row, 2)}")
print(f"their sum is {np.round(weights @ inside.rows, 12) + 0.0}, residual {inside.certificate_residual():.1e}")

# What to notice: if p gave every one of these differences a margin of 1, their weighted sum would have a positive margin too;
# but that sum is zero. So a token inside the hull of the others can score as high as it likes: attention never selects it.
scored, head = ml.data.scored_tokens(X, [[0.0, 0.0, 0.0, 0.0, 1.0]])
run = ml.descend(scored, head, n_steps=2000, optimizer=ml.GradientDescent(1.0))
print(f"trained to want it: its probability ends at {run.attention[0, 4]:.3f}, the norm of p at {run.norm:.3f}")
