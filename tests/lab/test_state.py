"""The page's state: changes, undo with gestures, and refusals that leave it as it is."""

from __future__ import annotations

from typing import Any

import pytest

from lab_kernels import needs_node, run_in_page

pytestmark = needs_node

PRESET = {
    "name": "A-F1b",
    "title": "One input, two limits",
    "problem": {"keys": [[[-0.1, 1.0], [1.0, 0.0], [0.0, 0.0]]], "scores": [[1.0, 0.9, 0.0]]},
    "starts": [[0.5, -1.5], [-0.5, 1.0]],
    "view": {"half": 3},
}
OPENING = """
import * as changes from "./state.js";
const { startState, Store } = changes;
const store = new Store(startState([given.preset]));
const said = [];
store.subscribeMessages((message) => said.push(message));
const first = store.state;
"""


def _run(code: str, **given: Any) -> Any:
    return run_in_page(OPENING + code, {"preset": PRESET, **given})


def test_the_first_state_is_the_preset() -> None:
    state = _run("answer(first);")
    assert state["preset"] == "A-F1b"
    assert state["problem"] == PRESET["problem"]
    assert state["starts"] == PRESET["starts"]
    assert state["view"]["half"] == 3
    assert state["view"]["map"] == "window"
    assert state["chosen"] == {"input": None, "token": None, "start": 0, "limit": None}


def test_a_problem_gets_the_chosen_start() -> None:
    problem = _run("answer(changes.problemOf(changes.withChosen(first, { start: 1 })));")
    assert problem["start"] == [-0.5, 1.0]
    assert (problem["format"], problem["version"]) == ("marginlens-problem", 1)


def test_states_are_frozen_throughout() -> None:
    code = """
    const frozen = (value) => typeof value !== "object" || value === null || (Object.isFrozen(value) && Object.values(value).every(frozen));
    store.apply("move", (state) => changes.withToken(state, 0, 1, [2, 3]));
    answer([frozen(first), frozen(store.state)]);
    """
    assert _run(code) == [True, True]


def test_one_gesture_is_one_step_of_undo() -> None:
    code = """
    const move = (x, gesture) => store.apply(`move to ${x}`, (state) => changes.withToken(state, 0, 0, [x, 0]), { gesture });
    for (const x of [1, 2, 3]) move(x, "first drag");
    for (const x of [4, 5]) move(x, "second drag");
    const seen = [];
    const look = () => seen.push([store.state.problem.keys[0][0][0], store.undoLabel, store.redoLabel]);
    look();
    store.undo(); look();
    store.undo(); look();
    store.undo(); look();
    store.redo(); look();
    store.redo(); look();
    store.undo(); move(6, "first drag"); look();
    store.undo(); look();
    answer(seen);
    """
    assert _run(code) == [
        [5, "move to 4", None],
        [3, "move to 1", "move to 4"],
        [-0.1, None, "move to 1"],
        [-0.1, None, "move to 1"],
        [3, "move to 1", "move to 4"],
        [5, "move to 4", None],
        [6, "move to 6", None],
        [3, "move to 1", "move to 6"],
    ]


def test_what_is_chosen_and_played_is_not_undone() -> None:
    code = """
    store.apply("move", (state) => changes.withToken(state, 0, 0, [2, 0]));
    store.apply("choose", (state) => changes.withChosen(state, { input: 0, token: 2 }), { undoable: false });
    store.apply("play", (state) => changes.withPlayback(state, { step: 7 }), { undoable: false });
    store.undo();
    answer([store.state.problem, store.state.chosen.token, store.state.playback.step, store.undoLabel]);
    """
    assert _run(code) == [PRESET["problem"], 2, 7, None]


def test_undo_forgets_what_is_no_longer_there() -> None:
    code = """
    store.apply("add", (state) => changes.addToken(state, 0, [2, 2], { score: 0.5 }));
    const added = store.state;
    store.undo();
    answer([added.chosen.token, added.problem.scores, store.state.chosen.token]);
    """
    assert _run(code) == [3, [[1.0, 0.9, 0.0, 0.5]], None]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("changes.withToken(state, 0, 0, [NaN, 0])", "must be a number"),
        ("changes.withToken(state, 0, 0, [1e7, 0])", "must lie between"),
        ("changes.withToken(state, 0, 0, [1, 2, 3])", "each key must have two numbers"),
        ("changes.withStart(state, 0, [Infinity, 0])", "Start 1 must be two numbers"),
        ("changes.withLabel(state, 0, 2)", "Each label must be 1 or -1"),
        ("changes.withProblem(state, { loss: 'Hinge' })", "The loss must be one of"),
        ("changes.withProblem(state, { optimizer: { name: 'Lion' } })", "The optimizer must be named one of"),
        ("changes.withView(state, { map: 'globe' })", "The map must be window or disc"),
        ("changes.withText(state, { window: 0 })", "window's length must be a whole number"),
        ("changes.removeInput(state, 0)", "at least one input"),
        ("[1, 2].reduce((s) => changes.removeStart(s, 0), state)", "at least one start"),
        ("[0, 0, 0].reduce((s) => changes.removeToken(s, 0, 0), state)", "at least one token"),
        ("Array(10).fill(0).reduce((s, _, k) => changes.addToken(s, 0, [k, 3]), state)", "has 12 tokens already"),
        ("Array(8).fill(0).reduce((s) => changes.addInput(s, [[1, 0], [0, 0]]), state)", "There are 8 inputs already"),
        ("Array(8).fill(0).reduce((s) => changes.addStart(s, [1, 0]), state)", "There are 8 starts already"),
        ("({ ...state, problem: { ...state.problem, keys: [[[1], [2], [3]]] } })", "each key must have two numbers"),
        ("({ ...state, problem: { ...state.problem, colour: 1 } })", "no part named colour"),
    ],
)
def test_a_refusal_leaves_the_state(change: str, sentence: str) -> None:
    code = f"""
    const isChanged = store.apply("change", (state) => {change});
    answer({{ isChanged, isSame: store.state === first, said, undo: store.undoLabel }});
    """
    found = _run(code)
    assert not found["isChanged"]
    assert found["isSame"]
    assert found["undo"] is None
    [message] = found["said"]
    assert message["kind"] == "refusal"
    assert sentence in message["sentence"]
    assert message["sentence"].count(". ") == 0
    assert message["sentence"].endswith(".")


