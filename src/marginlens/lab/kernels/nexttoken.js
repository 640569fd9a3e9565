// Descent on the key-query weights W of a next-token layer with one-hot embeddings: exact at any norm, in pieces, and back to any step.
//
// The logits that matter are W[x, k] over the pairs (token x, last token k) that occur together, and W moves on these pairs alone. The
// loss is the log-loss with outputs that are the probabilities themselves.

import { NON_FINITE, RAN_ALL, STATIONARY } from "./descent.js";
import { lastToken } from "./graphs.js";
import { allFinite, norm } from "./linalg.js";

const FAR_GUESS = 1e60; // how far the largest weight may be from the guessed scale to keep the guess
const TOO_FAR_GUESS = 1e140; // and for its square to be safe

/**
 * The reduced problem of sequences: samples that hold the same tokens before the same label are one.
 * { pairs: [[x, k]], pairOf, first, entryPair, logCounts, shares, labels, lasts }; entries of a sample begin with its label.
 */
export function reduceSequences(data) {
  const K = data.nVocabulary;
  const merged = new Map();
  const sampleOf = new Int32Array(data.labels.length);
  for (let i = 0; i < data.labels.length; i++) {
    const ids = data.tokens.slice(data.offsets[i], data.offsets[i + 1]).sort();
    const key = `${lastToken(data, i)}:${data.labels[i]}:${ids.join()}`;
    let sample = merged.get(key);
    if (!sample) {
      const counts = new Map();
      for (const token of ids) counts.set(token, (counts.get(token) ?? 0) + 1);
      sample = { number: merged.size, last: lastToken(data, i), label: data.labels[i], counts, count: 0 };
      merged.set(key, sample);
    }
    sample.count++;
    sampleOf[i] = sample.number;
  }
  const samples = [...merged.values()];
  const occurring = samples.flatMap(({ last, counts }) => [...counts.keys()].map((token) => last * K + token));
  const keys = [...new Set(occurring)].sort((a, b) => a - b);
  const place = new Map(keys.map((key, k) => [key, k]));
  const first = [0];
  const entryPair = [];
  const logCounts = [];
  for (const { last, label, counts } of samples) {
    for (const token of [label, ...[...counts.keys()].filter((other) => other !== label)]) {
      entryPair.push(place.get(last * K + token));
      logCounts.push(Math.log(counts.get(token)));
    }
    first.push(entryPair.length);
  }
  return {
    nVocabulary: K,
    pairs: keys.map((key) => [key % K, Math.floor(key / K)]),
    first: Int32Array.from(first),
    entryPair: Int32Array.from(entryPair),
    logCounts: Float64Array.from(logCounts),
    shares: Float64Array.from(samples, ({ count }) => count / data.labels.length),
    sampleOf,
  };
}

/**
 * Weights w of the pairs with ∇L = e^s Σ w_xk e_x e_kᵀ, written into `w`; returns s. A token other than the label weighs its probability,
 * the label what balances them, relative to a scale guessed from the call before (scale[0]); nan where the guess was too far off.
 */
function likelihoodWeights(reduced, a, w, values, scale) {
  const { first, entryPair, logCounts, shares } = reduced;
  const guess = scale[0];
  const factorOfGuess = guess !== 0 ? Math.exp(guess) : 1;
  w.fill(0);
  let biggest = 0;
  for (let i = 0; i < shares.length; i++) {
    const begin = first[i];
    const end = first[i + 1];
    let top = -Infinity;
    for (let k = begin; k < end; k++) {
      values[k] = a[entryPair[k]] + logCounts[k];
      if (values[k] > top) top = values[k];
    }
    let others = 0;
    for (let k = begin + 1; k < end; k++) {
      values[k] = Math.exp(values[k] - top - guess);
      others += values[k];
    }
    const factor = shares[i] / (factorOfGuess * others + Math.exp(values[begin] - top));
    for (let k = begin + 1; k < end; k++) {
      const x = values[k] * factor;
      w[entryPair[k]] += x;
      if (x > biggest) biggest = x;
    }
    w[entryPair[begin]] -= others * factor;
  }
  if (!(biggest > 1 / FAR_GUESS && biggest < FAR_GUESS)) {
    if (!(biggest > 1 / TOO_FAR_GUESS && biggest < TOO_FAR_GUESS)) {
      scale[0] = 0;
      return NaN;
    }
    scale[0] = guess + Math.log(biggest);
  }
  return guess;
}

