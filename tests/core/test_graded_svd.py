"""The SVD of a sum of rank-one terms: against 80 digits at any spread of the scales, at dependent terms, and where LAPACK fails."""

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marginlens import core
from random_examples import examples

ORACLE_DIGITS = 80  # beyond the spread of the scales
NEWTON_STEPS = 200  # many times what a scaled Newton iteration needs


def terms(seed, n_terms=6, d_left=7, d_right=8, spread=0.0):
    rng = np.random.default_rng(seed)
    left, right = rng.normal(size=(n_terms, d_left)), rng.normal(size=(n_terms, d_right))
    return left, right, -spread * rng.permutation(np.linspace(0.0, 1.0, n_terms))


def polar(left, right, log_scale):
    out, ranks = np.full((1, left.shape[1], right.shape[1]), np.nan), np.full(1, -1)
    core.polar_factors(left[None], right[None], log_scale[None], out, ranks)
    return out[0], ranks[0]


def triplets(left, right, log_scale):
    count = min(left.shape[1], right.shape[1])
    U, V = np.ones((1, count, left.shape[1])), np.ones((1, count, right.shape[1]))
    logs, ranks = np.ones((1, count)), np.full(1, -1)
    core.singular_triplets(left[None], right[None], log_scale[None], U, V, logs, ranks)
    assert not U[0, ranks[0] :].any()
    assert not V[0, ranks[0] :].any()
    return U[0, : ranks[0]], V[0, : ranks[0]], logs[0, : ranks[0]]


def exact_core(left, right, log_scale):
    """Orthonormal bases of both sides and the square matrix between them, with enough digits for every term."""
    (QL, RL), (QR, RR) = (mpmath.qr(mpmath.matrix(x.T.tolist()), mode="skinny") for x in (left, right))
    D = mpmath.diag([mpmath.exp(mpmath.mpf(float(s))) for s in log_scale])
    return QL, RL * D * RR.T, QR


def exact_polar(left, right, log_scale):
    """Newton's iteration on the core, which knows nothing of rotations."""
    with mpmath.workdps(ORACLE_DIGITS + int(np.ptp(log_scale) / 2.0)):
        QL, X, QR = exact_core(left, right, log_scale)
        for _ in range(NEWTON_STEPS):
            inverse = (X**-1).T
            scale = mpmath.sqrt(mpmath.mnorm(inverse, "f") / mpmath.mnorm(X, "f"))
            following = (scale * X + inverse / scale) / 2
            change, X = mpmath.mnorm(following - X, "f"), following
            if change <= mpmath.mpf(10) ** -30:
                break
        assert change <= mpmath.mpf(10) ** -30
        return np.array((QL * X * QR.T).tolist(), dtype=float)


@pytest.mark.parametrize("spread", [0.0, 5.0, 50.0, 500.0, 5000.0])
def test_polar_factors_agree_with_80_digits(spread):
    given_terms = terms(1, spread=spread)
    found, rank = polar(*given_terms)
    assert rank == 6
    assert np.allclose(found, exact_polar(*given_terms), rtol=0, atol=1e-14)


@pytest.mark.parametrize("spread", [0.0, 50.0, 500.0])
def test_singular_values_and_leading_pair_agree_with_80_digits(spread):
    left, right, log_scale = terms(2, 4, 5, 6, spread)
    with mpmath.workdps(ORACLE_DIGITS + int(spread / 2.0)):
        QL, square, QR = exact_core(left, right, log_scale)
        U, values, Vt = mpmath.svd_r(square)
        logs = np.array([float(mpmath.log(value)) for value in values])
        pair = np.array(((QL * U[:, 0]) * (Vt[0, :] * QR.T)).tolist(), dtype=float)
    left_vectors, right_vectors, log_values = triplets(left, right, log_scale)
    assert log_values[0] == log_values.max()
    assert np.allclose(np.sort(log_values)[::-1], logs, rtol=0, atol=1e-12)
    assert np.allclose(np.outer(left_vectors[0], right_vectors[0]), pair, rtol=0, atol=1e-13)
    assert np.allclose(left_vectors @ left_vectors.T, np.eye(4), rtol=0, atol=1e-13)
    assert np.allclose(left_vectors.T @ right_vectors, polar(left, right, log_scale)[0], rtol=0, atol=1e-13)


def test_small_singular_vectors_that_lapack_loses_are_kept():
    """Singular values down to e^-50 of the largest are noise in the dense sum, and gesdd's U Vᵀ is wrong by as much as it is long."""
    left, right, log_scale = terms(3, 6, 10, 10, 50.0)
    exact = exact_polar(left, right, log_scale)
    dense = np.einsum("m,mq,md->qd", np.exp(log_scale), left, right)
    U, _, Vt = np.linalg.svd(dense)
    by_lapack = U[:, :6] @ Vt[:6]
    assert np.abs(by_lapack - exact).max() > 0.1
    assert np.linalg.norm(by_lapack - exact, 2) > 0.9
    assert np.allclose(polar(left, right, log_scale)[0], exact, rtol=0, atol=1e-14)


