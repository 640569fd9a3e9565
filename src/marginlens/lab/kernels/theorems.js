// Which theorem applies to a problem of attention weights, condition by condition with its numbers; cones around locally optimal directions.

import { dot, norm, spectralNorm, unit } from "./linalg.js";
import { directionOf, INACCURATE, INFEASIBLE, leastDistances, marginOf, OPTIMAL, TRIVIAL } from "./margin.js";
import {
  allTied,
  dependentInputs,
  locallyOptimalDirections,
  optimalTokens,
  scoreDifferences,
  selectionAt,
  sharpDifferences,
  strictOptimum,
  tokenOptimality,
  undecidedInputs,
} from "./optimality.js";
import { placesOf, takeInputs } from "./problem.js";
import { logAddExp, lossConstants } from "./softmax.js";

const PROVEN_C0 = 96; // what the proof of A Lemma 7 (L3) needs for C_0 in Eq. (46)
const UNIT_DISTANCE_ATOL = 1e-15; // what rounding can add to the distance of two unit vectors
const SAME_DIRECTION_ATOL = 1e-9; // distance of unit vectors up to which two directions are one
const SAME_NORM_RTOL = 1e-9; // relative difference of two norms up to which both count as shortest
const SAME_MINIMUM_RTOL = 1e-6; // distance, relative to the norm, up to which two minima are one
const MAX_PROBLEMS = 10_000; // hard-margin problems that a prediction may take

const inputsOf = (problem) => Array.from(problem.lengths.keys());
const keyOf = (problem, at) => problem.K.subarray(2 * at, 2 * at + 2);
const apart = (a, b) => Math.hypot(a[0] - b[0], a[1] - b[1]);

/** The lowest and the highest score, and the constants of the loss between them. */
export function slopesOf(problem) {
  const scores = inputsOf(problem).flatMap((i) => placesOf(problem, i).map((at) => problem.scores[at]));
  const [low, high] = [Math.min(...scores), Math.max(...scores)];
  return { low, high, ...lossConstants(problem.code, low, high) };
}

/** log L_p of A Lemma 6: from tokens, head and W = I where keys are tokens, else from keys and scores. */
function logSmoothness(problem) {
  const { n, T, lengths, K, head, scores } = problem;
  const { logM0, logM1 } = slopesOf(problem);
  const terms = inputsOf(problem).map((i) => {
    const [first, end] = [i * T, i * T + lengths[i]];
    const key = Math.log(spectralNorm(K.subarray(2 * first, 2 * end)));
    const score = problem.keysAreTokens ? Math.log(norm(head)) + key : Math.log(norm(scores.subarray(first, end)));
    return logAddExp(logM0 + 2 * score, Math.log(3) + logM1 + score) + 2 * key;
  });
  return terms.reduce(logAddExp) - Math.log(n);
}

// ---- cones

/** The angle in degrees between unit vectors whose correlation is one less `deviation`, without cancellation. */
function angleOf(deviation) {
  return (360 / Math.PI) * Math.asin(Math.sqrt(Math.min(deviation, 2) / 2));
}

/** Whether p correlates with q by at least 1 - mu and is at least as long as the radius; decided without cancellation. */
function inCone(p, q, mu, radius) {
  return apart(unit(p), unit(q)) <= Math.sqrt(2 * mu) + UNIT_DISTANCE_ATOL && norm(p) >= radius;
}

/**
 * The cone C_{μ,R}(p^mm) of a locally optimal selection: { p, mu, radius, provenRadius }, with R of A Eq. (46) and the radius from which on
 * the proof has no gap (A Eqs (32), (39), (46), (57), (58)); null where the selection is not locally optimal or there is nothing to
 * separate. Inputs whose output does not depend on p are left out.
 */
