// Tokens in the order in which loops take four inputs at a time, and products of matrices in it.
//
// Token t of input i has the place 4 (T ⌊i/4⌋ + t) + i mod 4, so that four inputs are next to each other. Missing inputs and tokens past an
// input's length have the key zero and the logit CLOSED, which no weight survives. A matrix is flat and has one row of n_places entries for
// each coordinate (keys) or each place (a Gram matrix).
#pragma once
#include "linear_algebra.h"

constexpr double CLOSED = -1.7976931348623157e308;  // the logit of places without a token

CORE int64_t whole_lanes(int64_t n) { return (n + N_LANES - 1) / N_LANES * N_LANES; }
CORE int64_t n_places(int64_t n_inputs, int64_t n_tokens) { return whole_lanes(n_inputs) * n_tokens; }
CORE int64_t place(int64_t i, int64_t t, int64_t n_tokens) { return (i / N_LANES * n_tokens + t) * N_LANES + i % N_LANES; }

// Values (n_inputs, n_tokens) in the order of places, zero where no token is.
static inline void arrange(const double *values, const int64_t *lengths, int64_t n_inputs, int64_t n_tokens, double *out) {
    for (int64_t k = 0; k < n_places(n_inputs, n_tokens); k++) out[k] = 0.0;
    for (int64_t i = 0; i < n_inputs; i++)
        for (int64_t t = 0; t < lengths[i]; t++) out[place(i, t, n_tokens)] = values[i * n_tokens + t];
}

// Give CLOSED to the logits of places without a token, but the first of a missing input.
static inline void close_places(const int64_t *lengths, int64_t n_inputs, int64_t n_tokens, double *logits) {
    for (int64_t i = 0; i < whole_lanes(n_inputs); i++)
        for (int64_t t = i < n_inputs ? lengths[i] : 1; t < n_tokens; t++) logits[place(i, t, n_tokens)] = CLOSED;
}

// Keys (n_inputs, n_tokens, d) less the mean key of their input, as d rows of places.
//
// The mean changes no softmax and no gradient; without it the Gram matrix is more accurate. `means` is room for 4 d numbers.
static inline void centred_columns(
    const double *keys, const int64_t *lengths, int64_t n_inputs, int64_t n_tokens, int64_t d, double *means, double *out) {
    const int64_t m = n_places(n_inputs, n_tokens), whole = d - d % N_LANES;
    for (int64_t slot = 0; slot < whole_lanes(n_inputs); slot += N_LANES) {
        Lanes count = spread(0.0);
        const double *rows[N_LANES];
        for (int64_t lane = 0; lane < N_LANES; lane++) {
            const int64_t i = smaller(slot + lane, n_inputs - 1);
            rows[lane] = keys + i * n_tokens * d;
            count[lane] = slot + lane < n_inputs ? (double)lengths[i] : 0.0;
            mean_of_rows(rows[lane], lengths[i], d, means + lane * d);
        }
        for (int64_t t = 0; t < n_tokens; t++) {
            double *at = out + slot * n_tokens + N_LANES * t;
            const Lanes token = spread((double)t), zero = spread(0.0);
            for (int64_t k = 0; k < whole; k += N_LANES) {
                Lanes a = load(rows[0], t * d + k) - load(means, k), b = load(rows[1], t * d + k) - load(means, d + k);
                Lanes c = load(rows[2], t * d + k) - load(means, 2 * d + k), e = load(rows[3], t * d + k) - load(means, 3 * d + k);
                transpose(a, b, c, e);
                store(at, k * m, where_greater(count, token, a, zero));
                store(at, (k + 1) * m, where_greater(count, token, b, zero));
                store(at, (k + 2) * m, where_greater(count, token, c, zero));
                store(at, (k + 3) * m, where_greater(count, token, e, zero));
            }
            for (int64_t k = whole; k < d; k++)
                for (int64_t lane = 0; lane < N_LANES; lane++)
                    at[k * m + lane] = (double)t < count[lane] ? rows[lane][t * d + k] - means[lane * d + k] : 0.0;
        }
    }
}

// Places of Aᵀ x from a place on, `count` registers of them, kept while the rows of A pass: even and odd rows in sums of their own.
template <class Register, int count>
CORE void combine_places(const double *A, int64_t n, int64_t m, const double *x, double *out) {
    constexpr int64_t size = sizeof(Register) / sizeof(double);
    Register even[count], odd[count];
    for (int j = 0; j < count; j++) even[j] = odd[j] = Register{};
    int64_t k = 0;
    for (; k + 2 <= n; k += 2)
        for (int j = 0; j < count; j++) {
            Register row, next;
            read(A + k * m + size * j, row);
            read(A + (k + 1) * m + size * j, next);
            even[j] += row * x[k];
            odd[j] += next * x[k + 1];
        }
    for (int j = 0; j < count; j++) {
        if (k < n) {
            Register row;
            read(A + k * m + size * j, row);
            even[j] += row * x[k];
        }
        even[j] = even[j] + odd[j];
        write(out + size * j, even[j]);
    }
}

constexpr int64_t CACHED_ENTRIES = 1 << 19;  // of a matrix, beyond which its rows are read in long pieces
constexpr int64_t PIECE = 1024;             // places whose even and odd sums stay in the nearest cache

