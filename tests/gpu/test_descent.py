"""Descent on a device, by the CPU twin of its kernel: the runs of the CPU, in every form of the kernel, and what is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import marginlens as ml
from gpu.twin import TwinDevice, device_arrays
from marginlens.data import scored_tokens, sphere_tokens
from marginlens.gpu.descent import GRAM_FORM, IN_GLOBAL, IN_REGISTERS, IN_SHARED, KEYS_FORM, DescentKernel, Shape
from marginlens.gpu.device import MEMORY_SHARE, to_host
from marginlens.optimizers.schedules import PowerDecay
from marginlens.sweeps.on_device import Training, trained_on_device
from random_examples import examples
from random_problems import ragged_problem
from refusals import refused

pytestmark = pytest.mark.usefixtures("device")
P_RTOL = 1e-9  # of the length of p, for runs that do not amplify rounding
CASES = [  # shape, optimizer, loss, steps, form of the state, place of its matrix
    ((4, 6, 20), ml.NormalizedGD(1.0), ml.Logistic(), 300, GRAM_FORM, IN_REGISTERS),
    ((4, 6, 5), ml.GradientDescent(1.0), ml.Exponential(), 300, GRAM_FORM, IN_REGISTERS),
    ((2, 3, 5), ml.NormalizedGD(0.5), ml.CorrelationLoss(), 300, GRAM_FORM, IN_REGISTERS),
    ((6, 6, 30), ml.NormalizedGD(1.0), ml.Logistic(), 130, GRAM_FORM, IN_SHARED),
    ((6, 6, 5), ml.NormalizedGD(0.2), ml.Logistic(), 130, KEYS_FORM, IN_SHARED),
    ((3, 40, 70), ml.NormalizedGD(1.0), ml.Logistic(), 70, GRAM_FORM, IN_GLOBAL),
    ((3, 40, 80), ml.SignDescent(0.05), ml.Logistic(), 70, KEYS_FORM, IN_GLOBAL),
    ((4, 6, 12), ml.SignDescent(PowerDecay(0.2, 0.5)), ml.Logistic(), 130, KEYS_FORM, IN_SHARED),
    ((4, 6, 12), ml.CoordinateDescent(0.05), ml.Logistic(), 130, KEYS_FORM, IN_SHARED),
    ((4, 6, 12), ml.SteepestDescent(ml.Lp(3.0), 0.05), ml.Logistic(), 130, KEYS_FORM, IN_SHARED),
    ((4, 6, 12), ml.SteepestDescent(ml.Lp(1.75), 0.05), ml.Logistic(), 130, KEYS_FORM, IN_SHARED),
    ((40, 2, 3), ml.GradientDescent(0.5), ml.Logistic(), 70, KEYS_FORM, IN_SHARED),
]


def assert_same_runs(run, expected):
    error = np.linalg.norm(run.final - expected.final, axis=-1)
    assert np.all(error <= P_RTOL * np.maximum(expected.norm, 1e-300))
    np.testing.assert_array_equal(run.selected, expected.selected)
    np.testing.assert_array_equal(run.steps_taken, expected.steps_taken)
    np.testing.assert_array_equal(run.status, expected.status)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{type(case[1]).__name__}-{type(case[2]).__name__}")
def test_runs_equal_the_cpus(case):
    shape, optimizer, loss, n_steps, form, place = case
    data, head = sphere_tokens(4, *shape, 0)
    start = np.random.default_rng(1).standard_normal((4, shape[2]))
    start[0] = 0.0
    options = {"loss": loss, "optimizer": optimizer, "n_steps": n_steps, "start": start}
    run = ml.descend(data, head, device="cuda", **options)
    assert_same_runs(run, ml.descend(data, head, **options))
    kind = run.continuation.loop.kernel
    assert (kind.form, kind.place) == (form, place)


@examples(8)
@given(seed=st.integers(0, 2**32 - 1))
def test_ragged_inputs_equal_the_cpus(seed):
    data, head = ragged_problem(np.random.default_rng(seed), 4, 6, 8)
    if data.n_tokens < 6 or data.mask.all():
        return  # another shape, whose kernel is compiled elsewhere
    options = {"optimizer": ml.NormalizedGD(0.1), "n_steps": 150}
    assert_same_runs(ml.descend(data, head, device="cuda", **options), ml.descend(data, head, **options))


def test_tied_tokens_and_scores_equal_the_cpus():
    rng = np.random.default_rng(4)
    keys = rng.standard_normal((6, 4, 6, 10))
    keys[:, :, 3] = keys[:, :, 2]  # twins among the tokens
    scores = rng.integers(0, 2, (6, 4, 6)).astype(float)  # many scores tie, also with the best
    scores[0, 0] = 1.0  # an input without a gradient
    data, head = scored_tokens(keys, scores)
    options = {"optimizer": ml.NormalizedGD(0.1), "n_steps": 300}
    run, expected = ml.descend(data, head, device="cuda", **options), ml.descend(data, head, **options)
    error = np.linalg.norm(run.final - expected.final, axis=-1)
    assert np.all(error <= P_RTOL * expected.norm)


def test_steps_far_out_are_exact():
    """At norm 1e6 every weight is below the smallest double; how far a run gets from there is the same to 1e-7."""
    data, head = sphere_tokens(5, 4, 6, 30, 3)
    begun = ml.descend(data, head, n_steps=100)
    start = begun.final * (1e6 / begun.norm[:, None])
    run, expected = (ml.descend(data, head, start=start, n_steps=150, device=device) for device in ("cuda", "cpu"))
    moved = np.linalg.norm(expected.final - start, axis=-1)
    assert np.all(np.linalg.norm(run.final - expected.final, axis=-1) <= 1e-7 * moved)
    assert_same_runs(run, expected)


def test_tokens_tied_with_the_selected_one_count_far_out():
    """Others are so far behind that a token with the score of the selected one, beside it, has a weight e^1000 times theirs, times zero."""
    rng = np.random.default_rng(11)
    keys, scores = rng.standard_normal((4, 4, 6, 30)), rng.standard_normal((4, 4, 6))
    keys[:, :, 1] = keys[:, :, 0] + 1e-3 * rng.standard_normal((4, 4, 30))
    scores[:, :, :2] = scores.max(axis=-1, keepdims=True) + 1.0
    data, head = scored_tokens(keys, scores)
    begun = ml.descend(data, head, n_steps=100)
    start = begun.final * (3e3 / begun.norm[:, None])
    run, expected = (ml.descend(data, head, start=start, n_steps=60, device=device) for device in ("cuda", "cpu"))
    moved = np.linalg.norm(expected.final - start, axis=-1)
    assert np.all(np.linalg.norm(run.final - expected.final, axis=-1) <= 1e-7 * moved)


def test_scores_far_from_one_use_logarithmic_weights():
    rng = np.random.default_rng(7)
    keys, scores = rng.standard_normal((3, 4, 6, 20)), 600.0 * rng.standard_normal((3, 4, 6))
    data, head = scored_tokens(keys, scores)
    # differences in scores of 600 amplify rounding in later ones
    options = {"optimizer": ml.NormalizedGD(0.1), "n_steps": 10}
    assert_same_runs(ml.descend(data, head, device="cuda", **options), ml.descend(data, head, **options))


def test_runs_end_as_on_the_cpu():
    one_token, head = sphere_tokens(2, 4, 1, 5, 0)
    stuck = ml.descend(one_token, head, device="cuda", n_steps=5)
    assert (stuck.status == ml.Status.STATIONARY).all()
    assert not stuck.steps_taken.any()
    data, head = sphere_tokens(3, 4, 6, 20, 0)
    options = {"optimizer": ml.NormalizedGD(1e307), "n_steps": 200}
    run, expected = ml.descend(data, head, device="cuda", **options), ml.descend(data, head, **options)
    np.testing.assert_array_equal(run.status, expected.status)
    assert (run.status == ml.Status.NON_FINITE).all()
    assert np.isfinite(run.final).all()


def test_records_resume_and_progress_work_on_the_gpu():
    data, head = sphere_tokens(6, 4, 6, 20, 2)
    record, calls = ml.Record([0, 3, 64, 100], ("x", "norm")), []
    run = ml.descend(
        data, head, n_steps=100, record=record, device="cuda", progress=lambda done, total: calls.append((done, total))
    )
    expected = ml.descend(data, head, n_steps=100, record=record)
    np.testing.assert_allclose(run.saved["x"], expected.saved["x"], rtol=0.0, atol=1e-9 * expected.norm.max())
    assert calls[-1] == (600, 600)
    resumed = ml.descend(data, head, n_steps=37, device="cuda").resume(63)
    np.testing.assert_array_equal(resumed.final, run.final)

    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # what the callback raises ends the descent
        ml.descend(data, head, n_steps=100, device="cuda", progress=interrupt)


@pytest.mark.parametrize("optimizer", [ml.NormalizedGD(50.0), ml.SteepestDescent(ml.Lp(3.0), 5.0)], ids=["l2", "l3"])
def test_splitting_steps_keeps_the_bits_of_a_saturated_run(optimizer):
    """Weights are scaled by a shift that follows them for many steps: it is part of what a call leaves to the next."""
    data, head = sphere_tokens(4, 4, 6, 12, 3)
    options = {"optimizer": optimizer, "device": "cuda"}
    run = ml.descend(data, head, n_steps=300, **options)
    assert run.attention.max(axis=-1).min() == 1.0  # other tokens are far behind
    cut = ml.descend(data, head, n_steps=23, **options)
    for n_steps in (1, 76, 151, 49):
        cut = cut.resume(n_steps)
    np.testing.assert_array_equal(cut.final, run.final)
    np.testing.assert_array_equal(cut.attention, run.attention)


def test_many_starts_on_one_problem_equal_the_cpus():
    data, head = sphere_tokens(1, 4, 6, 20, 5)
    many, start = data[0].repeat(4), np.random.default_rng(0).standard_normal((4, 20))
    options = {"start": start, "n_steps": 100}
    assert_same_runs(ml.descend(many, head[0], device="cuda", **options), ml.descend(many, head[0], **options))


def test_a_batch_beyond_the_memory_is_split(device, small_device):
    if not isinstance(device, TwinDevice):
        pytest.skip("its memory is what it is")
    data, head = sphere_tokens(9, 4, 6, 20, 6)
    whole = ml.descend(data, head, n_steps=50, device="cuda")
    kernel = DescentKernel(device, Shape(4, 6, 20), 0, 1, False)
    few = int((2.5 * kernel.bytes_per_problem(1) + kernel.fixed_bytes) / MEMORY_SHARE)
    small_device(few)
    calls = []
    split = ml.descend(data, head, n_steps=50, device="cuda", progress=lambda done, total: calls.append(done))
    np.testing.assert_array_equal(split.final, whole.final)
    assert len(calls) >= 5
    small_device(1000)
    with refused("device"):
        ml.descend(data, head, n_steps=50, device="cuda")


def test_runs_on_the_device_equal_the_cpus_and_stay_there(device):
    data, head = sphere_tokens(6, 4, 6, 20, 8)
    start = np.random.default_rng(0).standard_normal((6, 20))
    training = Training(ml.Logistic(), ml.NormalizedGD(1.0), 100, start)
    run = trained_on_device(device, device_arrays(device, data, head), training)
    assert type(run.final) is type(device.xp.empty(0))
    final, selected, saturation, ends = map(to_host, run)
    expected = ml.descend(data, head, n_steps=100, start=start)
    assert np.all(np.linalg.norm(final - expected.final, axis=-1) <= P_RTOL * expected.norm)
    np.testing.assert_array_equal(selected, expected.selected)
    np.testing.assert_allclose(saturation, expected.attention.max(axis=-1).mean(axis=-1), rtol=1e-9, atol=0.0)
    np.testing.assert_array_equal(ends, np.stack([np.zeros(6), expected.steps_taken], axis=1))


def test_extreme_keys_run_on_the_cpu():
    data, head = sphere_tokens(4, 4, 6, 20, 9)
    X = data.X.copy()
    X[1] *= 1e-75
    X[2] *= 1e75
    extreme = ml.TokenDataset(data.X, data.y, K=X)
    expected = ml.descend(extreme, head, n_steps=50)
    assert_same_runs(ml.descend(extreme, head, n_steps=50, device="cuda"), expected)
    assert_same_runs(ml.descend(extreme, head, n_steps=20, device="cuda").resume(30), expected)


@pytest.mark.parametrize("optimizer", [ml.Adam(0.1), ml.SignDescent(0.1, 0.9), ml.MirrorDescent(3.0, 0.1)], ids=repr)
def test_optimizers_without_gpu_support_are_refused(device, optimizer):
    data, head = sphere_tokens(2, 4, 6, 20, 0)
    with refused("device"):
        ml.descend(data, head, optimizer=optimizer, device="cuda")
    with refused("device"):
        trained_on_device(device, device_arrays(device, data, head), Training(ml.Logistic(), optimizer, 10))


def test_problems_without_gpu_support_are_refused():
    data, head = sphere_tokens(2, 4, 6, 20, 0)
    for argument, call in (
        ("device", lambda: ml.descend(ml.JointRisk(data), device="cuda")),
        ("device", lambda: ml.descend(data[0], head[0], batch_size=2, device="cuda")),
        ("record", lambda: ml.descend(data, head, record=3, device="cuda")),
        ("head", lambda: ml.descend(data, head[0, :3], device="cuda")),
    ):
        with refused(argument):
            call()


# ---- thousands of problems, some of whose runs amplify rounding

STEADY_RTOL = 1e-12  # a run is steady if permuting the coordinates of all vectors moves the CPU's p by less
N_PROBLEMS = 10_000


def compare(data, head, least_steady=0.9, **options):
    """Runs on both, and what the CPU itself makes of the same problems with coordinates in another order."""
    expected = ml.descend(data, head, **options)
    run = ml.descend(data, head, device="cuda", **options)
    order = np.random.default_rng(0).permutation(data.d_model)
    moved = ml.TokenDataset(np.ascontiguousarray(data.X[..., order]), data.y)
    again = ml.descend(moved, np.ascontiguousarray(head[..., order]), **options)
    size = np.maximum(expected.norm, 1e-300)
    steady = np.linalg.norm(again.final - expected.final[..., order], axis=-1) < STEADY_RTOL * size
    error = np.linalg.norm(run.final - expected.final, axis=-1) / size
    assert steady.mean() >= least_steady
    assert error[steady].max() < P_RTOL
    agree = np.all(again.selected == expected.selected, axis=-1)
    np.testing.assert_array_equal(run.selected[agree], expected.selected[agree])
    np.testing.assert_array_equal(run.status[agree], expected.status[agree])


LARGE = {
    "d = 10": (N_PROBLEMS, (4, 6, 10), 1000, {}),
    "d = 100": (N_PROBLEMS, (4, 6, 100), 1000, {}),
    "d = 5": (N_PROBLEMS, (2, 3, 5), 1000, {}),
    "exponential": (N_PROBLEMS, (4, 6, 100), 1000, {"loss": ml.Exponential()}),
    "correlation": (N_PROBLEMS, (4, 6, 100), 1000, {"loss": ml.CorrelationLoss()}),
    "constant steps": (N_PROBLEMS, (4, 6, 100), 1000, {"optimizer": ml.GradientDescent(1.0)}),
    "signs": (2000, (4, 6, 50), 500, {"optimizer": ml.SignDescent(0.05)}),
    "coordinates": (2000, (4, 6, 50), 500, {"optimizer": ml.CoordinateDescent(0.05)}),
    "l3": (2000, (4, 6, 50), 500, {"optimizer": ml.SteepestDescent(ml.Lp(3.0), 0.05)}),
    "64 tokens": (100, (8, 8, 100), 100, {}),
    "36 tokens": (100, (6, 6, 5), 100, {}),
    "400 tokens": (100, (20, 20, 30), 100, {}),
    "long inputs": (100, (3, 40, 70), 100, {}),
}


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["gpu"], indirect=True)
@pytest.mark.parametrize("name", LARGE)
def test_large_batches_equal_the_cpus(name):
    count, shape, n_steps, options = LARGE[name]
    compare(*sphere_tokens(count, *shape, 1), n_steps=n_steps, **options)


@pytest.mark.parametrize("loss", [ml.LogProbability(), ml.ArcsineLoss()], ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("optimizer", [ml.NormalizedGD(0.3), ml.GradientDescent(0.5), ml.SignDescent(0.05)], ids=repr)
def test_losses_with_poles_equal_the_cpus(loss, optimizer):
    """From zero up to where the attention of most inputs is all on right or on wrong tokens."""
    rng = np.random.default_rng(39)
    keys, scores = rng.standard_normal((5, 3, 4, 10)), rng.integers(0, 2, (5, 3, 4)).astype(float)
    scores[..., 0] = np.where(scores.max(axis=-1) == 0.0, 1.0, scores[..., 0])
    scores[0, 0] = 1.0  # an input without a gradient
    data, head = scored_tokens(keys, scores)
    start = rng.standard_normal((5, 10)) * np.array([0.0, 1.0, 30.0, 400.0, 3e3])[:, None]
    options = {"loss": loss, "optimizer": optimizer, "n_steps": 120, "start": start}
    run, expected = ml.descend(data, head, device="cuda", **options), ml.descend(data, head, **options)
    moved = np.linalg.norm(expected.final - start, axis=-1)
    assert np.all(np.linalg.norm(run.final - expected.final, axis=-1) <= 1e-8 * moved + 1e-12 * expected.norm)


SHORT_STEPS = (
    (6, 6, 5),
    ml.NormalizedGD(0.03),
    ml.Logistic(),
    130,
    KEYS_FORM,
    IN_SHARED,
)  # longer ones amplify rounding


@pytest.mark.parametrize("case", [*(CASES[k] for k in (0, 1, 5, 7)), SHORT_STEPS], ids=lambda case: str(case[0]))
def test_offsets_of_logits_equal_the_cpus(case):
    """In all forms of the state, with inputs of different lengths, beyond the step after which logits are formed afresh."""
    (n, T, d), optimizer, loss, n_steps, form, _ = case
    rng = np.random.default_rng(57)
    data, head = sphere_tokens(3, n, T, d, 5)
    offsets = 2.0 * rng.standard_normal((3, n, T))
    data = ml.TokenDataset(data.X, data.y, offsets=offsets)
    short = data.shortened(np.where(np.arange(n) % 2, T, T - 1) * np.ones((3, 1), dtype=np.int64))
    for problems in (data, short):
        options = {"loss": loss, "optimizer": optimizer, "n_steps": n_steps}
        run = ml.descend(problems, head, device="cuda", **options)
        expected = ml.descend(problems, head, **options)
        assert run.continuation.loop.kernel.form == form
        assert np.all(np.linalg.norm(run.final - expected.final, axis=-1) <= P_RTOL * expected.norm)