export function basinCone(problem, selected) {
  const dependent = dependentInputs(problem);
  const part = dependent.length > 0 ? takeInputs(problem, dependent) : problem;
  const found = tokenOptimality(part, dependent.length > 0 ? dependent.map((i) => selected[i]) : selected);
  if (!found.isLocallyOptimal || found.solution.status === TRIVIAL) return null;
  const { n, T, scores } = part;
  const p = found.solution.x;
  const theta = 1 / norm(p);
  const difference = scoreDifferences(part, found.selected);
  const inputs = inputsOf(part).map((i) => {
    const places = placesOf(part, i);
    const chosen = keyOf(part, i * T + found.selected[i]);
    const others = places.filter((at) => at !== i * T + found.selected[i]);
    const free = others.filter((at) => !found.neighbours[at]);
    const all = places.map((at) => scores[at]);
    return {
      gaps: others.filter((at) => found.neighbours[at]).map((at) => difference[at]),
      slackest: Math.min(Infinity, ...free.map((at) => dot(chosen.map((entry, k) => entry - keyOf(part, at)[k]), p) - 1)),
      longest: Math.max(...places.map((at) => norm(keyOf(part, at)))),
      widest: Math.max(...places.flatMap((at) => places.map((other) => apart(keyOf(part, at), keyOf(part, other))))),
      range: Math.max(...all) - Math.min(...all),
    };
  });
  const most = (name) => Math.max(...inputs.map((input) => input[name]));
  const gaps = inputs.flatMap((input) => input.gaps);
  const [gapMin, gapMax] = [Math.min(...gaps), Math.max(...gaps)];
  const everyInput = inputs.every((input) => input.gaps.length > 0); // has neighbours
  const delta = 0.5 * Math.min(...inputs.map(({ slackest }) => slackest));
  const A = most("longest") / theta;
  const [Gamma, widest] = [most("range"), most("widest")];
  const mu = (Math.min(0.5, delta) / A) ** 2 / 8;
  const pi = mu / (2 - mu);
  const { logM1: logCMax, logSmallest: logCMin } = slopesOf(part);
  const logLp = logSmoothness(part);
  const radiusFor = (C0, parameter) => (Math.max(2, 1 / delta) / theta) * Math.log(((C0 / parameter) * T * Gamma * A) / gapMin);
  const logScale = Math.log((T * Gamma * A) / (pi * gapMin));
  const logRatio = Math.log(n * T) + logCMax - logCMin;
  const logC = logCMax + Math.log(2 * gapMax);
  const logC2 = Math.log1p(-mu) + 2 * Math.log(widest) - Math.log(theta) + 2 * logC - (logCMin + Math.log(gapMin / 8));
  const reach = Math.log(widest * T) + logC - logLp;
  const provenRadius = Math.max(
    0.5,
    radiusFor(everyInput ? PROVEN_C0 : 2 * PROVEN_C0, pi),
    (Math.log(8) + logScale) / ((mu / 4) * theta), // Eq. (49), with ν = μ/4
    (Math.log(8) + logScale + logRatio) / ((mu / 2 + pi / 2) * theta), // after Eq. (50)
    everyInput ? 0 : (Math.log(48) + logScale + logRatio) / (delta * theta),
    (2 / theta) * (Math.log(T / pi) + logC2 - logLp), // steps stay inside, Eq. (58)
    (2 / theta) * (reach - Math.log((Math.SQRT2 - 1) * Math.sqrt(mu) * 0.5)), // and turn by less than the outer shell is wide
  );
  return { p, mu, radius: radiusFor(64 * pi, pi), provenRadius };
}

// ---- conditions: { code, holds, numbers }, as in Python

/** A condition with its numbers; holds is null if rounding decides, and `way` tells apart in which way it holds or fails. */
export function check(code, holds, numbers = {}, way = "default") {
  return { code, holds, numbers: { ...numbers, case: way } };
}

/** The way in which the best token of every input leads by a gap or not: no other token, a tie, or neither. */
const wayOf = (gap) => (gap === Infinity ? "alone" : gap > 0 ? "default" : "tie");

