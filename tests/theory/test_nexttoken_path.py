"""The regularisation path of next-token prediction: minima over balls, and the two limits they have."""

from dataclasses import dataclass, replace
from decimal import Decimal

import numpy as np
import pytest
from scipy.optimize import minimize

import marginlens as ml
import tolerances
from decimal_oracle import long_decimals
from marginlens.data.paper_examples import figure_2
from marginlens.data.sequence_generators import acyclic_sequences, cyclic_sequences
from marginlens.dynamics.paths.split_risk import SplitRisk
from marginlens.losses.next_token import LabelLoss
from marginlens.risk.next_token_heads import as_head
from marginlens_papers.claims.c.next_token_paths import path_law
from plain_losses import Decay, Linear
from random_problems import feasible_sequences
from refusals import refused


@dataclass(frozen=True)
class Parabola(LabelLoss):
    """ℓ(u) = (2 - u)²."""

    def scalar(self, u):
        return (2.0 - u) ** 2, 2.0 * (u - 2.0), np.full_like(u, 2.0)


def plain_risk(ds, W, head, loss):
    """The risk from the softmax of every sequence."""
    s, first = ds.attention(W), ds.offsets[:-1]
    scores = ds.is_label if head is None else (head @ ds.E.T)[np.repeat(ds.labels, ds.lengths), ds.tokens]
    outputs = np.add.reduceat(s * scores, first)
    return float(np.mean(loss.scalar(outputs)[0]))


def brute_force(ds, radius, head, loss, starts):
    """The smallest risk in a ball that a general-purpose solver finds, and where."""
    d = ds.d_model
    room = {"type": "ineq", "fun": lambda w: 1.0 - w @ w / radius**2, "jac": lambda w: -2.0 * w / radius**2}
    best = (np.inf, None)
    for start in starts:
        run = minimize(
            lambda w: plain_risk(ds, w.reshape(d, d), head, loss),
            start.reshape(-1),
            constraints=[room],
            method="SLSQP",
            options={"ftol": 1e-13, "maxiter": 300},
        )
        point = run.x * min(1.0, radius / np.linalg.norm(run.x))
        best = min(best, (plain_risk(ds, point.reshape(d, d), head, loss), point.reshape(d, d)), key=lambda one: one[0])
    return best


SMALL = [  # data of K, d, n, T, the head over E, the loss, radii
    *((generator, (5, 3, 5, 4), seed, None, ml.LogLoss(), (0.5, 2.0, 8.0))
      for generator, seed in ((acyclic_sequences, 1), (cyclic_sequences, 2), (cyclic_sequences, 3))),
    *((acyclic_sequences, (5, 3, 4, 4), 4, 0.5, loss, (1.0, 6.0)) for loss in (Linear(), ml.SquaredLoss())),
]  # fmt: skip


@pytest.mark.statement("C Algo-RP")
@pytest.mark.parametrize(("generator", "shape", "seed", "scale", "loss", "radii"), SMALL)
def test_paths_are_global_on_small_problems_by_a_general_solver(generator, shape, seed, scale, loss, radii):
    ds, _ = feasible_sequences(generator, shape, seed)
    head, rng = None if scale is None else scale * ds.E, np.random.default_rng(0)
    path = ml.path(ds, radii, head=head, loss=loss, restarts=8)
    for k, radius in enumerate(radii):
        starts = [np.zeros(9)] if head is None else rng.standard_normal((6, 9)) * radius / 3.0
        value, point = brute_force(ds, radius, head, loss, starts)
        assert path.value()[k] == pytest.approx(
            plain_risk(ds, path.points[k], head, loss), abs=tolerances.ROUNDING, rel=0.0
        )
        assert path.value()[k] <= value + tolerances.ROUNDING
        assert value - path.value()[k] < tolerances.PATH_BRUTE_FORCE
        if head is None:  # convex: there is one minimum
            assert np.linalg.norm(path.points[k] - point) < 1e-2 * radius
            assert path.norm[k] == pytest.approx(radius, rel=tolerances.SIX_DIGITS, abs=tolerances.ROUNDING)
    assert path.kkt_residual().max() < tolerances.PATH_KKT


