"""Theorems 1, 2, 3 and 8: what is predicted, and that risk and descent do it; with controls where an assumption fails."""

from functools import partial

import numpy as np
import pytest

import marginlens as ml
from marginlens.arithmetic.directions import unit
from marginlens.data import figure_1a, figure_1b, scored_tokens
from marginlens.theory import globally_optimal_direction, in_cone, optimal_sets, predict, predict_limit, smoothness
from marginlens.theory.scored_tokens import ScoredTokens
from marginlens.words import Fact
from marginlens_papers.claims.a.gradient_conditions import local_gradient_bounds
from quadratic_risk import Quadratic
from random_problems import cones, problem, ragged_problem, two_level_scores
from tolerances import ALIGNED, DIRECTION_ON_RANDOM_DATA, FIXED_POINT, LOG_RATE, ON_THE_GRID, ROUNDING

# what the start alone decides
predict, predict_limit = (partial(predict, prove=False), partial(predict_limit, prove=False))

LOSSES = [ml.Logistic(), ml.Exponential(), ml.CorrelationLoss()]


# ---- Theorem 1: the regularisation path


def best_on_circle(data, v, R, loss):
    """The direction of lowest risk at norm R in the plane, by trying 20,001 angles; risks are compared as logarithms."""
    angles = np.linspace(-np.pi, np.pi, 20_001)
    directions = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    risks = ml.AttentionRisk(data.repeat(len(angles)), v, loss).excess(R * directions, data.optimal(v))
    return directions[np.lexsort((risks.sign * risks.log, risks.sign))[0]]


@pytest.mark.statement("A Thm 1")
@pytest.mark.parametrize("loss", LOSSES)
def test_the_lowest_risk_at_growing_norms_approaches_the_predicted_direction(loss):
    rng = np.random.default_rng(0)
    n_checked = 0
    for _ in range(100):
        data, v = ragged_problem(rng, 2, 3, 3, d_key=2)
        prediction = predict_limit(data, v, loss=loss)
        assert prediction.verdicts[0].applies == bool(globally_optimal_direction(data, v).is_feasible)
        if prediction.path_direction is None:
            continue
        n_checked += 1
        near, far = (np.linalg.norm(best_on_circle(data, v, R, loss) - prediction.path_direction) for R in (30.0, 3e4))
        assert far < ON_THE_GRID
        assert far < near + ON_THE_GRID
        if n_checked == 3:
            break
    assert n_checked == 3


@pytest.mark.statement("A Thm 1")
def test_tied_optimal_scores_can_have_another_lowest_risk():
    keys = [[(1.0, 0.0), (0.0, 1.0), (-1.0, -1.0)]]
    data, v = scored_tokens(keys, [[1.0, 1.0, 0.0]])
    prediction = predict_limit(data, v)
    assert not prediction.verdicts[0].applies
    assert prediction.path_direction is None
    best = best_on_circle(data, v, 300.0, ml.Logistic())
    assert ml.correlation(best, ml.token_optimality(data, v, [0]).direction) < 0.99


# ---- Theorem 8: the path where optimal tokens tie


@pytest.mark.statement("A Thm 8", "A Lemma 14", "A Assumption D")
def test_a_duplicated_optimal_token_gives_the_limit_of_the_set_problem():
    data, v = scored_tokens([[(-0.1, 1.0), (-0.1, 1.0), (1.0, 0.0), (0.0, 0.0)]], [[1.0, 1.0, 0.9, 0.9]])
    prediction = predict_limit(data, v)
    assert [one.tolist() for one in optimal_sets(data, v)] == [[0, 1]]
    limit = unit(ml.set_svm(data, [[0, 1]]).points[0])
    np.testing.assert_allclose(prediction.path_direction, limit, rtol=0.0, atol=ROUNDING)
    np.testing.assert_allclose(prediction.candidates.directions, limit[None], rtol=0.0, atol=ROUNDING)
    assert prediction.candidates.labels == ("G^mm",)
    assert [verdict.applies for verdict in prediction.verdicts] == [False, False, False, True]
    assert [check.name for check in prediction.verdicts[3].conditions] == [
        "A Assumption A",
        "A Assumption D",
        "separable sets",
    ]
    assert prediction.reasons[-1] == Fact("reason.minima", {"minima": 1, "case": "one"})
    assert prediction.direction is None  # no theorem speaks of descent
    path = ml.path(data, [1e2, 1e4], head=v)
    assert ml.correlation(path.points[-1], limit) > ALIGNED
    run = ml.descend(
        data.repeat(4), v, optimizer=ml.NormalizedGD(0.1), n_steps=20_000, start=[(0.0, 1.0), (0, 0), (0, -1), (3, 0)]
    )
    assert ml.correlation(run.final, limit).min() > ALIGNED


