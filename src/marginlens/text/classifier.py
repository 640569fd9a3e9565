"""Paper B's one-layer model as a scikit-learn classifier of texts: the estimator, its arguments and its files."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Mapping, Set
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
import scipy

from marginlens.data.sequences import flat_sequences
from marginlens.embeddings.statistics import TokenStatistics
from marginlens.errors import (
    InputError,
    Remedy,
    array_of_any,
    missing_extra,
    n_axes,
    nonnegative_number,
    positive_number,
    real_array,
    reject,
    require,
    whole_number,
)
from marginlens.result.frames import frame
from marginlens.runtime.files import as_path, check_writable, unusable, write_folder
from marginlens.runtime.progress import Progress, ProgressCallback
from marginlens.text.evaluation import text_digests
from marginlens.text.explanation import TextExplanation, explain_sample, top_two
from marginlens.text.learning import (
    LearningSettings,
    Votes,
    learn,
    log_probabilities,
    planned_readings,
    token_sets,
)
from marginlens.text.phrases import MAX_PHRASE, MAX_TOKENS, PlainIds, TokenPlaces, WordsAndPhrases, check_unicode
from marginlens.text.vectorize import Cleaning, TextPipeline, TextVocabulary, TokenizerWords
from marginlens.typing import FloatArray, IntArray

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.exceptions import NotFittedError
    from sklearn.utils import check_random_state, compute_class_weight
except ModuleNotFoundError as problem:
    raise missing_extra("scikit-learn", "text", "A text classifier") from problem

FEW_TEXTS = 500  # below which words and pairs that occur once are tokens too: there is little else to learn from
MAX_CLASSES = 1000  # more labels than this are a mistake, or another task
MAX_VOTES = 20_000_000  # tokens times classes; the rarest phrases give way
MANY_CLASSES = 20  # from which numbers as labels are looked at: whether they are measurements
LONG_WORD = 15  # letters of a mean word from which texts have no blanks between words
_N_LOOKED_AT = 200  # texts whose words are measured

SETTINGS_FILE, ARRAYS_FILE = "model.json", "arrays.npz"
_FORMAT = "marginlens text classifier 4"
_SAVED = "a folder of a saved text classifier"
_PARAMETERS = (
    "ngrams",
    "min_count",
    "phrase_count",
    "characters",
    "epochs",
    "learning_rate",
    "weight_decay",
    "selective",
    "warm_start",
)
_ARRAYS = ("a", "b", "selected", "left_out", "class_counts", "text_digests")  # learned, as a file holds them
_PER_TOKEN = ("a", "b", "selected", "class_counts")

IMPORTANCE = np.dtype(
    [
        ("token", object),
        ("count", np.int64),
        ("alpha", np.float64),
        ("posterior_difference", np.float64),
        ("a", np.float64),
        ("b", np.float64),
        ("selected", np.int64),
        ("label", object),
    ]
)


def default_pipeline(empty: str = "drop", min_count: int = 2, *, characters: bool = False) -> TextPipeline:
    """Lower-case words without stemming, punctuation and emoji, stop words and negations kept, that occur twice."""
    cleaning = Cleaning(keep_punctuation=True, characters=bool(characters))
    return TextPipeline(cleaning, stop_words=None, min_count=min_count, empty=empty)


class _SizeSettings(NamedTuple):
    """Settings whose usual values depend on how many texts there are."""

    ngrams: int = 3
    min_count: int = 2
    phrase_count: int = 2
    epochs: int = 8

    @classmethod
    def usual(cls, n_texts: int) -> _SizeSettings:
        return cls(ngrams=2, min_count=1, phrase_count=1, epochs=16) if n_texts < FEW_TEXTS else cls()


class AttentionTextClassifier(ClassifierMixin, BaseEstimator):
    r"""Classes of texts told apart by a softmax over tokens whose scores and votes are learned.

    .. math:: f_c(X) = \sum_{t \in X \cup \{0\}} \mathrm{softmax}(a_X)_t\, b_{tc},\quad a_s = \langle E_s, p\rangle,\
        b_{sc} = \langle E_s, v_c\rangle,\quad P(c \mid X) = \mathrm{softmax}(f(X))_c

    Tokens are the distinct words and phrases of a text, and a rest token 0 that stands in every text. It is the intercept: it votes
    for the weighted shares of the classes in training, to which texts with few known words fall back. Trained as usual this is a bag of
    phrases with a length term: attention is nearly even, and what decides are the contributions, attention times vote, which `explain`
    lists. Two classes have one output, f = log-odds of `classes_[1]`. p and the v_c are unit vectors, E_s are the learned numbers
    (a_s, b_s).

    Args:
        pipeline: `TextPipeline` that finds the words, in place of `min_count`, `characters` and `tokenizer`; None for lower-case words,
            punctuation marks and emoji without stemming, since all of them speak, texts without a token left out with a warning.
        ngrams: most words of a phrase, 1 to 3; None for 3, because "not very good" speaks otherwise than its pairs, and for 2 where there
            are fewer than 500 texts, of which most longer phrases are chance.
        min_count: words that occur less often than this are not tokens; None for 2, because what occurs once has been met on one side
            only, and for 1 where there are fewer than 500 texts, which have little else.
        phrase_count: the same for phrases; None for 2, and for 1 where there are fewer than 500 texts.
        characters: take every letter as a word, for languages without blanks between words; False, with advice where texts have none.
        tokenizer: function from a text to a list of strings, or a tokenizer of the packages transformers or tokenizers, in place of the
            words; None for the words.
        epochs: passes over the texts; None for 8, after which accuracy on other texts no longer grows, and for 16 where there are fewer
            than 500 texts.
        learning_rate: of AdaGrad for the scores, falling to zero; .07, between too even and too sparse attention. Votes learn
            60 times as fast.
        weight_decay: of the votes: in a reading of all texts at the full rate they fall by the factor exp(-weight_decay), so that what few
            texts say is forgotten; 0. About 1 helps where most words are noise, and costs a point of accuracy on reviews.
        selective: whether attention starts at the tokens that tell the classes apart and its entropy is penalised, so that a few tokens
            have nearly all of it; False, because that costs accuracy.
        class_weight: None, "balanced", or a dict from label to weight, as in scikit-learn; None leaves probabilities those of the data.
        warm_start: whether another `fit` keeps the tokens and goes on from what was learned; False, so that `fit` forgets.
        random_state: of the order of the texts, what is left out of them while training, and the texts held out.

    Learned: `classes_`; `a_` (n_tokens,); `b_` (n_tokens,) for two classes, else (n_tokens, n_classes); `rest_a_` and `rest_b_` of the
    rest token; `tokens_` with `names`; `class_counts_` (n_tokens, n_classes) occurrences in the training texts; `selected_` (n_tokens,)
    in how many of them a token has the highest score; `left_out_` indices of training texts without a token; `training_` texts read, texts
    held out, the mean log-loss of these as whole texts (`held_out_loss`, NaN where none was), and what calibration changed;
    `text_digests_` numbers by which `text_digests` knows the training texts again.
    """

    classes_: Any
    tokens_: WordsAndPhrases | PlainIds
    text_digests_: Any

    def __init__(
        self,
        pipeline: TextPipeline | None = None,
        *,
        ngrams: int | None = None,
        min_count: int | None = None,
        phrase_count: int | None = None,
        characters: bool = False,
        tokenizer: Any = None,
        epochs: int | None = None,
        learning_rate: float = 0.07,
        weight_decay: float = 0.0,
        selective: bool = False,
        class_weight: Any = None,
        warm_start: bool = False,
        random_state: Any = 0,
    ) -> None:
        self.pipeline = pipeline
        self.ngrams = ngrams
        self.min_count = min_count
        self.phrase_count = phrase_count
        self.characters = characters
        self.tokenizer = tokenizer
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.selective = selective
        self.class_weight = class_weight
        self.warm_start = warm_start
        self.random_state = random_state

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, *, progress: ProgressCallback | None = None
    ) -> AttentionTextClassifier:
        """Learn from texts, or from token-id lists, and their labels.

        Args:
            X: n_samples strings, or token-id lists, or an array (n_samples, n_tokens) of ids, which are used as they are.
            y: (n_samples,) labels of any kind, of at least two classes. sample_weight: (n_samples,) how much each sample counts;
                one of weight 0 is as if it were not there.
            progress: called as `progress(done, total)` in texts read.
        """
        is_text = _are_texts(X)
        classes, labels = _labels(y, len(X))
        weights = _weights(sample_weight, self.class_weight, classes, labels)
        counted = np.flatnonzero(weights)
        if len(counted) < len(X):
            samples = list(X)
            X, labels, weights = [samples[i] for i in counted], labels[counted], weights[counted]
        sized = self._size_settings(len(X))
        pipeline = self._pipeline(sized.min_count)
        settings = self._settings(sized.epochs, min(pipeline.min_count, sized.phrase_count) if is_text else 1)
        goes_on = bool(self.warm_start) and hasattr(self, "a_")
        if goes_on and not (np.array_equal(classes, self.classes_) and is_text == self._reads_texts):
            got = ", ".join(map(repr, classes.tolist()[:6]))
            raise reject("y", f"the classes of the first fit ({self._shown_classes}), as warm_start is on", got)
        n_planned = planned_readings(labels, settings)
        watch = Progress(progress, n_planned + (len(X) if is_text else 0))
        tokens: WordsAndPhrases | PlainIds
        if goes_on:
            tokens, places = self.tokens_, self.tokens_.positions(X)
            watch.advance(len(X) if is_text else 0)
        elif is_text:
            most = min(MAX_TOKENS, MAX_VOTES // len(classes))
            tokens, places = WordsAndPhrases.fit(
                X, pipeline, sized.ngrams, sized.phrase_count, lambda n, _: watch.advance(n - watch.done), most
            )
            if not isinstance(pipeline.cleaning, TokenizerWords) and not pipeline.cleaning.characters:
                _advise_characters(X, pipeline)
        else:
            tokens, places = PlainIds.fit(X)
        known = np.flatnonzero(np.diff(places.offsets))
        left_out = counted[np.setdiff1d(np.arange(len(X)), known)]
        self._check_known(left_out, labels, classes, pipeline, np.setdiff1d(labels, labels[known]))
        labels, weights = labels[known], weights[known] / weights[known].mean()
        watch.advance(n_planned - planned_readings(labels, settings))  # those of texts that were left out
        texts = token_sets(places.tokens, places.offsets, len(tokens)).take(known)
        learned = learn(texts, labels, weights, len(classes), settings, watch, self._votes() if goes_on else None)
        votes = learned.votes
        self.classes_, self.tokens_, self.left_out_ = classes, tokens, left_out
        self.a_, self.b_ = votes.a, votes.b[:, 0] if len(classes) == 2 else votes.b
        self.rest_a_, self.rest_b_ = votes.rest_a, votes.rest_b
        all_labels = np.repeat(labels, np.diff(places.offsets)[known])
        self.class_counts_ = _counts(places.tokens, all_labels, len(tokens), len(classes))
        self.selected_ = _selection_counts(texts, votes.a)
        about_data = {"positions": len(all_labels), "weighted": bool(np.ptp(weights))}
        self.training_ = learned.facts() | about_data
        digests = text_digests(X)[known] if is_text else np.empty(0, dtype=np.uint64)
        self.text_digests_ = np.union1d(digests, self.text_digests_ if goes_on else digests)
        return self

    def decision_function(self, X: Any) -> FloatArray:
        """(n_samples,) f, the log-odds of `classes_[1]`, for two classes, else (n_samples, n_classes) f."""
        f = self._outputs(X)
        return f[:, 0] if f.shape[1] == 1 else f

    def predict(self, X: Any) -> Any:
        """(n_samples,) the class with the highest probability."""
        f = self._outputs(X)
        return np.asarray(self.classes_)[(f[:, 0] > 0.0).astype(int) if f.shape[1] == 1 else f.argmax(axis=1)]

    def predict_log_proba(self, X: Any) -> FloatArray:
        """(n_samples, n_classes) logarithms of the probabilities, in the order of `classes_`."""
        return log_probabilities(self._outputs(X))

    def predict_proba(self, X: Any) -> FloatArray:
        """(n_samples, n_classes) probabilities, in the order of `classes_`; calibrated on texts held out of training."""
        return np.exp(self.predict_log_proba(X))

    def explain(self, text: Any) -> TextExplanation:
        """Why this text is classified as it is: prints as a table; `to_html()` highlights its words, `to_frame()` makes a data frame."""
        self._check_fitted()
        return explain_sample(self, self._check_sample(text))

    def selection_margin(self, text: Any) -> float:
        r"""By how much the selected token of a text beats every other token of it; p is a unit vector.

        .. math:: \min_{s \ne s^*} (E_{s^*} - E_s)^\top p / \|p\|,\quad s^* = \arg\max_{s \in X} E_s^\top p

        Returns:
            A number of at least 0; infinite where a text has one distinct token, NaN where it has none.
        """
        self._check_fitted()
        ids = np.unique(self.tokens_.positions([self._check_sample(text)]).tokens)
        first, second = top_two(self.a_[ids])
        return first - second

    def statistics_of(self, label: Any) -> TokenStatistics:
        """What the training texts' counts say of a class against all others: α_s and posterior differences by token."""
        self._check_fitted()
        places = np.flatnonzero(self.classes_ == label)
        if len(places) != 1:
            raise reject("label", f"one of the classes ({self._shown_classes})", repr(label))
        inside = self.class_counts_[:, places[0]]
        return TokenStatistics(inside, self.class_counts_.sum(axis=1) - inside, int(self.class_counts_.sum()))

    @property
    def statistics_(self) -> TokenStatistics:
        """The statistics of `classes_[1]` against the other class, or all others."""
        if not hasattr(self, "a_"):
            raise AttributeError("statistics_ is there once the classifier has been fitted")
        return self.statistics_of(self.classes_[1])

    @property
    def token_importance_(self) -> Any:
        """A row per token: token, count, alpha (α_s), posterior_difference, a (⟨E_s,p⟩), b, selected (in how many texts), label.

        With two classes b is the vote ⟨E_s,v⟩ for `classes_[1]`, and label the class it speaks for. With more, label is the class with
        the highest vote, b that vote, and α and posterior difference are those of the label against all others.
        """
        if not hasattr(self, "a_"):
            raise AttributeError("token_importance_ is there once the classifier has been fitted")
        table = np.empty(len(self.a_), dtype=IMPORTANCE)
        count = self.class_counts_.sum(axis=1)
        if self.b_.ndim == 1:
            best, top, b = np.ones(len(self.a_), dtype=int), (self.b_ > 0).astype(int), self.b_
        else:
            best = top = self.b_.argmax(axis=1)
            b = self.b_[np.arange(len(self.b_)), top]
        inside = self.class_counts_[np.arange(len(count)), best]
        known = TokenStatistics(inside, count - inside, int(count.sum()))
        table["token"], table["count"], table["alpha"] = self.tokens_.names, count, known.alpha
        table["posterior_difference"], table["selected"] = known.posterior_difference, self.selected_
        table["a"], table["b"], table["label"] = self.a_, b, self.classes_[top]
        return table

    def to_frame(self, library: str | None = None) -> Any:
        """`token_importance_` as a data frame of pandas, else of polars, else of pyarrow, or of the library that is named."""
        self._check_fitted()
        table = self.token_importance_
        return frame({name: table[name] for name in table.dtype.names}, library)

    def save(self, folder: str | os.PathLike[str], facts: dict[str, Any] | None = None) -> None:
        """Write the fitted model to a folder that appears whole or not at all: JSON and plain arrays, nothing pickled.

        Args:
            folder: a new folder, an empty one, or one with an earlier model, which is replaced.
            facts: kept beside the settings, e.g. test accuracies; JSON values.
        """
        self._check_fitted()
        path = check_model_folder(folder).resolve()
        arrays, settings = _packed(self)
        settings |= {"arrays_sha256": hashlib.sha256(arrays).hexdigest(), "facts": facts or {}}
        written = json.dumps(settings, ensure_ascii=False, indent=1).encode()
        write_folder(path, {ARRAYS_FILE: arrays, SETTINGS_FILE: written}, "folder")

    @classmethod
    def load(cls, folder: str | os.PathLike[str], *, tokenizer: Any = None) -> AttentionTextClassifier:
        """The model that `save` wrote; a model that was fitted with a tokenizer needs it again, unless it is of the package tokenizers."""
        path = as_path(folder, "folder", _SAVED)
        try:
            settings = json.loads((path / SETTINGS_FILE).read_text(encoding="utf-8"))
            written = str(settings.get("format"))
            if written.startswith(_FORMAT.removesuffix("4")) and written != _FORMAT:
                got = f"{str(path)!r}, written by another version of this library ({written!r}; this one reads {_FORMAT!r})"
                raise reject("folder", _SAVED, got, "Train the model again with this version.")
            if written != _FORMAT:
                raise ValueError(f"another format, {written!r}")
            content = (path / ARRAYS_FILE).read_bytes()
            if hashlib.sha256(content).hexdigest() != settings["arrays_sha256"]:
                raise ValueError("arrays that are damaged or belong to another model")
            with np.load(BytesIO(content), allow_pickle=False) as archive:
                return _unpacked(cls, settings, dict(archive), tokenizer)
        except OSError as problem:
            raise reject("folder", _SAVED, unusable(path, problem)) from problem
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, EOFError, BadZipFile) as problem:
            raise reject("folder", _SAVED, f"{str(path)!r}, which cannot be read ({problem})") from problem

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.string = True
        return tags

    def _more_tags(self) -> dict[str, Any]:
        return {"X_types": ["string"]}

    def _size_settings(self, n_texts: int) -> _SizeSettings:
        """What was given, and the usual values for so many texts of what was not."""
        usual = _SizeSettings.usual(n_texts)
        given = {name: getattr(self, name) for name in usual._fields if getattr(self, name) is not None}
        found = usual._replace(**{name: whole_number(value, name, at_least=1) for name, value in given.items()})
        if found.ngrams > MAX_PHRASE:
            raise reject("ngrams", f"a whole number from 1 to {MAX_PHRASE}", found.ngrams)
        return found

    def _pipeline(self, min_count: int) -> TextPipeline:
        if self.pipeline is not None:
            if not isinstance(self.pipeline, TextPipeline):
                raise reject("pipeline", "a TextPipeline or None", type(self.pipeline).__name__)
            if self.tokenizer is not None:
                raise reject("tokenizer", "None where a pipeline is given", type(self.tokenizer).__name__)
            return self.pipeline
        if self.tokenizer is None:
            return default_pipeline(min_count=min_count, characters=self.characters)
        return _tokenizer_pipeline(self.tokenizer, min_count)

    def _settings(self, epochs: int, min_texts: int) -> LearningSettings:
        decay = nonnegative_number(self.weight_decay, "weight_decay")
        rate = positive_number(self.learning_rate, "learning_rate")
        return LearningSettings(epochs, rate, decay, _seed(self.random_state), min_texts, bool(self.selective))

    def _votes(self) -> Votes:
        return Votes(self.a_, self.b_.reshape(len(self.a_), len(self.rest_b_)), self.rest_a_, self.rest_b_)

    def _outputs(self, X: Any) -> FloatArray:
        """(n_samples, n_outputs) f."""
        self._check_fitted()
        if _are_texts(X) != self._reads_texts:
            kinds = ("token-id lists", "texts")
            raise reject("X", f"{kinds[self._reads_texts]}, as in training", kinds[not self._reads_texts])
        places: TokenPlaces = self.tokens_.positions(X)
        return self._votes().outputs(token_sets(places.tokens, places.offsets, len(self.tokens_)))

    def _check_known(
        self, left_out: IntArray, labels: IntArray, classes: Any, pipeline: TextPipeline, lost: IntArray
    ) -> None:
        """Refuse texts without tokens where the pipeline says so, or classes that lose all; otherwise count what is left out."""
        n_empty = len(left_out)
        if n_empty and pipeline.empty == "refuse":
            more = f" and {n_empty - 1} more" if n_empty > 1 else ""
            expected = "texts that have at least one token"
            raise reject(
                "X",
                expected,
                f"none in the review at index {left_out[0]}{more}",
                Remedy("Use {empty} to leave them out.", empty='"drop"'),
            )
        if len(lost):
            names = ", ".join(repr(classes[k].item() if hasattr(classes[k], "item") else classes[k]) for k in lost[:4])
            raise reject(
                "X",
                "texts of every class that have a token",
                f"none of {names}",
                Remedy("A smaller {min_count} may help.", min_count=""),
            )
        if n_empty and self.pipeline is None:
            often = "once" if pipeline.min_count == 1 else f"{pipeline.min_count} times"
            warnings.warn(
                f"Left out of training: {n_empty:,} of {len(labels):,} texts, which have no word that occurs {often}; left_out_ lists "
                "them.",
                stacklevel=3,
            )

    def _check_fitted(self) -> None:
        if not hasattr(self, "a_"):
            raise NotFittedError(f"This {type(self).__name__} is not fitted yet: call fit with texts and labels first.")

    @property
    def _shown_classes(self) -> str:
        return ", ".join(map(repr, self.classes_.tolist()[:6])) + (", ..." if len(self.classes_) > 6 else "")

    @property
    def _reads_texts(self) -> bool:
        return isinstance(self.tokens_, WordsAndPhrases)

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


