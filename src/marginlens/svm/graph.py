"""Graph-SVM: the shortest W under which higher priority means larger attention logits, and equal priority equal logits; its conflicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy

from marginlens.arithmetic.directions import length
from marginlens.data.sequences import SequenceDataset
from marginlens.errors import InputError, real_array
from marginlens.graphs.from_data import priority_graphs
from marginlens.graphs.priority import PriorityGraph, as_graphs, sufficient_pairs
from marginlens.kinds import defining_class
from marginlens.norms import L2, Frobenius, Norm
from marginlens.norms.choice import as_norm
from marginlens.papers import implements
from marginlens.result import Result, Tabular
from marginlens.runtime.progress import ProgressCallback, as_progress
from marginlens.svm.solution import CERTIFICATE_RTOL, MarginSolution, Status
from marginlens.svm.solvers.independent_parts import is_orthonormal, solve_groups, solve_orthonormal
from marginlens.svm.solvers.norms import solve_in_norm
from marginlens.svm.solvers.rows import BilinearRows
from marginlens.typing import FloatArray, IntArray
from marginlens.words import Fact

# A row with a smaller share of the largest weight is left out of a contradiction.
_MIN_CONFLICT_WEIGHT = 1e-9
# Singular values of tied differences below this share of the largest count as zero.
_TIE_SPAN_RTOL = 1e-10
# Entries of the largest linear programme that is solved to get fewer rows.
_MAX_LP_ENTRIES = 4_000_000


@dataclass(frozen=True, repr=False, eq=False)
class GraphSolution(MarginSolution):
    """A `MarginSolution` whose `x` is a matrix W (d_model, d_model).

    `pairs` (n_strict, 3) holds (k, i, j) for every strict row, `tied` (n_tied, 3) for every equality; `rows` and `equalities`
    represent the matrices without forming them.
    """

    rows: BilinearRows  # type: ignore[assignment]
    equalities: BilinearRows  # type: ignore[assignment]
    tied: IntArray = field(default_factory=lambda: np.empty((0, 3), dtype=np.int64))
    quantities = "{status.name}, margin={margin:.6g}, {lower:#} strict, {tied:#} tied, d={x.shape[1]}{_norm_words}"

    def _pair_columns(self) -> tuple[str, str, str]:
        return ("last", "above", "below")


@implements("C", "Graph-SVM", "Acyc-SVM")
def graph_svm(
    data: Any,
    graphs: Mapping[int, PriorityGraph] | None = None,
    *,
    norm: Norm = Frobenius(),
    progress: ProgressCallback | None = None,
) -> GraphSolution:
    r"""Find the shortest W that ranks every token above those of lower priority by at least one, and ties tokens of equal priority.

    .. math:: \min_W \|W\|_F \ \text{s.t.}\ (e_i - e_j)^\top W e_k \ge 1\ (i \Rightarrow j),\ = 0\ (i \asymp j)
        \ \text{in}\ \mathcal G^{(k)},\ k \in [K]

    Args:
        data: a `SequenceDataset`; or its embeddings E (n_vocabulary, d_model), with the graphs.

        graphs: from last token k to its `PriorityGraph`; those of `priority_graphs(data)` by default.

        norm: the norm of W: `Frobenius`, `Spectral`, `Nuclear`, `MaxRow`, or a norm of its entries; the same problems are
            infeasible in all.

        progress: called as `progress(done, total)` after each last token if embeddings are orthonormal, otherwise after each group of
            last tokens whose embeddings are not orthogonal.

    Returns:
        A `GraphSolution` with `multipliers[r] >= 0` for the pair `pairs[r]` = (k, i, j), i ⇒ j, and `equality_multipliers[r]`
        for `tied[r]` = (k, i, j), i ≍ j; a component of m tokens needs m - 1 ties. W = sum of multipliers times (e_i - e_j)
        e_kᵀ. W = 0 if nothing is strict.

    Examples:
        >>> import numpy as np
        >>> import marginlens as ml
        >>> data = ml.SequenceDataset([[0, 1, 2]], [1], np.eye(3))
        >>> print(ml.graph_svm(data).x[:, 2].round(3))  # the heights of the tokens after token 2
        [-0.333  0.667 -0.333]
    """
    if defining_class(as_norm(norm, (0, 0))) is not L2:
        return solve_in_norm(graph_svm(data, graphs, progress=progress), norm)
    if graphs is None:
        # It raises if the data are not a dataset.
        graphs = priority_graphs(data)
    E = real_array(data.E if isinstance(data, SequenceDataset) else data, "E", ("n_vocabulary", "d_model"))
    as_progress(progress)
    by_last = dict(sorted(as_graphs(graphs, len(E)).items()))
    strict = _triples({k: graph.strict for k, graph in by_last.items()})
    tied = _triples({k: _spanning_ties(graph) for k, graph in by_last.items()})
    rows, ties = BilinearRows(E, E, strict), BilinearRows(E, E, tied)
    problem = GraphSolution.empty(rows, ties, tied=tied)
    if not len(strict):
        return problem
    rows.check_range("E")
    if not rows.row_norms.all():
        # No W ranks tokens with the same embedding.
        equal = np.arange(len(rows)) == np.argmin(rows.row_norms)
        return problem.from_certificate(equal.astype(np.float64), np.zeros(len(ties)))
    sufficient = _sufficient_rows(by_last)
    solved = solve_orthonormal(E, by_last, rows, ties, sufficient, progress) if is_orthonormal(E) else None
    if solved is None:
        solved = solve_groups(rows, ties, np.concatenate(list(sufficient.values())), progress)
    if solved.infeasible:
        return problem.from_certificate(solved.strict, solved.tied)
    return problem.from_multipliers(solved.strict, solved.tied, x=solved.W)


def _sufficient_rows(by_last: Mapping[int, PriorityGraph]) -> dict[int, IntArray]:
    """Find the strict rows that imply the others, for each last token."""
    starts = np.cumsum([0, *(len(graph.strict) for graph in by_last.values())])
    return {k: start + sufficient_pairs(graph) for start, (k, graph) in zip(starts, by_last.items(), strict=False)}


def _triples(pairs: Mapping[int, IntArray]) -> IntArray:
    """List all pairs (n_pairs, 3) with their last tokens."""
    k = np.repeat(np.array(list(pairs), dtype=np.int64), [len(listed) for listed in pairs.values()])
    return np.column_stack([k, np.concatenate([*pairs.values(), np.empty((0, 2), dtype=np.int64)])])


def _spanning_ties(graph: PriorityGraph) -> IntArray:
    """List the pairs (n_tied, 2) of the first token of a component with each of its others."""
    if graph.is_acyclic:
        return np.empty((0, 2), dtype=np.int64)
    return np.concatenate(
        [np.stack([np.full(len(members) - 1, members[0]), members[1:]], axis=1) for members in graph.components]
    )


@dataclass(frozen=True, repr=False, eq=False)
class GraphConflict(Result, Tabular):
    r"""Rows of a Graph-SVM that contradict each other: their weighted sum is zero, yet every strict row requires at least one.

    .. math:: \sum_r y_r (e_{i_r} - e_{j_r})\,e_{k_r}^\top + \sum_s \mu_s (e_{i_s} - e_{j_s})\,e_{k_s}^\top = 0, \quad y > 0

    Attributes:
        pairs: (n_rankings, 3) tokens (k, i, j) of the rankings i ⇒ j after last token k.

        weights: (n_rankings,) y, adding up to one.

        tied: (n_ties, 3) tokens (k, i, j) of the ties i ≍ j.

        tie_weights: (n_ties,) μ.

        d_model: width of the embeddings.

        tie_rank: dimension of the span of the differences of tied tokens, for the last token of the conflict; 0 if it has several.

        component_sizes: sizes of the components that tie them; empty if the conflict has several last tokens.

        residual: as `MarginSolution.certificate_residual` of these rows alone.

        vanishing: the last tokens among them whose embedding is zero, after which every logit is zero.

    `to_frame()` has one row per ranking or tie: kind, last, above, below, and its weight in the proof; the weights of rankings
    add up to one.
    """

    pairs: IntArray
    weights: FloatArray
    tied: IntArray
    tie_weights: FloatArray
    d_model: int
    tie_rank: int
    component_sizes: tuple[int, ...]
    residual: float
    vanishing: tuple[int, ...] = ()
    quantities = "last={last_tokens}, {pairs:#} rankings, {tied:#} ties, residual={residual:.1g}"

    @property
    def last_tokens(self) -> tuple[int, ...]:
        """The last tokens whose graphs are in conflict: a single one if that is enough."""
        return tuple(np.unique(np.concatenate([self.pairs[:, 0], self.tied[:, 0]])).tolist())

    def to_dict(self, names: Sequence[str] | None = None) -> dict[str, Any]:
        """Return the conflict as plain values, with tokens by name if `names` lists one for each id."""

        def name(token: int) -> Any:
            return token if names is None else names[token]

        return {
            "last": [name(k) for k in self.last_tokens],
            "rankings": [
                {"last": name(k), "above": name(i), "below": name(j), "weight": float(weight)}
                for (k, i, j), weight in zip(self.pairs.tolist(), self.weights, strict=True)
            ],
            "ties": [
                {"last": name(k), "tokens": [name(i), name(j)], "weight": float(weight)}
                for (k, i, j), weight in zip(self.tied.tolist(), self.tie_weights, strict=True)
            ],
            "tied_dimensions": self.tie_rank,
            "residual": self.residual,
        }

    def _columns(self) -> dict[str, Any]:
        rows = np.concatenate([self.pairs.reshape(-1, 3), self.tied.reshape(-1, 3)])
        kinds = ["ranking"] * len(self.pairs) + ["tie"] * len(self.tied)
        columns = dict(zip(("last", "above", "below"), rows.T, strict=True))
        return {"kind": kinds, **columns, "weight": np.concatenate([self.weights, self.tie_weights])}

    def describe(self, names: Sequence[str] | None = None, *, most: int = 5) -> str:
        """Describe the conflict in words.

        Args:
            names: the name of each token; its id by default.

            most: number of rankings to name.
        """
        return str(self.fact(names, most=most))

    def fact(self, names: Sequence[str] | None = None, *, most: int = 5) -> Fact:
        """Return the conflict as a code with numbers; the arguments are those of `describe`."""

        def name(token: int) -> str:
            return str(token) if names is None else names[token]

        if self.vanishing:
            k, i, j = self.pairs[0].tolist()
            return Fact("conflict.zero_embedding", {"last": name(k), "above": name(i), "below": name(j)})
        order = np.argsort(-np.round(self.weights, 9), kind="stable")
        k, i, j = self.pairs[order[0]].tolist()
        single = len(self.last_tokens) == 1
        if single and self.tie_rank >= self.d_model:
            sizes = {"tokens": sum(self.component_sizes), "components": len(self.component_sizes)}
            ranking = {"last": name(k), "above": name(i), "below": name(j)}
            return Fact("conflict.ties", {**ranking, **sizes, "d_model": self.d_model})
        if len(self.pairs) == 1 and not len(self.tied):
            return Fact("conflict.equal_embeddings", {"last": name(k), "above": name(i), "below": name(j)})
        shown = zip(self.pairs[order[:most]].tolist(), self.weights[order], strict=False)
        case = {} if single else {"case": "several"}
        rankings = [
            Fact(
                "conflict.ranking",
                {"last": name(k), "above": name(i), "below": name(j), "weight": float(weight), **case},
            )
            for (k, i, j), weight in shown
        ]
        after = name(self.last_tokens[0]) if single else Fact("conflict.last_tokens", {"count": len(self.last_tokens)})
        numbers = {"after": after, "n_rankings": len(order), "n_ties": len(self.tied), "rankings": rankings}
        return Fact("conflict.rankings", {**numbers, "case": "ties"} if len(self.tied) else numbers)


@implements("C", "Graph-SVM")
def graph_conflict(solution: GraphSolution) -> GraphConflict:
    r"""Reduce the certificate of an infeasible Graph-SVM to few rows: which last token, which rankings, which ties.

    If some last tokens cannot be satisfied by themselves, the result is about the one with the fewest rows in the certificate.
    A vertex of the set of its Farkas vectors has at most d_model + 1 rows; embeddings in general position need that many.

    Args:
        solution: a solution of `graph_svm` with status INFEASIBLE.

    Returns:
        A `GraphConflict`; `describe(names)` is the sentence, and `residual` checks it.

    Examples:
        >>> import marginlens as ml
        >>> from marginlens.svm import graph_conflict
        >>> data = ml.SequenceDataset([[0, 1, 2]], [1], [[1.0], [2.0], [3.0]])
        >>> conflict = graph_conflict(ml.graph_svm(data))
        >>> conflict.pairs.tolist()  # last token 2: token 1 above token 0 and above token 2
        [[2, 1, 0], [2, 1, 2]]
    """
    if not isinstance(solution, GraphSolution) or solution.status is not Status.INFEASIBLE:
        got = getattr(solution, "status", type(solution).__name__)
        raise InputError("solution", "a GraphSolution that is infeasible", getattr(got, "name", str(got)))
    y, mu = np.asarray(solution.certificate), np.asarray(solution.equality_multipliers)
    E, pairs, tied = solution.rows.X, np.asarray(solution.pairs), solution.tied
    zero = np.flatnonzero((y > 0.0) & ~E[pairs[:, 0]].any(axis=1))
    if len(zero):
        chosen = pairs[zero[:1]]
        return GraphConflict(chosen, np.ones(1), tied[:0], np.zeros(0), E.shape[1], 0, (), 0.0, (int(chosen[0, 0]),))
    used = y > _MIN_CONFLICT_WEIGHT * y.max()
    conflicts = [_of_last_token(E, pairs, tied, k) for k in np.unique(pairs[used, 0]).tolist()]
    single = [conflict for conflict in conflicts if conflict is not None]
    if single:
        return min(single, key=lambda conflict: len(conflict.pairs) + len(conflict.tied))
    ties = np.abs(mu) > _MIN_CONFLICT_WEIGHT * y.max()
    return _conflict(E, pairs[used], y[used], tied[ties], mu[ties])


def _of_last_token(E: FloatArray, pairs: IntArray, tied: IntArray, k: int) -> GraphConflict | None:
    """Find a contradiction among the rows of one last token; None if there is none."""
    pairs, tied = pairs[pairs[:, 0] == k], tied[tied[:, 0] == k]
    A, B = E[pairs[:, 1]] - E[pairs[:, 2]], E[tied[:, 1]] - E[tied[:, 2]]
    basis = _row_space(B)  # (rank, d_model)
    sizes = tuple(int(n) + 1 for n in np.unique(tied[:, 1], return_counts=True)[1])
    if len(basis) >= E.shape[1]:
        # Ties alone leave no direction, so any ranking is in conflict.
        rows = slice(0, 1)
        pairs, A = pairs[rows], A[rows]
    if (len(A) + 2 * len(B)) * (E.shape[1] + 1) > _MAX_LP_ENTRIES:
        return None
    size = np.maximum(length(A), np.finfo(float).tiny)
    costs = np.concatenate([np.ones(len(A)), np.full(2 * len(B), 0.01)])
    equations = np.vstack([np.concatenate([A / size[:, None], B, -B]).T, costs * (costs == 1.0)])
    target = np.append(np.zeros(E.shape[1]), 1.0)
    answer = scipy.optimize.linprog(costs, A_eq=equations, b_eq=target, bounds=(0.0, None), method="highs-ds")
    if answer.x is None:
        return None
    y, plus, minus = np.split(answer.x, [len(A), len(A) + len(B)])
    used, ties = y > _MIN_CONFLICT_WEIGHT, np.abs(plus - minus) > _MIN_CONFLICT_WEIGHT
    weights = _refined(np.concatenate([A[used] / size[used, None], B[ties]]), int(used.sum()))
    if weights is None:
        return None
    y, mu = np.split(weights, [int(used.sum())])
    conflict = _conflict(E, pairs[used], y / size[used], tied[ties], mu, len(basis), sizes)
    return conflict if conflict.residual <= CERTIFICATE_RTOL else None


def _refined(rows: FloatArray, n_strict: int) -> FloatArray | None:
    """Find weights (n_rows,) whose sum of the rows is zero to rounding, positive on the first `n_strict`; None if there are none."""
    if not n_strict:
        return None
    _, _, right = np.linalg.svd(rows.T, full_matrices=True)
    weights: FloatArray = right[-1] * np.sign(right[-1][:n_strict].sum() or 1.0)
    return weights if (weights[:n_strict] > 0.0).all() else None


def _row_space(rows: FloatArray) -> FloatArray:
    """Compute an orthonormal basis (rank, d) of the span of the rows."""
    if not len(rows):
        return rows
    _, values, right = np.linalg.svd(rows, full_matrices=False)
    basis: FloatArray = right[values > _TIE_SPAN_RTOL * values[0]]
    return basis


def _conflict(
    E: FloatArray,
    pairs: IntArray,
    y: FloatArray,
    tied: IntArray,
    mu: FloatArray,
    tie_rank: int = 0,
    sizes: tuple[int, ...] = (),
) -> GraphConflict:
    """Scale the weights to add up to one, and measure how far the sum of the rows is from zero."""
    total = y.sum()
    y, mu = y / total, mu / total
    rows = np.concatenate([pairs, tied])
    differences = (E[rows[:, 1]] - E[rows[:, 2]]) * np.concatenate([y, mu])[:, None]
    distance = float(length((differences.T @ E[rows[:, 0]]).reshape(-1)))
    scale = float(np.sum(y * length(E[pairs[:, 1]] - E[pairs[:, 2]]) * length(E[pairs[:, 0]])))
    return GraphConflict(
        pairs, y, tied, mu, E.shape[1], tie_rank, sizes, distance / scale if scale else float(distance > 0.0)
    )
