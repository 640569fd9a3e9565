// The risk of softmax attention: losses by code, exact weights of the gradient in the log domain, attention, margins and risk values.

export const LOGISTIC = 0;
export const EXPONENTIAL = 1;
export const CORRELATION = 2;
export const LOSS_CODES = { Logistic: LOGISTIC, Exponential: EXPONENTIAL, CorrelationLoss: CORRELATION };

const SMALLEST_WEIGHT = 1e-290; // outside of these two, weights are formed from logarithms
const LARGEST_WEIGHT = 1e140;
const SQUARABLE_WEIGHT = 1e-140; // below, weights are scaled up so that their squares do not underflow

/** log(e^a + e^b). */
export function logAddExp(a, b) {
  const top = Math.max(a, b);
  return top === -Infinity ? top : top + Math.log1p(Math.exp(Math.min(a, b) - top));
}

/** ℓ(u). */
export function lossValue(code, u) {
  if (code === LOGISTIC) return u > 0 ? Math.log1p(Math.exp(-u)) : -u + Math.log1p(Math.exp(u));
  return code === EXPONENTIAL ? Math.exp(-u) : -u;
}

/** log|ℓ'(u)|. */
export function logSlope(code, u) {
  if (code === LOGISTIC) return u > 0 ? -u - Math.log1p(Math.exp(-u)) : -Math.log1p(Math.exp(u));
  return code === EXPONENTIAL ? -u : 0;
}

/** |ℓ'(u)|; may underflow or overflow, which the caller notices. */
export function slope(code, u) {
  if (code === LOGISTIC) return 1 / (1 + Math.exp(u));
  return code === EXPONENTIAL ? Math.exp(-u) : 1;
}

/**
 * A's Assumption A on [low, high], as logarithms: ℓ' is M0-Lipschitz and `smallest` ≤ |ℓ'| ≤ M1.
 * All built-in losses strictly decrease; the constants are exact.
 */
export function lossConstants(code, low, high) {
  if (code === EXPONENTIAL) return { logM0: -low, logM1: -low, logSmallest: -high };
  if (code === CORRELATION) return { logM0: -Infinity, logM1: 0, logSmallest: 0 };
  const nearest = Math.abs(Math.min(Math.max(0, low), high));
  return {
    logM0: logSlope(code, nearest) + logSlope(code, -nearest),
    logM1: logSlope(code, low),
    logSmallest: logSlope(code, high),
  };
}

/** Offset of the largest of a[base], …, a[base + length - 1], the first where several tie. */
export function largestOf(a, base, length) {
  let best = 0;
  for (let t = 1; t < length; t++) if (a[base + t] > a[base + best]) best = t;
  return best;
}

/**
 * Weights w with ∇L = e^s/n Σ w_it k_it, written into `w`; returns s (0 unless they had to be formed from logarithms).
 *
 * With α the largest logit of an input: w_t = |ℓ'| s_t (gap_t - δ) for t ≠ α, where gap_t = γ_α - γ_t and δ = Σ s_t gap_t, and w_α
 * balances the others. No probability near one is ever subtracted from one.
 *
 * a, scores, w: (n T) row by row; lengths: (n) tokens of each input.
 */
export function pairWeights(a, scores, lengths, T, code, w) {
  const n = lengths.length;
  let biggest = 0;
  for (let i = 0; i < n; i++) {
    const base = i * T;
    const length = lengths[i];
    const best = largestOf(a, base, length);
    const top = a[base + best];
    const topScore = scores[base + best];
    let rest = 0;
    let delta = 0;
    for (let t = 0; t < length; t++) {
      if (t === best) continue;
      const e = Math.exp(a[base + t] - top);
      w[base + t] = e;
      rest += e;
      delta += e * (topScore - scores[base + t]);
    }
    const share = 1 / (1 + rest);
    delta *= share;
    const factor = share * slope(code, topScore - delta);
    let total = 0;
    for (let t = 0; t < length; t++) {
      if (t === best) continue;
      const x = w[base + t] * (factor * (topScore - scores[base + t] - delta));
      w[base + t] = x;
      total += x;
      if (!(Math.abs(x) <= biggest)) biggest = Math.abs(x);
    }
    w[base + best] = -total;
    for (let t = length; t < T; t++) w[base + t] = 0;
  }
  if (biggest > SMALLEST_WEIGHT && biggest < LARGEST_WEIGHT) {
    if (biggest > SQUARABLE_WEIGHT) return 0;
    for (let k = 0; k < n * T; k++) w[k] /= biggest;
    return Math.log(biggest);
  }
  return logWeights(a, scores, lengths, T, code, w);
}

