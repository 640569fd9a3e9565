// Margins in other norms, in the plane: where sign, coordinate, ℓp descent and Adam head for, with a bracket that proves it.

import { dot, norm } from "./linalg.js";
import { attSvm, leastDistance, OPTIMAL } from "./margin.js";

const INSIDE_RTOL = 1e-11; // how far a point may miss a halfspace, relative to ‖a_r‖ ‖x‖, and still satisfy it
const ACTIVE_RTOL = 1e-9; // slack of a row that holds with equality
const TIED_RTOL = 1e-12; // relative difference of two moduli that are equal up to rounding
const SAME_NORM_RTOL_PLANE = 1e-11; // relative difference of two norms up to which both points are shortest
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

/** The dual of ‖x‖_power. */
export function dualNorm(x, power) {
  return powerNorm(x, power === 1 ? Infinity : power === Infinity ? 1 : power / (power - 1));
}

/** Shortest points on the line a·x = 1: one of them, or the ends of a segment of them. */
function shortestOnLine(a, power) {
  const dual = dualNorm(a, power);
  const [x, y] = [Math.abs(a[0]), Math.abs(a[1])];
  const [isAlongX, isAlongY] = [y <= TIED_RTOL * x, x <= TIED_RTOL * y];
  if (power === 1) return [...(x >= (1 - TIED_RTOL) * y ? [[1 / a[0], 0]] : []), ...(y >= (1 - TIED_RTOL) * x ? [[0, 1 / a[1]]] : [])];
  if (power === Infinity) {
    const ends = isAlongX ? [[a[0], x], [a[0], -x]] : isAlongY ? [[y, a[1]], [-y, a[1]]] : [a];
    return ends.map((end) => end.map((entry) => Math.sign(entry) / dual));
  }
  return [Array.from(a, (entry) => (Math.sign(entry) * (Math.abs(entry) / dual) ** (1 / (power - 1))) / dual)];
}

/** Extreme gradients of ‖x‖²/2: one, or the ends of a segment of them where the unit ball has an edge or a corner. */
function gradientsOf([x, y], power) {
  const size = powerNorm([x, y], power);
  const [isAlongX, isAlongY] = [Math.abs(y) <= TIED_RTOL * Math.abs(x), Math.abs(x) <= TIED_RTOL * Math.abs(y)];
  const signs = [Math.sign(x) * size, Math.sign(y) * size];
  if (power === 1) return isAlongX ? [[signs[0], size], [signs[0], -size]] : isAlongY ? [[size, signs[1]], [-size, signs[1]]] : [signs];
  if (power < Infinity) return [[x, y].map((entry) => Math.sign(entry) * size * (Math.abs(entry) / size) ** (power - 1))];
  const [isX, isY] = [Math.abs(x), Math.abs(y)].map((entry) => entry >= (1 - TIED_RTOL) * size);
  return [...(isX ? [[signs[0], 0]] : []), ...(isY ? [[0, signs[1]]] : [])];
}

