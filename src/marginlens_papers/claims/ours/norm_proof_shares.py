"""How many runs from zero X Theorem 4 proves, by norm, size and length of steps, and whether further steps contradict the proofs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np

import marginlens as ml
from marginlens.theory import SteepestCertificate
from marginlens.theory.steepest_runs import Runs, outcomes_of
from marginlens.typing import IntArray
from marginlens_papers.claims.ours.norm_problems import (
    RULES,
    SIZES,
    Geometry,
    Rule,
    Trained,
    contradicts,
    drawn,
    geometry,
)
from marginlens_papers.tables import Table, read

MOMENTUM = 0.9
FORGETS = 0.2  # hD of steps with momentum, relative to log(1/β), at most
LEAST_FURTHER, MORE = 10_000, 10  # steps after a proof: ten times as many, at least 10,000
CHUNK = 10  # problems that a process takes at once
COUNTS = ("problems", "saturated", "proved", "contradicted")


class Length(NamedTuple):
    """How long steps are for the tokens that a run selects.

    Attributes:
        name: in words.
        of: computes h from γ, D₂ and D.
        momentum: β.
    """

    name: str
    of: Callable[[Geometry], float]
    momentum: float = 0.0


def _by_range(share: float) -> Callable[[Geometry], float]:
    """Return h with hD₂²/(8γ) = share; of a single row, which has no range, h with hγ = .1."""
    return lambda at: 8.0 * share * at.margin / at.widest**2 if at.widest > 0.0 else 0.1 / at.margin


LENGTHS = {
    "quarter": Length("hD₂²/8 = γ/4", _by_range(1 / 4)),
    "sixteenth": Length("hD₂²/8 = γ/16", _by_range(1 / 16)),
    "long": Length("hγ = .15", lambda at: 0.15 / at.margin),
    "momentum": Length(
        "momentum .9, hD₂²/8 = γ/100",
        lambda at: min(_by_range(1 / 100)(at), FORGETS * np.log(1.0 / MOMENTUM) / at.longest),
        MOMENTUM,
    ),
}
N_CELLS = len(LENGTHS) * len(RULES) * len(SIZES)


@dataclass(frozen=True)
class NormProofShares(Table):
    """Runs of all lengths, rules and sizes, counted.

    Attributes:
        counts: (n_lengths, n_rules, n_sizes, 4) by `COUNTS`.
        facts: of runs in a table, what it says of how they were made.
    """

    FORM = "marginlens shares of proofs in norms 1"
    MADE_BY = "python -m experiments.proof_runs --shares"

    counts: IntArray
    facts: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def none(cls) -> Self:
        """No runs yet."""
        return cls(np.zeros((len(LENGTHS), len(RULES), len(SIZES), len(COUNTS)), dtype=np.int64))

    @classmethod
    def from_table(cls, name: str, values: dict[str, Any]) -> Self:
        counts = np.array(values.pop("counts"), dtype=np.int64).reshape(cls.none().counts.shape)
        return cls(counts, facts=values)

    def __add__(self, other: NormProofShares) -> NormProofShares:
        return NormProofShares(self.counts + other.counts)

    def count(self, name: str) -> IntArray:
        """A count of each length, rule and size."""
        return np.asarray(self.counts[..., COUNTS.index(name)])

    def total(self, name: str) -> int:
        """A count over all runs."""
        return int(self.count(name).sum())

    @property
    def contradicted(self) -> int:
        """Proofs that further steps contradict."""
        return self.total("contradicted")

    @property
    def seed(self) -> int:
        """The seed of the problems."""
        return int(self.facts["settings"]["seed"])


def norm_proof_shares(n_problems: int, seed: int, *, executor: Executor | None = None) -> Iterator[NormProofShares]:
    """The counts of every chunk of problems, as many of each length, rule and size, computed by an executor if there is one."""
    each = -(-n_problems // N_CELLS)
    work = partial(_chunk, each, seed)
    # The largest problems come first, so that processes end at about the same time.
    cells = np.ndindex(len(SIZES), -(-each // CHUNK), len(LENGTHS), len(RULES))
    tasks = [(length, rule, len(SIZES) - 1 - size, part) for size, part, length, rule in cells]
    yield from map(work, tasks) if executor is None else executor.map(work, tasks)


def _chunk(each: int, seed: int, task: tuple[int, int, int, int]) -> NormProofShares:
    """Follow runs of one length, rule and size from zero, and go on after each proof."""
    which, index, cell, part = task
    length, rule, found = list(LENGTHS.values())[which], list(RULES.values())[index], NormProofShares.none()
    first, count = part * CHUNK, min(CHUNK, each - part * CHUNK)
    counts = found.counts[which, index, cell]
    counts[0] = count
    for trained in drawn(rule, count, SIZES[cell], cell, first=first, seed=seed):
        outcome = followed(trained, rule, length)
        if outcome is None or not (outcome.settled or outcome.proved):
            continue
        counts[1] += 1
        counts[2] += outcome.proved
        if outcome.certificate is not None:
            counts[3] += is_contradicted(trained, rule, outcome.certificate, outcome.n_steps)
    return found


def followed(trained: Trained, rule: Rule, length: Length) -> Any:
    """Follow a run from zero, with steps of a length for the tokens that it selects; None if there are none."""
    selected, outcome = trained.problem.optimal, None
    for _ in range(3):
        at = geometry(trained, rule.norm, selected, of_margin=True)
        if not at.margin > 0.0:
            return outcome
        optimizer = rule.make(length.of(at), length.momentum)
        runs = Runs([trained.risk], np.zeros((1, *trained.shape)))
        [outcome] = outcomes_of(trained.problem.as_batch(), runs, optimizer)
        if np.array_equal(outcome.selected, selected):
            return outcome
        selected = outcome.selected
    return outcome


def is_contradicted(trained: Trained, rule: Rule, proof: SteepestCertificate, n_steps: int) -> bool:
    """Return whether further steps of a run from zero, which came to the proof's point after `n_steps`, contradict it."""
    optimizer, more = rule.make(proof.longest, proof.momentum), max(MORE * n_steps, LEAST_FURTHER)
    # The run begins again from zero, so that it comes to the point with what it remembers.
    run = ml.descend(trained.risk, start=np.zeros(trained.shape), optimizer=optimizer, n_steps=n_steps)
    return contradicts(trained, proof, run.final, run.resume(more).final, more)


def archived_norm_proof_shares() -> NormProofShares:
    """The counts that come with the package."""
    return read("norm-proof-shares", NormProofShares)


def table_settings() -> dict[str, Any]:
    """What a table says its runs were made with, whatever problems they are."""
    settings = {"more": MORE, "least_further": LEAST_FURTHER}
    lengths = {name: length.name for name, length in LENGTHS.items()}
    return {"settings": settings, "lengths": lengths, "sizes": SIZES, "rules": list(RULES), "columns": COUNTS}
