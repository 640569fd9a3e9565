// Descent on W for one next-token problem at a time, exact at any norm.
//
// The logits that matter are e_xᵀ W e_k over the pairs (token x, last token k) that occur together, and W moves in the span of their
// e_x e_kᵀ. So its state is one of three: coefficients over the pairs, with their Gram matrix (e_xᵀ e_x')(e_kᵀ e_k') standing in for rows
// of d² numbers; or, when there are many pairs, a vector for each query k, W = Σ_k s_k e_kᵀ; or, when there are many queries too, W itself,
// transposed.
#pragma once
#include "next_token_coefficients.h"
#include "steps.h"

// One problem: keys (n_tokens, d), which are embeddings less their mean, embeddings (…, d) of which `queries` (n_queries,) ask, and the
// pairs' tokens and queries (n_pairs,), by queries and then tokens, each pair once. Tokens are counted from `first_token` on.
struct NextTokenProblem {
    const double *keys, *embeddings;
    const int64_t *token, *query, *queries;
    int64_t n_tokens, n_queries, n_pairs, d, first_token;
    NextTokenSamples samples;

    bool fits(bool whole_head) const {
        for (int64_t k = 0; k < n_pairs; k++) {
            const int64_t x = token[k] - first_token, q = query[k];
            if (x < 0 || x >= n_tokens || q < 0 || q >= n_queries) return false;
            if (k && !(query[k - 1] < q || (query[k - 1] == q && token[k - 1] < token[k]))) return false;
        }
        return samples.fits(whole_head);
    }

    bool has_all_pairs() const { return n_pairs == n_queries * n_tokens; }
};

enum NextTokenState { OF_PAIRS, OF_QUERIES, OF_WEIGHTS };

// Where a run stands: its state (width,), logits (n_pairs,), the logarithm of the scale of the last weights, how it ended and its steps.
struct NextTokenRun {
    double *state, *logits, *log_scale;
    int64_t width;
    int64_t *end, *taken;

    NextTokenState kind(const NextTokenProblem &x) const {
        if (x.n_queries >= 2 * x.d) return width == x.d * x.d ? OF_WEIGHTS : OF_PAIRS;
        return width == x.n_queries * x.d ? OF_QUERIES : OF_PAIRS;
    }
    bool fits(const NextTokenProblem &x) const { return kind(x) != OF_PAIRS || width == x.n_pairs; }
};

// The largest sizes among several problems.
struct NextTokenSizes {
    int64_t queries = 0, pairs = 0, width = 0, entries = 0, rows = 0, samples = 0, classes = 0, columns = 0, between = 0, gram = 0;

    void include(const NextTokenProblem &x, const NextTokenRun &run, int64_t gram_of) {
        queries = larger(queries, x.n_queries), pairs = larger(pairs, x.n_pairs), width = larger(width, run.width);
        entries = larger(entries, x.samples.n_entries), rows = larger(rows, LikelihoodPlaces::n_rows(x.samples));
        samples = larger(samples, x.samples.n_samples), classes = larger(classes, x.samples.n_classes), gram = larger(gram, gram_of);
        if (x.has_all_pairs()) columns = larger(columns, x.n_tokens);
        if (run.kind(x) != OF_WEIGHTS) between = larger(between, x.n_queries * x.n_queries);
    }
};

// Arrays that serve one problem after the other: asking embeddings (n_queries, d), their transpose and inner products, the keys' transpose
// where all pairs occur, vectors of each query (n_queries, d) before and after these products, W's gradient, and vectors over the pairs.
struct NextTokenWork {
    double *asking, *asking_columns, *between, *key_columns, *turned, *spread, *gradient, *matrix, *gram;
    double *state, *state_next, *logits, *logits_next, *w, *h, *first_logits;
    int64_t *token, *edges;
    NextTokenArrays weights;

    NextTokenWork(Arena &arena, const NextTokenSizes &s, int64_t d) : weights(arena, s.entries, s.rows, s.samples, s.classes) {
        double **by_query[] = {&asking, &asking_columns, &turned, &spread}, **squares[] = {&gradient, &matrix};
        for (double **array : by_query) *array = arena.doubles(whole_lanes(s.queries * d));
        for (double **array : squares) *array = arena.doubles(d * d);
        between = arena.doubles(s.between), key_columns = arena.doubles(s.columns * d), gram = arena.doubles(s.gram);
        double **vectors[] = {&state, &state_next, &logits, &logits_next, &w, &h, &first_logits};
        for (double **vector : vectors) *vector = arena.doubles(larger(s.width, whole_lanes(s.pairs)));
        token = arena.integers(s.pairs), edges = arena.integers(s.queries + 1);
    }
};

static inline void transpose_matrix(const double *A, int64_t n, int64_t m, double *out) {
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < m; j++) out[j * n + i] = A[i * m + j];
}

