"""Regularisation paths: global minima of the risk over balls and cones, and where they go as the radius grows."""

import numpy as np
import pytest
from scipy.optimize import minimize

import marginlens as ml
import tolerances
from marginlens.data import TokenDataset, figure_1b, sphere_tokens
from marginlens.dynamics import Cone
from marginlens.dynamics.paths.path import Binding
from marginlens.losses.margin import CorrelationLoss, Exponential, Logistic
from marginlens.risk import AttentionRisk
from marginlens.theory import globally_optimal_direction, in_cone, locally_optimal_directions, sample_cone
from random_problems import problem, ragged_problem


def separable(rng, n_inputs, n_tokens, d_model):
    """A random problem whose optimal tokens one direction selects, its head and that direction."""
    data, v = sphere_tokens(200, n_inputs, n_tokens, d_model, rng)
    found = globally_optimal_direction(data, v)
    j = int(np.flatnonzero(found.is_feasible)[0])
    return data[j], v[j], found.direction[j], float(found.margin[j])


@pytest.mark.statement("A Thm 1", "A Eq. (2)")
@pytest.mark.parametrize(("n_inputs", "n_tokens", "d"), [(2, 3, 2), (3, 3, 4), (4, 4, 20)])
def test_path_reaches_the_globally_optimal_direction(n_inputs, n_tokens, d):
    data, v, direction, margin = separable(np.random.default_rng(d), n_inputs, n_tokens, d)
    path = ml.path(data, np.array([1e2, 1e3, 1e4]) / margin, head=v, restarts=4)
    distance = path.distance(direction)
    assert distance[-1] < tolerances.PATH_OFFSET
    assert np.all(np.diff(np.log(distance)) / np.log(10.0) < -0.9)  # like 1/R
    assert np.all(path.correlation(direction)[1:] > 0.999)
    assert path.kkt_residual().max() < tolerances.PATH_KKT
    assert all(one is Binding.BALL for one in path.binding)
    assert path.log_excess[-1] == pytest.approx(-1e4, rel=0.01, abs=tolerances.ROUNDING)
    assert path.excess_sign[-1] == 1.0


@pytest.mark.statement("A Eq. (2)")
@pytest.mark.parametrize("seed", range(2))
def test_path_in_the_plane_agrees_with_a_grid(seed):
    data, v = problem(np.random.default_rng(seed), 2, 3, 2)
    radii = np.array([0.3, 2.0, 6.0, 20.0])
    path = ml.path(data, radii, head=v)
    angles = np.linspace(0.0, 2.0 * np.pi, 721)
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    for radius, point in zip(radii, path.points, strict=True):
        grid = (np.linspace(0.0, radius, 81)[:, None, None] * circle).reshape(-1, 2)
        best = float(AttentionRisk(data.repeat(len(grid)), v).value(grid).min())
        ours = float(AttentionRisk(data, v).value(point))
        assert best - tolerances.PATH_GRID * max(radius, 1.0) ** 2 < ours <= best + tolerances.ROUNDING


@pytest.mark.statement("A Eq. (2)")
@pytest.mark.parametrize("seed", [1, 2])
def test_path_is_global_on_small_problems(seed):
    rng = np.random.default_rng(100 + seed)
    data, v = ragged_problem(rng, 3, 4, 3)
    radii, risk = np.array([1.0, 8.0]), AttentionRisk(data, v)
    path = ml.path(data, radii, head=v)
    for radius, point in zip(radii, path.points, strict=True):
        room = {"type": "ineq", "fun": lambda p, r=radius: r * r - p @ p, "jac": lambda p: -2.0 * p}
        starts = rng.standard_normal((6, 3)) * radius / 2.0
        runs = [
            minimize(
                lambda p: float(risk.value(p)),
                start,
                jac=lambda p: risk.gradient(p).value(),
                constraints=[room],
                method="SLSQP",
                options={"ftol": 1e-12, "maxiter": 200},
            )
            for start in starts
        ]
        best = min(float(risk.value(run.x * min(1.0, radius / np.linalg.norm(run.x)))) for run in runs)
        ours = float(risk.value(point))
        assert ours <= best + tolerances.ROUNDING
        assert best - ours < tolerances.PATH_BRUTE_FORCE
    assert path.kkt_residual().max() < tolerances.PATH_KKT


@pytest.mark.statement("A Eq. (2)")
def test_other_seeds_and_more_starts_find_nothing_better():
    rng = np.random.default_rng(7)
    for _ in range(2):
        data, v = problem(rng, 3, 4, 3)
        radii = [3.0, 30.0, 3000.0]
        one, other = (ml.path(data, radii, head=v, restarts=k, rng=k) for k in (8, 24))
        for a, b in zip(one.points, other.points, strict=True):
            selected = np.argmax(data.K @ a, axis=-1)
            first, second = (AttentionRisk(data, v).excess(p, selected) for p in (a, b))
            assert first.sign == second.sign
            assert first.log == pytest.approx(second.log, rel=1e-6, abs=1e-6)


@pytest.mark.statement("A Eq. (2)")
@pytest.mark.parametrize("loss", [Logistic(), Exponential(), CorrelationLoss()], ids=lambda one: type(one).__name__)
def test_risk_falls_along_the_path_for_every_loss(loss):
    data, v, direction, margin = separable(np.random.default_rng(3), 3, 3, 3)
    path = ml.path(data, np.geomspace(1.0, 1e4, 5) / margin, head=v, loss=loss, restarts=4)
    assert np.all(np.diff(path.log_excess) < 0.0)
    assert np.all(path.excess_sign == 1.0)
    assert path.distance(direction)[-1] < tolerances.PATH_OFFSET


