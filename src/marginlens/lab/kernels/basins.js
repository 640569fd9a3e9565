// Basins of attraction in the plane: where normalised descent from every pixel ends, coarse to fine, in pieces that workers can share.

import { callCore } from "./core.js";
import { measurePoints, NORM_CODES } from "./descent.js";
import { correlation, norm } from "./linalg.js";
import { normOfOptimizer } from "./norms.js";
import { placesOf } from "./problem.js";
import { largestOf } from "./softmax.js";
import { slopesOf } from "./theorems.js";

export const UNSETTLED = -1; // a run that is near no direction and not fenced in
export const OUTSIDE = -2; // a pixel outside the disc
const BASIN_STEP = 0.1;

const NEAR_NORM = 20; // starts of the disc up to this norm take short steps from the beginning
const NEAR_STEPS = 2000;
const FAR_STEPS = 2500; // for starts beyond, of a share of their norm each: as long as short ones where both meet
const FAR_STEP_SHARE = BASIN_STEP / NEAR_NORM;
const SETTLING_STEPS = 200; // short ones after them
const REACHED_COSINE = 0.99;
const FENCE_POINTS = 720;
const FENCE_STRIDE = 36; // of the few points that most circles fail at
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
 * log10(1 + ‖p‖), with long steps first where starts are far out. optima: of `locallyOptimalDirections(problem)`, or any { direction,
 * selected }; where the problem's optimizer descends in another norm, steps are steepest in that norm.
 */
export function basinField(problem, optima, { side, half = null, steps = 5000, far = null }) {
  const rim = far === null ? null : Math.log1p(far) / Math.LN10;
  return {
    problem,
    directions: optima.map((one) => Array.from(one.direction)),
    selections: optima.map((one) => one.selected),
    sectors: optima.map((one) => catchingSector(problem, one)),
    side, half, steps, far, rim,
    fences: [],
  };
}