@examples(30)
@given(
    seed=st.integers(0, 10**6),
    n_terms=st.integers(1, 7),
    d_left=st.integers(1, 5),
    d_right=st.integers(1, 5),
    spread=st.sampled_from([0.0, 1.0, 30.0, 1e3, 1e5]),
)
def test_polar_factor_is_a_partial_isometry_invariant_to_order_and_scale(seed, n_terms, d_left, d_right, spread):
    left, right, log_scale = terms(seed, n_terms, d_left, d_right, spread)
    found, rank = polar(left, right, log_scale)
    assert rank == min(n_terms, d_left, d_right)
    values = np.linalg.svd(found, compute_uv=False)
    assert np.allclose(values, np.arange(len(values)) < rank, rtol=0, atol=1e-13)
    order = np.random.default_rng(seed).permutation(n_terms)
    again, _ = polar(left[order], right[order], log_scale[order] - 77.0)
    assert np.allclose(again, found, rtol=0, atol=1e-8)  # vectors drawn at random may be close to dependent
    halved, _ = polar(left * 1e-150, right * 1e150, log_scale)
    assert np.allclose(halved, found, rtol=0, atol=1e-8)


def test_dependent_terms_add_no_direction():
    left, right, log_scale = terms(4, 3, 6, 5)
    doubled = np.concatenate([left, left]), np.concatenate([right, right]), np.concatenate([log_scale, log_scale - 9.0])
    found, rank = polar(*doubled)  # the same three terms once more, smaller
    assert rank == 3
    assert np.allclose(found, polar(left, right, log_scale)[0], rtol=0, atol=1e-13)
    same_query = np.repeat(left[:1], 3, axis=0)
    assert polar(same_query, right, np.array([0.0, -20.0, -400.0]))[1] == 1
    same_right = np.repeat(right[:1], 3, axis=0)
    assert polar(left, same_right, np.array([0.0, -20.0, -400.0]))[1] == 1
    in_plane = np.array([[1.0, 2.0], [3.0, 1.0], [-1.0, 1.0]]) @ left[:2]  # three queries of one plane
    assert polar(in_plane, right, np.array([0.0, -300.0, -700.0]))[1] == 2


def test_cancelling_and_zero_terms_are_handled():
    left, right, log_scale = terms(5, 3, 4, 5)
    with_opposite = (
        np.concatenate([left, left[:1]]),
        np.concatenate([right, -right[:1]]),
        np.append(log_scale, log_scale[0]),
    )
    rest, rank = polar(left[1:], right[1:], log_scale[1:])
    found, its_rank = polar(*with_opposite)
    assert rank == its_rank == 2
    assert np.allclose(found, rest, rtol=0, atol=1e-13)
    absent = np.array([log_scale[0], -np.inf, log_scale[2]])
    assert np.allclose(
        polar(left, right, absent)[0], polar(left[[0, 2]], right[[0, 2]], log_scale[[0, 2]])[0], rtol=0.0, atol=1e-14
    )
    nothing, rank = polar(left, np.zeros_like(right), log_scale)
    assert rank == 0
    assert not nothing.any()
    assert len(triplets(left, np.zeros_like(right), log_scale)[2]) == 0


@pytest.mark.parametrize("shape", [(0, 3, 2), (2, 0, 3), (2, 3, 0), (0, 0, 0)])
def test_sums_without_terms_or_entries_have_rank_zero(shape):
    nothing = np.ones(shape[:2]), np.ones((shape[0], shape[2])), np.zeros(shape[0])
    found, rank = polar(*nothing)
    assert rank == 0
    assert not found.any()
    assert len(triplets(*nothing)[2]) == 0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e308, 5e-324])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_nan_and_extreme_numbers_are_handled(bad, place):
    given = terms(7, 5, 6, 4, 3.0)
    given[place].flat[3] = bad
    found, rank = polar(*given)
    assert 0 <= rank <= 4
    assert np.isfinite(found).all() or not abs(bad) < np.inf


def test_unchanged_left_vectors_change_no_bit():
    rng = np.random.default_rng(6)
    left = rng.normal(size=(5, 4))
    rights, scales = rng.normal(size=(40, 5, 6)), np.cumsum(rng.normal(size=(40, 5)), axis=1)
    scales -= np.arange(40)[:, None] * np.arange(5.0)
    for step in range(3, 40, 7):
        scales[step, step % 5] = -np.inf
    out, ranks = np.empty((40, 4, 6)), np.empty(40, dtype=np.int64)
    core.polar_factors(left[None], rights, scales, out, ranks)
    for step in range(40):
        fresh, rank = polar(left, rights[step], scales[step])
        assert ranks[step] == rank
        assert np.array_equal(out[step], fresh)
