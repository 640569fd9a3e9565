// Basins of attraction in the plane: where normalised descent from every pixel ends, coarse to fine, in pieces that workers can share.

import { correlation, norm } from "./linalg.js";
import { centredKeys } from "./problem.js";
import { largestOf, lossConstants, pairWeights, riskValue } from "./softmax.js";

export const UNSETTLED = -1; // a run that is near no direction and not fenced in
export const OUTSIDE = -2; // a pixel outside the disc
export const BASIN_STEP = 0.1;

const NEAR_NORM = 20; // starts of the disc up to this norm take short steps from the beginning
const NEAR_STEPS = 2000;
const FAR_STEPS = 2500; // of length far/200, for starts beyond
const SETTLING_STEPS = 200; // short ones after them
const REACHED_COSINE = 0.99;
const RESYNC_STEPS_PLANE = 64; // after which accumulated logits are computed afresh
const FENCE_POINTS = 720;
const FENCE_RADII = 12; // from four steps to 3, evenly in the logarithm
const LARGEST_FENCE = 3;
const COARSEST_STRIDE = 16;

/** p in the coordinates of the disc: its direction at the radius log10(1 + ‖p‖). */
export function toLogRadius(p) {
  const size = Math.hypot(p[0], p[1]);
  const factor = size > 0 ? Math.log1p(size) / Math.LN10 / size : 0;
  return [p[0] * factor, p[1] * factor];
}

/** The p at a point of the disc. */
export function fromLogRadius(point) {
  const size = Math.hypot(point[0], point[1]);
  const factor = size > 0 ? Math.expm1(size * Math.LN10) / size : 0;
  return [point[0] * factor, point[1] * factor];
}

/**
 * A picture of starts: `side` × `side` pixels, row by row from the smallest second coordinate on.
 *
 * A window { half, steps } covers [-half, half]² with steps of .1; a disc { far } covers the whole plane out to the norm `far` by
 * log10(1 + ‖p‖), with long steps first where starts are far out. optima: of `locallyOptimalDirections(problem)`.
 */
export function basinField(problem, optima, { side, half = null, steps = 5000, far = null }) {
  const rim = far === null ? null : Math.log1p(far) / Math.LN10;
  return {
    problem,
    rows: centredKeys(problem),
    directions: optima.map((one) => Array.from(one.direction)),
    selections: optima.map((one) => one.selected),
    side, half, steps, far, rim,
    fences: [],
  };
}

/** The start of a pixel, null outside the disc. */
export function pixelStart(field, pixel) {
  const { side, half, rim } = field;
  const width = half ?? rim;
  const place = (k) => ((k + 0.5) / side) * 2 * width - width;
  const point = [place(pixel % side), place(Math.floor(pixel / side))];
  if (half !== null) return point;
  return Math.hypot(point[0], point[1]) <= rim ? fromLogRadius(point) : null;
}

/** The pixels that a stride adds to those of twice the stride, as indices; the coarsest comes first. */
export function levelPixels(side, stride) {
  const found = [];
  for (let row = 0; row < side; row += stride)
    for (let column = 0; column < side; column += stride) {
      const known = stride < COARSEST_STRIDE && row % (2 * stride) === 0 && column % (2 * stride) === 0;
      if (!known) found.push(row * side + column);
    }
  return found;
}

/** Pieces of work, coarse to fine: { stride, pixels }, each of at most `size` pixels. */
export function basinTasks(side, size = 256) {
  const tasks = [];
  for (let stride = COARSEST_STRIDE; stride >= 1; stride /= 2) {
    const pixels = levelPixels(side, stride);
    for (let first = 0; first < pixels.length; first += size) tasks.push({ stride, pixels: pixels.slice(first, first + size) });
  }
  return tasks;
}

/** Labels of some pixels: { labels, ends }, the last points beside them so that `settle` can look at what is left. */
export function labelPixels(field, pixels) {
  const runner = planeRunner(field);
  const labels = new Int8Array(pixels.length);
  const ends = new Float64Array(2 * pixels.length);
  for (let k = 0; k < pixels.length; k++) {
    const start = pixelStart(field, pixels[k]);
    if (start === null) {
      labels[k] = OUTSIDE;
      continue;
    }
    const end = ends.subarray(2 * k, 2 * k + 2);
    end.set(start);
    if (field.half !== null) runner.descend(end, BASIN_STEP, field.steps);
    else if (norm(end) <= NEAR_NORM) runner.descend(end, BASIN_STEP, NEAR_STEPS);
    else {
      runner.descend(end, field.far / 200, FAR_STEPS);
      if (field.far / 200 > BASIN_STEP) runner.descend(end, BASIN_STEP, SETTLING_STEPS);
    }
    labels[k] = reachedDirection(field, end, runner.logits(end));
  }
  settle(field, labels, ends);
  return { labels, ends };
}

