// Margin problems in ℓ1 and ℓ∞ by a simplex method on their duals; svm/solvers/linear_programs.py says which.
//
// Variables are the multipliers λ_r, numbered r, and the entries of g = Aᵀλ, numbered n + j, for ℓ∞ also h = b·λ, numbered n + d, each with a
// convex piecewise linear cost. Nonbasic ones are at a breakpoint of their cost: λ at 0, g at ±1 (ℓ1, a box) or 0 (ℓ∞), h at 1. The tableau
// expresses the others by these. A pivot enters where the cost falls fastest per unit of length (steepest edge), and goes past breakpoints
// while the cost still falls.
#pragma once
#include "../linear_algebra.h"
#include "../arena.h"

constexpr int64_t MAX_BUILDS = 30;           // of a tableau: after each, pivots go on until a new one has nothing left to do
constexpr int64_t MAX_PIVOTS = 500;          // before a tableau is built anew, since rounding builds up
constexpr double SLOPE_RTOL = 1e-13;         // of the size of x: slopes above minus this do not count as falling
constexpr double BREAKPOINT_ATOL = 1e-12;    // breakpoints as close as this count as one, which the largest pivot represents
constexpr double MIN_PIVOT = 1e-9;
constexpr double MIN_STEP = 1e-14;           // shorter steps are no progress
constexpr int64_t MAX_STALLED = 40;          // pivots without progress, after which the entering variable is drawn at random

// Which variables are basic, and on which piece of its cost each entry of g is.
struct Basis {
    bool *row;     // (n) whether λ_r is basic
    bool *entry;   // (n_basic) whether g_j is basic; for ℓ∞ also h, which never is
    double *sign;  // (n_basic) ℓ1: the bound ±1 of a nonbasic g_j; ℓ∞: the slope ±1 of a basic g_j
};

struct Simplex {
    const double *A, *b;  // (n, d), (n)
    int64_t n, d;
    bool is_box;
    const int64_t *members;  // (m) the rows in the tableau
    int64_t m, n_basic, width;  // columns of the tableau with those, all zero, that fill the last registers
    double *T;                  // (n_basic, width) basic variables as combinations of nonbasic ones
    double *cost, *edge, *row;  // (width) derivative of the cost, without that of a nonbasic g_j itself; squared length of each edge; a row
    double *value, *column, *step;  // (n_basic)
    double *rest, *points;          // (m), (d + 1)
    int64_t *basic, *nonbasic;      // (n_basic), (m)
    int64_t *ahead;                 // (n_basic) basic variables with a breakpoint ahead
    Basis basis;

    Simplex(Arena &arena, int64_t n, int64_t d, bool is_box, const int64_t *members, int64_t m)
        : n(n), d(d), is_box(is_box), members(members), m(m), n_basic(is_box ? d : d + 1), width((m + 7) / 8 * 8) {
        T = arena.doubles(n_basic * width);
        double **columns[] = {&cost, &edge, &row, &rest}, **rows[] = {&value, &column, &step, &points};
        for (double **vector : columns) *vector = arena.doubles(width);
        for (double **vector : rows) *vector = arena.doubles(d + 1);
        basic = arena.integers(n_basic), nonbasic = arena.integers(m), ahead = arena.integers(n_basic);
    }

    double entry_of(int64_t r, int64_t j) const { return j < d ? A[r * d + j] : b[r]; }

    // cost += factor · (row i of T).
    void add_to_cost(double factor, int64_t i) {
        const Eight y = twice(spread(factor));
        for (int64_t c = 0; c < width; c += 8) store(cost, c, load_8(cost, c) + y * load_8(T, i * width + c));
    }

    // T += step rowᵀ and the squares of its edges, in `count` registers of columns from c on.
    template <int count>
    void add_product(int64_t c) {
        Eight added[count], squares[count];
        for (int k = 0; k < count; k++) added[k] = load_8(row, c + 8 * k), squares[k] = twice(spread(1.0));
        for (int64_t i = 0; i < n_basic; i++) {
            double *into = T + i * width + c;
            const Eight factor = twice(spread(step[i]));
            for (int k = 0; k < count; k++) {
                const Eight entries = load_8(into, 8 * k) + factor * added[k];
                squares[k] += entries * entries;
                store(into, 8 * k, entries);
            }
        }
        for (int k = 0; k < count; k++) store(edge, c + 8 * k, squares[k]);
    }

    // Exchange the basic variable of a row with the nonbasic one of a column, and square the edges anew.
    void exchange(int64_t leaving, int64_t entering) {
        double *last = T + leaving * width;
        const double pivot = last[entering];
        for (int64_t c = 0; c < width; c++) row[c] = last[c] / -pivot, last[c] = 0.0;
        row[entering] = 1.0 / pivot;
        for (int64_t i = 0; i < n_basic; i++) step[i] = T[i * width + entering], T[i * width + entering] = 0.0;
        step[leaving] = 1.0;
        int64_t c = 0;
        for (; c + 24 <= width; c += 24) add_product<3>(c);
        for (; c < width; c += 8) add_product<1>(c);
        const double factor = cost[entering];
        cost[entering] = 0.0;
        add_to_cost(factor, leaving);
    }

