"""The page's runs, margins, optimality and verdicts against the library, on all presets and on random problems of the plane.

MARGINLENS_LAB_PROBLEMS=500 compares so many random problems instead of a few. Both compute with one core, so that paths are the same bits;
directions and numbers of conditions agree to 1e-9, and selections and verdicts are the same.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest

import marginlens as ml
from lab_kernels import as_json, ask, ask_of, needs_node
from marginlens.data.random_tokens import scored_tokens
from marginlens.dynamics import Record
from marginlens.errors import InputError
from marginlens.lab import presets
from marginlens.lab.problem_files import optimizer_json
from marginlens.names import OPTIMIZERS as OPTIMIZERS_BY_NAME
from marginlens.names import kebab
from marginlens.optimizers.schedules import PowerDecay
from marginlens.theory import basin_cone, locally_optimal_directions, token_optimality
from marginlens.theory.implicit_bias import implicit_bias
from tolerances import ROUNDING

pytestmark = needs_node

N_RANDOM = int(os.environ.get("MARGINLENS_LAB_PROBLEMS", "14"))
RTOL = 1e-9
SAVED = (0, 1, 2, 3, 10, 63, 64, 65, 200, 400)  # steps at which paths are compared
MAX_PROBLEMS = 10_000
LOSSES = {"logistic": ml.Logistic(), "exponential": ml.Exponential(), "correlation-loss": ml.CorrelationLoss()}


class Case(NamedTuple):
    """A problem of p with all that the page asks for."""

    name: str
    data: ml.TokenDataset
    head: Any
    start: Any
    optimizer: dict[str, Any]
    loss: str
    saved: tuple[int, ...] = SAVED

    @property
    def json(self) -> dict[str, Any]:
        settings = {"optimizer": self.optimizer, "loss": self.loss, "steps": self.saved[-1]}
        return as_json(self.data, self.head, start=np.asarray(self.start).tolist(), **settings)

    @property
    def rule(self) -> Any:
        """The optimizer as the library has it."""
        settings = dict(self.optimizer)
        name, decay = settings.pop("name"), settings.pop("decay", 0.0)
        if decay:
            settings["size"] = PowerDecay(settings["size"], decay)
        if name == "steepest-descent":
            return ml.SteepestDescent(ml.Lp(settings.pop("p")), **settings)
        return OPTIMIZERS_BY_NAME.class_named(name)(**settings)


OPTIMIZERS = (
    {"name": "normalized-gd", "size": 0.1},
    {"name": "gradient-descent", "size": 0.5},
    {"name": "sign-descent", "size": 0.05},
    {"name": "adam", "size": 0.05, "betas": [0.9, 0.999], "eps": 0.0},
    {"name": "coordinate-descent", "size": 0.1},
    {"name": "steepest-descent", "size": 0.1, "p": 3.0},
    {"name": "normalized-gd", "size": 1.0},
    {"name": "steepest-descent", "size": 0.3, "p": 1.5, "decay": 0.3},
    {"name": "adam", "size": 0.1, "betas": [0.8, 0.95], "eps": 1e-8, "decay": 0.5},
    {"name": "sign-descent", "size": 0.05, "momentum": 0.9},
    {"name": "coordinate-descent", "size": 0.1, "momentum": 0.5, "decay": 0.2},
    {"name": "steepest-descent", "size": 0.1, "p": 3.0, "momentum": 0.95},
    {"name": "steepest-descent", "size": 0.2, "p": 1.5, "momentum": 0.8, "decay": 0.4},
)


def preset_cases() -> Iterator[Case]:
    """Every preset of the plane from each of its starts, by its own optimizer for its own number of steps."""
    for entry in presets():
        problem = entry.problem
        if not problem.trains_head and not entry.text:
            optimizer, n_steps = optimizer_json(problem.optimizer), problem.n_steps
            saved = (*(step for step in (*SAVED, 1000) if step < n_steps), n_steps)
            for start in entry.starts:
                loss = kebab(type(problem.loss).__name__)
                yield Case(f"{entry.name} from {start}", problem.data, problem.head, start, optimizer, loss, saved)


def plane_cases() -> Iterator[Case]:
    """The problems of the ledger's claims in the plane, each with a few starts and all optimizers in turn."""
    problems = {
        "figure_1a": ml.data.figure_1a(),
        "figure_1b": ml.data.figure_1b(),
        "figure_1c": ml.data.figure_1c(),
        "figure_5(3)": ml.data.figure_5(3.0),
        "figure_5(10)": ml.data.figure_5(10.0),
        "figure_8": ml.data.figure_8(),
    }
    starts = ([0.0, 0.0], [1.0, 0.2], [-3.0, 2.0], [900.0, 30.0], [-1e5, 1e6])
    count = 0
    for name, (data, head) in problems.items():
        for start in starts:
            loss = list(LOSSES)[count % 3]
            yield Case(f"{name} from {start}", data, head, start, OPTIMIZERS[count % len(OPTIMIZERS)], loss)
            count += 1


