// How logits grow while W is trained: the same small attention layer under plain gradient descent, Adam and Muon, with decoupled weight
// decay and QK-clip, beside what the theory of margins predicts.
//
// Logits are z_i·W x_it. Decay and clip both scale W, and logits are linear in it, so the core's loop goes on from scaled states.

import { callCore } from "./core.js";
import { dot, maxAbs } from "./linalg.js";
import { largestOf, LOGISTIC, softmax } from "./softmax.js";

export const GROWTH_STEPS = 1000;
export const EVERY = 10; // steps between two that are measured
const BETAS = [0.9, 0.95]; // of Adam, whose eps is zero
const [beta_1, beta_2] = BETAS;
const NUMBERS = { power: 2, momentum: 0, nesterov: 0, beta_1, beta_2, eps: 0, mirror_power: 2, normalized: 0, decay: 0 }; // of either rule
const PLAIN_FACTOR = 30; // by which plain steps have a larger rate, so that they get anywhere

const [STEEPEST, GRADIENT, ADAM] = [0, 1, 2]; // kinds of update of the core
const [EUCLIDEAN, SPECTRAL] = [1, 10]; // its norms
const ROUNDS = 50; // of bisection

/** The optimizers, by the names that limits of the data have too. */
const RULES = [
  { name: "GD", kind: GRADIENT, norm: EUCLIDEAN, factor: PLAIN_FACTOR },
  { name: "Adam", kind: ADAM, norm: EUCLIDEAN, factor: 1 },
  { name: "Muon", kind: STEEPEST, norm: SPECTRAL, factor: 1 },
];

/** A layer { tokens (n, T, d), queries (n, d), head (d) } as flat arrays, with sizes and scores. */
function layerOf({ tokens, queries, head }) {
  const [n, T, d] = [tokens.length, tokens[0].length, head.length];
  const scores = Float64Array.from(tokens.flat(), (token) => dot(token, head));
  return { n, T, d, keys: Float64Array.from(tokens.flat(2)), queries: Float64Array.from(queries.flat()), scores };
}

/** The logits z_i·W x_it of the weights number b among `points`, (n T). */
function logitsOf({ n, T, d, keys, queries }, points, b) {
  const logits = new Float64Array(n * T);
  const seen = new Float64Array(d); // Wᵀ z_i
  for (let i = 0; i < n; i++) {
    seen.fill(0);
    for (let k = 0; k < d; k++) for (let l = 0; l < d; l++) seen[l] += queries[i * d + k] * points[(b * d + k) * d + l];
    for (let at = i * T; at < (i + 1) * T; at++) for (let l = 0; l < d; l++) logits[at] += seen[l] * keys[at * d + l];
  }
  return logits;
}

/** { logit, margin, entropy }: the largest logit in modulus, the least lead of an input's best token, and the mean entropy of attention. */
function measured({ n, T, scores }, logits) {
  const found = { logit: maxAbs(logits), margin: Infinity, entropy: 0 };
  for (let i = 0; i < n; i++) {
    const row = logits.subarray(i * T, (i + 1) * T);
    const best = largestOf(scores, i * T, T);
    row.forEach((logit, t) => t !== best && (found.margin = Math.min(found.margin, row[best] - logit)));
    for (const share of softmax(row)) if (share > 0) found.entropy -= (share * Math.log(share)) / n;
  }
  return found;
}

/**
 * Runs of a rule from W = 0, one for each of `settings` { decay, clip }, clip being the largest logit that is allowed, 0 for any:
 * { curves, step(t) }, curves[b] being [{ logit, margin, entropy }] of every tenth step. A step shrinks W by 1 - size · decay, follows the
 * rule, and scales W back where its largest logit is above the clip.
 */
