// Margin problems in ℓp, 1 < p < ∞: Newton's method on the dual, and an interior-point method; svm/solvers/power_norm.py says when which.
//
// At the optimum x is the dual vector of g = Aᵀλ: x_j = ‖g‖_q^(2-q) sign(g_j) |g_j|^(q-1). Of all iterates the x of the smallest upper bound
// and the λ of the largest lower bound come back. Vectors of d numbers are filled up with zeros to whole registers.
#pragma once
#include "../exponential.h"
#include "../linear_algebra.h"
#include "../simd_layout.h"
#include "../arena.h"

constexpr double GAP_GOAL = 16.0 * EPS, INTERIOR_GAP_GOAL = 1e-13;  // of the bracket, at which iterations end
constexpr int64_t MAX_ITERATIONS = 80, MAX_HALVINGS = 40, MAX_SHIFTS = 8;
constexpr double ARMIJO = 1e-4;
constexpr double SHIFT = 1e-15, FIRST_SHIFT = 1e-3;  // share of each diagonal entry that is added to it; at first, where n > d
constexpr double LESS_SHIFT = 0.03, MORE_SHIFT = 3.0, REJECTED_SHIFT = 1e3;  // factors of it after a full step, a shortened one, and none
constexpr double MIN_ENTRY = 1e-12;      // of ‖g‖: smaller entries count as this where their curvature would grow beyond bounds
constexpr double MIN_CURVATURE = 1e-13;  // of the largest one
constexpr double TO_BOUNDARY = 0.995;    // share of the way to the boundary that an interior step takes
constexpr double FIRST_FACTOR = 1.05;    // by which x is longer than the Euclidean solution at first
constexpr double FIRST_SHARE = 0.02;     // of the largest, below which no slack and no multiplier starts

// out = (|x| / unit)^exponent, d entries and those that fill the last register, and Σ out |x| / unit.
OUTLINED double powers_of_sizes(const double *x, int64_t d, double unit, double exponent, double *out) {
    Lanes total = spread(0.0);
    for (int64_t j = 0; j < d; j += N_LANES) {
        const Lanes size = modulus(load(x, j)) / unit;
        const Lanes power = exponent == 1.0 ? size : (exponent == 2.0 ? size * size : pow(size, exponent));
        total += power * size;
        store(out, j, power);
    }
    return lane_sum(total);
}

struct PowerNorm {
    const double *A, *b;  // (n, d), (n)
    int64_t n, d;
    double *x, *multipliers;  // (d), (n): where the method starts, and the best ones then
    double lower, upper;      // the bracket: of the best multipliers and the best x
    // (d), filled up to whole registers: g = Aᵀλ, the point, and what a method has for each entry
    double *g, *point, *image, *rest, *inverse, *point_step;
    // (n)
    double *products, *weights, *trial, *step, *descent, *slack, *slack_step, *correction, *goal;
    double *scaled, *K, *saved;  // (n, d), (n, n), (n, n)
    int64_t *free;               // (n) the rows that may move

    PowerNorm(Arena &arena, int64_t n, int64_t d) : n(n), d(d) {
        double **wide[] = {&g, &point, &image, &rest, &inverse, &point_step};
        double **rows[] = {&products, &weights, &trial, &step, &descent, &slack, &slack_step, &correction, &goal};
        for (double **vector : wide) {
            *vector = arena.doubles(whole_lanes(d));
            for (int64_t j = d; *vector && j < whole_lanes(d); j++) (*vector)[j] = 0.0;
        }
        for (double **vector : rows) *vector = arena.doubles(n);
        scaled = arena.doubles(n * d), K = arena.doubles(n * n), saved = arena.doubles(n * n);
        free = arena.integers(n);
    }

    // out with ‖out‖_p = ‖v‖_q and v·out = ‖v‖_q²; returns ‖v‖_q.
    double dual_vector(const double *v, double q, double *out) const {
        const double largest = max_abs(v, d);
        if (largest == 0.0) {
            for (int64_t j = 0; j < d; j++) out[j] = 0.0;
            return 0.0;
        }
        const double root = pow(powers_of_sizes(v, d, largest, q - 1.0, out), 1.0 / q), factor = largest * pow(root, 2.0 - q);
        for (int64_t j = 0; j < d; j++) out[j] *= v[j] > 0.0 ? factor : -factor;
        return largest * root;
    }

    // ‖v‖_p; `out` is overwritten.
    double power_norm(const double *v, double p, double *out) const {
        const double largest = max_abs(v, d);
        return largest == 0.0 ? 0.0 : largest * pow(powers_of_sizes(v, d, largest, p - 1.0, out), 1.0 / p);
    }

    // ‖x‖ over the smallest a_r·x/b_r; infinite where a sign is wrong.
    double upper_bound(const double *bounds, double norm) const {
        double smallest = INF;
        for (int64_t r = 0; r < n; r++) {
            if (bounds[r] > 0.0) smallest = smaller(products[r] / bounds[r], smallest);
            else if (products[r] < -16.0 * EPS * norm) return INF;
        }
        return smallest > 0.0 ? norm / smallest : INF;
    }

