// What the plane draws, before it is drawn: maps between plane and pixels, ticks, paths, separating lines and the painting of basins.

import assert from "node:assert/strict";
import test from "node:test";
import { load, near } from "./core.mjs";

const plane = await load("plane/plane_scale.js");
const { Painting } = await load("plane/basin_picture.js");
const { requestedField, startWorker } = await load("plane/basin_worker.js");
const { separations, supportShares } = await load("plane/plane.js");
const { analyse } = await load("analysis.js");
const { stateOfProblem } = await load("state.js");
const { basinField, labelPixels, pixelStart } = await load("../kernels/basins.js");
const { Descent, loopOf, measurePoint } = await load("../kernels/descent.js");
const { drawsOf } = await load("../kernels/draws.js");
const { normOfOptimizer, planeNormSvm } = await load("../kernels/norms.js");
const { locallyOptimalDirections } = await load("../kernels/optimality.js");
const { readProblem } = await load("../kernels/problem.js");

const WINDOW = { half: 4 };
const inWindow = plane.planeScale(WINDOW, 500); // onto 500 × 500 pixels
const FIGURE_1B = globalThis.labPresets.find(({ name }) => name === "A-F1b").problem;
const range = (count) => Array.from({ length: count }, (_, k) => k);

test("pixels go back to their points, and what is outside is brought to the edge", () => {
  const points = [[0, 0], [1, -2], [-3.5, 0.25], [0, 3.999]];
  for (const point of points) near(inWindow.toPlane(inWindow.toPixel(point)), point);
  assert.deepEqual(inWindow.toPlane([900, 250]), [4, 0]);
});

test("the window is upright", () => {
  assert.deepEqual([[0, 0], [4, 4], [-4, 2]].map(inWindow.toPixel), [[250, 250], [500, 0], [0, 125]]);
});

test("arrow keys move by a share of the view", () => {
  near(plane.moved(inWindow, [1, 1], 0.01, -0.1), [1.08, 0.2]);
});

test("dragged points have few digits and stay within a pixel", () => {
  for (const x of [1.23456789, 0.00123456, -3.9]) {
    const [rounded] = plane.rounded(inWindow, [x, -x]);
    assert.ok(String(rounded).length <= 6);
    assert.ok(Math.abs(rounded - x) <= 4 / 500);
  }
});

test("zooming in and out ends where it began and stops at bounds", () => {
  const zoom = (view, factor, times) => (times === 0 ? view : zoom({ ...view, ...plane.zoomed(view, factor) }, factor, times - 1));
  const closer = zoom(WINDOW, 1.5, 1);
  assert.ok(closer.half < WINDOW.half);
  near(zoom(closer, 1 / 1.5, 1).half / WINDOW.half, 1, 2e-3);
  const [low, high] = [2, 0.5].map((factor) => zoom(WINDOW, factor, 200).half);
  assert.ok(0 < low && low < WINDOW.half && WINDOW.half < high && high <= 1e6);
});

test("ticks are few, round and inside", () => {
  for (const half of [0.05, 0.8, 1, 3, 4, 7.3, 60, 1e6]) {
    const ticks = plane.axisTicks(half);
    assert.ok(ticks.length >= 4 && ticks.length <= 12 && ticks.every((tick) => Math.abs(tick) < half));
    const steps = ticks.slice(1).map((tick, k) => tick - ticks[k]);
    const step = Math.min(...steps);
    assert.ok(step > 0);
    near(Number(step.toExponential(0)) / step, 1);
  }
});

test("a window that fits shows all points", () => {
  for (const points of [[[0.3, -0.2]], [[5, 1], [-9.5, 0]], [[0, 0]], [[123.4, 77]]]) {
    const [half, largest] = [plane.fittingHalf(points), Math.max(...points.flat().map(Math.abs))];
    assert.ok(largest < half && half <= Math.max(1, 2.5 * largest));
  }
});

test("paths are drawn up to a step, without points that are closer than a pixel", () => {
  const drawn = plane.drawnPath(inWindow, range(200).map((k) => [0.03 * k, 0.01 * k]), range(200).map((k) => 10 * k));
  const [start, same, half, whole] = [0, 5, 500, 5000].map((step) => plane.pathUpTo(drawn, step));
  assert.deepEqual([start, same], ["M250.0 250.0", "M250.0 250.0"]);
  assert.ok(whole.startsWith(half) && half.startsWith(start) && whole.endsWith("L623.1 125.6"));
  const dense = plane.drawnPath(inWindow, range(1000).map((k) => [1e-3 * k, 0]), range(1000));
  assert.ok(dense.pieces.length < 100);
});

test("lines reach beyond the window", () => {
  const [[x1, y1], [x2, y2]] = plane.linePixels(inWindow, [0, 1], [1, 0]);
  near([y1, y2], [250 - 62.5, 250 - 62.5]);
  assert.ok(x1 < 0 && x2 > 500);
});

test("lines stand through the selected and the closest other token", () => {
  const draws = drawsOf(3);
  const keys = range(2).map(() => range(4).map(() => [4 * draws() - 2, 4 * draws() - 2]));
  const problem = readProblem({ keys, scores: range(2).map(() => range(4).map(draws)) });
  const limits = locallyOptimalDirections(problem);
  assert.ok(limits.length > 0);
  for (const limit of limits) {
    const direction = Array.from(limit.direction);
    const lines = separations(keys, { ...limit, direction });
    near(Math.min(...lines.map(({ top, next }) => top - next)), limit.margin); // the margin is that of the tightest input
    for (const { input, top } of lines) {
      const [x, y] = keys[input][limit.selected[input]];
      near(top, x * direction[0] + y * direction[1]);
    }
    const shares = supportShares(limit, problem.lengths, null).flat();
    near(shares.reduce((sum, share) => sum + share), 2); // each row of weight counts for both of its tokens
  }
});

