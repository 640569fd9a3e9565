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
# Train both, and follow the cosine with the max-margin direction of the matches.
runs = {}
figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
for (width, risk), colour in zip(risks.items(), (ml.plotting.GLOBAL, ml.plotting.LOCAL), strict=True):
    run = runs[width] = ml.descend(risk, optimizer=ml.NormalizedGD(0.5), n_steps=N_STEPS, record=ml.Record(1))
    cosine = ml.correlation(run.saved["x"][1:], ml.att_svm(problems[width], match).x)
    print(f"{width} coordinates: selects {run.selected.tolist()}, the matches are {match.tolist()}")
    axes.plot(np.arange(1, N_STEPS + 1), cosine, color=colour, label=f"values of {width} coordinates")
axes.set(xscale="log", xlabel="step", ylabel="cosine with the max-margin direction", ylim=(0.0, 1.03))
axes.set_title("Copying goes to the max-margin direction of the matches")
axes.legend(frameon=False)
plt.show()
