// Where rounding decides what training ends at: near ties of scores, symmetric data, and ordinary problems beside them.

import assert from "node:assert/strict";
import test from "node:test";
import { load, near } from "./core.mjs";

const { exactDot } = await load("../kernels/linalg.js");
const { sharpDifferences, undecidedInputs } = await load("../kernels/optimality.js");
const { Outlook } = await load("../kernels/outlook.js");
const { readProblem } = await load("../kernels/problem.js");
const { predict } = await load("../kernels/theorems.js");
const { verdictWords } = await load("findings/sentences.js");

const RULES = [{ name: "normalized-gd", size: 0.2 }, { name: "gradient-descent", size: 1.5 }];
const UNIT_ROUNDING = 2 ** -52;

/** The answer for a problem whose run was followed to its end, and what the page says of it. */
function followed(json) {
  const problem = readProblem(json);
  const outlook = new Outlook(problem);
  outlook.advance(Infinity);
  const prediction = predict(problem);
  return { answer: outlook.answer, prediction, said: verdictWords({ problem, prediction, outlook, refusal: null }) };
}

/** Two tokens that mirror each other across the diagonal, one on it, and an input on it: exchanging coordinates changes nothing. */
function mirrored([x, y], height, second, settings) {
  const keys = [[[x, y], [y, x], [height, height]], [[second, second], [0, 0]]];
  return { keys, scores: [[1, 1, 0.2], [1, 0.1]], ...settings };
}

/** Three tokens that turn into each other by a third of a circle, and one in its middle. */
function threefold(angle, settings) {
  const turned = [0, 1, 2].map((k) => angle + (2 * Math.PI * k) / 3);
  return { keys: [[...turned.map((a) => [1.4 * Math.cos(a), 1.4 * Math.sin(a)]), [0, 0]]], scores: [[2, 2, 2, 0.5]], ...settings };
}

test("sums of products are exact but for their last rounding", () => {
  assert.equal(exactDot([0.1, -0.1], [3, 3]), 0);
  assert.equal(exactDot([1e16, 1, -1e16], [1, 0.5, 1]), 0.5);
  assert.equal(exactDot([1, 1, -1], [1, 2 ** -60, 1]), 2 ** -60);
  assert.equal(exactDot([0.1, -0.3], [0.3, 0.1]), 0);
  near(exactDot([1e-300, 2.5], [1e-300, -3]), -7.5, UNIT_ROUNDING);
});

test("equal scores are a tie, and scores within rounding of each other a near one", () => {
  const asked = (second) => sharpDifferences(readProblem({ tokens: [[[2, 1], second, [0, 0]]], head: [0.75, 0.5] }), [0]);
  const tied = asked([0, 4]); // both score 2
  assert.deepEqual([...tied.near], [0, 0, 0]);
  assert.equal(tied.differences[1], 0);
  const close = asked([0, 4 - 2 ** -42]);
  assert.deepEqual([...close.near], [0, 1, 0]);
  assert.equal(close.differences[1], 2 ** -43);
  assert.equal(close.differences[2], 2);
});

for (const optimizer of RULES) {
  test(`scores that differ by less than rounding on the margin leave the answer open: ${optimizer.name}`, () => {
    const keys = [[[1.2, 0.1], [-0.2, 0.9], [-1, -0.4]]];
    const asked = (second) => followed({ keys, scores: [[3, second, 0.5]], start: [0.4, 0], optimizer });
    const { answer, said } = asked(3 - 3e-13);
    assert.equal(answer.missing, "ROUNDING_DECIDES");
    assert.equal(answer.direction, null);
    assert.equal(said.kind, "open");
    assert.equal(said.codes.endsAt, "outcome.ends_at.unknown");
    assert.equal(said.codes.reason, "outcome.missing.rounding_decides");
    assert.equal(asked(2).said.kind, "found");
  });

  test(`an input whose scores nearly tie is not left out: ${optimizer.name}`, () => {
    const keys = [[[0.8, 0.3], [-0.1, -0.6]], [[-0.5, 1.1], [0.2, -0.3]]];
    const asked = (gap) => followed({ keys, scores: [[1.5, 0], [2, 2 - gap]], optimizer });
    const { answer, prediction, said } = asked(4e-13);
    assert.deepEqual(undecidedInputs(readProblem({ keys, scores: [[1.5, 0], [2, 2 - 4e-13]] })), [1]);
    assert.equal(answer.missing, "ROUNDING_DECIDES");
    assert.equal(said.codes.endsAt, "outcome.ends_at.unknown");
    assert.equal(prediction.promise, null);
    const exact = asked(0);
    assert.match(exact.said.endsAt, /^Token 0 wins in input 0/);
  });

  test(`data that a mirror or a turn leaves as they are have no known end: ${optimizer.name}`, () => {
    const problems = [
      mirrored([-0.3, 1.4], 0.1, 1.7, { optimizer }),
      mirrored([0.2, -1.3], -0.4, -0.9, { optimizer }),
      mirrored([1.6, -0.2], 0.3, 0.8, { optimizer, start: [0.25, 0.25] }),
      ...[0.4, 0.9, 1.3].map((angle) => threefold(angle, { optimizer })),
    ];
    for (const problem of problems) {
      const { answer, said } = followed(problem);
      assert.equal(answer.direction, null);
      assert.notEqual(said.kind, "found");
      assert.notEqual(said.codes.endsAt, "outcome.ends_at.direction");
    }
    const { answer, said } = followed(problems[3]);
    assert.equal(answer.kind, "amplified");
    assert.ok(answer.error > 1e-3 * answer.norm, "the two runs ended at different tokens");
    assert.equal(said.codes.endsAt, "outcome.ends_at.amplified");
  });
}

test("an ordinary problem ends where it did, and its twin beside it", () => {
  const keys = [[[0.9, 0.2], [-0.3, 1.1], [0.1, -0.7]], [[1.3, -0.4], [-0.8, 0.2], [0.5, 0.6]]];
  const { answer, said } = followed({ keys, scores: [[1, 0.4, 0.1], [0.9, 0, 0.3]], start: [-0.2, 0.3], optimizer: RULES[0] });
  assert.equal(answer.kind, "found");
  assert.equal(said.kind, "found");
  assert.deepEqual(answer.selected, [0, 0]);
  assert.equal(said.endsAt, "Token 0 wins in input 0, token 0 in input 1.");
  assert.equal(answer.verified, true);
  assert.equal(said.codes.proved, "outcome.verdict.proved");
});

test("nothing is said to end where it starts when scores of all inputs nearly tie", () => {
  const keys = [[[1, 0.5], [-0.4, 0.2]]];
  const { answer, said } = followed({ keys, scores: [[1, 1 - 5e-13]], optimizer: RULES[0] });
  assert.equal(answer.missing, "ROUNDING_DECIDES");
  assert.equal(said.codes.endsAt, "outcome.ends_at.unknown");
  assert.equal(followed({ keys, scores: [[1, 1]], optimizer: RULES[0] }).said.kind, "nothing");
});
