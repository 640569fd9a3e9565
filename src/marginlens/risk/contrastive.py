"""Contrastive retrieval over frozen embeddings: a softmax over documents, with one trained matrix between them and the queries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from marginlens.errors import InputError, index_array, n_axes, real_array, rename_arguments
from marginlens.losses.margin import LogProbability
from marginlens.risk.attention import SoftmaxRisk
from marginlens.risk.matrix import MatrixRisk
from marginlens.typing import ArrayLike

RETRIEVAL = "retrieval"  # the kind of data whose tokens are documents


def contrastive(
    queries: ArrayLike,
    documents: ArrayLike | Sequence[ArrayLike],
    positives: Any,
    *,
    names: Sequence[str] | Sequence[Sequence[str]] | None = None,
) -> MatrixRisk:
    r"""Make the InfoNCE loss of a linear adapter W between frozen embeddings of queries and documents.

    .. math:: -\frac1n \sum_{i=1}^n \log \frac{\sum_{j \in P_i} e^{q_i^\top W d_j}}{\sum_j e^{q_i^\top W d_j}}

    A temperature only divides W. In-batch negatives are documents that all queries share, document i being the positive one of
    query i.

    Args:
        queries: q of shape (n_queries, d_query), none of them zero.

        documents: d of shape (n_documents, d_document) for all queries; or of each query, (n_queries, n_documents, d_document)
            or a list of arrays (n_documents_i, d_document).

        positives: the document to be ranked first for each query, (n_queries,), or a list with a list of documents for each
            query, any of which may come first.

        names: the names of the documents, one list of texts if all queries share them, else one list for each query.

    Returns:
        A risk of W, (d_query, d_document). `ml.att_svm(risk.data, positives, query=queries)` says whether some W ranks all
        positive documents first, and proves it if none does.

    Examples:
        >>> import numpy as np, marginlens as ml
        >>> risk = ml.risk.contrastive(np.eye(2), [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], positives=[0, 1])
        >>> risk.shape
        (2, 2)
        >>> float(risk.value(np.zeros((2, 2))).round(4))  # log 3
        1.0986
    """
    q = real_array(queries, "queries", ("n_queries", "d_query"))
    of_query: Any = documents
    names_of_query: Any = names
    if n_axes(documents) == 2:
        shared = real_array(documents, "documents", ("n_documents", "d_document"))
        of_query = np.broadcast_to(shared, (len(q), *shared.shape))
        names_of_query = None if names is None else [list(names)] * len(q)
    for argument, given in (("documents", of_query), ("positives", positives)):
        count = len(given) if isinstance(given, Sequence) or np.ndim(given) else 0
        if count != len(q):
            raise InputError(argument, f"a list with an entry for each of the {len(q)} queries", f"{count} entries")
    scores = [np.zeros(len(own)) for own in of_query]
    for i, row in enumerate(scores):
        expected = f"one or more of the documents 0 to {len(row) - 1} for query {i}"
        chosen = index_array(np.atleast_1d(positives[i]), "positives", expected, (-1,), below=len(row))
        if not len(chosen):
            raise InputError("positives", expected, "none")
        row[chosen] = 1.0
    with rename_arguments(keys="documents", scores="positives", tokens="names", query="queries"):
        return SoftmaxRisk(of_query, scores, None, LogProbability(), names_of_query, RETRIEVAL).as_matrix(q)
