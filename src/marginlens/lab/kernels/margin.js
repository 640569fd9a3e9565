// Hard-margin problems: the shortest x with A x ≥ b, with multipliers that prove it or a Farkas vector that proves that there is none.
//
// A dual active-set method (Goldfarb and Idnani) with unit Hessian: rows enter one at a time, and the active rows are factored into an
// orthonormal basis Q and a triangle L, so that the accuracy depends on the condition of the rows and not on its square.

import { dot, EPS, matvec, norm, solveLower, solveUpper, vecmat } from "./linalg.js";

export const OPTIMAL = "OPTIMAL";
export const INFEASIBLE = "INFEASIBLE";
export const TRIVIAL = "TRIVIAL";
export const INACCURATE = "INACCURATE";

const FARKAS_RTOL = 1e-14; // unit rows, with weights that sum to one, that cancel to this contradict each other
const DEPENDENT_RTOL = 16 * EPS; // a combination of unit rows this small, relative to its weights, is zero
const COEFFICIENT_RTOL = 64 * EPS; // a coefficient this small, relative to the largest, is rounding
const MAX_UPDATES = 64; // steps after which x and the multipliers are recomputed from the factors
const VERIFIED_RTOL = 1e-11; // residual below which a solution counts as proved
const AMPLIFIED_EPS = 16 * EPS; // times the amplification: what double precision leaves at best
const MAX_KKT_RTOL = 1e-4; // the largest residual that is ever excused by rounding
const ACTIVE_SLACK_RTOL = 1e-9; // slack, relative to the lower bound, of a row that counts as active
const ROUNDOFF_RTOL = 1e-12; // slack, relative to ‖x‖, that is rounding

/** The factored active rows of one problem with unit rows A (m, d) and lower bounds b. */
class ActiveRows {
  constructor(A, m, d, b) {
    Object.assign(this, { A, m, d, b, capacity: Math.min(m, d), k: 0, rotated: false });
    const capacity = this.capacity;
    this.Q = new Float64Array(capacity * d);
    this.L = new Float64Array(capacity * capacity);
    this.rows = new Int32Array(capacity);
    this.multipliers = new Float64Array(capacity);
    this.isActive = new Uint8Array(m);
    this.inner = new Float64Array(capacity);
    this.innerChange = new Float64Array(capacity);
    this.coefficients = new Float64Array(capacity);
    this.residual = new Float64Array(d);
    this.scratch = new Float64Array(d);
    this.slack = new Float64Array(m);
    this.x = new Float64Array(d);
  }

  /** The inactive row that x violates by the largest distance, or -1; fills `slack`. */
  mostViolated() {
    const { A, m, d, b, x, isActive, slack } = this;
    matvec(A, m, d, x, slack);
    let worst = -EPS * (8 + Math.sqrt(d)) * Math.sqrt(dot(x, x));
    let which = -1;
    for (let r = 0; r < m; r++) {
      slack[r] -= b[r];
      if (slack[r] < worst && !isActive[r]) [worst, which] = [slack[r], r];
    }
    return which;
  }

  /** A row as Qᵀ inner + residual with the residual orthogonal to the first k rows of Q; returns ‖residual‖. */
  project(row, k) {
    const { A, d, Q, inner, innerChange, residual, scratch } = this;
    for (let i = 0; i < d; i++) residual[i] = A[row * d + i];
    inner.fill(0, 0, k);
    let length = 1;
    for (let pass = 0; pass < (k > 0 ? 3 : 0); pass++) {
      matvec(Q, k, d, residual, innerChange);
      vecmat(innerChange, Q, k, d, scratch);
      let square = 0;
      for (let i = 0; i < d; i++) {
        residual[i] -= scratch[i];
        square += residual[i] * residual[i];
      }
      for (let j = 0; j < k; j++) inner[j] += innerChange[j];
      const before = length;
      length = Math.sqrt(square);
      if (length > 0.25 * before || length <= EPS) break;
    }
    return length;
  }

