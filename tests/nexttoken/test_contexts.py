"""Paper G: next-token decoders on fixed contexts, against cvxpy, a plain Newton method, torch-like sums and the theorems themselves."""

from dataclasses import replace

import numpy as np
import pytest
import scipy

import marginlens as ml
from marginlens.nexttoken import finite_part, support_subspace
from marginlens.testing import check_risk
from refusals import refused
from tolerances import ROUNDING, SIX_DIGITS

N_PROBLEMS = 200
CVXPY_RTOL = 1e-6  # Clarabel's own tolerance is 1e-12 on the objective, of which the solution has the root
NEWTON_RTOL = 1e-10


def random_contexts(seed):
    """Small data of every kind: separable or not, compatible or not, with supports of one to three tokens."""
    rng = np.random.default_rng(seed)
    m, d, V = rng.integers(2, 7), rng.integers(1, 7), rng.integers(3, 9)
    counts = np.zeros((m, V))
    for j in range(m):
        tokens = rng.choice(V, rng.integers(1, 4), replace=False)
        counts[j, tokens] = rng.integers(1, 9, len(tokens))
    return ml.ContextDataset(rng.standard_normal((m, d)), counts)


def separable_contexts(seed=0):
    """Three contexts of four dimensions, each followed by three of five tokens."""
    rng = np.random.default_rng(seed)
    counts = np.zeros((3, 5))
    for j in range(3):
        counts[j, rng.choice(5, 3, replace=False)] = rng.integers(1, 6, 3)
    return ml.ContextDataset(rng.standard_normal((3, 4)), counts)


def by_cvxpy(data):
    cvxpy = pytest.importorskip("cvxpy")
    W = cvxpy.Variable(data.shape)
    logits, constraints = W @ data.H.T, []
    for j, follows in enumerate(data.counts.toarray() > 0):
        inside, outside = np.flatnonzero(follows), np.flatnonzero(~follows)
        if len(inside) > 1:
            constraints.append(logits[inside[1:], j] == logits[inside[0], j])
        if len(outside):
            constraints.append(logits[inside[0], j] - logits[outside, j] >= 1)
    problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(W)), constraints)
    problem.solve(solver=cvxpy.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
    return problem.status, W.value


@pytest.mark.statement("G NTP-SVM", "G Def 2", "G Def 3")
def test_the_margin_problem_agrees_with_cvxpy_in_status_and_solution():
    found = []
    for seed in range(N_PROBLEMS):
        data = random_contexts(seed)
        solution, (status, W) = ml.ntp_svm(data), by_cvxpy(data)
        found.append(solution.status)
        if solution.status is ml.Status.INFEASIBLE:
            assert status == "infeasible", seed
            assert solution.certificate_residual() <= 1e-13
            assert "No W separates" in solution.describe()
            continue
        assert solution.status in (ml.Status.OPTIMAL, ml.Status.TRIVIAL), seed
        assert status == "optimal", seed
        assert solution.kkt_residual() <= 1e-10
        np.testing.assert_allclose(
            solution.x, W, rtol=0.0, atol=CVXPY_RTOL * max(1.0, np.abs(W).max()), err_msg=str(seed)
        )
    assert min(found.count(ml.Status.OPTIMAL), found.count(ml.Status.INFEASIBLE)) >= N_PROBLEMS // 10


def test_orthogonal_contexts_have_a_closed_form_by_group():
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 2, (6, 9))
    counts[:, 0] = 1
    counts[2] = 1  # every token follows
    H = np.diag(rng.uniform(0.5, 2.0, 6))
    alone = ml.ntp_svm(ml.ContextDataset(H, counts))
    sparse = ml.ntp_svm(ml.ContextDataset(scipy.sparse.csr_array(H), scipy.sparse.csr_array(counts)))
    W = (counts - counts.mean(axis=1, keepdims=True)).T / np.diag(H)
    np.testing.assert_allclose(alone.x, W, rtol=0.0, atol=1e-14)
    np.testing.assert_allclose(sparse.x, W, rtol=0.0, atol=1e-14)
    assert alone.n_groups == sparse.n_groups == 6

    blocks = scipy.linalg.block_diag(rng.standard_normal((2, 2)), rng.standard_normal((4, 5)))
    turned = blocks @ np.linalg.qr(rng.standard_normal((7, 7)))[0]  # orthogonal groups whose zeros do not show
    first, second = ml.ContextDataset(blocks, counts), ml.ContextDataset(turned, counts)
    assert ml.ntp_svm(first).n_groups == 2
    assert ml.ntp_svm(second).kkt_residual() <= 1e-10
    assert ml.ntp_svm(first).margin == pytest.approx(ml.ntp_svm(second).margin, rel=1e-10, abs=ROUNDING)
    assert ml.ntp_svm(first).margin == pytest.approx(
        ml.ntp_svm(ml.ContextDataset(scipy.sparse.csr_array(blocks), counts)).margin, rel=SIX_DIGITS, abs=ROUNDING
    )


