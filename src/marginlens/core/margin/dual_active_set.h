// A dual active-set method: rows enter one at a time, and the shortest vector for the active rows is always exact.
//
// Goldfarb and Idnani's method for min ‖x‖²/2 s.t. A x ≥ b, with unit Hessian. The active rows are factored into an orthonormal basis Q and
// a triangular L, updated by Gram–Schmidt with reorthogonalisation and by Givens rotations, so the accuracy depends on the condition of the
// rows and not on its square. A row that cannot be satisfied yields a Farkas vector.
#pragma once
#include "../arena.h"
#include "margin_problem.h"

constexpr double DEPENDENT_RTOL = 16 * EPS;     // a combination of unit rows this small, relative to its weights, is zero
constexpr int64_t MAX_UPDATES = 64;             // steps after which x and the multipliers are recomputed from the factors

// Which multiplier reaches zero first, and after what step.
struct Leaving {
    int64_t place;
    double limit;
};

// The active rows, k of them, of m rows A of norm one, or zero with lower bound zero: A[rows] = L Q with Q orthonormal and L lower triangular.
struct DualActiveSet {
    const double *A, *b;
    int64_t m, d, capacity, k = 0;
    double *Q, *L, *multipliers;  // (capacity, d), (capacity, capacity), (capacity)
    int64_t *rows;                // (capacity)
    bool *is_active;              // (m)
    double *slack;                // (m)
    // A row as a = Qᵀ inner + residual with residual orthogonal to Q; coefficients = L⁻ᵀ inner are those on the active rows.
    double *inner, *coefficients, *residual, *combined;  // (capacity), (capacity), (d), (d)

    DualActiveSet(Arena &arena, const double *A, const double *b, int64_t m, int64_t d) : A(A), b(b), m(m), d(d), capacity(smaller(m, d)) {
        Q = arena.doubles(capacity * d), L = arena.doubles(capacity * capacity);
        multipliers = arena.doubles(capacity), inner = arena.doubles(capacity), coefficients = arena.doubles(capacity);
        rows = arena.integers(capacity);
        is_active = arena.take<bool>(m);
        slack = arena.doubles(m), residual = arena.doubles(d), combined = arena.doubles(d);
    }

    // The inactive row that x violates by the largest distance, or -1; fills `slack`.
    int64_t most_violated(const double *x) {
        matvec(A, m, d, x, slack);
        double worst = -EPS * (8.0 + square_root((double)d)) * square_root(dot(x, x, d));
        int64_t which = -1;
        for (int64_t r = 0; r < m; r++) {
            slack[r] -= b[r];
            if (slack[r] < worst && !is_active[r]) worst = slack[r], which = r;
        }
        return which;
    }

    // Fill in inner and residual for a row, orthogonalising again while much cancels; returns ‖residual‖.
    double project(const double *row) {
        for (int64_t i = 0; i < d; i++) residual[i] = row[i];
        for (int64_t j = 0; j < k; j++) inner[j] = 0.0;
        double length = 1.0;
        for (int64_t round = 0; round < (k > 0 ? 3 : 0); round++) {
            matvec(Q, k, d, residual, coefficients);
            vecmat(coefficients, Q, nullptr, k, d, combined);
            for (int64_t i = 0; i < d; i++) residual[i] -= combined[i];
            for (int64_t j = 0; j < k; j++) inner[j] += coefficients[j];
            const double before = length;
            length = square_root(dot(residual, residual, d));
            if (length > 0.25 * before || length <= EPS) break;
        }
        return length;
    }

    // Let the projected row, with this multiplier, be the next of the basis and of the factor.
    void append(int64_t row, double multiplier, double distance) {
        for (int64_t i = 0; i < d; i++) Q[k * d + i] = residual[i] / distance;
        for (int64_t j = 0; j < k; j++) L[k * capacity + j] = inner[j];
        L[k * capacity + k] = distance;
        rows[k] = row, multipliers[k] = multiplier, is_active[row] = true;
        k++;
    }

    // Which multiplier reaches zero first along -coefficients.
    Leaving first_to_leave(bool is_dependent) const {
        const double largest = larger(1.0, max_abs(coefficients, k)), threshold = largest * (is_dependent ? COEFFICIENT_RTOL : EPS);
        Leaving first{-1, INF};
        for (int64_t j = 0; j < k; j++)
            if (coefficients[j] > threshold && larger(multipliers[j], 0.0) / coefficients[j] < first.limit)
                first = {j, larger(multipliers[j], 0.0) / coefficients[j]};
        return first;
    }

