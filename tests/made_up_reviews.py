"""Reviews made up for tests."""

import numpy as np

GOOD, BAD = ("wonderful", "superb", "moving"), ("dull", "awful", "boring")
FILLER = ("the", "film", "plot", "actor", "scene", "a", "was", "music", "with", "ending")


def reviews(n, seed=0, labels=("bad", "good")):
    """Made-up reviews: filler, and one word or a negated word that decides."""
    rng = np.random.default_rng(seed)
    texts, y = [], []
    for i in range(n):
        said = i % 2
        negated = rng.random() < 0.3
        word = rng.choice((GOOD if said else BAD) if not negated else (BAD if said else GOOD))
        words = list(rng.choice(FILLER, size=8))
        place = int(rng.integers(0, 9))
        words[place:place] = ["not", str(word)] if negated else [str(word)]
        texts.append(" ".join(words).capitalize() + ".")
        y.append(labels[said])
    return texts, y
