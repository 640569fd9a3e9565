"""The numbers inside the proofs of C Thms 1 to 3: the limit risk, the Hessian, the radii."""

import numpy as np
import pytest

import marginlens as ml
import tolerances
from marginlens.data import acyclic_sequences, cyclic_sequences
from marginlens.nexttoken import limit_risk
from marginlens_papers.lemmas.path_radius import path_radius
from plain_losses import Linear
from random_problems import feasible_sequences


@pytest.mark.statement("C Eq. (16)", "C Eq. (27)")
@pytest.mark.parametrize("seed", range(4))
def test_the_risk_of_the_path_falls_to_its_two_parts(seed):
    ds, limit = feasible_sequences(cyclic_sequences, (6, 8, 8, 4), seed)
    found, share = ml.cyclic_correction(ds), len(ml.cyclic_subset(ds)) / len(ds)
    expected = share * found.risk  # the samples outside the cyclic subset lose -log 1 = 0
    assert limit_risk(ds) == pytest.approx(expected, rel=1e-10)
    path = ml.path(ds, np.array([10.0, 40.0]) / limit.margin)
    assert path.value()[0] > limit_risk(ds)
    assert path.value()[1] == pytest.approx(limit_risk(ds), abs=1e-10)
    elsewhere = found.subspace.project(np.random.default_rng(seed).standard_normal((8, 8)))
    at = ml.NextTokenRisk(ds).value(60.0 * limit.x + elsewhere)
    assert limit_risk(ds, cyclic_part=elsewhere) == pytest.approx(at, rel=1e-10)
    assert limit_risk(ds, cyclic_part=elsewhere) >= limit_risk(ds)
    linear = ml.NextTokenRisk(ds, loss=Linear()).value(60.0 * limit.x + elsewhere)
    assert limit_risk(ds, loss=Linear(), cyclic_part=elsewhere) == pytest.approx(linear, rel=1e-10)


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
    np.testing.assert_allclose(found, differences, atol=tolerances.FINITE_DIFFERENCE)
    assert np.linalg.eigvalsh(found)[0] > -tolerances.ROUNDING


@pytest.mark.statement("C Eq. (9)")
@pytest.mark.parametrize(("loss", "scale"), [(ml.LogLoss(), None), (Linear(), 1.0), (ml.SquaredLoss(), 0.5)])
def test_beyond_the_radius_the_path_is_as_near_as_promised(loss, scale):
    ds, limit = feasible_sequences(acyclic_sequences, (6, 8, 5, 4), 3)
    head = None if scale is None else scale * ds.E
    wanted = np.array([0.5, 0.1])
    radii = np.array([path_radius(ds, distance, head=head, loss=loss) for distance in wanted])
    path = ml.path(ds, radii, head=head, loss=loss, restarts=1)
    assert np.all(path.distance(limit.x) < wanted)
    assert radii[1] == pytest.approx(25.0 * radii[0])  # like 1/δ²


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
def test_beyond_the_radius_the_part_across_the_cyclic_subspace_is_as_near_as_promised():
    ds, limit = feasible_sequences(cyclic_sequences, (6, 8, 8, 4), 2)
    given = ml.cyclic_correction(ds).subspace.project(0.5 * np.random.default_rng(1).standard_normal((8, 8)))
    radius = path_radius(ds, 0.2, cyclic_part=given)
    across = ml.path(ds, [radius], region=ml.dynamics.CyclicPart(given)).split().strict[0]
    assert np.linalg.norm(across) == pytest.approx(radius)
    assert np.linalg.norm(across / radius - limit.x / np.linalg.norm(limit.x)) < 0.2
