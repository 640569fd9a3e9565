"""The lab's presets and links in Python: the page opens each of them as it is meant, and every plane claim has one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

import marginlens as ml
from lab_kernels import ask_of, needs_node, run_in_page
from marginlens.errors import InputError
from marginlens.lab import permalink, preset, presets, write_lab
from marginlens.lab.presets import MAX_VOCABULARY, state_of
from marginlens.lab.problem_files import (
    MAX_ENTRY,
    MAX_INPUTS,
    MAX_START,
    MAX_STEPS,
    MAX_TOKENS,
    LabProblem,
    page_problem,
)
from refusals import raised, refused
from tolerances import ROUNDING

NAMES = [entry.name for entry in presets()]
PLANE_CLAIMS = {"A-F1a", "A-F1b", "A-F1c", "A-F2", "A-F3", "A-F5", "A-F8", "X-B", "X-N2", "X-N4", "X-N5"}


def test_every_claim_in_the_plane_has_a_preset() -> None:
    assert {entry.claim for entry in presets()} - {""} == PLANE_CLAIMS
    assert len(set(NAMES)) == len(NAMES)
    assert all(entry.title and entry.caption.endswith(".") for entry in presets())


def test_preset_data_equal_the_librarys() -> None:
    examples: dict[str, Any] = {
        "A-F1a": ml.data.figure_1a(),
        "A-F1b": ml.data.figure_1b(),
        "A-F1c": ml.data.figure_1c(),
        "A-F2": ml.data.cone_example(),
        "A-F3a": (ml.data.figure_3a(), None),
        "A-F3b": (ml.data.figure_3b(), None),
        "A-F8": ml.data.figure_8(),
        "X-B-random": ml.data.basin_example(),
        "A-F5": ml.data.figure_5(10.0),
        **{f"X-N2-{norm}": ml.data.norm_example() for norm in ("l1", "l2", "linf")},
        **{f"X-N4-{norm}": ml.data.norm_selection_example() for norm in ("l2", "linf")},
        "X-N5": ml.data.norm_example(),
    }
    assert set(examples) == {entry.name for entry in presets() if entry.claim}
    for name, (data, head) in examples.items():
        shown = preset(name).problem
        np.testing.assert_array_equal(shown.data.K, data.K)
        np.testing.assert_array_equal(shown.data.y, data.y)
        if head is None:
            np.testing.assert_array_equal(shown.data.X, data.X)
        else:
            np.testing.assert_array_equal(shown.data.scores(shown.head), data.scores(head))
    cone = ml.basin_cone(*ml.data.cone_example(), [0])
    np.testing.assert_allclose(np.linalg.norm(preset("A-F2").starts, axis=1), cone.radius, rtol=ROUNDING, atol=0.0)
    samples = preset("C-F2").text["sequences"]["samples"]
    assert samples == [sequence.tolist() for sequence, _ in map(ml.data.figure_2().__getitem__, range(len(samples)))]


@needs_node
def test_the_page_opens_presets_and_links_with_the_same_state() -> None:
    code = """
    import { stateOfPreset } from "./state.js";
    import { hashOf, stateOfHash } from "./sharing/permalink.js";
    const states = [];
    for (const { entry, hash } of given) {
      const opened = stateOfPreset(entry);
      states.push([opened, (await stateOfHash(hash)).state, (await stateOfHash(await hashOf(opened))).state]);
    }
    answer(states);
    """
    given = [{"entry": entry.to_dict(), "hash": permalink(entry)} for entry in presets()]
    for entry, (opened, linked, again) in zip(presets(), run_in_page(code, given), strict=True):
        assert opened == linked == again
        assert opened["preset"] == entry.name
        assert LabProblem.from_dict({**opened["problem"], "start": opened["starts"][0]}) == LabProblem.from_dict(
            {**entry.problem.to_dict(), "start": list(entry.starts[0])}
        )
        assert opened["tab"] == ("text" if entry.text else "plane")
        assert {**opened["view"], **entry.view} == opened["view"]
        assert {**opened["text"], **entry.text} == opened["text"]


@needs_node
def test_the_text_tab_has_the_sequences_of_the_figure() -> None:
    code = """
    answer(globalThis.labWords.texts.map(({ text }) => text.sequences ?? null));
    """
    assert preset("C-F2").text["sequences"] in run_in_page(code)


@needs_node
def test_links_round_trip_problems_and_states() -> None:
    rng = np.random.default_rng(0)
    wide = ml.TokenDataset(rng.standard_normal((2, 3, 5)), [1, -1], K=rng.standard_normal((2, 3, 2)))
    head = rng.standard_normal(5)
    states: list[Any] = [
        LabProblem(wide, head, start=[1 / 3, -1e-17], optimizer=ml.SignDescent(0.1), n_steps=3),
        {**state_of("A-F1c"), "tab": "text", "text": {"source": "é 😀", "window": 3}, "playback": {"step": 7}},
    ]
    code = """
    import { problemOf } from "./state.js";
    import { stateOfHash } from "./sharing/permalink.js";
    const states = await Promise.all(given.map(stateOfHash));
    answer(states.map(({ state }) => ({ state, problem: problemOf(state) })));
    """
    found = run_in_page(code, [permalink(state) for state in states])
    shown = LabProblem.from_dict(found[0]["problem"])
    assert shown.start.tolist() == [1 / 3, -1e-17]
    assert np.array_equal(shown.data.scores(shown.head), wide.scores(head))
    assert np.array_equal(shown.data.K, wide.K)
    assert found[1]["state"]["text"]["source"] == "é 😀"
    assert found[1]["state"]["playback"]["step"] == 7


def test_preset_names_ignore_case_and_unknown_ones_are_refused() -> None:
    assert preset("a-f1B").name == "A-F1b"
    assert preset("The-start-decides") is preset("start-decides")
    with refused("preset"):
        preset("A-F1-b")
    with refused("shown"):
        permalink(3)  # type: ignore[arg-type]


def test_problems_that_the_page_rejects_are_refused() -> None:
    tokens = np.random.default_rng(1).standard_normal
    flat = ml.TokenDataset(tokens((2, 3, 2)), [1, -1])
    unusable = {
        "keys with 3 coordinates": LabProblem(ml.TokenDataset(tokens((1, 2, 3)), [1]), [1, 0, 0]),
        "9 inputs": LabProblem(ml.TokenDataset(tokens((9, 2, 2)), [1] * 9), [1, 0]),
        "up to 13 tokens": LabProblem(ml.TokenDataset(tokens((1, 13, 2)), [1]), [1, 0]),
        "numbers up to": LabProblem(ml.TokenDataset(1e7 * tokens((1, 2, 2)), [1]), [1, 0]),
        "1e+13": LabProblem(flat, [1, 0], start=[1e13, 0]),
        "n_steps": LabProblem(flat, [1, 0], n_steps=MAX_STEPS + 1),
        "tokens with 3": LabProblem(ml.TokenDataset(tokens((1, 2, 3)), [1], K=tokens((1, 2, 2))), trains_head=True),
    }
    for names, problem in unusable.items():
        with raised(InputError, names) as caught:
            page_problem(problem)
        assert str(caught.value).count(". ") == 0
    assert page_problem(LabProblem(flat, [1, 0])).data == flat


@needs_node
def test_presets_have_the_names_that_links_of_the_page_have() -> None:
    code = """
    import { linkName } from "./examples.js";
    answer(given.map(linkName));
    """
    names = [entry.link_name for entry in presets()]
    assert run_in_page(code, [entry.to_dict() for entry in presets()]) == names
    assert [preset(name).link_name for name in names] == names
    assert "the-start-decides" in names


@needs_node
def test_the_page_accepts_what_python_accepts() -> None:
    code = """
    import { MAX_ENTRY, MAX_INPUTS, MAX_START, MAX_STEPS, MAX_TOKENS } from "../kernels/problem.js";
    import { MAX_VOCABULARY } from "./text/text_model.js";
    answer([MAX_INPUTS, MAX_TOKENS, MAX_ENTRY, MAX_START, MAX_STEPS, MAX_VOCABULARY]);
    """
    assert run_in_page(code) == [MAX_INPUTS, MAX_TOKENS, MAX_ENTRY, MAX_START, MAX_STEPS, MAX_VOCABULARY]
    data = ml.TokenDataset(np.full((MAX_INPUTS, MAX_TOKENS, 2), MAX_ENTRY), [1] * MAX_INPUTS)
    largest = page_problem(LabProblem(data, [MAX_ENTRY, 0], start=[MAX_START, 0], n_steps=MAX_STEPS))
    assert ask_of("read", largest.to_dict()) == [None]


def test_write_lab_takes_datasets_problems_and_names(tmp_path: Path) -> None:
    data, head = ml.data.figure_8()
    path = write_lab(tmp_path / "lab.html", data, head, start=[1, 2], n_steps=5)
    begin = path.read_text(encoding="utf-8").split('id="problem">')[1]
    opened = json.loads(begin.split("</script>")[0])
    assert opened == {**opened, "starts": [[1.0, 2.0]]}
    assert opened["problem"]["steps"] == 5
    assert write_lab(path, "A-F8").read_text(encoding="utf-8").count('"preset":"A-F8"') == 2
    with refused("path"):
        write_lab(tmp_path / "lab.txt")
    with refused("problem"):
        write_lab(path, "A-F8", head)
    assert [file.name for file in tmp_path.iterdir()] == ["lab.html"]
