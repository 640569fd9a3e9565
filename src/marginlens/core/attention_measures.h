// What attention with the weights p does: probabilities, margins and the risk.
#pragma once
#include "gradient_coefficients.h"
#include "linear_algebra.h"

// ℓ(margin).
CORE double loss_value(int64_t loss, double margin) {
    if (loss == LOGISTIC) return margin > 0.0 ? log1p(exp(-margin)) : -margin + log1p(exp(margin));
    return loss == EXPONENTIAL ? exp(-margin) : -margin;
}

// The probabilities of an input's tokens, n of them, from their logits; returns its margin: the score of the largest logit less what the
// others take away, so that it is exact where the softmax is saturated.
static inline double input_margin(const double *logits, const double *scores, int64_t n, double *probabilities) {
    const int64_t best = largest_of(logits, n);
    double mass = 0.0, delta = 0.0;
    for (int64_t t = 0; t < n; t++) {
        probabilities[t] = exp(logits[t] - logits[best]);
        mass += probabilities[t];
        delta += probabilities[t] * (scores[best] - scores[t]);
    }
    for (int64_t t = 0; t < n; t++) probabilities[t] /= mass;
    return scores[best] - delta / mass;
}
