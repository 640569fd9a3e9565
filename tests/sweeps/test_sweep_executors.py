"""Where the chunks of a sweep are computed: any executor gives the same bytes, and nothing that is killed spoils them."""

import os
import signal
import time
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor

import pytest

import marginlens as ml
import tolerances
from marginlens.errors import EngineError
from refusals import raised, refused
from sweep_kills import KINDS, PLAN, Trials, chunk_bytes, count_chunks, group_members, loky_workers, start

KEYS = {"n_inputs": 3, "n_tokens": 4, "d": [2, 7], "n_steps": 30, "n_problems": 25, "chunk": 6, "seed": 5}
N_KILLS = 10


HAS_PROC = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are counted in /proc")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return ml.sweep(KEYS, tmp_path_factory.mktemp("sweep") / "made")


class Immediate(Executor):
    """An executor by its interface alone, which computes a chunk when it is submitted."""

    def submit(self, function, /, *arguments):
        future = Future()
        future.set_result(function(*arguments))
        return future


@pytest.mark.parametrize("make", [Immediate, lambda: ThreadPoolExecutor(3), lambda: ProcessPoolExecutor(2)])
def test_any_executor_writes_the_same_bytes_and_stays_open(made, tmp_path, make):
    with make() as executor:
        other = ml.sweep(KEYS, tmp_path / "other", executor)
        assert executor.submit(abs, -1).result() == 1
    assert chunk_bytes(other.folder) == chunk_bytes(made.folder)


def test_the_default_starts_a_process_for_each_processor(made, tmp_path, monkeypatch):
    monkeypatch.setenv("MARGINLENS_THREADS", "2")
    keys = {**KEYS, "measures": {"process": lambda run: [os.getpid()] * len(run.data)}}
    table = ml.sweep(keys, tmp_path / "pids").table(["process"]).to_pydict()
    assert os.getpid() not in table["process"]
    assert 1 <= len(set(table["process"])) <= 2
    assert chunk_bytes(ml.sweep(KEYS, tmp_path / "other").folder) == chunk_bytes(made.folder)


@pytest.mark.slow
def test_a_dask_cluster_of_two_workers_writes_the_same_bytes(made, tmp_path):
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        other = ml.sweep(KEYS, tmp_path / "other", client.get_executor())
        assert len(client.nthreads()) == 2
    assert chunk_bytes(other.folder) == chunk_bytes(made.folder)


class Breaking(Immediate):
    """An executor that breaks after four chunks."""

    n_left = 4

    def submit(self, function, /, *arguments):
        self.n_left -= 1
        if self.n_left < 0:
            raise BrokenExecutor("a process was terminated abruptly")
        return super().submit(function, *arguments)


def test_a_broken_executor_is_reported_and_keeps_finished_chunks(made, tmp_path):
    with raised(EngineError, "BrokenExecutor"):
        ml.sweep(KEYS, tmp_path / "broken", Breaking())
    status = ml.sweeps.Sweep.open(tmp_path / "broken").status()
    assert status.chunks_done < status.n_chunks
    assert chunk_bytes(ml.sweep(KEYS, tmp_path / "broken").folder) == chunk_bytes(made.folder)


@HAS_PROC
def test_an_error_in_a_measure_is_raised_and_leaves_no_process(tmp_path, monkeypatch):
    monkeypatch.setenv("MARGINLENS_THREADS", "2")

    def fails(run):
        raise ZeroDivisionError("no width")

    with refused("measures"):
        ml.sweep({**KEYS, "measures": {"size": fails}}, tmp_path / "wrong")
    assert loky_workers(os.getpid()) == []


def always_dies(run):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_a_measure_that_kills_its_process_ends_the_sweep(tmp_path, monkeypatch):
    monkeypatch.setenv("MARGINLENS_THREADS", "2")
    with raised(EngineError, "3 times"):
        ml.sweep({**KEYS, "measures": {"size": always_dies}}, tmp_path / "dying")


@pytest.mark.parametrize("executor", [4, "processes", object()])
def test_an_invalid_executor_is_refused(tmp_path, executor):
    with refused("executor"):
        ml.sweep(KEYS, tmp_path / "other", executor)
    assert not (tmp_path / "other").exists()


# ---- kill -9, Ctrl-C and a second process


@pytest.fixture(scope="module")
def trials(tmp_path_factory):
    """Sweeps of many small chunks, and the bytes of an undisturbed one."""
    return Trials(tmp_path_factory.mktemp("many"), seed=3)


