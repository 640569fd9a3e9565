"""Residual attention is the dual of ATT-SVM: the law against gradients, against descent, and in its degenerate cases."""

import numpy as np
import pytest
from scipy.optimize import minimize

import marginlens as ml
from marginlens.data import figure_1b, figure_5, sphere_tokens
from marginlens.data.random_tokens import scored_tokens
from marginlens.theory import residual_law
from marginlens_papers.claims.a.figures_3_to_5 import predicted_height
from marginlens_papers.claims.drawing import misalignment
from marginlens_papers.claims.ours.residual_attention import deviation, multipliers_from, position, within
from random_problems import MAX_DRAWS, ragged_problem
from tolerances import CONDITIONED, LAW_RATE, ON_THE_LAW, ROUNDING, SIX_DIGITS

pytestmark = pytest.mark.statement("X O")
LOSSES = [ml.Logistic(), ml.Exponential(), ml.CorrelationLoss()]
TOP = 1.0  # the score of the selected token in the problems made here


def with_rows(rows, gaps):
    """One input whose first token, at the origin, exceeds token r by rows[r] in its key and gaps[r] in its score."""
    rows, gaps = np.asarray(rows, dtype=float), np.asarray(gaps, dtype=float)
    keys = np.concatenate([np.zeros((1, rows.shape[1])), -rows])
    return scored_tokens([keys], [np.concatenate([[TOP], TOP - gaps])])


def a_local_optimum(rng, *, n_inputs=3, longest=4, d=4):
    """A ragged problem, its head, and its widest locally optimal selection with at least two active constraints."""
    for _ in range(MAX_DRAWS):
        data, v = ragged_problem(rng, n_inputs, longest, d)
        for selection in ml.locally_optimal_directions(data, v).selections:
            if residual_law(data, v, selection).carrying.sum() >= 2:
                return data, v, selection
    raise AssertionError(f"none of {MAX_DRAWS} problems has such a selection")


# ---- what the law says, by other means


@pytest.mark.parametrize("loss", LOSSES, ids=lambda one: type(one).__name__)
def test_gradient_at_the_predicted_position_is_along_max_margin(loss):
    rng = np.random.default_rng(2)
    n_shifted, n_separated = 0, 0
    for _ in range(5):
        data, v, selected = a_local_optimum(rng)
        law = residual_law(data, v, selected, loss=loss)
        R = 60.0 / law.solution.margin
        offset_free = ml.AttentionRisk(data, v, loss).gradient(R * law.solution.direction).array
        if np.linalg.norm(law.offset) > 0.1:
            n_shifted += 1
            assert misalignment(-offset_free, law.solution.x) > 1e-5
        slack = (law.solution.rows @ law.solution.x - 1.0)[~law.carrying]
        if np.min(slack, initial=1.0) > 0.5:
            predicted = ml.AttentionRisk(data, v, loss).gradient(position(law, R)).array
            n_separated += 1
            assert misalignment(-predicted, law.solution.x) < ON_THE_LAW**2
    assert n_shifted >= 4
    assert n_separated >= 3


