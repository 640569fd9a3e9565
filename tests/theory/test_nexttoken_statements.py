"""C Eqs (9), (13), (16) to (24), Lemmas 3 to 6 and Theorem 4: what the next-token risk is like, and the radii of the proofs."""

import numpy as np
import pytest

import marginlens as ml
from marginlens.data import acyclic_sequences, cyclic_sequences
from marginlens.graphs.subspace import cyclic_subspace
from marginlens.nexttoken import limit_risk
from marginlens_papers.claims.c.gradient import matrix_form, random_sequences
from marginlens_papers.claims.c.next_token_paths import path_radius
from plain_losses import Linear
from random_problems import feasible_sequences
from tolerances import FINITE_DIFFERENCE, HIGH_PRECISION, ROUNDING, SIX_DIGITS


@pytest.mark.statement("C Eq. (19)")
def test_the_sum_runs_over_the_tokens_that_differ_from_the_label():
    for seed in range(10):
        rng = np.random.default_rng(seed)
        ds = random_sequences(rng)
        W = rng.normal(size=(ds.d_model, ds.d_model))
        found = ml.NextTokenRisk(ds).gradient(W).value()
        assert np.abs(found - matrix_form(ds, W, others=True)).max() < HIGH_PRECISION
        assert not matrix_form(ds, W, others=False).any()  # as printed the sum is empty of content
        assert found.any()


@pytest.mark.statement("C Eq. (23)")
def test_the_sharp_constant_is_attained_and_below_the_papers():
    E = np.array([[1.0, 0.0], [-1.0, 0.0]])
    two = ml.SequenceDataset([[0, 1]], [0], E)
    h = 1e-4
    along = np.array([[-1.0, 0.0], [0.0, 0.0]])
    slope = np.linalg.norm(
        ml.NextTokenRisk(two).gradient(h * along).value() - ml.NextTokenRisk(two).gradient(-h * along).value()
    ) / (2 * h)
    assert slope == pytest.approx(ml.NextTokenRisk(two).sharp_smoothness(), rel=1e-6, abs=ROUNDING)
    assert ml.NextTokenRisk(two).sharp_smoothness() == pytest.approx(1.0, rel=SIX_DIGITS, abs=ROUNDING)
    # the fourth power, as far as there are numbers
    for scale, smooth in ((1e-50, 1e-200), (1e-160, 0.0), (1e160, np.inf)):
        longer = ml.SequenceDataset([two[i][0] for i in range(len(two))], two.labels, scale * two.E)
        assert ml.NextTokenRisk(longer).sharp_smoothness() == pytest.approx(smooth, rel=1e-6, abs=0.0)
        assert ml.NextTokenRisk(longer).smoothness() >= ml.NextTokenRisk(longer).sharp_smoothness()
    assert ml.NextTokenRisk(two).smoothness() == pytest.approx(2.0 * np.sqrt(2.0) * 4.0, rel=SIX_DIGITS, abs=ROUNDING)
    for seed in range(50):
        ds = random_sequences(np.random.default_rng(seed))
        assert ml.NextTokenRisk(ds).sharp_smoothness() * 4.0 * np.sqrt(ds.lengths.max()) <= ml.NextTokenRisk(
            ds
        ).smoothness() * (1 + ROUNDING)


@pytest.mark.statement("C Eq. (23)")
def test_repeated_tokens_break_the_bound_on_x_but_not_the_constant():
    """‖X‖ = √T ‖e‖ exceeds ‖E‖ when one token is repeated, which Eq. (21) overlooks."""
    E = np.eye(2)
    ds = ml.SequenceDataset([[0, 1, 1, 1, 1, 1, 1]], [0], E)
    assert np.linalg.norm(E[ds[0][0]], 2) > np.linalg.norm(E, 2)
    rng = np.random.default_rng(0)
    for _ in range(30):
        W, V = 3.0 * rng.normal(size=(2, 2, 2))
        apart = np.linalg.norm(ml.NextTokenRisk(ds).gradient(W).value() - ml.NextTokenRisk(ds).gradient(V).value())
        assert apart <= ml.NextTokenRisk(ds).sharp_smoothness() * np.linalg.norm(W - V)


@pytest.mark.statement("C Lemma 5")
def test_steps_up_to_one_over_l_decrease_the_risk_and_longer_ones_can_fail():
    E = np.array([[1.0, 0.0], [-1.0, 0.0]])
    tied = ml.SequenceDataset([[0, 1], [1, 0, 1]], [0, 1], E)  # cyclic: the minimum is finite and the curvature stays
    for ds in (tied, cyclic_sequences(5, 4, 5, 4, 0), random_sequences(np.random.default_rng(3))):
        ratios = _promise_kept(ds, 1.0 / ml.NextTokenRisk(ds).sharp_smoothness())
        assert ratios.min() >= 1.0 - 1e-6
        assert _promise_kept(ds, 1.0 / ml.NextTokenRisk(ds).smoothness()).min() > 1.0
    # far beyond, the risk goes up
    assert _promise_kept(tied, 12.0 / ml.NextTokenRisk(tied).sharp_smoothness()).min() < 0.0


