"""Whether proofs by X Theorem 4 are ever contradicted: proofs near the border of what it allows, and long runs from their points.

`contradicts` and the rules are those of X-P4, which reads the counts of all seeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import add
from typing import Any, Self

import numpy as np

import marginlens as ml
from marginlens.data.counter_based import sphere_problems
from marginlens.theory import SteepestCertificate
from marginlens.theory.any_norm import Lacking, SteepestSteps, certificate_at, place_at, plan_for
from marginlens.theory.attraction import steepness_of
from marginlens.typing import FloatArray, IntArray
from marginlens_papers.claims.ours.norm_problems import D_QUERY, RULES, Rule, Trained, contradicts, trained_on
from marginlens_papers.tables import Table, read_all

SHAPES = ((1, 3, 2), (2, 4, 3), (3, 5, 4))  # n, T, d
KINDS = ("random", "adversarial")
ADVERSARIAL = 50  # one problem in so many
CHUNK = 50  # problems of one rule and shape that a process takes at once
FURTHER = 10_000  # steps after each proof
MEMORIES = (0.0, 0.0, 0.5, 0.9)  # momentum, drawn
TRIES = 4  # of lengths, momentum and points for each problem
MOST_POINTS = 20  # that are tried on a ray
FARTHEST, NEARER = 80.0, 0.8  # logits that lead at the first point that is tried, and the ratio to each next one
COUNTS = ("problems", "proved", "contradicted")


@dataclass(frozen=True)
class NormProofRuns(Table):
    """Runs of all rules and shapes, counted.

    Attributes:
        counts: (n_kinds, n_rules, n_shapes, 3) by `COUNTS`.
        facts: of runs in a table, what it says of how they were made.
    """

    FORM = "marginlens proofs in norms 1"
    MADE_BY = "python -m experiments.proof_runs --norms"

    counts: IntArray
    facts: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def none(cls) -> Self:
        """No runs yet."""
        return cls(np.zeros((len(KINDS), len(RULES), len(SHAPES), len(COUNTS)), dtype=np.int64))

    @classmethod
    def from_table(cls, name: str, values: dict[str, Any]) -> Self:
        counts = np.array(values.pop("counts"), dtype=np.int64).reshape(cls.none().counts.shape)
        return cls(counts, facts=values)

    def __add__(self, other: NormProofRuns) -> NormProofRuns:
        return NormProofRuns(self.counts + other.counts)

    def total(self, name: str, kind: str | None = None) -> int:
        """A count over all rules and shapes, of one kind or of both."""
        counts = self.counts if kind is None else self.counts[KINDS.index(kind)]
        return int(counts[..., COUNTS.index(name)].sum())

    @property
    def contradicted(self) -> int:
        """Proofs that a run contradicts."""
        return self.total("contradicted")


def norm_proof_runs(n_problems: int, seed: int, *, executor: Executor | None = None) -> Iterator[NormProofRuns]:
    """The counts of every chunk of the problems of a seed, computed by an executor if there is one."""
    work = partial(_chunk, n_problems, seed)
    tasks = range(len(RULES) * len(SHAPES) * -(-n_problems // (len(RULES) * len(SHAPES) * CHUNK)))
    yield from map(work, tasks) if executor is None else executor.map(work, tasks)


def _chunk(n_problems: int, seed: int, task: int) -> NormProofRuns:
    """Prove problems of one rule and shape, and follow a run from each proof."""
    part, cell = divmod(task, len(RULES) * len(SHAPES))
    which, shape = divmod(cell, len(SHAPES))
    rule, found = list(RULES.values())[which], NormProofRuns.none()
    first, last = part * CHUNK, min((part + 1) * CHUNK, -(-n_problems // (len(RULES) * len(SHAPES))))
    if last <= first:
        return found
    data, heads = sphere_problems(first, last, *SHAPES[shape], seed, cell)
    rng = np.random.default_rng([seed, cell, part])
    for j in range(last - first):
        is_adversarial = (first + j) % ADVERSARIAL == 0
        one, head = _adversarial(data[j], heads[j], rng) if is_adversarial else (data[j], heads[j])
        trained = trained_on(rule, one, head, rng.standard_normal((one.n_inputs, D_QUERY)))
        counts = found.counts[int(is_adversarial), which, shape]
        counts[0] += TRIES
        for proof in proofs_near_the_border(trained, rule, rng):
            if not proof.verify().applies:
                continue
            counts[1] += 1
            point, optimizer = proof.point.reshape(trained.shape), rule.make(proof.longest, proof.momentum)
            end = ml.descend(trained.risk, start=point, optimizer=optimizer, n_steps=FURTHER).final
            counts[2] += contradicts(trained, proof, point, end, FURTHER)
    return found


def _adversarial(
    data: ml.TokenDataset, head: FloatArray, rng: np.random.Generator
) -> tuple[ml.TokenDataset, FloatArray]:
    """Change a problem: tokens that nearly agree, in key or in score, long and short keys, and losses that are flat or steep."""
    X = data.X * 10.0 ** rng.uniform(-1.5, 1.5)
    i = int(rng.integers(data.n_inputs))
    s, t = rng.permutation(data.n_tokens)[:2]
    X[i, t] = X[i, s] + 10.0 ** rng.uniform(-4.0, -0.5) * np.abs(X).max() * rng.standard_normal(X.shape[-1])
    if rng.random() < 0.5:
        # The scores of two tokens nearly agree, while their keys do not.
        s, t = rng.permutation(data.n_tokens)[:2]
        gap = 10.0 ** rng.uniform(-6.0, -1.0) * np.abs(X).max()
        X[i, t] += ((X[i, s] - X[i, t]) @ head - gap) * head / (head @ head)
    return ml.TokenDataset(X, data.y), head * 10.0 ** rng.uniform(-1.0, 1.5)


def proofs_near_the_border(trained: Trained, rule: Rule, rng: np.random.Generator) -> Iterator[SteepestCertificate]:
    """Prove tokens for steps of random lengths and momentum, each from the smallest point on a ray from which that succeeds."""
    problem, shape = trained.problem, trained.shape
    selected = problem.optimal
    if rng.random() < 0.2:
        towards = rng.standard_normal(int(np.prod(shape)))
        selected = np.argmax(np.where(problem.data.mask, problem.data.K @ towards, -np.inf), axis=-1)
    plan = plan_for(problem, selected, SteepestSteps(rule.norm, 1e-300, 0.0), shape)
    if plan.lacking is not Lacking.NOTHING:
        return
    for _ in range(TRIES):
        momentum = float(rng.choice(MEMORIES))
        longest = 8.0 * plan.gamma / plan.widest**2 if plan.widest > 0.0 else 1.0 / plan.gamma
        if momentum > 0.0:
            # J is 2 b / (1 - b) times the loss to the length of steps, and b is at least β.
            longest = min(longest * (1.0 - momentum) / (1.0 + momentum), -np.log(momentum) / plan.longest)
        size = float(rng.uniform(0.02, 0.98) * longest)
        steps = SteepestSteps(rule.norm, size, size, momentum)
        aside = rng.uniform(0.0, 2.0) * rng.standard_normal(plan.witness.shape) / plan.longest
        radius, best = FARTHEST / plan.gamma, None
        for _ in range(MOST_POINTS):
            point = radius * plan.witness + aside
            place = place_at(plan, point, steps, steepness_of(problem.loss, problem.data.n_inputs), shape)
            if place.lacking is not Lacking.NOTHING:
                break
            best, radius = (point, place), NEARER * radius
        if best is not None:
            yield certificate_at(problem, best[0], plan, best[1], steps, shape)


def archived_norm_proof_runs() -> NormProofRuns:
    """The counts that come with the package, of all seeds together."""
    return reduce(add, read_all("norm-proof-runs-", NormProofRuns), NormProofRuns.none())


def table_settings() -> dict[str, Any]:
    """What a table says its runs were made with, whatever problems they are."""
    settings = {"further_steps": FURTHER, "one_adversarial_in": ADVERSARIAL}
    return {"settings": settings, "shapes": SHAPES, "kinds": KINDS, "rules": list(RULES), "columns": COUNTS}
