// ATT-SVM, one problem a warp: the shortest p with p·(k_α - k_t) >= 1, its multipliers, and the check that proves them.
//
// The dual active-set method of marginlens/core/margin/gram_active_set.h on the tableau of the Gram matrix G of unit rows. With the rows
// S active and the others N, the symmetric tableau is
//
//     T = ( -G_SS⁻¹      G_SS⁻¹ G_SN        )        value = ( multipliers of S )
//         ( its transpose  G_NN - G_NS G_SS⁻¹ G_SN )              ( slack of N       )
//
// and a row enters or leaves by one sweep, a rank-one update of T. Rows are in lanes, row r in lane r mod 32. What the sweeps give is
// then evaluated and refined on the rows themselves, and counts only if its residual, or that of the Farkas vector, is rounding.
// Everything else is UNVERIFIED, for the careful method.
#include "warp.h"

#include "../../core/margin/tolerances.h"

constexpr int COORDINATES = LANES / ROWS_PER_LANE;  // of the rows that are in shared memory at a time
constexpr int COLUMNS = 8;                          // of the Gram matrix that a lane sums at a time
constexpr int MAX_ROUNDS = 3;                       // of the active-set method, each from the slack that the rows really have
constexpr int MAX_PIVOTS_PER_ROW = 16;
constexpr double MIN_PIVOT = 1e-8;  // of the tableau of unit rows; below it a row counts as dependent on others
constexpr double INFINITE = 1e300;

struct rows_of_lane {  // a number for each row of a lane
    lanes<double> v[ROWS_PER_LANE];
};
struct marks_of_lane {
    lanes<bool> v[ROWS_PER_LANE];
};

#define FOR_ROWS(q) _Pragma("unroll") for (int q = 0; q < ROWS_PER_LANE; ++q)

struct margin_problem {
    const double *K;        // (n_inputs, n_tokens, d)
    const int64_t *selected;  // (n_inputs,)
    const int64_t *lengths;   // (n_inputs,) or null
    int n_inputs, n_tokens, d, m, ld;
    double *T, *tile, *weights, *x;  // shared: (m, ld), (COORDINATES, ld), (m,), (COORDINATES,)
    int loaded;                      // coordinate at which the tile begins
};

DEVICE lanes<int> row(int q) { return lane_number() + lanes<int>(LANES * q); }

DEVICE lanes<bool> is_row(const margin_problem &p, int q) { return row(q) < lanes<int>(p.m); }

DEVICE int n_in_tile(const margin_problem &p, int first) { return p.d - first < COORDINATES ? p.d - first : COORDINATES; }

DEVICE double row_value(const rows_of_lane &x, int r) {
    double value = 0.0;
    FOR_ROWS(q) if (r / LANES == q) value = of_lane(x.v[q], r % LANES);
    return value;
}

DEVICE double total(const rows_of_lane &x) {
    lanes<double> sum = x.v[0];
#pragma unroll
    for (int q = 1; q < ROWS_PER_LANE; ++q) sum += x.v[q];
    return warp_sum(sum);
}

DEVICE double largest(const rows_of_lane &x) {
    lanes<double> most = x.v[0];
#pragma unroll
    for (int q = 1; q < ROWS_PER_LANE; ++q) most = fmax(most, x.v[q]);
    return warp_max(most);
}

// The row with the largest number, the first of several; `x` becomes that number in all lanes of v[0].
DEVICE int largest_row(rows_of_lane &x) {
    lanes<int> at = lane_number();
#pragma unroll
    for (int q = 1; q < ROWS_PER_LANE; ++q) {
        at = select(x.v[q] > x.v[0], row(q), at);
        x.v[0] = fmax(x.v[0], x.v[q]);
    }
    at = group_argmax<LANES>(x.v[0], at);
    return uniform(at);
}

