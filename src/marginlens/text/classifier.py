"""Paper B's one-layer model as a scikit-learn classifier of texts: the estimator, how it learns, and its files."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils import check_random_state

from marginlens.data.labelled import LabelledSequences
from marginlens.data.sequences import flat_sequences
from marginlens.embeddings.cpu_model import CompiledOneLayer
from marginlens.embeddings.models import TrainingSettings, batches_of, distinct_tokens, initial_parameters
from marginlens.embeddings.statistics import TokenStatistics, token_statistics
from marginlens.errors import InputError, array_of_any, n_axes, reject, whole_number
from marginlens.runtime.files import as_path, unusable, write_folder
from marginlens.runtime.progress import Progress, ProgressCallback
from marginlens.text.explanation import TextExplanation, explain_sample, top_two
from marginlens.text.vectorize import PlainIds, TextPipeline, TextVocabulary, WordsAndPairs
from marginlens.typing import FloatArray, IntArray

MIN_COUNT = 2  # occurrences of a word in the default pipeline
INITIAL_NORM = 0.3  # of an embedding: small, so that what is learned outweighs the initial values
HELD_OUT_SHARE = 0.1  # of the texts, which training never steps on
MIN_HELD_OUT = 10  # texts; with fewer there is nothing to learn from them: all texts are trained on, for all steps
MIN_STEPS = 300
CHECK_INTERVAL = 25  # steps
PATIENCE = 10  # checks without a smaller loss after which training stops

SETTINGS_FILE, ARRAYS_FILE = "model.json", "arrays.npz"
_FORMAT = "marginlens text classifier 2"
_SAVED = "a folder that AttentionTextClassifier.save wrote"
_PARAMETERS = ("pair_count", "d_model", "epochs", "learning_rate", "weight_decay")
_PER_TOKEN = ("a", "b", "selected", "in_positive", "in_negative")

IMPORTANCE = np.dtype(
    [
        ("token", object),
        ("count", np.int64),
        ("alpha", np.float64),
        ("posterior_difference", np.float64),
        ("a", np.float64),
        ("b", np.float64),
        ("selected", np.int64),
    ]
)


def default_pipeline(empty: str = "drop") -> TextPipeline:
    """Lower-case words without stemming, stop words and negations kept, that occur twice."""
    return TextPipeline(stop_words=None, min_count=MIN_COUNT, empty=empty)


class AttentionTextClassifier(ClassifierMixin, BaseEstimator):
    r"""Two classes of texts told apart by a softmax over tokens whose scores and votes are learned.

    .. math:: f(X) = \sum_t \mathrm{softmax}(a_X)_t\, b_{x_t},\quad a_s = \langle E_s, p\rangle,\ b_s = \langle E_s, v\rangle,\quad
        \min_{E, p, v} \frac1n \sum_i \log(1 + e^{-y_i f(X_i)})

    Args:
        pipeline: `TextPipeline` that finds the words; by default lower-case words without stemming, stop words kept, that occur twice,
            and texts without such a word left out of training.
        pair_count: pairs of neighbouring words that occur this often are tokens too; 0 for single words only.
        d_model: width of the embeddings. epochs: most passes over the texts; at least 300 steps are planned for few texts.
        learning_rate, weight_decay: of AdamW; the rate falls to zero.
        random_state: of the initial values, the order of the texts and the tenth of them that says which step to keep.

    Learned: `classes_` (2,), positive outputs speak for `classes_[1]`; `a_`, `b_` (n_tokens,) and `norm_p_` = ‖p‖; `tokens_` with
    `names`; `statistics_` of the training texts; `selected_` (n_tokens,) in how many of them a token has the highest score;
    `left_out_` indices of training texts without a token; `training_` how many steps were taken and which was kept.
    A text without a known token has f = 0, which is `classes_[0]`. f is an average of votes, so a text of few words is judged as surely
    as its words alone would be: probabilities of texts much shorter than those in training are too extreme.
    """

    def __init__(
        self,
        pipeline: TextPipeline | None = None,
        pair_count: int = 3,
        d_model: int = 32,
        epochs: int = 3,
        learning_rate: float = 0.01,
        weight_decay: float = 0.1,
        random_state: Any = 0,
    ) -> None:
        self.pipeline = pipeline
        self.pair_count = pair_count
        self.d_model = d_model
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.random_state = random_state

    def fit(self, X: Any, y: Any, *, progress: ProgressCallback | None = None) -> AttentionTextClassifier:
        """Learn from texts, or from token-id lists, and their labels.

        Args:
            X: n_samples strings, or token-id lists, or an array (n_samples, n_tokens) of ids, which are used as they are.
            y: (n_samples,) two different labels of any kind. progress: called as `progress(done, total)` in texts and steps.
        """
        pipeline, settings = self._settings()
        is_text = _are_texts(X)
        classes, signs = _two_labels(y, len(X))
        steps = n_steps(len(X), settings)
        watch = Progress(progress, steps + (len(X) if is_text else 0))
        tokens: WordsAndPairs | PlainIds
        if is_text:
            pair_count = whole_number(self.pair_count, "pair_count", at_least=0)
            tokens, data, kept = WordsAndPairs.fit(
                X, signs, pipeline, pair_count, lambda done, total: watch.advance(done - watch.done)
            )
        else:
            tokens, data, kept = PlainIds.fit(X, signs)
        if len(np.unique(data.y)) != 2:
            only = classes.tolist()[int(data.y[0] > 0)]
            raise reject("X", "texts of both classes that keep a token", f"only {only!r}")
        watch.advance(steps - n_steps(len(data), settings))  # those of texts that were left out
        learned = learn_products(data, settings, watch)
        self.classes_, self.tokens_, self.statistics_ = classes, tokens, token_statistics(data)
        self.a_, self.b_, self.norm_p_ = learned.a, learned.b, learned.norm_p
        self.selected_ = _selection_counts(data, learned.a)
        self.left_out_ = np.setdiff1d(np.arange(len(X)), kept)
        self.training_ = {name: getattr(learned, name) for name in ("steps", "kept_step", "held_out", "held_out_loss")}
        return self

    def decision_function(self, X: Any) -> FloatArray:
        """(n_samples,) f, the log-odds of `classes_[1]`."""
        self._check_fitted()
        if _are_texts(X) != self._reads_texts:
            kinds = ("token-id lists", "texts")
            raise reject("X", f"{kinds[self._reads_texts]}, as in training", kinds[not self._reads_texts])
        return outputs(*self.tokens_.positions(X), self.a_, self.b_)

    def predict(self, X: Any) -> Any:
        """(n_samples,) `classes_[1]` where f is positive, else `classes_[0]`."""
        positive = self.decision_function(X) > 0.0
        return np.asarray(self.classes_)[positive.astype(int)]

    def predict_proba(self, X: Any) -> FloatArray:
        """(n_samples, 2) probabilities of both classes, in the order of `classes_`."""
        f = self.decision_function(X)
        return np.exp(-np.logaddexp(0.0, np.column_stack([f, -f])))

    def explain(self, text: Any) -> TextExplanation:
        """Why this text is classified as it is: prints as a table; `to_html()` highlights its words."""
        self._check_fitted()
        return explain_sample(self, self._check_sample(text))

    def selection_margin(self, text: Any) -> float:
        r"""By how much the selected token of a text beats every other token of it, at unit length of p.

        .. math:: \min_{s \ne s^*} \frac{(E_{s^*} - E_s)^\top p}{\|p\|},\quad s^* = \arg\max_{s \in X} E_s^\top p

        Returns:
            A number of at least 0; infinite where a text has one distinct token, NaN where it has none.
        """
        self._check_fitted()
        ids = np.unique(self.tokens_.positions([self._check_sample(text)])[0])
        first, second = top_two(self.a_[ids])
        return (first - second) / self.norm_p_

    @property
    def token_importance_(self) -> Any:
        """One row per token: token, count, alpha (α_s), posterior_difference, a (⟨E_s,p⟩), b (⟨E_s,v⟩), selected (in how many texts)."""
        if not hasattr(self, "a_"):
            raise AttributeError("token_importance_ is there once the classifier has been fitted")
        known, table = self.statistics_, np.empty(len(self.a_), dtype=IMPORTANCE)
        table["token"], table["count"], table["alpha"] = self.tokens_.names, known.count, known.alpha
        table["posterior_difference"], table["selected"] = known.posterior_difference, self.selected_
        table["a"], table["b"] = self.a_, self.b_
        return table

    def save(self, folder: str | os.PathLike[str], facts: dict[str, Any] | None = None) -> None:
        """Write the fitted model to a folder that appears whole or not at all: JSON and plain arrays, nothing pickled.

        Args:
            folder: a new folder, an empty one, or one with an earlier model, which is replaced.
            facts: kept beside the settings, e.g. test accuracies; JSON values.
        """
        self._check_fitted()
        _save(self, folder, facts or {})

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> AttentionTextClassifier:
        """The model that `save` wrote."""
        return _load(cls, folder)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.string = True
        tags.classifier_tags.multi_class = False
        return tags

    def _more_tags(self) -> dict[str, Any]:
        return {"X_types": ["string"], "binary_only": True}

    def _settings(self) -> tuple[TextPipeline, TrainingSettings]:
        pipeline = default_pipeline() if self.pipeline is None else self.pipeline
        if not isinstance(pipeline, TextPipeline):
            raise reject("pipeline", "a TextPipeline or None", type(pipeline).__name__)
        whole_number(self.epochs, "epochs", at_least=1)
        settings = TrainingSettings(
            d_model=self.d_model,
            epochs=self.epochs,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            milestones=(),
            seed=_seed(self.random_state),
            spread=INITIAL_NORM,
        )
        return pipeline, settings

    def _check_fitted(self) -> None:
        if not hasattr(self, "a_"):
            raise NotFittedError(f"This {type(self).__name__} is not fitted yet: call fit with texts and labels first.")

    @property
    def _reads_texts(self) -> bool:
        return isinstance(self.tokens_, WordsAndPairs)

    def _check_sample(self, sample: Any) -> Any:
        """`sample` if it is one text, or one list of token ids, as in training."""
        if self._reads_texts:
            if not isinstance(sample, str):
                raise reject("text", "one text, as in training", type(sample).__name__)
            return sample
        try:
            flat_sequences([sample])
        except InputError as problem:
            raise reject("text", "one list of at least one token id, as in training", repr(sample)[:60]) from problem
        return sample


# ---- arguments


def _are_texts(X: Any) -> bool:
    """Whether these samples are texts and not token ids, judged by the first."""
    expected = "a list of texts, or a list of token-id lists"
    if isinstance(X, str | bytes | Mapping | Set) or hasattr(X, "columns") or not hasattr(X, "__len__"):
        raise reject("X", expected, type(X).__name__, "Put the texts into a list.")
    if len(X) == 0:
        raise reject("X", "at least one sample", "none")
    first = next(iter(X))
    return isinstance(first, str) or first is None or not n_axes(first)


def _seed(random_state: Any) -> int:
    if isinstance(random_state, int | np.integer) and not isinstance(random_state, bool):
        return whole_number(random_state, "random_state", at_least=0)
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**31))
    try:
        return int(check_random_state(random_state).randint(2**31 - 1))
    except (ValueError, TypeError) as problem:
        expected = "a whole number, None, a RandomState or a Generator"
        raise reject("random_state", expected, repr(random_state)) from problem


def _two_labels(y: Any, n_samples: int) -> tuple[Any, FloatArray]:
    """The two classes, and each label as -1 or +1."""
    expected = f"{n_samples} labels of exactly two classes, one for each sample of X"
    labels = array_of_any(y, "y", expected)
    if labels.shape != (n_samples,):
        raise reject("y", expected, f"shape {labels.shape}")
    listed = y if isinstance(y, list | tuple) else labels.tolist()  # an array of a list makes words of all of it
    missing = [i for i, label in enumerate(listed) if label is None or label != label]
    if missing:
        raise reject("y", "a label for every sample", f"none at index {missing[0]}")
    try:
        classes, places = np.unique(labels, return_inverse=True)
    except TypeError:
        classes = labels[:0]
    if len({isinstance(label, str) for label in listed}) > 1 or (len(labels) and not len(classes)):
        raise reject("y", "labels of one kind, such as words or numbers", "a mixture")
    if len(classes) != 2:
        shown = ", ".join(map(repr, classes.tolist()[:4])) + (", ..." if len(classes) > 4 else "")
        raise reject("y", expected, f"{len(classes)} ({shown})")
    return classes, np.where(places == 1, 1.0, -1.0)


# ---- learning


@dataclass(frozen=True, repr=False)
class LearnedProducts:
    """`a` = ⟨E_s,p⟩ and `b` = ⟨E_s,v⟩ (n_tokens,), ‖p‖, and how they were found.

    `steps` were taken and `kept_step` is the one whose values these are; `held_out` counts the texts that chose it and `held_out_loss`
    is their mean loss there, NaN where there were too few.
    """

    a: FloatArray
    b: FloatArray
    norm_p: float
    steps: int
    kept_step: int
    held_out: int
    held_out_loss: float


def outputs(tokens: IntArray, offsets: IntArray, a: FloatArray, b: FloatArray) -> FloatArray:
    r"""What the one-layer model says about each sequence; zero where a sequence has no token.

    .. math:: f(X) = \frac{\sum_t e^{a_{x_t}} b_{x_t}}{\sum_t e^{a_{x_t}}},\quad a = Ep,\ b = Ev

    Args:
        tokens: (n_positions,) ids. offsets: (n_samples + 1,) where each sequence starts. a, b: (n_tokens,).
    Returns:
        (n_samples,) f.
    """
    f = np.zeros(len(offsets) - 1)
    full = np.flatnonzero(np.diff(offsets))
    if len(full):
        starts, lengths = offsets[:-1][full], np.diff(offsets)[full]
        logits = a[tokens]
        weights = np.exp(logits - np.repeat(np.maximum.reduceat(logits, starts), lengths))
        f[full] = np.add.reduceat(weights * b[tokens], starts) / np.add.reduceat(weights, starts)
    return f


def n_steps(n_texts: int, settings: TrainingSettings) -> int:
    """Steps that training takes at most."""
    trained_on = n_texts - n_held_out(n_texts)
    return max(MIN_STEPS, settings.epochs * len(batches_of(trained_on, settings.batch)))


def n_held_out(n_texts: int) -> int:
    """Texts that training never steps on."""
    share = int(HELD_OUT_SHARE * n_texts)
    return share if share >= MIN_HELD_OUT else 0


def learn_products(data: LabelledSequences, settings: TrainingSettings, progress: Progress) -> LearnedProducts:
    r"""Train E, p and v by AdamW with a rate that falls to zero, and keep the values at which the held-out texts lose least.

    Args:
        data: labelled sequences. settings: width, passes, rate and decay; fewer passes are made where the held-out loss rises.
        progress: counts every step.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        learned = _learn(data, settings, progress)
    if not (np.isfinite(learned.a).all() and np.isfinite(learned.b).all()):
        remedy = "A rate of .01 and a decay of .1 suit most texts."
        got = f"{settings.learning_rate:g} with weight_decay = {settings.weight_decay:g}"
        raise reject("learning_rate", "so small that training does not run away", got, remedy)
    return learned


