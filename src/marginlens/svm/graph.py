"""Graph-SVM: the shortest W under which higher priority means larger attention logits and equal priority equal ones; its conflicts."""

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
from marginlens.kinds import kind_of
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

_MIN_CONFLICT_WEIGHT = 1e-9  # a row with a smaller share of the largest weight is left out of a contradiction
_TIE_SPAN_RTOL = 1e-10  # singular values of tied differences below this share of the largest count as zero
_MAX_LP_ENTRIES = 4_000_000  # of a linear programme that is worth solving for fewer rows


@dataclass(frozen=True, repr=False, eq=False)
class GraphSolution(MarginSolution):
    """A `MarginSolution` whose `x` is a matrix W (d_model, d_model).

    `pairs` (n_strict, 3) holds (k, i, j) of every strict row, `tied` (n_tied, 3) those of every equality; `rows` and
    `equalities` stand for the matrices without forming them.
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
    r"""Shortest W that ranks every token above those of lower priority by at least one, and tokens of equal priority alike.

    .. math:: \min_W \|W\|_F \ \text{s.t.}\ (e_i - e_j)^\top W e_k \ge 1\ (i \Rightarrow j),\ = 0\ (i \asymp j)
        \ \text{in}\ \mathcal G^{(k)},\ k \in [K]

    Args:
        data: a `SequenceDataset`; or its embeddings E (n_vocabulary, d_model), with the graphs.
        graphs: from last token k to its `PriorityGraph`; those of `priority_graphs(data)` by default.
        norm: of W: Frobenius, spectral, nuclear, max-row, or one of its entries; infeasible problems are the same in all of them.
        progress: called as `progress(done, total)` after each last token, where embeddings are orthonormal, or each group of last tokens
            whose embeddings are not orthogonal.
    Returns:
        A `GraphSolution` with `multipliers[r] >= 0` for the pair `pairs[r]` = (k, i, j), i ⇒ j, and
        `equality_multipliers[r]` for `tied[r]` = (k, i, j), i ≍ j, of which each component needs one less than it has tokens:
        W = sum of multipliers times (e_i - e_j) e_kᵀ. W = 0 where nothing is strict. `kkt_residual()` and
        `certificate_residual()` check it.
    """
    if kind_of(as_norm(norm, (0, 0))) is not L2:
        return solve_in_norm(graph_svm(data, graphs, progress=progress), norm)
    if graphs is None:
        graphs = priority_graphs(data)  # refuses what is no dataset
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
    if not rows.row_norms.all():  # no W ranks tokens that are equal
        equal = np.arange(len(rows)) == np.argmin(rows.row_norms)
        return problem.from_certificate(equal.astype(np.float64), np.zeros(len(ties)))
    starts = np.cumsum([0, *(len(graph.strict) for graph in by_last.values())])
    sufficient = {
        k: start + sufficient_pairs(graph) for start, (k, graph) in zip(starts, by_last.items(), strict=False)
    }
    solved = solve_orthonormal(E, by_last, rows, ties, sufficient, progress) if is_orthonormal(E) else None
    if solved is None:
        solved = solve_groups(rows, ties, np.concatenate(list(sufficient.values())), progress)
    if solved.infeasible:
        return problem.from_certificate(solved.strict, solved.tied)
    return problem.from_multipliers(solved.strict, solved.tied, x=solved.W)


def _triples(pairs: Mapping[int, IntArray]) -> IntArray:
    """(n_pairs, 3) all pairs, each after the last token it belongs to."""
    k = np.repeat(np.array(list(pairs), dtype=np.int64), [len(listed) for listed in pairs.values()])
    return np.column_stack([k, np.concatenate([*pairs.values(), np.empty((0, 2), dtype=np.int64)])])


def _spanning_ties(graph: PriorityGraph) -> IntArray:
    """(n_tied, 2) pairs of the first token of a component with each of its others."""
    if graph.is_acyclic:
        return np.empty((0, 2), dtype=np.int64)
    return np.concatenate(
        [np.stack([np.full(len(members) - 1, members[0]), members[1:]], axis=1) for members in graph.components]
    )


@dataclass(frozen=True, repr=False, eq=False)
class GraphConflict(Result, Tabular):
    r"""Rows of a Graph-SVM that contradict each other: their weighted sum is zero, and every strict one asks for at least one.

    .. math:: \sum_r y_r (e_{i_r} - e_{j_r})\,e_{k_r}^\top + \sum_s \mu_s (e_{i_s} - e_{j_s})\,e_{k_s}^\top = 0, \quad y > 0

    Attributes:
        pairs: (n_rankings, 3) tokens (k, i, j) of the rankings i ⇒ j after last token k.
        weights: (n_rankings,) y, adding up to one.
        tied: (n_ties, 3) tokens (k, i, j) of the ties i ≍ j.
        tie_weights: (n_ties,) μ.
        d_model: width of the embeddings.
        tie_rank: how many dimensions the differences of tied tokens take, and component_sizes: of the components that tie them, for the
            last token of the conflict; both 0 and empty where several are needed.
        residual: as `MarginSolution.certificate_residual` of these rows alone.
        vanishing: the last tokens among them whose embedding is zero, after which every logit is zero.

    `to_frame()` has one row per ranking or tie: kind, last, above, below, and its weight in the proof, where a ranking's add up to one.
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
        """The last tokens whose graphs are in conflict: one wherever one is enough."""
        return tuple(np.unique(np.concatenate([self.pairs[:, 0], self.tied[:, 0]])).tolist())

    def to_dict(self, names: Sequence[str] | None = None) -> dict[str, Any]:
        """The conflict as plain values; tokens by name where `names` lists one for each id."""

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
        """The conflict in words.

        Args:
            names: what to call each token, by id; ids by default.
            most: how many rankings to name.
        """

        def name(token: int) -> str:
            return str(token) if names is None else names[token]

        if self.vanishing:
            k, i, j = self.pairs[0].tolist()
            return (
                f"The embedding of {name(k)} is zero, so every W gives all tokens the same logit after it; "
                f"the data rank {name(i)} over {name(j)} there."
            )
        order = np.argsort(-np.round(self.weights, 9), kind="stable")
        k, i, j = self.pairs[order[0]].tolist()
        several = len(self.last_tokens) > 1
        listed = ", ".join(
            f"{name(int(i))} over {name(int(j))}"
            + (f" after {name(int(k))}" if several else "")
            + f" (weight {weight:.3g})"
            for (k, i, j), weight in zip(self.pairs[order[:most]].tolist(), self.weights[order], strict=False)
        )
        more = f" and {len(order) - most} more" if len(order) > most else ""
        after = f"{len(self.last_tokens)} last tokens together" if several else name(self.last_tokens[0])
        size = f"of {len(self.component_sizes)} components" if len(self.component_sizes) > 1 else "of one component"
        if not several and self.tie_rank >= self.d_model:
            return (
                f"After {after}, {sum(self.component_sizes)} tokens {size} are to have equal logits. Their differences take all "
                f"{self.d_model} dimensions, so every W that ties them gives all tokens the same logit, and no ranking can hold there, "
                f"such as {name(i)} over {name(j)}."
            )
        ties = f" and {len(self.tied)} ties" if len(self.tied) else ""
        if len(self.pairs) == 1 and not len(self.tied):
            return f"After {after} the ranking {listed} cannot hold: the two embeddings do not differ."
        return (
            f"After {after}, {len(self.pairs)} rankings{ties} contradict each other: with these weights the differences of "
            f"their embeddings add up to zero. The rankings are {listed}{more}."
        )


