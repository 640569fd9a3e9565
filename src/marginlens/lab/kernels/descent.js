// Descent on attention weights p, or on head and attention together: exact at any norm, in pieces, and back to any step.

import { callCore } from "./core.js";
import { allFinite, matvec, maxAbs, norm, vecmat } from "./linalg.js";
import { centredKeys, logitsAt, tokenProblem } from "./problem.js";
import { attention, inputMargins, largestOf, pairWeights, riskValue } from "./softmax.js";

export const RAN_ALL = 0;
export const STATIONARY = 1;
export const NON_FINITE = 2;

const RESYNC_STEPS = 64; // after which accumulated logits are computed afresh
const TIE_RTOL = 1e-12; // of the largest modulus: entries this close to it are as large, whichever way sums were rounded
const MAX_RESCALING = 300; // logarithm by which Adam's running means are scaled in one step
const N_LANES = 4; // inputs that the core takes at a time
const FIRST_INTERVAL = 64; // steps between two checkpoints
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
  if (name === "GradientDescent" || name === "NormalizedGD") return euclideanLoop(problem, name === "NormalizedGD");
  return name === "Adam" ? adamLoop(problem) : steepestLoop(problem);
}

/** η_t = size · (t + 1)^-decay. */
function sizeAt(optimizer, t) {
  return optimizer.decay ? optimizer.size * (t + 1) ** -optimizer.decay : optimizer.size;
}

function beginAttention(problem, rows, state) {
  const { d } = problem;
  const m = problem.n * problem.T;
  state.fill(0);
  state.set(problem.start, 0);
  const a = state.subarray(d, d + m);
  matvec(rows, m, d, problem.start, a);
  return allFinite(a) ? RAN_ALL : NON_FINITE;
}

