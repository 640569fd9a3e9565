"""TF-IDF with logistic regression that says what every word contributes, for races of explanations."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, NamedTuple

import numpy as np

from marginlens.text.baselines import WORD_OR_SIGN, TfidfLogistic, plain_text


class Stretch(NamedTuple):
    """A stretch `text[start:end]` and what it contributes to the output of the predicted class."""

    start: int
    end: int
    contribution: float


class ExplainedTfidf(TfidfLogistic):
    """The same classifier with contributions of words, which add up to its output."""

    def output(self, text: str) -> float:
        """What is explained: the log-odds of the predicted class for two classes, else its output before the softmax."""
        f = np.atleast_1d(self._model.decision_function(self._vectorizer.transform([text]))[0])
        return float(abs(f[0]) if len(f) == 1 else f.max())

    def contributions(self, text: str) -> list[Stretch]:
        """What every word contributes to `output`: weight times value, a phrase shared by its words, equal phrases by their places.

        They and `intercept(text)` add up to `output(text)`.
        """
        row, sign, k = self._explained(text)
        weights = sign * self._model.coef_[k][row.indices] * row.data
        names = self._vectorizer.get_feature_names_out()[row.indices]
        value = dict(zip(names.tolist(), weights.tolist(), strict=True))
        found = list(re.finditer(WORD_OR_SIGN, plain_text(text)))
        words = [match.group() for match in found]
        phrases = [
            (" ".join(words[i : i + length]), range(i, i + length))
            for length in range(1, self.ngrams + 1)
            for i in range(len(words) - length + 1)
        ]
        count = Counter(phrase for phrase, _ in phrases)
        shares = np.zeros(len(words))
        for phrase, places in phrases:
            if phrase in value:
                shares[list(places)] += value[phrase] / count[phrase] / len(places)
        return [Stretch(*match.span(), share) for match, share in zip(found, shares.tolist(), strict=True)]

    def intercept(self, text: str) -> float:
        """The part of `output(text)` that no word contributes."""
        _, sign, k = self._explained(text)
        return float(sign * self._model.intercept_[k])

    def _explained(self, text: str) -> tuple[Any, float, int]:
        """The text's values, and the sign and row of the weights that speak for the predicted class."""
        row = self._vectorizer.transform([text])
        f = np.atleast_1d(self._model.decision_function(row)[0])
        return (row, 1.0 if f[0] > 0.0 else -1.0, 0) if len(f) == 1 else (row, 1.0, int(f.argmax()))
