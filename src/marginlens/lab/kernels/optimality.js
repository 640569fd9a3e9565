// Token optimality in the plane: score ties, neighbours and score gaps of a selection, and every locally optimal selection of a problem.

import { dot, maxAbs, norm } from "./linalg.js";
import { attSvms, directionOf, INFEASIBLE, marginOf, OPTIMAL, TRIVIAL } from "./margin.js";
import { placesOf } from "./problem.js";
import { largestOf } from "./softmax.js";

const NEIGHBOUR_SLACK_RTOL = 1e-12; // slack, relative to the terms that were summed for it, that rounding alone can leave
const SOLVER_SLACK_RTOL = 1e-9; // slack, relative to ‖k_α - k_t‖ ‖p‖, below which the p of the solver does not yet decide
const SUPPORT_RANK_RTOL = 1e-12; // sine of the angle between rows below which they are dependent
const SAME_MARGIN_RTOL = 1e-12; // relative difference of margins that does not decide an order
const CORNER_RTOL = 1e-9; // how far a token may stay behind two that tie, relative to the terms of its logit, and still tie with them

/** Index of the highest score of each input, the first where several tie. */
export function optimalTokens({ T, lengths, scores }) {
  return Array.from(lengths, (length, i) => largestOf(scores, i * T, length));
}

/** γ_α - γ_t for every token (n T); differences that rounding can make are exactly zero, and so is that of α itself. */
export function scoreDifferences(problem, selected) {
  const { T, scores, blur } = problem;
  const difference = new Float64Array(scores.length);
  selected.forEach((t, i) => {
    const alpha = i * T + t;
    for (const at of placesOf(problem, i)) {
      const gap = scores[alpha] - scores[at];
      difference[at] = Math.abs(gap) <= blur[at] + blur[alpha] ? 0 : gap;
    }
  });
  return difference;
}

/** Whether every two of some tokens tie, by their places in (n T): intervals meet in pairs only if they share a point. */
export function allTied({ scores, blur }, places) {
  return Math.max(...places.map((at) => scores[at] - blur[at])) <= Math.min(...places.map((at) => scores[at] + blur[at]));
}

/** The inputs whose output depends on p: those with two different keys and two different scores. */
export function dependentInputs(problem) {
  const { K } = problem;
  return Array.from(problem.lengths.keys()).filter((i) => {
    const places = placesOf(problem, i);
    const first = 2 * places[0];
    const hasOneKey = places.every((at) => K[2 * at] === K[first] && K[2 * at + 1] === K[first + 1]);
    return !hasOneKey && !allTied(problem, places);
  });
}

/** Places of the tokens whose row holds with equality at the solution of a selection; see A Def 2. */
function neighboursOf(problem, selected, solution) {
  const { T, K } = problem;
  const { A, b, x, others, status } = solution;
  if (status === INFEASIBLE) return [];
  const row = (r) => A.subarray(2 * r, 2 * r + 2);
  const size = norm(x);
  const entries = (r, k) => {
    const alpha = Math.floor(others[r] / T) * T + selected[Math.floor(others[r] / T)];
    return Math.abs(K[2 * alpha + k]) + Math.abs(K[2 * others[r] + k]);
  };
  const terms = (r, p) => entries(r, 0) * Math.abs(p[0]) + entries(r, 1) * Math.abs(p[1]);
  const [tight, doubtful] = [[], []];
  others.forEach((_, r) => {
    const slack = dot(row(r), x) - b[r];
    if (slack <= NEIGHBOUR_SLACK_RTOL * terms(r, x)) tight.push(r);
    else if (slack <= SOLVER_SLACK_RTOL * norm(row(r)) * size) doubtful.push(r);
  });
  if (doubtful.length > 0) tight.push(...tightAfterRefinement(solution, row, entries, terms, doubtful));
  return tight.map((r) => others[r]);
}

/** Which doubtful rows are tight at the p that solves the active equations to rounding, with what they inherit from it. */
function tightAfterRefinement({ b, x, multipliers, status }, row, entries, terms, doubtful) {
  const support = Array.from(multipliers.keys()).filter((r) => multipliers[r] > 0);
  if (status !== OPTIMAL || support.length === 0 || support.length > 2) return doubtful;
  const [first, second] = [row(support[0]), row(support[1] ?? support[0])];
  const area = first[0] * second[1] - first[1] * second[0];
  if (support.length === 2 && Math.abs(area) <= SUPPORT_RANK_RTOL * norm(first) * norm(second)) return doubtful;
  const inverse = // of the support rows, column by column
    support.length === 1
      ? [first.map((entry) => entry / dot(first, first))]
      : [[second[1] / area, -second[0] / area], [-first[1] / area, first[0] / area]];
  const p = new Float64Array(2);
  for (let pass = 0; pass < 2; pass++) {
    const gaps = support.map((r) => b[r] - dot(row(r), p));
    inverse.forEach((column, j) => column.forEach((entry, k) => (p[k] += entry * gaps[j])));
  }
  if (norm(p.map((entry, k) => entry - x[k])) > SOLVER_SLACK_RTOL * norm(p)) return doubtful;
  return doubtful.filter((r) => {
    const coefficients = inverse.map((column) => dot(row(r), column));
    const across = row(r).map((entry, k) => support.reduce((left, s, j) => left - coefficients[j] * row(s)[k], entry));
    const inherited = support.reduce((total, s, j) => total + Math.abs(coefficients[j]) * terms(s, p) + multipliers[s] * terms(s, across), 0);
    return dot(row(r), p) - b[r] <= NEIGHBOUR_SLACK_RTOL * (terms(r, p) + inherited);
  });
}

