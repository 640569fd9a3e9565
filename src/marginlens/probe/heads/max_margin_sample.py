"""Which queries of which inputs an attention head is asked about: the tokens of one layer and the sampled queries among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from marginlens.data.tokens import BoolArray, FloatArray, IntArray
from marginlens.errors import positive_number, real_array, reject, whole_number

SAME = 1e-6  # tokens closer than this, relative to their length, count as one token: single precision leaves about 1e-7


@dataclass(frozen=True)
class MaxMarginSettings:
    """How much is asked of every head.

    Attributes:
        queries_per_input: queries sampled of each input, among those that see two different tokens or more.
        most_constraints: queries are left out at random where there would be more constraints than this.
        n_draws: how many random selections, and how many random heads, the baselines average over.
        seed: of the sample and of the baselines.
        rounding: logits of a query no further apart than this are tied, relative to the lengths of the query and of its longest key.
    """

    queries_per_input: int = 2
    most_constraints: int = 10_000
    n_draws: int = 2
    seed: int = 0
    rounding: float = SAME

    def __post_init__(self) -> None:
        positive_number(self.rounding, "rounding")
        for name in ("queries_per_input", "most_constraints", "n_draws"):
            whole_number(getattr(self, name), name, at_least=1)
        whole_number(self.seed, "seed", at_least=0)


@dataclass(frozen=True, repr=False, eq=False)
class QuerySample:
    """The tokens of one layer over all inputs, and the sampled queries with the tokens that each of them sees.

    Attributes:
        tokens: (n_tokens, d_model) the tokens of all inputs, one input after the other.
        places: (n_queries, 2) the input and the position in it of every sampled query.
        queries: (n_queries,) which of `tokens` each query is.
        seen: (n_seen,) which of `tokens` the queries see: query q sees `seen[offsets[q]:offsets[q + 1]]`.
        offsets: (n_queries + 1,).
    """

    tokens: FloatArray
    places: IntArray
    queries: IntArray
    seen: IntArray
    offsets: IntArray

    def __repr__(self) -> str:
        return f"QuerySample({len(self)} queries, {len(self.seen)} visible tokens, d_model={self.tokens.shape[1]})"

    def __len__(self) -> int:
        return len(self.queries)

    @property
    def augmented(self) -> FloatArray:
        """(n_queries, d_model + 1) the queries (z, 1)."""
        z = self.tokens[self.queries]
        return np.concatenate([z, np.ones((len(z), 1))], axis=1)


def real_tokens(inputs: Any, visible: Any) -> tuple[list[FloatArray], list[BoolArray]]:
    """One batch without its padding, ready to be collected for `sample_queries`.

    Args:
        inputs: (n_inputs, n_tokens, d_model) what the layer read.
        visible: (n_inputs, n_tokens, n_tokens) whether query i sees token j; a padded token sees nothing.
    Returns:
        For every input its tokens (n_real, d_model) and which of them see which (n_real, n_real).
    """
    X = real_array(inputs, "inputs", ("n_inputs", "n_tokens", "d_model"))
    sees = np.asarray(visible, dtype=bool)
    if sees.shape != (*X.shape[:2], X.shape[1]):
        raise reject("visible", f"of shape {(*X.shape[:2], X.shape[1])}", f"shape {sees.shape}")
    real: BoolArray = np.asarray(sees.any(axis=2))
    return [X[b][real[b]] for b in range(len(X))], [sees[b][np.ix_(real[b], real[b])] for b in range(len(X))]


def sample_queries(
    inputs: Sequence[Any], visible: Sequence[Any] | None = None, settings: MaxMarginSettings | None = None
) -> QuerySample:
    """Draw queries of every input, none of them twice.

    A query that sees one token only, or copies of one token, has no constraint and is not drawn. Nor is a query that equals one drawn
    before, as the first token of all sentences does in the first layer: two copies would be asked for the same thing twice,
    or for opposite things.

    Args:
        inputs: for every input its tokens (n_tokens_i, d_model).
        visible: for every input a mask (n_tokens_i, n_tokens_i), query i sees token j, which is `np.tri(n, dtype=bool)` for
            causal attention; where left out every token sees every other.
        settings: see `MaxMarginSettings`.
    """
    asked = settings or MaxMarginSettings()
    arrays = _arrays(inputs)
    masks = _masks(visible, arrays)
    rng = np.random.default_rng(asked.seed)
    drawn = np.empty((asked.queries_per_input * len(arrays), arrays[0].shape[1]))
    places: list[tuple[int, int]] = []
    for i, (X, sees) in enumerate(zip(arrays, masks, strict=True)):
        taken = 0
        for position in rng.permutation(len(X)).tolist():
            if taken < asked.queries_per_input and _asks(X, sees[position]):
                z = X[position]
                if not _same(drawn[: len(places)], z).any():
                    drawn[len(places)] = z
                    places.append((i, position))
                    taken += 1
    if not places:
        raise reject("inputs", "inputs with a query that sees two different tokens or more", "none of them")
    return _sample(arrays, masks, _few_enough(np.array(places), masks, asked.most_constraints, rng))


def _sample(arrays: list[FloatArray], masks: list[BoolArray], places: IntArray) -> QuerySample:
    starts = np.concatenate([[0], np.cumsum([len(X) for X in arrays])]).astype(np.int64)
    seen = [starts[i] + np.flatnonzero(masks[i][position]) for i, position in places.tolist()]
    offsets = np.concatenate([[0], np.cumsum([len(one) for one in seen])]).astype(np.int64)
    queries, tokens = starts[places[:, 0]] + places[:, 1], np.concatenate(arrays)
    return QuerySample(tokens, places, queries, np.concatenate(seen).astype(np.int64), offsets)


def _few_enough(places: IntArray, masks: list[BoolArray], most: int, rng: np.random.Generator) -> IntArray:
    """The queries, or as many of them at random as have no more than `most` constraints, and one at least."""
    sizes = np.array([int(masks[i][position].sum()) - 1 for i, position in places.tolist()])
    if sizes.sum() <= most:
        return places
    order = rng.permutation(len(places))
    kept = order[np.cumsum(sizes[order]) <= most]
    return places[np.sort(kept if len(kept) else order[:1])]


def _asks(X: FloatArray, sees: BoolArray) -> bool:
    """Whether a query sees two tokens that differ."""
    tokens = X[sees]
    return len(tokens) > 1 and not bool(_same(tokens[1:], tokens[0]).all())


def _same(tokens: FloatArray, x: FloatArray) -> BoolArray:
    """(n,) which tokens (n, d_model) equal x up to `SAME`."""
    return np.asarray(np.linalg.norm(tokens - x, axis=1) <= SAME * float(np.linalg.norm(x)))


def _arrays(inputs: Sequence[Any]) -> list[FloatArray]:
    arrays: list[FloatArray] = []
    for i, one in enumerate(inputs):
        width = arrays[0].shape[1] if arrays else "d_model"
        arrays.append(real_array(one, f"inputs[{i}]", ("n_tokens", width)))
    if not arrays:
        raise reject("inputs", "at least one input", "none")
    return arrays


def _masks(visible: Sequence[Any] | None, arrays: list[FloatArray]) -> list[BoolArray]:
    if visible is None:
        return [np.ones((len(X), len(X)), dtype=bool) for X in arrays]
    masks = [np.asarray(one, dtype=bool) for one in visible]
    if len(masks) != len(arrays):
        raise reject("visible", f"one mask for each of {len(arrays)} inputs", f"{len(masks)}")
    for i, (mask, X) in enumerate(zip(masks, arrays, strict=True)):
        if mask.shape != (len(X), len(X)):
            raise reject(f"visible[{i}]", f"of shape ({len(X)}, {len(X)})", f"shape {mask.shape}")
    return masks