/** Which of some rows with the same bound are corners of their convex hull: the others are combinations of them, so they add no condition. */
function cornersOf(rows, chosen) {
  const order = chosen.sort((r, s) => rows[r][0] - rows[s][0] || rows[r][1] - rows[s][1]);
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

/** The point at which two lines a·x = b meet: none where they are parallel. */
function crossing(a, b, c, d) {
  const determinant = a[0] * c[1] - a[1] * c[0];
  return determinant === 0 ? [] : [[(b * c[1] - d * a[1]) / determinant, (a[0] * d - c[0] * b) / determinant]];
}

/** Multipliers of rows that hold with equality at a shortest x, those that prove the largest lower bound Σ λ b/‖Aᵀλ‖_* on its norm. */
function multipliersAt(x, length, rows, lower, active, power) {
  const single = active.filter((r) => lower[r] > 0).map((r) => [[r, length ** 2 / lower[r]]]);
  const pairs = active.flatMap((r, k) => active.slice(0, k).map((s) => [r, s]));
  const double = pairs.flatMap(([r, s]) =>
    gradientsOf(x, power).flatMap(([u, v]) => crossing([rows[r][0], rows[s][0]], u, [rows[r][1], rows[s][1]], v).map((weights) => weights.map((weight, k) => [[r, s][k], weight]))),
  );
  const bound = (weights) => {
    const sum = [0, 1].map((k) => weights.reduce((total, [r, weight]) => total + weight * rows[r][k], 0));
    return weights.reduce((total, [r, weight]) => total + weight * lower[r], 0) / dualNorm(sum, power);
  };
  const bounded = [...single, ...double.filter((weights) => weights.every(([, weight]) => weight > 0))].map((weights) => ({ weights, value: bound(weights) }));
  const best = bounded.reduce((largest, one) => (one.value > largest.value * (1 + TIED_RTOL) ? one : largest), { weights: [], value: 0 });
  const multipliers = new Float64Array(rows.length);
  const total = best.weights.reduce((sum, [r, weight]) => sum + weight * lower[r], 0);
  for (const [r, weight] of best.weights) multipliers[r] = (weight * length * best.value) / total; // so that ‖Aᵀλ‖_* is ‖x‖
  return { multipliers, bound: best.value };
}

/**
 * min ‖x‖_power over A x ≥ b ≥ 0 for rows of the plane, from the Euclidean solution of the same problem: { status, x, length, multipliers,
 * bound, isUnique, certificate }, bound being a lower bound on the norm that the multipliers prove.
 *
 * The solution is a vertex or the shortest point on the line of one row, so all of them are tried that corners of the rows' hulls make.
 */
export function shortestAbove(euclidean, power) {
  const { A, m, status, b: lower } = euclidean;
  if (status !== OPTIMAL) return { ...euclidean, isUnique: true, length: norm(euclidean.x), bound: 0 };
  const rows = Array.from({ length: m }, (_, r) => A.subarray(2 * r, 2 * r + 2));
  const every = Array.from(rows.keys());
  const corners = [true, false].flatMap((isAhead) => cornersOf(rows, every.filter((r) => lower[r] > 0 === isAhead)));
  const others = (place) => corners.slice(0, place);
  const points = corners.flatMap((r, place) => [
    ...(lower[r] > 0 ? shortestOnLine(rows[r], power).map((x) => x.map((entry) => entry * lower[r])) : []),
    ...others(place).flatMap((s) => crossing(rows[r], lower[r], rows[s], lower[s])),
  ]);
  const slack = rows.map((a) => INSIDE_RTOL * norm(a)); // for a point of norm one
  const isInside = ({ x }, size = norm(x)) => rows.every((a, r) => dot(a, x) >= lower[r] - slack[r] * size);
  const sorted = points.map((x) => ({ x, length: powerNorm(x, power) })).sort((a, b) => a.length - b.length);
  const limit = sorted.find((one) => isInside(one)).length * (1 + SAME_NORM_RTOL_PLANE);
  const found = sorted.filter((one) => one.length <= limit && isInside(one)).sort((a, b) => norm(a.x) - norm(b.x));
  const { x, length } = found[0];
  const active = corners.filter((r) => dot(rows[r], x) - lower[r] <= ACTIVE_RTOL * Math.max(lower[r], norm(rows[r]) * norm(x)));
  const isUnique = found.every((one) => Math.hypot(one.x[0] - x[0], one.x[1] - x[1]) <= SAME_POINT_RTOL * norm(x));
  return { status, x: Float64Array.from(x), length, isUnique, certificate: null, ...multipliersAt(x, length, rows, lower, active, power) };
}

/** The same from rows and bounds alone. */
export function shortestInNorm(rows, lower, power) {
  return shortestAbove(leastDistance(Float64Array.from(rows.flat()), rows.length, 2, Float64Array.from(lower)), power);
}

/**
 * min ‖p‖_power such that the selected token of every input beats its others by one, for keys in the plane.
 *
 * { status, x, length, margin, direction, multipliers, lower, upper, isUnique, pairs, A }: the smallest norm lies between lower =
 * Σλ/‖Aᵀλ‖_* and upper = ‖x‖/min a_r·x, whatever computed x and λ; isUnique says whether x is the only shortest point.
 */
export function planeNormSvm(problem, selected, power) {
  const solution = attSvm(problem, selected);
  const { A, m, pairs } = solution;
  if (solution.status !== OPTIMAL) return { ...solution, isUnique: true, length: norm(solution.x) };
  const { x, length, multipliers, bound, isUnique } = shortestAbove(solution, power);
  const leads = Array.from({ length: m }, (_, r) => dot(A.subarray(2 * r, 2 * r + 2), x));
  return {
    status: OPTIMAL,
    x,
    length,
    margin: 1 / length,
    direction: x.map((entry) => entry / length),
    multipliers,
    lower: bound,
    upper: length / Math.min(...leads),
    isUnique,
    pairs,
    A,
  };
}
