"""The named datasets of the figures: shapes, scores, and the optimal directions that the figures show."""

import numpy as np
import pytest

from marginlens.data import cone_example, figure_1a, figure_1b, figure_1c, figure_2, figure_5, figure_8
from marginlens.graphs import cyclic_subset, is_acyclic, priority_graphs, tied_positions
from marginlens.theory import check_assumption_b, locally_optimal_directions, token_optimality
from tolerances import ROUNDING, SIX_DIGITS


@pytest.mark.statement("A Fig 1(a)")
def test_figure_1a_has_one_locally_optimal_direction():
    data, v = figure_1a()
    assert check_assumption_b(data, v)
    every = locally_optimal_directions(data, v)
    assert every.selections.tolist() == [[0]]
    assert token_optimality(data, v, [0]).solution.x == pytest.approx([-0.1 / 1.01, 1 / 1.01], abs=ROUNDING, rel=0.0)


@pytest.mark.statement("A Fig 1(b)")
def test_figure_1b_gains_a_locally_optimal_direction():
    data, v = figure_1b()
    assert not check_assumption_b(data, v)
    every = locally_optimal_directions(data, v)
    assert sorted(every.selections[:, 0].tolist()) == [0, 1]
    local = token_optimality(data, v, [1])
    assert local.direction == pytest.approx([1.0, 0.0], abs=ROUNDING, rel=0.0)
    assert local.neighbours.tolist() == [[False, False, True]]
    assert local.score_gap == pytest.approx(0.9, rel=SIX_DIGITS, abs=ROUNDING)


@pytest.mark.statement("A Fig 1(c)", "A Fig 4")
def test_figure_1c_separates_the_first_tokens_of_three_inputs():
    data, v = figure_1c()
    assert data.K.shape == (3, 7, 2)
    assert data.scores(v)[:, 0].tolist() == [1.0] * 3
    assert np.all(data.scores(v)[:, 1:] == 0.5)
    assert token_optimality(data, v, [0, 0, 0]).solution.x == pytest.approx([0.8446, 0.1711], abs=5e-5, rel=0.0)


@pytest.mark.statement("A Fig 2")
def test_cone_example_has_a_local_and_a_global_limit():
    data, v = cone_example()
    assert sorted(locally_optimal_directions(data, v).selections[:, 0].tolist()) == [0, 2]
    local, best = (token_optimality(data, v, [token]) for token in (0, 2))
    assert local.direction == pytest.approx([1.0, 0.0], abs=ROUNDING, rel=0.0)
    assert best.is_globally_optimal
    assert not local.is_globally_optimal


@pytest.mark.statement("A Fig 5")
@pytest.mark.parametrize("C", [1, 10, 100])
def test_figure_5_has_the_same_limit_for_every_score(C):
    data, v = figure_5(C)
    assert data.scores(v).tolist() == [[C, 0.0], [1.0, 0.0]]
    assert token_optimality(data, v, [0, 0]).direction == pytest.approx([1.0, 0.0], abs=ROUNDING, rel=0.0)


@pytest.mark.statement("A Fig 8")
def test_figure_8_has_two_certified_directions_under_assumption_b():
    data, v = figure_8()
    assert data.K.shape == (2, 2, 2)
    assert check_assumption_b(data, v)
    every = locally_optimal_directions(data, v)
    assert sorted(every.selections.tolist()) == [[0, 0], [0, 1]]
    best, local = (token_optimality(data, v, selected) for selected in ([0, 0], [0, 1]))
    assert best.solution.x == pytest.approx([1.0, 2.0], abs=ROUNDING, rel=0.0)
    assert local.solution.x == pytest.approx([1.0, 0.0], abs=ROUNDING, rel=0.0)
    assert best.is_globally_optimal
    assert local.is_locally_optimal
    assert not local.is_globally_optimal
    assert not local.neighbours[1].any()  # nothing competes with the lower token of the second input
    for found in (best, local):
        assert found.solution.kkt_residual() < ROUNDING


@pytest.mark.statement("C Fig 2", "C §3.1", "C Def 1", "C Def 2", "C Eq. (4)", "C Eq. (5)")
def test_figure_2_matches_the_papers_text():
    ds = figure_2()
    graphs = priority_graphs(ds)
    assert sorted(graphs) == [0, 1]
    assert [part.tolist() for part in graphs[0].components] == [[3], [1], [2], [0]]
    assert [part.tolist() for part in graphs[1].components] == [[0, 1, 2], [3]]
    assert graphs[0].is_acyclic
    assert not graphs[1].is_acyclic
    assert not is_acyclic(graphs)
    # edges to e_4, which no path leads back from
    assert {tuple(pair) for pair in graphs[1].strict.tolist()} == {(0, 3), (1, 3)}
    assert graphs[1].tied.tolist() == [[0, 1], [0, 2], [1, 2]]
    assert ds.last.tolist() == [0, 0, 0, 1, 1, 1, 1]
    last = slice(*ds.offsets[-2:])
    assert (np.flatnonzero(ds.is_label[last]) + 1).tolist() == [3]
    assert (np.flatnonzero(tied_positions(ds, graphs)[last]) + 1).tolist() == [1, 3]
    cyclic = cyclic_subset(ds, graphs)
    assert (cyclic.samples + 1).tolist() == [4, 5, 6, 7]
    assert set(cyclic.tokens.tolist()) == {0, 1, 2}
    assert len(set(cyclic.lengths.tolist())) > 1  # App. D: inputs of varying lengths
