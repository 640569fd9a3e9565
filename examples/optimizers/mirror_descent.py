"""E Fig 4: mirror descent with the potential of ℓp ends at the largest margin in ℓp; the cross table of three p."""

import numpy as np

import marginlens as ml

# Data: six inputs of eight tokens in ten dimensions.
data, v = ml.data.sphere_tokens(1, 6, 8, 10, rng=3)
risk = ml.AttentionRisk(data[0], v[0])
norms = {1.75: ml.Lp(1.75), 2: ml.L2(), 3: ml.Lp(3)}
sizes = {
    1.75: 1.0,
    2: 1.0,
    3: 1000.0,
}  # the mirror image of x grows in steps of this length, x itself like its (p - 1)-th root

# Solve: one run for each p, with normalised gradients.
runs = {p: ml.descend(risk, optimizer=ml.MirrorDescent(p, sizes[p], normalized=True), n_steps=50_000) for p in norms}

# Look: what share of the best margin in each norm a run attains, for the tokens that it selects.
print("mirror descent  " + "  ".join(f"ℓ{p:<5g}" for p in norms))
for p, run in runs.items():
    rows, _ = risk.margin_rows(run.selected)
    shares = [
        np.min(rows @ run.final) / norm.value(run.final) / ml.att_svm(risk.data, run.selected, norm=norm).margin
        for norm in norms.values()
    ]
    print(f"p = {p:<11g} " + "  ".join(f"{share:.4f}" for share in shares))

# What to notice: the diagonal is the largest of its row and of its column, and close to one.