    // Take one row out of the factors: rotate the basis so that the rest stays triangular.
    void remove(int64_t leaving) {
        is_active[rows[leaving]] = false;
        for (int64_t p = leaving; p < k - 1; p++) {
            double *next = L + (p + 1) * capacity;
            const double a = next[p], c = next[p + 1], h = square_root(a * a + c * c), cos = a / h, sin = c / h;
            for (int64_t i = p + 1; i < k; i++) {
                double *pair = L + i * capacity + p;
                const double u = pair[0], w = pair[1];
                pair[0] = cos * u + sin * w;
                pair[1] = -(sin * u - cos * w);  // not cos w - sin u, which GCC 12 fuses with the line above in spite of -ffp-contract=off
            }
            double *__restrict left = Q + p * d, *__restrict right = Q + (p + 1) * d;
            for (int64_t i = 0; i < d; i++) {
                const double u = left[i], w = right[i];
                left[i] = cos * u + sin * w, right[i] = cos * w - sin * u;
            }
            for (int64_t i = 0; i <= p; i++) L[p * capacity + i] = next[i];
            rows[p] = rows[p + 1], multipliers[p] = multipliers[p + 1];
        }
        k--;
    }

    // Recompute x and multipliers from the factors, dropping rows with negative ones.
    void recompute(double *x) {
        while (true) {
            for (int64_t j = 0; j < k; j++) inner[j] = b[rows[j]];
            solve_lower(L, k, capacity, inner);
            vecmat(inner, Q, nullptr, k, d, x);
            for (int64_t j = 0; j < k; j++) multipliers[j] = inner[j];
            solve_upper(L, k, capacity, multipliers);
            int64_t lowest = -1;
            for (int64_t j = 0; j < k; j++)
                if (multipliers[j] < 0.0 && (lowest < 0 || multipliers[j] < multipliers[lowest])) lowest = j;
            if (lowest < 0) return;
            remove(lowest);
        }
    }

    // Factor the active rows afresh, free of the rounding of past updates; rows that depend on others are dropped.
    void rebuild() {
        const int64_t before = k;
        k = 0;
        for (int64_t j = 0; j < before; j++) {
            const double distance = project(A + rows[j] * d);
            if (distance <= EPS) is_active[rows[j]] = false;
            else append(rows[j], multipliers[j], distance);
        }
    }

    // Shortest x with A x ≥ b ≥ 0. On OPTIMAL, x = Aᵀ λ with λ = all_multipliers ≥ 0, where x is more accurate than the sum when rows nearly
    // cancel; on INFEASIBLE, all_multipliers is a Farkas vector; on UNVERIFIED, both are the last iterate.
    Outcome solve(double *x, double *all_multipliers) {
        Outcome outcome = UNVERIFIED;
        int64_t n_updates = 0;
        bool rotated = false, stuck = false;
        k = 0;
        for (int64_t i = 0; i < d; i++) x[i] = 0.0;
        for (int64_t r = 0; r < m; r++) all_multipliers[r] = 0.0, is_active[r] = false;
        for (int64_t round = 0; round < 20 * (m + d) + 100 && !stuck; round++) {
            const int64_t new_row = most_violated(x);
            if (new_row < 0 && n_updates == 0) {
                outcome = OPTIMAL;
                break;
            }
            if (new_row < 0 || n_updates == MAX_UPDATES) {
                if (new_row < 0) rebuild(), rotated = false;
                const int64_t before = k;
                recompute(x);
                rotated = rotated || k < before;
                n_updates = 0;
                continue;
            }
            double entering = 0.0;
            n_updates++;
            while (true) {
                const double distance = project(A + new_row * d);
                double magnitude = 1.0;
                for (int64_t j = 0; j < k; j++) coefficients[j] = inner[j];
                solve_upper(L, k, capacity, coefficients);
                for (int64_t j = 0; j < k; j++) magnitude += modulus(coefficients[j]);
                const bool is_dependent = k == capacity || distance <= DEPENDENT_RTOL * magnitude;
                const Leaving first = first_to_leave(is_dependent);
                if (first.place < 0 && (is_dependent || distance <= FARKAS_RTOL * magnitude)) {
                    if (rotated) {
                        rebuild(), rotated = false;
                        continue;
                    }
                    all_multipliers[new_row] = 1.0;
                    for (int64_t j = 0; j < k; j++) all_multipliers[rows[j]] = larger(0.0, -coefficients[j]);
                    return INFEASIBLE;
                }
                const double full = is_dependent ? INF : -slack[new_row] / (distance * distance), amount = smaller(first.limit, full);
                for (int64_t j = 0; j < k; j++) multipliers[j] -= amount * coefficients[j];
                entering += amount;
                if (!is_dependent) {
                    for (int64_t i = 0; i < d; i++) x[i] += amount * residual[i];
                    slack[new_row] += amount * (distance * distance);
                }
                if (full <= first.limit) {
                    append(new_row, entering, distance);
                    break;
                }
                stuck = first.place < 0;  // numbers that are not finite
                if (stuck) break;
                remove(first.place);
                rotated = true;
            }
        }
        for (int64_t j = 0; j < k; j++) all_multipliers[rows[j]] = larger(0.0, multipliers[j]);
        return outcome;
    }
};