// ---- the painting of basins

/** A painting of 32 × 32 pixels, and the shares at every stage while all of it is labelled. */
function painted(label, painting = new Painting(32)) {
  const stages = [painting.shares()];
  for (let pixels = painting.take(); pixels !== null; pixels = painting.take()) {
    painting.add(pixels, pixels.map(label));
    stages.push(painting.shares());
  }
  return { painting, stages };
}

test("coarse labels fill their squares until finer ones come", () => {
  const painting = new Painting(32);
  const right = (pixel) => (pixel % 32 < 16 ? 0 : 1);
  const first = painting.take();
  painting.add(first, first.map(right));
  assert.equal(first.length, 4);
  assert.deepEqual(Array.from(painting.labels), range(1024).map(right));
  painted((pixel) => right(pixel + 4), painting);
  const isFine = (pixel) => !first.includes(pixel);
  assert.deepEqual(range(1024).filter(isFine).map((pixel) => painting.labels[pixel]), range(1024).filter(isFine).map((pixel) => right(pixel + 4)));
  assert.ok(painting.isDone);
  near(painting.shares().reduce((sum, [, share]) => sum + share, 0), 1);
});

test("shares are of pixels that lie evenly, and of none until there are such", () => {
  const { stages: [first, ...others] } = painted((pixel) => (pixel < 512 ? 0 : 1)); // half of each, and rows come from below
  assert.deepEqual(first, []);
  assert.ok(others.length > 10);
  for (const shares of others) assert.deepEqual(shares, [[0, 0.5], [1, 0.5]]);
});

test("every pixel has the colour of its limit, and the top row the largest second coordinate", () => {
  const { painting } = painted((pixel) => (pixel >= 512 ? 0 : pixel % 32 === 0 ? -2 : 1));
  const colours = painting.colours([[200, 0, 0], [0, 0, 200]]);
  for (const pixel of range(1024)) {
    const [red, , blue, alpha] = colours.slice(4 * pixel, 4 * pixel + 4);
    if (pixel < 512) assert.equal(red, 200);
    else if (pixel % 32) assert.equal(blue, 200);
    else assert.equal(alpha, 0); // outside of the window
  }
});

test("workers answer for the present picture alone", () => {
  const said = [];
  const scope = { postMessage: ({ generation, pixels, labels }) => said.push({ generation, pixels, labels: Array.from(labels) }) };
  startWorker(scope);
  const optima = [{ direction: [0, 1], selected: [0] }, { direction: [1, 0], selected: [1] }];
  const request = { problem: FIGURE_1B, optima, settings: { side: 8, half: 4, steps: 300 } };
  const messages = [{ generation: 1, request }, { generation: 1, pixels: [0, 60] }, { generation: 2, request }, { generation: 1, pixels: [1] }, { generation: 2, pixels: [63] }];
  for (const data of messages) scope.onmessage({ data });
  assert.deepEqual(said.map(({ generation, pixels }) => [generation, pixels]), [[1, [0, 60]], [2, [63]]]);
  assert.equal(said[0].labels[1], 0); // a start near the top flows to the first limit
});

test("basins of other norms have the tokens that their descent selects", () => {
  for (const [name, basins] of [["sign-descent", 1], ["coordinate-descent", 2], ["steepest-descent", 2]]) {
    const problem = { ...FIGURE_1B, optimizer: { name, size: 0.1 } };
    const { limits } = analyse(stateOfProblem(problem));
    const field = requestedField({ problem, optima: limits, settings: { side: 5, half: 4, steps: 3000 } });
    const ends = new Set();
    let settled = 0;
    labelPixels(field, range(25)).forEach((label, pixel) => {
      if (limits[label] === undefined) return;
      const run = new Descent(loopOf(readProblem({ ...problem, start: pixelStart(field, pixel) })));
      run.advance(3000);
      const { selected } = measurePoint(field.problem, run.point);
      assert.deepEqual(limits[label].selected, Array.from(selected), name);
      ends.add(selected.join());
      settled++;
    });
    assert.ok(settled >= 23, name);
    assert.equal(ends.size, basins, name);
  }
});

test("sectors that catch runs change no label", () => {
  const draws = drawsOf(11);
  const drawn = () => 4 * draws() - 2;
  const losses = ["logistic", "exponential", "correlation-loss", "logistic", "logistic", "exponential"];
  for (const name of ["normalized-gd", "sign-descent", "coordinate-descent", "steepest-descent"]) {
    let proved = 0;
    [1, 2, 3, 2, 1, 3].forEach((count, k) => {
      const keys = range(count).map(() => range(4).map(() => [drawn(), drawn()]));
      const problem = readProblem({ keys, scores: range(count).map(() => range(4).map(drawn)), loss: losses[k], optimizer: { name } });
      const power = normOfOptimizer(problem.optimizer);
      const optima = locallyOptimalDirections(problem).map(({ selected, direction }) => {
        return { selected, direction: power === 2 ? direction : planeNormSvm(problem, selected, power).direction };
      });
      for (const settings of [{ side: 8, half: 5, steps: 1500 }, { side: 8, half: 500 }]) {
        const field = basinField(problem, optima, settings);
        const plain = { ...basinField(problem, optima, settings), sectors: optima.map(() => null) };
        proved += field.sectors.filter((sector) => sector !== null).length;
        assert.deepEqual(labelPixels(field, range(64)), labelPixels(plain, range(64)));
      }
    });
    assert.ok(proved > 0, name);
  }
});