def _tokenizer_pipeline(tokenizer: Any, min_count: int, empty: str = "drop") -> TextPipeline:
    usable = callable(tokenizer) or any(callable(getattr(tokenizer, name, None)) for name in ("tokenize", "encode"))
    if not usable:
        expected = "a function from a text to a list of strings, or a tokenizer of transformers or tokenizers"
        raise reject("tokenizer", expected, type(tokenizer).__name__)
    return TextPipeline(TokenizerWords(find=tokenizer), stop_words=None, min_count=min_count, empty=empty)


def _are_texts(X: Any) -> bool:
    """Whether these samples are texts and not token ids, judged by the first."""
    expected = "a list of texts, or a list of token-id lists"
    if scipy.sparse.issparse(X):
        raise reject("X", expected, "a sparse matrix", "Counts of words are not texts: give the texts themselves.")
    if isinstance(X, str | bytes | Mapping | Set) or hasattr(X, "columns") or not hasattr(X, "__len__"):
        raise reject("X", expected, type(X).__name__, "Put the texts into a list.")
    if len(X) == 0:
        raise reject("X", "at least one sample", "none")
    first = next(iter(X))
    return isinstance(first, str) or first is None or not n_axes(first)


def _advise_characters(texts: Any, pipeline: TextPipeline) -> None:
    """Warn where words are so long, in a script that is not Latin, that there can be no blanks between them."""
    words = [
        word for text in list(texts)[:_N_LOOKED_AT] for word in pipeline.cleaning.words(text) if not word.isascii()
    ]
    if len(words) >= 2 and sum(map(len, words)) > LONG_WORD * len(words):
        mean = sum(map(len, words)) / len(words)
        warnings.warn(
            f"The texts seem to have no blanks between words: a word has {mean:.0f} letters on average. characters=True takes every "
            "letter as a word.",
            stacklevel=4,
        )


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