def _promise_kept(ds, eta):
    """Decrease of the risk over η/2 ‖∇L‖² along forty steps, where it can be told from rounding."""
    start = 0.5 * np.random.default_rng(1).normal(size=(ds.d_model, ds.d_model))
    run = ml.descend(
        ds, optimizer=ml.GradientDescent(eta), n_steps=40, start=start, record=ml.Record(keep=("x", "risk"))
    )
    promised = np.array(
        [0.5 * eta * np.sum(ml.NextTokenRisk(ds).gradient(W).value() ** 2) for W in run.saved["x"][:-1]]
    )
    clear = promised > 1e-9
    return (-np.diff(run.saved["risk"]) / np.where(clear, promised, 1.0))[clear]


@pytest.mark.statement("C Lemma 3")
def test_the_log_loss_is_convex_and_the_squared_loss_is_not():
    above = {"log": [], "squared": []}
    for seed in range(20):
        rng = np.random.default_rng(seed)
        ds = cyclic_sequences(5, 4, 4, 4, rng)
        for _ in range(5):
            W, V = 4.0 * rng.normal(size=(2, 4, 4))
            for name, options in (("log", {}), ("squared", {"loss": ml.SquaredLoss()})):
                middle, first, last = (ml.NextTokenRisk(ds, **options).value(one) for one in ((W + V) / 2, W, V))
                above[name].append(middle - 0.5 * (first + last))
    assert max(above["log"]) <= ROUNDING
    assert max(above["squared"]) > 0.01


@pytest.mark.statement("C Lemma 3")
def test_curvature_is_positive_on_s_cyc_and_can_vanish_elsewhere():
    for seed in range(5):
        ds = cyclic_sequences(5, 6, 5, 4, seed)
        basis = cyclic_subspace(ds.E, ml.priority_graphs(ds)).basis
        rng = np.random.default_rng(seed)
        W = np.einsum("r,rij->ij", rng.normal(size=len(basis)), basis)
        hessian = np.array([[np.sum(b * _slope_along(ds, W, c)) for c in basis] for b in basis])
        assert np.linalg.eigvalsh(0.5 * (hessian + hessian.T))[0] > 1e-4
        unused = np.linalg.svd(ds.E[np.unique(ds.last)])[2][-1]  # orthogonal to every query
        flat = np.outer(rng.normal(size=6), unused)
        assert np.abs(_slope_along(ds, W, flat)).max() < 1e-9


def _slope_along(ds, W, along, h=1e-4):
    """Directional derivative of the gradient by central differences."""
    return (
        ml.NextTokenRisk(ds).gradient(W + h * along).value() - ml.NextTokenRisk(ds).gradient(W - h * along).value()
    ) / (2 * h)


@pytest.mark.statement("C Lemma 6", "C Thm 4")
def test_w_mm_is_a_descent_direction_everywhere():
    for seed in range(10):
        rng = np.random.default_rng(seed)
        ds = (acyclic_sequences if seed % 2 else cyclic_sequences)(6, 8, 4, 4, rng)
        solution = ml.graph_svm(ds.E, ml.priority_graphs(ds)).x
        for size in (0.0, 1.0, 8.0) if seed % 2 == 0 else (0.0, 1.0, 1e2, 1e5):
            found = ml.NextTokenRisk(ds).gradient(size * rng.normal(size=(8, 8)) / 8)
            assert np.sum(found.array * solution) < 0.0
            assert np.isfinite(found.log_norm)


@pytest.mark.statement("C Thm 4", "C Lemma 5")
def test_plain_descent_diverges_like_the_logarithm_and_its_gradient_vanishes():
    ds = acyclic_sequences(6, 8, 4, 4, 1)
    margin = float(ml.graph_svm(ds.E, ml.priority_graphs(ds)).margin)
    steps = [10**3, 10**4, 10**5]
    step = ml.GradientDescent(1.0 / ml.NextTokenRisk(ds).sharp_smoothness())
    run = ml.descend(ds, optimizer=step, n_steps=10**5, record=ml.Record(steps=steps, keep=("x", "norm")))
    growth = np.diff(run.saved["norm"])
    assert np.all(growth > 0.0)
    assert growth[-1] == pytest.approx(np.log(10.0) / margin, rel=0.1, abs=ROUNDING)
    logs = [ml.NextTokenRisk(ds).gradient(W).log_norm for W in run.saved["x"]]
    assert np.diff(logs) == pytest.approx([-np.log(10.0)] * 2, abs=0.1, rel=0.0)  # ‖∇L‖ falls like 1/τ


# ---- the numbers inside the proofs of C Thms 1 to 3


