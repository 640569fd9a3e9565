"""What every loop of `descend` promises: steps are those of the optimizer, a batch is the loop over its problems, and runs can be cut
into slices, resumed and interrupted without changing a number.
"""

import os
import signal
import subprocess
import sys
import threading
from typing import Any, NamedTuple

import numpy as np
import pytest

import marginlens as ml
from marginlens.dynamics.loops import StepwiseLoop
from marginlens.optimizers import Blockwise, PowerDecay
from marginlens.risk import MulticlassRisk, MultiHeadRisk
from marginlens.runtime import threads
from marginlens_papers.claims.random_data import class_clusters, random_start
from plain_losses import OwnLogistic, unknown
from quadratic_risk import optimizers_of_every_kind
from random_problems import mixed_sequences, positive_head
from refusals import raised
from tolerances import LOOP_AGREEMENT

HANG_SECONDS = 300  # after which a subprocess that was interrupted counts as hanging
ROOT_ROUNDING = 1e-6  # where steps are square roots of gradients, whose rounding beside zero they enlarge


class Unknown:
    """The rule of an optimizer, which no compiled loop knows."""

    def __init__(self, optimizer):
        self.init, self.update = optimizer.init, optimizer.update


def everything(run):
    """All numbers of a run by name."""
    names = ("final", "attention", "selected", "norm", "steps_taken", "status")
    return {name: np.asarray(getattr(run, name)) for name in names}


def assert_same(one, other):
    ours, theirs = everything(one), everything(other)
    for name, values in ours.items():
        assert np.array_equal(values, theirs[name]), name


class Kind(NamedTuple):
    """A batch of problems, or one, with an optimizer, starts and mini-batches; `own_loss` is its loss without a compiled branch."""

    problem: Any
    optimizer: Any
    start: Any = None
    loss: Any = None
    head: Any = None
    own_loss: Any = None
    batch_size: Any = None
    sampling: Any = None

    def __call__(self, **options):
        names = ("optimizer", "start", "loss", "head", "batch_size", "sampling")
        given = {name: getattr(self, name) for name in names}
        return ml.descend(
            self.problem, **{name: value for name, value in {**given, **options}.items() if value is not None}
        )

    def __getitem__(self, j):
        """The kind of one problem."""
        start = None if self.start is None else self.start[j]
        head = self.head[j] if isinstance(self.head, list) else self.head
        return self._replace(problem=self.problem[j], start=start, head=head)


def tokens(shape, seed=0, *, loss=None, unit=1.0):
    data, v = ml.data.sphere_tokens(*shape, seed)
    return ml.AttentionRisk(ml.TokenDataset(data.X, data.y, K=unit * data.K), v, loss or ml.Logistic())


def ragged(seed):
    rng = np.random.default_rng(seed)
    problems = [[rng.normal(size=(rng.integers(1, 5), 3)) for _ in range(3)] for _ in range(6)]
    data = ml.TokenDataset(problems, rng.choice([-1, 1], size=(6, 3)))
    return ml.AttentionRisk(data, rng.normal(size=(6, 3)))


def with_queries(risk, seed=0):
    n = risk.data.n_inputs
    return risk.as_matrix(np.random.default_rng(seed).normal(size=(*risk.data.batch_shape, n, 3)))


