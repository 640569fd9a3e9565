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
const SECTOR_COSINE = 0.9901; // of the widest sector's edges with its direction: inside, a run has reached it
const SECTOR_EDGES = [1, 0.7, 0.45, 0.25, 0.1]; // angles to which a sector may reach on either side, as shares of the widest
const SECTOR_BANDS = [0.4, 0.75]; // shares of a sector's angle from which on steps must lead inwards
const SECTOR_PARTS = 8; // of a sector's angles, in each of which steps must lead away from the origin
const LOG_RADII = [-1, 9]; // of sectors, natural logarithms
const RADIUS_HALVINGS = 7;
const TIE_SLACK = 1e-6; // beyond what rounding, and ties of coordinates, can turn

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
  const known = field.sectors.flatMap((sector, k) => (sector === null ? [] : [{ ...sector, k }]));
  const sectors = Float64Array.from(known.flatMap(({ direction, left, right, radius, turn }) => [...direction, left, right, radius, turn]));
  const points = Float64Array.from(runs.flatMap(({ place }) => [ends[2 * place], ends[2 * place + 1]]));
  const caught = new Int32Array(runs.length);
  const rule = { loss: code, norm: NORM_CODES[optimizer.name], power: optimizer.p ?? 2 };
  const pace = { sizes: runs.map(({ size }) => size), n_steps: runs.map(({ steps }) => steps) };
  const counts = { n_inputs: n, n_tokens: T, n_sectors: known.length, batch: runs.length };
  callCore("descend_in_plane", { keys: K, scores, lengths, ...rule, sectors, ...pace, points, labels: caught, ...counts });
  runs.forEach(({ place }, k) => {
    ends.set(points.subarray(2 * k, 2 * k + 2), 2 * place);
    labels[place] = caught[k] === known.length ? field.directions.length : (known[caught[k]]?.k ?? UNSETTLED);
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
 * A sector around a locally optimal direction that no run of descent leaves: { direction, left, right, radius, turn }, the points of norm at
 * least max(radius, step · turn) at angles from -left to right, given by their tangents; null where none is proved.
 *
 * Descent moves along the steepest direction S(g) of g = Σ W_r a_r over rows a_r = k_α - k_t, with W_r = |ℓ'| s_t (γ_α - γ_t - δ), and in the
 * plane n·S(g) > 0 is a halfspace of g, see `dualNormal`. Towards the edges of the sector the row of the smallest margin leads inwards and
 * outweighs all rows that may not, everywhere some row outweighs those that lead back to the origin, and both the more so the longer p is.
 * So a run stays, and is counted as if it had taken all its steps.
 */
function catchingSector(problem, { direction, selected }) {
  const length = Math.hypot(direction[0], direction[1]);
  if (!(length > 0)) return null;
  const power = normOfOptimizer(problem.optimizer);
  const longest = 2 ** Math.max(0, 0.5 - 1 / power); // Euclidean length of a step of unit length
  const rows = sectorRows(problem, selected);
  const { logM1, logSmallest } = slopesOf(problem);
  const along = (angle) => {
    const [cos, sin] = [Math.cos(angle) / length, Math.sin(angle) / length];
    return [direction[0] * cos - direction[1] * sin, direction[0] * sin + direction[1] * cos];
  };
  const outweighs = (from, to, normal, radius) =>
    leads(rows, [along(from), along(to)], dualNormal(normal, power), radius, logM1 - logSmallest);
  const sides = [-1, 1].map((sign) => {
    let found = null;
    for (const share of SECTOR_EDGES)
      for (const band of SECTOR_BANDS) {
        const edge = sign * share * Math.acos(SECTOR_COSINE);
        const inwards = along(edge - (sign * Math.PI) / 2);
        const radius = smallestRadius((size) => outweighs(band * edge, edge, inwards, size));
        const turn = longest / Math.sin((1 - band) * Math.abs(edge));
        const reach = Math.max(radius, BASIN_STEP * turn) / Math.sqrt(share); // runs come into narrow sectors later
        if (radius < Infinity && (found === null || reach < found.reach)) found = { edge, radius, turn, reach };
      }
    return found;
  });
  if (sides.includes(null)) return null;
  const [left, right] = sides;
  const at = (part) => left.edge + ((right.edge - left.edge) * part) / SECTOR_PARTS;
  const parts = Array.from({ length: SECTOR_PARTS }, (_, part) => [at(part), at(part + 1)]);
  const isOutwards = (size) => parts.every(([from, to]) => [from, to].every((angle) => outweighs(from, to, along(angle), size)));
  const outwards = smallestRadius(isOutwards);
  if (outwards === Infinity) return null;
  return {
    direction: along(0),
    left: Math.tan(-left.edge),
    right: Math.tan(right.edge),
    radius: Math.max(left.radius, right.radius, outwards),
    turn: Math.max(left.turn, right.turn),
  };
}

/**
 * The c with n·S(g) > 0 wherever c·g > 0, S(g) being the steepest direction in ℓp: sign(n) |n|^(p-1), up to a factor. S is odd and turns g
 * the same way round, so the boundary n·S(g) = 0 is a line; for p = ∞ it is an axis and for p = 1 a diagonal.
 */
function dualNormal(n, power) {
  const largest = Math.max(Math.abs(n[0]), Math.abs(n[1]));
  const sizes = n.map((entry) => Math.abs(entry) / largest);
  const weight = (size) => (power === Infinity ? (size === 1 ? 1 : 0) : size ** (power - 1));
  return n.map((entry, k) => Math.sign(entry) * weight(sizes[k]));
}

/** About the smallest radius from which on a condition holds, infinite where it does not hold at the largest that is tried. */
function smallestRadius(holds) {
  let [low, high] = LOG_RADII;
  if (!holds(Math.exp(high))) return Infinity;
  for (let k = 0; k < RADIUS_HALVINGS; k++) {
    const middle = (low + high) / 2;
    if (holds(Math.exp(middle))) high = middle;
    else low = middle;
  }
  return Math.exp(high);
}

/** Rows k_α - k_t of a selection with γ_α - γ_t, which rounding may blur: [{ input, x, y, least, most }]. */
function sectorRows(problem, selected) {
  const { T, K, scores, blur } = problem;
  return selected.flatMap((t, input) => {
    const alpha = input * T + t;
    return placesOf(problem, input).flatMap((at) => {
      const [gap, doubt] = [scores[alpha] - scores[at], blur[alpha] + blur[at]];
      const row = { x: K[2 * alpha] - K[2 * at], y: K[2 * alpha + 1] - K[2 * at + 1] };
      return at === alpha ? [] : [{ input, ...row, least: gap - doubt, most: Math.abs(gap) + doubt }];
    });
  });
}

/** Whether c · Σ W_r a_r > 0 for all p of norm at least `radius` between two directions. */
function leads(rows, directions, c, radius, logSlopeRatio) {
  const onto = (row, [first, second]) => [row.x * first[0] + row.y * first[1], row.x * second[0] + row.y * second[1]];
  const margins = rows.map((row) => Math.min(...onto(row, directions)));
  if (margins.some((margin, r) => margin <= 0 && (rows[r].x !== 0 || rows[r].y !== 0))) return false; // another token may win
  const [mass, shift] = [new Map(), new Map()]; // of each input: bounds on Σ e^-m and on |δ|
  rows.forEach((row, r) => {
    const e = Math.exp(-radius * margins[r]);
    mass.set(row.input, (mass.get(row.input) ?? 0) + e);
    shift.set(row.input, (shift.get(row.input) ?? 0) + e * row.most);
  });
  const parts = rows.map((row) => row.x * c[0] + row.y * c[1]);
  let best = -1;
  for (let r = 0; r < rows.length; r++)
    if (parts[r] > 0 && rows[r].least > shift.get(rows[r].input) && (best < 0 || margins[r] < margins[best])) best = r;
  if (best < 0) return false;
  const weight = (parts[best] * (rows[best].least - shift.get(rows[best].input))) / (1 + mass.get(rows[best].input));
  let against = 0;
  for (let r = 0; r < rows.length; r++) {
    const isHelp = parts[r] >= 0 && rows[r].least >= shift.get(rows[r].input);
    if (r === best || isHelp || parts[r] === 0) continue;
    const ahead = Math.min(...onto({ x: rows[r].x - rows[best].x, y: rows[r].y - rows[best].y }, directions));
    if (ahead < 0) return false; // its weight may grow against the best one's
    against += Math.exp(logSlopeRatio - radius * ahead) * (rows[r].most + shift.get(rows[r].input)) * Math.abs(parts[r]);
  }
  return weight > against * (1 + TIE_SLACK);
}
