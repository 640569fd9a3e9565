// The loop of every optimizer but the plain Euclidean two: steepest descent in any norm, Adam and mirror descent, on W and on p.
//
// The state is W (q, d); p is the case of one query, the number 1. The gradient is never formed over pairs of tokens: with the queries z_m and
// the tokens X_i it is Σ_m e^{s_m} z_m g_mᵀ, where g_m sums up the tokens of the inputs that share z_m with the weights of `pair_weights`, and
// a step S changes the logits of input i by X_i Sᵀ z_i. Each g_m has a scale of its own, which momentum keeps and spectral steps need.
// Residual attention is summed up on the way, for brackets of the margin.
#pragma once
#include "graded_svd.h"
#include "gradient_coefficients.h"
#include "optimizers.h"
#include "steps.h"

constexpr int64_t CROSS_ENTROPY = 3;  // a loss of inputs whose tokens are classes: the right one has the score 1, the others 0

enum Update : int64_t { STEEPEST = 0, GRADIENT = 1, ADAM = 2, MIRROR = 3 };

// One problem: keys (n_inputs, n_tokens, d), scores, lengths, and queries (n_terms, q), one for all inputs or one for each.
struct MatrixProblem {
    const double *keys, *scores;
    const int64_t *lengths;
    const double *queries;
    int64_t n_inputs, n_tokens, d, n_terms, q;
};

// An optimizer: the kind of update, and what each of them reads.
struct UpdateRule {
    int64_t kind, norm, loss;
    double power, momentum;
    bool nesterov;
    AdamRule adam;
    MirrorRule mirror;
};

// Where a run stands: W (q, d), logits (n_rows,), memory (2, n_memory, d) and its scales (n_terms,), residual attention (2, n_rows) of two
// windows of steps with W at their beginnings (2, q, d), how it ended and the steps it has taken.
struct MatrixRun {
    double *W, *logits, *memory, *scales, *residuals, *anchors;
    int64_t *end, *taken;
};

// Copy n rows of d entries between matrices whose rows lie apart.
static inline void copy_rows(const double *x, int64_t stride, int64_t n, int64_t d, double *out, int64_t its_stride) {
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < d; k++) out[i * its_stride + k] = x[i * stride + k];
}

// The weights of cross-entropy on one input of T classes, with their scale's logarithm s: e^s w_c is the softmax less the scores.
static inline double class_weights(const double *logits, const double *scores, int64_t T, double *w) {
    const int64_t right = largest_of(scores, T);
    double largest = -INF, total = 0.0;
    for (int64_t c = 0; c < T; c++)
        if (c != right) largest = larger(largest, logits[c] - logits[right]);
    for (int64_t c = 0; c < T; c++) {
        w[c] = c != right && largest > -INF ? exp(logits[c] - logits[right] - largest) : 0.0;
        total += w[c];
    }
    w[right] = -total;
    const double odds = largest + log(total);  // of all other classes against the right one
    return largest - (odds > 0.0 ? odds + log1p(exp(-odds)) : log1p(exp(odds)));
}

// Descent on one problem after the other. Rows of d entries are filled up with zeros to `stride`, those of a term's tokens to `width`.
struct MatrixDescent {
    MatrixProblem problem;
    const UpdateRule &rule;
    int64_t stride, count, width, n_entries, n_memory;
    double *columns;                 // (n_terms, d, width) centred keys
    double *W, *W_next, *G, *S;      // (q, stride)
    double *memory, *rights, *ahead, *images;  // (…, stride) running sums, g_m, what momentum makes of them, and Wᵀ z_m
    double *logs, *ahead_logs, *weighted, *u;
    double *a, *w, *h;               // (n_terms, width) logits, weights, changes of logits
    double *mean, *room, *log_room;
    GradedSvd svd;

    MatrixDescent(Room &space, const MatrixProblem &p, const UpdateRule &rule, int64_t n_memory)
        : problem(p), rule(rule), stride(whole_lanes(p.d)), count(p.n_inputs / larger(p.n_terms, (int64_t)1) * p.n_tokens),
          width(whole_lanes(count)), n_entries(p.q * stride), n_memory(n_memory), svd(space, p.n_terms, p.q, p.d) {
        columns = space.doubles(p.n_terms * p.d * width);
        double **matrices[] = {&W, &W_next, &G, &S, &room};  // the last is room for vectors
        for (double **matrix : matrices) *matrix = space.zeros(n_entries);
        memory = space.zeros(2 * n_memory * stride);
        double **of_terms[] = {&rights, &ahead, &images};
        for (double **matrix : of_terms) *matrix = space.zeros(p.n_terms * stride);
        logs = space.doubles(p.n_terms);
        ahead_logs = space.doubles(p.n_terms);
        weighted = space.doubles(p.n_terms * p.q);
        u = space.doubles(p.q);
        double **of_tokens[] = {&a, &w, &h};
        for (double **vector : of_tokens) *vector = space.zeros(p.n_terms * width);
        mean = space.doubles(p.d);
        log_room = space.doubles(count);
    }