def kinds():
    """p itself or its coefficients, W itself or its coefficients over pairs, factors of both, plain and normalised."""
    rng = np.random.default_rng(1)
    flat, wide, uneven = tokens((3, 4, 5, 2)), tokens((3, 2, 4, 30)), ragged(0)
    exponential = tokens((3, 2, 4, 30), loss=ml.Exponential())
    normalised, constant = ml.NormalizedGD(0.5), ml.GradientDescent(0.3)
    yield "p", Kind(flat, normalised, rng.normal(size=(3, 2)))
    yield "coefficients of p", Kind(wide, normalised, rng.normal(size=(3, 30)))
    yield "ragged", Kind(uneven, ml.GradientDescent(2.0), rng.normal(size=(6, 3)))
    yield "constant", Kind(exponential, constant)
    yield "huge keys", Kind(tokens((3, 2, 4, 30), unit=1e80), ml.NormalizedGD(1e-80))
    yield (
        "many starts",
        Kind(ml.AttentionRisk(flat[0].data.repeat(3), flat[0].head), normalised, rng.normal(size=(3, 2))),
    )
    yield "one problem", Kind(flat[0], normalised)
    yield "own loss", Kind(tokens((3, 4, 5, 2), loss=OwnLogistic()), normalised)
    yield "joint", Kind(ml.JointRisk(uneven.data), Blockwise(ml.NormalizedGD(0.1)), rng.normal(size=(6, 6)))
    yield "joint, own loss", Kind(ml.JointRisk(flat.data, OwnLogistic()), constant)
    each = mixed_sequences()
    starts = 0.1 * random_start(each, 1)
    for loss in (ml.LogLoss(), ml.SquaredLoss(), ml.CrossEntropy(), ml.losses.SquaredProbability()):
        step = ml.NormalizedGD(0.02) if loss == ml.LogLoss() else ml.GradientDescent(0.5)
        yield f"next tokens, {type(loss).__name__}", Kind(each, step, starts, loss, own_loss=unknown(loss))
    heads = [positive_head(ds) for ds in each]
    yield "next tokens, heads", Kind(each, ml.NormalizedGD(0.02), starts, ml.LogLoss(), heads, unknown(ml.LogLoss()))
    for shape in ((20, 3, 60, 8), (40, 6, 150, 16)):  # many pairs, then every token with every query
        ds = ml.data.acyclic_sequences(*shape, 1)
        for step in (ml.NormalizedGD(0.02), ml.GradientDescent(2.0)):
            name = f"next tokens in {shape[1]} dimensions, {type(step).__name__}"
            yield name, Kind([ds], step, random_start([ds], 2), ml.LogLoss(), own_loss=unknown(ml.LogLoss()))


KINDS = dict(kinds())
ON_P = {
    "sign": ml.SignDescent(0.05),
    "coordinate": ml.CoordinateDescent(0.05),
    "l3": ml.SteepestDescent(ml.Lp(3.0), PowerDecay(0.3, 0.5)),
    "l1.75, heavy ball": ml.SteepestDescent(ml.Lp(1.75), 0.05, 0.8),
    "Signum, Nesterov": ml.SignDescent(0.02, 0.9, nesterov=True),
    "Euclidean, heavy ball": ml.SteepestDescent(ml.L2(), 0.1, 0.5),
    "Adam": ml.Adam(0.02),
    "Adam, eps": ml.Adam(0.05, (0.8, 0.95), 1e-3),
    "mirror": ml.MirrorDescent(1.75, 0.5),
    "normalised mirror": ml.MirrorDescent(3.0, 0.1, normalized=True),
}
ON_W = {
    **ON_P,
    "spectral": ml.SteepestDescent(ml.Spectral(), 0.05),
    "Muon": ml.Muon(0.02),
    "max row": ml.SteepestDescent(ml.MaxRow(), 0.05, 0.5),
    "normalised": ml.NormalizedGD(0.1),
    "plain": ml.GradientDescent(1.0),
}
IN_NORMS = {f"{name} on p": Kind(tokens((2, 4, 5, 6)), optimizer) for name, optimizer in ON_P.items()}
IN_NORMS |= {f"{name} on W": Kind(with_queries(tokens((2, 4, 5, 6), 1)), optimizer) for name, optimizer in ON_W.items()}
IN_NORMS |= {f"{name}, ragged": Kind(with_queries(ragged(2)), ON_W[name]) for name in ("sign", "Muon", "Adam")}
IN_NORMS |= {
    f"{name}, one query": Kind(ragged(2)[1].as_matrix(np.array([1.0, -0.5, 2.0])), ON_W[name])
    for name in ("sign", "Muon")
}


OF_MATRICES = [
    ml.Muon(0.1, 0.0),
    ml.Muon(0.1),
    ml.SteepestDescent(ml.Nuclear(), 0.1, 0.5, True),
    ml.SteepestDescent(ml.MaxRow(), 0.1, weight_decay=0.2),
]


