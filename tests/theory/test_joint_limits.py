"""Theorems 5 and 6: label margins, Assumption C with proofs and counter-examples, predictions, and that joint paths and descent obey."""

from itertools import product

import numpy as np
import pytest
from scipy.optimize import nnls

import marginlens as ml
from marginlens.data import figure_3a, figure_3b
from marginlens.risk import softmax
from marginlens.theory import best_selections, check_assumption_c, label_margin
from marginlens_papers.claims.a.joint import head_radius
from random_problems import problem, ragged_problem
from refusals import refused
from tolerances import ALIGNED, CONDITIONED, ON_THE_GRID, ROUNDING

CHOSEN = [1, 1, 1]  # the second token of every input in Figure 3


def hull_distance(points):
    """Distance of the origin from the convex hull of points (n, d), by nonnegative least squares on the weights."""
    heavy = 1e6
    weights, _ = nnls(np.vstack([points.T, heavy * np.ones(len(points))]), np.append(np.zeros(points.shape[1]), heavy))
    return np.linalg.norm(points.T @ weights)


# ---- label margins


@pytest.mark.statement("A (SVM)")
def test_label_margin_is_the_distance_of_the_signed_tokens_from_the_origin():
    rng = np.random.default_rng(0)
    for _ in range(20):
        data, _ = problem(rng, 3, 3, 4)
        alpha = rng.integers(3, size=3)
        found = label_margin(data, alpha)
        signed = data.y[:, None] * data.X[np.arange(3), alpha]
        assert found.margin == pytest.approx(hull_distance(signed), abs=CONDITIONED, rel=0.0)
        assert np.all(found.slack[found.support] == 0.0)
        assert np.all(found.slack[~found.support] > 0.0)
        assert signed @ found.head.direction - found.margin == pytest.approx(found.slack, abs=CONDITIONED, rel=0.0)


def two_inputs(other, *keys):
    """A support vector that must not mix in its second token, and an input far from the margin, (5, 0) or `other`; with these keys."""
    return ml.TokenDataset([[(1.0, 0.0), (0.0, 0.0)], [(5.0, 0.0), (other, 0.0)]], [1.0, 1.0], K=list(keys))


@pytest.mark.statement("A Assumption C")
def test_assumption_c_fails_only_for_a_free_token_that_fades_last():
    last, first = (two_inputs(4.0, [[1.0], [0.0]], [[speed], [0.0]]) for speed in (0.5, 1.5))
    assert check_assumption_c(first, [0, 0], n_samples=200).holds
    found = check_assumption_c(last, [0, 0], n_samples=200)
    assert not found.holds
    lost, free = softmax(last, found.counterexample)[:, 1]
    assert lost < 1e-6 * free  # the label margin falls by `lost` alone


@pytest.mark.statement("A Thm 6")
def test_the_relaxed_direction_must_select_strictly_outside_the_support():
    support = [(1.0, 0.0), (0.0, 0.0)]
    tight = ml.predict_limit(two_inputs(0.5, support, [(-1.0, 1.0), (0.0, 0.0)]))  # p^relax = (1, 1) leaves no room
    assert tight.details.p_direction is None
    failed = {
        check.code: check.numbers["case"]
        for verdict in tight.verdicts
        for check in verdict.failed
        if hasattr(check, "code")
    }
    assert failed["requirement.selected_in_the_limit"] == "default"
    for little in (0.1, 1e-6):
        room = ml.predict_limit(two_inputs(0.5, support, [(little, 1.0), (0.0, 0.0)]))
        assert room.details.p_direction == pytest.approx([1.0, 0.0], abs=ROUNDING, rel=0.0)
    # the other token tells labels apart as well
    either = ml.predict_limit(two_inputs(4.0, support, [(-1.0, 1.0), (0.0, 0.0)]))
    assert either.details.selected.tolist() == [0, 1]
    assert either.details.p_direction == pytest.approx([1.0, 0.0], abs=ROUNDING, rel=0.0)


