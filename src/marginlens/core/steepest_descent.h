// The loop of every optimizer but the plain Euclidean two: steepest descent in any norm, Adam and mirror descent, on W and on p.
//
// The state is W (q, d); p is the case of one query, the number 1. The gradient is never formed over pairs of tokens: with the queries z_m and
// the tokens X_i it is Σ_m e^{s_m} z_m g_mᵀ, where g_m sums up the tokens of the inputs that share z_m with the weights of `pair_weights`, and
// a step S changes the logits of input i by X_i Sᵀ z_i. Each g_m has a scale of its own, which momentum keeps and spectral steps need.
// Residual attention is summed up on the way, for brackets of the margin.
//
// Factors W = Q Kᵀ are a point of their own, Q (q, width) above K (d, width): then a term z_m g_mᵀ of W's gradient makes two, z_m (Kᵀ g_m)ᵀ in the
// rows of Q and g_m (Qᵀ z_m)ᵀ in those of K, and the logits are formed afresh after every step.
//
// A step may take some of the terms alone, a mini-batch: then their logits are formed afresh, so that a step costs what its inputs cost. And
// `heads` terms one after the other may share an input, whose output is the mean of theirs: several heads, or the queries of self-attention.
#pragma once
#include "graded_svd.h"
#include "gradient_coefficients.h"
#include "optimizers.h"
#include "steps.h"

constexpr int64_t CROSS_ENTROPY = 5;  // a loss of inputs whose tokens are classes: the right one has the score 1, the others 0

enum Update : int64_t { STEEPEST = 0, GRADIENT = 1, ADAM = 2, MIRROR = 3 };

// What a point is: W, its factors Q above K, or these where each takes steps of its own.
enum Parts : int64_t { WHOLE = 0, FACTORS = 1, APART = 2 };

// One problem: keys (n_inputs, n_tokens, d), scores, lengths, and queries (n_terms, q), one for all inputs or one for each. Points are
// (height, breadth).
struct MatrixProblem {
    const double *keys, *scores;
    const int64_t *lengths;
    const double *queries;
    int64_t n_inputs, n_tokens, d, n_terms, q, parts, height, breadth;
};

// An optimizer: the kind of update, and what each of them reads. A step of size η shrinks W by 1 - η decay first.
struct UpdateRule {
    int64_t kind, norm, loss;
    double power, momentum;
    bool nesterov;
    AdamRule adam;
    MirrorRule mirror;
    double decay;
    int64_t heads;
};

// The numbers of an optimizer as callers give them: p of ℓp, the share of momentum and whether it is Nesterov's, Adam's β₁, β₂ and ε, the power of
// mirror descent's potential and whether that is normalised, and decoupled weight decay.
struct OptimizerSettings {
    double power, momentum, nesterov, beta_1, beta_2, eps, mirror_power, normalized, decay;
};

// The terms of every step, (n_steps, size), -1 where a step has fewer; all of them where size is zero.
struct MiniBatches {
    const int64_t *terms;
    int64_t size;
};

// A sum of n terms e^{logs[m]} left[m] right[m]ᵀ.
struct Terms {
    const double *left, *right, *logs;
    int64_t n;
};

// Where a run stands: the point W (height, breadth), logits (n_rows,), memory (2, n_memory, breadth) and its scales (n_terms,), residual attention
// (2, n_rows) of two windows of steps with W at their beginnings (2, height, breadth), how it ended and the steps it has taken.
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

// What a step has of tokens, (n_terms, width) but for the keys less their input's mean, (n_terms, d, width).
struct OfTokens {
    double *columns, *logits, *weights, *changes;

    OfTokens(Arena &arena, const MatrixProblem &p, int64_t width) {
        columns = arena.doubles(p.n_terms * p.d * width);
        logits = arena.zeros(p.n_terms * width), weights = arena.zeros(p.n_terms * width), changes = arena.zeros(p.n_terms * width);
    }
};

