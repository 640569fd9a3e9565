// Runs with a clock and frames of the test's own: playing, pausing, scrubbing, restarting, and what is computed when.

import assert from "node:assert/strict";
import test from "node:test";
import { load } from "./core.mjs";

const { endOf, nextSample, Runs } = await load("run/run.js");

const PROBLEM = {
  tokens: [[[1, 0.2], [-0.4, 1], [0.3, -1]], [[0.9, -0.5], [-1, 0.1], [0.2, 1.1]]],
  head: [1, 0.3],
  optimizer: { name: "normalized-gd", size: 0.1 },
  steps: 1000,
};

/** Runs of a store that applies changes at once; every step of the clock costs `cost` milliseconds, frames come when they are asked for. */
function scene({ problem = PROBLEM, starts = [[0, 0]], playback = { step: 0 }, cost = 0, calm = false } = {}) {
  const store = { state: { problem, starts, playback } };
  let time = 0;
  let waiting = [];
  const runs = new Runs(store, { now: () => (time += cost), frame: (call) => waiting.push(call), isCalm: () => calm });
  store.apply = (label, change) => {
    store.state = change(store.state);
    waiting.push(() => runs.update());
  };
  const frames = (count, ms = 16) => {
    for (let k = 0; k < count && waiting.length > 0; k++) {
      const calls = waiting;
      waiting = [];
      time += ms;
      for (const call of calls) call();
    }
    return waiting.length > 0;
  };
  return { runs, store, frames };
}

test("samples lie at every step first, then at 64 steps while their number doubles", () => {
  const steps = [0];
  while (steps.at(-1) < 1e6) steps.push(nextSample(steps.at(-1)));
  assert.deepEqual(steps.slice(0, 60), Array.from({ length: 60 }, (_, k) => k));
  assert.ok(steps.length < 1100);
  assert.ok(steps.slice(200).every((step, k) => step / steps[199 + k] < 1.02));
});

test("a run plays at its speed and pauses where it is", () => {
  const { runs, store, frames } = scene();
  frames(1);
  runs.play();
  frames(10, 50);
  assert.equal(runs.step, 50);
  runs.pause();
  assert.equal(store.state.playback.step, 50);
  assert.equal(frames(5), false, "nothing is left to do");
  assert.equal(runs.step, 50);
  assert.equal(runs.paths[0].now.step, 50);
});

test("a run plays faster and faster, ends at the last step and stops there", () => {
  const { runs, store, frames } = scene();
  runs.play();
  frames(80, 50);
  const early = runs.step;
  frames(40, 50);
  assert.ok(runs.step - early > 1.2 * early * (40 / 80), "faster than in the beginning");
  assert.equal(frames(400), false);
  assert.equal(runs.step, 1000);
  assert.equal(runs.isPlaying, false);
  assert.equal(store.state.playback.step, 1000);
  runs.play();
  assert.equal(runs.step, 0, "playing at the end begins again");
});

test("a frame computes for its budget only", () => {
  const { runs, frames } = scene({ problem: { ...PROBLEM, steps: 100_000 }, cost: 1 });
  runs.scrubTo(Infinity);
  const first = runs.taken;
  assert.ok(first > 0 && first <= 10 * 512);
  assert.equal(runs.isComputing, true);
  frames(1);
  assert.ok(runs.taken > first && runs.taken <= first + 11 * 512);
  assert.equal(runs.step, runs.taken, "what is computed is shown");
  frames(1000);
  assert.equal(runs.step, 100_000);
});

test("scrubbing back shows the point that was there, bit by bit", () => {
  const { runs, frames } = scene();
  const points = [];
  for (let step = 0; step <= 80; step++) {
    points.push(runs.paths[0].now.point);
    runs.stepBy(1);
    frames(1);
  }
  runs.scrubTo(Infinity);
  frames(10);
  for (const step of [80, 3, 64, 0, 41]) {
    runs.scrubTo(step);
    assert.deepEqual(runs.paths[0].now.point, points[step]);
  }
  runs.scrubTo(-3);
  assert.equal(runs.step, 0);
  runs.scrubTo(1e9);
  assert.equal(runs.step, 1000);
});

