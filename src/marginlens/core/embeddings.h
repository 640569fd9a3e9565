// The one-layer model of paper B on the distinct tokens of a sequence: slopes of the loss, and AdamW on embeddings.
#pragma once
#include "token_sets.h"

struct TokenProducts {  // a = E p and b = E v of every token
    const double *a, *b;
};

// The output f of a sequence with label y. The derivatives of its loss log(1 + e^(-y f)) by a and b are added to by_a and by_b:
// f = Σ q_s b_s with q = softmax(a + log count), ∂f/∂a_s = q_s (b_s - f) and ∂f/∂b_s = q_s. q has room for its tokens.
static inline double add_slopes(
    const int32_t *token, const int32_t *count, int64_t n, TokenProducts products, double y, double *q, double *by_a, double *by_b) {
    const double *a = products.a, *b = products.b;
    double top = -INF, best = 0.0, total = 0.0, lead = 0.0;
    for (int64_t k = 0; k < n; k++) {
        q[k] = a[token[k]];
        if (q[k] > top) top = q[k], best = b[token[k]];
    }
    exp_of_differences(q, n, top);
    for (int64_t k = 0; k < n; k++) {
        q[k] *= count[k];
        total += q[k];
        lead += q[k] * (best - b[token[k]]);
    }
    lead /= total;  // b of the first token less f, which a saturated softmax would make cancel
    const double f = best - lead, slope = -y / (1.0 + exp(y * f)) / total;
    for (int64_t k = 0; k < n; k++) {
        const double weight = slope * q[k];
        by_a[token[k]] += weight * (b[token[k]] - best + lead);
        by_b[token[k]] += weight;
    }
    return f;
}

// ---- in single or in double precision

CORE float square_root(float x) { return __builtin_sqrtf(x); }

template <class T>
struct VectorOf {
    typedef T type __attribute__((vector_size(32)));
};

// x · y, in four times 32 bytes of partial sums.
template <class T>
static inline T dot_of(const T *x, const T *y, int64_t n) {
    constexpr int64_t WIDTH = 32 / sizeof(T);
    typename VectorOf<T>::type sums[4] = {}, a, b;
    int64_t k = 0;
    for (; k + 4 * WIDTH <= n; k += 4 * WIDTH)
        for (int64_t r = 0; r < 4; r++) {
            __builtin_memcpy(&a, x + k + r * WIDTH, sizeof a);
            __builtin_memcpy(&b, y + k + r * WIDTH, sizeof b);
            sums[r] += a * b;
        }
    const auto four = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    T total = 0;
    for (int64_t r = 0; r < WIDTH; r++) total += four[r];
    for (; k < n; k++) total += x[k] * y[k];
    return total;
}

template <class T>
struct AdamW {  // the numbers of one step, in the order of `adamw_constants`
    T shrink, first_share, second_kept, second_share, unbias, epsilon, rate;
};

// One step of AdamW on a row of E with moments m and s, where the gradient is x p + y v.
template <class T>
static inline void step_row(
    T *__restrict e, T *__restrict m, T *__restrict s, T x, T y, const T *__restrict p, const T *__restrict v, int64_t d, AdamW<T> c) {
    for (int64_t j = 0; j < d; j++) {
        const T g = x * p[j] + y * v[j];
        m[j] += (g - m[j]) * c.first_share;
        s[j] = s[j] * c.second_kept + g * g * c.second_share;
        e[j] = e[j] * c.shrink - c.rate * m[j] / (square_root(s[j]) * c.unbias + c.epsilon);
    }
}

template <class T>
struct MovedTable {  // embeddings and their two moments, (n, d)
    T *E, *M, *S;
    int64_t d;
};

template <class T>
struct Directions {
    const T *p, *v, *new_p, *new_v;
};

// One step on rows first … last - 1 with the weights x and y of every row; a and b receive the new rows' products with the new p and v.
template <class T>
static inline void step_rows(
    int64_t first, int64_t last, MovedTable<T> table, const T *x, const T *y, Directions<T> to, const T *constants, T *a, T *b) {
    const int64_t d = table.d;
    const T *c = constants;
    for (int64_t k = first; k < last; k++) {
        T *e = table.E + k * d;
        step_row<T>(e, table.M + k * d, table.S + k * d, x[k], y[k], to.p, to.v, d, {c[0], c[1], c[2], c[3], c[4], c[5], c[6]});
        a[k] = dot_of(e, to.new_p, d);
        b[k] = dot_of(e, to.new_v, d);
    }
}

template <class T>
struct WeightedRows {  // of E (n, d), where x and y are the weights of every row
    const T *E, *x, *y;
    int64_t d;
};

// by_p = Eᵀx and by_v = Eᵀy over some rows; four rows share each load of a sum.
template <class T>
static inline void sum_rows(WeightedRows<T> w, const int64_t *rows, int64_t n, T *__restrict by_p, T *__restrict by_v) {
    for (int64_t j = 0; j < w.d; j++) by_p[j] = by_v[j] = 0;
    int64_t k = 0;
    for (; k + 4 <= n; k += 4) {
        const int64_t r0 = rows[k], r1 = rows[k + 1], r2 = rows[k + 2], r3 = rows[k + 3];
        const T *e0 = w.E + r0 * w.d, *e1 = w.E + r1 * w.d, *e2 = w.E + r2 * w.d, *e3 = w.E + r3 * w.d;
        for (int64_t j = 0; j < w.d; j++) {
            by_p[j] += (w.x[r0] * e0[j] + w.x[r1] * e1[j]) + (w.x[r2] * e2[j] + w.x[r3] * e3[j]);
            by_v[j] += (w.y[r0] * e0[j] + w.y[r1] * e1[j]) + (w.y[r2] * e2[j] + w.y[r3] * e3[j]);
        }
    }
    for (; k < n; k++) {
        const T *e = w.E + rows[k] * w.d;
        for (int64_t j = 0; j < w.d; j++) {
            by_p[j] += w.x[rows[k]] * e[j];
            by_v[j] += w.y[rows[k]] * e[j];
        }
    }
}
