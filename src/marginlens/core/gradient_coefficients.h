// The weights of the exact gradient: pairwise, and from logarithms where numbers would underflow.
//
// With s the softmax of an input's logits and γ its tokens' scores, ∇L = 1/n Σ_i |ℓ'_i| Σ_t s_t (γ_t - Σ s γ) (-k_t). Let α be the largest
// logit, gap_t = γ_α - γ_t and δ = Σ s_t gap_t. Then the weight of k_t is w_t = |ℓ'| s_t (gap_t - δ) for t ≠ α, and w_α balances the others.
// No probability near one is ever subtracted from one, so the weights are exact however far the softmax is saturated.
#pragma once
#include "exponential.h"
#include "places.h"

enum Loss : int64_t { LOGISTIC = 0, EXPONENTIAL = 1, LINEAR = 2 };

constexpr double SMALLEST_WEIGHT = 1e-290, LARGEST_WEIGHT = 1e140;  // outside, weights are formed from logarithms
constexpr double SQUARABLE = 1e-140;  // below, weights are scaled up so that their squares do not underflow
constexpr double SATURATED = -100.0;  // logits of all other tokens this far behind do not count in the softmax's denominator
constexpr int64_t ROOM_PER_INPUT = 7;  // numbers that `PlaceWeights` needs for each lane that holds an input

// log|ℓ'(margin)|.
CORE double log_slope(int64_t loss, double margin) {
    if (loss == LOGISTIC) return margin > 0.0 ? -margin - log1p(exp(-margin)) : -log1p(exp(margin));
    return loss == EXPONENTIAL ? -margin : 0.0;
}

// |ℓ'(margin)|; may underflow or overflow, which the caller notices. That of the logistic loss is 1 / (1 + e^margin).
template <class T>
CORE T slope(int64_t loss, T margin) {
    if (loss == LOGISTIC) {
        const T one = constant(margin, 1.0), e = exp_of_nonpositive(-modulus(margin));
        return where_greater(margin, constant(margin, 0.0), e, one) / (one + e);
    }
    return loss == EXPONENTIAL ? exp(-margin) : constant(margin, 1.0);
}

// Offset of the largest of n numbers, the first where several tie.
CORE int64_t largest_of(const double *a, int64_t n) {
    int64_t best = 0;
    for (int64_t t = 1; t < n; t++)
        if (a[t] > a[best]) best = t;
    return best;
}

// The weights relative to the largest, from logarithms; returns the logarithm of the largest. `logs` is room for n T numbers.
static inline double log_weights(
    const double *a, const double *scores, const int64_t *lengths, int64_t n, int64_t T, int64_t loss, double *logs, double *w) {
    double largest = -INF;
    for (int64_t i = 0; i < n; i++) {
        const double *logits = a + i * T, *gamma = scores + i * T;
        double *log_w = logs + i * T, *sign = w + i * T;
        for (int64_t t = 0; t < T; t++) log_w[t] = -INF, sign[t] = 0.0;
        const int64_t best = largest_of(logits, lengths[i]);
        double rest = 0.0, nearest = -INF;  // nearest: the largest log-probability ratio among tokens with another score
        for (int64_t t = 0; t < lengths[i]; t++)
            if (t != best) {
                rest += exp(logits[t] - logits[best]);
                if (gamma[t] != gamma[best]) nearest = larger(nearest, logits[t] - logits[best]);
            }
        if (nearest == -INF) continue;
        double delta = 0.0;  // δ e^-nearest
        for (int64_t t = 0; t < lengths[i]; t++)
            if (t != best && gamma[t] != gamma[best]) delta += exp(logits[t] - logits[best] - nearest) * (gamma[best] - gamma[t]);
        delta /= 1.0 + rest;
        const double small = delta * exp(nearest);
        const double offset = log_slope(loss, gamma[best] - small) - log1p(rest);
        for (int64_t t = 0; t < lengths[i]; t++) {
            if (t == best) continue;
            const double gap = gamma[best] - gamma[t];
            const double value = gap != 0.0 ? gap - small : -delta, shift = gap != 0.0 ? 0.0 : nearest;
            if (value != 0.0) {
                sign[t] = with_sign(1.0, value);
                log_w[t] = logits[t] - logits[best] + offset + log(modulus(value)) + shift;
                largest = larger(largest, log_w[t]);
            }
        }
    }
    for (int64_t i = 0; i < n; i++) {
        double total = 0.0;
        for (int64_t k = i * T; k < (i + 1) * T; k++) {
            w[k] = w[k] != 0.0 ? w[k] * exp(logs[k] - largest) : 0.0;
            total += w[k];
        }
        w[i * T + largest_of(a + i * T, lengths[i])] = -total;
    }
    return largest;
}

