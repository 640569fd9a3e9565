"""Graph-SVM against independent solvers, on acyclic and cyclic data, feasible or not, by every way it is solved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

import tolerances
from margin_oracles import by_nnls, by_quadprog
from marginlens.data.sequence_generators import acyclic_sequences, cyclic_sequences
from marginlens.data.sequences import SequenceDataset
from marginlens.graphs import PriorityGraph, graphs_of_edges, priority_graphs
from marginlens.svm import MarginSolution, Status, graph, least_distance
from marginlens.svm.graph import GraphSolution, graph_svm
from marginlens.svm.solvers import independent_parts

Graphs = dict[int, PriorityGraph]
Oracle = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray | None]


def all_rows(E: np.ndarray, graphs: Graphs) -> tuple[np.ndarray, np.ndarray]:
    """Strict rows and every tied pair, straight from the definition."""

    def row(k: int, i: int, j: int) -> np.ndarray:
        return np.outer(E[i] - E[j], E[k]).reshape(-1)

    strict = [row(k, i, j) for k, graph in graphs.items() for i, j in graph.strict]
    tied = [row(k, i, j) for k, graph in graphs.items() for i, j in graph.tied]
    empty = np.empty((0, E.shape[1] ** 2))
    return np.array(strict) if strict else empty, np.array(tied) if tied else empty


def random_data(seed: int) -> SequenceDataset:
    """Small data, acyclic or cyclic in turn, with more or fewer tokens than dimensions."""
    rng = np.random.default_rng(seed)
    K, d, T = int(rng.integers(4, 10)), int(rng.integers(3, 9)), int(rng.integers(3, 6))
    draw = acyclic_sequences if seed % 2 else cyclic_sequences
    return draw(K, d, int(rng.integers(5, 30)), T, rng)


def structured(E: np.ndarray, graphs: Graphs) -> GraphSolution:
    """The method for many rows, whatever their number."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(independent_parts, "MAX_FORMED_PART_ENTRIES", 0)
        patch.setattr(graph, "is_orthonormal", lambda E: False)
        return graph_svm(E, graphs)


def assert_solved(solution: GraphSolution, E: np.ndarray, graphs: Graphs) -> None:
    """The proof holds by the solution's own account and by rows formed here."""
    assert isinstance(solution, MarginSolution)
    assert solution.status is Status.OPTIMAL
    assert solution.kkt_residual() <= max(tolerances.SVM_KKT, 32 * solution.rounding_floor())
    A, C = all_rows(E, graphs)
    x, norm = solution.x.reshape(-1), np.linalg.norm(solution.x)
    assert (A @ x).min() >= 1.0 - tolerances.CONDITIONED
    assert np.abs(C @ x).max(initial=0.0) <= tolerances.CONDITIONED * norm
    weights = np.concatenate([solution.multipliers, solution.equality_multipliers])
    k, i, j = np.concatenate([solution.pairs, solution.tied]).T
    W = np.einsum("r,ra,rb->ab", weights, E[i] - E[j], E[k])
    assert np.linalg.norm(W - solution.x) <= tolerances.CONDITIONED * norm
    assert (solution.multipliers >= 0.0).all()
    assert (solution.active | (solution.multipliers == 0.0)).all()
    np.testing.assert_allclose(solution.margin, 1.0 / norm, rtol=tolerances.ROUNDING, atol=0.0)


@pytest.mark.statement("C Graph-SVM")
@pytest.mark.statement("C Acyc-SVM")
@pytest.mark.parametrize("oracle", [by_nnls, by_quadprog], ids=["nnls", "quadprog"])
def test_agrees_with_an_independent_solver(oracle: Oracle) -> None:
    outcomes = set()
    for seed in range(20):
        ds = random_data(seed)
        graphs = priority_graphs(ds)
        A, C = all_rows(ds.E, graphs)
        solution = graph_svm(ds.E, graphs)
        outcomes.add(solution.status)
        if solution.status is Status.TRIVIAL:
            assert not len(A)
            continue
        expected = oracle(A, np.ones(len(A)), C)
        if expected is None:
            assert solution.status is Status.INFEASIBLE, seed
            assert solution.certificate_residual() <= tolerances.SVM_FARKAS
        else:
            assert_solved(solution, ds.E, graphs)
            distance = np.linalg.norm(solution.x.reshape(-1) - expected)
            assert distance <= tolerances.SVM_ORACLE * np.linalg.norm(expected), seed
    assert {Status.OPTIMAL, Status.INFEASIBLE} <= outcomes


def test_the_method_for_many_rows_gives_the_same_solution() -> None:
    outcomes: Counter[Status] = Counter()
    for seed in range(25):
        ds = random_data(seed)
        graphs = priority_graphs(ds)
        exact = graph_svm(ds.E, graphs)
        outcomes[exact.status] += 1
        if exact.status is Status.TRIVIAL:
            continue
        other = structured(ds.E, graphs)
        assert other.status is exact.status, seed
        if exact.status is Status.OPTIMAL:
            assert np.linalg.norm(other.x - exact.x) <= tolerances.SVM_ORACLE * np.linalg.norm(exact.x), seed
            assert_solved(other, ds.E, graphs)
            assert other.active.tolist() == exact.active.tolist()
        else:
            assert other.certificate_residual() <= tolerances.SVM_FARKAS
            assert np.isnan(other.x).all()
            assert np.isnan(other.multipliers).all()
    assert outcomes[Status.OPTIMAL] >= 20
    assert outcomes[Status.INFEASIBLE] >= 2


