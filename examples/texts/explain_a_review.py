"""B Thm 5 and Eq. (1): attention with trained embeddings finds the tokens that decide, and its softmax shows them text by text.

Usage: python examples/texts/explain_a_review.py [PAGE.html]
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

import marginlens as ml

# Data: made-up reviews of six filler words and one word that decides, which a "not" before it turns around.
rng = np.random.default_rng(0)
good, bad = ("wonderful", "superb", "moving"), ("dull", "awful", "boring")
filler = ("the", "film", "plot", "scene", "music", "was", "with", "a")


def review(liked):
    negated = rng.random() < 0.3
    word = rng.choice(good if liked != negated else bad)
    words = list(rng.choice(filler, 6))
    words.insert(int(rng.integers(7)), f"not {word}" if negated else word)
    return " ".join(words)


labels = ["liked" if i % 2 else "disliked" for i in range(600)]
texts = [review(label == "liked") for label in labels]

# Solve: train on the first 400; words and pairs of neighbouring words are the tokens.
model = ml.AttentionTextClassifier().fit(texts[:400], labels[:400])
print(f"{model.score(texts[400:], labels[400:]):.1%} of 200 other reviews are classified rightly, with {model.tokens_}")

# Look: the tokens that most reviews select, then one review, as a table and as a page.
table = model.token_importance_
for row in table[np.argsort(-table["selected"], kind="stable")][:6]:
    votes = f"<E,p> = {row['a']:+.2f}, <E,v> = {row['b']:+.2f}, posterior difference {row['posterior_difference']:+.2f}"
    print(f"selected in {row['selected']:3d} reviews: {row['token']:14s} {votes}")
text = "The music was not dull, with a superb scene."
explanation = model.explain(text)
print(explanation)
print(f"selection margin {model.selection_margin(text):.3f}")
place = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp()) / "review.html"
place.write_text(explanation.to_html(), encoding="utf-8")
print(f"The highlighted review is at {place}")

# What to notice: "dull" alone speaks against the film; "not dull" outweighs it, because it has the larger product with p.