// Weights w (n, T) with ∇L = e^s/n Σ w_it k_it of logits a and scores (n, T); returns s, which is 0 unless numbers were too small or large.
// `logs` is room for n T numbers.
static inline double pair_weights(
    const double *a, const double *scores, const int64_t *lengths, int64_t n, int64_t T, int64_t loss, double *logs, double *w) {
    double biggest = 0.0;
    for (int64_t i = 0; i < n; i++) {
        const double *logits = a + i * T, *gamma = scores + i * T;
        double *weight = w + i * T;
        const int64_t best = largest_of(logits, lengths[i]);
        double rest = 0.0, delta = 0.0;
        for (int64_t t = 0; t < lengths[i]; t++)
            if (t != best) {
                weight[t] = exp(logits[t] - logits[best]);
                rest += weight[t];
                delta += weight[t] * (gamma[best] - gamma[t]);
            }
        const double share = 1.0 / (1.0 + rest);
        delta *= share;
        const double factor = share * slope(loss, gamma[best] - delta);
        double total = 0.0;
        for (int64_t t = 0; t < lengths[i]; t++)
            if (t != best) {
                weight[t] *= factor * (gamma[best] - gamma[t] - delta);
                total += weight[t];
                if (!(modulus(weight[t]) <= biggest)) biggest = modulus(weight[t]);
            }
        weight[best] = -total;
        for (int64_t t = lengths[i]; t < T; t++) weight[t] = 0.0;
    }
    if (!(SMALLEST_WEIGHT < biggest && biggest < LARGEST_WEIGHT)) return log_weights(a, scores, lengths, n, T, loss, logs, w);
    if (biggest > SQUARABLE) return 0.0;
    for (int64_t k = 0; k < n * T; k++) w[k] /= biggest;
    return log(biggest);
}

// ---- four inputs at a time, in the order of places.h

// `pair_weights` of logits a, scores and weights w in the order of places, four inputs at a time, in stages that a caller may take for
// several problems in turn: what waits in one problem then goes on in another.
//
// Where every softmax is saturated, e^(a_t - a_α) is formed relative to the largest of them all, t ≠ α, so that nothing underflows.
// `room` has ROOM_PER_INPUT numbers for each lane that holds an input: rows of largest logits (later δ), their scores and their tokens, shares
// s_α, margins, and from former calls, or nan, margins and |ℓ'| at them. `logs` is room for 4 n T numbers.
struct PlaceWeights {
    const double *a, *scores;
    const int64_t *lengths;
    int64_t n, T, loss;
    double *room, *logs, *w;
    double shift = 0.0;
    bool saturated = false;

    int64_t width() const { return whole_lanes(n); }

    // The largest logit of each input, its score and its token, and how far the next one is behind.
    CORE_MEMBER void find_largest() {
        Lanes nearest = spread(CLOSED);
        for (int64_t slot = 0; slot < width(); slot += N_LANES) {
            Lanes top = load(a, slot * T), top_score = load(scores, slot * T), second = spread(CLOSED), best = spread(0.0);
            for (int64_t t = 1; t < T; t++) {
                const Lanes x = load(a, slot * T + N_LANES * t);
                second = larger(second, smaller(x, top));
                top_score = where_greater(x, top, load(scores, slot * T + N_LANES * t), top_score);
                best = where_greater(x, top, spread((double)t), best);
                top = larger(x, top);
            }
            store(room, slot, top);
            store(room, width() + slot, top_score);
            store(room, 2 * width() + slot, best);
            nearest = larger(nearest, second - top);
        }
        shift = lane_max(nearest);
        saturated = 0.5 * CLOSED < shift && shift < SATURATED;  // some input has two tokens
        if (!saturated) shift = 0.0;
    }

    // w = e^(a_t - top - shift), at most 1.
    CORE_MEMBER void form_exponentials() {
        for (int64_t slot = 0; slot < width(); slot += N_LANES) {
            const Lanes reference = load(room, slot) + shift, zero = spread(0.0);
            int64_t k = slot * T;
            const int64_t end = k + N_LANES * T;
            for (; k + 8 <= end; k += 8) store(w, k, exp_of_nonpositive(smaller(load_8(a, k) - twice(reference), twice(zero))));
            if (k < end) store(w, k, exp_of_nonpositive(smaller(load(a, k) - reference, zero)));
        }
    }

    // Shares s_α, δ and margins; sums over tokens take even and odd ones apart. A saturated softmax has the margins γ_α.
    CORE_MEMBER void find_margins() {
        for (int64_t slot = 0; !saturated && slot < width(); slot += N_LANES) {
            const Lanes top_score = load(room, width() + slot);
            Eight mass = twice(spread(0.0)), delta = mass;
            int64_t k = slot * T;
            const int64_t end = k + N_LANES * T;
            for (; k + 8 <= end; k += 8) {
                const Eight e = load_8(w, k);
                mass += e;
                delta += e * (twice(top_score) - load_8(scores, k));
            }
            Lanes masses = low_half(mass), deltas = low_half(delta);
            if (k < end) {
                masses += load(w, k);
                deltas += load(w, k) * (top_score - load(scores, k));
            }
            const Lanes share = 1.0 / (masses + high_half(mass));
            deltas = (deltas + high_half(delta)) * share;
            store(room, slot, deltas);
            store(room, 3 * width() + slot, share);
            store(room, 4 * width() + slot, top_score - deltas);
        }
    }