def log_conditions(ds, W, radius, project):
    """The conditions of a minimum of the log-loss in a ball at W, by the definition of `kkt_residual`."""
    s, owner = ds.attention(W), ds.sample
    rows = np.einsum("td,te->tde", ds.E[ds.tokens] - ds.E[ds.labels[owner]], ds.E[ds.last[owner]])
    weights = s / len(ds)
    slope = np.einsum("t,tde->de", weights, rows)
    parts = [lambda M: M - project(M), project]
    outside = parts[0](W)
    binds = np.linalg.norm(W) >= radius * (1.0 - 1e-9)
    nu = max(0.0, -float(np.sum(slope * outside)) / float(np.sum(outside**2))) if binds else 0.0
    return max(
        np.linalg.norm(part(slope + nu * W)) / sum(w * np.linalg.norm(part(row)) for w, row in zip(weights, rows, strict=True))
        for part in parts
    )  # fmt: skip


@pytest.mark.statement("C Algo-RP")
@pytest.mark.parametrize("where", ["opposite", "inside", "turned along S_cyc", "turned across S_cyc"])
def test_the_residual_of_a_nonminimal_point_is_its_kkt_violation(where):
    ds, _ = feasible_sequences(cyclic_sequences, (5, 6, 6, 4), 3)
    path = ml.path(ds, [3.0])
    c, m = np.stack(path._state.points), path._search.split_risk.n_cyclic
    if where == "opposite":
        c = -c
    elif where == "inside":
        c = 0.5 * c
    else:
        c[:, 0 if where == "turned along S_cyc" else m] += 1.0
        c *= 3.0 / np.linalg.norm(c)
    moved = replace(path, _state=path._state._replace(points=tuple(c)))
    expected = log_conditions(ds, path._search.split_risk.matrix(c[0]), 3.0, ml.cyclic_correction(ds).subspace.project)
    assert moved.kkt_residual()[0] == pytest.approx(expected, rel=1e-9, abs=tolerances.ROUNDING)
    assert expected > 1e-3


def decimal_slope(ds, graphs, inside, outside):
    """The part across S_cyc of the log-loss's gradient at one-hot data, in 60 digits; nothing in it cancels.

    Each sample moves weight from the tokens its label dominates to the label's whole component, in equal parts.
    """
    slope = [[Decimal(0)] * ds.n_vocabulary for _ in range(ds.n_vocabulary)]
    for i in range(len(ds)):
        ids, label = ds[i]
        k, graph = int(ds.last[i]), graphs[int(ds.last[i])]
        members = graph.components[graph.component(label)]
        lower = [x for x in ids if x not in members]
        weights = [(Decimal(inside[x][k]) + Decimal(outside[x][k])).exp() for x in ids]
        for x in lower:
            share = (Decimal(inside[x][k]) + Decimal(outside[x][k])).exp() / sum(weights) / len(ds)
            below = graph.components[graph.component(x)]
            for j in below:
                slope[j][k] += share / len(below)
            for j in members:
                slope[j][k] -= share / len(members)
    return slope


@pytest.mark.statement("C Algo-RP")
@pytest.mark.parametrize("height", [30.0, 2000.0])
def test_path_is_stationary_in_sixty_digits(height):
    ds = figure_2()
    graphs = ml.priority_graphs(ds)
    path = ml.path(ds, [height / ml.graph_svm(ds.E, graphs).margin])
    with long_decimals(60):
        slope = decimal_slope(ds, graphs, *(part.tolist() for part in (path.split().cyclic[0], path.split().strict[0])))
        largest = max(abs(value) for row in slope for value in row)
        across = np.array([[float(value / largest) for value in row] for row in slope])
        log = float(largest.ln())
    direction = path.split().strict[0] / np.linalg.norm(path.split().strict[0])
    assert log == pytest.approx(-height, abs=5.0, rel=0.0)
    assert np.linalg.norm(across + np.linalg.norm(across) * direction) < tolerances.PATH_KKT * np.linalg.norm(across)


