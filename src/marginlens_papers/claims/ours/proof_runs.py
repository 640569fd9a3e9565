"""Whether proved limits are ever contradicted: normalised steps on random problems, followed long after their limit is proved (X Thm 1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import numpy as np

import marginlens as ml
from marginlens.arithmetic.directions import length
from marginlens.data.counter_based import sphere_problems
from marginlens.theory.attraction import Missing, find_tubes
from marginlens.typing import FloatArray, IntArray
from marginlens_papers.tables import Table, read

SHAPES = ((1, 4, 2), (2, 4, 2), (2, 4, 3), (3, 5, 4), (3, 5, 10), (4, 6, 30))  # n, T, d; problem j has shape j mod 6
STEP, FARTHEST = 1.0, 10.0  # length of a step; norms of starts are uniform up to FARTHEST
MARKS = (4, 8, 16, 32, 64, 128, 256, 512, 1024)  # steps after which a point is examined
MORE, LEAST = 10, 1000  # after the proof: ten times the steps that led to it, at least 1,000
LOOKS = (1, 10, 100)  # of these, before the last
CHUNK = 500  # problems of one shape that are followed together
ROUNDING = 1e-9  # of the square of a tube's radius, far less than the ball around the point that its proof is for
COUNTS = ("problems", "proved", "wrong_selection", "outside", "outscored", "further_steps")
# of the arrays of a ProofRuns
_FORMS = ((len(SHAPES), len(COUNTS)), (len(SHAPES), len(MARKS)), (len(SHAPES), len(MARKS)))


@dataclass(frozen=True)
class ProofRuns(Table):
    """Runs of all shapes, counted.

    Attributes:
        counts: (n_shapes, 6) by `COUNTS`: problems; those proved within `MARKS`; of these contradicted by another selection, or by a
            point outside the tube; of these with a token that scores higher than the selected one; steps taken after the proofs.
        open, open_wrong: (n_shapes, n_marks) runs whose limit is proved at a later mark, and those of them whose leading tokens at
            this mark are not the ones at the end.
        facts: of runs in a table, what it says of how they were made.
    """

    FORM = "marginlens proved limits 1"
    MADE_BY = "python -m experiments.proof_runs"

    counts: IntArray
    open: IntArray
    open_wrong: IntArray
    facts: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def none(cls) -> Self:
        """No runs yet."""
        counts, still_open, wrong = (np.zeros(shape, dtype=np.int64) for shape in _FORMS)
        return cls(counts, still_open, wrong)

    @classmethod
    def from_table(cls, name: str, values: dict[str, Any]) -> Self:
        arrays = {
            column: np.array(values.pop(column), dtype=np.int64).reshape(shape)
            for column, shape in zip(("counts", "open", "open_wrong"), _FORMS, strict=True)
        }
        return cls(**arrays, facts=values)

    def __add__(self, other: ProofRuns) -> ProofRuns:
        return ProofRuns(self.counts + other.counts, self.open + other.open, self.open_wrong + other.open_wrong)

    def total(self, name: str) -> int:
        """A count over all shapes."""
        return int(self.counts[:, COUNTS.index(name)].sum())

    @property
    def contradicted(self) -> int:
        """Proved limits that a run contradicts, by its selection or by leaving the tube."""
        return self.total("wrong_selection") + self.total("outside")


def proof_runs(n_problems: int, seed: int, *, executor: Executor | None = None) -> Iterator[ProofRuns]:
    """The counts of every chunk of the first problems of a seed, computed by an executor if there is one."""
    work = partial(_chunk, n_problems, seed)
    tasks = range(len(SHAPES) * -(-n_problems // (len(SHAPES) * CHUNK)))
    yield from map(work, tasks) if executor is None else executor.map(work, tasks)


def _chunk(n_problems: int, seed: int, task: int) -> ProofRuns:
    """Follow one chunk of problems: until each is proved, and on."""
    part, cell = divmod(task, len(SHAPES))
    n, T, d = SHAPES[cell]
    first, last = part * CHUNK, min((part + 1) * CHUNK, (n_problems - cell + len(SHAPES) - 1) // len(SHAPES))
    found = ProofRuns.none()
    if last <= first:
        return found
    data, v = sphere_problems(first, last, n, T, d, seed, cell)
    rng = np.random.default_rng([seed, cell, part])
    points = rng.standard_normal((CHUNK, d))[: last - first]
    points *= (FARTHEST * rng.random(CHUNK)[: last - first] / length(points))[:, None]
    leading = np.zeros((last - first, len(MARKS), n), dtype=np.int64)
    open_, taken, rule = np.arange(last - first), 0, ml.NormalizedGD(STEP)
    found.counts[cell, 0] = last - first
    for k, mark in enumerate(MARKS):
        if not len(open_):
            break
        at, head = data[open_], v[open_]
        points[open_] = ml.descend(at, head, optimizer=rule, n_steps=mark - taken, start=points[open_]).final
        tubes, taken = find_tubes(at, head, points[open_], rule, ml.Logistic()), mark
        leading[open_, k] = tubes.selected
        proved = tubes.missing == Missing.NOTHING
        if proved.any():
            chosen, n_steps = open_[proved], max(MORE * mark, LEAST)
            end, wrong, outside = _followed(
                data[chosen], v[chosen], points[chosen], type(tubes)(*(a[proved] for a in tubes)), n_steps
            )
            scores = data.scores(v)[chosen]
            above = scores > np.take_along_axis(scores, tubes.selected[proved][..., None], axis=-1)
            found.counts[cell, 1:] += [
                len(chosen), wrong.sum(), outside.sum(), above.any(axis=(1, 2)).sum(), n_steps * len(chosen)
            ]  # fmt: skip
            found.open[cell, :k] += len(chosen)
            found.open_wrong[cell, :k] += np.sum(np.any(leading[chosen, :k] != end[:, None], axis=-1), axis=0)
            open_ = open_[~proved]
    return found


def _followed(data: Any, v: FloatArray, points: FloatArray, tubes: Any, n_steps: int) -> tuple[Any, Any, Any]:
    """The tokens that lead after further steps, and whether a point in between selects other tokens or lies outside the tube."""
    wrong, outside, taken = np.zeros(len(data), dtype=np.bool_), np.zeros(len(data), dtype=np.bool_), 0
    for look in (*LOOKS, n_steps):
        run = ml.descend(data, v, optimizer=ml.NormalizedGD(STEP), n_steps=look - taken, start=points)
        points, taken = run.final, look
        along = np.sum(points * tubes.direction, axis=-1)
        beside = points - along[:, None] * tubes.direction - tubes.anchor
        room = tubes.radius**2 + tubes.growth * (along - tubes.along)
        inside = (along >= tubes.along) & (np.sum(beside**2, axis=-1) <= room * (1.0 + ROUNDING))
        leading = np.argmax(np.einsum("bitd,bd->bit", data.K, points), axis=-1)
        wrong |= np.any(leading != tubes.selected, axis=-1)
        outside |= ~inside
    return leading, wrong, outside & ~wrong


def archived_proof_runs() -> ProofRuns:
    """The counts that come with the package."""
    return read("proof-runs", ProofRuns, table_settings())


def table_settings() -> dict[str, Any]:
    """What a table says its runs were made with, whatever problems they are."""
    settings = {"step": STEP, "farthest_start": FARTHEST}
    return {"settings": settings, "shapes": SHAPES, "marks": MARKS, "columns": COUNTS}