def tied_cases() -> Iterator[Case]:
    """Inputs with several tokens of the highest score, with one score for all, with two tokens in one place, with far tokens."""
    plane = [(1.0, 0.0), (0.5, 0.8), (-0.4, 0.3), (0.1, -0.9)]
    other = [(0.2, 1.0), (1.0, 0.4), (-0.7, -0.2), (0.0, 0.1)]
    problems = {
        "two best tokens": scored_tokens([plane], [[1.0, 1.0, 0.2, -0.3]]),
        "two best tokens in each input": scored_tokens([plane, other], [[1.0, 1.0, 0.2, 0.2], [0.4, 0.4, -1.0, 0.1]]),
        "two minima": scored_tokens([[(1.0, 0.0), (-1.0, 0.0), (0.0, 0.0)]], [[1.0, 1.0, 0.0]]),
        "negative best scores": scored_tokens([plane], [[-0.5, -0.5, -1.0, -2.0]]),
        "one score for all of an input": scored_tokens([plane, other], [[0.5] * 4, [1.0, 0.0, 0.0, 0.0]]),
        "one score for all": scored_tokens([plane, other], [[0.5] * 4, [0.5] * 4]),
        "two tokens in one place": scored_tokens([[*plane[:3], plane[0]]], [[1.0, 0.9, 0.0, 0.5]]),
        "the optimal token inside the others": scored_tokens([[*plane, (0.1, 0.1)]], [[0.0, 0.1, 0.2, 0.3, 1.0]]),
        "one token": scored_tokens([plane[:1]], [[1.0]]),
        "tokens far away": scored_tokens(
            [
                [(1.0, 0.0), (0.0, 0.0), (0.0, 1e6), (3e-7, 1.0)],
                [(0.3, 0.1), (0.7, 0.1), (-0.3, -1e6 / 3.0), (1.0, 1.0 / 3.0)],
            ],
            [[1.0, 0.3, 0.1, 0.9], [1.0, 0.2, 0.4, 0.9]],
        ),
    }
    for count, (name, (data, head)) in enumerate(problems.items()):
        for start in ([0.3, 0.1], [40.0, 60.0]):  # not zero, where symmetry leaves the first step to rounding
            yield Case(f"{name} from {start}", data, head, start, OPTIMIZERS[count % 2], list(LOSSES)[count % 3])