// What a step has of the gradient's terms: g_m and what momentum makes of them, (n_terms, stride), with the logarithms of their scales; Wᵀ z_m
// or Qᵀ z_m; the queries of a mini-batch; the left vectors times their shares; and the margins of the inputs.
struct OfTerms {
    double *rights, *logs, *ahead, *ahead_logs, *images, *gathered, *weighted, *margins;

    OfTerms(Arena &arena, const MatrixProblem &p, int64_t stride, int64_t n_lefts) {
        rights = arena.zeros(p.n_terms * stride), logs = arena.doubles(p.n_terms);
        ahead = arena.zeros(p.n_terms * stride), ahead_logs = arena.doubles(p.n_terms);
        images = arena.zeros(p.n_terms * stride), gathered = arena.doubles(p.n_terms * p.q);
        weighted = arena.doubles(n_lefts * p.height), margins = arena.doubles(p.n_inputs);
    }
};

// The same of factors: g_m, the n terms that they make, two each, and K z_m.
struct OfFactors {
    double *slopes, *lefts, *rights, *logs, *key_image;

    OfFactors(Arena &arena, const MatrixProblem &p, int64_t stride, int64_t n) {
        slopes = n ? arena.zeros(p.n_terms * whole_lanes(p.d)) : nullptr;
        lefts = arena.zeros(n * p.height), rights = arena.zeros(n * stride), logs = arena.doubles(n), key_image = arena.doubles(p.d);
    }
};

// Descent on one problem after the other. Rows of a point are filled up with zeros to `stride`, those of a term's tokens to `width`.
struct MatrixDescent {
    MatrixProblem problem;
    const UpdateRule &rule;
    const MiniBatches batches;
    int64_t stride, count, width, n_entries, n_memory;
    int64_t *all;           // (n_terms,) 0, 1, 2, …
    const int64_t *active;  // the terms of this step, and how many they are
    int64_t n_active;
    double *W, *W_next, *G, *S;  // (height, stride)
    double *memory;              // (2, n_memory, stride) running sums, means or the mirror image
    OfTokens tokens;
    OfTerms gradients;
    OfFactors factors;
    double *mean, *left, *vector, *token_logs;  // scratch: (d,), (height,), (height, stride) and (count,)
    GradedSvd svd;

    MatrixDescent(Arena &arena, const MatrixProblem &p, const UpdateRule &rule, const MiniBatches &batches, int64_t n_memory)
        : problem(p), rule(rule), batches(batches), stride(whole_lanes(p.breadth)),
          count(p.n_inputs / larger(p.n_terms, (int64_t)1) * p.n_tokens), width(whole_lanes(count)), n_entries(p.height * stride),
          n_memory(n_memory), tokens(arena, p, width), gradients(arena, p, stride, n_halves(p)),
          factors(arena, p, stride, p.parts ? n_halves(p) : 0), svd(arena, n_halves(p), p.height, p.breadth) {
        all = arena.integers(p.n_terms);
        for (int64_t m = 0; all && m < p.n_terms; m++) all[m] = m;
        W = arena.zeros(n_entries), W_next = arena.zeros(n_entries), G = arena.zeros(n_entries), S = arena.zeros(n_entries);
        memory = arena.zeros(2 * n_memory * stride);
        if (!p.parts) factors.slopes = gradients.rights;
        mean = arena.doubles(p.d), left = arena.doubles(p.height), vector = arena.zeros(n_entries), token_logs = arena.doubles(count);
    }

    static int64_t n_halves(const MatrixProblem &p) { return p.parts ? 2 * p.n_terms : p.n_terms; }

    // The keys less the mean key of their input, as columns: it changes no softmax and no gradient.
    void set_columns() {
        const int64_t n = problem.n_inputs, T = problem.n_tokens, d = problem.d, inputs = n / larger(problem.n_terms, (int64_t)1);
        for (int64_t k = 0; k < problem.n_terms * d * width; k++) tokens.columns[k] = 0.0;
        for (int64_t i = 0; i < n; i++) {
            const double *keys = problem.keys + i * T * d;
            mean_of_rows(keys, problem.lengths[i], d, mean);
            double *of_input = tokens.columns + i / inputs * d * width + i % inputs * T;
            for (int64_t t = 0; t < problem.lengths[i]; t++)
                for (int64_t k = 0; k < d; k++) of_input[k * width + t] = keys[t * d + k] - mean[k];
        }
    }