def _labels(y: Any, n_samples: int) -> tuple[Any, IntArray]:
    """The classes, and each label as the index of its class."""
    expected = f"{n_samples:,} labels, one for each sample"
    if y is None:
        raise reject("y", expected, "none")
    labels = array_of_any(y, "y", expected)
    if labels.shape != (n_samples,):
        raise reject("y", expected, f"shape {labels.shape}")
    listed = y if isinstance(y, list | tuple) else labels.tolist()  # an array of a list makes words of all of it
    missing = [i for i, label in enumerate(listed) if label is None or _is_nan(label)]
    if missing:
        raise reject("y", "a label for every sample", f"none at index {missing[0]}")
    try:
        classes, places = np.unique(labels, return_inverse=True)
    except TypeError:
        classes, places = labels[:0], np.empty(0, dtype=np.int64)
    if len({isinstance(label, str) for label in listed}) > 1 or (len(labels) and not len(classes)):
        raise reject("y", "labels of one kind, such as words or numbers", "a mixture")
    if len(classes) == 1:
        raise reject("y", "labels of at least two classes", f"one class, {classes.tolist()[0]!r},")
    check_unicode([label for label in classes.tolist() if isinstance(label, str)], "y", "labels")
    shown = ", ".join(map(repr, classes.tolist()[:3]))
    if len(classes) > MANY_CLASSES and _are_measurements(classes, n_samples):
        remedy = "They look like continuous measurements: sort them into classes, such as low and high."
        raise reject("y", "labels of classes", f"{len(classes):,} different numbers ({shown}, ...)", remedy)
    if len(classes) > MAX_CLASSES:
        remedy = "They look like numbers or names of single texts: is this the column of the labels?"
        raise reject("y", f"labels of at most {MAX_CLASSES:,} classes", f"{len(classes):,} ({shown}, ...)", remedy)
    return classes, places.astype(np.int64)


