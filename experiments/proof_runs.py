"""Normalised steps followed long after their limit is proved: the counts of contradictions that X-P2 reads.

`python -m experiments.proof_runs --problems 1000000 --seed 0` counts in as many processes as there are processors, and puts the counts
among the package's results.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from experiments.training.script import Dots, in_one_sentence
from marginlens.errors import whole_number
from marginlens.runtime.files import json_by_line, write_whole
from marginlens.runtime.versions import versions
from marginlens_papers.claims.ours.proof_runs import ProofRuns, proof_runs, table_settings
from marginlens_papers.tables import results_folder


def main(arguments: Sequence[str] | None = None) -> int:
    """Follow normalised steps on random problems long after their limit is proved, and keep how many contradict it."""
    parser = argparse.ArgumentParser(prog="python -m experiments.proof_runs", description=main.__doc__)
    parser.add_argument("--problems", type=int, default=1_000_000, help="of all shapes together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, help="processes; by default as many as there are processors")
    parser.add_argument("--out", type=Path, metavar="FILE", help="by default among the package's results")
    options = parser.parse_args(arguments)

    def take() -> int:
        n_problems = whole_number(options.problems, "problems", at_least=1)
        seed = whole_number(options.seed, "seed", at_least=0)
        place = options.out or results_folder() / "proof-runs.json"
        began, report = time.perf_counter(), Dots()
        runs = ProofRuns.none()
        with ProcessPoolExecutor(options.workers) as executor:
            for chunk in proof_runs(n_problems, seed, executor=executor):
                runs = runs + chunk
                report(runs.total("problems"), n_problems)
        seconds = time.perf_counter() - began
        made_with = table_settings()
        values = {
            "form": ProofRuns.FORM,
            "command": f"{parser.prog} --problems {n_problems} --seed {seed}",
            **made_with,
            "settings": {"problems": n_problems, "seed": seed, **made_with["settings"]},
            "seconds": round(seconds, 1),
            "versions": versions(),
            **{name: getattr(runs, name).tolist() for name in ("counts", "open", "open_wrong")},
        }
        write_whole(place, json_by_line(values), "out")
        proved, wrong = runs.total("proved"), runs.contradicted
        print(
            f" {n_problems / seconds:,.0f} problems a second. {proved:,} proved, {wrong:,} contradicted. It is in {place}."
        )
        return 0

    return in_one_sentence(take)


if __name__ == "__main__":
    sys.exit(main())