  append(k, distance) {
    const { d, Q, L, capacity, residual, inner } = this;
    for (let i = 0; i < d; i++) Q[k * d + i] = residual[i] / distance;
    for (let j = 0; j < k; j++) L[k * capacity + j] = inner[j];
    L[k * capacity + k] = distance;
  }

  /** Take one row out of the factors: rotate the basis so that the rest stays triangular. */
  remove(leaving) {
    const { d, Q, L, capacity, rows, multipliers, isActive, k } = this;
    isActive[rows[leaving]] = 0;
    for (let p = leaving; p < k - 1; p++) {
      const a = L[(p + 1) * capacity + p];
      const c = L[(p + 1) * capacity + p + 1];
      const h = Math.hypot(a, c);
      const cos = a / h;
      const sin = c / h;
      for (let i = p + 1; i < k; i++) {
        const u = L[i * capacity + p];
        const w = L[i * capacity + p + 1];
        L[i * capacity + p] = cos * u + sin * w;
        L[i * capacity + p + 1] = cos * w - sin * u;
      }
      for (let i = 0; i < d; i++) {
        const u = Q[p * d + i];
        const w = Q[(p + 1) * d + i];
        Q[p * d + i] = cos * u + sin * w;
        Q[(p + 1) * d + i] = cos * w - sin * u;
      }
      for (let i = 0; i <= p; i++) L[p * capacity + i] = L[(p + 1) * capacity + i];
      rows[p] = rows[p + 1];
      multipliers[p] = multipliers[p + 1];
    }
    this.k = k - 1;
  }

  /** Which multiplier reaches zero first along -coefficients, and after what step. */
  firstToLeave(isDependent) {
    const { multipliers, coefficients, k } = this;
    let largest = 1;
    for (let j = 0; j < k; j++) largest = Math.max(largest, Math.abs(coefficients[j]));
    const threshold = largest * (isDependent ? COEFFICIENT_RTOL : EPS);
    let leaving = -1;
    let limit = Infinity;
    for (let j = 0; j < k; j++) {
      const ratio = Math.max(multipliers[j], 0) / coefficients[j];
      if (coefficients[j] > threshold && ratio < limit) [leaving, limit] = [j, ratio];
    }
    return { leaving, limit };
  }

  /** Recompute x and multipliers from the factors, dropping rows with negative ones. */
  recompute() {
    const { b, d, Q, L, capacity, rows, multipliers, inner, x } = this;
    for (;;) {
      const k = this.k;
      for (let j = 0; j < k; j++) inner[j] = b[rows[j]];
      solveLower(L, capacity, k, inner);
      vecmat(inner, Q, k, d, x);
      for (let j = 0; j < k; j++) multipliers[j] = inner[j];
      solveUpper(L, capacity, k, multipliers);
      let lowest = -1;
      for (let j = 0; j < k; j++) if (multipliers[j] < 0 && (lowest < 0 || multipliers[j] < multipliers[lowest])) lowest = j;
      if (lowest < 0) return;
      this.remove(lowest);
      this.rotated = true;
    }
  }

  /** Factor the active rows afresh, free of the rounding of past updates. */
  rebuild() {
    const { rows, multipliers, isActive } = this;
    let count = 0;
    for (let j = 0; j < this.k; j++) {
      const row = rows[j];
      const distance = this.project(row, count);
      if (distance <= EPS) {
        isActive[row] = 0;
        continue;
      }
      this.append(count, distance);
      rows[count] = row;
      multipliers[count] = multipliers[j];
      count++;
    }
    this.k = count;
    this.rotated = false;
  }