def _is_nan(label: Any) -> bool:
    """Whether a label is NaN, or a missing value of pandas, which does not say whether it equals itself."""
    try:
        return bool(label != label)
    except TypeError:
        return True


def _are_measurements(classes: Any, n_samples: int) -> bool:
    """Whether labels are numbers, or words that can be read as numbers, with fractions or hardly any of them twice."""
    try:
        numbers = np.asarray(classes, dtype=np.float64)
    except (ValueError, TypeError):
        return False
    return not np.array_equal(numbers, np.round(numbers)) or 2 * len(classes) > n_samples


def _weights(sample_weight: Any, class_weight: Any, classes: Any, labels: IntArray) -> FloatArray:
    """(n_samples,) how much each sample counts, class weights included."""
    weights = np.ones(len(labels))
    if sample_weight is not None:
        expected = f"numbers of at least 0 of shape ({len(labels)},), one for each sample"
        given = array_of_any(sample_weight, "sample_weight", expected)
        if given.shape != (len(labels),):
            raise reject("sample_weight", expected, f"shape {given.shape}")
        weights = real_array(given, "sample_weight", (len(labels),))
        if (weights < 0.0).any() or np.any(np.bincount(labels, weights=weights) <= 0.0):
            raise reject("sample_weight", expected, "a negative weight, or a class whose weights are all zero,")
    if class_weight is None:
        return weights
    try:
        of_class = compute_class_weight(class_weight, classes=classes, y=classes[labels[weights > 0.0]])
        if not np.all((of_class > 0.0) & np.isfinite(of_class)):
            raise ValueError("weights that no class can have")
    except (ValueError, TypeError) as problem:
        expected = 'None, "balanced", or a dict from each class to its weight, a positive number'
        raise reject("class_weight", expected, repr(class_weight)[:60]) from problem
    return weights * of_class[labels]


