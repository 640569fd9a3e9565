"""The scan of the text classifier's constants at a small size: it changes them, puts them back, and prints a row for each."""

import csv

import numpy as np
import pytest

from benchmarks import text_constants, text_selective
from made_up_reviews import reviews
from marginlens.text import learning


@pytest.fixture
def imdb(tmp_path, monkeypatch):
    for name, value in {"N_TEXTS": 60, "N_JUDGED": 40, "N_DRAWS": 1, "CONSTANTS": ("epochs", "VOTE_RATE")}.items():
        monkeypatch.setattr(text_constants, name, value)
    with (tmp_path / "imdb.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [("text", "label", "split"), *((*row, "train") for row in zip(*reviews(120), strict=True))]
            + [(*row, "test") for row in zip(*reviews(40, seed=1), strict=True)]
        )
    return tmp_path / "imdb.csv"


def test_constants_are_changed_for_a_row_and_put_back(imdb):
    before, lines = learning.VOTE_RATE, []
    text_constants.main(str(imdb), lines.append)
    assert before == learning.VOTE_RATE
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[-2:]]
    assert [row[0] for row in rows] == ["epochs", "VOTE_RATE"]
    assert all(float(row[2]) and float(row[3]) for row in rows)  # twice a value learns otherwise than half of it


def test_the_attended_tokens_are_counted_without_the_rest_token():
    model = text_selective.AttentionTextClassifier(epochs=1, ngrams=1).fit(["fine film", "dull film"] * 5, [1, 0] * 5)
    names = list(model.tokens_.names)
    model.a_ = np.array([{"fine": 9.0, "film": 0.0, "dull": 0.0}[name] for name in names])
    assert text_selective.n_attended(model, ["fine film", "zebra"]) == (1.0, 2.0)
    assert text_selective.n_attended(model, ["dull film"]) == (2.0, 2.0)
