"""Descent: one loop against another, batches against singles, starts, records, endings and bad input."""

import numpy as np
import pytest

import marginlens as ml
from decimal_oracle import gradient as decimal_gradient
from plain_losses import OwnLogistic, unknown
from refusals import raised, refused
from tolerances import LEMMA_1, LOOP_AGREEMENT, ROUNDING, SIX_DIGITS


def test_every_step_at_norm_ten_thousand_is_exact():
    """Steps of NGD started at ‖p‖ = 1e4, where the gradient is e^-1000s, against decimal arithmetic."""
    for seed in range(3):
        data, v = ml.data.sphere_tokens(1, 2, 3, 3, seed)
        data, v = data[0], v[0]
        direction = np.random.default_rng(seed).normal(size=3)
        p = start = 1e4 * direction / np.linalg.norm(direction)
        for _ in range(5):
            p = p - decimal_gradient(data, v, p, "Logistic")[0]
        run = ml.descend(data, v, start=start, n_steps=5)
        assert np.max(np.abs(run.final - p)) < 1e-8
        assert run.norm > 9.9e3


@pytest.mark.parametrize("width", [3, 40])
@pytest.mark.parametrize("exponent", [-490, 490])
def test_normalized_descent_does_not_depend_on_the_scale_of_keys(width, exponent):
    data, v = ml.data.sphere_tokens(2, 3, 4, width, np.random.default_rng(5))
    start, unit = np.random.default_rng(6).normal(size=width), 2.0**exponent
    plain = ml.descend(data, v, optimizer=ml.NormalizedGD(0.5), start=start, n_steps=150)
    scaled = ml.TokenDataset(data.X, data.y, K=data.K * unit)
    run = ml.descend(scaled, v, optimizer=ml.NormalizedGD(0.5 / unit), start=start / unit, n_steps=150)
    assert all(one is ml.Status.COMPLETED for one in run.status)
    assert np.allclose(run.final * unit, plain.final, rtol=LOOP_AGREEMENT, atol=0)
    assert np.allclose(run.attention, plain.attention, rtol=0, atol=LOOP_AGREEMENT)


def test_problems_that_share_memory_keep_their_own_labels_and_tokens():
    rng = np.random.default_rng(1)
    one, v, start = rng.normal(size=(2, 3, 4)), rng.normal(size=4), rng.normal(size=4)
    shared = np.broadcast_to(one, (2, 2, 3, 4))
    for data in (
        ml.TokenDataset(shared, [[1, 1], [-1, -1]]),
        ml.TokenDataset(rng.normal(size=(2, 2, 3, 4)), np.ones((2, 2)), K=shared),
    ):
        together, joint = ml.descend(data, v, n_steps=20), ml.descend(ml.JointRisk(data), start=(v, start), n_steps=20)
        for j in range(2):
            assert np.array_equal(together.final[j], ml.descend(data[j], v, n_steps=20).final)
            assert np.array_equal(joint.final[j], ml.descend(ml.JointRisk(data[j]), start=(v, start), n_steps=20).final)


def test_record_keeps_requested_quantities():
    data, v = ml.data.sphere_tokens(3, 2, 3, 4, 0)
    assert len(ml.descend(data, v, n_steps=5).saved) == 0
    run = ml.descend(data, v, n_steps=25, record=ml.Record(10, ("x", "norm", "excess_risk")))
    assert run.saved.steps.tolist() == [0, 10, 20, 25]
    assert run.saved["x"].shape == (3, 4, 4)
    assert np.array_equal(run.saved["x"][:, -1], run.final)
    assert np.allclose(run.saved["norm"], np.linalg.norm(run.saved["x"], axis=-1), rtol=ROUNDING, atol=0.0)
    assert run.saved["excess_risk"].log.shape == (3, 4)
    ten = ml.descend(data, v, n_steps=10).final
    assert np.array_equal(run.saved["x"][:, 1], ten)
    assert repr(run.saved) == "Saved(x, norm, excess_risk at 4 steps)"
    with raised(KeyError, "risk"):
        run.saved["risk"]
    names = ("x", "norm", "attention", "selected", "risk", "excess_risk")
    for steps in ([2, 5], []):
        one = ml.descend(data[0], v[0], n_steps=6, record=ml.Record(steps, names)).saved
        assert [len(one[name]) for name in names[:-1]] == [len(steps)] * 5
        assert one["attention"].shape == (len(steps), 2, 3)
        assert one["excess_risk"].log.shape == (len(steps),)


