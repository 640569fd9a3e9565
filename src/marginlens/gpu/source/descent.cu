// Descent on the attention weights p: one warp per problem, all steps in one kernel, exact at any norm.
//
// The functions are those of marginlens/core/pair_weights.h, and the formulas those of its descents. Each input is given a group of GROUP
// lanes; lane s of the group has its tokens s, s + GROUP, …; a group may have several inputs. So logits, scores, weights and coefficients
// of all tokens are in registers, and sums over an input are sums over a group.
//
// Constants, set when it is compiled: N_INPUTS, N_TOKENS; LOSS, a code of pair_weights.h; STEP (0 plain gradient
// descent, 1 normalised, 2 sign, 3 coordinate, 4 ℓp); FORM (0: the state is the coefficients of p over the rows, and the Gram matrix
// stands in for the keys; 1: the state is p); PLACE of the Gram matrix or, for FORM 1, of the keys (0 registers, 1 shared, 2 global
// memory); KEYS_WIDTH, the width of a key for FORM 1; RAGGED (whether inputs have lengths of their own); OFFSETS (whether numbers are
// added to the logits).
#include "warp.h"

#include "../../core/pair_weights.h"
#include "../../core/steps.h"

#ifdef __CUDACC__
#define UNROLL _Pragma("unroll")
DEVICE void load_pair(const double *from, double &first, double &second) {  // an address that 16 divides
    const double2 pair = *reinterpret_cast<const double2 *>(from);
    first = pair.x;
    second = pair.y;
}
#else
#define UNROLL
DEVICE void load_pair(const double *from, double &first, double &second) {
    first = from[0];
    second = from[1];
}
#endif

enum StepKind { GRADIENT, NORMALISED, SIGN, COORDINATE, POWER };
enum StateForm { GRAM, KEYS };
enum MatrixPlace { REGISTERS, SHARED, GLOBAL };
#ifndef KEYS_WIDTH
#define KEYS_WIDTH 1  // which nothing reads
#endif

constexpr int ROWS = N_INPUTS * N_TOKENS;
DEVICE constexpr int power_of_two_up_to(int x) { return x < 2 ? 1 : 2 * power_of_two_up_to(x / 2); }
DEVICE constexpr int power_of_two_from(int x) { return x < 2 ? 1 : 2 * power_of_two_from((x + 1) / 2); }
DEVICE constexpr int smaller(int a, int b) { return a < b ? a : b; }
constexpr int GROUP = smaller(power_of_two_from(N_TOKENS), power_of_two_up_to(LANES / N_INPUTS));
constexpr int GROUPS = LANES / GROUP;
constexpr int INPUT_SLOTS = (N_INPUTS + GROUPS - 1) / GROUPS;
constexpr int TOKEN_SLOTS = (N_TOKENS + GROUP - 1) / GROUP;
constexpr int SLOTS = INPUT_SLOTS * TOKEN_SLOTS;  // tokens of a lane
constexpr int PLACES = LANES * SLOTS;             // tokens of all lanes, those that are none included
constexpr int EVEN_ROWS = ROWS + ROWS % 2;
constexpr int TILE = 8;  // coordinates of the keys that are centred at a time

// Doubles of shared memory that a warp has: a vector over rows, a tile of keys, and what PLACE puts there.
constexpr int KEYS_STRIDE = KEYS_WIDTH | 1;
constexpr int EVEN_WIDTH = KEYS_WIDTH + KEYS_WIDTH % 2;
constexpr int SHARED_KEYS = EVEN_WIDTH + (PLACE == SHARED ? ROWS * KEYS_STRIDE + (ROWS * KEYS_STRIDE) % 2 : 0);
constexpr int SHARED_GRAM = PLACE == SHARED ? ROWS * PLACES : 0;
constexpr int SHARED_DOUBLES = EVEN_ROWS + TILE * EVEN_ROWS + (FORM == GRAM ? SHARED_GRAM : SHARED_KEYS);
constexpr int STATE_SLOTS = FORM == GRAM ? SLOTS : (KEYS_WIDTH + LANES - 1) / LANES;  // entries of the state that a lane has
constexpr int STATE_STRIDE = (FORM == GRAM ? ROWS : KEYS_WIDTH) + 1;

constexpr double NO_SCORE = LOSS <= LINEAR ? 0.0 : 1.0;  // of places without a token: at 1 the weights are zero in every loss
constexpr int EXTREME = 4;  // an ending: keys beyond EXTREME_KEY, which are left to the caller, but for plain steps
constexpr double MODERATE_GAP = 200.0;  // of logits, up to which weights are formed as they are
constexpr double LARGEST_LOG = 320.0;  // about log(LARGEST_WEIGHT): beyond, exponentials would leave the range of the weights

// ---- tokens by lanes

struct Tokens {
    lanes<int> token[TOKEN_SLOTS];    // numbers of the tokens of this lane
    lanes<int> length[INPUT_SLOTS];   // tokens of the inputs of this lane, 0 for an input that is none
    lanes<int> row[SLOTS];            // input · N_TOKENS + token, some row for a token that is none
    lanes<double> score[SLOTS];
};

