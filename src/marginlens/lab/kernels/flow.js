// The gradient flow of p by arc length, followed as Python follows it, and minima of the risk.

import { callCore } from "./core.js";
import { dot, norm } from "./linalg.js";
import { placesOf } from "./problem.js";
import { CORRELATION, largestOf, LOGISTIC, logSlope } from "./softmax.js";

const RTOL = 1e-7; // local error of one step of the integrator
const ARC_LENGTH_RTOL = 1e-12; // relative distance at which an arc length counts as reached
const MINIMUM_RADIUS = 1e-5; // steps below this, over the longest key where that exceeds 1, ask whether a minimum is that near
const MAX_MINIMUM_STEPS = 8; // Newton steps to a minimum close by
const SAME_POINT_RTOL = 1e-6; // of that radius: a Newton step that is shorter has arrived
const TIED_LOGITS = 10; // where gradients on tied tokens cancel to nine digits, logits this close are ties
const RANK_RTOL = 1e-12; // of the length of keys along one direction to that along another, below which they lie on a line
const [REACHED, , , SHORT] = [0, 1, 2, 3]; // how the core's function ends

export const GOES_ON = "goes on";
export const AT_MINIMUM = "stationary";
export const TIED = "tied";

/**
 * { gradient, hessian: [xx, xy, yy] } of the risk at a point p, from keys (n T 2). Parts that cancel are summed without loss, relative
 * to the token with the largest logit of each input.
 */
export function derivativesAt(problem, p, keys = problem.K) {
  const { n, T, lengths, scores, code } = problem;
  const gradient = new Float64Array(2);
  const hessian = new Float64Array(3);
  for (let i = 0; i < n; i++) {
    const places = placesOf(problem, i);
    const logits = Float64Array.from(places, (at) => keys[2 * at] * p[0] + keys[2 * at + 1] * p[1]);
    const best = places[largestOf(logits, 0, lengths[i])];
    const powers = logits.map((logit) => Math.exp(logit - logits[best - i * T]));
    const mass = powers.reduce((total, power) => total + power, 0);
    const shares = powers.map((power) => power / mass);
    const rows = places.map((at) => [keys[2 * at] - keys[2 * best], keys[2 * at + 1] - keys[2 * best + 1]]);
    const sum = (part) => places.reduce((total, at, t) => total + shares[t] * part(t, at), 0);
    const behind = sum((t, at) => scores[best] - scores[at]);
    const centre = [0, 1].map((k) => sum((t) => rows[t][k]));
    const pull = (at) => scores[at] - scores[best] + behind;
    const slope = [0, 1].map((k) => sum((t, at) => pull(at) * rows[t][k]));
    const log = logSlope(code, scores[best] - behind);
    const first = Math.exp(log);
    const second = code === CORRELATION ? 0 : code === LOGISTIC ? first * -Math.expm1(log) : first;
    [0, 1].forEach((k) => (gradient[k] -= (first * slope[k]) / n));
    [[0, 0], [0, 1], [1, 1]].forEach(([k, l], place) => {
      const bent = sum((t, at) => pull(at) * (rows[t][k] - centre[k]) * (rows[t][l] - centre[l]));
      hessian[place] += (second * slope[k] * slope[l] - first * bent) / n;
    });
  }
  return { gradient, hessian };
}

/** The smaller eigenvalue of a symmetric matrix. */
function smallestOf([xx, xy, yy]) {
  const half = Math.hypot((xx - yy) / 2, xy);
  const larger = (xx + yy) / 2 + half;
  return larger > 0 ? (xx * yy - xy * xy) / larger : (xx + yy) / 2 - half;
}

/** A ball around a point in which the risk is strictly convex and has a minimum, as a proof by X Theorem 2; else null. */
export function convexBall(problem, point) {
  const { n, T, K, scores, lengths, code } = problem;
  const { gradient, hessian } = derivativesAt(problem, point);
  const ball = new Float64Array(3);
  const sizes = { n_inputs: n, n_tokens: T, d: 2 };
  const at = { point, smallest: smallestOf(hessian), slope: norm(gradient), ball };
  const isFound = callCore("find_ball", { keys: K, scores, lengths, loss: code, ...at, ...sizes });
  const [radius, curvature, tolerance] = ball;
  return isFound ? { citation: "X Thm 2", point, radius, curvature, tolerance } : null;
}

/** The flow from a start, which can be continued: `point`, and how it ended, GOES_ON while it has not. */
export class Flow {
  reason = GOES_ON;
  #problem;
  #keys; // (n T 2) less their input's mean, along the axes
  #axes;
  #rank; // of the keys
  #outside; // the part of p that no flow moves
  #c;
  #given;