@pytest.mark.statement("A Assumption C")
def test_best_selections_agree_with_brute_force():
    rng = np.random.default_rng(1)
    for _ in range(10):
        data, _ = ragged_problem(rng, 3, 4, 3)
        found = best_selections(data)
        margins = {
            alpha: label_margin(data, alpha).margin for alpha in product(*(range(int(size)) for size in data.lengths))
        }
        top = max(margins.values())
        assert found.complete
        assert found.margin == pytest.approx(top, abs=ROUNDING, rel=0.0)
        best = {alpha for alpha, margin in margins.items() if margin >= top * (1 - CONDITIONED)}
        assert {tuple(alpha) for alpha in found.selections.tolist()} == best
        others = [margin for alpha, margin in margins.items() if alpha not in best]
        assert found.runner_up == pytest.approx(max(others, default=0.0), abs=ROUNDING, rel=0.0)
        climbed = best_selections(data, max_problems=1)
        assert not climbed.complete or data.lengths.prod() == 1
        assert climbed.margin <= top * (1 + ROUNDING)
        assert climbed.margin == pytest.approx(
            top, abs=ROUNDING, rel=0.0
        )  # three inputs: climbing from 64 selections finds it


# ---- Assumption C


@pytest.mark.statement("A Assumption C")
def test_the_papers_example_has_the_papers_constants():
    rng = np.random.default_rng(2)
    a, y = rng.standard_normal(4), np.array([1.0, -1.0, 1.0, -1.0])
    X = rng.standard_normal((4, 3, 4))
    X *= np.linalg.norm(a) * rng.uniform(0.2, 0.8, (4, 3, 1)) / np.linalg.norm(X, axis=-1, keepdims=True)
    X[:, 0] = y[:, None] * a
    found = check_assumption_c(ml.TokenDataset(X, y), [0] * 4)
    assert found
    assert found.proved
    assert found.numbers["margin"] == pytest.approx(np.linalg.norm(a), abs=ROUNDING, rel=0.0)
    nu = np.linalg.norm(a) - np.linalg.norm(X[:, 1:], axis=-1).max()
    assert found.numbers["proved_nu"] == pytest.approx(nu, abs=ROUNDING, rel=0.0)
    assert found.numbers["nu"] >= nu


@pytest.mark.statement("A Assumption C")
def test_proved_costs_bound_every_mixture_and_found_ones_are_attained():
    rng = np.random.default_rng(3)
    n_proved = 0
    for _ in range(100):
        data, _ = problem(rng, 2, 2, 4)
        alpha = best_selections(data).selections[0]
        found = check_assumption_c(data, alpha, n_samples=200)
        if not found.proved:
            continue
        n_proved += 1
        gamma, nu, proved = (found.numbers[name] for name in ("margin", "nu", "proved_nu"))
        assert 0.0 < proved <= nu * (1 + CONDITIONED)
        for p in rng.standard_normal((200, 4)) * 10.0 ** rng.uniform(-1, 1.5, (200, 1)):
            s = softmax(data, p)
            margin = hull_distance(data.y[:, None] * np.einsum("it,itd->id", s, data.X))
            mixed = 1.0 - s[np.arange(2), alpha].min()
            assert margin <= gamma - proved * mixed + CONDITIONED
        if n_proved == 3:
            break
    assert n_proved == 3


@pytest.mark.statement("A Assumption C")
def test_figure_3b_fails_for_all_inputs_and_holds_over_its_support_set():
    assert check_assumption_c(figure_3a(), CHOSEN).proved
    data = figure_3b()
    failed = check_assumption_c(data, CHOSEN)
    assert not failed
    assert failed.numbers["case"] == "default"
    costs = []
    for share in (0.3, 0.5):  # along the ray of the counter-example the cost of mixing fades before the mixing does
        s = softmax(data, share * failed.counterexample)
        assert np.argmax(s, axis=-1).tolist() == CHOSEN
        margin = hull_distance(data.y[:, None] * np.einsum("it,itd->id", s, data.X))
        costs.append((1.0 - margin) / s[:, 0].max())
    assert costs[1] < 0.1 * costs[0] < 1e-2
    over = check_assumption_c(data, CHOSEN, inputs=label_margin(data, CHOSEN).support)
    assert over.proved
    assert over.numbers["label_margin"].numbers["case"] == "support"


# ---- predictions