@pytest.mark.parametrize("loss", [ml.CorrelationLoss(), ml.Logistic()], ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("C", [1.0, 3.0, 10.0])
def test_the_offset_of_figure_5_is_its_known_height(loss, C):
    data, v = figure_5(C)
    law = residual_law(data, v, [0, 0], loss=loss)
    np.testing.assert_allclose(law.offset, [0.0, predicted_height(loss, C)], rtol=0.0, atol=ROUNDING)


def test_the_offset_solves_its_equations_and_is_orthogonal_to_the_direction():
    rng = np.random.default_rng(3)
    for _ in range(10):
        data, v, selected = a_local_optimum(rng)
        law = residual_law(data, v, selected)
        gaps = law.solution.rows[law.carrying] @ law.offset - law.log_ratio[law.carrying]
        assert np.ptp(gaps) < CONDITIONED
        assert law.residual < CONDITIONED
        assert abs(law.offset @ law.solution.direction) < CONDITIONED
        np.testing.assert_allclose(within(law, law.offset), law.offset, rtol=0.0, atol=CONDITIONED)
        np.testing.assert_allclose(law.multipliers @ law.solution.rows, law.solution.x, rtol=CONDITIONED, atol=0.0)


def test_nothing_underflows_at_any_norm():
    data, v = figure_5(10.0)
    law = residual_law(data, v, [0, 0])
    assert np.all(deviation(law, position(law, np.array([1e2, 1e4, 1e6]))) < CONDITIONED)
    assert deviation(law, 1e6 * law.solution.direction) == pytest.approx(
        np.max(np.abs(expected_at_no_offset(law))), rel=SIX_DIGITS, abs=ROUNDING
    )


def expected_at_no_offset(law):
    """log of the multipliers read off R p^mm over the true ones: log c, scaled to the same sum, less log λ."""
    log_c = law.log_ratio + np.log(law.multipliers)
    return log_c - np.log(np.sum(np.exp(log_c))) + np.log(np.sum(law.multipliers)) - np.log(law.multipliers)


# ---- what descent does


def test_descent_reaches_the_law_on_random_problems():
    data, v = sphere_tokens(40, 4, 6, 30, 5)
    run = ml.descend(data, v, n_steps=2000, record=ml.Record([100, 300, 1000, 2000]))
    law = residual_law(data, v, run.selected)
    points = run.saved["x"]
    assert law.holds.mean() > 0.95
    median = np.median(deviation(law, points), axis=0)
    assert np.all(np.diff(median) < 0.0)
    assert median[-1] < 1e-3
    along = np.einsum("bkd,bd->bk", points, law.solution.direction)
    plain, offset = misalignment(points, law.solution.x[:, None]), misalignment(points, position(law, along))
    inside = misalignment(within(law, points), position(law, along))
    plain, offset, inside = (np.median(one[law.holds, -1]) for one in (plain, offset, inside))
    assert offset < 0.7 * plain
    assert inside < 1e-6 * offset  # what is left is the memory of the first steps


@pytest.mark.parametrize(
    ("step", "slack", "spread"),
    [
        pytest.param(ml.NormalizedGD(0.01), 9.0, 1.0, id="normalised, the active rows decide"),
        pytest.param(ml.NormalizedGD(0.01), 0.3, 1.0, id="normalised, an inactive row decides"),
        pytest.param(ml.NormalizedGD(0.01), 9.0, 3.0, id="normalised, what the active tokens still hold decides"),
        pytest.param(ml.GradientDescent(1.0), 9.0, 1.0, id="constant, the active rows decide"),
    ],
)
def test_deviations_fall_at_the_predicted_rate(step, slack, spread):
    data, v = with_rows([[1.0, 0.9 * spread], [1.0, -0.7 * spread], [1.0 + slack, 0.5]], [0.5, 2.0, 1.0])
    law = residual_law(data, v, [0], loss=ml.CorrelationLoss())
    assert law.carrying.tolist() == [True, True, False]
    n_steps = 4000 if isinstance(step, ml.NormalizedGD) else 400_000
    run = ml.descend(data, v, loss=ml.CorrelationLoss(), optimizer=step, n_steps=n_steps, record=ml.Record(10))
    left, norm = deviation(law, run.saved["x"]), np.linalg.norm(run.saved["x"], axis=-1)
    late = (left > 1e-9) & (norm > min(0.6 * norm[-1], 12.0))
    assert late.sum() > 20
    slope = np.polyfit(norm[late], np.log(left[late]), 1)[0]
    assert slope == pytest.approx(-law.rate, rel=LAW_RATE, abs=ROUNDING)


def test_steps_up_to_the_largest_settle_and_longer_ones_do_not():
    data, v = with_rows([[1.0, 1.0], [1.0, -0.4]], [0.5, 2.0])
    law = residual_law(data, v, [0])
    ends = [
        deviation(law, ml.descend(data, v, optimizer=ml.NormalizedGD(share * law.largest_step), n_steps=5000).final)
        for share in (0.97, 1.03)
    ]
    assert ends[0] < CONDITIONED < 1e-2 < ends[1]


def test_the_slowest_and_the_fastest_rate_are_eigenvalues():
    rows = np.array([[2.0, 0.9, 0.0], [2.0, -0.7, 0.3], [2.0, 0.1, -0.5]])
    law = residual_law(*with_rows(rows, [0.5, 2.0, 1.0]), [0])
    assert law.solution.margin == pytest.approx(2.0, rel=SIX_DIGITS, abs=ROUNDING)
    share = np.sqrt(law.multipliers / law.multipliers.sum())[:, None] * rows[:, 1:]
    slow, fast = np.linalg.eigvalsh(share.T @ share) / 2.0
    assert [law.rate, law.stiffness] == pytest.approx([slow, fast], rel=CONDITIONED, abs=ROUNDING)
    assert law.largest_step == pytest.approx(2.0 / fast, rel=CONDITIONED, abs=ROUNDING)


def test_the_deviation_of_a_run_is_infinite_without_a_law():
    data, v = figure_1b()
    run = ml.descend(data, v, start=[0.0, 1.0], n_steps=300)
    assert np.isfinite(deviation(residual_law(data, v, run.selected), run.final))
    lowest = ml.descend(data, v, start=[-5.0, -5.0], n_steps=0)
    assert lowest.selected.tolist() == [2]
    assert deviation(residual_law(data, v, lowest.selected), lowest.final) == np.inf


# ---- degenerate cases


def test_dependent_rows_show_the_multipliers_of_least_relative_entropy():
    rows, gaps = np.array([[1.0, -1.0], [1.0, 0.3], [1.0, 1.0]]), np.array([0.7, 1.5, 0.4])
    data, v = with_rows(rows, gaps)
    law = residual_law(data, v, [0], loss=ml.CorrelationLoss())
    assert law.carrying.all()
    assert law.residual < CONDITIONED
    np.testing.assert_allclose(law.multipliers @ rows, law.solution.x, rtol=0.0, atol=CONDITIONED)
    entropy = minimize(
        lambda lam: np.sum(lam * (np.log(lam / gaps) - 1.0)),
        np.full(3, 0.3),
        constraints={"type": "eq", "fun": lambda lam: lam @ rows - law.solution.x},
        bounds=[(1e-6, None)] * 3,
        options={"ftol": 1e-14},
    )
    np.testing.assert_allclose(law.multipliers, entropy.x, rtol=0.0, atol=1e-6)
    run = ml.descend(data, v, loss=ml.CorrelationLoss(), optimizer=ml.NormalizedGD(0.2), n_steps=2000)
    assert deviation(law, run.final) < CONDITIONED
    np.testing.assert_allclose(multipliers_from(law, run.final), law.multipliers, rtol=CONDITIONED, atol=0.0)
    assert np.abs(law.solution.multipliers - law.multipliers).max() > 0.01  # the solver's own are another choice


@pytest.mark.parametrize("unit", [2.0**-90, 2.0**90])
def test_carrying_rows_do_not_depend_on_the_unit_of_keys(unit):
    rows, gaps = np.array([[1.0, -1.0], [1.0, 0.3], [1.0, 1.0], [1.0, 0.0]]), [0.7, 1.5, 0.4, 1.0]
    near, far = residual_law(*with_rows(rows, gaps), [0]), residual_law(*with_rows(unit * rows, gaps), [0])
    assert near.carrying.all()
    assert far.carrying.all()
    np.testing.assert_allclose(unit * far.offset, near.offset, rtol=0.0, atol=CONDITIONED)


def test_the_share_of_a_weakly_active_row_falls_like_one_over_the_norm():
    data, v = with_rows([[1.0, -1.0, 0.0], [1.0, 0.3, 0.0], [1.0, 1.0, 0.0], [1.0, 0.5, 1.0]], [0.7, 1.5, 0.4, 1.0])
    law = residual_law(data, v, [0])
    assert law.carrying.tolist() == [True, True, True, False]
    assert law.weak.tolist() == [False, False, False, True]
    assert law.rate == 0.0
    run = ml.descend(
        data, v, optimizer=ml.NormalizedGD(0.2), n_steps=100_000, record=ml.Record([10_000, 100_000], ("x", "norm"))
    )
    share = multipliers_from(law, run.saved["x"])[:, 3]
    growth = run.saved["norm"][1] / run.saved["norm"][0]
    assert share[0] / share[1] == pytest.approx(growth, rel=0.05, abs=ROUNDING)
    left = deviation(law, run.saved["x"])
    assert left[1] < 0.15 * left[0] < 0.015


# ---- shapes


@pytest.mark.parametrize(
    "X", [np.ones((2, 1, 3)), np.ones((2, 4, 3)), np.zeros((1, 2, 3))], ids=["alone", "alike", "zero"]
)
def test_no_law_holds_for_inseparable_tokens(X):
    y, p = np.ones(len(X)), np.ones(3)
    one, many = ml.TokenDataset(X, y), ml.TokenDataset(X[None], y[None])
    law, laws = residual_law(one, p, [0] * len(X)), residual_law(many, p, [[0] * len(X)])
    assert not law.holds
    assert deviation(law, p) == deviation(laws, p)[0] == np.inf
    assert np.isnan(multipliers_from(law, p)).all()
    assert np.isnan(law.multipliers).all()
    run = ml.descend(one, p, n_steps=1)
    assert deviation(residual_law(one, p, run.selected), run.final) == np.inf
    assert "does not hold" in repr(law)