    // Keep the point, times `unit`, and the weights where they are the best so far.
    void keep_best(double new_lower, double new_upper, double unit) {
        if (new_lower > lower) {
            lower = new_lower;
            for (int64_t r = 0; r < n; r++) multipliers[r] = weights[r];
        }
        if (new_upper < upper) {
            upper = new_upper;
            for (int64_t j = 0; j < d; j++) x[j] = point[j] * unit;
        }
    }
    double gap() const { return lower > 0.0 ? (upper - lower) / lower : INF; }

    // scaled = A[rows] times these roots, k rows, and K its Gram matrix; all rows where none are given.
    void weighted_gram(const int64_t *rows, int64_t k, const double *roots) const {
        for (int64_t i = 0; i < k; i++) {
            const double *__restrict a = A + (rows ? rows[i] : i) * d;
            double *__restrict into = scaled + i * d;
            for (int64_t j = 0; j < d; j++) into[j] = a[j] * roots[j];
        }
        gram(scaled, d, nullptr, k, 0, K, n);
    }

    // The Cholesky factor in place, of K with its diagonal enlarged by this share, and further where needed.
    bool factored(int64_t k, double shift) const {
        for (int64_t i = 0; i < k; i++)
            for (int64_t j = 0; j <= i; j++) saved[i * n + j] = K[i * n + j];
        for (int64_t attempt = 0; attempt < MAX_SHIFTS; attempt++, shift *= 100.0) {
            for (int64_t i = 0; i < k; i++) {
                if (attempt)
                    for (int64_t j = 0; j < i; j++) K[i * n + j] = saved[i * n + j];
                K[i * n + i] = saved[i * n + i] * (1.0 + shift);
            }
            if (cholesky(K, k, n, 0.0) < 0) return true;
        }
        return false;
    }

    // ‖g‖_q of g = Aᵀ trial, which is left in g, with the dual vector in point; and the dual objective, to be made small.
    double evaluate_dual(const double *trial, double q, double *value) const {
        vecmat(trial, A, nullptr, n, d, g);
        const double norm = dual_vector(g, q, point);
        *value = 0.5 * norm * norm - dot(b, trial, n);
        return norm;
    }

    // The Newton step of the rows that may move into `step`, and minus the gradient in `descent`; returns how many rows, -1 where none is found.
    int64_t newton_step(double q, double norm, double shift) const {
        int64_t k = 0;
        for (int64_t r = 0; r < n; r++)
            if (weights[r] > 0.0 || products[r] < b[r]) free[k++] = r;
        for (int64_t j = 0; j < d; j++) rest[j] = larger(modulus(g[j]), MIN_ENTRY * norm);
        powers_of_sizes(rest, d, norm, q - 2.0, inverse);
        for (int64_t j = 0; j < d; j++) inverse[j] = square_root((q - 1.0) * inverse[j]);
        weighted_gram(free, k, inverse);
        for (int64_t i = 0; i < k; i++) {
            const double factor = (2.0 - q) * (products[free[i]] / norm);
            for (int64_t j = 0; j <= i; j++) K[i * n + j] += factor * (products[free[j]] / norm);
            step[i] = descent[i] = b[free[i]] - products[free[i]];
        }
        if (!factored(k, shift)) return -1;
        solve_factored(K, k, n, step);
        return k;
    }

    // Projected Newton steps on the dual from the given multipliers; returns the gap of the bracket.
    double newton(double q) {
        double value, new_norm, new_value, norm;
        for (int64_t r = 0; r < n; r++) weights[r] = multipliers[r];
        norm = evaluate_dual(weights, q, &value);
        if (norm == 0.0) return INF;
        const double factor = dot(b, weights, n) / (norm * norm);
        for (int64_t r = 0; r < n; r++) weights[r] *= factor;
        norm = evaluate_dual(weights, q, &value);
        lower = 0.0, upper = INF;
        double shift = n <= d ? SHIFT : FIRST_SHIFT;
        for (int64_t iteration = 0; iteration < MAX_ITERATIONS; iteration++) {
            matvec(A, n, d, point, products);
            keep_best(dot(b, weights, n) / norm, upper_bound(b, norm), 1.0);
            if (upper - lower <= GAP_GOAL * lower) break;
            const int64_t k = newton_step(q, norm, shift);
            if (k < 0) break;
            double share = 1.0;
            bool accepted = false;
            for (int64_t halving = 0; halving < MAX_HALVINGS && !accepted; halving++) {
                double gain = 0.0;
                for (int64_t r = 0; r < n; r++) trial[r] = 0.0;
                for (int64_t i = 0; i < k; i++) {
                    const int64_t r = free[i];
                    trial[r] = larger(weights[r] + share * step[i], 0.0);
                    gain += descent[i] * (trial[r] - weights[r]);
                }
                new_norm = evaluate_dual(trial, q, &new_value);
                accepted = new_norm > 0.0 && new_value <= value - ARMIJO * gain + 4.0 * EPS * modulus(value);
                if (!accepted) share *= 0.5;
            }
            if (!accepted && shift >= 1.0) break;
            if (!accepted) {
                shift = smaller(1.0, shift * REJECTED_SHIFT);
                evaluate_dual(weights, q, &new_value);
                continue;
            }
            shift = larger(SHIFT, shift * (share == 1.0 ? LESS_SHIFT : MORE_SHIFT));
            for (int64_t r = 0; r < n; r++) weights[r] = trial[r];
            norm = new_norm, value = new_value;
        }
        return gap();
    }

