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
struct Vector {  // 32 bytes: one register of AVX, two of SSE
    typedef T type __attribute__((vector_size(32)));
    static constexpr int64_t WIDTH = 32 / sizeof(T);
};

// √ of each number of a vector, or of a single number.
template <class T, class V>
CORE V square_roots(V x) {
    T numbers[sizeof(V) / sizeof(T)];
    __builtin_memcpy(numbers, &x, sizeof x);
    for (T &number : numbers) number = square_root(number);
    __builtin_memcpy(&x, numbers, sizeof x);
    return x;
}

template <class T>
struct AdamW {  // the numbers of one step, in the order of `adamw_constants`
    T shrink, first_share, second_kept, second_share, unbias, epsilon, rate;
};

template <class T>
struct MovedTable {  // embeddings and their two moments, (n, d)
    T *E, *M, *S;
    int64_t d;
};

template <class T>
struct Directions {
    const T *p, *v, *new_p, *new_v;
};

// One step on the numbers at place k of a table and j of a row, one or a vector of them, where the gradient is x p + y v. Their new products
// with the new p and v are added to a and b.
template <class V, class T>
CORE void step_numbers(const MovedTable<T> &table, int64_t k, const Directions<T> &to, int64_t j, T x, T y, const AdamW<T> &c, V &a, V &b) {
    V e, m, s, p, v;
    __builtin_memcpy(&e, table.E + k, sizeof e);
    __builtin_memcpy(&m, table.M + k, sizeof m);
    __builtin_memcpy(&s, table.S + k, sizeof s);
    __builtin_memcpy(&p, to.p + j, sizeof p);
    __builtin_memcpy(&v, to.v + j, sizeof v);
    const V g = x * p + y * v;
    m += (g - m) * c.first_share;
    s = s * c.second_kept + g * g * c.second_share;
    e = e * c.shrink - c.rate * m / (square_roots<T>(s) * c.unbias + c.epsilon);
    __builtin_memcpy(table.E + k, &e, sizeof e);
    __builtin_memcpy(table.M + k, &m, sizeof m);
    __builtin_memcpy(table.S + k, &s, sizeof s);
    __builtin_memcpy(&p, to.new_p + j, sizeof p);
    __builtin_memcpy(&v, to.new_v + j, sizeof v);
    a += e * p;
    b += e * v;
}

// One step on a row; a and b receive its products with the new p and v, summed in two vectors. Memory is asked for ahead of its use.
template <class T>
static inline void step_row(const MovedTable<T> &table, int64_t row, const Directions<T> &to, T x, T y, const AdamW<T> &c, T &a, T &b) {
    typedef typename Vector<T>::type V;
    constexpr int64_t WIDTH = Vector<T>::WIDTH, AHEAD = 1024 / sizeof(T);
    V even_a = {}, even_b = {}, odd_a = {}, odd_b = {};
    int64_t j = 0, k = row * table.d;
    for (; j + 2 * WIDTH <= table.d; j += 2 * WIDTH, k += 2 * WIDTH) {
        __builtin_prefetch(table.E + k + AHEAD);
        __builtin_prefetch(table.M + k + AHEAD);
        __builtin_prefetch(table.S + k + AHEAD);
        step_numbers<V>(table, k, to, j, x, y, c, even_a, even_b);
        step_numbers<V>(table, k + WIDTH, to, j + WIDTH, x, y, c, odd_a, odd_b);
    }
    even_a += odd_a;
    even_b += odd_b;
    a = b = 0;
    for (int64_t r = 0; r < WIDTH; r++) a += even_a[r], b += even_b[r];
    for (; j < table.d; j++, k++) step_numbers<T>(table, k, to, j, x, y, c, a, b);
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