@pytest.mark.statement("C Thm 1")
@pytest.mark.parametrize(("shape", "head", "loss"), [
    ((8, 8, 4, 6), None, ml.LogLoss()),
    ((9, 5, 5, 6), None, ml.LogLoss()),
    ((6, 4, 4, 5), 1.0, Linear()),
    ((6, 6, 4, 5), 0.5, ml.SquaredLoss()),
])  # fmt: skip
def test_acyclic_path_turns_into_the_max_margin_direction(shape, head, loss):
    ds, limit = feasible_sequences(acyclic_sequences, shape, 5)
    head = None if head is None else head * ds.E
    path = ml.path(ds, np.array([1e2, 1e3, 1e4]) / limit.margin, head=head, loss=loss, restarts=1)
    distance = path.distance(limit.x)
    assert np.all(np.diff(np.log(distance)) / np.log(10.0) < -0.8)
    assert distance[-1] < 10.0 * tolerances.PATH_OFFSET
    assert path.correlation(limit.x)[-1] > 0.999
    assert path.log_excess[-1] == pytest.approx(-1e4, rel=0.01, abs=tolerances.ROUNDING)
    assert np.all(np.diff(path.log_excess) < 0.0)
    assert path.kkt_residual().max() < tolerances.PATH_KKT
    assert not np.any(path.split().cyclic)


@pytest.mark.statement("C Thm 2")
@pytest.mark.parametrize(("shape", "seed"), [((6, 8, 6, 4), 6), ((8, 6, 10, 5), 7), ((7, 5, 9, 4), 8)])
def test_path_has_the_two_limits_of_cyclic_data(shape, seed):
    ds, limit = feasible_sequences(cyclic_sequences, shape, seed)
    heights = np.array([4.0, 8.0, 12.0, 100.0, 1e4])
    path = ml.path(ds, heights / limit.margin)
    correction = ml.cyclic_correction(ds).x
    gap = np.linalg.norm(path.split().cyclic - correction, axis=(1, 2))
    rate = np.diff(np.log(gap[:3])) / np.diff(heights[:3])
    assert np.all((rate > -1.4) & (rate < -0.7))  # like e^(-R · margin)
    assert gap[-1] < tolerances.CYCLIC_LIMIT * max(1.0, np.linalg.norm(correction))
    assert path.correlation(limit.x)[-1] > 0.999
    assert path.distance(limit.x)[-1] < 10.0 * tolerances.PATH_OFFSET
    assert path.kkt_residual().max() < tolerances.PATH_KKT
    assert path.points == pytest.approx(path.split().cyclic + path.split().strict, rel=1e-12, abs=1e-9)
    whole = plain_risk(ds, 40.0 * limit.x + correction, None, ml.LogLoss())  # the infimum to sixteen digits
    assert np.exp(path.log_excess[:2]) == pytest.approx(path.value()[:2] - whole, rel=1e-6, abs=tolerances.ROUNDING)


@pytest.mark.statement("C Lemma 4", "C Eq. (11)")
def test_path_with_any_cyclic_part_turns_into_the_same_direction():
    ds, limit = feasible_sequences(cyclic_sequences, (6, 6, 8, 4), 9)
    basis = ml.cyclic_correction(ds).basis
    inside = np.tensordot(np.random.default_rng(1).normal(size=len(basis)) * 2.0, basis, axes=1)
    radii = np.array([1.0, 100.0, 1e4]) / limit.margin
    path = ml.path(ds, radii, region=ml.dynamics.CyclicPart(inside))
    assert path.split().cyclic == pytest.approx(np.stack([inside] * 3), abs=1e-12, rel=0.0)
    outside = path.split().strict / np.linalg.norm(path.split().strict, axis=(1, 2), keepdims=True)
    assert np.linalg.norm(path.split().strict, axis=(1, 2)) == pytest.approx(
        radii, rel=tolerances.SIX_DIGITS, abs=tolerances.ROUNDING
    )
    assert np.linalg.norm(outside[-1] - limit.x * limit.margin) < 10.0 * tolerances.PATH_OFFSET
    assert path.kkt_residual().max() < tolerances.PATH_KKT
    free = ml.path(ds, [np.hypot(np.linalg.norm(inside), radii[0])])
    assert free.value()[0] < path.value()[0] - 1e-3  # this cyclic part is not the best
    with refused("W"):
        ml.path(ds, radii, region=ml.dynamics.CyclicPart(inside + 1e-6 * limit.x))
    with refused("path"):
        path_law(path)


