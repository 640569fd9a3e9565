// Token optimality in the plane: score ties, neighbours and score gaps of a selection, and every locally optimal selection of a problem.

import { callCore } from "./core.js";
import { exactDot, maxAbs } from "./linalg.js";
import { attSvms, directionOf, marginOf, OPTIMAL, TRIVIAL } from "./margin.js";
import { placesOf } from "./problem.js";
import { largestOf } from "./softmax.js";

const LEAD_RTOL = 1e-12; // lead of a logit, relative to the terms that were summed for it, that rounding alone can leave
const CANCELS = 1e6; // by how many blurs two scores may differ at most to have lost too many digits for a proof
const SAME_MARGIN_RTOL = 1e-12; // relative difference of margins that does not decide an order
const CORNER_RTOL = 1e-9; // how far a token may stay behind two that tie, relative to the terms of its logit, and still tie with them

/** Index of the highest score of each input, the first where several tie. */
export function optimalTokens({ T, lengths, scores }) {
  return Array.from(lengths, (length, i) => largestOf(scores, i * T, length));
}

/** γ_α - γ_t for every token (n T); differences that rounding can make are exactly zero, and so is that of α itself. */
export function scoreDifferences({ n, T, lengths, scores, blur }, selected) {
  const differences = new Float64Array(n * T);
  callCore("compare_scores", { scores, blur, lengths, selected, differences, batch: 1, n_inputs: n, n_tokens: T });
  return differences;
}

/**
 * { differences, near }: γ_α - γ_t to nearly all digits, and which of them are near ties (n T).
 *
 * Differences that lose digits to cancellation are computed exactly from the given doubles. A near tie is not zero, but within the blur of
 * both scores: in double precision rounding decides which of the two tokens scores higher.
 */
export function sharpDifferences(problem, selected) {
  const { T, lengths, scores, blur, X, y, head, given } = problem;
  const blurred = scoreDifferences(problem, selected);
  const differences = new Float64Array(scores.length);
  const near = new Uint8Array(scores.length);
  lengths.forEach((_, i) => {
    const alpha = i * T + selected[i];
    for (const at of placesOf(problem, i)) {
      const rounded = scores[alpha] - scores[at];
      const cancels = given === null && Math.abs(rounded) <= CANCELS * (blur[alpha] + blur[at]);
      const terms = [X[2 * alpha], -X[2 * at], X[2 * alpha + 1], -X[2 * at + 1]];
      differences[at] = cancels ? y[i] * exactDot([head[0], head[0], head[1], head[1]], terms) : rounded;
      near[at] = Number(blurred[at] === 0 && differences[at] !== 0);
    }
  });
  return { differences, near };
}

/** Whether every two of some tokens tie, by their places in (n T): intervals meet in pairs only if they share a point. */
export function allTied({ scores, blur }, places) {
  return Math.max(...places.map((at) => scores[at] - blur[at])) <= Math.min(...places.map((at) => scores[at] + blur[at]));
}

function hasOneKey(problem, i) {
  const { K } = problem;
  const [first, ...others] = placesOf(problem, i);
  return others.every((at) => K[2 * at] === K[2 * first] && K[2 * at + 1] === K[2 * first + 1]);
}

/** The inputs whose output depends on p: those with two different keys and two different scores. */
export function dependentInputs(problem) {
  return Array.from(problem.lengths.keys()).filter((i) => !hasOneKey(problem, i) && !allTied(problem, placesOf(problem, i)));
}

/**
 * The inputs with different keys and scores that all tie within their blur, but not exactly.
 *
 * `dependentInputs` takes the output of such an input for a constant. Exact steps depend on it, and after enough of them it may decide where
 * training ends.
 */
export function undecidedInputs(problem) {
  const { near } = sharpDifferences(problem, optimalTokens(problem));
  const isNear = (i) => placesOf(problem, i).some((at) => near[at]);
  return Array.from(problem.lengths.keys()).filter((i) => isNear(i) && !hasOneKey(problem, i) && allTied(problem, placesOf(problem, i)));
}

/** Which tokens (n T) hold the margin of a selection, as rows that hold with equality at its solution; see A Def 2. */
function neighboursOf({ n, T, lengths, K }, selected, { x, multipliers, others }) {
  const neighbours = new Uint8Array(n * T);
  const ofTokens = new Float64Array(n * T);
  others.forEach((at, r) => (ofTokens[at] = multipliers[r]));
  const sizes = { n_problems: 1, n_inputs: n, n_tokens: T, d: 2, batch: 1 };
  callCore("find_neighbours", { keys: K, lengths, selected, x, multipliers: ofTokens, neighbours, ...sizes });
  return neighbours;
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
  const neighbours = neighboursOf(problem, selected, solution);
  const isFeasible = solution.status === OPTIMAL || solution.status === TRIVIAL;
  const scoreGap = isFeasible ? Math.min(Infinity, ...difference.filter((_, at) => neighbours[at])) : NaN;
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
  const terms = (at) => LEAD_RTOL * (Math.abs(K[2 * at] * q[0]) + Math.abs(K[2 * at + 1] * q[1]));
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