# ---- endings, of compiled loops and of NumPy's


def nothing_to_select(loss):
    """Inputs of one token, tokens that score alike, tokens at the origin, and sequences that hold nothing but their labels."""
    one_token = ml.TokenDataset(np.ones((3, 1, 2)), [1, 1, -1])
    for optimizer in (None, ml.GradientDescent(1.0), ml.SignDescent(1.0)):
        yield ml.AttentionRisk(one_token, np.ones(2), loss), optimizer
    equal, v = ml.data.scored_tokens(np.random.default_rng(0).normal(size=(2, 3, 2)), np.ones((2, 3)))
    yield ml.AttentionRisk(equal, v, loss), None
    yield ml.JointRisk(ml.TokenDataset([[(0.0, 0.0), (0.0, 0.0)]], [1.0]), loss), None
    for of_labels in (ml.LogLoss(), ml.SquaredLoss(), ml.CrossEntropy(), ml.losses.SquaredProbability()):
        used = of_labels if isinstance(loss, ml.Logistic) else unknown(of_labels)
        yield ml.NextTokenRisk(ml.SequenceDataset([[0], [1, 1]], [0, 1], np.eye(2)), None, used), None
        yield ml.NextTokenRisk(ml.SequenceDataset([[0, 0]], [0], np.ones((1, 2))), None, used), None


LOOPS = pytest.mark.parametrize("loss", [ml.Logistic(), OwnLogistic()], ids=["compiled", "numpy"])


@LOOPS
def test_a_problem_without_choices_is_stationary(loss):
    for risk, optimizer in nothing_to_select(loss):
        run = ml.descend(risk, optimizer=optimizer, n_steps=10, record=ml.Record(5))
        assert run.status is ml.Status.STATIONARY
        assert (run.norm, run.steps_taken) == (0, 0)
        assert not run.saved["x"].any()


@LOOPS
def test_a_run_that_overflows_stops_alone(loss):
    """One problem with keys of 1e300 overflows at once, and so does (v, p) at 1e308; their neighbours go on."""
    data, v = ml.data.sphere_tokens(3, 2, 3, 2, 0)
    K = data.K.copy()
    K[1] *= 1e300
    wild = ml.TokenDataset(data.X, data.y, K=K)
    start = np.full((3, 2), 1e10)
    far = np.array([[0.0, 1.0, 1.0, 0.0], [1e308] * 4, [0.0, 1.0, 1.0, 0.0]])
    for risk, begin in (
        (ml.AttentionRisk(wild, v, loss), start),
        (ml.JointRisk(ml.data.figure_3a().repeat(3), loss), far),
    ):
        run = ml.descend(risk, n_steps=50, start=begin, record=ml.Record(10))
        assert run.status[1] is ml.Status.NON_FINITE
        assert run.status[0] is run.status[2] is ml.Status.COMPLETED
        assert np.isfinite(run.final).all()
        assert run.steps_taken.tolist() == [50, 0, 50]
        assert np.array_equal(run.saved["x"][1], np.tile(begin[1], (6, 1)))
        alone = ml.descend(risk[0], n_steps=50, start=begin[0])
        assert np.allclose(alone.final, run.final[0], rtol=LOOP_AGREEMENT, atol=0)


@LOOPS
def test_diverging_steps_end_at_the_last_finite_iterate(loss):
    data, v = ml.data.sphere_tokens(2, 2, 3, 3, 1)
    run = ml.descend(data, v, loss=loss, optimizer=ml.GradientDescent(1e308), n_steps=50, start=np.full(3, 1e300))
    assert np.isfinite(run.final).all()
    thrown = ml.descend(ml.data.acyclic_sequences(4, 4, 3, 3, 0), optimizer=ml.GradientDescent(1e308), n_steps=9)
    assert np.isfinite(thrown.final).all()


