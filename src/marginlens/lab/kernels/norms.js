// Margins in other norms, in the plane: where sign, coordinate, ℓp descent and Adam head for, with a bracket that proves it.

import { dot, norm } from "./linalg.js";
import { attSvm, OPTIMAL } from "./margin.js";

const INSIDE_RTOL = 1e-11; // how far a point may miss a halfspace, relative to ‖a_r‖ ‖x‖, and still satisfy it
const ACTIVE_RTOL = 1e-9; // slack of a row that holds with equality
const TIED_RTOL = 1e-12; // relative difference of two moduli that are equal up to rounding
const SAME_NORM_RTOL_PLANE = 1e-11; // relative difference of two norms up to which both points are shortest
const SAME_POINT_RTOL = 1e-7; // distance, relative to the norm, from which on two points are different

/** The power p of the norm in which an optimizer of the page has the largest margin, if its memory is short for its steps; with eps > 0 that of Adam is Euclidean in the end. */
export function normOfOptimizer(optimizer) {
  if (optimizer.name === "SignDescent") return Infinity;
  if (optimizer.name === "Adam") return optimizer.eps > 0 ? 2 : Infinity;
  if (optimizer.name === "CoordinateDescent") return 1;
  return optimizer.name === "SteepestDescent" ? optimizer.p : 2;
}

/** ‖x‖_p. */
export function powerNorm(x, power) {
  const sizes = Array.from(x, Math.abs);
  const largest = Math.max(...sizes);
  if (power === Infinity || largest === 0) return largest;
  return largest * sizes.reduce((total, size) => total + (size / largest) ** power, 0) ** (1 / power);
}

function dualPower(power) {
  return power === 1 ? Infinity : power === Infinity ? 1 : power / (power - 1);
}

/** Shortest points on the line a·x = 1: one of them, or the ends of a segment of them. */
function shortestOnLine(a, power) {
  const dual = powerNorm(a, dualPower(power));
  const [x, y] = [Math.abs(a[0]), Math.abs(a[1])];
  if (power === 1) {
    const ends = [];
    if (x >= (1 - TIED_RTOL) * y) ends.push([1 / a[0], 0]);
    if (y >= (1 - TIED_RTOL) * x) ends.push([0, 1 / a[1]]);
    return ends;
  }
  if (power === Infinity) {
    const value = 1 / dual;
    if (x <= TIED_RTOL * y) return [[value, Math.sign(a[1]) * value], [-value, Math.sign(a[1]) * value]];
    if (y <= TIED_RTOL * x) return [[Math.sign(a[0]) * value, value], [Math.sign(a[0]) * value, -value]];
    return [[Math.sign(a[0]) * value, Math.sign(a[1]) * value]];
  }
  const steepest = Array.from(a, (entry) => Math.sign(entry) * (Math.abs(entry) / dual) ** (1 / (power - 1)));
  return [steepest.map((entry) => entry / dual)];
}

/** The share t at which ‖t a + (1 - t) b‖_q is smallest in [0, 1]; x is the shortest point where both rows are active. */
function dualShare(a, b, power, x) {
  const step = [a[0] - b[0], a[1] - b[1]];
  const candidates = [0, 1];
  if (power === 1 || power === Infinity) {
    candidates.push(-b[0] / step[0], -b[1] / step[1]);
    if (power === 1) candidates.push((b[1] - b[0]) / (step[0] - step[1]), -(b[0] + b[1]) / (step[0] + step[1]));
  } else {
    const g = x.map((entry) => Math.sign(entry) * Math.abs(entry) ** (power - 1));
    candidates.push(-(b[0] * g[1] - b[1] * g[0]) / (step[0] * g[1] - step[1] * g[0]));
  }
  let best = { t: 0, value: Infinity };
  for (const t of candidates) {
    if (!(t >= 0 && t <= 1)) continue;
    const value = powerNorm([b[0] + t * step[0], b[1] + t * step[1]], dualPower(power));
    if (value < best.value) best = { t, value };
  }
  return best;
}