    // The keys less the mean key of their input, as columns: it changes no softmax and no gradient.
    void set_columns() {
        const int64_t n = problem.n_inputs, T = problem.n_tokens, d = problem.d, inputs = n / larger(problem.n_terms, (int64_t)1);
        for (int64_t k = 0; k < problem.n_terms * d * width; k++) columns[k] = 0.0;
        for (int64_t i = 0; i < n; i++) {
            const double *keys = problem.keys + i * T * d;
            mean_of_rows(keys, problem.lengths[i], d, mean);
            double *of_input = columns + i / inputs * d * width + i % inputs * T;
            for (int64_t t = 0; t < problem.lengths[i]; t++)
                for (int64_t k = 0; k < d; k++) of_input[k * width + t] = keys[t * d + k] - mean[k];
        }
    }

    // out = X_i pointᵀ z_i of every input.
    void logits_of(const double *point, double *out) {
        matrix_product(problem.queries, problem.q, 1, point, problem.q, images, problem.n_terms, stride);
        for (int64_t m = 0; m < problem.n_terms; m++)
            combine(columns + m * problem.d * width, problem.d, width, images + m * stride, out + m * width);
    }

    // rights[m] = g_m and logs[m] = s_m of every term: the gradient is Σ_m e^{s_m} z_m g_mᵀ / n_inputs.
    void set_gradients() {
        const int64_t inputs = problem.n_inputs / problem.n_terms, T = problem.n_tokens;
        for (int64_t m = 0; m < problem.n_terms; m++) {
            double *part = w + m * width, *right = rights + m * stride;
            const double *logits = a + m * width, *scores = problem.scores + m * count;
            const double log_scale = rule.loss == CROSS_ENTROPY
                ? class_weights(logits, scores, T, part)
                : pair_weights(logits, scores, problem.lengths + m * inputs, inputs, T, rule.loss, log_room, part);
            inner_products(columns + m * problem.d * width, problem.d, width, part, right);
            logs[m] = largest_modulus(right, stride) > 0.0 ? log_scale : -INF;
        }
    }

    // shares[m] = e^{s_m - s} for the largest scale s, which is returned.
    double relative_to_largest(const double *scales, double *shares) const {
        double largest = -INF;
        for (int64_t m = 0; m < problem.n_terms; m++) largest = larger(scales[m], largest);
        for (int64_t m = 0; m < problem.n_terms; m++)
            shares[m] = scales[m] < largest ? exp(scales[m] - largest) : (largest > -INF ? 1.0 : 0.0);
        return largest;
    }

    // Add the weights of this step, scaled to a sum of `size` over the tokens that are not selected, to the present window.
    void collect(double size, double *residuals) {
        if (relative_to_largest(logs, weighted) == -INF) return;
        double total = 0.0;
        for (int64_t m = 0; m < problem.n_terms; m++) {
            Lanes sums = spread(0.0);
            for (int64_t k = 0; k < width; k += N_LANES) sums += modulus(load(w, m * width + k));
            total += lane_sum(sums) * weighted[m];
        }
        if (!(total > 0.0)) return;
        for (int64_t m = 0; m < problem.n_terms; m++) {
            const double share = 2.0 * size / total * weighted[m];
            for (int64_t k = 0; k < count; k++) residuals[m * count + k] += share * w[m * width + k];
        }
    }

    // G = Σ_m e^{s_m - s} z_m g_mᵀ for the largest scale s, which is returned; zero for no terms.
    double dense(const double *used, const double *scales) {
        const double largest = relative_to_largest(scales, h);
        for (int64_t m = 0; m < problem.n_terms; m++)
            for (int64_t i = 0; i < problem.q; i++) weighted[m * problem.q + i] = h[m] * problem.queries[m * problem.q + i];
        matrix_product(weighted, 1, problem.q, used, problem.n_terms, G, problem.q, stride);
        return largest > -INF ? largest : 0.0;
    }

    // S = the steepest direction of the gradient or of its running sum, which is what Nesterov's momentum looks ahead with.
    void steepest_step(double *scales) {
        const double *used = rights, *used_logs = logs;
        if (rule.momentum > 0.0) {
            for (int64_t m = 0; m < problem.n_terms; m++) {
                double *sum = memory + m * stride, *next = ahead + m * stride;
                const double *right = rights + m * stride;
                ahead_logs[m] = scales[m] = add_scaled(right, logs[m], sum, scales[m], rule.momentum, stride, sum);
                if (rule.nesterov) ahead_logs[m] = add_scaled(right, logs[m], sum, scales[m], rule.momentum, stride, next);
            }
            used = rule.nesterov ? ahead : memory, used_logs = ahead_logs;
        }
        if (rule.norm == SPECTRAL || rule.norm == NUCLEAR) {
            svd.decompose(problem.queries, used, stride, used_logs, true);
            if (rule.norm == SPECTRAL) return svd.polar_factor(S);
            svd.leading_pair(u, room);
            for (int64_t i = 0; i < problem.q; i++)
                for (int64_t k = 0; k < problem.d; k++) S[i * stride + k] = u[i] * room[k];
            return;
        }
        dense(used, used_logs);
        if (rule.norm != MAX_ROW) return steepest_entries(G, n_entries, rule.norm, rule.power, room, S);
        for (int64_t i = 0; i < n_entries; i += stride) steepest_power(G + i, stride, 2.0, room, S + i);
    }

