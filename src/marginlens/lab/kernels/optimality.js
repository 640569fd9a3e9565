// Token optimality: score ties, neighbours and score gaps of a selection, and every locally optimal selection of a problem.

import { dot, maxAbs, norm, singularValues } from "./linalg.js";
import { attSvms, directionOf, INFEASIBLE, marginOf, OPTIMAL, TRIVIAL } from "./margin.js";
import { takeInputs } from "./problem.js";

const NEIGHBOUR_SLACK_RTOL = 1e-12; // slack, relative to the terms that were summed for it, that rounding alone can leave
const SOLVER_SLACK_RTOL = 1e-9; // slack, relative to ‖k_α - k_t‖ ‖p‖, below which the p of the solver does not yet decide
const SUPPORT_RANK_RTOL = 1e-12; // singular values of unit rows, relative to the largest, below which the rows are dependent
const SAME_MARGIN_RTOL = 1e-12; // relative difference of margins that does not decide an order

/** Index of the highest score of each input, the first where several tie. */
export function optimalTokens(problem) {
  const { T, lengths, scores } = problem;
  return Array.from(lengths, (length, i) => {
    let best = 0;
    for (let t = 1; t < length; t++) if (scores[i * T + t] > scores[i * T + best]) best = t;
    return best;
  });
}

/** γ_α - γ_t for every token (n T); differences that rounding can make are exactly zero, and so is that of α itself. */
export function scoreDifferences(problem, selected) {
  const { n, T, lengths, scores, blur } = problem;
  const difference = new Float64Array(n * T);
  for (let i = 0; i < n; i++) {
    const alpha = i * T + selected[i];
    for (let t = 0; t < lengths[i]; t++) {
      const gap = scores[alpha] - scores[i * T + t];
      difference[i * T + t] = Math.abs(gap) <= blur[i * T + t] + blur[alpha] ? 0 : gap;
    }
  }
  return difference;
}

/** Whether every two of some tokens tie, by their places in (n T): intervals meet in pairs only if they share a point. */
export function allTied(problem, places) {
  let highest = -Infinity;
  let lowest = Infinity;
  for (const at of places) {
    highest = Math.max(highest, problem.scores[at] - problem.blur[at]);
    lowest = Math.min(lowest, problem.scores[at] + problem.blur[at]);
  }
  return highest <= lowest;
}

/** The inputs whose output depends on p: those with two different keys and two different scores. */
export function dependentInputs(problem) {
  const { n, T, d, lengths, K } = problem;
  const found = [];
  for (let i = 0; i < n; i++) {
    const places = Array.from({ length: lengths[i] }, (_, t) => i * T + t);
    const sameKey = places.every((at) => {
      for (let k = 0; k < d; k++) if (K[at * d + k] !== K[i * T * d + k]) return false;
      return true;
    });
    if (!sameKey && !allTied(problem, places)) found.push(i);
  }
  return found;
}

/** Rows of a margin problem that hold with equality, (m); see A Def 2. */
function tightRows(problem, solution) {
  const { T, d, K } = problem;
  const { A, b, m, x, pairs, status } = solution;
  const tight = new Uint8Array(m);
  if (status === INFEASIBLE) return tight;
  const size = norm(x);
  const entries = new Float64Array(m * d); // |k_α| + |k_t| of each row
  const doubtful = [];
  for (let r = 0; r < m; r++) {
    const { input, selected, other } = pairs[r];
    let terms = 0;
    for (let k = 0; k < d; k++) {
      entries[r * d + k] = Math.abs(K[(input * T + selected) * d + k]) + Math.abs(K[(input * T + other) * d + k]);
      terms += entries[r * d + k] * Math.abs(x[k]);
    }
    const row = A.subarray(r * d, (r + 1) * d);
    const slack = dot(row, x) - b[r];
    if (slack <= NEIGHBOUR_SLACK_RTOL * terms) tight[r] = 1;
    else if (slack <= SOLVER_SLACK_RTOL * norm(row) * size) doubtful.push(r);
  }
  if (doubtful.length > 0) for (const r of tightAfterRefinement(solution, entries, doubtful)) tight[r] = 1;
  return tight;
}

