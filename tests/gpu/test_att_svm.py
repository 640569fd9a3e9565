"""ATT-SVM on a device: the CPU's solutions with proofs of their own, for random, infeasible, tied and ragged problems."""

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

import marginlens as ml
from gpu.twin import needs_compiler
from marginlens.data import sphere_problems
from marginlens.gpu.device import to_host
from marginlens.gpu.margins import MAX_WARP_ROWS, MarginArrays
from marginlens.svm import on_device
from marginlens.svm.on_device import margins_of
from marginlens.svm.solution import CERTIFICATE_RTOL, KKT_RTOL
from random_examples import examples
from refusals import refused
from tolerances import ROUNDING

X_RTOL = 1e-9  # of p between devices
SHAPES = st.tuples(st.integers(1, 5), st.integers(1, 9), st.integers(1, 30))


def assert_same(solution, expected):
    """The same statuses, x and active rows, and proofs that hold."""
    status = np.atleast_1d(expected.status)
    assert np.array_equal(np.atleast_1d(solution.status), status)
    optimal = status == ml.Status.OPTIMAL
    x, other = (np.atleast_2d(each.x)[optimal] for each in (solution, expected))
    assert np.all(np.linalg.norm(x - other, axis=1) <= X_RTOL * np.linalg.norm(other, axis=1))
    assert np.array_equal(solution.active, expected.active)
    assert np.all(np.atleast_1d(solution.kkt_residual())[optimal] <= KKT_RTOL)
    if (status == ml.Status.INFEASIBLE).any():
        residual = np.atleast_1d(solution.certificate_residual())
        assert np.all(residual[status == ml.Status.INFEASIBLE] <= CERTIFICATE_RTOL)


@examples(25)
@given(SHAPES, st.integers(0, 2**20), st.booleans(), st.just(6))
@example((4, 17, 40), 1, True, 6)  # 64 rows, two per lane
@example((4, 6, 10), 17, False, 300)
@example((3, 12, 500), 17, False, 6)
def test_solutions_equal_the_cpus(device, shape, seed, is_selected, n_problems):
    n, T, d = shape
    data, v = sphere_problems(0, n_problems, n, T, d, seed)
    drawn = np.random.default_rng(seed).integers(0, T, size=(n_problems, n))
    selected = data.optimal(v) if is_selected else drawn
    assert_same(ml.att_svm(data, selected, device="cuda"), ml.att_svm(data, selected))


@examples(15)
@given(st.integers(0, 2**20), st.integers(1, 4), st.integers(1, 8))
def test_ragged_problems_equal_the_cpus(device, seed, n, d):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 6, size=(4, n))
    data = ml.TokenDataset([[rng.normal(size=(t, d)) for t in row] for row in lengths], np.ones((4, n)))
    selected = rng.integers(0, lengths)
    assert_same(ml.att_svm(data, selected, device="cuda"), ml.att_svm(data, selected))
    assert_same(ml.att_svm(data[0], selected[0], device="cuda"), ml.att_svm(data[0], selected[0]))


@examples(15)
@given(st.integers(0, 2**20), st.integers(2, 3))
def test_equal_and_opposite_tokens_equal_the_cpus(device, seed, d):
    rng = np.random.default_rng(seed)
    X = rng.integers(-1, 2, size=(5, 2, 4, d)).astype(float)  # many ties, zero rows and contradictions
    data, selected = ml.TokenDataset(X, np.ones((5, 2))), rng.integers(0, 4, size=(5, 2))
    solution, expected = ml.att_svm(data, selected, device="cuda"), ml.att_svm(data, selected)
    assert np.array_equal(solution.status, expected.status)
    optimal = expected.status == ml.Status.OPTIMAL
    np.testing.assert_allclose(solution.x[optimal], expected.x[optimal], rtol=X_RTOL, atol=ROUNDING)
    infeasible = expected.status == ml.Status.INFEASIBLE
    assert np.all(solution.certificate_residual()[infeasible] <= CERTIFICATE_RTOL)


def test_large_and_small_scales_give_the_same_directions(device):
    data, v = sphere_problems(0, 20, 3, 4, 12, 3)
    expected = ml.att_svm(data, data.optimal(v))
    for scale in (1e-60, 1e60):
        scaled = ml.TokenDataset(data.X * scale, data.y)
        solution = ml.att_svm(scaled, data.optimal(v), device="cuda")
        np.testing.assert_allclose(solution.x * scale, expected.x, rtol=1e-8, atol=0.0)
        assert np.array_equal(solution.status, expected.status)


def test_solutions_on_the_device_equal_the_cpus_with_few_fallbacks(device, monkeypatch):
    data, _ = sphere_problems(0, 300, 4, 6, 10, 1)
    selected = np.random.default_rng(0).integers(0, 6, size=(300, 4))
    on_cpu, sent = on_device._solved_on_cpu, []
    monkeypatch.setattr(on_device, "_solved_on_cpu", lambda rest, alpha: sent.append(len(rest)) or on_cpu(rest, alpha))
    found = margins_of(device, device.xp.asarray(data.K), device.xp.asarray(selected))
    assert type(found.x) is type(device.xp.empty(0))
    found, expected = MarginArrays(*map(to_host, found)), ml.att_svm(data, selected)
    codes = {ml.Status.OPTIMAL: 0, ml.Status.INFEASIBLE: 1, ml.Status.TRIVIAL: 2, ml.Status.INACCURATE: 3}
    assert np.array_equal(found.outcome, [codes[status] for status in expected.status])
    np.testing.assert_allclose(found.x, expected.x, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(found.margin, expected.margin, rtol=X_RTOL, atol=0.0)
    certificate = np.where((found.outcome == 1)[:, None], expected.certificate, expected.multipliers)
    largest = np.abs(certificate).max()
    np.testing.assert_allclose(found.multipliers, certificate, rtol=1e-6, atol=1e-8 * largest)
    assert sum(sent) <= 6
    assert found.residual.max() <= KKT_RTOL


def test_problems_with_more_rows_equal_the_cpus(device):
    n_tokens = MAX_WARP_ROWS + 2
    data, v = sphere_problems(0, 2, 1, n_tokens, 80, 1)
    found = margins_of(device, device.xp.asarray(data.K), device.xp.asarray(data.optimal(v)))
    np.testing.assert_allclose(to_host(found.x), ml.att_svm(data, data.optimal(v)).x, rtol=X_RTOL, atol=0.0)
    assert_same(ml.att_svm(data, data.optimal(v), device="cuda"), ml.att_svm(data, data.optimal(v)))


@needs_compiler
def test_a_batch_beyond_the_memory_is_solved_in_parts(small_device):
    small_device(20_000)
    data, v = sphere_problems(0, 50, 3, 4, 5, 1)
    assert_same(ml.att_svm(data, data.optimal(v), device="cuda"), ml.att_svm(data, data.optimal(v)))


def test_unsupported_norms_and_invalid_input_are_refused(device):
    data, v = sphere_problems(0, 3, 2, 3, 4, 3)
    selected = data.optimal(v)
    for argument, call in (
        ("data", lambda: ml.att_svm(ml.TokenDataset(data.X * 1e120, data.y), selected, device="cuda")),
        ("device", lambda: ml.att_svm(data, selected, norm=ml.L1(), device="cuda")),
        ("device", lambda: ml.att_svm(data, selected, query=v[0], device="cuda")),
        ("selected", lambda: ml.att_svm(data, np.full((3, 2), 3), device="cuda")),
    ):
        with refused(argument):
            call()
