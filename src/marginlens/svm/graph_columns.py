"""Graph-SVM for orthonormal embeddings: one small problem for each last token, in one number per component."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from marginlens.data.tokens import FloatArray, IntArray
from marginlens.graphs.order import thinned
from marginlens.graphs.priority import PriorityGraph
from marginlens.runtime.threads import ProgressCallback
from marginlens.svm.least_distance import least_distance

_ORTHONORMAL = 2.0**-48  # how far E Eᵀ may be from the identity: rounding of unit rows


class Columns(NamedTuple):
    """W (d_model, d_model), and the multipliers of the strict and of the tied triples in the order in which they were given."""

    W: FloatArray
    strict: FloatArray
    tied: FloatArray


def is_orthonormal(E: FloatArray) -> bool:
    """Whether all embeddings have norm one and are orthogonal to each other, as one-hot rows are."""
    if E.shape[0] > E.shape[1]:
        return False
    return bool(np.abs(E @ E.T - np.eye(len(E))).max() <= _ORTHONORMAL)


def solve_columns(
    E: FloatArray,
    graphs: Mapping[int, PriorityGraph],
    strict: IntArray,
    tied: IntArray,
    progress: ProgressCallback | None = None,
) -> Columns | None:
    r"""The shortest W, which for orthonormal rows of E falls apart into one problem for each last token.

    .. math:: W = E^\top U E, \quad \min \|u_k\| \ \text{s.t.}\ u_{ik} - u_{jk} \ge 1\ (i \Rightarrow j),\ = 0\ (i \asymp j)

    Tokens of a component share their number, and pairs that a chain implies are left out, so each problem has as many unknowns as
    components. There is always a solution.

    Args:
        E: (n_vocabulary, d_model) with orthonormal rows. graphs: by last token.
        strict, tied: (n, 3) the triples (k, i, j) of all graphs; the tied ones compare the first token of a component with the others.
        progress: called as `progress(done, total)` after each last token.
    Returns:
        W with its multipliers, which are zero for pairs left out; None where a problem was not solved to full accuracy.
    """
    U = np.zeros((len(E), len(E)))  # (token, last token)
    weight = np.zeros(len(strict))
    keys = _keys(strict, len(E))
    order = np.argsort(keys)
    for done, (k, graph) in enumerate(graphs.items()):
        if progress is not None:
            progress(done, len(graphs))
        pairs = thinned(graph).strict
        if not len(pairs):
            continue
        solved = _one_token(graph, pairs)
        if solved is None:
            return None
        U[graph.nodes, k], multipliers = solved
        wanted = _keys(np.column_stack([np.full(len(pairs), k), pairs]), len(E))
        weight[order[np.searchsorted(keys, wanted, sorter=order)]] = multipliers
    pulls = np.zeros_like(U)
    np.add.at(pulls, (strict[:, 1], strict[:, 0]), weight)
    np.add.at(pulls, (strict[:, 2], strict[:, 0]), -weight)
    ties = (
        pulls[tied[:, 2], tied[:, 0]] - U[tied[:, 2], tied[:, 0]]
    )  # what the strict pairs leave to the tie of each token
    return Columns(E.T @ U @ E, weight, ties)


def _keys(triples: IntArray, n_vocabulary: int) -> IntArray:
    """(n,) one number for each triple."""
    return (triples[:, 0] * n_vocabulary + triples[:, 1]) * n_vocabulary + triples[:, 2]


def _one_token(graph: PriorityGraph, pairs: IntArray) -> tuple[FloatArray, FloatArray] | None:
    """(n_nodes,) the heights of one last token, and the multipliers of the pairs."""
    size = np.sqrt(np.bincount(graph.component_of).astype(np.float64))  # makes the norm that of all tokens
    upper, lower = graph.component_of[np.searchsorted(graph.nodes, pairs)].T
    rows = np.zeros((len(pairs), len(size)))
    rows[np.arange(len(pairs)), upper] = 1.0 / size[upper]
    rows[np.arange(len(pairs)), lower] = -1.0 / size[lower]
    found = least_distance(rows, np.ones(len(pairs)))
    if found.status.name != "OPTIMAL":
        return None
    return (found.x / size)[graph.component_of], found.multipliers
