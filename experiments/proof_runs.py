"""Steps followed long after their limit is proved: the counts of proofs and contradictions that X-P2 and X-P4 read.

`python -m experiments.proof_runs --problems 1000000 --seed 0` counts in as many processes as there are processors, and puts the counts
among the package's results: those of normalised steps; with --norms those of proofs in other norms near the border of the theorem; with
--shares how many runs from zero in these norms are proved, of so many problems of each norm, size and length of steps.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from experiments.training.script import Dots, in_one_sentence
from marginlens.errors import whole_number
from marginlens.runtime.files import json_by_line, write_whole
from marginlens.runtime.versions import versions
from marginlens_papers.claims.ours import norm_proof_runs, norm_proof_shares, proof_runs
from marginlens_papers.tables import results_folder


class _Count(NamedTuple):
    """One kind of count: what it becomes, how it is made, the settings that its table states, and the table's name."""

    kind: Any
    follow: Any
    settings: Any
    name: str


_COUNTS = {
    "": _Count(proof_runs.ProofRuns, proof_runs.proof_runs, proof_runs.table_settings, "proof-runs"),
    "norms": _Count(
        norm_proof_runs.NormProofRuns,
        norm_proof_runs.norm_proof_runs,
        norm_proof_runs.table_settings,
        "norm-proof-runs-{seed}",
    ),
    "shares": _Count(
        norm_proof_shares.NormProofShares,
        norm_proof_shares.norm_proof_shares,
        norm_proof_shares.table_settings,
        "norm-proof-shares",
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Follow steps on random problems long after their limit is proved, and keep how many contradict it."""
    parser = argparse.ArgumentParser(prog="python -m experiments.proof_runs", description=main.__doc__)
    parser.add_argument("--problems", type=int, default=1_000_000, help="of all shapes together")
    parser.add_argument("--seed", type=int, default=0)
    which = parser.add_mutually_exclusive_group()
    for name, help_text in (("norms", "proofs in other norms near the border"), ("shares", "shares of runs in them")):
        which.add_argument(f"--{name}", dest="count", action="store_const", const=name, default="", help=help_text)
    parser.add_argument("--workers", type=int, help="processes; by default as many as there are processors")
    parser.add_argument("--out", type=Path, metavar="FILE", help="by default among the package's results")
    options = parser.parse_args(arguments)

    def take() -> int:
        n_problems = whole_number(options.problems, "problems", at_least=1)
        seed = whole_number(options.seed, "seed", at_least=0)
        count = _COUNTS[options.count]
        place = options.out or results_folder() / f"{count.name.format(seed=seed)}.json"
        began, report = time.perf_counter(), Dots()
        runs = count.kind.none()
        with ProcessPoolExecutor(options.workers) as executor:
            for chunk in count.follow(n_problems, seed, executor=executor):
                runs = runs + chunk
                report(runs.total("problems"), n_problems)
        seconds = time.perf_counter() - began
        made_with, option = count.settings(), f" --{options.count}" if options.count else ""
        values = {
            "form": count.kind.FORM,
            "command": f"{parser.prog}{option} --problems {n_problems} --seed {seed}",
            **made_with,
            "settings": {"problems": n_problems, "seed": seed, **made_with["settings"]},
            "seconds": round(seconds, 1),
            "versions": versions(),
            **{each.name: getattr(runs, each.name).tolist() for each in fields(count.kind) if each.name != "facts"},
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