def test_contexts_that_are_nearly_dependent_are_solved_too():
    rng = np.random.default_rng(0)
    left, right = (np.linalg.qr(rng.standard_normal((n, 8)))[0] for n in (8, 10))
    counts = rng.integers(0, 2, (8, 7))
    counts[:, 0], counts[:, 6] = 1, 0
    for spread in (1e-2, 1e-4):
        data = ml.ContextDataset(left @ np.diag(np.geomspace(1, spread, 8)) @ right.T, counts)
        solution = ml.ntp_svm(data)
        assert solution.status is ml.Status.OPTIMAL, spread
        assert finite_part(data).compatible


def test_large_groups_are_proved_infeasible_by_a_part_or_refused(monkeypatch):
    monkeypatch.setattr("marginlens.svm.contexts._MAX_GROUP_PAIRS", 50)
    monkeypatch.setattr("marginlens.svm.contexts._SUBSETS", (4, 6))
    rng = np.random.default_rng(0)
    counts = np.eye(12) + np.roll(np.eye(12), 1, axis=1)
    narrow = ml.ntp_svm(ml.ContextDataset(rng.standard_normal((12, 1)), counts))
    assert narrow.status is ml.Status.INFEASIBLE
    assert narrow.certificate_residual() <= 1e-13
    with refused("data"):
        ml.ntp_svm(ml.ContextDataset(rng.standard_normal((12, 12)), counts))


def test_a_broken_proof_is_detected():
    solution = ml.ntp_svm(separable_contexts())
    assert replace(solution, common=solution.common + 1e-6).kkt_residual() > 1e-8
    assert replace(solution, special=solution.special * 1.001).kkt_residual() > 1e-5
    infeasible = ml.ntp_svm(ml.ContextDataset([[1.0], [2.0]], np.eye(2)))
    assert infeasible.status is ml.Status.INFEASIBLE
    assert replace(infeasible, common=infeasible.common + 1e-3).certificate_residual() > 1e-5
    zero = ml.ntp_svm(ml.ContextDataset(np.zeros((2, 3)), np.eye(2)))
    assert zero.status is ml.Status.INFEASIBLE


def by_newton(data):
    """W* by a plain Newton method on the cross-entropy within supports, in coordinates of an orthonormal basis of F."""
    V, d = data.shape
    counts, share = data.counts.toarray(), data.share
    p = counts / counts.sum(axis=1, keepdims=True)
    supports = [np.flatnonzero(row) for row in counts]
    unit = np.eye(V)
    generators = [
        np.outer(unit[s[0]] - unit[z], h).ravel() for s, h in zip(supports, data.H, strict=True) for z in s[1:]
    ]
    if not generators:
        return np.zeros((V, d))
    _, values, right = np.linalg.svd(np.array(generators), full_matrices=False)
    basis = right[values > 1e-9 * values[0]]
    rows = [(np.eye(V)[s][:, :, None] * h).reshape(len(s), -1) @ basis.T for s, h in zip(supports, data.H, strict=True)]

    def at(z):
        value, gradient, hessian = 0.0, np.zeros(len(z)), np.zeros((len(z), len(z)))
        for j, (s, A) in enumerate(zip(supports, rows, strict=True)):
            logits = A @ z
            q = scipy.special.softmax(logits)
            value -= share[j] * p[j, s] @ scipy.special.log_softmax(logits)
            gradient += share[j] * A.T @ (q - p[j, s])
            hessian += share[j] * A.T @ (np.diag(q) - np.outer(q, q)) @ A
        return value, gradient, hessian

    z = np.zeros(len(basis))
    for _ in range(100):
        value, gradient, hessian = at(z)
        step = np.linalg.solve(hessian, gradient)
        t = 1.0
        while at(z - t * step)[0] > value + 1e-14 and t > 1e-6:
            t /= 2
        z = z - t * step
        if np.abs(t * step).max() < 1e-13:
            break
    return (z @ basis).reshape(V, d)


@pytest.mark.statement("G Def 1", "G Eq. (4)", "G Eq. (5)", "X G1")
def test_the_finite_part_agrees_with_newtons_method():
    incompatible = 0
    for seed in range(100):
        data = random_contexts(seed)
        part, W = finite_part(data), by_newton(data)
        assert part.status.ok, seed
        np.testing.assert_allclose(part.x, W, rtol=0.0, atol=NEWTON_RTOL * (1 + np.abs(W).max()), err_msg=str(seed))
        np.testing.assert_allclose(part.subspace.project(part.x), part.x, rtol=0.0, atol=1e-12 * (1 + np.abs(W).max()))
        assert part.infimum >= data.entropy - 1e-12
        if part.compatible:
            assert part.infimum == data.entropy
            continue
        incompatible += 1
        assert part.infimum > data.entropy
        assert part.certificate_residual() < 1e-9
    assert incompatible > 5


