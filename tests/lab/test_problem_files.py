"""The JSON form of a problem, in Python and on the page: read back to the last digit, and every fault refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import marginlens as ml
from lab_kernels import ask_of, needs_node, run_in_page
from marginlens.cli.app import app
from marginlens.data.random_tokens import scored_tokens
from marginlens.errors import InputError
from marginlens.lab.presets import state_of
from marginlens.lab.problem_files import LAB_LOSSES, OPTIMIZER_SETTINGS, LabProblem, read_problem, write_problem
from marginlens.names import kebab
from marginlens.optimizers import Blockwise
from marginlens.optimizers.schedules import PowerDecay
from random_examples import examples
from random_problems import ragged_problem
from refusals import refused

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


def test_problem_files_round_trip(tmp_path: Path) -> None:
    for problem in problems():
        write_problem(tmp_path / "p.json", problem)
        again = read_problem(tmp_path / "p.json")
        assert again == problem
        assert again.optimizer == problem.optimizer
        assert again.loss == problem.loss
        assert np.array_equal(again.data.K, problem.data.K)
    assert ml.data.read_problem(tmp_path / "p.json")[0] == problem.data
    assert ml.data.load(tmp_path / "p.json") == problem.data


def test_datasets_and_runs_share_reader_and_writer(tmp_path: Path) -> None:
    data, head = ml.data.figure_8()
    ml.data.write_problem(tmp_path / "data.json", data, head)
    write_problem(tmp_path / "run.json", data, head)
    entries, with_run = (json.loads((tmp_path / name).read_text()) for name in ("data.json", "run.json"))
    assert entries.items() <= with_run.items()
    assert with_run.keys() - entries.keys() == {"start", "optimizer", "loss", "steps"}
    assert read_problem(tmp_path / "data.json") == read_problem(tmp_path / "run.json")


NAMES_OF_VERSION_1 = {
    "GradientDescent": {"size": 0.5},
    "NormalizedGD": {"size": 0.5},
    "SignDescent": {"size": 0.5, "decay": 0.5, "momentum": 0.3},
    "CoordinateDescent": {"size": 0.5},
    "SteepestDescent": {"size": 0.5, "p": 1.75},
    "Adam": {"size": 0.5, "betas": [0.5, 0.9], "eps": 0.0},
}


def files_of_version_1() -> list[dict[str, Any]]:
    """Problems as the first version of the format wrote them, with the names of classes."""
    losses = ("Logistic", "Exponential", "CorrelationLoss")
    return [
        {**GOOD, "format": "marginlens-problem", "version": 1, "optimizer": {"name": name, **settings}, "loss": loss}
        for name, settings in NAMES_OF_VERSION_1.items()
        for loss in losses
    ]


def test_version_1_files_are_read_and_written_as_version_2() -> None:
    for before in files_of_version_1():
        problem = LabProblem.from_dict(before)
        assert problem.optimizer is not None
        assert [type(problem.optimizer).__name__, type(problem.loss).__name__] == [
            before["optimizer"]["name"],
            before["loss"],
        ]
        after = problem.to_dict()
        assert after["version"] == 2
        assert after["optimizer"]["name"] == kebab(before["optimizer"]["name"])
        assert after["optimizer"].items() >= {k: v for k, v in before["optimizer"].items() if k != "name"}.items()
        assert LabProblem.from_dict(after) == problem


SAVED_BY_THE_PAGE = """
import { completeState } from "./state.js";
import { problemFile, stateOfFile } from "./sharing/problem_transfer.js";
const current = completeState({ problem: { keys: [[[0, 1]]], scores: [[1]] } });
answer(given.map((text) => problemFile(stateOfFile(text, current))));
"""


@needs_node
def test_the_page_opens_version_1_files_like_version_2() -> None:
    files = files_of_version_1()
    for before, saved in zip(files, run_in_page(SAVED_BY_THE_PAGE, [json.dumps(file) for file in files]), strict=True):
        after = json.loads(saved)
        assert after["version"] == 2
        assert LabProblem.from_dict(after) == LabProblem.from_dict(before)


@needs_node
def test_problems_round_trip_through_page_and_command_line(tmp_path: Path) -> None:
    """Written by Python, opened and saved by the page, read by Python, and trained by the command line from either file."""
    rng = np.random.default_rng(5)
    data, head = ragged_problem(rng, 2, 4, 2, d_key=2)
    by_W = ml.TokenDataset([[[0.5, -1.0], [0.25, 2.0]]], [-1], W=[[1.5, 0.25], [-0.5, 3.0]])
    runs = [
        LabProblem(data, head, start=rng.standard_normal(2), optimizer=rule, n_steps=7, loss=ml.CorrelationLoss())
        for rule in OPTIMIZERS
    ]
    runs += [LabProblem(by_W, rng.standard_normal(2), n_steps=5)]
    runs += [
        LabProblem(*scored_tokens(rng.standard_normal((2, 3, 2)), rng.standard_normal((2, 3)), [1, -1]), n_steps=5)
    ]
    for k, problem in enumerate(runs):
        write_problem(tmp_path / f"{k}.json", problem)
    texts = [(tmp_path / f"{k}.json").read_text() for k in range(len(runs))]
    for k, (problem, saved) in enumerate(zip(runs, run_in_page(SAVED_BY_THE_PAGE, texts), strict=True)):
        (tmp_path / f"{k}-saved.json").write_text(saved)
        again = read_problem(tmp_path / f"{k}-saved.json")
        assert again.data == problem.data
        assert np.array_equal(again.head, problem.head)
        assert np.array_equal(again.start, problem.start)
        settings = (again.optimizer, again.loss, again.n_steps)
        assert settings == (problem.optimizer, problem.loss, problem.n_steps)
        ends = []
        for place in (f"{k}.json", f"{k}-saved.json"):
            done = CliRunner().invoke(app, ["train", str(tmp_path / place), "--json"])
            assert done.exit_code == 0, done.output
            ends.append({**json.loads(done.stdout), "file": ""})
            if problem.data.W is not None:  # the page has written keys, and bounds from keys alone are other bounds
                del ends[-1]["problems"][0]["prediction"]
        assert ends[0] == ends[1]
        run = ml.descend(problem.risk, optimizer=problem.optimizer, n_steps=problem.n_steps, start=problem.start)
        assert ends[0]["problems"][0]["run"]["norm"] == run.norm


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=6, max_size=6))
@examples(50)
def test_every_number_keeps_all_its_digits(values: list[float]) -> None:
    data = ml.TokenDataset([[values[:2], values[2:4]]], [1.0])
    problem = LabProblem(data, values[4:], start=values[:2])
    again = LabProblem.from_dict(json.loads(json.dumps(problem.to_dict())))
    assert again.data == data
    assert again.head.tolist() == values[4:]
    assert again.start.tolist() == values[:2]


def test_missing_entries_have_the_pages_defaults(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(json.dumps({"format": "marginlens-problem", **GOOD, "keys": None}))
    problem = read_problem(tmp_path / "p.json")
    assert problem == LabProblem(problem.data, [1, 0.5], optimizer=ml.NormalizedGD(1.0), n_steps=1000)
    joint = LabProblem.from_dict({"tokens": GOOD["tokens"], "train": "both"})
    assert joint.optimizer == Blockwise(ml.NormalizedGD(0.1))
    ml.data.write_problem(tmp_path / "p.npz", problem.data, [1, 0.5])
    assert read_problem(tmp_path / "p.npz") == problem


@needs_node
def test_the_page_reads_files_of_plane_problems() -> None:
    plane = [problem for problem in problems() if problem.data.n_inputs <= 8 and problem.data.d_key == 2]
    assert plane
    assert set(ask_of("read", *(problem.to_dict() for problem in plane))) == {None}


FAULTS: dict[str, tuple[Any, str, str]] = {  # what the page says, and the entry that Python names, where they refuse it
    "a number": (3, "A problem must be a JSON object", "problem"),
    "a list": ([], "A problem must be a JSON object", "problem"),
    "another format": ({**GOOD, "format": "png"}, "format must be", "format"),
    "a later version": ({**GOOD, "version": 3}, "up to version 2", "version"),
    "no tokens": ({"labels": [1]}, "must be a list of inputs", "tokens"),
    "scores alone": ({"scores": [[1]]}, "must be a list of inputs", "keys"),
    "too many inputs": ({**GOOD, "tokens": [[[1, 0]]] * 9}, "at most 8 inputs; got 9", ""),
    "too many tokens": ({**GOOD, "tokens": [[[1, 0]] * 13]}, "at most 12 tokens; got 13", ""),
    "an empty input": ({**GOOD, "tokens": [[[1, 0]], []]}, "Input 1 of tokens must hold at least one", "tokens[1]"),
    "unequal widths": ({**GOOD, "tokens": [[[1, 0], [1]]]}, "token 1 of input 0 has 1", "tokens[0][1]"),
    "letters": ({**GOOD, "tokens": [[[1, "x"]]]}, 'must be a number; got "x"', "tokens[0][0][1]"),
    "no number": ({**GOOD, "tokens": [[[1, None]]]}, "must be a number; got null", "tokens[0][0][1]"),
    "truth": ({**GOOD, "head": [True, 1]}, "must be a number; got true", "head[0]"),
    "infinity": ({**GOOD, "head": [float("inf"), 1]}, "", "head[0]"),
    "a huge number": ({**GOOD, "tokens": [[[1, 1e9]]]}, "must lie between", ""),
    "wide vectors": (
        {**GOOD, "tokens": [[[0] * 9]]},
        "every token needs exactly two numbers; token 0 of input 0 has 9",
        "",
    ),
    "labels missing": ({**GOOD, "labels": [1]}, "one label for each of 2 inputs", "labels"),
    "a label of zero": ({**GOOD, "labels": [1, 0]}, "Each label must be 1 or -1; got 0", "labels"),
    "a short head": ({**GOOD, "head": [1]}, "head must be a list of 2 numbers; got 1 entries", "head"),
    "head and scores": ({**GOOD, "scores": [[1, 2], [3]]}, "got both", "scores"),
    "neither head nor scores": ({"tokens": [[[1, 0]]]}, "a head or scores; got neither", "head"),
    "scores of another length": ({"keys": GOOD["tokens"], "scores": [[1], [3]]}, "must have 2 scores", "scores[0]"),
    "keys that do not match": ({**GOOD, "keys": [[[1, 0]], [[2, 0]]]}, "one key for each token", "keys"),
    "keys without scores": ({"keys": GOOD["tokens"], "head": [1, 1]}, "need scores", ""),
    "an unknown optimizer": ({**GOOD, "optimizer": {"name": "SGD"}}, "named one of gradient-descent", "optimizer"),
    "an unknown setting": ({**GOOD, "optimizer": {"name": "adam", "rho": 1}}, "adam has no setting", "optimizer.rho"),
    "a step of zero": ({**GOOD, "optimizer": {"name": "normalized-gd", "size": 0}}, "step size", "optimizer.size"),
    "a momentum of one": ({**GOOD, "optimizer": {"name": "sign-descent", "momentum": 1}}, "", "optimizer.momentum"),
    "betas of one": ({**GOOD, "optimizer": {"name": "adam", "betas": [0.9, 1]}}, "below 1", "optimizer.betas"),
    "p of one": ({**GOOD, "optimizer": {"name": "steepest-descent", "p": 1}}, "must be above 1", "optimizer.p"),
    "an unknown loss": ({**GOOD, "loss": "hinge"}, "one of logistic", "loss"),
    "half a step": ({**GOOD, "steps": 0.5}, "whole number", "steps"),
    "joint training by Adam": ({**GOOD, "train": "both", "optimizer": {"name": "adam"}}, "together by", "optimizer"),
    "joint training of scores": (
        {"keys": GOOD["tokens"], "scores": [[1, 2], [3]], "train": "both"},
        "cannot",
        "scores",
    ),
    "a long start": ({**GOOD, "start": [1, 2, 3]}, "start must be a list of 2 numbers", "start"),
}


@needs_node
def test_the_page_refuses_invalid_files() -> None:
    faults = {name: (problem, words) for name, (problem, words, _) in FAULTS.items() if words}
    answers = ask_of("read", *(problem for problem, _ in faults.values()))
    for (name, (_, words)), answer in zip(faults.items(), answers, strict=True):
        assert answer is not None, name
        assert words in answer["refusal"], (name, answer)
        assert answer["refusal"].endswith(".")
        assert "\n" not in answer["refusal"]


@pytest.mark.parametrize("name", [name for name, (*_, entry) in FAULTS.items() if entry])
def test_python_refuses_invalid_files_naming_file_and_entry(name: str) -> None:
    problem, _, entry = FAULTS[name]
    with pytest.raises(InputError) as caught:
        LabProblem.from_dict(problem, "p.json")
    assert f"'{entry}'" in str(caught.value) or entry == "problem"
    assert caught.value.file == "p.json"
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
def test_optimizers_that_the_lab_lacks_are_refused(rule: Any, joint: bool) -> None:
    with refused("optimizer"):
        LabProblem(ml.data.figure_3a(), [1.0, 0.0], optimizer=rule, trains_head=joint)


def test_batches_and_other_names_are_refused(tmp_path: Path) -> None:
    data, head = ml.data.sphere_tokens(2, 3, 4, 2, 0)
    with refused("data"):
        write_problem(tmp_path / "p.json", data, head)
    with refused("path"):
        write_problem(tmp_path / "p.txt", data[0], head[0])
    ml.data.write_problem(tmp_path / "p.npz", data, head)
    with refused("path"):
        read_problem(tmp_path / "p.npz")


def test_token_names_are_written_read_and_shown(tmp_path: Path) -> None:
    data = ml.TokenDataset([np.eye(2), np.ones((1, 2))], [1.0, -1.0])
    problem = LabProblem(data, [1.0, 0.0], words=[["a", "fine"], ["film"]])
    write_problem(tmp_path / "problem.json", problem)
    assert read_problem(tmp_path / "problem.json") == problem
    assert state_of(problem)["problem"]["words"] == [["a", "fine"], ["film"]]
    assert problem != LabProblem(data, [1.0, 0.0])


@pytest.mark.parametrize("words", ["a fine film", [["a", "fine"]], [["a"], ["film"]], [["a", 1], ["film"]], [[], []]])
def test_token_names_must_be_one_string_per_token(words: object) -> None:
    data = ml.TokenDataset([np.eye(2), np.ones((1, 2))], [1.0, -1.0])
    with refused("words"):
        LabProblem(data, [1.0, 0.0], words=words)


@needs_node
def test_the_page_has_pythons_optimizers_with_their_defaults_and_its_losses() -> None:
    code = """
    import { OPTIMIZERS } from "../kernels/problem.js";
    import { LOSS_CODES } from "../kernels/softmax.js";
    answer([OPTIMIZERS, Object.keys(LOSS_CODES)]);
    """
    assert run_in_page(code) == [OPTIMIZER_SETTINGS, list(LAB_LOSSES.names)]


def test_entries_are_read_without_a_file() -> None:
    problem = LabProblem(ml.TokenDataset([[[1.0, 0.25], [0.0, -1.0]]], [1.0]), [1.0, 0.5], start=[0.5, 0.1])
    assert read_problem(problem.to_dict()) == problem
