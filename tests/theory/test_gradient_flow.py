"""Arc-length gradient flow: the curve of the flow in time, the limit of small normalised steps, and no stalling where it is stiff."""

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.optimize import minimize

import marginlens as ml
import tolerances
from marginlens.data import figure_1b, sphere_tokens
from marginlens.data.labelled import LabelledSequences, embedding_tokens
from marginlens.dynamics.flow import Event, FlowRun, KeySpanField, RadauSteps
from marginlens.embeddings import Parameters, embedding_flow, initial_parameters, loss_and_gradients
from marginlens.embeddings.one_step import first_step
from marginlens_papers.claims.random_data import balanced_sequences
from plain_losses import OwnExponential
from random_problems import problem, ragged_problem
from refusals import refused


def after_one_step(seed, n, T, d, rate):
    """Balanced sequences and the parameters after the first step on them."""
    rng = np.random.default_rng(seed)
    data = balanced_sequences(n, T, 2, 3, rng)
    return data, first_step(initial_parameters(data.n_vocabulary, d, rng, np.float64), rate, data).after


@pytest.mark.statement("B Eq. (7)")
@pytest.mark.parametrize("seed", range(2))
def test_flow_agrees_with_the_flow_in_time(seed):
    data, v = ragged_problem(np.random.default_rng(seed), 4, 4, 6)
    start = np.random.default_rng(50 + seed).standard_normal(6)

    def moving(_, state):
        g = ml.AttentionRisk(data, v).gradient(state[:-1]).value()
        return np.append(-g, np.linalg.norm(g))  # p and its arc length

    end = solve_ivp(moving, (0.0, 20.0), np.append(start, 0.0), method="DOP853", rtol=1e-11, atol=1e-12).y[:, -1]
    run = ml.flow(data, v, start=start, until=ml.UntilLength(end[-1]), rtol=1e-10)
    assert run.status is ml.Status.COMPLETED
    np.testing.assert_allclose(run.final, end[:-1], rtol=0.0, atol=tolerances.FLOW_IN_TIME)


@pytest.mark.statement("B Eq. (7)")
def test_longer_keys_have_the_same_curve_nearer_to_zero():
    data, v = problem(np.random.default_rng(7), 3, 4, 5)
    start = np.random.default_rng(8).standard_normal(5)
    one = ml.flow(ml.TokenDataset(data.X, data.y), v, start=start, until=ml.UntilLength(20.0), rtol=1e-9)
    for scale in (1e-120, 1e8, 1e120):
        scaled = ml.TokenDataset(data.X * scale, data.y)
        other = ml.flow(scaled, v / scale, start=start / scale, until=ml.UntilLength(20.0 / scale), rtol=1e-9)
        assert other.status is ml.Status.COMPLETED
        np.testing.assert_allclose(other.final * scale, one.final, rtol=0.0, atol=tolerances.FLOW_IN_TIME)


@pytest.mark.statement("B Eq. (7)", "B Eq. (1)")
def test_flow_in_paper_bs_setting_follows_the_embedding_loss():
    data, after = after_one_step(1, 8, 4, 40, 5.0)

    def moving(_, state):
        g = loss_and_gradients(Parameters(after.E, state[:-1], after.v), data)[1].p
        return np.append(-g, np.linalg.norm(g))

    end = solve_ivp(moving, (0.0, 200.0), np.append(after.p, 0.0), method="DOP853", rtol=1e-11, atol=1e-12).y[:, -1]
    run = ml.flow(embedding_tokens(after.E, data), after.v, start=after.p, until=ml.UntilLength(end[-1]), rtol=1e-10)
    assert end[-1] > 3.0
    np.testing.assert_allclose(run.final, end[:-1], rtol=0.0, atol=tolerances.FLOW_IN_TIME)


