// Exports: singular vectors of sums of rank-one terms, descent and margins in other norms, logits and the weights of gradients.
#include "../margin/matrix_norms.h"
#include "../steepest_descent.h"
#include "abi.h"

// Polar factors Σ_k u_k v_kᵀ of sums Σ_m e^{s_m} l_m r_mᵀ, and their ranks; left vectors that all share are given once.
EXPORT polar_factors(
    const double *left,       // (n_lefts, m, q)
    const double *right,      // (batch, m, d)
    const double *log_scale,  // (batch, m)
    double *out,              // (batch, q, d)
    int64_t *ranks,           // (batch)
    int64_t n_lefts, int64_t batch, int64_t m, int64_t q, int64_t d) {
    if (batch && n_lefts != 1 && n_lefts != batch) return WRONG_SIZE;
    Arena arena;
    GradedSvd svd(arena, m, q, d);
    double *factor = arena.doubles(q * whole_lanes(d));
    if (arena.failed) return OUT_OF_MEMORY;
    for (int64_t b = 0; b < batch; b++) {
        svd.decompose(left + b % n_lefts * m * q, right + b * m * d, d, log_scale + b * m, b > 0 && n_lefts == 1);
        svd.polar_factor(factor);
        copy_rows(factor, whole_lanes(d), q, d, out + b * q * d, d);
        ranks[b] = svd.rank;
    }
    return 0;
}

// Σ_m e^{s_m} l_m r_mᵀ = Σ_k e^{logs[k]} U[k] V[k]ᵀ with orthonormal U[k] and V[k], the largest first and the others in no order; zero from each
// rank on.
EXPORT singular_triplets(
    const double *left,       // (n_lefts, m, q)
    const double *right,      // (batch, m, d)
    const double *log_scale,  // (batch, m)
    double *U,                // (batch, count, q)
    double *V,                // (batch, count, d)
    double *logs,             // (batch, count)
    int64_t *ranks,           // (batch)
    int64_t n_lefts, int64_t batch, int64_t m, int64_t q, int64_t d, int64_t count) {
    if (count < smaller(smaller(m, q), d) || (batch && n_lefts != 1 && n_lefts != batch)) return WRONG_SIZE;
    Arena arena;
    GradedSvd svd(arena, m, q, d);
    if (arena.failed) return OUT_OF_MEMORY;
    for (int64_t k = 0; k < batch * count * q; k++) U[k] = 0.0;
    for (int64_t k = 0; k < batch * count * d; k++) V[k] = 0.0;
    for (int64_t k = 0; k < batch * count; k++) logs[k] = 0.0;
    for (int64_t b = 0; b < batch; b++) {
        svd.decompose(left + b % n_lefts * m * q, right + b * m * d, d, log_scale + b * m, b > 0 && n_lefts == 1);
        const int64_t first = svd.leading();
        for (int64_t j = 0; j < svd.rank; j++) {
            const int64_t at = b * count + (j == first ? 0 : j < first ? j + 1 : j);
            svd.pair(j, U + at * q, V + at * d);
            logs[at] = svd.log_values[j];
        }
        ranks[b] = svd.rank;
    }
    return 0;
}

