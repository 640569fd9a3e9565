// Problems: their JSON form, checked with one sentence for each fault, and the arrays that the kernels read.

import { LOSS_CODES } from "./softmax.js";

export const FORMAT = "marginlens-problem";
export const FORMAT_VERSION = 2;
export const MAX_INPUTS = 8;
export const MAX_TOKENS = 12;
export const MAX_STEPS = 10_000_000;
export const DEFAULT_STEPS = 1000;
export const MAX_ENTRY = 1e6; // of tokens, keys, scores and heads, in modulus
export const MAX_START = 1e12; // of starts
const SCORE_RTOL = 1e-12; // error of a score, relative to the sum of |v_j x_j|, that rounding alone can make

/** The optimizers of the page by name, and which of their settings it knows, with their defaults. */
export const OPTIMIZERS = {
  "gradient-descent": { size: 1 },
  "normalized-gd": { size: 1 },
  "sign-descent": { size: 0.1, decay: 0, momentum: 0 },
  "coordinate-descent": { size: 0.1, decay: 0, momentum: 0 },
  "steepest-descent": { size: 0.1, decay: 0, momentum: 0, p: 3 },
  adam: { size: 0.1, decay: 0, betas: [0.9, 0.999], eps: 0 },
};

/** What is wrong with a problem, in one sentence. */
export class ProblemError extends Error {}

function refuse(sentence) {
  throw new ProblemError(sentence);
}

function shown(value) {
  const text = typeof value === "number" ? String(value) : JSON.stringify(value);
  return text === undefined ? String(value) : text.length > 40 ? `${text.slice(0, 37)}…` : text;
}

function countOf(value, what) {
  return Array.isArray(value) ? `${value.length} ${what}` : shown(value);
}

function numberIn(value, what, low, high) {
  if (typeof value !== "number" || !Number.isFinite(value)) refuse(`${what} must be a number; got ${shown(value)}.`);
  if (value < low || value > high) refuse(`${what} must lie between ${low} and ${high}; got ${value}.`);
  return value;
}

function vectorOf(value, what, width, largest = MAX_ENTRY) {
  if (!Array.isArray(value) || value.length !== width)
    refuse(`${what} must be a list of ${width} numbers; got ${countOf(value, "entries")}.`);
  return Float64Array.from(value, (entry, k) => numberIn(entry, `${what}[${k}]`, -largest, largest));
}

/** Inputs of points of the plane as { n, T, lengths, values (n T 2) }, padded with zeros; `what` is "keys" or "tokens". */
function tokenArrays(value, what) {
  const isList = (entry) => Array.isArray(entry) && entry.length > 0;
  if (!isList(value)) refuse(`${what} must be a list of inputs, each a list of vectors; got ${shown(value)}.`);
  if (value.length > MAX_INPUTS) refuse(`${what} must hold at most ${MAX_INPUTS} inputs; got ${value.length}.`);
  value.forEach((input, i) => {
    if (!isList(input)) refuse(`Input ${i} of ${what} must hold at least one token; got ${shown(input)}.`);
    if (input.length > MAX_TOKENS) refuse(`Input ${i} of ${what} must hold at most ${MAX_TOKENS} tokens; got ${input.length}.`);
    input.forEach((vector, t) => {
      if (!isList(vector)) refuse(`Token ${t} of input ${i} of ${what} must be a list of numbers; got ${shown(vector)}.`);
      if (vector.length !== 2)
        refuse(`The lab is two-dimensional: every ${what.slice(0, -1)} needs exactly two numbers; token ${t} of input ${i} has ${vector.length}.`);
    });
  });
  const lengths = Int32Array.from(value, (input) => input.length);
  const T = Math.max(...lengths);
  const values = new Float64Array(value.length * T * 2);
  value.forEach((input, i) => {
    input.flat().forEach((entry, k) => {
      const name = `Number ${k % 2} of token ${Math.floor(k / 2)} of input ${i} of ${what}`;
      values[2 * i * T + k] = numberIn(entry, name, -MAX_ENTRY, MAX_ENTRY);
    });
  });
  return { n: value.length, T, lengths, values };
}

/** The name of a class as files have it since version 2: normalized-gd for NormalizedGD. */
function kebab(name) {
  return name.replace(/(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])/g, "-").toLowerCase();
}

/** Keys W x of tokens of the plane. */
function keysBy(W, tokens) {
  if (!Array.isArray(W) || W.length !== 2) refuse(`W must be a list of 2 rows; got ${countOf(W, "rows")}.`);
  const rows = W.map((row, k) => vectorOf(row, `W[${k}]`, 2));
  tokenArrays(tokens, "tokens");
  return tokens.map((input) => input.map(([x, y]) => rows.map(([a, b]) => a * x + b * y)));
}