// The descent on one problem. Vectors over pairs, and those of the queries, are padded with zeros to whole lanes.
struct NextTokenDescent {
    const NextTokenProblem &x;
    NextTokenWork &work;
    NextTokenState kind;
    const double *gram;
    int64_t places, by_query;

    void prepare() const {
        const int64_t d = x.d;
        for (int64_t q = 0; q < x.n_queries; q++) copy(x.embeddings + x.queries[q] * d, d, work.asking + q * d);
        transpose_matrix(work.asking, x.n_queries, d, work.asking_columns);
        if (kind != OF_WEIGHTS) matrix_product(work.asking, d, 1, work.asking_columns, d, work.between, x.n_queries, x.n_queries);
        if (x.has_all_pairs()) transpose_matrix(x.keys, x.n_tokens, d, work.key_columns);
        for (int64_t q = 0; q <= x.n_queries; q++) work.edges[q] = 0;
        for (int64_t k = 0; k < x.n_pairs; k++) {
            work.token[k] = x.token[k] - x.first_token;
            work.edges[x.query[k] + 1] = k + 1;
        }
        for (int64_t q = 0; q < x.n_queries; q++) work.edges[q + 1] = larger(work.edges[q + 1], work.edges[q]);
        double *vectors[] = {work.state, work.state_next, work.logits, work.logits_next, work.w, work.h, work.first_logits};
        for (double *vector : vectors)
            for (int64_t k = x.n_pairs; k < places; k++) vector[k] = 0.0;
        for (int64_t k = x.n_queries * d; k < by_query; k++) work.turned[k] = work.spread[k] = 0.0;
    }

    // Inner products of the matrices e_x e_kᵀ, (n_pairs, places), zero beyond the pairs.
    void fill_gram(double *out) const {
        ::gram(x.keys, x.d, work.token, x.n_pairs, 0, out, places);
        for (int64_t k = 0; k < x.n_pairs; k++) {
            for (int64_t j = 0; j <= k; j++) {
                out[k * places + j] *= work.between[x.query[k] * x.n_queries + x.query[j]];
                out[j * places + k] = out[k * places + j];
            }
            for (int64_t j = x.n_pairs; j < places; j++) out[k * places + j] = 0.0;
        }
    }

    // work.turned = Σ w e_x over the pairs of each query.
    void turn(const double *w) const {
        const int64_t n = x.n_queries, d = x.d;
        if (x.has_all_pairs()) return matrix_product(w, x.n_tokens, 1, x.keys, x.n_tokens, work.turned, n, d);
        for (int64_t q = 0; q < n; q++) {
            const int64_t begin = work.edges[q], end = work.edges[q + 1];
            vecmat(w + begin, x.keys, work.token + begin, end - begin, d, work.turned + q * d);
        }
    }

    // The transpose of Σ_k s_k e_kᵀ.
    void lift(const double *s, double *transposed) const { matrix_product(work.asking, 1, x.d, s, x.n_queries, transposed, x.d, x.d); }

    // work.spread = W e_k of each query, from W as lifted or as vectors of the queries.
    void apply(const double *transposed) const { matrix_product(work.asking, x.d, 1, transposed, x.d, work.spread, x.n_queries, x.d); }
    void apply_by_query(const double *s) const {
        matrix_product(work.between, x.n_queries, 1, s, x.n_queries, work.spread, x.n_queries, x.d);
    }

    // out = e_xᵀ W e_k for every pair, from work.spread.
    void read(double *out) const {
        const int64_t n = x.n_queries, d = x.d;
        if (x.has_all_pairs()) return matrix_product(work.spread, d, 1, work.key_columns, d, out, n, x.n_tokens);
        for (int64_t q = 0; q < n; q++) {
            const int64_t begin = work.edges[q], end = work.edges[q + 1];
            matvec(x.keys, end - begin, d, work.spread + q * d, out + begin, work.token + begin);
        }
    }

    // W of a state, (d, d).
    void write(const double *start, const double *state, double *out) const {
        const int64_t d = x.d;
        if (kind == OF_WEIGHTS) return transpose_matrix(state, d, d, out);
        if (kind == OF_PAIRS) turn(state);
        lift(kind == OF_PAIRS ? work.turned : state, work.matrix);
        transpose_matrix(work.matrix, d, d, out);
        for (int64_t k = 0; k < d * d; k++) out[k] += start[k];
    }

