// Descent in the plane with steps of one length, four starts of one problem at a time: the pictures of basins are made of it, by abi/lab.cpp.
//
// The lanes are the starts, so four runs share every instruction, and a lane whose run is over takes the next start. The weights are those
// of `log_weights`: with α the largest logit, those of tokens with another score than α's are formed relative to e^shift, the largest
// probability ratio among them, and only their ratios to each other matter, because steps have one length.
#pragma once
#include "gradient_coefficients.h"
#include "norms.h"
#include "arena.h"

constexpr double SHIFTED = -40.0;         // logits of all tokens with other scores this far behind are taken relative to the largest of them

// One problem with keys in the plane, (n_inputs, n_tokens, 2) less their means, and the norm in which steps are steepest.
struct PlaneProblem {
    const double *keys, *scores;
    const int64_t *lengths;
    int64_t n_inputs, n_tokens, loss, norm;
    double power;
};

// The points of norm at least max(radius, step · turn) whose angle with a direction is between two angles, given by their tangents: no run
// of descent leaves them.
struct Sector {
    double x, y, left, right, radius, turn;

    bool holds(double px, double py, double step) const {
        const double along = px * x + py * y, across = py * x - px * y, least = larger(radius, step * turn);
        return along > 0.0 && px * px + py * py >= least * least && across >= -left * along && across <= right * along;
    }
};

// Logits so far behind the nearest token with another score weigh less than rounding, whatever their scores and the slopes of the loss.
static inline double negligible_distance(const PlaneProblem &p) {
    double low = INF, high = -INF, widest = 0.0, narrowest = INF;
    for (int64_t i = 0; i < p.n_inputs; i++)
        for (int64_t t = 0; t < p.lengths[i]; t++) {
            const double score = p.scores[i * p.n_tokens + t];
            low = smaller(low, score), high = larger(high, score);
            for (int64_t u = 0; u < t; u++) {
                const double gap = modulus(score - p.scores[i * p.n_tokens + u]);
                widest = larger(widest, gap), narrowest = gap > 0.0 ? smaller(narrowest, gap) : narrowest;
            }
        }
    if (!(widest > 0.0)) return SHIFTED;
    return SHIFTED - (log_slope(p.loss, low) - log_slope(p.loss, high)) - log(widest / narrowest);
}

// The gradient of four points at a time. `scratch` is for 4 (n T + 2 n) numbers, `rows` for 3 n T.
struct PlaneGradient {
    const PlaneProblem &problem;
    double *scratch, *rows, negligible;

    PlaneGradient(Arena &space, const PlaneProblem &p) : problem(p), negligible(negligible_distance(p)) {
        scratch = space.doubles(N_LANES * p.n_inputs * (p.n_tokens + 2));
        rows = space.doubles(3 * p.n_inputs * p.n_tokens);
    }

    // (g_x, g_y) = Σ w_it k_it at the points (x, y), each up to a positive factor.
    void at(Lanes x, Lanes y, Lanes &g_x, Lanes &g_y) const {
        const int64_t n = problem.n_inputs, T = problem.n_tokens;
        double *tops = scratch + N_LANES * n * T, *top_scores = tops + N_LANES * n;
        Lanes nearest = spread(CLOSED);
        for (int64_t i = 0; i < n; i++) {
            Lanes top = spread(CLOSED), top_score = spread(0.0);
            for (int64_t k = i * T; k < i * T + problem.lengths[i]; k++) {
                const Lanes a = x * problem.keys[2 * k] + y * problem.keys[2 * k + 1];
                store(scratch, N_LANES * k, a);
                top_score = where_greater(a, top, spread(problem.scores[k]), top_score);
                top = where_greater(a, top, a, top);
            }
            for (int64_t k = i * T; k < i * T + problem.lengths[i]; k++) {
                const Lanes behind = load(scratch, N_LANES * k) - top;
                nearest = larger(nearest, where_equal(spread(problem.scores[k]), top_score, spread(CLOSED), behind));
            }
            store(tops, N_LANES * i, top);
            store(top_scores, N_LANES * i, top_score);
        }
        const Lanes zero = spread(0.0);
        nearest = where_greater(nearest, spread(0.5 * CLOSED), nearest, zero);
        const Lanes shift = where_greater(spread(SHIFTED), nearest, nearest, zero), scale = exp_of_nonpositive(shift);
        g_x = g_y = zero;
        for (int64_t i = 0; i < n; i++)
            add_input(i, load(tops, N_LANES * i), load(top_scores, N_LANES * i), nearest + negligible, shift, scale, g_x, g_y);
        for (int64_t lane = 0; lane < N_LANES; lane++) {
            const double size = modulus(g_x[lane]) + modulus(g_y[lane]);
            if (!(SQUARABLE < size && size < LARGEST_WEIGHT)) from_logarithms(lane, g_x, g_y);
        }
    }

