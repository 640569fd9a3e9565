// The weights of the exact gradient: pairwise, and from logarithms where numbers would underflow.
//
// With s the softmax of an input's logits and γ its tokens' scores, ∇L = 1/n Σ_i |ℓ'_i| Σ_t s_t (γ_t - Σ s γ) (-k_t). Let α be the largest
// logit, gap_t = γ_α - γ_t and δ = Σ s_t gap_t. Then the weight of k_t is w_t = |ℓ'| s_t (gap_t - δ) for t ≠ α, and w_α balances the others.
// No probability near one is ever subtracted from one, so the weights are exact however far the softmax is saturated.
#pragma once
#include "exponential.h"

// The slopes of the last two have poles where scores end: they are formed from γ_α and δ, and not from the margin γ_α - δ, which rounds to a pole.
enum Loss : int64_t { LOGISTIC = 0, EXPONENTIAL = 1, LINEAR = 2, LOG_PROBABILITY = 3, ARCSINE = 4 };

constexpr double SMALLEST_WEIGHT = 1e-290, LARGEST_WEIGHT = 1e140;  // outside, weights are formed from logarithms
constexpr double SQUARABLE = 1e-140;  // below, weights are scaled up so that their squares do not underflow
constexpr double NEXT_TO_POLE = 1e-260;  // margins, or distances to one, of which exponentials may have lost digits to underflow

// The smallest size of weights that need no logarithms. A slope of the arcsine lifts what has underflowed at most to its square root.
CORE double smallest_direct(int64_t loss) { return loss <= LINEAR ? SMALLEST_WEIGHT : (loss == ARCSINE ? 1e-110 : 1e-240); }

// log|ℓ'(margin)|.
CORE double log_slope(int64_t loss, double margin) {
    if (loss != LOGISTIC) return loss == EXPONENTIAL ? -margin : 0.0;
    const double rest = log1p(exp(-modulus(margin)));
    return margin > 0.0 ? -margin - rest : -rest;
}

// |ℓ'(margin)|; may underflow or overflow, which the caller notices. That of the logistic loss is 1 / (1 + e^margin).
template <class T>
CORE T slope(int64_t loss, T margin) {
    if (loss == LOGISTIC) {
        const T one = constant(margin, 1.0), e = exp_of_nonpositive(-modulus(margin));
        return quotient(where_greater(margin, constant(margin, 0.0), e, one), one + e);
    }
    return loss == EXPONENTIAL ? exp(-margin) : constant(margin, 1.0);
}

// |ℓ'(γ_α - δ)| of the last two. Next to the pole of LOG_PROBABILITY it is nan, and so are the weights; next to those of ARCSINE it is some
// finite number, as the weights of such an input are too small to count unless all are.
template <class T>
OUTLINED T slope_with_poles(int64_t loss, T top_score, T delta) {
    const T u = top_score - delta, one = constant(u, 1.0), least = constant(u, NEXT_TO_POLE);
    if (loss == LOG_PROBABILITY) return where_greater(u, least, one / u, constant(u, NOT_A_NUMBER));
    const T variance = u * ((one - top_score) + delta);
    return one / square_root(where_greater(variance, least, variance, least));
}

// log|ℓ'(γ_α - δ)| for δ = delta e^unit.
CORE double log_slope(int64_t loss, double top_score, double delta, double unit) {
    const double small = delta * exp(unit);
    if (loss <= LINEAR) return log_slope(loss, top_score - small);
    const double log_u = top_score > 0.0 ? log(top_score - small) : log(-delta) + unit;
    if (loss == LOG_PROBABILITY) return -log_u;
    return -0.5 * (log_u + (top_score < 1.0 ? log((1.0 - top_score) + small) : log(delta) + unit));
}

// Offset of the largest of n numbers, the first where several tie.
CORE Index largest_of(const double *a, Index n) {
    Index best = 0;
    ROLLED for (Index t = 1; t < n; t++)
        if (a[t] > a[best]) best = t;
    return best;
}

// One input's softmax relative to its largest logit, number `best`: Σ e^(a_t - a_α) over the others, and δ = delta e^nearest.
struct Shortfall {
    Index best;
    double rest, nearest, delta;  // nearest: the largest log-probability ratio among tokens with another score; -∞ where there is none
};
static inline Shortfall shortfall_of(const double *logits, const double *gamma, Index length) {
    const Index best = largest_of(logits, length);
    double rest = 0.0, nearest = -INF, delta = 0.0;
    ROLLED for (Index t = 0; t < length; t++)
        if (t != best) {
            rest += exp(logits[t] - logits[best]);
            if (gamma[t] != gamma[best]) nearest = larger(nearest, logits[t] - logits[best]);
        }
    ROLLED for (Index t = 0; t < length; t++)
        if (t != best && gamma[t] != gamma[best]) delta += exp(logits[t] - logits[best] - nearest) * (gamma[best] - gamma[t]);
    return {best, rest, nearest, delta / (1.0 + rest)};
}

