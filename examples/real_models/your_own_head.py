"""
Measure a head of your own
==========================

No model is needed to measure a head, only what enters it and its two maps. A small head is grown step by step here: as its weights
grow, attention gets sparser and the selected token leads by more, while what it selects stays.
"""

import matplotlib.pyplot as plt
import numpy as np

import marginlens as ml
from marginlens.probe import KeyQueryMap, relative_sparsity, select_tokens

plt.rcParams.update(ml.plotting.STYLE)
SCALES = np.geomspace(0.02, 20.0, 25)

# %%
# Twelve random tokens, and a head with random keys and queries of width 8.
rng = np.random.default_rng(0)
x = rng.normal(size=(12, 32)) / np.sqrt(32.0)
head = KeyQueryMap(rng.normal(size=(32, 8)), rng.normal(size=(32, 8)), np.zeros(8), 8**-0.5)
logits = x @ head.matrix.T @ x.T  # (queries, tokens)

# %%
# Attention of the same head with all its weights scaled.
share, same = [], []
for scale in SCALES:
    attention = np.exp(scale * logits - (scale * logits).max(axis=-1, keepdims=True))
    attention /= attention.sum(axis=-1, keepdims=True)
    share.append(relative_sparsity(attention))
    same.append(np.all(select_tokens(scale * logits).selected == select_tokens(logits).selected))
print("the same tokens are selected at every scale:", all(same))

# %%
# Every query goes from all tokens to one of them; the size of the weights decides where in between a head stands.
fig, ax = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
ax.plot(SCALES, share, color=ml.plotting.LOCAL, alpha=0.5)
ax.plot(SCALES, np.mean(share, axis=1), color=ml.plotting.GLOBAL, lw=2.5, label="mean over queries")
ax.axhline(1.0 / len(x), color=ml.plotting.INK, ls="--", lw=1.0, label="one token of twelve")
ax.set(xscale="log", xlabel="scale of the weights", ylabel="share of the tokens attended to (nnz/T)", ylim=(0.0, 1.05))
ax.set_title("Larger weights, sparser attention")
ax.legend()
plt.show()
