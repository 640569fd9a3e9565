"""Long loops run in slices: they report progress, can be interrupted and resumed, and none of it changes a number."""

import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

import marginlens as ml
from marginlens.runtime import threads

HANG_SECONDS = 300  # after which a subprocess that was interrupted counts as hanging


class OwnLogistic(ml.losses.Loss):
    def value(self, u):
        return np.logaddexp(0.0, -u)

    def derivative(self, u):
        return -1.0 / (1.0 + np.exp(u))


def everything(run):
    """All numbers of a run by name."""
    names = ("final", "v", "p", "attention", "selected", "norm", "norms", "steps_taken")
    found = {name: getattr(run, name) for name in names if hasattr(run, name)}
    return {**found, "status": np.asarray(run.status)}


def assert_same(one, other):
    ours, theirs = everything(one), everything(other)
    assert ours.keys() == theirs.keys()
    for name, values in ours.items():
        assert np.array_equal(values, theirs[name]), name


def tokens(shape, seed=0):
    data, v = ml.data.sphere_tokens(*shape, seed)
    return data, v, np.random.default_rng(seed).normal(size=(shape[0], shape[-1]))


def sequences():
    return [
        ml.data.cyclic_sequences(6, 8, 6, 4, 1),
        ml.data.acyclic_sequences(30, 8, 80, 6, 2),
    ]  # of few pairs, and of many


def descents():
    """Every kind of loop: p itself or its coefficients, W itself or its coefficients, plain and normalised, compiled and in NumPy."""
    wide, wide_v, wide_start = tokens((3, 2, 4, 30))
    flat, flat_v, flat_start = tokens((3, 4, 5, 2))
    huge = ml.TokenDataset(wide.X, wide.y, K=wide.K * 1e80)
    constant = ml.GradientDescent(0.3)
    yield "wide", lambda **k: ml.descend(wide, wide_v, start=wide_start, **k)
    yield "flat", lambda **k: ml.descend(flat, flat_v, start=flat_start, **k)
    yield "constant", lambda **k: ml.descend(wide, wide_v, optimizer=constant, loss=ml.Exponential(), **k)
    yield "huge keys", lambda **k: ml.descend(huge, wide_v, optimizer=ml.NormalizedGD(1e-80), **k)
    yield "one problem", lambda **k: ml.descend(flat[0], flat_v[0], **k)
    yield "many starts", lambda **k: ml.descend(flat[0].repeat(3), flat_v[0], start=flat_start, **k)
    yield "own loss", lambda **k: ml.descend(flat, flat_v, loss=OwnLogistic(), **k)
    yield "joint", lambda **k: ml.descend(ml.JointRisk(flat), **k)
    yield "joint, own loss", lambda **k: ml.descend(ml.JointRisk(flat, OwnLogistic()), optimizer=constant, **k)
    yield "next tokens", lambda **k: ml.descend(sequences(), optimizer=ml.NormalizedGD(0.05), **k)
    yield "one dataset", lambda **k: ml.descend(sequences()[0], **k)
    yield "cross-entropy", lambda **k: ml.descend(sequences(), loss=ml.CrossEntropy(), optimizer=constant, **k)


KINDS = dict(descents())


@pytest.mark.parametrize("kind", KINDS)
def test_resuming_gives_exactly_the_run_that_was_not_interrupted(kind):
    train = KINDS[kind]
    whole = train(n_steps=150, record=ml.Record(steps=1))
    first = train(n_steps=37)
    second = first.resume(50, record=ml.Record(steps=1))
    third = second.resume(63)
    assert_same(third, whole)
    assert_same(first.resume(50), second)  # resuming leaves a run as it is
    assert_same(third.resume(0), third)
    assert second.saved.steps.tolist() == list(range(38, 88))
    axis = 1 if np.ndim(whole.status) else 0
    for name in second.saved:
        part = np.take(whole.saved[name], np.arange(38, 88), axis=axis)
        assert np.array_equal(second.saved[name], part), name