/** The same weights relative to the largest, from logarithms; returns the logarithm of the largest. */
function logWeights(a, scores, lengths, T, code, w) {
  const n = lengths.length;
  const logs = new Float64Array(n * T).fill(-Infinity);
  const signs = new Float64Array(n * T);
  let largest = -Infinity;
  for (let i = 0; i < n; i++) {
    const base = i * T;
    const length = lengths[i];
    const best = largestOf(a, base, length);
    const top = a[base + best];
    const topScore = scores[base + best];
    let rest = 0;
    let nearest = -Infinity; // the largest log-probability ratio among tokens with another score
    for (let t = 0; t < length; t++) {
      if (t === best) continue;
      rest += Math.exp(a[base + t] - top);
      if (scores[base + t] !== topScore) nearest = Math.max(nearest, a[base + t] - top);
    }
    if (nearest === -Infinity) continue;
    let delta = 0; // δ e^-nearest
    for (let t = 0; t < length; t++) {
      if (t !== best && scores[base + t] !== topScore)
        delta += Math.exp(a[base + t] - top - nearest) * (topScore - scores[base + t]);
    }
    delta /= 1 + rest;
    const small = delta * Math.exp(nearest);
    const offset = logSlope(code, topScore - small) - Math.log1p(rest);
    for (let t = 0; t < length; t++) {
      if (t === best) continue;
      const gap = topScore - scores[base + t];
      const value = gap !== 0 ? gap - small : -delta;
      if (value === 0) continue;
      signs[base + t] = Math.sign(value);
      logs[base + t] = a[base + t] - top + offset + Math.log(Math.abs(value)) + (gap !== 0 ? 0 : nearest);
      largest = Math.max(largest, logs[base + t]);
    }
  }
  for (let i = 0; i < n; i++) {
    const base = i * T;
    let total = 0;
    for (let t = 0; t < T; t++) {
      const x = signs[base + t] !== 0 ? signs[base + t] * Math.exp(logs[base + t] - largest) : 0;
      w[base + t] = x;
      total += x;
    }
    w[base + largestOf(a, base, lengths[i])] = -total;
  }
  return largest;
}

/** Softmax of logits (n T) within each input, zero where there is no token. */
export function attention(a, lengths, T) {
  const probability = new Float64Array(lengths.length * T);
  for (let i = 0; i < lengths.length; i++) {
    const base = i * T;
    const top = a[base + largestOf(a, base, lengths[i])];
    let total = 0;
    for (let t = 0; t < lengths[i]; t++) total += probability[base + t] = Math.exp(a[base + t] - top);
    for (let t = 0; t < lengths[i]; t++) probability[base + t] /= total;
  }
  return probability;
}

/** Y_i f(X_i) of every input: the score of the largest logit less what the other tokens take away. */
export function inputMargins(a, scores, lengths, T) {
  return Float64Array.from(lengths, (length, i) => {
    const base = i * T;
    const best = largestOf(a, base, length);
    let rest = 0;
    let delta = 0;
    for (let t = 0; t < length; t++) {
      if (t === best) continue;
      const e = Math.exp(a[base + t] - a[base + best]);
      rest += e;
      delta += e * (scores[base + best] - scores[base + t]);
    }
    return scores[base + best] - delta / (1 + rest);
  });
}

/** L = mean over the inputs of ℓ(Y f(X)), from logits (n T). */
export function riskValue(a, scores, lengths, T, code) {
  const margins = inputMargins(a, scores, lengths, T);
  let total = 0;
  for (const margin of margins) total += lossValue(code, margin);
  return total / margins.length;
}
