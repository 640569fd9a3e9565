"""NB-SVM, a rival of the text classifier: a linear model whose features are weighed by naive Bayes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.feature_extraction.text import CountVectorizer

from marginlens.text.baselines import WORD_OR_SIGN, cross_validated, plain_text
from marginlens.typing import FloatArray

NB_SMOOTHING = 1.0  # added to the counts of NB-SVM
NB_INVERSE_PENALTIES = (0.1, 0.3, 1.0)  # C of NB-SVM, whose features are larger


class NaiveBayesSvm:
    """NB-SVM: a linear model on which words and phrases a text has, each times its log-ratio of naive Bayes, one model for each class.

    The loss is the logistic, which gives probabilities, and C is cross-validated; words are lower case, punctuation marks count as words.

    Args:
        ngrams: most words of a phrase. seed: of the folds.
    """

    def __init__(self, ngrams: int = 3, seed: int = 0) -> None:
        self.name = f"NB-SVM of phrases of up to {ngrams} words"
        self.ngrams, self.seed = ngrams, seed

    def fit(self, texts: Sequence[str], labels: Any) -> NaiveBayesSvm:
        """Learn from texts and their labels."""
        self._vectorizer = CountVectorizer(
            preprocessor=plain_text,
            token_pattern=WORD_OR_SIGN,
            ngram_range=(1, self.ngrams),
            binary=True,
            dtype=np.float32,
        )
        start = time.perf_counter()
        X = self._vectorizer.fit_transform(texts)
        self.fit_seconds = time.perf_counter() - start
        self.classes_, labels = np.unique(np.asarray(labels), return_inverse=True)
        self._parts = []
        chosen = []
        for label in range(len(self.classes_))[-1 if len(self.classes_) == 2 else 0 :]:
            inside = labels == label
            ratio = _log_ratio(X[inside]) - _log_ratio(X[~inside])
            tuned = cross_validated(X.multiply(ratio).tocsr(), inside, NB_INVERSE_PENALTIES, self.seed)
            self._parts.append((ratio, tuned.model))
            self.fit_seconds += tuned.seconds
            chosen.append(tuned.C)
        self.n_tokens, self.chosen = X.shape[1], {"C": chosen[0] if len(chosen) == 1 else chosen}
        return self

    def predict(self, texts: Sequence[str]) -> Any:
        """(n_texts,) the class with the highest probability."""
        return self.classes_[self.predict_proba(texts).argmax(axis=1)]

    def predict_proba(self, texts: Sequence[str]) -> FloatArray:
        """(n_texts, n_classes) probabilities."""
        X = self._vectorizer.transform(texts)
        each = [model.predict_proba(X.multiply(ratio).tocsr())[:, 1] for ratio, model in self._parts]
        if len(each) == 1:
            return np.column_stack([1.0 - each[0], each[0]])
        together = np.column_stack(each)
        return np.asarray(together / together.sum(axis=1, keepdims=True))


def _log_ratio(X: Any) -> FloatArray:
    """(n_features,) logarithms of the smoothed shares of features."""
    counts = np.asarray(X.sum(axis=0), dtype=float).ravel() + NB_SMOOTHING
    return np.log(counts / counts.sum())
