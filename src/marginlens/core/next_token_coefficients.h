// The weights of the exact next-token gradient: pairwise relative to the largest logit, and relative in logarithms.
#pragma once
#include "exponential.h"
#include "linear_algebra.h"
#include "simd_layout.h"
#include "arena.h"

enum NextTokenLoss : int64_t { LIKELIHOOD = -2, LOG = 0, SQUARED = 1, CROSS_ENTROPY = 2, SQUARED_PROBABILITY = 3 };

constexpr double FAR_SCALE = 1e60;       // how far the weights may be from the guessed scale to keep the guess
constexpr double TOO_FAR_SCALE = 1e140;  // and for their squares to be safe
constexpr double LN2 = 0.6931471805599453;

// An entry is one of the different tokens of one sample, the label the first of each: its pair, log of its count, head score and token.
// Sample i has the entries span[2 i] … span[2 i + 1] - 1, a share of the data and a label. head[x, c] = c_cᵀ e_x, (n_classes, n_classes),
// serves the losses of all outputs.
struct NextTokenSamples {
    const int64_t *pair, *token, *span, *label;
    const double *log_count, *score, *share, *head;
    int64_t n_pairs, n_samples, n_entries, n_classes;

    // Whether every index is in its range and every sample has an entry.
    bool fits(bool whole_head) const {
        bool good = true;
        for (int64_t k = 0; k < n_entries; k++)
            good = good && 0 <= pair[k] && pair[k] < n_pairs && (!whole_head || (0 <= token[k] && token[k] < n_classes));
        for (int64_t i = 0; i < n_samples; i++) {
            good = good && 0 <= span[2 * i] && span[2 * i] < span[2 * i + 1] && span[2 * i + 1] <= n_entries;
            good = good && (!whole_head || (0 <= label[i] && label[i] < n_classes));
        }
        return good;
    }
};

// Entries four samples at a time, for the likelihood: a row of four places holds an entry of each, the first row of a group the labels.
// Places without an entry have the log-count CLOSED, and missing samples the share 0. Group g has the rows first[g] … first[g + 1] - 1.
struct LikelihoodPlaces {
    int64_t *pair, *first;
    double *log_count, *share;

    static int64_t n_rows(const NextTokenSamples &x) {
        int64_t rows = 0;
        for (int64_t slot = 0; slot < x.n_samples; slot += N_LANES) rows += longest(x, slot);
        return rows;
    }

    static int64_t longest(const NextTokenSamples &x, int64_t slot) {
        int64_t length = 1;
        for (int64_t i = slot; i < smaller(slot + N_LANES, x.n_samples); i++) length = larger(length, x.span[2 * i + 1] - x.span[2 * i]);
        return length;
    }

    void fill(const NextTokenSamples &x) const {
        int64_t row = 0;
        for (int64_t slot = 0; slot < x.n_samples; slot += N_LANES) {
            const int64_t length = longest(x, slot);
            first[slot / N_LANES] = row;
            for (int64_t lane = 0; lane < N_LANES; lane++) {
                const int64_t i = slot + lane, begin = i < x.n_samples ? x.span[2 * i] : 0;
                const int64_t count = i < x.n_samples ? x.span[2 * i + 1] - begin : 0;
                share[i] = count ? x.share[i] : 0.0;
                for (int64_t t = 0; t < length; t++) {
                    pair[N_LANES * (row + t) + lane] = x.pair[begin + (t < count ? t : 0)];
                    log_count[N_LANES * (row + t) + lane] = t < count ? x.log_count[begin + t] : t ? CLOSED : 0.0;
                }
            }
            row += length;
        }
        first[(x.n_samples + N_LANES - 1) / N_LANES] = row;
    }
};

// Space for numbers of entries, rows of four of them, samples and classes, and a guess at the scale of the next weights.
struct NextTokenArrays {
    double *values, *ratios, *scores, *logs, *outputs, log_guess = 0.0, guess = 1.0;
    LikelihoodPlaces places;

    NextTokenArrays(Arena &arena, int64_t n_entries, int64_t n_rows, int64_t n_samples, int64_t n_classes) {
        values = arena.doubles(larger(n_entries, N_LANES * n_rows)), ratios = arena.doubles(n_entries), scores = arena.doubles(n_entries);
        logs = arena.doubles(n_samples), outputs = arena.doubles(n_classes);
        places.pair = arena.integers(N_LANES * n_rows), places.log_count = arena.doubles(N_LANES * n_rows);
        places.first = arena.integers(n_samples + 1), places.share = arena.doubles(whole_lanes(n_samples));
    }

    void expect(double log_scale) { log_guess = log_scale, guess = log_scale != 0.0 ? exp(log_scale) : 1.0; }
};

