"""A text classifier that shows which tokens decide: paper B's one-layer model as a scikit-learn estimator."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils import check_random_state

from marginlens.data.labelled import LabelledSequences
from marginlens.data.tokens import FloatArray, IntArray
from marginlens.embeddings.classifier_tokens import (
    Tokens,
    WordsAndPairs,
    are_texts,
    check_sample,
    fit_ids,
    fit_words,
)
from marginlens.embeddings.classifier_training import LearnedProducts, learn_products, n_steps, outputs
from marginlens.embeddings.explaining import Explanation, explain_sample, top_two
from marginlens.embeddings.settings import TrainingSettings
from marginlens.embeddings.statistics import TokenStatistics, token_statistics
from marginlens.errors import array_of_any, reject, whole_number
from marginlens.progress import Progress, Silence
from marginlens.text.pipeline import TextPipeline

MIN_COUNT = 2  # occurrences of a word in the default pipeline
SPREAD = 0.3  # norm of an embedding at the start: small, so that what is learned outweighs where it began

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

    def fit(self, X: Any, y: Any, *, progress: Progress | None = None) -> AttentionTextClassifier:
        """Learn from texts, or from token-id lists, and their labels.

        Args:
            X: n_samples strings, or token-id lists, or an array (n_samples, n_tokens) of ids, which are used as they are.
            y: (n_samples,) two different labels of any kind. progress: hears of every text and every step.
        """
        pipeline, settings = self._choices()
        watched = progress or Silence()
        texts = are_texts(X)
        classes, signs = _two_labels(y, len(X))
        steps = n_steps(len(X), settings)
        watched.expect(steps + (len(X) if texts else 0))
        tokens: Tokens
        if texts:
            pair_count = whole_number(self.pair_count, "pair_count", at_least=0)
            tokens, data, kept = fit_words(X, signs, pipeline, pair_count, _Silent(watched))
        else:
            tokens, data, kept = fit_ids(X, signs)
        if len(np.unique(data.y)) != 2:
            raise reject("X", "texts of both classes that keep a token", f"only {_of_class(classes, data.y[0])!r}")
        watched.advance(steps - n_steps(len(data), settings))  # those of texts that were left out
        learned = learn_products(data, settings, watched)
        self._keep(classes, tokens, learned, token_statistics(data), _selected(data, learned.a))
        self.left_out_ = np.setdiff1d(np.arange(len(X)), kept)
        return self

    def decision_function(self, X: Any) -> FloatArray:
        """(n_samples,) f, the log-odds of `classes_[1]`."""
        self._check_fitted()
        self._check_kind(X)
        return outputs(*self.tokens_.positions(X), self.a_, self.b_)

    def predict(self, X: Any) -> Any:
        """(n_samples,) `classes_[1]` where f is positive, else `classes_[0]`."""
        return self.classes_of((self.decision_function(X) > 0.0).astype(int))

    def predict_proba(self, X: Any) -> FloatArray:
        """(n_samples, 2) probabilities of both classes, in the order of `classes_`."""
        f = self.decision_function(X)
        return np.column_stack([_logistic(-f), _logistic(f)])

    def classes_of(self, places: IntArray) -> Any:
        """Labels by their place in `classes_`."""
        return np.asarray(self.classes_)[places]

    def explain(self, text: Any) -> Explanation:
        """Why this text is classified as it is: prints as a table; `to_html()` highlights its words."""
        self._check_fitted()
        return explain_sample(self, check_sample(text, is_text=self._reads_texts))

    def selection_margin(self, text: Any) -> float:
        r"""By how much the selected token of a text beats every other token of it, at unit length of p.

        .. math:: \min_{s \ne s^*} \frac{(E_{s^*} - E_s)^\top p}{\|p\|},\quad s^* = \arg\max_{s \in X} E_s^\top p

        Returns:
            A number of at least 0; infinite where a text has one distinct token, NaN where it has none.
        """
        self._check_fitted()
        sample = check_sample(text, is_text=self._reads_texts)
        first, second = top_two(self.a_[np.unique(self.tokens_.positions([sample])[0])])
        return (first - second) / self.norm_p_

    @property
    def token_importance_(self) -> Any:
        """One row per token: token, count, alpha (α_s), posterior_difference, a (⟨E_s,p⟩), b (⟨E_s,v⟩), selected (in how many texts)."""
        if not hasattr(self, "a_"):
            raise AttributeError("token_importance_ is there once the classifier has been fitted")
        table = np.empty(len(self.a_), dtype=IMPORTANCE)
        known = self.statistics_
        columns = (
            self.tokens_.names,
            known.count,
            known.alpha,
            known.posterior_difference,
            self.a_,
            self.b_,
            self.selected_,
        )
        for name, values in zip(IMPORTANCE.names or (), columns, strict=True):
            table[name] = values
        return table

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the fitted model to a folder that appears whole or not at all: JSON and plain arrays, nothing pickled."""
        from marginlens.embeddings.saving import save_classifier

        self._check_fitted()
        save_classifier(self, folder)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> AttentionTextClassifier:
        """The model that `save` wrote."""
        from marginlens.embeddings.saving import load_classifier

        return load_classifier(cls, folder)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.string = True
        tags.classifier_tags.multi_class = False
        return tags

    def _more_tags(self) -> dict[str, Any]:
        return {"X_types": ["string"], "binary_only": True}

    def _choices(self) -> tuple[TextPipeline, TrainingSettings]:
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
            spread=SPREAD,
        )
        return pipeline, settings

    def _keep(
        self, classes: Any, tokens: Tokens, learned: LearnedProducts, statistics: TokenStatistics, selected: IntArray
    ) -> None:
        self.classes_, self.tokens_, self.statistics_, self.selected_ = classes, tokens, statistics, selected
        self.a_, self.b_, self.norm_p_ = learned.a, learned.b, learned.norm_p
        told = ("steps", "kept_step", "held_out", "held_out_loss")
        self.training_ = {name: getattr(learned, name) for name in told}

    def _check_fitted(self) -> None:
        if not hasattr(self, "a_"):
            raise NotFittedError(f"This {type(self).__name__} is not fitted yet: call fit with texts and labels first.")

    @property
    def _reads_texts(self) -> bool:
        return isinstance(self.tokens_, WordsAndPairs)

    def _check_kind(self, X: Any) -> None:
        if are_texts(X) != self._reads_texts:
            kinds = ("token-id lists", "texts")
            raise reject("X", f"{kinds[self._reads_texts]}, as in training", kinds[not self._reads_texts])


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
    if y is None:
        raise reject("y", f"{n_samples} labels of exactly two classes", "None")
    expected = f"{n_samples} labels, one for each sample of X"
    labels = array_of_any(y, "y", expected)
    if labels.shape != (n_samples,):
        raise reject("y", expected, f"shape {labels.shape}")
    listed = y if isinstance(y, list | tuple) else labels.tolist()  # an array of a list makes words of all of it
    missing = [i for i, one in enumerate(listed) if one is None or one != one]
    if missing:
        raise reject("y", "a label for every sample", f"none at index {missing[0]}")
    if len({isinstance(one, str) for one in listed}) > 1:
        raise reject("y", "labels of one kind, such as words or numbers", "a mixture")
    try:
        classes, places = np.unique(labels, return_inverse=True)
    except TypeError as problem:
        raise reject("y", "labels of one kind, such as words or numbers", "a mixture") from problem
    if len(classes) != 2:
        some = ", ".join(map(repr, classes.tolist()[:4])) + (", ..." if len(classes) > 4 else "")
        raise reject("y", "labels of exactly two classes", f"{len(classes)} ({some})")
    return classes, np.where(places == 1, 1.0, -1.0)


def _of_class(classes: Any, sign: float) -> Any:
    return classes.tolist()[int(sign > 0)]


def _selected(data: LabelledSequences, a: FloatArray) -> IntArray:
    """In how many sequences each token has the highest score."""
    logits, starts = a[data.tokens], data.offsets[:-1]
    top = logits == np.repeat(np.maximum.reduceat(logits, starts), data.lengths)
    chosen = np.unique(data.sample[top] * data.n_vocabulary + data.tokens[top])  # once, however often it stands there
    return np.bincount(chosen % data.n_vocabulary, minlength=data.n_vocabulary)


def _logistic(f: FloatArray) -> FloatArray:
    return np.exp(-np.logaddexp(0.0, -f))


class _Silent:
    """A progress whose total has been said already."""

    def __init__(self, whole: Progress) -> None:
        self.advance = whole.advance

    def expect(self, total: int) -> None:
        """It was said for all parts together."""
