// Block pivoting, whole sets of rows at a time: guess which rows are active, solve for them by one Cholesky factor, correct the guess.
//
// Much faster than letting rows enter one by one, but it squares the condition number and cannot prove infeasibility; whoever calls it
// checks the result and falls back on the active-set method.
#pragma once
#include "gram_active_set.h"

constexpr int64_t GUESS_SWEEPS = 60, MAX_PIVOT_ROUNDS = 12;

struct PivotArrays {
    double *x, *multipliers, *bounds, *correction;  // (d), (m), (m), (m)
    bool *marked, *idle;                            // (m), rows of the growing set, and rows that are satisfied without a multiplier
    int64_t *rows, *active_rows;                    // (m)
    GramSet set;

    // A set of more rows than d is given up, so it never has more than d + d/4 + 16.
    PivotArrays(Arena &arena, int64_t m, int64_t d) : set(arena, smaller(m, d + d / 4 + 16)) {
        x = arena.doubles(d);
        multipliers = arena.doubles(m), bounds = arena.doubles(m), correction = arena.doubles(m);
        marked = arena.take<bool>(m), idle = arena.take<bool>(m);
        rows = arena.integers(m), active_rows = arena.integers(m);
    }
};

// Mark the rows whose multiplier is positive after sweeps of dual coordinate ascent, fewer once the set settles. Rows that were satisfied
// without a multiplier are looked at in every fourth sweep only.
static inline void guess_active_rows(const MarginProblem &problem, const PivotArrays &arrays) {
    const int64_t m = problem.m, d = problem.d;
    double *x = arrays.x, *multipliers = arrays.multipliers;
    for (int64_t i = 0; i < d; i++) x[i] = 0.0;
    for (int64_t r = 0; r < m; r++) multipliers[r] = 0.0, arrays.marked[r] = false, arrays.idle[r] = problem.row_norms[r] == 0.0;
    int64_t n_settled = 0;
    for (int64_t sweep = 0; sweep < GUESS_SWEEPS && n_settled < 4; sweep++) {
        int64_t changed = 0;
        for (int64_t r = 0; r < m; r++) {
            const double norm = problem.row_norms[r], *row = problem.A + r * d;
            if (norm == 0.0 || (arrays.idle[r] && sweep % 4)) continue;
            const double change = larger(-multipliers[r], problem.lower[r] - dot(row, x, d) / norm);
            arrays.idle[r] = change == 0.0;
            if (change == 0.0) continue;
            multipliers[r] += change;
            changed += arrays.marked[r] != (multipliers[r] > 0.0);
            arrays.marked[r] = multipliers[r] > 0.0;
            const double factor = change / norm;
            for (int64_t i = 0; i < d; i++) x[i] += factor * row[i];
        }
        n_settled = changed * 1000 <= m ? n_settled + 1 : 0;
    }
}

// Correct the multipliers of k active rows until their slack is none on the original rows; returns whether it became so.
static inline bool refine_active(
    const MarginProblem &problem, const PivotArrays &arrays, int64_t k, double tolerance, const Candidate &candidate) {
    for (int64_t attempt = 0; attempt < 3; attempt++) {
        for (int64_t i = 0; i < k; i++) arrays.correction[i] = -candidate.slack[arrays.active_rows[i]];
        if (max_abs(arrays.correction, k) <= tolerance) return true;
        if (attempt == 2) break;
        arrays.set.solve(k, arrays.correction);
        for (int64_t i = 0; i < k; i++)
            if ((candidate.multipliers[arrays.active_rows[i]] += arrays.correction[i]) < 0.0) return false;
        evaluate(problem, candidate);
    }
    return false;
}

// Solve from the Gram matrix of a growing set of rows, starting with the marked ones active. Returns whether no row is violated at the end;
// the candidate then holds x, its multipliers and the slack of every row.
static inline bool block_pivoting(const MarginProblem &problem, const PivotArrays &arrays, const Candidate &candidate) {
    const GramSet &set = arrays.set;
    int64_t n = 0, n_known = 0, *rows = arrays.rows;
    for (int64_t r = 0; r < problem.m; r++)
        if (arrays.marked[r]) rows[n++] = r;
    if (n > problem.d) return false;
    const int64_t capacity = smaller(problem.m, n + n / 4 + 16);
    for (int64_t i = 0; i < capacity; i++) set.in_set[i] = true;
    for (int64_t round = 0; round < MAX_PIVOT_ROUNDS; round++) {
        gram(problem.A, problem.d, rows, n, n_known, set.G, set.size);
        for (int64_t i = n_known; i < n; i++) {
            arrays.bounds[i] = problem.lower[rows[i]];
            for (int64_t j = 0; j <= i; j++) set.G[i * set.size + j] /= problem.row_norms[rows[i]] * problem.row_norms[rows[j]];
        }
        n_known = n;
        const int64_t k = set.drop_negative(arrays.bounds, n);
        for (int64_t r = 0; r < problem.m; r++) candidate.multipliers[r] = 0.0;
        for (int64_t i = 0; i < k; i++) {
            arrays.active_rows[i] = rows[set.members[i]];
            candidate.multipliers[arrays.active_rows[i]] = set.multipliers[i];
        }
        evaluate(problem, candidate);
        const double tolerance = VIOLATION_RTOL * sum_of(set.multipliers, k);
        if (!refine_active(problem, arrays, k, tolerance, candidate)) return false;
        bool finished = true;
        for (int64_t i = 0; i < n; i++) {
            arrays.marked[rows[i]] = true;
            if (!set.in_set[i] && candidate.slack[rows[i]] < -tolerance) set.in_set[i] = true, finished = false;
        }
        for (int64_t r = 0; r < problem.m; r++)
            if (!arrays.marked[r] && candidate.slack[r] < -tolerance) {
                if (n == capacity) return false;
                set.in_set[n] = true, rows[n++] = r, finished = false;
            }
        if (finished) return true;
    }
    return false;
}
