// Exports: distinct tokens of texts, and slopes of embeddings. Text i holds token[offsets[i]], …,
// token[offsets[i + 1] - 1].
#include "../exponential.h"
#include "../arena.h"
#include "abi.h"

struct TokenSets {
    const int32_t *token;    // (n_entries,)
    const int64_t *offsets;  // (n_texts + 1,)
    int64_t n_entries, n_tokens;
};

// The length of the longest of n texts; -1 if one does not lie inside the array, or has a token outside 0 … n_tokens - 1.
static inline int64_t longest_text(const TokenSets &sets, const int64_t *texts, int64_t n) {
    int64_t longest = 0;
    for (int64_t j = 0; j < n; j++) {
        const int64_t i = texts[j], first = sets.offsets[i], last = sets.offsets[i + 1];
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
EXPORT find_distinct(
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
EXPORT add_slopes(
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
    Arena arena;
    double *q = arena.doubles(longest + 8);
    if (arena.failed) return OUT_OF_MEMORY;
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