@pytest.mark.statement("B Eq. (7)")
@pytest.mark.parametrize("loss", [ml.Logistic(), ml.Exponential(), ml.CorrelationLoss()])
@pytest.mark.parametrize(
    ("n", "T", "d", "way"), [(1, 3, 2, 300.0), (3, 6, 8, 100.0), (5, 4, 30, 40.0), (3, 4, 5, 900.0)]
)
def test_compiled_flow_on_random_problems_agrees_with_scipys_radau(n, T, d, way, loss):
    rng = np.random.default_rng((n, T, d))
    data, v = ragged_problem(rng, n, T, d)
    field = KeySpanField(ml.AttentionRisk(data, v, loss))
    c = field.coordinates(rng.standard_normal(d))[0]
    oracle, compiled = RadauSteps(field, c, 1e-9), FlowRun(field, field.basis @ c)
    while oracle.length < way:
        assert oracle.advance(way - oracle.length) is Event.NONE
    compiled.follow(0.3 * way)
    compiled.follow(way)  # goes on from there
    np.testing.assert_allclose(compiled.point, field.basis @ oracle.c, rtol=0.0, atol=tolerances.STIFF_FLOW * way)


@pytest.mark.statement("B Eq. (7)")
def test_normalized_steps_approach_the_flow_at_first_order():
    data, v = figure_1b()
    flow = ml.flow(data, v, until=ml.UntilLength(20.0), rtol=1e-10).final
    sizes = np.array([0.1, 0.025])
    ends = [ml.descend(data, v, optimizer=ml.NormalizedGD(eta), n_steps=round(20.0 / eta)).final for eta in sizes]
    apart = np.linalg.norm(np.array(ends) - flow, axis=1)
    order = np.log(apart[0] / apart[1]) / np.log(sizes[0] / sizes[1])
    assert order == pytest.approx(1.0, abs=0.05, rel=0.0)


@pytest.mark.parametrize("loss", [ml.Logistic(), ml.Exponential(), ml.CorrelationLoss()])
def test_flow_jacobian_is_the_derivative_of_the_field(loss):
    data, v = ragged_problem(np.random.default_rng(4), 4, 5, 7)
    field = KeySpanField(ml.AttentionRisk(data, v, loss))
    c = np.random.default_rng(5).standard_normal(field.basis.shape[1])
    step = 1e-5
    for scale in (0.5, 5.0):
        ahead, behind = (
            np.stack([field(0.0, scale * c + h * e) for e in np.eye(len(c))], axis=1) for h in (step, -step)
        )
        exact = field.jacobian(0.0, scale * c)
        np.testing.assert_allclose(
            exact,
            (ahead - behind) / (2.0 * step),
            rtol=0.0,
            atol=1e-3 * tolerances.FLOW_IN_TIME + 1e-5 * np.abs(exact).max(),
        )


def test_halving_the_tolerance_changes_less_than_it():
    data, v = problem(np.random.default_rng(8), 4, 4, 8)
    ends = {tol: ml.flow(data, v, until=ml.UntilLength(20.0), rtol=tol).final for tol in (1e-4, 1e-7, 1e-11)}
    coarse, fine = (np.linalg.norm(ends[tol] - ends[1e-11]) for tol in (1e-4, 1e-7))
    assert fine < 1e-6 < coarse < 1e-2


@pytest.mark.statement("A Thm 3", "B Eq. (7)")
def test_flow_on_paper_as_data_reaches_its_max_margin_direction():
    data, v = sphere_tokens(3, 3, 4, 6, np.random.default_rng(0))
    near, far = (ml.flow(data, v, until=ml.UntilNorm(norm)) for norm in (1e3, 1e4))
    np.testing.assert_array_equal(near.selected, far.selected)
    target = ml.att_svm(data, far.selected).x
    apart = np.sqrt(2.0 - 2.0 * np.array([ml.correlation(run.final, target) for run in (near, far)]))
    np.testing.assert_allclose(np.log10(apart[0] / apart[1]), 1.0, rtol=0.0, atol=0.1)  # the distance falls like 1/‖p‖
    assert np.all(ml.correlation(far.final, target) > tolerances.ALIGNED)


