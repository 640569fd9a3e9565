"""What the page says in words, and what its editor changes."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np

from lab_kernels import KERNELS, ask, ask_of, needs_node
from marginlens.lab.assemble import page_words
from marginlens.words.renderer import OUTCOMES

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


# Cases that only rounding or Python brings about. Every loss of the page falls; a user's own loss in Python may rise.
UNMET = {
    ("condition.assumption_a", "rising", False),
    ("condition.assumption_d", "default", False),
    ("condition.assumption_d", "shifted", True),
    ("condition.separable_optimum", "default", None),
    ("condition.separable_sets", "default", None),
    ("condition.separable_sets", "trivial", False),
    ("condition.start_in_a_cone", "absent", False),
    ("condition.step_size", "other", False),
}


CONDITIONS = {code: entry for code, entry in page_words()["sentences"].items() if code.startswith("condition.")}


def met_or_written(code: str, case: str, holds: bool | None) -> tuple[str, str, bool | None]:
    """A way in which a condition holds or fails; the case is "default" if all cases share a text."""
    texts = CONDITIONS[code][OUTCOMES[holds]]
    return code, "default" if isinstance(texts, str) else case, holds


def entries() -> set[tuple[str, str, bool | None]]:
    """Every sentence: its condition, the case, and whether the condition holds."""
    forms = [(code, entry.get(form), holds) for code, entry in CONDITIONS.items() for holds, form in OUTCOMES.items()]
    return {
        met_or_written(code, case, holds)
        for code, texts, holds in forms
        if texts is not None
        for case in (["default"] if isinstance(texts, str) else texts)
    }


def test_every_condition_has_both_texts_and_no_text_is_unused() -> None:
    huge = {
        "call": "conditionsOfHugeHead",
        "problem": {"tokens": [[[10, 10], [-10, -10]]], "head": [1, 1], "loss": "exponential", "start": [1, 0]},
        "entry": 1e308,
    }
    answers = ask([*provoking_problems(), huge])
    met = {met_or_written(found["code"], found["case"], found["holds"]) for answer in answers for found in answer}
    written = entries()
    assert written - met == UNMET
    assert not met - written


def test_conditions_equal_those_of_kernels_and_library() -> None:
    (known,) = ask([{"call": "known"}])
    source = (KERNELS / "theorems.js").read_text(encoding="utf-8")
    assert set(CONDITIONS) == set(re.findall(r'\bcheck\("([^"]+)"', source))
    cited = {citation.lower().replace(" ", "_") for citation in re.findall(r'verdict\("([^"]+)"', source)}
    assert {code.rpartition(".")[2] for code in page_words()["sentences"] if code.startswith("lab.theorem.")} == cited
    cases = {code: {case for other, case, _ in entries() if other == code} - {"default"} for code in CONDITIONS}
    assert cases["condition.step_size"] - {"other"} == {name.replace("-", "_") for name in known["optimizers"]}
    for code in ("condition.separable_optimum", "condition.separable_sets"):
        several = {"max_problems", "several", "optimal"}
        assert cases[code] - several == {status.lower() for status in known["statuses"]} - several - {"inaccurate"}


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