/** Which doubtful rows are tight at the p that solves the active equations to rounding, with what they inherit from it. */
function tightAfterRefinement(solution, entries, doubtful) {
  const { A, b, m, d, x, multipliers, status } = solution;
  const support = Array.from({ length: m }, (_, r) => r).filter((r) => multipliers[r] > 0);
  if (status !== OPTIMAL || support.length === 0 || support.length > d) return doubtful;
  const s = support.length;
  const scaled = new Float64Array(s * d);
  const sizes = support.map((r) => norm(A.subarray(r * d, (r + 1) * d)));
  support.forEach((r, j) => {
    for (let k = 0; k < d; k++) scaled[j * d + k] = A[r * d + k] / sizes[j];
  });
  const { values, left, right } = singularValues(scaled, s, d);
  if (values[s - 1] <= SUPPORT_RANK_RTOL * values[0]) return doubtful;
  const inverse = new Float64Array(d * s); // of the support rows as they are
  for (let k = 0; k < d; k++)
    for (let j = 0; j < s; j++) {
      let total = 0;
      for (let l = 0; l < s; l++) total += (right[l * d + k] / values[l]) * left[j * s + l];
      inverse[k * s + j] = total / sizes[j];
    }
  const p = new Float64Array(d);
  for (let pass = 0; pass < 2; pass++) {
    const gaps = support.map((r) => b[r] - dot(A.subarray(r * d, (r + 1) * d), p));
    for (let k = 0; k < d; k++) for (let j = 0; j < s; j++) p[k] += inverse[k * s + j] * gaps[j];
  }
  if (norm(p.map((entry, k) => entry - x[k])) > SOLVER_SLACK_RTOL * norm(p)) return doubtful;
  const sizesOf = (r) => {
    let total = 0;
    for (let k = 0; k < d; k++) total += entries[r * d + k] * Math.abs(p[k]);
    return total;
  };
  return doubtful.filter((r) => {
    const row = A.subarray(r * d, (r + 1) * d);
    const across = row.slice();
    let inherited = 0;
    support.forEach((q, j) => {
      let coefficient = 0;
      for (let k = 0; k < d; k++) coefficient += row[k] * inverse[k * s + j];
      for (let k = 0; k < d; k++) across[k] -= coefficient * A[q * d + k];
      inherited += Math.abs(coefficient) * sizesOf(q);
    });
    let turned = 0;
    for (const q of support) for (let k = 0; k < d; k++) turned += Math.abs(across[k]) * multipliers[q] * entries[q * d + k];
    return dot(row, p) - b[r] <= NEIGHBOUR_SLACK_RTOL * (sizesOf(r) + inherited + turned);
  });
}

/**
 * What a selection α amounts to: { solution, selected, neighbours (n T), scoreGap, isFeasible, isLocallyOptimal, isGloballyOptimal }.
 * scoreGap is the smallest γ_α - γ_t over neighbours t: infinite where there is none, nan where α is infeasible.
 */
export function tokenOptimality(problem, selected) {
  return tokenOptimalities(problem, [selected])[0];
}

/** The same of several selections. */
function tokenOptimalities(problem, selections) {
  return attSvms(problem, selections).map((solution, k) => optimalityOf(problem, selections[k], solution));
}

function optimalityOf(problem, selected, solution) {
  const { n, T, lengths } = problem;
  const difference = scoreDifferences(problem, selected);
  const neighbours = new Uint8Array(n * T);
  tightRows(problem, solution).forEach((isTight, r) => {
    if (isTight) neighbours[solution.pairs[r].input * T + solution.pairs[r].other] = 1;
  });
  const isFeasible = solution.status === OPTIMAL || solution.status === TRIVIAL;
  let scoreGap = Infinity;
  let isBest = true;
  for (let i = 0; i < n; i++)
    for (let t = 0; t < lengths[i]; t++) {
      if (neighbours[i * T + t]) scoreGap = Math.min(scoreGap, difference[i * T + t]);
      if (t !== selected[i] && difference[i * T + t] < 0) isBest = false;
    }
  return {
    solution,
    selected: Array.from(selected),
    neighbours,
    scoreGap: isFeasible ? scoreGap : NaN,
    isFeasible,
    isLocallyOptimal: isFeasible && scoreGap > 0,
    isGloballyOptimal: isFeasible && isBest,
  };
}

/** Whether the highest score of every input belongs to one token, and by how much it leads. */
export function strictOptimum(problem) {
  const optimal = optimalTokens(problem);
  const difference = scoreDifferences(problem, optimal);
  let gap = Infinity;
  for (let i = 0; i < problem.n; i++)
    for (let t = 0; t < problem.lengths[i]; t++) if (t !== optimal[i]) gap = Math.min(gap, difference[i * problem.T + t]);
  return { isStrict: gap > 0, smallestGap: gap };
}

/** Selections that some direction of the plane makes: those at the middle of every arc between angles at which two tokens tie. */
function planeSelections(problem) {
  const { n, T, lengths, K } = problem;
  const angles = [];
  for (let i = 0; i < n; i++)
    for (let t = 0; t < lengths[i]; t++)
      for (let u = 0; u < t; u++) {
        const x = K[(i * T + t) * 2] - K[(i * T + u) * 2];
        const y = K[(i * T + t) * 2 + 1] - K[(i * T + u) * 2 + 1];
        if (x === 0 && y === 0) continue;
        const across = Math.atan2(x, -y); // of the direction (-y, x)
        angles.push(across, across > 0 ? across - Math.PI : across + Math.PI);
      }
  if (angles.length === 0) return [optimalTokens(problem)];
  angles.sort((a, b) => a - b);
  const found = new Map();
  const selected = new Array(n).fill(-1);
  angles.forEach((angle, place) => {
    const next = place + 1 < angles.length ? angles[place + 1] : angles[0] + 2 * Math.PI;
    const [cos, sin] = [Math.cos(0.5 * (angle + next)), Math.sin(0.5 * (angle + next))];
    let isNew = false;
    for (let i = 0; i < n; i++) {
      let [best, top] = [0, -Infinity];
      for (let t = 0, at = 2 * i * T; t < lengths[i]; t++, at += 2) {
        const logit = K[at] * cos + K[at + 1] * sin;
        if (logit > top) [best, top] = [t, logit];
      }
      isNew ||= selected[i] !== best;
      selected[i] = best;
    }
    if (isNew) found.set(selected.join(), selected.slice());
  });
  return [...found.values()];
}