@pytest.mark.parametrize("seed", range(2))
def test_flow_stops_at_a_minimum(seed):
    rng = np.random.default_rng(seed)
    for _ in range(100):
        data, v = problem(rng, 8, 3, 2)
        run = ml.flow(data, v, until=ml.UntilNorm(100.0))
        if run.status is ml.Status.STATIONARY:
            break
    assert run.status is ml.Status.STATIONARY
    ours = float(ml.AttentionRisk(data, v).value(run.final))
    near = minimize(lambda p: float(ml.AttentionRisk(data, v).value(p)), run.final + 1e-2, method="BFGS")
    assert near.fun == pytest.approx(ours, abs=tolerances.GENERAL_MINIMISER, rel=0.0)
    assert near.fun > ours - tolerances.ROUNDING
    assert float(np.linalg.norm(ml.AttentionRisk(data, v).gradient(run.final).value())) < tolerances.ROUNDING
    assert run.norm < 100.0


@pytest.mark.parametrize(
    "data",
    [ml.TokenDataset(np.ones((2, 3, 4)), [1, -1]), ml.TokenDataset(np.ones((2, 1, 4)), [1, -1])],
    ids=["equal keys", "one token"],
)
def test_flow_without_a_gradient_stays_at_the_start(data):
    run = ml.flow(data, np.ones(4), start=np.arange(4.0), record=ml.Record(steps=[0, 5], keep=("x",)))
    assert run.status is ml.Status.STATIONARY
    assert run.steps_taken == 0
    np.testing.assert_array_equal(run.saved["x"], [np.arange(4.0)] * 2)


@pytest.mark.statement("B Eq. (7)")
@pytest.mark.parametrize("seed", [0, 2])
def test_flow_does_not_stall_when_stiff(seed):
    n, T = 8, 4
    data, after = after_one_step(seed, n, T, 512, 4.0 * n**2 * T**2)
    tokens = embedding_tokens(after.E, data)
    run = ml.flow(tokens, after.v, start=after.p, until=ml.UntilNorm(500.0))
    assert run.status is ml.Status.COMPLETED
    assert 500.0 <= run.norm <= 500.0 * (1.0 + 1e-8)
    downhill = -ml.AttentionRisk(tokens, after.v).gradient(run.final).array
    assert ml.correlation(run.final, downhill) > 0.99  # it goes on growing
    finer = ml.flow(tokens, after.v, start=after.p, until=ml.UntilNorm(500.0), rtol=1e-9)
    np.testing.assert_allclose(run.final, finer.final, rtol=0.0, atol=tolerances.STIFF_FLOW * 500.0)
    steps = ml.descend(tokens, after.v, start=after.p, optimizer=ml.NormalizedGD(1.0), n_steps=500)
    assert steps.norm < 250.0  # the same arc length, spent on oscillation


@pytest.mark.statement("B Lemma 6")
def test_flow_stays_in_the_span_of_key_differences():
    data, v = ragged_problem(np.random.default_rng(3), 3, 3, 20)
    start = np.random.default_rng(4).standard_normal(20)
    run = ml.flow(data, v, start=start, until=ml.UntilNorm(300.0))
    basis = ml.AttentionRisk(data, v).in_key_span().basis
    moved = run.final - start
    np.testing.assert_allclose(moved - basis @ (basis.T @ moved), 0.0, rtol=0.0, atol=tolerances.ROUNDING * 300.0)


def test_the_risk_falls_all_along():
    data, v = problem(np.random.default_rng(2), 4, 4, 10)
    run = ml.flow(data, v, until=ml.UntilLength(12.5), record=ml.Record(steps=1, keep=("x", "risk", "norm")))
    assert run.saved.steps.tolist() == list(range(13))
    assert np.all(np.diff(run.saved["risk"]) < 0.0)
    lengths = np.linalg.norm(np.diff(run.saved["x"], axis=0), axis=1)
    assert np.all(lengths <= 1.0 + 1e-9)  # a chord is no longer than its arc
    np.testing.assert_allclose(
        run.saved["norm"], np.linalg.norm(run.saved["x"], axis=1), rtol=tolerances.ROUNDING, atol=0.0
    )