DEVICE lanes<bool> is_token(const Tokens &tokens, int u, int v) { return tokens.token[v] < tokens.length[u]; }

DEVICE Tokens tokens_of(const double *scores, const int64_t *lengths) {
    Tokens tokens;
    const lanes<int> lane = lane_number();
    UNROLL for (int v = 0; v < TOKEN_SLOTS; ++v) tokens.token[v] = (lane & (GROUP - 1)) + v * GROUP;
    UNROLL for (int u = 0; u < INPUT_SLOTS; ++u) {
        const lanes<int> input = (lane - (lane & (GROUP - 1))) / GROUP + u * GROUPS;
        const lanes<bool> exists = input < N_INPUTS;
        if constexpr (RAGGED) tokens.length[u] = narrow(load_if(exists, lengths, input, 0LL));
        else tokens.length[u] = select(exists, N_TOKENS, 0);
        UNROLL for (int v = 0; v < TOKEN_SLOTS; ++v) {
            const int slot = u * TOKEN_SLOTS + v;
            const lanes<bool> real = exists && tokens.token[v] < N_TOKENS;
            tokens.row[slot] = select(real, input * N_TOKENS + tokens.token[v], 0);
            tokens.score[slot] = load_if(is_token(tokens, u, v), scores, tokens.row[slot], NO_SCORE);
        }
    }
    return tokens;
}

// The entry of x [TOKEN_SLOTS] at token `pivot` of each group, in all of its lanes.
DEVICE lanes<double> at_pivot(const lanes<double> *x, lanes<int> pivot) {
    lanes<double> mine = x[0];
    UNROLL for (int v = 1; v < TOKEN_SLOTS; ++v) mine = select(pivot >= v * GROUP, x[v], mine);
    if (GROUP == 1) return mine;
    const lanes<int> lane = lane_number();
    return shuffle(mine, (lane - (lane & (GROUP - 1))) + (pivot & (GROUP - 1)));
}

// ---- weights

struct Pivots {
    lanes<int> token[INPUT_SLOTS];        // the token with the largest logit, the first where several tie
    lanes<double> score[INPUT_SLOTS];     // its score
    lanes<double> logit[INPUT_SLOTS];     // its logit
};

DEVICE void find_pivots(const Tokens &tokens, const lanes<double> *a, Pivots &pivots) {
    UNROLL for (int u = 0; u < INPUT_SLOTS; ++u) {
        lanes<double> largest = -INF;
        lanes<int> best = 0;
        UNROLL for (int v = 0; v < TOKEN_SLOTS; ++v) {
            const lanes<double> x = a[u * TOKEN_SLOTS + v];
            const lanes<bool> better = is_token(tokens, u, v) && x > largest;
            largest = select(better, x, largest);
            best = select(better, tokens.token[v], best);
        }
        pivots.token[u] = group_argmax<GROUP>(largest, best);
        pivots.logit[u] = largest;
        pivots.score[u] = at_pivot(tokens.score + u * TOKEN_SLOTS, pivots.token[u]);
    }
}

// w with ∇L = e^-shift / n Σ w_it k_it, `scale` being e^-shift: w_t = |ℓ'| s_t (gap_t - δ) for t ≠ α, where gap_t = γ_α - γ_t and
// δ = Σ s_t gap_t; w_α balances the others, whose sum is |ℓ'| s_α δ. Returns the upper half of the largest modulus, which orders moduli,
// that of infinity where an exponential is too large: it may belong to a token whose gap, and with it the modulus, is zero.
DEVICE int direct_weights(
    const Tokens &tokens, const Pivots &pivots, const lanes<double> *a, double shift, double scale, lanes<double> *w) {
    lanes<int> biggest = 0;
    lanes<bool> beyond = false;
    UNROLL for (int u = 0; u < INPUT_SLOTS; ++u) {
        const lanes<int> best = pivots.token[u];
        const lanes<double> top = pivots.logit[u], top_score = pivots.score[u];
        lanes<double> rest = 0.0, gaps = 0.0;
        UNROLL for (int v = 0; v < TOKEN_SLOTS; ++v) {
            const int slot = u * TOKEN_SLOTS + v;
            const lanes<bool> other = is_token(tokens, u, v) && tokens.token[v] != best;
            const lanes<double> x = (a[slot] - top) + shift;
            const lanes<double> e = select(other, exp_of_nonpositive(x), 0.0);
            beyond = beyond || (other && x > LARGEST_LOG);
            w[slot] = e;
            rest = rest + e;
            gaps = fma(e, top_score - tokens.score[slot], gaps);
        }
        const lanes<double> share = quotient(lanes<double>(1.0), fma(group_sum<GROUP>(rest), scale, lanes<double>(1.0)));
        const lanes<double> shifted_delta = group_sum<GROUP>(gaps) * share, delta = shifted_delta * scale;
        lanes<double> factor = share;
        if constexpr (LOSS <= LINEAR) factor = share * slope(LOSS, top_score - delta);
        else factor = share * slope_with_poles(LOSS, top_score, delta);
        UNROLL for (int v = 0; v < TOKEN_SLOTS; ++v) {
            const int slot = u * TOKEN_SLOTS + v;
            const lanes<double> x = w[slot] * (factor * ((top_score - tokens.score[slot]) - delta));
            biggest = max(biggest, high_word(x) & 0x7fffffff);
            w[slot] = select(is_token(tokens, u, v) && tokens.token[v] == best, -(factor * shifted_delta), x);
        }
    }
    return warp_max(select(beyond, lanes<int>(0x7ff00000), biggest));
}

