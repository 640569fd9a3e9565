// Doors: distinct tokens of texts, how the text classifier reads them, and slopes of embeddings. Text i holds token[offsets[i]], …,
// token[offsets[i + 1] - 1].
#include "../exponential.h"
#include "../random.h"
#include "../room.h"
#include "abi.h"

constexpr double TINY_SHARE = 1e-300;  // a share of attention whose logarithm is taken

struct TokenSets {
    const int32_t *token;    // (n_entries,)
    const int64_t *offsets;  // (n_texts + 1,)
    int64_t n_entries, n_tokens;
};

// The length of the longest of n texts, the first ones where `texts` is null; -1 where one does not lie inside the array, or has a token
// outside 0 … n_tokens - 1.
static inline int64_t longest_text(const TokenSets &sets, const int64_t *texts, int64_t n) {
    int64_t longest = 0;
    for (int64_t j = 0; j < n; j++) {
        const int64_t i = texts ? texts[j] : j, first = sets.offsets[i], last = sets.offsets[i + 1];
        if (first < 0 || last < first || last > sets.n_entries) return -1;
        int64_t n_outside = 0;
        for (int64_t k = first; k < last; k++) n_outside += sets.token[k] < 0 || sets.token[k] >= sets.n_tokens;
        if (n_outside) return -1;
        longest = larger(longest, last - first);
    }
    return longest;
}

// x ← e^(x - top), n numbers in an array with room for a multiple of eight.
CORE void exp_of_differences(double *x, int64_t n, double top) {
    for (int64_t k = n; k % 8; k++) x[k] = top;
    for (int64_t k = 0; k < n; k += 8) store(x, k, exp(load_8(x, k) - twice(spread(top))));
}

// The distinct tokens of every text in the order of their first occurrence, how often each occurs, and their offsets. Returns their number.
DOOR find_distinct(
    const int32_t *tokens,   // (n_entries)
    const int64_t *offsets,  // (n_offsets)
    int64_t *place,          // (n_tokens), zero before; then one plus the place of each token among the distinct ones of the latest text with it
    int32_t *distinct,       // (n_entries)
    int32_t *count,          // (n_entries) or none
    int64_t *bounds,         // (n_offsets)
    int64_t n_entries, int64_t n_offsets, int64_t n_tokens) {
    if (!n_offsets || offsets[0] < 0) return WRONG_SIZE;
    int64_t n = 0, k = offsets[0];
    for (int64_t i = 0; i + 1 < n_offsets; i++) {
        const int64_t begin = n, end = offsets[i + 1];
        if (end < k || end > n_entries) return WRONG_SIZE;
        bounds[i] = begin;
        for (; k < end; k++) {
            const int32_t s = tokens[k];
            if (s < 0 || s >= n_tokens) return WRONG_SIZE;
            const int64_t p = place[s] - 1;
            if (p >= begin && p < n) {
                if (count) count[p]++;
                continue;
            }
            distinct[n] = s;
            if (count) count[n] = 1;
            place[s] = ++n;
        }
    }
    bounds[n_offsets - 1] = n;
    return n;
}

// The one-layer model of paper B on the distinct tokens of sequences: the derivatives of their losses log(1 + e^(-y f)) by a = E p and b = E v,
// added to by_a and by_b, and the outputs f = Σ q_s b_s with q = softmax(a + log count): ∂f/∂a_s = q_s (b_s - f) and ∂f/∂b_s = q_s.
DOOR add_slopes(
    const int32_t *token,    // (n_entries)
    const int32_t *count,    // (n_entries)
    const int64_t *offsets,  // (n_offsets)
    const int64_t *samples,  // (n_samples) in 0..n_offsets-2
    const double *y,         // (n_samples)
    const double *a,         // (n_tokens)
    const double *b,         // (n_tokens)
    double *by_a,            // (n_tokens)
    double *by_b,            // (n_tokens)
    double *f,               // (n_samples)
    int64_t n_entries, int64_t n_offsets, int64_t n_samples, int64_t n_tokens) {
    const int64_t longest = longest_text({token, offsets, n_entries, n_tokens}, samples, n_samples);
    if (longest < 0) return WRONG_SIZE;
    Room room;
    double *q = room.doubles(longest + 8);
    if (room.failed) return OUT_OF_MEMORY;
    for (int64_t n = 0; n < n_samples; n++) {
        const int64_t begin = offsets[samples[n]], size = offsets[samples[n] + 1] - begin;
        const int32_t *of_sample = token + begin;
        double top = -INF, best = 0.0, total = 0.0, lead = 0.0;
        for (int64_t k = 0; k < size; k++) {
            q[k] = a[of_sample[k]];
            if (q[k] > top) top = q[k], best = b[of_sample[k]];
        }
        exp_of_differences(q, size, top);
        for (int64_t k = 0; k < size; k++) {
            q[k] *= count[begin + k];
            total += q[k];
            lead += q[k] * (best - b[of_sample[k]]);
        }
        lead /= total;  // b of the first token less f, which a saturated softmax would make cancel
        const double output = best - lead, slope = -y[n] / (1.0 + exp(y[n] * output)) / total;
        f[n] = output;
        for (int64_t k = 0; k < size; k++) {
            const double weight = slope * q[k];
            by_a[of_sample[k]] += weight * (b[of_sample[k]] - best + lead);
            by_b[of_sample[k]] += weight;
        }
    }
    return 0;
}

