// A margin problem min ‖x‖ s.t. A x ≥ b in the scale of compiled solvers, a candidate for its solution, and the residuals that check it.
#pragma once
#include "../linear_algebra.h"
#include "tolerances.h"

// Rows as given, their norms (0 for rows to leave out), and their lower bounds divided by the norms and then by the largest.
struct MarginProblem {
    const double *A;            // (m, d)
    double *row_norms, *lower;  // (m)
    int64_t m, d;
};

// x = Σ multipliers[r] a_r / ‖a_r‖ and slack_r = a_r·x / ‖a_r‖ - lower_r, or a Farkas vector in multipliers.
struct Candidate {
    double *x, *multipliers, *slack;
};

CORE double sum_of(const double *x, int64_t n) {
    double total = 0.0;
    for (int64_t k = 0; k < n; k++) total += x[k];
    return total;
}

// Fill in slack from x and the original rows.
static inline void evaluate_slack(const MarginProblem &problem, const Candidate &candidate) {
    matvec(problem.A, problem.m, problem.d, candidate.x, candidate.slack);
    for (int64_t r = 0; r < problem.m; r++)
        candidate.slack[r] = problem.row_norms[r] > 0.0 ? candidate.slack[r] / problem.row_norms[r] - problem.lower[r] : 0.0;
}

// Fill in x and slack from the multipliers and the original rows.
static inline void evaluate(const MarginProblem &problem, const Candidate &candidate) {
    for (int64_t r = 0; r < problem.m; r++)
        candidate.slack[r] = candidate.multipliers[r] != 0.0 ? candidate.multipliers[r] / problem.row_norms[r] : 0.0;
    vecmat(candidate.slack, problem.A, nullptr, problem.m, problem.d, candidate.x);
    evaluate_slack(problem, candidate);
}

// The largest residual among feasibility, complementarity and duality gap, and how much rounding is amplified: Σ multipliers / ‖x‖.
// Multipliers in double precision determine x up to its product with the unit roundoff, so no solver can promise a smaller residual.
struct Residual {
    double size, amplified;
};

static inline Residual optimality_residual(const MarginProblem &problem, const Candidate &candidate) {
    const double square = dot(candidate.x, candidate.x, problem.d);
    if (!(square > 0.0)) return {INF, INF};
    const double length = square_root(square);
    double worst = 0.0, total = 0.0, value = 0.0;
    for (int64_t r = 0; r < problem.m; r++) {
        const double multiplier = candidate.multipliers[r], slack = candidate.slack[r];
        total += multiplier;
        value += multiplier * problem.lower[r];
        worst = larger(worst, larger(-slack / length, modulus(multiplier * slack) / square));
    }
    worst = larger(worst, modulus(square - value) / square);
    return {worst < INF ? worst : INF, total / length};
}

// ‖Σ multipliers[r] a_r / ‖a_r‖‖ over the weight on positive lower bounds: at rounding level, no x exists. `scaled` is room for m numbers
// and `rest` for d.
static inline double farkas_residual(const MarginProblem &problem, const double *multipliers, double *scaled, double *rest) {
    double counted = 0.0;
    for (int64_t r = 0; r < problem.m; r++) {
        scaled[r] = problem.row_norms[r] > 0.0 ? multipliers[r] / problem.row_norms[r] : 0.0;
        if (problem.lower[r] > 0.0) counted += multipliers[r];
    }
    vecmat(scaled, problem.A, nullptr, problem.m, problem.d, rest);
    return counted > 0.0 ? square_root(dot(rest, rest, problem.d)) / counted : INF;
}

