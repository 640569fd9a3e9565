// Losses by code, with the constants that theorems need of them.

export const LOGISTIC = 0;
export const EXPONENTIAL = 1;
export const CORRELATION = 2;
export const LOSS_CODES = { logistic: LOGISTIC, exponential: EXPONENTIAL, "correlation-loss": CORRELATION };

/** log(e^a + e^b). */
export function logAddExp(a, b) {
  const top = Math.max(a, b);
  return top === -Infinity ? top : top + Math.log1p(Math.exp(Math.min(a, b) - top));
}

/** Probabilities in proportion to the exponentials of logits. */
export function softmax(logits) {
  const top = logits.reduce((largest, logit) => Math.max(largest, logit), -Infinity);
  const powers = logits.map((logit) => Math.exp(logit - top));
  const total = powers.reduce((sum, power) => sum + power, 0);
  return powers.map((power) => power / total);
}

/** log|ℓ'(u)|. */
export function logSlope(code, u) {
  if (code === LOGISTIC) return u > 0 ? -u - Math.log1p(Math.exp(-u)) : -Math.log1p(Math.exp(u));
  return code === EXPONENTIAL ? -u : 0;
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
