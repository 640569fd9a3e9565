// How the text classifier reads texts: outputs of a model of scores and votes, and AdaGrad on both, text by text.
#pragma once
#include "random.h"
#include "token_sets.h"

constexpr double TINY_SHARE = 1e-300;  // a share of attention whose logarithm is taken

struct VotesOfTokens {  // scores a (n_tokens,) and votes b (n_tokens, n_outputs), and those of the rest token
    const double *a, *b;
    int64_t n_outputs;
    double rest_a;
    const double *rest_b;
};

// f_c = (e^{a_0} b_0c + Σ_s e^{a_s} b_sc) / (e^{a_0} + Σ_s e^{a_s}) over the n tokens of a text; q has room for their weights.
static inline void text_outputs(const VotesOfTokens &model, const int32_t *token, int64_t n, double *q, double *f) {
    double top = model.rest_a;
    for (int64_t k = 0; k < n; k++) {
        q[k] = model.a[token[k]];
        top = larger(q[k], top);
    }
    exp_of_differences(q, n, top);
    double total = exp(model.rest_a - top);
    for (int64_t c = 0; c < model.n_outputs; c++) f[c] = total * model.rest_b[c];
    for (int64_t k = 0; k < n; k++) {
        const double *votes = model.b + token[k] * model.n_outputs;
        total += q[k];
        for (int64_t c = 0; c < model.n_outputs; c++) f[c] += q[k] * votes[c];
    }
    for (int64_t c = 0; c < model.n_outputs; c++) f[c] /= total;
}

// The derivatives of a text's loss by its outputs: logistic where there is one, else of the softmax.
static inline void loss_slopes(const double *f, int64_t n_outputs, int64_t label, double weight, double *slopes) {
    if (n_outputs == 1) {
        const double sign = label == 1 ? 1.0 : -1.0;
        slopes[0] = -sign * weight / (1.0 + exp(smaller(sign * f[0], 700.0)));
        return;
    }
    double top = f[0], total = 0.0;
    for (int64_t c = 1; c < n_outputs; c++) top = larger(f[c], top);
    for (int64_t c = 0; c < n_outputs; c++) total += slopes[c] = exp(f[c] - top);
    for (int64_t c = 0; c < n_outputs; c++) slopes[c] = weight * (slopes[c] / total - (c == label ? 1.0 : 0.0));
}

// A row for each token, the last for the rest token: its score, the sum of its squared derivatives, the votes, and their sums.
struct LearnerRows {
    double *rows;
    int64_t n_outputs, rest;
    double *of(int64_t token) const { return rows + token * (2 + 2 * n_outputs); }
};

struct ReadingRules {  // constants of marginlens/text/learning.py
    double max_dropped, excerpt_share;
    int64_t min_excerpt;
    double vote_rate, penalty;
};

struct Reading {  // what is read of a text, and room for its attention, the logarithms of that, outputs and slopes
    int64_t *read;
    double *q, *log_q, *f, *slopes;
    int64_t n;
    double weight;
};

// Choose what is read of a text: all but a random share of its tokens, or an excerpt, whose length is log-uniform; and the rest token.
static inline void choose_tokens(
    const int32_t *token, int64_t n, const ReadingRules &rules, int64_t rest, Pcg64 &random, Reading &reading) {
    double dropped = rules.max_dropped * random.uniform();
    if (random.uniform() < rules.excerpt_share && n > rules.min_excerpt) {
        const double least = (double)rules.min_excerpt;
        const int64_t size = smaller((int64_t)(least * pow((double)n / least, random.uniform())), n);
        token += smaller((int64_t)(random.uniform() * (double)(n - size + 1)), n - size);
        reading.weight *= (double)size / (double)n;  // its tokens weigh as they do in the whole text
        n = size;
        dropped = 0.0;
    }
    int64_t n_read = 0;
    if (dropped == 0.0) {
        for (; n_read < n; n_read++) reading.read[n_read] = token[n_read];
    } else {
        for (int64_t k = 0; k < n; k++) {
            reading.read[n_read] = token[k];
            n_read += random.uniform() >= dropped;
        }
    }
    reading.read[n_read] = rest;
    reading.n = n_read + 1;
}

// The attention q of what is read, and the outputs f.
static inline void attend(const LearnerRows &state, const Reading &reading) {
    double top = -INF, total = 0.0;
    for (int64_t k = 0; k < reading.n; k++) {
        reading.q[k] = state.of(reading.read[k])[0];
        top = larger(reading.q[k], top);
    }
    exp_of_differences(reading.q, reading.n, top);
    for (int64_t c = 0; c < state.n_outputs; c++) reading.f[c] = 0.0;
    for (int64_t k = 0; k < reading.n; k++) {
        const double *votes = state.of(reading.read[k]) + 2;
        total += reading.q[k];
        for (int64_t c = 0; c < state.n_outputs; c++) reading.f[c] += reading.q[k] * votes[c];
    }
    for (int64_t c = 0; c < state.n_outputs; c++) reading.f[c] /= total;
    for (int64_t k = 0; k < reading.n; k++) reading.q[k] /= total;
}

// A step of AdaGrad on the scores and votes of what was read of a text. The derivative of f_c by a_s is q_s (b_sc - f_c), and by b_sc it is
// q_s; that of the penalised entropy H by a_s is -q_s (log q_s + H).
static inline void learn_text(const LearnerRows &state, const Reading &reading, const ReadingRules &rules, double rate) {
    const int64_t n_outputs = state.n_outputs;
    const double penalty = reading.weight * rules.penalty, vote_rate = rules.vote_rate * rate;
    double entropy = 0.0;
    if (rules.penalty > 0.0)
        for (int64_t k = 0; k < reading.n; k++) {
            reading.log_q[k] = log(larger(reading.q[k], TINY_SHARE));
            entropy -= reading.q[k] * reading.log_q[k];
        }
    for (int64_t k = 0; k < reading.n; k++) {
        double *row = state.of(reading.read[k]), *votes = row + 2, *squares = votes + n_outputs;
        const double share = reading.q[k];
        double pull = 0.0;
        for (int64_t c = 0; c < n_outputs; c++) {
            pull += reading.slopes[c] * (votes[c] - reading.f[c]);
            const double step = share * reading.slopes[c];
            squares[c] += step * step;
            votes[c] -= vote_rate * step / square_root(squares[c]);
        }
        if (rules.penalty > 0.0) pull -= penalty * (reading.log_q[k] + entropy);
        pull *= share;
        row[1] += pull * pull;
        row[0] -= rate * pull / square_root(row[1]);
    }
}
