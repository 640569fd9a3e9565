"""The lab's problem files in Python: read back to the last digit, with the page's meaning, and every fault refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import marginlens as ml
from lab_kernels import ask, needs_node
from marginlens.data.random_tokens import scored_tokens
from marginlens.errors import InputError
from marginlens.lab.problem_files import LabProblem, read_problem, write_problem
from marginlens.optimizers import Blockwise
from marginlens.optimizers.schedules import PowerDecay
from random_problems import ragged_problem

GOOD: dict[str, Any] = {"tokens": [[[1, 0], [0, 1]], [[2, 1]]], "labels": [1, -1], "head": [1, 0.5]}
OPTIMIZERS = (
    ml.NormalizedGD(0.3),
    ml.GradientDescent(2.0),
    ml.SignDescent(PowerDecay(0.2, 0.5)),
    ml.CoordinateDescent(0.1),
    ml.SteepestDescent(ml.Lp(1.75), 0.1),
    ml.Adam(PowerDecay(0.1, 0.3), (0.5, 0.9), 1e-8),
    ml.SignDescent(0.1, momentum=0.9),
    ml.SteepestDescent(ml.Lp(3.0), PowerDecay(0.2, 0.5), momentum=0.5),
)


def problems() -> list[LabProblem]:
    rng = np.random.default_rng(3)
    data, head = ragged_problem(rng, 3, 5, 4, d_key=3)
    wide = ml.TokenDataset(rng.standard_normal((20, 15, 9)), rng.choice([-1.0, 1.0], 20), W=rng.standard_normal((4, 9)))
    shown = [
        LabProblem(data, head, start=rng.standard_normal(data.d_key), optimizer=rule, n_steps=7) for rule in OPTIMIZERS
    ]
    scored = LabProblem(*scored_tokens(rng.standard_normal((2, 3, 2)), rng.standard_normal((2, 3)), [1, -1]))
    joint = LabProblem(ml.data.figure_3a(), trains_head=True, start=[0, -1], start_head=[-1, 0], loss=ml.Exponential())
    return [*shown, scored, joint, LabProblem(wide, rng.standard_normal(9), loss=ml.CorrelationLoss())]


def test_files_give_back_what_was_written(tmp_path: Path) -> None:
    for problem in problems():
        write_problem(tmp_path / "p.json", problem)
        again = read_problem(tmp_path / "p.json")
        assert again == problem
        assert again.optimizer == problem.optimizer
        assert again.loss == problem.loss
        assert np.array_equal(again.data.K, problem.data.K)
    assert ml.data.read_problem(tmp_path / "p.json")[0] == problem.data
    assert ml.data.load(tmp_path / "p.json") == problem.data


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=6, max_size=6))
@settings(max_examples=50, deadline=None)
def test_every_number_keeps_all_its_digits(values: list[float]) -> None:
    data = ml.TokenDataset([[values[:2], values[2:4]]], [1.0])
    problem = LabProblem(data, values[4:], start=values[:2])
    again = LabProblem.from_dict(json.loads(json.dumps(problem.to_dict())))
    assert again.data == data
    assert again.head.tolist() == values[4:]
    assert again.start.tolist() == values[:2]


def test_what_a_file_leaves_out_is_what_the_page_takes(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(json.dumps({"format": "marginlens-problem", **GOOD, "keys": None}))
    problem = read_problem(tmp_path / "p.json")
    assert problem == LabProblem(problem.data, [1, 0.5], optimizer=ml.NormalizedGD(1.0), n_steps=1000)
    joint = LabProblem.from_dict({"tokens": GOOD["tokens"], "train": "both"})
    assert joint.optimizer == Blockwise(ml.NormalizedGD(0.1))
    ml.data.write_problem(tmp_path / "p.npz", problem.data, [1, 0.5])
    assert read_problem(tmp_path / "p.npz") == problem


@needs_node
def test_the_page_reads_those_of_the_plane() -> None:
    plane = [problem for problem in problems() if problem.data.n_inputs <= 8 and problem.data.d_key == 2]
    assert plane
    assert set(ask([{"call": "refusal", "problem": problem.to_dict()} for problem in plane])) == {None}


FAULTS: dict[str, tuple[Any, str]] = {
    "a number": (3, "a JSON object"),
    "another format": ({**GOOD, "format": "png"}, "'format'"),
    "another version": ({**GOOD, "version": 2}, "'version'"),
    "no tokens": ({"labels": [1]}, "'tokens'"),
    "scores alone": ({"scores": [[1]]}, "'keys'"),
    "an empty input": ({**GOOD, "tokens": [[[1, 0]], []]}, r"'tokens\[1\]'"),
    "unequal widths": ({**GOOD, "tokens": [[[1, 0], [1]]]}, r"'tokens\[0\]\[1\]' argument must be a list of 2 numbers"),
    "letters": ({**GOOD, "tokens": [[[1, "x"]]]}, r"'tokens\[0\]\[0\]\[1\]'"),
    "truth": ({**GOOD, "head": [True, 1]}, r"'head\[0\]'"),
    "infinity": ({**GOOD, "head": [float("inf"), 1]}, r"'head\[0\]'"),
    "labels missing": ({**GOOD, "labels": [1]}, "'labels'"),
    "a label of zero": ({**GOOD, "labels": [1, 0]}, "'labels'"),
    "a short head": ({**GOOD, "head": [1]}, "'head'"),
    "head and scores": ({**GOOD, "scores": [[1, 2], [3]]}, "'scores'"),
    "neither head nor scores": ({"tokens": [[[1, 0]]]}, "'head'"),
    "scores of another length": ({"keys": GOOD["tokens"], "scores": [[1], [3]]}, r"'scores\[0\]'"),
    "keys that do not match": ({**GOOD, "keys": [[[1]], [[2]]]}, "'keys'"),
    "an unknown optimizer": ({**GOOD, "optimizer": {"name": "SGD"}}, "'optimizer'"),
    "an unknown setting": ({**GOOD, "optimizer": {"name": "Adam", "rho": 1}}, "'optimizer.rho'"),
    "a step of zero": ({**GOOD, "optimizer": {"name": "NormalizedGD", "size": 0}}, "'optimizer.size'"),
    "a momentum of one": (
        {**GOOD, "optimizer": {"name": "SignDescent", "momentum": 1}},
        "'optimizer.momentum'",
    ),
    "betas of one": ({**GOOD, "optimizer": {"name": "Adam", "betas": [0.9, 1]}}, "'optimizer.betas'"),
    "p of one": ({**GOOD, "optimizer": {"name": "SteepestDescent", "p": 1}}, "'optimizer.p'"),
    "an unknown loss": ({**GOOD, "loss": "hinge"}, "'loss'"),
    "half a step": ({**GOOD, "steps": 0.5}, "'steps'"),
    "joint training by Adam": ({**GOOD, "train": "both", "optimizer": {"name": "Adam"}}, "'optimizer'"),
    "joint training of scores": ({"keys": GOOD["tokens"], "scores": [[1, 2], [3]], "train": "both"}, "'scores'"),
    "a long start": ({**GOOD, "start": [1, 2, 3]}, "'start'"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_refused_in_one_sentence_with_the_file_and_the_entry(name: str) -> None:
    entries, expected = FAULTS[name]
    with pytest.raises(InputError, match=expected) as caught:
        LabProblem.from_dict(entries, "'p.json'")
    assert "in 'p.json'" in str(caught.value)
    assert str(caught.value).count(". ") == 0


@pytest.mark.parametrize(
    ("rule", "joint"),
    [
        (ml.Muon(0.1), False),
        (ml.SignDescent(0.1, momentum=0.9, nesterov=True), False),
        (ml.SignDescent(lambda t: 0.1), False),
        (ml.SteepestDescent(ml.L1(), 0.1), False),
        (ml.NormalizedGD(0.1), True),
        (Blockwise(ml.GradientDescent(0.1)), True),
    ],
)
def test_what_the_lab_does_not_have_is_refused(rule: Any, joint: bool) -> None:
    with pytest.raises(InputError, match="'optimizer'"):
        LabProblem(ml.data.figure_3a(), [1.0, 0.0], optimizer=rule, trains_head=joint)


def test_batches_and_other_names_are_refused(tmp_path: Path) -> None:
    data, head = ml.data.sphere_tokens(2, 3, 4, 2, 0)
    with pytest.raises(InputError, match="one problem"):
        write_problem(tmp_path / "p.json", data, head)
    with pytest.raises(InputError, match=r"\.json"):
        write_problem(tmp_path / "p.txt", data[0], head[0])
    ml.data.write_problem(tmp_path / "p.npz", data, head)
    with pytest.raises(InputError, match="batch of 2"):
        read_problem(tmp_path / "p.npz")
