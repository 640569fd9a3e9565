// Rows (x_i - x_j) q_kᵀ of problems in a matrix W, known by a query and two tokens and never formed.
#pragma once
#include "../linear_algebra.h"

// Row r is (X[i[r]] - X[j[r]]) Q[k[r]]ᵀ scale[r]. An index that is out of range ends a loop, which then returns false.
struct BilinearRows {
    const double *X;          // (n_tokens, d)
    const int64_t *k, *i, *j; // (n_rows)
    const double *scale;      // (n_rows)
    int64_t n_tokens, d, n_rows;

    bool reaches(int64_t r, int64_t n_queries) const {
        if ((uint64_t)r >= (uint64_t)n_rows) return false;
        return (uint64_t)k[r] < (uint64_t)n_queries && (uint64_t)i[r] < (uint64_t)n_tokens && (uint64_t)j[r] < (uint64_t)n_tokens;
    }
    const double *plus(int64_t r) const { return X + i[r] * d; }
    const double *minus(int64_t r) const { return X + j[r] * d; }
};

// (x - y) · z, two times eight partial sums.
CORE double difference_product(const double *x, const double *y, const double *z, int64_t n) {
    Eight even = twice(spread(0.0)), odd = even;
    int64_t k = 0;
    for (; k + 16 <= n; k += 16) {
        even += (load_8(x, k) - load_8(y, k)) * load_8(z, k);
        odd += (load_8(x, k + 8) - load_8(y, k + 8)) * load_8(z, k + 8);
    }
    Lanes low = sum_of_halves(even + odd);
    for (; k + 4 <= n; k += 4) low += (load(x, k) - load(y, k)) * load(z, k);
    double total = lane_sum(low);
    for (; k < n; k++) total += (x[k] - y[k]) * z[k];
    return total;
}

// The norms of the scaled differences; their queries are not looked at.
static inline bool difference_norms(const BilinearRows &rows, double *norms) {
    for (int64_t r = 0; r < rows.n_rows; r++) {
        if (!rows.reaches(r, INT64_MAX)) return false;
        const double *x = rows.plus(r), *y = rows.minus(r);
        Lanes squares = spread(0.0), sizes = squares;  // the square of the largest may underflow
        double square = 0.0, largest = 0.0;
        int64_t c = 0;
        for (; c + N_LANES <= rows.d; c += N_LANES) {
            const Lanes difference = load(x, c) - load(y, c);
            squares += difference * difference;
            sizes = larger(modulus(difference), sizes);
        }
        for (; c < rows.d; c++) {
            square += (x[c] - y[c]) * (x[c] - y[c]);
            largest = larger(modulus(x[c] - y[c]), largest);
        }
        norms[r] = larger(square_root(lane_sum(squares) + square), larger(lane_max(sizes), largest)) * rows.scale[r];
    }
    return true;
}

// Add to sums[k] (n_queries, d) the weighted differences of the rows `indices` of query k.
static inline bool add_differences(
    const BilinearRows &rows, const int64_t *indices, int64_t n, const double *weights, int64_t n_queries, double *sums) {
    for (int64_t p = 0; p < n; p++) {
        const int64_t r = indices[p];
        if (!rows.reaches(r, n_queries)) return false;
        const double weight = weights[p] * rows.scale[r], *x = rows.plus(r), *y = rows.minus(r);
        double *__restrict into = sums + rows.k[r] * rows.d;
        for (int64_t c = 0; c < rows.d; c++) into[c] += weight * (x[c] - y[c]);
    }
    return true;
}

// How far images[k] (n_queries, d) ranks i above j, for every row of `indices`.
static inline bool difference_products(
    const BilinearRows &rows, const int64_t *indices, int64_t n, const double *images, int64_t n_queries, double *products) {
    for (int64_t p = 0; p < n; p++) {
        const int64_t r = indices[p];
        if (!rows.reaches(r, n_queries)) return false;
        products[p] = difference_product(rows.plus(r), rows.minus(r), images + rows.k[r] * rows.d, rows.d) * rows.scale[r];
    }
    return true;
}