ON_FACTORS = [  # without momentum; singular vectors first, which take all inputs at once
    ml.Muon(0.05, 0.0),
    ml.SteepestDescent(ml.Nuclear(), 0.1),
    ml.SteepestDescent(ml.MaxRow(), 0.1, weight_decay=0.2),
    ml.GradientDescent(0.3, weight_decay=0.1),
    ml.NormalizedGD(0.1),
    ml.SignDescent(PowerDecay(0.1, 0.5)),
    ml.Adam(0.02),
    ml.MirrorDescent(1.75, 0.1),
    Blockwise(ml.NormalizedGD(0.1)),
    Blockwise(ml.CoordinateDescent(0.05)),
    Blockwise(ml.Adam(0.02)),
]


def joined_kinds():
    """Decay, mini-batches, several heads, factors, classes, and head and attention by mirror descent, which loops take beside the steps."""
    of_p, sampling = tokens((3, 4, 5, 6)), ml.Sampling(1, replacement=True)
    for rule in optimizers_of_every_kind(weight_decay=0.4):
        yield f"{rule!r} on p", Kind(of_p, rule, np.random.default_rng(0).normal(size=(3, 6)))
    for rule in [*optimizers_of_every_kind(), *OF_MATRICES]:
        yield f"{rule!r}, inputs one by one", Kind(with_queries(of_p, 1), rule, batch_size=1)
        yield f"{rule!r}, pairs of inputs", Kind(with_queries(of_p, 1), rule, batch_size=2, sampling=sampling)
    data, v = of_p.data, of_p.head
    several = {
        "heads": MultiHeadRisk(data, v, 3),
        "queries": MultiHeadRisk(data, v, np.random.default_rng(3).normal(size=(4, 3, 7))),
        "self-attention": MultiHeadRisk.self_attention(data, v),
    }
    for name, risk in several.items():
        start = np.random.default_rng(2).normal(size=(3, *risk.shape))
        for rule in [*optimizers_of_every_kind()[:-1], *OF_MATRICES]:  # Adam takes heads of their own step by step
            yield f"{rule!r} on {name}", Kind(risk, rule, start)
            yield f"{rule!r} on {name}, three inputs", Kind(risk, rule, start, batch_size=3)
    queries = np.random.default_rng(1).normal(size=(3, 4, 3))
    for name, factors in {
        "factors": of_p.as_factors(queries, 2),
        "one query": of_p.as_factors(queries[0, 0], 5),
    }.items():
        start = 0.5 * np.random.default_rng(3).normal(size=(3, *factors.shape))
        for rule in ON_FACTORS:
            yield f"{rule!r} on {name}", Kind(factors, rule, start)
        for rule in ON_FACTORS[2:]:
            yield f"{rule!r} on {name}, three inputs", Kind(factors, rule, start, batch_size=3)
    classes = MulticlassRisk(*class_clusters(5, 5, 7, 0.3, 0))
    for rule in [
        *optimizers_of_every_kind(),
        *OF_MATRICES[:-1],
    ]:  # a norm of rows is another one of the transpose, which the loop moves
        yield f"{rule!r} on classes", Kind(classes, rule, 0.1 * np.random.default_rng(2).normal(size=classes.shape))
    for power in (1.75, 2.0, 3.0):
        for normalized in (True, False):
            rule = Blockwise(ml.MirrorDescent(power, 0.1, normalized=normalized))
            yield f"{rule!r} on (v, p)", Kind(ml.JointRisk(data), rule, np.random.default_rng(3).normal(size=(3, 12)))


