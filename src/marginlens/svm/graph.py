"""Graph-SVM: the shortest W under which higher priority means larger attention logits and equal priority equal ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array

from marginlens.data.sequences import SequenceDataset
from marginlens.data.tokens import FloatArray, IntArray
from marginlens.directions import length
from marginlens.errors import real_array, reject
from marginlens.graphs.priority import PriorityGraph, priority_graphs, reduced_order
from marginlens.graphs.subspace import near_one
from marginlens.papers import implements
from marginlens.runtime.progress import ProgressCallback, as_progress
from marginlens.svm.solution import CONTRADICTION, MarginSolution, Status, refined
from marginlens.svm.solvers.batch import NOTHING, TIGHT
from marginlens.svm.solvers.independent_parts import FORMED, group_labels, is_orthonormal, solve_columns, solve_part
from marginlens.svm.solvers.least_distance import held_to_proof
from marginlens.svm.solvers.rows import GraphRows

MANY_PAIRS = 4  # strict pairs per component from which on it pays to look for implied ones
FAR = 200  # powers of two from length one at which products of two embeddings may leave the numbers when squared


@dataclass(frozen=True, repr=False, eq=False)
class GraphSolution(MarginSolution):
    """A `MarginSolution` whose `x` is a matrix W (d_model, d_model).

    `pairs` (n_strict, 3) holds (k, i, j) of every strict row, `tied` (n_tied, 3) those of every equality; `rows` and
    `equalities` stand for the matrices without forming them.
    """

    rows: GraphRows  # type: ignore[assignment]
    equalities: GraphRows  # type: ignore[assignment]
    tied: IntArray = field(default_factory=lambda: np.empty((0, 3), dtype=np.int64))

    def __repr__(self) -> str:
        size = f"{len(self.floor)} strict, {len(self.tied)} tied, d={self.x.shape[-1]}"
        return f"GraphSolution({self.status.name}, margin={self.margin:.6g}, {size})"


@implements("C", "Graph-SVM", "Acyc-SVM")
@np.errstate(over="ignore", invalid="ignore")  # multipliers that leave double precision end as INACCURATE
def graph_svm(
    data: Any, graphs: Mapping[int, PriorityGraph] | None = None, *, progress: ProgressCallback | None = None
) -> GraphSolution:
    r"""Shortest W that ranks every token above those of lower priority by at least one, and tokens of equal priority alike.

    .. math:: \min_W \|W\|_F \ \text{s.t.}\ (e_i - e_j)^\top W e_k \ge 1\ (i \Rightarrow j),\ = 0\ (i \asymp j)
        \ \text{in}\ \mathcal G^{(k)},\ k \in [K]

    Args:
        data: a `SequenceDataset`; or its embeddings E (n_vocabulary, d_model), with the graphs.
        graphs: from last token k to its `PriorityGraph`; those of `priority_graphs(data)` by default.
        progress: called as `progress(done, total)` after each last token, where embeddings are orthonormal, or each group of last tokens
            whose embeddings are not orthogonal.
    Returns:
        A `GraphSolution` with `multipliers[r] >= 0` for the pair `pairs[r]` = (k, i, j), i ⇒ j, and
        `equality_multipliers[r]` for `tied[r]` = (k, i, j), i ≍ j, of which each component needs one less than it has tokens:
        W = sum of multipliers times (e_i - e_j) e_kᵀ. W = 0 where nothing is strict. `kkt_residual()` and
        `certificate_residual()` check it.
    """
    if graphs is None:
        graphs = priority_graphs(data)  # refuses what is no dataset
    E = data.E if isinstance(data, SequenceDataset) else data
    embeddings = real_array(E, "E", ("n_vocabulary", "d_model"))
    as_progress(progress)
    strict, tied = graph_triples(graphs, len(embeddings))
    blank = _blank(GraphRows(embeddings, strict), GraphRows(embeddings, tied))
    if not len(strict):
        return blank
    near, power = near_one(embeddings)
    if abs(power) > FAR:
        return _rescaled(blank, graph_svm(near, graphs, progress=progress), 2 * power)
    columns = solve_columns(embeddings, graphs, strict, tied, progress) if is_orthonormal(embeddings) else None
    if columns is not None:
        return _judged(blank, columns.W, columns.strict, columns.tied)
    return _by_groups(blank, sufficient(graphs), progress=progress)


def graph_triples(graphs: Any, n_vocabulary: int) -> tuple[IntArray, IntArray]:
    """The tokens (k, i, j) of every strict pair, and of enough equal pairs to tie every component, ordered by k."""
    if not isinstance(graphs, Mapping):
        raise reject("graphs", "a dictionary from last token to PriorityGraph", type(graphs).__name__)
    checked = {_last(last): _checked(last, graph, n_vocabulary) for last, graph in graphs.items()}
    last = sorted(checked)
    return _named(last, [checked[k].strict for k in last]), _named(last, [_spanning(checked[k]) for k in last])


def sufficient(graphs: Mapping[int, PriorityGraph]) -> IntArray:
    """Which rows of `graph_triples` determine W: one for any two components, and where there are many, none that a chain implies."""
    kept, first = [np.empty(0, dtype=np.int64)], 0
    for k in sorted(graphs):
        kept.append(first + _one_of_each(graphs[k]))
        first += len(graphs[k].strict)
    return np.concatenate(kept)


def _spanning(graph: PriorityGraph) -> IntArray:
    """(n_tied, 2) pairs of the first token of a component with each of its others."""
    pairs = [np.empty((0, 2), dtype=np.int64)]
    if not graph.is_acyclic:
        several = (members for members in graph.components if len(members) > 1)
        pairs += [np.stack([np.full(len(members) - 1, members[0]), members[1:]], axis=1) for members in several]
    return pairs[0] if len(pairs) == 1 else np.concatenate(pairs)


def _one_of_each(graph: PriorityGraph) -> IntArray:
    """Places in `strict` of the first pair between any two components, without implied ones where pairs are many."""
    pairs, count = graph.strict, graph.n_components
    many = len(pairs) > MANY_PAIRS * count
    if graph.is_acyclic and not many:
        return np.arange(len(pairs))
    upper, lower = graph.components_of(pairs[:, 0]), graph.components_of(pairs[:, 1])
    first = np.sort(np.unique(upper * count + lower, return_index=True)[1])
    return first[reduced_order(graph)[upper[first], lower[first]]] if many else first


def _by_groups(
    blank: GraphSolution, kept: IntArray, formed: int = FORMED, progress: ProgressCallback | None = None
) -> GraphSolution:
    """The rows `kept` group by group, put together and judged; `formed` as in `solve_part`."""
    rows, ties = blank.rows, blank.equalities
    zero = np.flatnonzero(rows.sizes == 0.0)
    alike = zero[rows.vanish(zero)]
    if len(alike):  # no W tells tokens apart that look the same
        return _infeasible(blank, (np.arange(len(rows)) == alike[0]).astype(np.float64), np.zeros(len(ties)))
    if len(zero):  # by underflow
        return replace(blank, status=Status.INACCURATE)
    last, label = group_labels(rows, ties)
    group = label[np.searchsorted(last, rows.triples[kept, 0])]
    group_of_ties = label[np.searchsorted(last, ties.triples[:, 0])]
    by_group, ties_by_group = np.argsort(group, kind="stable"), np.argsort(group_of_ties, kind="stable")
    parts, weights, forces = [], np.zeros(len(rows)), np.zeros(len(ties))
    groups = np.unique(group).tolist()
    for one in groups:
        some = by_group[slice(*np.searchsorted(group[by_group], [one, one + 1]))]
        equal = ties_by_group[slice(*np.searchsorted(group_of_ties[ties_by_group], [one, one + 1]))]
        part = solve_part(rows, ties, kept[some], equal, formed=formed)
        if part.status is Status.INFEASIBLE:
            y, mu = np.zeros(len(rows)), np.zeros(len(ties))
            y[part.strict], mu[part.tied] = part.weights, part.forces
            return _infeasible(blank, y, mu)
        weights[part.strict], forces[part.tied] = part.weights, part.forces
        parts.append(part)
        if progress is not None:
            progress(len(parts), len(groups))
    left, right = np.concatenate([p.left for p in parts], axis=1), np.concatenate([p.right for p in parts], axis=1)
    thin = rows.thin is not None
    W = np.ascontiguousarray((csr_array(right) @ left.T).T) if thin else left @ right.T
    return _judged(blank, W, weights, forces)


def _blank(rows: GraphRows, ties: GraphRows) -> GraphSolution:
    """W = 0, which is the solution where nothing is strict."""
    n, d = len(rows), rows.E.shape[1]
    nothing, idle = np.zeros(n), np.zeros(n, dtype=bool)
    forces = np.zeros(len(ties))
    return GraphSolution(
        rows,
        np.ones(n),
        ties,
        np.zeros((d, d)),
        Status.TRIVIAL,
        nothing,
        forces,
        idle,
        None,
        rows.triples,
        ties.triples,
    )


def _infeasible(blank: GraphSolution, y: FloatArray, mu: FloatArray) -> GraphSolution:
    nothing = np.full_like(blank.x, np.nan), np.full_like(y, np.nan)
    claimed = replace(
        blank, x=nothing[0], status=Status.INFEASIBLE, multipliers=nothing[1], equality_multipliers=mu, certificate=y
    )
    proved = claimed.certificate_residual() <= CONTRADICTION
    return claimed if proved else replace(claimed, status=Status.INACCURATE)


def _judged(blank: GraphSolution, W: FloatArray, weights: FloatArray, forces: FloatArray) -> GraphSolution:
    """The solution, refined, with its tight rows; optimal when its own residual says so."""
    found = refined(replace(blank, x=W, multipliers=weights, equality_multipliers=forces, status=Status.INACCURATE))
    slack = found.rows.apply(found.x) - 1.0
    norm = float(length(found.x.reshape(-1)))
    tight = (slack <= TIGHT + NOTHING * norm * found.rows.sizes) | (weights > 0.0)
    solved = replace(found, active=tight)
    return replace(solved, status=Status.OPTIMAL) if solved.keeps_promise() else solved


def _rescaled(blank: GraphSolution, found: GraphSolution, power: int) -> GraphSolution:
    """What was found for the rows of `blank` divided by two to a power, for these rows themselves."""
    forces = np.asarray(found.equality_multipliers)  # of a Farkas vector, which has no scale, or of W
    forces = forces if found.status is Status.INFEASIBLE else np.ldexp(forces, -2 * power)
    scaled = {"x": np.ldexp(found.x, -power), "multipliers": np.ldexp(found.multipliers, -2 * power)}
    return held_to_proof(
        replace(found, rows=blank.rows, equalities=blank.equalities, equality_multipliers=forces, **scaled)
    )


def _named(last: list[int], pairs: list[IntArray]) -> IntArray:
    """(n_pairs, 3) all pairs, each after the last token it belongs to."""
    k = np.repeat(np.array(last, dtype=np.int64), [len(some) for some in pairs])
    return np.column_stack([k, np.concatenate([*pairs, np.empty((0, 2), dtype=np.int64)])])


def _last(last: Any) -> int:
    if isinstance(last, bool) or not isinstance(last, int | np.integer):
        raise reject("graphs", "a dictionary from last token, a whole number, to PriorityGraph", f"the key {last!r}")
    return int(last)


def _checked(last: Any, graph: Any, n_vocabulary: int) -> PriorityGraph:
    if not isinstance(graph, PriorityGraph):
        raise reject(f"graphs[{last}]", "a PriorityGraph", type(graph).__name__)
    if graph.last != last:
        raise reject(f"graphs[{last}]", f"the graph of last token {last}", f"that of last token {graph.last}")
    for one in (last, int(graph.nodes.min(initial=last)), int(graph.nodes.max(initial=last))):
        if not 0 <= one < n_vocabulary:
            expected = f"a graph of ids from 0 to {n_vocabulary - 1}, one for each row of E"
            raise reject(f"graphs[{last}]", expected, f"id {one}")
    return graph


_WEIGHT_RTOL = 1e-9  # a row with a smaller share of the largest weight is left out of a contradiction
_RANK_RTOL = 1e-10  # singular values below this share of the largest count as zero
_LP_ENTRIES = 4_000_000  # entries of a linear programme that is worth solving for fewer rows


@dataclass(frozen=True, repr=False, eq=False)
class GraphConflict:
    r"""Rows of a Graph-SVM that contradict each other: their weighted sum is zero, and every strict one asks for at least one.

    .. math:: \sum_r y_r (e_{i_r} - e_{j_r})\,e_{k_r}^\top + \sum_s \mu_s (e_{i_s} - e_{j_s})\,e_{k_s}^\top = 0, \quad y > 0

    Attributes:
        pairs: (n_rankings, 3) tokens (k, i, j) of the rankings i ⇒ j after last token k. weights: (n_rankings,) y, adding up to one.
        tied: (n_ties, 3) tokens (k, i, j) of the ties i ≍ j. tie_weights: (n_ties,) μ.
        d_model: width of the embeddings. tie_rank: how many dimensions the differences of tied tokens take, and
            component_sizes: of the components that tie them, for the last token of the conflict; both 0 and empty where several are needed.
        residual: as `MarginSolution.certificate_residual` of these rows alone.
        vanishing: the last tokens among them whose embedding is zero, after which every logit is zero.
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

    def __repr__(self) -> str:
        rows = f"{len(self.pairs)} rankings, {len(self.tied)} ties"
        return f"GraphConflict(last={self.last_tokens}, {rows}, residual={self.residual:.1g})"

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

    def describe(self, names: Sequence[str] | None = None, *, most: int = 5) -> str:
        """The conflict in words.

        Args:
            names: what to call each token, by id; ids by default. most: how many rankings to name.
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
        raise reject("solution", "a GraphSolution that is infeasible", getattr(got, "name", str(got)))
    y, mu = np.asarray(solution.certificate), np.asarray(solution.equality_multipliers)
    E, pairs, tied = solution.rows.E, np.asarray(solution.pairs), solution.tied
    zero = np.flatnonzero((y > 0.0) & ~E[pairs[:, 0]].any(axis=1))
    if len(zero):
        chosen = pairs[zero[:1]]
        return GraphConflict(chosen, np.ones(1), tied[:0], np.zeros(0), E.shape[1], 0, (), 0.0, (int(chosen[0, 0]),))
    used = y > _WEIGHT_RTOL * y.max()
    found = [one for k in np.unique(pairs[used, 0]).tolist() if (one := _of_last_token(E, pairs, tied, k)) is not None]
    if found:
        return min(found, key=lambda one: len(one.pairs) + len(one.tied))
    ties = np.abs(mu) > _WEIGHT_RTOL * y.max()
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
    if (len(A) + 2 * len(B)) * (E.shape[1] + 1) > _LP_ENTRIES:
        return None
    size = np.maximum(length(A), np.finfo(float).tiny)
    costs = np.concatenate([np.ones(len(A)), np.full(2 * len(B), 0.01)])
    equations = np.vstack([np.concatenate([A / size[:, None], B, -B]).T, costs * (costs == 1.0)])
    target = np.append(np.zeros(E.shape[1]), 1.0)
    answer = linprog(costs, A_eq=equations, b_eq=target, bounds=(0.0, None), method="highs-ds")
    if answer.x is None:
        return None
    y, plus, minus = np.split(answer.x, [len(A), len(A) + len(B)])
    used, ties = y > _WEIGHT_RTOL, np.abs(plus - minus) > _WEIGHT_RTOL
    weights = _refined(np.concatenate([A[used] / size[used, None], B[ties]]), int(used.sum()))
    if weights is None:
        return None
    y, mu = np.split(weights, [int(used.sum())])
    found = _conflict(E, pairs[used], y / size[used], tied[ties], mu, len(basis), sizes)
    return found if found.residual <= CONTRADICTION else None


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
    basis: FloatArray = right[values > _RANK_RTOL * values[0]]
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
