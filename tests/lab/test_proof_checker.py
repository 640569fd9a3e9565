"""The lab's checker of proofs: its intervals hold the exact results, and it confirms nothing that Python's `verify()` refuses."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from flint import arb, ctx

import marginlens as ml
from lab.test_same_verdicts import random_problems
from lab_kernels import KERNELS, ask, ask_of, needs_node
from marginlens.lab.problem_files import LabProblem
from marginlens.theory import Certificate, MinimumCertificate, SteepestCertificate

pytestmark = needs_node

SEED, COUNT = 20261, 150
PRECISION = 200  # bits of the reference
KEYS = [[[2.0, 0.0], [0.0, 1.0], [0.0, -1.0]], [[0.0, 3.0], [1.0, 1.0]]]
SCORES = [[1.0, 0.0, 0.5], [0.0, 1.0]]
MINIMUM = {"keys": [[[0.0, 0.0], [1.0, 0.1], [-1.0, 0.3], [0.2, -1.0]]], "scores": [[1.0, 0.0, 0.5, 0.9]]}
NORMS = {"sign-descent": ml.LInf, "coordinate-descent": ml.L1}


def problem_of(keys: Any, scores: Any, name: str, size: float, **settings: Any) -> dict[str, Any]:
    return {"keys": keys, "scores": scores, "optimizer": {"name": name, "size": size, **settings}}


EXAMPLES = {
    "steps": problem_of(KEYS, SCORES, "normalized-gd", 0.1),
    "long steps": problem_of(KEYS, SCORES, "normalized-gd", 1.0),
    "plain": problem_of(KEYS, SCORES, "gradient-descent", 0.5) | {"loss": "exponential"},
    "one row": problem_of(KEYS[:1], SCORES[:1], "normalized-gd", 0.3) | {"loss": "correlation-loss"},
    "head": {
        "tokens": KEYS,
        "labels": [1, -1],
        "head": [0.7, -0.4],
        "optimizer": {"name": "normalized-gd", "size": 0.2},
    },
    "sign": problem_of(KEYS, SCORES, "sign-descent", 0.05),
    "sign, falling": problem_of(KEYS, SCORES, "sign-descent", 0.2, decay=0.5),
    "sign, by vertices": problem_of(KEYS, SCORES, "sign-descent", 0.9),
    "coordinate, by vertices": problem_of(KEYS, SCORES, "coordinate-descent", 1.3),
    "coordinate": problem_of(KEYS, SCORES, "coordinate-descent", 0.05) | {"loss": "exponential"},
    "l3": problem_of(KEYS, SCORES, "steepest-descent", 0.05, p=3.0),
    "momentum": problem_of(KEYS, SCORES, "sign-descent", 0.01, momentum=0.5),
    "l1.5 with momentum": problem_of(KEYS, SCORES, "steepest-descent", 0.01, p=1.5, momentum=0.5),
    "minimum": MINIMUM | {"optimizer": {"name": "normalized-gd", "size": 0.01}},
    "minimum, exponential": MINIMUM | {"optimizer": {"name": "adam", "size": 0.01}, "loss": "exponential"},
}


def certificate_of(
    problem: dict[str, Any], proof: dict[str, Any]
) -> Certificate | MinimumCertificate | SteepestCertificate:
    """The lab's proof as Python's certificate."""
    read = LabProblem.from_dict(problem, "a problem")
    rule: Any = read.optimizer
    numbers = {name: value for name, value in proof.items() if name not in ("citation", "taken")}
    arrays = ("point", "direction", "witness", "weights", "memory", "remembered", "multipliers", "turns")
    numbers |= {name: np.array(numbers[name], dtype=np.float64) for name in arrays if name in numbers}
    numbers |= {name: np.array(numbers[name]) for name in ("selected", "support", "leading") if name in numbers}
    given = {"data": read.data, "head": read.head, "loss": read.loss, **numbers}
    if proof["citation"] == "X Thm 1":
        return Certificate(optimizer=rule, **given)
    if proof["citation"] == "X Thm 2":
        return MinimumCertificate(**given)
    given["multipliers"] = given["multipliers"].reshape(-1, max(1, len(proof["leading"])))
    given["turns"] = given["turns"].reshape(-1, 3)
    norm = NORMS[problem["optimizer"]["name"]]() if problem["optimizer"]["name"] in NORMS else rule.norm
    return SteepestCertificate(steepest_in=norm, shape=(2,), momentum=rule.momentum, **given)


def python_confirms(problem: dict[str, Any], proof: dict[str, Any]) -> bool:
    try:
        certificate = certificate_of(problem, proof)
    except ValueError:  # lists of several lengths
        return False
    return certificate.verify().applies


def failed(problem: dict[str, Any], proofs: list[dict[str, Any]]) -> list[str | None]:
    """The first condition that fails of each proof, by the lab's checker; numbers that JSON lacks travel as strings."""

    def sent(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: sent(entry) for key, entry in value.items()}
        if isinstance(value, list):
            return [sent(entry) for entry in value]
        return str(value) if isinstance(value, float) and not math.isfinite(value) else value

    (found,) = ask_of("failed", problem, proofs=sent(proofs))
    return list(found)