/**
 * What a selection α amounts to: { solution, selected, neighbours (n T), scoreGap, isFeasible, isLocallyOptimal, isGloballyOptimal }.
 * scoreGap is the smallest γ_α - γ_t over neighbours t: infinite where there is none, nan where α is infeasible.
 */
export function tokenOptimality(problem, selected) {
  return optimalityOf(problem, selected, attSvms(problem, [selected])[0]);
}

function optimalityOf(problem, selected, solution) {
  const difference = scoreDifferences(problem, selected);
  const places = neighboursOf(problem, selected, solution);
  const neighbours = new Uint8Array(difference.length);
  for (const at of places) neighbours[at] = 1;
  const isFeasible = solution.status === OPTIMAL || solution.status === TRIVIAL;
  const scoreGap = isFeasible ? Math.min(Infinity, ...places.map((at) => difference[at])) : NaN;
  return {
    solution,
    selected: Array.from(selected),
    neighbours,
    scoreGap,
    isFeasible,
    isLocallyOptimal: scoreGap > 0,
    isGloballyOptimal: isFeasible && difference.every((gap) => gap >= 0),
  };
}

/** Whether the highest score of every input belongs to one token, and by how much it leads. */
export function strictOptimum(problem) {
  const optimal = optimalTokens(problem);
  const difference = scoreDifferences(problem, optimal);
  const gaps = optimal.flatMap((t, i) => placesOf(problem, i).filter((at) => at !== i * problem.T + t).map((at) => difference[at]));
  const smallestGap = Math.min(Infinity, ...gaps);
  return { isStrict: smallestGap > 0, smallestGap };
}

/** Angles at which an input's selection changes: of the directions across two tokens that no third token leaves behind. */
function turningAngles({ T, lengths, K }, i) {
  const angles = [];
  const [first, end] = [i * T, i * T + lengths[i]];
  for (let t = first; t < end; t++)
    for (let u = first; u < t; u++) {
      const [x, y] = [K[2 * t] - K[2 * u], K[2 * t + 1] - K[2 * u + 1]];
      if (x === 0 && y === 0) continue;
      let [isFirst, isLast] = [true, true]; // along (-y, x), where t and u tie
      for (let s = first; s < end; s++) {
        const [along, across] = [y * (K[2 * t] - K[2 * s]), x * (K[2 * s + 1] - K[2 * t + 1])];
        const blur = CORNER_RTOL * (Math.abs(along) + Math.abs(across));
        if (along + across > blur) isFirst = false;
        if (along + across < -blur) isLast = false;
      }
      const angle = Math.atan2(x, -y);
      if (isFirst) angles.push(angle);
      if (isLast) angles.push(angle > 0 ? angle - Math.PI : angle + Math.PI);
    }
  return angles;
}

/** Selections that some direction of the plane makes: those at the middle of every arc between angles at which one changes. */
function planeSelections(problem) {
  const { T, lengths, K } = problem;
  const angles = Array.from(lengths).flatMap((_, i) => turningAngles(problem, i)).sort((a, b) => a - b);
  if (angles.length === 0) return [optimalTokens(problem)];
  const found = new Map();
  angles.forEach((angle, place) => {
    const middle = 0.5 * (angle + (angles[place + 1] ?? angles[0] + 2 * Math.PI));
    const [cos, sin] = [Math.cos(middle), Math.sin(middle)];
    const logits = Float64Array.from({ length: K.length / 2 }, (_, at) => K[2 * at] * cos + K[2 * at + 1] * sin);
    const selected = Array.from(lengths, (length, i) => largestOf(logits, i * T, length));
    found.set(selected.join(), selected);
  });
  return [...found.values()];
}

/** Every locally optimal selection, widest margin first, each as `tokenOptimality` gives it with `direction` and `margin`. */
export function locallyOptimalDirections(problem) {
  const { scores, blur, T } = problem;
  const selections = planeSelections(problem);
  const isBeaten = ({ multipliers, others }, selected) => // by a support token, which is a neighbour whatever rounding leaves of its slack
    others.some((at, r) => {
      const alpha = Math.floor(at / T) * T + selected[Math.floor(at / T)];
      return multipliers[r] > 0 && scores[alpha] - scores[at] <= blur[at] + blur[alpha];
    });
  const found = attSvms(problem, selections)
    .flatMap((solution, k) => (isBeaten(solution, selections[k]) ? [] : [optimalityOf(problem, selections[k], solution)]))
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
  const { K } = problem;
  const lead = (from, to) => (K[2 * from] - K[2 * to]) * q[0] + (K[2 * from + 1] - K[2 * to + 1]) * q[1]; // of differences: keys may be far out
  const terms = (at) => NEIGHBOUR_SLACK_RTOL * (Math.abs(K[2 * at] * q[0]) + Math.abs(K[2 * at + 1] * q[1]));
  let unique = maxAbs(q) > 0;
  const selected = Array.from(problem.lengths.keys(), (i) => {
    const places = placesOf(problem, i);
    let best = places[0];
    for (const at of places) if (lead(at, best) > 0) best = at;
    if (places.some((at) => at !== best && !(lead(best, at) > terms(at) + terms(best)))) unique = false;
    return best - places[0];
  });
  return { selected, unique };
}
