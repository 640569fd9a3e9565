"""
Match and copy
==============

Attention learns to bring back the value of one matching token, under the squared loss. Where values have enough coordinates, the
loss vanishes only if the match gets all attention, and training goes to the widest margin by which one direction separates the
matches (X M). With too few coordinates other averages copy as well, and a run may stop there.
"""

import matplotlib.pyplot as plt
import numpy as np

import marginlens as ml

plt.rcParams.update(ml.plotting.STYLE)
N_STEPS = 1500

# %%
# Four inputs of six tokens with random keys, a match in each, and values of eight coordinates or of two.
rng = np.random.default_rng(26)
keys, match = rng.standard_normal((4, 6, 20)), rng.integers(6, size=4)
values = rng.standard_normal((4, 6, 8))
problems = {width: ml.data.TokenDataset(values[..., :width], np.ones(4), K=keys) for width in (8, 2)}

# %%
# What is known before training.
risks = {width: ml.risk.CopyRisk.of(data, match) for width, data in problems.items()}
for width, risk in risks.items():
    print(f"{width} coordinates: {ml.predict_limit(risk).why}")

# %%
# Train both. The cosine is that with the max-margin direction of the matches.
runs = {width: ml.descend(risk, optimizer=ml.NormalizedGD(0.5), n_steps=N_STEPS) for width, risk in risks.items()}
for width, run in runs.items():
    cosine = ml.correlation(run.final, ml.att_svm(problems[width], match).x)
    print(f"{width} coordinates: selects {run.selected.tolist()}, matches {match.tolist()}, cosine {cosine:.3f}")

# %%
# The attention of every input after training; a ring marks the match. With two coordinates the first input ends at another token.
figure, axes = plt.subplots(1, 2, figsize=(6.4, 3.4), layout="constrained")
for ax, (width, run) in zip(axes, runs.items(), strict=True):
    ax.imshow(run.attention, cmap="Blues", vmin=0.0, vmax=1.0)
    ax.scatter(match, range(4), s=320, facecolor="none", edgecolor=ml.plotting.GLOBAL, linewidth=2.5)
    ax.set(xlabel="token", ylabel="input", yticks=range(4), title=f"values of {width} coordinates")
    ax.grid(False)
plt.show()