@HAS_PROC
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_sweep_killed_by_signal_9_resumes_to_the_same_bytes(trials, kind):
    if kind.startswith("dask"):
        pytest.importorskip("distributed")
    kills = 0
    for trial in range(3 * N_KILLS):
        n_chunks, whole, error = trials.trial(f"{kind} {trial}", kind)
        assert whole, error
        kills += n_chunks is not None
        if kills == N_KILLS:
            return
    raise AssertionError(f"only {kills} of {3 * N_KILLS} sweeps were still running when the kill came")


def begun(trials, name, n_chunks):
    """A sweep in a process of its own that has written so many chunks, and its folder."""
    folder = trials.folder / name
    process = start(folder, plan={**PLAN, "n_steps": [400_000, 400_001]})  # chunks of about a second
    while process.poll() is None and count_chunks(folder) < n_chunks:
        time.sleep(0.01)
    return process, folder


@HAS_PROC
@pytest.mark.slow
def test_ctrl_c_keeps_finished_chunks_and_tells_how_to_resume(trials):
    process, folder = begun(trials, "interrupted", 2)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole group
    _, error = process.communicate(timeout=tolerances.HANGING)
    assert error.splitlines()[-1].startswith("KeyboardInterrupt: ")
    assert "run the same sweep again" in error
    assert error.count("Traceback") == 1  # its own, and none of a worker
    sweep = ml.sweeps.Sweep.open(folder)
    assert 2 <= sweep.status().chunks_done < sweep.status().n_chunks
    assert sweep.table(partial=True).num_rows == sweep.status().problems_done


SLOW_CHUNKS = {**PLAN, "n_steps": [200_000, 200_001], "n_problems": 40}  # eight chunks of about half a second


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return chunk_bytes(ml.sweep(SLOW_CHUNKS, tmp_path_factory.mktemp("slow") / "undisturbed").folder)


@HAS_PROC
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parent", "pool", "dask"])
@pytest.mark.parametrize(("n_chunks", "delay"), [(0, 0.0), (0, 0.8), (1, 0.0), (2, 0.3)])
def test_ctrl_c_leaves_no_process_and_a_resumable_folder(undisturbed, tmp_path, kind, n_chunks, delay):
    """At the start, while workers start, when a chunk has just been written, and in the middle of the next ones."""
    if kind == "dask":
        pytest.importorskip("distributed")
    folder = tmp_path / "made"
    process = start(folder, kind, SLOW_CHUNKS)
    process.stdout.readline()
    while process.poll() is None and count_chunks(folder) < n_chunks:
        time.sleep(0.002)
    time.sleep(delay)
    os.killpg(process.pid, signal.SIGINT)
    _, error = process.communicate(timeout=tolerances.HANGING)
    assert process.returncode != 0
    assert "KeyboardInterrupt" in error
    until = time.monotonic() + tolerances.HANGING
    while group_members(process.pid) and time.monotonic() < until:
        time.sleep(0.1)
    assert group_members(process.pid) == []
    assert chunk_bytes(ml.sweep(SLOW_CHUNKS, folder).folder) == undisturbed
    assert sorted(entry.name for entry in folder.iterdir()) == ["chunks", "lock", "plan.json"]


class Watched(ThreadPoolExecutor):
    """Threads, and the futures of all chunks that were handed to them."""

    def __init__(self):
        super().__init__(2)
        self.futures = []

    def submit(self, function, /, *arguments):
        self.futures.append(super().submit(function, *arguments))
        return self.futures[-1]


def test_workers_drop_their_chunks_after_the_sweep_ended(tmp_path):
    """Ctrl-C after the first chunk, while a thread is in the middle of a chunk of minutes."""
    plan = {"n_inputs": 3, "n_tokens": 4, "d": 3, "n_steps": [1, 10**9], "n_problems": 1}

    def interrupt(done, total):
        if done:
            raise KeyboardInterrupt

    with raised(KeyboardInterrupt, "1 of 2 problems"), Watched() as executor:
        ml.sweep(plan, tmp_path / "made", executor, progress=interrupt)
    _, long = executor.futures
    assert long.cancelled() or "has ended" in str(long.exception())
    assert ml.sweeps.Sweep.open(tmp_path / "made").status().chunks_done == 1


@HAS_PROC
@pytest.mark.slow
def test_a_second_process_on_the_same_folder_is_refused(trials):
    process, folder = begun(trials, "locked", 1)
    try:
        with refused("folder"):
            ml.sweep({**PLAN, "n_steps": [400_000, 400_001]}, folder)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
