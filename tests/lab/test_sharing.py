"""Problem files and pictures: what is saved comes back, and faults are one sentence."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from lab_kernels import needs_node, run_in_page
from marginlens.cli.app import app
from marginlens.lab import preset
from marginlens.lab.problem_files import read_problem

pytestmark = needs_node

KEYS = [[[-0.1, 1.0], [1.0, 0.0], [0.0, 0.0]], [[0.3, 0.1 + 0.2], [7.0, -2.5]]]
PROBLEMS: dict[str, dict[str, Any]] = {
    "scores": {"keys": KEYS, "scores": [[1, 0.9, 0], [0.25, -1]], "labels": [1, -1], "steps": 70},
    "head": {"tokens": KEYS, "head": [0.5, -1e-7], "optimizer": {"name": "Adam", "size": 0.2}, "loss": "Exponential"},
    "keys apart": {"tokens": KEYS, "keys": [[[1, 2], [3, 4], [5, 6]], [[0, 1], [1, 0]]], "head": [1, 1]},
    "joint": {"tokens": KEYS, "train": "both", "start_head": [0.1, 0.2]},
}
PAGE_PART = {
    "tab": "plane",
    "preset": "A-F1b",
    "starts": [[0.5, -1.5], [1e6, 0.1]],
    "chosen": {"input": 1, "token": 0, "start": 1, "limit": None},
    "view": {"map": "disc", "far": 1e5, "basins": True, "cones": True},
    "playback": {"step": 40},
    "text": {"source": "a b a b", "unit": "words", "window": 2},
}


def test_a_saved_problem_comes_back_as_the_same_state() -> None:
    code = """
    import { completeState } from "./state.js";
    import { problemFile, stateOfFile } from "./sharing/problem_transfer.js";
    answer(given.map((one) => {
      const state = completeState(one);
      return [state, stateOfFile(problemFile(state), completeState({ problem: one.problem }))];
    }));
    """
    for saved, loaded in run_in_page(code, [{**PAGE_PART, "problem": problem} for problem in PROBLEMS.values()]):
        assert loaded == saved


@pytest.mark.parametrize("name", PROBLEMS)
def test_python_reads_what_the_page_saves(name: str, tmp_path: Path) -> None:
    code = """
    import { completeState } from "./state.js";
    import { problemFile } from "./sharing/problem_transfer.js";
    answer(problemFile(completeState(given)));
    """
    path = tmp_path / "problem.json"
    path.write_text(run_in_page(code, {**PAGE_PART, "problem": PROBLEMS[name]}), encoding="utf-8")
    problem = read_problem(path)
    assert problem.start.tolist() == PAGE_PART["starts"][1]
    assert problem.trains_head == (name == "joint")
    rows = np.asarray(KEYS[1]) if "keys" not in PROBLEMS[name] else np.asarray(PROBLEMS[name]["keys"][1])
    assert problem.data.K[1, :2].tolist() == rows.tolist()


@pytest.mark.parametrize("name", ["scores", "joint"])
def test_the_command_line_solves_and_trains_what_the_page_saves(name: str, tmp_path: Path) -> None:
    code = """
    import { completeState } from "./state.js";
    import { problemFile } from "./sharing/problem_transfer.js";
    answer(problemFile(completeState(given)));
    """
    path = tmp_path / "problem.json"
    path.write_text(run_in_page(code, {**PAGE_PART, "problem": PROBLEMS[name]}), encoding="utf-8")
    for verb in ("solve", "train"):
        result = CliRunner().invoke(app, [verb, str(path)])
        assert result.exit_code == 0, result.output
        assert "2 inputs" in result.output


FAULTS = {
    "": "The file is empty.",
    "x, y\n1, 2\n": "not JSON",
    "[1, 2]": "holds no problem",
    '{"name": "package"}': "holds no problem",
    '{"format": "png"}': "The format must be marginlens-problem; got png.",
    '{"tokens": [[[1, 2]]], "head": [1, 1], "version": 7}': "got version 7",
    '{"tokens": [[[1, 2], [3]]], "head": [1, 1]}': "token 1 of input 0 has 1",
    '{"tokens": [[[1, 2, 3]]], "head": [1, 1, 1]}': "draws the plane",
    '{"tokens": [[[1, "a"]]], "head": [1, 1]}': "must be a number",
    '{"tokens": [[[1, 2]]], "head": [1, 1], "page": {"starts": []}}': "at least one start",
}


def test_wrong_files_are_one_sentence_and_the_state_stays() -> None:
    code = """
    import { completeState, Store } from "./state.js";
    import { loadFile, MAX_FILE_BYTES } from "./sharing/problem_transfer.js";
    const answers = [];
    const files = given.faults.map((text) => ({ name: "a.json", size: text.length, text: async () => text }));
    files.push({ name: "big.json", size: MAX_FILE_BYTES + 1, text: async () => "{}" });
    files.push({ name: "gone.json", size: 1, text: async () => { throw new TypeError("gone"); } });
    for (const file of files) {
      const store = new Store(completeState({ problem: given.problem }));
      const [before, said] = [store.state, []];
      store.subscribeMessages((message) => said.push(message));
      const isLoaded = await loadFile(store, file);
      answers.push({ isLoaded, stays: store.state === before, said });
    }
    answer(answers);
    """
    expected = [*FAULTS.values(), "too large", "cannot be read"]
    for answer, part in zip(
        run_in_page(code, {"faults": list(FAULTS), "problem": PROBLEMS["head"]}), expected, strict=True
    ):
        assert not answer["isLoaded"]
        assert answer["stays"]
        (message,) = answer["said"]
        assert message["kind"] == "refusal"
        assert part in message["sentence"]
        assert message["sentence"].endswith(".")
        assert "\n" not in message["sentence"]


def test_a_problem_without_the_pages_part_is_shown_whole() -> None:
    code = """
    import { completeState } from "./state.js";
    import { stateOfFile } from "./sharing/problem_transfer.js";
    const current = completeState({ problem: given, text: { source: "mine" } });
    answer(stateOfFile(JSON.stringify({ ...given, start: [3, 4] }), current));
    """
    state = run_in_page(code, PROBLEMS["scores"])
    assert state["starts"] == [[3, 4]]
    assert state["view"]["half"] >= 7.0
    assert state["text"]["source"] == "mine"


def test_files_and_pictures_are_called_by_example_and_step_and_say_where_it_was_changed() -> None:
    code = """
    import { completeState } from "./state.js";
    import { captionOf } from "./sharing/picture_files.js";
    import { fileName } from "./sharing/problem_transfer.js";
    import { pythonScript } from "./sharing/python_script.js";
    answer(given.map(completeState).map((state) => [fileName(state, "png"), captionOf(state), pythonScript(state).split("\\n")[0]]));
    """
    example, base = preset("A-F1b").state(), {"problem": PROBLEMS["head"]}
    states = [
        {**example, "playback": {"step": 300}},
        {**example, "starts": [[0.25, 0.5]], "playback": {"step": 300}},
        {**base, "preset": "A-F1b"},
        base,
        {**example, "tab": "text", "text": {"last": " /é"}},
    ]
    names, captions, first_lines = zip(*run_in_page(code, states), strict=True)
    assert names == (
        "marginlens-A-F1b-step-300.png",
        "marginlens-A-F1b-changed-step-300.png",
        "marginlens-A-F1b-changed.png",
        "marginlens-problem.png",
        "marginlens-text-after-_é.png",
    )
    assert [" changed," in caption for caption in captions] == [False, True, True, False, False]
    assert [line.rstrip(".").endswith("A-F1b, changed") for line in first_lines] == [False, True, True, False, False]
    assert first_lines[0].rstrip(".").endswith("in the plane, A-F1b")


def test_a_picture_is_sixteen_by_nine_well_formed_and_has_its_words_inside() -> None:
    code = """
    import { card } from "./sharing/picture_files.js";
    answer(card(given.seen, given.rows, given.caption, { ground: "#123456", ink: "#ffffff" }));
    """
    seen = (
        '<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 50 300" width="50" height="300">'
        '<text style="font-family:system-ui, &quot;Segoe UI&quot;, sans-serif;fill:red">a</text>'
        '<text font-family="Menlo, monospace">b</text></svg>'
    )
    words = "training ends at token 1 " * 12
    rows = [
        {"text": "The start decides", "size": 27, "isBold": True},
        {"text": words},
        {"text": "Limit → 1", "colour": "#c4420f"},
    ]
    svg = ET.fromstring(run_in_page(code, {"seen": seen, "rows": rows, "caption": 'after "<a> & b"'}))
    width, height = (float(svg.attrib[name]) for name in ("width", "height"))
    assert width / height == pytest.approx(16 / 9)
    (inner,) = svg.findall("{*}svg")
    assert float(inner.attrib["height"]) == pytest.approx(6 * float(inner.attrib["width"]))
    ground, swatch = svg.findall("{*}rect")
    assert (ground.attrib["fill"], float(ground.attrib["width"])) == ("#123456", width)
    assert swatch.attrib["fill"] == "#c4420f"
    plain, mono = inner.findall("{*}text")
    assert plain.attrib["style"] == "font-family:sans-serif;fill:red"
    assert mono.attrib["font-family"] == "monospace"
    lines = svg.findall("{*}text")
    texts = [str(line.text) for line in lines]
    assert (texts[0], texts[-1]) == ("The start decides", 'after "<a> & b"')
    assert " ".join(texts[1:-2]) == words.strip()
    heights = [float(line.attrib["y"]) for line in lines]
    assert heights == sorted(heights)
    assert heights[-1] < height
    for line in lines:
        assert float(line.attrib["x"]) + 0.5 * float(line.attrib["font-size"]) * len(str(line.text)) <= width
