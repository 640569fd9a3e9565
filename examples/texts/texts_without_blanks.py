"""
Texts without blanks
====================

Chinese puts no blanks between words, so that words cannot be found by looking for blanks. With `characters=True` every character is a
token, and so are phrases of two and three: the classifier finds by itself that 很好看 (very good to watch) speaks for a film and 不好看
(not good to watch) against it, although two of three characters are the same.
"""

import matplotlib.pyplot as plt
import numpy as np

import marginlens as ml

plt.rcParams.update(ml.plotting.STYLE)
N_TEXTS = 400

# %%
# Made-up reviews: who or what is spoken of, and what is said of it.
rng = np.random.default_rng(0)
things = ("这部电影", "故事", "音乐", "演员", "结尾")
liked = ("很好看", "好极了", "不难看", "真感人", "不无聊")
disliked = ("不好看", "难看极了", "真无聊", "不感人", "太长了")
meaning = {
    "很好看": "very good to watch",
    "不好看": "not good to watch",
    "真感人": "truly moving",
    "不感人": "not moving",
}
meaning |= {"难看极了": "very ugly", "不难看": "not ugly", "真无聊": "truly boring", "不无聊": "not boring"}
labels = np.array(["liked" if i % 2 else "disliked" for i in range(N_TEXTS)])
texts = [
    "，".join(f"{rng.choice(things)}{rng.choice(liked if label == 'liked' else disliked)}" for _ in range(2)) + "。"
    for label in labels
]
print(texts[:2])

# %%
# The same estimator; without `characters=True` it warns that the texts seem to have no blanks.
n_training = N_TEXTS // 2
model = ml.AttentionTextClassifier(characters=True).fit(texts[:n_training], labels[:n_training])
accuracy = model.score(texts[n_training:], labels[n_training:])
print(f"{accuracy:.1%} of the other reviews are classified rightly")
print(model.explain("这部电影不好看"))

# %%
# What decides is the whole phrase: 不 (not) turns good into bad and bad into good.
log_odds = model.decision_function(list(meaning))
order = np.argsort(log_odds)
names = [list(meaning.values())[k] for k in order]
fig, ax = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
colours = [ml.plotting.GLOBAL if log_odds[k] < 0 else ml.plotting.LOCAL for k in order]
ax.barh(names, log_odds[order], color=colours)
ax.axvline(0.0, color=ml.plotting.INK, lw=0.8)
ax.set(xlabel="log-odds (left: disliked, right: liked)", ylabel="phrase, in English")
ax.set_title("Phrases read character by character")
ax.grid(visible=False, axis="y")
plt.show()