  constructor(problem, start) {
    const { n, T, K, lengths, scores, code } = problem;
    this.#problem = problem;
    const centred = new Float64Array(K.length);
    for (let i = 0; i < n; i++) {
      const places = placesOf(problem, i);
      const mean = [0, 1].map((k) => places.reduce((total, at) => total + K[2 * at + k], 0) / lengths[i]);
      for (const at of places) for (const k of [0, 1]) centred[2 * at + k] = K[2 * at + k] - mean[k];
    }
    const moment = (k, l) => centred.reduce((total, _, at) => (at % 2 ? total : total + centred[at + k] * centred[at + l]), 0);
    const angle = 0.5 * Math.atan2(2 * moment(0, 1), moment(0, 0) - moment(1, 1));
    this.#axes = [[Math.cos(angle), Math.sin(angle)], [-Math.sin(angle), Math.cos(angle)]];
    const along = (axis) => Float64Array.from({ length: n * T }, (_, at) => centred[2 * at] * axis[0] + centred[2 * at + 1] * axis[1]);
    const [first, second] = this.#axes.map(along);
    this.#rank = norm(second) > RANK_RTOL * norm(first) ? 2 : 1;
    this.#keys = Float64Array.from({ length: 2 * n * T }, (_, k) => (k % 2 === 0 ? first[k / 2] : this.#rank > 1 ? second[(k - 1) / 2] : 0));
    const [x, y] = this.#axes.map((axis) => dot(axis, start));
    this.#outside = this.#rank > 1 ? 0 : y;
    this.#c = Float64Array.from([x, y].slice(0, this.#rank));
    const keys = this.#rank > 1 ? this.#keys : first;
    const norms = Float64Array.from({ length: n * T }, (_, at) => Math.hypot(this.#keys[2 * at], this.#keys[2 * at + 1]));
    const unit = 1 / Math.max(1, ...norms);
    const settings = { rtol: RTOL, unit, longest: 0, short_step: unit * MINIMUM_RADIUS };
    const state = { arc_length: 0, step: 0, is_implicit: 0, doubts: 0, taken: 0 };
    this.#given = { keys, norms, scores, lengths, loss: code, settings, state, c: this.#c, n_inputs: n, n_tokens: T, d: this.#rank };
    if (callCore("follow_attention", this.#given) !== REACHED) this.reason = AT_MINIMUM;
  }

  get point() {
    const [x, y = this.#outside] = this.#c;
    const [u, v] = this.#axes;
    return Float64Array.of(x * u[0] + y * v[0], x * u[1] + y * v[1]);
  }

  /** Follow the flow until its whole arc length has this value. */
  follow(length) {
    const { settings, state } = this.#given;
    while (this.reason === GOES_ON && length - state.arc_length > ARC_LENGTH_RTOL * state.arc_length) {
      settings.longest = length - state.arc_length;
      const end = callCore("follow_attention", this.#given);
      if (end === REACHED) continue;
      const minimum = this.#minimumWithin(settings.short_step);
      if (end === SHORT && minimum === null) continue;
      this.reason = minimum === null && this.#hasTies() ? TIED : AT_MINIMUM;
      if (minimum !== null) this.#c.set(minimum);
    }
  }

  /** The minimum that Newton's method finds from here, if it is within a radius; else null. */
  #minimumWithin(radius) {
    const isLine = this.#rank === 1;
    let x = Array.from(this.#c);
    for (let k = 0; k < MAX_MINIMUM_STEPS; k++) {
      const { gradient, hessian } = derivativesAt(this.#problem, isLine ? [x[0], 0] : x, this.#keys);
      const [xx, xy, yy] = isLine ? [hessian[0], 0, 1] : hessian;
      if (!(smallestOf([xx, xy, yy]) > 0)) return null;
      const determinant = xx * yy - xy * xy;
      const move = [(yy * gradient[0] - xy * gradient[1]) / determinant, (xx * gradient[1] - xy * gradient[0]) / determinant].slice(0, this.#rank);
      x = x.map((entry, l) => entry - move[l]);
      if (!(norm(x.map((entry, l) => entry - this.#c[l])) <= radius)) return null;
      if (norm(move) <= SAME_POINT_RTOL * radius) return x;
    }
    return null;
  }

  /** Whether some input has different tokens near its largest logit, and some token is farther behind. */
  #hasTies() {
    const [x, y = 0] = this.#c;
    const keyOf = (at) => [this.#keys[2 * at], this.#keys[2 * at + 1]];
    const inputs = Array.from(this.#problem.lengths.keys(), (i) => {
      const places = placesOf(this.#problem, i);
      const logits = places.map((at) => dot(keyOf(at), [x, y]));
      const top = Math.max(...logits);
      return { all: places.length, near: places.filter((_, t) => logits[t] >= top - TIED_LOGITS).map(keyOf) };
    });
    const differ = inputs.some(({ near }) => near.some(([u, v]) => u !== near[0][0] || v !== near[0][1]));
    return differ && inputs.some(({ all, near }) => near.length < all);
  }
}