function checkAssumptionA(problem) {
  const { low, high, logM0, logM1, logSmallest } = slopesOf(problem);
  const holds = Math.max(logM0, logM1) < Infinity && logSmallest > -Infinity;
  return check("condition.assumption_a", holds, { log_M0: logM0, log_M1: logM1, log_smallest_slope: logSmallest, low, high });
}

function checkAssumptionB(problem) {
  const optimal = optimalTokens(problem);
  const difference = scoreDifferences(problem, optimal);
  const others = optimal.map((t, i) => placesOf(problem, i).filter((at) => at !== i * problem.T + t)).filter((places) => places.length > 0);
  const gaps = others.map((places) => places.map((at) => difference[at]));
  const spread = Math.max(0, ...gaps.map((some) => Math.max(...some, 0) - Math.min(...some)));
  const smallest = Math.min(Infinity, ...gaps.flat());
  const numbers = { spread, smallest_gap: smallest };
  const holds = smallest > 0 && others.every((places) => allTied(problem, places));
  const first = optimal.map((t, i) => (t === 0 && problem.lengths[i] > 1 ? 1 : 0)); // of the other tokens
  const { near } = sharpDifferences(problem, first);
  if (holds && others.flat().some((at) => near[at])) return check("condition.assumption_b", null, numbers);
  return check("condition.assumption_b", holds, numbers, wayOf(smallest));
}

function checkStep(problem) {
  const logLp = logSmoothness(problem);
  const { name, size } = problem.optimizer;
  const numbers = { log_L_p: logLp, log_largest_step: -logLp, largest_step: Math.exp(-logLp) };
  const way = name.replaceAll("-", "_");
  if (name !== "gradient-descent") return check("condition.step_size", false, numbers, way);
  return check("condition.step_size", size <= Math.exp(-logLp), { ...numbers, size }, way);
}

/** A Thm 3's conditions on the start: it selects locally optimal tokens, lies in their cone, and beyond the radius of the full proof. */
function aroundStart(problem, part, whole) {
  const { start } = problem;
  if (start.every((entry) => entry === 0)) return { conditions: [check("condition.start_in_a_cone", false)] };
  const at = selectionAt(part, start);
  if (!at.unique) return { conditions: [check("condition.locally_optimal_start", false, {}, "tie")] };
  const found = tokenOptimality(part, at.selected);
  if (found.solution.status === TRIVIAL) return { found, conditions: [check("condition.locally_optimal_start", false, {}, "trivial")] };
  const way = found.scoreGap === 0 ? "level" : found.scoreGap === Infinity ? "alone" : "default";
  const gaps = { score_gap: found.scoreGap, deficit: -found.scoreGap };
  const optimal = check("condition.locally_optimal_start", found.isLocallyOptimal, gaps, way);
  if (!found.isLocallyOptimal) return { found, conditions: [optimal] };
  const cone = basinCone(problem, whole(at.selected));
  const deviation = 0.5 * apart(unit(start), unit(cone.p)) ** 2;
  const narrow = check("condition.start_in_cone", inCone(start, cone.p, cone.mu, 0), {
    one_minus_cosine: deviation,
    mu: cone.mu,
    angle: angleOf(deviation),
    largest_angle: angleOf(cone.mu),
  });
  const lengths = { norm: norm(start), radius: cone.radius, proven_radius: cone.provenRadius };
  return { found, cone, conditions: [optimal, narrow, check("condition.start_beyond_radius", lengths.norm >= cone.provenRadius, lengths)] };
}

// ---- several optimal tokens: ATT-SVM' and A Thm 8

/**
 * ATT-SVM': every shortest p under which some token of each set beats all tokens outside it by one, over all choices of one token per set;
 * sets are of places in (n T). { status, margin, points, choices }; status MAX_PROBLEMS where there are more choices than `maxProblems`.
 */