@LOOPS
def test_a_zero_gradient_in_a_batch_rests(loss):
    """From zero no token scores anything: only v can move."""
    run = ml.descend(ml.JointRisk(ml.data.figure_3a(), loss), n_steps=1)
    assert not run.split().p.any()
    assert run.norm == pytest.approx(0.1, rel=SIX_DIGITS, abs=ROUNDING)
    assert run.status is ml.Status.COMPLETED


@pytest.mark.parametrize("loss", [ml.LogLoss(), unknown(ml.LogLoss())], ids=["compiled", "numpy"])
def test_a_run_ends_where_the_loss_does(loss):
    ended = ml.descend(ml.SequenceDataset([[0, 1]], [0], np.eye(2)), head=-np.eye(2), loss=loss, n_steps=5)
    assert ended.status is ml.Status.NON_FINITE
    assert not ended.final.any()


# ---- p and W


@pytest.mark.statement("A Lemma 1", "A Eq. (15b)")
@pytest.mark.parametrize("head", ["linear", "nonlinear"])
@pytest.mark.parametrize("step", [ml.GradientDescent(1.0), ml.NormalizedGD(0.1)], ids=lambda one: type(one).__name__)
def test_descent_on_w_follows_descent_on_p(head, step):
    rng = np.random.default_rng(0)
    data, v = ml.data.sphere_tokens(2, 3, 4, 5, rng)
    u = rng.normal(size=3) * 2
    if head == "nonlinear":
        torch = pytest.importorskip("torch")
        torch.manual_seed(0)
        v = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1))
    start = rng.normal(size=(2, 5))
    n_steps = 300 if head == "linear" else 60
    vector = ml.descend(data, v, optimizer=step, n_steps=n_steps, start=start)
    matrix = ml.descend(
        ml.AttentionRisk(data, v).as_matrix(u),
        optimizer=ml.dynamics.matching_optimizer(step, u),
        n_steps=n_steps,
        start=ml.risk.matrix_from_vector(start, u),
    )
    expected = ml.risk.matrix_from_vector(vector.final, u)
    assert np.max(np.abs(matrix.final - expected)) / np.abs(expected).max() < LEMMA_1
    assert np.array_equal(matrix.selected, vector.selected)
    wrong = ml.descend(
        ml.AttentionRisk(data, v).as_matrix(u),
        optimizer=step,
        n_steps=n_steps,
        start=ml.risk.matrix_from_vector(start, u),
    )
    assert np.max(np.abs(wrong.final - expected)) / np.abs(expected).max() > 1e-3  # the step must be matched
    single = ml.descend(
        ml.AttentionRisk(data[0], v if head == "nonlinear" else v[0]).as_matrix(u),
        optimizer=ml.dynamics.matching_optimizer(step, u),
        n_steps=3,
    )
    assert single.final.shape == (3, 5)


@pytest.mark.statement("A Lemma 1")
@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_queries_of_any_length_scale_matrix_and_step(scale):
    p, u = np.array([1.0, -2.0, 3.0]), np.array([3.0, -4.0])
    np.testing.assert_allclose(ml.risk.matrix_from_vector(p, scale * u).T @ (scale * u), p, rtol=ROUNDING, atol=0.0)
    assert ml.dynamics.matching_optimizer(ml.NormalizedGD(2.0), scale * u).size == pytest.approx(
        0.4 / scale, rel=1e-6, abs=0.0
    )


def test_nonlinear_linear_head_equals_linear_head():
    torch = pytest.importorskip("torch")
    data, v = ml.data.sphere_tokens(1, 3, 4, 5, 0)
    module = torch.nn.Linear(5, 1, bias=False).double()
    with torch.no_grad():
        module.weight[:] = torch.tensor(v)
    a, b = ml.descend(data, v, n_steps=200), ml.descend(data, module, n_steps=200)
    assert np.max(np.abs(a.final - b.final)) < 1e-8
    with refused("head"):
        ml.descend(data, lambda z: z, n_steps=1)
    with refused("head"):
        ml.descend(data, lambda z: torch.ones(len(z)), n_steps=1)
    record = ml.Record([0, 200], ("excess_risk",))
    a, b = (ml.descend(data, head, n_steps=200, record=record).saved["excess_risk"] for head in (v, module))
    np.testing.assert_allclose(a.log, b.log, rtol=1e-6, atol=0.0)
