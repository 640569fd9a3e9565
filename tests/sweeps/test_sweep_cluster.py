"""Sweeps on a Dask cluster of which workers and the scheduler are killed; `sweep_kills.py` kills more of them."""

import threading
import time
import warnings

import pytest

import marginlens as ml
from dask_cluster import DaskCluster

pytest.importorskip("distributed")
pytest.importorskip("pyarrow")

from marginlens.engines.dask import DaskEngine
from sweep_kills import CONNECT_SECONDS, PLAN, POLL_SECONDS, Trials

pytestmark = pytest.mark.slow  # it starts and ends processes


# nor has one that has just begun again
@pytest.mark.filterwarnings("ignore:The Dask scheduler at .* has no workers yet")
def test_a_sweep_whose_workers_and_scheduler_are_killed_ends_up_as_an_undisturbed_one(tmp_path):
    with DaskCluster(2) as cluster:
        trials = Trials(tmp_path, 1, cluster)
        for name, victim in {"a": "worker", "b": "scheduler", "c": "worker"}.items():
            _, whole = trials.trial(name, victim)
            assert whole, victim


def test_a_sweep_that_finds_no_worker_says_so_and_waits_for_one(tmp_path):
    with DaskCluster(0) as cluster:
        engine = DaskEngine.from_scheduler(cluster.address, CONNECT_SECONDS)
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")

            def add_worker_once_warned():
                while not given:
                    time.sleep(POLL_SECONDS)
                cluster.add_worker()

            helper = threading.Thread(target=add_worker_once_warned, daemon=True)
            helper.start()
            made = ml.sweep(PLAN, tmp_path, engine=engine)
            helper.join()
        engine.close()
    assert "has no workers yet; waiting for some" in str(given[0].message)
    assert made.status().is_finished