def renamed(ds: SequenceDataset, rng: np.random.Generator) -> SequenceDataset:
    """The same problem with its tokens, samples and coordinates in another order, so that every sum adds up in another order."""
    token, coordinate, sample = (rng.permutation(n) for n in (ds.n_vocabulary, ds.d_model, len(ds)))
    E = np.empty_like(ds.E)
    E[token] = ds.E[:, coordinate]
    return SequenceDataset([token[ds[i][0]] for i in sample], token[ds.labels[sample]], E)


@pytest.mark.parametrize("seed", [2, 8, 11])  # the last two have rows that nearly cancel: margins .0001 and .0005
def test_the_order_of_additions_does_not_matter(seed: int) -> None:
    ds = random_data(seed)
    first = graph_svm(ds.E, priority_graphs(ds))
    assert first.status is Status.OPTIMAL
    for change in range(4):
        other = renamed(ds, np.random.default_rng([seed, change]))
        graphs = priority_graphs(other)
        for solve in (graph_svm, structured):
            solution = solve(other.E, graphs)
            assert solution.status is first.status, change
            assert solution.kkt_residual() <= 0.1 * tolerances.SVM_KKT  # far from where rounding would decide
            np.testing.assert_allclose(solution.margin, first.margin, rtol=tolerances.SVM_ORACLE, atol=0.0)
            assert np.count_nonzero(solution.active) == np.count_nonzero(first.active)


@pytest.mark.parametrize("solve", [graph_svm, structured])
def test_a_token_between_two_others_cannot_beat_both(solve: Callable[..., GraphSolution]) -> None:
    E = np.array([[4.0, 0.0, 2.0], [0.0, 8.0, 2.0], [2.0, 4.0, 2.0], [1.0, 1.0, 3.0]])
    graphs = graphs_of_edges(np.array([3, 3, 3]), np.array([2, 2, 0]), np.array([0, 1, 3]), 4)
    solution = solve(E, graphs)
    assert solution.status is Status.INFEASIBLE
    assert solution.certificate_residual() <= tolerances.SVM_FARKAS
    assert solution.margin == 0.0
    assert np.isnan(solution.kkt_residual())


@pytest.mark.parametrize("solve", [graph_svm, structured])
def test_ties_can_forbid_what_priorities_ask(solve: Callable[..., GraphSolution]) -> None:
    E = np.array([[0.0, 0.0, 1.0], [1.0, 0.0, 1.0], [2.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    last, head, tail = np.array([3, 3, 3]), np.array([0, 1, 1]), np.array([1, 0, 2])  # 0 ≍ 1 above 2, all on one line
    solution = solve(E, graphs_of_edges(last, head, tail, 4))
    assert solution.status is Status.INFEASIBLE
    assert solution.certificate_residual() <= tolerances.SVM_FARKAS
    assert abs(solution.equality_multipliers).max() > 0.0
    away = E.copy()
    away[2, 1] = 0.5  # off the line there is room
    solved = solve(away, graphs_of_edges(last, head, tail, 4))
    assert_solved(solved, away, graphs_of_edges(last, head, tail, 4))


def test_long_short_and_nearly_equal_tokens_keep_accuracy() -> None:
    solved = 0
    for seed in range(20):
        ds = random_data(seed)
        rng, K, d = np.random.default_rng([seed, 3]), ds.n_vocabulary, 12
        E = rng.normal(size=(K, d)) * (10.0 ** rng.uniform(-9, 9, size=(K, 1)) if seed % 2 else 1.0)
        E[0] = E[1] + 1e-7 * np.linalg.norm(E[1]) * rng.normal(size=d)
        A, C = all_rows(E, priority_graphs(ds))
        whole = least_distance(A, np.ones(len(A)), equalities=C if len(C) else None)
        if whole.status is Status.OPTIMAL and whole.rounding_floor() <= tolerances.ROUNDING:
            solution = graph_svm(E, priority_graphs(ds))
            assert solution.status is Status.OPTIMAL, seed
            distance = np.linalg.norm(solution.x.reshape(-1) - whole.x)
            assert distance <= tolerances.SVM_ORACLE * np.linalg.norm(whole.x), seed
            solved += 1
    assert solved >= 7


@pytest.mark.parametrize("factor", [1e-40, 1e-6, 1e6, 1e40])
def test_scaled_embeddings_scale_the_solution(factor: float) -> None:
    ds = acyclic_sequences(8, 8, 6, 5, 3)
    graphs = priority_graphs(ds)
    plain = graph_svm(ds.E, graphs)
    for solve in (graph_svm, structured):
        scaled = solve(factor * ds.E, graphs)
        assert scaled.status is Status.OPTIMAL
        assert np.linalg.norm(scaled.x * factor**2 - plain.x) <= tolerances.SVM_ORACLE * np.linalg.norm(plain.x)


def test_each_component_has_one_tie_fewer_than_tokens() -> None:
    ds = SequenceDataset([[0, 1, 2, 3, 4], [1, 2, 3, 0, 4], [2, 3, 0, 1, 4]], [0, 1, 2], np.eye(5))
    solution = graph_svm(ds)
    assert len(priority_graphs(ds)[4].tied) == 3  # 0, 1 and 2 above 3 and 4
    assert len(solution.tied) == 2
    assert_solved(solution, ds.E, priority_graphs(ds))
    assert repr(solution) == f"GraphSolution(OPTIMAL, margin={solution.margin:.6g}, 6 strict, 2 tied, d=5)"
