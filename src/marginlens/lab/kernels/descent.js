// Descent on attention weights p, or on head and attention together: exact at any norm, in pieces, and back to any step.

import { allFinite, dot, matvec, maxAbs, norm, vecmat } from "./linalg.js";
import { centredKeys, logitsAt, tokenProblem } from "./problem.js";
import { attention, inputMargins, largestOf, logSlope, pairWeights, riskValue } from "./softmax.js";

export const RAN_ALL = 0;
export const STATIONARY = 1;
export const NON_FINITE = 2;

const RESYNC_STEPS = 64; // after which accumulated logits are computed afresh
const TIE_RTOL = 1e-12; // of the largest modulus: entries this close to it are as large, whichever way sums were rounded
const MAX_RESCALING = 300; // logarithm by which Adam's running means are scaled in one step
const MAX_CHECKPOINTS = 4096;
const MIN_CHECKPOINTS = 16;
const MAX_CHECKPOINT_NUMBERS = 4_000_000; // in all of them together: 32 MB

// A loop has a state of `size` numbers, of which the first `width` are the point: begin(state) fills it before the first step and returns
// how the run ended by then, advance(state, from, to) takes steps from … to - 1 and returns { status, steps }.

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

/** Plain and normalised gradient descent on p; the state is p and the logits. */
function euclideanLoop(problem, normalized) {
  const { n, T, d, lengths, scores, code } = problem;
  const m = n * T;
  const rows = centredKeys(problem);
  const eta = problem.optimizer.size;
  const w = new Float64Array(m);
  const h = new Float64Array(m);
  const gradient = new Float64Array(d);
  const next = new Float64Array(d + m);
  const pNext = next.subarray(0, d);
  const aNext = next.subarray(d);
  const advance = (state, from, to) => {
    const p = state.subarray(0, d);
    const a = state.subarray(d);
    for (let step = from; step < to; step++) {
      const logScale = pairWeights(a, scores, lengths, T, code, w);
      vecmat(w, rows, m, d, gradient);
      matvec(rows, m, d, gradient, h);
      const square = dot(gradient, gradient);
      let reach = 1;
      if (square > 1e-280 && square < 1e280) reach = Math.sqrt(square);
      else if (normalized || !(square > 0)) reach = norm(gradient);
      if (reach === 0) return { status: STATIONARY, steps: step };
      const move = normalized ? eta / reach : (eta * Math.exp(logScale)) / n;
      for (let k = 0; k < d; k++) pNext[k] = p[k] - move * gradient[k];
      if ((step + 1) % RESYNC_STEPS === 0) matvec(rows, m, d, pNext, aNext);
      else for (let k = 0; k < m; k++) aNext[k] = a[k] - move * h[k];
      if (!allFinite(next)) return { status: NON_FINITE, steps: step };
      state.set(next);
    }
    return { status: RAN_ALL, steps: to };
  };
  return { size: d + m, width: d, begin: (state) => beginAttention(problem, rows, state), advance };
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
  return { size: d + m + extra, width: d, begin: (state) => beginAttention(problem, rows, state), advance };
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
  const { n, T, d, dModel, lengths, X, y, code, optimizer } = problem;
  const m = n * T;
  const rows = centredKeys(problem);
  const normalized = optimizer.name === "NormalizedGD";
  const scores = new Float64Array(m);
  const a = new Float64Array(m);
  const w = new Float64Array(m);
  const logWeights = new Float64Array(n);
  const slopeV = new Float64Array(dModel);
  const slopeP = new Float64Array(d);
  const next = new Float64Array(dModel + d);
  /** ∇_v L = e^s/n · slopeV; returns s, the largest log|ℓ'| over the inputs. */
  const headGradient = () => {
    let largest = -Infinity;
    for (let i = 0; i < n; i++) {
      const base = i * T;
      const best = largestOf(a, base, lengths[i]);
      let rest = 0;
      let delta = 0;
      for (let t = 0; t < lengths[i]; t++) {
        if (t === best) continue;
        const e = Math.exp(a[base + t] - a[base + best]);
        w[base + t] = e;
        rest += e;
        delta += e * (scores[base + best] - scores[base + t]);
      }
      w[base + best] = 1 + rest;
      logWeights[i] = logSlope(code, scores[base + best] - delta / (1 + rest));
      largest = Math.max(largest, logWeights[i]);
    }
    slopeV.fill(0);
    for (let i = 0; i < n; i++) {
      const base = i * T;
      const best = largestOf(a, base, lengths[i]);
      const weight = -y[i] * Math.exp(logWeights[i] - largest);
      const top = (base + best) * dModel;
      for (let k = 0; k < dModel; k++) slopeV[k] += weight * X[top + k];
      for (let t = 0; t < lengths[i]; t++) {
        if (t === best) continue;
        const share = (weight * w[base + t]) / w[base + best];
        const other = (base + t) * dModel;
        for (let k = 0; k < dModel; k++) slopeV[k] -= share * (X[top + k] - X[other + k]);
      }
    }
    return largest;
  };
  /** One step of the part of `next` that begins at `at`; whether it moved. */
  const move = (state, at, gradient, logFactor) => {
    const size = norm(gradient);
    let factor = 0;
    if (size !== 0) factor = normalized ? optimizer.size / size : optimizer.size * Math.exp(logFactor);
    for (let k = 0; k < gradient.length; k++) next[at + k] = state[at + k] - factor * gradient[k];
    return size !== 0;
  };
  const advance = (state, from, to) => {
    const v = state.subarray(0, dModel);
    const p = state.subarray(dModel);
    for (let step = from; step < to; step++) {
      matvec(rows, m, d, p, a);
      matvec(X, m, dModel, v, scores);
      for (let k = 0; k < m; k++) scores[k] *= y[(k / T) | 0];
      if (!(allFinite(a) && allFinite(scores))) return { status: NON_FINITE, steps: step };
      const logV = headGradient();
      const logP = pairWeights(a, scores, lengths, T, code, w);
      vecmat(w, rows, m, d, slopeP);
      const movedV = move(state, 0, slopeV, logV - Math.log(n));
      const movedP = move(state, dModel, slopeP, logP - Math.log(n));
      if (!(movedV || movedP)) return { status: STATIONARY, steps: step };
      if (!allFinite(next)) return { status: NON_FINITE, steps: step };
      state.set(next);
    }
    return { status: RAN_ALL, steps: to };
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
    this.interval = 1;
    this.capacity = Math.max(MIN_CHECKPOINTS, Math.min(MAX_CHECKPOINTS, Math.floor(MAX_CHECKPOINT_NUMBERS / loop.size)));
    this.checkpoints = [this.state.slice()];
  }

  /** The present point. */
  get point() {
    return this.state.slice(0, this.loop.width);
  }

  /** Take up to `count` further steps; returns whether the run can go on. */
  advance(count) {
    const end = this.steps + count;
    while (this.status === RAN_ALL && this.steps < end) {
      const next = Math.min(end, (Math.floor(this.steps / this.interval) + 1) * this.interval);
      const { status, steps } = this.loop.advance(this.state, this.steps, next);
      this.status = status;
      this.steps = steps;
      if (status === RAN_ALL && steps % this.interval === 0) this.#keep();
    }
    return this.status === RAN_ALL;
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
    this.loop.advance(state, place * this.interval, step);
    return state.slice(0, this.loop.width);
  }

  /** Points at the multiples of `interval` and the present one, with their steps: what is drawn of the path. */
  path() {
    const points = this.checkpoints.map((state) => state.slice(0, this.loop.width));
    const steps = points.map((_, k) => k * this.interval);
    if (steps[steps.length - 1] !== this.steps) {
      points.push(this.point);
      steps.push(this.steps);
    }
    return { steps, points };
  }
}
