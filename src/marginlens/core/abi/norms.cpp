// Doors: singular vectors of sums of rank-one terms, steepest directions and descent in other norms.
#include "../graded_svd.h"
#include "abi.h"

// Copy n rows of d entries between matrices whose rows lie apart.
static void copy_rows(const double *x, int64_t stride, int64_t n, int64_t d, double *out, int64_t its_stride) {
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < d; k++) out[i * its_stride + k] = x[i * stride + k];
}

// Polar factors Σ_k u_k v_kᵀ of sums Σ_m e^{s_m} l_m r_mᵀ, and their ranks; left vectors that all share are given once.
DOOR polar_factors(
    const double *left,       // (n_lefts, m, q)
    const double *right,      // (batch, m, d)
    const double *log_scale,  // (batch, m)
    double *out,              // (batch, q, d)
    int64_t *ranks,           // (batch)
    int64_t n_lefts, int64_t batch, int64_t m, int64_t q, int64_t d) {
    if (batch && n_lefts != 1 && n_lefts != batch) return WRONG_SIZE;
    Room room;
    GradedSvd svd(room, m, q, d);
    double *factor = room.doubles(q * whole_lanes(d));
    if (room.failed) return OUT_OF_MEMORY;
    for (int64_t b = 0; b < batch; b++) {
        svd.decompose(left + b % n_lefts * m * q, right + b * m * d, log_scale + b * m, b > 0 && n_lefts == 1);
        svd.polar_factor(factor);
        copy_rows(factor, whole_lanes(d), q, d, out + b * q * d, d);
        ranks[b] = svd.rank;
    }
    return 0;
}

// Singular vectors of the largest singular values, whose logarithms are in `logs`; zero and -inf where a sum is zero.
DOOR leading_pairs(
    const double *left,       // (n_lefts, m, q)
    const double *right,      // (batch, m, d)
    const double *log_scale,  // (batch, m)
    double *u,                // (batch, q)
    double *v,                // (batch, d)
    double *logs,             // (batch)
    int64_t n_lefts, int64_t batch, int64_t m, int64_t q, int64_t d) {
    if (batch && n_lefts != 1 && n_lefts != batch) return WRONG_SIZE;
    Room room;
    GradedSvd svd(room, m, q, d);
    if (room.failed) return OUT_OF_MEMORY;
    for (int64_t b = 0; b < batch; b++) {
        svd.decompose(left + b % n_lefts * m * q, right + b * m * d, log_scale + b * m, b > 0 && n_lefts == 1);
        logs[b] = svd.leading_pair(u + b * q, v + b * d);
    }
    return 0;
}

// Σ_m e^{s_m} l_m r_mᵀ = Σ_k e^{logs[k]} U[k] V[k]ᵀ with orthonormal U[k] and V[k], in no order; zero from each rank on.
DOOR singular_triplets(
    const double *left,       // (batch, m, q)
    const double *right,      // (batch, m, d)
    const double *log_scale,  // (batch, m)
    double *U,                // (batch, count, q)
    double *V,                // (batch, count, d)
    double *logs,             // (batch, count)
    int64_t *ranks,           // (batch)
    int64_t batch, int64_t m, int64_t q, int64_t d, int64_t count) {
    if (count < smaller(smaller(m, q), d)) return WRONG_SIZE;
    Room room;
    GradedSvd svd(room, m, q, d);
    if (room.failed) return OUT_OF_MEMORY;
    for (int64_t k = 0; k < batch * count * q; k++) U[k] = 0.0;
    for (int64_t k = 0; k < batch * count * d; k++) V[k] = 0.0;
    for (int64_t k = 0; k < batch * count; k++) logs[k] = 0.0;
    for (int64_t b = 0; b < batch; b++) {
        svd.decompose(left + b * m * q, right + b * m * d, log_scale + b * m, false);
        for (int64_t j = 0; j < svd.rank; j++) {
            svd.pair(j, U + (b * count + j) * q, V + (b * count + j) * d);
            logs[b * count + j] = svd.log_values[j];
        }
        ranks[b] = svd.rank;
    }
    return 0;
}
