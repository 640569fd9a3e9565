// Descent on attention weights p, or on head and attention together: exact at any norm, in pieces, and back to any step.

import { callCore } from "./core.js";
import { norm } from "./linalg.js";
import { tokenProblem } from "./problem.js";
import { largestOf } from "./softmax.js";

export const RAN_ALL = 0;
export const STATIONARY = 1;
export const NON_FINITE = 2;

/** The core's codes of the norms in which an optimizer's steps are steepest. */
export const NORM_CODES = { "coordinate-descent": 0, "normalized-gd": 1, "gradient-descent": 1, "sign-descent": 2, "steepest-descent": 3 };

const [STEEPEST, ADAM] = [0, 2]; // kinds of update
const d = 2; // numbers of a key, of a token and of a head
const N_LANES = 4; // inputs that the core takes at a time
const FIRST_INTERVAL = 512; // steps between two checkpoints
const MAX_CHECKPOINTS = 4096;
const MIN_CHECKPOINTS = 16;
const MAX_CHECKPOINT_NUMBERS = 4_000_000; // in all of them together: 32 MB

// A loop has a state of `size` numbers, of which the first `width` are the point: begin(state) fills it before the first step and returns
// how the run ended by then, advance(state, from, to, wanted) takes steps from … to - 1 and returns { status, steps, points }, the points
// after the `wanted` steps, from … to, one after the other.

/** The loop that trains a problem with its optimizer. */
export function loopOf(problem) {
  if (problem.joint) return jointLoop(problem);
  const { name } = problem.optimizer;
  if (name === "gradient-descent" || name === "normalized-gd") return euclideanLoop(problem, name === "normalized-gd");
  return steepestLoop(problem);
}

/** Plain and normalised gradient descent on p; the state is p, p again or its coefficients over the keys, and the logits. */
function euclideanLoop(problem, normalized) {
  const { n, T, lengths, scores, code } = problem;
  const places = Math.ceil(n / N_LANES) * N_LANES * T;
  const width = 2 * d <= n * T ? d : places;
  const sizes = { n_problems: 1, n_inputs: n, n_tokens: T, d, batch: 1, width, n_places: places, gram_size: 0, n_offsets: 0 };
  const given = { first: 0, last: 1, keys: problem.K, scores, lengths, offsets: new Float64Array(0), start: problem.start, normalized: Number(normalized) };
  const rule = { step: problem.optimizer.size, loss: code, gram: new Float64Array(0), has_gram: new Int32Array(1) };
  const advance = (state, from, to, wanted = []) => {
    const save = Int32Array.from([...wanted, to]);
    const ends = Int32Array.of(RAN_ALL, from);
    const out = new Float64Array(save.length * d);
    const carried = { states: state.subarray(d, d + width), logits: state.subarray(d + width), ends, out };
    callCore("descend_attention", { ...given, ...rule, ...sizes, ...carried, n_steps: to, stop: to, save, n_saved: save.length });
    state.set(out.subarray(out.length - d));
    return { status: ends[0], steps: ends[1], points: out.subarray(0, out.length - d) };
  };
  return { size: d + width + places, width: d, begin: (state) => advance(state, 0, 0).status, advance };
}

/** All other optimizers on p; the state is p, the logits, and what the optimizer and its brackets remember. */
function steepestLoop(problem) {
  const { n, T, lengths, scores, optimizer } = problem;
  const { name, size, decay, momentum = 0, betas = [0, 0], eps = 0, p: power = 2 } = optimizer;
  const m = n * T;
  const sizes = { n_problems: 1, n_inputs: n, n_tokens: T, d, n_terms: 1, q: 1, height: 1, breadth: d, batch: 1, n_memory: 1, n_batches: 0, batch_size: 0 };
  const given = { first: 0, last: 1, keys: problem.K, scores, lengths, queries: [1], loss: problem.code, heads: 1, apart: 0, terms: [] };
  const [beta_1, beta_2] = betas;
  const settings = { power, momentum, nesterov: 0, beta_1, beta_2, eps, mirror_power: 2, normalized: 0, decay: 0 };
  const rule = { kind: name === "adam" ? ADAM : STEEPEST, norm: NORM_CODES[name] ?? 0, settings };
  const lengthsOf = { points: d, logits: m, memory: 2 * d, scales: 1, residuals: 2 * m, anchors: 2 * d };
  const partsOf = (state) => {
    let end = 0;
    return Object.fromEntries(Object.entries(lengthsOf).map(([part, count]) => [part, state.subarray(end, (end += count))]));
  };
  const advance = (state, from, to, wanted = []) => {
    const ends = Int32Array.of(RAN_ALL, from);
    const points = new Float64Array(wanted.length * d);
    const schedule = Float64Array.from({ length: to - from }, (_, k) => (decay ? size * (from + k + 1) ** -decay : size));
    const steps = { sizes: schedule, n_sizes: to - from, begin: from, n_steps: to, stop: to, save: wanted, n_saved: wanted.length };
    callCore("descend_matrices", { ...given, ...rule, ...sizes, ...steps, ...partsOf(state), ends, out: points });
    return { status: ends[0], steps: ends[1], points };
  };
  const begin = (state) => {
    state.fill(0);
    const { points, scales } = partsOf(state);
    points.set(problem.start);
    scales.fill(-Infinity);
    return advance(state, 0, 0).status;
  };
  return { size: Object.values(lengthsOf).reduce((total, count) => total + count), width: d, begin, advance };
}

