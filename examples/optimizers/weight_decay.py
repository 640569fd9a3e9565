"""
Weight decay balances the factors
=================================

Train the factors of W = Q Kᵀ with weight decay λ: QᵀQ − KᵀK fades like e^(−2λt), whatever the data (claim X-N8). Without decay
it stays as it was.
"""

import matplotlib.pyplot as plt
import numpy as np

import marginlens as ml

plt.rcParams.update(ml.plotting.STYLE)
STEP, N_STEPS = 0.02, 400

# %%
# Four inputs of six tokens, a query for each; factors of width six from random weights.
data, v = ml.data.sphere_tokens(1, 4, 6, 8, rng=1)
rng = np.random.default_rng(1)
risk = ml.AttentionRisk(data[0], v[0]).as_factors(rng.normal(size=(4, 8)), 6)
start = rng.normal(size=risk.shape)
first = ml.theory.factor_balance(*risk.split(start))

# %%
# Descend by small steps.
times, sizes = STEP * np.arange(0, N_STEPS + 1, 20), {}
for decay in (0.0, 0.1, 0.3):
    rule = ml.GradientDescent(STEP, weight_decay=decay)
    run = ml.descend(risk, optimizer=rule, n_steps=N_STEPS, start=start, record=ml.Record(20))
    found = [ml.theory.factor_balance(*risk.split(x)).imbalance for x in run.saved["x"]]
    sizes[decay] = np.linalg.norm(found, axis=(1, 2)) / np.linalg.norm(first.imbalance)
    print(
        f"λ = {decay:g}: {sizes[decay][-1]:.4f} of the imbalance is left, {np.exp(-2.0 * decay * times[-1]):.4f} by the law"
    )

# %%
# Dots are runs, lines the law.
fig, ax = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
for (decay, size), colour in zip(sizes.items(), ml.plotting.ACCENTS, strict=False):
    ax.semilogy(times, size, "o", ms=4, color=colour, label=f"λ = {decay:g}")
    ax.semilogy(times, np.exp(-2.0 * decay * times), color=colour, lw=1.0)
ax.set(xlabel="time: steps times their size", ylabel="‖QᵀQ − KᵀK‖ over its first")
ax.set_title("What is not balanced fades like e^(−2λt)")
ax.legend()
plt.show()
