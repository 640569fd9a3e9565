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
  strictOptimum,
  tokenOptimality,
} from "./optimality.js";
import { takeInputs } from "./problem.js";
import { logAddExp, lossConstants } from "./softmax.js";

const PROVEN_C0 = 96; // what the proof of A Lemma 7 (L3) needs for C_0 in Eq. (46)
const UNIT_DISTANCE_ATOL = 1e-15; // what rounding can add to the distance of two unit vectors
const SAME_DIRECTION_ATOL = 1e-9; // distance of unit vectors up to which two directions are one
const SAME_NORM_RTOL = 1e-9; // relative difference of two norms up to which both count as shortest
const SAME_MINIMUM_RTOL = 1e-6; // distance, relative to the norm, up to which two minima are one
const MAX_PROBLEMS = 10_000; // hard-margin problems that a prediction may take

function scoreRange(problem) {
  const { n, T, lengths, scores } = problem;
  let low = Infinity;
  let high = -Infinity;
  for (let i = 0; i < n; i++)
    for (let t = 0; t < lengths[i]; t++) {
      low = Math.min(low, scores[i * T + t]);
      high = Math.max(high, scores[i * T + t]);
    }
  return { low, high };
}

/** log L_p of A Lemma 6: from tokens, head and W = I where keys are tokens, else from keys and scores. */
export function logSmoothness(problem) {
  const { n, T, d, dModel, lengths, X, K, head, scores } = problem;
  const { low, high } = scoreRange(problem);
  const { logM0, logM1 } = lossConstants(problem.code, low, high);
  const headLog = Math.log(norm(head));
  let total = -Infinity;
  for (let i = 0; i < n; i++) {
    let score;
    let key;
    if (problem.keysAreTokens) {
      key = Math.log(spectralNorm(X.subarray(i * T * dModel, (i * T + lengths[i]) * dModel), lengths[i], dModel));
      score = headLog + key;
    } else {
      key = Math.log(spectralNorm(K.subarray(i * T * d, (i * T + lengths[i]) * d), lengths[i], d));
      score = Math.log(norm(scores.subarray(i * T, i * T + lengths[i])));
    }
    total = logAddExp(total, logAddExp(logM0 + 2 * score, Math.log(3) + logM1 + score) + 2 * key);
  }
  return total - Math.log(n);
}

// ---- cones

/** Whether p correlates with q by at least 1 - mu and is at least as long as the radius; decided without cancellation. */
export function inCone(p, q, mu, radius) {
  const a = unit(p);
  const b = unit(q);
  let square = 0;
  for (let k = 0; k < a.length; k++) square += (a[k] - b[k]) ** 2;
  return Math.sqrt(square) <= Math.sqrt(2 * mu) + UNIT_DISTANCE_ATOL && norm(p) >= radius;
}

/**
 * The cone C_{μ,R}(p^mm) of a locally optimal selection with its constants and radii (A Eqs (32), (39), (46), (57), (58)); null where the
 * selection is not locally optimal or there is nothing to separate. Inputs whose output does not depend on p are left out.
 */
