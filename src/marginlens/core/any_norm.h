// Steepest descent in a norm that provably selects its tokens for ever: X Theorem 4, proved in docs/proofs/any_norm.md, whose letters these are.
#pragma once
#include "arena.h"
#include "exponential.h"
#include "linear_algebra.h"
#include "steepness.h"

constexpr double RATE_ROOM = 1e-9;     // share of the rate that is left to the rounding of all of this
constexpr double MOST_GROWTH = 700.0;  // logarithm of β e^(hD), beyond which it need not be known

// What a place is judged by that is a number: γ, D, D₂, h, β, Λ and the radius ρ of the ball around the point.
struct SteepestNumbers {
    double gamma, longest, widest, length, momentum, steepness, radius;
};

// β e^(hD): how fast what is remembered may fade relative to the potential.
static inline double fading(const SteepestNumbers &by) {
    if (!(by.momentum > 0.0)) return 0.0;
    return exp(smaller(log(by.momentum) + by.length * by.longest, MOST_GROWTH));
}

// The least that log F falls per unit of length if gradients err by up to ν: by Eq. (14) if there are bounds for the vertices of the unit ball,
// else by Eqs (4), (5) and (17).
static inline double least_fall(const SteepestNumbers &by, const double *values, const double *slopes, int64_t n_turns, double nu) {
    if (n_turns > 0) {
        double left = -INF;
        for (int64_t j = 0; j < n_turns; j++) left = larger(left, values[j] + 2.0 * nu * slopes[j]);
        return -log(left) / by.length;
    }
    const double b = fading(by), spread = by.length * by.widest * by.widest;
    return by.gamma - spread / 8.0 - (b < 1.0 ? b / (1.0 - b) * spread / 4.0 : INF) - 2.0 * nu;
}

// ---- a sharper step

constexpr double LARGEST_DUAL = 10.0;   // multipliers, relative to the length of a step and its steepest slope; no larger ones help
constexpr double MOST_STEEP = 20.0;     // logarithm of that slope
constexpr double SPARE_RATE = 0.05;     // of γ, beyond the rate that is needed
constexpr double DUAL_COST = 0.01;      // of multipliers, so that errors of the gradient, which they multiply, cost little
constexpr double PIVOT_RTOL = 1e-11;    // of the largest entry: no pivot is smaller, and a smaller slope does not count as a fall
constexpr int64_t MAX_LP_PIVOTS = 5000;
constexpr int64_t MAX_LP_STALLED = 20;  // pivots without progress, after which the first column that falls enters

// Bounds on what a step of length h to a vertex s of the unit ball leaves of the potential: Eq. (14), for each vertex with its κ and z.
struct VertexBounds {
    const double *a;  // (n, d) leading rows
    int64_t n, d;
    bool by_signs;    // whether vertices are vectors of signs, from (1, …, 1) to (-1, …, -1); else e_1, …, e_d, -e_1, …, -e_d
    double gamma, length;
    double *lead;     // (n) a_r·s
    double *T;        // (n + d + 1, 2 d + 4) the tableau: rows of basic variables, the last column their values
    double *cost;     // (2 d + 4)
    int64_t *basic, *nonbasic;

    VertexBounds(Arena &arena, const double *a, int64_t n, int64_t d, bool by_signs, double gamma, double length)
        : a(a), n(n), d(d), by_signs(by_signs), gamma(gamma), length(length) {
        lead = arena.doubles(n), T = arena.doubles((n + d + 1) * width()), cost = arena.doubles(width());
        basic = arena.integers(n + d + 1), nonbasic = arena.integers(width());
    }

    int64_t width() const { return 2 * d + 4; }  // κ, Λ, the positive and the negative part of z, the slack of one row, and the values

    double entry(int64_t vertex, int64_t k) const {
        if (by_signs) return vertex >> (d - 1 - k) & 1 ? -1.0 : 1.0;
        return vertex % d == k ? (vertex < d ? 1.0 : -1.0) : 0.0;
    }

