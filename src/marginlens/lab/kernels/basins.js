// Basins of attraction in the plane: where normalised descent from every pixel ends, coarse to fine, in pieces that workers can share.

import { steepest } from "./descent.js";
import { correlation, norm } from "./linalg.js";
import { normOfOptimizer } from "./norms.js";
import { centredKeys } from "./problem.js";
import { largestOf, lossConstants, lossValue, pairWeights, slope } from "./softmax.js";

export const UNSETTLED = -1; // a run that is near no direction and not fenced in
export const OUTSIDE = -2; // a pixel outside the disc
export const BASIN_STEP = 0.1;

const NEAR_NORM = 20; // starts of the disc up to this norm take short steps from the beginning
const NEAR_STEPS = 2000;
const FAR_STEPS = 2500; // for starts beyond, of a share of their norm each: as long as short ones where both meet
const FAR_STEP_SHARE = BASIN_STEP / NEAR_NORM;
const SETTLING_STEPS = 200; // short ones after them
const REACHED_COSINE = 0.99;
const RESYNC_STEPS_PLANE = 64; // after which accumulated logits are computed afresh
const SATURATED_GAP = 40; // of logits: tokens that far behind the largest have a share below rounding
const LOOK_STEPS = 8; // between two looks whether a run is caught in a sector
const RETURN_RTOL = 1e-12; // of a run that comes back to where it was, up to rounding
const FENCE_POINTS = 720;
const FENCE_RADII = 12; // from four steps to 3, evenly in the logarithm
const LARGEST_FENCE = 3;
const COARSEST_STRIDE = 16;
const SECTOR_COSINE = 0.9901; // of the widest sector's edges with its direction: inside, a run has reached it
const SECTOR_EDGES = [1, 0.7, 0.45, 0.25, 0.1]; // angles to which a sector may reach on either side, as shares of the widest
const SECTOR_BANDS = [0.4, 0.75]; // shares of a sector's angle from which on steps must lead inwards
const SECTOR_PARTS = 8; // of a sector's angles, in each of which steps must lead away from the origin
const LOG_RADII = [-1, 9]; // of sectors, natural logarithms
const RADIUS_HALVINGS = 7;
const ANGLE_SLACK = 1.02; // a combination of two unit vectors of a sector has no larger coefficients in all

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
    rows: centredKeys(problem),
    directions: optima.map((one) => Array.from(one.direction)),
    selections: optima.map((one) => one.selected),
    sectors: isEuclidean(problem) ? optima.map((one) => catchingSector(problem, one)) : optima.map(() => null),
    side, half, steps, far, rim,
    fences: [],
  };
}