    // The terms of a step; those that are repeated count as often.
    void choose(const int64_t *chosen) {
        active = batches.size ? chosen : all;
        n_active = batches.size ? 0 : problem.n_terms;
        while (n_active < batches.size && active[n_active] >= 0) n_active++;
        for (int64_t j = 0; batches.size && j < n_active; j++)
            for (int64_t i = 0; i < problem.q; i++) gradients.gathered[j * problem.q + i] = problem.queries[active[j] * problem.q + i];
    }

    const double *active_queries() const { return batches.size ? gradients.gathered : problem.queries; }

    // out = X_i pointᵀ z_i of the inputs of this step, or X_i K Qᵀ z_i.
    void logits_of(const double *point, double *out) {
        matrix_product(active_queries(), problem.q, 1, point, problem.q, gradients.images, n_active, stride);
        for (int64_t j = 0; j < n_active; j++) {
            const double *image = gradients.images + j * stride;
            if (problem.parts) {
                inner_products(point + problem.q * stride, problem.d, stride, image, factors.key_image);
                image = factors.key_image;
            }
            combine(tokens.columns + active[j] * problem.d * width, problem.d, width, image, out + j * width);
        }
    }

    // rights[j] = g_m and logs[j] = s_m of the terms m of this step: the gradient is Σ_m e^{s_m} z_m g_mᵀ, divided by the number of inputs,
    // which a mini-batch has in its scales.
    void set_gradients() {
        const int64_t inputs = problem.n_inputs / problem.n_terms, T = problem.n_tokens;
        for (int64_t j = 0; j < n_active; j++) {
            const int64_t m = active[j];
            double *part = tokens.weights + j * width, *slope = factors.slopes + j * whole_lanes(problem.d);
            const double *logits = tokens.logits + j * width, *scores = problem.scores + m * count;
            const int64_t loss = rule.heads > 1 ? (int64_t)LINEAR : rule.loss;  // several heads: the slope comes below
            gradients.logs[j] = rule.loss == CROSS_ENTROPY
                ? class_weights(logits, scores, T, part)
                : pair_weights(logits, scores, problem.lengths + m * inputs, inputs, T, loss, token_logs, part, gradients.margins + j * inputs);
            inner_products(tokens.columns + m * problem.d * width, problem.d, width, part, slope);
            if (!(largest_modulus(slope, whole_lanes(problem.d)) > 0.0)) gradients.logs[j] = -INF;
        }
        for (int64_t j = 0; rule.heads > 1 && j < n_active; j += rule.heads) {
            double margin = 0.0;
            for (int64_t k = 0; k < rule.heads; k++) margin += gradients.margins[j + k];
            const double slope = log_slope(rule.loss, margin / (double)rule.heads);
            for (int64_t k = 0; k < rule.heads; k++) gradients.logs[j + k] += slope;
        }
        const double log_count = batches.size ? log((double)n_active) : 0.0;
        if (batches.size)
            for (int64_t j = 0; j < n_active; j++) gradients.logs[j] -= log_count;
        if (problem.parts) set_halves();
    }

    // The two terms of the gradient in the factors that each g_m makes; both are zero where g_m is.
    void set_halves() {
        const int64_t q = problem.q, d = problem.d, height = problem.height;
        const double *K = W + q * stride;
        matrix_product(active_queries(), q, 1, W, q, gradients.images, n_active, stride);
        for (int64_t j = 0; j < n_active; j++) {
            const double *slope = factors.slopes + j * whole_lanes(d), *query = active_queries() + j * q;
            double *of_Q = factors.lefts + 2 * j * height, *of_K = of_Q + height, *right = factors.rights + 2 * j * stride;
            const bool present = gradients.logs[j] > -INF;
            for (int64_t i = 0; i < q; i++) of_Q[i] = query[i];
            for (int64_t i = 0; i < d; i++) of_K[q + i] = slope[i];
            matrix_product(slope, d, 1, K, d, right, 1, stride);
            for (int64_t k = 0; k < stride; k++) {
                right[k] = present ? right[k] : 0.0;
                right[stride + k] = present ? gradients.images[j * stride + k] : 0.0;
            }
            factors.logs[2 * j] = factors.logs[2 * j + 1] = gradients.logs[j];
        }
    }