def random_case(number: int) -> Case:
    """A random problem of at most 8 inputs of at most 12 tokens; in every fourth, scores tie."""
    rng = np.random.default_rng([1804, number])
    n_inputs, d = int(rng.integers(1, 9)), 2
    longest = int(rng.integers(2, 13))
    lengths = rng.integers(1 if number % 5 == 0 else 2, longest + 1, n_inputs)
    lengths[0] = longest
    kind = number % 4
    labels = rng.choice([-1.0, 1.0], n_inputs)
    tokens = [rng.standard_normal((length, d)) for length in lengths]
    if kind == 0:  # keys are the tokens, on the sphere
        tokens = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in tokens]
        data, head = ml.TokenDataset(tokens, labels), rng.standard_normal(d)
    elif kind == 1:  # keys apart
        keys = [rng.standard_normal((length, d)) for length in lengths]
        data, head = ml.TokenDataset(tokens, labels, K=keys), rng.standard_normal(d)
    else:  # scores outright, on a coarse grid where they tie, and keys on one too
        keys_array = rng.standard_normal((n_inputs, longest, d)).round(1 if kind == 2 else 8)
        scores = rng.uniform(-1.0, 1.0, (n_inputs, longest)).round(1 if kind == 2 else 8)
        if number % 8 == 3:  # Assumption B
            scores[:] = 0.25
            scores[np.arange(n_inputs), rng.integers(longest, size=n_inputs)] = 1.0
        data, head = scored_tokens(keys_array, scores, labels)
    start = rng.standard_normal(d) * 10.0 ** rng.integers(-1, 7) * (number % 7 > 0)
    return Case(
        f"random {number}", data, head, start, OPTIMIZERS[number % len(OPTIMIZERS)], list(LOSSES)[number // 3 % 3]
    )


@cache
def cases() -> tuple[Case, ...]:
    return (*preset_cases(), *plane_cases(), *tied_cases(), *map(random_case, range(N_RANDOM)))


def close(mine: Any, theirs: Any, rtol: float = RTOL) -> bool:
    """Whether two vectors or lists of numbers agree relative to the larger of 1 and their largest entry; inf and nan must match."""
    a, b = np.asarray(mine, dtype=float), np.asarray(theirs, dtype=float)
    if a.shape != b.shape or not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return False
    finite = np.isfinite(a)
    same = np.array_equal(a[~finite], b[~finite], equal_nan=True)
    size = max(1.0, float(np.abs(b[finite]).max(initial=0.0)))
    return same and bool(np.all(np.abs(a[finite] - b[finite]) <= rtol * size))


# ---- paths


def test_paths_have_the_librarys_bits() -> None:
    others = [case._replace(optimizer=OPTIMIZERS[k % len(OPTIMIZERS)]) for k, case in enumerate(cases()[::2])]
    chosen = [*cases(), *others]
    requests = []
    for case in chosen:  # scores outright, so that the order of the sums in v·x does not matter
        scores = case.data.finite_scores(case.head)
        listed = [scores[i, :length].tolist() for i, length in enumerate(case.data.lengths)]
        keys = [case.data.K[i, :length].tolist() for i, length in enumerate(case.data.lengths)]
        given = {key: case.json[key] for key in ("start", "optimizer", "loss", "steps")}
        problem = {"keys": keys, "scores": listed, **given}
        requests.append({"call": "descent", "problem": problem, "steps": case.saved})
    for case, answer in zip(chosen, ask(requests), strict=True):
        settings = {"loss": LOSSES[case.loss], "optimizer": case.rule, "n_steps": case.saved[-1], "start": case.start}
        run = ml.descend(case.data, case.head, record=Record(case.saved), **settings)
        if case.optimizer.get(
            "decay"
        ):  # whose powers round otherwise in JavaScript, which grows in the course of some runs
            assert close(answer["points"][:5], run.saved["x"][:5]), (case.name, case.optimizer)
        else:
            np.testing.assert_array_equal(answer["points"], run.saved["x"], err_msg=f"{case.name} {case.optimizer}")
        assert answer["steps"] == int(run.steps_taken)


# ---- margins and optimality


def selections_of(case: Case) -> list[list[int]]:
    rng = np.random.default_rng(len(case.name))
    chosen = [case.data.optimal(case.head).tolist()]
    if np.any(case.start):
        chosen.append(ml.AttentionRisk(case.data, case.head).select(np.asarray(case.start)).tolist())
    return [*chosen, *(rng.integers(case.data.lengths).tolist() for _ in range(2))]


def test_margins_and_optimality_agree_and_are_proved() -> None:
    asked = [{"call": "optimality", "problem": case.json, "selections": selections_of(case)} for case in cases()]
    wrong, counts = [], dict.fromkeys(("OPTIMAL", "INFEASIBLE", "TRIVIAL", "local", "global"), 0)
    for case, request, answer in zip(cases(), asked, ask(asked), strict=True):
        for selected, mine in zip(request["selections"], answer, strict=True):
            theirs = token_optimality(case.data, case.head, selected)
            solution = theirs.solution
            agree = (
                mine["solution"]["status"] == solution.status.name
                and mine["isFeasible"] == bool(theirs.is_feasible)
                and mine["isLocallyOptimal"] == bool(theirs.is_locally_optimal)
                and mine["isGloballyOptimal"] == bool(theirs.is_globally_optimal)
                and np.array_equal(np.array(mine["neighbours"]).reshape(theirs.neighbours.shape), theirs.neighbours)
                and close(mine["scoreGap"], theirs.score_gap)
                and np.array_equal(np.array(mine["solution"]["active"], dtype=bool), solution.active)
            )
            if theirs.is_feasible:
                size = max(float(np.linalg.norm(solution.x)), 1e-300)
                agree &= close(np.array(mine["solution"]["x"]) / size, solution.x / size)
                agree &= close(np.array(mine["solution"]["multipliers"]) @ solution.rows / size, solution.x / size)
            counts[solution.status.name] += 1
            counts["local"] += int(theirs.is_locally_optimal)
            counts["global"] += int(theirs.is_globally_optimal)
            proof = mine["residual"]
            if solution.status.name == "INFEASIBLE":  # weights under which the rows cancel
                weights = np.array(mine["solution"]["certificate"])
                sizes = np.linalg.norm(solution.rows, axis=1)
                total = weights @ np.where(sizes > 0, sizes, 1.0)
                proof = np.linalg.norm(weights @ solution.rows) / total if total > 0 and weights.min() >= 0 else np.inf
            if not (agree and proof <= 1e-10 and abs(mine["gap"]) <= 1e-10):
                wrong.append((case.name, selected, mine["solution"]["status"], solution.status.name, proof))
    assert min(counts[name] for name in ("OPTIMAL", "INFEASIBLE", "local", "global")) > 0, counts
    assert not wrong, f"{len(wrong)}: {wrong[:5]}"


# ---- margins in other norms

NORMS = {1.0: ml.L1(), 1.5: ml.Lp(1.5), 2.0: ml.L2(), 3.0: ml.Lp(3.0), "inf": ml.LInf()}


def test_margins_in_other_norms_agree_in_the_plane() -> None:
    asked, expected = [], []
    for case in cases()[::3]:
        for selected in selections_of(case):
            for power, norm in NORMS.items():
                asked.append({"call": "normMargin", "problem": case.json, "selected": selected, "power": power})
                expected.append(ml.att_svm(case.data, selected, norm=norm))
    n_solved, n_unique = 0, 0
    for request, mine, theirs in zip(asked, ask(asked), expected, strict=True):
        assert mine["status"] == theirs.status.name
        if mine["status"] != "OPTIMAL":
            continue
        n_solved += 1
        assert mine["margin"] == pytest.approx(theirs.margin, rel=1e-9, abs=ROUNDING), request
        assert mine["lower"] == pytest.approx(mine["upper"], rel=1e-9, abs=ROUNDING), request
        assert mine["lower"] <= mine["upper"] * (1.0 + 1e-11)
        assert mine["isUnique"] == bool(theirs.is_unique), request
        if mine["isUnique"]:
            n_unique += 1
            # a bracket of 1e-9 leaves the square root of it to the point
            rtol = 1e-4 if isinstance(theirs.norm, ml.Lp) else RTOL
            assert close(mine["direction"], theirs.direction, rtol), request
        combined = np.array(mine["multipliers"]) @ theirs.rows
        assert theirs.norm.dual(combined) == pytest.approx(mine["length"], rel=1e-9, abs=ROUNDING)
    assert n_solved > len(asked) // 2
    assert n_unique > len(asked) // 2


def test_optimizers_have_the_librarys_norms() -> None:
    names = {1.0: ml.L1, float("inf"): ml.LInf, 3.0: ml.Lp, 1.5: ml.Lp, 2.0: ml.L2}
    chosen = [case._replace(optimizer=optimizer) for case in cases()[:1] for optimizer in OPTIMIZERS]
    for case, power in zip(chosen, ask_of("normOf", *(case.json for case in chosen)), strict=True):
        bias = implicit_bias(case.rule, ml.AttentionRisk(case.data, case.head))
        norm = (
            bias.norm if all(bias.conditions) else bias.solution.norm
        )  # the page says besides that memory must be short
        assert isinstance(norm, names[power]), case.optimizer
        assert getattr(norm, "p", power) == power


# ---- predictions


def is_alone(case: Case) -> bool:
    """Whether the output of one input alone depends on p."""
    dependent = ml.predict_limit(case.data, case.head, prove=False).details.dependent
    return int(dependent.sum()) == 1 or (not dependent.any() and case.data.n_inputs == 1)


def compared_prediction(case: Case, mine: dict[str, Any]) -> list[str]:
    """What differs between the page's prediction and the library's."""
    start = np.asarray(case.start)
    theirs = ml.predict_limit(
        case.data,
        case.head,
        loss=LOSSES[case.loss],
        start=start,
        optimizer=case.rule,
        max_problems=MAX_PROBLEMS,
        prove=False,  # the page says what theorems say of the start alone
    )
    wrong = []
    certain = theirs.direction if theirs.observed is None else theirs.observed
    promise = mine["promise"]
    if certain is not None and not (promise and close(promise["direction"], certain)):
        wrong.append("promise")
    met = {one.citation: [check.holds for check in one.conditions] for one in theirs.verdicts}  # steps come last
    held = [one for one in ("A Thm 2", "A Thm 3") if all(met[one][:-1]) and (one != "A Thm 2" or is_alone(case))]
    expected = {"citation": held[0], "coversSteps": met[held[0]][-1]} if held else None
    if expected != (promise and {key: promise[key] for key in ("citation", "coversSteps")}):
        wrong.append(f"{promise} against {expected}")
    candidates = theirs.candidates
    if not candidates.complete:  # in the plane the page lists them all the same
        dependent = theirs.details.dependent
        part = case.data.take_inputs(dependent) if dependent.any() else case.data
        optima = locally_optimal_directions(part, case.head, max_problems=100_000)
        listed = {tuple(row) for row in optima.selections.tolist()}
        found = [one for one in mine["candidates"] if one["label"] != "G^mm"]
        if {tuple(np.array(one["selected"])[dependent].tolist()) for one in found} != listed:
            wrong.append("candidates in the plane")
        return wrong
    ours = {(one["label"], *one["selected"]): one for one in mine["candidates"]}
    rows = zip(
        candidates.labels, candidates.selections.tolist(), candidates.directions, candidates.margins, strict=True
    )
    expected = {(label, *selected): (direction, margin) for label, selected, direction, margin in rows}
    if set(ours) != set(expected):
        wrong.append(f"candidates: {sorted(set(ours) ^ set(expected))}")
    else:
        wrong += [
            f"direction of {key}"
            for key, (direction, margin) in expected.items()
            if not (close(ours[key]["direction"], direction) and close(ours[key]["margin"], margin))
        ]
    return wrong


def test_predictions_agree() -> None:
    answers = ask_of("predict", *(case.json for case in cases()), maxProblems=MAX_PROBLEMS)
    found = {case.name: compared_prediction(case, mine) for case, mine in zip(cases(), answers, strict=True)}
    wrong = {name: differences for name, differences in found.items() if differences}
    assert not wrong, f"{len(wrong)} of {len(found)}: {list(wrong.items())[:3]}"


def test_cones_agree_with_python() -> None:
    optima = []
    for case in cases()[::2]:
        try:
            listed = locally_optimal_directions(case.data, case.head, max_problems=2000).selections
        except InputError:
            continue
        optima += [(case, selected) for selected in listed[:2].tolist()]
    asked = [{"call": "cone", "problem": case.json, "selected": selected} for case, selected in optima]
    assert len(asked) > 5
    n_cones = 0
    for (case, selected), mine in zip(optima, ask(asked), strict=True):
        try:
            theirs = basin_cone(case.data, case.head, selected, loss=LOSSES[case.loss])
        except InputError:  # nothing to separate
            assert mine is None
            continue
        for mine_name, name in (("mu", "mu"), ("radius", "radius"), ("provenRadius", "proven_radius")):
            assert mine[mine_name] == pytest.approx(getattr(theirs, name), rel=1e-8, abs=ROUNDING), (case.name, name)
        n_cones += 1
    assert n_cones >= 0.9 * len(asked)
