// The limits that training of attention weights can have, the cones around them, and whether a theorem of paper A promises one.

import { dot, norm, spectralNorm, unit } from "./linalg.js";
import { directionOf, INFEASIBLE, leastDistances, OPTIMAL, TRIVIAL } from "./margin.js";
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

// ---- what theorems promise

/** A Assumption B: in every input one token scores highest, and all others tie; false if rounding decides. */
function haveOthersOneScore(problem) {
  const optimal = optimalTokens(problem);
  const others = optimal.map((t, i) => placesOf(problem, i).filter((at) => at !== i * problem.T + t)).filter((places) => places.length > 0);
  const first = optimal.map((t, i) => (t === 0 && problem.lengths[i] > 1 ? 1 : 0)); // of the other tokens
  const { near } = sharpDifferences(problem, first);
  return strictOptimum(problem).isStrict && others.every((places) => allTied(problem, places) && !places.some((at) => near[at]));
}

/** The direction that A Thm 3 promises: that of the tokens which the start selects, if it lies deep enough in their cone; otherwise null. */
function promisedAround(problem, part, whole) {
  const { start } = problem;
  const { selected, unique } = selectionAt(part, start);
  const cone = unique ? basinCone(problem, whole(selected)) : null; // which only locally optimal tokens have
  return cone !== null && inCone(start, cone.p, cone.mu, cone.provenRadius) ? unit(cone.p) : null;
}

/**
 * The limit of gradient descent that a theorem makes certain: { citation, direction, coversSteps }, null where none does; coversSteps is
 * whether the optimizer's steps are those of the theorem. Every condition with its numbers is what `ml.predict` prints.
 */
function promiseOf(problem, part, whole) {
  if (undecidedInputs(problem).length > 0) return null;
  const { name, size } = problem.optimizer;
  const coversSteps = name === "gradient-descent" && size <= Math.exp(-logSmoothness(problem));
  if (part.n === 1 && haveOthersOneScore(part)) {
    const { solution } = tokenOptimality(part, optimalTokens(part));
    if (solution.status === OPTIMAL) return { citation: "A Thm 2", direction: directionOf(solution), coversSteps };
  }
  const direction = promisedAround(problem, part, whole);
  return direction && { citation: "A Thm 3", direction, coversSteps };
}

// ---- several optimal tokens: ATT-SVM' and A Thm 8

/**
 * ATT-SVM': every shortest p under which some token of each set beats all tokens outside it by one, over all choices of one token per set;
 * sets are of places in (n T). { margin, points, choices }; no points where there is nothing to separate, or more choices than
 * `maxProblems`.
 */
function setSvm(problem, sets, maxProblems) {
  const { T, lengths } = problem;
  const binding = inputsOf(problem).filter((i) => sets[i].length < lengths[i]);
  const tokensAt = (places) => places.map((at) => at % T);
  const first = sets.map(([at]) => at);
  const count = binding.reduce((total, i) => total * sets[i].length, 1);
  if (binding.length === 0 || count > maxProblems) return { margin: 0, points: [], choices: [] };
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
  return { margin: points.length > 0 ? 1 / best : 0, points, choices };
}

// ---- the prediction

/**
 * Where training can end, and what theorems of paper A promise of the start: { dependent, promise, candidates: [{ label, selected,
 * direction, margin, optimality? }] }, dependent being the inputs whose output depends on p and promise as of `promiseOf`.
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
  let sets = { points: [] };
  if (dependent.length > 0 && !strictOptimum(part).isStrict) {
    const difference = scoreDifferences(part, optimalTokens(part));
    sets = setSvm(part, inputsOf(part).map((i) => placesOf(part, i).filter((at) => difference[at] === 0)), maxProblems);
  }
  const candidates = candidatesOf(part, sets).map((one) => ({ ...one, selected: whole(one.selected) }));
  return { dependent, promise: promiseOf(problem, part, whole), candidates };
}

/** The global minima of ATT-SVM' where optimal tokens tie, then the members of P^mm. */
function candidatesOf(part, sets) {
  const candidates = locallyOptimalDirections(part).map((optimality) => {
    const { isGloballyOptimal, selected, direction, margin } = optimality;
    return { label: isGloballyOptimal ? "GMM" : "LMM", selected, direction, margin, optimality };
  });
  const minima = sets.points.map((x, k) => ({ label: "G^mm", selected: sets.choices[k], direction: unit(x), margin: sets.margin }));
  const isNew = (one) => minima.every((other) => apart(one.direction, other.direction) > SAME_DIRECTION_ATOL);
  return [...minima, ...candidates.filter(isNew)];
}