# ---- intervals


def reference(name: str, given: list[Any]) -> arb:
    x, y = (arb(given[0]), arb(given[-1]))
    return {
        "exp": x.exp,
        "log": x.log,
        "root": x.sqrt,
        "add": lambda: x + y,
        "multiply": lambda: x * y,
        "divide": lambda: x / y,
    }[name]()


@pytest.mark.parametrize("name", ["add", "multiply", "divide", "root", "exp", "log"])
def test_intervals_hold_the_exact_result_and_little_more(name: str) -> None:
    rng = np.random.default_rng(5)
    sizes = np.exp(rng.uniform(-40.0, 40.0, (2, 400)))
    first, second = (sizes * rng.choice([-1.0, 1.0], sizes.shape)).tolist()
    if name in ("exp", "log", "root"):
        given = [[float(x)] for x in (rng.uniform(-690.0, 690.0, 400) if name == "exp" else sizes[0])]
    else:
        given = [[x, y] for x, y in zip(first, second, strict=True)]
    given += {
        "exp": [[0.0], [1e-320], [-5e-324]],
        "log": [[1.0], [math.nextafter(1.0, 2.0)]],
        "root": [[0.0], [5e-324]],
    }.get(name, [[0.1, 0.2], [5e-324, 1.0], [1e-200, 3e-150], [1e-300, 7.0]])
    before, ctx.prec = ctx.prec, PRECISION
    try:
        (answers,) = ask([{"call": "intervals", "name": name, "given": given}])
        for one, (low, high) in zip(given, answers, strict=True):
            exact = reference(name, one)
            assert arb(low) <= exact <= arb(high), (name, one)
            assert high - low <= 1e-12 * max(abs(float(exact)), 1.0 if name == "log" else 1e-300), (name, one)
    finally:
        ctx.prec = before


def test_intervals_of_no_number_satisfy_no_comparison() -> None:
    asked = {"divide": [[1.0, 0.0], [1.0, [-1.0, 1.0]]], "log": [[0.0], [-1.0]], "root": [[-1.0]]}
    for name, given in asked.items():
        (answers,) = ask([{"call": "intervals", "name": name, "given": given}])
        assert all(math.isnan(answer[1]) for answer in answers), name


@pytest.mark.parametrize("power", [1.01, 1.5, 2.0, 3.0, 17.0])
def test_norm_bounds_are_above_the_norm_and_close(power: float) -> None:
    special = [[0.0, 0.0], [0.0, -2.0], [1.0, 1e-200], [1.0, 1.0]]
    points = [*np.random.default_rng(3).normal(size=(50, 2)).tolist(), *special]
    (bounds,) = ask([{"call": "intervals", "name": "normBound", "given": [[point, power] for point in points]}])
    before, ctx.prec = ctx.prec, PRECISION
    try:
        for point, bound in zip(points, bounds, strict=True):
            terms = [abs(arb(x)) ** arb(power) for x in point if x]
            exact = sum(terms, arb(0)) ** (1 / arb(power)) if terms else arb(0)
            assert exact <= arb(bound)
            assert bound <= float(exact) * (1.0 + 1e-10)
    finally:
        ctx.prec = before


def test_products_are_compared_exactly() -> None:
    tiny, cases = 5e-324, []
    rng = np.random.default_rng(2)
    for _ in range(100):
        x, v = rng.normal(size=2).round(3).tolist(), rng.normal(size=2).round(3).tolist()
        y = [x[0] + v[1], x[1] - v[0]]  # the same product but for rounding
        cases += [[x, y, v], [x, x, v], [x, [x[0] + tiny, x[1]], v]]
    cases += [[[2.0, 1.0], [0.0, 4.0], [0.75, 0.5]], [[tiny, 0.0], [0.0, tiny], [1.0, 1.0]]]
    (answers,) = ask([{"call": "intervals", "name": "isSameProduct", "given": cases}])
    exact = [
        sum((Fraction(a) - Fraction(b)) * Fraction(c) for a, b, c in zip(*case, strict=True)) == 0 for case in cases
    ]
    assert answers == exact
    assert 100 < sum(exact) < len(cases)


def test_the_checker_imports_nothing_of_the_search() -> None:
    for path in (KERNELS / "checker").iterdir():
        sources = [line.split('"')[1] for line in path.read_text(encoding="utf-8").splitlines() if ' from "' in line]
        assert set(sources) <= {"./intervals.js"}, path.name


# ---- proofs


@pytest.fixture(scope="module")
def proofs() -> dict[str, dict[str, Any]]:
    """A proof that the lab has found and confirmed for each example."""
    answers = ask_of("verdict", *EXAMPLES.values())
    assert all(answer["verified"] for answer in answers), [
        name for name, a in zip(EXAMPLES, answers, strict=True) if not a["verified"]
    ]
    return {name: answer["proof"] for name, answer in zip(EXAMPLES, answers, strict=True)}


