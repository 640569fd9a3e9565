// Hard-margin problems: the shortest x with A x ≥ b, with multipliers that prove it or a Farkas vector that proves that there is none.

import { callCore } from "./core.js";
import { dot, norm } from "./linalg.js";

export const OPTIMAL = "OPTIMAL";
export const INFEASIBLE = "INFEASIBLE";
export const TRIVIAL = "TRIVIAL";
export const INACCURATE = "INACCURATE";

const STATUSES = [OPTIMAL, INFEASIBLE, TRIVIAL]; // by the core's outcomes; what others say is looked at here
const [BY_GRAM_MATRIX, BY_BLOCK_PIVOTS, BY_DUAL_ACTIVE_SET] = [0, 1, 2]; // the core's methods
const UNVERIFIED = 3;
const NEEDS_RECHECK = 5;
const MAX_GRAM_ROWS = 64; // up to so many, the Gram matrix of all rows is worth its cost
const PROVED_RTOL = 1e-10; // residual of an optimal solution

/**
 * Shortest x with A x ≥ b ≥ 0 of problems with rows A (count, m, d) and bounds b (count, m), one solution after the other.
 *
 * A solution is { status, x, multipliers, active, certificate, A, b, m, d }: x = Σ multipliers[r] a_r with multipliers ≥ 0 where it is
 * optimal; where it is infeasible, certificate ≥ 0 has Σ certificate[r] a_r = 0 and weight on a positive bound, and x is nan.
 */
export function leastDistances(A, b, count, m, d) {
  const outcome = new Int32Array(count);
  const solved = { x: new Float64Array(count * d), multipliers: new Float64Array(count * m), active: new Uint8Array(count * m), outcome };
  const given = { first: 0, rows: A, lower: b, ...solved, batch: count, n_rows: m, d };
  const solve = (listed, method) => callCore("solve_margins", { ...given, last: listed.length, listed, method, n_listed: listed.length });
  const all = Array.from(outcome.keys());
  solve(all, m <= MAX_GRAM_ROWS || 2 * m <= d ? BY_GRAM_MATRIX : BY_BLOCK_PIVOTS);
  const unverified = all.filter((j) => outcome[j] === UNVERIFIED);
  if (unverified.length > 0) solve(unverified, BY_DUAL_ACTIVE_SET);
  return Array.from(outcome, (code, j) => {
    const part = (values, size) => values.subarray(j * size, (j + 1) * size);
    const isInfeasible = STATUSES[code] === INFEASIBLE;
    const solution = {
      status: STATUSES[code] ?? INACCURATE,
      x: isInfeasible ? new Float64Array(d).fill(NaN) : part(solved.x, d),
      multipliers: isInfeasible ? new Float64Array(m).fill(NaN) : part(solved.multipliers, m),
      active: part(solved.active, m),
      certificate: isInfeasible ? part(solved.multipliers, m) : null,
      A: part(A, m * d), b: part(b, m), m, d,
    };
    if (code === NEEDS_RECHECK && kktResidual(solution) <= PROVED_RTOL) solution.status = OPTIMAL;
    return solution;
  });
}

/** The solution of one problem. */
export function leastDistance(A, m, d, b) {
  return leastDistances(A, b, 1, m, d)[0];
}

/**
 * ATT-SVM of several selections: shortest p under which the selected token of every input beats its other tokens by at least one.
 * Each solution also has `others`, the places in (n T) of the tokens that its rows are about, and `pairs`: { input, selected, other }.
 */
export function attSvms(problem, selections) {
  const { T, lengths, K } = problem;
  const m = lengths.reduce((total, length) => total + length - 1, 0);
  const A = new Float64Array(selections.length * m * 2);
  const listed = selections.map((selected, j) => {
    const others = new Int32Array(m);
    let row = 0;
    for (let i = 0; i < lengths.length; i++) {
      const alpha = i * T + selected[i];
      for (let at = i * T; at < i * T + lengths[i]; at++) {
        if (at === alpha) continue;
        A[2 * (j * m + row)] = K[2 * alpha] - K[2 * at];
        A[2 * (j * m + row) + 1] = K[2 * alpha + 1] - K[2 * at + 1];
        others[row++] = at;
      }
    }
    return others;
  });
  const pair = (selected) => (at) => ({ input: Math.floor(at / T), selected: selected[Math.floor(at / T)], other: at % T });
  return leastDistances(A, new Float64Array(selections.length * m).fill(1), selections.length, m, 2).map((solution, j) => {
    const pairs = { get: () => Array.from(listed[j], pair(selections[j])), enumerable: true };
    return Object.defineProperty(Object.assign(solution, { others: listed[j] }), "pairs", pairs);
  });
}