// C Eq. (19): a token other than the label weighs its probability, the label what balances them. Writes them into `w` relative to a scale
// guessed from the call before, whose logarithm comes back; nan where the guess was too far off. `arrays.places` are those of the samples.
static inline double likelihood_weights(const double *a, const NextTokenSamples &x, double *w, NextTokenArrays &arrays) {
    const int64_t *pair = arrays.places.pair, *first = arrays.places.first;
    const int64_t n_groups = (x.n_samples + N_LANES - 1) / N_LANES, n_places = N_LANES * first[n_groups];
    const double log_guess = arrays.log_guess;
    double *values = arrays.values;
    for (int64_t g = 0; g < n_groups; g++) {
        const int64_t begin = N_LANES * first[g], end = N_LANES * first[g + 1];
        Lanes top = spread(-INF);
        for (int64_t k = begin; k < end; k += N_LANES) {
            const Lanes logits = lanes_of(a[pair[k]], a[pair[k + 1]], a[pair[k + 2]], a[pair[k + 3]]) + load(arrays.places.log_count, k);
            store(values, k, logits);
            top = larger(logits, top);
        }
        store(values, begin, load(values, begin) - top);
        top += log_guess;
        for (int64_t k = begin + N_LANES; k < end; k += N_LANES) store(values, k, load(values, k) - top);
    }
    const Lanes highest = spread(700.0);
    int64_t at = 0;
    for (; at + 8 <= n_places; at += 8)
        store(values, at, exp_of_nonpositive(smaller(join(load(values, at), load(values, at + N_LANES)), twice(highest))));
    if (at < n_places) store(values, at, exp_of_nonpositive(smaller(load(values, at), highest)));
    for (int64_t k = 0; k < x.n_pairs; k++) w[k] = 0.0;
    Lanes sizes = spread(0.0);
    for (int64_t g = 0; g < n_groups; g++) {
        const int64_t begin = N_LANES * first[g], end = N_LANES * first[g + 1];
        Lanes others = spread(0.0);
        for (int64_t k = begin + N_LANES; k < end; k += N_LANES) others += load(values, k);
        const Lanes factor = load(arrays.places.share, N_LANES * g) / (others * arrays.guess + load(values, begin));
        others *= factor;
        sizes += others;
        for (int64_t lane = 0; lane < N_LANES; lane++) w[pair[begin + lane]] -= others[lane];
        for (int64_t k = begin + N_LANES; k < end; k += N_LANES) {
            const Lanes change = load(values, k) * factor;
            for (int64_t lane = 0; lane < N_LANES; lane++) w[pair[k + lane]] += change[lane];
        }
    }
    const double size = lane_sum(sizes);
    if (1.0 / FAR_SCALE < size && size < FAR_SCALE) return log_guess;
    const bool usable = 1.0 / TOO_FAR_SCALE < size && size < TOO_FAR_SCALE;
    arrays.expect(usable ? log_guess + log(size) : 0.0);
    return usable ? log_guess : NOT_A_NUMBER;
}

// Sign of base + part e^log_unit and, in `log_size`, the logarithm of its modulus, also where the second term underflows and base is 0.
CORE double sum_and_log(double base, double part, double log_unit, double *log_size) {
    const double total = base == 0.0 ? part : base + part * exp(log_unit);
    *log_size = log(modulus(total)) + (base == 0.0 ? log_unit : 0.0);
    return total != 0.0 ? with_sign(1.0, total) : 0.0;
}

// Scores (1_y - π)ᵀ c·e_x of one sample's tokens, up to a factor, written into `arrays.scores`; returns the logarithm of factor and slope.
static inline double pull_of_outputs(int64_t loss, const NextTokenSamples &x, int64_t i, double total, const NextTokenArrays &arrays) {
    const int64_t begin = x.span[2 * i], end = x.span[2 * i + 1], n = x.n_classes, y = x.label[i];
    double *outputs = arrays.outputs;
    for (int64_t c = 0; c < n; c++) outputs[c] = 0.0;
    for (int64_t k = begin; k < end; k++) {
        const double s = arrays.ratios[k] / total, *row = x.head + x.token[k] * n;
        for (int64_t c = 0; c < n; c++) outputs[c] += s * row[c];
    }
    const double of_label = outputs[y];
    double rival = -INF, pulled = 0.0;
    for (int64_t c = 0; c < n; c++)
        if (c != y) rival = larger(rival, outputs[c]);
    for (int64_t c = 0; c < n; c++)
        if (c != y) {
            outputs[c] = -exp(outputs[c] - rival);
            pulled -= outputs[c];
        }
    outputs[y] = pulled;
    for (int64_t k = begin; k < end; k++) arrays.scores[k] = n > 1 ? dot(x.head + x.token[k] * n, outputs, n) : 0.0;
    if (n == 1) return 0.0;  // a vocabulary of one token
    const double highest = larger(of_label, rival);
    const double log_total = highest + log(exp(of_label - highest) + pulled * exp(rival - highest));
    const double log_slope = rival - log_total;
    return loss == CROSS_ENTROPY ? log_slope : log_slope + LN2 + log(pulled) + rival - log_total + of_label - log_total;
}