@pytest.mark.statement("C Eq. (16)", "C Eq. (27)")
@pytest.mark.parametrize("seed", range(4))
def test_the_risk_of_the_path_falls_to_its_two_parts(seed):
    ds, limit = feasible_sequences(cyclic_sequences, (6, 8, 8, 4), seed)
    found, share = ml.cyclic_correction(ds), len(ml.cyclic_subset(ds)) / len(ds)
    expected = share * found.risk  # the samples outside the cyclic subset lose -log 1 = 0
    assert limit_risk(ds) == pytest.approx(expected, rel=1e-10, abs=ROUNDING)
    path = ml.path(ds, np.array([10.0, 40.0]) / limit.margin)
    assert path.value()[0] > limit_risk(ds)
    assert path.value()[1] == pytest.approx(limit_risk(ds), abs=1e-10, rel=0.0)
    elsewhere = found.subspace.project(np.random.default_rng(seed).standard_normal((8, 8)))
    at = ml.NextTokenRisk(ds).value(60.0 * limit.x + elsewhere)
    assert limit_risk(ds, cyclic_part=elsewhere) == pytest.approx(at, rel=1e-10, abs=ROUNDING)
    assert limit_risk(ds, cyclic_part=elsewhere) >= limit_risk(ds)
    linear = ml.NextTokenRisk(ds, loss=Linear()).value(60.0 * limit.x + elsewhere)
    assert limit_risk(ds, loss=Linear(), cyclic_part=elsewhere) == pytest.approx(linear, rel=1e-10, abs=ROUNDING)


@pytest.mark.statement("C Eq. (24)")
@pytest.mark.parametrize("seed", range(3))
def test_the_hessian_is_the_derivative_of_the_gradient_and_never_negative(seed):
    ds, rng, h = cyclic_sequences(6, 4, 9, 5, seed), np.random.default_rng(seed), 1e-5
    W = rng.standard_normal((4, 4))
    found = ml.NextTokenRisk(ds).hessian(W)

    def slope(at):
        return ml.NextTokenRisk(ds).gradient(at).value().ravel()

    step = h * np.eye(16).reshape(16, 4, 4)
    differences = np.stack([(slope(W + one) - slope(W - one)) / (2.0 * h) for one in step])
    np.testing.assert_allclose(found, differences, rtol=0.0, atol=FINITE_DIFFERENCE)
    assert np.linalg.eigvalsh(found)[0] > -ROUNDING


@pytest.mark.statement("C Eq. (9)")
@pytest.mark.parametrize(("loss", "scale"), [(ml.LogLoss(), None), (Linear(), 1.0), (ml.SquaredLoss(), 0.5)])
def test_the_path_beyond_the_radius_is_within_the_bound(loss, scale):
    ds, limit = feasible_sequences(acyclic_sequences, (6, 8, 5, 4), 3)
    head = None if scale is None else scale * ds.E
    wanted = np.array([0.5, 0.1])
    radii = np.array([path_radius(ds, distance, head=head, loss=loss) for distance in wanted])
    path = ml.path(ds, radii, head=head, loss=loss, restarts=1)
    assert np.all(path.distance(limit.x) < wanted)
    assert radii[1] == pytest.approx(25.0 * radii[0], rel=SIX_DIGITS, abs=ROUNDING)  # like 1/δ²


@pytest.mark.statement("C Eq. (9)", "C Eq. (13)")
def test_beyond_the_radius_a_matrix_that_misses_a_margin_is_worse():
    ds, limit = feasible_sequences(acyclic_sequences, (5, 5, 4, 4), 1)
    rng, norm = np.random.default_rng(0), np.linalg.norm(limit.x)
    k, i, j = np.asarray(limit.pairs).T
    distance = 0.8
    shortfall = 0.5 * distance**2
    for radius in (path_radius(ds, distance), path_radius(ds, distance, cyclic_part=np.zeros((5, 5)))):
        height, missed = radius / norm, 0
        for _ in range(200):
            W = limit.x + rng.uniform(0.1, 1.5) * norm * rng.standard_normal((5, 5)) / 5.0
            W *= norm / np.linalg.norm(W)
            margins = np.sum(((ds.E[i] - ds.E[j]) @ W) * ds.E[k], axis=1)
            far = np.linalg.norm(W - limit.x) / norm >= distance
            assert not far or margins.min() <= 1.0 - shortfall  # what turns a distance into a missed margin
            if margins.min() <= 1.0 - shortfall:
                missed += 1
                assert ml.NextTokenRisk(ds).value(height * W) > ml.NextTokenRisk(ds).value(height * limit.x)
        assert missed > 50


@pytest.mark.statement("C Eq. (13)", "C Lemma 4")
def test_the_part_orthogonal_to_s_cyc_is_near_beyond_the_radius():
    ds, limit = feasible_sequences(cyclic_sequences, (6, 8, 8, 4), 2)
    given = ml.cyclic_correction(ds).subspace.project(0.5 * np.random.default_rng(1).standard_normal((8, 8)))
    radius = path_radius(ds, 0.2, cyclic_part=given)
    across = ml.path(ds, [radius], region=ml.dynamics.CyclicPart(given)).split().strict[0]
    assert np.linalg.norm(across) == pytest.approx(radius, rel=SIX_DIGITS, abs=ROUNDING)
    assert np.linalg.norm(across / radius - limit.x / np.linalg.norm(limit.x)) < 0.2
