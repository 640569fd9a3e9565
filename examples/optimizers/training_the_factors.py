"""X-N3: gradient descent on the factors of W = Q Kᵀ ends at the largest margin in the nuclear norm, Muon on them in the spectral one."""

import numpy as np

import marginlens as ml

# Data: six inputs of eight tokens in ten dimensions, each with a query of its own.
rng = np.random.default_rng(2)
data, v = ml.data.sphere_tokens(1, 6, 8, 10, rng=2)
of_p = ml.AttentionRisk(data[0], v[0])
risk = of_p.as_factors(rng.standard_normal((6, 10)), width=10)

# Solve: normalised gradient descent on both factors, and Muon on each, from a small random start.
start = 0.01 * rng.standard_normal(risk.shape)
rules = {
    "gradient": ml.NormalizedGD(0.1),
    "Muon": ml.optimizers.Blockwise(ml.Muon(0.02, momentum=0.0, nesterov=False)),
}
runs = {name: ml.descend(risk, optimizer=rule, n_steps=800, start=start) for name, rule in rules.items()}

# Look: shares of the best nuclear and spectral margins for the tokens that a run selects, and the singular values of its W.
of_W = of_p.as_matrix(risk.query)
for name, run in runs.items():
    W, shares = risk.matrix(run.final), {}
    rows, _ = of_W.margin_rows(run.selected)
    for word, norm in (("nuclear", ml.Nuclear()), ("spectral", ml.Spectral())):
        best = ml.theory.implicit_bias(ml.SteepestDescent(norm, 1.0), of_W, selected=run.selected).solution
        shares[word] = np.min(np.einsum("rqd,qd->r", rows, W)) / norm.value(W) / best.margin
    values = np.linalg.svd(W, compute_uv=False)
    print(
        f"{name:8s} nuclear {shares['nuclear']:.3f}, spectral {shares['spectral']:.3f}, values {np.round(values[:7] / values[0], 2)}"
    )

# What to notice: the same risk of the same W, but steps on its factors prefer few singular values, Muon's prefer equal ones.
