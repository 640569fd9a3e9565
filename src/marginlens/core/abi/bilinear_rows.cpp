// Exports: rows (x_i - x_j) q_kᵀ of problems in a matrix W, known by a query and two tokens and never formed; and block-diagonal matrices.
#include "../linear_algebra.h"
#include "../arena.h"
#include "abi.h"

// Row r is (X[i[r]] - X[j[r]]) Q[k[r]]ᵀ scale[r]. An index that is out of range ends a loop.
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

// Norms of the differences x_i - x_j of rows, which may be small enough for their squares to underflow; queries are not looked at.
EXPORT find_difference_norms(
    const double *X,             // (n_tokens, d)
    const int64_t *k,            // (n_rows)
    const int64_t *i,            // (n_rows)
    const int64_t *j,            // (n_rows)
    const double *scale,         // (n_rows)
    double *norms,               // (n_rows)
    int64_t n_tokens, int64_t d, int64_t n_rows) {
    const BilinearRows rows{X, k, i, j, scale, n_tokens, d, n_rows};
    for (int64_t r = 0; r < n_rows; r++) {
        if (!rows.reaches(r, INT64_MAX)) return WRONG_SIZE;
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
    return 0;
}

// Sums, for each query, of the differences of some bilinear rows times weights, added to `sums`.
EXPORT add_weighted_differences(
    const double *X,             // (n_tokens, d)
    const int64_t *k,            // (n_rows)
    const int64_t *i,            // (n_rows)
    const int64_t *j,            // (n_rows)
    const double *scale,         // (n_rows)
    const int64_t *indices,      // (n_indices)
    const double *weights,       // (n_indices)
    double *sums,                // (n_queries, d)
    int64_t n_tokens, int64_t d, int64_t n_rows, int64_t n_indices, int64_t n_queries) {
    const BilinearRows rows{X, k, i, j, scale, n_tokens, d, n_rows};
    for (int64_t p = 0; p < n_indices; p++) {
        const int64_t r = indices[p];
        if (!rows.reaches(r, n_queries)) return WRONG_SIZE;
        const double weight = weights[p] * scale[r], *x = rows.plus(r), *y = rows.minus(r);
        double *__restrict into = sums + k[r] * d;
        for (int64_t c = 0; c < d; c++) into[c] += weight * (x[c] - y[c]);
    }
    return 0;
}

// Inner products of the differences of some bilinear rows with the images of their queries.
EXPORT multiply_differences(
    const double *X,             // (n_tokens, d)
    const int64_t *k,            // (n_rows)
    const int64_t *i,            // (n_rows)
    const int64_t *j,            // (n_rows)
    const double *scale,         // (n_rows)
    const int64_t *indices,      // (n_indices)
    const double *images,        // (n_queries, d)
    double *products,            // (n_indices)
    int64_t n_tokens, int64_t d, int64_t n_rows, int64_t n_indices, int64_t n_queries) {
    const BilinearRows rows{X, k, i, j, scale, n_tokens, d, n_rows};
    for (int64_t p = 0; p < n_indices; p++) {
        const int64_t r = indices[p];
        if (!rows.reaches(r, n_queries)) return WRONG_SIZE;
        products[p] = difference_product(rows.plus(r), rows.minus(r), images + k[r] * d, d) * scale[r];
    }
    return 0;
}

// A block-diagonal matrix times a vector: block p acts on the entries edges[p] … edges[p + 1] - 1, and blocks lie one after the other.
EXPORT multiply_blocks(
    const int64_t *edges,        // (n_edges) in 0..n
    const double *entries,       // (n_entries)
    const double *vector,        // (n)
    double *out,                 // (n)
    int64_t n_edges, int64_t n_entries, int64_t n) {
    for (int64_t p = 0, place = 0; p + 1 < n_edges; p++) {
        const int64_t first = edges[p], size = edges[p + 1] - first;
        if (size < 0 || size > n || n_entries - place < size * size) return WRONG_SIZE;
        matvec(entries + place, size, size, vector + first, out + first);
        place += size * size;
    }
    return 0;
}