// `combine` for matrices beyond the caches: a piece of two rows at a time, so that memory is read in order.
static inline void combine_in_pieces(const double *A, int64_t n, int64_t m, const double *x, double *out) {
    double even[PIECE], odd[PIECE];
    for (int64_t i = 0; i < m; i += PIECE) {
        const int64_t size = smaller(PIECE, m - i);
        for (int64_t j = 0; j < size; j++) even[j] = odd[j] = 0.0;
        int64_t k = 0;
        for (; k + 2 <= n; k += 2) {
            const double *row = A + k * m + i, *next = row + m;
            for (int64_t j = 0; j < size; j += 4) {
                store(even, j, load(even, j) + load(row, j) * x[k]);
                store(odd, j, load(odd, j) + load(next, j) * x[k + 1]);
            }
        }
        for (int64_t j = 0; k < n && j < size; j += 4) store(even, j, load(even, j) + load(A + k * m + i, j) * x[k]);
        for (int64_t j = 0; j < size; j += 4) store(out + i, j, load(even, j) + load(odd, j));
    }
}

// out = Aᵀ x: the n rows of A, m places each, added up with the weights x. How many places are taken at a time changes no bit.
static inline void combine(const double *A, int64_t n, int64_t m, const double *x, double *out) {
    if (n * m > CACHED_ENTRIES) return combine_in_pieces(A, n, m, x, out);
    int64_t i = 0;
#ifdef WIDE_REGISTERS
    for (; i + 64 <= m; i += 64) combine_places<Eight, 8>(A + i, n, m, x, out + i);
    for (; i + 24 <= m; i += 24) combine_places<Eight, 3>(A + i, n, m, x, out + i);
    for (; i + 8 <= m; i += 8) combine_places<Eight, 1>(A + i, n, m, x, out + i);
#else
    for (; i + 24 <= m; i += 24) combine_places<Lanes, 6>(A + i, n, m, x, out + i);
    for (; i + 12 <= m; i += 12) combine_places<Lanes, 3>(A + i, n, m, x, out + i);
#endif
    for (; i < m; i += 4) combine_places<Lanes, 1>(A + i, n, m, x, out + i);
}

// out = A x: the inner products of the n rows of A, m places each, with x.
static inline void inner_products(const double *A, int64_t n, int64_t m, const double *x, double *out) {
    int64_t k = 0;
    for (; k + 4 <= n; k += 4) dot_4(A + k * m, A + (k + 1) * m, A + (k + 2) * m, A + (k + 3) * m, x, m, out + k);
    for (const double *row = A + k * m; k < n; k++, row += m) dot_all<1, 1>(&row, &x, m, out + k);
}

// out = Aᵀ A, (m, m), of n rows of m places: tiles of 4 × 4 on and above the diagonal, and their mirror images.
static inline void gram_of_places(const double *A, int64_t n, int64_t m, double *out) {
    for (int64_t i = 0; i < m; i += N_LANES)
        for (int64_t j = 0; j <= i; j += 4) {
            Lanes s0 = spread(0.0), s1 = s0, s2 = s0, s3 = s0;
            for (int64_t k = 0; k < n; k++) {
                const double *row = A + k * m;
                const Lanes y = load(row, i);
                s0 += y * row[j];
                s1 += y * row[j + 1];
                s2 += y * row[j + 2];
                s3 += y * row[j + 3];
            }
            store(out, j * m + i, s0);
            store(out, (j + 1) * m + i, s1);
            store(out, (j + 2) * m + i, s2);
            store(out, (j + 3) * m + i, s3);
        }
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < i; j++) out[i * m + j] = out[j * m + i];
}

// Σ x y and Σ |x y| over m places; their ratio shows how much cancelled.
CORE double dot_and_size(const double *x, const double *y, int64_t m, double *size) {
    Eight total = twice(spread(0.0)), sizes = total;
    int64_t k = 0;
    for (; k + 8 <= m; k += 8) {
        const Eight product = load_8(x, k) * load_8(y, k);
        total += product;
        sizes += modulus(product);
    }
    Lanes low = low_half(total), low_size = low_half(sizes);
    if (k < m) {
        const Lanes product = load(x, k) * load(y, k);
        low += product;
        low_size += modulus(product);
    }
    *size = lane_sum(low_size + high_half(sizes));
    return lane_sum(low + high_half(total));
}

// Σ x² over n entries.
CORE double square_of(const double *x, int64_t n) {
    Lanes sums = spread(0.0);
    double rest = 0.0;
    int64_t k = 0;
    for (; k + N_LANES <= n; k += N_LANES) sums += load(x, k) * load(x, k);
    for (; k < n; k++) rest += x[k] * x[k];
    return lane_sum(sums) + rest;
}

// out = x - factor y, n entries; whether all are finite.
CORE bool subtract(const double *x, double factor, const double *y, int64_t n, double *out) {
    Eight checks = twice(spread(0.0));
    Lanes check = spread(0.0);
    double rest = 0.0;
    int64_t k = 0;
    for (; k + 8 <= n; k += 8) {
        const Eight z = load_8(x, k) - factor * load_8(y, k);
        store(out, k, z);
        checks += z * 0.0;  // nan where an entry is not finite
    }
    if (k + N_LANES <= n) {
        const Lanes z = load(x, k) - factor * load(y, k);
        store(out, k, z);
        check = z * 0.0;
        k += N_LANES;
    }
    for (; k < n; k++) {
        out[k] = x[k] - factor * y[k];
        rest += out[k] * 0.0;
    }
    return lane_sum(sum_of_halves(checks) + check) + rest == 0.0;
}

// The largest modulus among n entries, a multiple of the number of lanes.
CORE double largest_modulus(const double *x, int64_t n) {
    Lanes largest = spread(0.0);
    for (int64_t k = 0; k < n; k += N_LANES) largest = larger(largest, modulus(load(x, k)));
    return lane_max(largest);
}