    void look_from(int64_t vertex) {
        for (int64_t r = 0; r < n; r++) {
            lead[r] = 0.0;
            for (int64_t k = 0; k < d; k++) lead[r] += a[r * d + k] * entry(vertex, k);
        }
    }

    // ‖z‖ in the norm of the steps: the largest entry for vertices of signs, else the sum.
    double size(const double *z) const {
        double most = 0.0, total = 0.0;
        for (int64_t k = 0; k < d; k++) most = larger(most, modulus(z[k])), total += modulus(z[k]);
        return by_signs ? most : total;
    }

    // The right side of Eq. (14) with ν = 0 for duals (κ, z), and its slope in 2ν.
    double value(const double *duals, double &slope) const {
        slope = duals[0] + size(duals + 1);
        double most = -INF;
        for (int64_t r = 0; r < n; r++)
            most = larger(most, exp(-length * lead[r]) + slope * lead[r] - dot(a + r * d, duals + 1, d));
        return most - duals[0] * gamma;
    }

    // A bound on multipliers of this vertex, by its leads.
    double largest_dual(double steepest) const { return LARGEST_DUAL * length * exp(smaller(length * steepest, MOST_STEEP)); }

    void pivot(int64_t rows, int64_t leaving, int64_t entering) {
        const int64_t w = width();
        double *row = T + leaving * w;
        const double inverse = 1.0 / row[entering];
        for (int64_t c = 0; c < w; c++) row[c] *= inverse;
        row[entering] = inverse;
        const auto reduce = [&](double *other) {
            const double factor = other[entering];
            if (factor == 0.0) return;
            for (int64_t c = 0; c < w; c++) other[c] -= factor * row[c];
            other[entering] = -factor * inverse;
        };
        for (int64_t i = 0; i < rows; i++)
            if (i != leaving) reduce(T + i * w);
        reduce(cost);
        const int64_t left = basic[leaving];
        basic[leaving] = nonbasic[entering], nonbasic[entering] = left;
    }

    // The best duals of the vertex that was looked from: least max_r (e^(-h a_r·s) + (κ + Λ) a_r·s - a_r·z) - κγ over κ and Λ ≥ ‖z‖, whose sum is at
    // most `largest`, by the simplex method. Basic at first is the maximum, which may have any sign, and the slacks of all rows but the highest.
    bool improve(double largest, double *duals) {
        const int64_t w = width(), last = w - 1, slack = w - 2, parts = by_signs ? d : 1, rows = n + parts + 1;
        int64_t top = 0;
        for (int64_t r = 1; r < n; r++)
            if (lead[r] < lead[top]) top = r;
        const double highest = exp(-length * lead[top]);
        for (int64_t c = 0; c < w; c++) nonbasic[c] = c, cost[c] = 0.0;
        for (int64_t k = 0; k < rows * w; k++) T[k] = 0.0;
        cost[0] = DUAL_COST - gamma, cost[1] = DUAL_COST;
        for (int64_t r = 0; r < n; r++) {  // basic = T's last column - T · nonbasic: the maximum in row `top`, else the slack of row r
            double *row = T + r * w;
            basic[r] = r == top ? -1 : w + r;
            const double sign = r == top ? -1.0 : 1.0, ahead = r == top ? lead[r] : lead[r] - lead[top];
            row[0] = row[1] = sign * ahead;
            for (int64_t k = 0; k < d; k++) {
                const double part = r == top ? a[r * d + k] : a[r * d + k] - a[top * d + k];
                row[2 + k] = -sign * part, row[2 + d + k] = sign * part;
            }
            row[slack] = -1.0;
            row[last] = r == top ? highest : highest - exp(-length * lead[r]);
        }
        for (int64_t c = 0; c < last; c++) cost[c] -= T[top * w + c];
        for (int64_t i = 0; i < parts; i++) {
            double *row = T + (n + i) * w;
            basic[n + i] = w + n + i, row[1] = -1.0;
            for (int64_t k = 0; k < d; k++)
                if (!by_signs || k == i) row[2 + k] = row[2 + d + k] = 1.0;
        }
        double *whole = T + (rows - 1) * w;
        basic[rows - 1] = w + rows - 1, whole[0] = whole[1] = 1.0, whole[last] = largest;
        for (int64_t count = 0, stalled = 0; count < MAX_LP_PIVOTS; count++) {
            const double scale = larger(max_abs(cost, last), EPS);
            int64_t entering = -1, leaving = -1;
            for (int64_t c = 0; c < last; c++) {
                if (!(cost[c] < -PIVOT_RTOL * scale)) continue;
                if (stalled > MAX_LP_STALLED ? entering < 0 || nonbasic[c] < nonbasic[entering] : entering < 0 || cost[c] < cost[entering])
                    entering = c;
            }
            if (entering < 0) {
                for (int64_t k = 0; k <= d; k++) duals[k] = 0.0;
                for (int64_t i = 0; i < rows; i++) {
                    if (basic[i] == 0) duals[0] = larger(0.0, T[i * w + last]);
                    if (basic[i] >= 2 && basic[i] < 2 + d) duals[basic[i] - 1] += T[i * w + last];
                    if (basic[i] >= 2 + d && basic[i] < slack) duals[basic[i] - 1 - d] -= T[i * w + last];
                }
                return true;
            }
            double step = INF;
            for (int64_t i = 0; i < rows; i++) {
                const double entry = T[i * w + entering];
                if (basic[i] < 0 || !(entry > PIVOT_RTOL)) continue;
                const double reach = larger(0.0, T[i * w + last]) / entry;
                if (reach < step || (leaving >= 0 && reach == step && basic[i] < basic[leaving])) step = reach, leaving = i;
            }
            if (leaving < 0) return false;
            stalled = step * modulus(cost[entering]) > PIVOT_RTOL * EPS ? 0 : stalled + 1;
            pivot(rows, leaving, entering);
        }
        return false;
    }

