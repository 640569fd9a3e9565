"""Descent in several norms on the same random problems, and the share of every norm's best margin that each run attains."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np

import marginlens as ml
from marginlens.data import sphere_queries, sphere_tokens
from marginlens.risk import MatrixRisk
from marginlens.typing import BoolArray, FloatArray, IntArray
from marginlens_papers.tables import Table, read

USUAL_STEPS = 10_000  # of the runs for which sizes are given
SHARES = ("share", "limits", "gap", "margin", "course")  # what a table has of a run, as numbers


class Problems(NamedTuple):
    """A batch of problems with their heads (batch, d_model), and for W a query for each input, (batch, n_inputs, d_model)."""

    data: ml.TokenDataset
    heads: FloatArray
    queries: FloatArray | None

    @property
    def risk(self) -> Any:
        """The logistic risk, of W if there are queries and of p otherwise."""
        of_p = ml.AttentionRisk(self.data, self.heads)
        return of_p if self.queries is None else MatrixRisk(of_p, self.queries)

    def best(self, selected: IntArray, norm: ml.Norm) -> ml.MarginSolution:
        """The shortest weights in this norm that select these tokens (batch, n_inputs)."""
        if self.queries is None:
            return ml.att_svm(self.data, selected, norm=norm)
        return ml.att_svm(self.data, selected, norm=norm, query=self.queries)


class Geometry(NamedTuple):
    """A norm, what it is called in tables, and the steps of descent in it: their size in runs of 10,000, their momentum, and the largest
    ηγ of these sizes on 12 problems, γ being the best margin in the norm for the tokens that the run selects; None in Euclidean norms.
    """

    name: str
    norm: ml.Norm
    size: float
    momentum: float = 0.0
    nesterov: bool = False
    eta_gamma: float | None = None

    def descent(self, n_steps: int, slower: float = 1.0) -> ml.SteepestDescent:
        """Steepest descent in the norm for a run of this many steps, of a constant size that falls like n_steps^(-1/4)."""
        size = slower * self.size * (USUAL_STEPS / n_steps) ** 0.25
        return ml.SteepestDescent(self.norm, size, self.momentum, self.nesterov)

    @property
    def words(self) -> str:
        """Size and momentum in a few words."""
        kind = "Nesterov's momentum" if self.nesterov else "momentum"
        return f"{self.name} {self.size:g}" + (f" with {kind} {self.momentum:g}" if self.momentum else "")


class Setting(NamedTuple):
    """What is trained, on which problems, in which norms."""

    draw: Callable[[int], Problems]
    words: str
    geometries: tuple[Geometry, ...]


def _with_queries(count: int) -> Problems:
    return Problems(*sphere_queries(count, 6, 8, 10, np.random.default_rng(61)))


def _with_vectors(count: int) -> Problems:
    return Problems(*sphere_tokens(count, 4, 6, 30, np.random.default_rng(62)), None)


SETTINGS: Mapping[str, Setting] = {
    "W": Setting(
        _with_queries,
        "n = 6, T = 8, d = 10, one query per input; tokens, queries and head uniform on the sphere",
        (
            Geometry("ℓ1", ml.L1(), 1.5, 0.85, nesterov=True, eta_gamma=0.106),
            Geometry("ℓ∞", ml.LInf(), 0.07, eta_gamma=0.184),
            Geometry("Frobenius", ml.Frobenius(), 3.0),
            Geometry("nuclear", ml.Nuclear(), 0.6, 0.8, nesterov=True, eta_gamma=0.123),
            Geometry("spectral", ml.Spectral(), 0.5, eta_gamma=0.367),
        ),
    ),
    "p": Setting(
        _with_vectors,
        "n = 4, T = 6, d = 30; tokens and head uniform on the sphere",
        (
            Geometry("ℓ1", ml.L1(), 0.7, 0.7, eta_gamma=0.130),
            Geometry("ℓ1.75", ml.Lp(1.75), 1.0, eta_gamma=0.434),
            Geometry("ℓ2", ml.L2(), 2.0),
            Geometry("ℓ3", ml.Lp(3.0), 0.5, eta_gamma=0.419),
            Geometry("ℓ∞", ml.LInf(), 0.1, 0.5, eta_gamma=0.209),
        ),
    ),
}


@dataclass(frozen=True)
class NormRuns(Table):
    """Runs of several descents on the same problems, each from zero.

    Attributes:
        names: of the norms, in which descents and margins are both ordered.
        share: (n_descents, n_norms, n_problems) the run's margin over the best for the tokens it selects: at most one.
        limits: (n_descents, n_norms, n_problems) the same of the solution that has the best margin in the descent's norm.
        gap: (n_descents, n_problems) of the run's own bracket, no solver involved. solver_gap: the largest of any margin's bracket.
        changed: (n_descents, n_problems) whether the selection changed over the second half of the steps.
        selected: (n_descents, n_problems, n_inputs). margin: (n_descents, n_norms, n_problems) the best margins.
        steps: at which `course` (n_descents, n_problems, n_saved) has the share of the final tokens' margin in the descent's norm.
    """

    FORM = "marginlens shares of margins 1"
    MADE_BY = "python -m experiments.norm_runs"

    names: tuple[str, ...]
    share: FloatArray
    limits: FloatArray
    gap: FloatArray
    solver_gap: float
    changed: BoolArray
    selected: IntArray
    margin: FloatArray
    steps: IntArray
    course: FloatArray

    @classmethod
    def from_table(cls, name: str, values: dict[str, Any]) -> Self:
        return cls(
            names=tuple(values["names"]),
            solver_gap=float(values["solver_gap"]),
            changed=np.array(values["changed"], dtype=bool),
            selected=np.array(values["selected"], dtype=np.int64),
            steps=np.array(values["steps"], dtype=np.int64),
            **{share: np.array(values[share], dtype=np.float64) for share in SHARES},
        )

    @property
    def table(self) -> FloatArray:
        """(n_descents, n_norms) mean shares over all problems."""
        return np.asarray(self.share.mean(axis=-1))

    @property
    def off_diagonal(self) -> FloatArray:
        """The mean shares of other norms' margins."""
        table = self.table
        return table[~np.eye(len(table), dtype=bool)]


