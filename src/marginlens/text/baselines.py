"""Other classifiers of texts to compare with: TF-IDF with logistic regression and fastText, each tuned on its training texts.

`compared(texts, labels, test_texts, test_labels)` trains those that are usual and gives back a row of numbers for each.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from marginlens.errors import missing_extra, require
from marginlens.runtime.progress import Progress, ProgressCallback
from marginlens.typing import FloatArray, IntArray

INVERSE_PENALTIES = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0)  # C, from which cross-validation chooses
N_FOLDS = 3
MAX_ITERATIONS = 1000
LEARNING_RATES = (0.1, 0.25, 0.5, 1.0)  # of fastText, from which a part of the training texts chooses
FASTTEXT_SIZE = 10  # of its vectors, as in its authors' comparison
FASTTEXT_PASSES = 200_000  # texts passed over, in as many epochs as that takes: at least 5, at most 100
VALIDATION_SHARE = 0.1  # of the training texts, by which fastText's rate is chosen
MANY_TEXTS = 1000  # from which on TF-IDF leaves out what occurs in a single text: it changes no accuracy and saves time

WORD_OR_SIGN = r"(?u)\w+|[^\w\s]"  # of all of them: one-letter words and punctuation marks speak too
_MARKUP = re.compile(r"<[^<>]{1,20}>")


class Baseline(Protocol):
    """A classifier of texts as `compared` trains it; after `fit`, `n_tokens` says how many features it has, `chosen` what was tuned, and
    `fit_seconds` how long a single fit with that takes by the clock, finding words included.
    """

    name: str
    classes_: Any
    n_tokens: int
    chosen: dict[str, Any]
    fit_seconds: float

    def fit(self, texts: Sequence[str], labels: Any) -> Any: ...
    def predict(self, texts: Sequence[str]) -> Any: ...
    def predict_proba(self, texts: Sequence[str]) -> FloatArray: ...


class TfidfLogistic:
    """Logistic regression on TF-IDF of words and phrases; its C has the least log-loss in cross-validation on the training texts.

    Args:
        ngrams: most words of a phrase. seed: of the folds. class_weight: of logistic regression, None or "balanced".
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


class FastText:
    """fastText on words and pairs; its learning rate does best on a tenth of the training texts. It needs the package fasttext.

    Runs on one thread, which makes it the same every time, and on texts in random order, since it reads its file from top to bottom: texts
    sorted by class, as many files are, would leave it with the last class.
    """

    def __init__(self, seed: int = 0) -> None:
        self.name = "fastText of words and pairs"
        self.seed = seed

    @staticmethod
    def is_installed() -> bool:
        """Whether the package is there."""
        return find_spec("fasttext") is not None

    def fit(self, texts: Sequence[str], labels: Any) -> FastText:
        """Learn from texts and their labels."""
        self.classes_, labels = np.unique(np.asarray(labels), return_inverse=True)
        lines = [_fasttext_line(text) for text in texts]
        fitted, validation = _validation_split(labels, self.seed)
        accuracies = dict.fromkeys(LEARNING_RATES, 0.0)
        for rate in LEARNING_RATES if len(validation) else ():
            trial = self._trained(lines, labels, fitted, rate)
            if trial is not None:
                guesses = self._probabilities(trial, [lines[i] for i in validation]).argmax(axis=1)
                accuracies[rate] = float(np.mean(guesses == labels[validation]))
        for rate in sorted(LEARNING_RATES[:: 1 if len(validation) else -1], key=accuracies.__getitem__, reverse=True):
            start = time.perf_counter()
            self._model = self._trained(lines, labels, np.arange(len(lines)), rate)
            self.fit_seconds = time.perf_counter() - start
            if self._model is not None:
                break
        else:
            raise ArithmeticError(f"fastText diverges on these texts at every rate of {LEARNING_RATES}")
        self.n_tokens, self.chosen = len(self._model.words), {"learning_rate": rate, "epochs": _epochs(len(lines))}
        return self

    def predict(self, texts: Sequence[str]) -> Any:
        """(n_texts,) the class with the highest probability."""
        return self.classes_[self.predict_proba(texts).argmax(axis=1)]

    def predict_proba(self, texts: Sequence[str]) -> FloatArray:
        """(n_texts, n_classes) probabilities."""
        return self._probabilities(self._model, [_fasttext_line(text) for text in texts])

    def _trained(self, lines: list[str], labels: IntArray, rows: IntArray, rate: float) -> Any:
        """A model of these rows; None where it diverges at this rate, as some seeds do at the larger ones."""
        require("fasttext", "fasttext", "fastText")
        import fasttext

        shuffled = np.random.default_rng(self.seed).permutation(rows)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "texts.txt"
            path.write_text("".join(f"__label__{labels[i]} {lines[i]}\n" for i in shuffled), encoding="utf-8")
            try:
                return fasttext.train_supervised(
                    str(path),
                    dim=FASTTEXT_SIZE,
                    wordNgrams=2,
                    lr=rate,
                    epoch=_epochs(len(rows)),
                    thread=1,
                    seed=self.seed,
                    verbose=0,
                )
            except RuntimeError as problem:
                if "NaN" not in str(problem):
                    raise
                return None

    def _probabilities(self, model: Any, lines: list[str]) -> FloatArray:
        labels, shares = model.predict(lines, k=len(self.classes_)) if lines else ([], [])
        table = np.zeros((len(lines), len(self.classes_)))
        for i, (names, values) in enumerate(zip(labels, shares, strict=True)):
            table[i, [int(name.removeprefix("__label__")) for name in names]] = values
        table[table.sum(axis=1) == 0.0] = 1.0  # a text without a known word
        return np.asarray(table / table.sum(axis=1, keepdims=True))