// Descent on W (q, d), or on its factors Q above K (q + d, ·), by any optimizer; on factors without momentum. Takes steps up to `stop` of problems first … last - 1, from where points, logits and ends say they are.
EXPORT descend_matrices(
    int64_t first,            // in 0..last
    int64_t last,             // in 0..batch
    const double *keys,       // (n_problems, n_inputs, n_tokens, d)
    const double *scores,     // (n_problems, n_inputs, n_tokens)
    const int64_t *lengths,   // (n_problems, n_inputs) in 1..n_tokens
    const double *queries,    // (n_problems, n_terms, q)
    int64_t apart,            // in 0..1 whether factors take steps of their own
    int64_t kind,             // in 0..3
    int64_t norm,             // in 0..12
    int64_t loss,             // in 0..5
    const OptimizerSettings *settings,
    int64_t heads,            // in 1..
    const int64_t *terms,     // (n_batches, batch_size) in -1..n_inputs-1
    const double *sizes,      // (n_sizes)
    int64_t begin,            // in 0..n_steps
    int64_t n_steps,          // in 0..
    int64_t stop,             // in 0..n_steps
    const int64_t *save,      // (n_saved)
    double *points,           // (batch, height, breadth)
    double *logits,           // (batch, n_inputs*n_tokens)
    double *memory,           // (batch, 2, n_memory, breadth)
    double *scales,           // (batch, n_terms)
    double *residuals,        // (batch, 2, n_inputs*n_tokens)
    double *anchors,          // (batch, 2, height, breadth)
    int64_t *ends,            // (batch, 2)
    double *out,              // (batch, n_saved, height, breadth)
    int64_t n_problems, int64_t n_inputs, int64_t n_tokens, int64_t d, int64_t n_terms, int64_t q, int64_t n_sizes, int64_t n_saved,
    int64_t batch, int64_t n_memory, int64_t n_batches, int64_t batch_size, int64_t height, int64_t breadth) {
    if (!n_problems || !q || (n_terms != 1 && n_terms != n_inputs) || stop - begin > n_sizes) return WRONG_SIZE;
    const int64_t parts = height == q && breadth == d ? WHOLE : (apart ? APART : FACTORS);
    if (n_memory < larger(height, n_terms) || (parts && height != q + d)) return WRONG_SIZE;
    const bool by_svd = kind == STEEPEST && (norm == SPECTRAL || norm == NUCLEAR);
    if (parts && (settings->momentum > 0.0 || heads > 1 || loss == CROSS_ENTROPY || (by_svd && batch_size))) return WRONG_SIZE;
    if ((loss == CROSS_ENTROPY || batch_size || heads > 1) && n_terms != n_inputs) return WRONG_SIZE;
    if (heads > 1 && loss > LINEAR) return WRONG_SIZE;
    if (batch_size > n_terms || batch_size % heads || n_terms % heads || (batch_size && stop - begin > n_batches)) return WRONG_SIZE;
    for (int64_t k = 0; k < n_batches * batch_size; k++)
        if (k % heads && terms[k] != (terms[k - 1] < 0 ? -1 : terms[k - 1] + 1)) return WRONG_SIZE;
    const AdamRule adam{settings->beta_1, settings->beta_2, settings->eps};
    const MirrorRule mirror{settings->mirror_power, settings->normalized > 0.0};
    const UpdateRule rule{
        kind, norm, loss, settings->power, settings->momentum, settings->nesterov > 0.0, adam, mirror, settings->decay, heads};
    const int64_t n_rows = n_inputs * n_tokens, size = height * breadth;
    MatrixProblem problem{keys, scores, lengths, queries, n_inputs, n_tokens, d, n_terms, q, parts, height, breadth};
    Arena arena;
    MatrixDescent descent(arena, problem, rule, {terms, batch_size}, n_memory);
    if (arena.failed) return OUT_OF_MEMORY;
    for (int64_t b = first; b < last; b++) {
        const int64_t j = b % n_problems;
        if (ends[2 * b] == RAN_ALL && ends[2 * b + 1] < begin) return WRONG_SIZE;
        problem.keys = keys + j * n_rows * d, problem.scores = scores + j * n_rows;
        problem.lengths = lengths + j * n_inputs, problem.queries = queries + j * n_terms * q;
        descent.problem = problem;
        const MatrixRun run{
            points + b * size, logits + b * n_rows, memory + b * 2 * n_memory * breadth, scales + b * n_terms, residuals + b * 2 * n_rows,
            anchors + b * 2 * size, ends + 2 * b, ends + 2 * b + 1};
        descent.descend(sizes, begin, {n_steps, stop, save, n_saved}, run, out + b * n_saved * size);
    }
    return 0;
}

// A margin problem in the spectral, nuclear or max-row norm by an interior-point method, from a feasible x to a bracket gap; returns the number
// of steps. `left` and `right` have rows where every row of A is an outer product of theirs.
EXPORT solve_matrix_norm(
    const double *rows,         // (n_rows, n)
    const double *left,         // (n_factors, height)
    const double *right,        // (n_factors, width)
    const double *lower,        // (m)
    int64_t nuclear,            // in 0..1
    const double *x,            // (n)
    const double *multipliers,  // (n_rows)
    double gap,
    double *best,               // (n)
    double *best_multipliers,   // (n_rows)
    int64_t n_rows, int64_t n, int64_t n_factors, int64_t height, int64_t width, int64_t m) {
    const bool by_factors = n_factors == n_rows;
    if (height <= 0 || width <= 0 || n % (height * width) || m > n_rows || (n_factors && !by_factors)) return WRONG_SIZE;
    if (nuclear && n > height * width) return WRONG_SIZE;
    const Cone cone{rows, by_factors ? left : nullptr, by_factors ? right : nullptr, lower, m, n_rows, n, height, width, nuclear != 0};
    Arena arena;
    InteriorPoint point(arena, cone);
    if (arena.failed) return OUT_OF_MEMORY;
    return point.solve(x, multipliers, gap, best, best_multipliers);
}