/** The direction that a run has reached: it selects its tokens, at a correlation of at least .99; else UNSETTLED. */
function reachedDirection(field, end, a) {
  const { T, lengths } = field.problem;
  for (let k = 0; k < field.directions.length; k++) {
    const same = field.selections[k].every((t, i) => largestOf(a, i * T, lengths[i]) === t);
    if (same && correlation(end, field.directions[k]) >= REACHED_COSINE) return k;
  }
  return UNSETTLED;
}

/**
 * Give unsettled runs the label of a finite minimum, the number of directions, where a circle around one of their last points is proved
 * higher than it: descent that never raises the risk cannot leave. Fences are remembered in the field.
 */
export function settle(field, labels, ends) {
  const runner = planeRunner(field);
  const minimum = field.directions.length;
  const inFence = (end, { centre, radius, height }) =>
    Math.hypot(end[0] - centre[0], end[1] - centre[1]) < radius && runner.risk(end) < height;
  for (let k = 0; k < labels.length; k++) {
    if (labels[k] !== UNSETTLED) continue;
    const end = ends.subarray(2 * k, 2 * k + 2);
    let found = field.fences.some((fence) => inFence(end, fence));
    if (!found) {
      const fence = fenceAround(field, runner, end);
      if (fence !== null) {
        field.fences.push(fence);
        found = true;
      }
    }
    if (found) labels[k] = minimum;
  }
}

/** A circle around a point, and a height above the risk there that no point of the circle falls below; or null. */
function fenceAround(field, runner, end) {
  const { problem } = field;
  const bottom = runner.risk(end);
  const steepest = slopeBound(problem);
  const ratio = (LARGEST_FENCE / (4 * BASIN_STEP)) ** (1 / (FENCE_RADII - 1));
  const point = new Float64Array(2);
  for (let j = 0, radius = 4 * BASIN_STEP; j < FENCE_RADII; j++, radius *= ratio) {
    const change = (steepest * Math.PI * radius) / FENCE_POINTS; // of the risk between neighbouring points
    let height = Infinity;
    for (let k = 0; k < FENCE_POINTS && height - change > bottom; k++) {
      const angle = (2 * Math.PI * k) / FENCE_POINTS;
      point[0] = end[0] + radius * Math.cos(angle);
      point[1] = end[1] + radius * Math.sin(angle);
      height = Math.min(height, runner.risk(point));
    }
    if (height - change > bottom) return { centre: [end[0], end[1]], radius, height: height - change };
  }
  return null;
}

/** A bound on ‖∇L‖: the largest slope times half the range of scores times half the diameter of keys, on average over the inputs. */
function slopeBound(problem) {
  const { n, T, lengths, K, scores, code } = problem;
  let low = Infinity;
  let high = -Infinity;
  let total = 0;
  for (let i = 0; i < n; i++) {
    const of = scores.subarray(i * T, i * T + lengths[i]);
    const [least, most] = [Math.min(...of), Math.max(...of)];
    low = Math.min(low, least);
    high = Math.max(high, most);
    let width = 0;
    for (let t = 0; t < lengths[i]; t++)
      for (let u = 0; u < t; u++) {
        const [a, b] = [(i * T + t) * 2, (i * T + u) * 2];
        width = Math.max(width, Math.hypot(K[a] - K[b], K[a + 1] - K[b + 1]));
      }
    total += (most - least) * width;
  }
  return (Math.exp(lossConstants(code, low, high).logM1) * total) / n / 4;
}

/** Normalised descent in the plane without allocation: descend(p, eta, steps) moves p; logits(p) and risk(p) evaluate there. */
function planeRunner(field) {
  const { n, T, lengths, scores, code } = field.problem;
  const { rows } = field;
  const m = n * T;
  const a = new Float64Array(m);
  const w = new Float64Array(m);
  const logits = (p) => {
    for (let k = 0; k < m; k++) a[k] = rows[2 * k] * p[0] + rows[2 * k + 1] * p[1];
    return a;
  };
  const descend = (p, eta, steps) => {
    logits(p);
    let [x, y] = p;
    for (let step = 0; step < steps; step++) {
      pairWeights(a, scores, lengths, T, code, w);
      let gx = 0;
      let gy = 0;
      for (let k = 0; k < m; k++) {
        gx += w[k] * rows[2 * k];
        gy += w[k] * rows[2 * k + 1];
      }
      const square = gx * gx + gy * gy;
      const reach = square > 1e-280 && square < 1e280 ? Math.sqrt(square) : Math.hypot(gx, gy);
      if (reach === 0) break;
      const move = eta / reach;
      const dx = move * gx;
      const dy = move * gy;
      if (!Number.isFinite(dx + dy)) break;
      x -= dx;
      y -= dy;
      if ((step + 1) % RESYNC_STEPS_PLANE === 0) for (let k = 0; k < m; k++) a[k] = rows[2 * k] * x + rows[2 * k + 1] * y;
      else for (let k = 0; k < m; k++) a[k] -= rows[2 * k] * dx + rows[2 * k + 1] * dy;
    }
    p[0] = x;
    p[1] = y;
  };
  return { descend, logits, risk: (p) => riskValue(logits(p), scores, lengths, T, code) };
}