@pytest.mark.statement("A Eq. (2)")
def test_paths_stay_at_a_finite_minimum():
    rng = np.random.default_rng(1)
    for _ in range(100):  # a problem whose optimal tokens no direction selects, with its minimum at a finite norm
        data, v = problem(rng, 3, 3, 2)
        path = ml.path(data, [50.0, 500.0], head=v, restarts=4)
        if path.binding[-1] is Binding.NONE:
            break
    assert path.binding[-1] is Binding.NONE
    assert path.norm[-1] < 0.9 * 500.0
    slope = AttentionRisk(data, v).gradient(path.points[-1])
    assert slope.log_norm < AttentionRisk(data, v).gradient(1.1 * path.points[-1]).log_norm - 10.0
    assert path.kkt_residual().max() < tolerances.PATH_KKT


@pytest.mark.statement("A Thm 1")
def test_a_linear_module_has_the_path_of_its_vector():
    torch = pytest.importorskip("torch")
    data, v, _, margin = separable(np.random.default_rng(5), 2, 3, 3)
    head = torch.nn.Linear(3, 1, bias=False).double()
    with torch.no_grad():
        head.weight.copy_(torch.tensor(v)[None])
    radii = np.array([1.0, 1e4]) / margin
    vector, module = (ml.path(data, radii, head=one, restarts=2) for one in (v, head))
    np.testing.assert_allclose(module.points, vector.points, rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(module.log_excess, vector.log_excess, rtol=1e-9, atol=0.0)


@pytest.mark.statement("A Eq. (9)", "A Eq. (66)")
@pytest.mark.parametrize("seed", range(2))
def test_local_path_is_the_best_point_of_its_cone(seed):
    rng = np.random.default_rng(seed)
    data, v = problem(rng, 2, 3, 3)
    axis, mu, floor = rng.standard_normal(3), 0.1, 3.0
    path = ml.path(data, [3.5, 10.0, 20.0], head=v, region=Cone(axis, mu, floor))
    for radius, point in zip(path.radii, path.points, strict=True):
        assert in_cone(point, axis, mu * (1.0 + 1e-9), floor * (1.0 - 1e-12))
        assert np.linalg.norm(point) <= radius * (1.0 + 1e-12)
        samples = sample_cone(axis, mu, floor, 4000, rng)
        samples *= np.minimum(1.0, radius / np.linalg.norm(samples, axis=-1, keepdims=True))
        many = AttentionRisk(data.repeat(len(samples)), v).value(samples)
        assert float(AttentionRisk(data, v).value(point)) <= many.min() + tolerances.ROUNDING
    assert path.kkt_residual().max() < tolerances.PATH_KKT


@pytest.mark.statement("A Thm 4", "A Thm 7", "A P^mm")
def test_local_paths_keep_locally_optimal_directions_and_no_others():
    data, v = figure_1b()
    found = locally_optimal_directions(data, v)
    radii = np.array([1e2, 1e3, 1e4]) / found.margins.min()
    for direction in found.directions:
        path = ml.path(data, radii, head=v, region=Cone(direction, 0.004, 10.0), restarts=4)
        assert path.distance(direction)[-1] < tolerances.PATH_OFFSET
        assert path.binding[-1] is Binding.BALL
    beside = found.directions[0] + 0.3 * np.array([1.0, -1.0])
    path = ml.path(data, radii, head=v, region=Cone(beside, 0.001, 10.0), restarts=4)
    assert path.distance(beside)[-1] > 0.5 * np.sqrt(2.0 * 0.001)


@pytest.mark.statement("A Thm 1", "A Eq. (2)")
@pytest.mark.parametrize("seed", range(2))
def test_inputs_with_one_token_or_equal_scores_do_not_change_the_path(seed):
    rng = np.random.default_rng(seed)
    inputs = [rng.normal(size=(3, 3)), rng.normal(size=(2, 3))]
    v = rng.normal(size=3)
    data = TokenDataset(inputs, [1, 1])
    wider = TokenDataset([*inputs, rng.normal(size=(1, 3))], [1, 1, 1])
    radii = [1.0, 30.0, 1000.0]
    alone, beside = ml.path(data, radii, head=v), ml.path(wider, radii, head=v)
    assert np.max(np.abs(alone.points - beside.points) / alone.norm[:, None]) < tolerances.SAME_PATH


@pytest.mark.statement("A Eq. (2)")
@pytest.mark.parametrize("size", [1.0, 30.0, 300.0])
def test_a_long_head_keeps_the_excess_risk_accurate(size):
    """Where mixing tokens has e^-100 of the risk of selecting them, the excess over theirs no longer shows what is left."""
    rng, angles = np.random.default_rng(0), np.linspace(0.0, 2.0 * np.pi, 721)
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    for _ in range(2):
        X, v = rng.standard_normal((2, 3, 2)), size * rng.standard_normal(2)
        data = TokenDataset(X, np.where((X @ v).max(axis=1) > 0.0, 1.0, -1.0))
        path, risk = ml.path(data, [1.0, 3.0], head=v), AttentionRisk(data, v)
        assert path.kkt_residual().max() < tolerances.PATH_KKT
        for radius, point in zip(path.radii, path.points, strict=True):
            grid = np.concatenate([share * radius * circle for share in (0.3, 0.7, 1.0)])
            lowest = np.min(risk.log_value(grid))
            found = risk.log_value(point)
            assert found <= lowest + tolerances.ROUNDING * size
            assert found > -600.0  # below, the risk is not a normal number
            assert found == pytest.approx(np.log(risk.value(point)), rel=tolerances.ROUNDING, abs=tolerances.ROUNDING)
