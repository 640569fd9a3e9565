// Descent on head v and attention weights p at once, for one problem at a time, exact at any norm of either.
//
// The weights of p are those of `pair_weights` with scores recomputed from v at every step. The gradient of v is a sum of attention outputs
// weighted by the loss's slopes; it is formed from their logarithms relative to the largest, so it stays exact when every input is
// classified with a margin of ten thousand. Both live in their own spaces: joint training is meant for few, short inputs.
// Mirror descent with the potential ‖x‖^s/s is the same loop on the images sign(x) |x|^{s-1} of v and p, which for s = 2 are v and p.
#pragma once
#include "gradient_coefficients.h"
#include "linear_algebra.h"
#include "norms.h"
#include "arena.h"
#include "steps.h"

// One problem: tokens (n_inputs, n_tokens, d_model), keys (n_inputs, n_tokens, d_key), labels and lengths (n_inputs,).
struct JointProblem {
    const double *tokens, *keys, *labels;
    const int64_t *lengths;
    int64_t n_inputs, n_tokens, d_model, d_key;
};

// The rule of either part's steps, and the power s of the mirror's potential.
struct JointRule {
    StepRule step;
    double power;
};

// Where a run stands: the images of v (d_model,) and p (d_key,), how it ended and the steps it has taken.
struct JointRun {
    double *v, *p;
    int64_t *end, *taken;
};

// Arrays that serve one problem after the other: centred keys as rows (n_inputs n_tokens, d_key) and as columns, and vectors.
struct JointArrays {
    double *rows, *columns, *mean, *logits, *scores, *w, *ratios, *log_slopes, *slope_v, *slope_p, *v, *p;
    double *next_v, *next_p;

    JointArrays(Arena &arena, const JointProblem &x) {
        const int64_t m = x.n_inputs * x.n_tokens;
        rows = arena.doubles(m * x.d_key), columns = arena.doubles(m * x.d_key);
        logits = arena.doubles(m), scores = arena.doubles(m), w = arena.doubles(m), ratios = arena.doubles(m);
        log_slopes = arena.doubles(x.n_inputs);
        slope_v = arena.doubles(x.d_model), v = arena.doubles(x.d_model), next_v = arena.doubles(x.d_model);
        slope_p = arena.doubles(x.d_key), p = arena.doubles(x.d_key), next_p = arena.doubles(x.d_key);
        mean = arena.doubles(x.d_key);
    }
};

// ∇_v L = e^s/n · slope_v, written into the room; returns s, the largest log|ℓ'| over the inputs.
static inline double head_gradient(const JointProblem &x, int64_t loss, const JointArrays &arrays) {
    const int64_t T = x.n_tokens, d = x.d_model;
    double largest = -INF, *slope_v = arrays.slope_v;
    for (int64_t i = 0; i < x.n_inputs; i++) {
        const double *a = arrays.logits + i * T, *scores = arrays.scores + i * T;
        double *ratios = arrays.ratios + i * T, rest = 0.0, delta = 0.0;
        const int64_t best = largest_of(a, x.lengths[i]);
        for (int64_t t = 0; t < x.lengths[i]; t++) {
            ratios[t] = t != best ? exp(a[t] - a[best]) : 0.0;
            rest += ratios[t];
            delta += ratios[t] * (scores[best] - scores[t]);
        }
        for (int64_t t = 0; t < x.lengths[i]; t++) ratios[t] /= 1.0 + rest;
        arrays.log_slopes[i] = log_slope(loss, scores[best] - delta / (1.0 + rest));
        largest = larger(largest, arrays.log_slopes[i]);
    }
    for (int64_t k = 0; k < d; k++) slope_v[k] = 0.0;
    for (int64_t i = 0; i < x.n_inputs; i++) {
        const double weight = -x.labels[i] * exp(arrays.log_slopes[i] - largest), *tokens = x.tokens + i * T * d;
        const double *best = tokens + largest_of(arrays.logits + i * T, x.lengths[i]) * d;
        for (int64_t k = 0; k < d; k++) slope_v[k] += weight * best[k];
        for (int64_t t = 0; t < x.lengths[i]; t++) {
            const double share = weight * arrays.ratios[i * T + t];
            if (share == 0.0) continue;
            for (int64_t k = 0; k < d; k++) slope_v[k] -= share * (best[k] - tokens[t * d + k]);
        }
    }
    return largest;
}

// out = the point with this image, n entries.
static inline void point_of(const double *image, int64_t n, double power, double *out) {
    if (power == 2.0) return copy(image, n, out);
    for (int64_t k = 0; k < n; k++) out[k] = with_sign(pow(modulus(image[k]), 1.0 / (power - 1.0)), image[k]);
}