# ---- counts


def _counts(tokens: IntArray, labels: IntArray, n_tokens: int, n_classes: int) -> IntArray:
    """(n_tokens, n_classes) occurrences of each token in texts of each class."""
    return np.bincount(tokens * n_classes + labels, minlength=n_tokens * n_classes).reshape(n_tokens, n_classes)


def _selection_counts(texts: Any, a: FloatArray) -> IntArray:
    """(n_tokens,) in how many texts each token has the highest score."""
    logits, starts, lengths = a[texts.token], texts.offsets[:-1], np.diff(texts.offsets)
    top = logits == np.repeat(np.maximum.reduceat(logits, starts), lengths)
    return np.bincount(texts.token[top], minlength=texts.n_tokens)


# ---- files


def check_model_folder(folder: str | os.PathLike[str], argument: str = "folder") -> Path:
    """A path where a model can be written: nothing there yet, an empty folder, or an earlier model and nothing else."""
    path = as_path(folder, argument, "a folder")
    if path.exists() and not _may_be_replaced(path):
        got = f"{str(path)!r}, which holds something else"
        raise reject(argument, "a new folder, or one with only an earlier model", got)
    if not path.resolve().parent.is_dir():
        raise reject(argument, "a place in a folder that exists", repr(str(path)))
    check_writable(path, argument)
    return path


