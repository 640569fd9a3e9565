"""Tasks on a Dask cluster: every task once, whatever happens to workers, and a sentence where the scheduler is gone."""

import os
import time

import pytest

from dask_cluster import DaskCluster
from marginlens.engines import Engine, as_engine
from marginlens.errors import EngineError
from marginlens.runtime.threads import n_threads
from refusals import refused

pytestmark = pytest.mark.slow  # it starts and ends processes

DaskEngine = pytest.importorskip("marginlens.engines.dask", exc_type=ImportError).DaskEngine


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    without_marginlens = tmp_path_factory.mktemp("none")
    package = without_marginlens / "marginlens"
    package.mkdir()
    (package / "__init__.py").write_text("raise ModuleNotFoundError(name='marginlens')")
    with DaskCluster(2, n_threads=2, scheduler_path=without_marginlens) as cluster:
        engine = DaskEngine.from_scheduler(cluster.address, 60.0)
        wait_for_workers(engine, 4)
        yield engine, cluster


def wait_for_workers(engine, count):
    while engine.n_workers < count:
        time.sleep(0.05)


def nap(task):
    time.sleep(0.01)
    return task * task


def share(task):
    return n_threads()


def refuse_seven(task):
    if task == 7:
        raise ValueError("seven is not wanted")
    return task


def test_every_task_is_yielded_once_and_few_are_out(cluster):
    engine, _ = cluster
    assert isinstance(engine, Engine)
    assert as_engine(engine.client).client is engine.client
    taken = []

    def tasks():
        for task in range(60):
            taken.append(task)
            yield task

    finished = []
    for task, result in engine.run(nap, tasks()):
        finished.append(task)
        assert result == task * task
        assert len(taken) <= len(finished) + 2 * 4
    assert sorted(finished) == list(range(60))
    results = engine.run(nap, range(10**9))
    next(results)
    results.close()
    assert dict(engine.run(lambda task: task + len(taken), range(3))) == {0: 60, 1: 61, 2: 62}


def test_an_error_in_the_work_is_raised_as_it_is(cluster):
    engine, _ = cluster
    with pytest.raises(ValueError, match="seven is not wanted"):
        list(engine.run(refuse_seven, range(1000)))


def test_a_task_uses_its_share_of_the_processors(cluster, monkeypatch):
    engine, _ = cluster
    monkeypatch.delenv("MARGINLENS_THREADS", raising=False)
    assert set(dict(engine.run(share, range(8))).values()) == {max(1, n_threads() // 4)}


def test_tasks_of_a_killed_worker_run_on_the_others_and_on_those_that_join(cluster):
    engine, processes = cluster
    finished = []
    for task, _ in engine.run(nap, range(200)):
        finished.append(task)
        if len(finished) == 20:
            processes.workers[0].kill()
            processes.add_worker()
    assert sorted(finished) == list(range(200))
    wait_for_workers(engine, 4)


def test_addresses_and_clients_that_cannot_be_used_are_refused():
    for address in ("tcp://127.0.0.1:1", "nonsense", 7):
        with refused("scheduler"):
            DaskEngine.from_scheduler(address, 0.3)
    with refused("client"):
        DaskEngine(object())


def test_a_worker_of_another_version_is_refused(cluster, tmp_path):
    engine, processes = cluster
    (tmp_path / "marginlens").mkdir()
    (tmp_path / "marginlens" / "__init__.py").write_text("__version__ = '0.0.1'")
    before = engine.n_workers
    processes.add_worker(tmp_path)
    wait_for_workers(engine, before + 1)
    with pytest.raises(EngineError, match=r"^Workers need marginlens [^\n]* has an older one or none\.$"):
        list(engine.run(nap, range(1000)))
    processes.workers[-1].kill()
    while engine.n_workers > before:
        time.sleep(0.02)
    assert dict(engine.run(nap, range(3))) == {0: 0, 1: 1, 2: 4}


def test_a_local_cluster_ends_with_its_engine():
    engine = DaskEngine.local(1)
    worker, process = next(iter(engine.client.run(os.getpid).items()))
    assert process != os.getpid()
    assert worker.startswith("tcp://")
    assert dict(engine.run(nap, range(5))) == {task: task * task for task in range(5)}
    engine.close()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_a_scheduler_that_is_killed_is_named(cluster, capfd):  # the last test of the cluster
    engine, processes = cluster
    finished = []

    def run():
        for task, _ in engine.run(nap, range(10**6)):
            finished.append(task)
            if len(finished) == 20:
                processes.scheduler.kill()

    with pytest.raises(EngineError, match=r"^The Dask scheduler at tcp://[^ ]* is gone; [^\n]*$"):
        run()
    assert len(finished) == len(set(finished)) >= 20
    with pytest.raises(EngineError, match="is gone"):
        list(engine.run(nap, range(3)))
    engine.close()
    assert capfd.readouterr() == ("", "")
