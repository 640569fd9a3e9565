"""A's Figure 9 on millions of random problems: the counts that X-S reads.

`python -m experiments.scale_runs --problems 10000000 --device cuda` runs the sweep and puts its counts among the package's results. With
`--folder` the sweep itself stays, and the same command goes on after an interruption.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import marginlens as ml
from experiments.archive import command_without_paths
from experiments.training.script import Dots, in_one_sentence, rounded
from marginlens.errors import whole_number
from marginlens.gpu.device import as_device
from marginlens.runtime.files import json_by_line, write_whole
from marginlens.runtime.versions import versions
from marginlens_papers.claims.a.scale_runs import WIDTHS, ScaleRuns, counted, scale_plan
from marginlens_papers.tables import results_folder

_DIGITS = 6


def write_scale_runs(runs: ScaleRuns, into: Path) -> None:
    """Write the counts, with the facts of their sweep, to one small file."""
    values = {
        "form": ScaleRuns.FORM,
        **runs.facts,
        "versions": versions(),
        "widths": runs.widths.tolist(),
        "n_problems": runs.n_problems,
        "counts": runs.counts.tolist(),
        "mean_miss": rounded(runs.mean_miss, _DIGITS),
        "largest_miss": rounded(runs.largest_miss, _DIGITS),
        "misses": runs.misses.tolist(),
        "gaps": runs.gaps.tolist(),
        "first": ["".join(map(str, row)) for row in runs.first],
    }
    write_whole(into, json_by_line(values), "out")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sweep of A's Figure 9 on many random problems of each width, and keep what is counted."""
    parser = argparse.ArgumentParser(prog="python -m experiments.scale_runs", description=main.__doc__)
    parser.add_argument("--problems", type=int, default=10_000_000, help="of each width")
    parser.add_argument("--widths", type=int, nargs="+", default=list(WIDTHS), metavar="D", help="dimensions")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="where the sweep stays; a temporary one by default")
    parser.add_argument("--out", type=Path, metavar="FILE", help="by default among the package's results")
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
            runs = replace(counted(run), facts=facts)
        write_scale_runs(runs, place)
        rate = n_problems * len(runs.widths) / seconds
        shares = ", ".join(f"{share:.6f} (d={d})" for d, share in zip(runs.widths, runs.share_negative, strict=True))
        print(f" {rate:,.0f} problems a second. Negative score gaps: {shares}. It is in {place}.")
        return 0

    return in_one_sentence(take)


if __name__ == "__main__":
    sys.exit(main())