def _learn(data: LabelledSequences, settings: TrainingSettings, progress: Progress) -> LearnedProducts:
    rng = np.random.default_rng(settings.seed)
    order, n_validation = rng.permutation(len(data)), n_held_out(len(data))
    validation, training = data.take(np.sort(order[:n_validation])), data.take(np.sort(order[n_validation:]))
    start = initial_parameters(data.n_vocabulary, settings.d_model, rng, settings.dtype, settings.spread)
    model = CompiledOneLayer(distinct_tokens(training), start, settings)
    total, batches = n_steps(len(data), settings), batches_of(len(training), settings.batch)
    best: LearnedProducts | None = None
    step = 0

    def products(loss: float) -> LearnedProducts:
        a, b = (np.array(values, dtype=np.float64) for values in model.products())
        return LearnedProducts(a, b, float(np.linalg.norm(model.p.astype(np.float64))), step, step, n_validation, loss)

    while step < total:
        if step % len(batches) == 0:
            model.begin(rng.permutation(len(training)))
        model.step(*batches[step % len(batches)], settings.learning_rate * (1.0 - step / total))
        step += 1
        progress.advance()
        if n_validation and (step % CHECK_INTERVAL == 0 or step == total):
            loss = _mean_loss(validation, model)
            if loss < (np.inf if best is None else best.held_out_loss):
                best = products(loss)
            elif step - (0 if best is None else best.kept_step) >= PATIENCE * CHECK_INTERVAL:
                progress.advance(total - step)
                break
    return products(float("nan")) if best is None else replace(best, steps=step)