@pytest.mark.statement("C Algo-RP")
def test_a_ball_around_the_correction_does_not_bind_cyclic_data():
    ds = ml.SequenceDataset([[0, 1], [0, 1], [1, 0, 1], [0, 1]], [0, 0, 1, 1], np.array([[1.0, 0.2], [0.3, 1.0]]))
    correction = ml.cyclic_correction(ds).x
    length = float(np.linalg.norm(correction))
    path = ml.path(ds, np.array([0.5, 2.0, 50.0]) * length)
    assert ml.graph_svm(ds).status is ml.Status.TRIVIAL
    assert path.norm == pytest.approx(
        [0.5 * length, length, length], rel=tolerances.SIX_DIGITS, abs=tolerances.ROUNDING
    )
    assert path.points[1:] == pytest.approx(np.stack([correction] * 2), abs=1e-9, rel=0.0)
    assert path.distance(correction) == pytest.approx([0.0, 0.5, 0.98], abs=1e-9, rel=0.0)  # of W/R, not of W/‖W‖
    assert path.kkt_residual().max() < tolerances.PATH_KKT
    assert "Path(3 radii" in repr(path)


@pytest.mark.statement("C Algo-RP")
def test_a_path_without_choices_stays_at_zero():
    for sequences, labels in ([[[0], [1, 1]], [0, 1]], [[[0, 1, 1], [1, 0, 1]], [0, 1]]):
        ds = ml.SequenceDataset(sequences, labels, np.array([[1.0, 0.0], [0.0, 0.0]]))
        path = ml.path(ds, [0.5, 5.0])
        assert ml.graph_svm(ds).status is ml.Status.TRIVIAL
        assert not path.points.any()
        assert not ml.cyclic_correction(ds).x.any()


@pytest.mark.statement("C Algo-RP")
def test_infeasible_data_leave_the_infimum_unknown():
    E = np.array([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])  # the third lies between the others
    ds = ml.SequenceDataset([[0, 2, 2], [1, 2, 2], [0, 2]], [2, 2, 2], E)
    path = ml.path(ds, [1.0, 100.0])
    assert ml.graph_svm(ds).status is ml.Status.INFEASIBLE
    assert np.isnan(path.log_excess).all()
    assert path.kkt_residual().max() < tolerances.PATH_KKT
    value, _ = brute_force(ds, 1.0, None, ml.LogLoss(), [np.zeros(4)])
    assert path.value()[0] == pytest.approx(value, abs=tolerances.PATH_BRUTE_FORCE, rel=0.0)


