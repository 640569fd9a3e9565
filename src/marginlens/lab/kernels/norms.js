// Margins in other norms, in the plane: where sign, coordinate, ℓp descent and Adam head for, with a bracket that proves it.

import { dot, norm } from "./linalg.js";
import { attSvm, OPTIMAL } from "./margin.js";

const INSIDE_RTOL = 1e-11; // how far a point may miss a halfspace, relative to ‖a_r‖ ‖x‖, and still satisfy it
const ACTIVE_RTOL = 1e-9; // slack of a row that holds with equality
const TIED_RTOL = 1e-12; // relative difference of two moduli that are equal up to rounding
const SAME_NORM_RTOL_PLANE = 1e-11; // relative difference of two norms up to which both points are shortest
const SHARE_ROUNDS = 90; // thirds taken off an interval, after which it has no more digits
const SAME_POINT_RTOL = 1e-7; // distance, relative to the norm, from which on two points are different

/** The p of the norm in which an optimizer has the largest margin, if its memory is short; with eps > 0 that of Adam is Euclidean in the end. */
export function normOfOptimizer(optimizer) {
  if (optimizer.name === "sign-descent") return Infinity;
  if (optimizer.name === "adam") return optimizer.eps > 0 ? 2 : Infinity;
  if (optimizer.name === "coordinate-descent") return 1;
  return optimizer.name === "steepest-descent" ? optimizer.p : 2;
}

/** ‖x‖_p of a point of the plane. */
export function powerNorm(x, power) {
  const [small, large] = [Math.abs(x[0]), Math.abs(x[1])].sort((a, b) => a - b);
  return power === Infinity || large === 0 ? large : large * ((small / large) ** power + 1) ** (1 / power);
}

function dualPower(power) {
  return power === 1 ? Infinity : power === Infinity ? 1 : power / (power - 1);
}

/** Shortest points on the line a·x = 1: one of them, or the ends of a segment of them. */
function shortestOnLine(a, power) {
  const dual = powerNorm(a, dualPower(power));
  const [x, y] = [Math.abs(a[0]), Math.abs(a[1])];
  const [isAlongX, isAlongY] = [y <= TIED_RTOL * x, x <= TIED_RTOL * y];
  if (power === 1) return [...(x >= (1 - TIED_RTOL) * y ? [[1 / a[0], 0]] : []), ...(y >= (1 - TIED_RTOL) * x ? [[0, 1 / a[1]]] : [])];
  if (power === Infinity) {
    const ends = isAlongX ? [[a[0], x], [a[0], -x]] : isAlongY ? [[y, a[1]], [-y, a[1]]] : [a];
    return ends.map((end) => end.map((entry) => Math.sign(entry) / dual));
  }
  return [Array.from(a, (entry) => (Math.sign(entry) * (Math.abs(entry) / dual) ** (1 / (power - 1))) / dual)];
}

/** The share t at which ‖t a + (1 - t) b‖_q is smallest in [0, 1], by thirds: { t, value }. */
function dualShare(a, b, power) {
  const length = (t) => powerNorm([b[0] + t * (a[0] - b[0]), b[1] + t * (a[1] - b[1])], dualPower(power));
  let [low, high] = [0, 1];
  for (let round = 0; round < SHARE_ROUNDS; round++) {
    const [first, second] = [(2 * low + high) / 3, (low + 2 * high) / 3];
    if (length(first) <= length(second)) high = second;
    else low = first;
  }
  return { t: (low + high) / 2, value: length((low + high) / 2) };
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
  const { A, m, pairs } = solution;
  if (solution.status !== OPTIMAL) return { ...solution, isUnique: true, length: norm(solution.x) };
  const rows = Array.from({ length: m }, (_, r) => A.subarray(2 * r, 2 * r + 2));
  const corners = cornersOf(rows);
  const vertex = (a, b) => {
    const determinant = a[0] * b[1] - a[1] * b[0];
    return determinant === 0 ? [] : [[(b[1] - a[1]) / determinant, (a[0] - b[0]) / determinant]];
  };
  const others = (place) => corners.slice(0, place).map((s) => rows[s]);
  const points = corners.flatMap((r, place) => [...shortestOnLine(rows[r], power), ...others(place).flatMap((b) => vertex(rows[r], b))]);
  const slack = rows.map((a) => INSIDE_RTOL * norm(a)); // for a point of norm one
  const isInside = ({ x }, size = norm(x)) => rows.every((a, r) => dot(a, x) >= 1 - slack[r] * size);
  const sorted = points.map((x) => ({ x, length: powerNorm(x, power) })).sort((a, b) => a.length - b.length);
  const limit = sorted.find((one) => isInside(one)).length * (1 + SAME_NORM_RTOL_PLANE);
  const found = sorted.filter((one) => one.length <= limit && isInside(one)).sort((a, b) => norm(a.x) - norm(b.x));
  const { x, length } = found[0];
  const active = corners.filter((r) => dot(rows[r], x) <= 1 + ACTIVE_RTOL);
  const pairsOf = (r, k) => active.slice(0, k).map((s) => ({ ...dualShare(rows[r], rows[s], power), r, s }));
  const ofRow = (r) => ({ value: powerNorm(rows[r], dualPower(power)), t: 1, r, s: r });
  const dual = active.flatMap((r, k) => [ofRow(r), ...pairsOf(r, k)]).reduce((least, one) => (one.value < least.value ? one : least));
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
    isUnique: found.every((one) => Math.hypot(one.x[0] - x[0], one.x[1] - x[1]) <= SAME_POINT_RTOL * norm(x)),
    pairs,
    A,
  };
}
