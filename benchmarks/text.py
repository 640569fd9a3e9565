"""The text classifier beside tuned TF-IDF, NB-SVM and fastText: accuracy, imbalance, few texts, lengths, faithfulness, noise, wrong labels.

`marginlens bench text --imdb FILE --yelp FILE` prints a table; `python -m benchmarks.text --imdb FILE --yelp FILE --out RESULT.json` writes
it with commands, versions and digests, part by part, and leaves the parts of an earlier file that are not asked for.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import entropy
from sklearn.metrics import log_loss, roc_auc_score

from benchmarks.faithfulness import eraser_scores
from benchmarks.fasttext_rival import FastText
from benchmarks.nb_svm import NaiveBayesSvm
from benchmarks.tfidf_contributions import ExplainedTfidf
from marginlens.errors import InputError, reject
from marginlens.runtime.progress import Progress, ProgressCallback
from marginlens.runtime.versions import versions
from marginlens.text.baselines import TfidfLogistic
from marginlens.text.classifier import AttentionTextClassifier
from marginlens.text.text_files import TextFile
from marginlens.typing import FloatArray, IntArray

N_RARE, N_COMMON, N_IMBALANCED_DRAWS = 200, 4000, 5
FEW, N_FEW_DRAWS = (30, 60, 120, 300, 1000), 20  # texts
N_TEST = 2000  # texts, a sample of the test part
N_DRAWN_TEST = 1000  # of them, for parts that train many models
N_YELP_SPLITS = 3
TEST_SHARE = 0.2  # of Yelp's reviews
FLIPPED, N_FLIPPED_SPLITS = (0.2, 0.35), 3  # shares of Yelp's training labels that are wrong
NOISE_SIZES, N_NOISE_DRAWS, N_NOISE_TEST = (1000, 5000, 20_000), 3, 5000  # generated texts
NOISE_WORDS, N_NOISE_VOCABULARY = 20, 2000  # that say nothing: of a text, and different ones
SIGNAL_WORDS, N_SIGNAL_VOCABULARY, SIGNAL_SHARE = (
    3,
    10,
    0.8,
)  # that speak, of a text and of each class; so often of the right class
EXCERPTS = (5, 10, 20, 50, 100)  # words from the start of a text
LENGTHS = (0, 100, 150, 200, 300, 500)  # words, where bins of whole texts begin
N_EXPLAINED = 300
OURS = "attention"
MAJORITY = "best possible"
SUMMARY = "summary"
Row = dict[str, Any]


def bench_text(
    progress: ProgressCallback | None = None,
    *,
    imdb: str | Path | None = None,
    yelp: str | Path | None = None,
    only: Sequence[str] = (),
    seed: int = 0,
) -> list[Row]:
    """Train on labelled texts, and test.

    Args:
        imdb: the reviews of IMDB with columns text, label (two classes), and split (train, test): for the parts imdb, imbalance, few,
            lengths and faithfulness.
        yelp: reviews with columns text, stars (3 left out) and, if there is one, balanced (True where a review belongs to the balanced
            half): for the parts yelp, yelp-lengths, stars, even and flipped. The part noise generates its texts.
        only: parts to run; all that the files serve by default.
        seed: of splits, draws and models.
    Returns:
        A row for each model of each part, with `cpu_seconds` of its training (time of the processor, tuning included) or also `seconds`
        by the clock and `fit_seconds` of one fit without tuning, and a row that sums up the part. Means over draws have a
        `standard_error`; `difference_error` is that of the difference to TF-IDF on equal draws.
    """
    data = _Data(imdb, yelp, seed)
    parts = data.parts(only)
    watch = Progress(progress, len(parts))
    _warm_up()
    rows: list[Row] = []
    for name in parts:
        rows += [{"part": name, **row} for row in PARTS[name](data)]
        watch.advance()
    return rows


class Split(NamedTuple):
    """Texts to train on and to test on."""

    texts: list[str]
    labels: Any
    test_texts: list[str]
    test_labels: Any


class Fitted(NamedTuple):
    """A trained model, and how long that took: time of the processor, by the clock, and one fit without tuning by the clock."""

    model: Any
    cpu_seconds: float
    seconds: float
    fit_seconds: float

    def times(self) -> Row:
        return {"cpu_seconds": self.cpu_seconds, "seconds": self.seconds, "fit_seconds": self.fit_seconds}


class _Data:
    """The files, read when they are asked for, and the models that several parts share."""

    def __init__(self, imdb: str | Path | None, yelp: str | Path | None, seed: int) -> None:
        self.files, self.seed = {"imdb": imdb, "yelp": yelp}, seed

    def parts(self, only: Sequence[str]) -> list[str]:
        """The parts to run, in the order of `PARTS`."""
        unknown = [name for name in only if name not in PARTS]
        if unknown:
            raise reject("only", f"parts among {', '.join(PARTS)}", ", ".join(map(repr, unknown)))
        given = {None, *(name for name, file in self.files.items() if file is not None)}  # generated data need no file
        served = [name for name in PARTS if FILE_OF[name] in given]
        for name in only:
            if name not in served:
                raise InputError(f"The part {name} needs --{FILE_OF[name]} FILE.")
        if not only and not any(self.files.values()):
            raise InputError("The benchmark of texts needs data: --imdb FILE, --yelp FILE, or both.")
        return [name for name in served if not only or name in only]

    @cached_property
    def imdb(self) -> Split:
        """The official split."""
        rows = TextFile(self._path("imdb")).rows(labelled=True)
        part = np.array(rows.split or [])
        if not {"train", "test"} <= set(part.tolist()):
            raise reject("imdb", "a file with the parts train and test in a column split", str(self.files["imdb"]))
        return _split(rows.texts, np.array(rows.labels), *(np.flatnonzero(part == name) for name in ("train", "test")))

    @cached_property
    def stars(self) -> tuple[list[str], IntArray, Any]:
        """Texts, stars, and which reviews are balanced."""
        path = self._path("yelp")
        try:
            rows = TextFile(path, "text", "stars", "balanced").rows(labelled=True)
        except InputError:
            rows = TextFile(path, "text", "stars").rows(labelled=True)._replace(split=None)
        stars = np.array(rows.labels, dtype=float).astype(int)
        kept = np.flatnonzero(stars != 3)
        balanced = np.ones(len(stars), dtype=bool) if rows.split is None else np.array(rows.split) == "True"
        return [rows.texts[i] for i in kept], stars[kept], balanced[kept]

    @cached_property
    def attention(self) -> Fitted:
        """The classifier on IMDB's training part."""
        return _fit(AttentionTextClassifier(random_state=self.seed), self.imdb)

    @cached_property
    def tfidf(self) -> Fitted:
        """TF-IDF on IMDB's training part."""
        return _fit(ExplainedTfidf(2, self.seed), self.imdb)

    @cached_property
    def test_sample(self) -> tuple[list[str], Any]:
        """Some of IMDB's test texts, each class in proportion."""
        rows = _stratified(self.imdb.test_labels, N_TEST / len(self.imdb.test_labels), np.random.default_rng(self.seed))
        return [self.imdb.test_texts[i] for i in rows], self.imdb.test_labels[rows]

    def yelp_split(self, k: int) -> Split:
        """The balanced reviews of Yelp, a share of each class held out."""
        texts, stars, balanced = self.stars
        labels = np.where(stars >= 4, "positive", "negative")
        return _held_out(texts, labels, np.flatnonzero(balanced), self.seed + k)

    def draw(self, counts: Sequence[int], k: int) -> Split:
        """So many of IMDB's training texts of each class, and the sample to test on."""
        rng, labels = np.random.default_rng((self.seed, k)), self.imdb.labels
        rows = [
            rng.permutation(np.flatnonzero(labels == label))[:n]
            for label, n in zip(np.unique(labels), counts, strict=True)
        ]
        order = rng.permutation(np.concatenate(rows))
        texts, test_labels = self.test_sample
        return Split(
            [self.imdb.texts[i] for i in order], labels[order], texts[:N_DRAWN_TEST], test_labels[:N_DRAWN_TEST]
        )

    def _path(self, name: str) -> str:
        return str(self.files[name])