export function basinCone(problem, selected) {
  const dependent = dependentInputs(problem);
  const part = dependent.length > 0 ? takeInputs(problem, dependent) : problem;
  const found = tokenOptimality(part, dependent.length > 0 ? dependent.map((i) => selected[i]) : selected);
  if (!found.isLocallyOptimal || found.solution.status === TRIVIAL) return null;
  const { n, T, d, lengths, K, scores } = part;
  const p = found.solution.x;
  const theta = 1 / norm(p);
  const difference = scoreDifferences(part, found.selected);
  let slackest = Infinity;
  let longest = 0;
  let widest = 0;
  let Gamma = 0;
  let gapMin = Infinity;
  let gapMax = -Infinity;
  let everyInput = true;
  const key = (i, t) => K.subarray((i * T + t) * d, (i * T + t + 1) * d);
  for (let i = 0; i < n; i++) {
    let low = Infinity;
    let high = -Infinity;
    let hasNeighbour = false;
    for (let t = 0; t < lengths[i]; t++) {
      const at = i * T + t;
      low = Math.min(low, scores[at]);
      high = Math.max(high, scores[at]);
      longest = Math.max(longest, norm(key(i, t)));
      for (let u = 0; u < t; u++) widest = Math.max(widest, norm(key(i, t).map((entry, k) => entry - key(i, u)[k])));
      if (found.neighbours[at]) {
        hasNeighbour = true;
        gapMin = Math.min(gapMin, difference[at]);
        gapMax = Math.max(gapMax, difference[at]);
      } else if (t !== found.selected[i]) {
        const chosen = key(i, found.selected[i]);
        slackest = Math.min(slackest, dot(chosen.map((entry, k) => entry - key(i, t)[k]), p) - 1);
      }
    }
    Gamma = Math.max(Gamma, high - low);
    everyInput = everyInput && hasNeighbour;
  }
  const delta = 0.5 * slackest;
  const A = longest / theta;
  const mu = (Math.min(0.5, delta) / A) ** 2 / 8;
  const { low, high } = scoreRange(part);
  const { logM1: logCMax, logSmallest: logCMin } = lossConstants(part.code, low, high);
  const logLp = logSmoothness(part);
  const pi = mu / (2 - mu);
  const rate = Math.max(2, 1 / delta) / theta;
  const radiusFor = (C0, parameter) => rate * Math.log(((C0 / parameter) * T * Gamma * A) / gapMin);
  const explicitRadius = (parameter, nu) => {
    const logScale = Math.log((T * Gamma * A) / (parameter * gapMin));
    const logRatio = Math.log(n * T) + logCMax - logCMin;
    const base = radiusFor(everyInput ? PROVEN_C0 : 2 * PROVEN_C0, parameter);
    const split = (Math.log(8) + logScale) / (nu * theta);
    const between = (Math.log(8) + logScale + logRatio) / ((2 * nu + parameter / 2) * theta);
    const others = everyInput ? 0 : (Math.log(48) + logScale + logRatio) / (delta * theta);
    return Math.max(base, split, between, others);
  };
  const logC = logCMax + Math.log(2 * gapMax);
  const logc = logCMin + Math.log(gapMin / 8);
  const logC2 = Math.log1p(-mu) + 2 * Math.log(widest) - Math.log(theta) + 2 * logC - logc;
  const reach = Math.log(widest * T) + logC - logLp;
  const stays = (2 / theta) * (Math.log(T / pi) + logC2 - logLp);
  const turns = (2 / theta) * (reach - Math.log((Math.SQRT2 - 1) * Math.sqrt(mu) * 0.5));
  return {
    optimality: found,
    p,
    theta,
    delta,
    A,
    ABar: widest,
    mu,
    Gamma,
    gapMin,
    gapMax,
    logCMax,
    logCMin,
    logLp,
    everyInputHasNeighbours: everyInput,
    noStationaryRadius: radiusFor(64, 1),
    radius: radiusFor(64 * pi, pi),
    provenRadius: Math.max(0.5, explicitRadius(pi, mu / 4), stays, turns),
  };
}

// ---- conditions: { name, holds, numbers }, named as in Python

/** A condition with its numbers; code tells apart the ways in which it holds or fails. */
export function check(name, holds, numbers = {}, code = "") {
  return { name, holds, numbers, code };
}

function checkAssumptionA(problem) {
  const { low, high } = scoreRange(problem);
  const { logM0, logM1, logSmallest } = lossConstants(problem.code, low, high);
  const holds = Math.max(logM0, logM1) < Infinity && logSmallest > -Infinity;
  return check("A Assumption A", holds, { log_M0: logM0, log_M1: logM1, log_smallest_slope: logSmallest, low, high });
}

function checkAssumptionB(problem) {
  const { n, T, lengths } = problem;
  const optimal = optimalTokens(problem);
  const difference = scoreDifferences(problem, optimal);
  let spread = 0;
  let gap = Infinity;
  let tied = true;
  for (let i = 0; i < n; i++) {
    const others = Array.from({ length: lengths[i] }, (_, t) => i * T + t).filter((at) => at !== i * T + optimal[i]);
    if (others.length === 0) continue;
    const gaps = others.map((at) => difference[at]);
    spread = Math.max(spread, Math.max(...gaps, 0) - Math.min(...gaps));
    gap = Math.min(gap, ...gaps);
    tied = tied && allTied(problem, others);
  }
  return check("A Assumption B", tied && gap > 0, { spread, smallest_gap: gap });
}