@pytest.mark.statement("A Thm 5", "A Thm 6", "A Eq. (10)")
@pytest.mark.parametrize(
    ("data", "applying", "support", "goal", "growth"),
    [
        (figure_3a(), ["A Thm 5", "A Thm 6"], [0, 1, 2], (4 / 3, 1 / 3), 0.0),
        (figure_3b(), ["A Thm 6"], [0, 1], (1.0, 0.0), 1.0),
    ],
    ids=["3a", "3b"],
)
def test_the_figures_are_predicted(data, applying, support, goal, growth):
    found = ml.predict_limit(data)
    assert [one.citation for one in found.verdicts if one.applies] == applying
    assert found.details.selected.tolist() == CHOSEN
    assert np.flatnonzero(found.details.support).tolist() == support
    assert ml.correlation(found.details.p_direction, np.array(goal)) == pytest.approx(1.0, abs=ROUNDING, rel=0.0)
    assert found.details.v_direction == pytest.approx([0.0, 1.0], abs=ROUNDING, rel=0.0)
    assert found.details.growth == pytest.approx(growth, abs=ROUNDING, rel=0.0)
    assert "Certain" in str(found)
    assert f"support vectors {support}" in str(found)
    run = ml.descend(ml.JointRisk(data), n_steps=10_000, start=([-1.0, 0.0], [0.0, -1.0])).split()
    assert ml.correlation(run.p, found.details.p_direction) > ALIGNED
    assert ml.correlation(run.v, found.details.v_direction) > ALIGNED


@pytest.mark.statement("A Thm 5", "A Thm 6")
def test_joint_paths_reach_their_predictions():
    rng, seen = np.random.default_rng(1), {"A Thm 5": 0, "A Thm 6": 0}
    for _ in range(200):
        data, _ = problem(rng, 2, 2, int(rng.integers(2, 5)))
        found = ml.predict_limit(data)
        if found.details.p_direction is None or found.details.growth > 4.0:
            continue
        R = np.array([10.0, 300.0]) / found.details.p_relax.margin
        path = ml.path(ml.JointRisk(data), (1.5 * max(found.details.growth, 0.7) * R, R), restarts=8)
        assert path.kkt_residual().max() < CONDITIONED
        assert path.selected[-1].tolist() == found.details.selected.tolist()
        assert ml.correlation(path.split().p[-1], found.details.p_direction) > ALIGNED
        assert ml.correlation(path.split().v[-1], found.details.v_direction) > ALIGNED
        for verdict in found.verdicts[:2]:  # those on the path
            seen[verdict.citation] += verdict.applies
        if min(seen.values()) >= 2:
            break
    assert min(seen.values()) >= 2


@pytest.mark.statement("A Thm 6")
@pytest.mark.parametrize("ratio", [0.8, 1.25])
def test_the_head_must_outgrow_the_attention_for_the_relaxed_direction(ratio):
    """With r = κR the path maximises the smallest of each input's logit margin plus κ times its slack; κ = 1 is the threshold here."""
    data = figure_3b()
    assert ml.predict_limit(data).details.growth == pytest.approx(1.0, abs=ROUNDING, rel=0.0)
    R = np.array([10.0, 100.0, 1e4])
    path = ml.path(ml.JointRisk(data), (ratio * R, R), restarts=4)
    angles = np.linspace(-np.pi, np.pi, 200_001)
    directions = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    margins = directions @ data.X[:, 1].T + ratio * label_margin(data, CHOSEN).slack
    expected = directions[np.argmax(margins.min(axis=-1))]
    assert np.linalg.norm(path.split().p[-1] / path.radii[-1, 1] - expected) < ON_THE_GRID
    reaches = ml.correlation(path.split().p[-1], np.array([1.0, 0.0])) > ALIGNED
    assert reaches == (ratio > 1.0)


@pytest.mark.statement("A Thm 6", "A Eq. (10)")
def test_a_bounded_head_lets_attention_reach_max_margin():
    data = figure_3b()
    path = ml.path(ml.JointRisk(data), (5.0, np.array([10.0, 1e4])), restarts=4)
    assert ml.correlation(path.split().p[-1], ml.att_svm(data, CHOSEN).x) > ALIGNED