def norm_runs(
    problems: Problems, geometries: Sequence[Geometry], n_steps: int, advance: Callable[[], Any] = lambda: None
) -> NormRuns:
    """Train every problem by descent in every norm, and hold each run against the best margin of each norm for what it selected.

    Args:
        advance: called after each descent.
    """
    steps = np.unique(np.append(np.geomspace(min(100, n_steps), n_steps, 13).round(), n_steps // 2)).astype(np.int64)
    found = []
    for geometry in geometries:
        found.append(_descent(problems, geometry, geometries, steps))
        advance()
    stacked = {name: np.stack([run[name] for run in found]) for name in found[0]}
    solver_gap = float(stacked.pop("solver_gap").max())
    return NormRuns(tuple(geometry.name for geometry in geometries), solver_gap=solver_gap, steps=steps, **stacked)


def _descent(problems: Problems, geometry: Geometry, geometries: Sequence[Geometry], steps: IntArray) -> dict[str, Any]:
    """One descent on all problems."""
    risk = problems.risk
    n_steps = int(steps[-1])
    run = ml.descend(
        risk, optimizer=geometry.descent(n_steps), n_steps=n_steps, record=ml.Record(steps.tolist(), ("x", "selected"))
    )
    solutions = [problems.best(run.selected, other.norm) for other in geometries]
    own = next(k for k, other in enumerate(geometries) if other is geometry)
    margins = np.stack([np.asarray(solution.margin) for solution in solutions])
    lead, limit_lead = (smallest_lead(risk, x, run.selected) for x in (run.final, solutions[own].x))
    middle = int(np.flatnonzero(steps == n_steps // 2)[0])
    points = run.saved["x"]  # (batch, n_saved, *shape)
    course = [
        smallest_lead(risk, points[:, k], run.selected) / norms_of(geometry.norm, points[:, k]) / margins[own]
        for k in range(len(steps))
    ]
    return {
        "share": np.stack([lead / norms_of(other.norm, run.final) for other in geometries]) / margins,
        "limits": np.stack([limit_lead / norms_of(other.norm, solutions[own].x) for other in geometries]) / margins,
        "margin": margins,
        "gap": np.asarray(run.bracket(geometry.norm).gap),
        "solver_gap": np.max([solution.bracket().gap for solution in solutions]),
        "changed": np.any(run.saved["selected"][:, middle] != run.selected, axis=-1),
        "selected": run.selected,
        "course": np.stack(course, axis=-1),
    }


def smallest_lead(risk: Any, x: FloatArray, selected: IntArray) -> FloatArray:
    """By how much the logit of the selected token exceeds the next one, in the input in which that is least, (batch,)."""
    logits = np.array(risk.logits(x))  # (batch, n_inputs, n_tokens)
    chosen = np.take_along_axis(logits, selected[..., None], axis=-1)
    np.put_along_axis(logits, selected[..., None], -np.inf, axis=-1)
    return np.asarray((chosen[..., 0] - logits.max(axis=-1)).min(axis=-1))


def norms_of(norm: ml.Norm, points: FloatArray) -> FloatArray:
    """The norm of each point along the first axis."""
    return np.array([norm.value(point) for point in points])


def archived_norm_runs(variable: str, n_steps: int) -> NormRuns:
    """The runs of this variable and length that come with the package."""
    return read(table_name(variable, n_steps), NormRuns, settings_of(variable, n_steps))


def table_name(variable: str, n_steps: int) -> str:
    """What the table of these runs is called."""
    return f"norm-runs-{variable}-{n_steps}"


def settings_of(variable: str, n_steps: int) -> dict[str, Any]:
    """What a table says its runs were made with."""
    setting = SETTINGS[variable]
    descents = {geometry.name: repr(geometry.descent(n_steps)) for geometry in setting.geometries}
    return {"variable": variable, "n_steps": n_steps, "problems": {"drawn": setting.words}, "descents": descents}
