// Descent on the weights W of next tokens with one-hot embeddings, for which W moves on the pairs (token, last token) that occur, alone.
#pragma once
#include "next_token_coefficients.h"
#include "steps.h"

// Steps from `taken` on, which move W (n_pairs,); `w` and `next` are room for as many numbers. Returns how it ended.
static inline int64_t descend_one_hot(
    const NextTokenSamples &samples, const StepRule &rule, int64_t stop, double *W, double *w, double *next, NextTokenRoom &room,
    int64_t *taken) {
    const int64_t n = samples.n_pairs;
    if (!all_finite(W, n)) return NON_FINITE;
    room.places.fill(samples);
    for (; *taken < stop; ++*taken) {
        const double log_scale = next_token_weights(W, samples, LIKELIHOOD, w, room), reach = norm(w, n);
        if (reach == 0.0) return STATIONARY;
        if (!subtract(W, rule.normalized ? rule.step / reach : rule.step * exp(log_scale), w, n, next)) return NON_FINITE;
        copy(next, n, W);
    }
    return RAN_ALL;
}