def test_intermediate_points_of_a_flow_equal_shorter_flows():
    data, v = figure_1b()
    run = ml.flow(data, v, until=ml.UntilNorm(30.0), record=ml.Record(steps=[0, 4, 9, 1000], keep=("x",)))
    for s, p in list(zip(run.saved.steps, run.saved["x"], strict=True))[1:3]:
        np.testing.assert_allclose(p, ml.flow(data, v, until=ml.UntilLength(float(s))).final, rtol=0.0, atol=1e-6)
    np.testing.assert_array_equal(run.saved["x"][-1], run.final)  # it ended before
    every = ml.flow(data, v, until=ml.UntilNorm(30.0), record=ml.Record(steps=10, keep=("norm",)))
    assert every.saved.steps.tolist() == [0, 10, 20, 30]


def test_flow_of_a_batch_equals_single_flows():
    data, v = sphere_tokens(3, 3, 3, 5, np.random.default_rng(7))
    start = np.random.default_rng(8).standard_normal((3, 5))
    record = ml.Record(steps=5, keep=("x",))
    batch = ml.flow(data, v, start=start, until=ml.UntilNorm(20.0), record=record)
    for j in range(3):
        one = ml.flow(data[j], v[j], start=start[j], until=ml.UntilNorm(20.0), record=record)
        np.testing.assert_array_equal(batch.final[j], one.final)
        np.testing.assert_array_equal(batch.saved["x"][j][: len(one.saved.steps)], one.saved["x"])
        assert batch.steps_taken[j] == one.steps_taken


def test_flow_takes_a_user_loss_and_a_nonlinear_head():
    data, v = ragged_problem(np.random.default_rng(6), 3, 4, 8)
    until = ml.UntilLength(4.0)
    compiled = ml.flow(data, v, loss=ml.Exponential(), until=until).final
    np.testing.assert_allclose(
        ml.flow(data, v, loss=OwnExponential(), until=until).final, compiled, rtol=0.0, atol=1e-6
    )
    torch = pytest.importorskip("torch")
    head = torch.tensor(v)
    curve = ml.flow(data, v, until=until).final
    np.testing.assert_allclose(ml.flow(data, lambda z: z @ head, until=until).final, curve, rtol=0.0, atol=1e-6)


@pytest.mark.statement("B Eq. (7)")
def test_flow_in_the_span_of_embeddings_is_the_same():
    data, after = after_one_step(0, 8, 4, 128, 60.0)
    record = ml.Record(steps=[0, 3, 10], keep=("x", "norm"))
    wide = ml.flow(embedding_tokens(after.E, data), after.v, start=after.p, until=ml.UntilNorm(50.0), record=record)
    narrow = embedding_flow(after, data, until=ml.UntilNorm(50.0), record=record)
    np.testing.assert_allclose(narrow.final, wide.final, rtol=0.0, atol=tolerances.STIFF_FLOW)
    np.testing.assert_allclose(narrow.saved["x"], wide.saved["x"], rtol=0.0, atol=tolerances.STIFF_FLOW)
    np.testing.assert_allclose(narrow.saved["norm"], wide.saved["norm"], rtol=0.0, atol=tolerances.STIFF_FLOW)
    np.testing.assert_allclose(narrow.attention, wide.attention, rtol=0.0, atol=tolerances.STIFF_FLOW)
    unused = LabelledSequences([data[i][0] for i in range(8)], data.y, data.n_vocabulary + 50)
    rows = np.concatenate([after.E, np.ones((50, 128))])
    more = embedding_flow(Parameters(rows, after.p, after.v), unused, until=ml.UntilNorm(50.0))
    np.testing.assert_allclose(more.final, wide.final, rtol=0.0, atol=tolerances.STIFF_FLOW)
    # no room for a narrower form
    few = Parameters(after.E[:, :6], after.p[:6], after.v[:6] / np.linalg.norm(after.v[:6]))
    assert embedding_flow(few, data, until=ml.UntilNorm(20.0)).final.shape == (6,)
    with refused("model.E"):
        embedding_flow(Parameters(after.E[:3], after.p, after.v), data)
