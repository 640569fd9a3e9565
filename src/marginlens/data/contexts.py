"""Contexts with fixed embeddings, and counts of the tokens that followed: the training data of a linear next-token decoder (paper G)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import scipy

from marginlens.errors import InputError, array_of_any, index_array, real_array, whole_number
from marginlens.papers import implements
from marginlens.result import Displayed, Tabular
from marginlens.typing import ArrayLike, FloatArray, IntArray


@implements("G", "Eq. (2)", "entropy")
class ContextDataset(Displayed, Tabular):
    r"""Distinct contexts with embeddings h_j, and the tokens that followed each: soft labels of next-token prediction.

    .. math:: \hat\pi_j = \frac{\sum_z c_{jz}}{\sum_{iz} c_{iz}}, \quad \hat p_{jz} = \frac{c_{jz}}{\sum_z c_{jz}}, \quad
        \mathcal S_j = \{z : \hat p_{jz} > 0\}, \quad \mathcal H = -\sum_j \hat\pi_j \sum_{z \in \mathcal S_j} \hat p_{jz} \log \hat p_{jz}

    Args:
        H: (n_contexts, d_model) one embedding per context, an array or a SciPy sparse matrix.

        counts: (n_contexts, n_vocabulary) how often each token followed each context, or other nonnegative weights; an array or
            a SciPy sparse matrix. Every context must have at least one positive weight.

    `to_frame()` has one row per context: context, share, support (the number of different tokens that followed), entropy.
    """

    quantities = "{n_contexts} contexts, {n_vocabulary} tokens, d={d_model}, entropy={entropy:.4g}"

    def __init__(self, H: Any, counts: ArrayLike) -> None:
        self.counts = _as_counts(counts)
        shape = (self.n_contexts, "d_model")
        if scipy.sparse.issparse(H):
            embeddings = scipy.sparse.csr_array(H, dtype=np.float64)
            real_array(embeddings.data, "H", ("n_entries",))
            if embeddings.shape[0] != self.n_contexts:
                raise InputError("H", f"embeddings of shape ({shape[0]}, d_model)", f"shape {embeddings.shape}")
            self.H: Any = embeddings
        else:
            self.H = real_array(H, "H", shape)

    @classmethod
    def from_windows(
        cls, contexts: ArrayLike, following: ArrayLike, embed: Callable[[IntArray], ArrayLike], n_vocabulary: int
    ) -> ContextDataset:
        """Make a dataset of the windows of a text: equal contexts become one, with counts of what followed.

        Args:
            contexts: (n_samples, length) token ids.

            following: (n_samples,) the token after each.

            embed: a function from distinct contexts (n_contexts, length) to their embeddings (n_contexts, d_model), such as a
                model's last-layer states.

            n_vocabulary: the number of tokens.
        """
        whole_number(n_vocabulary, "n_vocabulary", at_least=2)
        windows = index_array(contexts, "contexts", "token ids of shape (n_samples, length)", (-1, -1))
        expected = f"ids from 0 to {n_vocabulary - 1} of shape ({len(windows)},)"
        ids = index_array(following, "following", expected, (len(windows),), below=n_vocabulary)
        distinct, place = np.unique(windows, axis=0, return_inverse=True)
        cells = (np.ones(len(ids)), (place.reshape(-1), ids))
        return cls(embed(distinct), scipy.sparse.csr_array(cells, shape=(len(distinct), n_vocabulary)))

    @property
    def n_contexts(self) -> int:
        """The number of contexts."""
        return int(self.counts.shape[0])

    @property
    def n_vocabulary(self) -> int:
        """The number of tokens, whether or not they follow a context."""
        return int(self.counts.shape[1])

    @property
    def d_model(self) -> int:
        """The width of the embeddings."""
        return int(self.H.shape[1])

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of a decoder W, (n_vocabulary, d_model)."""
        return self.n_vocabulary, self.d_model

    @cached_property
    def share(self) -> FloatArray:
        """The share π_j of each context in the data, (n_contexts,)."""
        totals = np.asarray(self.counts.sum(axis=1), dtype=np.float64)
        return totals / totals.sum()

    @cached_property
    def sizes(self) -> IntArray:
        """The number of different tokens that followed each context, (n_contexts,)."""
        return np.diff(self.counts.indptr).astype(np.int64)

    @cached_property
    def context(self) -> IntArray:
        """The context j of every pair (j, z) with z in S_j, (n_cells,). Pairs are ordered by context, then token."""
        return np.repeat(np.arange(self.n_contexts), self.sizes)

    @cached_property
    def token(self) -> IntArray:
        """The token z of every such pair, (n_cells,)."""
        return self.counts.indices.astype(np.int64)

    @cached_property
    def probability(self) -> FloatArray:
        """The probability p_jz of every such pair, (n_cells,)."""
        totals = np.asarray(self.counts.sum(axis=1), dtype=np.float64)
        return np.asarray(self.counts.data / totals[self.context])

    @cached_property
    def entropies(self) -> FloatArray:
        """The entropy in nats of the token that follows each context, (n_contexts,)."""
        terms = -self.probability * np.log(self.probability)
        return np.asarray(np.bincount(self.context, weights=terms, minlength=self.n_contexts), dtype=np.float64)

    @property
    def entropy(self) -> float:
        """The entropy H in nats: a lower bound on the cross-entropy of every decoder."""
        return float(self.share @ self.entropies)

    def merged(self) -> ContextDataset:
        """Merge contexts of equal embeddings, which no W tells apart, and add their counts."""
        dense = self.H.toarray() if scipy.sparse.issparse(self.H) else self.H
        distinct, place = np.unique(dense, axis=0, return_inverse=True)
        sums = scipy.sparse.csr_array((np.ones(len(place)), (place.reshape(-1), np.arange(len(place)))))
        return ContextDataset(scipy.sparse.csr_array(distinct) if dense is not self.H else distinct, sums @ self.counts)

    def _columns(self) -> dict[str, Any]:
        names = {"context": np.arange(self.n_contexts), "share": self.share}
        return names | {"support": self.sizes, "entropy": self.entropies}


def as_contexts(data: object) -> ContextDataset:
    """Return `data` if it is a `ContextDataset`, otherwise raise."""
    if not isinstance(data, ContextDataset):
        raise InputError("data", "a ml.ContextDataset(H, counts)", type(data).__name__)
    return data


def _as_counts(counts: Any) -> scipy.sparse.csr_array:
    """Return `counts` as a sparse table with ordered rows and no stored zeros."""
    expected = "weights that are not negative, of shape (n_contexts, n_vocabulary), with two tokens or more"
    given = counts if scipy.sparse.issparse(counts) else array_of_any(counts, "counts", expected)
    if given.ndim != 2 or given.shape[1] < 2 or not given.shape[0] or given.dtype.kind not in "biuf":
        raise InputError("counts", expected, f"shape {given.shape} with dtype {given.dtype}")
    table = scipy.sparse.csr_array(given, dtype=np.float64)
    table.sum_duplicates()
    table.eliminate_zeros()
    if not (np.isfinite(table.data).all() and (table.data > 0.0).all()):
        wrong = table.data[~(np.isfinite(table.data) & (table.data > 0.0))][0]
        raise InputError("counts", expected, f"{wrong:g}")
    empty = np.flatnonzero(np.diff(table.indptr) == 0)
    if len(empty):
        raise InputError("counts", "at least one token after every context", f"none after context {empty[0]}")
    return table
