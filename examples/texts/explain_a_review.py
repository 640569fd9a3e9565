"""
Explain a review
================

A classifier of texts whose attention can be read: every word has a score that says how much it counts and a vote, and a text's decision is
the sum of attention times vote, exactly (B Eq. 1). Pairs of neighbouring words are tokens too, so "not dull" has its own vote.
"""

import matplotlib.pyplot as plt
import numpy as np

import marginlens as ml

plt.rcParams.update(ml.plotting.STYLE)
N_TEXTS = 600

# %%
# Made-up reviews: six filler words and one word that decides, which a "not" before it turns around.
rng = np.random.default_rng(0)
good, bad = ("wonderful", "superb", "moving"), ("dull", "awful", "boring")
filler = ("the", "film", "plot", "scene", "music", "was", "with", "a")


def review(liked):
    negated = rng.random() < 0.3
    word = rng.choice(good if liked != negated else bad)
    words = list(rng.choice(filler, 6))
    words.insert(int(rng.integers(7)), f"not {word}" if negated else word)
    return " ".join(words)


labels = ["liked" if i % 2 else "disliked" for i in range(N_TEXTS)]
texts = [review(label == "liked") for label in labels]

# %%
# It is a scikit-learn estimator.
n_training = 2 * N_TEXTS // 3
model = ml.AttentionTextClassifier().fit(texts[:n_training], labels[:n_training])
accuracy = model.score(texts[n_training:], labels[n_training:])
print(f"{accuracy:.1%} of the other reviews are classified rightly")

# %%
# One review, word by word. `to_html()` of the same object is a page with the words highlighted.
explanation = model.explain("The music was not dull, with a superb scene.")
print(explanation)

# %%
# Contributions add up to the decision: "dull" speaks against the film, and "not dull" outweighs it.
rows = sorted(explanation.rows, key=lambda row: row.contribution)
rows = [row for row in rows if abs(row.contribution) > 0.01 * max(abs(other.contribution) for other in rows)]
colours = [ml.plotting.GLOBAL if row.contribution < 0 else ml.plotting.LOCAL for row in rows]
fig, ax = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
ax.barh([row.token for row in rows], [row.contribution for row in rows], color=colours)
ax.axvline(0.0, color=ml.plotting.INK, lw=0.8)
ax.set(xlabel="contribution: attention × vote (left: disliked, right: liked)", ylabel="token")
ax.set_title("Why this review counts as liked")
ax.grid(visible=False, axis="y")
plt.show()