/** Why basins of a problem are not painted, in one sentence; empty where they are. */
export function basinRefusal(problem) {
  if (problem.joint) return "Where head and attention are trained together, a start is more than a point of this plane, so basins are not painted.";
  const { name, momentum } = problem.optimizer;
  if (name === "Adam" || momentum > 0)
    return `${name === "Adam" ? "Adam's steps" : "Steps with momentum"} depend on all gradients before, so basins are not painted for them.`;
  return "";
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
function levelPixels(side, stride) {
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
  const labels = new Int8Array(pixels.length).fill(OUTSIDE);
  const ends = new Float64Array(2 * pixels.length);
  const runs = [];
  pixels.forEach((pixel, place) => {
    const start = pixelStart(field, pixel);
    if (start === null) return;
    ends.set(start, 2 * place);
    const isFar = field.half === null && norm(start) > NEAR_NORM;
    const steps = isFar ? FAR_STEPS : field.half === null ? NEAR_STEPS : field.steps;
    runs.push({ place, isFar, steps, size: isFar ? norm(start) * FAR_STEP_SHARE : BASIN_STEP });
  });
  descend(field, runs, ends, labels);
  const wentFar = runs.filter(({ place, isFar }) => isFar && (labels[place] === UNSETTLED || labels[place] === field.directions.length));
  descend(field, wentFar.map(({ place }) => ({ place, steps: SETTLING_STEPS, size: BASIN_STEP })), ends, labels);
  const { probabilities } = measurePoints(field.problem, ends);
  const m = probabilities.length / pixels.length;
  labels.forEach((label, k) => {
    if (label !== UNSETTLED) return;
    labels[k] = reachedDirection(field, ends.subarray(2 * k, 2 * k + 2), probabilities.subarray(k * m, (k + 1) * m));
  });
  settle(field, labels, ends);
  return { labels, ends };
}

/** Set ends and labels of some runs: a sector's number, that of directions where a run came back to where it was, or UNSETTLED. */
function descend(field, runs, ends, labels) {
  const { n, T, lengths, K, scores, code, optimizer } = field.problem;
  const known = field.sectors.flatMap((sector, k) => (sector === null ? [] : [k])); // numbers of directions
  const sectors = Float64Array.from(known.flatMap((k) => Array.from(field.sectors[k])));
  const points = Float64Array.from(runs.flatMap(({ place }) => [ends[2 * place], ends[2 * place + 1]]));
  const caught = new Int32Array(runs.length);
  const rule = { loss: code, norm: NORM_CODES[optimizer.name], power: optimizer.p ?? 2 };
  const pace = { sizes: runs.map(({ size }) => size), n_steps: runs.map(({ steps }) => steps) };
  const counts = { n_inputs: n, n_tokens: T, n_sectors: known.length, batch: runs.length };
  callCore("descend_in_plane", { keys: K, scores, lengths, ...rule, sectors, ...pace, points, labels: caught, ...counts });
  runs.forEach(({ place }, k) => {
    ends.set(points.subarray(2 * k, 2 * k + 2), 2 * place);
    labels[place] = caught[k] === known.length ? field.directions.length : (known[caught[k]] ?? UNSETTLED);
  });
}

/** The direction that a run has reached: it selects its tokens, at a correlation of at least .99; else UNSETTLED. */
function reachedDirection(field, end, probabilities) {
  const { T, lengths } = field.problem;
  for (let k = 0; k < field.directions.length; k++) {
    const same = field.selections[k].every((t, i) => largestOf(probabilities, i * T, lengths[i]) === t);
    if (same && correlation(end, field.directions[k]) >= REACHED_COSINE) return k;
  }
  return UNSETTLED;
}

/**
 * Give unsettled runs the label of a finite minimum, the number of directions, as runs have that repeat themselves, where a circle around
 * one of their last points is proved higher than it: descent that never raises the risk cannot leave. Fences are remembered in the field.
 */
export function settle(field, labels, ends) {
  const { risks } = measurePoints(field.problem, ends);
  labels.forEach((label, k) => {
    if (label !== UNSETTLED) return;
    const end = [ends[2 * k], ends[2 * k + 1]];
    const isInside = ({ centre, radius, height }) => Math.hypot(end[0] - centre[0], end[1] - centre[1]) < radius && risks[k] < height;
    if (!field.fences.some(isInside)) {
      const fence = fenceAround(field, end, risks[k]);
      if (fence === null) return;
      field.fences.push(fence);
    }
    labels[k] = field.directions.length;
  });
}

/** A circle around a point, and a height above the risk there, `bottom`, that no point of the circle falls below; or null. */
function fenceAround({ problem }, centre, bottom) {
  const ratio = (LARGEST_FENCE / (4 * BASIN_STEP)) ** (1 / (FENCE_RADII - 1));
  const angles = Array.from({ length: FENCE_POINTS }, (_, k) => (2 * Math.PI * k) / FENCE_POINTS);
  for (let j = 0, radius = 4 * BASIN_STEP; j < FENCE_RADII; j++, radius *= ratio) {
    const lowest = (some) => {
      const points = some.flatMap((angle) => [centre[0] + radius * Math.cos(angle), centre[1] + radius * Math.sin(angle)]);
      return Math.min(...measurePoints(problem, Float64Array.from(points)).risks);
    };
    const change = (slopeBound(problem) * Math.PI * radius) / FENCE_POINTS; // of the risk between neighbouring points
    const isHopeless = lowest(angles.filter((_, k) => k % FENCE_STRIDE === 0)) - change <= bottom;
    const height = isHopeless ? bottom : lowest(angles) - change;
    if (height > bottom) return { centre, radius, height };
  }
  return null;
}

/** A bound on ‖∇L‖: the largest slope times half the range of scores times half the diameter of keys, on average over the inputs. */
function slopeBound(problem) {
  const { n, K, scores } = problem;
  const total = Array.from(problem.lengths.keys()).reduce((sum, i) => {
    const places = placesOf(problem, i);
    const of = places.map((at) => scores[at]);
    const widths = places.flatMap((a) => places.map((b) => Math.hypot(K[2 * a] - K[2 * b], K[2 * a + 1] - K[2 * b + 1])));
    return sum + (Math.max(...of) - Math.min(...of)) * Math.max(...widths);
  }, 0);
  return (Math.exp(slopesOf(problem).logM1) * total) / n / 4;
}

/**
 * A sector around a locally optimal direction that no run of descent leaves: (x, y, left, right, radius, turn), the points of norm at least
 * max(radius, step · turn) at angles from -left to right with (x, y), given by their tangents; null where none is proved.
 */
function catchingSector(problem, { direction, selected }) {
  const { n, T, lengths, K, scores, blur, optimizer } = problem;
  const { logM1, logSmallest } = slopesOf(problem);
  const sector = new Float64Array(6);
  const rule = { power: normOfOptimizer(optimizer), log_slope_ratio: logM1 - logSmallest, step: BASIN_STEP };
  const given = { keys: K, scores, blur, lengths, selected, direction, n_inputs: n, n_tokens: T };
  return callCore("find_sector", { ...given, ...rule, sector }) ? sector : null;
}
