// Gradient descent on p for one problem at a time, exact at any norm, cost per step independent of d.
//
// Three facts carry it. Gradients are formed pairwise, so nothing cancels when the softmax saturates. Weights that would underflow are
// formed from logarithms relative to the largest. And p moves in the span of the keys, so the state is either p itself (when d is small)
// or its coefficients over the n·T keys with the Gram matrix standing in for the keys.
#pragma once
#include "gradient_coefficients.h"
#include "linear_algebra.h"
#include "room.h"
#include "steps.h"

constexpr double EXTREME_KEY = 1e60;  // keys beyond, or whose inverses are, are rescaled: no product of two keys and a weight leaves the range

// One problem: keys (n_inputs, n_tokens, d), scores (n_inputs, n_tokens) and lengths (n_inputs,).
struct TokenProblem {
    const double *keys, *scores;
    const int64_t *lengths;
    int64_t n_inputs, n_tokens, d;
};

// Where a run stands: its state (width,), logits (n_places,), how it ended and the steps it has taken.
struct AttentionRun {
    double *state, *logits;
    int64_t width;
    int64_t *end, *taken;
};

// Arrays that serve one problem after the other: centred keys (d, n_places), their Gram matrix where the state is coefficients, and vectors.
struct AttentionRoom {
    double *columns, *gram, *means, *origin, *first_logits, *scores, *state, *logits, *gradient, *w, *h, *slopes, *logs;

    AttentionRoom(Room &room, const TokenProblem &p, int64_t width) {
        const int64_t m = n_places(p.n_inputs, p.n_tokens), size = larger(m, whole_lanes(p.d));
        columns = room.doubles(p.d * m);
        gram = width == m ? room.doubles(m * m) : nullptr;
        means = room.doubles(N_LANES * p.d);
        double **vectors[] = {&origin, &first_logits, &scores, &state, &logits, &gradient, &w, &h};
        for (double **vector : vectors) *vector = room.doubles(size);
        slopes = room.doubles(ROOM_PER_INPUT * whole_lanes(p.n_inputs));
        logs = room.doubles(4 * p.n_inputs * p.n_tokens);
    }
};

// The power of two next to the largest entry of extreme keys; 1 for others, and where scaling would round start or step.
static inline double key_unit(const double *columns, int64_t n_entries, const double *start, int64_t d, double step) {
    const double size = largest_modulus(columns, n_entries);
    if (size == 0.0 || !is_finite(size) || (1.0 / EXTREME_KEY < size && size < EXTREME_KEY)) return 1.0;
    const double unit = scale_of(smaller(larger(exponent_of(size), (int64_t)-1022), (int64_t)1022));
    bool exact = step * unit / unit == step;
    for (int64_t k = 0; k < d; k++) exact = exact && start[k] * unit / unit == start[k];
    return exact ? unit : 1.0;
}

// The descent on one problem, whose arrays are in the order of places.
struct AttentionDescent {
    const TokenProblem &problem;
    const AttentionRoom &room;
    int64_t m;
    bool in_keys;  // the state is p, and not coefficients
    double unit = 1.0;

    // p of a state, in the caller's units.
    void write(const double *state, double *out) const {
        const int64_t d = problem.d;
        if (!in_keys) inner_products(room.columns, d, m, state, out);
        for (int64_t k = 0; k < d; k++) out[k] = (in_keys ? state[k] : out[k] + room.origin[k]) / unit;
    }

    // The length of Σ w_k k_k, from the keys.
    double norm_of_combination() const {
        inner_products(room.columns, problem.d, m, room.w, room.gradient);
        return norm(room.gradient, problem.d);
    }

    // The length of the gradient, relative to which its weights are, and in `room.h` its inner products with the keys.
    double gradient_length(bool normalized) const {
        double square, size = 0.0;
        if (in_keys) {
            inner_products(room.columns, problem.d, m, room.w, room.gradient);
            combine(room.columns, problem.d, m, room.gradient, room.h);
            square = square_of(room.gradient, problem.d);
        } else {
            combine(room.gram, m, m, room.w, room.h);
            square = dot_and_size(room.w, room.h, m, &size);
        }
        if (square > 1e-6 * size && 1e-280 < square && square < 1e280) return square_root(square);
        return normalized || !(square > 0.0) ? norm_of_combination() : 1.0;  // the Gram matrix has cancelled
    }