@pytest.mark.statement("C Lemma 1")
@pytest.mark.parametrize(("head", "loss"), [(None, ml.LogLoss()), (0.5, ml.SquaredLoss()), (1.0, Linear())])
def test_excess_risk_of_acyclic_data_is_positive_and_falls_like_the_margin(head, loss):
    ds, limit = feasible_sequences(acyclic_sequences, (7, 5, 5, 5), 10)
    head = None if head is None else head * ds.E
    risk = SplitRisk(ds, ml.priority_graphs(ds), as_head(ds, head).table, loss)
    W = np.random.default_rng(0).standard_normal((40, 5, 5)) * np.geomspace(0.1, 300.0, 40)[:, None, None]
    logs = risk.log_tail(risk.coordinates(W))
    assert np.isfinite(logs).all()
    own = np.ones(len(ds)) if head is None else np.sum(head * ds.E, axis=1)[ds.labels]
    smallest = float(np.mean(loss.scalar(own)[0]))  # L*
    for one, log in zip(W[:20], logs, strict=False):
        assert plain_risk(ds, one, head, loss) - smallest == pytest.approx(
            np.exp(log), rel=1e-9, abs=tolerances.ROUNDING
        )
    heights = np.array([1e3, 1e4, 1e5])
    along = risk.log_tail(heights[:, None] * risk.coordinates(limit.x))
    assert np.diff(along) / np.diff(heights) == pytest.approx(-1.0, abs=1e-4, rel=0.0)
    heights = np.concatenate([[10.0, 20.0, 30.0], heights])  # from where two risks may be subtracted to where not
    along = risk.log_tail(heights[:, None] * risk.coordinates(limit.x))
    for one, log in zip(heights, along, strict=True):
        excess = ml.NextTokenRisk(ds, head=head, loss=loss).excess(one * limit.x)
        assert (excess.sign, float(excess.log)) == (1.0, pytest.approx(log, rel=1e-12, abs=tolerances.ROUNDING))


def error_like_one_over_radius(law):
    """The distance of what remains of the path to its offset, which falls with the radius as the law's deviation does."""
    error = np.linalg.norm(law.remainder() - law.offset, axis=(1, 2))
    for values in (law.deviation(), error):
        assert np.all(np.abs(np.diff(np.log10(values)) + 1.0) < 0.2)
    return error


@pytest.mark.statement("X O")
@pytest.mark.parametrize(
    ("generator", "seed"), [(acyclic_sequences, 11), (cyclic_sequences, 12), (cyclic_sequences, 13)]
)
def test_residual_attention_of_the_path_is_the_dual_and_fixes_its_offset(generator, seed):
    ds, limit = feasible_sequences(generator, (6, 8, 6, 4), seed)
    path = ml.path(ds, np.array([1e3, 1e4, 1e5]) / limit.margin)
    law = path_law(path)
    assert law.holds
    assert np.sum(law.multipliers) == pytest.approx(1.0, rel=tolerances.SIX_DIGITS, abs=tolerances.ROUNDING)
    assert error_like_one_over_radius(law)[-1] < 1e-3 * np.linalg.norm(law.offset)
    space = ml.cyclic_correction(ds).subspace
    assert np.linalg.norm(space.project(law.offset)) < tolerances.ROUNDING * np.linalg.norm(law.offset)
    assert abs(np.sum(law.offset * limit.x)) < tolerances.ROUNDING * np.linalg.norm(law.offset) * np.linalg.norm(
        limit.x
    )


@pytest.mark.statement("X O")
@pytest.mark.parametrize("loss", [Linear(), ml.SquaredLoss()], ids=lambda one: type(one).__name__)
def test_the_law_weights_rows_by_slopes_and_scores(loss):
    ds, limit = feasible_sequences(acyclic_sequences, (6, 8, 6, 4), 11)
    law = path_law(ml.path(ds, np.array([1e3, 1e4]) / limit.margin, head=0.5 * ds.E, loss=loss, restarts=0))
    error_like_one_over_radius(law)


@pytest.mark.statement("X O")
def test_the_law_of_dependent_rows_picks_one_dual_solution():
    E = np.array([[0.0, 0.0], [-1.0, 1.0], [-1.0, -1.0], [-1.0, 0.0]])
    ds = ml.SequenceDataset([[0, 1, 3]] * 4 + [[0, 2, 3]], [0] * 5, E)  # token 3 is in the middle of tokens 1 and 2
    path = ml.path(ds, np.array([1e3, 1e4, 1e5]))
    law = path_law(path)
    assert len(law.rows) == 3
    assert law.holds
    # a dual solution that the path does not have
    assert ml.graph_svm(ds).multipliers.min() == pytest.approx(0.0, abs=tolerances.ROUNDING, rel=0.0)
    np.testing.assert_allclose(np.sort(law.multipliers), [2 / 9, 2 / 9, 5 / 9], rtol=0.0, atol=tolerances.ROUNDING)
    error_like_one_over_radius(law)
    assert np.linalg.norm(law.offset) == pytest.approx(np.log(2.0), rel=tolerances.SIX_DIGITS, abs=tolerances.ROUNDING)


