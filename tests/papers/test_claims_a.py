"""What is particular to A's Figures 1, 5 and 8, and the tools that draw them."""

import numpy as np
import pytest

import marginlens as ml
from marginlens.data import figure_1b, figure_1c
from marginlens_papers.claims import drawing
from marginlens_papers.claims.a import cones as a_f2
from marginlens_papers.claims.a import figure_1 as a_f1c
from marginlens_papers.claims.a.figures_3_to_5 import predicted_height
from marginlens_papers.claims.a.textbook import textbook_iterates
from marginlens_papers.claims.a.theorem_2 import _ends, _reaches, search
from tolerances import ROUNDING, SIX_DIGITS

SINGLE_PRECISION = 1e-4  # float32 steps against exact ones while no probability is below 1e-5


@pytest.mark.statement("A Fig 1(b)")
def test_single_precision_follows_the_exact_path_until_the_softmax_saturates():
    data, v = figure_1b()
    start = np.array([0.0, -1.0])
    exact = ml.descend(data, v, optimizer=ml.NormalizedGD(0.1), n_steps=60, start=start)
    rounded = np.concatenate(list(textbook_iterates(data.as_batch(), v, start[None], 0.1, 2000, np.float32)))
    assert np.abs(rounded[60] - exact.final).max() < SINGLE_PRECISION
    assert drawing.misalignment(rounded[2000], np.array([1.0, 0.0])) > 0.05  # and has left the limit long after


def test_the_authors_epsilon_stalls_a_saturated_run():
    data, v = figure_1c()
    start, epsilon = np.array([[0.3, -0.2]]), 0.05
    gradient = ml.AttentionRisk(data, v).gradient(start[0]).value()
    first = list(textbook_iterates(data.as_batch(), v, start, 0.1, 1, np.float64, epsilon))[1][0]
    expected = start[0] - 0.1 * gradient / (np.linalg.norm(gradient) + epsilon)
    np.testing.assert_allclose(first, expected, rtol=ROUNDING, atol=0.0)  # the norm is that of the mean over inputs
    ends = {
        epsilon: list(textbook_iterates(data.as_batch(), v, 0 * start, 1.0, 300, np.float64, epsilon))[-1]
        for epsilon in (0.0, 1e-12, 1e-9)
    }
    norms = {epsilon: float(np.linalg.norm(end)) for epsilon, end in ends.items()}
    assert norms[1e-9] < norms[1e-12] < 50.0 < norms[0.0]
    for epsilon in (1e-12, 1e-9):  # from where the gradient is as small as ε on, it is plain descent with step 1/ε
        assert 1e-4 * epsilon < np.exp(ml.AttentionRisk(data, v).gradient(ends[epsilon][0]).log_norm) < epsilon


@pytest.mark.statement("A Thm 3")
def test_a_start_in_the_cone_has_converged_only_after_descent(monkeypatch):
    rng = np.random.default_rng([a_f2.SEED, 0])
    data, v, cone = a_f2._problem(rng)
    points = cone.sample(6, rng)
    before = a_f2._misalignment(points, cone)
    assert before.max() < 1e-3  # every correlation is above .999 already
    assert not a_f2._converged(before[before > 0.5 * cone.mu], cone.mu).any()
    left, _ = a_f2._follow(data, v, cone, cone.mu, points)
    assert a_f2._converged(left, cone.mu).all()
    monkeypatch.setattr(a_f2, "LEGS", 2)
    descend = ml.descend
    monkeypatch.setattr(ml, "descend", lambda *args, n_steps, **rest: descend(*args, n_steps=0, **rest))
    still, _ = a_f2._follow(data, v, cone, cone.mu, points)
    np.testing.assert_array_equal(still, before)


@pytest.mark.statement("A Fig 1(c)")
def test_a_grid_of_angles_gives_the_margin_solution():
    data, v = figure_1c()
    assert a_f1c.max_margin_by_angle(data) == pytest.approx(ml.att_svm(data, data.optimal(v)).x, abs=1e-8, rel=0.0)
    turned = ml.TokenDataset(data.X, data.y, K=data.K @ np.array([[0.6, 0.8], [-0.8, 0.6]]))
    assert a_f1c.max_margin_by_angle(turned) == pytest.approx(ml.att_svm(turned, [0, 0, 0]).x, abs=1e-8, rel=0.0)


@pytest.mark.statement("A Fig 5")
def test_equal_scores_have_no_bias_and_large_ones_opposite_biases():
    assert predicted_height(ml.CorrelationLoss(), 1.0) == predicted_height(ml.Logistic(), 1.0) == 0.0
    assert predicted_height(ml.CorrelationLoss(), 100.0) == pytest.approx(np.log(10.0), rel=SIX_DIGITS, abs=ROUNDING)
    assert predicted_height(ml.Logistic(), 100.0) < -40.0


@pytest.mark.statement("A Fig 8")
def test_search_finds_second_directions_that_descent_keeps():
    data, v, every = search(2, 2, 50, np.random.default_rng(1))
    found, others = every.only(every.is_local), every.only(~every.is_local)
    assert len(found.problem) > 0
    assert np.all(found.selected.sum(axis=-1) == 1)  # one input on its lower token, one on its optimal
    logits = np.einsum("bitd,bd->bit", data.K[every.problem], every.direction)
    np.testing.assert_array_equal(np.argmax(logits, axis=-1), every.selected)
    kept = _reaches(_ends(data, v, found, 1000.0), found.direction)
    assert kept.mean() > 0.9
    left = _ends(data, v, others, 1000.0)
    assert not np.all(left.selected == others.selected, axis=-1).any()


# ---- drawing


def test_misalignment_resolves_what_one_minus_cosine_loses():
    tilted = np.array([1.0, 1e-9])
    assert drawing.misalignment(tilted, np.array([1.0, 0.0])) == pytest.approx(0.5e-18, rel=1e-6, abs=0.0)