def stepwise_kinds():
    """What no compiled loop takes: matrices and their factors, head and attention, and next tokens, by optimizers of every kind."""
    of_W, of_joint = with_queries(tokens((3, 4, 5, 4), 1)), ml.JointRisk(tokens((3, 3, 4, 5), 2).data)
    factors = of_W.of_p.as_factors(of_W.query, 2)
    start = 0.3 * np.random.default_rng(3).normal(size=(3, *factors.shape))
    for rule in (*OF_MATRICES[1:3], ml.Muon(0.1, 0.0), ml.SignDescent(0.05, 0.5)):
        yield f"{rule!r} on factors", Kind(factors, Blockwise(rule), start)
    for rule in (ml.SignDescent(0.05, 0.5), ml.CoordinateDescent(0.05), ml.Adam(0.02), ml.MirrorDescent(3.0, 0.1)):
        yield f"{rule!r} on (v, p)", Kind(of_joint, rule)
        yield f"{rule!r} on v and on p", Kind(of_joint, Blockwise(rule))
    sequences = [ml.data.acyclic_sequences(5, 6, 4, 4, seed) for seed in (0, 1)]
    for rule in (ml.SignDescent(0.02), ml.Muon(0.02), ml.SteepestDescent(ml.Nuclear(), 0.05), ml.Adam(0.02)):
        yield f"{rule!r} on next tokens", Kind(sequences, rule)


JOINED, STEPWISE = dict(joined_kinds()), dict(stepwise_kinds())
SOME = [*KINDS, "sign on p", "Signum, Nesterov on p", "Adam on W", "normalised mirror on p", "Muon on W"]
SOME += [
    name
    for name in JOINED
    if name.startswith(("SignDescent", "Blockwise(optimizer=MirrorDescent(p=1.75"))
    and name.endswith(("on p", "pairs of inputs", "on heads, three inputs", "on classes", "on (v, p)"))
]
SOME += [
    name for name in JOINED if name.startswith(("Muon", "GradientDescent", "Blockwise")) and name.endswith("factors")
]
ALL = {**KINDS, **IN_NORMS, **JOINED}


@pytest.mark.statement("A Eq. (3)", "C Algo-GD")
@pytest.mark.parametrize("name", ALL)
def test_compiled_steps_equal_the_optimizers(name):
    """Where p stays finite, normalised steps hop about and amplify rounding, here by a hundred million in 60 steps."""
    kind, n_steps = ALL[name], 120 if name in IN_NORMS else 40
    fast = kind(n_steps=n_steps)
    assert name in KINDS or not isinstance(fast.continuation.loop, StepwiseLoop)
    slow = [kind(n_steps=n_steps, optimizer=Unknown(kind.optimizer))]
    slow += [kind(n_steps=n_steps, loss=kind.own_loss)] if kind.own_loss else []
    tolerance = ROOT_ROUNDING if getattr(kind.optimizer, "norm", None) == ml.Lp(3.0) else LOOP_AGREEMENT
    for run in slow:
        assert np.allclose(fast.final, run.final, rtol=0, atol=tolerance * max(1.0, np.max(fast.norm)))
        assert fast.attention is None or np.allclose(fast.attention, run.attention, rtol=0, atol=tolerance)
        assert np.array_equal(fast.selected, run.selected)
        assert np.array_equal(fast.status, run.status)


@pytest.mark.statement("A Eq. (3)", "A Fig 3(c)", "C Algo-GD")
@pytest.mark.parametrize("name", [*[one for one in SOME if one != "one problem" and "classes" not in one], *STEPWISE])
def test_a_batch_is_the_loop_over_its_problems(name):
    kind = ALL[name] if name in ALL else STEPWISE[name]
    keep = ml.Record([0, 7, 40], ("x", "norm", "attention", "selected", "risk", "excess_risk"))
    if isinstance(kind.loss, ml.CrossEntropy | ml.losses.SquaredProbability):
        keep = ml.Record([0, 7, 40], ("x", "norm", "attention", "selected", "risk"))  # of which no infimum is known
    together = kind(n_steps=40, record=keep)
    close = LOOP_AGREEMENT if name in STEPWISE else 1e-12
    if name in STEPWISE:
        assert np.all(together.saved["risk"][:, -1] < together.saved["risk"][:, 0])
    for j in range(len(together)):
        single = kind[j](n_steps=40, record=keep)
        rows = tuple(slice(n) for n in single.attention.shape)  # of a dataset that is smaller than others
        size = max(1.0, float(np.max(np.abs(single.final))))
        assert np.allclose(single.final, together.final[j], rtol=0, atol=LOOP_AGREEMENT * size)
        assert np.allclose(single.attention, together.attention[j][rows], rtol=0, atol=LOOP_AGREEMENT)
        assert not together.attention[j][len(single.attention) :].any()
        assert np.all(together.selected[j][len(single.attention) :] == -1)
        assert single.status is together.status[j]
        for quantity in ("x", "norm", "risk"):
            assert np.allclose(single.saved[quantity], together.saved[quantity][j], rtol=close, atol=close), quantity
        if "excess_risk" in single.saved:
            assert np.allclose(
                single.saved["excess_risk"].log, together.saved["excess_risk"].log[j], rtol=1e-9, atol=0.0
            )


