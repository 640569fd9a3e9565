// The dual active-set method on the Gram matrix of all rows: the quickest for few rows, however wide they are.
//
// It squares the condition number and gives up on dependent rows, so whoever calls it checks the result and falls back on the orthogonal
// version of the same method.
#pragma once
#include "../arena.h"
#include "margin_problem.h"

constexpr double MIN_SQUARED_PIVOT = 1e-7;  // below it a unit row counts as dependent on others

// Active rows by their Gram matrix: a set among the rows of G, its members in a list, their Cholesky factor L and their multipliers.
struct GramSet {
    double *G, *L, *multipliers, *coefficients;  // (size, size), (size, size), (size), (size)
    int64_t *members;                            // (size)
    bool *in_set;                                // (size)
    int64_t size;

    GramSet(Arena &arena, int64_t size) : size(size) {
        G = arena.doubles(size * size), L = arena.doubles(size * size);
        multipliers = arena.doubles(size), coefficients = arena.doubles(size);
        members = arena.integers(size);
        in_set = arena.take<bool>(size);
    }

    void solve(int64_t k, double *right) const { solve_factored(L, k, size, right); }

    // Factor the first k members.
    int64_t factor(int64_t k, double smallest) const {
        for (int64_t i = 0; i < k; i++)
            for (int64_t j = 0; j <= i; j++) L[i * size + j] = G[members[i] * size + members[j]];
        return cholesky(L, k, size, smallest);
    }

    // Take rows out of the first n until all multipliers are positive: those with negative ones, and those that depend on others.
    // Returns how many members stay.
    int64_t drop_negative(const double *lower, int64_t n) const {
        while (true) {
            int64_t k = 0;
            for (int64_t r = 0; r < n; r++)
                if (in_set[r]) members[k] = r, multipliers[k++] = lower[r];
            const int64_t stopped = factor(k, MIN_SQUARED_PIVOT);
            if (stopped >= 0) {
                in_set[members[stopped]] = false;
                continue;
            }
            solve(k, multipliers);
            bool negative = false;
            for (int64_t i = 0; i < k; i++)
                if (multipliers[i] <= 0.0) in_set[members[i]] = false, negative = true;
            if (!negative) return k;
        }
    }

    // Recompute every slack from the multipliers of k members, and return the most violated row outside the set, or -1.
    int64_t most_violated(const double *lower, int64_t k, double *slack) const {
        double worst = -VIOLATION_RTOL * sum_of(multipliers, k);
        int64_t which = -1;
        vecmat(multipliers, G, members, k, size, slack);
        for (int64_t r = 0; r < size; r++) {
            slack[r] -= lower[r];
            if (slack[r] < worst && !in_set[r]) worst = slack[r], which = r;
        }
        return which;
    }

    // Let row `new_row` of this slack enter beside k members, some of which may leave; returns how many there are then, or -1.
    int64_t enter(int64_t new_row, double slack, int64_t k) const {
        double entering = 0.0;
        while (true) {
            double square = 1.0, *last = L + k * size;
            for (int64_t i = 0; i < k; i++) coefficients[i] = G[new_row * size + members[i]];
            solve_lower(L, k, size, coefficients);
            for (int64_t i = 0; i < k; i++) {
                square -= coefficients[i] * coefficients[i];
                last[i] = coefficients[i];
            }
            if (!(square >= MIN_SQUARED_PIVOT)) return -1;
            last[k] = square_root(square);
            solve_upper(L, k, size, coefficients);
            int64_t leaving = -1;
            double limit = -slack / square;
            for (int64_t i = 0; i < k; i++)
                if (coefficients[i] * limit > multipliers[i]) leaving = i, limit = multipliers[i] / coefficients[i];
            for (int64_t i = 0; i < k; i++) multipliers[i] -= limit * coefficients[i];
            entering += limit;
            slack += limit * square;
            if (leaving < 0) {
                members[k] = new_row, multipliers[k] = entering, in_set[new_row] = true;
                return k + 1;
            }
            in_set[members[leaving]] = false;
            k--;
            for (int64_t i = leaving; i < k; i++) members[i] = members[i + 1], multipliers[i] = multipliers[i + 1];
            if (factor(k, 0.0) >= 0) return -1;
        }
    }
};

// Turn the lower triangle of a Gram matrix into the full Gram matrix of rows of norm one; `inverse` is room for their inverse norms.
static inline void normalise_gram(double *G, const double *row_norms, int64_t m, double *inverse) {
    for (int64_t i = 0; i < m; i++) inverse[i] = row_norms[i] > 0.0 ? 1.0 / row_norms[i] : 0.0;
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < i; j++) G[j * m + i] = G[i * m + j] *= inverse[i] * inverse[j];
        G[i * m + i] = row_norms[i] > 0.0 ? 1.0 : 0.0;
    }
}

// Solve from the Gram matrix of all rows, whose lower triangle is in set.G, starting with every row active, or none. Returns whether it got
// through; the candidate then holds x, its multipliers and the slack of every row.
static inline bool gram_active_set(const MarginProblem &problem, const GramSet &set, bool all_active, const Candidate &candidate) {
    const int64_t m = problem.m;
    normalise_gram(set.G, problem.row_norms, m, candidate.slack);
    for (int64_t r = 0; r < m; r++) set.in_set[r] = all_active && problem.row_norms[r] > 0.0;
    int64_t k = all_active ? set.drop_negative(problem.lower, m) : 0;
    for (int64_t round = 0; round < 8 * m + 8; round++) {
        const int64_t new_row = set.most_violated(problem.lower, k, candidate.slack);
        if (new_row < 0) {
            for (int64_t i = 0; i < k; i++) {
                candidate.multipliers[set.members[i]] = set.multipliers[i];
                set.multipliers[i] /= problem.row_norms[set.members[i]];
            }
            vecmat(set.multipliers, problem.A, set.members, k, problem.d, candidate.x);
            return true;
        }
        k = set.enter(new_row, candidate.slack[new_row], k);
        if (k < 0) return false;
    }
    return false;
}