  /** Run to the end; fills `weights` (m) with multipliers or a Farkas vector. */
  solve(weights) {
    const { m, d, capacity, rows, multipliers, isActive, inner, coefficients, residual, L, slack, x } = this;
    let updates = 0;
    let outcome = INACCURATE;
    for (let round = 0; round < 20 * (m + d) + 100; round++) {
      const entered = this.mostViolated();
      if (entered < 0 && updates === 0) {
        outcome = OPTIMAL;
        break;
      }
      if (entered < 0 || updates === MAX_UPDATES) {
        if (entered < 0) this.rebuild();
        this.recompute();
        updates = 0;
        continue;
      }
      let entering = 0;
      updates++;
      for (;;) {
        const distance = this.project(entered, this.k);
        let magnitude = 1;
        for (let j = 0; j < this.k; j++) coefficients[j] = inner[j];
        solveUpper(L, capacity, this.k, coefficients);
        for (let j = 0; j < this.k; j++) magnitude += Math.abs(coefficients[j]);
        const isDependent = this.k === capacity || distance <= DEPENDENT_RTOL * magnitude;
        const { leaving, limit } = this.firstToLeave(isDependent);
        if (leaving < 0 && (isDependent || distance <= FARKAS_RTOL * magnitude)) {
          if (this.rotated) {
            this.rebuild();
            continue;
          }
          weights[entered] = 1;
          for (let j = 0; j < this.k; j++) weights[rows[j]] = Math.max(0, -coefficients[j]);
          return INFEASIBLE;
        }
        const full = isDependent ? Infinity : -slack[entered] / distance ** 2;
        const amount = Math.min(limit, full);
        for (let j = 0; j < this.k; j++) multipliers[j] -= amount * coefficients[j];
        entering += amount;
        if (!isDependent) {
          for (let i = 0; i < d; i++) x[i] += amount * residual[i];
          slack[entered] += amount * distance ** 2;
        }
        if (full <= limit) {
          rows[this.k] = entered;
          multipliers[this.k] = entering;
          isActive[entered] = 1;
          this.append(this.k, distance);
          this.k++;
          break;
        }
        this.remove(leaving);
        this.rotated = true;
      }
    }
    for (let j = 0; j < this.k; j++) weights[rows[j]] = Math.max(0, multipliers[j]);
    return outcome;
  }
}

/** The largest residual among feasibility, complementarity and duality gap, and how much rounding is amplified, for unit rows. */
function optimalityResidual(b, x, multipliers, slack) {
  const square = dot(x, x);
  if (!(square > 0)) return { residual: Infinity, amplified: Infinity };
  const length = Math.sqrt(square);
  let worst = 0;
  let total = 0;
  let value = 0;
  for (let r = 0; r < b.length; r++) {
    total += multipliers[r];
    value += multipliers[r] * b[r];
    worst = Math.max(worst, -slack[r] / length, Math.abs(multipliers[r] * slack[r]) / square);
  }
  worst = Math.max(worst, Math.abs(square - value) / square);
  return { residual: worst < Infinity ? worst : Infinity, amplified: total / length };
}

/**
 * Shortest x with A x ≥ b ≥ 0, for A (m, d).
 *
 * Returns { status, x, multipliers, active, certificate, A, b, m, d }: x = Σ multipliers[r] a_r with multipliers ≥ 0 where it is optimal;
 * where it is infeasible, certificate ≥ 0 has Σ certificate[r] a_r = 0 and weight on a positive bound, and x is nan.
 */
