// Counting the edges of priority graphs in a stream of tokens, and merging counts.
#pragma once
#include "lanes.h"

struct TokenChunk {  // tokens of texts one after another, as marginlens/data/token_stream.py reads them
    const int64_t *ids;
    int64_t n_ids;
    const int64_t *starts;  // where texts begin, increasing
    int64_t n_starts, separator;
};

// Places from `first` on whose token occurs among the `window` tokens before it in its text; `n_windows` have a window. Returns how many.
//
// `latest` holds the place of each token, -1 before the first.
static inline int64_t find_followed(
    const TokenChunk &chunk, int64_t first, int64_t window, int64_t *latest, int64_t *places, int64_t &n_windows) {
    int64_t n_places = 0, start = 0, text = 0;
    n_windows = 0;
    for (int64_t j = 0; j < chunk.n_ids; j++) {
        while (text < chunk.n_starts && chunk.starts[text] <= j) start = chunk.starts[text++];
        const int64_t token = chunk.ids[j];
        if (token == chunk.separator) {
            start = j + 1;
            continue;
        }
        if (j >= first && j - window >= start) {
            n_windows++;
            places[n_places] = j;
            n_places += latest[token] >= j - window;
        }
        latest[token] = j;
    }
    return n_places;
}

// The edge of every token of the windows before these places, each as (last · K + label) · K + token, modulo 2⁶⁴.
static inline void fill_edge_keys(
    const int64_t *ids, const int64_t *places, int64_t n_places, int64_t window, uint64_t n_vocabulary, int64_t *keys) {
    for (int64_t n = 0; n < n_places; n++) {
        const int64_t j = places[n];
        const uint64_t pair = ((uint64_t)ids[j - 1] * n_vocabulary + (uint64_t)ids[j]) * n_vocabulary;
        for (int64_t t = 0; t < window; t++) keys[n * window + t] = (int64_t)(pair + (uint64_t)ids[j - window + t]);
    }
}

// Move the distinct keys of a sorted array to its beginning, and write how often each occurs. Returns their number.
static inline int64_t count_runs(int64_t *keys, int64_t *counts, int64_t n_keys) {
    int64_t n = 0;
    for (int64_t k = 0, begin = 0; k < n_keys; k++)
        if (k + 1 == n_keys || keys[k + 1] != keys[k]) {
            counts[n] = k + 1 - begin;
            keys[n++] = keys[k];
            begin = k + 1;
        }
    return n;
}

struct EdgeCounts {  // distinct keys, increasing, and how often each occurs
    const int64_t *keys, *counts;
    int64_t size;
};

// The counts of both; keys and counts have room for all of them. Returns how many keys there are.
static inline int64_t merge_counts(EdgeCounts a, EdgeCounts b, int64_t *__restrict keys, int64_t *__restrict counts) {
    int64_t i = 0, j = 0, n = 0;
    while (i < a.size && j < b.size) {
        const int64_t x = a.keys[i], y = b.keys[j];
        const bool takes_a = x <= y, takes_b = y <= x;
        keys[n] = takes_a ? x : y;
        counts[n++] = (takes_a ? a.counts[i] : 0) + (takes_b ? b.counts[j] : 0);
        i += takes_a;
        j += takes_b;
    }
    for (; i < a.size; i++) keys[n] = a.keys[i], counts[n++] = a.counts[i];
    for (; j < b.size; j++) keys[n] = b.keys[j], counts[n++] = b.counts[j];
    return n;
}
