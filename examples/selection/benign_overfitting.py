"""
Benign overfitting
==================

Each input has a token that says its class and a token of noise of its own; a tenth of the labels is flipped. Head and attention fit
all labels: for flipped ones attention goes to the noise, which serves as a memory. Whether new inputs are classified right is
decided by the ratio of signal to noise, around two over the root of the number of inputs (claim X-F).
"""

import matplotlib.pyplot as plt
import numpy as np

import marginlens as ml

plt.rcParams.update(ml.plotting.STYLE)
N_INPUTS, WIDTH = 60, 1500
ratios = np.array([0.5, 1.0, 1.5, 2.0, 3.0, 4.0]) / np.sqrt(N_INPUTS)

# %%
# Train head and attention at every ratio; test on new inputs whose labels are true.
rule = ml.optimizers.Blockwise(ml.NormalizedGD(0.5))
fitted, right, on_noise = [], [], []
for ratio in ratios:
    data, classes = ml.data.signal_and_noise(N_INPUTS, WIDTH, ratio, rng=1, flipped=0.1)
    risk = ml.JointRisk(data)
    run = ml.descend(risk, optimizer=rule, n_steps=200)
    v, p = risk.split(run.final)
    new, _ = ml.data.signal_and_noise(400, WIDTH, ratio, rng=2)
    fitted.append(np.mean(ml.AttentionRisk(data, v).margins(p) > 0.0))
    right.append(np.mean(ml.AttentionRisk(new, v).margins(p) > 0.0))
    on_noise.append(run.attention[data.y != classes, 1].mean())
print("labels that are fitted:", np.round(fitted, 2))
print("new inputs that are right:", np.round(right, 2))
print("attention to noise where the label is flipped:", np.round(on_noise, 2))

# %%
# Every label is fitted at every ratio; only the larger ones generalise.
figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
places = np.arange(len(ratios))
axes.bar(places, fitted, 0.8, color="#e4e7ea", label="training labels that are fitted")
axes.bar(places, right, 0.5, color=ml.plotting.GLOBAL, label="new inputs that are right")
axes.axhline(0.5, color=ml.plotting.INK, ls="--", lw=1.2, label="chance")
axes.set_xticks(places, [f"{ratio * np.sqrt(N_INPUTS):g}" for ratio in ratios])
axes.set(xlabel="ratio of signal to noise, times √n", ylabel="share", ylim=(0.0, 1.0))
axes.set_title("Every label is fitted; from a ratio on, nothing is lost by it")
figure.legend(loc="outside lower center", ncols=3)
plt.show()
