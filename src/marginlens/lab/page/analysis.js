// What the kernels say of a state: the problem, its prediction and its limits, computed once for each problem and start.

import { jointLimits } from "../kernels/joint.js";
import { correlation } from "../kernels/linalg.js";
import { attSvm, directionOf, marginOf } from "../kernels/margin.js";
import { normOfOptimizer, planeNormSvm } from "../kernels/norms.js";
import { Outlook } from "../kernels/outlook.js";
import { ProblemError, readProblem, takeInputs } from "../kernels/problem.js";
import { predict } from "../kernels/theorems.js";
import { tokenName } from "./findings/sentences.js";
import { keysOf, problemOf } from "./state.js";
import { capital } from "./words.js";

export const LIMIT_COLOURS = 8;
const MAX_STARTS_REMEMBERED = 16; // of each problem
const MAX_MARK = 16; // letters of the words in a limit's mark

const SAME_DIRECTION_RTOL = 1e-12; // one less the cosine of two directions that count as one

const known = new WeakMap(); // problem of a state → Map of start → analysis

/** A limit's mark, such as "→ 3": its tokens by their words where these are short and differ within each input, else by their numbers. */
function markOf({ words }, selected) {
  const isNamed = (t, i) => words?.[i]?.[t] && words[i].filter((word) => word === words[i][t]).length === 1;
  const named = Array.from(selected, (t, i) => (isNamed(t, i) ? words[i][t] : t)).join(" ");
  return `→ ${named.length <= MAX_MARK ? named : Array.from(selected).join(" ")}`;
}

/** Limits with number, colour and mark: the first colour is that of the global one. */
function numbered(problem, limits) {
  const first = limits.some(({ isGlobal }) => isGlobal) ? 0 : 1;
  return limits.map((limit, index) => ({
    ...limit,
    index,
    colour: `var(--limit-${(index + first) % LIMIT_COLOURS})`,
    mark: markOf(problem, limit.selected),
  }));
}

/** Limits: what the run can settle on, the global ones first, then by their selected tokens; `solution` certifies direction and margin. */
function limitsOf(problem, prediction) {
  const power = normOfOptimizer(problem.optimizer);
  const { dependent, candidates } = prediction;
  const isPart = dependent.length > 0 && dependent.length < problem.n;
  const part = isPart ? takeInputs(problem, dependent) : problem;
  const ofWhole = (solution) =>
    isPart ? { ...solution, pairs: solution.pairs.map((pair) => ({ ...pair, input: dependent[pair.input] })) } : solution;
  const limits = candidates.map(({ label, selected, direction, margin, optimality }) => {
    const shared = { label, selected, isGlobal: label !== "LMM", optimality, power };
    const chosen = isPart ? dependent.map((i) => selected[i]) : selected;
    if (power === 2) {
      const solution = ofWhole(optimality?.solution ?? attSvm(part, chosen));
      return { ...shared, direction: Array.from(direction), margin, solution };
    }
    const euclidean = { direction: Array.from(direction), margin };
    const solution = ofWhole(planeNormSvm(part, chosen, power));
    return { ...shared, direction: Array.from(directionOf(solution)), margin: solution.margin ?? marginOf(solution), solution, euclidean };
  });
  const before = (a, b) => {
    if (a.isGlobal !== b.isGlobal) return a.isGlobal ? -1 : 1;
    const i = a.selected.findIndex((t, k) => t !== b.selected[k]);
    return i < 0 ? 0 : a.selected[i] - b.selected[i];
  };
  return numbered(problem, limits.sort(before));
}

/** Limits of joint training: of every best selection p^mm and, where it differs, p^relax, which wins in the end. */
function jointLimitsOf(problem, joint) {
  const limits = joint.found.flatMap(({ selected, strict, relaxed }) => {
    const entry = (label, solution, isGlobal) => {
      const found = { direction: Array.from(directionOf(solution)), margin: marginOf(solution) };
      return { label, selected, ...found, isGlobal, solution, power: 2 };
    };
    const isRelaxed = relaxed !== null && correlation(strict.x, relaxed.x) < 1 - SAME_DIRECTION_RTOL;
    return isRelaxed ? [entry("p^relax", relaxed, true), entry("p^mm", strict, false)] : [entry("p^mm", strict, true)];
  });
  return numbered(problem, limits);
}

