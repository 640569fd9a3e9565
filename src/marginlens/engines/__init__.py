"""Engines: where the tasks of a long computation run. Threads or processes of this machine, its GPUs, or a Dask cluster."""

from marginlens.engines.gpus import Gpus
from marginlens.engines.local import Processes, Threads, as_engine
from marginlens.engines.protocol import Engine

__all__ = ["Engine", "Gpus", "Processes", "Threads", "as_engine"]