DEVICE bool is_moderate(int biggest) { return biggest > high_word(larger(SQUARABLE, smallest_direct(LOSS))) && biggest < high_word(LARGEST_WEIGHT); }

// How far below the pivot the nearest token with another score is, over all inputs; -∞ where there is none.
DEVICE double nearest_gap(const Tokens &tokens, const Pivots &pivots, const lanes<double> *a) {
    lanes<double> nearest = -INF;
    UNROLL for (int u = 0; u < INPUT_SLOTS; ++u) {
        const lanes<double> top = pivots.logit[u];
        UNROLL for (int v = 0; v < TOKEN_SLOTS; ++v) {
            const int slot = u * TOKEN_SLOTS + v;
            const lanes<bool> other = is_token(tokens, u, v) && tokens.score[slot] != pivots.score[u];
            nearest = select(other, fmax(nearest, a[slot] - top), nearest);
        }
    }
    return warp_max(nearest);
}

DEVICE lanes<bool> is_row(const Tokens &tokens, int slot) {
    return tokens.length[slot / TOKEN_SLOTS] > 0 && tokens.token[slot % TOKEN_SLOTS] < N_TOKENS;
}

DEVICE void spread(const Tokens &tokens, const lanes<double> *x, double *vector) {  // x by lanes into a vector over rows
    warp_sync();
    UNROLL for (int slot = 0; slot < SLOTS; ++slot) store_if(is_row(tokens, slot), vector, tokens.row[slot], x[slot]);
    warp_sync();
}

// Which entry of the state, coefficients over the rows or p, is number j of a lane, and whether it is one.
DEVICE lanes<int> state_place(const Tokens &tokens, int j) {
    if constexpr (FORM == GRAM) return tokens.row[j];
    else return lane_number() + j * LANES;
}
DEVICE lanes<bool> is_state(const Tokens &tokens, int j) {
    if constexpr (FORM == GRAM) return is_row(tokens, j);
    else return lane_number() + j * LANES < KEYS_WIDTH;
}
DEVICE void store_state(const Tokens &tokens, const lanes<double> *x, double *to) {
    UNROLL for (int j = 0; j < STATE_SLOTS; ++j) store_if(is_state(tokens, j), to, state_place(tokens, j), x[j]);
}

// The same weights relative to the largest, from logarithms, an input a lane; returns the logarithm of the largest. `memory` is room for
// 4 EVEN_ROWS + 2 N_INPUTS numbers.
DEVICE double log_weights(const Tokens &tokens, const lanes<double> *a, double *memory, lanes<double> *w) {
    double *logits = memory, *scores = logits + EVEN_ROWS, *logs = scores + EVEN_ROWS, *weights = logs + EVEN_ROWS;
    double *lengths = weights + EVEN_ROWS, *of_input = lengths + N_INPUTS, largest = -INF;
    spread(tokens, a, logits);
    spread(tokens, tokens.score, scores);
    UNROLL for (int u = 0; u < INPUT_SLOTS; ++u)
        store_if(tokens.token[0] == 0 && tokens.length[u] > 0, lengths, tokens.row[u * TOKEN_SLOTS] / N_TOKENS, real(tokens.length[u]));
    warp_sync();
    FOR_LANES(i, N_INPUTS) {
        const int k = i * N_TOKENS;
        of_input[i] = logs_of_weights(logits + k, scores + k, (Index)lengths[i], N_TOKENS, LOSS, logs + k, weights + k);
    }
    warp_sync();
    ROLLED for (int i = 0; i < N_INPUTS; ++i) largest = larger(largest, of_input[i]);
    FOR_LANES(i, N_INPUTS) {
        const int k = i * N_TOKENS;
        weights_of_logs(logits + k, (Index)lengths[i], N_TOKENS, logs + k, largest, weights + k);
    }
    warp_sync();
    UNROLL for (int u = 0; u < INPUT_SLOTS; ++u) UNROLL for (int v = 0; v < TOKEN_SLOTS; ++v)
        w[u * TOKEN_SLOTS + v] = load_if(is_token(tokens, u, v), weights, tokens.row[u * TOKEN_SLOTS + v], 0.0);
    return largest;
}

struct Shift {  // weights are formed as e^shift times what they are, so that the largest is in range
    double shift, scale;  // scale = e^-shift
};