/** A problem's JSON form as this version writes it, whichever wrote it: names of optimizer and loss in kebab case, keys instead of W. */
export function currentProblem(json) {
  if (typeof json !== "object" || json === null || Array.isArray(json))
    refuse(`A problem must be a JSON object; got ${shown(json)}.`);
  if (json.format !== undefined && json.format !== FORMAT) refuse(`The format must be ${FORMAT}; got ${shown(json.format)}.`);
  if (json.version !== undefined && !(Number.isInteger(json.version) && json.version >= 1 && json.version <= FORMAT_VERSION))
    refuse(`This page reads the problem format up to version ${FORMAT_VERSION}; got version ${shown(json.version)}.`);
  const { W, ...problem } = json;
  if (typeof json.optimizer?.name === "string") problem.optimizer = { ...json.optimizer, name: kebab(json.optimizer.name) };
  if (typeof json.loss === "string") problem.loss = kebab(json.loss);
  if (W && json.keys) refuse("Keys must be given outright or by W; got both.");
  return W ? { ...problem, keys: keysBy(W, json.tokens) } : problem;
}

function checkedOptimizer(given, joint) {
  if (given === undefined || given === null) return { name: "normalized-gd", size: joint ? 0.1 : 1 };
  if (typeof given !== "object" || !(given.name in OPTIMIZERS))
    refuse(`The optimizer must be named one of ${Object.keys(OPTIMIZERS).join(", ")}; got ${shown(given.name ?? given)}.`);
  if (joint && given.name !== "gradient-descent" && given.name !== "normalized-gd")
    refuse(`Head and attention are trained together by gradient-descent or normalized-gd; got ${given.name}.`);
  const optimizer = { name: given.name, ...structuredClone(OPTIMIZERS[given.name]) };
  for (const [key, value] of Object.entries(given)) {
    if (key !== "name" && !(key in optimizer)) refuse(`${given.name} has no setting ${shown(key)}.`);
    optimizer[key] = value;
  }
  numberIn(optimizer.size, "The step size", Number.MIN_VALUE, 1e6);
  if ("decay" in optimizer) numberIn(optimizer.decay, "The decay of the step size", 0, 2);
  if ("momentum" in optimizer && !(numberIn(optimizer.momentum, "The momentum", 0, 1) < 1)) refuse("The momentum must be below 1; got 1.");
  if ("p" in optimizer && !(numberIn(optimizer.p, "The p of ℓp", 1, 1e3) > 1))
    refuse("The p of ℓp must be above 1; coordinate-descent is the case 1.");
  if ("betas" in optimizer) {
    const { betas } = optimizer;
    if (!Array.isArray(betas) || betas.length !== 2) refuse(`Adam's betas must be two numbers; got ${shown(betas)}.`);
    for (const beta of betas) {
      if (!(numberIn(beta, "Each of Adam's betas", 0, 1) < 1)) refuse("Each of Adam's betas must be below 1; got 1.");
    }
    numberIn(optimizer.eps, "Adam's eps", 0, 1e6);
  }
  return optimizer;
}

/**
 * The problem of a JSON object, or a `ProblemError` whose message is one sentence.
 *
 * {
 *   "format": "marginlens-problem", "version": 2,
 *   "tokens": [[[…], …], …]   inputs of vectors, or left out where keys and scores are given,
 *   "keys":   the same shape, or "W": [[…], […]] with keys W x; left out where the keys are the tokens,
 *   "labels": [1, -1, …]      +1 of every input by default,
 *   "head":   […]             or "scores": [[…], …] outright, or neither where both are trained,
 *   "train":  "attention" or "both",  "start": […],  "start_head": […],
 *   "optimizer": {"name": "normalized-gd", "size": 1},  "loss": "logistic",  "steps": 1000,
 *   "words": [["…", …], …]    what tokens are called, where they have names
 * }
 */
