"""Token datasets (Y, X, K): what one attention layer reads, for one problem or a batch of independent ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from marginlens.errors import (
    InputError,
    array_of_any,
    batch_index,
    float_array,
    n_axes,
    real_array,
    reject,
    whole_number,
)
from marginlens.papers import implements

_POWER = 520  # entries times 2^-520 have products whose sums stay in range
_SMALL, _LARGE = 2.0**-_POWER, 1e300
FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@implements("A", "Eq. (5)")
class TokenDataset:
    r"""Labels, tokens and keys of one problem, or of a batch of independent problems.

    .. math:: (Y_i, X_i, K_i)_{i=1}^n, \quad Y_i \in \{-1, 1\},\ X_i \in \mathbb R^{T_i \times d},\ K_i = X_i W^\top

    Args:
        X: tokens: an array (n_inputs, n_tokens, d_model), or (batch, n_inputs, n_tokens, d_model), or a list with one array
            (n_tokens_i, d_model) per input when lengths differ, or a list of such lists.
        y: labels, each -1 or +1, of shape (n_inputs,) or (batch, n_inputs).
        K: keys in the same form as X; their width d_key may differ from d_model. Defaults to X Wᵀ.
        W: key-query matrix (d_key, d_model); defaults to the identity. Give K or W, not both.

    Shorter inputs are padded: `lengths` (…, n_inputs) counts the real tokens and `mask` (…, n_inputs, n_tokens) marks them; padded
    rows of X and K are zero. `len(data)` is the number of problems and `data[j]` is the j-th as a dataset of its own.
    """

    def __init__(self, X: Any, y: Any, K: Any = None, W: Any = None) -> None:
        self.X, self.lengths, self.is_batch = _tokens(X, "X")
        n_inputs, d_model = self.X.shape[-3], self.X.shape[-1]
        self.y = _labels(y, self.X.shape[:-2])
        if K is not None and W is not None:
            raise reject("K", "left out when W is given, because K = X Wᵀ", "both K and W")
        self.W: FloatArray | None = None
        if K is not None:
            self.K, lengths, _ = _tokens(K, "K")
            if self.K.shape[:-1] != self.X.shape[:-1] or not np.array_equal(lengths, self.lengths):
                raise reject("K", f"keys for tokens of shape {self.X.shape[:-1]}", f"shape {self.K.shape[:-1]}")
        else:
            self.W = np.eye(d_model) if W is None else real_array(W, "W", ("d_key", d_model))
            with np.errstate(over="ignore", invalid="ignore"):
                self.K = self.X if W is None else self.X @ self.W.T
            if not np.isfinite(self.K).all():
                raise reject(
                    "W", "small enough for keys X Wᵀ that are finite numbers", f"|W| up to {np.abs(W).max():.3g}"
                )
        self.mask: BoolArray = np.arange(self.X.shape[-2]) < self.lengths[..., None]
        if n_inputs == 0 or self.lengths.size == 0:
            raise reject("X", "at least one input", "an empty dataset")

    # ---- shape

    @property
    def n_inputs(self) -> int:
        """Inputs per problem."""
        return self.X.shape[-3]

    @property
    def n_tokens(self) -> int:
        """Tokens of the longest input."""
        return self.X.shape[-2]

    @property
    def d_model(self) -> int:
        """Width of a token."""
        return self.X.shape[-1]

    @property
    def d_key(self) -> int:
        """Width of a key, which is the width of p."""
        return self.K.shape[-1]

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """() for one problem, (n_problems,) for a batch."""
        return self.X.shape[:-3]

    def __len__(self) -> int:
        return self.X.shape[0] if self.is_batch else 1

    def __getitem__(self, index: Any) -> TokenDataset:
        """One problem for a whole number; a batch of some for a slice, a mask (batch,) or a list of whole numbers."""
        batch = self.as_batch()
        places = batch_index(index, len(batch), "problems")
        some = object.__new__(TokenDataset)
        some.is_batch, some.W = not isinstance(places, int), self.W
        some.X, some.K, some.y = batch.X[places], batch.K[places], batch.y[places]
        some.lengths, some.mask = batch.lengths[places], batch.mask[places]
        return some

    def __repr__(self) -> str:
        batch = f"{len(self)} problems of " if self.is_batch else ""
        ragged = "up to " if not self.mask.all() else ""
        return (
            f"TokenDataset({batch}{self.n_inputs} inputs × {ragged}{self.n_tokens} tokens, "
            f"d_model={self.d_model}, d_key={self.d_key})"
        )

    def as_batch(self) -> TokenDataset:
        """The same data with a leading batch axis: itself for a batch, a batch of one for a single problem."""
        if self.is_batch:
            return self
        batch = object.__new__(TokenDataset)
        batch.is_batch, batch.W = True, self.W
        batch.X, batch.K, batch.y = self.X[None], self.K[None], self.y[None]
        batch.lengths, batch.mask = self.lengths[None], self.mask[None]
        return batch

    def repeat(self, n_copies: int) -> TokenDataset:
        """A batch of `n_copies` of this one problem (views, no copies): the way to descend from many starts."""
        if self.is_batch:
            raise reject("data", "one problem", f"a batch of {len(self)}", "Take one with data[j].")
        whole_number(n_copies, "n_copies", at_least=0)
        batch = object.__new__(TokenDataset)
        batch.is_batch, batch.W = True, self.W
        for name in ("X", "K", "y", "lengths", "mask"):
            one = getattr(self, name)
            setattr(batch, name, np.broadcast_to(one, (n_copies, *one.shape)))
        return batch

    def take_inputs(self, which: Any) -> TokenDataset:
        """The same problem, or batch, with only some of its inputs: `which` marks them, (n_inputs,) booleans, or lists their indices."""
        chosen = np.asarray(which)
        listed = np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen.astype(np.int64)
        if listed.size == 0:
            raise reject("which", "at least one input", "none")
        part = object.__new__(TokenDataset)
        part.is_batch, part.W = self.is_batch, self.W
        part.y, part.lengths = self.y[..., listed], self.lengths[..., listed]
        longest = int(part.lengths.max())
        part.X, part.K = (array[..., listed, :longest, :] for array in (self.X, self.K))
        part.mask = self.mask[..., listed, :longest]
        return part

    @property
    def is_repeated(self) -> bool:
        """Whether this batch is one problem over and over, as `repeat` makes it: labels, tokens and keys alike."""
        return self.is_batch and all(one.strides[0] == 0 for one in (self.X, self.K, self.y, self.lengths))

    # ---- what the theory reads off the data

    @implements("A", "Def 1")
    def scores(self, v: Any) -> FloatArray:
        r"""Token scores :math:`\gamma_{it} = Y_i v^\top x_{it}`, shape (…, n_inputs, n_tokens); -inf where there is no token."""
        head = self.head(v)
        flat = self.X.reshape(*self.batch_shape, -1, self.d_model)
        if np.abs(flat).max(initial=0.0) * (np.abs(head).max(initial=0.0) / _LARGE) < 1.0 / self.d_model:
            products = flat @ head[..., None]
        else:  # a sum of terms that overflow may itself be in range
            with np.errstate(over="ignore"):
                products = np.ldexp((flat * _SMALL) @ (head * _SMALL)[..., None], 2 * _POWER)
        return np.where(self.mask, products.reshape(self.mask.shape) * self.y[..., None], -np.inf)

    def finite_scores(self, v: Any) -> FloatArray:
        """The same `scores`; refused where one is beyond the range of double precision."""
        scores = self.scores(v)
        if not np.isfinite(scores[self.mask]).all():
            got = f"entries up to {np.abs(self.head(v)).max():.3g}, with tokens up to {np.abs(self.X).max():.3g}"
            raise reject("v", "small enough for scores that are finite numbers", got)
        return scores

    @implements("A", "Def 1")
    def optimal(self, v: Any) -> IntArray:
        """Index of the highest score of each input, shape (…, n_inputs); the first one where several tie."""
        return np.argmax(self.scores(v), axis=-1)

    # ---- arguments that other functions take together with a dataset

    def head(self, v: Any) -> FloatArray:
        """`v` checked and broadcast to (…, d_model)."""
        shape = (len(self), self.d_model) if self.is_batch and n_axes(v) == 2 else (self.d_model,)
        return np.broadcast_to(real_array(v, "v", shape), (*self.batch_shape, self.d_model))

    def point(self, p: Any, argument: str = "p") -> FloatArray:
        """A weight vector `p` checked and broadcast to (…, d_key)."""
        shape = (len(self), self.d_key) if self.is_batch and n_axes(p) == 2 else (self.d_key,)
        return np.broadcast_to(real_array(p, argument, shape), (*self.batch_shape, self.d_key))

    def selection(self, selected: Any, argument: str = "selected") -> IntArray:
        """Token indices checked against each input's length and broadcast to (…, n_inputs)."""
        expected = f"whole numbers of shape ({self.n_inputs},): one token index per input"
        array = array_of_any(selected, argument, expected)
        if array.dtype.kind not in "iu" or array.shape not in ((self.n_inputs,), self.y.shape):
            raise reject(argument, expected, f"shape {array.shape} with dtype {array.dtype}")
        array = np.broadcast_to(array, self.y.shape).astype(np.int64)
        outside = (array < 0) | (array >= self.lengths)
        if outside.any():
            where = tuple(int(k) for k in np.argwhere(outside)[0])
            raise reject(
                argument,
                f"token indices from 0 to {int(self.lengths[where]) - 1} for input {where[-1]}",
                f"index {int(array[where])}",
            )
        return array