function checkStrictOptimum(problem) {
  const { isStrict, smallestGap } = strictOptimum(problem);
  return check("strict optimum", isStrict, { smallest_gap: smallestGap });
}

function checkSeparable(global) {
  const { status } = global.solution;
  return check("separable optimum", status === OPTIMAL, { margin: marginOf(global.solution) }, status);
}

function checkStep(problem) {
  const logLp = logSmoothness(problem);
  const { name, size } = problem.optimizer;
  const numbers = { log_L_p: logLp, largest_step: Math.exp(-logLp) };
  if (name !== "GradientDescent") return check("step size", false, numbers, name);
  return check("step size", size <= Math.exp(-logLp), { ...numbers, size }, name);
}

/** A Thm 3's conditions on the start: it selects locally optimal tokens, lies in their cone, and beyond the radius of the full proof. */
function aroundStart(problem, part, dependent, start) {
  if (!start || start.every((entry) => entry === 0)) {
    return { conditions: [check("start in a cone", false, {}, start ? "zero" : "none")] };
  }
  const at = selectionAt(part, start);
  if (!at.unique) return { conditions: [check("locally optimal start", false, {}, "tie")] };
  const found = tokenOptimality(part, at.selected);
  if (found.solution.status === TRIVIAL) return { found, conditions: [check("locally optimal start", false, {}, TRIVIAL)] };
  const optimal = check("locally optimal start", found.isLocallyOptimal, { score_gap: found.scoreGap });
  if (!found.isLocallyOptimal) return { found, conditions: [optimal] };
  const selected = optimalTokens(problem);
  (dependent.length > 0 ? dependent : selected.map((_, i) => i)).forEach((i, place) => (selected[i] = at.selected[place]));
  const cone = basinCone(problem, selected);
  const length = norm(start);
  const axis = unit(cone.p);
  const deviation = 0.5 * unit(start).reduce((total, entry, k) => total + (entry - axis[k]) ** 2, 0);
  const narrow = check("start in cone_μ", inCone(start, cone.p, cone.mu, 0), { one_minus_cosine: deviation, mu: cone.mu });
  const far = check("start beyond R", length >= cone.provenRadius, { norm: length, radius: cone.radius, proven_radius: cone.provenRadius });
  return { found, cone, conditions: [optimal, narrow, far] };
}

// ---- several optimal tokens: ATT-SVM' and A Thm 8

/** The tokens that share the highest score of each input, up to rounding. */
export function optimalSets(problem) {
  const optimal = optimalTokens(problem);
  const difference = scoreDifferences(problem, optimal);
  return Array.from(problem.lengths, (length, i) =>
    Array.from({ length }, (_, t) => t).filter((t) => difference[i * problem.T + t] === 0),
  );
}

/**
 * ATT-SVM': every shortest p under which some token of each set beats all tokens outside it by one, over all choices of one token per set.
 * { status, margin, points, choices }; status MAX_PROBLEMS where there are more choices than `maxProblems`.
 */