// ---- the text classifier: outputs of a model of scores and votes, and AdaGrad on both, text by text

// Outputs f of every text, by scores a and votes b of its tokens s and those of the rest token:
// f_c = (e^{a_0} b_0c + Σ_s e^{a_s} b_sc) / (e^{a_0} + Σ_s e^{a_s}).
DOOR fill_text_outputs(
    const int32_t *token,    // (n_entries)
    const int64_t *offsets,  // (n_texts+1)
    const double *a,         // (n_tokens)
    const double *b,         // (n_tokens, n_outputs)
    double rest_a,
    const double *rest_b,    // (n_outputs)
    double *f,               // (n_texts, n_outputs)
    int64_t n_entries, int64_t n_tokens, int64_t n_outputs, int64_t n_texts) {
    const int64_t longest = longest_text({token, offsets, n_entries, n_tokens}, nullptr, n_texts);
    if (longest < 0) return WRONG_SIZE;
    Room room;
    double *q = room.doubles(longest + 8);
    if (room.failed) return OUT_OF_MEMORY;
    for (int64_t i = 0; i < n_texts; i++, f += n_outputs) {
        const int32_t *of_text = token + offsets[i];
        const int64_t n = offsets[i + 1] - offsets[i];
        double top = rest_a;
        for (int64_t k = 0; k < n; k++) {
            q[k] = a[of_text[k]];
            top = larger(q[k], top);
        }
        exp_of_differences(q, n, top);
        double total = exp(rest_a - top);
        for (int64_t c = 0; c < n_outputs; c++) f[c] = total * rest_b[c];
        for (int64_t k = 0; k < n; k++) {
            const double *votes = b + of_text[k] * n_outputs;
            total += q[k];
            for (int64_t c = 0; c < n_outputs; c++) f[c] += q[k] * votes[c];
        }
        for (int64_t c = 0; c < n_outputs; c++) f[c] /= total;
    }
    return 0;
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

// Read the texts `order` one by one, and after each take a step of AdaGrad; the rate falls from `before` to `after`. A row of `state` is a
// token's score and votes with their sums of squares, the last row the rest token's. `generator` is the state of NumPy's PCG64.
DOOR read_texts(
    const int32_t *token,    // (n_entries)
    const int64_t *offsets,  // (n_texts+1)
    const int64_t *labels,   // (n_texts)
    const double *weights,   // (n_texts)
    const int64_t *order,    // (n_read) in 0..n_texts-1
    double *state,           // (n_rows, width)
    double before,
    double after,
    double penalty,
    double max_dropped,
    double excerpt_share,
    int64_t min_excerpt,     // in 1..
    double vote_rate,
    uint64_t *generator,     // (4)
    int64_t n_entries, int64_t n_texts, int64_t n_read, int64_t n_rows, int64_t width) {
    const int64_t n_outputs = (width - 2) / 2, longest = longest_text({token, offsets, n_entries, n_rows - 1}, order, n_read);
    if (longest < 0 || n_rows < 1 || width < 4 || width % 2) return WRONG_SIZE;
    Room room;
    Reading reading{
        room.integers(longest + 1), room.doubles(longest + 8), room.doubles(longest + 1), room.doubles(n_outputs), room.doubles(n_outputs),
        0, 0.0};
    if (room.failed) return OUT_OF_MEMORY;
    const LearnerRows rows{state, n_outputs, n_rows - 1};
    const ReadingRules rules{max_dropped, excerpt_share, min_excerpt, vote_rate, penalty};
    Pcg64 random(generator);
    for (int64_t j = 0; j < n_read; j++) {
        const int64_t i = order[j];
        reading.weight = weights[i];
        choose_tokens(token + offsets[i], offsets[i + 1] - offsets[i], rules, rows.rest, random, reading);
        attend(rows, reading);
        loss_slopes(reading.f, n_outputs, labels[i], reading.weight, reading.slopes);
        learn_text(rows, reading, rules, before + (after - before) * (double)j / (double)n_read);
    }
    random.save();
    return 0;
}