    // shares[m] = e^{s_m - s} of n terms for the largest scale s, which is returned.
    static double relative_to_largest(const double *scales, int64_t n, double *shares) {
        double largest = -INF;
        for (int64_t m = 0; m < n; m++) largest = larger(scales[m], largest);
        for (int64_t m = 0; m < n; m++)
            shares[m] = scales[m] < largest ? exp(scales[m] - largest) : (largest > -INF ? 1.0 : 0.0);
        return largest;
    }

    // Add the weights of this step, scaled to a sum of `size` over the tokens that are not selected, to the present window.
    void collect(double size, double *residuals) {
        if (relative_to_largest(gradients.logs, n_active, gradients.weighted) == -INF) return;
        double total = 0.0;
        for (int64_t j = 0; j < n_active; j++) {
            Lanes sums = spread(0.0);
            for (int64_t k = 0; k < width; k += N_LANES) sums += modulus(load(tokens.weights, j * width + k));
            total += lane_sum(sums) * gradients.weighted[j];
        }
        if (!(total > 0.0)) return;
        for (int64_t j = 0; j < n_active; j++) {
            const double share = 2.0 * size / total * gradients.weighted[j];
            for (int64_t k = 0; k < count; k++) residuals[active[j] * count + k] += share * tokens.weights[j * width + k];
        }
    }

    // G = Σ_m e^{s_m - s} z_m g_mᵀ for the largest scale s, which is returned; zero for no terms.
    double dense(const Terms &terms) {
        const double largest = relative_to_largest(terms.logs, terms.n, tokens.changes);
        for (int64_t m = 0; m < terms.n; m++)
            for (int64_t i = m * problem.height; i < (m + 1) * problem.height; i++) gradients.weighted[i] = tokens.changes[m] * terms.left[i];
        matrix_product(gradients.weighted, 1, problem.height, terms.right, terms.n, G, problem.height, stride);
        return largest > -INF ? largest : 0.0;
    }

    // The same with a scale for each row, which signs and the lengths of rows do not notice: heads whose gradients are far apart keep theirs.
    void dense_by_row(const Terms &terms) {
        for (int64_t i = 0; i < problem.q; i++) {
            for (int64_t m = 0; m < terms.n; m++) tokens.changes[m] = terms.left[m * problem.q + i] != 0.0 ? terms.logs[m] : -INF;
            relative_to_largest(tokens.changes, terms.n, gradients.weighted);
            for (int64_t k = 0; k < stride; k++) G[i * stride + k] = 0.0;
            for (int64_t m = 0; m < terms.n; m++) {
                const double share = gradients.weighted[m] * terms.left[m * problem.q + i];
                for (int64_t k = 0; share != 0.0 && k < stride; k++) G[i * stride + k] += share * terms.right[m * stride + k];
            }
        }
    }

    // sums[m] e^{sum_logs[m]} += the gradients of this step.
    void add_gradients(double *sums, double *sum_logs) {
        for (int64_t j = 0; j < n_active; j++) {
            double *sum = sums + active[j] * stride, &scale = sum_logs[active[j]];
            scale = add_scaled(gradients.rights + j * stride, gradients.logs[j], sum, scale, 1.0, stride, sum);
        }
    }