// The signs of one input's weights and, in `logs`, the logarithms of their moduli, (T,), but for the largest logit; returns the largest.
static inline double logs_of_weights(
    const double *logits, const double *gamma, Index length, Index T, int64_t loss, double *logs, double *signs) {
    ROLLED for (Index t = 0; t < T; t++) logs[t] = -INF, signs[t] = 0.0;
    const Shortfall at = shortfall_of(logits, gamma, length);
    const Index best = at.best;
    if (at.nearest == -INF) return -INF;
    double largest = -INF;
    const double small = at.delta * exp(at.nearest);
    const double offset = log_slope(loss, gamma[best], at.delta, at.nearest) - log1p(at.rest);
    ROLLED for (Index t = 0; t < length; t++) {
        if (t == best) continue;
        const double gap = gamma[best] - gamma[t];
        const double value = gap != 0.0 ? gap - small : -at.delta, shift = gap != 0.0 ? 0.0 : at.nearest;
        if (value != 0.0) {
            signs[t] = with_sign(1.0, value);
            logs[t] = logits[t] - logits[best] + offset + log(modulus(value)) + shift;
            largest = larger(largest, logs[t]);
        }
    }
    return largest;
}

// w = one input's weights relative to e^largest, from the signs in w and the logarithms; that of the largest logit balances the others.
static inline void weights_of_logs(const double *logits, Index length, Index T, const double *logs, double largest, double *w) {
    double total = 0.0;
    ROLLED for (Index t = 0; t < T; t++) {
        w[t] = w[t] != 0.0 ? w[t] * exp(logs[t] - largest) : 0.0;
        total += w[t];
    }
    w[largest_of(logits, length)] = -total;
}

// The weights relative to the largest, from logarithms; returns the logarithm of the largest. `logs` is room for n T numbers.
static inline double log_weights(
    const double *a, const double *scores, const int64_t *lengths, int64_t n, int64_t T, int64_t loss, double *logs, double *w) {
    double largest = -INF;
    for (int64_t k = 0, i = 0; i < n; i++, k += T)
        largest = larger(largest, logs_of_weights(a + k, scores + k, lengths[i], T, loss, logs + k, w + k));
    for (int64_t k = 0, i = 0; i < n; i++, k += T) weights_of_logs(a + k, lengths[i], T, logs + k, largest, w + k);
    return largest;
}

// The weights of one input as they are, for logits and scores gamma (T,); returns its margin. `biggest` becomes the modulus of the largest
// weight where that is larger, and infinite where one is not finite.
static inline double direct_weights(const double *logits, const double *gamma, int64_t length, int64_t T, int64_t loss, double *w, double &biggest) {
    const int64_t best = largest_of(logits, length);
    double rest = 0.0, delta = 0.0;
    for (int64_t t = 0; t < length; t++)
        if (t != best) {
            w[t] = exp(logits[t] - logits[best]);
            rest += w[t];
            delta += w[t] * (gamma[best] - gamma[t]);
        }
    const double share = 1.0 / (1.0 + rest);
    delta *= share;
    const double factor = share * (loss <= LINEAR ? slope(loss, gamma[best] - delta) : slope_with_poles(loss, gamma[best], delta));
    double total = 0.0;
    for (int64_t t = 0; t < length; t++)
        if (t != best) {
            w[t] *= factor * (gamma[best] - gamma[t] - delta);
            total += w[t];
            if (!(modulus(w[t]) <= biggest)) biggest = modulus(w[t]);
        }
    w[best] = -total;
    if (!is_finite(total)) biggest = INF;
    for (int64_t t = length; t < T; t++) w[t] = 0.0;
    return gamma[best] - delta;
}

// Weights w (n, T) with ∇L = e^s/n Σ w_it k_it of logits a and scores (n, T); returns s, which is 0 unless numbers were too small or large.
// `logs` is room for n T numbers. The margins Σ s γ, (n,), are written where they are asked for.
static inline double pair_weights(
    const double *a, const double *scores, const int64_t *lengths, int64_t n, int64_t T, int64_t loss, double *logs, double *w,
    double *margins = nullptr) {
    double biggest = 0.0;
    for (int64_t i = 0; i < n; i++) {
        const double margin = direct_weights(a + i * T, scores + i * T, lengths[i], T, loss, w + i * T, biggest);
        if (margins) margins[i] = margin;
    }
    if (!(smallest_direct(loss) < biggest && biggest < LARGEST_WEIGHT)) return log_weights(a, scores, lengths, n, T, loss, logs, w);
    if (biggest > SQUARABLE) return 0.0;
    for (int64_t k = 0; k < n * T; k++) w[k] /= biggest;
    return log(biggest);
}
