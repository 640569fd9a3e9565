"""The classifier of texts that every other is compared with: TF-IDF with logistic regression, tuned on its training texts."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from marginlens.errors import missing_extra
from marginlens.typing import FloatArray

INVERSE_PENALTIES = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0)  # C, from which cross-validation chooses
N_FOLDS = 3
MAX_ITERATIONS = 1000
MANY_TEXTS = 1000  # from which on TF-IDF leaves out what occurs in a single text: it changes no accuracy and saves time

WORD_OR_SIGN = r"(?u)\w+|[^\w\s]"  # one-letter words and punctuation marks speak too
_MARKUP = re.compile(r"<[^<>]{1,20}>")


class TfidfLogistic:
    """Logistic regression on TF-IDF of words and phrases; its C has the least log-loss in cross-validation on the training texts.

    Args:
        ngrams: most words of a phrase. seed: of the folds. class_weight: of logistic regression, None or "balanced".

    After `fit`, `n_tokens` says how many features it has, `chosen` what was tuned, and `fit_seconds` how long a single fit with that takes
    by the clock, finding words included.
    """

    def __init__(self, ngrams: int = 2, seed: int = 0, class_weight: Any = None) -> None:
        words = {1: "words", 2: "words and pairs"}.get(ngrams, f"phrases of up to {ngrams} words")
        self.name = f"TF-IDF of {words} + logistic regression"
        self.ngrams, self.seed, self.class_weight = ngrams, seed, class_weight

    def fit(self, texts: Sequence[str], labels: Any) -> TfidfLogistic:
        """Learn from texts and their labels."""
        if find_spec("sklearn") is None:
            raise missing_extra("scikit-learn", "text", "TfidfLogistic")
        from sklearn.feature_extraction.text import TfidfVectorizer

        self._vectorizer = TfidfVectorizer(
            preprocessor=plain_text,
            token_pattern=WORD_OR_SIGN,
            ngram_range=(1, self.ngrams),
            min_df=1 if len(texts) < MANY_TEXTS else 2,
            sublinear_tf=True,
        )
        start = time.perf_counter()
        X = self._vectorizer.fit_transform(texts)
        seconds = time.perf_counter() - start
        tuned = cross_validated(X, np.asarray(labels), INVERSE_PENALTIES, self.seed, self.class_weight)
        self._model, self.chosen, self.fit_seconds = tuned.model, {"C": tuned.C}, seconds + tuned.seconds
        self.classes_, self.n_tokens = self._model.classes_, X.shape[1]
        return self

    def predict(self, texts: Sequence[str]) -> Any:
        """(n_texts,) the class with the highest probability."""
        return self._model.predict(self._vectorizer.transform(texts))

    def predict_proba(self, texts: Sequence[str]) -> FloatArray:
        """(n_texts, n_classes) probabilities."""
        return np.asarray(self._model.predict_proba(self._vectorizer.transform(texts)))


class _Tuned(NamedTuple):
    """Logistic regression with the C that was chosen, and the seconds of its last fit, to all texts."""

    model: Any
    C: float
    seconds: float


def cross_validated(X: Any, labels: Any, penalties: Sequence[float], seed: int, class_weight: Any = None) -> _Tuned:
    """Logistic regression with the C that has the least log-loss on parts it was not fitted on."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, StratifiedKFold

    n_folds = min(N_FOLDS, int(np.unique(labels, return_counts=True)[1].min()))
    if n_folds < 2:  # a class with a single text
        start = time.perf_counter()
        model = LogisticRegression(max_iter=MAX_ITERATIONS, class_weight=class_weight).fit(X, labels)
        return _Tuned(model, model.C, time.perf_counter() - start)
    search = GridSearchCV(
        LogisticRegression(max_iter=MAX_ITERATIONS, class_weight=class_weight),
        {"C": list(penalties)},
        scoring="neg_log_loss",
        cv=StratifiedKFold(n_folds, shuffle=True, random_state=seed),
    ).fit(X, labels)
    return _Tuned(search.best_estimator_, float(search.best_params_["C"]), search.refit_time_)


def plain_text(text: str) -> str:
    """In lower case with blanks in place of markup, every character in its place."""
    lower = text.lower()
    if len(lower) != len(text):
        lower = "".join(c.lower() if len(c.lower()) == 1 else c for c in text)
    return _MARKUP.sub(lambda match: " " * len(match.group()), lower)
