"""
Why is the heat map upside down?
================================

Attention pooling over frozen features: bags of handwritten digits, positive if they hold an 8. The prediction of every bag is right, and
from one start the attention lights up the 8s; from the other it ends at other digits. Both are limits of the same training, proved before
it. A bag that holds no 8 ends at a digit as well: the one that looks least like an 8 among those that the direction puts ahead.
Needs scikit-learn.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import marginlens as ml

plt.rcParams.update(ml.plotting.STYLE)
N_BAGS, N_PATCHES, TARGET = 12, 9, 8

# %%
# Bags of nine digits. The second half of the bags holds one 8 each.
images, digits = load_digits(return_X_y=True)
rng = np.random.default_rng(0)
labels = np.arange(N_BAGS) % 2
chosen = np.array([rng.choice(np.flatnonzero(digits != TARGET), N_PATCHES) for _ in labels])
chosen[labels == 1, rng.integers(N_PATCHES, size=N_BAGS // 2)] = rng.choice(
    np.flatnonzero(digits == TARGET), N_BAGS // 2
)
features = images / 16.0
data = ml.data.bags((features - features.mean(axis=0))[chosen], labels)

# %%
# The head is the difference of the two means. Attention starts along it, or against it.
head = features[digits == TARGET].mean(axis=0) - features[digits != TARGET].mean(axis=0)
STEP = ml.NormalizedGD(0.2)
ends = {}
for name, start in (("starts along the head", 3.0 * head), ("starts against it", -3.0 * head)):
    outcome = ml.predict_limit(data, head, start=start, optimizer=STEP, max_problems=1).outcome
    run = ml.descend(data, head, start=start, optimizer=STEP, n_steps=20_000)
    ends[name] = outcome.selected
    found = digits[chosen[np.arange(N_BAGS), outcome.selected]] == TARGET
    right = np.sign(run.attention[:, None] @ data.X @ head).ravel() == data.y
    print(f"{name}: {found.sum()} of {labels.sum()} positive bags end at their 8; {outcome.proof}")
    print(
        f"  as the run does: {bool((run.selected == outcome.selected).all())}; bags classified rightly: {right.mean():.0%}"
    )

# %%
# Every row is a bag; the patch at which its attention ends is marked, in orange if it is an 8.
figure, panels = plt.subplots(1, 2, figsize=(6.4, 3.9), layout="constrained")
side = 10
for axes, (name, selected) in zip(panels, ends.items(), strict=True):
    rows = np.argsort(-labels, kind="stable")
    picture = np.pad(images[chosen[rows]].reshape(N_BAGS, N_PATCHES, 8, 8), ((0, 0), (0, 0), (1, 1), (1, 1)))
    axes.imshow(picture.swapaxes(1, 2).reshape(side * N_BAGS, side * N_PATCHES), cmap="Greys")
    for row, bag in enumerate(rows):
        is_target = digits[chosen[bag, selected[bag]]] == TARGET
        colour = ml.plotting.GLOBAL if is_target else ml.plotting.LOCAL
        corner = (side * selected[bag] - 0.5, side * row - 0.5)
        axes.add_patch(plt.Rectangle(corner, side, side, fill=True, color=colour, alpha=0.25))
        axes.add_patch(plt.Rectangle(corner, side, side, fill=False, color=colour, lw=2.5))
    axes.axhline(side * labels.sum() - 0.5, color=ml.plotting.INK, lw=1.5)
    axes.set(xticks=[], title=name, xlabel="nine patches of each bag", ylabel="bags")
    axes.set_yticks([side * 3, side * 9], ["with an 8", "without"], rotation=90, va="center")
    axes.grid(visible=False)
plt.show()
