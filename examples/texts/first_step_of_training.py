"""
The first step of training
==========================

After one step of gradient descent every embedding has moved along v, in proportion to how its token is spread over the classes,
up to an error that wide models make small (B Lemma 2). So the vote of a token is known from counts alone.
"""

import matplotlib.pyplot as plt
import numpy as np

import marginlens as ml

plt.rcParams.update(ml.plotting.STYLE)
WIDTHS = [64, 1024]

# %%
# Sequences of the K-level model, in which some tokens tell the label and most do not.
levels = ml.data.Levels(deltas=(0.45, 0.3, 0.15, 0.05), n_irrelevant=100, share=0.05)
sequences = ml.data.level_sequences(500, 30, 0, levels)

# %%
# One step from a random start, in a narrow and in a wide model.
steps = {}
for width in WIDTHS:
    start = ml.embeddings.initial_parameters(sequences.n_vocabulary, width, 0, "float64")
    steps[width] = ml.embeddings.first_step(start, 10.0, sequences)
    print(f"width {width}: {steps[width]}")

# %%
# How far each token moved along v, over what its counts predict.
fig, ax = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
for (width, step), colour in zip(steps.items(), (ml.plotting.NEITHER, ml.plotting.LOCAL), strict=True):
    v = step.start.v
    moved = (step.after.E - step.start.E) @ v / (v @ v)
    ax.scatter(step.alpha, moved, s=18, color=colour, label=f"{width} dimensions")
low, high = step.alpha.min(), step.alpha.max()
ends = np.array([low, high])
ax.plot(ends, 0.5 * step.rate * ends, color=ml.plotting.GLOBAL, lw=1.2, label="the lemma's prediction")
ax.set(xlabel="signed share α of the token, from counts", ylabel="move of its embedding along v")
ax.locator_params(axis="x", nbins=5)
ax.set_title("The first step is known from counts")
ax.legend()
plt.show()