def test_large_data_reach_the_same_finite_part_iteratively(monkeypatch):
    data = [random_contexts(seed) for seed in (3, 8, 11, 14)]
    small = [finite_part(one) for one in data]
    monkeypatch.setattr("marginlens.nexttoken.contexts.MAX_BASIS_ENTRIES", 0)
    for one, part in zip(data, small, strict=True):
        other = finite_part(one)
        assert (other.status, other.compatible) == (part.status, part.compatible)
        np.testing.assert_allclose(other.x, part.x, rtol=0.0, atol=1e-7 * (1 + np.abs(part.x).max()))
        W = np.random.default_rng(0).standard_normal(one.shape)
        np.testing.assert_allclose(other.subspace.project(W), part.subspace.project(W), rtol=0.0, atol=1e-9)


@pytest.mark.statement("G Eq. (2)", "G entropy")
def test_the_risk_keeps_the_contract_and_is_the_cross_entropy():
    data = separable_contexts()
    risk = ml.ContextRisk(data)
    check_risk(risk)
    W = np.random.default_rng(1).standard_normal(data.shape)
    counts = data.counts.toarray()
    logs = scipy.special.log_softmax(data.H @ W.T, axis=1)
    assert float(risk.value(W)) == pytest.approx(-np.sum(counts * logs) / counts.sum(), rel=1e-14, abs=ROUNDING)
    p = counts / counts.sum(axis=1, keepdims=True)
    entropy = -np.sum(counts[counts > 0] / counts.sum() * np.log(p[counts > 0]))
    assert data.entropy == pytest.approx(entropy, rel=1e-14, abs=ROUNDING)
    assert float(risk.excess(W)) == pytest.approx(float(risk.value(W)) - entropy, rel=1e-12, abs=ROUNDING)
    far = ml.ntp_svm(data).x * 900 + finite_part(data).x
    assert float(risk.log_excess(far)) == pytest.approx(-900, abs=5, rel=0.0)  # e^-900 is no float64
    assert ml.correlation(-risk.gradient(far).direction().ravel(), ml.ntp_svm(data).x.ravel()) > 0.4
    one_hot = ml.ContextRisk(ml.ContextDataset(np.eye(3), np.eye(3)))
    assert float(one_hot.log_value(1000 * np.eye(3))) == pytest.approx(-1000 + np.log(2), abs=1e-9, rel=0.0)


@pytest.mark.statement("G Prop 1")
def test_the_entropy_is_approached_along_the_margin_and_never_reached():
    data = separable_contexts()
    risk, W, direction = ml.ContextRisk(data), finite_part(data).x, ml.ntp_svm(data).x
    excess = np.array([float(risk.excess(W + gamma * direction)) for gamma in (5.0, 10.0, 20.0, 40.0)])
    assert (excess > 0).all()
    np.testing.assert_allclose(np.diff(np.log(excess)) / [5, 10, 20], -1.0, rtol=0.0, atol=0.05)


@pytest.mark.statement("G Thm 2", "G Lemma 2")
def test_gradient_descent_has_both_limits_only_under_the_conditions():
    data = separable_contexts()
    risk = ml.ContextRisk(data)
    prediction = ml.predict(risk, optimizer=ml.GradientDescent(1.0))
    assert prediction.why.startswith("Certain")
    priority, finite = prediction.details
    steps = [1_000, 10_000, 100_000]
    run = ml.descend(risk, optimizer=ml.GradientDescent(1.0), n_steps=steps[-1], record=ml.Record(steps))
    points = run.saved["x"]
    distance = np.array([finite.distance(W) for W in points])
    excess = np.array([float(risk.excess(W)) for W in points])
    angle = np.array([1 - float(ml.correlation(W.ravel(), priority.x.ravel())) for W in points])
    for shrinking in (distance, excess):
        np.testing.assert_allclose(shrinking[1:] / shrinking[:-1], 0.1, rtol=0.1, atol=0.0)
    assert (np.diff(angle) < 0).all()
    shuffled = ml.ContextDataset(data.H, data.counts.toarray()[:, ::-1])
    wrong = ml.ntp_svm(shuffled).x
    assert (
        ml.correlation(points[-1].ravel(), wrong.ravel()) < 0.9 < ml.correlation(points[-1].ravel(), priority.x.ravel())
    )
    assert finite_part(shuffled).distance(points[-1]) > 0.1


