"""
Three heads, three margins
==========================

Three softmax heads share one value head, and their outputs are averaged. Started apart, they select different tokens on some inputs, and
each goes to the largest margin of its own (claim X-H). From equal starts they would stay one head.
"""

import matplotlib.pyplot as plt
import numpy as np

import marginlens as ml

plt.rcParams.update(ml.plotting.STYLE)
N_STEPS = 20_000

# %%
# Four inputs of six tokens; a row of W is the weights of a head. Steps of one length for each head are steepest in the max-row norm.
data, v = ml.data.sphere_tokens(1, 4, 6, 30, rng=8)
risk = ml.risk.MultiHeadRisk(data[0], v[0], 3)
start = 3.0 * np.random.default_rng(8).normal(size=risk.shape)
run = ml.descend(risk, optimizer=ml.SteepestDescent(ml.MaxRow(), 0.3), n_steps=N_STEPS, start=start)
selected = risk.by_head(run.selected)
print("selected, a column for each head:", *selected, sep="\n")

# %%
# The attention of each head, and the share of its best margin that it reaches for the tokens that it ends up with.
fig, axes = plt.subplots(1, 3, figsize=(6.4, 2.8), sharey=True, layout="constrained")
ends = []
for head, colours in enumerate(("Reds", "Blues", "Greens")):
    alone, p = ml.AttentionRisk(data[0], v[0]), run.final[head]
    rows = alone.margin_rows(selected[:, head]).rows
    ends.append((rows @ p).min() / np.linalg.norm(p) / ml.att_svm(data[0], selected[:, head]).margin)
    axes[head].imshow(alone.attention(p), cmap=colours, vmin=0.0, vmax=1.0)
    axes[head].set(xlabel="token", ylabel="input", xticks=range(6), yticks=range(4))
    axes[head].set_title(f"head {head + 1}: {100 * ends[-1]:.1f}%\nof its best margin")
    axes[head].grid(False)
plt.show()
