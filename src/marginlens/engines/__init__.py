"""Engines: where the tasks of a long computation run. Threads or processes of this machine, its GPUs, or a Dask cluster."""

from __future__ import annotations

from typing import Any

from marginlens.engines.local import Engine, Gpus, Processes, Threads
from marginlens.errors import reject

__all__ = ["Engine", "Gpus", "Processes", "Threads", "as_engine"]


def as_engine(engine: Any = None) -> Engine:
    """The engine that is meant: `None` is `Threads()`, a Dask client or the address "tcp://…" of a scheduler a cluster."""
    if engine is None:
        return Threads()
    if isinstance(engine, str) or type(engine).__module__.partition(".")[0] == "distributed":
        from marginlens.engines.dask import DaskEngine

        return DaskEngine.from_scheduler(engine) if isinstance(engine, str) else DaskEngine(engine)
    if isinstance(engine, Engine) and not isinstance(engine, type):
        return engine
    raise reject("engine", "an engine, a Dask client, the address of a scheduler, or None", type(engine).__name__)
