// Gradient descent on p for one problem at a time, exact at any norm, cost per step independent of d.
//
// Three facts carry it. Gradients are formed pairwise, so nothing cancels when the softmax saturates. Weights that would underflow are
// formed from logarithms relative to the largest. And p moves in the span of the keys, so the state is either p itself (when d is small)
// or its coefficients over the n·T keys with the Gram matrix standing in for the keys.
#pragma once
#include "gradient_coefficients.h"
#include "linear_algebra.h"
#include "arena.h"
#include "steps.h"

constexpr int64_t SMALL_PROBLEM = 48;  // places up to which two problems at once are faster than one after the other

// One problem: keys (n_inputs, n_tokens, d), scores (n_inputs, n_tokens), lengths (n_inputs,), and what is added to the logits,
// (n_inputs, n_tokens), null for nothing.
struct TokenProblem {
    const double *keys, *scores;
    const int64_t *lengths;
    int64_t n_inputs, n_tokens, d;
    const double *offsets = nullptr;
};

// Where a run stands: its state (width,), logits (n_places,), how it ended and the steps it has taken.
struct AttentionRun {
    double *state, *logits;
    int64_t width;
    int64_t *end, *taken;
};

// Arrays that serve one problem after the other: centred keys (d, n_places), their Gram matrix where the state is coefficients, and vectors.
struct AttentionArrays {
    double *columns, *gram, *means, *origin, *first_logits, *scores, *state, *logits, *gradient, *w, *h, *slopes, *logs;

    AttentionArrays(Arena &arena, const TokenProblem &p, int64_t width) {
        const int64_t m = n_places(p.n_inputs, p.n_tokens), size = larger(m, whole_lanes(p.d));
        columns = arena.doubles(p.d * m);
        gram = width == m ? arena.doubles(m * m) : nullptr;
        means = arena.doubles(N_LANES * p.d);
        double **vectors[] = {&origin, &first_logits, &scores, &state, &logits, &gradient, &w, &h};
        for (double **vector : vectors) *vector = arena.doubles(size);
        slopes = arena.doubles(N_INPUT_ROWS * whole_lanes(p.n_inputs));
        logs = arena.doubles(4 * p.n_inputs * p.n_tokens);
    }
};

