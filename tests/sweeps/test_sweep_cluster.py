"""Sweeps on a Dask cluster of which workers and the scheduler are killed; `cluster_kills.py` kills more of them."""

import pytest

from dask_cluster import DaskCluster

pytest.importorskip("distributed")
pytest.importorskip("pyarrow")


def test_a_sweep_whose_workers_and_scheduler_are_killed_ends_up_as_an_undisturbed_one(tmp_path):
    from cluster_kills import Trials

    with DaskCluster(2) as cluster:
        trials = Trials(tmp_path, 1, cluster)
        for name, victim in {"a": "worker", "b": "scheduler", "c": "worker"}.items():
            _, whole = trials.trial(name, victim)
            assert whole, victim