test("a step from a link is computed in slices", () => {
  const { runs, frames } = scene({ problem: { ...PROBLEM, steps: 9000 }, playback: { step: 9000 }, cost: 3 });
  assert.equal(runs.step, 0);
  frames(1);
  assert.ok(runs.step > 0 && runs.step < 9000);
  frames(20);
  assert.equal(runs.step, 9000);
  assert.equal(runs.isPlaying, false);
});

test("another problem restarts the runs at the step that was shown, and only what changed", () => {
  const { runs, store, frames } = scene({ starts: [[0, 0], [1, 1]] });
  runs.scrubTo(200);
  const [first, second] = runs.paths;
  store.apply("", (state) => ({ ...state, starts: [[0, 0], [1, 2]] }));
  frames(3);
  assert.equal(runs.paths[0], first);
  assert.notEqual(runs.paths[1], second);
  assert.equal(runs.step, 200);
  assert.deepEqual(Array.from(runs.paths[1].points[0]), [1, 2]);
  assert.equal(runs.paths[1].taken, 200);
  store.apply("", (state) => ({ ...state, problem: { ...state.problem, head: [-1, 0] } }));
  frames(3);
  assert.notEqual(runs.paths[0], first);
  assert.equal(runs.step, 200);
  const { paths } = runs;
  store.apply("", (state) => ({ ...state, problem: { ...state.problem, steps: 100 } }));
  frames(3);
  assert.equal(runs.paths, paths, "another last step is no other path");
  assert.equal(runs.step, 100);
});

test("a drag shows as much of the path as its frame has time for", () => {
  const { runs, store, frames } = scene({ problem: { ...PROBLEM, steps: 50_000 }, cost: 1 });
  runs.scrubTo(Infinity);
  frames(1000);
  assert.equal(runs.step, 50_000);
  for (let k = 1; k < 5; k++) {
    store.apply("", (state) => ({ ...state, starts: [[k, 0]] }));
    frames(1);
    assert.equal(runs.paths[0].points[0][0], k);
    assert.ok(runs.step > 0 && runs.step <= 8 * 512);
  }
  frames(1000);
  assert.equal(runs.step, 50_000);
});

test("runs that stand still or leave the range of numbers end there and say so", () => {
  const flat = { ...PROBLEM, head: [0, 0] };
  const still = scene({ problem: flat });
  still.runs.scrubTo(Infinity);
  assert.equal(still.runs.end, 0);
  assert.match(endOf(still.runs.paths[0]), /stands still at its start/);
  assert.equal(still.runs.isComputing, false);
  const wide = { ...PROBLEM, tokens: PROBLEM.tokens.map((rows) => rows.map((row) => row.map((x) => 5e5 * x))) };
  const far = scene({ problem: { ...wide, head: [-1e6, 0], optimizer: { name: "gradient-descent", size: 1e6 }, loss: "exponential" } });
  far.runs.scrubTo(Infinity);
  assert.match(endOf(far.runs.paths[0]), /left the range of numbers/);
  const fine = scene();
  fine.runs.scrubTo(Infinity);
  assert.equal(endOf(fine.runs.paths[0]), "");
});

test("where motion is reduced, playing shows few steps far apart and ends at the same one", () => {
  const count = (calm) => {
    const { runs, frames } = scene({ calm });
    let updates = 0;
    runs.subscribe(() => updates++);
    runs.play();
    frames(600);
    assert.equal(runs.step, 1000);
    return updates;
  };
  assert.ok(count(true) < 30);
  assert.ok(count(false) > 200);
});

test("a problem that is refused has no paths", () => {
  const { runs, store, frames } = scene();
  store.apply("", (state) => ({ ...state, problem: { ...state.problem, head: [1, "a"] } }));
  frames(2);
  assert.deepEqual(runs.paths, []);
  runs.play();
  assert.equal(runs.isPlaying, false);
});

test("joint training has paths of p with heads beside them", () => {
  const { head, ...rest } = PROBLEM;
  const { runs } = scene({ problem: { ...rest, train: "both", start_head: [0.5, 0.1], optimizer: { name: "normalized-gd", size: 0.1 } } });
  runs.scrubTo(30);
  const [path] = runs.paths;
  assert.equal(path.points.length, path.heads.length);
  assert.deepEqual(Array.from(path.heads[0]), [0.5, 0.1]);
  assert.equal(path.now.point.length, 2);
  assert.equal(path.now.head.length, 2);
});