    // The curvature of each entry, linearised at the larger of x_j and the dual vector's, inverted; and what is left of stationarity in `rest`.
    void linearise(double p) const {
        const double q = p / (p - 1.0);
        powers_of_sizes(point, d, 1.0, p - 1.0, rest);
        powers_of_sizes(g, d, 1.0, q - 1.0, inverse);
        for (int64_t j = 0; j < d; j++) {
            rest[j] = with_sign(rest[j], point[j]) - g[j];
            inverse[j] = larger(modulus(point[j]), inverse[j]);
        }
        powers_of_sizes(inverse, d, 1.0, p - 2.0, inverse);
        for (int64_t j = 0; j < d; j++) inverse[j] *= p - 1.0;
        const double smallest = p > 2.0 ? MIN_CURVATURE * max_abs(inverse, d) : 0.0;
        for (int64_t j = 0; j < d; j++) {
            inverse[j] = 1.0 / larger(inverse[j], smallest);
            image[j] = square_root(inverse[j]);
        }
    }

    // A step of point, slack and weights towards complementarity at `centre`, with a correction of the second order. Returns the share of it
    // that keeps slack and weights positive.
    double interior_step(double centre) const {
        for (int64_t j = 0; j < d; j++) point_step[j] = inverse[j] * rest[j];
        matvec(A, n, d, point_step, step);
        for (int64_t r = 0; r < n; r++) {
            const double complement = slack[r] * weights[r] - centre + correction[r];
            step[r] += goal[r] + slack[r] - products[r] - complement / weights[r];
        }
        solve_factored(K, n, n, step);
        vecmat(step, A, nullptr, n, d, image);
        for (int64_t j = 0; j < d; j++) point_step[j] = inverse[j] * (image[j] - rest[j]);
        matvec(A, n, d, point_step, slack_step);
        double share = 1.0;
        for (int64_t r = 0; r < n; r++) {
            slack_step[r] += products[r] - slack[r] - goal[r];
            if (slack_step[r] < 0.0) share = smaller(share, -slack[r] / slack_step[r]);
            if (step[r] < 0.0) share = smaller(share, -weights[r] / step[r]);
        }
        return share;
    }

    // Mehrotra's predictor and corrector for min ‖x‖_p^p/p from the given x and multipliers; returns the gap of the bracket.
    double interior_point(double p) {
        for (int64_t j = 0; j < d; j++) point[j] = x[j];
        const double scale = power_norm(point, p, image), total = dot(b, multipliers, n) / scale;
        if (!(scale > 0.0 && total > 0.0)) return INF;
        for (int64_t j = 0; j < d; j++) point[j] *= FIRST_FACTOR / scale;
        for (int64_t r = 0; r < n; r++) goal[r] = b[r] / scale, weights[r] = multipliers[r] / total;
        matvec(A, n, d, point, products);
        const double most = max_abs(goal, n), heaviest = max_abs(weights, n);
        for (int64_t r = 0; r < n; r++) {
            slack[r] = larger(products[r] - goal[r], FIRST_SHARE * most);
            weights[r] = larger(weights[r], FIRST_SHARE * heaviest);
        }
        lower = 0.0, upper = INF;
        for (int64_t iteration = 0; iteration < MAX_ITERATIONS; iteration++) {
            matvec(A, n, d, point, products);
            vecmat(weights, A, nullptr, n, d, g);
            const double norm = dual_vector(g, p / (p - 1.0), image);
            keep_best(dot(goal, weights, n) / norm, upper_bound(goal, power_norm(point, p, rest)), scale);
            if (upper - lower <= INTERIOR_GAP_GOAL * lower) break;
            linearise(p);
            weighted_gram(nullptr, n, image);
            for (int64_t r = 0; r < n; r++) K[r * n + r] += slack[r] / weights[r], correction[r] = 0.0;
            if (!factored(n, SHIFT)) break;
            const double mean = dot(slack, weights, n) / (double)n;
            double share = interior_step(0.0), reached = 0.0;
            for (int64_t r = 0; r < n; r++) {
                reached += (slack[r] + share * slack_step[r]) * (weights[r] + share * step[r]) / (double)n;
                correction[r] = share * share * slack_step[r] * step[r];
            }
            const double ratio = reached / mean;
            share = TO_BOUNDARY * interior_step(mean * (ratio * ratio * ratio));
            for (int64_t j = 0; j < d; j++) point[j] += share * point_step[j];
            for (int64_t r = 0; r < n; r++) slack[r] += share * slack_step[r], weights[r] += share * step[r];
        }
        return gap();
    }
};
