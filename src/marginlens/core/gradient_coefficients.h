// The weights of pair_weights.h for inputs in the order of simd_layout.h, four at a time.
#pragma once
#include "pair_weights.h"
#include "simd_layout.h"

constexpr double SATURATED = -100.0;  // logits of all other tokens this far behind do not count in the softmax's denominator

// What `PlaceWeights` keeps of every input: its largest logit, which becomes δ, the score and the token of that, the share s_α and the margin, and
// of the call before, or nan, the margin and |ℓ'| at it.
enum InputRow : int64_t { TOP, TOP_SCORE, TOP_TOKEN, SHARE, MARGIN, FORMER_MARGIN, SLOPE, N_INPUT_ROWS, DELTA = TOP };

// `pair_weights` of logits a, scores and weights w in the order of places, four inputs at a time, in stages that a caller may take for
// several problems in turn: what waits in one problem then goes on in another.
//
// Where every softmax is saturated, e^(a_t - a_α) is formed relative to the largest of them all, t ≠ α, so that nothing underflows.
// `of_inputs` has N_INPUT_ROWS numbers for each lane that holds an input. `logs` is room for 4 n T numbers.
struct PlaceWeights {
    const double *a, *scores;
    const int64_t *lengths;
    int64_t n, T, loss;
    double *of_inputs, *logs, *w;
    double shift = 0.0;
    bool saturated = false;

    int64_t width() const { return whole_lanes(n); }
    double *row(InputRow row) const { return of_inputs + row * width(); }

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
            store(row(TOP), slot, top);
            store(row(TOP_SCORE), slot, top_score);
            store(row(TOP_TOKEN), slot, best);
            nearest = larger(nearest, second - top);
        }
        shift = lane_max(nearest);
        saturated = loss <= LINEAR && 0.5 * CLOSED < shift && shift < SATURATED;  // some input has two tokens
        if (!saturated) shift = 0.0;
    }

    // w = e^(a_t - top - shift), at most 1.
    CORE_MEMBER void form_exponentials() {
        for (int64_t slot = 0; slot < width(); slot += N_LANES) {
            const Lanes reference = load(row(TOP), slot) + shift, zero = spread(0.0);
            int64_t k = slot * T;
            const int64_t end = k + N_LANES * T;
            for (; k + 8 <= end; k += 8) store(w, k, exp_of_nonpositive(smaller(load_8(a, k) - twice(reference), twice(zero))));
            if (k < end) store(w, k, exp_of_nonpositive(smaller(load(a, k) - reference, zero)));
        }
    }

    // Shares s_α, δ and margins; sums over tokens take even and odd ones apart. A saturated softmax has the margins γ_α.
    CORE_MEMBER void find_margins() {
        for (int64_t slot = 0; !saturated && slot < width(); slot += N_LANES) {
            const Lanes top_score = load(row(TOP_SCORE), slot);
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
            store(row(DELTA), slot, deltas);
            store(row(SHARE), slot, share);
            store(row(MARGIN), slot, top_score - deltas);
        }
    }

    // |ℓ'| at the margins, in the row SLOPE; margins of a saturated softmax do not change from call to call.
    CORE_MEMBER void find_slopes() {
        if (loss > LINEAR) return find_steep_slopes();
        const double *margins = row(saturated ? TOP_SCORE : MARGIN);
        Lanes change = spread(0.0);
        for (int64_t slot = 0; slot < width(); slot += N_LANES) change += modulus(load(margins, slot) - load(row(FORMER_MARGIN), slot));
        if (lane_sum(change) == 0.0) return;
        for (int64_t slot = 0; slot < width(); slot += N_LANES) {
            store(row(FORMER_MARGIN), slot, load(margins, slot));
            store(row(SLOPE), slot, slope(loss, load(margins, slot)));
        }
    }

    // The same for the losses whose slopes depend on more than the rounded margin; that of an input that is none is one.
    __attribute__((noinline)) void find_steep_slopes() {
        for (int64_t slot = 0; slot < width(); slot += N_LANES)
            store(row(SLOPE), slot, slope_with_poles(loss, load(row(TOP_SCORE), slot), load(row(DELTA), slot)));
        for (int64_t i = n; i < width(); i++) row(SLOPE)[i] = 1.0;
    }

    // The weights as they are, that of α as -|ℓ'| s_α δ; returns the sum of their moduli.
    CORE_MEMBER double direct_weights() {
        Eight size = twice(spread(0.0));
        for (int64_t slot = 0; slot < width(); slot += N_LANES) {
            const Lanes delta = load(row(DELTA), slot), top_score = load(row(TOP_SCORE), slot);
            const Lanes factor = load(row(SHARE), slot) * load(row(SLOPE), slot);
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
            const Lanes top_score = load(row(TOP_SCORE), slot), factor = load(row(SLOPE), slot), best = load(row(TOP_TOKEN), slot);
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
        const double least = smallest_direct(loss);
        if (larger(SQUARABLE, least) < size && size < LARGEST_WEIGHT) return shift;
        if (!(least < size && size < LARGEST_WEIGHT)) return from_logarithms();
        for (int64_t k = 0; k < n_places(n, T); k++) w[k] /= size;
        return shift + log(size);
    }
};
