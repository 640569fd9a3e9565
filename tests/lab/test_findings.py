"""What the page says in words, and what its editor changes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

import marginlens as ml
from lab_kernels import KERNELS, ask, ask_of, needs_node
from marginlens.lab.assemble import page_words

pytestmark = needs_node

OPTIMIZERS = ("gradient-descent", "normalized-gd", "sign-descent", "coordinate-descent", "steepest-descent", "adam")
TRIANGLE = [[1.0, 0.0], [0.0, 1.0], [-1.0, 0.5]]


def scored(keys: Any, scores: Any, **settings: Any) -> dict[str, Any]:
    return {"keys": keys, "scores": scores, **settings}


def test_a_verdict_calls_tokens_by_their_words() -> None:
    problem = scored([TRIANGLE], [[1, 0, 0]], words=[["molten", "when", ""]])
    refused = {**problem, "words": [["molten", "when"]]}
    answer, refusal = ask_of("verdict", problem, refused)
    assert answer["endsAt"].startswith("Token 1 “molten”, in its max-margin direction")
    assert answer["because"].startswith("Input 1: token 1 “molten” over token 2 “when”, ")
    assert refusal["refusal"].startswith("There must be a list of words for each of 1 inputs, one for each token; got")


# ---- conditions


def provoking_problems() -> list[dict[str, Any]]:
    """Requests whose answers have every condition of the theorems in every way, except by rounding."""
    one = scored([TRIANGLE], [[1, 0, 0]])
    asked = [
        {**one, "start": [1, 0], "optimizer": {"name": name, "size": size}}
        for name in OPTIMIZERS
        for size in (1e-4, 100)
    ]
    axis = [(2.0, 0.0), (0.0, 1.0), (0.0, -1.0)]
    asked += [
        {**one, "start": [0, 0]},  # favours nothing
        {**one, "start": [-1.0, 0.5]},  # favours what scores least
        {**scored([[(0.0, 1.0), (0.0, -1.0)]], [[1, 0]]), "start": [1, 0]},  # favours two tokens alike
        {**scored([axis], [[1, 0, 0.5]]), "start": [1, 0]},  # in the cone, too short
        {**scored([axis], [[1, 0, 0.5]]), "start": [1e6, 0]},  # certain
        {**scored([axis, axis], [[1, 0, 0.5], [0, 0.5, 1]]), "start": [1, 0]},  # best tokens on opposite sides
        {**scored([[(1.0, 0.0)]], [[1]]), "start": [1, 0]},  # a single token
        {**scored([TRIANGLE], [[1, 1, 0]]), "start": [1, 0]},  # best tokens tie
        {**scored([[(1.0, 0.0), (-1.0, 0.0), (0.0, 0.0)]], [[1, 1, 0]])},  # and either way is as good
        {**scored([TRIANGLE], [[1, 1, 0]]), "maxProblems": 1},
        {**scored([[(0.0, 0.0), (1.0, 0.0), (-1.0, 0.0)]], [[1, 0, 0]])},  # the best token stands between the others
        {**scored([[(0.0, 0.0), (0.0, 0.0), (1.0, 0.0), (-1.0, 0.0)]], [[1, 1, 0, 0]])},
        {**scored([TRIANGLE], [[2, 1, 1 + 3e-13]])},  # lesser tokens tie but for rounding
        {**scored([TRIANGLE], [[1, 1 + 3e-13, 0]])},  # and best ones
        {**scored([TRIANGLE, TRIANGLE], [[1, 0, 0], [1, 1, 1 + 3e-13]])},  # and all of an input
    ]
    return [
        {"call": "conditions", "problem": {k: v for k, v in problem.items() if k != "maxProblems"}}
        | ({"maxProblems": problem["maxProblems"]} if "maxProblems" in problem else {})
        for problem in asked
    ]


BY_ROUNDING = {  # ways that only rounding brings about
    ("separable optimum", "INACCURATE", False),
    ("separable sets", "INACCURATE", False),
    ("separable sets", "TRIVIAL", False),
}


CONDITIONS = page_words()["conditions"]


def entries() -> set[tuple[str, str, bool]]:
    """Every sentence: its condition, the way in which it holds or fails, and which of both."""
    ways = [(name, way, words.get(way, {})) for name, words in CONDITIONS.items() for way in ("holds", "fails")]
    return {(name, code, way == "holds") for name, way, sentences in ways for code in sentences}


def test_every_condition_has_both_texts_and_no_text_is_unused() -> None:
    huge = {
        "call": "conditionsOfHugeHead",
        "problem": {"tokens": [[[10, 10], [-10, -10]]], "head": [1, 1], "loss": "exponential", "start": [1, 0]},
        "entry": 1e308,
    }
    answers = ask([*provoking_problems(), huge])
    met = {(found["name"], found["code"], found["holds"]) for answer in answers for found in answer}
    written = entries()
    met = {(CONDITIONS[name].get("as", name), code, holds) for name, code, holds in met}
    assert all(found["sentence"] for answer in answers for found in answer)
    assert written - met == BY_ROUNDING
    assert not met - written


def test_conditions_equal_those_of_kernels_and_library() -> None:
    (known,) = ask([{"call": "known"}])
    source = (KERNELS / "theorems.js").read_text(encoding="utf-8")
    assert set(CONDITIONS) == set(re.findall(r'\bcheck\("([^"]+)"', source))
    assert set(page_words()["theorems"]) == set(re.findall(r'verdict\("([^"]+)"', source))
    theory = "".join(path.read_text(encoding="utf-8") for path in Path(ml.theory.__file__).parent.glob("*.py"))
    assert not [name for name in CONDITIONS if f'"{name}"' not in theory]
    codes = {name: {code for other, code, _ in entries() if other == name} for name in CONDITIONS}
    assert codes["step size"] == set(known["optimizers"])
    for name in ("separable optimum", "separable sets"):
        assert codes[name] - {"MAX_PROBLEMS", "SEVERAL"} == set(known["statuses"])


# ---- verdicts, remarks, selections


def test_texts_of_random_and_degenerate_problems_have_no_gaps() -> None:
    rng = np.random.default_rng(7)

    def values(on_grid: bool, *shape: int) -> Any:
        """Random numbers; on the grid tokens coincide, scores tie and starts are level."""
        return (rng.integers(-1, 2, size=shape).astype(float) if on_grid else rng.normal(size=shape)).tolist()

    problems = []
    for case in range(60):
        on_grid, lengths = case % 2 == 0, rng.integers(1, 5, size=rng.integers(1, 4)).tolist()
        problem = {
            "keys": [values(on_grid, length, 2) for length in lengths],
            "scores": [values(on_grid, length) for length in lengths],
            "start": [10.0 ** rng.integers(-1, 8) * entry for entry in values(on_grid, 2)],
            "optimizer": {"name": OPTIMIZERS[case % len(OPTIMIZERS)]},
            "loss": ["logistic", "exponential", "correlation-loss"][case % 3],
        }
        problems.append(problem)
    said = json.dumps([ask_of(call, *problems) for call in ("verdict", "conditions")], ensure_ascii=False)
    assert '"sentence": null' not in said
    for hole in ("undefined", "NaN", "∞", "–"):
        assert hole not in said


def test_verdicts_of_joint_problems_agree() -> None:
    tokens = [[(2.0, 1.0), (0.5, -1.0)], [(-2.0, 1.0), (-0.5, -1.0)]]
    told, tied, many = ask_of(
        "verdict",
        {"tokens": tokens, "labels": [1, -1], "train": "both"},
        {"tokens": [[(1.0, 0.0)], [(1.0, 0.0)]], "labels": [1, -1], "train": "both"},
        {"tokens": [TRIANGLE * 3] * 5, "labels": [1] * 5, "train": "both"},
    )
    assert "token 1 of input 1 and token 1 of input 2" in told["because"]
    assert "tell the labels apart" in tied["because"]
    assert "too many" in many["because"]
    assert "not proved" in told["proved"]


def test_inputs_without_a_choice_are_listed() -> None:
    problems = (scored([TRIANGLE, TRIANGLE], [[1, 2, 3], last]) for last in ([1, 2, 3], [2, 2, 2]))
    answers = ask_of("leftOut", *problems)
    assert answers[0] is None
    assert answers[1].startswith("Input 2 ")