# ---- inputs that do not depend on p


@pytest.mark.statement("A Thm 2", "A Thm 3", "A Eq. (46)")
@pytest.mark.parametrize("kind", ["one token", "one key", "one score", "all"])
def test_inputs_independent_of_p_do_not_count(kind):
    """Figure 1(a) beside inputs whose output is a constant: n = 1, the same limit, the same cone, and descent goes there."""
    plain, v = figure_1a()
    keys, scores = [plain.K[0]], [plain.scores(v)[0]]
    constant = {
        "one token": ([(3.0, -4.0)], [5.0]),
        "one key": ([(1.0, -2.0)] * 3, [0.3, -0.2, 0.9]),
        "one score": ([(0.0, 1.0), (2.0, 0.0)], [-0.7, -0.7]),
    }
    for own_keys, own_scores in constant.values() if kind == "all" else [constant[kind]]:
        keys.insert(0, np.array(own_keys))
        scores.insert(0, np.array(own_scores))
    X = [np.column_stack([k, s]) for k, s in zip(keys, scores, strict=True)]
    data = ml.TokenDataset(X, np.ones(len(X)), K=keys)
    assert ScoredTokens(data, v).dependent.tolist() == [False] * (len(X) - 1) + [True]
    prediction = predict_limit(data, v)
    assert prediction.reasons[0].numbers["citation"] == "A Thm 2 with n = 1"
    np.testing.assert_allclose(prediction.direction, predict_limit(plain, v).direction, rtol=0.0, atol=ROUNDING)
    assert prediction.candidates.selections[:, -1].tolist() == [0]
    assert prediction.notes[0].code == "note.left_out"
    assert prediction.notes[0].numbers["count"] == len(X) - 1
    run = ml.descend(data, v, optimizer=ml.NormalizedGD(0.1), n_steps=20_000, start=[0.0, -1.0])
    assert ml.correlation(run.final, prediction.direction) > ALIGNED
    selected = [0] * len(X)
    cone, reference = ml.basin_cone(data, v, selected), ml.basin_cone(plain, v, [0])
    assert cone.every_input_has_neighbours
    assert (cone.n_inputs, cone.n_tokens) == (1, 3)
    # L_p is Eq. (6)'s there, the keys' here
    assert cone.proven_radius == pytest.approx(reference.proven_radius, rel=0.05, abs=ROUNDING)
    for name in ("mu", "radius", "no_stationary_radius"):
        assert getattr(cone, name) == pytest.approx(getattr(reference, name), rel=ROUNDING, abs=ROUNDING)
    assert cone.optimality.selected.tolist() == selected
    assert {int(i) for i in cone.optimality.solution.pairs[:, 0]} == {len(X) - 1}
    assert cone.optimality.neighbours[:-1].sum() == 0
    far = 1.01 * cone.proven_radius * unit(cone.p)
    assert predict_limit(data, v, start=far).verdicts[2].applies
    assert local_gradient_bounds(data, v, cone, cone.sample(40, 0, cone.no_stationary_radius)).hold.all()


# ---- Theorem 2: descent from anywhere


