// Problems: their JSON form, checked with one sentence for each fault, and the arrays that the kernels read.

import { dot } from "./linalg.js";
import { LOSS_CODES } from "./softmax.js";

export const FORMAT = "marginlens-problem";
export const FORMAT_VERSION = 1;
export const MAX_INPUTS = 8;
export const MAX_TOKENS = 12;
export const MAX_WIDTH = 8;
export const MAX_STEPS = 10_000_000;
export const DEFAULT_STEPS = 1000;
export const MAX_ENTRY = 1e6; // of tokens, keys, scores and heads, in modulus
export const MAX_START = 1e12; // of starts
export const SCORE_RTOL = 1e-12; // error of a score, relative to the sum of |v_j x_j|, that rounding alone can make

/** How each optimizer is called in Python, and which of its settings the page knows, with their defaults. */
export const OPTIMIZERS = {
  GradientDescent: { size: 1 },
  NormalizedGD: { size: 1 },
  SignDescent: { size: 0.1, decay: 0, momentum: 0 },
  CoordinateDescent: { size: 0.1, decay: 0, momentum: 0 },
  SteepestDescent: { size: 0.1, decay: 0, momentum: 0, p: 3 },
  Adam: { size: 0.1, decay: 0, betas: [0.9, 0.999], eps: 0 },
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

/** Inputs of vectors as { n, T, width, lengths, values (n T width) }, padded with zeros. */
function tokenArrays(value, what) {
  const isList = (entry) => Array.isArray(entry) && entry.length > 0;
  if (!isList(value)) refuse(`${what} must be a list of inputs, each a list of vectors; got ${shown(value)}.`);
  const n = value.length;
  if (n > MAX_INPUTS) refuse(`${what} must hold at most ${MAX_INPUTS} inputs; got ${n}.`);
  let width = 0;
  let T = 0;
  value.forEach((input, i) => {
    if (!isList(input)) refuse(`Input ${i} of ${what} must hold at least one token; got ${shown(input)}.`);
    if (input.length > MAX_TOKENS) refuse(`Input ${i} of ${what} must hold at most ${MAX_TOKENS} tokens; got ${input.length}.`);
    T = Math.max(T, input.length);
    input.forEach((vector, t) => {
      if (!isList(vector)) refuse(`Token ${t} of input ${i} of ${what} must be a list of numbers; got ${shown(vector)}.`);
      if (width === 0) width = vector.length;
      if (vector.length !== width)
        refuse(`All vectors of ${what} must have ${width} numbers; token ${t} of input ${i} has ${vector.length}.`);
    });
  });
  if (width > MAX_WIDTH) refuse(`Vectors of ${what} must have at most ${MAX_WIDTH} numbers; got ${width}.`);
  const values = new Float64Array(n * T * width);
  value.forEach((input, i) => {
    input.forEach((vector, t) => {
      vector.forEach((entry, k) => {
        const name = `Number ${k} of token ${t} of input ${i} of ${what}`;
        values[(i * T + t) * width + k] = numberIn(entry, name, -MAX_ENTRY, MAX_ENTRY);
      });
    });
  });
  return { n, T, width, lengths: Int32Array.from(value, (input) => input.length), values };
}

function checkedOptimizer(given, joint) {
  if (given === undefined || given === null) return { name: "NormalizedGD", size: joint ? 0.1 : 1 };
  if (typeof given !== "object" || !(given.name in OPTIMIZERS))
    refuse(`The optimizer must be named one of ${Object.keys(OPTIMIZERS).join(", ")}; got ${shown(given.name ?? given)}.`);
  if (joint && given.name !== "GradientDescent" && given.name !== "NormalizedGD")
    refuse(`Head and attention are trained together by GradientDescent or NormalizedGD; got ${given.name}.`);
  const optimizer = { name: given.name, ...structuredClone(OPTIMIZERS[given.name]) };
  for (const [key, value] of Object.entries(given)) {
    if (key !== "name" && !(key in optimizer)) refuse(`${given.name} has no setting ${shown(key)}.`);
    optimizer[key] = value;
  }
  numberIn(optimizer.size, "The step size", Number.MIN_VALUE, 1e6);
  if ("decay" in optimizer) numberIn(optimizer.decay, "The decay of the step size", 0, 2);
  if ("momentum" in optimizer && !(numberIn(optimizer.momentum, "The momentum", 0, 1) < 1)) refuse("The momentum must be below 1; got 1.");
  if ("p" in optimizer && !(numberIn(optimizer.p, "The p of ℓp", 1, 1e3) > 1))
    refuse("The p of ℓp must be above 1; CoordinateDescent is the case 1.");
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
 *   "format": "marginlens-problem", "version": 1,
 *   "tokens": [[[…], …], …]   inputs of vectors, or left out where keys and scores are given,
 *   "keys":   the same shape, left out where the keys are the tokens,
 *   "labels": [1, -1, …]      +1 of every input by default,
 *   "head":   […]             or "scores": [[…], …] outright, or neither where both are trained,
 *   "train":  "attention" or "both",  "start": […],  "start_head": […],
 *   "optimizer": {"name": "NormalizedGD", "size": 1},  "loss": "Logistic",  "steps": 1000
 * }
 */
export function readProblem(json) {
  if (typeof json !== "object" || json === null || Array.isArray(json))
    refuse(`A problem must be a JSON object; got ${shown(json)}.`);
  if (json.format !== undefined && json.format !== FORMAT) refuse(`The format must be ${FORMAT}; got ${shown(json.format)}.`);
  if (json.version !== undefined && json.version !== FORMAT_VERSION)
    refuse(`This page reads version ${FORMAT_VERSION} of the problem format; got version ${shown(json.version)}.`);
  const train = json.train ?? "attention";
  if (train !== "attention" && train !== "both") refuse(`"train" must be "attention" or "both"; got ${shown(train)}.`);
  const joint = train === "both";
  const byScores = json.scores !== undefined && json.scores !== null;
  if (byScores && json.head) refuse("Scores must come from a head or be given outright; got both.");
  if (byScores && joint) refuse("Where the head is trained too, scores cannot be given outright.");
  const keyForm = json.keys ?? json.tokens;
  const keys = tokenArrays(keyForm, json.keys ? "keys" : "tokens");
  const { n, T, lengths } = keys;
  const labels = json.labels ?? new Array(n).fill(1);
  if (!Array.isArray(labels) || labels.length !== n)
    refuse(`There must be one label for each of ${n} inputs; got ${shown(labels)}.`);
  for (const label of labels) if (label !== 1 && label !== -1) refuse(`Each label must be 1 or -1; got ${shown(label)}.`);
  const y = Float64Array.from(labels);
  const d = keys.width;
  let X = keys.values;
  let dModel = d;
  let head = null;
  if (byScores) {
    if (!Array.isArray(json.scores) || json.scores.length !== n)
      refuse(`There must be a list of scores for each of ${n} inputs; got ${shown(json.scores)}.`);
    dModel = d + 1;
    X = new Float64Array(n * T * dModel);
    json.scores.forEach((row, i) => {
      if (!Array.isArray(row) || row.length !== lengths[i])
        refuse(`Input ${i} must have ${lengths[i]} scores, one for each token; got ${countOf(row, "scores")}.`);
      row.forEach((score, t) => {
        const at = (i * T + t) * dModel;
        for (let k = 0; k < d; k++) X[at + k] = keys.values[(i * T + t) * d + k];
        X[at + d] = y[i] * numberIn(score, `The score of token ${t} of input ${i}`, -MAX_ENTRY, MAX_ENTRY);
      });
    });
    head = new Float64Array(dModel);
    head[d] = 1;
  } else if (json.keys) {
    if (!json.tokens) refuse("Keys without tokens need scores; give tokens or scores.");
    const tokens = tokenArrays(json.tokens, "tokens");
    if (tokens.n !== n || lengths.some((length, i) => length !== tokens.lengths[i]))
      refuse("There must be one key for each token; their numbers differ.");
    X = tokens.values;
    dModel = tokens.width;
  }
  if (json.head) head = vectorOf(json.head, "head", dModel);
  if (head === null && !joint) refuse("A problem of attention alone must have a head or scores; got neither.");
  const startHead = json.start_head ? vectorOf(json.start_head, "start_head", dModel, MAX_START) : new Float64Array(dModel);
  const loss = json.loss ?? "Logistic";
  if (!(loss in LOSS_CODES)) refuse(`The loss must be one of ${Object.keys(LOSS_CODES).join(", ")}; got ${shown(loss)}.`);
  const steps = json.steps ?? DEFAULT_STEPS;
  if (!Number.isInteger(steps) || steps < 0 || steps > MAX_STEPS)
    refuse(`The number of steps must be a whole number up to ${MAX_STEPS}; got ${shown(steps)}.`);
  return tokenProblem({
    n, T, d, dModel, lengths, X, K: keys.values, y, head,
    keysAreTokens: !json.keys && !byScores,
    byScores,
    joint,
    start: json.start ? vectorOf(json.start, "start", d, MAX_START) : new Float64Array(d),
    startHead,
    optimizer: checkedOptimizer(json.optimizer, joint),
    loss,
    steps,
  });
}

/** The problem with its scores γ_it = Y_i v·x_it and how far rounding blurs each, (n T); zero where there is no token. */
export function tokenProblem(parts) {
  const size = parts.n * parts.T;
  const problem = { ...parts, code: LOSS_CODES[parts.loss], scores: new Float64Array(size), blur: new Float64Array(size) };
  if (parts.head === null) return problem;
  const { n, T, dModel, lengths, X, y, head } = problem;
  const sizes = Float64Array.from(head, Math.abs);
  for (let i = 0; i < n; i++) {
    for (let t = 0; t < lengths[i]; t++) {
      const x = X.subarray((i * T + t) * dModel, (i * T + t + 1) * dModel);
      problem.scores[i * T + t] = y[i] * dot(x, head);
      for (let k = 0; k < dModel; k++) problem.blur[i * T + t] += Math.abs(x[k]) * (SCORE_RTOL * sizes[k]);
    }
  }
  return problem;
}

/** The JSON object of a problem, which `readProblem` reads back. */
export function problemToJson(problem) {
  const { n, T, d, dModel, lengths } = problem;
  const listed = (values, width) =>
    Array.from({ length: n }, (_, i) =>
      Array.from({ length: lengths[i] }, (_, t) => Array.from(values.subarray((i * T + t) * width, (i * T + t + 1) * width))),
    );
  const json = { format: FORMAT, version: FORMAT_VERSION, labels: Array.from(problem.y) };
  if (problem.byScores) {
    json.keys = listed(problem.K, d);
    json.scores = Array.from({ length: n }, (_, i) => Array.from(problem.scores.subarray(i * T, i * T + lengths[i])));
  } else {
    json.tokens = listed(problem.X, dModel);
    if (!problem.keysAreTokens) json.keys = listed(problem.K, d);
    if (problem.head !== null) json.head = Array.from(problem.head);
  }
  json.train = problem.joint ? "both" : "attention";
  json.start = Array.from(problem.start);
  if (problem.joint) json.start_head = Array.from(problem.startHead);
  json.optimizer = { ...problem.optimizer };
  json.loss = problem.loss;
  json.steps = problem.steps;
  return json;
}

/** The same problem with only some of its inputs, by their indices. */
export function takeInputs(problem, chosen) {
  const { d, dModel, lengths } = problem;
  const T = Math.max(...chosen.map((i) => lengths[i]));
  const taken = (values, width) => {
    const out = new Float64Array(chosen.length * T * width);
    chosen.forEach((i, place) => {
      const first = i * problem.T * width;
      out.set(values.subarray(first, first + T * width), place * T * width);
    });
    return out;
  };
  return {
    ...problem,
    n: chosen.length,
    T,
    lengths: Int32Array.from(chosen, (i) => lengths[i]),
    X: taken(problem.X, dModel),
    K: taken(problem.K, d),
    y: Float64Array.from(chosen, (i) => problem.y[i]),
    scores: taken(problem.scores, 1),
    blur: taken(problem.blur, 1),
  };
}