    // What a step follows: the gradient, its running sum, or what Nesterov's momentum looks ahead with. Singular vectors are taken of all
    // terms, so that those of a mini-batch are put among them.
    Terms followed(double *scales) {
        if (problem.parts) return {factors.lefts, factors.rights, factors.logs, 2 * n_active};
        const bool by_svd = rule.kind == STEEPEST && (rule.norm == SPECTRAL || rule.norm == NUCLEAR);
        const int64_t n = problem.n_terms;
        if (rule.kind == ADAM || (rule.momentum == 0.0 && !(by_svd && batches.size))) return {active_queries(), gradients.rights, gradients.logs, n_active};
        double *sums = memory + (rule.kind == MIRROR ? n_memory * stride : 0);
        const double fade = log(rule.momentum);
        if (rule.momentum > 0.0)
            for (int64_t m = 0; m < n; m++) scales[m] += fade;
        if (rule.momentum > 0.0) add_gradients(sums, scales);
        if (rule.momentum > 0.0 && !rule.nesterov) return {problem.queries, sums, scales, n};
        for (int64_t m = 0; m < n; m++) gradients.ahead_logs[m] = rule.momentum > 0.0 ? scales[m] + fade : -INF;
        if (rule.momentum > 0.0)
            for (int64_t k = 0; k < n * stride; k++) gradients.ahead[k] = sums[k];
        add_gradients(gradients.ahead, gradients.ahead_logs);
        return {problem.queries, gradients.ahead, gradients.ahead_logs, n};
    }

    // S = the steepest direction of these terms.
    void steepest_step(const Terms &terms) {
        if (rule.norm == SPECTRAL || rule.norm == NUCLEAR) {
            svd.decompose(terms.left, terms.right, stride, terms.logs, !problem.parts);
            if (rule.norm == SPECTRAL) return svd.polar_factor(S);
            if (svd.rank) svd.pair(svd.leading(), left, vector);
            for (int64_t i = 0; i < problem.height; i++)
                for (int64_t k = 0; k < problem.breadth; k++) S[i * stride + k] = svd.rank ? left[i] * vector[k] : 0.0;
            return;
        }
        if (rule.heads > 1 && (rule.norm == MAX_ROW || rule.norm == SIGN))
            dense_by_row(terms);
        else
            dense(terms);
        if (rule.norm != MAX_ROW) {
            const int64_t first = problem.parts == APART ? problem.q * stride : 0;
            if (first) steepest_entries(G, first, rule.norm, rule.power, vector, S);
            return steepest_entries(G + first, n_entries - first, rule.norm, rule.power, vector, S + first);
        }
        for (int64_t i = 0; i < n_entries; i += stride) steepest_power(G + i, stride, 2.0, vector, S + i);
    }

    // S = what a step of this size subtracts from W, but for the size where the update is not mirror descent.
    void direction(int64_t step, double size, double *scales) {
        const Terms terms = followed(scales);
        if (rule.kind == STEEPEST) return steepest_step(terms);
        const double log_scale = dense(terms) - (batches.size ? 0.0 : log((double)problem.n_inputs));
        const double factor = exp(log_scale);
        if (rule.kind == GRADIENT)
            for (int64_t k = 0; k < n_entries; k++) S[k] = G[k] * factor;
        else if (rule.kind == ADAM)
            scales[0] = adam_step(rule.adam, G, log_scale, step, n_entries, scales[0], memory, memory + n_memory * stride, S);
        else
            mirror_step(rule.mirror, G, log_scale, size, W, n_entries, memory, vector, S);
    }

    // Shrink W, its logits and its mirror image by what a step of this size takes away.
    void decay(double size) {
        const double left = 1.0 - size * rule.decay, left_of_image = rule.kind == MIRROR ? pow(left, rule.mirror.p - 1.0) : 1.0;
        for (int64_t k = 0; k < n_entries; k++) W[k] *= left;
        for (int64_t k = 0; k < n_active * width; k++) tokens.logits[k] *= left;
        if (rule.kind == MIRROR)
            for (int64_t k = 0; k < n_entries; k++) memory[k] *= left_of_image;
    }

    // Begin a window of steps: what was the present one becomes the one before.
    void next_window(const MatrixRun &run) {
        const int64_t n_rows = problem.n_inputs * problem.n_tokens, size = problem.height * problem.breadth;
        for (int64_t k = 0; k < n_rows; k++) run.residuals[n_rows + k] = run.residuals[k], run.residuals[k] = 0.0;
        for (int64_t k = 0; k < size; k++) run.anchors[size + k] = run.anchors[k];
        copy_rows(W, stride, problem.height, problem.breadth, run.anchors, problem.breadth);
    }

