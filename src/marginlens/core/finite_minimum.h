// Balls in which the risk is strictly convex and has a minimum: X Theorem 2, proved at the end of docs/proofs/attraction.md.
#pragma once
#include "attention_descent.h"

constexpr double BALL_TOLERANCE = 1e-9;  // radius of the ball of points that a proof is for, relative to the point's norm
constexpr double THIRD = 3.5;            // of |third derivative of an input's mean score|, over ε Γ D³

// Bounds on |ℓ'|, ℓ'' and |ℓ'''| for margins from `low` on.
struct LossBounds {
    double first, second, third;
    LossBounds(int64_t loss, double low) : first(1.0), second(0.0), third(0.0) {
        if (loss == LOGISTIC) first = 1.0 / (1.0 + exp(low)), second = 0.25, third = 0.1;
        if (loss == EXPONENTIAL) first = second = third = exp(-low);
    }
};

// A bound on the third derivatives of the risk within a radius of p, up to rounding. `logits` has n_tokens numbers.
static inline double third_bound(const TokenProblem &problem, int64_t loss, const double *p, double radius, double *logits) {
    const int64_t d = problem.d;
    double total = 0.0;
    const auto distance = [&](const double *x, const double *y) {
        double square = 0.0;
        for (int64_t k = 0; k < d; k++) square += (x[k] - y[k]) * (x[k] - y[k]);
        return square_root(square);
    };
    for (int64_t i = 0; i < problem.n_inputs; i++) {
        const int64_t count = problem.lengths[i];
        const double *keys = problem.keys + i * problem.n_tokens * d, *scores = problem.scores + i * problem.n_tokens;
        matvec(keys, count, d, p, logits);
        const int64_t best = largest_of(logits, count);
        double others = 0.0, D = 0.0, low = INF, high = -INF;
        for (int64_t t = 0; t < count; t++) {
            if (t != best) others += exp(distance(keys + t * d, keys + best * d) * radius + logits[t] - logits[best]);
            for (int64_t s = 0; s < t; s++) D = larger(D, distance(keys + t * d, keys + s * d));
            low = smaller(low, scores[t]), high = larger(high, scores[t]);
        }
        const LossBounds bounds(loss, low);
        const double eps = smaller(others, 1.0), span = high - low, slope = 2.0 * eps * span * D;
        total += bounds.first * THIRD * eps * span * D * D * D + 3.0 * bounds.second * slope * slope * D + bounds.third * slope * slope * slope;
    }
    return total / (double)problem.n_inputs;
}