    // Write the tableau of the basis; rows that depend on others leave it.
    void build() {
        for (int64_t k = 0; k < n_basic * width; k++) T[k] = 0.0;
        for (int64_t c = 0; c < width; c++) cost[c] = 0.0, edge[c] = 1.0;
        for (int64_t i = 0; i < n_basic; i++) basic[i] = n + i;
        for (int64_t c = 0; c < m; c++) {
            nonbasic[c] = members[c];
            if (is_box) cost[c] = -b[members[c]];
            for (int64_t i = 0; i < n_basic; i++) T[i * width + c] = entry_of(members[c], i);
        }
        for (int64_t i = 0; i < n_basic; i++)
            for (int64_t c = 0; c < m; c++) edge[c] += T[i * width + c] * T[i * width + c];
        for (int64_t c = 0; c < m; c++) {
            const int64_t r = members[c];
            if (!basis.row[r]) continue;
            int64_t leaving = -1;
            double largest = MIN_PIVOT;
            for (int64_t i = 0; i < n_basic; i++)
                if (basic[i] >= n && !basis.entry[basic[i] - n] && modulus(T[i * width + c]) > largest)
                    leaving = i, largest = modulus(T[i * width + c]);
            if (leaving < 0) {
                basis.row[r] = false;
                continue;
            }
            nonbasic[c] = basic[leaving], basic[leaving] = r;
            exchange(leaving, c);
        }
        for (int64_t i = 0; i < n_basic; i++)
            if (basic[i] >= n) {
                basis.entry[basic[i] - n] = true;
                if (!is_box) add_to_cost(basis.sign[basic[i] - n], i);
            }
        evaluate();
    }

    // points -= Σ value_i a_i over the basic rows, with b·λ as the last one.
    void subtract_rows() {
        for (int64_t i = 0; i < n_basic; i++) {
            if (basic[i] >= n) continue;
            const double *a = A + basic[i] * d, factor = value[i];
            for (int64_t j = 0; j < d; j++) points[j] -= factor * a[j];
            points[d] -= factor * b[basic[i]];
        }
    }

    // The values of the basic variables, λ refined once by the rows themselves.
    void evaluate() {
        for (int64_t i = 0; i < n_basic; i++) value[i] = 0.0;
        for (int64_t round = 0; round < 2; round++) {
            for (int64_t j = 0; j <= d; j++) points[j] = 0.0;
            for (int64_t c = 0; c < m; c++) {
                const int64_t j = nonbasic[c] - n;
                if (j >= 0) points[j] = is_box ? basis.sign[j] : (j == d ? 1.0 : 0.0);
            }
            subtract_rows();
            for (int64_t c = 0; c < m; c++) rest[c] = nonbasic[c] >= n ? points[nonbasic[c] - n] : 0.0;
            for (int64_t i = 0; i < n_basic; i++)
                if (basic[i] < n) value[i] += dot(T + i * width, rest, m);
        }
        for (int64_t j = 0; j <= d; j++) points[j] = 0.0;
        subtract_rows();
        for (int64_t i = 0; i < n_basic; i++)
            if (basic[i] >= n) value[i] = -points[basic[i] - n];
    }

    // The nonbasic variable to move, which way, and the slope of the cost; -1 where no cost falls. With a seed above zero it is drawn at
    // random among those that lower the cost, which ends every cycle.
    int64_t find_entering(int64_t seed, double *direction, double *slope) const {
        const int64_t fixed = is_box ? -1 : n + d;
        double size = 1.0, best = 0.0;
        int64_t found = -1;
        for (int64_t c = 0; c < m; c++)
            if (nonbasic[c] >= n) size = larger(modulus(cost[c]), size);
        for (int64_t c = 0; c < m; c++) {
            const int64_t v = nonbasic[c];
            double way = 1.0, s = cost[c];
            if (v == fixed) continue;
            if (v >= n) {
                way = is_box ? -basis.sign[v - n] : (cost[c] > 0.0 ? -1.0 : 1.0);
                s = is_box ? way * cost[c] : 1.0 - modulus(cost[c]);
            }
            if (!(s < -SLOPE_RTOL * size)) continue;
            double score = s * s / edge[c];
            if (seed > 0) {
                seed = (1103515245 * seed + 12345) % 2147483648;
                score = 1.0 + (double)seed;
            }
            if (score > best) best = score, found = c, *direction = way, *slope = s;
        }
        return found;
    }

    // How far the edge along `column` goes until basic variable i meets a breakpoint.
    double step_to_breakpoint(int64_t i) const {
        const double change = column[i];
        if (!(modulus(change) > MIN_PIVOT)) return INF;
        if (basic[i] < n) return change < 0.0 ? larger(value[i], 0.0) / -change : INF;
        if (is_box) return larger(((change > 0.0 ? 1.0 : -1.0) - value[i]) / change, 0.0);
        return basis.sign[basic[i] - n] * change < 0.0 ? larger(-value[i] / change, 0.0) : INF;
    }