function isEuclidean(problem) {
  return normOfOptimizer(problem.optimizer) === 2;
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
    let caught;
    if (field.half !== null) caught = runner.descend(end, BASIN_STEP, field.steps);
    else if (norm(end) <= NEAR_NORM) caught = runner.descend(end, BASIN_STEP, NEAR_STEPS);
    else {
      caught = runner.descend(end, norm(end) * FAR_STEP_SHARE, FAR_STEPS);
      if (caught === UNSETTLED || caught === field.directions.length) caught = runner.descend(end, BASIN_STEP, SETTLING_STEPS);
    }
    labels[k] = caught === UNSETTLED ? reachedDirection(field, end, runner.logits(end)) : caught;
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
 * Give unsettled runs the label of a finite minimum, the number of directions, as runs have that repeat themselves, where a circle around one of their last points is proved
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

/**
 * A sector around a locally optimal direction that no run of normalised descent leaves: { direction, left, right, radius, turn }, the points
 * of norm at least max(radius, step · turn) at angles from -left to right, given by their tangents; null where none is proved.
 *
 * Descent moves along Σ W_r a_r over rows a_r = k_α - k_t, with W_r = |ℓ'| s_t (γ_α - γ_t - δ). Towards the edges of the sector the row of
 * the smallest margin leads inwards and outweighs all rows that may not, everywhere some row outweighs those that lead back to the
 * origin, and both the more so the longer p is. So a run stays, and is counted as if it had taken all its steps.
 */
function catchingSector(problem, { direction, selected }) {
  if (!(Math.hypot(direction[0], direction[1]) > 0)) return null;
  const rows = sectorRows(problem, selected);
  const { low, high } = scoreBounds(problem);
  const { logM1, logSmallest } = lossConstants(problem.code, low, high);
  const along = (angle) => {
    const [cos, sin] = [Math.cos(angle), Math.sin(angle)];
    return [direction[0] * cos - direction[1] * sin, direction[0] * sin + direction[1] * cos];
  };
  const inwards = (angle) => {
    const [x, y] = along(angle);
    return angle > 0 ? [y, -x] : [-y, x];
  };
  const outweighs = (from, to, component, radius) =>
    leads(rows, [along(from), along(to)], [component(from), component(to)], radius, logM1 - logSmallest);
  const sides = [-1, 1].map((sign) => {
    let found = null;
    for (const share of SECTOR_EDGES)
      for (const band of SECTOR_BANDS) {
        const edge = sign * share * Math.acos(SECTOR_COSINE);
        const radius = smallestRadius((size) => outweighs(band * edge, edge, inwards, size));
        const turn = 1 / Math.sin((1 - band) * Math.abs(edge));
        const reach = Math.max(radius, BASIN_STEP * turn) / Math.sqrt(share); // runs come into narrow sectors later
        if (radius < Infinity && (found === null || reach < found.reach)) found = { edge, radius, turn, reach };
      }
    return found;
  });
  if (sides.includes(null)) return null;
  const [left, right] = sides;
  const at = (part) => left.edge + ((right.edge - left.edge) * part) / SECTOR_PARTS;
  const parts = Array.from({ length: SECTOR_PARTS }, (_, part) => part);
  const outwards = smallestRadius((size) => parts.every((part) => outweighs(at(part), at(part + 1), along, size)));
  if (outwards === Infinity) return null;
  return {
    direction: Array.from(direction),
    left: Math.tan(-left.edge),
    right: Math.tan(right.edge),
    radius: Math.max(left.radius, right.radius, outwards),
    turn: Math.max(left.turn, right.turn),
  };
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
  const { n, T, lengths, K, scores, blur } = problem;
  const rows = [];
  for (let i = 0; i < n; i++) {
    const alpha = i * T + selected[i];
    for (let t = 0; t < lengths[i]; t++) {
      const at = i * T + t;
      if (at === alpha) continue;
      const [gap, doubt] = [scores[alpha] - scores[at], blur[alpha] + blur[at]];
      rows.push({ input: i, x: K[2 * alpha] - K[2 * at], y: K[2 * alpha + 1] - K[2 * at + 1], least: gap - doubt, most: Math.abs(gap) + doubt });
    }
  }
  return rows;
}

/** Whether Σ W_r c_r > 0 for all p of norm at least `radius` between two directions, c_r = a_r · component being combined as they are. */
function leads(rows, directions, components, radius, logSlopeRatio) {
  const onto = (row, [first, second]) => [row.x * first[0] + row.y * first[1], row.x * second[0] + row.y * second[1]];
  const margins = rows.map((row) => Math.min(...onto(row, directions)));
  if (margins.some((margin, r) => margin <= 0 && (rows[r].x !== 0 || rows[r].y !== 0))) return false; // another token may win
  const [mass, shift] = [new Map(), new Map()]; // of each input: bounds on Σ e^-m and on |δ|
  rows.forEach((row, r) => {
    const e = Math.exp(-radius * margins[r]);
    mass.set(row.input, (mass.get(row.input) ?? 0) + e);
    shift.set(row.input, (shift.get(row.input) ?? 0) + e * row.most);
  });
  const parts = rows.map((row) => {
    const [first, second] = onto(row, components);
    return { low: Math.min(first, second), size: ANGLE_SLACK * Math.max(Math.abs(first), Math.abs(second)) };
  });
  let best = -1;
  for (let r = 0; r < rows.length; r++)
    if (parts[r].low > 0 && rows[r].least > shift.get(rows[r].input) && (best < 0 || margins[r] < margins[best])) best = r;
  if (best < 0) return false;
  const weight = (parts[best].low * (rows[best].least - shift.get(rows[best].input))) / (1 + mass.get(rows[best].input));
  let against = 0;
  for (let r = 0; r < rows.length; r++) {
    const isHelp = parts[r].low >= 0 && rows[r].least >= shift.get(rows[r].input);
    if (r === best || isHelp || parts[r].size === 0) continue;
    const ahead = Math.min(...onto({ x: rows[r].x - rows[best].x, y: rows[r].y - rows[best].y }, directions));
    if (ahead < 0) return false; // its weight may grow against the best one's
    against += Math.exp(logSlopeRatio - radius * ahead) * (rows[r].most + shift.get(rows[r].input)) * parts[r].size;
  }
  return weight > against;
}

/** Smallest and largest score. */
function scoreBounds({ n, T, lengths, scores }) {
  let [low, high] = [Infinity, -Infinity];
  for (let i = 0; i < n; i++)
    for (let t = 0; t < lengths[i]; t++) {
      low = Math.min(low, scores[i * T + t]);
      high = Math.max(high, scores[i * T + t]);
    }
  return { low, high };
}

/**
 * Descent with steps of one length in the plane, without allocation: descend(p, eta, steps) moves p and returns the direction whose sector
 * has caught it, the number of directions where it has come back to where it was, else UNSETTLED; logits(p) and risk(p) evaluate at p.
 */
function planeRunner(field) {
  const { n, T, lengths, scores, code, optimizer } = field.problem;
  const { rows, sectors } = field;
  const m = n * T;
  const a = new Float64Array(m);
  const w = new Float64Array(m);
  const best = new Int32Array(n);
  const slopes = scores.map((score) => slope(code, score));
  const gradient = new Float64Array(2);
  const S = new Float64Array(2);
  const euclidean = isEuclidean(field.problem);
  const logits = (p) => {
    for (let k = 0; k < m; k++) a[k] = rows[2 * k] * p[0] + rows[2 * k + 1] * p[1];
    return a;
  };
  /** Weights of the gradient up to a factor where all attention is on one token of each input but for rounding; whether that is so. */
  const saturatedWeights = () => {
    let nearest = -Infinity; // among tokens whose score differs
    for (let i = 0, base = 0; i < n; i++, base += T) {
      best[i] = base + largestOf(a, base, lengths[i]);
      for (let at = base; at < base + lengths[i]; at++) {
        const behind = a[at] - a[best[i]];
        if (behind > nearest && scores[at] !== scores[best[i]]) nearest = behind;
      }
    }
    if (!(nearest < -SATURATED_GAP && nearest > -Infinity)) return false;
    for (let i = 0, base = 0; i < n; i++, base += T) {
      const top = best[i];
      let total = 0;
      for (let at = base; at < base + T; at++) {
        const gap = at < base + lengths[i] ? scores[top] - scores[at] : 0;
        w[at] = gap === 0 ? 0 : slopes[top] * gap * Math.exp(a[at] - a[top] - nearest);
        total += w[at];
      }
      w[top] = -total;
    }
    return true;
  };
  const caughtBy = (x, y, eta) => {
    const square = x * x + y * y;
    for (let k = 0; k < sectors.length; k++) {
      if (sectors[k] === null) continue;
      const { direction, left, right, radius, turn } = sectors[k];
      const along = x * direction[0] + y * direction[1];
      const across = y * direction[0] - x * direction[1];
      const least = Math.max(radius, eta * turn);
      if (along > 0 && square >= least * least && across >= -left * along && across <= right * along) return k;
    }
    return UNSETTLED;
  };
  const descend = (p, eta, steps) => {
    logits(p);
    let [x, y] = p;
    let [lastX, lastY] = p;
    let caught = UNSETTLED;
    let isSaturated = false;
    for (let step = 0; step < steps; step++) {
      if (step % LOOK_STEPS === 0 && (caught = caughtBy(x, y, eta)) !== UNSETTLED) break;
      if (isSaturated || step % LOOK_STEPS === 0) isSaturated = saturatedWeights();
      if (!isSaturated) pairWeights(a, scores, lengths, T, code, w);
      let gx = 0;
      let gy = 0;
      for (let k = 0; k < m; k++) {
        gx += w[k] * rows[2 * k];
        gy += w[k] * rows[2 * k + 1];
      }
      const square = gx * gx + gy * gy;
      let dx;
      let dy;
      if (euclidean) {
        const reach = square > 1e-280 && square < 1e280 ? Math.sqrt(square) : Math.hypot(gx, gy);
        if (reach === 0) break;
        const move = eta / reach;
        dx = move * gx;
        dy = move * gy;
      } else {
        gradient[0] = gx;
        gradient[1] = gy;
        steepest(gradient, optimizer, S);
        if (S[0] === 0 && S[1] === 0) break;
        dx = eta * S[0];
        dy = eta * S[1];
      }
      if (!Number.isFinite(dx + dy)) break;
      x -= dx;
      y -= dy;
      if ((step + 1) % RESYNC_STEPS_PLANE === 0) {
        if (Math.abs(x - lastX) + Math.abs(y - lastY) <= RETURN_RTOL * (Math.abs(x) + Math.abs(y))) {
          caught = sectors.length; // and so on for ever
          break;
        }
        lastX = x;
        lastY = y;
        for (let k = 0; k < m; k++) a[k] = rows[2 * k] * x + rows[2 * k + 1] * y;
      } else for (let k = 0; k < m; k++) a[k] -= rows[2 * k] * dx + rows[2 * k + 1] * dy;
    }
    p[0] = x;
    p[1] = y;
    return caught;
  };
  const risk = (p) => {
    logits(p);
    let total = 0;
    for (let base = 0, i = 0; i < n; i++, base += T) {
      const top = base + largestOf(a, base, lengths[i]);
      let rest = 0;
      let delta = 0;
      for (let at = base; at < base + lengths[i]; at++) {
        if (at === top) continue;
        const e = Math.exp(a[at] - a[top]);
        rest += e;
        delta += e * (scores[top] - scores[at]);
      }
      total += lossValue(code, scores[top] - delta / (1 + rest));
    }
    return total / n;
  };
  return { descend, logits, risk };
}