// The differences k_α - k_t of all rows at coordinates first … of the tile.
DEVICE void load_tile(margin_problem &p, int first) {
    if (p.loaded == first) return;
    p.loaded = first;
    warp_sync();
    const int count = n_in_tile(p, first);
    FOR_LANES(c, count) {
        double *into = p.tile + c * p.ld;
        for (int i = 0; i < p.n_inputs; ++i) {
            const double *keys = p.K + (int64_t)i * p.n_tokens * p.d + first + c;
            const int alpha = (int)p.selected[i], length = p.lengths ? (int)p.lengths[i] : p.n_tokens;
            const double chosen = keys[(int64_t)alpha * p.d];
            for (int t = 0; t < alpha; ++t) *into++ = chosen - keys[(int64_t)t * p.d];
            for (int t = alpha + 1; t < p.n_tokens; ++t) *into++ = t < length ? chosen - keys[(int64_t)t * p.d] : 0.0;
        }
    }
    warp_sync();
}

// T = the Gram matrix of all rows.
DEVICE void gram(margin_problem &p) {
    FOR_LANES(k, p.m * p.ld) p.T[k] = 0.0;
    warp_sync();
    for (int first = 0; first < p.d; first += COORDINATES) {
        load_tile(p, first);
        const int count = n_in_tile(p, first);
        for (int column = 0; column < p.m; column += COLUMNS) {
            lanes<double> sum[ROWS_PER_LANE][COLUMNS];
            FOR_ROWS(q)
#pragma unroll
            for (int s = 0; s < COLUMNS; ++s) sum[q][s] = 0.0;
            for (int c = 0; c < count; ++c) {
                const double *tile = p.tile + c * p.ld;
                lanes<double> a[ROWS_PER_LANE];
                FOR_ROWS(q) a[q] = load(tile, row(q));
#pragma unroll
                for (int s = 0; s < COLUMNS; ++s) {
                    const lanes<double> other = tile[column + s];
                    FOR_ROWS(q) sum[q][s] = fma(a[q], other, sum[q][s]);
                }
            }
#pragma unroll
            for (int s = 0; s < COLUMNS; ++s) {
                double *into = p.T + (column + s) * p.ld;
                FOR_ROWS(q) {
                    const lanes<bool> exists = row(q) < lanes<int>(column + s < p.m ? p.m : 0);
                    store_if(exists, into, row(q), load_if(exists, into, row(q), 0.0) + sum[q][s]);
                }
            }
        }
    }
    warp_sync();
}

// Exchange row r of the tableau: it enters the active set, or leaves it.
DEVICE void sweep(margin_problem &p, int r, bool enters) {
    const double *pivot_row = p.T + r * p.ld;
    const double inverse = 1.0 / pivot_row[r];
    lanes<double> a[ROWS_PER_LANE];
    FOR_ROWS(q) a[q] = load_if(is_row(p, q), pivot_row, row(q), 0.0) * lanes<double>(inverse);
    for (int s = 0; s < p.m; ++s) {
        if (s == r) continue;
        const lanes<double> factor = -pivot_row[s];
        FOR_ROWS(q) {
            const lanes<bool> exists = is_row(p, q);
            double *into = p.T + s * p.ld;
            store_if(exists, into, row(q), fma(factor, a[q], load_if(exists, into, row(q), 0.0)));
        }
    }
    warp_sync();
    FOR_ROWS(q) {
        const lanes<bool> exists = is_row(p, q), is_pivot = row(q) == lanes<int>(r);
        const lanes<double> entry = select(is_pivot, lanes<double>(-inverse), enters ? a[q] : -a[q]);
        store_if(exists, p.T + r * p.ld, row(q), entry);
        store_if(exists, p.T + r, row(q) * lanes<int>(p.ld), entry);
    }
    warp_sync();
}

