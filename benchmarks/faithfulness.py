"""Faithfulness of explanations of texts: comprehensiveness and sufficiency, as the ERASER benchmark defines them."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from marginlens.errors import reject
from marginlens.result.drawing import GLOBAL, LOCAL, axes_for
from marginlens.result.frames import Tabular
from marginlens.result.notebook import Headline
from marginlens.result.result import Result
from marginlens.runtime.progress import Progress, ProgressCallback
from marginlens.typing import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)  # of a text's words, at which ERASER measures

Contributions = Callable[[str], Iterable[tuple[int, int, float]]]

_BETWEEN_BLANKS, _SINGLE = re.compile(r"\S+"), re.compile(r"\S")


@dataclass(frozen=True, repr=False, eq=False)
class EraserScores(Tabular, Result):
    """How much the predicted class's probability depends on the words that are said to decide.

    `comprehensiveness` is the mean fall of the probability when those words are removed (high is good: they were needed), `sufficiency`
    the mean fall when only they stay (low is good: they are enough), both over texts and `shares`, the area over the perturbation curve.
    `removed` and `only` (n_texts, n_shares) are the falls themselves, `probability` (n_texts,) that of the whole texts. As a data frame:
    a row for each share.
    """

    comprehensiveness: float
    sufficiency: float
    shares: FloatArray
    probability: FloatArray
    removed: FloatArray
    only: FloatArray

    def _headline(self) -> Headline:
        return Headline(
            "",
            f"removing the words that decide lowers the probability by {self.comprehensiveness:.3f}, leaving only them by "
            f"{self.sufficiency:.3f}, on average over {len(self.probability):,} texts",
        )

    def _columns(self) -> Mapping[str, Any]:
        return {
            "share": self.shares,
            "comprehensiveness": self.removed.mean(axis=0),
            "sufficiency": self.only.mean(axis=0),
        }

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw both falls of the probability against the share of the words. Returns the axes."""
        ax = axes_for(ax)
        ax.plot(100.0 * self.shares, self.removed.mean(axis=0), "o-", color=GLOBAL, label="removed: comprehensiveness")
        ax.plot(100.0 * self.shares, self.only.mean(axis=0), "s-", color=LOCAL, label="only these: sufficiency")
        ax.set(xlabel="words that contribute most, % of the text", ylabel="fall of the probability")
        ax.legend()
        return ax


def eraser_scores(
    model: Any,
    texts: Sequence[str],
    contributions: Contributions | None = None,
    *,
    shares: Sequence[float] = SHARES,
    progress: ProgressCallback | None = None,
) -> EraserScores:
    r"""Remove the words that are said to decide, or all others, and see what becomes of the probability of the predicted class.

    .. math:: \frac1{|B|} \sum_{k \in B} P(c \mid x) - P(c \mid x \setminus r_k), \qquad
        \frac1{|B|} \sum_{k \in B} P(c \mid x) - P(c \mid r_k)

    are comprehensiveness and sufficiency; :math:`r_k` are the words of the text x that contribute most to its predicted class c, a share k
    of them, rounded, and at least one. Words are what stands between blanks, so that all models lose the same number of them; with a
    classifier of `characters` every character is a word.

    Args:
        model: a fitted classifier of texts with `predict_proba`.
        texts: to be explained.
        contributions: a function from a text to stretches (start, end, contribution to the predicted class); None for those of
            `model.contributions` or `model.explain`.
        shares: B, of the words of a text, each above 0 and below 1.
        progress: called as `progress(done, total)` in texts.
    """
    B = _shares(shares)
    if isinstance(texts, str) or not len(texts) or not all(isinstance(text, str) for text in texts):
        raise reject("texts", "a list of at least one text", "a text" if isinstance(texts, str) else f"{texts!r:.60}")
    if not hasattr(model, "predict_proba"):
        raise reject("model", "a fitted classifier with predict_proba", type(model).__name__)
    contributions = _contributions_of(model) if contributions is None else contributions
    blank, pattern = ("", _SINGLE) if getattr(model, "characters", False) else (" ", _BETWEEN_BLANKS)
    watch = Progress(progress, len(texts))
    changed: list[str] = []
    for text in texts:
        words = [match.span() for match in pattern.finditer(text)]
        order = np.argsort(-_by_word(words, contributions(text)), kind="stable")
        for share in B:
            top = set(order[: max(1, round(share * len(words)))].tolist())
            for wanted in (False, True):
                changed.append(
                    blank.join(text[start:end] for k, (start, end) in enumerate(words) if (k in top) == wanted)
                )
        watch.advance()
    whole = np.asarray(model.predict_proba(list(texts)))
    best = whole.argmax(axis=1)
    probability = whole[np.arange(len(texts)), best]
    after = np.asarray(model.predict_proba(changed)).reshape(len(texts), len(B), 2, -1)
    falls = probability[:, None, None] - np.take_along_axis(after, best[:, None, None, None], axis=3)[..., 0]
    removed, only = falls[:, :, 0], falls[:, :, 1]
    return EraserScores(float(removed.mean()), float(only.mean()), B, probability, removed, only)


def _shares(shares: Sequence[float]) -> FloatArray:
    expected = "numbers above 0 and below 1"
    try:
        B = np.asarray(shares, dtype=float)
    except (TypeError, ValueError) as problem:
        raise reject("shares", expected, repr(shares)) from problem
    if B.ndim != 1 or not len(B) or not ((B > 0.0) & (B < 1.0)).all():
        raise reject("shares", expected, repr(shares))
    return B


def _contributions_of(model: Any) -> Contributions:
    """What the words of a text contribute to its predicted class, as the model itself says."""
    if hasattr(model, "contributions"):
        return model.contributions
    if not hasattr(model, "explain"):
        expected = (
            "a function from a text to stretches (start, end, contribution), as the model explains nothing itself"
        )
        raise reject("contributions", expected, "none")

    def explained(text: str) -> Iterable[tuple[int, int, float]]:
        explanation = model.explain(text)
        speaks_for_second = len(explanation.classes) == 2  # with two classes f is the log-odds of the second
        sign = -1.0 if speaks_for_second and explanation.label != explanation.classes[1] else 1.0
        return [(span.start, span.end, sign * value) for span, value in explanation.words]

    return explained


def _by_word(words: Sequence[tuple[int, int]], stretches: Iterable[tuple[int, int, float]]) -> FloatArray:
    """(n_words,) what the stretches that start in each word contribute together."""
    starts, total = [start for start, _ in words], np.zeros(len(words))
    for start, _, contribution in stretches:
        k = bisect_right(starts, start) - 1
        if k >= 0:
            total[k] += contribution
    return total