def test_listeners_get_both_states() -> None:
    code = """
    const seen = [];
    const stop = store.subscribe((state, previous) => seen.push([state.problem.keys[0][0][0], previous.problem.keys[0][0][0]]));
    store.apply("move", (state) => changes.withToken(state, 0, 0, [2, 0]));
    store.apply("nothing", (state) => state);
    store.undo();
    stop();
    store.redo();
    answer(seen);
    """
    assert _run(code) == [[2, -0.1], [-0.1, 2]]


def test_reset_goes_back_to_what_was_loaded() -> None:
    code = """
    const move = () => store.apply("move", (state) => changes.withToken(state, 0, 0, [2, 0]));
    move();
    store.reset();
    const back = JSON.stringify(store.state) === JSON.stringify(first);
    store.load(changes.stateOfProblem({ tokens: [[[3, 1], [0, 0]]], head: [1, 0], start: [1, 1] }), "open a file");
    const loaded = store.state;
    move();
    store.reset();
    answer([back, JSON.stringify(store.state) === JSON.stringify(loaded), loaded.starts, loaded.preset]);
    """
    assert _run(code) == [True, True, [[1, 1]], None]


def test_inputs_scores_and_keys_change_together() -> None:
    code = """
    const { addInput, removeInput, removeToken, withHead, withKey, withScore, withToken, withTrain } = changes;
    const two = addInput(first, [[1, 1], [0, 1]]);
    const apart = { ...first, problem: { tokens: [[[1, 2], [3, 4]]], keys: [[[5, 6], [7, 8]]], head: [1, 0] } };
    answer([
      two.problem.scores,
      removeInput(two, 0).problem.keys,
      removeToken(two, 0, 1).problem.scores,
      withScore(first, 0, 2, 0.25).problem.scores,
      withKey(apart, 0, 1, [0, 0]).problem,
      withToken(apart, 0, 1, [0, 0]).problem,
      withHead(apart, [0, 1]).problem.head,
      withTrain(first, "both").problem,
    ]);
    """
    keys = PRESET["problem"]["keys"]  # type: ignore[index]
    assert _run(code) == [
        [[1.0, 0.9, 0.0], [1, 0]],
        [[[1, 1], [0, 1]]],
        [[1.0, 0.0], [1, 0]],
        [[1.0, 0.9, 0.25]],
        {"tokens": [[[1, 2], [3, 4]]], "keys": [[[5, 6], [0, 0]]], "head": [1, 0]},
        {"tokens": [[[1, 2], [0, 0]]], "keys": [[[5, 6], [7, 8]]], "head": [1, 0]},
        [0, 1],
        {"train": "both", "tokens": keys},
    ]


def test_the_analysis_is_computed_once() -> None:
    code = """
    const { analyse } = await import(given.analysis);
    const found = analyse(first);
    store.apply("look elsewhere", (state) => changes.withView(state, { half: 9 }));
    const again = analyse(store.state) === found;
    store.apply("choose the other start", (state) => changes.withChosen(state, { start: 1 }));
    const other = analyse(store.state) !== found;
    answer([again, other, found.limits.map(({ index, label, selected, isGlobal, colour }) => [index, label, selected, isGlobal, colour])]);
    """
    from lab_kernels import PAGE

    assert _run(code, analysis=(PAGE / "analysis.js").as_uri()) == [
        True,
        True,
        [[0, "GMM", [0], True, "var(--limit-0)"], [1, "LMM", [1], False, "var(--limit-1)"]],
    ]


@pytest.mark.parametrize(
    ("keys", "scores", "remark"),
    [
        ([[[1, 0], [0, 1], [1, 0]]], [[1, 0.5, 0]], "Tokens 1 and 3 of input 1 lie in one place"),
        ([[[1, 0], [0, 1]]], [[0.5, 0.5]], "All scores of each input are equal"),
        ([[[1, 0], [0, 1]]], [[0.5, 0.4]], None),
    ],
)
def test_what_is_odd_is_remarked(keys: list[Any], scores: list[Any], remark: str | None) -> None:
    code = """
    import { analyse } from "./analysis.js";
    import { stateOfProblem } from "./state.js";
    answer(analyse(stateOfProblem(given)));
    """
    found = run_in_page(code, {"keys": keys, "scores": scores})
    assert found["refusal"] is None
    if remark is None:
        assert found["remarks"] == []
    else:
        [sentence] = found["remarks"]
        assert sentence.startswith(remark)