# ---- the parts


def _imdb(data: _Data) -> Iterator[Row]:
    split = data.imdb
    fitted = {OURS: data.attention, "TF-IDF": data.tfidf}
    fitted |= {name: _fit(model, split) for name, model in (("NB-SVM", NaiveBayesSvm(3, data.seed)), *_fasttext(data))}
    rows = [
        {
            "model": _named(name, each.model),
            **_scores(each.model, split.test_texts, split.test_labels),
            **each.times(),
        }
        for name, each in fitted.items()
    ]
    yield from (*rows, *([] if FastText.is_installed() else [_missing()]), _accuracy_summary(rows))


def _yelp(data: _Data) -> Iterator[Row]:
    models = {
        OURS: lambda seed: AttentionTextClassifier(random_state=seed),
        "TF-IDF": lambda seed: TfidfLogistic(2, seed),
        "NB-SVM": lambda seed: NaiveBayesSvm(3, seed),
    } | {name: lambda seed, model=model: type(model)(seed) for name, model in _fasttext(data)}
    splits = [data.yelp_split(k) for k in range(N_YELP_SPLITS)]
    rows = []
    for name, make in models.items():
        fitted = [_fit(make(data.seed + k), split) for k, split in enumerate(splits)]
        scores = [
            _scores(each.model, split.test_texts, split.test_labels)["accuracy"]
            for each, split in zip(fitted, splits, strict=True)
        ]
        rows.append(
            {
                "model": _named(name, fitted[0].model),
                **_mean("accuracy", scores),
                **{name: float(np.mean([each.times()[name] for each in fitted])) for name in fitted[0].times()},
            }
        )
    yield from (*rows, *([] if FastText.is_installed() else [_missing()]), _accuracy_summary(rows))


