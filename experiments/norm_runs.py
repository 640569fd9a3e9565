"""Descents in several norms on random problems, taken for long: the shares of margins that X-N1 and X-N2 read.

`python -m experiments.norm_runs W --steps 100000 --problems 200` takes the runs of X-N1 and puts their shares among the package's
results; `p` those of X-N2. Problems are spread over threads (`MARGINLENS_THREADS`).
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from experiments.archive import command_without_paths
from experiments.training.script import in_one_sentence, rounded
from marginlens.errors import whole_number
from marginlens.runtime.files import json_by_line, write_whole
from marginlens.runtime.versions import versions
from marginlens_papers.claims.ours.norm_runs import SETTINGS, SHARES, NormRuns, norm_runs, settings_of, table_name
from marginlens_papers.tables import results_folder

_DIGITS = 6


def write_norm_runs(runs: NormRuns, variable: str, command: str, into: Path) -> None:
    """Write the shares of all runs, with settings, versions and the command that takes them again, to one small file."""
    settings = settings_of(variable, int(runs.steps[-1]))
    values = {
        "form": NormRuns.FORM,
        **settings,
        "problems": {"count": int(runs.share.shape[-1]), **settings["problems"]},
        "command": command_without_paths(command),
        "versions": versions(),
        "solver_gap": float(f"{runs.solver_gap:.1e}"),
        "steps": runs.steps.tolist(),
        "names": list(runs.names),
        **{name: rounded(getattr(runs, name), _DIGITS) for name in SHARES},
        "changed": runs.changed.astype(int).tolist(),
        "selected": runs.selected.tolist(),
    }
    write_whole(into, json_by_line(values), "out")


def main(arguments: Sequence[str] | None = None) -> int:
    """Take descents in several norms on random problems, and keep the shares of each norm's margin."""
    parser = argparse.ArgumentParser(prog="python -m experiments.norm_runs", description=main.__doc__)
    parser.add_argument("variable", choices=tuple(SETTINGS), help="what is trained: the matrix W or the vector p")
    parser.add_argument("--steps", type=int, default=100_000, help="of each run")
    parser.add_argument("--problems", type=int, default=200, help="for each descent")
    parser.add_argument("--out", type=Path, metavar="FILE", help="by default among the package's results")
    words = sys.argv[1:] if arguments is None else list(arguments)
    options = parser.parse_args(words)

    def take() -> int:
        n_steps = whole_number(options.steps, "steps", at_least=200)
        setting = SETTINGS[options.variable]
        problems = setting.draw(whole_number(options.problems, "problems", at_least=1))
        runs = norm_runs(problems, setting.geometries, n_steps, lambda: print(".", end="", flush=True))
        place = options.out or results_folder() / f"{table_name(options.variable, n_steps)}.json"
        write_norm_runs(runs, options.variable, f"{parser.prog} {shlex.join(words)}", place)
        own = ", ".join(f"{name} {share:.4f}" for name, share in zip(runs.names, np.diag(runs.table), strict=True))
        print(f" mean share of the own margin: {own}. It is in {place}, {place.stat().st_size / 1e3:.0f} kB.")
        return 0

    return in_one_sentence(take)


if __name__ == "__main__":
    sys.exit(main())