@pytest.mark.statement("A Thm 2")
@pytest.mark.parametrize("loss", LOSSES)
def test_with_one_input_every_start_reaches_the_predicted_direction(loss):
    rng = np.random.default_rng(1)
    n_checked = 0
    for _ in range(100):
        data, v = scored_tokens(*two_level_scores(rng, 1, 4, 3))
        prediction = predict_limit(data, v, loss=loss)
        feasible = bool(globally_optimal_direction(data, v).is_feasible)
        assert (prediction.direction is not None) == feasible
        if not feasible:
            continue
        n_checked += 1
        starts = 5 * rng.standard_normal((12, 3))
        run = ml.descend(data.repeat(12), v, loss=loss, optimizer=ml.NormalizedGD(0.2), n_steps=20_000, start=starts)
        assert ml.correlation(run.final, prediction.direction).min() > ALIGNED
        assert run.norm.min() > 500
        if n_checked == 3:
            break
    assert n_checked == 3


@pytest.mark.statement("A Thm 2")
def test_plain_descent_diverges_like_a_logarithm_over_the_margin():
    rng = np.random.default_rng(2)
    for _ in range(3):
        data, v = scored_tokens(*two_level_scores(rng, 1, 3, 4))
        margin = globally_optimal_direction(data, v).margin
        step = ml.GradientDescent(smoothness(data, v).largest_step)
        prediction = predict_limit(data, v, optimizer=step)
        assert prediction.verdicts[1].applies
        early, late = (
            ml.descend(data, v, optimizer=step, n_steps=n, start=np.ones(4)).final for n in (30_000, 300_000)
        )
        assert (late - early) @ prediction.direction == pytest.approx(np.log(10.0) / margin, rel=LOG_RATE, abs=ROUNDING)
        assert ml.correlation(late, prediction.direction) > max(0.85, ml.correlation(early, prediction.direction))


@pytest.mark.statement("A Thm 2")
def test_several_inputs_have_a_diverging_norm_and_no_certain_direction():
    rng = np.random.default_rng(3)
    for _ in range(4):
        data, v = scored_tokens(*two_level_scores(rng, 3, 3, 6))
        prediction = predict_limit(data, v)
        assert prediction.verdicts[1].applies
        assert prediction.verdicts[1].conclusion == Fact("conclusion.a_thm_2", {"n": 3, "case": "several"})
        assert prediction.direction is None
        run = ml.descend(
            data.repeat(6), v, optimizer=ml.NormalizedGD(0.1), n_steps=5_000, start=3 * rng.standard_normal((6, 6))
        )
        assert run.norm.min() > 100


@pytest.mark.statement("A Thm 2")
def test_with_several_inputs_two_starts_can_have_two_limits():
    found = False
    rng = np.random.default_rng(4)
    for _ in range(200):
        data, v = scored_tokens(*two_level_scores(rng, 2, 3, 2))
        prediction = predict_limit(data, v)
        if prediction.verdicts[1].applies and len(prediction.candidates.labels) > 1:
            starts = 30.0 * prediction.candidates.directions
            run = ml.descend(data.repeat(len(starts)), v, optimizer=ml.NormalizedGD(0.1), n_steps=20_000, start=starts)
            reached = ml.correlation(run.final, prediction.candidates.directions)
            found = bool((reached > ALIGNED).all())
            break
    assert found  # so n = 1 cannot be dropped from the theorem