function setSvm(problem, sets, maxProblems) {
  const { T, lengths } = problem;
  const binding = inputsOf(problem).filter((i) => sets[i].length < lengths[i]);
  const tokensAt = (places) => places.map((at) => at % T);
  const first = sets.map(([at]) => at);
  if (binding.length === 0) return { status: TRIVIAL, margin: Infinity, points: [new Float64Array(2)], choices: [tokensAt(first)] };
  const count = binding.reduce((total, i) => total * sets[i].length, 1);
  if (count > maxProblems) return { status: "MAX_PROBLEMS", margin: 0, points: [], choices: [] };
  const pairs = binding.flatMap((i) => placesOf(problem, i).filter((at) => !sets[i].includes(at)).map((at) => [i, at]));
  const rows = Array.from({ length: count }, (_, number) => {
    const choice = first.slice();
    for (const i of binding) {
      choice[i] = sets[i][number % sets[i].length];
      number = Math.floor(number / sets[i].length);
    }
    return pairs.map(([i, at]) => [0, 1].map((k) => keyOf(problem, choice[i])[k] - keyOf(problem, at)[k]));
  });
  const solutions = leastDistances(Float64Array.from(rows.flat(2)), new Float64Array(count * pairs.length).fill(1), count, pairs.length, 2);
  const reached = solutions.filter(({ status }) => status !== INFEASIBLE).map(({ x }) => x);
  const best = Math.min(...reached.map((x) => norm(x)));
  const points = [];
  for (const x of reached)
    if (norm(x) <= best * (1 + SAME_NORM_RTOL) && points.every((other) => apart(x, other) > SAME_MINIMUM_RTOL * best)) points.push(x);
  const choices = points.map((x) => {
    const ahead = (best, at) => (dot(keyOf(problem, at), x) > dot(keyOf(problem, best), x) ? at : best);
    return tokensAt(sets.map((places) => places.reduce(ahead)));
  });
  const isUnverified = solutions.some(({ status }) => status === INACCURATE);
  const status = isUnverified ? INACCURATE : points.length > 0 ? OPTIMAL : INFEASIBLE;
  return { status, margin: points.length > 0 ? 1 / best : 0, points, choices };
}

/** Assumption D by A Lemma 14, for the sets of tokens that share the highest score. */
function checkLinearMixing(problem, sets) {
  const { n, scores, blur } = problem;
  const { logM1, logSmallest } = slopesOf(problem);
  if (sharpDifferences(problem, optimalTokens(problem)).near.some(Boolean)) return check("condition.assumption_d", null);
  let [C, epsilon, bestLow, bestHigh] = [0, Infinity, Infinity, -Infinity];
  for (const [i, inside] of sets.entries()) {
    const outside = placesOf(problem, i).filter((at) => !inside.includes(at));
    const lowestInside = Math.min(...inside.map((at) => scores[at] - blur[at]));
    if (!allTied(problem, inside) || outside.some((at) => scores[at] + blur[at] >= lowestInside))
      return check("condition.assumption_d", null);
    if (outside.length === 0) continue;
    const nu = Math.max(...inside.map((at) => scores[at]));
    const lowest = Math.min(...outside.map((at) => scores[at]));
    const shift = nu > Math.max(0, ...inside.map((at) => blur[at])) ? 0 : -lowest;
    C = Math.max(C, -(lowest + shift));
    [bestLow, bestHigh] = [Math.min(bestLow, nu + shift), Math.max(bestHigh, nu + shift)];
    for (const at of outside) epsilon = Math.min(epsilon, 1 - (scores[at] + shift) / (nu + shift));
  }
  if (epsilon === Infinity) return check("condition.assumption_d", true, { epsilon: 1, C: 0, log_C_plus: 0, log_C_minus: 0 });
  const numbers = { epsilon, C, log_C_plus: logM1 + Math.log(C + bestHigh), log_C_minus: logSmallest + Math.log((epsilon * bestLow) / n) };
  return check("condition.assumption_d", true, numbers);
}

// ---- the prediction

/** A theorem, by its citation, with its conditions and whether all of them hold. */
export function verdict(citation, conditions) {
  return { citation, conditions, applies: conditions.every((condition) => condition.holds) };
}