// Weights at the logits `a`, and the logarithm of their scale. The pivot of the step before serves as long as it is the first largest.
DEVICE double pair_weights(const Tokens &tokens, const lanes<double> *a, double *memory, Pivots &pivots, Shift &by, lanes<double> *w) {
    lanes<bool> higher = false;
    UNROLL for (int u = 0; u < INPUT_SLOTS; ++u) {
        pivots.logit[u] = at_pivot(a + u * TOKEN_SLOTS, pivots.token[u]);
        UNROLL for (int v = 0; v < TOKEN_SLOTS; ++v) {
            const lanes<double> x = a[u * TOKEN_SLOTS + v];
            const lanes<bool> comes_first = x == pivots.logit[u] && tokens.token[v] < pivots.token[u];
            higher = higher || (is_token(tokens, u, v) && (x > pivots.logit[u] || comes_first));
        }
    }
    if (any_lane(higher)) find_pivots(tokens, a, pivots);
    if (is_moderate(direct_weights(tokens, pivots, a, by.shift, by.scale, w))) return -by.shift;
    const double nearest = nearest_gap(tokens, pivots, a);
    by.shift = LOSS <= LINEAR && nearest < -MODERATE_GAP && is_finite(nearest) ? -nearest : 0.0;
    by.scale = exp(-by.shift);
    if (is_moderate(direct_weights(tokens, pivots, a, by.shift, by.scale, w))) return -by.shift;
    return log_weights(tokens, a, memory, w);
}

// ---- products

#if FORM == KEYS && defined(__CUDACC__)
#define COMBINATION_LOOP _Pragma("unroll 6")
#else
#define COMBINATION_LOOP ROLLED
#endif

// Σ_r vector[r] rows[r][k] for coordinates k of all lanes, which are below `width`.
DEVICE lanes<double> combination(const double *vector, const double *rows, int stride, lanes<int> k, lanes<bool> inside) {
    const lanes<int> at = select(inside, k, 0);
    lanes<double> even = 0.0, odd = 0.0;
    COMBINATION_LOOP for (int r = 0; r + 1 < ROWS; r += 2) {
        even = fma(load(rows + (int64_t)r * stride, at), vector[r], even);
        odd = fma(load(rows + (int64_t)(r + 1) * stride, at), vector[r + 1], odd);
    }
    if (ROWS % 2) even = fma(load(rows + (int64_t)(ROWS - 1) * stride, at), vector[ROWS - 1], even);
    return select(inside, even + odd, 0.0);
}

// ‖Σ_r vector[r] rows[r]‖ without overflow or underflow.
DEVICE double combined_length(const double *vector, const double *rows, int stride, int width) {
    lanes<double> largest = 0.0, squares = 0.0;
    ROLLED for (int k = 0; k < width; k += LANES)
        largest = fmax(largest, fabs(combination(vector, rows, stride, lane_number() + k, lane_number() + k < width)));
    const double size = warp_max(largest);
    if (size == 0.0 || !is_finite(size)) return size;
    ROLLED for (int k = 0; k < width; k += LANES) {
        const lanes<double> x = combination(vector, rows, stride, lane_number() + k, lane_number() + k < width) / size;
        squares = fma(x, x, squares);
    }
    return size * sqrt(warp_sum(squares));
}

struct Problem {
    Tokens tokens;
    const double *rows;    // centred keys, ROWS × stride
    int stride, width;
    double *vector;        // over rows
    lanes<double> gram_row[PLACE == REGISTERS ? EVEN_ROWS : 2];  // of this lane's token
    double *gram;          // ROWS × PLACES, for other places
    double *direction;     // over coordinates, for FORM KEYS
    double *columns;       // KEYS_WIDTH × PLACES, for PLACE GLOBAL of the keys
};

// h = G x for the vector x that was spread.
DEVICE void gram_product(const Problem &problem, lanes<double> *h) {
    if constexpr (PLACE == REGISTERS) {
        lanes<double> sums[4] = {0.0, 0.0, 0.0, 0.0};
        UNROLL for (int r = 0; r < EVEN_ROWS; r += 2) {
            double first, second;
            load_pair(problem.vector + r, first, second);
            sums[r % 4] = fma(problem.gram_row[r], first, sums[r % 4]);
            sums[r % 4 + 1] = fma(problem.gram_row[r + 1], second, sums[r % 4 + 1]);
        }
        h[0] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
        return;
    }
    const lanes<int> lane = lane_number();
    UNROLL for (int slot = 0; slot < SLOTS; ++slot) h[slot] = 0.0;
    for (int r = 0; r < ROWS; ++r) {
        const double x = problem.vector[r];
        const double *row = problem.gram + r * PLACES;
        UNROLL for (int slot = 0; slot < SLOTS; ++slot) h[slot] = fma(load(row + slot * LANES, lane), x, h[slot]);
    }
}

