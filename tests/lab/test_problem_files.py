"""The JSON form of a problem: every fault is refused in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import marginlens as ml
from lab_kernels import ask, needs_node
from marginlens.lab import LabProblem, read_problem, write_problem
from marginlens.lab.presets import state_of

pytestmark = needs_node

GOOD: dict[str, Any] = {"tokens": [[[1, 0], [0, 1]], [[2, 1]]], "labels": [1, -1], "head": [1, 0.5]}
FAULTS = {
    "a number": (3, "A problem must be a JSON object"),
    "a list": ([], "A problem must be a JSON object"),
    "another format": ({**GOOD, "format": "png"}, "format must be"),
    "another version": ({**GOOD, "version": 2}, "reads version 1"),
    "no tokens": ({"labels": [1]}, "must be a list of inputs"),
    "too many inputs": ({**GOOD, "tokens": [[[1, 0]]] * 9}, "at most 8 inputs; got 9"),
    "too many tokens": ({**GOOD, "tokens": [[[1, 0]] * 13]}, "at most 12 tokens; got 13"),
    "an empty input": ({**GOOD, "tokens": [[[1, 0]], []]}, "Input 1 of tokens must hold at least one token"),
    "unequal lengths": ({**GOOD, "tokens": [[[1, 0], [1]]]}, "token 1 of input 0 has 1"),
    "letters": ({**GOOD, "tokens": [[[1, "x"]]]}, 'must be a number; got "x"'),
    "no number": ({**GOOD, "tokens": [[[1, None]]]}, "must be a number; got null"),
    "a huge number": ({**GOOD, "tokens": [[[1, 1e9]]]}, "must lie between"),
    "wide vectors": ({**GOOD, "tokens": [[[0] * 9]]}, "each token must have two numbers; token 0 of input 0 has 9"),
    "labels missing": ({**GOOD, "labels": [1]}, "one label for each of 2 inputs"),
    "a label of zero": ({**GOOD, "labels": [1, 0]}, "Each label must be 1 or -1; got 0"),
    "a short head": ({**GOOD, "head": [1]}, "head must be a list of 2 numbers; got 1 entries"),
    "head and scores": ({**GOOD, "scores": [[1, 2], [3]]}, "got both"),
    "neither head nor scores": ({"tokens": [[[1, 0]]]}, "a head or scores; got neither"),
    "scores of the wrong length": ({"keys": GOOD["tokens"], "scores": [[1], [3]]}, "Input 0 must have 2 scores"),
    "keys that do not match": ({**GOOD, "keys": [[[1, 0]], [[2, 0]]]}, "one key for each token"),
    "keys alone": ({"keys": GOOD["tokens"], "head": [1, 1]}, "need scores"),
    "an unknown optimizer": ({**GOOD, "optimizer": {"name": "SGD"}}, "named one of GradientDescent"),
    "an unknown setting": ({**GOOD, "optimizer": {"name": "Adam", "rho": 1}}, "Adam has no setting"),
    "a step of zero": ({**GOOD, "optimizer": {"name": "NormalizedGD", "size": 0}}, "step size"),
    "betas of one": ({**GOOD, "optimizer": {"name": "Adam", "betas": [0.9, 1]}}, "below 1"),
    "p of one": ({**GOOD, "optimizer": {"name": "SteepestDescent", "p": 1}}, "must be above 1"),
    "an unknown loss": ({**GOOD, "loss": "hinge"}, "one of Logistic"),
    "half a step": ({**GOOD, "steps": 0.5}, "whole number"),
    "joint training by Adam": ({**GOOD, "train": "both", "optimizer": {"name": "Adam"}}, "trained together by"),
    "joint training of scores": ({"keys": GOOD["tokens"], "scores": [[1, 2], [3]], "train": "both"}, "cannot be given"),
    "a long start": ({**GOOD, "start": [1, 2, 3]}, "start must be a list of 2 numbers"),
}


def test_faults_are_refused_in_one_sentence() -> None:
    answers = ask([{"call": "refusal", "problem": problem} for problem, _ in FAULTS.values()])
    for (name, (_, expected)), answer in zip(FAULTS.items(), answers, strict=True):
        assert answer is not None, name
        assert expected in answer, (name, answer)
        assert answer.endswith(".")
        assert "\n" not in answer


def test_words_of_tokens_are_written_read_and_shown(tmp_path: Path) -> None:
    data = ml.TokenDataset([np.eye(2), np.ones((1, 2))], [1.0, -1.0])
    problem = LabProblem(data, [1.0, 0.0], words=[["a", "fine"], ["film"]])
    write_problem(tmp_path / "problem.json", problem)
    assert read_problem(tmp_path / "problem.json") == problem
    assert state_of(problem)["problem"]["words"] == [["a", "fine"], ["film"]]
    assert problem != LabProblem(data, [1.0, 0.0])


@pytest.mark.parametrize("words", ["a fine film", [["a", "fine"]], [["a"], ["film"]], [["a", 1], ["film"]], [[], []]])
def test_words_must_be_one_text_for_each_token(words: object) -> None:
    data = ml.TokenDataset([np.eye(2), np.ones((1, 2))], [1.0, -1.0])
    with pytest.raises(ml.InputError, match=r"'words' argument must be a list of texts for each input"):
        LabProblem(data, [1.0, 0.0], words=words)
