// Updates that remember: momentum, Adam and mirror descent, with gradients that have a logarithmic scale.
#pragma once
#include "norms.h"

constexpr double MAX_RESCALING = 300.0;  // logarithm by which running means are scaled in one step

// out e^s = x e^{x_log} + factor y e^{y_log}, n entries; returns s. `out` may be y.
static inline double add_scaled(
    const double *x, double x_log, const double *y, double y_log, double factor, int64_t n, double *out) {
    y_log += log(factor);
    const double largest = larger(x_log, y_log);
    const double first = largest > -INF ? exp(x_log - largest) : 0.0, second = largest > -INF ? exp(y_log - largest) : 0.0;
    for (int64_t k = 0; k < n; k++) out[k] = first * x[k] + second * y[k];
    return largest;
}

struct AdamRule {
    double beta_1, beta_2, eps;
};

// S = Adam's direction for the gradient G e^{log_scale}, n entries; the means are in units e^unit and e^{2 unit}, and the next unit is returned.
// While all gradients have been zero, as those of the first mini-batches can be, the unit stays e^-inf and the step is zero.
static inline double adam_step(
    const AdamRule &rule, const double *G, double log_scale, int64_t step, int64_t n, double unit, double *means, double *squares,
    double *S) {
    const double first = rule.beta_1, second = rule.beta_2;
    if (largest_modulus(G, n) == 0.0) log_scale = unit;
    if (log_scale == -INF) {
        for (int64_t k = 0; k < n; k++) S[k] = 0.0;
        return unit;
    }
    const double target = larger(log_scale, unit - MAX_RESCALING);
    const double old = exp(unit - target), next = exp(log_scale - target);
    const double n_steps = (double)step + 1.0;
    const double mean_share = -expm1(n_steps * log(first)), square_share = -expm1(n_steps * log(second));  // 1 - β^n
    const double floor = rule.eps > 0.0 ? rule.eps * exp(-target) : 0.0;
    for (int64_t k = 0; k < n; k++) {
        const double g = G[k] * next;
        const double mean = first * old * means[k] + (1.0 - first) * g;
        const double square = second * old * old * squares[k] + (1.0 - second) * g * g;
        means[k] = mean, squares[k] = square;
        S[k] = mean == 0.0 ? 0.0 : mean / (mean_share * (square_root(square / square_share) + floor));
    }
    return target;
}

struct MirrorRule {
    double p;
    bool normalized;
};

// S = W less the point whose mirror image is `image` - size · gradient, which `image` becomes, n entries; `scratch` is for n numbers.
static inline void mirror_step(
    const MirrorRule &rule, const double *G, double log_scale, double size, const double *W, int64_t n, double *image, double *scratch,
    double *S) {
    const double largest = largest_modulus(G, n), dual = rule.p / (rule.p - 1.0);
    double factor = size * exp(log_scale);
    if (rule.normalized && largest > 0.0) {
        for (int64_t k = 0; k < n; k++) scratch[k] = modulus(G[k]) / largest;
        powers(scratch, n, dual, S);
        Lanes total = spread(0.0);
        for (int64_t k = 0; k < n; k += N_LANES) total += load(S, k);
        factor = size / (largest * pow(lane_sum(total), 1.0 / dual));
    }
    for (int64_t k = 0; k < n; k++) {
        image[k] -= factor * G[k];
        scratch[k] = modulus(image[k]);
    }
    powers(scratch, n, 1.0 / (rule.p - 1.0), S);
    for (int64_t k = 0; k < n; k++) S[k] = W[k] - with_sign(S[k], image[k]);
}