    // Steps from `taken` on, of the sizes from the step `begin` on; returns how it ended.
    int64_t take_steps(const double *sizes, int64_t begin, const Steps &steps, const MatrixRun &run, double *out) {
        const int64_t height = problem.height, breadth = problem.breadth, size_of_point = height * breadth;
        int64_t &step = *run.taken, saved = 0;
        while (saved < steps.n_saved && steps.save[saved] < step) saved++;
        for (; step < steps.stop; step++) {
            for (; saved < steps.n_saved && steps.save[saved] == step; saved++)
                copy_rows(W, stride, height, breadth, out + saved * size_of_point, breadth);
            if ((step & (step - 1)) == 0) next_window(run);
            const double size = sizes[step - begin];
            choose(batches.terms + (step - begin) * batches.size);
            const int64_t n_logits = n_active * width;
            if (batches.size) logits_of(W, tokens.logits);
            set_gradients();
            collect(size, run.residuals);
            if (rule.decay > 0.0) decay(size);
            direction(step, size, run.scales);
            bool finite = subtract(W, rule.kind == MIRROR ? 1.0 : size, S, n_entries, W_next);
            if (batches.size) {
                finite = finite && all_finite(tokens.logits, n_logits);
            } else if ((step + 1) % RESYNC == 0 || rule.kind == MIRROR || problem.parts) {
                logits_of(W_next, tokens.logits);
                finite = finite && all_finite(tokens.logits, n_logits);
            } else {
                logits_of(S, tokens.changes);
                finite = subtract(tokens.logits, size, tokens.changes, n_logits, tokens.logits) && finite;
            }
            if (!batches.size && rule.decay == 0.0 && S[0] == 0.0 && largest_modulus(S, n_entries) == 0.0 &&
                largest_modulus(problem.parts ? factors.rights : gradients.rights, n_halves(problem) / problem.n_terms * n_active * stride) == 0.0)
                return STATIONARY;
            if (!finite) return NON_FINITE;
            double *former = W;
            W = W_next, W_next = former;
        }
        return RAN_ALL;
    }

    // Take steps of the problem, from where `run` says it is; W at the kept steps is written into `out` (n_saved, height, breadth).
    void descend(const double *sizes, int64_t begin, const Steps &steps, const MatrixRun &run, double *out) {
        const int64_t q = problem.height, d = problem.breadth, n_terms = problem.n_terms, n_rows = n_terms * count;
        set_columns();
        svd.left.n = 0;  // of another problem
        copy_rows(run.W, d, q, d, W, stride);
        copy_rows(run.memory, d, 2 * n_memory, d, memory, stride);
        if (batches.size) {
            *run.end = *run.taken || all_finite(W, n_entries) ? *run.end : (int64_t)NON_FINITE;
        } else if (*run.taken == 0 && begin == 0) {  // a run may have ended before its first step in an earlier call
            choose(nullptr);
            logits_of(W, tokens.logits);
            *run.end = all_finite(tokens.logits, n_terms * width) ? RAN_ALL : NON_FINITE;
        } else {
            copy_rows(run.logits, count, n_terms, count, tokens.logits, width);
        }
        if (*run.end == RAN_ALL && n_rows * d > 0) *run.end = take_steps(sizes, begin, steps, run, out);
        copy_rows(W, stride, q, d, run.W, d);
        copy_rows(memory, stride, 2 * n_memory, d, run.memory, d);
        if (!batches.size) copy_rows(tokens.logits, width, n_terms, count, run.logits, count);
        if (*run.end != RAN_ALL || *run.taken == steps.n_steps)
            for (int64_t k = 0; k < steps.n_saved; k++)
                if (steps.save[k] >= *run.taken) copy_rows(W, stride, q, d, out + k * q * d, d);
    }
};