/** ATT-SVM of one selection. */
export function attSvm(problem, selected) {
  return attSvms(problem, [selected])[0];
}

/** 1/‖x‖: infinite where x = 0 is enough, zero where the problem is infeasible or its rows are out of the solver's range. */
export function marginOf({ status, x }) {
  if (status === TRIVIAL) return Infinity;
  const size = norm(x);
  return size > 0 ? 1 / size : 0;
}

/** x/‖x‖: nan where the problem is infeasible, zero where it is trivial. */
export function directionOf(solution) {
  const size = norm(solution.x);
  return size === 0 ? solution.x.slice() : solution.x.map((entry) => entry / size);
}

/** The rows of a solution's problem. */
function rowsOf({ A, m, d }) {
  return Array.from({ length: m }, (_, r) => A.subarray(r * d, (r + 1) * d));
}

/** The sum of rows with weights, (d). */
function combined(rows, weights, d) {
  return Float64Array.from({ length: d }, (_, k) => rows.reduce((total, row, r) => total + weights[r] * row[k], 0));
}

/**
 * The largest optimality residual, recomputed from the stored problem; nan where it is infeasible. Every term is dimensionless: distance
 * to a halfspace over ‖x‖, ‖x - Aᵀλ‖/‖x‖, negative multipliers, |λ_r slack_r|/‖x‖², and the duality gap over ‖x‖².
 */
export function kktResidual(solution) {
  const { b, d, x, multipliers, status } = solution;
  if (status === INFEASIBLE) return NaN;
  const scale = norm(x) || 1;
  const rows = rowsOf(solution);
  const [point, dual] = [x, combined(rows, multipliers, d)].map((vector) => vector.map((entry) => entry / scale));
  const ofRows = rows.map((row, r) => {
    const size = norm(row) || 1;
    const slack = (dot(row, x) - b[r]) / size / scale;
    const weight = (multipliers[r] * size) / scale;
    const isVain = norm(row) === 0 || norm(x) === 0; // then no step along the row can mend it
    return Math.max(isVain ? (b[r] > 0 ? Infinity : 0) : -slack, -weight, Math.abs(weight * slack));
  });
  const value = b.reduce((total, bound, r) => total + (bound / scale) * (multipliers[r] / scale), 0);
  const off = norm(point.map((entry, k) => entry - dual[k]));
  const worst = Math.max(off, Math.abs(0.5 * dot(point, point) - value + 0.5 * dot(dual, dual)), ...ofRows);
  return Number.isNaN(worst) ? Infinity : worst;
}

/**
 * Bounds on the smallest norm, whoever solved the problem: Σλ/‖Aᵀλ‖ ≤ ‖x*‖ ≤ ‖x‖/min_r a_r·x/b_r, and their relative gap.
 * Both are infinite where the problem is infeasible and zero where it is trivial.
 */
export function bracketOf(solution) {
  const { b, d, x, multipliers, status } = solution;
  if (status === INFEASIBLE) return { lower: Infinity, upper: Infinity, gap: 0 };
  if (status === TRIVIAL) return { lower: 0, upper: 0, gap: 0 };
  const rows = rowsOf(solution);
  const value = dot(b, multipliers);
  const share = Math.min(Infinity, ...rows.flatMap((row, r) => (b[r] > 0 ? [dot(row, x) / b[r]] : [])));
  const lower = value > 0 ? value / norm(combined(rows, multipliers, d)) : 0;
  const upper = share > 0 ? norm(x) / share : Infinity;
  return { lower, upper, gap: (upper - lower) / lower };
}
