"""The work behind `marginlens text train` and `text encode`: reading parts, fitting, the comparison, and what is told of it."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from marginlens.data.tokens import BoolArray, IntArray
from marginlens.embeddings.classifier import MIN_COUNT, AttentionTextClassifier, default_pipeline
from marginlens.embeddings.saving import check_folder, save_classifier
from marginlens.embeddings.sequence_file import write_labelled
from marginlens.errors import InputError, reject, whole_number
from marginlens.progress import Progress
from marginlens.text import (
    ReviewPart,
    Reviews,
    ReviewSource,
    ReviewTable,
    encode_reviews,
    paper_pipeline,
    read_pieces,
    review_source,
)
from marginlens.text.parts import TRAIN
from marginlens.versions import versions

_INVERSE_PENALTIES = (1.0, 10.0, 100.0)  # C of logistic regression, from which the comparison chooses
_VALIDATION = 0.1  # of the training texts, by which it chooses
_TELLING = 12  # tokens that are shown
_DROP = 'Use empty="drop" to leave them out.'


@dataclass(frozen=True)
class Request:
    """What was asked for on the command line."""

    file: Path
    columns: tuple[str | None, str | None, str | None]
    part: str | None = None
    test: str | None = None
    out: Path | None = None
    drop: bool = False
    seed: int = 0

    def check(self) -> None:
        """Refuse what can be refused before anything is read."""
        whole_number(self.seed, "seed", at_least=0)
        if self.out is not None:
            check_folder(self.out, "out")
        self.source()

    def source(self, path: Path | None = None) -> ReviewSource:
        """Where the texts are."""
        text, label, split = self.columns
        found = review_source(self.file if path is None else path, text, label)
        if split is None:
            return found
        if not isinstance(found, ReviewTable):
            raise reject("split", "left out unless the texts are in a table", repr(split))
        return ReviewTable(found.path, text, label, split)

    def command(self, compare: bool) -> str:
        """What to type to get this again, without places of one machine."""
        text, label, split = self.columns
        test = self.test if self.test is None or not Path(self.test).exists() else Path(self.test).name
        given = {"--text": text, "--label": label, "--split": split, "--train": self.part, "--test": test}
        words = [word for name, value in given.items() if value is not None for word in (name, value)]
        flags = [name for name, on in (("--drop", self.drop), ("--compare", compare)) if on]
        seed = ["--seed", str(self.seed)] if self.seed else []
        return shlex.join(["marginlens", "text", "train", self.file.name, *words, *flags, *seed])

    def share(self) -> float | None:
        """The share to test on, where a number was given."""
        try:
            share = float(self.test) if self.test is not None else None
        except ValueError:
            return None
        if share is not None and not 0.0 < share < 1.0:
            raise reject("test", "a part, a file, or a share between 0 and 1", repr(self.test))
        return share


@dataclass(frozen=True, eq=False)
class Parts:
    """Texts to train on and to test on, with their labels; nothing to test on where `tested_on` is None."""

    texts: list[str]
    labels: Any
    test_texts: list[str]
    test_labels: Any
    tested_on: str | None
    reviews: Reviews

    @classmethod
    def of(cls, request: Request) -> Parts:
        """Read and part the texts."""
        share = request.share()
        reviews = request.source().read()
        labels = np.array(reviews.classes)[(reviews.y > 0).astype(int)]
        train, test, tested_on = _masks(request, reviews, share)
        other = ([reviews.texts[i] for i in np.flatnonzero(test)], labels[test])
        if request.test is not None and tested_on is None:
            read = request.source(Path(request.test)).read()
            if read.classes != reviews.classes:
                expected = f"a file with the classes {reviews.classes[0]!r} and {reviews.classes[1]!r}"
                raise reject("test", expected, f"{read.classes[0]!r} and {read.classes[1]!r}")
            other = (read.texts, np.array(read.classes)[(read.y > 0).astype(int)])
            tested_on = Path(request.test).name
        return cls([reviews.texts[i] for i in np.flatnonzero(train)], labels[train], *other, tested_on, reviews)


@dataclass(frozen=True, eq=False)
class Training:
    """A trained classifier and the rows of its table."""

    model: AttentionTextClassifier
    request: Request
    parts: Parts
    rows: list[dict[str, Any]] = field(default_factory=list)

    def told(self) -> dict[str, Any]:
        """All numbers, as JSON holds them."""
        parts, model = self.parts, self.model
        tested = f", {len(parts.test_texts):,} to test on ({parts.tested_on})" if parts.tested_on is not None else ""
        trained_on = len(parts.texts) - len(model.left_out_)
        lost = {"no token left": len(model.left_out_)} if len(model.left_out_) else {}
        return {
            "command": self.request.command(compare=len(self.rows) > 1),
            "file": self.request.file.name,
            "sha256": self.request.source().digest(),
            "versions": versions(),
            "settings": {"min_count": MIN_COUNT, **_settings(model)},
            "size": f"{trained_on:,} texts to train on{tested}",
            "classes": list(parts.reviews.classes),
            "left_out": {**{why: n for why, n in parts.reviews.left_out.items() if n}, **lost},
            "trained_on": trained_on,
            "tested_on": parts.tested_on,
            "n_tested": len(parts.test_texts) if parts.tested_on is not None else 0,
            "models": self.rows,
            "training": model.training_,
            "tokens": telling_tokens(model),
        }

    def save(self, folder: Path) -> None:
        """Write the model with its accuracies."""
        told = self.told()
        kept = ("command", "file", "sha256", "versions", "size", "trained_on", "tested_on", "models")
        save_classifier(self.model, folder, {name: told[name] for name in kept})


def train(request: Request, compare: bool, bar: Callable[[str], Progress]) -> Training:
    """Train, test, and where asked train the comparison too."""
    parts = Parts.of(request)
    pipeline = default_pipeline("drop" if request.drop else "refuse")
    model = AttentionTextClassifier(pipeline, random_state=request.seed)
    began, cpu = time.perf_counter(), time.process_time()
    with _option_for_empty_texts():
        model.fit(parts.texts, parts.labels, progress=bar("Training"))
    row = _row("attention over words and pairs", model, parts, (began, cpu), len(model.a_))
    rows = [row, *(_baselines(parts, request.seed, bar("Comparing")) if compare else ())]
    return Training(model, request, parts, rows)


def encode(
    request: Request, taken: ReviewPart, pieces: Path, count_in: str | None, out: Path, progress: Progress
) -> dict[str, Any]:
    """Encode the texts that are taken by the paper's preprocessing and write them."""
    pipeline = paper_pipeline(read_pieces(pieces), empty="drop" if request.drop else "refuse")
    if count_in is None and taken.hold_out is not None:
        count_in = TRAIN
    began = time.perf_counter()
    with _option_for_empty_texts():
        found = encode_reviews(taken, pipeline, count_in=count_in, progress=progress)
    seconds = time.perf_counter() - began
    write_labelled(out, found.data, found.names, found.split)
    return {
        "file": request.file.name,
        "samples": len(found.data),
        "positions": len(found.data.tokens),
        "tokens": len(found.vocabulary),
        "parts": {}
        if found.split is None
        else {str(k): int(n) for k, n in zip(*np.unique(found.split, return_counts=True), strict=True)},
        "classes": list(found.classes),
        "left_out": {why: n for why, n in found.left_out.items() if n},
        "seconds": seconds,
        "out": str(out),
    }


