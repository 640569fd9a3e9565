"""Token datasets (Y, X, K): the inputs of one attention layer, for one problem or a batch of independent problems."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from marginlens.errors import InputError, array_of_any, batch_index, float_array, n_axes, real_array, whole_number
from marginlens.papers import implements
from marginlens.result import Displayed, Tabular, axes_for
from marginlens.result.palette import INPUTS, LOCAL
from marginlens.runtime.files import DATA_FORMAT, write_result
from marginlens.typing import ArrayLike, Axes, BoolArray, FloatArray, Index, IntArray
from marginlens.words import DEFAULT, text, texts

# Entries times 2^-520 have products whose sums stay in range.
_POWER = 520
_SMALL = 2.0**-_POWER
_ARRAYS = ("X", "K", "y", "lengths", "mask", "offsets")
_MAX_LABELS = 40  # tokens of a problem up to which its plot names each


@implements("A", "Eq. (5)")
class TokenDataset(Displayed, Tabular):
    r"""Labels, tokens and keys of one problem, or of a batch of independent problems.

    .. math:: (Y_i, X_i, K_i)_{i=1}^n, \quad Y_i \in \{-1, 1\},\ X_i \in \mathbb R^{T_i \times d},\ K_i = X_i W^\top

    Args:
        X: tokens, an array (n_inputs, n_tokens, d_model) or (batch, n_inputs, n_tokens, d_model). If lengths differ, a list
            with one array (n_tokens_i, d_model) per input, or a list of such lists.

        y: labels, each -1 or +1, of shape (n_inputs,) or (batch, n_inputs).

        K: keys in the same form as X, whose width d_key may differ from d_model; X Wᵀ by default.

        W: key-query matrix (d_key, d_model); the identity by default. Give K or W, not both.

        tokens: the names of the tokens, a list with one list of texts per input, or one list if there is one input. Results and
            plots then show names in place of indices. An empty text names nothing. Problems of a batch share their names.

        offsets: b of shape (n_inputs, n_tokens) or (batch, n_inputs, n_tokens), added to the attention logits and never trained:
            a reference policy, or a bias of each token. If lengths differ, a list with one list per input. Zero by default.

        kind: what verdicts call tokens and inputs: "default", or "bag" for patches and bags for example. A .npz
            file keeps it.

    Shorter inputs are padded: `lengths` (…, n_inputs) counts the real tokens and `mask` (…, n_inputs, n_tokens) marks them; padded
    rows of X and K are zero. `len(data)` is the number of problems, `data[j]` the j-th problem as a dataset, and `data[:4]`,

    `data[mask]` or `data[[2, 0]]` a batch of these problems. Two datasets are equal if all their arrays are.

    `to_frame()` has one row per token: problem (of a batch), input, label, token (its index in the input), name (if tokens have
    names), x, key.

    Examples:
        >>> import marginlens as ml
        >>> ml.TokenDataset([[[0, 0], [1, 1]], [[0, 0], [1, -1]]], [1, -1])
        TokenDataset(2 inputs × 2 tokens, d_model=2, d_key=2)
        >>> named = ml.TokenDataset([[[0, 1], [1, 0]]], [1], tokens=["dog", "cat"])
        >>> print(ml.predict_limit(named, [2.0, 1.0]).outcome)
        “cat” wins.
        Why: “cat” scores 1 more than its closest rival, “dog”.
        Proved ✓
    """

    X: FloatArray
    K: FloatArray
    offsets: FloatArray
    tokens: tuple[tuple[str, ...], ...] | None
    is_scored = False

    def __init__(
        self,
        X: ArrayLike | Sequence[ArrayLike],
        y: Any,
        K: ArrayLike | Sequence[ArrayLike] | None = None,
        W: ArrayLike | None = None,
        tokens: Sequence[str] | Sequence[Sequence[str]] | None = None,
        offsets: Any = None,
        kind: str = DEFAULT,
    ) -> None:
        self.X, self.lengths, self.is_batch = _tokens(X, "X")
        n_inputs, d_model = self.X.shape[-3], self.X.shape[-1]
        self.y = sign_labels(y, self.X.shape[:-2])
        if K is not None and W is not None:
            raise InputError("K", "left out when W is given, because K = X Wᵀ", "both K and W")
        self.W: FloatArray | None = None
        if K is not None:
            self.K, lengths, _ = _tokens(K, "K")
            if self.K.shape[:-1] != self.X.shape[:-1] or not np.array_equal(lengths, self.lengths):
                raise InputError("K", f"keys for tokens of shape {self.X.shape[:-1]}", f"shape {self.K.shape[:-1]}")
        else:
            self.W = np.eye(d_model) if W is None else real_array(W, "W", ("d_key", d_model))
            with np.errstate(over="ignore", invalid="ignore"):
                self.K = self.X if W is None else self.X @ self.W.T
            if not np.isfinite(self.K).all():
                raise InputError(
                    "W", "small enough for keys X Wᵀ that are finite numbers", f"|W| up to {np.abs(self.W).max():.3g}"
                )
        self.mask: BoolArray = np.arange(self.X.shape[-2]) < self.lengths[..., None]
        if n_inputs == 0 or self.lengths.size == 0:
            raise InputError("X", "at least one input", "an empty dataset")
        self.tokens = None if tokens is None else _names(tokens, self.lengths, "tokens")
        self.kind = _kind(kind)
        self.offsets = np.zeros(self.mask.shape) if offsets is None else _of_tokens(offsets, self.mask, "offsets")

    @classmethod
    def of_scores(
        cls,
        keys: ArrayLike | Sequence[ArrayLike],
        scores: Any,
        offsets: Any = None,
        tokens: Sequence[str] | Sequence[Sequence[str]] | None = None,
        kind: str = DEFAULT,
    ) -> TokenDataset:
        r"""Make a dataset of keys whose scores are given, instead of tokens that a head scores.

        A token is its score, all labels are 1, and the head is the number 1, which functions take if no head is given.

        Args:
            keys: K, an array (n_inputs, n_tokens, d_key) or (batch, n_inputs, n_tokens, d_key), or a list of arrays if lengths
                differ, as for `TokenDataset`.

            scores: γ of shape (n_inputs, n_tokens) or (batch, n_inputs, n_tokens), or a list with one list per input.

            offsets: as for `TokenDataset`.

            tokens, kind: as for `TokenDataset`.

        Examples:
            >>> import marginlens as ml
            >>> data = ml.TokenDataset.of_scores([[[0.0, 1.0], [1.0, 0.0]]], [[1.0, 0.0]])
            >>> data.scores([1.0]).tolist()
            [[1.0, 0.0]]
        """
        padded, lengths, _ = _tokens(keys, "keys")
        mask = np.arange(padded.shape[-2]) < lengths[..., None]
        given = _of_tokens(scores, mask, "scores")
        data = cls(np.zeros((*padded.shape[:-1], 1)), np.ones(padded.shape[:-2]), K=padded, kind=kind)
        arrays = {"X": given[..., None], "lengths": lengths, "mask": mask}
        data = data._with(data.is_batch, {**{name: getattr(data, name) for name in _ARRAYS}, **arrays})
        data.offsets = np.zeros(mask.shape) if offsets is None else _of_tokens(offsets, mask, "offsets")
        data.tokens = None if tokens is None else _names(tokens, lengths, "tokens")
        data.is_scored = True
        return data

    # ---- shape

    @property
    def n_inputs(self) -> int:
        """The number of inputs per problem."""
        return int(self.X.shape[-3])

    @property
    def n_tokens(self) -> int:
        """The number of tokens of the longest input."""
        return int(self.X.shape[-2])

    @property
    def d_model(self) -> int:
        """The width of a token."""
        return int(self.X.shape[-1])

    @property
    def d_key(self) -> int:
        """The width of a key, which is the width of p."""
        return int(self.K.shape[-1])

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The shape of the batch: () for one problem, (n_problems,) for a batch."""
        return self.X.shape[:-3]

    @property
    def has_offsets(self) -> bool:
        """True if some attention logit has an offset."""
        return bool(self.offsets.any())

    def __len__(self) -> int:
        return self.X.shape[0] if self.is_batch else 1

    def __getitem__(self, index: Index) -> TokenDataset:
        batch = self.as_batch()
        problems = batch_index(index, len(batch), "problems")
        return batch._with(not isinstance(problems, int), {name: getattr(batch, name)[problems] for name in _ARRAYS})

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TokenDataset):
            return NotImplemented
        return self.is_batch == other.is_batch and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in _ARRAYS
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        batch = f"{len(self)} problems of " if self.is_batch else ""
        ragged = "up to " if not self.mask.all() else ""
        return (
            f"TokenDataset({batch}{self.n_inputs} inputs × {ragged}{self.n_tokens} tokens, "
            f"d_model={self.d_model}, d_key={self.d_key})"
        )

    def plot(self, ax: Axes | None = None) -> Any:
        """Draw the keys, with one colour for each input: their two coordinates or, in more dimensions, their first two
        principal components.

        For a batch, the first problem is drawn. Return the axes.
        """
        ax, data = axes_for(ax), self[0] if self.is_batch else self
        points, names = data.K, (text("axis.first_key"), text("axis.second_key"))
        if data.d_key != 2:
            real = data.K[data.mask]
            centred = real - real.mean(axis=0)
            axes = np.linalg.svd(centred, full_matrices=False)[2][:2]
            points = (data.K - real.mean(axis=0)) @ np.pad(axes, ((0, 2 - len(axes)), (0, 0))).T
            names = (text("axis.first_component"), text("axis.second_component"))
        few = data.n_inputs <= len(INPUTS)
        for i in range(data.n_inputs):
            x, y = points[i][data.mask[i]].T
            ax.plot(
                x,
                y,
                "o",
                markersize=5,
                color=INPUTS[i] if few else LOCAL,
                alpha=0.85,
                label=f"input {i}" if few else None,
            )
            for t, at in enumerate(zip(x, y, strict=True) if int(data.lengths.sum()) <= _MAX_LABELS else ()):
                ax.annotate(data.name_of(i, t), at, (3, 3), textcoords="offset points", fontsize="small")
        if few and data.n_inputs > 1:
            ax.legend()
        ax.set(xlabel=names[0], ylabel=names[1])
        return ax

    def _columns(self) -> dict[str, Any]:
        at = np.argwhere(self.mask)
        place = tuple(at.T)
        columns: dict[str, Any] = {"problem": at[:, 0]} if self.is_batch else {}
        columns |= {"input": at[:, -2], "label": self.y[place[:-1]], "token": at[:, -1]}
        columns |= {} if self.tokens is None else {"name": [self.tokens[i][t] for i, t in at[:, -2:].tolist()]}
        return columns | {"x": self.X[place], "key": self.K[place]}

    def as_batch(self) -> TokenDataset:
        """Return the data with a leading batch axis: one problem becomes a batch of one."""
        return self if self.is_batch else self._with(True, {name: getattr(self, name)[None] for name in _ARRAYS})

    def repeat(self, n_copies: int) -> TokenDataset:
        """Repeat one problem as a batch without copying its arrays, to descend from many starts.

        Args:
            n_copies: number of problems in the batch.

        Examples:
            >>> import marginlens as ml
            >>> data, head = ml.data.figure_1b()
            >>> len(data.repeat(100))
            100
        """
        if self.is_batch:
            raise InputError("data", "one problem", f"a batch of {len(self)}", "Take one with data[j].")
        n = whole_number(n_copies, "n_copies", at_least=0)
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        return self._with(True, {name: np.broadcast_to(array, (n, *array.shape)) for name, array in arrays.items()})

    def take_inputs(self, which: ArrayLike) -> TokenDataset:
        """Take some inputs of the problem, or of every problem of a batch.

        Args:
            which: (n_inputs,) booleans, or indices of inputs.
        """
        chosen = np.asarray(which)
        listed = np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen.astype(np.int64)
        if listed.size == 0:
            raise InputError("which", "at least one input", "none")
        lengths = self.lengths[..., listed]
        n_tokens = int(lengths.max())
        X, K = (array[..., listed, :n_tokens, :] for array in (self.X, self.K))
        mask, offsets = (array[..., listed, :n_tokens] for array in (self.mask, self.offsets))
        arrays = {"X": X, "K": K, "y": self.y[..., listed], "lengths": lengths, "mask": mask, "offsets": offsets}
        data = self._with(self.is_batch, arrays)
        data.tokens = None if self.tokens is None else tuple(self.tokens[i] for i in listed)
        return data

    def named(self, tokens: Sequence[str] | Sequence[Sequence[str]], argument: str = "tokens") -> TokenDataset:
        """Give the tokens names, as the argument `tokens` of the class takes them."""
        data = self._with(self.is_batch, {name: getattr(self, name) for name in _ARRAYS})
        data.tokens = _names(tokens, self.lengths, argument)
        return data

    def name_of(self, i: int, token: int) -> str:
        """Return the name of a token of input i, or its index if it has none."""
        return (self.tokens[i][token] if self.tokens is not None else "") or str(token)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the dataset to a .npz file, which `marginlens.data.load` reads."""
        write_result(path, DATA_FORMAT, self.arrays())

    def arrays(self) -> dict[str, Any]:
        """Return the arrays of a file by name: X, y, K or W unless keys are tokens, lengths if they differ, logit_offsets if there are
        any, names as words, and kind unless it is the default.
        """
        arrays: dict[str, Any] = {"X": self.X, "y": self.y}
        if self.tokens is not None:
            padded = [[*names, *[""] * (self.n_tokens - len(names))] for names in self.tokens]
            arrays["words"] = np.array(padded, dtype=str)
        if self.kind != DEFAULT:
            arrays["kind"] = np.array(self.kind)
        if self.W is None:
            arrays["K"] = self.K
        elif not np.array_equal(self.W, np.eye(self.d_model)):
            arrays["W"] = self.W
        if self.has_offsets:
            arrays["logit_offsets"] = self.offsets
        return arrays if self.mask.all() else {**arrays, "lengths": self.lengths}

    def with_keys(self, K: FloatArray) -> TokenDataset:
        """Replace the keys by others of shape (…, n_inputs, n_tokens, d_key), which must be zero in padding."""
        data = self._with(self.is_batch, {**{name: getattr(self, name) for name in _ARRAYS}, "K": K})
        data.W = None
        return data

    def with_sink(self, *, learned: bool = False) -> TokenDataset:
        r"""Add an attention sink to every input, as its last token: a token of score 0 that takes attention away from the others.

        .. math:: s_{it} = \frac{e^{k_{it}^\top p}}{e^{b} + \sum_\tau e^{k_{i\tau}^\top p}}

        Args:
            learned: whether the sink's logit b is trained with p. If not, b = 0, which is softmax-1: the sink's key is zero. If
                so, as in gpt-oss, b is the last coordinate of p: the sink's key is the unit vector of one more coordinate, in
                which all other keys are zero.

        Returns:
            The data with one more token in each input, called "sink".

        Examples:
            >>> import marginlens as ml
            >>> data, head = ml.data.scored_tokens([[(1.0, 0.5), (-0.5, 1.0)]], [[-1.0, -2.0]])
            >>> print(ml.predict_limit(data.with_sink(), head).outcome.ends_at)
            “sink” wins
        """
        is_sink = np.arange(self.n_tokens + 1) == self.lengths[..., None]
        widths = [(0, 0)] * (self.X.ndim - 2) + [(0, 1), (0, 0)]
        X, K = np.pad(self.X, widths), np.pad(self.K, widths)
        K = np.concatenate([K, is_sink[..., None].astype(np.float64)], axis=-1) if learned else K
        mask = np.arange(self.n_tokens + 1) <= self.lengths[..., None]
        offsets = np.pad(self.offsets, [*widths[:-2], (0, 1)])
        arrays = {"X": X, "K": K, "y": self.y, "lengths": self.lengths + 1, "mask": mask, "offsets": offsets}
        data = self._with(self.is_batch, arrays)
        data.W = None if learned else self.W
        counts = self.lengths.reshape(-1, self.n_inputs)
        names = self.tokens or tuple(("",) * n for n in counts[0].tolist())
        # Problems of a batch share their names, so their lengths must be the same.
        data.tokens = tuple((*each, "sink") for each in names) if (counts == counts[0]).all() else None
        return data

    def shortened(self, lengths: IntArray) -> TokenDataset:
        """Keep only the first tokens of each input, as many as `lengths` (…, n_inputs) says."""
        mask = self.mask & (np.arange(self.n_tokens) < lengths[..., None])
        arrays = {name: np.where(mask[..., None], getattr(self, name), 0.0) for name in ("X", "K")}
        arrays |= {"y": self.y, "lengths": lengths, "mask": mask, "offsets": np.where(mask, self.offsets, 0.0)}
        data = self._with(self.is_batch, arrays)
        if self.tokens is not None:
            counts = lengths.reshape(-1, self.n_inputs).max(axis=0).tolist()
            data.tokens = tuple(names[:n] for names, n in zip(self.tokens, counts, strict=True))
        return data

    def _with(self, is_batch: bool, arrays: Mapping[str, object]) -> TokenDataset:
        """Make a dataset of other arrays, which are not checked, with the same W, names and kind, and a head if it has one."""
        data = object.__new__(TokenDataset)
        same = {name: getattr(self, name) for name in ("W", "tokens", "kind", "is_scored")}
        vars(data).update(arrays, is_batch=is_batch, **same)
        return data

    @property
    def is_repeated(self) -> bool:
        """True if all problems of this batch share their arrays, as `repeat` makes them."""
        return self.is_batch and all(getattr(self, name).strides[0] == 0 for name in _ARRAYS)

    # ---- what the theory reads off the data

    @implements("A", "Def 1")
    def scores(self, head: ArrayLike) -> FloatArray:
        r"""Compute the token scores :math:`\gamma_{it} = Y_i v^\top x_{it}`.

        Args:
            head: v of shape (d_model,), or (batch, d_model) for a batch.

        Returns:
            (…, n_inputs, n_tokens) scores, -inf in padding.

        Examples:
            >>> import marginlens as ml
            >>> data, head = ml.data.figure_1b()
            >>> print(data.scores(head))
            [[1.  0.9 0. ]]
        """
        v = self.head(head)
        flat = self.X.reshape(*self.batch_shape, -1, self.d_model)
        with np.errstate(over="ignore", invalid="ignore"):
            products = flat @ v[..., None]
            if not np.isfinite(products).all():
                # A sum of terms that overflow may itself be in range.
                products = np.ldexp((flat * _SMALL) @ (v * _SMALL)[..., None], 2 * _POWER)
        return np.where(self.mask, products.reshape(self.mask.shape) * self.y[..., None], -np.inf)

    def finite_scores(self, head: ArrayLike) -> FloatArray:
        """Compute `scores`, or raise if one is beyond the range of double precision."""
        scores = self.scores(head)
        if not np.isfinite(scores[self.mask]).all():
            got = f"entries up to {np.abs(self.head(head)).max():.3g}, with tokens up to {np.abs(self.X).max():.3g}"
            raise InputError("head", "small enough for scores that are finite numbers", got)
        return scores

    @implements("A", "Def 1")
    def optimal(self, head: ArrayLike) -> IntArray:
        """Find the token with the highest score of each input, the first one if several tie.

        Args:
            head: v of shape (d_model,), or (batch, d_model) for a batch.

        Returns:
            (…, n_inputs) token indices.

        Examples:
            >>> import marginlens as ml
            >>> data, head = ml.data.figure_1b()
            >>> data.optimal(head)
            array([0])
        """
        return np.argmax(self.scores(head), axis=-1)

    # ---- arguments that other functions take together with a dataset

    @property
    def own_head(self) -> Any:
        """The head that reads off scores that were given, None if tokens need a head."""
        return np.ones(1) if self.is_scored else None

    def head(self, head: ArrayLike, argument: str = "head") -> FloatArray:
        """Check a head v and broadcast it to (…, d_model)."""
        return self._vector(head, argument, self.d_model)

    def point(self, p: ArrayLike, argument: str = "p") -> FloatArray:
        """Check a weight vector p and broadcast it to (…, d_key)."""
        return self._vector(p, argument, self.d_key)

    def _vector(self, value: object, argument: str, width: int) -> FloatArray:
        shape = (len(self), width) if self.is_batch and n_axes(value) == 2 else (width,)
        return np.broadcast_to(real_array(value, argument, shape), (*self.batch_shape, width))

    def selection(self, selected: ArrayLike, argument: str = "selected") -> IntArray:
        """Check token indices against the length of each input and broadcast them to (…, n_inputs)."""
        expected = f"whole numbers of shape ({self.n_inputs},): one token index per input"
        array = array_of_any(selected, argument, expected)
        if array.dtype.kind not in "iu" or array.shape not in ((self.n_inputs,), self.y.shape):
            raise InputError(argument, expected, f"shape {array.shape} with dtype {array.dtype}")
        array = np.broadcast_to(array, self.y.shape).astype(np.int64)
        outside = (array < 0) | (array >= self.lengths)
        if outside.any():
            where = tuple(int(k) for k in np.argwhere(outside)[0])
            raise InputError(
                argument,
                f"token indices from 0 to {int(self.lengths[where]) - 1} for input {where[-1]}",
                f"index {int(array[where])}",
            )
        return array


def as_dataset(data: object) -> TokenDataset:
    """Return `data` if it is a token dataset, otherwise raise."""
    if not isinstance(data, TokenDataset):
        raise InputError("data", "a TokenDataset", type(data).__name__)
    return data


def _names(given: Any, lengths: IntArray, argument: str) -> tuple[tuple[str, ...], ...]:
    """Check the names of tokens: texts, one for each token of each input."""
    counts = lengths.reshape(-1, lengths.shape[-1])
    listed = list(given) if isinstance(given, list | tuple) else []
    if len(counts[0]) == 1 and all(isinstance(name, str) for name in listed):
        listed = [listed]
    names = [tuple(entry) if isinstance(entry, list | tuple) else () for entry in listed]
    is_text = all(isinstance(name, str) for entry in names for name in entry)
    if not is_text or not all([len(entry) for entry in names] == each for each in counts.tolist()):
        expected = f"a list of texts for each input, one for each of its {', '.join(map(str, counts[0]))} tokens"
        raise InputError(argument, expected, f"{given!r}"[:60])
    return tuple(names)


def _of_tokens(given: Any, mask: BoolArray, argument: str) -> FloatArray:
    """Check numbers of tokens, (…, n_inputs, n_tokens) or lists of lists, and pad them with zeros."""
    if mask.all() or not isinstance(given, list | tuple):
        array = real_array(given, argument, mask.shape)
        return np.where(mask, array, 0.0)
    counts = mask.sum(axis=-1)
    expected = f"a list with one number for each token of each input, {counts.tolist()} of them"
    rows = given if mask.ndim == 2 else [row for problem in given for row in problem]
    arrays = [float_array(row, argument, expected) for row in rows]
    if [array.shape for array in arrays] != [(int(count),) for count in counts.ravel()]:
        raise InputError(argument, expected, f"{[array.size for array in arrays]} of them")
    padded = np.zeros(mask.shape)
    padded[mask] = np.concatenate(arrays)
    _require_finite(padded, argument)
    return padded


def without_offsets(data: TokenDataset, what: str) -> TokenDataset:
    """Return a dataset whose logits have no offsets; `what` names what does not cover them, as a clause."""
    if data.has_offsets:
        raise InputError(
            "data", "a dataset without offsets of its logits", f"one with them, which {what} does not cover"
        )
    return data


def _kind(kind: object) -> str:
    """Check the kind of a dataset: a case of the texts that name tokens and inputs."""
    kinds = tuple(texts()["outcome.token.number"]["en"])
    if kind not in kinds:
        raise InputError("kind", f"one of {', '.join(map(repr, kinds))}", repr(kind))
    return str(kind)


def _tokens(value: object, argument: str) -> tuple[FloatArray, IntArray, bool]:
    """Pad tokens; also return their lengths, and whether there is a batch axis."""
    expected = "of shape (n_inputs, n_tokens, d_model) or (batch, n_inputs, n_tokens, d_model), or a list of (n_tokens_i, d_model) arrays"
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 0:
        raise InputError(argument, "at least one input", "an empty dataset")
    if (
        isinstance(value, list | tuple)
        and len({part.shape if isinstance(part, np.ndarray) else () for part in value}) > 1
    ):
        return _ragged(value, argument, expected)
    try:
        array = float_array(value, argument, f"real numbers {expected}")
    except InputError:
        if not isinstance(value, Sequence) or isinstance(value, str | bytes):
            raise
        return _ragged(value, argument, expected)
    if array.ndim not in (3, 4):
        raise InputError(argument, expected, f"shape {array.shape}")
    if 0 in array.shape:
        raise InputError(argument, "at least one problem, input, token and coordinate", f"shape {array.shape}")
    _require_finite(array, argument)
    return array, np.full(array.shape[:-2], array.shape[-2], dtype=np.int64), array.ndim == 4


def _ragged(value: Sequence[ArrayLike], argument: str, expected: str) -> tuple[FloatArray, IntArray, bool]:
    try:
        inputs = [float_array(tokens, f"{argument}[{i}]") for i, tokens in enumerate(value)]
    except InputError:
        inputs = []
    # A list of problems.
    if not inputs or any(tokens.ndim == 3 for tokens in inputs):
        problems = [_tokens(tokens, f"{argument}[{j}]") for j, tokens in enumerate(value)]
        if any(is_batch for _, _, is_batch in problems):
            raise InputError(argument, expected, "lists nested deeper than problems and inputs")
        counts = [len(tokens) for tokens, _, _ in problems]
        if len(set(counts)) > 1:
            raise InputError(argument, "problems with the same number of inputs", counts)
        return _padded([tokens for tokens, _, _ in problems], argument), np.stack([n for _, n, _ in problems]), True
    for i, tokens in enumerate(inputs):
        if tokens.ndim != 2 or tokens.size == 0:
            raise InputError(f"{argument}[{i}]", "an array of shape (n_tokens_i, d_model)", f"shape {tokens.shape}")
        _require_finite(tokens, f"{argument}[{i}]")
    return _padded(inputs, argument), np.array([len(tokens) for tokens in inputs], dtype=np.int64), False


def _padded(arrays: list[FloatArray], argument: str) -> FloatArray:
    """Stack arrays (…, n_tokens, d_model) of one width and different numbers of tokens, with zeros after the shorter ones."""
    widths = [array.shape[-1] for array in arrays]
    if len(set(widths)) > 1:
        raise InputError(argument, "tokens of one width", f"widths {widths}")
    n_tokens = max(array.shape[-2] for array in arrays)
    return np.stack([np.pad(a, [(0, 0)] * (a.ndim - 2) + [(0, n_tokens - a.shape[-2]), (0, 0)]) for a in arrays])


def _require_finite(array: FloatArray, argument: str) -> None:
    if not np.isfinite(array).all():
        where = tuple(int(k) for k in np.argwhere(~np.isfinite(array))[0])
        raise InputError(argument, "finite numbers", f"{array[where]} at index {where}")


def sign_labels(y: ArrayLike, shape: tuple[int, ...]) -> FloatArray:
    """Check that labels have this shape and are -1 or +1."""
    expected = f"labels, each -1 or +1, of shape {shape}"
    labels = float_array(y, "y", expected)
    if labels.shape != shape:
        raise InputError("y", expected, f"shape {labels.shape}")
    wrong = ~np.isin(labels, (-1.0, 1.0))
    if wrong.any():
        raise InputError("y", expected, f"the label {labels[wrong].flat[0]:g}")
    return labels
