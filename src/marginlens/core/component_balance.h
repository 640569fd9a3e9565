// The logits of components at which the residual attention of active pairs is a dual solution of Graph-SVM.
#pragma once
#include "components.h"
#include "exponential.h"
#include "newton.h"

// Pairs of components, log c and a multiplier of each.
struct ActivePairs {
    const int64_t *upper, *lower;
    const double *log_c, *multipliers;
    int64_t count, n_components;
};

// Σ c_r e^-(z_u - z_l) + λ_r (z_u - z_l) over the pairs that carry, block by block of components that they join. The component at place -1 of
// each block stays at zero.
struct Balance {
    const ActivePairs &pairs;
    const bool *carries;
    const int64_t *place, *block;  // of components
    const Blocks &blocks;

    double gap(const double *z, int64_t r) const {
        const int64_t u = place[pairs.upper[r]], l = place[pairs.lower[r]];
        return (u < 0 ? 0.0 : z[u]) - (l < 0 ? 0.0 : z[l]);
    }

    // Add what a pair pulls its ends apart by, and its curvature.
    void add(int64_t r, double slope, double weight, double *slopes, double *squares) const {
        const int64_t ends[2] = {place[pairs.upper[r]], place[pairs.lower[r]]}, b = block[pairs.upper[r]];
        double *H = squares + blocks.corners[b];
        for (int64_t s = 0; s < 2; s++) {
            if (ends[s] < 0) continue;
            slopes[ends[s]] += s ? -slope : slope;
            for (int64_t t = 0; t < 2; t++)
                if (ends[t] >= 0) H[(ends[s] - blocks.first[b]) * blocks.sizes[b] + ends[t] - blocks.first[b]] += s == t ? weight : -weight;
        }
    }

    void clear(double *slopes, double *squares) const {
        for (int64_t b = 0; b < blocks.count; b++) {
            for (int64_t k = 0; k < blocks.sizes[b]; k++) slopes[blocks.first[b] + k] = 0.0;
            for (int64_t k = 0; k < blocks.sizes[b] * blocks.sizes[b]; k++) squares[blocks.corners[b] + k] = 0.0;
        }
    }

    void operator()(const double *z, double *values, double *slopes, double *squares) const {
        clear(slopes, squares);
        for (int64_t b = 0; b < blocks.count; b++) values[b] = 0.0;
        for (int64_t r = 0; r < pairs.count; r++) {
            if (!carries[r]) continue;
            const double apart = gap(z, r), weight = exp(pairs.log_c[r] - apart);
            values[block[pairs.upper[r]]] += weight + pairs.multipliers[r] * apart;
            add(r, pairs.multipliers[r] - weight, weight, slopes, squares);
        }
    }

    // A start near the minimum, from multipliers that are positive everywhere.
    bool start(Newton &newton, int64_t n, double *z) const {
        double largest = 0.0;
        for (int64_t r = 0; r < pairs.count; r++) largest = larger(largest, pairs.multipliers[r]);
        clear(newton.slopes, newton.squares);
        for (int64_t r = 0; r < pairs.count; r++) {
            const double weight = larger(pairs.multipliers[r], 1e-3 * largest);
            if (carries[r]) add(r, -weight * (pairs.log_c[r] - log(weight)), weight, newton.slopes, newton.squares);
        }
        const bool is_solved = newton.solve();
        copy(newton.step, n, z);
        return is_solved;
    }
};