def _stars(data: _Data) -> Iterator[Row]:
    texts, stars, _ = data.stars
    split = _held_out(texts, np.char.add(stars.astype(str), " stars"), np.arange(len(texts)), data.seed)
    fitted = {OURS: _fit(AttentionTextClassifier(random_state=data.seed), split)}
    fitted["TF-IDF"] = _fit(TfidfLogistic(2, data.seed), split)
    fitted |= {name: _fit(model, split) for name, model in _fasttext(data)}
    rows = [
        {
            "model": _named(name, each.model),
            **_scores(each.model, split.test_texts, split.test_labels),
            **each.times(),
        }
        for name, each in fitted.items()
    ]
    yield from (*rows, *([] if FastText.is_installed() else [_missing()]), _accuracy_summary(rows))


def _even(data: _Data) -> Iterator[Row]:
    """How even attention is over the words and phrases of a text, and what becomes of accuracy where all of them count alike."""
    split = data.yelp_split(0)
    model = _fit(AttentionTextClassifier(random_state=data.seed), split).model
    explained = [model.explain(text) for text in split.test_texts[:N_EXPLAINED]]
    shares = [np.array([row.attention for row in each.known]) for each in explained if each.known]
    even = copy(model)
    even.a_ = np.full_like(model.a_, model.a_.mean())
    yield {
        "model": OURS,
        "n_texts": len(shares),
        "accuracy": _scores(model, split.test_texts, split.test_labels)["accuracy"],
        "accuracy_even": _scores(even, split.test_texts, split.test_labels)["accuracy"],
        "largest_attention": float(np.median([share.max() for share in shares])),
        "rest_attention": float(np.median([each.rest.attention for each in explained])),
        # e^entropy, the effective number of tokens, over their number: 1 where all count alike
        "evenness": float(np.median([np.exp(entropy(share)) / len(share) for share in shares])),
    }