def _mean_loss(data: LabelledSequences, model: CompiledOneLayer) -> float:
    a, b = (np.asarray(values, dtype=np.float64) for values in model.products())
    return float(np.mean(np.logaddexp(0.0, -data.y * outputs(data.tokens, data.offsets, a, b))))


def _selection_counts(data: LabelledSequences, a: FloatArray) -> IntArray:
    """(n_tokens,) in how many sequences each token has the highest score."""
    logits, starts = a[data.tokens], data.offsets[:-1]
    top = logits == np.repeat(np.maximum.reduceat(logits, starts), data.lengths)
    chosen = np.unique(data.sample[top] * data.n_vocabulary + data.tokens[top])  # once, however often it stands there
    return np.bincount(chosen % data.n_vocabulary, minlength=data.n_vocabulary)


# ---- files


def check_model_folder(folder: str | os.PathLike[str], argument: str = "folder") -> Path:
    """A path where a model can be written: nothing there yet, an empty folder, or an earlier model and nothing else."""
    path = as_path(folder, argument, "a folder")
    if path.exists() and not _may_be_replaced(path):
        got = f"{str(path)!r}, which holds something else"
        raise reject(argument, "a new folder, or one with only an earlier model", got)
    if not path.resolve().parent.is_dir():
        raise reject(argument, "a place in a folder that exists", repr(str(path)))
    return path


