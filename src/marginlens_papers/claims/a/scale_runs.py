"""What normalised descent selects on millions of random problems: a sweep of A's Figure 9, counted by width.

`python -m marginlens_papers.claims.a.scale_runs --problems 10000000 --device cuda`
runs the sweep of X-S and puts its counts among the package's
results, from which the claim reads them. With `--folder` the sweep itself stays, and the same command goes on after an interruption.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

import marginlens as ml
from marginlens.errors import whole_number
from marginlens.gpu.device import as_device
from marginlens.runtime.files import json_by_line, write_whole
from marginlens.runtime.versions import versions
from marginlens.sweeps import Plan, Sweep
from marginlens.typing import FloatArray, IntArray
from marginlens_papers.archive import command_without_paths, reading, results_folder
from marginlens_papers.training.script import Dots, in_one_sentence
from marginlens_papers.vision.results import rounded

SCALE_RUNS_FORM = "marginlens selections at scale 1"
WIDTHS = (2, 5, 10, 100, 300, 500)
N_INPUTS, N_TOKENS, N_STEPS, SEED = 4, 6, 1000, 9
SATURATED = 1.0 - 1e-5  # the mean probability of the selected tokens from which on a run counts
GLOBAL, LOCAL, NEGATIVE, UNSATURATED = range(4)  # what becomes of a run
OUTCOMES = ("globally optimal", "locally optimal only", "saturated, negative score gap", "not saturated")
MISS_EDGES = np.round(np.arange(-16.0, 0.45, 0.1), 10)  # of log10(1 - correlation)
GAP_EDGES = np.round(np.arange(-1.0, 2.005, 0.01), 10)  # of score gaps
FIRST = 2000  # problems of each width whose outcomes are archived one by one
_COLUMNS = ["saturation", "correlation", "score_gap", "optimality"]


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
class ScaleRuns:
    """Runs of a sweep counted by width.

    Attributes:
        widths: (n_widths,) the dimensions d. n_problems: of each.
        counts: (n_widths, 4) runs of each of the `OUTCOMES`.
        mean_miss, largest_miss: (n_widths, 2) of 1 - correlation over the saturated runs, and over those with a negative score gap.
        misses: (n_widths, 2, n_bins) the same runs by log10(1 - correlation), in bins between `MISS_EDGES`; the ends take all beyond.
        gaps: (n_widths, n_bins) score gaps of the saturated runs, in bins between `GAP_EDGES`.
        first: (n_widths, up to 2,000) outcomes of the first problems.
    """

    widths: IntArray
    n_problems: int
    counts: IntArray
    mean_miss: FloatArray
    largest_miss: FloatArray
    misses: IntArray
    gaps: IntArray
    first: IntArray

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


# ---- the archive


def archive_scale_runs(runs: ScaleRuns, facts: dict[str, Any], into: Path) -> None:
    """Write the counts, with the settings and versions of the sweep and the command that runs it again, to one small file."""
    values: dict[str, Any] = {
        "form": SCALE_RUNS_FORM,
        **facts,
        "versions": versions(),
        "widths": runs.widths.tolist(),
        "n_problems": runs.n_problems,
        "counts": runs.counts.tolist(),
        "mean_miss": rounded(runs.mean_miss, 6),
        "largest_miss": rounded(runs.largest_miss, 6),
        "misses": runs.misses.tolist(),
        "gaps": runs.gaps.tolist(),
        "first": ["".join(map(str, row)) for row in runs.first],
    }
    write_whole(into, json_by_line(values), "out")


def archived_scale_runs() -> tuple[ScaleRuns, dict[str, Any]]:
    """The counts that come with the package, and what the file says of their sweep."""
    return read_scale_runs(results_folder() / "scale-runs.json")


def read_scale_runs(path: str | Path) -> tuple[ScaleRuns, dict[str, Any]]:
    """The counts in a file that `archive_scale_runs` wrote, and what it says of their sweep."""
    with reading(path, SCALE_RUNS_FORM, "marginlens_papers.claims.a.scale_runs") as values:
        values["first"] = [list(map(int, row)) for row in values["first"]]
        arrays = {field.name: np.array(values.pop(field.name)) for field in fields(ScaleRuns)}
        return ScaleRuns(n_problems=int(arrays.pop("n_problems")), **arrays), values


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sweep of A's Figure 9 on many random problems of each width, and archive what is counted."""
    parser = argparse.ArgumentParser(prog="python -m marginlens_papers.claims.a.scale_runs", description=main.__doc__)
    parser.add_argument("--problems", type=int, default=10_000_000, help="of each width")
    parser.add_argument("--widths", type=int, nargs="+", default=list(WIDTHS), metavar="D", help="dimensions")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="where the sweep stays; a temporary one by default")
    parser.add_argument("--out", type=Path, metavar="FILE", help="by default among the package's own results")
    words = sys.argv[1:] if arguments is None else list(arguments)
    options = parser.parse_args(words)

    def take() -> int:
        n_problems = whole_number(options.problems, "problems", at_least=1)
        plan = scale_plan(n_problems, widths=options.widths)
        place = options.out or results_folder() / "scale-runs.json"
        with tempfile.TemporaryDirectory() if options.folder is None else nullcontext(options.folder) as folder:
            began = time.perf_counter()
            run = ml.sweep(plan, Path(folder) / "sweep", device=options.device, progress=Dots())
            seconds = time.perf_counter() - began
            facts = {
                "command": command_without_paths(f"{parser.prog} {shlex.join(words)}"),
                "plan": run.plan,
                "device": getattr(as_device(options.device), "model", "cpu"),
                "digest": run.digest(),
                "seconds": round(seconds, 1),
            }
            runs = counted(run)
        archive_scale_runs(runs, facts, place)
        rate = n_problems * len(runs.widths) / seconds
        shares = ", ".join(f"{share:.6f} (d={d})" for d, share in zip(runs.widths, runs.share_negative, strict=True))
        print(f" {rate:,.0f} problems a second. Negative score gaps: {shares}. It is in {place}.")
        return 0

    return in_one_sentence(take)


if __name__ == "__main__":
    sys.exit(main())
