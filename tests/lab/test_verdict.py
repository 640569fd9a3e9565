"""The page's verdict on where training ends, because of what and whether a proof was found, beside that of `ml.predict`."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import marginlens as ml
from lab.test_findings import scored
from lab.test_same_verdicts import lines_of
from lab_kernels import as_json, ask_of, needs_node
from marginlens.lab import preset, presets
from marginlens.lab.assemble import page_words
from marginlens.lab.problem_files import LabProblem
from marginlens.theory import Certificate
from marginlens.theory.outcome import Outcome, outcomes
from marginlens.theory.scored_tokens import ScoredTokens

pytestmark = needs_node

PROVED = "outcome.verdict.proved"
LOSSES = ("logistic", "exponential", "correlation-loss")
KEYS = [[[2.0, 0.0], [0.0, 1.0], [0.0, -1.0]], [[0.0, 3.0], [1.0, 1.0]]]


def random_problems(count: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(11)
    problems = []
    for k in range(count):
        shape = (int(rng.integers(1, 4)), int(rng.integers(2, 6)))
        name, size = ("normalized-gd", "normalized-gd", "gradient-descent")[k % 3], (0.1, 1.0)[k % 2]
        problem = scored(rng.normal(size=(*shape, 2)).round(3).tolist(), rng.random(shape).round(3).tolist())
        run = {"optimizer": {"name": name, "size": size}, "loss": LOSSES[k % 5 % 3]}
        problems.append({**problem, **run, "start": rng.normal(size=2).round(3).tolist()})
    return problems


def preset_problems() -> list[dict[str, Any]]:
    """The problems of the plane that a theorem covers, each from its first start and its last."""
    shown = [entry for entry in presets() if not entry.text and not entry.problem.trains_head]
    covered = [entry for entry in shown if isinstance(entry.problem.optimizer, ml.NormalizedGD | ml.GradientDescent)]
    return [
        {**entry.problem.to_dict(), "start": list(start)}
        for entry in covered
        for start in {entry.starts[0], entry.starts[-1]}
    ]


def outcome_of(problem: dict[str, Any]) -> Outcome:
    read = LabProblem.from_dict(problem, "a problem")
    problem_of_p = ScoredTokens(read.data, read.head, read.loss).as_batch()
    start = None if read.start is None else np.asarray(read.start, dtype=np.float64).reshape(1, -1)
    (found,) = outcomes(problem_of_p, start, read.optimizer)
    return found


def is_found(outcome: Outcome) -> bool:
    """Whether there is a tube for the steps themselves, and rounding does not decide whether they come to it."""
    return isinstance(outcome.certificate, Certificate) and not outcome.by_flow and outcome.is_repeatable


def test_page_verdicts_and_tokens_equal_pythons() -> None:
    problems = [*random_problems(42), *preset_problems()]
    answers = ask_of("verdict", *problems)
    named, followed = 0, 0
    for problem, answer in zip(problems, answers, strict=True):
        expected = outcome_of(problem)
        assert (answer["kind"] == "found") == is_found(expected), problem
        assert (answer["codes"]["proved"] == PROVED) == expected.proved, problem
        assert (answer["kind"] == "nothing") == expected.constant, problem
        assert (answer["kind"] == "finite") == expected.finite, problem
        if expected.finite or expected.constant:
            named += 1
            continue
        assert answer["selected"] == expected.selected.tolist(), problem
        named += answer["codes"]["endsAt"] == "outcome.ends_at.direction"
        if is_found(expected):
            followed += 1
            assert answer["steps"] == (expected.n_steps or expected.arc_length)
    assert named >= 0.95 * len(problems)
    assert followed >= 0.7 * len(problems)


def test_page_verdict_has_pythons_numbers() -> None:
    problem = scored(KEYS, [[1, 0, 0.5], [0, 1]], optimizer={"name": "normalized-gd", "size": 0.1}, start=[0.5, -1.0])
    (answer,) = ask_of("verdict", problem)
    expected = outcome_of(problem)
    assert expected.proved
    assert expected.certificate is not None
    assert answer["codes"]["proved"] == PROVED
    assert [answer["endsAt"], answer["because"], answer["proved"]] == lines_of(expected)
    assert answer["proved"] == "Proved ✓"
    reached, leads, claim, way = answer["details"]
    assert "certificate.verify() in Python" in claim
    assert f"That {expected.n_steps} steps lead there is computed" in way
    assert [reached, leads] == [str(fact) for fact in expected.details[:2]]
    assert f"reaches {expected.norm:.4g}," in claim
    assert f"within {expected.certificate.radius:.3g} of" in claim


def undecided_problems(count: int) -> list[dict[str, Any]]:
    """Problems whose end rounding decides: near ties, heads that cancel, and data that a mirror or a turn leaves as they are."""
    rng = np.random.default_rng(29)
    problems = []
    for k in range(count):
        run = {"optimizer": {"name": ("normalized-gd", "gradient-descent")[k % 2], "size": (0.4, 1.5)[k // 2 % 2]}}
        keys, scores = rng.normal(size=(2, 3, 2)).round(2), rng.uniform(0.5, 1.5, size=(2, 3)).round(2)
        apart = 1.0 + 10.0 ** -rng.uniform(12.4, 14.5)
        tied, level = scores.copy(), scores.copy()
        tied[0, 1] = tied[0].max() * apart
        level[1] = level[1, 0] * np.array([1.0, 1.0, apart])
        head = rng.normal(size=2).round(2)
        tokens = keys.copy()
        tokens[0, 1] = tokens[0, 0] + 0.7 * np.array([-head[1], head[0]])  # the same score but for rounding
        (x, y), (height, second) = rng.normal(size=2), rng.normal(size=2)
        mirrored = [[[x, y], [y, x], [height, height]], [[second, second], [0.0, 0.0]]]
        angles = rng.uniform(0.0, 1.0) + 2.0 * np.pi * np.arange(3) / 3.0
        turned = [[*np.column_stack([np.cos(angles), np.sin(angles)]).tolist(), [0.0, 0.0]]]
        problems += [
            scored(keys.tolist(), tied.tolist(), **run),
            scored(keys.tolist(), level.tolist(), **run),
            {"tokens": tokens.tolist(), "head": head.tolist(), **run},
            scored(mirrored, [[1, 1, 0], [1, 0]], **run),
            scored(turned, [[1, 1, 1, 0]], **run),
        ]
    return problems


def test_the_page_claims_no_more_than_python_near_rounding() -> None:
    problems = undecided_problems(8)
    amplified = by_rounding = 0
    for problem, answer in zip(problems, ask_of("verdict", *problems), strict=True):
        expected = outcome_of(problem)
        is_known = not expected.finite and expected.direction is not None and expected.is_repeatable
        says_tokens = answer["codes"]["endsAt"] == "outcome.ends_at.direction"
        assert not says_tokens or is_known, problem
        assert answer["kind"] not in ("found", "found in part") or (is_known and expected.certificate), problem
        by_rounding += answer["codes"].get("reason") == "outcome.missing.rounding_decides"
        amplified += answer["kind"] == "amplified"
    assert amplified >= 8
    assert by_rounding >= 10


@pytest.mark.parametrize("figure", ["figure_1b", "figure_1c"])
def test_a_start_far_out_in_a_cone_is_decided_by_theorem(figure: str) -> None:
    data, head = getattr(ml.data, figure)()
    limits = ml.theory.locally_optimal_directions(data, head)
    start = (1e9 * np.asarray(limits.directions[-1])).tolist()
    problem = as_json(data, head, start=start, optimizer={"name": "gradient-descent", "size": 1e-3})
    (answer,) = ask_of("verdict", problem)
    assert answer["kind"] == "found"
    assert PROVED in answer["codes"].values() or answer["codes"]["reason"] == "outcome.missing.promised"
    assert answer["selected"] == limits.selections[-1].tolist()


def test_a_longer_run_with_another_end_changes_the_verdict() -> None:
    computed = scored(KEYS[:1], [[1, 0, 0.5]], optimizer={"name": "adam", "size": 0.1})
    found = {**computed, "optimizer": {"name": "normalized-gd", "size": 0.1}}
    played = {"steps": 20_000, "selected": [2], "norm": 99.0}
    (before,), (after, same) = ask_of("verdict", computed), ask_of("verdict", computed, found, played=played)
    assert before["endsAt"] == "Token 0 wins."
    assert after["codes"]["endsAt"] == "lab.played"
    assert after["endsAt"] == "After the 20,000 steps that were played, token 2 wins."
    assert same["endsAt"] == "Token 0 wins."


def test_degenerate_problems_are_explained() -> None:
    nothing, tied, infeasible, finite, far = ask_of(
        "verdict",
        scored(KEYS, [[1, 1, 1], [2, 2]]),
        scored([[(1.0, 0.0), (1.0, 0.0), (0.0, 0.0)]], [[1, 1, 0]]),
        scored([[(1.0, 0.0), (1.0, 0.0), (0.0, 0.0)]], [[1, 0.5, 0]]),
        scored([[(0.0, 0.0), (1.0, 0.0), (-1.0, 0.0)]], [[1, 0, 0.5]]),
        scored([[(1.0, 0.0), (0.0, 0.0)]], [[1000, 0]]),
    )
    assert nothing["kind"] == "nothing"
    assert nothing["codes"]["endsAt"] == "outcome.ends_at.nothing"
    assert tied["codes"]["reason"] == "outcome.missing.infeasible"
    assert infeasible["codes"]["reason"] == "outcome.missing.gradient"  # what ml.predict says too
    assert finite["kind"] == "finite"
    assert finite["codes"]["endsAt"] == "outcome.ends_at.finite"
    assert far["codes"]["reason"] == "outcome.missing.range"


def test_captions_cite_applied_theorems() -> None:
    cited = 0
    for entry in presets():
        if entry.text:
            continue
        problems = [{**entry.problem.to_dict(), "start": list(start)} for start in entry.starts]
        for citation in re.findall(r"[AX] Thm \d+", entry.caption):
            cited += 1
            if citation == "X Thm 1":
                answers = ask_of("verdict", *problems)
                assert all(answer["codes"]["proved"] == PROVED for answer in answers), entry.name
                continue
            data, head, loss = entry.problem.data, entry.problem.head, entry.problem.loss
            for start in entry.starts:
                prediction = ml.predict_limit(data, head, loss=loss, start=start, prove=False)
                (verdict,) = (one for one in prediction.verdicts if one.citation == citation)
                assert verdict.applies, entry.name
    assert cited >= 3


def test_following_the_scenes_makes_another_token_win() -> None:
    story = page_words()["story"]
    assert [scene["name"] for scene in story] == ["start", "margin", "score", "optimizer", "head", "text"]
    by_name = {scene["name"]: preset(scene["preset"]).problem.to_dict() for scene in story}
    start, score, optimizer = (by_name[name] for name in ("start", "score", "optimizer"))
    changes = [
        (start, {"start": [1.5, -0.5]}),
        (score, {"head": [-1.0, 0.5]}),
        (optimizer, {"optimizer": {"name": "normalized-gd", "size": 0.05}}),
    ]
    for problem, change in changes:
        before, after = ask_of("verdict", problem, problem | change)
        assert before["selected"] != after["selected"]