def _flipped(data: _Data) -> Iterator[Row]:
    splits = [data.yelp_split(k) for k in range(N_FLIPPED_SPLITS)]
    for share in FLIPPED:
        scores: dict[str, list[tuple[float, ...]]] = {OURS: [], "TF-IDF": []}
        for k, split in enumerate(splits):
            rng = np.random.default_rng((data.seed, k))
            first, second = np.unique(split.labels)
            wrong = rng.random(len(split.labels)) < share
            mixed = split._replace(labels=np.where(wrong == (split.labels == first), second, first))
            _score_draw(scores, mixed, data.seed + k)
        yield from _drawn_rows(scores, ("accuracy", "log_loss", "cpu_seconds"), f"{share:.0%} of labels wrong")


def _noise(data: _Data) -> Iterator[Row]:
    for n in NOISE_SIZES:
        scores: dict[str, list[tuple[float, ...]]] = {OURS: [], "TF-IDF": [], "TF-IDF of words": [], MAJORITY: []}
        for k in range(N_NOISE_DRAWS):
            split = generated(n, N_NOISE_TEST, np.random.default_rng((data.seed, k)))
            _score_draw(scores, split, data.seed + k)
        yield from _drawn_rows(scores, ("accuracy", "log_loss", "cpu_seconds"), f"{n} generated texts")


def generated(n: int, n_test: int, rng: np.random.Generator) -> Split:
    """Texts of words in random order, most of which say nothing; the others speak for the right class more often than not."""
    labels = rng.integers(2, size=n + n_test)
    right = rng.random((n + n_test, SIGNAL_WORDS)) < SIGNAL_SHARE
    spoken_for = np.where(right, labels[:, None], 1 - labels[:, None])
    signal = N_NOISE_VOCABULARY + N_SIGNAL_VOCABULARY * spoken_for + rng.integers(N_SIGNAL_VOCABULARY, size=right.shape)
    words = np.hstack([rng.integers(N_NOISE_VOCABULARY, size=(n + n_test, NOISE_WORDS)), signal])
    texts = [" ".join(f"w{word}" for word in row) for row in rng.permuted(words, axis=1).tolist()]
    return Split(texts[:n], labels[:n], texts[n:], labels[n:])


class _Majority:
    """What is best for the texts of `generated`: the class that most of the words that speak are of."""

    classes_ = np.array([0, 1])

    def fit(self, texts: list[str], labels: Any) -> None:
        """There is nothing to learn."""

    def predict_proba(self, texts: list[str]) -> FloatArray:
        first = N_NOISE_VOCABULARY + N_SIGNAL_VOCABULARY
        words = [[int(word[1:]) for word in text.split()] for text in texts]
        lead = np.array(
            [sum(w >= first for w in row) - sum(N_NOISE_VOCABULARY <= w < first for w in row) for row in words]
        )
        second = 1.0 / (1.0 + (SIGNAL_SHARE / (1.0 - SIGNAL_SHARE)) ** -lead)
        return np.column_stack([1.0 - second, second])


def _imbalance(data: _Data) -> Iterator[Row]:
    models: dict[str, Callable[[], Any]] = {
        OURS: lambda: AttentionTextClassifier(random_state=data.seed),
        f"{OURS}, balanced": lambda: AttentionTextClassifier(random_state=data.seed, class_weight="balanced"),
        "TF-IDF": lambda: TfidfLogistic(2, data.seed),
        "TF-IDF, balanced": lambda: TfidfLogistic(2, data.seed, class_weight="balanced"),
    }
    scores: dict[str, list[tuple[float, ...]]] = {name: [] for name in models}
    for k in range(N_IMBALANCED_DRAWS):
        split = data.draw((N_COMMON, N_RARE), k)
        rare = split.test_labels == np.unique(split.labels)[1]
        for name, make in models.items():
            model, seconds, *_ = _fit(make(), split)
            proba = model.predict_proba(split.test_texts)[:, 1]
            scores[name].append((float(roc_auc_score(rare, proba)), float(np.mean(proba[rare] > 0.5)), seconds))
    yield from _drawn_rows(scores, ("auc", "recall", "cpu_seconds"), f"{N_COMMON} : {N_RARE}")


