// Singular vectors of G = Σ_m e^{s_m} l_m r_mᵀ to high relative accuracy, however far apart the scales s_m are.
//
// The gradient of an attention risk in its key-query matrix is such a sum: l_m a query, r_m a combination of keys and e^{s_m} a residual
// attention, which falls like e^{-margin · norm}. Added up in one array of doubles, all terms below 1e-16 of the largest are lost, and with
// them the singular vectors of the small singular values, which count as much as the others in the polar factor Σ_k u_k v_kᵀ. So G is never
// formed. With unit vectors l_m and r_m, whose lengths go into s_m:
//
// 1. Left basis. Gram–Schmidt on the l_m, the largest remaining e^{s_m}·residual first: G = Σ_k q_k w_kᵀ with q_k orthonormal and
//    w_k = e^{δ_k} z_k, z_k of moderate size.
// 2. Right basis. The same on the z_k: G = Q M Vᵀ, where column j of M is e^{d_j} b_j and, through pivoting, b_j has a one in the place of
//    its pivot and entries of at most one elsewhere, zero where rows were taken before.
// 3. One-sided Jacobi rotations make the columns of M orthogonal. A rotation of columns i and j with ratio ρ = e^{d_j - d_i} ≤ 1 changes
//    b_i by terms of size ρ² and b_j by terms of size one; it needs ρ alone, so that no scale is ever exponentiated by itself, and where ρ
//    underflows the rotation is the projection of b_j away from b_i, its limit.
//
// Demmel, Gu, Eisenstat, Slapničar, Veselić and Drmač (1999) prove that this computes every singular value to a relative error of about
// eps · max(condition of the l_m, condition of the z_k).
//
// Rank. A term whose left vector (or a z_k) lies within DEPENDENT_RTOL of its own length in the span of those taken before brings no direction
// of its own: what is left of it is rounding, which a polar factor would blow up to length one. So terms with equal queries give one
// direction, not two, and G may have fewer singular values than terms.
#pragma once
#include "exponential.h"
#include "linear_algebra.h"
#include "simd_layout.h"
#include "arena.h"

constexpr double DEPENDENT_RTOL = 1e-12;      // of a vector's length: what Gram–Schmidt leaves of a vector that depends on others
constexpr double ORTHOGONAL_COSINE = 1e-15;   // between columns that need no rotation
constexpr double CONVERGED_FILL = 1e-16;      // largest rotation times largest cosine of a sweep, after which another sweep changes nothing
constexpr int64_t MAX_SWEEPS = 40;
constexpr double NEGLIGIBLE_LOG = -60.0;      // a share of e^-60 of a column changes none of its digits
constexpr double EQUAL_VALUES_RTOL = 1e-14;   // between singular values that are the same but for rounding
constexpr double RESIDUAL_SQUARE = 0.01;      // of the length: where less is left of a vector, Gram–Schmidt is repeated
constexpr double SMALLEST_SQUARE = 1e-200, LARGEST_SQUARE = 1e200;  // sums of squares between have lost nothing to underflow or overflow

// out = x/‖x‖ of x (n,), filled up with zeros to `stride` entries, and log ‖x‖; zero and -inf for zero. `out` may be x.
static inline double normalized(const double *x, int64_t n, int64_t stride, double *out) {
    for (int64_t a = 0; a < n; a++) out[a] = x[a];
    for (int64_t a = n; a < stride; a++) out[a] = 0.0;
    double total = dot(out, out, stride), unit = 1.0;
    if (!(SMALLEST_SQUARE < total && total < LARGEST_SQUARE)) {
        unit = max_abs(out, n);
        for (int64_t a = 0; a < n; a++) out[a] = unit > 0.0 ? out[a] / unit : 0.0;
        if (!(unit > 0.0)) return -INF;
        total = dot(out, out, stride);
    }
    const double inverse = 1.0 / square_root(total);
    for (int64_t a = 0; a < stride; a++) out[a] *= inverse;
    return unit == 1.0 ? 0.5 * log(total) : log(unit) + 0.5 * log(total);
}

