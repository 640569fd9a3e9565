"""Permalinks: every state comes back from its hash, and a hash that cannot be read is refused in one sentence."""

from __future__ import annotations

import base64
import json
import re
import zlib
from typing import Any

import pytest

from lab_kernels import needs_node, run_in_page
from marginlens.lab.assemble import lab_page

pytestmark = needs_node

PROBLEM = {"keys": [[[-0.1, 1.0], [1.0, 0.0], [0.0, 0.0]]], "scores": [[1.0, 0.9, 0.0]]}
ODD_STATES: dict[str, dict[str, Any]] = {
    "far starts": {"problem": PROBLEM, "starts": [[1e12, -1e-300], [-0.0, 0.1 + 0.2]]},
    "view": {"problem": PROBLEM, "view": {"map": "disc", "far": 1e9, "basins": True, "lines": False}},
    "playback": {"problem": PROBLEM, "playback": {"step": 12345}},
    "chosen": {"problem": PROBLEM, "chosen": {"input": 0, "token": 2, "start": None, "limit": 1}},
    "text": {
        "tab": "text",
        "problem": PROBLEM,
        "text": {
            "source": "Ünïcödé – “quotes” 😀\n\t\x00<script>",
            "unit": "words",
            "last": "é",
            "prompt": "",
            "window": 3,
        },
    },
    "joint": {
        "problem": {
            "tokens": [[[0, 0], [1, 1]], [[0, 0], [1, -1]]],
            "labels": [1, -1],
            "train": "both",
            "start_head": [0.1, 0.2],
            "optimizer": {"name": "GradientDescent", "size": 0.01},
            "loss": "Exponential",
            "steps": 10,
        }
    },
    "ragged": {
        "problem": {"tokens": [[[1, 2]], [[3, 4], [5, 6.5]]], "keys": [[[1, 0]], [[0, 1], [2, 2]]], "head": [0, 1]}
    },
}
ROUND_TRIP = """
import { completeState, stateOfPreset } from "./state.js";
import { hashOf, stateOfHash } from "./sharing/permalink.js";
const found = [];
for (const { preset, state: parts } of given.states) {
  const state = preset ? stateOfPreset(preset) : completeState(parts);
  const hash = await hashOf(state);
  const back = await stateOfHash(hash);
  found.push({ hash, state, back });
}
answer(found);
"""


def _hash(text: bytes) -> str:
    return "#1." + base64.urlsafe_b64encode(zlib.compress(text, wbits=-15)).rstrip(b"=").decode()


def test_every_preset_comes_back() -> None:
    [embedded] = re.findall(r'id="presets">(.*?)</script>', lab_page(), flags=re.DOTALL)
    presets = json.loads(embedded)
    found = run_in_page(ROUND_TRIP, {"states": [{"preset": preset} for preset in presets]})
    assert [entry["state"]["preset"] for entry in found] == [preset["name"] for preset in presets]
    for entry in found:
        assert entry["back"] == entry["state"]
        assert re.fullmatch(r"#[\w-]+", entry["hash"])  # by its name
        assert set(entry["hash"][3:]) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


@pytest.mark.parametrize("name", ODD_STATES)
def test_odd_states_come_back(name: str) -> None:
    [entry] = run_in_page(ROUND_TRIP, {"states": [{"state": ODD_STATES[name]}]})
    assert entry["back"] == entry["state"]
    assert entry["hash"].startswith("#1.")
    for part, expected in ODD_STATES[name].items():
        if isinstance(expected, dict):
            assert {key: entry["back"][part][key] for key in expected} == expected
        else:
            assert entry["back"][part] == expected


def test_python_can_write_a_link() -> None:
    code = 'import { stateOfHash } from "./sharing/permalink.js";\nanswer(await stateOfHash(given));'
    given = {"preset": "A-F1b", "problem": PROBLEM, "starts": [[1, 2]]}
    state = run_in_page(code, _hash(json.dumps(given).encode()))
    assert {key: state[key] for key in given} == given
    assert state["tab"] == "plane"


@pytest.mark.parametrize(
    ("hash_text", "sentence"),
    [
        ("#2.abc", "made by another version of the page (2)"),
        ("#v9.abc", "made by another version of the page (v9)"),
        ("#1.", "damaged"),
        ("#1.abc", "damaged"),
        ("#1.!!!", "damaged"),
        ("#0.abc", "made by another version of the page (0)"),
        (_hash(b"{}")[:-3], "damaged"),
        (_hash(b"\xff\xfe"), "damaged"),
        (_hash(b"not json"), "damaged"),
        (_hash(b"null"), "must be a JSON object"),
        (_hash(b"{}"), "must hold a problem"),
        (_hash(json.dumps({"problem": {**PROBLEM, "scores": [[1, 2]]}}).encode()), "must have 3 scores"),
        (_hash(json.dumps({"problem": PROBLEM, "starts": "none"}).encode()), "at least one start"),
        (_hash(json.dumps({"problem": PROBLEM, "chosen": {"input": 5}}).encode()), "not among those of the problem"),
        (_hash(b" " * 5_000_000 + b"{}"), "more than the page takes"),
    ],
)
def test_what_cannot_be_read_is_refused(hash_text: str, sentence: str) -> None:
    code = """
    import { ProblemError } from "../kernels/problem.js";
    import { stateOfHash } from "./sharing/permalink.js";
    try { answer({ state: await stateOfHash(given) }); }
    catch (error) { answer({ isProblem: error instanceof ProblemError, sentence: error.message }); }
    """
    found = run_in_page(code, hash_text)
    assert found["isProblem"]
    assert sentence in found["sentence"]


@pytest.mark.parametrize("hash_text", ["", "#", "#content"])
def test_a_place_on_the_page_is_no_link(hash_text: str) -> None:
    code = 'import { stateOfHash } from "./sharing/permalink.js";\nanswer(await stateOfHash(given));'
    assert run_in_page(code, hash_text) is None
