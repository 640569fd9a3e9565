"""What the page saves: Python reads, solves and trains its problems, and pictures are well-formed. Links are in sharing.test.mjs."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lab_kernels import needs_node, run_in_page
from marginlens.cli.app import app
from marginlens.lab.problem_files import read_problem
from tolerances import ROUNDING, SIX_DIGITS

pytestmark = needs_node

KEYS = [[[-0.1, 1.0], [1.0, 0.0], [0.0, 0.0]], [[0.3, 0.1 + 0.2], [7.0, -2.5]]]
PROBLEMS: dict[str, dict[str, Any]] = {
    "scores": {"keys": KEYS, "scores": [[1, 0.9, 0], [0.25, -1]], "labels": [1, -1], "steps": 70},
    "head": {"tokens": KEYS, "head": [0.5, -1e-7], "optimizer": {"name": "adam", "size": 0.2}, "loss": "exponential"},
    "keys apart": {"tokens": KEYS, "keys": [[[1, 2], [3, 4], [5, 6]], [[0, 1], [1, 0]]], "head": [1, 1]},
    "joint": {"tokens": KEYS, "train": "both", "start_head": [0.1, 0.2]},
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_python_reads_solves_and_trains_what_the_page_saves(name: str, tmp_path: Path) -> None:
    code = """
    import { completeState } from "./state.js";
    import { problemFile } from "./sharing/problem_transfer.js";
    answer(problemFile(completeState(given)));
    """
    given, path = PROBLEMS[name], tmp_path / "problem.json"
    starts, chosen = [[0.5, -1.5], [1e6, 0.1]], {"input": 1, "token": 0, "start": 1, "limit": None}
    path.write_text(run_in_page(code, {"problem": given, "starts": starts, "chosen": chosen}), encoding="utf-8")
    problem = read_problem(path)
    assert problem.start.tolist() == starts[1]
    assert problem.trains_head == (name == "joint")
    assert problem.data.K[1, :2].tolist() == given.get("keys", KEYS)[1]
    expected = {"predict": "--details prints", "train": "° away from"}
    for verb in expected if name in ("scores", "joint") else ():
        result = CliRunner().invoke(app, [verb, str(path)])
        assert result.exit_code == 0, result.output
        assert expected[verb] in result.output


def test_a_picture_is_well_formed_and_self_contained() -> None:
    code = """
    import { framed } from "./sharing/picture_files.js";
    answer(framed(given.seen, given.sentences, { ground: "#123456", ink: "#ffffff" }));
    """
    seen = (
        '<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 50 300" width="50" height="300">'
        '<text style="font-family:system-ui, &quot;Segoe UI&quot;, sans-serif;fill:red">a</text>'
        '<text font-family="Menlo, monospace">b</text></svg>'
    )
    words = "training ends at token 1 " * 12
    svg = ET.fromstring(run_in_page(code, {"seen": seen, "sentences": [words, 'after "<a> & b"']}))
    width, height = (float(svg.attrib[name]) for name in ("width", "height"))
    (inner,) = svg.findall("{*}svg")
    assert float(inner.attrib["height"]) == pytest.approx(
        6 * float(inner.attrib["width"]), rel=SIX_DIGITS, abs=ROUNDING
    )
    (ground,) = svg.findall("{*}rect")
    assert (ground.attrib["fill"], float(ground.attrib["width"])) == ("#123456", width)
    plain, mono = inner.findall("{*}text")
    assert plain.attrib["style"] == "font-family:sans-serif;fill:red"
    assert mono.attrib["font-family"] == "monospace"
    lines = svg.findall("{*}text")
    texts = [str(line.text) for line in lines]
    assert texts[-1] == 'after "<a> & b"'
    assert " ".join(texts[:-1]) == words.strip()
    heights = [float(line.attrib["y"]) for line in lines]
    assert heights == sorted(heights)
    assert float(inner.attrib["y"]) + float(inner.attrib["height"]) < heights[0]
    assert heights[-1] < height
    for line in lines:
        assert float(line.attrib["x"]) + 0.5 * float(line.attrib["font-size"]) * len(str(line.text)) <= width