def _may_be_replaced(path: Path) -> bool:
    """Whether a folder is empty, or all that it holds was written by `save`."""
    try:
        names = {file.name for file in path.iterdir()}
        saved = json.loads((path / SETTINGS_FILE).read_text(encoding="utf-8")) if names else {"format": _FORMAT}
    except (OSError, ValueError):
        return False
    return names <= {SETTINGS_FILE, ARRAYS_FILE} and isinstance(saved, dict) and saved.get("format") == _FORMAT


def _save(model: AttentionTextClassifier, folder: str | os.PathLike[str], facts: dict[str, Any]) -> None:
    """Write a fitted classifier beside its place, then rename it into it."""
    path = check_model_folder(folder).resolve()
    arrays, settings = _packed(model)
    settings |= {"arrays_sha256": hashlib.sha256(arrays).hexdigest(), "facts": facts}
    written = json.dumps(settings, ensure_ascii=False, indent=1).encode()
    write_folder(path, {ARRAYS_FILE: arrays, SETTINGS_FILE: written}, "folder")


def _load(cls: Any, folder: str | os.PathLike[str]) -> Any:
    """The classifier in a folder; arrays that were changed or belong to another model are refused."""
    path = as_path(folder, "folder", _SAVED)
    try:
        settings = json.loads((path / SETTINGS_FILE).read_text(encoding="utf-8"))
        if settings.get("format") != _FORMAT:
            raise ValueError(f"another format, {settings.get('format')!r}")
        content = (path / ARRAYS_FILE).read_bytes()
        if hashlib.sha256(content).hexdigest() != settings["arrays_sha256"]:
            raise ValueError("arrays that are damaged or belong to another model")
        with np.load(BytesIO(content), allow_pickle=False) as archive:
            return _unpacked(cls, settings, dict(archive))
    except OSError as problem:
        raise reject("folder", _SAVED, unusable(path, problem)) from problem
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, EOFError, BadZipFile) as problem:
        raise reject("folder", _SAVED, f"{str(path)!r}, which cannot be read ({problem})") from problem