/** The same weights, each sample relative to a scale of its own and all relative to the largest; returns its logarithm. */
function scaledWeights(reduced, a, w, values, scale) {
  const { first, entryPair, logCounts, shares } = reduced;
  const logs = new Float64Array(shares.length);
  let largest = -Infinity;
  for (let i = 0; i < shares.length; i++) {
    const begin = first[i];
    const end = first[i + 1];
    let near = -Infinity; // the largest logit other than the label's
    let top = -Infinity;
    for (let k = begin; k < end; k++) {
      values[k] = a[entryPair[k]] + logCounts[k];
      top = Math.max(top, values[k]);
      if (k > begin) near = Math.max(near, values[k]);
    }
    let total = 0;
    for (let k = begin; k < end; k++) total += Math.exp(values[k] - top);
    let others = 0;
    for (let k = begin + 1; k < end; k++) {
      values[k] = Math.exp(values[k] - near);
      others += values[k];
    }
    values[begin] = -others;
    logs[i] = end - begin > 1 ? near - top - Math.log(total) + Math.log(shares[i]) : -Infinity;
    largest = Math.max(largest, logs[i]);
  }
  scale[0] = Number.isFinite(largest) ? largest : 0;
  w.fill(0);
  if (largest === -Infinity) return 0;
  for (let i = 0; i < shares.length; i++) {
    const factor = Math.exp(logs[i] - largest);
    if (factor > 0) for (let k = first[i]; k < first[i + 1]; k++) w[entryPair[k]] += factor * values[k];
  }
  return largest;
}

/** The loop that `Descent` runs: its state is W on the pairs that occur, and the guessed scale of the weights. */
export function nextTokenLoop(reduced, { normalized = true, size = 0.01, start = null } = {}) {
  const m = reduced.pairs.length;
  const w = new Float64Array(m);
  const values = new Float64Array(reduced.entryPair.length);
  const next = new Float64Array(m);
  const begin = (state) => {
    state.fill(0);
    if (start !== null) reduced.pairs.forEach(([x, k], place) => (state[place] = start[x * reduced.nVocabulary + k]));
    return allFinite(state) ? RAN_ALL : NON_FINITE;
  };
  const advance = (state, from, to) => {
    const W = state.subarray(0, m);
    const scale = state.subarray(m);
    for (let step = from; step < to; step++) {
      let logScale = likelihoodWeights(reduced, W, w, values, scale);
      if (Number.isNaN(logScale)) logScale = scaledWeights(reduced, W, w, values, scale);
      const reach = norm(w);
      if (reach === 0) return { status: STATIONARY, steps: step };
      const move = normalized ? size / reach : size * Math.exp(logScale);
      for (let k = 0; k < m; k++) next[k] = W[k] - move * w[k];
      if (!allFinite(next)) return { status: NON_FINITE, steps: step };
      W.set(next);
    }
    return { status: RAN_ALL, steps: to };
  };
  return { size: m + 1, width: m, begin, advance };
}

/** Softmax of every merged sample's different tokens at W on the pairs: (entries), in the order of `reduced.entryPair`. */
export function sampleProbabilities(reduced, W) {
  const { first, entryPair, logCounts } = reduced;
  const probability = new Float64Array(entryPair.length);
  for (let i = 0; i + 1 < first.length; i++) {
    let top = -Infinity;
    for (let k = first[i]; k < first[i + 1]; k++) top = Math.max(top, W[entryPair[k]] + logCounts[k]);
    let total = 0;
    for (let k = first[i]; k < first[i + 1]; k++) total += probability[k] = Math.exp(W[entryPair[k]] + logCounts[k] - top);
    for (let k = first[i]; k < first[i + 1]; k++) probability[k] /= total;
  }
  return probability;
}

/** ½ Σ_x |P_x - Q_x| between a layer at W and an automaton's probabilities, averaged over the data; nan where some are unknown. */
export function totalVariation(reduced, W, automatonProbabilities) {
  const trained = sampleProbabilities(reduced, W);
  let total = 0;
  for (let i = 0; i + 1 < reduced.first.length; i++) {
    let distance = 0;
    for (let k = reduced.first[i]; k < reduced.first[i + 1]; k++) distance += Math.abs(trained[k] - automatonProbabilities[k]);
    total += 0.5 * reduced.shares[i] * distance;
  }
  return total;
}

/** Mean log-loss of the labels of a layer with weights W on the pairs, to full relative accuracy. */
export function layerLoss(reduced, W) {
  const { first, entryPair, logCounts, shares } = reduced;
  let loss = 0;
  for (let i = 0; i + 1 < first.length; i++) {
    const ofLabel = W[entryPair[first[i]]] + logCounts[first[i]];
    let top = -Infinity;
    for (let k = first[i] + 1; k < first[i + 1]; k++) top = Math.max(top, W[entryPair[k]] + logCounts[k] - ofLabel);
    let others = 0;
    for (let k = first[i] + 1; k < first[i + 1]; k++) others += Math.exp(W[entryPair[k]] + logCounts[k] - ofLabel - Math.max(top, 0));
    loss += shares[i] * (top > 0 ? top + Math.log(others + Math.exp(-top)) : Math.log1p(others));
  }
  return loss;
}

/** (nVocabulary) the probability of each token to follow a sequence in a layer with weights W on the pairs, zero on all others. */
export function layerProbabilities(reduced, W, ids) {
  const last = ids[ids.length - 1];
  const weight = new Map();
  reduced.pairs.forEach(([x, k], place) => k === last && weight.set(x, W[place]));
  const logits = Array.from(ids, (token) => weight.get(token) ?? 0);
  const top = Math.max(...logits);
  const powers = logits.map((logit) => Math.exp(logit - top));
  const total = powers.reduce((sum, power) => sum + power, 0);
  const probability = new Float64Array(reduced.nVocabulary);
  powers.forEach((power, t) => (probability[ids[t]] += power / total));
  return probability;
}
