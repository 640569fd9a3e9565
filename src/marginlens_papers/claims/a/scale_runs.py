"""What normalised descent selects on many random problems: a sweep of A's Figure 9, counted by width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from marginlens.sweeps import Plan, Sweep
from marginlens.typing import FloatArray, IntArray
from marginlens_papers.tables import Table, read

WIDTHS = (2, 5, 10, 100, 300, 500)
N_INPUTS, N_TOKENS, N_STEPS, SEED = 4, 6, 1000, 9
SATURATED = 1.0 - 1e-5  # the mean probability of the selected tokens from which on a run counts
GLOBAL, LOCAL, NEGATIVE, UNSATURATED = range(4)  # what becomes of a run
OUTCOMES = ("globally optimal", "locally optimal only", "saturated, negative score gap", "not saturated")
MISS_EDGES = np.round(np.arange(-16.0, 0.45, 0.1), 10)  # of log10(1 - correlation)
GAP_EDGES = np.round(np.arange(-1.0, 2.005, 0.01), 10)  # of score gaps
FIRST = 2000  # problems of each width whose outcomes are kept one by one
_COLUMNS = ["saturation", "correlation", "score_gap", "optimality"]
_ARRAYS = ("widths", "counts", "mean_miss", "largest_miss", "misses", "gaps")


def scale_plan(n_problems: int, *, widths: Sequence[int] = WIDTHS) -> Plan:
    """The sweep: tokens and head uniform on the sphere, labels ±1, normalised steps of 1 from zero; cell k has the k-th width."""
    return Plan(
        data="sphere",
        n_inputs=N_INPUTS,
        n_tokens=N_TOKENS,
        d=list(widths),
        n_steps=N_STEPS,
        n_problems=n_problems,
        seed=SEED,
        record=tuple(_COLUMNS),
    )


def outcomes(table: Any) -> IntArray:
    """(n_problems,) what became of each run of a table with these columns: a place among `OUTCOMES`."""
    column = table["optimality"].combine_chunks()
    kind = np.array(column.dictionary.to_pylist())[column.indices.to_numpy()]
    saturated = (table["saturation"].to_numpy() >= SATURATED) & (kind != "infeasible")
    return np.select([~saturated, kind == "global", kind == "local"], [UNSATURATED, GLOBAL, LOCAL], NEGATIVE)


@dataclass(frozen=True)
class ScaleRuns(Table):
    """Runs of a sweep counted by width.

    Attributes:
        widths: (n_widths,) the dimensions d. n_problems: of each.
        counts: (n_widths, 4) runs of each of the `OUTCOMES`.
        mean_miss, largest_miss: (n_widths, 2) of 1 - correlation over the saturated runs, and over those with a negative score gap.
        misses: (n_widths, 2, n_bins) the same runs by log10(1 - correlation), in bins between `MISS_EDGES`; the ends take all beyond.
        gaps: (n_widths, n_bins) score gaps of the saturated runs, in bins between `GAP_EDGES`.
        first: (n_widths, up to 2,000) outcomes of the first problems.
        facts: of runs in a table, what it says of their sweep.
    """

    FORM = "marginlens selections at scale 1"
    MADE_BY = "python -m experiments.scale_runs"

    widths: IntArray
    n_problems: int
    counts: IntArray
    mean_miss: FloatArray
    largest_miss: FloatArray
    misses: IntArray
    gaps: IntArray
    first: IntArray
    facts: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_table(cls, name: str, values: dict[str, Any]) -> Self:
        arrays = {column: np.array(values.pop(column)) for column in _ARRAYS}
        first = np.array([list(map(int, row)) for row in values.pop("first")])
        return cls(**arrays, n_problems=int(values.pop("n_problems")), first=first, facts=values)

    @property
    def share_negative(self) -> FloatArray:
        """(n_widths,) the share of all runs that saturate with a negative score gap."""
        return np.asarray(self.counts[:, NEGATIVE] / self.n_problems)

    @property
    def n_saturated(self) -> IntArray:
        """(n_widths,) how many runs saturate."""
        return self.n_problems - self.counts[:, UNSATURATED]

    def share_missing(self, more_than: float) -> FloatArray:
        """(n_widths,) the share of saturated runs with 1 - correlation above a power of ten that is an edge of the bins."""
        place = int(np.argmin(np.abs(MISS_EDGES - np.log10(more_than))))
        return np.asarray(self.misses[:, 0, place:].sum(axis=-1) / self.n_saturated)


def counted(run: Sweep) -> ScaleRuns:
    """The runs of a sweep by `scale_plan`, counted chunk by chunk."""
    widths = np.array([cell.settings["d"] for cell in run.grid.cells])
    n_widths, n_problems = len(widths), run.grid.n_problems
    counts, gaps = np.zeros((n_widths, 4), dtype=np.int64), np.zeros((n_widths, len(GAP_EDGES) - 1), dtype=np.int64)
    misses = np.zeros((n_widths, 2, len(MISS_EDGES) - 1), dtype=np.int64)
    sums, largest = np.zeros((n_widths, 2)), np.zeros((n_widths, 2))
    first: list[list[int]] = [[] for _ in widths]
    for table in run.batches(["cell", "problem", *_COLUMNS]):
        cell, kind = table["cell"][0].as_py(), outcomes(table)
        counts[cell] += np.bincount(kind, minlength=4)
        first[cell] += kind[: max(0, FIRST - len(first[cell]))].tolist()
        gap, miss = table["score_gap"].to_numpy(), 1.0 - table["correlation"].to_numpy()
        gaps[cell] += _histogram(gap[kind != UNSATURATED], GAP_EDGES)
        for k, chosen in enumerate((kind != UNSATURATED, kind == NEGATIVE)):
            sums[cell, k] += miss[chosen].sum()
            largest[cell, k] = max(largest[cell, k], miss[chosen].max(initial=0.0))
            misses[cell, k] += _histogram(np.log10(np.maximum(miss[chosen], 1e-17)), MISS_EDGES)
    saturated = np.stack([n_problems - counts[:, UNSATURATED], counts[:, NEGATIVE]], axis=1)
    return ScaleRuns(
        widths, n_problems, counts, sums / np.maximum(saturated, 1), largest, misses, gaps, np.array(first)
    )


def _histogram(values: FloatArray, edges: FloatArray) -> IntArray:
    """How many values lie in each bin; those beyond the ends count in the first and last."""
    return np.histogram(np.clip(values, edges[0], edges[-1]), bins=edges)[0]


def archived_scale_runs() -> ScaleRuns:
    """The counts of the large sweep, which come with the package."""
    plan = {"data": "sphere", "n_inputs": N_INPUTS, "n_tokens": N_TOKENS, "n_steps": N_STEPS, "seed": SEED}
    return read("scale-runs", ScaleRuns, {"plan": plan, "widths": WIDTHS})