export function readProblem(given) {
  const json = currentProblem(given);
  const train = json.train ?? "attention";
  if (train !== "attention" && train !== "both") refuse(`"train" must be "attention" or "both"; got ${shown(train)}.`);
  const joint = train === "both";
  const byScores = json.scores !== undefined && json.scores !== null;
  if (byScores && json.head) refuse("Scores must come from a head or be given outright; got both.");
  if (byScores && joint) refuse("Where the head is trained too, scores cannot be given outright.");
  const { n, T, lengths, values: K } = tokenArrays(json.keys ?? json.tokens, json.keys ? "keys" : "tokens");
  const labels = json.labels ?? new Array(n).fill(1);
  if (!Array.isArray(labels) || labels.length !== n)
    refuse(`There must be one label for each of ${n} inputs; got ${shown(labels)}.`);
  for (const label of labels) if (label !== 1 && label !== -1) refuse(`Each label must be 1 or -1; got ${shown(label)}.`);
  const y = Float64Array.from(labels);
  let X = K;
  if (!byScores && json.keys) {
    if (!json.tokens) refuse("Keys without tokens need scores; give tokens or scores.");
    const tokens = tokenArrays(json.tokens, "tokens");
    if (tokens.n !== n || lengths.some((length, i) => length !== tokens.lengths[i]))
      refuse("There must be one key for each token; their numbers differ.");
    X = tokens.values;
  }
  const head = json.head ? vectorOf(json.head, "head", 2) : null;
  if (head === null && !byScores && !joint) refuse("A problem of attention alone must have a head or scores; got neither.");
  const startHead = json.start_head ? vectorOf(json.start_head, "start_head", 2, MAX_START) : new Float64Array(2);
  const loss = json.loss ?? "logistic";
  if (!(loss in LOSS_CODES)) refuse(`The loss must be one of ${Object.keys(LOSS_CODES).join(", ")}; got ${shown(loss)}.`);
  const steps = json.steps ?? DEFAULT_STEPS;
  if (!Number.isInteger(steps) || steps < 0 || steps > MAX_STEPS)
    refuse(`The number of steps must be a whole number up to ${MAX_STEPS}; got ${shown(steps)}.`);
  const words = json.words ?? null;
  const isNamed = (names, i) => Array.isArray(names) && names.length === lengths[i] && names.every((name) => typeof name === "string");
  if (words !== null && !(Array.isArray(words) && words.length === n && words.every(isNamed)))
    refuse(`There must be a list of words for each of ${n} inputs, one for each token; got ${shown(words)}.`);
  return tokenProblem({
    words, n, T, lengths, X, K, y, head, startHead, byScores, joint, loss, steps,
    given: byScores ? givenScores(json.scores, n, T, lengths) : null,
    keysAreTokens: !json.keys && !byScores,
    start: json.start ? vectorOf(json.start, "start", 2, MAX_START) : new Float64Array(2),
    optimizer: checkedOptimizer(json.optimizer, joint),
  });
}

/** Scores that are given outright, (n T). */
function givenScores(value, n, T, lengths) {
  if (!Array.isArray(value) || value.length !== n) refuse(`There must be a list of scores for each of ${n} inputs; got ${shown(value)}.`);
  const scores = new Float64Array(n * T);
  value.forEach((row, i) => {
    if (!Array.isArray(row) || row.length !== lengths[i])
      refuse(`Input ${i} must have ${lengths[i]} scores, one for each token; got ${countOf(row, "scores")}.`);
    row.forEach((score, t) => (scores[i * T + t] = numberIn(score, `The score of token ${t} of input ${i}`, -MAX_ENTRY, MAX_ENTRY)));
  });
  return scores;
}

/** The problem with its scores γ_it = Y_i v·x_it, or as given, and how far rounding blurs each, (n T); zero where there is no token. */
export function tokenProblem(problem) {
  const { n, T, X, y, head, given } = problem;
  const part = (at, k) => (head === null ? 0 : y[Math.floor(at / T)] * X[2 * at + k] * head[k]);
  const scores = given ?? Float64Array.from({ length: n * T }, (_, at) => part(at, 0) + part(at, 1));
  const blurred = (at, k) => (head === null ? 0 : Math.abs(X[2 * at + k]) * (SCORE_RTOL * Math.abs(head[k])));
  const blur = scores.map((score, at) => (given ? SCORE_RTOL * Math.abs(score) : blurred(at, 0) + blurred(at, 1)));
  return { ...problem, code: LOSS_CODES[problem.loss], scores, blur, hasScores: given !== null || head !== null };
}

/** Where the tokens of input i are in arrays (n T). */
export function placesOf({ T, lengths }, i) {
  return Array.from({ length: lengths[i] }, (_, t) => i * T + t);
}

/** The same problem with only some of its inputs, by their indices. */
export function takeInputs(problem, chosen) {
  const lengths = Int32Array.from(chosen, (i) => problem.lengths[i]);
  const T = Math.max(...lengths);
  const taken = (values, width) => {
    const out = new Float64Array(chosen.length * T * width);
    chosen.forEach((i, place) => out.set(values.subarray(i * problem.T * width, (i * problem.T + T) * width), place * T * width));
    return out;
  };
  const parts = { X: taken(problem.X, 2), K: taken(problem.K, 2), scores: taken(problem.scores, 1), blur: taken(problem.blur, 1) };
  return { ...problem, n: chosen.length, T, lengths, y: Float64Array.from(chosen, (i) => problem.y[i]), ...parts };
}