/** Plain and normalised gradient descent on p; the state is p, p again or its coefficients over the keys, and the logits. */
function euclideanLoop(problem, normalized) {
  const { n, T, d, lengths, scores, code } = problem;
  const places = Math.ceil(n / N_LANES) * N_LANES * T;
  const width = 2 * d <= n * T ? d : places;
  const sizes = { n_problems: 1, n_inputs: n, n_tokens: T, d, batch: 1, width, n_places: places, gram_size: 0 };
  const given = { first: 0, last: 1, keys: problem.K, scores, lengths, start: problem.start, normalized: Number(normalized) };
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

/** The steepest direction of g in ℓ∞ (sign), ℓ1 (one coordinate) or ℓp, written into `out`; zero where g is zero. */
export function steepest(g, optimizer, out) {
  const d = g.length;
  if (optimizer.name === "SignDescent") {
    for (let k = 0; k < d; k++) out[k] = g[k] > 0 ? 1 : g[k] < 0 ? -1 : 0;
    return;
  }
  const largest = maxAbs(g);
  out.fill(0);
  if (largest === 0) return;
  if (optimizer.name === "CoordinateDescent") {
    for (let k = 0; k < d; k++) {
      if (Math.abs(g[k]) >= (1 - TIE_RTOL) * largest) {
        out[k] = g[k] > 0 ? 1 : -1;
        return;
      }
    }
  }
  const exponent = 1 / (optimizer.p - 1);
  let total = 0; // Σ |out|^p, which is Σ |g| |out| because p/(p - 1) = 1 + 1/(p - 1)
  for (let k = 0; k < d; k++) {
    const share = Math.abs(g[k]) / largest;
    let size = share;
    if (exponent === 0.5) size = Math.sqrt(share);
    else if (exponent !== 1 && share > 0) size = Math.exp(exponent * Math.log(share));
    total += share * size;
    out[k] = g[k] > 0 ? size : -size;
  }
  const length = exponent === 1 ? Math.sqrt(total) : total ** (1 / optimizer.p);
  for (let k = 0; k < d; k++) out[k] /= length;
}

/**
 * A loop on p whose step is size · S, where direction(gradient, logScale, step, state, S) fills S (d); logScale is that of
 * ∇L = e^logScale · gradient. The state is p, the logits and `extra` numbers of the optimizer's own.
 */
function directionLoop(problem, extra, direction) {
  const { n, T, d, lengths, scores, code, optimizer } = problem;
  const m = n * T;
  const rows = centredKeys(problem);
  const w = new Float64Array(m);
  const h = new Float64Array(m);
  const gradient = new Float64Array(d);
  const S = new Float64Array(d);
  const pNext = new Float64Array(d);
  const advance = (state, from, to) => {
    const p = state.subarray(0, d);
    const a = state.subarray(d, d + m);
    for (let step = from; step < to; step++) {
      const size = sizeAt(optimizer, step);
      const logScale = pairWeights(a, scores, lengths, T, code, w);
      vecmat(w, rows, m, d, gradient);
      direction(gradient, logScale - Math.log(n), step, state, S);
      for (let k = 0; k < d; k++) pNext[k] = p[k] - size * S[k];
      if ((step + 1) % RESYNC_STEPS === 0) matvec(rows, m, d, pNext, a);
      else {
        matvec(rows, m, d, S, h);
        for (let k = 0; k < m; k++) a[k] -= size * h[k];
      }
      if (maxAbs(S) === 0 && maxAbs(gradient) === 0) return { status: STATIONARY, steps: step };
      if (!(allFinite(a) && allFinite(pNext))) return { status: NON_FINITE, steps: step };
      p.set(pNext);
    }
    return { status: RAN_ALL, steps: to };
  };
  const inPieces = (state, from, to, wanted = []) => {
    const points = new Float64Array(wanted.length * d);
    let reached = { status: RAN_ALL, steps: from };
    [...wanted, to].forEach((step, k) => {
      if (reached.status === RAN_ALL) reached = advance(state, reached.steps, step);
      if (k < wanted.length) points.set(state.subarray(0, d), k * d);
    });
    return { ...reached, points };
  };
  return { size: d + m + extra, width: d, begin: (state) => beginAttention(problem, rows, state), advance: inPieces };
}

/** Sign, coordinate and ℓp descent; with momentum μ along m_t = μ m_{t-1} + ∇L, held in units e^u so that old gradients weigh what is due. */
function steepestLoop(problem) {
  const { d, optimizer } = problem;
  const { momentum } = optimizer;
  if (!(momentum > 0)) return directionLoop(problem, 0, (gradient, logScale, step, state, S) => steepest(gradient, optimizer, S));
  const at = d + problem.n * problem.T;
  return directionLoop(problem, d + 1, (gradient, logScale, step, state, S) => {
    const total = state.subarray(at, at + d);
    const fresh = maxAbs(gradient) === 0 ? -Infinity : logScale;
    const old = maxAbs(total) === 0 ? -Infinity : state[at + d] + Math.log(momentum);
    const unit = Math.max(fresh, old);
    if (unit > -Infinity) {
      for (let k = 0; k < d; k++) total[k] = gradient[k] * Math.exp(fresh - unit) + total[k] * Math.exp(old - unit);
      state[at + d] = unit;
    }
    steepest(total, optimizer, S);
  });
}

/** Adam with both running means in units e^u and e^2u, where u follows the scale of the gradients. */
function adamLoop(problem) {
  const { d } = problem;
  const [first, second] = problem.optimizer.betas;
  const { eps } = problem.optimizer;
  const at = d + problem.n * problem.T;
  return directionLoop(problem, 2 * d + 1, (gradient, logScale, step, state, S) => {
    const means = state.subarray(at, at + d);
    const squares = state.subarray(at + d, at + 2 * d);
    const unitLog = step === 0 ? -Infinity : state[at + 2 * d];
    const scale = maxAbs(gradient) === 0 ? unitLog : logScale;
    const target = step === 0 ? scale : Math.max(scale, unitLog - MAX_RESCALING);
    const old = step === 0 ? 0 : Math.exp(unitLog - target);
    const fresh = Math.exp(scale - target);
    const meanShare = 1 - first ** (step + 1);
    const squareShare = 1 - second ** (step + 1);
    const floor = eps > 0 ? eps * Math.exp(-target) : 0;
    for (let k = 0; k < d; k++) {
      const g = gradient[k] * fresh;
      const mean = first * old * means[k] + (1 - first) * g;
      const square = second * old * old * squares[k] + (1 - second) * g * g;
      means[k] = mean;
      squares[k] = square;
      S[k] = mean === 0 ? 0 : mean / meanShare / (Math.sqrt(square / squareShare) + floor);
    }
    state[at + 2 * d] = target;
  });
}

/** Descent on head v and attention p together, each by its own gradient; the state is v followed by p. */
function jointLoop(problem) {
  const { n, T, d, dModel, lengths, optimizer } = problem;
  const sizes = { n_problems: 1, n_inputs: n, n_tokens: T, d_model: dModel, d_key: d, batch: 1 };
  const given = { first: 0, last: 1, tokens: problem.X, keys: problem.K, labels: problem.y, lengths };
  const rule = { normalized: Number(optimizer.name === "NormalizedGD"), step: optimizer.size, loss: problem.code };
  const advance = (state, from, to, wanted = []) => {
    const ends = Int32Array.of(RAN_ALL, from);
    const heads = new Float64Array(wanted.length * dModel);
    const ps = new Float64Array(wanted.length * d);
    const carried = { v: state.subarray(0, dModel), p: state.subarray(dModel), ends, heads, points: ps };
    callCore("descend_jointly", { ...given, ...rule, ...sizes, ...carried, n_steps: to, stop: to, save: wanted, n_saved: wanted.length });
    const points = new Float64Array(wanted.length * (dModel + d));
    wanted.forEach((_, k) => {
      points.set(heads.subarray(k * dModel, (k + 1) * dModel), k * (dModel + d));
      points.set(ps.subarray(k * d, (k + 1) * d), k * (dModel + d) + dModel);
    });
    return { status: ends[0], steps: ends[1], points };
  };
  const begin = (state) => {
    state.set(problem.startHead, 0);
    state.set(problem.start, dModel);
    return RAN_ALL;
  };
  return { size: dModel + d, width: dModel + d, begin, advance };
}

/**
 * What the curves show of a point of `loopOf(problem)`: { norm, attention, selected, margins, risk }, the norm being that of p, attention
 * (n T), and margins Y f(X) of every input.
 */
export function measurePoint(problem, point) {
  const p = problem.joint ? point.slice(problem.dModel) : point;
  const { T, lengths, code, scores } = problem.joint ? tokenProblem({ ...problem, head: point.slice(0, problem.dModel) }) : problem;
  const a = logitsAt(problem, p);
  return {
    norm: norm(p),
    attention: attention(a, lengths, T),
    selected: Array.from(lengths, (length, i) => largestOf(a, i * T, length)),
    margins: inputMargins(a, scores, lengths, T),
    risk: riskValue(a, scores, lengths, T, code),
  };
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