    // Bounds for all vertices. Each begins with z = 0, for which the best κ is known. Linear programmes improve the worst one until all show the
    // rate that is needed with some room, or until the worst one cannot be improved.
    void find(double needed, int64_t count, double *duals, double *values, double *slopes, double *room, bool *improved) {
        const int64_t w = d + 1;
        for (int64_t j = 0; j < count; j++) {
            look_from(j);
            double low = INF, high = -INF;
            for (int64_t r = 0; r < n; r++) low = smaller(low, lead[r]), high = larger(high, lead[r]);
            const double largest = largest_dual(larger(modulus(low), modulus(high)));
            const double chord = (exp(-length * low) - exp(-length * high)) / (high - low);
            for (int64_t k = 0; k < w; k++) duals[j * w + k] = 0.0;
            duals[j * w] = low >= gamma ? 0.0 : (high > gamma ? smaller(chord, largest) : largest);
            values[j] = value(duals + j * w, slopes[j]);
            improved[j] = false;
        }
        const double enough = exp(-length * (needed + SPARE_RATE * gamma)), least = exp(-length * needed);
        while (true) {
            int64_t worst = 0;
            for (int64_t j = 1; j < count; j++)
                if (values[j] > values[worst]) worst = j;
            if (!(values[worst] > enough) || improved[worst]) return;
            improved[worst] = true;
            look_from(worst);
            double slope;
            if (!improve(largest_dual(max_abs(lead, n)), room)) continue;
            const double better = value(room, slope);
            if (better < values[worst]) copy(room, w, duals + worst * w), values[worst] = better, slopes[worst] = slope;
            if (values[worst] > least) return;
        }
    }
};

// ---- at a point

// Rows, the leading ones among them, how the others compare with them, and what is remembered.
struct SteepestPlace {
    const double *at, *delta, *log_slope;  // (m) a_r·p, Δ_r and log c_i^∞
    const int64_t *input;                  // (m)
    const bool *leading;                   // (m)
    int64_t m, n_inputs, n_leading;
    const double *multipliers, *rest, *sizes;       // (n_others, n_leading) μ, (n_others) ‖v_r‖_* and ‖a_r‖_*
    const double *values, *slopes;                  // (n_turns) of the vertices
    int64_t n_turns;
    const double *remembered;                       // S, ‖e‖_* and d_0, without the ball
    double *log_phi, *epsilon, *plus, *minus;       // (m), (n_inputs)