// One sample's weights relative to a scale of their own, written into `arrays.values`; returns the scale's logarithm.
//
// With b the largest logit, gap_x = h_b - h_x and δ = Σ s_x gap_x, the weight of x ≠ b is -ℓ' s_x (gap_x - δ), and that of b balances the
// others. All are taken relative to the probability of the nearest token whose score differs from that of b.
static inline double weights_of_sample(const double *a, const NextTokenSamples &x, int64_t loss, int64_t i, const NextTokenArrays &arrays) {
    const int64_t begin = x.span[2 * i], end = x.span[2 * i + 1];
    double *values = arrays.values, *ratios = arrays.ratios, total = 0.0, log_slope = 0.0;
    int64_t best = begin;
    for (int64_t k = begin; k < end; k++) {
        values[k] = a[x.pair[k]] + x.log_count[k];
        if (values[k] > values[best]) best = k;
    }
    const double top = values[best];
    for (int64_t k = begin; k < end; k++) {
        ratios[k] = exp(values[k] - top);
        total += ratios[k];
    }
    if (loss >= CROSS_ENTROPY) log_slope = pull_of_outputs(loss, x, i, total, arrays);
    const double *score = loss >= CROSS_ENTROPY ? arrays.scores : x.score, of_best = score[best];
    double near = -INF, shortfall = 0.0;  // δ e^(top - near)
    for (int64_t k = begin; k < end; k++)
        if (score[k] != of_best) near = larger(near, values[k]);
    if (near == -INF) return loss == LOG && of_best <= 0.0 ? NOT_A_NUMBER : -INF;
    for (int64_t k = begin; k < end; k++)
        if (score[k] != of_best) shortfall += exp(values[k] - near) * (of_best - score[k]);
    shortfall /= total;
    const double log_ratio = near - top, small = exp(log_ratio) * shortfall;
    double sign = 1.0;
    if (loss == LOG) {
        if (!(sum_and_log(of_best, -shortfall, log_ratio, &log_slope) > 0.0)) return NOT_A_NUMBER;
        log_slope = -log_slope;
    } else if (loss == SQUARED) {
        sign = sum_and_log(1.0 - of_best, shortfall, log_ratio, &log_slope);
        log_slope += LN2;
    }
    double balance = 0.0;
    for (int64_t k = begin; k < end; k++) {
        if (k == best) continue;
        const double gap = of_best - score[k];  // where it is zero, its share of δ is all that pulls the token
        values[k] = sign * (gap == 0.0 ? -ratios[k] * shortfall : exp(values[k] - near) * (gap - small));
        balance += values[k];
    }
    values[best] = -balance;
    return log_ratio - log(total) + log_slope + log(x.share[i]);
}

// Weights w (n_pairs,) with ∇L = e^s Σ w_xk e_x e_kᵀ, written into `w`; returns s, nan where the loss is not finite.
//
// The logits a = e_xᵀ W e_k, all finite, are those of the pairs (token, query) that occur.
static inline double next_token_weights(const double *a, const NextTokenSamples &x, int64_t loss, double *w, NextTokenArrays &arrays) {
    if (loss == LIKELIHOOD) {
        const double log_scale = likelihood_weights(a, x, w, arrays);
        if (log_scale == log_scale) return log_scale;
        loss = LOG;
    }
    double largest = -INF;
    for (int64_t i = 0; i < x.n_samples; i++) {
        arrays.logs[i] = weights_of_sample(a, x, loss, i, arrays);
        if (arrays.logs[i] != arrays.logs[i]) return NOT_A_NUMBER;
        largest = larger(largest, arrays.logs[i]);
    }
    arrays.expect(is_finite(largest) ? largest : 0.0);
    for (int64_t k = 0; k < x.n_pairs; k++) w[k] = 0.0;
    if (largest == -INF) return 0.0;
    for (int64_t i = 0; i < x.n_samples; i++) {
        const double factor = exp(arrays.logs[i] - largest);
        for (int64_t k = x.span[2 * i]; factor > 0.0 && k < x.span[2 * i + 1]; k++) w[x.pair[k]] += factor * arrays.values[k];
    }
    return largest;
}