def _few(data: _Data) -> Iterator[Row]:
    for n in FEW:
        scores: dict[str, list[tuple[float, ...]]] = {OURS: [], "TF-IDF": []}
        for k in range(N_FEW_DRAWS):
            _score_draw(scores, data.draw((n // 2, n // 2), k), data.seed)
        yield from _drawn_rows(scores, ("accuracy", "log_loss", "cpu_seconds"), f"{n} texts")


def _lengths(data: _Data) -> Iterator[Row]:
    models = {OURS: data.attention.model, "TF-IDF": data.tfidf.model}
    yield from _length_rows(models, data.test_sample, (data.imdb.test_texts, data.imdb.test_labels))


def _yelp_lengths(data: _Data) -> Iterator[Row]:
    split = data.yelp_split(0)
    models = {OURS: AttentionTextClassifier(random_state=data.seed), "TF-IDF": TfidfLogistic(2, data.seed)}
    tested = (split.test_texts, split.test_labels)
    yield from _length_rows({name: _fit(model, split).model for name, model in models.items()}, tested, tested)


def _length_rows(models: dict[str, Any], sample: tuple[list[str], Any], tested: tuple[list[str], Any]) -> Iterator[Row]:
    """Scores on the first words of a sample of texts, and on whole texts by their lengths."""
    texts, labels = sample
    sets = {f"first {n} words": ([" ".join(text.split()[:n]) for text in texts], labels) for n in EXCERPTS}
    n_words = np.array([len(text.split()) for text in tested[0]])
    for low, high in pairwise((*LENGTHS, None)):
        rows = np.flatnonzero((n_words >= low) & (n_words < (high or np.inf)))
        if len(np.unique(tested[1][rows])) > 1:
            name = f"{low} to {high - 1} words" if high else f"from {low} words on"
            sets[name] = ([tested[0][i] for i in rows], tested[1][rows])
    excess = {}
    for setting, (some, right) in sets.items():
        scores = {name: _scores(model, some, right) for name, model in models.items()}
        excess[setting] = scores[OURS]["log_loss"] - scores["TF-IDF"]["log_loss"]
        yield from ({"setting": setting, "model": name, "n_texts": len(some), **each} for name, each in scores.items())
    worst = max(excess, key=lambda setting: excess[setting])
    yield {
        "model": SUMMARY,
        "largest_excess": excess[worst],
        "note": f"log-loss minus TF-IDF's is largest at {worst}: {excess[worst]:+.4f}",
    }


def _faithfulness(data: _Data) -> Iterator[Row]:
    rng = np.random.default_rng(data.seed)
    texts = data.test_sample[0][:N_EXPLAINED]
    attention, tfidf = data.attention.model, data.tfidf.model
    sums = {
        OURS: max(_attention_residual(attention, text) for text in texts),
        "TF-IDF": max(
            abs(sum(s.contribution for s in tfidf.contributions(text)) + tfidf.intercept(text) - tfidf.output(text))
            for text in texts
        ),
    }
    for name, model in ((OURS, attention), ("TF-IDF", tfidf)):
        chance = lambda text: [(k, k + 1, rng.random() / len(text)) for k in range(len(text))]  # noqa: E731
        for setting, contributions in (("by contribution", None), ("at random", chance)):
            scores = eraser_scores(model, texts, contributions)
            row: Row = {"setting": setting, "model": name, "n_texts": len(texts)}
            row |= {"comprehensiveness": scores.comprehensiveness, "sufficiency": scores.sufficiency}
            by_share = zip(scores.shares.tolist(), scores.removed.mean(axis=0), scores.only.mean(axis=0), strict=True)
            row["by_share"] = {f"{share:g}": [float(removed), float(only)] for share, removed, only in by_share}
            yield row | ({"sum_residual": sums[name]} if contributions is None else {})


PARTS: dict[str, Callable[[_Data], Iterator[Row]]] = {
    "imdb": _imdb,
    "lengths": _lengths,
    "faithfulness": _faithfulness,
    "imbalance": _imbalance,
    "few": _few,
    "yelp": _yelp,
    "yelp-lengths": _yelp_lengths,
    "stars": _stars,
    "even": _even,
    "flipped": _flipped,
    "noise": _noise,
}
OF_YELP = ("yelp", "yelp-lengths", "stars", "even", "flipped")
FILE_OF = {name: None if name == "noise" else "yelp" if name in OF_YELP else "imdb" for name in PARTS}


# ---- models and scores


def _fit(model: Any, split: Split) -> Fitted:
    began, clock = time.process_time(), time.perf_counter()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*were left out of training")
        model.fit(split.texts, split.labels)
    seconds = time.perf_counter() - clock
    return Fitted(model, time.process_time() - began, seconds, getattr(model, "fit_seconds", seconds))


def _score_draw(scores: dict[str, list[tuple[float, ...]]], split: Split, seed: int) -> None:
    """Train the models that `scores` names, and add accuracy, log-loss and seconds of each."""
    makers: dict[str, Callable[[], Any]] = {
        OURS: lambda: AttentionTextClassifier(random_state=seed),
        "TF-IDF": lambda: TfidfLogistic(2, seed),
        "TF-IDF of words": lambda: TfidfLogistic(1, seed),
        MAJORITY: _Majority,
    }
    for name, draws in scores.items():
        fitted = _fit(makers[name](), split)
        draws.append((*_scores(fitted.model, split.test_texts, split.test_labels).values(), fitted.cpu_seconds))


def _warm_up() -> None:
    """Compile what the classifier runs, so that no part pays for it."""
    for labels in (["a", "b"] * 10, ["a", "b", "c", "d"] * 5):
        AttentionTextClassifier().fit([f"so {label} it is {label}" for label in labels], labels)


def _fasttext(data: _Data) -> list[tuple[str, FastText]]:
    return [("fastText", FastText(data.seed))] if FastText.is_installed() else []


def _missing() -> Row:
    return {"model": "fastText", "note": "the package fasttext is not installed"}


def _named(name: str, model: Any) -> str:
    tuned = ", ".join(f"{what.replace('_', ' ')} {value}" for what, value in getattr(model, "chosen", {}).items())
    return f"{name} ({tuned})" if tuned else name


def _scores(model: Any, texts: list[str], labels: Any) -> dict[str, float]:
    proba = np.asarray(model.predict_proba(texts), dtype=float)
    accuracy = float(np.mean(np.asarray(model.classes_)[proba.argmax(axis=1)] == labels))
    return {"accuracy": accuracy, "log_loss": float(log_loss(labels, proba, labels=model.classes_))}


def _mean(name: str, values: Sequence[float]) -> Row:
    """The mean over draws, and its standard error."""
    return {name: float(np.mean(values)), "standard_error": float(np.std(values, ddof=1) / np.sqrt(len(values)))}


def _accuracy_summary(rows: Sequence[Row]) -> Row:
    """The classifier beside the best of the others."""
    ours, *others = (row for row in rows if row.get("accuracy") is not None)
    best = max(others, key=lambda row: row["accuracy"])
    tfidf = next(row for row in others if row["model"].startswith("TF-IDF"))
    lead = ours["accuracy"] - best["accuracy"]
    return {
        "model": SUMMARY,
        "lead": lead,
        "share_of_tfidf_seconds": ours["cpu_seconds"] / tfidf["cpu_seconds"],
        "note": f"accuracy {lead:+.4f} beside the best of the others, {best['model']}",
    }


def _drawn_rows(scores: dict[str, list[tuple[float, ...]]], names: Sequence[str], setting: str) -> Iterator[Row]:
    """A row for each model: means over draws, the first with its error, also of the difference to TF-IDF on equal draws."""
    tables: dict[str, FloatArray] = {name: np.array(values) for name, values in scores.items()}
    n_draws = len(tables[OURS])
    for name, table in tables.items():
        row = {"setting": setting, "model": name, "draws": n_draws, **_mean(names[0], table[:, 0].tolist())}
        row |= dict(zip(names[1:], table.mean(axis=0)[1:].tolist(), strict=True))
        difference = table[:, 0] - tables["TF-IDF"][:, 0]
        if name != "TF-IDF":
            row["difference_error"] = float(np.std(difference, ddof=1) / np.sqrt(n_draws))
        yield row
    lead = float((tables[OURS] - tables["TF-IDF"])[:, 0].mean())
    yield {"setting": setting, "model": SUMMARY, "lead": lead, "note": f"{names[0]} {lead:+.4f} beside TF-IDF"}


def _attention_residual(model: Any, text: str) -> float:
    """How far the contributions of words and of the rest token are from adding up to f."""
    explanation = model.explain(text)
    return abs(sum(value for _, value in explanation.words) + explanation.rest.contribution - explanation.f)


# ---- texts


def _split(texts: list[str], labels: Any, train: IntArray, test: IntArray) -> Split:
    return Split([texts[i] for i in train], labels[train], [texts[i] for i in test], labels[test])


def _held_out(texts: list[str], labels: Any, rows: IntArray, seed: int) -> Split:
    """A share of each class to test on, drawn at random."""
    test = rows[_stratified(labels[rows], TEST_SHARE, np.random.default_rng(seed))]
    return _split(texts, labels, np.setdiff1d(rows, test), test)


def _stratified(labels: Any, share: float, rng: np.random.Generator) -> IntArray:
    """Indices of this share of each class, in random order."""
    drawn = []
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        drawn.append(rows[: max(1, round(min(share, 1.0) * len(rows)))])
    return rng.permutation(np.concatenate(drawn))


# ---- the archive


def write_archive(path: Path, data: dict[str, Any], rows: list[Row]) -> None:
    """Put the rows into a JSON file by part, beside the parts that are there already; files are named without their folders."""
    archive: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"parts": {}}
    for part in dict.fromkeys(row["part"] for row in rows):
        option = FILE_OF[part]
        file = Path(data[option]) if option else None
        given = f" --{option} {file.name}" if file else ""
        archive["parts"][part] = {
            "command": f"marginlens bench text{given} --only {part} --seed {data['seed']} --json",
            "file": file.name if file else None,
            "sha256": TextFile(file).digest() if file else None,
            "seed": data["seed"],
            "settings": AttentionTextClassifier(random_state=data["seed"]).get_params(),
            "versions": versions(),
            "rows": [
                {key: value for key, value in row.items() if key != "part"} for row in rows if row["part"] == part
            ],
        }
    archive["parts"] = {name: archive["parts"][name] for name in PARTS if name in archive["parts"]}
    path.write_text(json.dumps(archive, indent=1) + "\n", encoding="utf-8")


TABLE = (  # of docs/text.md: what a row says, the part, setting and number that it takes, and how the number is written
    ("IMDB, official split: accuracy", "imdb", None, "accuracy", ".2%"),
    ("IMDB: seconds of training, tuning included", "imdb", None, "seconds", ".0f"),
    ("IMDB: seconds of one fit", "imdb", None, "fit_seconds", ".0f"),
    ("Yelp, good or bad, a fifth held out: accuracy", "yelp", None, "accuracy", ".2%"),
    ("Yelp, 1, 2, 4 or 5 stars: accuracy", "stars", None, "accuracy", ".2%"),
    (
        f"{N_COMMON:,} against {N_RARE} texts: area under the ROC curve",
        "imbalance",
        f"{N_COMMON} : {N_RARE}",
        "auc",
        ".3f",
    ),
    ("60 texts: accuracy", "few", "60 texts", "accuracy", ".2%"),
    ("1,000 texts: accuracy", "few", "1000 texts", "accuracy", ".2%"),
    ("first ten words of a review of IMDB: log-loss", "lengths", "first 10 words", "log_loss", ".3f"),
    ("reviews of IMDB under 100 words: log-loss", "lengths", "0 to 99 words", "log_loss", ".3f"),
    ("comprehensiveness (high is good)", "faithfulness", "by contribution", "comprehensiveness", ".3f"),
    ("sufficiency (low is good)", "faithfulness", "by contribution", "sufficiency", ".3f"),
)
LIMITS = (  # of docs/text-limits.md, likewise
    *(
        (f"{n:,} generated texts: {words}", "noise", f"{n} generated texts", number, form)
        for words, number, form in (("accuracy", "accuracy", ".2%"), ("log-loss", "log_loss", ".3f"))
        for n in NOISE_SIZES
    ),
    *(
        (
            f"Yelp, {share:.0%} of the training labels wrong: {words}",
            "flipped",
            f"{share:.0%} of labels wrong",
            number,
            form,
        )
        for words, number, form in (("accuracy", "accuracy", ".2%"), ("log-loss", "log_loss", ".3f"))
        for share in FLIPPED
    ),
    ("comprehensiveness (high is good)", "faithfulness", "by contribution", "comprehensiveness", ".3f"),
    ("sufficiency (low is good)", "faithfulness", "by contribution", "sufficiency", ".3f"),
    ("Yelp: accuracy", "even", None, "accuracy", ".2%"),
    ("Yelp, all scores made equal after training: accuracy", "even", None, "accuracy_even", ".2%"),
    ("Yelp: largest attention of a word or phrase", "even", None, "largest_attention", ".3f"),
    ("Yelp: attention of the rest token", "even", None, "rest_attention", ".2f"),
    ("Yelp: effective number of tokens, of all tokens", "even", None, "evenness", ".0%"),
)
COLUMNS = (OURS, "TF-IDF", "NB-SVM", "fastText")
LIMIT_COLUMNS = (OURS, "TF-IDF", "TF-IDF of words", MAJORITY)


def markdown_table(archive: dict[str, Any], table: Sequence[tuple[Any, ...]], columns: Sequence[str]) -> str:
    """The numbers of an archive that a page shows; a row without any number is left out."""
    lines = [f"| | {' | '.join(columns)} |", "| --- |" + " ---: |" * len(columns)]
    for words, part, setting, number, form in table:
        rows = archive["parts"].get(part, {"rows": []})["rows"]
        of = {row["model"].split(" (")[0]: row.get(number) for row in rows if row.get("setting") == setting}
        cells = ["" if of.get(name) is None else format(of[name], form) for name in columns]
        lines += [f"| {words} | {' | '.join(cells)} |"] if any(cells) else []
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--imdb", help="the reviews of IMDB")
    parser.add_argument("--yelp", help="Yelp's reviews")
    parser.add_argument("--only", action="append", default=[], help=f"a part: {', '.join(PARTS)}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="the JSON file")
    given = vars(parser.parse_args())
    out = given.pop("out")
    write_archive(out, given, bench_text(**given))
    archive = json.loads(out.read_text(encoding="utf-8"))
    if set(archive["parts"]) == set(PARTS):
        print(markdown_table(archive, TABLE, COLUMNS), markdown_table(archive, LIMITS, LIMIT_COLUMNS), sep="\n", end="")
