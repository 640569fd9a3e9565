// Basins of attraction in the plane: where training from every pixel ends, coarse to fine, in pieces that workers can share.

import { callCore } from "./core.js";
import { loopOf, NORM_CODES } from "./descent.js";
import { correlation } from "./linalg.js";
import { normOfOptimizer } from "./norms.js";
import { selectionAt } from "./optimality.js";
import { slopesOf } from "./theorems.js";

export const UNSETTLED = -1; // a run that is near no direction and has not come back to where it was
export const OUTSIDE = -2; // a pixel above or below a window that is wider than high
export const LEAST_STEPS = 5000; // that are taken from a pixel where the page's own runs are shorter

const REACHED_COSINE = 0.99;
const APPROACHED_COSINE = 0.8; // by rules whose steps grow shorter, which come near in logarithmic time
export const COARSEST_STRIDE = 16;

/** Whether a rule takes steps of one length from the gradient of the moment alone, so that four runs share every instruction. */
export function isSteady({ joint, optimizer: { name, momentum, decay } }) {
  return !joint && name in NORM_CODES && name !== "gradient-descent" && !momentum && !decay;
}

/**
 * A picture of starts: `side` × `side` pixels, row by row from the smallest second coordinate on, which cover [-half, half]²; of a window that
 * is `wide` times as wide as high only the middle is shown. From each pixel the problem's own optimizer takes its `steps`, at least 5,000.
 * optima: of `locallyOptimalDirections(problem)`, or any { direction, selected }.
 */
export function basinField(problem, optima, { side, half, wide = 1, steps = Math.max(problem.steps, LEAST_STEPS) }) {
  return {
    problem,
    directions: optima.map((one) => Array.from(one.direction)),
    selections: optima.map((one) => one.selected.join()),
    sectors: isSteady(problem) ? optima.map((one) => catchingSector(problem, one)) : [],
    side, half, wide, steps,
  };
}

/** The start of a pixel, null where it is not shown. */
export function pixelStart({ side, half, wide }, pixel) {
  const place = (k) => ((k + 0.5) / side) * 2 * half - half;
  const point = [place(pixel % side), place(Math.floor(pixel / side))];
  return Math.abs(point[1]) <= half / wide ? point : null;
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

/** Labels of runs with steps of one length, whose starts become their ends: that of the sector that caught each, else of where it ended. */
function steadyLabels(field, ends) {
  const { n, T, lengths, K, scores, code, optimizer } = field.problem;
  const known = field.sectors.flatMap((sector, k) => (sector === null ? [] : [k])); // numbers of directions
  const sectors = Float64Array.from(known.flatMap((k) => Array.from(field.sectors[k])));
  const batch = ends.length / 2;
  const caught = new Int32Array(batch);
  const rule = { loss: code, norm: NORM_CODES[optimizer.name], power: optimizer.p ?? 2 };
  const pace = { sizes: new Float64Array(batch).fill(optimizer.size), n_steps: new Int32Array(batch).fill(field.steps) };
  const counts = { n_inputs: n, n_tokens: T, n_sectors: known.length, batch };
  callCore("descend_in_plane", { keys: K, scores, lengths, ...rule, sectors, ...pace, points: ends, labels: caught, ...counts });
  return Array.from(caught, (place, k) => {
    if (place === known.length) return field.directions.length;
    return known[place] ?? reachedDirection(field, ends.subarray(2 * k, 2 * k + 2), REACHED_COSINE);
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
