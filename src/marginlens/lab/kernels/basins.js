// Basins of attraction in the plane: where training from every pixel ends, coarse to fine, in pieces that workers can share.

import { callCore } from "./core.js";
import { loopOf, NORM_CODES } from "./descent.js";
import { correlation, norm } from "./linalg.js";
import { normOfOptimizer } from "./norms.js";
import { selectionAt } from "./optimality.js";
import { slopesOf } from "./theorems.js";

export const UNSETTLED = -1; // a run that is near no direction and has not come back to where it was
export const OUTSIDE = -2; // a pixel outside the disc
export const LEAST_STEPS = 5000; // that are taken from a pixel where the page's own runs are shorter

const NEAR_STEPS = 200; // of the optimizer's size: starts of the disc up to this norm take them from the beginning
const DISC_STEPS = 2000; // from them
const FAR_STEPS = 2500; // from starts beyond, of a share of their norm each: as long as short ones where both meet
const SETTLING_STEPS = 200; // short ones after them
const REACHED_COSINE = 0.99;
const APPROACHED_COSINE = 0.8; // by rules whose steps grow shorter, which come near in logarithmic time
export const COARSEST_STRIDE = 16;

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

/** Whether a rule takes steps of one length from the gradient of the moment alone, so that four runs share every instruction. */
export function isSteady({ joint, optimizer: { name, momentum, decay } }) {
  return !joint && name in NORM_CODES && name !== "gradient-descent" && !momentum && !decay;
}

/**
 * A picture of starts: `side` × `side` pixels, row by row from the smallest second coordinate on.
 *
 * A window { half, wide } covers [-half, half]², of which only the middle is shown where it is wider than high; a disc { far } covers the whole plane out to the norm `far` by log10(1 + ‖p‖). From each pixel
 * the problem's own optimizer takes its `steps`, at least 5,000; where its steps have one length, starts of the disc that are far out take
 * long ones first. optima: of `locallyOptimalDirections(problem)`, or any { direction, selected }.
 */
export function basinField(problem, optima, { side, half = null, wide = 1, far = null, steps = Math.max(problem.steps, LEAST_STEPS) }) {
  const rim = far === null ? null : Math.log1p(far) / Math.LN10;
  return {
    problem,
    directions: optima.map((one) => Array.from(one.direction)),
    selections: optima.map((one) => one.selected.join()),
    sectors: isSteady(problem) ? optima.map((one) => catchingSector(problem, one)) : [],
    side, half, wide, far, rim, steps,
  };
}

/** The start of a pixel, null outside the disc or a window's middle. */
export function pixelStart(field, pixel) {
  const { side, half, wide, rim } = field;
  const width = half ?? rim;
  const place = (k) => ((k + 0.5) / side) * 2 * width - width;
  const point = [place(pixel % side), place(Math.floor(pixel / side))];
  if (half !== null) return Math.abs(point[1]) <= half / wide ? point : null;
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

/** Labels of some pixels: a direction's number, that of directions where a run came back to where it was, UNSETTLED or OUTSIDE. */
export function labelPixels(field, pixels) {
  const starts = pixels.map((pixel) => pixelStart(field, pixel));
  const labels = new Int8Array(pixels.length).fill(OUTSIDE);
  const places = Array.from(starts.keys()).filter((place) => starts[place] !== null);
  const ends = Float64Array.from(places.flatMap((place) => starts[place]));
  const found = isSteady(field.problem) ? steadyLabels(field, ends) : places.map((_, k) => labelOfRun(field, ends.subarray(2 * k, 2 * k + 2)));
  places.forEach((place, k) => (labels[place] = found[k]));
  return labels;
}

/** The label of a single run from a start, with all the rule's steps. */
function labelOfRun(field, start) {
  const loop = loopOf({ ...field.problem, start });
  const state = new Float64Array(loop.size);
  loop.begin(state);
  loop.advance(state, 0, field.steps);
  return reachedDirection(field, state.subarray(loop.width - 2, loop.width), APPROACHED_COSINE);
}

/** Labels of runs with steps of one length, whose starts become their ends. */
function steadyLabels(field, ends) {
  const { half, steps, problem } = field;
  const { size } = problem.optimizer;
  const labels = new Array(ends.length / 2).fill(UNSETTLED);
  const runs = labels.map((_, place) => {
    const from = norm(ends.subarray(2 * place, 2 * place + 2));
    const isFar = half === null && from > NEAR_STEPS * size;
    return isFar ? { place, isFar, steps: FAR_STEPS, size: from / NEAR_STEPS } : { place, steps: half === null ? DISC_STEPS : steps, size };
  });
  descend(field, runs, ends, labels);
  const wentFar = runs.filter(({ place, isFar }) => isFar && (labels[place] === UNSETTLED || labels[place] === field.directions.length));
  descend(field, wentFar.map(({ place }) => ({ place, steps: SETTLING_STEPS, size })), ends, labels);
  return labels.map((label, k) => (label === UNSETTLED ? reachedDirection(field, ends.subarray(2 * k, 2 * k + 2), REACHED_COSINE) : label));
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

/** The nearest direction that selects the tokens which lead at the end of a run, at some correlation at least; else UNSETTLED. */
function reachedDirection({ problem, directions, selections }, end, least) {
  const selected = selectionAt(problem, end).selected.join();
  const cosines = directions.map((direction, k) => (selections[k] === selected ? correlation(end, direction) : -1));
  const best = Math.max(least, ...cosines);
  return cosines.indexOf(best);
}

/**
 * A sector around a locally optimal direction that no run of descent leaves: (x, y, left, right, radius, turn), the points of norm at least
 * max(radius, step · turn) at angles from -left to right with (x, y), given by their tangents; null where none is proved.
 */
function catchingSector(problem, { direction, selected }) {
  const { n, T, lengths, K, scores, blur, optimizer } = problem;
  const { logM1, logSmallest } = slopesOf(problem);
  const sector = new Float64Array(6);
  const rule = { power: normOfOptimizer(optimizer), log_slope_ratio: logM1 - logSmallest, step: optimizer.size };
  const given = { keys: K, scores, blur, lengths, selected, direction, n_inputs: n, n_tokens: T };
  return callCore("find_sector", { ...given, ...rule, sector }) ? sector : null;
}