def test_predictions_without_a_head_have_a_reason():
    data = figure_3b()
    wrong_loss = ml.predict_limit(data, loss=ml.Exponential())
    assert wrong_loss.details.p_direction is None
    assert wrong_loss.verdicts[0].failed[0].code == "requirement.logistic_loss"
    assert wrong_loss.reasons[0].code == "reason.condition"
    hopeless = ml.TokenDataset([[(1.0, 0.0), (0.5, 0.0)], [(1.0, 0.0), (0.5, 0.0)]], [1.0, -1.0])
    found = ml.predict_limit(hopeless)
    assert found.details.p_direction is None
    assert "requirement.labels_separable" in [getattr(check, "code", "") for check in found.verdicts[0].failed]
    batch = ml.predict_limit(data.repeat(2))
    assert [one.details.selected.tolist() for one in batch] == [CHOSEN] * 2
    with refused("start[0]"):
        ml.predict_limit(data, start=[0.0, 1.0])
    alone = ml.predict_limit(ml.TokenDataset([[(1.0, 0.0)], [(0.0, 1.0)]], [1.0, -1.0]))
    assert alone.verdicts[0].failed[0].numbers["case"] == "trivial"
    crowded = ml.predict_limit(data, max_problems=2)
    assert not crowded.details.best.complete
    assert crowded.notes[0].numbers["case"] == "climbed"


# ---- a head that stays bounded while R grows


def three_inputs():
    """Theorem 6 applies for α = (0, 0, 0); at a small r the second token of the first input, (0, 3), has the lower risk."""
    tokens = [[[1.0, 0.0], [0.0, 3.0]], [[1.0, 0.0]], [[2.0, 0.0], [0.0, 0.0]]]
    keys = [[[1.0, 0.0], [0.0, 0.0]], [[0.0, 0.0]], [[0.5, 0.5], [0.0, 0.0]]]
    return ml.TokenDataset(tokens, [1.0, 1.0, 1.0], K=keys)


def risk_of_selection(data, selected, r):
    """The smallest mean logistic loss of a head in the plane on selected tokens: over a grid of directions at full norm."""
    angles = np.linspace(-np.pi, np.pi, 20_001)
    rows = data.y[:, None] * data.X[np.arange(data.n_inputs), selected]
    return np.logaddexp(0.0, -r * np.stack([np.cos(angles), np.sin(angles)], axis=-1) @ rows.T).mean(axis=-1).min()


@pytest.mark.statement("A Thm 5", "A Thm 6")
def test_a_small_head_selects_other_tokens_at_any_attention_norm():
    data = three_inputs()
    found = head_radius(data, [0, 0, 0])
    assert ml.predict_limit(data).details.selected.tolist() == [0, 0, 0]
    assert found.rival.tolist() == [1, 0, 0]
    for r, rival_wins in ((0.99 * found.refuted, True), (1.01 * found.refuted, False)):
        assert (risk_of_selection(data, [1, 0, 0], r) < risk_of_selection(data, [0, 0, 0], r)) == rival_wins
        path = ml.path(ml.JointRisk(data), (r, 1e3), restarts=4)
        assert path.selected[0].tolist() == ([1, 0, 0] if rival_wins else [0, 0, 0])
    assert found.refuted < found.radius
    figure = head_radius(figure_3b(), CHOSEN)
    assert figure.rival is None
    assert figure.refuted == 0.0


@pytest.mark.statement("A Thm 5", "A Thm 6")
def test_attention_beyond_the_head_radius_reaches_max_margin():
    rng, n_proved = np.random.default_rng(11), 0
    for k in range(100):
        data = problem(rng, 2, 2, 5)[0] if k else figure_3b()
        prediction = ml.predict_limit(data)
        if prediction.details.p_direction is None or not np.isfinite(prediction.details.head_radius):
            continue
        found = head_radius(data, prediction.details.selected)
        if not found.proved:
            continue
        assert f"for every r ≥ {found.radius:.4g}" in prediction.why
        n_proved += 1
        R = 300.0 / prediction.details.p_mm.margin + 100.0 * found.radius
        path = ml.path(ml.JointRisk(data), (found.radius, R), restarts=4)
        assert path.selected[0].tolist() == prediction.details.selected.tolist()
        assert ml.correlation(path.split().p[0], prediction.details.p_mm.x) > ALIGNED
        if n_proved == 2:
            break
    assert n_proved == 2
