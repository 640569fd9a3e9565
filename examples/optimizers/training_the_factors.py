"""
Training the factors of W
=========================

Transformers train W = Q Kᵀ through its factors, and that changes the limit (claim X-N3): gradient descent on the factors ends at the
largest margin in the nuclear norm, Muon on them in the spectral one. The singular values of W show it.
"""

import matplotlib.pyplot as plt
import numpy as np

import marginlens as ml

plt.rcParams.update(ml.plotting.STYLE)
N_STEPS = 800

# %%
# Six inputs of eight tokens in ten dimensions, each with a query of its own.
rng = np.random.default_rng(2)
data, v = ml.data.sphere_tokens(1, 6, 8, 10, rng=2)
of_p = ml.AttentionRisk(data[0], v[0])
queries = rng.standard_normal((6, 10))
of_W, of_factors = of_p.as_matrix(queries), of_p.as_factors(queries, width=10)

# %%
# The same risk, reached by steps on W and by steps on its factors.
start = 0.01 * rng.standard_normal(of_factors.shape)
muon = ml.Muon(0.02, momentum=0.0, nesterov=False)
matrices = {
    "gradient descent on W": ml.descend(of_W, optimizer=ml.NormalizedGD(0.1), n_steps=N_STEPS).final,
    "gradient descent on Q and K": of_factors.matrix(
        ml.descend(of_factors, optimizer=ml.NormalizedGD(0.1), n_steps=N_STEPS, start=start).final
    ),
    "Muon on Q and K": of_factors.matrix(
        ml.descend(of_factors, optimizer=ml.optimizers.Blockwise(muon), n_steps=N_STEPS, start=start).final
    ),
}


# %%
# How much of the best margin each W attains, in two norms, for the tokens that it selects.
def share(W, norm):
    selected = np.einsum("ntd,qd,nq->nt", data[0].K, W, queries).argmax(axis=-1)
    rows, _ = of_W.margin_rows(selected)
    best = ml.theory.implicit_bias(ml.SteepestDescent(norm, 1.0), of_W, selected=selected).solution.margin
    return np.min(np.einsum("rqd,qd->r", rows, W)) / norm.value(W) / best


for name, W in matrices.items():
    print(f"{name:27s} nuclear {share(W, ml.Nuclear()):.3f}, spectral {share(W, ml.Spectral()):.3f}")

# %%
# Steps on the factors prefer few singular values, Muon's prefer equal ones.
values = np.array([np.linalg.svd(W, compute_uv=False)[:6] for W in matrices.values()])
sizes = values / values[:, :1]
fig, ax = plt.subplots(figsize=(6.4, 3.2), layout="constrained")
ax.imshow(sizes, cmap="magma", vmin=0.0, vmax=1.0, aspect="auto")
for (row, column), size in np.ndenumerate(sizes):
    ax.text(column, row, f"{size:.2f}", ha="center", va="center", color="white" if size < 0.6 else "black")
ax.set_xticks(range(6), range(1, 7))
ax.set_yticks(range(3), [name.replace(" on ", "\non ") for name in matrices])
ax.set(xlabel="singular value of W, relative to the largest", ylabel="trained by")
ax.set_title("Training the factors makes W low-rank")
ax.grid(False)
plt.show()