/** Descent on head v and attention p together, each by its own gradient; the state is v followed by p. */
function jointLoop(problem) {
  const { n, T, lengths, optimizer } = problem;
  const sizes = { n_problems: 1, n_inputs: n, n_tokens: T, d_model: d, d_key: d, batch: 1 };
  const given = { first: 0, last: 1, tokens: problem.X, keys: problem.K, labels: problem.y, lengths };
  const rule = { normalized: Number(optimizer.name === "normalized-gd"), step: optimizer.size, power: 2, loss: problem.code };
  const advance = (state, from, to, wanted = []) => {
    const ends = Int32Array.of(RAN_ALL, from);
    const [heads, ps] = [new Float64Array(wanted.length * d), new Float64Array(wanted.length * d)];
    const carried = { v: state.subarray(0, d), p: state.subarray(d), ends, heads, points: ps };
    callCore("descend_jointly", { ...given, ...rule, ...sizes, ...carried, n_steps: to, stop: to, save: wanted, n_saved: wanted.length });
    const points = Float64Array.from(wanted.flatMap((_, k) => [heads, ps].flatMap((all) => Array.from(all.subarray(k * d, (k + 1) * d)))));
    return { status: ends[0], steps: ends[1], points };
  };
  const begin = (state) => {
    state.set([...problem.startHead, ...problem.start]);
    return RAN_ALL;
  };
  return { size: 2 * d, width: 2 * d, begin, advance };
}

/** { probabilities (count, n, T), margins (count, n), risks (count) } of attention at points p (count, d). */
export function measurePoints(problem, points) {
  const { n, T, lengths, K, scores, code } = problem;
  const count = points.length / d;
  const found = { probabilities: new Float64Array(count * n * T), margins: new Float64Array(count * n), risks: new Float64Array(count) };
  callCore("measure_attention", { keys: K, scores, lengths, loss: code, points, ...found, n_inputs: n, n_tokens: T, d, batch: count });
  return found;
}

/**
 * What the curves show of a point of `loopOf(problem)`: { norm, attention, selected, margins, risk }, the norm being that of p, attention
 * (n T), and margins Y f(X) of every input.
 */
export function measurePoint(problem, point) {
  const p = problem.joint ? point.slice(d) : point;
  const scored = problem.joint ? tokenProblem({ ...problem, head: point.slice(0, d) }) : problem;
  const { probabilities, margins, risks } = measurePoints(scored, p);
  const selected = Array.from(problem.lengths, (length, i) => largestOf(probabilities, i * problem.T, length));
  return { norm: norm(p), attention: probabilities, selected, margins, risk: risks[0] };
}

/**
 * A run that is advanced in pieces and can go back to any step it has taken.
 *
 * It holds whole states at the multiples of `interval`, at most 4,096 of them, fewer where states are large: `interval` doubles when there
 * are more. Any other step is computed again from the state before it, bit by bit as it was.
 */
export class Descent {
  /** loop: of `loopOf(problem)`, or of another module. */
  constructor(loop) {
    this.loop = loop;
    this.state = new Float64Array(loop.size);
    this.status = loop.begin(this.state);
    this.steps = 0;
    this.interval = FIRST_INTERVAL;
    this.capacity = Math.max(MIN_CHECKPOINTS, Math.min(MAX_CHECKPOINTS, Math.floor(MAX_CHECKPOINT_NUMBERS / loop.size)));
    this.checkpoints = [this.state.slice()];
  }

  /** The present point. */
  get point() {
    return this.state.slice(0, this.loop.width);
  }

  /** Take up to `count` further steps; returns the points after the `wanted` ones of them, increasing, that were taken. */
  advance(count, wanted = []) {
    const end = this.steps + count;
    const { width } = this.loop;
    const found = [];
    while (this.status === RAN_ALL && this.steps < end) {
      const next = Math.min(end, (Math.floor(this.steps / this.interval) + 1) * this.interval);
      const asked = wanted.filter((step) => step > this.steps && step <= next);
      const { status, steps, points } = this.loop.advance(this.state, this.steps, next, asked);
      asked.forEach((step, k) => step <= steps && found.push(points.slice(k * width, (k + 1) * width)));
      this.status = status;
      this.steps = steps;
      if (status === RAN_ALL && steps % this.interval === 0) this.#keep();
    }
    return found;
  }

  #keep() {
    this.checkpoints.push(this.state.slice());
    if (this.checkpoints.length > this.capacity) {
      this.checkpoints = this.checkpoints.filter((_, k) => k % 2 === 0);
      this.interval *= 2;
    }
  }

  /** The point after `step` steps; the last one where the run has taken fewer. */
  at(step) {
    if (step >= this.steps) return this.point;
    const place = Math.floor(step / this.interval);
    const state = this.checkpoints[place].slice();
    if (step > place * this.interval) this.loop.advance(state, place * this.interval, step);
    return state.slice(0, this.loop.width);
  }
}