def _packed(model: AttentionTextClassifier) -> tuple[bytes, dict[str, Any]]:
    """A fitted classifier as the content of its two files."""
    known, tokens, classes = model.statistics_, model.tokens_, model.classes_
    if classes.dtype.kind not in "biufU" and not all(isinstance(c, str | int | float | bool) for c in classes.tolist()):
        raise reject("classes_", "labels that are words or numbers, which JSON can hold", f"dtype {classes.dtype}")
    arrays: dict[str, Any] = {"a": model.a_, "b": model.b_, "selected": model.selected_, "left_out": model.left_out_}
    arrays |= {"in_positive": known.in_positive, "in_negative": known.in_negative}
    if isinstance(tokens, WordsAndPairs):
        arrays |= {"pairs": tokens.pairs, "word_counts": tokens.vocabulary.counts}
        vocabulary: dict[str, Any] = {
            "pipeline": tokens.vocabulary.pipeline.to_dict(),
            "names": list(tokens.vocabulary.names),
        }
    else:
        vocabulary = {"n_ids": tokens.n_tokens}
    numbers = {name: np.asarray(getattr(model, name)).item() for name in _PARAMETERS}
    seed = int(model.random_state) if isinstance(model.random_state, int | np.integer) else None
    pipeline = None if model.pipeline is None else model.pipeline.to_dict()
    stream = BytesIO()
    np.savez_compressed(stream, **arrays)
    return stream.getvalue(), {
        "format": _FORMAT,
        "parameters": {**numbers, "random_state": seed, "pipeline": pipeline},
        "classes": {"labels": classes.tolist(), "dtype": "object" if classes.dtype.kind == "O" else classes.dtype.str},
        "norm_p": model.norm_p_,
        "training": {name: None if value != value else value for name, value in model.training_.items()},
        "n_positions": known.n_positions,
        "tokens": vocabulary,
    }


