// The curves and the playback without a browser: scales, samples, labels, what is drawn and what is said.

import assert from "node:assert/strict";
import test from "node:test";
import { load } from "./core.mjs";

const { decimated, linearTicks, linePath, pushedApart, stepScale, valueScale } = await load("run/curve_scale.js");
const { attentionTokens, chartsOf } = await load("run/curves.js");
const { chartSentence } = await load("run/chart.js");
const { analyse } = await load("analysis.js");
const { keyAction, runsText } = await load("run/playback.js");
const { nextSample, Path, Runs } = await load("run/run.js");
const { completeState, problemOf, withTrain } = await load("state.js");
const { readProblem } = await load("../kernels/problem.js");

const STATE = completeState({
  problem: {
    tokens: [[[1, 0.2], [-0.4, 1], [0.3, -1]], [[0.9, -0.5], [-1, 0.1]]],
    head: [1, 0.3],
    optimizer: { name: "normalized-gd", size: 0.1 },
    steps: 500,
  },
  starts: [[0, 0.3]],
});

function pathOf(state, steps) {
  const path = new Path(readProblem(problemOf(state, 0)));
  path.advanceTo(steps);
  path.now = path.at(steps);
  return path;
}

test("steps lie on their axis in order, from zero to the end, and come back from it", () => {
  for (const end of [1, 7, 1000, 1e7]) {
    const { at, step, ticks } = stepScale(end);
    assert.equal(at(0), 0);
    assert.equal(at(end), 1);
    for (const k of [0, 1, Math.floor(end / 3), end]) assert.equal(step(at(k)), k);
    assert.ok(ticks.length >= 2 && ticks.length <= 7, `${ticks.length} ticks`);
    assert.ok(ticks.every((tick, k) => tick.at >= 0 && tick.at <= 1 && (k === 0 || tick.at > ticks[k - 1].at)));
  }
});

test("ticks are round numbers inside the range", () => {
  assert.deepEqual(linearTicks(-1, 1, 3), [-1, 0, 1]);
  assert.deepEqual(linearTicks(0, 1000, 4), [0, 500, 1000]);
  assert.deepEqual(linearTicks(0.31, 0.43, 3), [0.35, 0.4]);
  assert.deepEqual(linearTicks(2, 2, 3), [2]);
});

test("values far apart have a logarithmic axis, others and negative ones do not", () => {
  const far = valueScale([1, 10, 1e6]);
  assert.ok(far.isLog);
  assert.ok(Math.abs(far.at(1e3) - 0.5) < 1e-12);
  assert.equal(valueScale([1, 2, 3]).isLog, false);
  assert.equal(valueScale([-1, 1e6]).isLog, false);
  assert.equal(valueScale([0, 1e-3, 5], [-1, 1]).isLog, false);
  assert.equal(valueScale([0, 1, 100]).at(0), 0, "zero stays on the axis of logarithms");
  const still = valueScale([0.5, 0.5]);
  assert.equal(still.at(0.5), 0.5);
  assert.equal(valueScale([NaN, NaN]).at(0.5), 0.5);
});

test("samples are thinned to the pixels of the axis, and the ends stay", () => {
  const steps = [0];
  while (steps.at(-1) < 1e6) steps.push(nextSample(steps.at(-1)));
  const { at } = stepScale(1e6);
  const places = decimated(steps, 1e6, at, 100);
  assert.ok(places.length <= 101 && places.length > 80);
  assert.equal(places[0], 0);
  assert.equal(places.at(-1), steps.findLastIndex((step) => step <= 1e6));
  assert.deepEqual(decimated(steps, 3, at, 1000), [0, 1, 2, 3]);
  assert.deepEqual(decimated([0], 0, at, 10), [0]);
});

test("labels are pushed apart in their order and stay inside where they fit", () => {
  const out = pushedApart([10, 12, 90, 11], 15, 0, 100);
  const order = [0, 3, 1, 2].map((k) => out[k]);
  assert.ok(order.every((height, k) => k === 0 || height >= order[k - 1] + 15 - 1e-9));
  assert.ok(out.every((height) => height >= 0 && height <= 100));
  assert.deepEqual(pushedApart([99, 100], 15, 0, 100), [85, 100]);
  assert.deepEqual(pushedApart([50], 15, 0, 100), [50]);
});

test("a line breaks where a number is missing", () => {
  assert.equal(linePath([[0, 1], [1, 2], [2, NaN], [3, 4], [4, 5]]), "M0.0 1.0L1.0 2.0M3.0 4.0L4.0 5.0");
});