// 1 / ‖Σ_r w_r k_r‖ for the weights w that were spread and h = G w, -1 where that is zero; 1 where it is not zero and not asked for.
DEVICE double inverse_length(const Problem &problem, const lanes<double> *w, const lanes<double> *h) {
    lanes<double> products = 0.0;
    lanes<int> moduli = 0;
    UNROLL for (int slot = 0; slot < SLOTS; ++slot) {
        const lanes<double> product = w[slot] * h[slot];
        products = products + product;
        moduli = max(moduli, high_word(product) & 0x7fffffff);
    }
    const double square = warp_sum(products), size_bound = ROWS * next_above(warp_max(moduli));
    if (square > CANCELLED_SHARE * size_bound && 1e-280 < square && square < 1e280) return STEP == NORMALISED ? reciprocal_root(square) : 1.0;
    if (STEP != NORMALISED && square > 0.0) return 1.0;
    const double reach = combined_length(problem.vector, problem.rows, problem.stride, problem.width);  // the Gram matrix has cancelled
    return reach == 0.0 ? -1.0 : 1.0 / reach;
}

// h = K s for the direction s that was stored.
DEVICE void key_product(const Problem &problem, lanes<double> *h) {
    UNROLL for (int slot = 0; slot < SLOTS; ++slot) {
        const double *keys = PLACE == GLOBAL ? problem.columns + slot * LANES : problem.rows;
        const lanes<int> at = PLACE == GLOBAL ? lane_number() : problem.tokens.row[slot] * KEYS_STRIDE;
        constexpr int64_t next = PLACE == GLOBAL ? PLACES : 1;
        lanes<double> even = 0.0, odd = 0.0;
        for (int k = 0; k + 1 < KEYS_WIDTH; k += 2) {
            even = fma(load(keys + k * next, at), problem.direction[k], even);
            odd = fma(load(keys + (k + 1) * next, at), problem.direction[k + 1], odd);
        }
        if (KEYS_WIDTH % 2) even = fma(load(keys + (KEYS_WIDTH - 1) * next, at), problem.direction[KEYS_WIDTH - 1], even);
        h[slot] = even + odd;
    }
}

// s = the steepest direction of the gradient Σ_r w_r k_r, w having been spread, in lanes and in `problem.direction`; returns the
// length of the gradient for plain and normalised steps, else its largest modulus.
DEVICE double steepest(const Problem &problem, double power, lanes<double> *s) {
    const lanes<int> lane = lane_number();
    lanes<double> squares = 0.0, largest = 0.0;
    UNROLL for (int j = 0; j < STATE_SLOTS; ++j) {
        const lanes<int> k = lane + j * LANES;
        s[j] = combination(problem.vector, problem.rows, problem.stride, k, k < KEYS_WIDTH);
        squares = fma(s[j], s[j], squares);
        largest = fmax(largest, fabs(s[j]));
    }
    double size;
    if constexpr (STEP == GRADIENT || STEP == NORMALISED) {
        const double square = warp_sum(squares);
        const bool is_in_range = 1e-280 < square && square < 1e280;
        size = is_in_range ? sqrt(square) : combined_length(problem.vector, problem.rows, problem.stride, KEYS_WIDTH);
    } else {
        size = warp_max(largest);
    }
    if constexpr (STEP == SIGN) {
        UNROLL for (int j = 0; j < STATE_SLOTS; ++j) s[j] = select(s[j] > 0.0, 1.0, select(s[j] < 0.0, lanes<double>(-1.0), 0.0));
    } else if constexpr (STEP == COORDINATE) {
        lanes<int> first = KEYS_WIDTH;  // the first of those that are as large as the largest, whichever way sums were rounded
        UNROLL for (int j = 0; j < STATE_SLOTS; ++j) {
            const lanes<int> k = lane + j * LANES;
            first = select(k < KEYS_WIDTH && fabs(s[j]) >= (1.0 - TIE_RTOL) * size, min(first, k), first);
        }
        const int chosen = -warp_max(-first);
        UNROLL for (int j = 0; j < STATE_SLOTS; ++j)
            s[j] = select(lane + j * LANES == chosen && size > 0.0, select(s[j] > 0.0, 1.0, lanes<double>(-1.0)), 0.0);
    } else if constexpr (STEP == POWER) {
        if (size > 0.0) {
            const double exponent = 1.0 / (power - 1.0);
            lanes<double> total = 0.0;
            UNROLL for (int j = 0; j < STATE_SLOTS; ++j) {
                const lanes<double> share = fabs(s[j]) / size;
                const lanes<double> entry = exponent == 1.0 ? share : exponent == 0.5 ? sqrt(share) : pow(share, exponent);
                total = fma(share, entry, total);
                s[j] = select(s[j] > 0.0, entry, -entry);
            }
            const double sum = warp_sum(total);
            const double length = exponent == 1.0 ? sqrt(sum) : pow(sum, 1.0 / power);
            UNROLL for (int j = 0; j < STATE_SLOTS; ++j) s[j] = s[j] / length;
        }
    }
    warp_sync();
    store_state(problem.tokens, s, problem.direction);
    warp_sync();
    return size;
}

// ---- the kernel

// What is added to the logit of a token.
DEVICE lanes<double> offset_of(const Tokens &tokens, int slot, const double *offsets) {
    return load_if(is_token(tokens, slot / TOKEN_SLOTS, slot % TOKEN_SLOTS), offsets, tokens.row[slot], 0.0);
}