@implements("C", "Graph-SVM")
def graph_conflict(solution: GraphSolution) -> GraphConflict:
    r"""The certificate of an infeasible Graph-SVM as few rows: which last token, which rankings, which ties.

    A last token that cannot be satisfied by itself is looked for first, the one with the fewest rows among those in the certificate. A
    vertex of the set of its Farkas vectors has at most d_model + 1 rows, and embeddings in general position need as many.

    Args:
        solution: of `graph_svm`, with status INFEASIBLE.
    Returns:
        A `GraphConflict`; `describe(names)` is the sentence. `residual` checks it.
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
    """A contradiction among the rows of one last token, or None where there is none."""
    pairs, tied = pairs[pairs[:, 0] == k], tied[tied[:, 0] == k]
    A, B = E[pairs[:, 1]] - E[pairs[:, 2]], E[tied[:, 1]] - E[tied[:, 2]]
    basis = _row_space(B)  # (rank, d_model)
    sizes = tuple(int(n) + 1 for n in np.unique(tied[:, 1], return_counts=True)[1])
    if len(basis) >= E.shape[1]:  # ties alone leave no direction, so any ranking is in conflict
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
    """Weights (n_rows,) with a zero sum of the rows to rounding, positive on the first `n_strict`; None where there are none."""
    if not n_strict:
        return None
    _, _, right = np.linalg.svd(rows.T, full_matrices=True)
    weights: FloatArray = right[-1] * np.sign(right[-1][:n_strict].sum() or 1.0)
    return weights if (weights[:n_strict] > 0.0).all() else None


def _row_space(rows: FloatArray) -> FloatArray:
    """(rank, d) an orthonormal basis of what the rows span."""
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
    """The rows with their weights scaled to add up to one, and how far their sum is from zero."""
    total = y.sum()
    y, mu = y / total, mu / total
    rows = np.concatenate([pairs, tied])
    differences = (E[rows[:, 1]] - E[rows[:, 2]]) * np.concatenate([y, mu])[:, None]
    distance = float(length((differences.T @ E[rows[:, 0]]).reshape(-1)))
    scale = float(np.sum(y * length(E[pairs[:, 1]] - E[pairs[:, 2]]) * length(E[pairs[:, 0]])))
    return GraphConflict(
        pairs, y, tied, mu, E.shape[1], tie_rank, sizes, distance / scale if scale else float(distance > 0.0)
    )
