// The page's state: changes, undo with gestures, and refusals that leave it as it is.

import assert from "node:assert/strict";
import test from "node:test";
import { load } from "./core.mjs";

const { analyse } = await load("analysis.js");
const {
  addInput, addStart, addToken, problemOf, removeInput, removeStart, removeToken, startState, stateOfProblem, Store,
  withChosen, withHead, withKey, withLabel, withPlayback, withProblem, withScore, withStart, withText, withToken, withTrain, withView,
} = await load("state.js");

const KEYS = [[[-0.1, 1], [1, 0], [0, 0]]];
const PRESET = {
  name: "A-F1b",
  title: "One input, two limits",
  problem: { keys: KEYS, scores: [[1, 0.9, 0]] },
  starts: [[0.5, -1.5], [-0.5, 1]],
  view: { half: 3 },
};

/** A store with the preset, its first state, and what it says. */
function opened() {
  const store = new Store(startState([PRESET]));
  const said = [];
  store.subscribeMessages((message) => said.push(message));
  return { store, said, first: store.state };
}

test("the first state is the preset, with the chosen start in its problem", () => {
  const { first } = opened();
  const { preset, problem, starts, view, chosen } = first;
  assert.deepEqual({ preset, problem, starts }, { preset: "A-F1b", problem: PRESET.problem, starts: PRESET.starts });
  assert.deepEqual([view.half, view.lines], [3, true]);
  assert.deepEqual(chosen, { input: null, token: null, start: 0, limit: null });
  const { start, format, version } = problemOf(withChosen(first, { start: 1 }));
  assert.deepEqual([start, format, version], [[-0.5, 1], "marginlens-problem", 2]);
});

test("states are frozen throughout", () => {
  const frozen = (value) => typeof value !== "object" || value === null || (Object.isFrozen(value) && Object.values(value).every(frozen));
  const { store, first } = opened();
  store.apply("move", (state) => withToken(state, 0, 1, [2, 3]));
  assert.ok(frozen(first) && frozen(store.state));
});

test("one gesture is one step of undo", () => {
  const { store } = opened();
  const move = (x, gesture) => store.apply(`move to ${x}`, (state) => withToken(state, 0, 0, [x, 0]), { gesture });
  const seen = () => [store.state.problem.keys[0][0][0], store.undoLabel, store.redoLabel];
  for (const x of [1, 2, 3]) move(x, "first drag");
  for (const x of [4, 5]) move(x, "second drag");
  assert.deepEqual(seen(), [5, "move to 4", null]);
  const after = { undo: [[3, "move to 1", "move to 4"], [-0.1, null, "move to 1"], [-0.1, null, "move to 1"]], redo: [[3, "move to 1", "move to 4"], [5, "move to 4", null]] };
  for (const [way, steps] of Object.entries(after))
    for (const expected of steps) {
      store[way]();
      assert.deepEqual(seen(), expected);
    }
  store.undo();
  move(6, "first drag");
  assert.deepEqual(seen(), [6, "move to 6", null]);
  store.undo();
  assert.deepEqual(seen(), [3, "move to 1", "move to 6"]);
});

test("what is chosen and played is not undone, and what is no longer there is forgotten", () => {
  const { store } = opened();
  store.apply("move", (state) => withToken(state, 0, 0, [2, 0]));
  store.apply("choose", (state) => withChosen(state, { input: 0, token: 2 }), { undoable: false });
  store.apply("play", (state) => withPlayback(state, { step: 7 }), { undoable: false });
  store.undo();
  const { problem, chosen, playback } = store.state;
  assert.deepEqual([problem, chosen.token, playback.step, store.undoLabel], [PRESET.problem, 2, 7, null]);
  store.apply("add", (state) => addToken(state, 0, [2, 2], { score: 0.5 }));
  assert.deepEqual([store.state.chosen.token, store.state.problem.scores], [3, [[1, 0.9, 0, 0.5]]]);
  store.undo();
  assert.equal(store.state.chosen.token, null);
});