/** Where the head of the first limit goes: { direction, colour }, or null. */
function jointHead({ found }) {
  return found.length > 0 ? { direction: Array.from(found[0].head), colour: "var(--limit-0)" } : null;
}

/** Sentences about what is odd in a problem that can be shown all the same. */
function remarksOf(state, problem) {
  const remarks = [];
  keysOf(state.problem).forEach((keys, i) => {
    keys.forEach((key, t) => {
      const u = keys.findIndex((other) => other[0] === key[0] && other[1] === key[1]);
      const places = [u, t].map((place) => tokenName(state.problem, i, place));
      if (u < t) remarks.push(`${capital(places.join(" and "))} of input ${i} lie in one place, so that no direction selects one of them without the other.`);
    });
  });
  if (problem.hasScores) {
    const isEven = Array.from(problem.lengths, (length, i) => problem.scores.subarray(i * problem.T, i * problem.T + length)).every((row) =>
      row.every((score) => score === row[0]),
    );
    if (isEven) remarks.push("All scores of each input are equal, so that training changes nothing; give one token a higher score.");
  }
  return remarks;
}

/** The analysis that is given where a state has none. */
function refused(sentence) {
  return { problem: null, prediction: null, outlook: null, limits: [], remarks: [], refusal: sentence };
}

function computed(state) {
  try {
    const problem = readProblem(problemOf(state));
    const remarks = remarksOf(state, problem);
    const outlook = new Outlook(problem);
    if (problem.joint) {
      const joint = jointLimits(problem);
      const prediction = { joint, candidates: [] };
      return { problem, prediction, outlook, limits: jointLimitsOf(problem, joint), head: jointHead(joint), remarks, refusal: null };
    }
    const prediction = predict(problem);
    const limits = limitsOf(problem, prediction);
    return { problem, prediction, outlook, limits, remarks, refusal: null };
  } catch (error) {
    if (error instanceof ProblemError) return refused(error.message);
    throw error;
  }
}

/**
 * { problem, prediction, outlook, limits, remarks, refusal } of a state with its chosen start.
 *
 * problem is the kernels', prediction what `predict` gives ({ joint } where head and attention are trained together), outlook the run that
 * is followed to where it ends, limits every locally optimal direction { index, label, selected, direction, margin, isGlobal, solution,
 * optimality, power, colour, mark }; in another norm than the
 * Euclidean, which `power` names, direction and margin are those of that norm, and
 * `euclidean` has those of the Euclidean. head is { direction, colour } of the head that is trained too. remarks are
 * sentences, refusal is one where nothing holds.
 */
export function analyse(state) {
  const start = state.starts[state.chosen.start ?? 0].join();
  let ofStart = known.get(state.problem);
  if (ofStart === undefined) known.set(state.problem, (ofStart = new Map()));
  let found = ofStart.get(start);
  if (found === undefined) {
    if (ofStart.size >= MAX_STARTS_REMEMBERED) ofStart.clear();
    ofStart.set(start, (found = computed(state)));
  }
  return found;
}

/** The limit that training ends at, as far as it was followed; null where it is none of them. */
export function expectedLimit({ outlook, prediction, limits }) {
  const { direction = null, selected = [] } = outlook?.answer ?? {};
  const inputs = prediction?.dependent ?? [];
  return (direction && limits.find((limit) => inputs.every((i) => limit.selected[i] === selected[i]))) || null;
}

/** The limit whose lines, support tokens and proof are shown: the chosen one, else the expected one, else the first; null where none is. */
export function shownLimit(state, analysis) {
  return analysis.limits[state.chosen.limit ?? -1] ?? expectedLimit(analysis) ?? analysis.limits[0] ?? null;
}