def _may_be_replaced(path: Path) -> bool:
    """Whether a folder is empty, or all that it holds was written by `save`."""
    try:
        names = {file.name for file in path.iterdir()}
        saved = json.loads((path / SETTINGS_FILE).read_text(encoding="utf-8")) if names else {"format": _FORMAT}
    except (OSError, ValueError):
        return False
    if not (names <= {SETTINGS_FILE, ARRAYS_FILE} and isinstance(saved, dict)):
        return False
    return str(saved.get("format")).startswith("marginlens text classifier")


def _packed(model: AttentionTextClassifier) -> tuple[bytes, dict[str, Any]]:
    """A fitted classifier as the content of its two files."""
    tokens, classes = model.tokens_, model.classes_
    if classes.dtype.kind not in "biufU" and not all(isinstance(c, str | int | float | bool) for c in classes.tolist()):
        raise reject("classes_", "labels that are words or numbers, which JSON can hold", f"dtype {classes.dtype}")
    arrays: dict[str, Any] = {name: getattr(model, f"{name}_") for name in _ARRAYS}
    arrays["rest"] = np.array([model.rest_a_, *model.rest_b_])
    if isinstance(tokens, WordsAndPhrases):
        arrays |= {f"phrases_{several.shape[1]}": several for several in tokens.phrases}
        arrays["word_counts"] = tokens.vocabulary.counts
        pipeline = tokens.vocabulary.pipeline
        vocabulary: dict[str, Any] = {"pipeline": {}, "names": list(tokens.vocabulary.names)}
        if isinstance(pipeline.cleaning, TokenizerWords):
            to_str = getattr(
                pipeline.cleaning.find, "to_str", None
            )  # by which those of the package tokenizers write themselves
            tokenizer = str(to_str()) if callable(to_str) else True  # others have to be given again
            vocabulary["pipeline"] = {"tokenizer": tokenizer, "min_count": pipeline.min_count}
        else:
            vocabulary["pipeline"] = pipeline.to_dict()
    else:
        vocabulary = {"n_ids": tokens.n_tokens}
    numbers = {name: np.asarray(getattr(model, name)).item() for name in _PARAMETERS}
    seed = int(model.random_state) if isinstance(model.random_state, int | np.integer) else None
    weight = model.class_weight
    if isinstance(weight, Mapping):
        weight = [[getattr(label, "item", lambda label=label: label)(), float(of)] for label, of in weight.items()]
    stream = BytesIO()
    np.savez_compressed(stream, **arrays)
    return stream.getvalue(), {
        "format": _FORMAT,
        "parameters": {
            **numbers,
            "class_weight": weight,
            "random_state": seed,
            "pipeline": None if model.pipeline is None else model.pipeline.to_dict(),
        },
        "classes": {"labels": classes.tolist(), "dtype": "object" if classes.dtype.kind == "O" else classes.dtype.str},
        "training": {name: None if value != value else value for name, value in model.training_.items()},
        "tokens": vocabulary,
    }