def test_examples_cover_every_paragraph(proofs: dict[str, dict[str, Any]]) -> None:
    assert {proof["citation"] for proof in proofs.values()} == {"X Thm 1", "X Thm 2", "X Thm 4"}
    assert proofs["sign, by vertices"]["turns"]
    assert proofs["coordinate, by vertices"]["turns"]
    assert proofs["long steps"]["growth"] > 0.0
    assert any(proofs["momentum"]["remembered"])
    assert any(proofs[name]["multipliers"] for name in ("sign", "l3", "coordinate"))


@pytest.mark.parametrize("name", list(EXAMPLES))
def test_python_confirms_what_the_lab_confirms(name: str, proofs: dict[str, dict[str, Any]]) -> None:
    assert python_confirms(EXAMPLES[name], proofs[name])


def corrupted(value: Any) -> Iterator[Any]:
    """Other values of a number, or of one entry of a list."""
    if isinstance(value, list):
        for k, entry in enumerate(value):
            yield from ([*value[:k], other, *value[k + 1 :]] for other in corrupted(entry))
        yield value[:-1]
        yield [*value, value[-1]] if value else [1.0]
        yield value[::-1]
    elif isinstance(value, int):
        yield from (value + 1, value - 1, -value - 1, 99)
    else:
        yield from (
            -value,
            2.0 * value,
            0.5 * value,
            1.01 * value,
            0.99 * value,
            value + 0.1,
            0.0,
            1e9,
            math.nan,
            math.inf,
        )
        yield from (value * (1.0 + 1e-7), value * (1.0 - 1e-7))


def corruptions(proof: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    whole = ("selected", "support", "leading", "taken")
    plain = {
        k: v if k in whole else np.array(v, dtype=np.float64).tolist() for k, v in proof.items() if k != "citation"
    }
    return [
        (field, {**proof, **plain, field: other})
        for field, value in plain.items()
        for other in corrupted(copy.deepcopy(value))
        if other != value
    ]


@pytest.mark.parametrize("name", list(EXAMPLES))
def test_no_corrupted_proof_passes_that_python_refuses(name: str, proofs: dict[str, dict[str, Any]]) -> None:
    changed = corruptions(proofs[name])
    refused = {field: 0 for field, _ in changed}
    for (field, proof), condition in zip(changed, failed(EXAMPLES[name], [proof for _, proof in changed]), strict=True):
        refused[field] += condition is not None
        if condition is None:
            assert field == "taken" or python_confirms(EXAMPLES[name], proof), (field, proof[field])
    free = {"taken"}
    assert [field for field, count in refused.items() if not count and field not in free] == []


@pytest.mark.parametrize("name", list(EXAMPLES))
def test_proofs_hold_for_their_own_problem_alone(name: str, proofs: dict[str, dict[str, Any]]) -> None:
    problem = EXAMPLES[name]
    others = [problem | {"loss": loss} for loss in ("logistic", "exponential", "correlation-loss")]
    others += [problem | {"optimizer": {**problem["optimizer"], "size": 3.0 * problem["optimizer"]["size"]}}]
    if "scores" in problem:
        others += [problem | {"scores": [[-score for score in row] for row in problem["scores"]]}]
        others += [problem | {"keys": [[[-x for x in key] for key in row] for row in problem["keys"]]}]
    else:
        others += [
            problem | {"head": [-x for x in problem["head"]]},
            problem | {"labels": [-x for x in problem["labels"]]},
        ]
    passed = 0
    for other in others:
        (condition,) = failed(other, [proofs[name]])
        if condition is None and other["optimizer"] == problem["optimizer"]:
            passed += 1
            assert python_confirms(other, proofs[name]), other
    (of_mirrored,) = failed(others[-1], [proofs[name]])
    assert of_mirrored is not None
    assert passed < len(others)


def test_steps_longer_than_the_proof_says_are_refused(proofs: dict[str, dict[str, Any]]) -> None:
    for name in ("sign", "sign, falling", "l3", "momentum"):
        optimizer = EXAMPLES[name]["optimizer"]
        longer = EXAMPLES[name] | {"optimizer": {**optimizer, "size": 1.001 * optimizer["size"]}}
        assert failed(longer, [proofs[name]]) == ["longest"]


def test_random_problems_are_confirmed_by_python_too() -> None:
    problems = random_problems(SEED, COUNT)
    found: dict[str, int] = {}
    for problem, answer in zip(problems, ask_of("verdict", *problems), strict=True):
        if answer["proof"] is None:
            continue
        citation = answer["proof"]["citation"]
        found[citation] = found.get(citation, 0) + 1
        assert answer["verified"] == python_confirms(problem, answer["proof"]), problem
    assert sum(found.values()) >= 80, found
    assert min(found.get(citation, 0) for citation in ("X Thm 1", "X Thm 2", "X Thm 4")) >= 8, found
