"""Threads over problems: a compiled kernel that releases the interpreter lock runs on slices of a batch."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any


def n_threads() -> int:
    """How many threads a batch is spread over: `MARGINLENS_THREADS`, else the processors this process may use."""
    asked = os.environ.get("MARGINLENS_THREADS", "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def over_problems(kernel: Callable[..., Any], n_problems: int, *arguments: Any, chunks_per_thread: int = 4) -> None:
    """Call `kernel(first, last, *arguments)` on slices that cover `range(n_problems)`.

    The kernel writes its results into arrays among its arguments and releases the interpreter lock, so slices run side by side;
    which thread takes which slice does not change any result.
    """
    workers = min(n_threads(), n_problems)
    if workers <= 1:
        kernel(0, n_problems, *arguments)
        return
    n_chunks = min(n_problems, workers * chunks_per_thread)
    edges = [n_problems * k // n_chunks for k in range(n_chunks + 1)]
    pool = ThreadPoolExecutor(workers)
    try:
        for done in [pool.submit(kernel, a, b, *arguments) for a, b in pairwise(edges)]:
            done.result()
    finally:
        pool.shutdown(cancel_futures=True)  # an interruption waits for the running slices only
