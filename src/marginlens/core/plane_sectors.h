// Sectors around locally optimal directions of the plane that no run of steepest descent leaves.
#pragma once
#include "plane_descent.h"

constexpr double SECTOR_COSINE = 0.9901;                      // of the widest sector's edges with its direction: inside, a run has reached it
constexpr double SECTOR_EDGES[5] = {1.0, 0.7, 0.45, 0.25, 0.1};  // tangents to which a sector may reach on either side, as shares of the widest
constexpr double SECTOR_BANDS[2] = {0.4, 0.75};                // shares of an edge's tangent from which on steps must lead inwards
constexpr int64_t SECTOR_PARTS = 8, RADIUS_HALVINGS = 7;       // parts of a sector, in each of which steps must lead away from the origin
constexpr double LOG_RADII[2] = {-1.0, 9.0};                   // natural logarithms of the radii that are tried
constexpr double TIE_SLACK = 1e-6;                             // beyond what rounding, and ties of coordinates, can turn

struct Direction {
    double x, y;

    double along(Direction other) const { return x * other.x + y * other.y; }
    double across(Direction other) const { return x * other.y - y * other.x; }
};

// k_α - k_t of an input, with γ_α - γ_t, which rounding may blur: at least `least`, at most `most` in modulus.
struct SectorRow {
    Direction key;
    double least, most;
    int64_t input;
};

// Descent moves along the steepest direction S(g) of g = Σ W_r a_r over rows a_r = k_α - k_t, with W_r = |ℓ'| s_t (γ_α - γ_t - δ). Towards the
// edges of a sector the row of the smallest margin leads inwards and outweighs all rows that may not, everywhere some row outweighs those
// that lead back to the origin, and both the more so the longer p is. So a run stays, and is counted as if it had taken all its steps.
struct SectorProof {
    const SectorRow *rows;
    int64_t n_rows, n_inputs;
    Direction centre;                     // of length one
    double power, log_slope_ratio, step;  // of the norm; log of the largest slope of the loss over the smallest; steps of runs
    double *margins, *mass, *shift;       // (n_rows), and for each input bounds on Σ e^-m and on |δ|

    // The direction of length one at an angle to the centre with this tangent.
    Direction at(double tangent) const {
        const double size = square_root(1.0 + tangent * tangent);
        return {(centre.x - tangent * centre.y) / size, (centre.y + tangent * centre.x) / size};
    }

    // The c with n·S(g) > 0 wherever c·g > 0: sign(n) |n|^(p-1), up to a factor. In the plane S is odd and turns g the same way round, so the
    // boundary n·S(g) = 0 is a line; for p = ∞ it is an axis and for p = 1 a diagonal.
    Direction dual_normal(Direction n) const {
        const double largest = larger(modulus(n.x), modulus(n.y));
        const auto weight = [&](double entry) {
            const double size = modulus(entry) / largest;
            const double raised = power == INF ? (size == 1.0 ? 1.0 : 0.0) : power == 1.0 ? 1.0 : size > 0.0 ? pow(size, power - 1.0) : 0.0;
            return entry > 0.0 ? raised : entry < 0.0 ? -raised : 0.0;
        };
        return {weight(n.x), weight(n.y)};
    }

    // Whether n·S(g) > 0 for all p of norm at least `radius` between two directions.
    bool leads(Direction from, Direction to, Direction n, double radius) const {
        const Direction c = dual_normal(n);
        for (int64_t i = 0; i < n_inputs; i++) mass[i] = shift[i] = 0.0;
        for (int64_t r = 0; r < n_rows; r++) {
            margins[r] = smaller(rows[r].key.along(from), rows[r].key.along(to));
            if (!(margins[r] > 0.0) && (rows[r].key.x != 0.0 || rows[r].key.y != 0.0)) return false;  // another token may win
            const double e = exp(-radius * margins[r]);
            mass[rows[r].input] += e;
            shift[rows[r].input] += e * rows[r].most;
        }
        int64_t best = -1;
        for (int64_t r = 0; r < n_rows; r++)
            if (rows[r].key.along(c) > 0.0 && rows[r].least > shift[rows[r].input] && (best < 0 || margins[r] < margins[best])) best = r;
        if (best < 0) return false;
        const SectorRow &first = rows[best];
        const double weight = first.key.along(c) * (first.least - shift[first.input]) / (1.0 + mass[first.input]);
        double against = 0.0;
        for (int64_t r = 0; r < n_rows; r++) {
            const SectorRow &row = rows[r];
            const double part = row.key.along(c);
            if (r == best || part == 0.0 || (part > 0.0 && row.least >= shift[row.input])) continue;
            const Direction rest{row.key.x - first.key.x, row.key.y - first.key.y};
            const double ahead = smaller(rest.along(from), rest.along(to));
            if (ahead < 0.0) return false;  // its weight may grow against the best one's
            against += exp(log_slope_ratio - radius * ahead) * (row.most + shift[row.input]) * modulus(part);
        }
        return weight > against * (1.0 + TIE_SLACK);
    }

    // About the smallest radius from which on a condition holds, infinite where it does not hold at the largest that is tried.
    template <class Condition>
    static double smallest_radius(Condition holds) {
        double low = LOG_RADII[0], high = LOG_RADII[1];
        if (!holds(exp(high))) return INF;
        for (int64_t k = 0; k < RADIUS_HALVINGS; k++) {
            const double middle = 0.5 * (low + high);
            (holds(exp(middle)) ? high : low) = middle;
        }
        return exp(high);
    }

    // Choose the tangent of the edge on one side, and raise radius and turn to what steps there need; whether there is one.
    bool choose_edge(double sign, double *edge, Sector *sector) const {
        const double widest = square_root(1.0 - SECTOR_COSINE * SECTOR_COSINE) / SECTOR_COSINE;
        const double longest = power > 2.0 ? pow(2.0, 0.5 - 1.0 / power) : 1.0;  // Euclidean length of a step of unit length
        double reach = INF, radius = INF, turn = 0.0;
        for (double share : SECTOR_EDGES)
            for (double band : SECTOR_BANDS) {
                const double tangent = sign * share * widest;
                const Direction outer = at(tangent), inner = at(band * tangent), inwards{sign * outer.y, -sign * outer.x};
                const double found = smallest_radius([&](double size) { return leads(inner, outer, inwards, size); });
                const double turned = longest / modulus(inner.across(outer));
                const double needed = larger(found, step * turned) / square_root(share);  // runs come into narrow sectors later
                if (needed < reach) reach = needed, radius = found, turn = turned, *edge = tangent;
            }
        sector->radius = larger(sector->radius, radius), sector->turn = larger(sector->turn, turn);
        return reach < INF;
    }

    bool find(Sector *sector) const {
        double left = 0.0, right = 0.0;
        *sector = {centre.x, centre.y, 0.0, 0.0, 0.0, 0.0};
        if (!choose_edge(-1.0, &left, sector) || !choose_edge(1.0, &right, sector)) return false;
        const auto leads_out = [&](double size) {
            for (int64_t part = 0; part < SECTOR_PARTS; part++) {
                const Direction from = at(left + (right - left) * part / SECTOR_PARTS);
                const Direction to = at(left + (right - left) * (part + 1) / SECTOR_PARTS);
                if (!leads(from, to, from, size) || !leads(from, to, to, size)) return false;
            }
            return true;
        };
        sector->left = -left, sector->right = right;
        sector->radius = larger(sector->radius, smallest_radius(leads_out));
        return sector->radius < INF;
    }
};