def telling_tokens(model: AttentionTextClassifier) -> list[dict[str, Any]]:
    """The tokens that training texts select most often."""
    table = model.token_importance_
    order = np.argsort(-table["selected"], kind="stable")[:_TELLING]
    return [{name: _plain(row[name]) for name in table.dtype.names} for row in table[order]]


def _masks(request: Request, reviews: Reviews, share: float | None) -> tuple[BoolArray, BoolArray, str | None]:
    """Which texts to train on, which to test on, and what the latter are called."""
    n = len(reviews)
    split: Any = reviews.split
    parts = [] if split is None else sorted(set(split.tolist()))
    part = request.part
    if part is None and "train" in parts:
        part = "train"
    if part is not None and part not in parts:
        named = ", ".join(map(repr, parts)) or "none"
        raise reject("train", f"a part that the texts name ({named})", repr(part))
    train: Any = np.ones(n, dtype=bool) if part is None else split == part
    nothing = np.zeros(n, dtype=bool)
    if share is not None:
        drawn = np.zeros(n, dtype=bool)
        there = np.flatnonzero(train)
        chosen = np.random.default_rng(request.seed).permutation(there)[: max(1, round(share * len(there)))]
        drawn[chosen] = True
        if drawn.sum() == len(there):
            raise reject("test", f"a share that leaves some of {len(there)} texts to train on", repr(request.test))
        return train & ~drawn, drawn, f"{share:g} of them, drawn at random"
    if request.test is None:
        usual = "test" in parts and part != "test"
        return (train & (split != "test"), split == "test", "test") if usual else (train, nothing, None)
    if request.test in parts:
        test = split == request.test
        if part is None:
            train = train & ~test
        elif (train & test).any():
            raise reject("test", "another part than the one to train on", repr(request.test))
        return train, test, request.test
    if not Path(request.test).exists():
        named = ", ".join(map(repr, parts)) or "there are none"
        raise reject("test", f"a part ({named}), a file, or a share between 0 and 1", repr(request.test))
    return train, nothing, None