    // The length of the gradient with the weights `work.w`, whose inner products with the pairs are written into `work.h`.
    double gradient_length() const {
        double square, size = 0.0;
        if (kind == OF_PAIRS) {
            combine(gram, x.n_pairs, places, work.w, work.h);
            square = dot_and_size(work.w, work.h, places, &size);
        } else {
            turn(work.w);
            if (kind == OF_QUERIES) {
                apply_by_query(work.turned);
                square = dot_and_size(work.turned, work.spread, by_query, &size);
            } else {
                lift(work.turned, work.gradient);
                apply(work.gradient);
                square = square_of(work.gradient, x.d * x.d);
            }
            read(work.h);
        }
        if (square > 1e-6 * size && 1e-280 < square && square < 1e280) return square_root(square);
        if (kind == OF_PAIRS) turn(work.w);  // the Gram matrix has cancelled, or the squares have left the range
        lift(work.turned, work.gradient);
        return norm(work.gradient, x.d * x.d);
    }

    // The logits of a state, computed afresh.
    void read_state(const double *state, double *out) const {
        if (kind == OF_PAIRS) {
            combine(gram, x.n_pairs, places, state, out);
        } else {
            kind == OF_QUERIES ? apply_by_query(state) : apply(state);
            read(out);
        }
        if (kind != OF_WEIGHTS) subtract(work.first_logits, -1.0, out, places, out);
    }

    // Steps from `taken` on, which move the state and the logits; returns how it ended.
    int64_t take_steps(const double *start, const StepRule &rule, const Steps &steps, const NextTokenRun &run, double *out) const {
        const double *direction = kind == OF_PAIRS ? work.w : kind == OF_QUERIES ? work.turned : work.gradient;
        double *at = work.state, *at_next = work.state_next, *a = work.logits, *a_next = work.logits_next;
        copy(run.state, run.width, at);
        copy(run.logits, x.n_pairs, a);
        work.weights.expect(*run.log_scale);
        if (rule.loss == LIKELIHOOD) work.weights.places.fill(x.samples);
        int64_t saved = 0, step = *run.taken, end = RAN_ALL;
        while (saved < steps.n_saved && steps.save[saved] < step) saved++;
        while (step < steps.stop) {
            for (; saved < steps.n_saved && steps.save[saved] == step; saved++) write(start, at, out + saved * x.d * x.d);
            const double log_scale = next_token_weights(a, x.samples, rule.loss, work.w, work.weights);
            const double reach = log_scale == log_scale ? gradient_length() : NOT_A_NUMBER;
            if (!(reach != 0.0 && log_scale == log_scale)) {
                end = reach == 0.0 ? STATIONARY : NON_FINITE;
                break;
            }
            const double move = rule.normalized ? rule.step / reach : rule.step * exp(log_scale);
            const bool finite = subtract(at, move, direction, run.width, at_next);
            if (!subtract(a, move, work.h, places, a_next) || !finite) {
                end = NON_FINITE;
                break;
            }
            step++;
            if (step % RESYNC == 0) read_state(at_next, a_next);
            double *former = at;
            at = at_next, at_next = former;
            former = a, a = a_next, a_next = former;
        }
        copy(at, run.width, run.state);
        copy(a, x.n_pairs, run.logits);
        *run.log_scale = work.weights.log_guess;
        *run.taken = step;
        return end;
    }
};

// Take steps of one problem, from where `run` says it is; W at the kept steps is written into `out` (n_saved, d, d). `given_gram`, or a
// null pointer, is room for the Gram matrix that serves several calls; `has_gram` says whether it is filled.
static inline void descend_next_tokens(
    const NextTokenProblem &x, const double *start, const StepRule &rule, const Steps &steps, const NextTokenRun &run, NextTokenWork &work,
    double *given_gram, bool has_gram, double *out) {
    const int64_t d = x.d;
    double *gram = given_gram ? given_gram : work.gram;
    const NextTokenDescent descent{x, work, run.kind(x), gram, whole_lanes(x.n_pairs), whole_lanes(x.n_queries * d)};
    descent.prepare();
    transpose_matrix(start, d, d, work.matrix);
    descent.apply(work.matrix);
    descent.read(work.first_logits);
    if (*run.taken == 0) {
        copy(work.first_logits, x.n_pairs, run.logits);
        for (int64_t k = 0; k < run.width; k++) run.state[k] = descent.kind == OF_WEIGHTS ? work.matrix[k] : 0.0;
        *run.end = all_finite(run.logits, x.n_pairs) ? RAN_ALL : NON_FINITE;
        *run.log_scale = 0.0;
    }
    if (*run.end == RAN_ALL) {
        if (descent.kind == OF_PAIRS && !has_gram) descent.fill_gram(gram);
        *run.end = descent.take_steps(start, rule, steps, run, out);
    }
    if (*run.end != RAN_ALL || *run.taken == steps.n_steps)
        for (int64_t k = 0; k < steps.n_saved; k++)
            if (steps.save[k] >= *run.taken) descent.write(start, run.state, out + k * d * d);
}