// A basis that Gram–Schmidt makes of m vectors, and the vectors in it: vectors[j] = Σ_k coefficients[k, j] basis[k].
struct PivotedBasis {
    int64_t stride, width;  // of vectors and basis, filled up with zeros; of coefficients and residuals
    double *vectors;        // (m, stride), overwritten by what is left of them
    double *basis;          // (n, stride)
    double *coefficients;   // (n, width)
    double *residuals;      // (n + 1, width) logarithms of what is left of each vector after so many basis vectors, -inf when it is used up
    int64_t *pivots;        // (n,) from which vector each basis vector was taken
    int64_t n;

    PivotedBasis(Arena &arena, int64_t m, int64_t d, int64_t limit) : stride(whole_lanes(d)), width(whole_lanes(m)), n(0) {
        vectors = arena.doubles(m * stride);
        basis = arena.doubles(limit * stride);
        coefficients = arena.doubles(limit * width);
        residuals = arena.doubles((limit + 1) * width);
        pivots = arena.integers(limit);
    }

    // The vector with the largest weighted residual after k basis vectors, or -1 where none is left.
    int64_t largest(int64_t m, const double *logs, int64_t k) const {
        int64_t pivot = 0;
        const double *left = residuals + k * width;
        for (int64_t j = 1; j < m; j++)
            if (logs[j] + left[j] > logs[pivot] + left[pivot]) pivot = j;
        return m > 0 && logs[pivot] + left[pivot] > -INF ? pivot : -1;
    }

    // Whether Gram–Schmidt would take the vectors in the order in which it has taken them.
    bool same_order(int64_t m, const double *logs) const {
        for (int64_t k = 0; k <= n; k++)
            if (largest(m, logs, k) != (k < n ? pivots[k] : -1)) return false;
        return true;
    }

    // vector -= along · basis[k], where along is its component; returns along.
    double project(double *vector, int64_t k) const {
        const double *direction = basis + k * stride;
        const double along = dot(vector, direction, stride);
        for (int64_t a = 0; a < stride; a++) vector[a] -= along * direction[a];
        return along;
    }

    // Gram–Schmidt on m unit vectors with weights e^{logs}, the largest weighted residual first, up to `limit` basis vectors.
    void build(int64_t m, const double *logs, int64_t limit) {
        n = 0;
        for (int64_t j = 0; j < m; j++) residuals[j] = 0.0;
        while (n < limit) {
            double *left = residuals + n * width, *next = left + width;
            const int64_t pivot = largest(m, logs, n);
            if (pivot < 0) break;
            double *taken = vectors + pivot * stride, total = dot(taken, taken, stride);
            if (total < RESIDUAL_SQUARE) {  // once more: rounding has left something of the basis vectors
                for (int64_t k = 0; k < n; k++) coefficients[k * width + pivot] += project(taken, k);
                total = dot(taken, taken, stride);
                if (total <= DEPENDENT_RTOL * DEPENDENT_RTOL) {
                    left[pivot] = -INF;
                    continue;
                }
            }
            const double size = square_root(total), inverse = 1.0 / size;
            for (int64_t a = 0; a < stride; a++) basis[n * stride + a] = taken[a] * inverse;
            for (int64_t j = 0; j < m; j++) {
                double rest = 0.0, along = 0.0;
                if (j != pivot && left[j] > -INF) {
                    along = project(vectors + j * stride, n);
                    rest = dot(vectors + j * stride, vectors + j * stride, stride);
                }
                coefficients[n * width + j] = along;
                next[j] = rest > DEPENDENT_RTOL * DEPENDENT_RTOL ? 0.5 * log(rest) : -INF;
            }
            coefficients[n * width + pivot] = size;
            pivots[n++] = pivot;
        }
        for (int64_t j = 0; n == limit && j < m; j++) residuals[n * width + j] = -INF;  // no direction is left
    }