def as_dataset(data: Any) -> TokenDataset:
    """`data` if it is a token dataset, else the sentence that says what is expected."""
    if not isinstance(data, TokenDataset):
        raise reject("data", "a TokenDataset", type(data).__name__)
    return data


def _tokens(value: Any, argument: str) -> tuple[FloatArray, IntArray, bool]:
    """Padded tokens, their lengths, and whether there is a batch axis."""
    expected = "of shape (n_inputs, n_tokens, d_model) or (batch, n_inputs, n_tokens, d_model), or a list of (n_tokens_i, d_model) arrays"
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 0:
        raise reject(argument, "at least one input", "an empty dataset")
    try:
        array = float_array(value, argument, f"real numbers {expected}")
    except InputError:
        if not isinstance(value, Sequence) or isinstance(value, str | bytes):
            raise
        return _ragged(value, argument, expected)
    if array.ndim not in (3, 4):
        raise reject(argument, expected, f"shape {array.shape}")
    if 0 in array.shape:
        raise reject(argument, "at least one problem, input, token and coordinate", f"shape {array.shape}")
    _require_finite(array, argument)
    return array, np.full(array.shape[:-2], array.shape[-2], dtype=np.int64), array.ndim == 4


def _ragged(value: Sequence[Any], argument: str, expected: str) -> tuple[FloatArray, IntArray, bool]:
    try:
        inputs = [float_array(one, f"{argument}[{i}]") for i, one in enumerate(value)]
    except InputError:
        inputs = []
    if not inputs or any(one.ndim == 3 for one in inputs):  # a list of problems
        problems = [_tokens(one, f"{argument}[{j}]") for j, one in enumerate(value)]
        if any(is_batch for _, _, is_batch in problems):
            raise reject(argument, expected, "lists nested deeper than problems and inputs")
        if len({tokens.shape[0] for tokens, _, _ in problems}) > 1:
            raise reject(argument, "problems with the same number of inputs", [t.shape[0] for t, _, _ in problems])
        longest = max(tokens.shape[1] for tokens, _, _ in problems)
        _same_width([tokens for tokens, _, _ in problems], argument)
        padded = [np.pad(tokens, ((0, 0), (0, longest - tokens.shape[1]), (0, 0))) for tokens, _, _ in problems]
        return np.stack(padded), np.stack([lengths for _, lengths, _ in problems]), True
    for i, one in enumerate(inputs):
        if one.ndim != 2 or one.size == 0:
            raise reject(f"{argument}[{i}]", "an array of shape (n_tokens_i, d_model)", f"shape {one.shape}")
        _require_finite(one, f"{argument}[{i}]")
    _same_width(inputs, argument)
    lengths = np.array([len(one) for one in inputs], dtype=np.int64)
    return np.stack([np.pad(one, ((0, lengths.max() - len(one)), (0, 0))) for one in inputs]), lengths, False


def _same_width(arrays: list[FloatArray], argument: str) -> None:
    widths = [one.shape[-1] for one in arrays]
    if len(set(widths)) > 1:
        raise reject(argument, "tokens of one width", f"widths {widths}")


def _require_finite(array: FloatArray, argument: str) -> None:
    if not np.isfinite(array).all():
        where = tuple(int(k) for k in np.argwhere(~np.isfinite(array))[0])
        raise reject(argument, "finite numbers", f"{array[where]} at index {where}")


def _labels(y: Any, shape: tuple[int, ...]) -> FloatArray:
    expected = f"labels, each -1 or +1, of shape {shape}"
    labels = float_array(y, "y", expected)
    if labels.shape != shape:
        raise reject("y", expected, f"shape {labels.shape}")
    wrong = ~np.isin(labels, (-1.0, 1.0))
    if wrong.any():
        raise reject("y", expected, f"the label {labels[wrong].flat[0]:g}")
    return labels


__all__ = ["BoolArray", "FloatArray", "InputError", "IntArray", "TokenDataset", "as_dataset"]
