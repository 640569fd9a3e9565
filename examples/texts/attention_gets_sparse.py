"""
Attention of a text gets sparse
===============================

As the classifier is usually trained, its attention over the words of a text is nearly even, and what decides is their votes. Scores that
learn much faster concentrate it: the effective number of tokens, :math:`\\|s\\|_1^2 / \\|s\\|_2^2` of the attention s, falls from all words
towards the ones that decide. B Thm 5 is about gradient flow on p alone, which gets there in the end.
"""

import matplotlib.pyplot as plt
import numpy as np

import marginlens as ml

plt.rcParams.update(ml.plotting.STYLE)
N_TEXTS = 400
USUAL = ml.AttentionTextClassifier().learning_rate
RATES = [0.01, USUAL, 0.3, 1.0, 3.0]

# %%
# Made-up complaints and thanks: ten filler words and two that decide.
rng = np.random.default_rng(1)
thanks, complaints = ("grateful", "perfect", "lovely"), ("broken", "late", "refund")
filler = ("the", "parcel", "came", "and", "my", "order", "from", "shop", "on", "day", "again", "box")


def message(kind):
    words = [*rng.choice(filler, 10), *rng.choice(thanks if kind == "thanks" else complaints, 2)]
    return " ".join(rng.permutation(words))


kinds = ["thanks" if i % 2 else "complaint" for i in range(N_TEXTS)]
texts = [message(kind) for kind in kinds]

# %%
# The same number of epochs at growing learning rates of the scores; all of these models classify every text rightly.
models = [ml.AttentionTextClassifier(ngrams=1, epochs=60, learning_rate=rate).fit(texts, kinds) for rate in RATES]


def effective_tokens(model, text):
    attention = np.array([row.attention for row in model.explain(text).known])
    return np.sum(attention) ** 2 / np.sum(attention**2)


sparsity = np.array([[effective_tokens(model, text) for text in texts[:50]] for model in models])
print("accuracy", [round(model.score(texts, kinds), 2) for model in models])
print("words attended to", dict(zip(RATES, sparsity.mean(axis=1).round(1).tolist(), strict=True)))

# %%
# Grey lines are texts, the thick one their mean.
fig, ax = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
ax.plot(RATES, sparsity, color=ml.plotting.NEITHER, lw=0.8)
ax.plot(RATES, sparsity.mean(axis=1), "o-", color=ml.plotting.LOCAL, lw=2.5, label="mean of 50 texts")
ax.axhline(2.0, color=ml.plotting.GLOBAL, ls="--", lw=1.2, label="the two words that decide")
ax.axvline(USUAL, color=ml.plotting.PATH, ls=":", lw=1.2, label="the usual rate: nearly even")
ax.set(xscale="log", xlabel="learning rate of the scores", ylabel="words attended to", ylim=(0.0, None))
ax.set_title("Attention gets sparse only far beyond the usual rate")
ax.legend(loc="lower left")
plt.show()