/** Which rows are corners of the convex hull of all: the others are combinations of them, so they add no condition. */
function cornersOf(rows) {
  const order = Array.from(rows.keys()).sort((r, s) => rows[r][0] - rows[s][0] || rows[r][1] - rows[s][1]);
  const turn = ([a, b], [c, d], [e, f]) => (c - a) * (f - b) - (d - b) * (e - a);
  const chain = (list) => {
    const found = [];
    for (const r of list) {
      while (found.length > 1 && turn(rows[found.at(-2)], rows[found.at(-1)], rows[r]) <= 0) found.pop();
      found.push(r);
    }
    return found;
  };
  return [...new Set([...chain(order), ...chain(order.reverse())])].sort((r, s) => r - s);
}

/**
 * min ‖p‖_power such that the selected token of every input beats its others by one, for keys in the plane.
 *
 * { status, x, length, margin, direction, multipliers, lower, upper, isUnique, pairs, A }: the smallest norm lies between lower =
 * Σλ/‖Aᵀλ‖_* and upper = ‖x‖/min a_r·x, whatever computed x and λ; isUnique says whether x is the only shortest point. The solution is a
 * vertex or the shortest point on the line of one row, so all of them are tried that corners of the rows' hull make.
 */
export function planeNormSvm(problem, selected, power) {
  const solution = attSvm(problem, selected);
  const { A, m } = solution;
  if (solution.status !== OPTIMAL) return { ...solution, isUnique: solution.status !== OPTIMAL, length: norm(solution.x) };
  const rows = Array.from({ length: m }, (_, r) => [A[2 * r], A[2 * r + 1]]);
  const isInside = (x) => {
    const size = norm(x);
    return rows.every((a) => dot(a, x) >= 1 - INSIDE_RTOL * norm(a) * size);
  };
  let best = Infinity;
  let found = [];
  const tryPoint = (x) => {
    const length = powerNorm(x, power);
    if (!(length <= best * (1 + SAME_NORM_RTOL_PLANE)) || !isInside(x)) return;
    if (length < best) best = length;
    found.push({ x, length });
  };
  const corners = cornersOf(rows);
  corners.forEach((r, place) => {
    const a = rows[r];
    for (const x of shortestOnLine(a, power)) tryPoint(x);
    for (const s of corners.slice(0, place)) {
      const b = rows[s];
      const determinant = a[0] * b[1] - a[1] * b[0];
      if (determinant !== 0) tryPoint([(b[1] - a[1]) / determinant, (a[0] - b[0]) / determinant]);
    }
  });
  found = found.filter(({ length }) => length <= best * (1 + SAME_NORM_RTOL_PLANE));
  found.sort((one, other) => norm(one.x) - norm(other.x));
  const { x, length } = found[0];
  const isUnique = found.every((one) => norm([one.x[0] - x[0], one.x[1] - x[1]]) <= SAME_POINT_RTOL * norm(x));
  const active = corners.filter((r) => dot(rows[r], x) <= 1 + ACTIVE_RTOL);
  let dual = { value: Infinity };
  active.forEach((r, k) => {
    const value = powerNorm(rows[r], dualPower(power));
    if (value < dual.value) dual = { value, t: 1, r, s: r };
    for (const s of active.slice(0, k)) {
      const pair = dualShare(rows[r], rows[s], power, x);
      if (pair.value < dual.value) dual = { ...pair, r, s };
    }
  });
  const multipliers = new Float64Array(m);
  multipliers[dual.r] += dual.t * length ** 2;
  if (dual.s !== dual.r) multipliers[dual.s] += (1 - dual.t) * length ** 2;
  return {
    status: OPTIMAL,
    x: Float64Array.from(x),
    length,
    margin: 1 / length,
    direction: Float64Array.from(x, (entry) => entry / length),
    multipliers,
    lower: 1 / dual.value,
    upper: length / Math.min(...rows.map((a) => dot(a, x))),
    isUnique,
    pairs: solution.pairs,
    A,
  };
}
