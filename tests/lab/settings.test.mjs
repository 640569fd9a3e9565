// Changes of the settings: optimizers and their numbers, what is trained, and the words beside them.

import assert from "node:assert/strict";
import test from "node:test";
import { load } from "./core.mjs";

const { optimizerOf, settingsOf, shareOf, valueAt, withOptimizerNamed, withSetting } =
  await load("run/settings.js");
const { analyse } = await load("analysis.js");
const { text, title } = await load("words.js");
const { checkState, completeState, problemOf, withTrain } = await load("state.js");
const { OPTIMIZERS, readProblem } = await load("../kernels/problem.js");
const { LOSS_CODES } = await load("../kernels/softmax.js");

const STATE = completeState({ problem: { keys: [[[1, 0], [0, 1], [-1, -1]]], scores: [[1, 0, 0]] }, starts: [[0, 0]] });
const TOKENS = completeState({ problem: { tokens: [[[1, 0], [0, 1]], [[-1, 0.2], [0, 1]]], labels: [1, -1], head: [1, 0.5] } });

test("every optimizer and loss of the kernels has a name and a sentence", () => {
  const codes = [...Object.keys(OPTIMIZERS).map((name) => `lab.optimizer.${name}`), ...Object.keys(LOSS_CODES).map((name) => `lab.loss.${name}`)];
  for (const code of codes.map((one) => one.replaceAll("-", "_"))) assert.ok(title(code) && text(code).endsWith("."));
});

test("another optimizer takes over the settings that it shares, and is read by the kernels", () => {
  const sign = withSetting(withSetting(withOptimizerNamed(STATE, "sign-descent"), "size", 0.3), "momentum", 0.9);
  assert.deepEqual(sign.problem.optimizer, { name: "sign-descent", size: 0.3, decay: 0, momentum: 0.9 });
  const adam = withOptimizerNamed(sign, "adam");
  assert.deepEqual(adam.problem.optimizer, { name: "adam", size: 0.3, decay: 0, betas: [0.9, 0.999], eps: 0 });
  const slower = withSetting(withSetting(adam, "beta1", 0.5), "beta2", 0.9);
  assert.deepEqual(slower.problem.optimizer.betas, [0.5, 0.9]);
  assert.deepEqual(settingsOf(slower.problem.optimizer), { size: 0.3, decay: 0, beta1: 0.5, beta2: 0.9, eps: 0 });
  assert.deepEqual(OPTIMIZERS.adam.betas, [0.9, 0.999], "the defaults stay");
  for (const name of Object.keys(OPTIMIZERS)) checkState(withOptimizerNamed(STATE, name));
});

test("a problem without an optimizer has the one that the kernels take", () => {
  for (const state of [STATE, withTrain(TOKENS, "both")]) {
    const { optimizer } = readProblem(problemOf(state, 0));
    const { name, size } = optimizerOf(state.problem);
    assert.deepEqual({ name, size }, { name: optimizer.name, size: optimizer.size });
  }
});

test("a value out of range is refused", () => {
  for (const [name, value] of [["size", 0], ["size", NaN], ["size", 1e9]]) {
    assert.throws(() => checkState(withSetting(STATE, name, value)), /step size/);
  }
  assert.throws(() => checkState(withSetting(withOptimizerNamed(STATE, "sign-descent"), "momentum", 1)), /momentum/);
});

test("typed numbers mean what they say, and what means none is none", async () => {
  const { fieldText, typedNumber } = await load("typed_number.js");
  const meant = { "1,5": 1.5, "1/3": 1 / 3, "1e-3": 1e-3, "−2": -2, "+.5": 0.5, " 3. ": 3, "-1,5/2": -0.75, "1,000": 1 };
  for (const [text, value] of Object.entries(meant)) assert.equal(typedNumber(text), value, text);
  for (const text of ["", "-", "2*3", "1.234,5", "1 5", "0x10", "Infinity", "1/2/3", "e5"]) assert.ok(Number.isNaN(typedNumber(text)), text);
  assert.deepEqual(["10,000", "10 000", "1,234,567", "25"].map((text) => typedNumber(text, true)), [10_000, 10_000, 1_234_567, 25]);
  assert.deepEqual([-10.41941, 1 / 3, 2e-5, 1234.5678, 10_000_000].map(fieldText), ["-10.4194", "0.3333", "0.00002", "1234.57", "10000000"]);
});

test("sliders reach both ends and come back to a value of three digits", () => {
  for (const field of [{ low: 1e-4, high: 1e3, isLog: true }, { low: 0, high: 1 }]) {
    assert.equal(valueAt(field, 0), field.low);
    assert.equal(valueAt(field, 1), field.high);
    for (const share of [0.1, 0.5, 0.9]) assert.ok(Math.abs(shareOf(field, valueAt(field, share)) - share) < 1e-3);
    assert.equal(shareOf(field, 1e9), 1);
    assert.equal(shareOf(field, -1) > 0, false);
  }
});

test("the head comes back after joint training", () => {
  const both = withTrain(TOKENS, "both");
  checkState(both);
  assert.equal(readProblem(problemOf(both, 0)).joint, true);
  assert.deepEqual(withTrain(both, "attention").problem.head, [1, 0.5]);
  const outright = withTrain(STATE, "both");
  checkState(outright);
  assert.equal(outright.problem.scores, undefined, "scores that were given outright cannot be trained");
  checkState(withTrain(outright, "attention"));
  const started = { ...outright, problem: { ...outright.problem, start_head: [0.5, -1] } };
  assert.deepEqual(withTrain(started, "attention").problem.head, [0.5, -1]);
  const adam = withTrain(withOptimizerNamed(TOKENS, "adam"), "both");
  checkState(adam);
  assert.equal(optimizerOf(adam.problem).name, "normalized-gd", "Adam does not train both");
});

test("limits in the optimizer's norm stand beside the Euclidean ones", () => {
  assert.equal(analyse(STATE).limits[0].euclidean, undefined);
  for (const { power, direction, margin, euclidean } of analyse(withOptimizerNamed(STATE, "sign-descent")).limits) {
    assert.equal(power, Infinity);
    assert.ok(margin >= euclidean.margin * (1 - 1e-12), "the largest entry is no longer than the vector");
    assert.notDeepEqual(direction, euclidean.direction);
  }
});
