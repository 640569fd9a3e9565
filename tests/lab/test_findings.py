"""What the page says in words, and what its editor changes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from lab_kernels import ask_of, needs_node

pytestmark = needs_node

OPTIMIZERS = ("gradient-descent", "normalized-gd", "sign-descent", "coordinate-descent", "steepest-descent", "adam")
TRIANGLE = [[1.0, 0.0], [0.0, 1.0], [-1.0, 0.5]]


def scored(keys: Any, scores: Any, **settings: Any) -> dict[str, Any]:
    return {"keys": keys, "scores": scores, **settings}


def test_a_verdict_calls_tokens_by_their_words() -> None:
    problem = scored([TRIANGLE], [[1, 0, 0]], words=[["molten", "when", ""]])
    refused = {**problem, "words": [["molten", "when"]]}
    answer, refusal = ask_of("verdict", problem, refused)
    assert answer["endsAt"] == "“molten” wins."
    assert answer["because"].startswith("Why: “molten” ")
    assert "“when”" in answer["because"]
    assert refusal["refusal"].startswith("There must be a list of words for each of 1 inputs, one for each token; got")


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
    said = json.dumps(ask_of("verdict", *problems), ensure_ascii=False)
    for hole in ("undefined", "NaN", "nan", "–"):  # steps may be as long as one likes: ∞
        assert hole not in said


def test_verdicts_of_joint_problems_agree() -> None:
    tokens = [[(2.0, 1.0), (0.5, -1.0)], [(-2.0, 1.0), (-0.5, -1.0)]]
    told, tied, many = ask_of(
        "verdict",
        {"tokens": tokens, "labels": [1, -1], "train": "both"},
        {"tokens": [[(1.0, 0.0)], [(1.0, 0.0)]], "labels": [1, -1], "train": "both"},
        {"tokens": [TRIANGLE * 3] * 5, "labels": [1] * 5, "train": "both"},
    )
    codes = [answer["codes"]["because"] for answer in (told, tied, many)]
    assert codes == ["lab.joint.best", "lab.joint.inseparable", "lab.joint.too_many"]
    assert "token 0 of input 0 and token 0 of input 1" in told["because"]
    assert told["codes"]["reason"] == "outcome.missing.joint"


def test_inputs_without_a_choice_are_listed() -> None:
    problems = (scored([TRIANGLE, TRIANGLE], [[1, 2, 3], last]) for last in ([1, 2, 3], [2, 2, 2]))
    answers = ask_of("leftOut", *problems)
    assert answers[0] is None
    assert answers[1].startswith("Input 1 ")