// ‖x‖ in the norm whose dual is that of the power.
static inline double dual_norm(const double *x, int64_t n, double power) {
    if (power == 2.0) return norm(x, n);
    const double dual = power / (power - 1.0);
    double largest = 0.0, sum = 0.0;
    for (int64_t k = 0; k < n; k++) largest = larger(largest, modulus(x[k]));
    for (int64_t k = 0; k < n && largest > 0.0; k++) sum += pow(modulus(x[k]) / largest, dual);
    return largest * pow(sum, 1.0 / dual);
}

// One step of the image of one part, n entries, written into `next`; whether all are finite. `moved` becomes true where the gradient is not
// zero.
CORE bool move(const double *image, const double *slope, int64_t n, const JointRule &rule, double log_scale, double *next, bool *moved) {
    const double size = dual_norm(slope, n, rule.power), step = rule.step.step;
    const double factor = rule.step.normalized ? step / size : step * exp(log_scale);
    if (size != 0.0) *moved = true;
    return subtract(image, size != 0.0 ? factor : 0.0, slope, n, next);
}

// Keep the points of the run as those after the k-th kept step.
CORE void keep_joint(const JointProblem &x, const JointRule &rule, const JointRun &run, int64_t k, double *heads, double *points) {
    point_of(run.v, x.d_model, rule.power, heads + k * x.d_model);
    point_of(run.p, x.d_key, rule.power, points + k * x.d_key);
}

// Steps from `taken` on, which move the images of v and p; returns how it ended.
static inline int64_t take_joint_steps(
    const JointProblem &x, const JointRule &rule, const Steps &steps, const JointRun &run, const JointArrays &arrays, double *heads,
    double *points) {
    const int64_t n = x.n_inputs, T = x.n_tokens, m = n * T;
    const double log_n = log((double)n);
    int64_t saved = 0, &step = *run.taken;
    while (saved < steps.n_saved && steps.save[saved] < step) saved++;
    for (; step < steps.stop; step++) {
        for (; saved < steps.n_saved && steps.save[saved] == step; saved++) keep_joint(x, rule, run, saved, heads, points);
        point_of(run.v, x.d_model, rule.power, arrays.v);
        point_of(run.p, x.d_key, rule.power, arrays.p);
        matvec(arrays.rows, m, x.d_key, arrays.p, arrays.logits);
        matvec(x.tokens, m, x.d_model, arrays.v, arrays.scores);
        for (int64_t i = 0; i < n; i++)
            for (int64_t t = 0; t < T; t++) arrays.scores[i * T + t] *= x.labels[i];
        if (!all_finite(arrays.logits, m) || !all_finite(arrays.scores, m)) return NON_FINITE;
        const double log_v = head_gradient(x, rule.step.loss, arrays);
        const double log_p = pair_weights(arrays.logits, arrays.scores, x.lengths, n, T, rule.step.loss, arrays.ratios, arrays.w);
        matvec(arrays.columns, x.d_key, m, arrays.w, arrays.slope_p);
        bool moved = false;
        const bool v_finite = move(run.v, arrays.slope_v, x.d_model, rule, log_v - log_n, arrays.next_v, &moved);
        const bool p_finite = move(run.p, arrays.slope_p, x.d_key, rule, log_p - log_n, arrays.next_p, &moved);
        if (!moved) return STATIONARY;
        if (!v_finite || !p_finite) return NON_FINITE;
        copy(arrays.next_v, x.d_model, run.v);
        copy(arrays.next_p, x.d_key, run.p);
    }
    return RAN_ALL;
}

// Take steps of one problem, from where `run` says it is; v and p at the kept steps are written into `heads` and `points`.
static inline void descend_jointly(
    const JointProblem &x, const JointRule &rule, const Steps &steps, const JointRun &run, const JointArrays &arrays, double *heads,
    double *points) {
    if (*run.end == RAN_ALL) {
        const int64_t m = x.n_inputs * x.n_tokens;
        centre(x.keys, x.lengths, x.n_inputs, x.n_tokens, x.d_key, arrays.mean, arrays.rows);
        for (int64_t k = 0; k < m; k++)
            for (int64_t j = 0; j < x.d_key; j++) arrays.columns[j * m + k] = arrays.rows[k * x.d_key + j];
        *run.end = take_joint_steps(x, rule, steps, run, arrays, heads, points);
    }
    if (*run.end == RAN_ALL && *run.taken != steps.n_steps) return;
    for (int64_t k = 0; k < steps.n_saved; k++)
        if (steps.save[k] >= *run.taken) keep_joint(x, rule, run, k, heads, points);
}