@pytest.mark.statement("A Thm 2")
def test_without_assumption_b_starts_reach_other_directions_or_none():
    data, v = figure_1b()
    prediction = predict_limit(data, v)
    assert not prediction.verdicts[1].applies
    assert prediction.direction is None
    starts = np.array([[0.0, y] for y in (1.0, 0.5, 0.0, -0.5, -1.0, -1.5)])
    run = ml.descend(data.repeat(6), v, optimizer=ml.NormalizedGD(0.1), n_steps=20_000, start=starts)
    reached = np.array(
        [[ml.correlation(p, one) > ALIGNED for one in prediction.candidates.directions] for p in run.final]
    )
    assert reached.sum(axis=0).tolist() == [4, 2]
    # a second input whose near token scores low: descent on the line stays at a finite norm although the optimum is separable
    keys = [np.array([[0.0], [0.5]]), np.array([[0.0], [1.0], [3.0]])]
    scores = [np.array([0.0, 0.3]), np.array([0.9, -1.0, 1.0])]
    X = [np.hstack([k, s[:, None]]) for k, s in zip(keys, scores, strict=True)]
    line, head = ml.TokenDataset(X, [1, 1], K=keys), np.array([0.0, 1.0])
    stuck = predict_limit(line, head)
    assert stuck.verdicts[0].applies
    assert not stuck.verdicts[1].applies
    step = ml.GradientDescent(1.0 / smoothness(line, head).from_keys)
    early, late = (ml.descend(line, head, optimizer=step, n_steps=n, start=[-1.0]) for n in (200_000, 400_000))
    assert late.norm == pytest.approx(float(early.norm), rel=FIXED_POINT, abs=ROUNDING)
    assert late.norm < 10


@pytest.mark.statement("A Thm 2")
def test_without_a_separable_optimum_the_norm_stays_finite():
    data, v = scored_tokens([[[1.0], [0.0]], [[2.0], [0.0]]], [[1.0, 0.0], [0.0, 1.0]])
    prediction = predict_limit(data, v)
    assert [check.holds for check in prediction.verdicts[1].conditions] == [True, True, False]
    run = ml.descend(
        data, v, optimizer=ml.GradientDescent(smoothness(data, v).largest_step), n_steps=50_000, start=[1.0]
    )
    assert run.norm < 5


# ---- Theorem 3: descent from a cone


def within_the_cone(data, v, cone, starts):
    """Where runs end whose steps are always a quarter as long as the cone is wide, at many times the starting norm."""
    width, many = np.sqrt(2 * cone.mu), data.repeat(len(starts))
    for _ in range(3):
        step = ml.NormalizedGD(0.25 * width * np.linalg.norm(starts, axis=-1).min())
        starts = ml.descend(many, v, optimizer=step, n_steps=int(16 / width), start=starts).final
    return starts


@pytest.mark.statement("A Thm 3")
def test_every_start_in_the_cone_reaches_its_axis():
    rng = np.random.default_rng(5)
    n_cones = 0
    for data, v, cone in cones(5, 22):
        ends = within_the_cone(data, v, cone, cone.sample(8, rng))
        assert in_cone(ends, cone.p, cone.mu / 4, 4 * cone.radius).all()
        n_cones += 1
    assert n_cones > 35


@pytest.mark.statement("A Thm 3")
def test_an_axis_whose_tokens_are_not_locally_optimal_is_left():
    rng = np.random.default_rng(6)
    n_left, n_tried = 0, 0
    for _ in range(8):
        data, v = problem(rng, 2, 3, 3)
        for selection in np.ndindex(3, 3):
            found = ml.token_optimality(data, v, np.array(selection))
            if found.is_feasible and not found.is_locally_optimal:
                run = ml.descend(data, v, optimizer=ml.NormalizedGD(0.1), n_steps=20_000, start=20 * found.solution.x)
                n_left += ml.correlation(run.final, found.direction) < ALIGNED
                n_tried += 1
    assert n_tried > 20
    assert n_left == n_tried