/**
 * Which theorem of paper A applies to the problem with its start and optimizer, condition by condition, and the limit that it gives.
 *
 * { dependent, verdicts, candidates: [{ label, selected, direction, margin, optimality? }], promise, step }: promise is { citation,
 * direction } where a theorem makes the limit of plain gradient descent certain and step the condition
 * on its steps.
 */
export function predict(problem, maxProblems = MAX_PROBLEMS) {
  const dependent = dependentInputs(problem);
  const part = dependent.length > 0 ? takeInputs(problem, dependent) : problem;
  const optimal = optimalTokens(problem);
  const whole = (selected) => {
    const all = optimal.slice();
    (dependent.length > 0 ? dependent : inputsOf(problem)).forEach((i, place) => (all[i] = selected[place]));
    return all;
  };
  const global = tokenOptimality(part, optimalTokens(part));
  const { status } = global.solution;
  const slopes = checkAssumptionA(part);
  const { isStrict, smallestGap } = strictOptimum(part);
  const strict = check("condition.strict_optimum", isStrict, { smallest_gap: smallestGap }, wayOf(smallestGap));
  const separable = check("condition.separable_optimum", status === INACCURATE ? null : status === OPTIMAL, { margin: marginOf(global.solution) }, status.toLowerCase());
  const undecided = undecidedInputs(problem).slice(0, 1);
  const leftOut = undecided.map((i) => check("condition.inputs_left_out", null, { input: i }));
  const globally = verdict("A Thm 2", [...leftOut, slopes, checkAssumptionB(part), separable]);
  const around = aroundStart(problem, part, whole);
  const locally = verdict("A Thm 3", [...leftOut, slopes, ...around.conditions]);
  const step = checkStep(problem);
  let promise = null;
  if (globally.applies && part.n === 1) promise = { citation: "A Thm 2", direction: directionOf(global.solution) };
  else if (locally.applies) promise = { citation: "A Thm 3", direction: directionOf(around.found.solution) };
  const withStep = [globally, locally].map(({ citation, conditions }) => verdict(citation, [...conditions, step]));
  const verdicts = [verdict("A Thm 1", [...leftOut, slopes, strict, separable]), ...withStep];
  let sets = null;
  if (dependent.length > 0 && !strict.holds) {
    const difference = scoreDifferences(part, optimalTokens(part));
    const members = inputsOf(part).map((i) => placesOf(part, i).filter((at) => difference[at] === 0));
    sets = setSvm(part, members, maxProblems);
    const [isFound, minima] = [sets.status === OPTIMAL, sets.points.length];
    const isOpen = ![OPTIMAL, INFEASIBLE, TRIVIAL].includes(sets.status);
    const separated = check("condition.separable_sets", isOpen ? null : isFound, { margin: sets.margin, minima }, isFound && minima > 1 ? "several" : sets.status === INACCURATE ? "default" : sets.status.toLowerCase());
    verdicts.push(verdict("A Thm 8", [...leftOut, slopes, checkLinearMixing(part, members), separated]));
  }
  const candidates = candidatesOf(part, sets);
  return {
    dependent,
    verdicts,
    promise,
    step,
    candidates: candidates.map((one) => ({ ...one, selected: whole(one.selected) })),
  };
}

/** The global minima of ATT-SVM' where optimal tokens tie, then the members of P^mm. */
function candidatesOf(part, sets) {
  const candidates = locallyOptimalDirections(part).map((optimality) => {
    const { isGloballyOptimal, selected, direction, margin } = optimality;
    return { label: isGloballyOptimal ? "GMM" : "LMM", selected, direction, margin, optimality };
  });
  if (sets === null || sets.points.length === 0 || sets.status === TRIVIAL) return candidates;
  const minima = sets.points.map((x, k) => ({ label: "G^mm", selected: sets.choices[k], direction: unit(x), margin: sets.margin }));
  const isNew = (one) => minima.every((other) => apart(one.direction, other.direction) > SAME_DIRECTION_ATOL);
  return [...minima, ...candidates.filter(isNew)];
}
