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
record = ml.Record(ml.plotting.recorded_steps(N_STEPS))
run = ml.descend(risk, optimizer=ml.SteepestDescent(ml.MaxRow(), 0.3), n_steps=N_STEPS, start=start, record=record)
selected = risk.by_head(run.selected)
print("selected, a column for each head:", *selected, sep="\n")

# %%
# The share of each head's best margin, for the tokens that it ends up with.
fig, ax = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
ends = []
for head in range(3):
    best = ml.att_svm(data[0], selected[:, head])
    rows = ml.AttentionRisk(data[0], v[0]).margin_rows(selected[:, head]).rows
    shares = [(rows @ W[head]).min() / np.linalg.norm(W[head]) / best.margin for W in run.saved["x"][1:]]
    ends.append(shares[-1])
    ax.plot(run.saved.steps[1:], shares, color=ml.plotting.ACCENTS[head], label=f"head {head + 1}")
ax.axhline(1.0, color=ml.plotting.INK, lw=0.8)
ax.set(xscale="log", xlabel="step", ylabel="share of its best margin", ylim=(-1.0, 1.05))
ax.set_title("Each head goes to its own margin")
ax.legend()
plt.show()