@pytest.mark.statement("X O")
def test_a_law_fails_for_an_active_row_without_gradient():
    ds = ml.SequenceDataset([[0, 1, 2]], [0], np.array([[0.0, 0.0], [-1.0, 1.0], [-1.0, 0.0]]))
    law = path_law(ml.path(ds, [100.0]))
    assert np.linalg.matrix_rank(law.rows) == len(law.rows) == 2
    assert law.multipliers.min() == pytest.approx(0.0, abs=tolerances.ROUNDING, rel=0.0)
    assert not law.holds


@pytest.mark.statement("C Thm 2", "C Def 3", "C Algo-RP")
def test_theorem_2_holds_for_another_loss_with_one_minimiser():
    ds = ml.SequenceDataset([[0, 1, 2]] * 3, [0, 0, 1], np.eye(3))
    share = 0.5 + 0.25 * np.log(2.0)  # where 2 e^(-2s) = e^(-2(1 - s))
    expected = 0.5 * np.log(share / (1.0 - share)) * np.array([1.0, -1.0, 0.0])
    assert expected[0] == pytest.approx(0.36154, abs=1e-5, rel=0.0)
    np.testing.assert_allclose(
        ml.cyclic_correction(ds, loss=Decay(2.0), restarts=4).x[:, 2], expected, rtol=0.0, atol=1e-9
    )
    path = ml.path(ds, [20.0, 60.0, 1e4], loss=Decay(2.0))
    for part in path.split().cyclic:
        np.testing.assert_allclose(part[:, 2], expected, rtol=0.0, atol=1e-8)
    corr = path.correlation(ml.graph_svm(ds).x)
    assert corr[-1] > 1.0 - 1e-8
    assert path.kkt_residual().max() < tolerances.PATH_KKT


@pytest.mark.statement("C Thm 2", "C Algo-RP")
@pytest.mark.parametrize(("loss", "seed"), [(Decay(2.0), 2), (Parabola(), 3)])
def test_cyclic_path_of_another_loss_agrees_with_a_solver(loss, seed):
    ds, limit = feasible_sequences(cyclic_sequences, (5, 3, 5, 4), seed)
    found = ml.cyclic_correction(ds, loss=loss, restarts=8)
    assert found.is_unique
    radii, rng = np.array([1.0, 5.0]), np.random.default_rng(0)
    path = ml.path(ds, radii, loss=loss)
    for k, radius in enumerate(radii):
        starts = [np.zeros(9), *(rng.standard_normal((1, 9)) * radius / 3.0)]
        value, _ = brute_force(ds, radius, None, loss, starts)
        assert path.value()[k] == pytest.approx(
            plain_risk(ds, path.points[k], None, loss), rel=tolerances.ROUNDING, abs=tolerances.ROUNDING
        )
        assert path.value()[k] <= value + tolerances.ROUNDING
        assert value - path.value()[k] < tolerances.PATH_BRUTE_FORCE
    far = ml.path(ds, np.array([1e2, 1e3, 1e4]) / limit.margin, loss=loss)
    assert far.kkt_residual().max() < tolerances.PATH_KKT
    assert far.correlation(limit.x)[-1] > 0.999
    assert np.linalg.norm(far.split().cyclic[-1] - found.x) < tolerances.CYCLIC_LIMIT
    law = path_law(far)
    assert law.deviation()[-1] < 0.2 * law.deviation()[-2]