function trained(layer, { kind, norm }, size, settings) {
  const { n, T, d, keys, queries, scores } = layer;
  const [batch, width, m] = [settings.length, d * d, n * T];
  const counts = { n_problems: 1, n_inputs: n, n_tokens: T, d, n_terms: n, q: d, height: d, breadth: d, n_sizes: 1, n_saved: 0, batch, n_memory: Math.max(n, d), n_batches: 0, batch_size: 0 };
  const given = { first: 0, last: batch, keys, scores, lengths: new Int32Array(n).fill(T), queries, heads: 1, apart: 0, terms: [], save: [], out: new Float64Array(0) };
  const rule = { kind, norm, loss: LOGISTIC, settings: NUMBERS, sizes: [size], n_steps: GROWTH_STEPS };
  const zeros = (length) => new Float64Array(batch * length);
  const state = {
    points: zeros(width), logits: zeros(m), memory: zeros(2 * counts.n_memory * d), scales: zeros(n).fill(-Infinity),
    residuals: zeros(2 * m), anchors: zeros(2 * width), ends: new Int32Array(2 * batch),
  };
  const scale = (b, factor) => {
    for (let k = b * width; k < (b + 1) * width; k++) state.points[k] *= factor;
    for (let k = b * m; k < (b + 1) * m; k++) state.logits[k] *= factor;
  };
  const curves = settings.map(() => [measured(layer, new Float64Array(m))]);
  const step = (t) => {
    settings.forEach(({ decay }, b) => scale(b, 1 - size * decay));
    callCore("descend_matrices", { ...given, ...rule, ...counts, ...state, begin: t, stop: t + 1 });
    settings.forEach(({ clip }, b) => {
      const logits = logitsOf(layer, state.points, b);
      const factor = clip > 0 ? Math.min(1, clip / maxAbs(logits)) : 1;
      scale(b, factor);
      if ((t + 1) % EVERY === 0) curves[b].push(measured(layer, logits.map((logit) => factor * logit)));
    });
  };
  return { curves, step };
}

/** The share of its size that Adam's step has in an entry whose gradient falls by e^-rate a step: m/√v of that geometric series. */
function adamShare(rate) {
  const [mean, squares] = [1 - BETAS[0] * Math.exp(rate), 1 - BETAS[1] * Math.exp(2 * rate)];
  return mean > 0 && squares > 0 ? ((1 - BETAS[0]) / mean) * Math.sqrt(squares / (1 - BETAS[1])) : 0;
}

/**
 * The margins that theory predicts of a rule whose steps have one length, at every tenth step: a step of length η adds η times the best
 * margin in the norm of the steps and loses the share η · decay. Gradients fall like e^-margin, and Adam, which remembers them, takes
 * shorter steps the faster they fall. Muon's margins are never larger: its steps have spectral norm one, so that W has at most
 * (1 - (1 - η decay)^t)/decay of it.
 */
function predictedMargins({ kind }, best, size, decay) {
  const margins = [0];
  for (let t = 1, margin = 0; t <= GROWTH_STEPS; t++) {
    let [low, high] = [0, Math.max(0, size * (best - decay * margin))];
    for (let round = 0; kind === ADAM && round < ROUNDS; round++) {
      const middle = (low + high) / 2;
      if (size * (best * adamShare(middle) - decay * margin) > middle) low = middle;
      else high = middle;
    }
    margin += high;
    if (t % EVERY === 0) margins.push(margin);
  }
  return margins;
}

/**
 * Train a layer with `limits` by all optimizers with a rate, and without decay and clip beside it: { runs, advance() }, advance taking ten
 * steps and telling whether they were the last. runs: [{ name, size, curve, plain, predicted }], predicted being { logits, margins } of
 * steps of one length. Of plain gradient descent there is no such law: its margin grows by the logarithm of the steps.
 */
export function growth(data, { rate, decay, clip }) {
  const layer = layerOf(data);
  const runs = RULES.map((rule) => {
    const size = rule.factor * rate;
    const { curves, step } = trained(layer, rule, size, [{ decay, clip }, { decay: 0, clip: 0 }]);
    const shared = { name: rule.name, size, curve: curves[0], plain: curves[1], step };
    if (rule.kind === GRADIENT) return { ...shared, predicted: null };
    const { margin: best, logit } = data.limits[rule.name]; // of the max-margin direction of norm one
    const most = clip > 0 ? (clip * best) / logit : Infinity; // the margin at which the largest logit is the clip
    const margins = predictedMargins(rule, best, size, decay).map((margin) => Math.min(margin, most));
    return { ...shared, predicted: { margins, logits: margins.map((margin) => (margin * logit) / best) } };
  });
  let taken = 0;
  const advance = () => {
    for (const end = taken + EVERY; taken < end; taken++) for (const { step } of runs) step(taken);
    return taken >= GROWTH_STEPS;
  };
  return { runs, advance };
}