    // Steps from `taken` on, which move the state and the logits; returns how it ended.
    int64_t take_steps(const StepRule &rule, const Steps &steps, const AttentionRun &run, double *out) {
        const int64_t n = problem.n_inputs, T = problem.n_tokens;
        const double *gains = in_keys ? room.columns : room.gram;  // turns states into changes of logits
        double *state = run.state, *a = run.logits, *state_next = room.state, *a_next = room.logits;
        for (int64_t k = 0; k < ROOM_PER_INPUT * whole_lanes(n); k++) room.slopes[k] = NOT_A_NUMBER;
        int64_t saved = 0, step = *run.taken, end = RAN_ALL;
        while (saved < steps.n_saved && steps.save[saved] < step) saved++;
        for (; step < steps.stop; step++) {
            for (; saved < steps.n_saved && steps.save[saved] == step; saved++) write(state, out + saved * problem.d);
            const double log_scale =
                weights_of_places(a, room.scores, problem.lengths, n, T, rule.loss, room.slopes, room.logs, room.w);
            const double reach = gradient_length(rule.normalized);
            if (reach == 0.0) {
                end = STATIONARY;
                break;
            }
            const double move = rule.normalized ? rule.step / reach : rule.step * exp(log_scale) / (double)n;
            bool finite = subtract(state, move, in_keys ? room.gradient : room.w, run.width, state_next);
            if ((step + 1) % RESYNC == 0) {
                combine(gains, run.width, m, state_next, a_next);
                finite = subtract(room.first_logits, -1.0, a_next, m, a_next) && finite;
            } else {
                finite = subtract(a, move, room.h, m, a_next) && finite;
            }
            if (!finite) {
                end = NON_FINITE;
                break;
            }
            double *former = state;
            state = state_next, state_next = former;
            former = a, a = a_next, a_next = former;
        }
        if (state != run.state) {  // an odd number of steps: what the caller sees is the former state
            for (int64_t k = 0; k < run.width; k++) run.state[k] = state[k];
            for (int64_t k = 0; k < m; k++) run.logits[k] = a[k];
        }
        *run.taken = step;
        return end;
    }
};

// Take steps of one problem, from where `run` says it is; p at the kept steps is written into `out` (n_saved, d). `has_gram` says whether
// the Gram matrix in the room is that of this problem.
static inline void descend_attention(
    const TokenProblem &problem, const double *start, const StepRule &rule, const Steps &steps, const AttentionRun &run,
    const AttentionRoom &room, bool has_gram, double *out) {
    const int64_t n = problem.n_inputs, T = problem.n_tokens, d = problem.d, m = n_places(n, T);
    AttentionDescent descent{problem, room, m, run.width != m};
    centred_columns(problem.keys, problem.lengths, n, T, d, room.means, room.columns);
    if (rule.normalized) descent.unit = key_unit(room.columns, d * m, start, d, rule.step);
    const double unit = descent.unit;  // normalised descent on unit · p, with keys in units
    bool from_zero = true;
    for (int64_t k = 0; k < d; k++) {
        room.origin[k] = start[k] * unit;
        from_zero = from_zero && room.origin[k] == 0.0;
    }
    if (unit != 1.0)
        for (int64_t k = 0; k < d * m; k++) room.columns[k] /= unit;
    for (int64_t k = 0; k < m; k++) room.first_logits[k] = 0.0;
    if (!from_zero) combine(room.columns, d, m, room.origin, room.first_logits);
    close_places(problem.lengths, n, T, room.first_logits);
    if (*run.taken == 0) {
        for (int64_t k = 0; k < run.width; k++) run.state[k] = descent.in_keys ? room.origin[k] : 0.0;
        for (int64_t k = 0; k < m; k++) run.logits[k] = room.first_logits[k];
        *run.end = all_finite(run.logits, m) ? RAN_ALL : NON_FINITE;
    }
    if (*run.end == RAN_ALL) {
        arrange(problem.scores, problem.lengths, n, T, room.scores);
        if (descent.in_keys) {
            for (int64_t k = 0; k < m; k++) room.first_logits[k] = 0.0;
            close_places(problem.lengths, n, T, room.first_logits);
        } else if (!has_gram) {
            gram_of_places(room.columns, d, m, room.gram);
        }
        *run.end = descent.take_steps({rule.normalized, rule.step * unit, rule.loss}, steps, run, out);
    }
    if (*run.end != RAN_ALL || *run.taken == steps.n_steps)
        for (int64_t k = 0; k < steps.n_saved; k++)
            if (steps.save[k] >= *run.taken) descent.write(run.state, out + k * d);
}