// The power of two next to the largest entry of extreme keys, by which they are rescaled; 1 for others, and where scaling would round start or step.
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
    TokenProblem problem;
    const AttentionArrays *arrays;
    AttentionRun run;
    double *out;  // (n_saved, d) p at the kept steps
    StepRule rule;
    int64_t m;
    bool in_keys;  // the state is p, and not coefficients
    double unit = 1.0;
    double *state = nullptr, *a = nullptr, *state_next = nullptr, *a_next = nullptr;
    int64_t saved = 0;

    // p of a state, in the caller's units.
    void write(const double *at, double *p) const {
        const int64_t d = problem.d;
        if (!in_keys) inner_products(arrays->columns, d, m, at, p);
        for (int64_t k = 0; k < d; k++) p[k] = (in_keys ? at[k] : p[k] + arrays->origin[k]) / unit;
    }

    // The length of Σ w_k k_k, from the keys.
    double norm_of_combination() const {
        inner_products(arrays->columns, problem.d, m, arrays->w, arrays->gradient);
        return norm(arrays->gradient, problem.d);
    }

    // The inner products of the gradient with the keys, in `h`, from its weights.
    CORE_MEMBER void form_gradient() const {
        if (in_keys) {
            inner_products(arrays->columns, problem.d, m, arrays->w, arrays->gradient);
            combine(arrays->columns, problem.d, m, arrays->gradient, arrays->h);
        } else {
            combine(arrays->gram, m, m, arrays->w, arrays->h);
        }
    }

    // The length of the gradient, relative to which its weights are; 1 where it is not asked for and cannot be told.
    CORE_MEMBER double gradient_length() const {
        double size = 0.0;
        const double square = in_keys ? square_of(arrays->gradient, problem.d) : dot_and_size(arrays->w, arrays->h, m, &size);
        if (square > CANCELLED_SHARE * size && 1e-280 < square && square < 1e280) return square_root(square);
        return rule.normalized || !(square > 0.0) ? norm_of_combination() : 1.0;  // the Gram matrix has cancelled
    }

    PlaceWeights weights() const {
        return {a, arrays->scores, problem.lengths, problem.n_inputs, problem.n_tokens, rule.loss, arrays->slopes, arrays->logs, arrays->w};
    }

    // Move against the gradient, step number `step`; how the run goes on.
    CORE_MEMBER int64_t move(double log_scale, int64_t step) {
        const double reach = gradient_length();
        if (reach == 0.0) return STATIONARY;
        double length = rule.step / reach;
        if (!rule.normalized) length = rule.step * (log_scale == 0.0 ? 1.0 : exp(log_scale)) / (double)problem.n_inputs;
        bool finite = subtract(state, length, in_keys ? arrays->gradient : arrays->w, run.width, state_next);
        if ((step + 1) % RESYNC == 0) {
            combine(in_keys ? arrays->columns : arrays->gram, run.width, m, state_next, a_next);
            finite = subtract(arrays->first_logits, -1.0, a_next, m, a_next) && finite;
        } else {
            finite = subtract(a, length, arrays->h, m, a_next) && finite;
        }
        if (!finite) return NON_FINITE;
        double *former = state;
        state = state_next, state_next = former;
        former = a, a = a_next, a_next = former;
        return RAN_ALL;
    }

    // Bring the problem into the order of places and units, and the run to its start where it has not begun.
    void prepare(const double *start, const Steps &steps, bool has_gram) {
        const int64_t n = problem.n_inputs, T = problem.n_tokens, d = problem.d;
        centred_columns(problem.keys, problem.lengths, n, T, d, arrays->means, arrays->columns);
        if (rule.normalized) unit = key_unit(arrays->columns, d * m, start, d, rule.step);
        rule.step *= unit;  // normalised descent on unit · p, with keys in units
        bool from_zero = true;
        for (int64_t k = 0; k < d; k++) {
            arrays->origin[k] = start[k] * unit;
            from_zero = from_zero && arrays->origin[k] == 0.0;
        }
        if (unit != 1.0)
            for (int64_t k = 0; k < d * m; k++) arrays->columns[k] /= unit;
        for (int64_t k = 0; k < m; k++) arrays->first_logits[k] = 0.0;
        if (!from_zero) combine(arrays->columns, d, m, arrays->origin, arrays->first_logits);
        if (problem.offsets) {
            arrange(problem.offsets, problem.lengths, n, T, arrays->w);
            subtract(arrays->first_logits, -1.0, arrays->w, m, arrays->first_logits);
        }
        close_places(problem.lengths, n, T, arrays->first_logits);
        if (*run.taken == 0) {
            for (int64_t k = 0; k < run.width; k++) run.state[k] = in_keys ? arrays->origin[k] : 0.0;
            for (int64_t k = 0; k < m; k++) run.logits[k] = arrays->first_logits[k];
            *run.end = all_finite(run.logits, m) ? RAN_ALL : NON_FINITE;
        }
        arrange(problem.scores, problem.lengths, n, T, arrays->scores);
        if (in_keys) {
            for (int64_t k = 0; k < m; k++) arrays->first_logits[k] = problem.offsets ? arrays->w[k] : 0.0;
            close_places(problem.lengths, n, T, arrays->first_logits);
        } else if (!has_gram) {
            gram_of_places(arrays->columns, d, m, arrays->gram);
        }
        for (int64_t k = 0; k < N_INPUT_ROWS * whole_lanes(n); k++) arrays->slopes[k] = NOT_A_NUMBER;
        state = run.state, a = run.logits, state_next = arrays->state, a_next = arrays->logits;
        while (saved < steps.n_saved && steps.save[saved] < *run.taken) saved++;
    }

    // Hand the state to the caller, and p at the steps that a run which is over has not reached.
    void finish(const Steps &steps) {
        if (state != run.state) {  // an odd number of steps: what the caller sees is the former state
            for (int64_t k = 0; k < run.width; k++) run.state[k] = state[k];
            for (int64_t k = 0; k < m; k++) run.logits[k] = a[k];
        }
        if (*run.end != RAN_ALL || *run.taken == steps.n_steps)
            for (int64_t k = 0; k < steps.n_saved; k++)
                if (steps.save[k] >= *run.taken) write(run.state, out + k * problem.d);
    }
};

// Steps of `count` problems at once, until `stop` or until one of them ends. A step is a long chain of operations that wait for each
// other; those of another problem fill the gaps. The problems do not know of each other, so it changes no result.
template <int count>
static inline void take_steps(AttentionDescent *const *runs, const Steps &steps) {
    for (int64_t step = *runs[0]->run.taken; step < steps.stop; step++) {
        PlaceWeights weights[count];
        double log_scale[count];
        bool going = true;
        for (int q = 0; q < count; q++) {
            AttentionDescent &run = *runs[q];
            for (; run.saved < steps.n_saved && steps.save[run.saved] == step; run.saved++)
                run.write(run.state, run.out + run.saved * run.problem.d);
            weights[q] = run.weights();
            weights[q].find_largest();
        }
        for (int q = 0; q < count; q++) weights[q].form_exponentials();
        for (int q = 0; q < count; q++) weights[q].find_margins();
        for (int q = 0; q < count; q++) weights[q].find_slopes();
        for (int q = 0; q < count; q++) log_scale[q] = weights[q].finish();
        for (int q = 0; q < count; q++) runs[q]->form_gradient();
        for (int q = 0; q < count; q++) {
            *runs[q]->run.end = runs[q]->move(log_scale[q], step);
            if (*runs[q]->run.end == RAN_ALL) *runs[q]->run.taken = step + 1;
            going = going && *runs[q]->run.end == RAN_ALL;
        }
        if (!going) return;
    }
}

// Steps of one or two problems, from where their runs say they are, all from the same step on.
static inline void descend_attention(AttentionDescent *runs, int count, const Steps &steps) {
    AttentionDescent *going[2];
    for (;;) {
        int n_going = 0;
        for (int q = 0; q < count; q++)
            if (*runs[q].run.end == RAN_ALL && *runs[q].run.taken < steps.stop) going[n_going++] = &runs[q];
        if (n_going == 0) break;
        if (n_going == 2 && *going[0]->run.taken == *going[1]->run.taken)
            take_steps<2>(going, steps);
        else
            take_steps<1>(going, steps);
    }
    for (int q = 0; q < count; q++) runs[q].finish(steps);
}