// Turn the squared norms in row_norms into norms and scale the lower bounds b; what is known without solving, and the scale of x.
static inline Outcome prepare(const MarginProblem &problem, const double *b, const Candidate &candidate, double *scale_of_x) {
    for (int64_t i = 0; i < problem.d; i++) candidate.x[i] = 0.0;
    for (int64_t r = 0; r < problem.m; r++) candidate.multipliers[r] = candidate.slack[r] = 0.0;
    double *norms = problem.row_norms, scale = 0.0;
    int64_t unsatisfiable = -1;
    *scale_of_x = 1.0;
    for (int64_t r = 0; r < problem.m; r++) {
        if (!(MIN_SQUARED_NORM < norms[r] && norms[r] < MAX_SQUARED_NORM)) {
            for (int64_t i = 0; i < problem.d; i++)
                if (problem.A[r * problem.d + i] != 0.0) return OUT_OF_RANGE;
            norms[r] = 0.0;
        }
        if (!(b[r] < 1e100)) return OUT_OF_RANGE;
        norms[r] = square_root(norms[r]);
        problem.lower[r] = norms[r] > 0.0 ? b[r] / norms[r] : 0.0;
        scale = larger(scale, problem.lower[r]);
        if (norms[r] == 0.0 && b[r] > 0.0) unsatisfiable = r;
    }
    if (unsatisfiable >= 0) {
        candidate.multipliers[unsatisfiable] = 1.0;
        return INFEASIBLE;
    }
    if (scale == 0.0) return TRIVIAL;
    for (int64_t r = 0; r < problem.m; r++) problem.lower[r] /= scale;
    *scale_of_x = scale;
    return UNVERIFIED;
}

// Whether a candidate of the quick methods is accurate enough to need no second look.
static inline Outcome fast_path_outcome(const MarginProblem &problem, const Candidate &candidate) {
    const Residual residual = optimality_residual(problem, candidate);
    return residual.size <= FAST_PATH_RTOL && EPS * residual.amplified <= FAST_PATH_RTOL ? OPTIMAL : UNVERIFIED;
}

// Whether x = Aᵀ multipliers is optimal; where rows nearly cancel, the x of the active set, which is more accurate. `accurate` is room for x.
static inline Outcome verified_outcome(const MarginProblem &problem, const Candidate &candidate, double *accurate) {
    for (int64_t i = 0; i < problem.d; i++) accurate[i] = candidate.x[i];
    evaluate(problem, candidate);
    Residual residual = optimality_residual(problem, candidate);
    if (residual.size > VERIFIED_RTOL) {
        double distance = 0.0;
        for (int64_t i = 0; i < problem.d; i++) {
            distance += (candidate.x[i] - accurate[i]) * (candidate.x[i] - accurate[i]);
            candidate.x[i] = accurate[i];
        }
        evaluate_slack(problem, candidate);
        residual = optimality_residual(problem, candidate);
        residual.size = larger(residual.size, square_root(distance / dot(accurate, accurate, problem.d)));
    }
    if (residual.size > larger(VERIFIED_RTOL, AMPLIFIED_EPS * residual.amplified)) return UNVERIFIED;
    return AMPLIFIED_EPS * residual.amplified <= MAX_KKT_RTOL ? OPTIMAL : NEEDS_RECHECK;  // where the order of additions may decide
}

// Mark the active rows, and give x and the multipliers their own scale back. A row is active when its slack is small against its lower
// bound, or is rounding against ‖x‖.
static inline void write_solution(
    const MarginProblem &problem, const Candidate &candidate, double scale, Outcome outcome, bool *active) {
    if (outcome == OUT_OF_RANGE) return;
    const double length = square_root(dot(candidate.x, candidate.x, problem.d));
    for (int64_t r = 0; r < problem.m; r++) {
        const bool near = candidate.slack[r] <= ACTIVE_SLACK_RTOL * problem.lower[r] + ROUNDOFF_RTOL * length;
        const bool counts = problem.row_norms[r] > 0.0;
        active[r] = counts && (near || candidate.multipliers[r] > 0.0) && outcome != INFEASIBLE;
        if (counts) candidate.multipliers[r] *= (outcome == INFEASIBLE ? 1.0 : scale) / problem.row_norms[r];
    }
    for (int64_t i = 0; i < problem.d; i++) candidate.x[i] *= scale;
}
