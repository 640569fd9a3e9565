// Texts as sets of tokens: text i holds token[offsets[i]], …, token[offsets[i + 1] - 1].
#pragma once
#include "exponential.h"

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

// The distinct tokens of every text in the order of their first occurrence, and how often each occurs, unless `count` is null; their offsets
// are `bounds`. Returns their number; -1 where offsets fall or leave the array, or a token is outside 0 … n_tokens - 1.
//
// `place` (n_tokens,) is zero before: then it has one plus the place of each token among the distinct ones of the latest text with it.
static inline int64_t find_distinct(
    const TokenSets &texts, int64_t n_texts, int64_t *place, int32_t *token, int32_t *count, int64_t *bounds) {
    int64_t n = 0, k = texts.offsets[0];
    if (k < 0) return -1;
    for (int64_t i = 0; i < n_texts; i++) {
        const int64_t begin = n, end = texts.offsets[i + 1];
        if (end < k || end > texts.n_entries) return -1;
        bounds[i] = begin;
        for (; k < end; k++) {
            const int32_t s = texts.token[k];
            if (s < 0 || s >= texts.n_tokens) return -1;
            const int64_t p = place[s] - 1;
            if (p >= begin && p < n) {
                if (count) count[p]++;
                continue;
            }
            token[n] = s;
            if (count) count[n] = 1;
            place[s] = ++n;
        }
    }
    bounds[n_texts] = n;
    return n;
}

// x ← e^(x - top), n numbers in an array with room for a multiple of eight.
CORE void exp_of_differences(double *x, int64_t n, double top) {
    for (int64_t k = n; k % 8; k++) x[k] = top;
    for (int64_t k = 0; k < n; k += 8) store(x, k, exp(load_8(x, k) - twice(spread(top))));
}