    // shares[k, j] = coefficients[k, j] / coefficients[k, pivot] e^{logs[j] - logs[pivot]} of basis vector k, whose pivot has a share of one.
    void shares(int64_t m, const double *logs, int64_t k, double *out) const {
        const int64_t pivot = pivots[k];
        const double *row = coefficients + k * width, inverse = 1.0 / row[pivot];
        for (int64_t j = 0; j < m; j++) {
            const double difference = row[j] != 0.0 ? logs[j] - logs[pivot] : -INF;  // vectors that were taken before may be larger by far
            const double share = row[j] * inverse * exp(difference);
            out[j] = difference > NEGLIGIBLE_LOG ? share : 0.0;
        }
        for (int64_t j = m; j < width; j++) out[j] = 0.0;
        out[pivot] = 1.0;
    }
};

// One-sided Jacobi: rotate the n vectors e^{log_d[j]} B[j], and J[j] alike, until they are orthogonal; log_d stays. The rows lie
// `width` apart and are filled up with zeros.
static inline void rotate_columns(double *B, double *J, int64_t width, const double *log_d, int64_t n) {
    for (int64_t sweep = 0; sweep < MAX_SWEEPS; sweep++) {
        double largest_cosine = 0.0, largest_change = 0.0;
        for (int64_t i = 0; i < n - 1; i++)
            for (int64_t j = i + 1; j < n; j++) {
                int64_t p = log_d[i] >= log_d[j] ? i : j, q = i + j - p;
                double alpha, beta, gamma;
                products_of_two(B + p * width, B + q * width, width, &alpha, &beta, &gamma);
                const double cosine = modulus(gamma) / square_root(alpha * beta);
                if (!(cosine > ORTHOGONAL_COSINE)) continue;
                double ratio = exp(log_d[q] - log_d[p]);
                if (alpha < ratio * ratio * beta) {
                    const double former = alpha;
                    alpha = beta, beta = former;
                    ratio = 1.0 / ratio;
                    p = q, q = i + j - p;
                }
                const double z = (alpha - ratio * ratio * beta) / (2.0 * modulus(gamma));
                const double change = with_sign(1.0 / (z + square_root(ratio * ratio + z * z)), -gamma);  // tangent over ratio
                const double tangent = ratio * change, cosine_of_turn = 1.0 / square_root(1.0 + tangent * tangent);
                rotate(cosine_of_turn, ratio * tangent, change, B + p * width, B + q * width, width);
                rotate(cosine_of_turn, tangent, tangent, J + p * width, J + q * width, width);
                largest_cosine = larger(largest_cosine, cosine);
                largest_change = larger(largest_change, modulus(change));
            }
        if (largest_cosine * largest_change <= CONVERGED_FILL) break;
    }
}

// The SVD of sums of m terms of one shape (q, d), in memory that is made once; every call overwrites it.
//
// Singular triplet j, of `rank`, is the value exp(log_values[j]), the left vector Σ_i B[j, i] Q[i] and the right one Σ_k J[j, k] V[k].
struct GradedSvd {
    int64_t m, q, d, rank;
    PivotedBasis left, right;  // of the l_m; of the rows z_k
    double *rights;            // (m, ·) the unit vectors r_m
    double *weights;           // (k, ·) of the r_m in the rows z_k
    double *B, *J;             // (k, ·) columns of M without their scales; products of rotations
    double *sizes, *logs, *log_rows, *log_values;  // logarithms: of the lengths of the l_m, of the sizes of terms and rows, of singular values
    double *core, *rows;       // (k, ·) room for products

    GradedSvd(Arena &arena, int64_t m, int64_t q, int64_t d)
        : m(m), q(q), d(d), rank(0), left(arena, m, q, smaller(m, q)), right(arena, smaller(m, q), d, smaller(smaller(m, q), d)) {
        const int64_t k = smaller(m, q), widest = larger(left.stride, right.stride);
        rights = arena.doubles(m * right.stride);
        weights = arena.doubles(k * left.width);
        B = arena.doubles(k * right.width);
        J = arena.doubles(k * right.width);
        double **vectors[] = {&sizes, &logs, &log_rows, &log_values};
        for (double **vector : vectors) *vector = arena.doubles(m);
        core = arena.doubles(k * right.width);
        rows = arena.doubles(larger(k, (int64_t)1) * widest);
    }