test("charts measure norm, correlation with every limit, attention and risk", () => {
  const path = pathOf(STATE, 500);
  const analysis = analyse(STATE);
  const charts = chartsOf(path, analysis, null);
  assert.equal(charts.length, 4);
  const [norm, correlation, attention, risk] = charts;
  assert.equal(norm.lines[0].value(0), 0.3);
  assert.ok(norm.lines[0].value(null) > 20);
  assert.equal(correlation.lines.length, analysis.limits.length);
  assert.deepEqual(correlation.lines.map(({ colour }) => colour), analysis.limits.map(({ colour }) => colour));
  assert.ok(correlation.lines.some(({ value }) => value(null) > 0.99), "the run has turned to a limit");
  assert.ok(attention.lines.every(({ value }) => value(null) > 0.99));
  assert.ok(risk.lines[0].value(null) < risk.lines[0].value(0));
  assert.equal(chartsOf(path, analysis, 0)[2].lines.length, 3, "all tokens of the chosen input");
  assert.match(chartSentence(norm, 500), /^Norm ‖p‖, how far p has gone, from step 0 to step 500: ‖p‖ from 0\.3 to \d/);
});

test("joint training adds the head's norm and its correlation", () => {
  const state = completeState({ ...withTrain(STATE, "both"), starts: [[0, 0.3]] });
  const charts = chartsOf(pathOf(state, 200), analyse(state), null);
  assert.deepEqual(charts.slice(4).map(({ title }) => title), ["Norm of the head ‖v‖", "Correlation of the head"]);
  assert.ok(charts[5].lines[0].value(null) > 0.9);
  assert.ok(Number.isNaN(charts[5].lines[0].value(0)), "a head of zero has no direction");
});

test("attention is drawn of all tokens of the chosen input, or of each input's selected token", () => {
  assert.deepEqual(attentionTokens(1, [0, 1], { lengths: [3, 2] }).map(({ token, isTop }) => [token, isTop]), [[0, false], [1, true]]);
  assert.deepEqual(attentionTokens(null, [2, 0], { lengths: [3, 2] }).map(({ input, token }) => [input, token]), [[0, 2], [1, 0]]);
  const named = { lengths: [3, 2], words: [["the", "the", "riverside walk"], ["", "cat"]] };
  assert.deepEqual(attentionTokens(null, [2, 1], named).map(({ label }) => label), ["input 0, “riverside walk”", "input 1, “cat”"]);
  assert.deepEqual(attentionTokens(0, [2, 1], named).map(({ sign }) => sign), ["0 the", "1 the", "2 riverside"]);
});

test("where the runs are is said in words, how they ended too", () => {
  const runsOf = (state) => {
    const runs = new Runs({ state, apply() {} }, { now: () => 0, frame() {}, isCalm: () => false });
    runs.scrubTo(Infinity);
    return runs;
  };
  assert.match(runsText(runsOf(STATE), 0), /^Step 500 of 500: ‖p‖ = \d+/);
  const two = completeState({ ...STATE, starts: [[0, 0], [1, 1]] });
  assert.match(runsText(runsOf(two), 1), /from start 1: ‖p‖/);
  const still = completeState({ ...STATE, problem: { ...STATE.problem, head: [0, 0] } });
  assert.match(runsText(runsOf(still), 0), /The run stands still at its start: the gradient is exactly zero\./);
});

test("keys play and step where nothing else wants them", () => {
  const on = (tagName, rest = {}) => ({ tagName, getAttribute: () => null, ...rest });
  assert.equal(keyAction({ key: " ", target: on("BODY") }), "toggle");
  assert.equal(keyAction({ key: " ", target: on("BUTTON") }), null);
  assert.equal(keyAction({ key: " ", target: on("g", { getAttribute: () => "button" }) }), null);
  assert.equal(keyAction({ key: ".", target: on("g", { getAttribute: () => "button" }) }), "on");
  assert.equal(keyAction({ key: ",", target: on("INPUT", { type: "range" }) }), "back");
  assert.equal(keyAction({ key: ",", target: on("INPUT", { type: "number" }) }), null);
  assert.equal(keyAction({ key: ".", target: on("TEXTAREA") }), null);
  assert.equal(keyAction({ key: ".", ctrlKey: true, target: on("BODY") }), null);
  assert.equal(keyAction({ key: " ", defaultPrevented: true, target: on("BODY") }), null);
  assert.equal(keyAction({ key: "x", target: on("BODY") }), null);
});