// Raise the multiplier of row r, which is not active, by `step`: multipliers of S fall, slack of N rises.
DEVICE void raise(const margin_problem &p, int r, double step, const marks_of_lane &active, rows_of_lane &value) {
    FOR_ROWS(q) {
        const lanes<double> entry = load_if(is_row(p, q), p.T + r * p.ld, row(q), 0.0);
        value.v[q] = fma(select(active.v[q], lanes<double>(-step), lanes<double>(step)), entry, value.v[q]);
    }
}

DEVICE void set_row(int r, double x, rows_of_lane &value) {
    FOR_ROWS(q) value.v[q] = select(row(q) == lanes<int>(r), lanes<double>(x), value.v[q]);
}

DEVICE void mark_row(int r, bool x, marks_of_lane &marks) {
    FOR_ROWS(q) marks.v[q] = select(row(q) == lanes<int>(r), lanes<bool>(x), marks.v[q]);
}

// Every row that is independent of those before it enters; then those with multipliers that are not positive leave, until none is left.
DEVICE void start_from_all(margin_problem &p, const marks_of_lane &present, marks_of_lane &active, rows_of_lane &value) {
    unsigned bits[ROWS_PER_LANE];
    FOR_ROWS(q) bits[q] = lane_bits(present.v[q]);
    for (int r = 0; r < p.m; ++r) {
        if (!(bits[r / LANES] >> (r % LANES) & 1)) continue;
        const double square = p.T[r * p.ld + r];
        if (!(square >= MIN_PIVOT)) continue;
        const double multiplier = -row_value(value, r) / square;
        raise(p, r, multiplier, active, value);
        set_row(r, multiplier, value);
        mark_row(r, true, active);
        sweep(p, r, true);
    }
    for (bool dropped = true; dropped;) {
        dropped = false;
        FOR_ROWS(q) bits[q] = lane_bits(active.v[q] && value.v[q] <= lanes<double>(0.0));
        for (int r = 0; r < p.m; ++r) {
            if (!(bits[r / LANES] >> (r % LANES) & 1)) continue;
            const double multiplier = row_value(value, r);
            sweep(p, r, false);
            mark_row(r, false, active);
            set_row(r, 0.0, value);
            raise(p, r, -multiplier, active, value);
            dropped = true;
        }
    }
}

enum ending { SOLVED, CONTRADICTION, GAVE_UP };

// Rows enter, the most violated first, until none is violated, or one contradicts those that are active: it is returned in `new_row`.
DEVICE ending active_set(margin_problem &p, const marks_of_lane &present, marks_of_lane &active, rows_of_lane &value, int &new_row) {
    int pivots = 0;
    while (true) {
        rows_of_lane sum, violation;
        FOR_ROWS(q) {
            sum.v[q] = select(active.v[q], value.v[q], lanes<double>(0.0));
            violation.v[q] = select(present.v[q] && !active.v[q], -value.v[q], lanes<double>(-INFINITE));
        }
        const double allowed = VIOLATION_RTOL * total(sum);
        new_row = largest_row(violation);
        if (!(uniform(violation.v[0]) > allowed)) return SOLVED;
        double entering = 0.0;
        while (true) {
            if (++pivots > MAX_PIVOTS_PER_ROW * (p.m + 1)) return GAVE_UP;
            const double square = p.T[new_row * p.ld + new_row];
            const bool is_dependent = !(square >= MIN_PIVOT);
            rows_of_lane coefficient, ratio, size;
            FOR_ROWS(q) {
                coefficient.v[q] = load_if(active.v[q], p.T + new_row * p.ld, row(q), 0.0);
                size.v[q] = fabs(coefficient.v[q]);
            }
            const double threshold = (is_dependent ? COEFFICIENT_RTOL : EPS) * fmax(1.0, largest(size));
            FOR_ROWS(q) {
                const lanes<bool> falls = active.v[q] && coefficient.v[q] > lanes<double>(threshold);
                const lanes<double> divisor = select(falls, coefficient.v[q], lanes<double>(1.0));
                ratio.v[q] = select(falls, -(value.v[q] / divisor), lanes<double>(-INFINITE));
            }
            const int leaving = largest_row(ratio);
            const double first_zero = -uniform(ratio.v[0]);
            const double full = is_dependent ? INFINITE : -row_value(value, new_row) / square;
            if (first_zero >= INFINITE && is_dependent) return CONTRADICTION;
            const bool leaves = first_zero < full;
            const double step = leaves ? first_zero : full;
            raise(p, new_row, step, active, value);
            entering += step;
            if (!leaves) {
                set_row(new_row, entering, value);
                mark_row(new_row, true, active);
                sweep(p, new_row, true);
                break;
            }
            set_row(leaving, 0.0, value);
            mark_row(leaving, false, active);
            sweep(p, leaving, false);
        }
    }
}