@pytest.mark.statement("C Algo-RP", "C Thm 2")
@pytest.mark.parametrize("loss", [ml.LogLoss(), Decay(2.0)], ids=lambda one: type(one).__name__)
def test_slopes_of_the_split_risk_are_those_of_the_risk(loss):
    ds, _ = feasible_sequences(cyclic_sequences, (5, 6, 6, 4), 3)
    risk, rng, h = SplitRisk(ds, ml.priority_graphs(ds), None, loss), np.random.default_rng(1), 1e-5
    c = rng.standard_normal(len(risk.basis))

    def value(at):
        return plain_risk(ds, risk.matrix(at), None, loss)

    def slope(at):
        seen = risk.slopes(at)
        return np.concatenate([seen.inner, np.exp(seen.log_unit) * seen.outer])

    seen, unit = risk.slopes(c), np.eye(len(c))
    differences = [(value(c + h * one) - value(c - h * one)) / (2.0 * h) for one in unit]
    np.testing.assert_allclose(slope(c), differences, rtol=0.0, atol=tolerances.FINITE_DIFFERENCE)
    bend = np.exp(seen.log_unit) * np.block(
        [[np.exp(-seen.log_unit) * seen.inner_hessian, seen.cross_hessian.T], [seen.cross_hessian, seen.outer_hessian]]
    )
    second = np.stack([(slope(c + h * one) - slope(c - h * one)) / (2.0 * h) for one in unit])
    np.testing.assert_allclose(bend, second, rtol=0.0, atol=tolerances.FINITE_DIFFERENCE)


@pytest.mark.statement("C Thm 2")
def test_theorem_2_fails_for_nonunique_cyclic_minimizers():
    """ℓ(u) = -u, [a, b, c] → a and → b: the risk is (s_c - 1)/2, which takes no notice of how a and b share."""

    def log_risk(w):  # of s_c = 1/(1 + e^(a - c) + e^(b - c)), to be minimised
        return -np.logaddexp(0.0, np.logaddexp(w[0] - w[2], w[1] - w[2]))

    ds = ml.SequenceDataset([[0, 1, 2]] * 2, [0, 1], np.eye(3))
    limit = ml.graph_svm(ds.E, ml.priority_graphs(ds))
    np.testing.assert_allclose(limit.x[:, 2], np.array([1.0, 1.0, -2.0]) / 3.0, rtol=0.0, atol=tolerances.ROUNDING)
    direction = limit.x[:, 2] * limit.margin
    for radius in (10.0, 30.0, 100.0):
        angles = np.linspace(-np.pi, np.pi, 20001)  # only differences count: the best point has a + b + c = 0
        plane = radius * (
            np.cos(angles)[:, None] * direction + np.sin(angles)[:, None] * np.array([1.0, -1.0, 0.0]) / np.sqrt(2.0)
        )
        best = plane[int(np.argmin([log_risk(w) for w in plane]))]
        correlation = float(best @ direction) / radius
        assert correlation == pytest.approx(np.sqrt(3.0) / 2.0, abs=1e-3, rel=0.0)
        # ‖Π(W_R)‖ → R/2, W^cyc = 0
        assert abs(best[0] - best[1]) / np.sqrt(2.0) == pytest.approx(0.5 * radius, rel=0.05, abs=tolerances.ROUNDING)
        assert log_risk(best) < log_risk(radius * direction) - 1.0
        W = np.zeros((3, 3))
        W[:, 2] = best
        assert plain_risk(ds, W, None, Linear()) == pytest.approx(
            0.5 * np.exp(log_risk(best)) - 0.5, abs=tolerances.ROUNDING, rel=0.0
        )
    assert not ml.cyclic_correction(ds, loss=Linear(), restarts=4).is_unique


@pytest.mark.statement("C Eq. (11)", "C Lemma 4")
def test_a_given_cyclic_part_has_a_limit_even_without_theorem_2():
    ds = ml.SequenceDataset([[0, 1, 2]] * 2, [0, 1], np.eye(3))
    given = np.zeros((3, 3))
    given[:, 2] = [0.7, -0.7, 0.0]
    path = ml.path(ds, [10.0, 1e3], loss=Linear(), region=ml.dynamics.CyclicPart(given))
    turned = path.split().strict[-1]
    assert np.sum(turned * ml.graph_svm(ds).x) == pytest.approx(
        np.linalg.norm(turned) * np.linalg.norm(ml.graph_svm(ds).x), rel=tolerances.SIX_DIGITS, abs=tolerances.ROUNDING
    )
