// Steepest directions of norms of entries: what maximises ⟨g, x⟩ over ‖x‖ ≤ 1. Those of singular values are in graded_svd.h.
//
// Arrays have a multiple of four entries, filled up with zeros, which no direction moves.
#pragma once
#include "exponential.h"
#include "simd_layout.h"
#include "steps.h"

enum Norm : int64_t { LARGEST_ENTRY = 0, EUCLIDEAN = 1, SIGN = 2, POWER = 3, SPECTRAL = 10, NUCLEAR = 11, MAX_ROW = 12 };

// out = x^exponent, n entries that are not below zero.
static inline void powers(const double *x, int64_t n, double exponent, double *out) {
    if (exponent == 1.0 || exponent == 0.5) {
        for (int64_t k = 0; k < n; k++) out[k] = exponent == 1.0 ? x[k] : square_root(x[k]);
        return;
    }
    for (int64_t k = 0; k < n; k += N_LANES) store(out, k, pow(load(x, k), exponent));
}

// out = sign(g_j) (|g_j| / ‖g‖_q)^{1/(p-1)}, the steepest direction in ℓp with 1/p + 1/q = 1. `shares` is room for n numbers.
static inline void steepest_power(const double *g, int64_t n, double p, double *shares, double *out) {
    const double largest = largest_modulus(g, n);
    for (int64_t k = 0; k < n; k++) shares[k] = largest > 0.0 ? modulus(g[k]) / largest : 0.0;
    powers(shares, n, 1.0 / (p - 1.0), out);
    Lanes total = spread(0.0);  // Σ |out|^p, which is Σ |g| |out| because p/(p - 1) = 1 + 1/(p - 1)
    for (int64_t k = 0; k < n; k += N_LANES) total += load(shares, k) * load(out, k);
    const double sum = lane_sum(total), norm = p == 2.0 ? square_root(sum) : pow(sum, 1.0 / p), inverse = 1.0 / norm;
    for (int64_t k = 0; k < n; k++) out[k] = largest > 0.0 ? with_sign(out[k] * inverse, g[k]) : 0.0;
}

// out = the steepest direction of g, n entries, in ℓ1, ℓ2, ℓ∞ or ℓp; zero where g is zero.
static inline void steepest_entries(const double *g, int64_t n, int64_t norm, double p, double *shares, double *out) {
    if (norm == EUCLIDEAN || norm == POWER) return steepest_power(g, n, norm == EUCLIDEAN ? 2.0 : p, shares, out);
    if (norm == SIGN) {
        for (int64_t k = 0; k < n; k++) out[k] = g[k] > 0.0 ? 1.0 : (g[k] < 0.0 ? -1.0 : 0.0);
        return;
    }
    const double largest = largest_modulus(g, n);
    for (int64_t k = 0; k < n; k++) out[k] = 0.0;
    int64_t first = 0;
    while (first < n && !(modulus(g[first]) >= (1.0 - TIE_RTOL) * largest)) first++;
    if (first < n && largest > 0.0) out[first] = g[first] > 0.0 ? 1.0 : -1.0;
}