// Centred keys into `rows` (and by columns), the Gram matrix, and the logits of the start; returns the largest modulus of a centred key.
DEVICE double prepare(
    Problem &problem, const double *keys, const int64_t *lengths, const double *offsets, const double *start, double *tile, double *rows,
    lanes<double> *first) {
    const lanes<int> lane = lane_number();
    const int width = problem.width;
    UNROLL for (int slot = 0; slot < SLOTS; ++slot) first[slot] = OFFSETS ? offset_of(problem.tokens, slot, offsets) : lanes<double>(0.0);
    if constexpr (PLACE == REGISTERS) {
        UNROLL for (int r = 0; r < EVEN_ROWS; ++r) problem.gram_row[r] = 0.0;
    } else if constexpr (FORM == GRAM) {
        for (int k = 0; k < ROWS * PLACES; k += LANES) store(problem.gram + k, lane, 0.0);
    }
    lanes<double> largest = 0.0;
    ROLLED for (int begin = 0; begin < width; begin += TILE) {
        warp_sync();
        ROLLED for (int base = 0; base < TILE * ROWS; base += LANES) {
            const lanes<int> at = base + lane;
            const lanes<int> row = at / TILE, k = at % TILE;
            const lanes<bool> inside = at < TILE * ROWS && begin + k < width;
            const lanes<double> key = load_if(inside, keys, row * width + (begin + k), 0.0);
            store_if(at < TILE * ROWS, tile, k * EVEN_ROWS + row, key);
        }
        if (ROWS % 2) store_if(lane < TILE, tile, lane * EVEN_ROWS + ROWS, lanes<double>(0.0));
        warp_sync();
        ROLLED for (int base = 0; base < TILE * N_INPUTS; base += LANES) {
            const lanes<int> at = base + lane;
            const lanes<bool> inside = at < TILE * N_INPUTS;
            const lanes<int> input = select(inside, at / TILE, 0), k = at % TILE;
            const lanes<int> place = k * EVEN_ROWS + input * N_TOKENS;
            lanes<int> length = N_TOKENS;
            if constexpr (RAGGED) length = narrow(load(lengths, input));
            lanes<double> mean = 0.0;
            ROLLED for (int t = 0; t < N_TOKENS; ++t) mean = mean + select(t < length, load_if(inside, tile, place + t, 0.0), 0.0);
            mean = mean / real(length);
            ROLLED for (int t = 0; t < N_TOKENS; ++t) {
                const lanes<double> key = select(t < length, load_if(inside, tile, place + t, 0.0) - mean, 0.0);
                store_if(inside, tile, place + t, key);
                largest = fmax(largest, fabs(key));
            }
        }
        warp_sync();
        ROLLED for (int base = 0; base < TILE * ROWS; base += LANES) {
            const lanes<int> at = base + lane;
            const lanes<int> row = at / TILE, k = at % TILE;
            const lanes<bool> inside = at < TILE * ROWS && begin + k < width;
            store_if(inside, rows, row * problem.stride + (begin + k), load_if(inside, tile, k * EVEN_ROWS + row, 0.0));
        }
        ROLLED for (int k = 0; k < TILE; ++k) {
            if (begin + k >= width) break;
            const double *column = tile + k * EVEN_ROWS;
            const double point = start == nullptr ? 0.0 : start[begin + k];
            UNROLL for (int slot = 0; slot < SLOTS; ++slot) {
                const lanes<double> x = load(column, problem.tokens.row[slot]);
                first[slot] = fma(x, point, first[slot]);
                if constexpr (PLACE == REGISTERS) {
                    UNROLL for (int r = 0; r < EVEN_ROWS; r += 2) {
                        double one_entry, next_entry;
                        load_pair(column + r, one_entry, next_entry);
                        problem.gram_row[r] = fma(x, one_entry, problem.gram_row[r]);
                        problem.gram_row[r + 1] = fma(x, next_entry, problem.gram_row[r + 1]);
                    }
                }
                if constexpr (FORM == KEYS && PLACE == GLOBAL)
                    store(problem.columns + (int64_t)(begin + k) * PLACES + slot * LANES, lane, x);
            }
        }
        UNROLL for (int slot = 0; FORM == GRAM && PLACE != REGISTERS && slot < SLOTS; ++slot) {
            lanes<double> x[TILE];
            UNROLL for (int k = 0; k < TILE; ++k) x[k] = load(tile + k * EVEN_ROWS, problem.tokens.row[slot]);
            for (int r = 0; r < ROWS; ++r) {
                lanes<double> sum = load(problem.gram + r * PLACES + slot * LANES, lane);
                UNROLL for (int k = 0; k < TILE; ++k) sum = fma(x[k], tile[k * EVEN_ROWS + r], sum);
                store(problem.gram + r * PLACES + slot * LANES, lane, sum);
            }
        }
    }
    warp_sync();
    return warp_max(largest);
}