// x = Σ_r weight_r a_r, written times `factor` to `x_out` where that is not null; a_r·x for every row, and ‖x‖².
DEVICE double evaluate(margin_problem &p, const rows_of_lane &weight, rows_of_lane &product, double factor, double *x_out) {
    FOR_ROWS(q) {
        store_if(is_row(p, q), p.weights, row(q), weight.v[q]);
        product.v[q] = 0.0;
    }
    warp_sync();
    lanes<double> square = 0.0;
    for (int first = 0; first < p.d; first += COORDINATES) {
        load_tile(p, first);
        const int count = n_in_tile(p, first);
        FOR_LANES(c, count) {
            const double *tile = p.tile + c * p.ld;
            double sum = 0.0;
            for (int r = 0; r < p.m; ++r) sum = fma(p.weights[r], tile[r], sum);
            p.x[c] = sum;
            if (x_out) x_out[first + c] = factor * sum;
        }
        warp_sync();
        for (int c = 0; c < count; ++c) {
            const lanes<double> entry = p.x[c];
            FOR_ROWS(q) product.v[q] = fma(load(p.tile + c * p.ld, row(q)), entry, product.v[q]);
        }
        const lanes<double> entry = load_if(lane_number() < lanes<int>(count), p.x, lane_number(), 0.0);
        square = fma(entry, entry, square);
    }
    return warp_sum(square);
}

// Σ_s T_rs change_s over active rows s, for every active row r.
DEVICE void correct(const margin_problem &p, const marks_of_lane &active, const rows_of_lane &change, rows_of_lane &value) {
    unsigned bits[ROWS_PER_LANE];
    FOR_ROWS(q) bits[q] = lane_bits(active.v[q]);
    for (int s = 0; s < p.m; ++s) {
        if (!(bits[s / LANES] >> (s % LANES) & 1)) continue;
        const lanes<double> amount = row_value(change, s);
        FOR_ROWS(q) value.v[q] = fma(load_if(active.v[q], p.T + s * p.ld, row(q), 0.0), amount, value.v[q]);
    }
}

// Whether every entry of the row with this number is zero.
DEVICE bool is_zero_row(margin_problem &p, int r) {
    lanes<bool> nonzero = lanes<bool>(false);
    for (int first = 0; first < p.d; first += COORDINATES) {
        load_tile(p, first);
        const lanes<bool> inside = lane_number() < lanes<int>(n_in_tile(p, first));
        nonzero = nonzero || load_if(inside, p.tile, lane_number() * lanes<int>(p.ld) + lanes<int>(r), 0.0) != lanes<double>(0.0);
    }
    return !any_lane(nonzero);
}

