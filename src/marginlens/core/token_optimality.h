// Which tokens hold the margin of a selection, and by how much the selected tokens outscore the others (A Definition 2).
#pragma once
#include "linear_algebra.h"
#include "arena.h"

constexpr double NEIGHBOUR_SLACK_RTOL = 1e-12;  // slack, relative to the terms that were summed for it, that rounding alone can leave
constexpr double SOLVER_SLACK_RTOL = 1e-9;      // slack, relative to ‖k_α - k_t‖ ‖p‖, below which the p of the solver does not yet decide
constexpr double SUPPORT_RANK_RTOL = 1e-12;     // of a row of norm one, that is rounding where other rows span it

// A selection α of one problem, with the p and the multipliers that solve its ATT-SVM.
struct Selection {
    const double *keys, *p, *multipliers;  // (n, T, d), (d), (n, T)
    const int64_t *lengths, *alpha;        // (n)
    int64_t n, T, d;

    const double *selected(int64_t i) const { return keys + (i * T + alpha[i]) * d; }

    // k_α - k_t of a place i T + t.
    void row(int64_t place, double *out) const {
        for (int64_t k = 0; k < d; k++) out[k] = selected(place / T)[k] - keys[place * d + k];
    }

    // Σ_k (|k_αk| + |k_tk|) |x_k|, which bounds what is summed for (k_α - k_t)·x.
    double terms(int64_t place, const double *x) const {
        double total = 0.0;
        for (int64_t k = 0; k < d; k++) total += (modulus(selected(place / T)[k]) + modulus(keys[place * d + k])) * modulus(x[k]);
        return total;
    }
};

// The rows with a positive multiplier as L Q: Q (rank, d) has orthonormal rows, and L (rank, rank) is of these rows of norm one.
class SupportRows {
    const Selection &selection;
    const int64_t d, most;
    int64_t *places, rank = 0;
    double *L, *Q, *sizes, *across, *coefficients;

  public:
    double *p;  // that solves their equations to rounding

    SupportRows(Arena &arena, const Selection &selection)
        : selection(selection), d(selection.d), most(smaller(selection.n * selection.T, selection.d) + 1) {
        places = arena.integers(most);
        L = arena.doubles(most * most), Q = arena.doubles(most * d);
        sizes = arena.doubles(most), coefficients = arena.doubles(most), across = arena.doubles(d), p = arena.doubles(d);
    }

    // coefficients = Q x, and what is left of x across the rows of Q; twice, so that rounding does not stay.
    void split(double *x) {
        for (int64_t r = 0; r < rank; r++) coefficients[r] = 0.0;
        for (int64_t pass = 0; pass < 2; pass++)
            for (int64_t r = 0; r < rank; r++) {
                const double part = dot(Q + r * d, x, d);
                coefficients[r] += part;
                for (int64_t k = 0; k < d; k++) x[k] -= part * Q[r * d + k];
            }
    }

    // Whether the rows are independent and there are some.
    bool factorise() {
        rank = 0;
        for (int64_t i = 0; i < selection.n; i++)
            for (int64_t place = i * selection.T; place < i * selection.T + selection.lengths[i]; place++) {
                if (!(selection.multipliers[place] > 0.0)) continue;
                double *q = Q + rank * d;
                selection.row(place, q);
                sizes[rank] = norm(q, d);
                for (int64_t k = 0; k < d; k++) q[k] /= sizes[rank];
                split(q);
                const double left = norm(q, d);
                if (rank + 1 == most || !(left > SUPPORT_RANK_RTOL)) return false;
                copy(coefficients, rank, L + rank * most);
                L[rank * most + rank] = left;
                for (int64_t k = 0; k < d; k++) q[k] /= left;
                places[rank++] = place;
            }
        return rank > 0;
    }

    // Set p; whether the solver's is as close to it as its tolerance.
    bool refine() {
        for (int64_t k = 0; k < d; k++) p[k] = 0.0;
        for (int64_t pass = 0; pass < 2; pass++) {
            for (int64_t r = 0; r < rank; r++) {
                selection.row(places[r], across);
                coefficients[r] = (1.0 - dot(across, p, d)) / sizes[r];
            }
            solve_lower(L, rank, most, coefficients);
            for (int64_t r = 0; r < rank; r++)
                for (int64_t k = 0; k < d; k++) p[k] += coefficients[r] * Q[r * d + k];
        }
        for (int64_t k = 0; k < d; k++) across[k] = p[k] - selection.p[k];
        return norm(across, d) <= SOLVER_SLACK_RTOL * norm(p, d);
    }

    // Whether the row of a place is tight at p. With a_t = Σ c_r a_r + a_t^⊥ over the support, rounding keys by a relative ε moves its slack
    // by at most ε times e_t·|p| + Σ |c_r| e_r·|p| + Σ λ_r e_r·|a_t^⊥|, where e_r = |k_α| + |k_r|.
    bool is_tight(int64_t place) {
        selection.row(place, across);
        const double slack = dot(across, p, d) - 1.0;
        split(across);
        solve_upper(L, rank, most, coefficients);
        double allowed = selection.terms(place, p);
        for (int64_t r = 0; r < rank; r++) {
            allowed += modulus(coefficients[r] / sizes[r]) * selection.terms(places[r], p);
            allowed += selection.multipliers[places[r]] * selection.terms(places[r], across);
        }
        return slack <= NEIGHBOUR_SLACK_RTOL * allowed;
    }
};

// Mark the neighbours, (n, T): tokens whose row holds with equality. Where the other token is far away the error of p itself may leave more
// than rounding of a slack; such slacks are looked at again, at the p that solves the active equations. `row` is room for d numbers.
static inline void find_neighbours(const Selection &selection, SupportRows &support, double *row, bool *neighbours) {
    const double size = norm(selection.p, selection.d);
    bool is_known = false, is_refined = false;
    for (int64_t i = 0; i < selection.n; i++)
        for (int64_t t = 0; t < selection.T; t++) {
            const int64_t place = i * selection.T + t;
            neighbours[place] = false;
            if (t == selection.alpha[i] || t >= selection.lengths[i]) continue;
            selection.row(place, row);
            const double slack = dot(row, selection.p, selection.d) - 1.0;
            neighbours[place] = slack <= NEIGHBOUR_SLACK_RTOL * selection.terms(place, selection.p);
            if (neighbours[place] || !(slack <= SOLVER_SLACK_RTOL * norm(row, selection.d) * size)) continue;
            if (!is_known) is_refined = support.factorise() && support.refine();
            is_known = true;
            neighbours[place] = !is_refined || support.is_tight(place);
        }
}