def test_compiled_and_plain_steps_agree():
    data = separable_contexts()
    halves = ml.ContextDataset(data.H, data.counts.toarray() / 3)
    odd = ml.ContextDataset(
        data.H, np.where(data.counts.toarray() > 0, data.counts.toarray() + 1e-13, 0)
    )  # no whole multiples
    ends = [ml.descend(one, optimizer=ml.GradientDescent(0.5), n_steps=300) for one in (data, halves, odd)]
    loops = [type(run.continuation.loop).__name__ for run in ends]
    assert loops == ["MatrixLoop", "MatrixLoop", "StepwiseLoop"]
    for run in ends[1:]:
        np.testing.assert_allclose(run.final, ends[0].final, rtol=0.0, atol=1e-10)


@pytest.mark.statement("G Thm 1")
def test_the_path_reaches_the_margin_direction_and_the_log_odds():
    data = separable_contexts()
    priority, finite = ml.ntp_svm(data), finite_part(data)
    path = ml.path(data, [10.0, 100.0, 1000.0, 1e5])
    assert path.kkt_residual().max() < 1e-10
    assert 1 - path.correlation(priority.x)[-1] < 1e-9
    parts = path.split().cyclic
    distance = np.linalg.norm((parts - finite.x).reshape(4, -1), axis=1)
    assert distance[0] > 1e-4 > 1e-12 > distance[1:].max()
    with refused("problem"):
        ml.path(ml.ContextDataset(np.eye(80), np.eye(80) + np.eye(80)[::-1]), 1.0)


@pytest.mark.statement("X G1")
def test_separable_data_without_log_odds_stay_above_the_entropy():
    H = [
        [1.0, 0.2],
        [2.0, 0.4],
        [-0.3, 1.0],
    ]  # the first two contexts are parallel: their log-odds contradict each other
    data = ml.ContextDataset(H, [[3, 1, 0, 0], [1, 1, 0, 0], [0, 0, 2, 1]])
    prediction = ml.predict_limit(data)
    assert prediction.direction is None
    assert prediction.reasons[0].code == "decoder.finite"
    finite = prediction.details.finite
    assert not finite.compatible
    run = ml.descend(data, optimizer=ml.GradientDescent(0.5), n_steps=40_000)
    assert finite.distance(run.final) < 1e-3
    assert 0 < float(ml.ContextRisk(data).value(run.final)) - finite.infimum < 1e-3 < finite.infimum - data.entropy


def test_predictions_name_failing_conditions():
    data = separable_contexts()
    assert "Muon" in ml.predict(ml.ContextRisk(data), optimizer=ml.Muon(0.1)).why
    assert "step size" in str(ml.predict(ml.ContextRisk(data), optimizer=ml.GradientDescent(1e3)).verdicts[1].failed[0])
    narrow = ml.ContextDataset(data.H[:, :1], data.counts)
    assert [check.code for check in ml.predict_limit(narrow).verdicts[-1].failed] == ["requirement.decodable"]
    every = ml.ContextDataset(data.H, data.counts.toarray() + 1)
    assert ml.predict_limit(every).reasons[0].code == "decoder.trivial"


def test_a_text_gives_its_contexts():
    tokens = np.array([0, 1, 2, 0, 1, 3, 0, 1, 2])
    windows = np.lib.stride_tricks.sliding_window_view(tokens, 3)
    data = ml.ContextDataset.from_windows(windows[:, :2], windows[:, 2], lambda distinct: np.eye(4)[distinct[:, -1]], 4)
    assert data.n_contexts == 5
    np.testing.assert_array_equal(data.counts.toarray()[0], [0, 0, 2, 1])  # after 0, 1
    merged = data.merged()
    assert merged.n_contexts == 4
    assert merged.counts.sum() == data.counts.sum()
    assert len(data.to_frame()) == 5


@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("counts", lambda: ml.ContextDataset(np.eye(2), [[1, 0], [0, 0]])),
        ("counts", lambda: ml.ContextDataset(np.eye(2), [[1, -1], [0, 1]])),
        ("counts", lambda: ml.ContextDataset(np.eye(2), [1, 2])),
        ("H", lambda: ml.ContextDataset(np.eye(3), np.eye(2))),
        ("H", lambda: ml.ContextDataset(scipy.sparse.eye_array(3), np.eye(2))),
        ("following", lambda: ml.ContextDataset.from_windows([[0], [1]], [0, 5], np.eye(2).__getitem__, 3)),
        ("data", lambda: ml.ntp_svm(np.eye(2))),
        ("data", lambda: support_subspace(None)),
    ],
)
def test_invalid_arguments_are_refused(argument, call):
    with pytest.raises(ml.InputError) as refusal:
        call()
    assert refusal.value.argument == argument
