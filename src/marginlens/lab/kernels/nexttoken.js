// Descent on the key-query weights W of a next-token layer with one-hot embeddings: exact at any norm, in pieces, and back to any step.
//
// The logits that matter are W[x, k] over the pairs (token x, last token k) that occur together, and W moves on these pairs alone. The
// loss is the log-loss with outputs that are the probabilities themselves.

import { callCore } from "./core.js";
import { RAN_ALL } from "./descent.js";
import { lastToken } from "./graphs.js";
import { softmax } from "./softmax.js";

/** The different tokens of a sequence, increasing, with how often each occurs. */
export function countedTokens(ids) {
  const counts = new Map();
  for (const token of Int32Array.from(ids).sort()) counts.set(token, (counts.get(token) ?? 0) + 1);
  return counts;
}

/**
 * The reduced problem of sequences: samples that hold the same tokens before the same label are one.
 * { nVocabulary, samples: [{ last, label, tokens, counts, count }], pairs: [[x, k]], first, entryPair, logCounts, shares }; tokens of a
 * sample, and entries, begin with its label.
 */
export function reduceSequences(data) {
  const K = data.nVocabulary;
  const merged = new Map();
  for (let i = 0; i < data.labels.length; i++) {
    const [last, label] = [lastToken(data, i), data.labels[i]];
    const counts = countedTokens(data.tokens.subarray(data.offsets[i], data.offsets[i + 1]));
    const key = `${last}:${label}:${[...counts].join()}`;
    const tokens = [label, ...[...counts.keys()].filter((token) => token !== label)];
    if (!merged.has(key)) merged.set(key, { last, label, tokens, counts: tokens.map((token) => counts.get(token)), count: 0 });
    merged.get(key).count++;
  }
  const samples = [...merged.values()];
  const keys = samples.flatMap(({ last, tokens }) => tokens.map((token) => last * K + token));
  const different = [...new Set(keys)].sort((a, b) => a - b);
  const place = new Map(different.map((key, k) => [key, k]));
  const first = new Int32Array(samples.length + 1);
  samples.forEach(({ tokens }, i) => (first[i + 1] = first[i] + tokens.length));
  return {
    nVocabulary: K,
    samples,
    pairs: different.map((key) => [key % K, Math.floor(key / K)]),
    first,
    entryPair: Int32Array.from(keys, (key) => place.get(key)),
    logCounts: Float64Array.from(samples.flatMap(({ counts }) => counts), Math.log),
    shares: Float64Array.from(samples, ({ count }) => count / data.labels.length),
  };
}

/** The loop that `Descent` runs: its state is W on the pairs that occur, and the logarithm of the scale of the weights. */
export function nextTokenLoop(reduced, { normalized = true, size = 0.01, start = null } = {}) {
  const { pairs, first, entryPair, logCounts, shares } = reduced;
  const m = pairs.length;
  const span = Int32Array.from(Array.from(shares).flatMap((_, i) => [first[i], first[i + 1]]));
  const given = { pair: entryPair, log_count: logCounts, span, share: shares, normalized: Number(normalized), step: size };
  const counts = { n_entries: entryPair.length, n_samples: shares.length, n_pairs: m };
  const begin = (state) => {
    state.fill(0);
    if (start !== null) pairs.forEach(([x, k], place) => (state[place] = start[x * reduced.nVocabulary + k]));
    return advance(state, 0, 0).status;
  };
  const advance = (state, from, to) => {
    const end = Int32Array.of(RAN_ALL, from);
    callCore("descend_one_hot", { ...given, ...counts, stop: to, W: state.subarray(0, m), log_scale: state.subarray(m), end });
    return { status: end[0], steps: end[1] };
  };
  return { size: m + 1, width: m, begin, advance };
}

/** W on the entries of each merged sample with the logarithms of their counts, the label's first. */
function sampleLogits({ first, entryPair, logCounts, shares }, W) {
  const logits = logCounts.map((log, k) => W[entryPair[k]] + log);
  return Array.from(shares, (_, i) => logits.subarray(first[i], first[i + 1]));
}

/** ½ Σ_x |P_x - Q_x| between a layer at W and an automaton's probabilities, averaged over the data; nan where some are unknown. */
export function totalVariation(reduced, W, automatonProbabilities) {
  return sampleLogits(reduced, W).reduce((total, logits, i) => {
    const theirs = automatonProbabilities.subarray(reduced.first[i], reduced.first[i + 1]);
    const distance = softmax(logits).reduce((sum, share, k) => sum + Math.abs(share - theirs[k]), 0);
    return total + 0.5 * reduced.shares[i] * distance;
  }, 0);
}

/** Mean log-loss of the labels of a layer with weights W on the pairs, to full relative accuracy. */
export function layerLoss(reduced, W) {
  return sampleLogits(reduced, W).reduce((loss, logits, i) => {
    const behind = logits.subarray(1).map((logit) => logit - logits[0]);
    const top = behind.reduce((largest, logit) => Math.max(largest, logit), 0);
    const others = behind.reduce((sum, logit) => sum + Math.exp(logit - top), 0);
    return loss + reduced.shares[i] * (top > 0 ? top + Math.log(others + Math.exp(-top)) : Math.log1p(others));
  }, 0);
}

/** (nVocabulary) the probability of each token to follow a sequence in a layer with weights W on the pairs, zero on all others. */
export function layerProbabilities(reduced, W, ids) {
  const last = ids[ids.length - 1];
  const weight = new Map();
  reduced.pairs.forEach(([x, k], place) => k === last && weight.set(x, W[place]));
  const probability = new Float64Array(reduced.nVocabulary);
  softmax(Array.from(ids, (token) => weight.get(token) ?? 0)).forEach((share, t) => (probability[ids[t]] += share));
  return probability;
}
