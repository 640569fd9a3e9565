"""How much the text classifier's constants matter: each at half and at twice its value, by log-loss on held-out training texts.

`python -m benchmarks.text_constants --imdb FILE` prints a table. Models learn from some of IMDB's *training* texts and are judged on others
of them, so that no text takes part on which a table of docs/text.md tests. A difference is the mean over draws of texts, each beside
the default on the same draw.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from benchmarks.text import _Data
from marginlens.runtime.progress import Progress
from marginlens.text import learning
from marginlens.text.classifier import default_pipeline
from marginlens.text.learning import LearningSettings, TokenSets, learn, log_probabilities, token_sets
from marginlens.text.phrases import WordsAndPhrases
from marginlens.typing import FloatArray, IntArray

N_TEXTS, N_JUDGED, N_DRAWS = 3000, 3000, 2
CONSTANTS = (  # of marginlens.text.learning, or of LearningSettings in lower case
    "epochs",
    "learning_rate",
    "VOTE_RATE",
    "START_SCALE",
    "PRIOR_COUNT",
    "START_SQUARES",
    "MAX_DROPPED",
    "EXCERPT_SHARE",
    "MIN_EXCERPT",
    "HELD_OUT_SHARE",
    "CALIBRATION_PENALTY",
)


class Draw(NamedTuple):
    """Texts to learn from and texts to judge by."""

    texts: TokenSets
    labels: IntArray
    other_texts: TokenSets
    other_labels: IntArray


def draws(imdb: str) -> Iterator[Draw]:
    """Texts of IMDB's training part, and others of it."""
    split = _Data(imdb, None, 0).imdb
    labels = (split.labels == np.unique(split.labels)[1]).astype(np.int64)
    for seed in range(N_DRAWS):
        order = np.random.default_rng(seed).permutation(len(labels))
        chosen, others = order[:N_TEXTS], order[N_TEXTS : N_TEXTS + N_JUDGED]
        tokens, places = WordsAndPhrases.fit([split.texts[i] for i in chosen], default_pipeline(min_count=2), 3, 2)
        other_places = tokens.positions([split.texts[i] for i in others])
        sets = [token_sets(each.tokens, each.offsets, len(tokens)) for each in (places, other_places)]
        yield Draw(sets[0], labels[chosen], sets[1], labels[others])


def scores(draw: Draw, seed: int, **settings: Any) -> FloatArray:
    """(2,) log-loss and accuracy on the other texts."""
    chosen = LearningSettings(seed=seed, min_texts=2, **settings)
    watch = Progress(None, 1)
    votes = learn(draw.texts, draw.labels, np.ones(len(draw.labels)), 2, chosen, watch).votes
    log_p = log_probabilities(votes.outputs(draw.other_texts))
    right = log_p[np.arange(len(log_p)), draw.other_labels]
    return np.array([-right.mean(), np.mean(log_p.argmax(axis=1) == draw.other_labels)])


@contextmanager
def constant(name: str, value: float) -> Iterator[dict[str, Any]]:
    """The settings to learn with while a constant has another value."""
    if name.islower():
        yield {name: value}
        return
    before = getattr(learning, name)
    setattr(learning, name, value)
    try:
        yield {}
    finally:
        setattr(learning, name, before)


def main(imdb: str, write: Callable[[str], None] = print) -> None:
    """Print a table: log-loss at half and at twice a constant's value, less that at the value itself, and the same of accuracy."""
    data = list(draws(imdb))
    usual = [scores(draw, seed) for seed, draw in enumerate(data)]
    loss, accuracy = np.mean(usual, axis=0)
    write(
        f"log-loss {loss:.4f}, accuracy {accuracy:.2%}: {N_TEXTS:,} texts to learn from, {N_JUDGED:,} others, {N_DRAWS} draws\n"
    )
    write("| constant | value | log-loss at half | at twice | accuracy at half | at twice |")
    write("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name in CONSTANTS:
        value = getattr(LearningSettings(), name) if name.islower() else getattr(learning, name)
        changes = []
        for factor in (0.5, 2.0):
            with constant(name, type(value)(factor * value)) as settings:
                found = [scores(draw, seed, **settings) for seed, draw in enumerate(data)]
            changes.append(np.mean(np.subtract(found, usual), axis=0))
        losses, points = (" | ".join(format(change[k], f) for change in changes) for k, f in ((0, "+.4f"), (1, "+.2%")))
        write(f"| {name} | {value:g} | {losses} | {points} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--imdb", required=True, help="the reviews of IMDB")
    main(parser.parse_args().imdb, lambda line: print(line, flush=True))
