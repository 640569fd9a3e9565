"""What selective attention of the text classifier costs: accuracy beside how many tokens of a text have 90 % of its attention.

`python -m benchmarks.text_selective --imdb FILE --yelp FILE` prints the table of docs/text.md: IMDB's official split, and the first split
of Yelp's balanced reviews that `benchmarks.text` draws.
"""

from __future__ import annotations

import argparse
from itertools import pairwise

import numpy as np

from benchmarks.text import _Data, _scores
from marginlens.text.classifier import AttentionTextClassifier

N_MEASURED = 1000  # test texts whose attention is measured
SHARE = 0.9


def n_attended(model: AttentionTextClassifier, texts: list[str]) -> tuple[float, float]:
    """Medians over texts: how many tokens have 90 % of the attention that all but the rest token have, and how many tokens there are."""
    tokens, offsets = model.tokens_.positions(texts)
    counts = []
    for first, last in pairwise(offsets):
        a = model.a_[np.unique(tokens[first:last])]
        if len(a):
            attention = np.sort(np.exp(a - a.max()))[::-1]
            needed = np.searchsorted(np.cumsum(attention), SHARE * attention.sum()) + 1
            counts.append((needed, len(a)))
    few, every = np.median(counts, axis=0)
    return float(few), float(every)


def main(imdb: str, yelp: str) -> None:
    data = _Data(imdb, yelp, 0)
    print(
        "| texts | selective | accuracy | log-loss | tokens with 90 % of the attention, of all |\n| --- | --- | ---: | ---: | ---: |"
    )
    for name, split in (("Yelp", data.yelp_split(0)), ("IMDB", data.imdb)):
        for selective in (False, True):
            model = AttentionTextClassifier(selective=selective).fit(split.texts, split.labels)
            scores = _scores(model, split.test_texts, split.test_labels)
            few, every = n_attended(model, split.test_texts[:N_MEASURED])
            cells = f"{scores['accuracy']:.2%} | {scores['log_loss']:.3f} | {few:.0f} of {every:.0f}"
            print(f"| {name} | {'yes' if selective else 'no'} | {cells} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--imdb", required=True, help="the reviews of IMDB")
    parser.add_argument("--yelp", required=True, help="Yelp's reviews")
    main(**vars(parser.parse_args()))