def test_runs_that_ended_early_stay_as_they_are():
    data, v = ml.data.scored_tokens([[(1.0, 0.0), (0.0, 0.0)]], [[1.0, 1.0]])  # nothing to gain anywhere
    run = ml.descend(data, v, n_steps=5)
    assert run.status is ml.Status.STATIONARY
    assert_same(run.resume(7, record=ml.Record(steps=3)), run)
    exploding = ml.descend(data.repeat(2), np.array([[0.0, 0.0, 1e300], [0.0, 0.0, 1.0]]), n_steps=3)
    assert_same(
        exploding.resume(3), ml.descend(data.repeat(2), np.array([[0.0, 0.0, 1e300], [0.0, 0.0, 1.0]]), n_steps=6)
    )


def test_what_cannot_go_on_says_so():
    data, v, _ = tokens((1, 2, 3, 2))
    flow = ml.flow(data, v, until=ml.UntilLength(1.0))
    with pytest.raises(ml.InputError, match=r"This run cannot go on.*Start anew at run\.final"):
        flow.resume(3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", ["1", "3"])
def test_slices_change_nothing(kind, workers, monkeypatch):
    """Against slices of a step or two, on one thread and on three."""
    whole = KINDS[kind](n_steps=130)
    monkeypatch.setenv("MARGINLENS_THREADS", workers)
    monkeypatch.setattr(threads, "_SLICE_SECONDS", 1e-6)
    monkeypatch.setattr(threads, "_FIRST_RATE", 1.0)
    reports = []
    assert_same(KINDS[kind](n_steps=130, progress=lambda *report: reports.append(report)), whole)
    assert len(reports) > 20
    done, total = np.array(reports).T
    assert np.all(np.diff(done) > 0)
    assert done[-1] == total[0] == 130 * max(1, np.size(whole.status))
    assert np.all(total == total[0])


@pytest.mark.parametrize("kind", KINDS)
def test_what_progress_raises_ends_the_descent(kind, monkeypatch):
    monkeypatch.setattr(threads, "_SLICE_SECONDS", 1e-4)
    where, before = [], set(threading.enumerate())

    def enough(done, total):
        where.append(threading.current_thread())
        if done > total // 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        KINDS[kind](n_steps=3000, progress=enough)
    assert set(where) == {threading.main_thread()}
    assert set(threading.enumerate()) <= before
    KINDS[kind](n_steps=3)  # and nothing is left behind that would disturb the next


def test_an_error_in_a_kernel_reaches_the_caller(monkeypatch):
    monkeypatch.setenv("MARGINLENS_THREADS", "2")

    def kernel(first, last):
        if first > 2:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        threads.over_problems(kernel, 40, step_cost=1e8)


def test_every_problem_is_taken_once(monkeypatch):
    monkeypatch.setenv("MARGINLENS_THREADS", "4")
    monkeypatch.setattr(threads, "_SLICE_SECONDS", 1e-5)
    counts = np.zeros(1000, dtype=int)

    def kernel(first, last):
        counts[first:last] += 1

    threads.over_problems(kernel, 1000)
    assert np.all(counts == 1)


PROGRAM = """
import sys
import marginlens as ml

data, v = ml.data.sphere_tokens({n_problems}, 2, 3, {d}, 0)
try:
    ml.descend(data, v, n_steps=10**12, progress=lambda done, total: print("going", flush=True))
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(0)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals of a terminal are sent otherwise there")
@pytest.mark.parametrize(("n_problems", "d", "workers"), [(1, 2, "1"), (2, 30, "2"), (2000, 2, "2")])
def test_a_real_interrupt_ends_a_descent_that_would_take_years(n_problems, d, workers):
    environment = {**os.environ, "MARGINLENS_THREADS": workers}
    program = PROGRAM.format(n_problems=n_problems, d=d)
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert child.stdout.readline() == "going\n"
        child.send_signal(signal.SIGINT)
        output, _ = child.communicate(timeout=HANG_SECONDS)
    finally:
        child.kill()
    assert output.endswith("interrupted\n")
    assert child.returncode == 0