    // ν of Eq. (10); infinite if a token's share is not bounded.
    double errors(const SteepestNumbers &by, double log_F) const {
        for (int64_t i = 0; i < n_inputs; i++) epsilon[i] = plus[i] = minus[i] = 0.0;
        for (int64_t r = 0; r < m; r++) {
            epsilon[input[r]] += exp(log_phi[r]);
            plus[input[r]] = larger(plus[input[r]], delta[r]), minus[input[r]] = larger(minus[input[r]], -delta[r]);
        }
        double zeta = 0.0, omega = 0.0;
        for (int64_t r = 0, other = 0; r < m; r++) {
            const double e = epsilon[input[r]], up = plus[input[r]], down = minus[input[r]];
            const double steepness = steepness_near(by.steepness, log_slope[r], e, up);
            if (!(e < 1.0 && steepness >= 0.0)) return INF;
            if (!leading[r]) {
                const double bound = exp(log_slope[r] + steepness * e * up + log_phi[r] - log_F);
                omega += bound * (modulus(delta[r]) + e * larger(up, down)) * sizes[other++];
                continue;
            }
            const double share = e * up / delta[r];
            if (!(share < 1.0)) return INF;
            zeta = larger(zeta, expm1(e * (steepness * up + down / delta[r])));
            zeta = larger(zeta, 1.0 - (1.0 - e) * (1.0 - share) * exp(-e * steepness * down));
        }
        return zeta * by.longest + omega;
    }

    // The rate of Eq. (11), or with momentum (19), for every point within ρ; 0 where it is not positive or some other row outruns it.
    double rate(const SteepestNumbers &by) const {
        double top = -INF, sum = 0.0;
        for (int64_t r = 0; r < m; r++)
            if (leading[r]) log_phi[r] = log_slope[r] + log(delta[r]) - at[r], top = larger(top, log_phi[r]);
        for (int64_t r = 0; r < m; r++)
            if (leading[r]) sum += exp(log_phi[r] - top);
        const double log_here = top + log(sum), log_F = log_here + by.longest * by.radius;
        for (int64_t r = 0; r < m; r++)
            if (leading[r]) log_phi[r] = log_F - (log_phi[r] + at[r]);
        for (int64_t r = 0, other = 0; r < m; r++) {
            if (leading[r]) continue;
            const double *mu = multipliers + other * n_leading;
            double ahead = 0.0, bound = 0.0;
            for (int64_t s = 0, k = 0; s < m; s++)
                if (leading[s]) ahead += mu[k] * at[s], bound += mu[k++] * log_phi[s];
            log_phi[r] = ahead - at[r] + rest[other++] * by.radius + bound;
        }
        double error = remembered[1], lost = 0.0;
        if (remembered[0] > 0.0) {
            const double b = fading(by), sigma = remembered[0] / exp(log_here - by.longest * by.radius), weight = by.momentum * sigma;
            if (!(b < 1.0 && weight * (1.0 - b) <= b)) return 0.0;
            error += by.radius * by.longest;
            lost = weight / (1.0 + weight) * (remembered[2] + by.widest * tanh(by.widest * by.radius / 4.0));
        }
        const double nu = larger(errors(by, log_F), error);
        if (!(nu < INF)) return 0.0;
        const double found = least_fall(by, values, slopes, n_turns, nu) - lost - RATE_ROOM * by.gamma;
        if (!(found > 0.0)) return 0.0;
        for (int64_t other = 0; other < m - n_leading; other++) {
            double mass = -1.0;
            for (int64_t k = 0; k < n_leading; k++) mass += multipliers[other * n_leading + k];
            if (!(rest[other] < (1.0 - RATE_ROOM) * found * mass)) return 0.0;
        }
        return found;
    }
};