export function leastDistance(A, m, d, b) {
  const sizes = new Float64Array(m);
  const lower = new Float64Array(m);
  const unitRows = new Float64Array(m * d);
  const weights = new Float64Array(m);
  let scale = 0;
  let unsatisfiable = -1;
  for (let r = 0; r < m; r++) {
    sizes[r] = norm(A.subarray(r * d, (r + 1) * d));
    if (sizes[r] > 0) {
      lower[r] = b[r] / sizes[r];
      scale = Math.max(scale, lower[r]);
      for (let k = 0; k < d; k++) unitRows[r * d + k] = A[r * d + k] / sizes[r];
    } else if (b[r] > 0) unsatisfiable = r;
  }
  const result = (status, x, active) => ({
    status,
    x: status === INFEASIBLE ? new Float64Array(d).fill(NaN) : x,
    multipliers: status === INFEASIBLE ? new Float64Array(m).fill(NaN) : weights,
    active,
    certificate: status === INFEASIBLE ? weights : null,
    A, b, m, d,
  });
  const nothing = new Uint8Array(m);
  if (unsatisfiable >= 0) {
    weights[unsatisfiable] = 1;
    return result(INFEASIBLE, null, nothing);
  }
  if (scale === 0) return result(TRIVIAL, new Float64Array(d), nothing);
  for (let r = 0; r < m; r++) lower[r] /= scale;
  const set = new ActiveRows(unitRows, m, d, lower);
  let status = set.solve(weights);
  const x = new Float64Array(d);
  const slack = new Float64Array(m);
  const evaluateSlack = () => {
    for (let r = 0; r < m; r++) {
      slack[r] = sizes[r] > 0 ? dot(A.subarray(r * d, (r + 1) * d), x) / sizes[r] - lower[r] : 0;
    }
  };
  if (status === INFEASIBLE) {
    vecmat(weights, unitRows, m, d, x);
    let counted = 0;
    for (let r = 0; r < m; r++) if (lower[r] > 0) counted += weights[r];
    if (norm(x) <= FARKAS_RTOL * counted) {
      for (let r = 0; r < m; r++) if (sizes[r] > 0) weights[r] /= sizes[r];
      return result(INFEASIBLE, null, nothing);
    }
    status = INACCURATE;
    x.set(set.x);
  } else {
    vecmat(weights, unitRows, m, d, x);
    evaluateSlack();
    let { residual, amplified } = optimalityResidual(lower, x, weights, slack);
    if (residual > VERIFIED_RTOL) {
      let square = 0;
      for (let i = 0; i < d; i++) square += (x[i] - set.x[i]) ** 2;
      x.set(set.x);
      evaluateSlack();
      ({ residual, amplified } = optimalityResidual(lower, x, weights, slack));
      residual = Math.max(residual, Math.sqrt(square) / norm(x));
    }
    const proved = residual <= Math.max(VERIFIED_RTOL, Math.min(AMPLIFIED_EPS * amplified, MAX_KKT_RTOL));
    if (!proved) status = INACCURATE;
  }
  evaluateSlack();
  const length = norm(x);
  const active = Uint8Array.from(slack, (gap, r) =>
    sizes[r] > 0 && (gap <= ACTIVE_SLACK_RTOL * lower[r] + ROUNDOFF_RTOL * length || weights[r] > 0) ? 1 : 0,
  );
  for (let r = 0; r < m; r++) if (sizes[r] > 0) weights[r] *= scale / sizes[r];
  for (let i = 0; i < d; i++) x[i] *= scale;
  return result(status, x, active);
}

/**
 * ATT-SVM: shortest p under which the selected token of every input beats its other tokens by at least one.
 * The solution also has `pairs`: { input, selected, other } of every row.
 */
export function attSvm(problem, selected) {
  const { n, T, d, lengths, K } = problem;
  const pairs = [];
  for (let i = 0; i < n; i++)
    for (let t = 0; t < lengths[i]; t++) if (t !== selected[i]) pairs.push({ input: i, selected: selected[i], other: t });
  const A = new Float64Array(pairs.length * d);
  pairs.forEach(({ input, selected: chosen, other }, r) => {
    for (let k = 0; k < d; k++) A[r * d + k] = K[(input * T + chosen) * d + k] - K[(input * T + other) * d + k];
  });
  return { ...leastDistance(A, pairs.length, d, new Float64Array(pairs.length).fill(1)), pairs };
}

/** 1/‖x‖: infinite where x = 0 is enough, zero where the problem is infeasible. */
export function marginOf(solution) {
  return solution.status === INFEASIBLE ? 0 : 1 / norm(solution.x);
}