// K (n_problems, n_inputs, n_tokens, d), selected and lengths (n_problems, n_inputs), lengths or null. Out: x (n_problems, d), multipliers
// or Farkas vectors and active rows (n_problems, n_inputs (n_tokens - 1)), the outcome, the residual that proves it, and 1/‖x‖; x and
// active may be null.
KERNEL att_svm(int64_t n_problems, const double *K, const int64_t *selected, const int64_t *lengths, int64_t n_inputs, int64_t n_tokens, int64_t d,
               int64_t warp_doubles, double *x, double *multipliers, bool *active_rows, int64_t *outcomes, double *residuals, double *margins) {
    const int m = (int)(n_inputs * (n_tokens - 1)), ld = m | 1;
    double *memory = warp_memory((int)warp_doubles);
    for (int64_t j = warp_of_grid(); j < n_problems; j += warps_of_grid()) {
        margin_problem p;
        p.K = K + j * n_inputs * n_tokens * d;
        p.selected = selected + j * n_inputs;
        p.lengths = lengths ? lengths + j * n_inputs : nullptr;
        p.n_inputs = (int)n_inputs, p.n_tokens = (int)n_tokens, p.d = (int)d, p.m = m, p.ld = ld;
        p.T = memory, p.tile = p.T + m * ld, p.weights = p.tile + COORDINATES * ld + LANES * ROWS_PER_LANE, p.x = p.weights + m;
        p.loaded = -1;
        gram(p);

        marks_of_lane present, active;
        rows_of_lane inverse_norm, lower, value;
        unsigned outside[ROWS_PER_LANE];
        FOR_ROWS(q) {
            present.v[q] = is_row(p, q);
            if (p.lengths) {
                const lanes<int> in_range = select(present.v[q], row(q), lanes<int>(0));
                const lanes<int> input = in_range / lanes<int>((int)n_tokens - 1), slot = in_range % lanes<int>((int)n_tokens - 1);
                present.v[q] = present.v[q] && slot + lanes<int>(1) < narrow(load(p.lengths, input));
            }
            const lanes<double> square = load_if(present.v[q], p.T, row(q) * lanes<int>(ld + 1), 1.0);
            outside[q] = lane_bits(!(square > lanes<double>(MIN_SQUARED_NORM) && square < lanes<double>(MAX_SQUARED_NORM)));
            inverse_norm.v[q] = select(present.v[q], lanes<double>(1.0) / sqrt(square), lanes<double>(0.0));
            active.v[q] = lanes<bool>(false);
        }
        int outcome = UNVERIFIED, zero_row = -1;
        bool in_range = true;
        for (int r = 0; r < m; ++r) {
            if (!(outside[r / LANES] >> (r % LANES) & 1)) continue;
            if (p.T[r * ld + r] == 0.0 && is_zero_row(p, r)) zero_row = r;
            else in_range = false;
        }
        const double scale = largest(inverse_norm);
        double residual = INFINITE, length = 0.0;
        rows_of_lane weight;
        FOR_ROWS(q) weight.v[q] = 0.0;
        if (in_range && zero_row >= 0) {
            outcome = INFEASIBLE;
            residual = 0.0;
            set_row(zero_row, 1.0, weight);
        } else if (in_range && scale == 0.0) {
            outcome = TRIVIAL;
            residual = 0.0;
            FOR_LANES(c, (int)d) if (x) x[j * d + c] = 0.0;
        } else if (in_range) {
            FOR_ROWS(q) {
                lower.v[q] = inverse_norm.v[q] / lanes<double>(scale);
                value.v[q] = -lower.v[q];
            }
            for (int s = 0; s < m; ++s) {
                const lanes<double> of_column = row_value(inverse_norm, s);
                FOR_ROWS(q) {
                    const lanes<bool> exists = is_row(p, q);
                    const lanes<double> entry = load_if(exists, p.T + s * ld, row(q), 0.0) * (of_column * inverse_norm.v[q]);
                    store_if(exists, p.T + s * ld, row(q), select(row(q) == lanes<int>(s) && present.v[q], lanes<double>(1.0), entry));
                }
            }
            warp_sync();
            if (d >= 2 * m) start_from_all(p, present, active, value);
            for (int round = 0; round < MAX_ROUNDS && outcome == UNVERIFIED; ++round) {
                int new_row;
                const ending end = active_set(p, present, active, value, new_row);
                if (end == GAVE_UP) break;
                rows_of_lane product, change;
                if (end == CONTRADICTION) {  // a_new = Σ c_s a_s with c <= 0: the weights 1 and -c make zero
                    FOR_ROWS(q) {
                        const lanes<double> coefficient = load_if(active.v[q], p.T + new_row * ld, row(q), 0.0);
                        value.v[q] = select(active.v[q], fmax(-coefficient, lanes<double>(0.0)), lanes<double>(0.0));
                    }
                    set_row(new_row, 1.0, value);
                    for (int refinement = 0; refinement < 2; ++refinement) {
                        FOR_ROWS(q) weight.v[q] = value.v[q] * inverse_norm.v[q];
                        residual = sqrt(evaluate(p, weight, product, scale, nullptr)) / total(value);
                        if (residual <= FARKAS_RTOL) break;
                        FOR_ROWS(q) change.v[q] = product.v[q] * inverse_norm.v[q];
                        correct(p, active, change, value);
                        FOR_ROWS(q) value.v[q] = fmax(value.v[q], lanes<double>(0.0));
                    }
                    if (residual <= FARKAS_RTOL) outcome = INFEASIBLE;
                    break;
                }
                for (int refinement = 0; refinement < 2; ++refinement) {
                    rows_of_lane gain, worst;
                    FOR_ROWS(q) weight.v[q] = select(active.v[q], value.v[q] * inverse_norm.v[q], lanes<double>(0.0));
                    const double square = evaluate(p, weight, product, scale, x ? x + j * d : nullptr);
                    length = sqrt(square);
                    FOR_ROWS(q) {  // the residual of `optimality_residual`
                        const lanes<double> multiplier = select(active.v[q], value.v[q], lanes<double>(0.0));
                        change.v[q] = select(present.v[q], fma(product.v[q], inverse_norm.v[q], -lower.v[q]), lanes<double>(0.0));
                        gain.v[q] = multiplier * lower.v[q];
                        worst.v[q] = fmax(-(change.v[q] / lanes<double>(length)), fabs(multiplier * change.v[q]) / lanes<double>(square));
                        product.v[q] = multiplier;
                    }
                    residual = fmax(largest(worst), fabs(square - total(gain)) / square);
                    const double amplified = AMPLIFIED_EPS * total(product) / length;  // what double precision leaves at best
                    if (residual <= fmax(FAST_PATH_RTOL, fmin(VERIFIED_RTOL, amplified)) && square > 0.0) outcome = OPTIMAL;
                    if (outcome == OPTIMAL || refinement == 1) break;
                    correct(p, active, change, value);
                    FOR_ROWS(q) value.v[q] = select(active.v[q], fmax(value.v[q], lanes<double>(0.0)), value.v[q]);
                }
                FOR_ROWS(q) value.v[q] = select(active.v[q], value.v[q], change.v[q]);  // the slack that the rows have
            }
        }
        FOR_ROWS(q) {
            const lanes<bool> exists = is_row(p, q);
            const lanes<double> of_row = weight.v[q] * lanes<double>(outcome == INFEASIBLE ? 1.0 : scale);
            store_if(exists, multipliers + j * m, row(q), of_row);
            if (active_rows && outcome == OPTIMAL) {
                const lanes<double> slack = value.v[q];
                const lanes<bool> near = slack <= fma(lanes<double>(ACTIVE_SLACK_RTOL), lower.v[q], lanes<double>(ROUNDOFF_RTOL * length));
                store_if(exists, active_rows + j * m, row(q), present.v[q] && (near || weight.v[q] > lanes<double>(0.0)));
            } else if (active_rows) store_if(exists, active_rows + j * m, row(q), lanes<bool>(false));
        }
        store_one(outcomes + j, outcome);
        store_one(residuals + j, residual);
        store_one(margins + j, outcome == OPTIMAL || outcome == TRIVIAL ? 1.0 / (scale * length) : 0.0);
        warp_sync();
    }
}