@pytest.mark.statement("A Thm 3")
def test_direction_and_norm_of_the_start_decide_the_limit():
    data, v = figure_1b()
    cone = ml.basin_cone(data, v, [1])
    off = unit(cone.sample(1, 0)[0])
    certain = predict_limit(data, v, start=1.01 * cone.proven_radius * off, optimizer=ml.GradientDescent(0.01))
    assert certain.verdicts[2].applies
    assert certain.details.basin == 1
    np.testing.assert_allclose(certain.direction, [1.0, 0.0], rtol=0.0, atol=ROUNDING)
    assert certain.reasons[0].numbers["citation"] == "A Thm 3"
    expected = predict_limit(data, v, start=1.01 * cone.radius * off)
    assert expected.direction is None
    assert expected.details.basin == 1
    assert expected.reasons == (Fact("reason.cone"),)
    outside = predict_limit(data, v, start=0.99 * cone.radius * off)
    assert outside.direction is outside.details.basin is None
    wide = predict_limit(data, v, start=cone.proven_radius * 10 * np.array([1.0, 0.1]))
    assert wide.direction is None
    assert wide.reasons[0].numbers["condition"].code == "condition.start_in_cone"
    low = predict_limit(data, v, start=[-1.0, -1.0])  # selects (0, 0), whose neighbours score higher
    assert low.reasons[0].numbers["condition"].code == "condition.locally_optimal_start"
    for step in (ml.GradientDescent(10.0), ml.NormalizedGD(0.1)):
        refused = predict_limit(data, v, start=1.01 * cone.proven_radius * off, optimizer=step)
        assert refused.direction is None
        assert not refused.verdicts[2].applies
    assert refused.reasons[0].code == "reason.observed"
    assert refused.reasons[0].numbers["limit"] == Fact("limit.selected", {"selected": "[1]"})
    np.testing.assert_allclose(refused.observed, [1.0, 0.0], rtol=0.0, atol=ROUNDING)


@pytest.mark.statement("A Thm 3")
def test_certain_limits_agree_with_small_steps():
    rng = np.random.default_rng(7)
    n_checked = 0
    for _ in range(6):
        data, v = problem(rng, 2, 3, 3)
        for selection in ml.locally_optimal_directions(data, v).selections[:2]:
            cone = ml.basin_cone(data, v, selection)
            start = 1.01 * cone.proven_radius * unit(cone.sample(4, rng)[2])
            prediction = predict_limit(data, v, start=start)
            np.testing.assert_array_equal(prediction.candidates.selections[prediction.details.basin], selection)
            end = within_the_cone(data, v, cone, start[None])[0]
            assert in_cone(end, prediction.direction, cone.mu / 4)
            n_checked += 1
    assert n_checked > 6


@pytest.mark.statement("A Thm 2", "A Thm 3")
def test_the_step_size_decides_whether_a_limit_is_certain():
    data, v = figure_1a()
    largest = smoothness(data, v).largest_step
    for start in (None, [0.0, 0.0], [3.0, -1.0]):  # with n = 1 every start will do
        unasked, plain, long, normalised = (
            predict_limit(data, v, start=start, optimizer=step)
            for step in (None, ml.GradientDescent(largest), ml.GradientDescent(2.0 * largest), ml.NormalizedGD(1.0))
        )
        limit = Fact("limit.gmm")
        asked = [one.reasons[0] for one in (unasked, plain, long, normalised)]
        assert [one.code for one in asked] == ["reason.certain", "reason.certain", "reason.steps", "reason.observed"]
        assert [one.numbers["limit"] for one in asked] == [limit] * 4
        assert [one.numbers.get("case") for one in asked[:2]] == ["up_to", "default"]
        for one in asked[2:]:
            assert one.numbers["log_largest_step"] == pytest.approx(np.log(largest), rel=ROUNDING, abs=ROUNDING)
        assert [one.direction is None for one in (unasked, plain, long, normalised)] == [False, False, True, True]
        assert [one.observed is None for one in (unasked, plain, long, normalised)] == [True, True, True, False]
        for one in (long, normalised):
            assert [check.name for check in one.verdicts[1].conditions if not check] == ["step size"]


# ---- the account


