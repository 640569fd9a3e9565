"""F Thm 2, on attention: Muon on the key-query matrix ends at the largest margin in the spectral norm."""

import numpy as np

import marginlens as ml

# Data: six inputs of eight tokens in ten dimensions, each with a query of its own.
rng = np.random.default_rng(0)
data, v = ml.data.sphere_tokens(1, 6, 8, 10, rng=0)
risk = ml.AttentionRisk(data[0], v[0]).as_matrix(rng.standard_normal((6, 10)))

# Solve: normalised gradient descent, Muon without and with momentum.
size = 0.05
rules = {
    "gradient": ml.NormalizedGD(size),
    "Muon, no momentum": ml.Muon(size, momentum=0.0, nesterov=False),
    "Muon": ml.Muon(size),
}
runs = {name: ml.descend(risk, optimizer=rule, n_steps=10_000) for name, rule in rules.items()}

# Look: shares of the best spectral margin for the tokens that each run selects, and the singular values of its W.
for name, run in runs.items():
    best = ml.theory.implicit_bias(rules["Muon"], risk, selected=run.selected).solution
    rows, _ = risk.margin_rows(run.selected)
    share = np.min(np.einsum("rqd,qd->r", rows, run.final)) / ml.Spectral().value(run.final) / best.margin
    values = np.linalg.svd(run.final, compute_uv=False)
    print(f"{name:17s} {share:.3f} of the best spectral margin, singular values {np.round(values[:6] / values[0], 2)}")

# What to notice: Muon moves all singular directions alike, and its W has no small singular values where gradient descent's has.