export function setSvm(problem, sets, maxProblems = MAX_PROBLEMS) {
  const { T, d, lengths, K } = problem;
  const binding = sets.map((_, i) => i).filter((i) => sets[i].length < lengths[i]);
  if (binding.length === 0) {
    return { status: TRIVIAL, margin: Infinity, points: [new Float64Array(d)], choices: [sets.map((tokens) => tokens[0])] };
  }
  const count = binding.reduce((total, i) => total * sets[i].length, 1);
  if (count > maxProblems) return { status: "MAX_PROBLEMS", margin: 0, points: [], choices: [] };
  const outside = (i) => Array.from({ length: lengths[i] }, (_, t) => t).filter((t) => !sets[i].includes(t));
  const pairs = binding.flatMap((i) => outside(i).map((t) => [i, t]));
  const choices = Array.from({ length: count }, (_, number) => {
    const choice = sets.map((tokens) => tokens[0]);
    let rest = number;
    for (const i of binding) {
      choice[i] = sets[i][rest % sets[i].length];
      rest = Math.floor(rest / sets[i].length);
    }
    return choice;
  });
  const key = (i, t, k) => K[(i * T + t) * d + k];
  const A = new Float64Array(count * pairs.length * d);
  choices.forEach((choice, j) => {
    pairs.forEach(([i, t], r) => {
      for (let k = 0; k < d; k++) A[(j * pairs.length + r) * d + k] = key(i, choice[i], k) - key(i, t, k);
    });
  });
  const solutions = leastDistances(A, new Float64Array(count * pairs.length).fill(1), count, pairs.length, d);
  const unverified = solutions.some(({ status }) => status === INACCURATE);
  let shortest = solutions.filter(({ status }) => status !== INFEASIBLE).map(({ x }) => x);
  const best = Math.min(...shortest.map((x) => norm(x)));
  shortest = shortest.filter((x) => norm(x) <= best * (1 + SAME_NORM_RTOL));
  const points = [];
  for (const x of shortest) {
    if (points.every((other) => norm(x.map((entry, k) => entry - other[k])) > SAME_MINIMUM_RTOL * best)) points.push(x);
  }
  const chosen = points.map((x) =>
    sets.map((tokens, i) => {
      const logits = tokens.map((t) => dot(K.subarray((i * T + t) * d, (i * T + t + 1) * d), x));
      return tokens[logits.indexOf(Math.max(...logits))];
    }),
  );
  const status = unverified ? INACCURATE : points.length > 0 ? OPTIMAL : INFEASIBLE;
  return { status, margin: points.length > 0 ? 1 / best : 0, points, choices: chosen };
}

/** Assumption D by A Lemma 14, for the sets of tokens that share the highest score. */
function checkLinearMixing(problem, sets) {
  const { n, T, lengths, scores, blur } = problem;
  const { low, high } = scoreRange(problem);
  const { logM1, logSmallest } = lossConstants(problem.code, low, high);
  let C = 0;
  let epsilon = Infinity;
  let bestLow = Infinity;
  let bestHigh = -Infinity;
  let mixes = false;
  for (let i = 0; i < n; i++) {
    const inside = sets[i].map((t) => i * T + t);
    const outside = Array.from({ length: lengths[i] }, (_, t) => i * T + t).filter((at) => !inside.includes(at));
    const lowestInside = Math.min(...inside.map((at) => scores[at] - blur[at]));
    if (!allTied(problem, inside) || outside.some((at) => scores[at] + blur[at] >= lowestInside))
      return check("A Assumption D", false, {}, "rounding");
    if (outside.length === 0) continue;
    mixes = true;
    const nu = Math.max(...inside.map((at) => scores[at]));
    const lowest = Math.min(...outside.map((at) => scores[at]));
    const shift = nu > Math.max(0, ...inside.map((at) => blur[at])) ? 0 : -lowest;
    C = Math.max(C, -(lowest + shift));
    bestLow = Math.min(bestLow, nu + shift);
    bestHigh = Math.max(bestHigh, nu + shift);
    for (const at of outside) epsilon = Math.min(epsilon, 1 - (scores[at] + shift) / (nu + shift));
  }
  if (!mixes) return check("A Assumption D", true, { epsilon: 1, C: 0, log_C_plus: 0, log_C_minus: 0 });
  const numbers = { epsilon, C, log_C_plus: logM1 + Math.log(C + bestHigh), log_C_minus: logSmallest + Math.log((epsilon * bestLow) / n) };
  return check("A Assumption D", true, numbers);
}

// ---- the prediction

/** A theorem, by its citation, with its conditions and whether all of them hold. */
export function verdict(citation, conditions) {
  return { citation, conditions, applies: conditions.every((condition) => condition.holds) };
}

/**
 * Which theorem of paper A applies to the problem with its start and optimizer, condition by condition, and the limit that it gives.
 *
 * { dependent, verdicts, candidates: [{ label, selected, direction, margin, optimality? }], complete, promise, direction, pathDirection,
 *   observed, basin, cone }: promise is { citation, direction } where a theorem makes the limit of plain gradient descent certain,
 * direction is that limit where the step is right too, observed where steps are normalised.
 */
