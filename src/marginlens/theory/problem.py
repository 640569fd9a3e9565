"""What every statement is about: one problem, how far rounding blurs its scores, and the slope of the loss on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from marginlens.data.tokens import BoolArray, FloatArray, TokenDataset, as_dataset
from marginlens.errors import reject
from marginlens.losses.margin import Loss, as_loss, rising_margin
from marginlens.risk.smoothness import loss_on_scores

SCORE_TOLERANCE = (
    1e-12  # error of a score, relative to the sum of |v_j x_j| over coordinates, that rounding alone can make
)
_LOG_RANGE = 700.0  # logarithms below this in modulus belong to numbers that a double holds with all its digits
T = TypeVar("T")


def one_problem(data: Any) -> TokenDataset:
    """`data` if it holds one problem, else the sentence that says how to take one out of a batch."""
    if as_dataset(data).is_batch:
        raise reject("data", "one problem", f"a batch of {len(data)}", "Take one with data[j].")
    return data


def each_problem(data: TokenDataset, v: Any, question: Callable[[TokenDataset, FloatArray], T]) -> Any:
    """The answer to `question(data, v)` for one problem; for a batch the list of the answers, in order."""
    head = as_dataset(data).head(v)
    return [question(data[j], head[j]) for j in range(len(data))] if data.is_batch else question(data, head)


def score_blur(data: TokenDataset, v: Any) -> FloatArray:
    r"""How far rounding blurs each score, (…, n_inputs, n_tokens): `SCORE_TOLERANCE` :math:`\sum_j |v_j x_{itj}|`.

    Two tokens tie where their scores differ by no more than the sum of their blurs. Coordinates that the head does not read blur nothing,
    however large they are.
    """
    return np.einsum("...itd,...d->...it", np.abs(data.X), SCORE_TOLERANCE * np.abs(data.head(v)))


def all_tied(scores: FloatArray, blur: FloatArray, where: BoolArray) -> BoolArray:
    """Whether every two tokens among `where` tie, (…), from arrays (…, n_tokens): intervals meet in pairs only if they share a point."""
    highest = np.max(np.where(where, scores - blur, -np.inf), axis=-1)
    return np.asarray(highest <= np.min(np.where(where, scores + blur, np.inf), axis=-1))


def score_differences(data: TokenDataset, v: Any, selected: Any) -> tuple[FloatArray, BoolArray]:
    r""":math:`\gamma_{i\alpha_i} - \gamma_{it}` and which (i, t) are real tokens other than α, both (…, n_inputs, n_tokens).

    Differences within `score_blur` are exactly zero, and so are those of padding and of α itself.
    """
    alpha = data.selection(selected)[..., None]
    scores = np.where(data.mask, data.finite_scores(v), 0.0)
    other = data.mask & (np.arange(data.n_tokens) != alpha)
    difference = np.where(other, np.take_along_axis(scores, alpha, axis=-1) - scores, 0.0)
    blur = score_blur(data, v)
    tied = np.abs(difference) <= blur + np.take_along_axis(blur, alpha, axis=-1)
    return np.where(tied, 0.0, difference), other


def decreasing_loss(data: TokenDataset, v: Any, loss: Any) -> Loss:
    """`loss` if it rises nowhere on the scores of any problem, as every theorem on selected tokens assumes; refused otherwise."""
    loss = as_loss(loss)
    scores, mask = data.as_batch().finite_scores(v), data.as_batch().mask
    for own, real in zip(scores, mask, strict=True):
        low, high = float(own[real].min()), float(own[real].max())
        margin = rising_margin(loss, low, high)
        if margin is not None:
            expected = f"a loss that decreases on the scores [{low:.4g}, {high:.4g}], as A Assumption A asks"
            raise reject("loss", expected, f"{type(loss).__name__}, which increases at {margin:.4g}")
    return loss


def depends_on_p(data: TokenDataset, v: Any) -> BoolArray:
    """Which inputs have an output that depends on p, (…, n_inputs): those with two different keys and two different scores.

    An input with one token, with one key for all its tokens, or with one score for all of them adds a constant to the risk. The theorems
    then speak of the other inputs, and n counts those.
    """
    same_key = np.all(np.equal(data.K, data.K[..., :1, :]).all(axis=-1) | ~data.mask, axis=-1)
    return np.asarray(~same_key & ~all_tied(data.finite_scores(v), score_blur(data, v), data.mask))


def log_slopes(data: TokenDataset, v: Any, loss: Loss) -> tuple[Any, Any]:
    """Logarithms of the largest and of the smallest \\|ℓ'\\| on each problem's scores, each (…); none underflows at scores of 1000."""
    constants = loss_on_scores(data, v, decreasing_loss(data, v, loss))
    bound, smallest = np.array([c.log_bound for c in constants]), np.array([c.log_smallest for c in constants])
    return bound.reshape(data.batch_shape), smallest.reshape(data.batch_shape)


def power(logarithm: Any) -> str:
    """e to a power for a sentence: to four digits where a double holds it, as e^-900 where it would be zero or infinite."""
    in_range = logarithm == -np.inf or abs(logarithm) < _LOG_RANGE
    return f"{np.exp(logarithm):.4g}" if in_range else f"e^{logarithm:.4g}"