// The largest spectral norm and the sum of the nuclear norms of matrices.
EXPORT norms_of_matrices(
    const double *matrices,  // (batch, height, width)
    double *norms,           // (2)
    int64_t batch, int64_t height, int64_t width) {
    Arena arena;
    double *rotated = arena.doubles(height * whole_lanes(width));
    if (arena.failed) return OUT_OF_MEMORY;
    norms[0] = norms[1] = 0.0;
    if (height && width) norms_of_blocks(matrices, batch * height * width, height, width, rotated, norms, norms + 1);
    return 0;
}

// Attention logits p · (k_t - mean key) of problems first … last - 1; 0 where there is no token.
EXPORT centred_logits(
    int64_t first,           // in 0..last
    int64_t last,            // in 0..batch
    const double *keys,      // (batch, n_inputs, n_tokens, d)
    const int64_t *lengths,  // (batch, n_inputs) in 1..n_tokens
    const double *points,    // (batch, d)
    double *out,             // (batch, n_inputs, n_tokens)
    int64_t batch, int64_t n_inputs, int64_t n_tokens, int64_t d) {
    Arena arena;
    double *mean = arena.doubles(d);
    if (arena.failed) return OUT_OF_MEMORY;
    for (int64_t i = first * n_inputs; i < last * n_inputs; i++) {
        const double *of_input = keys + i * n_tokens * d, *p = points + i / n_inputs * d;
        mean_of_rows(of_input, lengths[i], d, mean);
        for (int64_t t = 0; t < n_tokens; t++) out[i * n_tokens + t] = t < lengths[i] ? dot_of_difference(of_input + t * d, mean, p, d) : 0.0;
    }
    return 0;
}

// Weights w with ∇L = e^s/n Σ w_it k_it, input by input; s is written to `log_scale`.
EXPORT pair_weights(
    const double *logits,    // (n_inputs, n_tokens)
    const double *scores,    // (n_inputs, n_tokens)
    const int64_t *lengths,  // (n_inputs) in 1..n_tokens
    int64_t loss,            // in 0..4
    double *log_scale,       // (1)
    double *weights,         // (n_inputs, n_tokens)
    int64_t n_inputs, int64_t n_tokens) {
    Arena arena;
    double *logs = arena.doubles(n_inputs * n_tokens);
    if (arena.failed) return OUT_OF_MEMORY;
    *log_scale = pair_weights(logits, scores, lengths, n_inputs, n_tokens, loss, logs, weights);
    return 0;
}

// The same four inputs at a time, by the second of two calls, in the order of places, which `places` gives the number of.
EXPORT weights_of_places(
    const double *logits,    // (n_inputs, n_tokens)
    const double *scores,    // (n_inputs, n_tokens)
    const int64_t *lengths,  // (n_inputs) in 1..n_tokens
    int64_t loss,            // in 0..4
    double *log_scale,       // (1)
    double *weights,         // (places)
    int64_t n_inputs, int64_t n_tokens, int64_t places) {
    const int64_t n = n_inputs, T = n_tokens;
    if (places != n_places(n, T)) return WRONG_SIZE;
    Arena arena;
    double *a = arena.doubles(places), *gamma = arena.doubles(places), *slopes = arena.doubles(N_INPUT_ROWS * whole_lanes(n));
    double *logs = arena.doubles(4 * n * T);
    if (arena.failed) return OUT_OF_MEMORY;
    arrange(logits, lengths, n, T, a);
    close_places(lengths, n, T, a);
    arrange(scores, lengths, n, T, gamma);
    for (int64_t k = 0; k < N_INPUT_ROWS * whole_lanes(n); k++) slopes[k] = NOT_A_NUMBER;
    PlaceWeights found{a, gamma, lengths, n, T, loss, slopes, logs, weights};
    for (int64_t call = 0; n * T > 0 && call < 2; call++) {
        found.find_largest();
        found.form_exponentials();
        found.find_margins();
        found.find_slopes();
        *log_scale = found.finish();
    }
    return 0;
}