// p of a state into `out`.
DEVICE void write_point(const Problem &problem, const lanes<double> *state, const double *start, double *out) {
    if constexpr (FORM == KEYS) return store_state(problem.tokens, state, out);
    spread(problem.tokens, state, problem.vector);
    ROLLED for (int begin = 0; begin < problem.width; begin += LANES) {
        const lanes<int> k = lane_number() + begin;
        const lanes<bool> inside = k < problem.width;
        lanes<double> x = combination(problem.vector, problem.rows, problem.stride, k, inside);
        if (start != nullptr) x = x + load_if(inside, start, k, 0.0);
        store_if(inside, out, k, x);
    }
}

// The selected tokens at logits `a`, and the mean of their attention over the inputs.
DEVICE void write_selection(const Tokens &tokens, const lanes<double> *a, int64_t *selected, double *attention) {
    const lanes<int> lane = lane_number();
    Pivots pivots;
    find_pivots(tokens, a, pivots);
    lanes<double> sum = 0.0;
    UNROLL for (int u = 0; u < INPUT_SLOTS; ++u) {
        const lanes<double> top = pivots.logit[u];
        lanes<double> rest = 0.0;
        UNROLL for (int v = 0; v < TOKEN_SLOTS; ++v) {
            const lanes<bool> other = is_token(tokens, u, v) && tokens.token[v] != pivots.token[u];
            rest = rest + select(other, exp(a[u * TOKEN_SLOTS + v] - top), 0.0);
        }
        rest = group_sum<GROUP>(rest);
        const lanes<bool> writes = (lane & (GROUP - 1)) == 0 && tokens.length[u] > 0;
        const lanes<int> input = (lane - (lane & (GROUP - 1))) / GROUP + u * GROUPS;
        sum = sum + select(writes, 1.0 / (1.0 + rest), 0.0);
        if (selected != nullptr) store_if(writes, selected, input, widen(pivots.token[u]));
    }
    const double mean = warp_sum(sum) / N_INPUTS;
    if (attention != nullptr) store_one(attention, mean);
}