    // S = what a step of this size subtracts from W, but for the size where the update is not mirror descent.
    void direction(int64_t step, double size, double *scales) {
        if (rule.kind == STEEPEST) return steepest_step(scales);
        const double log_scale = dense(rights, logs) - log((double)problem.n_inputs);
        const double factor = exp(log_scale);
        if (rule.kind == GRADIENT)
            for (int64_t k = 0; k < n_entries; k++) S[k] = G[k] * factor;
        else if (rule.kind == ADAM)
            scales[0] = adam_step(rule.adam, G, log_scale, step, n_entries, scales[0], memory, memory + n_memory * stride, S);
        else
            mirror_step(rule.mirror, G, log_scale, size, W, n_entries, memory, room, S);
    }

    // Begin a window of steps: what was the present one becomes the one before.
    void next_window(const MatrixRun &run) {
        const int64_t n_rows = problem.n_inputs * problem.n_tokens, size = problem.q * problem.d;
        for (int64_t k = 0; k < n_rows; k++) run.residuals[n_rows + k] = run.residuals[k], run.residuals[k] = 0.0;
        for (int64_t k = 0; k < size; k++) run.anchors[size + k] = run.anchors[k];
        copy_rows(W, stride, problem.q, problem.d, run.anchors, problem.d);
    }

    // Steps from `taken` on, of the sizes from the step `begin` on; returns how it ended.
    int64_t take_steps(const double *sizes, int64_t begin, const Steps &steps, const MatrixRun &run, double *out) {
        const int64_t q = problem.q, d = problem.d, n_logits = problem.n_terms * width;
        int64_t &step = *run.taken, saved = 0;
        while (saved < steps.n_saved && steps.save[saved] < step) saved++;
        for (; step < steps.stop; step++) {
            for (; saved < steps.n_saved && steps.save[saved] == step; saved++) copy_rows(W, stride, q, d, out + saved * q * d, d);
            if ((step & (step - 1)) == 0) next_window(run);
            const double size = sizes[step - begin];
            set_gradients();
            collect(size, run.residuals);
            direction(step, size, run.scales);
            bool finite = subtract(W, rule.kind == MIRROR ? 1.0 : size, S, n_entries, W_next);
            if ((step + 1) % RESYNC == 0 || rule.kind == MIRROR) {
                logits_of(W_next, a);
                finite = finite && all_finite(a, n_logits);
            } else {
                logits_of(S, h);
                finite = subtract(a, size, h, n_logits, a) && finite;
            }
            if (S[0] == 0.0 && largest_modulus(S, n_entries) == 0.0 && largest_modulus(rights, problem.n_terms * stride) == 0.0) return STATIONARY;
            if (!finite) return NON_FINITE;
            double *former = W;
            W = W_next, W_next = former;
        }
        return RAN_ALL;
    }

    // Take steps of the problem, from where `run` says it is; W at the kept steps is written into `out` (n_saved, q, d).
    void descend(const double *sizes, int64_t begin, const Steps &steps, const MatrixRun &run, double *out) {
        const int64_t q = problem.q, d = problem.d, n_terms = problem.n_terms, n_rows = n_terms * count;
        set_columns();
        svd.left.n = 0;  // of another problem
        copy_rows(run.W, d, q, d, W, stride);
        copy_rows(run.memory, d, 2 * n_memory, d, memory, stride);
        if (*run.taken == 0) {
            logits_of(W, a);
            *run.end = all_finite(a, n_terms * width) ? RAN_ALL : NON_FINITE;
        } else {
            copy_rows(run.logits, count, n_terms, count, a, width);
        }
        if (*run.end == RAN_ALL && n_rows * d > 0) *run.end = take_steps(sizes, begin, steps, run, out);
        copy_rows(W, stride, q, d, run.W, d);
        copy_rows(memory, stride, 2 * n_memory, d, run.memory, d);
        copy_rows(a, width, n_terms, count, run.logits, count);
        if (*run.end != RAN_ALL || *run.taken == steps.n_steps)
            for (int64_t k = 0; k < steps.n_saved; k++)
                if (steps.save[k] >= *run.taken) copy_rows(W, stride, q, d, out + k * q * d, d);
    }
};