@pytest.mark.parametrize("kind", [*SOME, *STEPWISE])
def test_a_resumed_run_equals_the_uninterrupted_one(kind):
    train = ALL[kind] if kind in ALL else STEPWISE[kind]
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


def test_runs_that_ended_early_are_unchanged_by_resume():
    data, v = ml.data.scored_tokens([[(1.0, 0.0), (0.0, 0.0)]], [[1.0, 1.0]])  # nothing to gain anywhere
    run = ml.descend(data, v, n_steps=5)
    assert run.status is ml.Status.STATIONARY
    assert_same(run.resume(7, record=ml.Record(steps=3)), run)
    exploding = ml.descend(data.repeat(2), np.array([[0.0, 0.0, 1e300], [0.0, 0.0, 1.0]]), n_steps=3)
    assert_same(
        exploding.resume(3), ml.descend(data.repeat(2), np.array([[0.0, 0.0, 1e300], [0.0, 0.0, 1.0]]), n_steps=6)
    )


def test_runs_that_cannot_resume_are_refused():
    flow = ml.flow(tokens((1, 2, 3, 2)), until=ml.UntilLength(1.0))
    with raised(ml.InputError, "run.final"):
        flow.resume(3)


@pytest.mark.parametrize("kind", SOME)
@pytest.mark.parametrize("workers", ["1", "3"])
def test_slicing_a_run_does_not_change_it(kind, workers, monkeypatch):
    """Against slices of a step or two, on one thread and on three."""
    whole = ALL[kind](n_steps=130)
    monkeypatch.setenv("MARGINLENS_THREADS", workers)
    reports = []
    with threads.sliced(threads.Slicing(seconds=1e-6, first_rate=1.0, thread_worth=1.0)):
        cut = ALL[kind](n_steps=130, progress=lambda *report: reports.append(report))
    assert_same(cut, whole)
    assert len(reports) > 20
    done, total = np.array(reports).T
    assert np.all(np.diff(done) > 0)
    assert done[-1] == total[0] == 130 * max(1, np.size(whole.status))
    assert np.all(total == total[0])


@pytest.mark.parametrize("kind", SOME)
def test_an_exception_in_progress_ends_the_descent(kind):
    where, before = [], set(threading.enumerate())

    def enough(done, total):
        where.append(threading.current_thread())
        if done > total // 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), threads.sliced(threads.Slicing(seconds=1e-4)):
        ALL[kind](n_steps=800, progress=enough)
    assert set(where) == {threading.main_thread()}
    assert set(threading.enumerate()) <= before
    ALL[kind](n_steps=3)  # and nothing is left behind that would disturb the next


def test_an_error_in_a_kernel_reaches_the_caller(monkeypatch):
    monkeypatch.setenv("MARGINLENS_THREADS", "2")

    def kernel(first, last):
        if first > 2:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        threads.parallel_over(kernel, 40, step_cost=1e8)


def test_every_problem_is_taken_once(monkeypatch):
    monkeypatch.setenv("MARGINLENS_THREADS", "4")
    counts = np.zeros(1000, dtype=int)

    def kernel(first, last):
        counts[first:last] += 1

    with threads.sliced(threads.Slicing(seconds=1e-5)):
        threads.parallel_over(kernel, 1000)
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


@pytest.mark.posix("signal for another process")
@pytest.mark.parametrize(("n_problems", "d", "workers"), [(1, 2, "1"), (2, 30, "2"), (2000, 2, "2")])
def test_a_keyboard_interrupt_ends_a_long_descent(n_problems, d, workers):
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