def _unpacked(cls: Any, settings: dict[str, Any], arrays: dict[str, Any]) -> Any:
    """The classifier that `_packed` described."""
    parameters, vocabulary = dict(settings["parameters"]), settings["tokens"]
    pipeline = parameters.pop("pipeline")
    model = cls(**parameters, pipeline=None if pipeline is None else TextPipeline.from_dict(pipeline))
    if "n_ids" in vocabulary:
        tokens: WordsAndPairs | PlainIds = PlainIds(int(vocabulary["n_ids"]))
    else:
        words = TextVocabulary(
            TextPipeline.from_dict(vocabulary["pipeline"]), tuple(vocabulary["names"]), arrays["word_counts"]
        )
        pairs = arrays["pairs"]
        if pairs.shape[1:] != (2,) or not ((pairs >= 0) & (pairs < len(words))).all():
            raise ValueError(f"pairs of other words than its {len(words)}")
        tokens = WordsAndPairs(words, pairs)
    for name in _PER_TOKEN:
        if arrays[name].shape != (len(tokens),):
            raise ValueError(f"{len(tokens)} tokens and {name} of shape {arrays[name].shape}")
    model.classes_ = np.array(settings["classes"]["labels"], dtype=settings["classes"]["dtype"])
    model.tokens_, model.norm_p_, model.left_out_ = tokens, settings["norm_p"], arrays["left_out"]
    model.a_, model.b_, model.selected_ = arrays["a"], arrays["b"], arrays["selected"]
    model.statistics_ = TokenStatistics(arrays["in_positive"], arrays["in_negative"], settings["n_positions"])
    model.training_ = {k: float("nan") if v is None else v for k, v in settings["training"].items()}
    return model
