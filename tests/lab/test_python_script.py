"""Copy as Python: the script of a state runs, and its numbers are those of the page's kernels."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import marginlens as ml
from lab.test_plane_kernels import LOSSES, OPTIMIZERS, RTOL, cases
from lab_kernels import as_json, ask, needs_node, run_in_page
from marginlens.lab.presets import presets

pytestmark = needs_node

VIEW = {"half": 4, "lines": True, "cones": False, "basins": False, "paths": True}
TEXT = {
    "source": 'the cat sat on the mat\nand the "dog" sat on the log \\ the end',
    "unit": "characters",
    "window": 6,
    "last": "t",
    "prompt": "the ca",
    "count": 12,
    "draw": "likely",
    "seed": 1,
    "steps": 300,
}


def state_of(problem: dict[str, Any], starts: Any, step: int = 0, chosen: int = 0, **view: Any) -> dict[str, Any]:
    parts = {key: value for key, value in problem.items() if key not in ("format", "version", "start")}
    return {
        "tab": "plane",
        "preset": None,
        "problem": parts,
        "starts": np.asarray(starts).tolist(),
        "chosen": {"input": None, "token": None, "start": chosen, "limit": None},
        "view": {**VIEW, **view},
        "playback": {"step": step},
        "text": TEXT,
    }


def problem_of(state: dict[str, Any], start: int) -> dict[str, Any]:
    return {**state["problem"], "start": state["starts"][start]}


def joint_problems() -> Iterator[tuple[str, dict[str, Any]]]:
    """Head and attention trained together: Figure 3, and random tokens by both optimizers that do so."""
    rng = np.random.default_rng(1818)
    for name, data in (("figure_3a", ml.data.figure_3a()), ("figure_3b", ml.data.figure_3b())):
        yield name, as_json(data, None, steps=200, start_head=[0.1, 0.2])
    for number, optimizer in enumerate(OPTIMIZERS[:2] * 3):
        data = ml.TokenDataset(rng.standard_normal((number + 1, 4, 2)).round(4), rng.choice([-1.0, 1.0], number + 1))
        settings = {"optimizer": optimizer, "loss": list(LOSSES)[number // 2], "steps": 150}
        yield f"joint {number}", as_json(data, None, start_head=rng.standard_normal(2).tolist(), **settings)


@cache
def states() -> dict[str, dict[str, Any]]:
    """Presets, joint training and the problems of `test_plane_kernels` from two starts, at steps that take little time."""
    found = {}
    for preset in presets():
        if not preset.text:
            state = preset.state()
            found[preset.name] = {**state_of(state["problem"], state["starts"], step=400), "preset": preset.name}
    plain = [(case.name, case.json) for case in cases() if case.data.n_tokens > 1]  # JSON lacks the margin of one token
    for k, (name, problem) in enumerate([*plain[-44:], *joint_problems()]):
        found[name] = state_of({**problem, "steps": 300}, [[0.5, 0.3], [-40.0, 3.0]], step=k % 3 * 60, chosen=k % 2)
    return found


def scripts_of(given: list[dict[str, Any]], link: str | None = None) -> list[str]:
    code = 'import { pythonScript } from "./sharing/python_script.js"; answer(given.map(({ state, link }) => pythonScript(state, link)));'
    scripts: list[str] = run_in_page(code, [{"state": state, "link": link} for state in given])
    return scripts


class Outcome(NamedTuple):
    """What a script left behind, and what it printed."""

    names: dict[str, Any]
    printed: str


def run_script(script: str) -> Outcome:
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(script, "script", "exec"), names)
    return Outcome(names, printed.getvalue())


@cache
def outcomes() -> dict[str, Outcome]:
    return {
        name: run_script(script) for name, script in zip(states(), scripts_of(list(states().values())), strict=True)
    }


@pytest.mark.slow
def test_scripts_print_the_prediction_with_the_pages_limits() -> None:
    code = """
    import { analyse } from "./analysis.js";
    import { completeState } from "./state.js";
    answer(given.map((state) => analyse(completeState(state)).limits.map((limit) => limit.selected)));
    """
    compared = 0
    for (name, state), selections in zip(states().items(), run_in_page(code, list(states().values())), strict=True):
        found, printed = outcomes()[name]
        assert str(found["prediction"]) in printed
        listed = None if state["problem"].get("train") == "both" else found["prediction"].candidates
        if listed is not None and listed.complete:
            assert sorted(listed.selections.tolist()) == sorted(selections), name
            compared += len(selections)
    assert compared > len(states())


def carried_rounding(found: dict[str, Any], k: int) -> float:
    """How far starts that rounding could have made end from the run of a script."""
    run, spread = found["runs"][k], 0.0
    problem = found["problem"]
    start = np.concatenate([problem.start_head if problem.trains_head else [], found["starts"][k]])
    for seed in range(3):
        sign = np.random.default_rng(seed).choice([-1.0, 1.0], len(start))
        nudged = start * (1.0 + 2.0**-51 * sign) + 2.0**-51 * sign
        other = ml.descend(problem.risk, optimizer=problem.optimizer, n_steps=found["n_steps"], start=nudged)
        spread = max(spread, float(np.linalg.norm(other.final - run.final)))
    return spread


def test_script_paths_end_where_the_pages_do() -> None:
    asked, where = [], []
    for name, state in states().items():
        for k in range(len(state["starts"])):
            steps = outcomes()[name].names["n_steps"]
            asked.append({"call": "descent", "problem": problem_of(state, k), "steps": [steps]})
            where.append((name, k))
    for (name, k), answer in zip(where, ask(asked), strict=True):
        run = outcomes()[name].names["runs"][k]
        distance = np.linalg.norm(run.final - np.array(answer["points"][-1]))
        allowed = RTOL * max(1.0, np.linalg.norm(run.final))
        if distance > allowed:  # only where rounding of the start itself is carried as far
            allowed = 100.0 * carried_rounding(outcomes()[name].names, k)
        assert distance <= allowed, (name, k)
        assert f"selects {run.selected.tolist()}" in outcomes()[name].printed


# ---- next tokens

SOURCES = {
    "characters": TEXT,
    "words": {
        **TEXT,
        "unit": "words",
        "source": "How much wood would a woodchuck chuck if a woodchuck could chuck wood? He would chuck, he would, as much as he "
        "could, and chuck as much wood as a woodchuck would if a woodchuck could chuck wood. Don't ask: “naïve”.",
        "last": "a",
        "prompt": "if a woodchuck would",
    },
    "random": {**TEXT, "draw": "random", "seed": 4_000_000_000, "window": 9, "last": None, "prompt": "the mat"},
    "sequences": {
        **TEXT,
        "sequences": {
            "samples": [[1, 3, 0], [2, 1, 0], [0, 2, 0], [2, 0, 1], [0, 3, 1], [1, 2, 1], [0, 3, 1]],
            "labels": [3, 1, 2, 2, 0, 1, 1],
            "names": ["e1", "e2", "e3", "e4"],
        },
        "last": "e1",
        "prompt": "e4 e2 e3 e1",
    },
}


def text_state(text: dict[str, Any]) -> dict[str, Any]:
    return {**state_of({"tokens": [[[1, 0]]], "head": [1, 0]}, [[0, 0]]), "tab": "text", "text": text}


@pytest.mark.parametrize("name", SOURCES)
def test_script_texts_are_read_and_continued_like_the_pages(name: str) -> None:
    code = """
    import { textAnswers } from "./text/text_model.js";
    const ask = textAnswers();
    const { text } = given;
    const summary = ask({ ask: "read", text }).answer;
    const last = summary.lasts.find(({ token }) => summary.names[token] === text.last) ?? summary.lasts[0];
    answer({
      summary,
      graph: ask({ ask: "graph", last: last.token }).answer,
      continuation: ask({ ask: "continue", ...text }).answer ?? null,
    });
    """
    state = text_state(SOURCES[name])
    page = run_in_page(code, state)
    found, printed = run_script(scripts_of([state])[0])
    assert list(found["names"]) == page["summary"]["names"]
    assert (len(found["data"]), len(found["data"].dropped)) == (page["summary"]["windows"], page["summary"]["dropped"])
    graph = found["graphs"][found["last"]]
    assert found["last"] == page["graph"]["last"]
    assert [members.tolist() for members in graph.components] == page["graph"]["components"]
    heights = [found["heights"][members[0]] for members in graph.components]
    assert heights == pytest.approx(page["graph"]["heights"], abs=RTOL, rel=0.0)
    steps = page["continuation"]["steps"]
    continued = found["ids"][-len(steps) :]
    assert len(steps) == SOURCES[name]["count"]
    if SOURCES[name]["draw"] == "likely":
        assert continued == [step["token"] for step in steps]
        assert printed.count("After ") == 1 + len(steps)
    assert set(continued) <= set(range(len(found["names"])))


def test_script_numbers_are_the_same_doubles() -> None:
    numbers = [0.1 + 0.2, 1e-7, 1.0, -0.0, 123456.789, 1.7976931348623157e5, 5e-324, 1e6]
    problem = {"tokens": [[[x, 1.0] for x in numbers]], "head": [1.0, 0.5], "steps": 1}
    found = run_script(scripts_of([state_of(problem, [[1e12, -1e-12]])])[0]).names
    assert found["problem"].data.X[0, :, 0].tolist() == numbers
    assert np.signbit(found["problem"].data.X[0, 3, 0])
    assert found["starts"] == [[1e12, -1e-12]]


def test_the_script_names_its_origin_and_runs(tmp_path: Path) -> None:
    link = "https://example.org/lab.html#1.abc"
    script = scripts_of([states()["A-F8"]], link)[0]
    assert link in script.splitlines()[1]
    path = tmp_path / "script.py"
    path.write_text(script, encoding="utf-8")
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == outcomes()["A-F8"].printed