    // The basic variable whose breakpoint ends the edge along `column`, and the length; -1 where nothing does. Entries of g that change their
    // sign before it have their slope, and all costs, changed.
    int64_t find_leaving(double slope, double *length) {
        int64_t n_ahead = 0;
        for (int64_t i = 0; i < n_basic; i++)
            if ((step[i] = step_to_breakpoint(i)) < INF) ahead[n_ahead++] = i;
        while (true) {
            double reach = INF, largest = 0.0;
            int64_t leaving = -1, n_left = 0;
            for (int64_t k = 0; k < n_ahead; k++) {
                const int64_t i = ahead[k];
                if (step[i] < reach) reach = smaller(reach, step[i] + BREAKPOINT_ATOL / modulus(column[i]));
                ahead[n_left] = i, n_left += step[i] < INF;
            }
            n_ahead = n_left;
            for (int64_t k = 0; k < n_ahead; k++) {
                const int64_t i = ahead[k];
                if (step[i] <= reach && modulus(column[i]) > largest) leaving = i, largest = modulus(column[i]);
            }
            *length = leaving < 0 ? INF : step[leaving];
            if (leaving < 0 || is_box || basic[leaving] < n || slope + 2.0 * largest >= 0.0) return leaving;
            slope += 2.0 * largest;
            step[leaving] = INF;
            double &sign = basis.sign[basic[leaving] - n];
            sign *= -1.0;
            add_to_cost(2.0 * sign, leaving);
        }
    }

    // Let the variable of column `entering` become basic in the row `leaving`, after a step of this length.
    void exchange_variables(int64_t entering, int64_t leaving, double direction, double length) {
        const int64_t u = basic[leaving], v = nonbasic[entering];
        for (int64_t i = 0; i < n_basic; i++) value[i] += length * column[i];
        if (u < n) {
            basis.row[u] = false;
        } else {
            basis.entry[u - n] = false;
            if (is_box)
                basis.sign[u - n] = column[leaving] > 0.0 ? 1.0 : -1.0;
            else
                add_to_cost(-basis.sign[u - n], leaving);  // the cost of a nonbasic g_j is not in it
        }
        value[leaving] = direction * length;
        if (v < n) {
            basis.row[v] = true;
        } else {
            basis.entry[v - n] = true;
            if (is_box)
                value[leaving] += basis.sign[v - n];
            else
                basis.sign[v - n] = direction, cost[entering] += direction;
        }
        basic[leaving] = v, nonbasic[entering] = u;
        exchange(leaving, entering);
    }

    // Pivot until no cost falls; returns the number of pivots, -1 where a cost falls for ever.
    int64_t pivot() {
        int64_t stalled = 0;
        for (int64_t pivots = 0; pivots < MAX_PIVOTS; pivots++) {
            double direction = 1.0, slope = 0.0, length;
            const int64_t entering = find_entering(stalled > MAX_STALLED ? pivots : 0, &direction, &slope);
            if (entering < 0) return pivots;
            for (int64_t i = 0; i < n_basic; i++) column[i] = direction * T[i * width + entering];
            const int64_t leaving = find_leaving(slope, &length), v = nonbasic[entering];
            if (is_box && v >= n && length >= 2.0) {  // the entering g_j reaches its other bound first
                for (int64_t i = 0; i < n_basic; i++) value[i] += 2.0 * column[i];
                basis.sign[v - n] *= -1.0;
                continue;
            }
            if (leaving < 0) return -1;
            stalled = length <= MIN_STEP ? stalled + 1 : 0;
            exchange_variables(entering, leaving, direction, length);
        }
        return MAX_PIVOTS;
    }

    // x, refined once by the basic rows, and λ.
    void read_off(double *x, double *multipliers) {
        for (int64_t j = 0; j <= d; j++) points[j] = 0.0;  // x, and for ℓ∞ minus its margin
        for (int64_t r = 0; r < n; r++) multipliers[r] = 0.0;
        for (int64_t i = 0; i < n_basic; i++) {
            if (basic[i] < n) multipliers[basic[i]] = larger(value[i], 0.0);
            else if (!is_box) points[basic[i] - n] = basis.sign[basic[i] - n];
        }
        for (int64_t c = 0; c < m; c++)
            if (nonbasic[c] >= n) points[nonbasic[c] - n] = -cost[c];
        for (int64_t i = 0; i < n_basic; i++) {
            const int64_t r = basic[i];
            step[i] = r < n ? (is_box ? b[r] : -b[r] * points[d]) - dot(A + r * d, points, d) : 0.0;
        }
        for (int64_t i = 0; i < n_basic; i++)
            for (int64_t c = 0; step[i] != 0.0 && c < m; c++)
                if (nonbasic[c] >= n) points[nonbasic[c] - n] += step[i] * T[i * width + c];
        for (int64_t j = 0; j < d; j++) x[j] = points[j];
    }

    // Solve from the basis, which is left at the optimal one.
    void solve(double *x, double *multipliers) {
        for (int64_t build_number = 0; build_number < MAX_BUILDS; build_number++) {
            build();
            if (pivot() <= 0) break;
        }
        read_off(x, multipliers);
    }
};