// Steps ends[b][1] … stop - 1 of every problem b.
//
// keys (n_data, ROWS, width), scores (n_data, ROWS), lengths (n_data, N_INPUTS) and offsets (n_data, ROWS) of problem b are those at
// b % n_data; lengths or offsets are null where the constants say that there are none; start is (n_problems, width), or null for zero; sizes of steps `begin`, begin + 1, …, or null where all are `size`; power: p of ℓp; `end`: the
// last step of the run, `save` (n_saved,): increasing steps after which p is written to out (n_problems, n_saved, width). States
// (n_problems, ROWS or width, and the shift of the weights) and logits (n_problems, ROWS) are carried from call to call, bit by bit, or
// null where one call takes all steps;
// ends (n_problems, 2): how each run ended and the steps it has taken. After the last step: selected (n_problems, N_INPUTS) and the
// mean attention of the selected tokens (n_problems,), where not null. scratch: SCRATCH doubles for each warp of the grid.
KERNEL descend_problems(
    int64_t n_problems, int64_t n_data, const double *keys, const double *scores, const int64_t *lengths, const double *offsets, const double *start,
    int64_t width, const double *sizes, double size, double power, int64_t begin, int64_t stop, int64_t end, const int64_t *save, int64_t n_saved,
    double *states, double *logits, int64_t *ends, double *out, int64_t *selected, double *attention, double *scratch,
    int64_t scratch_doubles) {
    double *memory = warp_memory(SHARED_DOUBLES);
    double *tile = memory + EVEN_ROWS;
    double *matrix = tile + TILE * EVEN_ROWS;
    double *global_memory = scratch + warp_of_grid() * scratch_doubles;
    for (int64_t b = warp_of_grid(); b < n_problems; b += warps_of_grid()) {
        const int64_t data = b % n_data;
        const double *from = start == nullptr ? nullptr : start + b * width;
        const int64_t *length = lengths == nullptr ? nullptr : lengths + data * N_INPUTS;
        const double *added = OFFSETS ? offsets + data * ROWS : nullptr;
        Problem problem;
        problem.tokens = tokens_of(scores + data * ROWS, length);
        const Tokens &tokens = problem.tokens;
        problem.vector = memory;
        problem.width = (int)width;
        warp_sync();
        if (ROWS % 2) store_one(memory + ROWS, 0.0);
        problem.direction = matrix;
        problem.columns = global_memory + (int64_t)ROWS * width;
        problem.gram = PLACE == SHARED ? matrix : problem.columns;
        constexpr bool keys_are_shared = FORM == KEYS && PLACE == SHARED;
        double *rows = keys_are_shared ? matrix + EVEN_WIDTH : global_memory;
        problem.stride = keys_are_shared ? KEYS_STRIDE : (int)width;
        problem.rows = rows;
        lanes<double> first[SLOTS], a[SLOTS], w[SLOTS], h[SLOTS], state[STATE_SLOTS], direction[STATE_SLOTS];
        const double largest = prepare(problem, keys + data * ROWS * width, length, added, from, tile, rows, first);
        int status = (int)ends[2 * b];
        int taken = (int)ends[2 * b + 1];
        if (taken == 0) {
            status = RAN_ALL;
            lanes<bool> finite = true;
            UNROLL for (int slot = 0; slot < SLOTS; ++slot) {
                a[slot] = first[slot];
                finite = finite && is_finite(a[slot]);
            }
            if (!all_lanes(finite)) status = NON_FINITE;
            const bool moderate = 1.0 / EXTREME_KEY < largest && largest < EXTREME_KEY;
            if (STEP != GRADIENT && largest > 0.0 && !moderate) status = EXTREME;
            UNROLL for (int j = 0; j < STATE_SLOTS; ++j) {
                state[j] = 0.0;
                if (FORM == KEYS && from != nullptr) state[j] = load_if(is_state(tokens, j), from, state_place(tokens, j), 0.0);
            }
        } else {
            UNROLL for (int slot = 0; slot < SLOTS; ++slot) a[slot] = load(logits + b * ROWS, tokens.row[slot]);
            UNROLL for (int j = 0; j < STATE_SLOTS; ++j)
                state[j] = load_if(is_state(tokens, j), states + b * STATE_STRIDE, state_place(tokens, j), 0.0);
        }
        int saved = 0;
        ROLLED while (saved < n_saved && save[saved] < taken) ++saved;
        Pivots pivots;
        find_pivots(tokens, a, pivots);
        Shift by = {0.0, 1.0};
        if (taken > 0) {
            by.shift = states[b * STATE_STRIDE + STATE_STRIDE - 1];
            by.scale = exp(-by.shift);
        }
        while (status == RAN_ALL && taken < stop) {
            for (; saved < n_saved && save[saved] == taken; ++saved)
                write_point(problem, state, from, out + (b * n_saved + saved) * width);
            const double log_scale = pair_weights(tokens, a, tile, pivots, by, w);
            const double eta = sizes == nullptr ? size : sizes[taken - begin];
            spread(tokens, w, problem.vector);
            double move = STEP == GRADIENT ? eta * exp(log_scale) / N_INPUTS : eta;
            bool is_zero;
            if constexpr (FORM == GRAM) {
                gram_product(problem, h);
                UNROLL for (int slot = 0; slot < SLOTS; ++slot) direction[slot] = w[slot];
                const double inverse = inverse_length(problem, w, h);
                if (STEP == NORMALISED) move = eta * inverse;
                is_zero = inverse < 0.0;
            } else {
                const double reach = steepest(problem, power, direction);
                key_product(problem, h);
                if (STEP == NORMALISED) move = eta / reach;
                is_zero = reach == 0.0;
            }
            if (is_zero) {
                status = STATIONARY;
                break;
            }
            lanes<bool> finite = true;
            UNROLL for (int j = 0; j < STATE_SLOTS; ++j) {
                direction[j] = fma(-move, direction[j], state[j]);  // the next state
                finite = finite && is_finite(direction[j]);
            }
            if ((taken + 1) % RESYNC == 0) {
                warp_sync();
                store_state(tokens, direction, FORM == GRAM ? problem.vector : problem.direction);
                warp_sync();
                if constexpr (FORM == GRAM) gram_product(problem, h);
                else key_product(problem, h);
                UNROLL for (int slot = 0; FORM == GRAM && slot < SLOTS; ++slot) h[slot] = h[slot] + first[slot];
                UNROLL for (int slot = 0; FORM == KEYS && OFFSETS && slot < SLOTS; ++slot) h[slot] = h[slot] + offset_of(tokens, slot, added);
            } else {
                UNROLL for (int slot = 0; slot < SLOTS; ++slot) h[slot] = fma(-move, h[slot], a[slot]);
            }
            UNROLL for (int slot = 0; slot < SLOTS; ++slot) finite = finite && is_finite(h[slot]);
            if (!all_lanes(finite)) {
                status = NON_FINITE;
                break;
            }
            UNROLL for (int slot = 0; slot < SLOTS; ++slot) a[slot] = h[slot];
            UNROLL for (int j = 0; j < STATE_SLOTS; ++j) state[j] = direction[j];
            ++taken;
        }
        if (status != RAN_ALL || taken == end) {
            for (; saved < n_saved; ++saved) write_point(problem, state, from, out + (b * n_saved + saved) * width);
            write_selection(
                tokens, a, selected == nullptr ? nullptr : selected + b * N_INPUTS, attention == nullptr ? nullptr : attention + b);
        }
        store_one(ends + 2 * b, (int64_t)status);
        store_one(ends + 2 * b + 1, (int64_t)taken);
        if (states != nullptr) {
            store_one(states + b * STATE_STRIDE + STATE_STRIDE - 1, by.shift);
            UNROLL for (int slot = 0; slot < SLOTS; ++slot) store_if(is_row(tokens, slot), logits + b * ROWS, tokens.row[slot], a[slot]);
            store_state(tokens, state, states + b * STATE_STRIDE);
        }
    }
}
