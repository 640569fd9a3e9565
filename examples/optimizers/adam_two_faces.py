"""X-N5: Adam's steps are those of sign descent while gradients are above ε, and those of gradient descent when they have fallen below.

Gradients of attention fall like e^(-margin · norm), so the turn comes when the norm has grown like log(1/ε); in the log domain it can be
watched at any ε.
"""

import numpy as np

import marginlens as ml

# Data: one input of four tokens, of which the first is the best; its keys less those of the others are (2, 1), (2.5, 2.5), (3.6, -.2).
rows = np.array([[2.0, 1.0], [2.5, 2.5], [3.6, -0.2]])
data = ml.TokenDataset(np.concatenate([[[0.0, 0.0]], -rows])[None], [1.0])
risk = ml.AttentionRisk(data, np.array([0.4, 0.3]))

# Solve: the ℓ∞ limit, and Adam with four ε from the same start.
limit = ml.att_svm(data, [0], norm=ml.LInf()).x
record = ml.Record(20, ("norm",))
runs = {
    eps: ml.descend(risk, optimizer=ml.Adam(0.02, (0.9, 0.95), eps), n_steps=12_000, start=[0.1, -0.2], record=record)
    for eps in (0.0, 1e-20, 1e-40, 1e-60)
}

# Look: the step at which the norm falls a tenth behind that of ε = 0, and where the weights point.
free = runs[0.0]
print(f"ε = 0: norm {free.norm:.1f}, {np.degrees(ml.angle(free.final, limit)):.2f} degrees from the ℓ∞ limit")
for eps, run in list(runs.items())[1:]:
    behind = run.saved["norm"] < 0.9 * free.saved["norm"]
    turn = run.saved.steps[np.argmax(behind)]
    angle = np.degrees(ml.angle(run.final, limit))
    print(f"ε = {eps:g}: norm {run.norm:.1f}, turns at step {turn}, then {angle:.2f} degrees from the ℓ∞ limit")

# What to notice: the turn comes later in proportion to log(1/ε), and the weights stay near the ℓ∞ limit long after it.