    // |ℓ'| at the margins, in the last row of `room`; margins of a saturated softmax do not change from call to call.
    CORE_MEMBER void find_slopes() {
        const double *margins = room + (saturated ? 1 : 4) * width();
        Lanes change = spread(0.0);
        for (int64_t slot = 0; slot < width(); slot += N_LANES) change += modulus(load(margins, slot) - load(room, 5 * width() + slot));
        if (lane_sum(change) == 0.0) return;
        for (int64_t slot = 0; slot < width(); slot += N_LANES) {
            store(room, 5 * width() + slot, load(margins, slot));
            store(room, 6 * width() + slot, slope(loss, load(margins, slot)));
        }
    }

    // The weights as they are, that of α as -|ℓ'| s_α δ; returns the sum of their moduli.
    CORE_MEMBER double direct_weights() {
        Eight size = twice(spread(0.0));
        for (int64_t slot = 0; slot < width(); slot += N_LANES) {
            const Lanes delta = load(room, slot), top_score = load(room, width() + slot);
            const Lanes factor = load(room, 3 * width() + slot) * load(room, 6 * width() + slot);
            int64_t k = slot * T;
            const int64_t end = k + N_LANES * T;
            for (; k + 8 <= end; k += 8) {
                const Eight x = load_8(w, k) * (twice(factor) * ((twice(top_score) - load_8(scores, k)) - twice(delta)));
                store(w, k, x);
                size += modulus(x);
            }
            if (k < end) {
                const Lanes x = load(w, k) * (factor * ((top_score - load(scores, k)) - delta));
                store(w, k, x);
                size += join(modulus(x), spread(0.0));
            }
        }
        return lane_sum(sum_of_halves(size));
    }

    // The weights times e^-shift where δ is beyond rounding of scores, that of α as minus the others'; returns the sum of the others'.
    CORE_MEMBER double saturated_weights() {
        Eight size = twice(spread(0.0));
        for (int64_t slot = 0; slot < width(); slot += N_LANES) {
            const Lanes top_score = load(room, width() + slot), factor = load(room, 6 * width() + slot), best = load(room, 2 * width() + slot);
            const int64_t first = slot * T, whole = first + T / 2 * 8, end = first + N_LANES * T;
            Eight total = twice(spread(0.0));
            for (int64_t k = first; k < whole; k += 8) {
                const Eight x = load_8(w, k) * (twice(factor) * (twice(top_score) - load_8(scores, k)));  // zero for α
                total += x;
                size += modulus(x);
            }
            const Lanes last = whole < end ? load(w, whole) * (factor * (top_score - load(scores, whole))) : spread(0.0);
            size += join(modulus(last), spread(0.0));
            const Lanes others = (low_half(total) + last) + high_half(total);
            Eight token = join(spread(0.0), spread(1.0));
            for (int64_t k = first; k < whole; k += 8) {
                const Eight x = load_8(w, k) * (twice(factor) * (twice(top_score) - load_8(scores, k)));
                store(w, k, where_equal(token, twice(best), twice(0.0 - others), x));
                token += twice(spread(2.0));
            }
            if (whole < end) store(w, whole, where_equal(low_half(token), best, 0.0 - others, last));
        }
        return lane_sum(sum_of_halves(size));
    }

    // The weights from logarithms, in the order of places.
    double from_logarithms() {
        double *logits = logs, *gamma = logs + n * T, *weights = logs + 2 * n * T;
        for (int64_t i = 0; i < n; i++)
            for (int64_t t = 0; t < T; t++) {
                logits[i * T + t] = a[place(i, t, T)];
                gamma[i * T + t] = scores[place(i, t, T)];
            }
        const double log_scale = log_weights(logits, gamma, lengths, n, T, loss, logs + 3 * n * T, weights);
        for (int64_t k = 0; k < n_places(n, T); k++) w[k] = 0.0;
        for (int64_t i = 0; i < n; i++)
            for (int64_t t = 0; t < T; t++) w[place(i, t, T)] = weights[i * T + t];
        return log_scale;
    }

    // The weights, after all other stages; returns the logarithm of their scale.
    CORE_MEMBER double finish() {
        const double size = saturated ? saturated_weights() : direct_weights();
        if (SQUARABLE < size && size < LARGEST_WEIGHT) return shift;
        if (!(SMALLEST_WEIGHT < size && size < LARGEST_WEIGHT)) return from_logarithms();
        for (int64_t k = 0; k < n_places(n, T); k++) w[k] /= size;
        return shift + log(size);
    }
};