def usual_baselines(seed: int = 0) -> list[Baseline]:
    """TF-IDF on words, TF-IDF on words and pairs, and fastText, not yet fitted."""
    return [TfidfLogistic(1, seed), TfidfLogistic(2, seed), FastText(seed)]


def compared(
    texts: Sequence[str],
    labels: Any,
    test_texts: Sequence[str],
    test_labels: Any,
    *,
    baselines: Sequence[Baseline] | None = None,
    seed: int = 0,
    progress: ProgressCallback | None = None,
) -> list[dict[str, Any]]:
    """Train other classifiers on the same texts, and say how well each does.

    Args:
        texts, labels: to train on. test_texts, test_labels: to test on; may be empty.
        baselines: not yet fitted; None for `usual_baselines(seed)`.
        progress: called as `progress(done, total)` in classifiers.
    Returns:
        A row for each: `model` (its name with what was tuned), `test_accuracy` (None without test texts), `training_accuracy`, `tokens`,
        `seconds` and `cpu_seconds` of training, tuning included, `chosen`, and `fit_seconds` of a single fit. fastText without its
        package has a row with None for every number, and a `note` that says so.
    """
    chosen = usual_baselines(seed) if baselines is None else list(baselines)
    watch = Progress(progress, len(chosen))
    rows: list[dict[str, Any]] = []
    for model in chosen:
        if isinstance(model, FastText) and not model.is_installed():
            rows.append(
                {"model": model.name, **dict.fromkeys(_NUMBERS), "note": "The package fasttext is not installed."}
            )
        else:
            start = (time.perf_counter(), time.process_time())
            model.fit(texts, labels)
            seconds, cpu = time.perf_counter() - start[0], time.process_time() - start[1]
            tuned = ", ".join(f"{name.replace('_', ' ')} = {value}" for name, value in model.chosen.items())
            tested = float(np.mean(model.predict(test_texts) == np.asarray(test_labels))) if len(test_texts) else None
            trained = float(np.mean(model.predict(texts) == np.asarray(labels)))
            numbers = (tested, trained, model.n_tokens, seconds, cpu, model.chosen, model.fit_seconds)
            rows.append({"model": f"{model.name}, {tuned}", **dict(zip(_NUMBERS, numbers, strict=True))})
        watch.advance()
    return rows


_NUMBERS = ("test_accuracy", "training_accuracy", "tokens", "seconds", "cpu_seconds", "chosen", "fit_seconds")


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


def _validation_split(labels: IntArray, seed: int) -> tuple[IntArray, IntArray]:
    """Indices of the training texts to fit trials on, and of the tenth of each class, at least one, to judge them by."""
    rng = np.random.default_rng(seed)
    fitted, validation = [], []
    for label in np.unique(labels):
        indices = rng.permutation(np.flatnonzero(labels == label))
        size = max(1, round(VALIDATION_SHARE * len(indices))) if len(indices) > 1 else 0
        validation.append(indices[:size])
        fitted.append(indices[size:])
    return np.sort(np.concatenate(fitted)), np.sort(np.concatenate(validation))


def _epochs(n_texts: int) -> int:
    return min(max(round(FASTTEXT_PASSES / n_texts), 5), 100)


def plain_text(text: str) -> str:
    """In lower case with blanks in place of markup, every character in its place."""
    lower = text.lower()
    if len(lower) != len(text):
        lower = "".join(c.lower() if len(c.lower()) == 1 else c for c in text)
    return _MARKUP.sub(lambda match: " " * len(match.group()), lower)


def _fasttext_line(text: str) -> str:
    """A text on one line with blanks around its punctuation marks, in lower case."""
    return " ".join(re.findall(WORD_OR_SIGN, plain_text(text)))