def _row(name: str, model: Any, parts: Parts, began: tuple[float, float], n_tokens: int) -> dict[str, Any]:
    seconds, cpu = time.perf_counter() - began[0], time.process_time() - began[1]
    tested = None if parts.tested_on is None else float(np.mean(model.predict(parts.test_texts) == parts.test_labels))
    return {
        "model": name,
        "test_accuracy": tested,
        "training_accuracy": float(np.mean(model.predict(parts.texts) == parts.labels)),
        "tokens": n_tokens,
        "seconds": seconds,
        "cpu_seconds": cpu,
    }


def _baselines(parts: Parts, seed: int, progress: Progress) -> list[dict[str, Any]]:
    """TF-IDF with logistic regression, on words and on words and pairs; its C is chosen on a tenth of the training texts."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    rows = []
    progress.expect(2 * (1 + len(_INVERSE_PENALTIES)))
    fitted, judged = _validation(parts.labels, seed)
    for words, name in ((1, "TF-IDF of words"), (2, "TF-IDF of words and pairs")):
        began = (time.perf_counter(), time.process_time())
        vectors = TfidfVectorizer(ngram_range=(1, words), min_df=MIN_COUNT, sublinear_tf=True)
        X = vectors.fit_transform([parts.texts[i] for i in fitted])
        other = vectors.transform([parts.texts[i] for i in judged])
        accuracies = []
        for C in _INVERSE_PENALTIES:
            trial = LogisticRegression(C=C, max_iter=1000).fit(X, parts.labels[fitted])
            accuracies.append(float(np.mean(trial.predict(other) == parts.labels[judged])))
            progress.advance()
        C = _INVERSE_PENALTIES[int(np.argmax(accuracies))]  # of equally good ones the strongest penalty
        model = make_pipeline(vectors, LogisticRegression(C=C, max_iter=1000)).fit(parts.texts, parts.labels)
        row = _row(f"{name} + logistic regression, C = {C:g}", model, parts, began, len(vectors.vocabulary_))
        chosen = {f"{value:g}": accuracy for value, accuracy in zip(_INVERSE_PENALTIES, accuracies, strict=True)}
        rows.append({**row, "validation_accuracy_by_C": chosen})
        progress.advance()
    return rows


def _validation(labels: Any, seed: int) -> tuple[IntArray, IntArray]:
    """Indices of the training texts to fit trials on, and of the tenth of each class to judge them by."""
    rng = np.random.default_rng(seed)
    parts = [rng.permutation(np.flatnonzero(labels == one)) for one in np.unique(labels)]
    sizes = [max(1, round(_VALIDATION * len(one))) if len(one) > 1 else 0 for one in parts]
    judged = np.sort(np.concatenate([one[:size] for one, size in zip(parts, sizes, strict=True)]))
    fitted = np.sort(np.concatenate([one[size:] for one, size in zip(parts, sizes, strict=True)]))
    return fitted, judged


def _settings(model: AttentionTextClassifier) -> dict[str, Any]:
    return {name: value for name, value in model.get_params().items() if name != "pipeline"}


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


class _option_for_empty_texts:
    """Name the command's option where the library names its argument."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, problem: Any, trace: Any) -> None:
        if isinstance(problem, InputError) and _DROP in str(problem):
            raise InputError(str(problem).replace(_DROP, "Use --drop to leave them out.")) from problem