@pytest.mark.statement("A Thm 1", "A Thm 2", "A Thm 3")
def test_the_explanation_names_theorems_assumptions_and_candidates():
    data, v = figure_1b()
    text = str(predict_limit(data, v, start=[3.0, -1.0], optimizer=ml.GradientDescent(0.01)))
    for line in (
        "A Thm 1 applies: the regularisation path converges to the best direction.",
        "A Thm 2 does not apply.",
        "✗ A Assumption B: Within an input",
        "✓ step size: The step size 0.01",
        "Directions that may win (all of them):",
        "best: selects [0] with margin 1.005",
        "local: selects [1] with margin 1",
        "Not certain: A Thm 2 does not apply (A Assumption B), nor does A Thm 3.",
    ):
        assert line in text
    found = predict_limit(data, v)
    assert "\n" not in repr(found)
    many = found.candidates._replace(labels=("LMM",) * 13, selections=np.zeros((13, 1), dtype=int), margins=np.ones(13))
    assert str(many).count("local: selects [0]") == 10
    assert str(many).endswith("  and 3 more")


# ---- other risks


def test_a_risk_without_a_theorem_has_a_reason():
    curved = ml.AttentionRisk(figure_1a()[0], lambda x: x[..., 0])
    for risk, name, case in ((Quadratic(), "Quadratic", "default"), (curved, "AttentionRisk", "nonlinear")):
        found = predict(risk, start=[1.0, 1.0], optimizer=ml.GradientDescent(0.1))
        assert (found.verdicts, found.direction, found.path_direction) == ((), None, None)
        assert str(found) == found.why
        assert found.reasons[0].code == "reason.uncovered"
        assert (found.reasons[0].numbers["risk"], found.reasons[0].numbers["case"]) == (name, case)


@pytest.mark.statement("A Thm 1", "A Thm 2")
def test_the_matrix_of_a_fixed_query_follows_the_prediction_for_p():
    data, v = ml.TokenDataset([[[1.0, 0.2], [0.0, -1.0]]], [1.0]), np.array([1.0, 0.5])
    of_p, u = ml.AttentionRisk(data, v), np.array([3.0, 4.0])
    largest = float(smoothness(data, v).largest_step)
    for share, certain in ((0.99, True), (1.01, False)):
        plain = predict(of_p, optimizer=ml.GradientDescent(share * largest))
        found = predict(of_p.as_matrix(u), start=np.zeros((2, 2)), optimizer=ml.GradientDescent(share * largest / 25.0))
        assert (plain.direction is not None) == (found.direction is not None) == certain
    found = predict(of_p.as_matrix(u))
    np.testing.assert_allclose(found.direction, np.outer(u / 5.0, predict(of_p).direction), rtol=0.0, atol=ROUNDING)
    run = ml.descend(of_p.as_matrix(u), n_steps=3000)
    assert ml.correlation(run.final, found.direction, axes=2) > ALIGNED
    assert found.notes[0] == Fact("note.of_matrix")


# ---- Theorem 3 at other sizes, seeds and losses than Figure 9's


@pytest.mark.statement("A Thm 3", "A ATT-SVM")
@pytest.mark.parametrize(
    ("n", "T", "d", "seed"),
    [(1, 3, 2, 0), (2, 10, 8, 1), (8, 4, 60, 2), (10, 3, 30, 3), (3, 20, 100, 4), (4, 6, 50, 5)],
)
@pytest.mark.parametrize(
    "loss", [ml.Logistic(), ml.Exponential(), ml.CorrelationLoss()], ids=lambda one: type(one).__name__
)
def test_mean_correlation_on_random_data_is_high(n, T, d, seed, loss):
    data, v = ml.data.sphere_tokens(40, n, T, d, seed)
    run = ml.descend(data, v, loss=loss, n_steps=3000)
    found = ml.token_optimality(data, v, run.selected)
    chosen = np.take_along_axis(run.attention, run.selected[..., None], axis=-1)[..., 0]
    counted = (chosen.mean(axis=-1) >= 1 - 1e-5) & found.is_locally_optimal
    assert counted.sum() >= 10
    corr = ml.correlation(run.final, found.solution.x)[counted]
    assert corr.mean() >= DIRECTION_ON_RANDOM_DATA
    swapped = np.roll(found.solution.x[counted], 1, axis=0)
    assert ml.correlation(run.final[counted], swapped).mean() < 0.9  # another problem's direction does not pass
