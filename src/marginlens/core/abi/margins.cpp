// Exports: margin problems min ‖x‖ s.t. A x ≥ b, in batches of one shape.
#include "../margin/block_pivoting.h"
#include "../margin/dual_active_set.h"
#include "../margin/power_norm.h"
#include "../margin/simplex.h"
#include "abi.h"

enum MarginMethod : int64_t { BY_GRAM_MATRIX = 0, BY_BLOCK_PIVOTS = 1, BY_DUAL_ACTIVE_SET = 2 };

// What the last method finds of a problem that `prepare` leaves open; `unit` is room for its rows of norm one, of which `set` is.
static Outcome let_rows_enter(const MarginProblem &problem, const Candidate &candidate, DualActiveSet &set, double *unit) {
    for (int64_t r = 0; r < problem.m; r++) {
        const double factor = problem.row_norms[r] > 0.0 ? 1.0 / problem.row_norms[r] : 0.0;
        for (int64_t i = r * problem.d; i < (r + 1) * problem.d; i++) unit[i] = problem.A[i] * factor;
    }
    const Outcome reached = set.solve(candidate.x, candidate.multipliers);
    if (reached == OPTIMAL) return verified_outcome(problem, candidate, set.residual);
    if (reached == INFEASIBLE && farkas_residual(problem, candidate.multipliers, set.slack, set.residual) <= FARKAS_RTOL) return INFEASIBLE;
    evaluate_slack(problem, candidate);
    return UNVERIFIED;
}

// The problems at places first … last - 1 of a list by one method: the Gram matrix of all rows, for few rows, or rows much wider than many; a
// guess of the active rows and block pivots, for many rows; or rows that enter one by one, which proves infeasibility too.
EXPORT solve_margins(
    int64_t first,               // in 0..last
    int64_t last,                // in 0..n_listed
    const int64_t *listed,       // (n_listed) in 0..batch-1
    int64_t method,              // in 0..2
    const double *rows,          // (batch, n_rows, d)
    const double *lower,         // (batch, n_rows)
    double *x,                   // (batch, d)
    double *multipliers,         // (batch, n_rows), or Farkas vectors
    bool *active,                // (batch, n_rows)
    int64_t *outcome,            // (batch) of margin_problem.h
    int64_t n_listed, int64_t batch, int64_t n_rows, int64_t d) {
    const int64_t m = n_rows, by_gram = method == BY_GRAM_MATRIX ? m : 0, by_pivots = method == BY_BLOCK_PIVOTS ? m : 0;
    const int64_t by_entering = method == BY_DUAL_ACTIVE_SET ? m : 0;
    Arena arena;
    MarginProblem problem{rows, arena.doubles(m), arena.doubles(m), m, d};
    double *slack = arena.doubles(m), *unit = arena.doubles(by_entering * d);
    const GramSet gram_set(arena, by_gram);
    const PivotArrays pivots(arena, by_pivots, d);
    DualActiveSet entering(arena, unit, problem.lower, by_entering, d);
    if (arena.failed) return OUT_OF_MEMORY;
    for (int64_t place = first; place < last; place++) {
        const int64_t j = listed[place];
        problem.A = rows + j * m * d;
        const Candidate candidate{x + j * d, multipliers + j * m, slack};
        if (by_gram) gram(problem.A, d, nullptr, m, 0, gram_set.G, m);
        for (int64_t r = 0; r < m; r++) problem.row_norms[r] = by_gram ? gram_set.G[r * m + r] : dot(problem.A + r * d, problem.A + r * d, d);
        double scale;
        Outcome found = prepare(problem, lower + j * m, candidate, &scale);
        if (found == UNVERIFIED) {
            if (by_pivots) guess_active_rows(problem, pivots);
            const bool reached = by_gram ? gram_active_set(problem, gram_set, d >= 2 * m, candidate)
                                         : by_pivots && block_pivoting(problem, pivots, candidate);
            if (reached) found = fast_path_outcome(problem, candidate);
            if (by_entering) found = let_rows_enter(problem, candidate, entering, unit);
        }
        outcome[j] = found;
        write_solution(problem, candidate, scale, found, active + j * m);
    }
    return 0;
}

// The problems indices[first] … indices[last - 1] in ℓ1 (is_box) or ℓ∞, over some of their rows, of Euclidean norm one. The bases are where
// to start, and are left at the optimal ones; x and multipliers are written in free scale.
EXPORT solve_linear_programs(
    int64_t first,               // in 0..last
    int64_t last,                // in 0..n_indices
    const double *rows,          // (batch, n_rows, d)
    const double *lower,         // (batch, n_rows)
    const int64_t *members,      // (n_members) in 0..n_rows-1
    const int64_t *indices,      // (n_indices) in 0..batch-1
    int64_t is_box,              // in 0..1
    bool *basic_rows,            // (batch, n_rows)
    bool *basic_entries,         // (batch, n_basic)
    double *signs,               // (batch, n_basic)
    double *x,                   // (batch, d)
    double *multipliers,         // (batch, n_rows)
    int64_t batch, int64_t n_rows, int64_t d, int64_t n_members, int64_t n_indices, int64_t n_basic) {
    if (n_basic != (is_box ? d : d + 1)) return WRONG_SIZE;
    Arena arena;
    Simplex simplex(arena, n_rows, d, is_box, members, n_members);
    if (arena.failed) return OUT_OF_MEMORY;
    for (int64_t place = first; place < last; place++) {
        const int64_t j = indices[place];
        simplex.A = rows + j * n_rows * d, simplex.b = lower + j * n_rows;
        simplex.basis = {basic_rows + j * n_rows, basic_entries + j * n_basic, signs + j * n_basic};
        simplex.solve(x + j * d, multipliers + j * n_rows);
    }
    return 0;
}

// The problems indices[first] … indices[last - 1], with rows of Euclidean norm one, in ℓp, from x and multipliers, which are overwritten: by
// Newton's method on the dual, whose power is q = p/(p - 1), or by the interior-point method, whose power is p. Powers from first_power on,
// each `growth` times the last, lead to `power`. The gaps of the brackets are written.
EXPORT solve_power_norms(
    int64_t first,               // in 0..last
    int64_t last,                // in 0..n_indices
    const double *rows,          // (batch, n_rows, d)
    const double *lower,         // (batch, n_rows)
    const int64_t *indices,      // (n_indices) in 0..batch-1
    int64_t by_newton,           // in 0..1
    double power,
    double first_power,
    double growth,
    double *x,                   // (batch, d)
    double *multipliers,         // (batch, n_rows)
    double *gaps,                // (batch)
    int64_t batch, int64_t n_rows, int64_t d, int64_t n_indices) {
    if (!(power > 1.0 && first_power > 1.0 && growth > 1.0)) return WRONG_SIZE;
    Arena arena;
    PowerNorm problem(arena, n_rows, d);
    if (arena.failed) return OUT_OF_MEMORY;
    for (int64_t place = first; place < last; place++) {
        const int64_t j = indices[place];
        problem.A = rows + j * n_rows * d, problem.b = lower + j * n_rows;
        problem.x = x + j * d, problem.multipliers = multipliers + j * n_rows;
        for (double now = smaller(power, first_power);; now = smaller(power, now * growth)) {
            gaps[j] = by_newton ? problem.newton(now) : problem.interior_point(now);
            if (!(now < power)) break;
        }
    }
    return 0;
}