/** x/‖x‖: nan where the problem is infeasible, zero where it is trivial. */
export function directionOf(solution) {
  const size = norm(solution.x);
  return size === 0 ? solution.x.slice() : solution.x.map((entry) => entry / size);
}

/**
 * The largest optimality residual, recomputed from the stored problem; nan where it is infeasible. Every term is dimensionless: distance
 * to a halfspace over ‖x‖, ‖x - Aᵀλ‖/‖x‖, negative multipliers, |λ_r slack_r|/‖x‖², and the duality gap over ‖x‖².
 */
export function kktResidual(solution) {
  const { A, b, m, d, x, multipliers, status } = solution;
  if (status === INFEASIBLE) return NaN;
  const size = norm(x);
  const scale = size === 0 ? 1 : size;
  const combined = new Float64Array(d);
  vecmat(multipliers, A, m, d, combined);
  let worst = 0;
  let value = 0;
  for (let r = 0; r < m; r++) {
    const row = A.subarray(r * d, (r + 1) * d);
    const rowNorm = norm(row);
    const perRow = rowNorm === 0 ? 1 : rowNorm;
    const slack = dot(row, x) - b[r];
    const distance = rowNorm === 0 || size === 0 ? (b[r] > 0 ? Infinity : 0) : Math.max(-slack, 0) / perRow / scale;
    const weight = (multipliers[r] * perRow) / scale;
    worst = Math.max(worst, distance, Math.max(-weight, 0), Math.abs(weight * (slack / perRow / scale)));
    value += (b[r] / scale) * (multipliers[r] / scale);
  }
  let off = 0;
  let primal = 0;
  let dual = 0;
  for (let k = 0; k < d; k++) {
    off += ((x[k] - combined[k]) / scale) ** 2;
    primal += (x[k] / scale) ** 2;
    dual += (combined[k] / scale) ** 2;
  }
  worst = Math.max(worst, Math.sqrt(off), Math.abs(0.5 * primal - value + 0.5 * dual));
  return Number.isNaN(worst) ? Infinity : worst;
}

/** ‖Aᵀy‖ over the weight of y on positive lower bounds: at rounding level no x exists; nan where the problem is feasible. */
export function certificateResidual(solution) {
  const { A, b, m, d, certificate } = solution;
  if (certificate === null) return NaN;
  const combined = new Float64Array(d);
  vecmat(certificate, A, m, d, combined);
  let weight = 0;
  for (let r = 0; r < m; r++) {
    const size = norm(A.subarray(r * d, (r + 1) * d));
    if (certificate[r] < 0) return Infinity;
    if (b[r] > 0) weight += certificate[r] * (size === 0 ? 1 : size);
  }
  return weight > 0 ? norm(combined) / weight : Infinity;
}

/**
 * Bounds on the smallest norm, whoever solved the problem: Σλ/‖Aᵀλ‖ ≤ ‖x*‖ ≤ ‖x‖/min_r a_r·x/b_r, and their relative gap.
 * Both are infinite where the problem is infeasible and zero where it is trivial.
 */
export function bracketOf(solution) {
  const { A, b, m, d, x, multipliers, status } = solution;
  if (status === INFEASIBLE) return { lower: Infinity, upper: Infinity, gap: 0 };
  if (status === TRIVIAL) return { lower: 0, upper: 0, gap: 0 };
  const combined = new Float64Array(d);
  vecmat(multipliers, A, m, d, combined);
  let value = 0;
  let share = Infinity;
  for (let r = 0; r < m; r++) {
    value += b[r] * multipliers[r];
    if (b[r] > 0) share = Math.min(share, dot(A.subarray(r * d, (r + 1) * d), x) / b[r]);
  }
  const lower = value > 0 ? value / norm(combined) : 0;
  const upper = share > 0 ? norm(x) / share : Infinity;
  return { lower, upper, gap: (upper - lower) / lower };
}
