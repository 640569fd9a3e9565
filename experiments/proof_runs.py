"""Steps followed long after their limit is proved: the counts of contradictions that X-P2 and X-P4 read.

`python -m experiments.proof_runs --problems 1000000 --seed 0` counts in as many processes as there are processors, and puts the counts
among the package's results: those of normalised steps, or with --norms those of steps in other norms.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields
from pathlib import Path
from typing import Any

from experiments.training.script import Dots, in_one_sentence
from marginlens.errors import whole_number
from marginlens.runtime.files import json_by_line, write_whole
from marginlens.runtime.versions import versions
from marginlens_papers.claims.ours import norm_proof_runs, proof_runs
from marginlens_papers.tables import results_folder


def main(arguments: Sequence[str] | None = None) -> int:
    """Follow steps on random problems long after their limit is proved, and keep how many contradict it."""
    parser = argparse.ArgumentParser(prog="python -m experiments.proof_runs", description=main.__doc__)
    parser.add_argument("--problems", type=int, default=1_000_000, help="of all shapes together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--norms", action="store_true", help="steps in other norms (X-P4) instead of normalised ones (X-P2)"
    )
    parser.add_argument("--workers", type=int, help="processes; by default as many as there are processors")
    parser.add_argument("--out", type=Path, metavar="FILE", help="by default among the package's results")
    options = parser.parse_args(arguments)

    def take() -> int:
        n_problems = whole_number(options.problems, "problems", at_least=1)
        seed = whole_number(options.seed, "seed", at_least=0)
        kind: Any = norm_proof_runs.NormProofRuns if options.norms else proof_runs.ProofRuns
        follow: Any = norm_proof_runs.norm_proof_runs if options.norms else proof_runs.proof_runs
        place = options.out or results_folder() / (
            f"norm-proof-runs-{seed}.json" if options.norms else "proof-runs.json"
        )
        began, report = time.perf_counter(), Dots()
        runs = kind.none()
        with ProcessPoolExecutor(options.workers) as executor:
            for chunk in follow(n_problems, seed, executor=executor):
                runs = runs + chunk
                report(runs.total("problems"), n_problems)
        seconds = time.perf_counter() - began
        made_with = (norm_proof_runs if options.norms else proof_runs).table_settings()
        values = {
            "form": kind.FORM,
            "command": f"{parser.prog}{' --norms' * options.norms} --problems {n_problems} --seed {seed}",
            **made_with,
            "settings": {"problems": n_problems, "seed": seed, **made_with["settings"]},
            "seconds": round(seconds, 1),
            "versions": versions(),
            **{each.name: getattr(runs, each.name).tolist() for each in fields(kind) if each.name != "facts"},
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