    // Add the terms of one input; its weights are |ℓ'| s_t (gap_t - δ), times e^-shift. Tokens further behind than `furthest` are left out.
    CORE_MEMBER void add_input(
        int64_t i, Lanes top, Lanes top_score, Lanes furthest, Lanes shift, Lanes scale, Lanes &g_x, Lanes &g_y) const {
        const int64_t first = i * problem.n_tokens, end = first + problem.lengths[i];
        const Lanes zero = spread(0.0);
        Lanes mass = zero, delta = zero, gap_x = zero, gap_y = zero, mean_x = zero, mean_y = zero;  // the last four are of keys
        for (int64_t k = first; k < end; k++) {
            const Lanes behind = load(scratch, N_LANES * k) - top;
            if (!(lane_max(behind - furthest) > 0.0)) continue;
            const Lanes gap = top_score - problem.scores[k];
            const Lanes e = where_greater(
                behind, furthest, exp_of_nonpositive(smaller(behind - where_equal(gap, zero, zero, shift), zero)), zero);
            const Lanes share = e * where_equal(gap, zero, spread(1.0), scale);  // e^behind
            mass += share;
            delta += e * gap;
            gap_x += e * gap * problem.keys[2 * k], gap_y += e * gap * problem.keys[2 * k + 1];
            mean_x += share * problem.keys[2 * k], mean_y += share * problem.keys[2 * k + 1];
        }
        const Lanes inverse = 1.0 / mass;
        delta *= inverse;
        const Lanes factor = inverse * slope(problem.loss, top_score - scale * delta);
        g_x += factor * (gap_x - delta * mean_x);
        g_y += factor * (gap_y - delta * mean_y);
    }

    // The gradient of one point from logarithms, where its weights are too small or too large.
    void from_logarithms(int64_t lane, Lanes &g_x, Lanes &g_y) const {
        const int64_t n = problem.n_inputs, T = problem.n_tokens, m = n * T;
        double *logits = rows, *w = rows + m, x = 0.0, y = 0.0;
        for (int64_t k = 0; k < m; k++) logits[k] = scratch[N_LANES * k + lane];
        log_weights(logits, problem.scores, problem.lengths, n, T, problem.loss, rows + 2 * m, w);
        for (int64_t k = 0; k < m; k++) x += w[k] * problem.keys[2 * k], y += w[k] * problem.keys[2 * k + 1];
        g_x[lane] = x, g_y[lane] = y;
    }
};

// (x, y) becomes the steepest direction of (x, y), lane by lane; zero where it is zero.
CORE void steepest_in_plane(const PlaneProblem &problem, Lanes &x, Lanes &y) {
    const Lanes zero = spread(0.0), one = spread(1.0);
    if (problem.norm == SIGN) {
        x = where_greater(x, zero, one, where_greater(zero, x, -one, zero));
        y = where_greater(y, zero, one, where_greater(zero, y, -one, zero));
        return;
    }
    for (int64_t lane = 0; lane < N_LANES; lane++) {
        if (problem.norm == EUCLIDEAN) {
            const double size = square_root(x[lane] * x[lane] + y[lane] * y[lane]);
            x[lane] = size > 0.0 ? x[lane] / size : 0.0, y[lane] = size > 0.0 ? y[lane] / size : 0.0;
        } else {
            const double g[N_LANES] = {x[lane], y[lane], 0.0, 0.0};
            double shares[N_LANES], out[N_LANES];
            steepest_entries(g, N_LANES, problem.norm, problem.power, shares, out);
            x[lane] = out[0], y[lane] = out[1];
        }
    }
}
