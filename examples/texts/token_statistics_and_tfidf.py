"""
What counts of words say about reviews
======================================

Paper B says where the embeddings of a one-layer classifier go at first: along v, by the share of a word's occurrences in each class.
These shares are counts. Beside them stand the weights that logistic regression gives the same words after TF-IDF, the usual way to
classify texts.
"""

import csv
import re
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import marginlens as ml

plt.rcParams.update(ml.plotting.STYLE)
RATE = 10.0  # of the first step

# %%
# Made-up reviews that read like real ones, good and bad; the last third is held out. Ids follow the words of the first two thirds.
with tempfile.TemporaryDirectory() as folder:
    ml.data.write_samples(folder)
    with (Path(folder) / "reviews.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
texts = [row["text"] for row in rows]
y = np.array([1.0 if row["label"] == "good" else -1.0 for row in rows])
n_training = 2 * len(texts) // 3
words = [re.findall(r"\w+", text.lower()) for text in texts]
vocabulary = sorted({word for listed in words[:n_training] for word in listed})
ids = {word: k for k, word in enumerate(vocabulary)}
sequences = [[ids[word] for word in listed if word in ids] for listed in words]

# %%
# Counts of every word under each label, and the first step of training from small random embeddings (B Lemma 2).
training = ml.data.LabelledSequences(sequences[:n_training], y[:n_training], len(vocabulary))
statistics = ml.token_statistics(training)
start = ml.embeddings.initial_parameters(len(vocabulary), 512, 0, "float64")
step = ml.embeddings.first_step(start, RATE, training)
moved = (step.after.E - step.start.E) @ step.start.v / (step.start.v @ step.start.v)
agreement = np.corrcoef(moved, 0.5 * RATE * step.alpha)[0, 1]
print(f"moves along v and counts have the correlation {agreement:.4f}")

# %%
# Each classifies what is held out: the sum of a text's posterior differences, in which every word has the same attention, and logistic
# regression. The second weighs words jointly, and is what one should use.
votes = np.array([np.sum(statistics.posterior_difference[listed]) for listed in sequences])
accuracy = np.mean(np.sign(votes[n_training:]) == y[n_training:])
tfidf = make_pipeline(TfidfVectorizer(token_pattern=r"\w+"), LogisticRegression(C=10.0))
tfidf.fit(texts[:n_training], y[:n_training])
rival = tfidf.score(texts[n_training:], y[n_training:])
print(f"right on held-out reviews: {accuracy:.1%} by counts, {rival:.1%} by TF-IDF and logistic regression")

# %%
# Words on which both agree lie in the lower left and the upper right; where counts are near zero, the two may differ in sign.
weights = tfidf[-1].coef_[0][[tfidf[0].vocabulary_[word] for word in vocabulary]]
frequent = statistics.count >= 10
fig, ax = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
difference = statistics.posterior_difference
ax.scatter(difference[frequent], weights[frequent], s=14, color=ml.plotting.LOCAL, alpha=0.6)
for k in np.argsort(-np.abs(weights) * frequent)[:8]:
    ax.annotate(vocabulary[k], (difference[k], weights[k]), xytext=(0, 5), textcoords="offset points", ha="center")
ax.axhline(0.0, color=ml.plotting.INK, lw=0.8)
ax.axvline(0.0, color=ml.plotting.INK, lw=0.8)
ax.set(xlabel="posterior difference, from counts", ylabel="weight in logistic regression", xlim=(-1.15, 1.15))
ax.set_title("Counts and weights rise together")
plt.show()
