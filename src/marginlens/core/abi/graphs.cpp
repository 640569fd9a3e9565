// Exports: counting the edges of priority graphs in a text of tokens, and merging counts.
#include "../arena.h"
#include "abi.h"

// Places from `first` on whose token occurs among the `window` tokens before it in its text, and how many have a window. Returns their number.
// A text begins at the first token and after each separator.
EXPORT find_followed(
    int64_t n_vocabulary,   // in 0..
    const int64_t *ids,     // (n_ids) in 0..n_vocabulary-1
    int64_t first,
    int64_t window,  // in 1..
    int64_t separator,
    int64_t *places,       // (n_ids)
    int64_t *n_windows,    // (1)
    int64_t n_ids) {
    Arena arena;
    int64_t *latest = arena.integers(n_vocabulary);  // the place of each token, -1 before the first
    if (arena.failed) return OUT_OF_MEMORY;
    for (int64_t s = 0; s < n_vocabulary; s++) latest[s] = -1;
    int64_t n_places = 0, start = 0, with_window = 0;
    for (int64_t j = 0; j < n_ids; j++) {
        const int64_t token = ids[j];
        if (token == separator) {
            start = j + 1;
            continue;
        }
        if (j >= first && j - window >= start) {
            with_window++;
            places[n_places] = j;
            n_places += latest[token] >= j - window;
        }
        latest[token] = j;
    }
    *n_windows = with_window;
    return n_places;
}

// The edge of every token of the windows before these places, each as (last · K + label) · K + token, modulo 2⁶⁴.
EXPORT fill_edge_keys(
    const int64_t *ids,     // (n_ids)
    const int64_t *places,  // (n_places) in 1..n_ids-1
    int64_t n_vocabulary,
    int64_t *keys,  // (n_places, window)
    int64_t n_ids, int64_t n_places, int64_t window) {
    const uint64_t K = (uint64_t)n_vocabulary;
    for (int64_t n = 0; n < n_places; n++)
        if (places[n] < window) return WRONG_SIZE;
    for (int64_t n = 0; n < n_places; n++) {
        const int64_t j = places[n];
        const uint64_t pair = ((uint64_t)ids[j - 1] * K + (uint64_t)ids[j]) * K;
        for (int64_t t = 0; t < window; t++) keys[n * window + t] = (int64_t)(pair + (uint64_t)ids[j - window + t]);
    }
    return 0;
}

// Move the distinct keys of a sorted array to its beginning, and write how often each occurs. Returns their number.
EXPORT count_keys(
    int64_t *keys,    // (n_keys)
    int64_t *counts,  // (n_keys)
    int64_t n_keys) {
    int64_t n = 0;
    for (int64_t k = 0, begin = 0; k < n_keys; k++)
        if (k + 1 == n_keys || keys[k + 1] != keys[k]) {
            counts[n] = k + 1 - begin;
            keys[n++] = keys[k];
            begin = k + 1;
        }
    return n;
}

// Counts of distinct, increasing keys, merged into `keys` and `counts`. Returns how many keys there are.
EXPORT merge_counts(
    const int64_t *keys_a,    // (n_a)
    const int64_t *counts_a,  // (n_a)
    const int64_t *keys_b,    // (n_b)
    const int64_t *counts_b,  // (n_b)
    int64_t *keys,            // (n_a+n_b)
    int64_t *counts,          // (n_a+n_b)
    int64_t n_a, int64_t n_b) {
    int64_t *__restrict to = keys, *__restrict how_often = counts, i = 0, j = 0, n = 0;
    while (i < n_a && j < n_b) {
        const int64_t x = keys_a[i], y = keys_b[j];
        const bool takes_a = x <= y, takes_b = y <= x;
        to[n] = takes_a ? x : y;
        how_often[n++] = (takes_a ? counts_a[i] : 0) + (takes_b ? counts_b[j] : 0);
        i += takes_a;
        j += takes_b;
    }
    for (; i < n_a; i++) to[n] = keys_a[i], how_often[n++] = counts_a[i];
    for (; j < n_b; j++) to[n] = keys_b[j], how_often[n++] = counts_b[j];
    return n;
}