test("a refusal leaves the state, in one sentence", () => {
  const often = (count, change) => (state) => Array.from({ length: count }).reduce((found, _, k) => change(found, k), state);
  const within = (part) => (state) => ({ ...state, problem: { ...state.problem, ...part } });
  const refused = [
    [(state) => withToken(state, 0, 0, [NaN, 0]), "must be a number"],
    [(state) => withToken(state, 0, 0, [1e7, 0]), "must lie between"],
    [(state) => withToken(state, 0, 0, [1, 2, 3]), "every key needs exactly two numbers"],
    [(state) => withStart(state, 0, [Infinity, 0]), "Start 0 must be two numbers"],
    [(state) => withLabel(state, 0, 2), "Each label must be 1 or -1"],
    [(state) => withProblem(state, { loss: "Hinge" }), "The loss must be one of"],
    [(state) => withProblem(state, { optimizer: { name: "Lion" } }), "The optimizer must be named one of"],
    [(state) => withView(state, { half: 0 }), "Half the window's width must be a number between"],
    [(state) => withText(state, { window: 0 }), "window's length must be a whole number"],
    [(state) => removeInput(state, 0), "at least one input"],
    [often(2, (state) => removeStart(state, 0)), "at least one start"],
    [often(3, (state) => removeToken(state, 0, 0)), "at least one token"],
    [often(10, (state, k) => addToken(state, 0, [k, 3])), "has 12 tokens already"],
    [often(8, (state) => addInput(state, [[1, 0], [0, 0]])), "There are 8 inputs already"],
    [often(8, (state) => addStart(state, [1, 0])), "There are 8 starts already"],
    [within({ keys: [[[1], [2], [3]]] }), "every key needs exactly two numbers"],
    [within({ colour: 1 }), "no part named colour"],
  ];
  for (const [change, words] of refused) {
    const { store, said, first } = opened();
    assert.equal(store.apply("change", change), false, words);
    assert.equal(store.state, first);
    assert.equal(store.undoLabel, null);
    const [{ kind, sentence }] = said;
    assert.equal(kind, "refusal");
    assert.ok(sentence.includes(words) && sentence.endsWith(".") && !sentence.includes(". "), sentence);
  }
});

test("listeners get both states, and none where nothing changes", () => {
  const { store } = opened();
  const seen = [];
  const stop = store.subscribe((state, previous) => seen.push([state, previous].map(({ problem }) => problem.keys[0][0][0])));
  store.apply("move", (state) => withToken(state, 0, 0, [2, 0]));
  store.apply("nothing", (state) => state);
  store.undo();
  stop();
  store.redo();
  assert.deepEqual(seen, [[2, -0.1], [-0.1, 2]]);
});

test("reset goes back to what was loaded", () => {
  const { store, first } = opened();
  const file = stateOfProblem({ tokens: [[[3, 1], [0, 0]]], head: [1, 0], start: [1, 1] });
  for (const loaded of [first, file]) {
    if (loaded === file) store.load(file, "open a file");
    store.apply("move", (state) => withToken(state, 0, 0, [2, 0]));
    store.reset();
    assert.deepEqual(store.state, loaded);
  }
  assert.deepEqual([file.starts, file.preset], [[[1, 1]], null]);
});

test("inputs, scores and keys change together", () => {
  const { first } = opened();
  const two = addInput(first, [[1, 1], [0, 1]]);
  const apart = { ...first, problem: { tokens: [[[1, 2], [3, 4]]], keys: [[[5, 6], [7, 8]]], head: [1, 0] } };
  assert.deepEqual(two.problem.scores, [[1, 0.9, 0], [1, 0]]);
  assert.deepEqual(removeInput(two, 0).problem.keys, [[[1, 1], [0, 1]]]);
  assert.deepEqual(removeToken(two, 0, 1).problem.scores, [[1, 0], [1, 0]]);
  assert.deepEqual(withScore(first, 0, 2, 0.25).problem.scores, [[1, 0.9, 0.25]]);
  assert.deepEqual(withKey(apart, 0, 1, [0, 0]).problem, { ...apart.problem, keys: [[[5, 6], [0, 0]]] });
  assert.deepEqual(withToken(apart, 0, 1, [0, 0]).problem, { ...apart.problem, tokens: [[[1, 2], [0, 0]]] });
  assert.deepEqual(withHead(apart, [0, 1]).problem.head, [0, 1]);
  assert.deepEqual(withTrain(first, "both").problem, { train: "both", tokens: KEYS });
});

test("the analysis is computed once", () => {
  const { store, first } = opened();
  const found = analyse(first);
  store.apply("look elsewhere", (state) => withView(state, { half: 9 }));
  assert.equal(analyse(store.state), found);
  store.apply("choose the other start", (state) => withChosen(state, { start: 1 }));
  assert.notEqual(analyse(store.state), found);
  assert.deepEqual(found.limits.map(({ index, label, selected, isGlobal, colour }) => [index, label, selected, isGlobal, colour]), [
    [0, "GMM", [0], true, "var(--limit-0)"],
    [1, "LMM", [1], false, "var(--limit-1)"],
  ]);
});

test("what is odd is remarked", () => {
  const problems = [
    [[[[1, 0], [0, 1], [1, 0]]], [[1, 0.5, 0]], ["Token 0 and token 2 of input 0 lie in one place"]],
    [[[[1, 0], [0, 1]]], [[0.5, 0.5]], ["All scores of each input are equal"]],
    [[[[1, 0], [0, 1]]], [[0.5, 0.4]], []],
  ];
  for (const [keys, scores, expected] of problems) {
    const { refusal, remarks } = analyse(stateOfProblem({ keys, scores }));
    assert.equal(refusal, null);
    assert.equal(remarks.length, expected.length);
    expected.forEach((words, k) => assert.ok(remarks[k].startsWith(words), remarks[k]));
  }
});
