"""F Thm 1, on attention: sign descent ends at the largest margin in ℓ∞, not in the Euclidean norm."""

import numpy as np

import marginlens as ml

# Data: six inputs of eight tokens in ten dimensions.
data, v = ml.data.sphere_tokens(1, 6, 8, 10, rng=3)
risk = ml.AttentionRisk(data[0], v[0])

# Solve: normalised gradient descent and sign descent with steps of the same length.
size = 0.02
rules = {"gradient": ml.NormalizedGD(size), "sign": ml.SignDescent(size)}
runs = {name: ml.descend(risk, optimizer=rule, n_steps=20_000) for name, rule in rules.items()}

# Look: the margin that each run attains in either norm, as a share of the best for the tokens that it selects.
for name, run in runs.items():
    rows, _ = risk.margin_rows(run.selected)
    margin = np.min(rows @ run.final)
    shares = [
        margin / norm.value(run.final) / ml.att_svm(risk.data, run.selected, norm=norm).margin
        for norm in (ml.L2(), ml.LInf())
    ]
    print(
        f"{name:8s} selects {run.selected}: {shares[0]:.3f} of the best ℓ2 margin, {shares[1]:.3f} of the best ℓ∞ margin"
    )
print(ml.theory.implicit_bias(rules["sign"], risk, selected=runs["sign"].selected))

# What to notice: each run wins in the norm of its own steps and loses in the other.