def _unpacked(cls: Any, settings: dict[str, Any], arrays: dict[str, Any], tokenizer: Any) -> Any:
    """The classifier that `_packed` described."""
    parameters, vocabulary = dict(settings["parameters"]), settings["tokens"]
    pipeline, weight = parameters.pop("pipeline"), parameters.pop("class_weight")
    model = cls(
        **parameters,
        tokenizer=tokenizer,
        class_weight=dict(weight) if isinstance(weight, list) else weight,
        pipeline=None if pipeline is None else TextPipeline.from_dict(pipeline),
    )
    if "n_ids" in vocabulary:
        tokens: WordsAndPhrases | PlainIds = PlainIds(int(vocabulary["n_ids"]))
    else:
        found = vocabulary["pipeline"]
        if tokenizer is None and isinstance(found.get("tokenizer"), str):
            require("tokenizers", "text", "A model with a tokenizer")
            tokenizer = model.tokenizer = import_module("tokenizers").Tokenizer.from_str(found["tokenizer"])
        if "tokenizer" in found and tokenizer is None:
            expected = "the tokenizer that the model was fitted with, which its files do not hold"
            raise reject("tokenizer", expected, "none")
        made = (
            _tokenizer_pipeline(tokenizer, found["min_count"])
            if "tokenizer" in found
            else TextPipeline.from_dict(found)
        )
        words = TextVocabulary(made, tuple(vocabulary["names"]), arrays["word_counts"])
        lengths = [length for length in range(2, MAX_PHRASE + 1) if f"phrases_{length}" in arrays]
        phrases = tuple(arrays[f"phrases_{length}"] for length in lengths)
        for length, several in zip(lengths, phrases, strict=True):
            if several.shape[1:] != (length,) or not ((several >= 0) & (several < len(words))).all():
                raise ValueError(f"phrases of other words than its {len(words)}")
        tokens = WordsAndPhrases(words, phrases)
    for name in _PER_TOKEN:
        if arrays[name].shape[:1] != (len(tokens),):
            raise ValueError(f"{len(tokens)} tokens and {name} of shape {arrays[name].shape}")
    model.classes_ = np.array(settings["classes"]["labels"], dtype=settings["classes"]["dtype"])
    for name in _ARRAYS:
        setattr(model, f"{name}_", arrays[name])
    model.tokens_, model.rest_a_, model.rest_b_ = tokens, float(arrays["rest"][0]), arrays["rest"][1:]
    model.training_ = {k: float("nan") if v is None else v for k, v in settings["training"].items()}
    return model
