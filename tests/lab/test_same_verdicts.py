"""The lab and `ml.predict_limit` give the same verdict on random problems of the plane: the three lines, and the numbers behind them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import marginlens as ml
from lab_kernels import ask_of, needs_node
from marginlens.lab.problem_files import OPTIMIZER_SETTINGS, LabProblem
from marginlens.theory import Certificate, MinimumCertificate, SteepestCertificate
from marginlens.theory.outcome import Outcome

pytestmark = needs_node

SEED, COUNT = 4546, 48
RTOL = 1e-6
LOSSES = ("logistic", "exponential", "correlation-loss")


def random_optimizer(rng: np.random.Generator, name: str) -> dict[str, Any]:
    """An optimizer with random settings; many of its steps are so long that runs circle, or that nothing is proved."""
    size, settings = float(10.0 ** rng.uniform(-2.0, 0.3)), OPTIMIZER_SETTINGS[name]
    chosen: dict[str, Any] = {"decay": [0.0, 0.0, 0.5, 1.0, 1.2], "momentum": [0.0, 0.0, 0.5, 0.9], "eps": [0.0, 1e-8]}
    chosen |= {"p": [1.3, 2.0, 3.0, 6.0], "betas": [[0.9, 0.999], [0.5, 0.9], [0.0, 0.9]]}
    drawn = {key: values[rng.integers(len(values))] for key, values in chosen.items() if key in settings}
    return {"name": name, "size": round(0.1 * size if drawn.get("momentum") else size, 5), **drawn}


def random_problem(rng: np.random.Generator, name: str) -> dict[str, Any]:
    """Inputs of different lengths, with labels and a head, with keys of their own, or with scores outright."""
    lengths = rng.integers(2, rng.integers(2, 6) + 1, int(rng.integers(1, 4)))
    points = [[rng.normal(size=2).round(3).tolist() for _ in range(m)] for m in lengths]
    run = {"optimizer": random_optimizer(rng, name), "loss": str(rng.choice(LOSSES))}
    run |= {"start": (3.0 * rng.normal(size=2)).round(3).tolist()} if rng.random() < 0.5 else {}
    kind = rng.integers(3)
    if kind == 0:
        return {**run, "keys": points, "scores": [rng.uniform(-1.0, 1.0, m).round(3).tolist() for m in lengths]}
    own = {"keys": [[rng.normal(size=2).round(3).tolist() for _ in range(m)] for m in lengths]} if kind == 1 else {}
    labels = rng.choice([-1, 1], len(lengths)).tolist()
    return {**run, **own, "tokens": points, "labels": labels, "head": (2.0 * rng.normal(size=2)).round(3).tolist()}


def random_problems(seed: int, count: int) -> list[dict[str, Any]]:
    rng, names = np.random.default_rng(seed), list(OPTIMIZER_SETTINGS)
    return [random_problem(rng, names[k % len(names)]) for k in range(count)]


def predicted(problem: dict[str, Any]) -> Outcome:
    read = LabProblem.from_dict(problem, "a problem")
    found = ml.predict_limit(read.data, read.head, loss=read.loss, start=read.start, optimizer=read.optimizer).outcome
    assert found is not None
    return found


def lines_of(outcome: Outcome) -> list[str]:
    """The three lines of an outcome, as the lab breaks them."""
    return str(outcome).replace(";\n     ", "; ").split("\n")


def differences(answer: dict[str, Any], expected: Outcome) -> list[Any]:
    """What the lab says and Python does not: each a name, the lab's value and Python's."""
    certificate, reason = expected.certificate, expected.proof.numbers.get("reason")
    ends_at, because, proved = lines_of(expected)
    said = {
        "ends at": (answer["endsAt"], ends_at),
        "because": (answer["because"], because),
        "proved": (answer["proved"], proved),
        "codes": (answer["codes"]["proved"], expected.proof.code),
        "reason": (answer["codes"]["reason"], getattr(reason, "code", None)),
        "verified": (bool(answer["verified"]), expected.verdict is not None and expected.verdict.applies),
    }
    if not expected.constant:
        said["selected"] = (answer["selected"], expected.selected.tolist())
    if not (expected.finite or expected.constant):
        said["steps"] = (answer["steps"], expected.n_steps)
    close = {"norm": (answer["norm"], expected.norm)}
    if expected.by_flow:
        close["length"] = (answer["way"], expected.arc_length)
    names = {MinimumCertificate: ["radius"], SteepestCertificate: ["low", "high", "longest"], Certificate: ["radius"]}
    for name in names[type(certificate)] if certificate else []:
        close[name] = (answer["proof"][name], getattr(certificate, name))
    blur = expected.error if expected.settled else 0.0  # by which rounding moves a run whose tokens are known
    far = {name: pair for name, pair in close.items() if not np.isclose(*pair, rtol=RTOL, atol=blur)}
    return [(name, *pair) for name, pair in {**{k: v for k, v in said.items() if v[0] != v[1]}, **far}.items()]


def test_random_problems_have_the_same_verdict_in_the_lab_and_in_python() -> None:
    problems = random_problems(SEED, COUNT)
    seen: dict[str, int] = {}
    for problem, answer in zip(problems, ask_of("verdict", *problems), strict=True):
        expected = predicted(problem)
        assert differences(answer, expected) == [], problem
        kinds = [expected.proof.code, *(["finite"] if expected.finite else [])]
        kinds += [type(expected.certificate).__name__] if expected.certificate else []
        for kind in kinds:
            seen[kind] = seen.get(kind, 0) + 1
    for kind in ("outcome.verdict.in_part", "outcome.verdict.computed", "outcome.verdict.undecided", "finite"):
        assert seen.get(kind, 0) >= 2, seen
    assert seen["outcome.verdict.proved"] >= 10
    assert seen["SteepestCertificate"] >= 5


@pytest.mark.parametrize("name", ["normalized-gd", "sign-descent", "adam"])
def test_a_finite_minimum_is_proved_in_part(name: str) -> None:
    keys, scores = (
        [[[0.0, 0.2], [1.0, 0.0], [-1.0, 0.1]], [[0.1, 1.0], [0.0, -1.0], [0.2, 0.0]]],
        [[1, 0, 0.5], [0.2, 0, 1]],
    )
    problem = {"keys": keys, "scores": scores, "optimizer": {"name": name, "size": 0.01}}
    (answer,) = ask_of("verdict", problem)
    expected = predicted(problem)
    assert expected.finite
    assert differences(answer, expected) == []
    assert answer["codes"]["endsAt"] == "outcome.ends_at.finite"
    assert answer["codes"]["reason"] == "outcome.gap.circling"


def test_the_claim_of_a_margin_reads_like_pythons() -> None:
    settings = [{"name": "sign-descent"}, {"name": "coordinate-descent"}, {"name": "steepest-descent", "p": 1.5}]
    for optimizer in settings:
        problem = {
            "keys": [[[2, 0], [0, 1], [0, -1]]],
            "scores": [[1, 0, 0.5]],
            "optimizer": {**optimizer, "size": 0.01},
        }
        (answer,) = ask_of("verdict", problem)
        expected = next(fact for fact in predicted(problem).details if fact.code == "outcome.claim.proved")
        assert any(str(expected.numbers["claim"]) in detail for detail in answer["details"]), answer["details"]