    // Logarithms of the sizes of the rows z_k = Σ_m weights[k, m] r_m, which are made unit vectors; terms that cancel leave rounding.
    void combine_terms() {
        for (int64_t i = 0; i < left.n; i++) left.shares(m, logs, i, weights + i * left.width);
        matrix_product(weights, left.width, 1, rights, m, right.vectors, left.n, right.stride);
        for (int64_t i = 0; i < left.n; i++) {
            double total = 0.0;
            for (int64_t j = 0; j < m; j++) total += modulus(weights[i * left.width + j]);
            const int64_t pivot = left.pivots[i];
            double *row = right.vectors + i * right.stride, size = normalized(row, right.stride, right.stride, row);
            if (!(size > log(DEPENDENT_RTOL * total))) size = -INF;
            log_rows[i] = logs[pivot] + (log(left.coefficients[i * left.width + pivot]) + size);
        }
    }

    // The SVD of Σ_m e^{log_scale[m]} lefts[m] given_rights[m]ᵀ, -inf being the scale of a term that is not there; right vectors lie `apart`.
    //
    // Where `same_left` says that the left vectors are those of the call before, their basis serves again if it would be made in the same
    // order; the result is the same to the last bit.
    void decompose(const double *lefts, const double *given_rights, int64_t apart, const double *log_scale, bool same_left) {
        double largest = -INF;
        for (int64_t j = 0; j < m; j++) largest = larger(log_scale[j], largest);
        if (largest == -INF) largest = 0.0;
        same_left = same_left && left.n > 0;
        for (int64_t j = 0; j < m; j++) {
            if (!same_left) sizes[j] = normalized(lefts + j * q, q, left.stride, left.vectors + j * left.stride);
            const double size = normalized(given_rights + j * apart, d, right.stride, rights + j * right.stride);
            logs[j] = (log_scale[j] - largest) + (sizes[j] + size);
        }
        if (!(same_left && left.same_order(m, logs))) {
            for (int64_t j = 0; same_left && j < m; j++) normalized(lefts + j * q, q, left.stride, left.vectors + j * left.stride);
            left.build(m, logs, smaller(m, q));
        }
        combine_terms();
        right.build(left.n, log_rows, smaller(left.n, d));
        rank = right.n;
        for (int64_t j = 0; j < rank; j++) {
            const int64_t pivot = right.pivots[j];
            log_values[j] = log_rows[pivot] + log(right.coefficients[j * right.width + pivot]);
            right.shares(left.n, log_rows, j, B + j * right.width);
            for (int64_t k = 0; k < right.width; k++) J[j * right.width + k] = k == j ? 1.0 : 0.0;
        }
        rotate_columns(B, J, right.width, log_values, rank);
        for (int64_t j = 0; j < rank; j++) {
            double *column = B + j * right.width;
            const double square = dot(column, column, right.width), inverse = 1.0 / square_root(square);
            log_values[j] += 0.5 * log(square) + largest;
            for (int64_t i = 0; i < right.width; i++) column[i] *= inverse;
        }
    }

    // out (q, d), its rows filled up to whole lanes, = Σ_k u_k v_kᵀ over the numerical rank; zero where G is.
    void polar_factor(double *out) {
        matrix_product(J, 1, right.width, B, rank, core, rank, right.width);
        matrix_product(core, 1, right.width, right.basis, rank, rows, left.n, right.stride);
        matrix_product(left.basis, 1, left.stride, rows, left.n, out, q, right.stride);
    }

    // u (q,) and v (d,) of singular triplet j.
    void pair(int64_t j, double *u, double *v) {
        matrix_product(B + j * right.width, right.width, 1, left.basis, left.n, rows, 1, left.stride);
        for (int64_t a = 0; a < q; a++) u[a] = rows[a];
        matrix_product(J + j * right.width, right.width, 1, right.basis, rank, rows, 1, right.stride);
        for (int64_t b = 0; b < d; b++) v[b] = rows[b];
    }

    // The number of the largest singular value; where several agree to rounding, of one of them.
    int64_t leading() const {
        int64_t best = 0;
        for (int64_t j = 1; j < rank; j++)
            if (log_values[j] > log_values[best] + EQUAL_VALUES_RTOL) best = j;
        return best;
    }
};
