// Exports: AdamW on embeddings, steps and sums, in single and in double precision. The file includes itself once for each, which names the doors.
#ifndef IN_PRECISION
#include "../arithmetic.h"
#include "abi.h"

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

#define Real float
#define IN_PRECISION(name) name##_float32
#include "embeddings.cpp"
#undef Real
#undef IN_PRECISION
#define Real double
#define IN_PRECISION(name) name##_float64
#include "embeddings.cpp"
#else

// One step of AdamW on rows first … last - 1 of E with the gradient x pᵀ + y vᵀ, and the new rows' products with the new p and v.
EXPORT IN_PRECISION(step_embeddings)(
    int64_t first,           // in 0..last
    int64_t last,            // in 0..n_tokens
    Real *E,                 // (n_tokens, d)
    Real *M,                 // (n_tokens, d)
    Real *S,                 // (n_tokens, d)
    const Real *x,           // (n_tokens)
    const Real *y,           // (n_tokens)
    const Real *p,           // (d)
    const Real *v,           // (d)
    const Real *new_p,       // (d)
    const Real *new_v,       // (d)
    const Real *constants,   // (7)
    Real *a,                 // (n_tokens)
    Real *b,                 // (n_tokens)
    int64_t n_tokens, int64_t d) {
    const Real *c = constants;
    const AdamW<Real> adamw{c[0], c[1], c[2], c[3], c[4], c[5], c[6]};
    for (int64_t k = first; k < last; k++) step_row<Real>({E, M, S, d}, k, {p, v, new_p, new_v}, x[k], y[k], adamw, a[k], b[k]);
    return 0;
}

// Eᵀx and Eᵀy over rows of E, each of shares first … last - 1 of the rows into its own sums.
EXPORT IN_PRECISION(sum_embeddings)(
    int64_t first,        // in 0..last
    int64_t last,         // in 0..n_shares
    const Real *E,        // (n_tokens, d)
    const int64_t *rows,  // (n_rows) in 0..n_tokens-1
    const Real *x,        // (n_tokens)
    const Real *y,        // (n_tokens)
    Real *sums,           // (n_shares, 2, d)
    int64_t n_tokens, int64_t d, int64_t n_rows, int64_t n_shares) {
    for (int64_t share = first; share < last; share++) {
        const int64_t begin = n_rows * share / n_shares, end = n_rows * (share + 1) / n_shares;
        sum_rows<Real>({E, x, y, d}, rows + begin, end - begin, sums + 2 * share * d, sums + (2 * share + 1) * d);
    }
    return 0;
}

#endif