export function predict(problem, maxProblems = MAX_PROBLEMS) {
  const dependent = dependentInputs(problem);
  const part = dependent.length > 0 ? takeInputs(problem, dependent) : problem;
  const global = tokenOptimality(part, optimalTokens(part));
  const slopes = checkAssumptionA(part);
  const strict = checkStrictOptimum(part);
  const separable = checkSeparable(global);
  const path = verdict("A Thm 1", [slopes, strict, separable]);
  const globally = verdict("A Thm 2", [slopes, checkAssumptionB(part), separable]);
  const around = aroundStart(problem, part, dependent, problem.start);
  const locally = verdict("A Thm 3", [slopes, ...around.conditions]);
  const step = checkStep(problem);
  let promise = null;
  if (globally.applies && part.n === 1) promise = { citation: "A Thm 2", direction: directionOf(global.solution) };
  else if (locally.applies) promise = { citation: "A Thm 3", direction: directionOf(around.found.solution) };
  const verdicts = [path, verdict("A Thm 2", [...globally.conditions, step]), verdict("A Thm 3", [...locally.conditions, step])];
  let pathDirection = path.applies ? directionOf(global.solution) : null;
  let sets = null;
  if (dependent.length > 0 && !strict.holds) {
    const members = optimalSets(part);
    sets = setSvm(part, members, maxProblems);
    const separated = check("separable sets", sets.status === OPTIMAL, { margin: sets.margin, minima: sets.points.length }, sets.status);
    const toSet = verdict("A Thm 8", [slopes, checkLinearMixing(part, members), separated]);
    verdicts.push(toSet);
    if (toSet.applies && sets.points.length === 1) pathDirection = unit(sets.points[0]);
  }
  const { candidates, complete } = candidatesOf(part, global, around.found, sets, maxProblems);
  let basin = -1;
  if (around.cone && inCone(problem.start, around.cone.p, around.cone.mu, around.cone.radius)) {
    basin = candidates.findIndex((one) => one.label !== "G^mm" && one.selected.join() === around.found.selected.join());
  }
  const optimal = optimalTokens(problem);
  const whole = (selected) => {
    const all = optimal.slice();
    (dependent.length > 0 ? dependent : all.map((_, i) => i)).forEach((i, place) => (all[i] = selected[place]));
    return all;
  };
  const normalized = problem.optimizer.name === "NormalizedGD";
  return {
    dependent,
    verdicts,
    promise,
    step,
    direction: promise !== null && step.holds ? promise.direction : null,
    observed: promise !== null && normalized ? promise.direction : null,
    pathDirection,
    candidates: candidates.map((one) => ({ ...one, selected: whole(one.selected) })),
    complete,
    basin: basin < 0 ? null : basin,
    cone: around.cone ?? null,
  };
}

/** The global minima of ATT-SVM' where optimal tokens tie, then the members of P^mm, or those that are known without listing them all. */
function candidatesOf(part, global, atStart, sets, maxProblems) {
  let known = locallyOptimalDirections(part, maxProblems);
  const complete = known !== null;
  if (!complete) {
    known = global.isLocallyOptimal ? [global] : [];
    const isNew = atStart && atStart.isLocallyOptimal && known.every((one) => one.selected.join() !== atStart.selected.join());
    if (isNew) known.push(atStart);
    known = known.map((one) => ({ ...one, direction: directionOf(one.solution), margin: marginOf(one.solution) }));
  }
  const candidates = known.map((one) => ({
    label: one.isGloballyOptimal ? "GMM" : "LMM",
    selected: one.selected,
    direction: one.direction,
    margin: one.margin,
    optimality: one,
  }));
  if (sets === null || sets.points.length === 0 || sets.status === TRIVIAL) return { candidates, complete };
  const minima = sets.points.map((x, k) => ({ label: "G^mm", selected: sets.choices[k], direction: unit(x), margin: sets.margin }));
  const distinct = candidates.filter((one) =>
    minima.every((other) => norm(one.direction.map((entry, k) => entry - other.direction[k])) > SAME_DIRECTION_ATOL),
  );
  return { candidates: [...minima, ...distinct], complete };
}
