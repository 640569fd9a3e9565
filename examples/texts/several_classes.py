"""
Several classes, one softmax
============================

Messages of four kinds are told apart by one softmax over all classes. Every token has a vote for each of them, so that one explanation
says what speaks for a class and what against it. A message with words of two kinds is called undecided, as it should be.
"""

import matplotlib.pyplot as plt
import numpy as np

import marginlens as ml

plt.rcParams.update(ml.plotting.STYLE)
N_TEXTS = 800

# %%
# Made-up messages to a shop. In a fifth of them a word of another kind stands beside the one that decides.
rng = np.random.default_rng(0)
said = {
    "bill": ("invoice", "refund", "charged twice", "payment"),
    "delivery": ("parcel", "not arrived", "courier", "tracking"),
    "fault": ("broken", "does not start", "crack", "noisy"),
    "praise": ("thank you", "wonderful", "perfect", "so happy"),
}
kinds = list(said)
filler = ("hello", "about", "my", "order", "again", "please", "today", "the")


def message(kind):
    words = [*rng.choice(filler, 5), rng.choice(said[kind])]
    if rng.random() < 0.2:
        words.append(rng.choice(said[rng.choice(kinds)]))
    return " ".join(rng.permutation(words))


labels = np.array([kinds[i % 4] for i in range(N_TEXTS)])
texts = [message(kind) for kind in labels]

# %%
# Nothing says how many classes there are: the labels do. The order of these words says nothing, so that tokens are words alone.
n_training = 3 * N_TEXTS // 4
model = ml.AttentionTextClassifier(ngrams=1).fit(texts[:n_training], labels[:n_training])
predicted = model.predict(texts[n_training:])
accuracy = np.mean(predicted == labels[n_training:])
print(f"{accuracy:.1%} of the other messages are classified rightly")

# %%
# One message with words of two kinds: contributions to each class add up to its output, and softmax makes probabilities of them.
explanation = model.explain("hello, the parcel is broken")
print(explanation)
total = np.sum([row.contributions for row in explanation.rows], axis=0)
print(dict(zip(explanation.classes, total.round(3), strict=True)), np.abs(total - explanation.outputs).max())

# %%
# What its tokens contribute to the four classes.
rows = sorted(explanation.rows, key=lambda row: -max(np.abs(row.contributions)))[:5]
fig, ax = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
for k, kind in enumerate(explanation.classes):
    places = np.arange(len(rows)) + 0.2 * (k - 1.5)
    ax.bar(places, [row.contributions[k] for row in rows], 0.18, label=f"{kind}: {explanation.probabilities[k]:.0%}")
ax.axhline(0.0, color=ml.plotting.INK, lw=0.8)
ax.set_xticks(np.arange(len(rows)), [row.token for row in rows])
ax.set(xlabel="token", ylabel="contribution to a class")
ax.set_title("“hello, the parcel is broken”: what speaks for which class")
ax.grid(visible=False, axis="x")
ax.legend(title="probability")
plt.show()