function notProvedInfeasible(problem, selections) {
  const solutions = attSvms(problem, selections);
  return selections.filter((_, k) => solutions[k].status !== INFEASIBLE);
}

/** The most regions into which planes through the origin cut a space. */
function regionsOf(planes, dimensions) {
  if (planes === 0) return 1;
  let total = 0;
  let binomial = 1;
  for (let k = 0; k < Math.min(dimensions, planes); k++) {
    total += binomial;
    binomial = (binomial * (planes - 1 - k)) / (k + 1);
  }
  return 2 * total;
}

/** Selections that some p makes, or null where finding them may take more than `maxProblems` hard-margin problems. */
function generalSelections(problem, maxProblems) {
  const { n, d, lengths } = problem;
  const candidates = Array.from(lengths, (length, i) => {
    const single = takeInputs(problem, [i]);
    return notProvedInfeasible(single, Array.from({ length }, (_, t) => [t])).map(([t]) => t);
  });
  const order = candidates.map((_, i) => i).sort((i, j) => candidates[i].length - candidates[j].length || i - j);
  let worst = lengths.reduce((total, length) => total + length, 0) + (n === 1 ? candidates[order[0]].length : 0);
  for (let depth = 1, partial = 1, planes = 0, rank = 0; depth < n; depth++) {
    const length = lengths[order[depth - 1]];
    planes += (length * (length - 1)) / 2;
    rank = Math.min(d, rank + length - 1);
    partial = Math.min(partial * candidates[order[depth - 1]].length, regionsOf(planes, rank));
    worst += partial * candidates[order[depth]].length;
  }
  if (worst > maxProblems) return null;
  let frontier = [[]];
  for (let depth = 1; depth <= n; depth++) {
    frontier = frontier.flatMap((partial) => candidates[order[depth - 1]].map((t) => [...partial, t]));
    if (depth > 1 && depth < n) {
      const part = takeInputs(problem, order.slice(0, depth));
      frontier = notProvedInfeasible(part, frontier);
    }
  }
  return frontier.map((chosen) => {
    const selected = new Array(n);
    order.forEach((i, place) => (selected[i] = chosen[place]));
    return selected;
  });
}

/**
 * Every locally optimal selection, widest margin first, each as `tokenOptimality` gives it with `direction` and `margin`; null where
 * listing them may take more than `maxProblems` hard-margin problems. In the plane nothing is too large.
 */
export function locallyOptimalDirections(problem, maxProblems = 100_000) {
  const selections = problem.d === 2 ? planeSelections(problem) : generalSelections(problem, maxProblems);
  if (selections === null) return null;
  const found = tokenOptimalities(problem, selections)
    .filter((optimality) => optimality.isLocallyOptimal)
    .map((optimality) => ({ ...optimality, direction: directionOf(optimality.solution), margin: marginOf(optimality.solution) }));
  const order = (a, b) => {
    if (Math.abs(a.margin - b.margin) > SAME_MARGIN_RTOL * Math.max(a.margin, b.margin)) return b.margin - a.margin;
    const k = a.selected.findIndex((t, i) => t !== b.selected[i]);
    return k < 0 ? 0 : a.selected[k] - b.selected[k];
  };
  return found.sort(order);
}

/** The tokens that a direction q ≠ 0 selects and whether no other token ties with them, up to rounding. */
export function selectionAt(problem, q) {
  const { T, d, lengths, K } = problem;
  const sizes = Float64Array.from(q, Math.abs);
  const margin = (from, to) => {
    let total = 0;
    for (let k = 0; k < d; k++) total += (K[from * d + k] - K[to * d + k]) * q[k];
    return total;
  };
  const terms = (at) => {
    let total = 0;
    for (let k = 0; k < d; k++) total += Math.abs(K[at * d + k]) * (NEIGHBOUR_SLACK_RTOL * sizes[k]);
    return total;
  };
  let unique = true;
  const selected = Array.from(lengths, (length, i) => {
    const base = i * T;
    let best = 0;
    let top = -Infinity;
    for (let t = 0; t < length; t++) {
      const logit = dot(K.subarray((base + t) * d, (base + t + 1) * d), q);
      if (logit > top) [best, top] = [t, logit];
    }
    let better = 0; // where keys have a large part in common, their differences decide
    for (let t = 0; t < length; t++) if (margin(base + best, base + t) < margin(base + best, base + better)) better = t;
    if (margin(base + best, base + better) < 0) best = better;
    for (let t = 0; t < length; t++)
      if (t !== best && !(margin(base + best, base + t) > terms(base + t) + terms(base + best))) unique = false;
    return best;
  });
  return { selected, unique: unique && maxAbs(q) > 0 };
}
