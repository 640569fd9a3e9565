"""fastText as a rival of the text classifier, tuned on a part of its training texts."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from marginlens.errors import require
from marginlens.text.baselines import WORD_OR_SIGN, plain_text
from marginlens.typing import FloatArray, IntArray

LEARNING_RATES = (0.1, 0.25, 0.5, 1.0)  # from which a part of the training texts chooses
FASTTEXT_SIZE = 10  # of its vectors, as in its authors' comparison
FASTTEXT_PASSES = 200_000  # texts passed over, in as many epochs as that takes: at least 5, at most 100
VALIDATION_SHARE = 0.1  # of the training texts, by which the rate is chosen


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


def _fasttext_line(text: str) -> str:
    """A text on one line with blanks around its punctuation marks, in lower case."""
    return " ".join(re.findall(WORD_OR_SIGN, plain_text(text)))
