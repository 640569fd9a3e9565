// Doors: random numbers by counter, edges of priority graphs in streams.
#include "../graphs.h"
#include "../random.h"
#include "../room.h"
#include "abi.h"

// Words 0 and 1, and words 2 and 3, of a block of Philox4x32-10, as two numbers with the first word below.
DOOR philox_words(
    uint64_t problem,
    uint64_t seed,
    uint64_t cell,
    uint64_t block,
    uint64_t *words     // (2)
) {
    philox({seed, problem, cell}, block, words[0], words[1]);
    return 0;
}

// Fill rows[first:last] with normals of the problems from `problem` on; each row begins a new block.
DOOR fill_normals(
    int64_t first,      // in 0..last
    int64_t last,       // in 0..n_problems
    uint64_t problem,
    uint64_t seed,
    uint64_t cell,
    uint64_t first_block,
    int64_t on_sphere,  // in 0..1
    double *rows,       // (n_problems, n_rows, d)
    int64_t n_problems, int64_t n_rows, int64_t d) {
    const int64_t n_blocks = (d + 1) / 2;
    const int64_t at_once = larger(1, smaller(n_rows, BLOCKS_AT_ONCE / larger(1, n_blocks)));  // rows whose blocks are made together
    Room room;
    const NormalBlocks blocks{
        room.take<uint64_t>(at_once * n_blocks), room.take<uint64_t>(at_once * n_blocks), room.doubles(at_once * n_blocks),
        room.doubles(at_once * n_blocks)};
    if (room.failed) return OUT_OF_MEMORY;
    for (int64_t j = first; j < last; j++)
        fill_normals({seed, problem + (uint64_t)j, cell}, first_block, on_sphere, n_rows, d, at_once, blocks, rows + j * n_rows * d);
    return 0;
}

// Labels ±1 of the problems from `problem` on.
DOOR fill_labels(
    uint64_t problem,
    uint64_t seed,
    uint64_t cell,
    uint64_t first_block,
    double *y,          // (n_problems, n_inputs)
    int64_t n_problems, int64_t n_inputs) {
    for (int64_t j = 0; j < n_problems; j++) fill_labels({seed, problem + (uint64_t)j, cell}, first_block, n_inputs, y + j * n_inputs);
    return 0;
}

// Rows first … last - 1 of K = X Wᵀ, summed over coordinates in their order.
DOOR fill_keys(
    int64_t first,               // in 0..last
    int64_t last,                // in 0..n_rows
    const double *W_transposed,  // (d, d)
    const double *X,             // (n_rows, d)
    double *K,                   // (n_rows, d)
    int64_t d, int64_t n_rows) {
    for (int64_t r = first; r < last; r++) fill_key(W_transposed, d, X + r * d, K + r * d);
    return 0;
}

// Places from `first` on whose token occurs among the `window` tokens before it in its text, and how many have a window. Returns their number.
DOOR find_followed(
    const int64_t *ids,     // (n_ids) in 0..n_vocabulary-1
    const int64_t *starts,  // (n_starts)
    int64_t first,
    int64_t window,         // in 1..
    int64_t separator,
    int64_t n_vocabulary,   // in 0..
    int64_t *places,        // (n_ids)
    int64_t *n_windows,     // (1)
    int64_t n_ids, int64_t n_starts) {
    Room room;
    int64_t *latest = room.integers(n_vocabulary);
    if (room.failed) return OUT_OF_MEMORY;
    for (int64_t s = 0; s < n_vocabulary; s++) latest[s] = -1;
    return find_followed({ids, n_ids, starts, n_starts, separator}, first, window, latest, places, *n_windows);
}

// The edge of every token of the windows before these places.
DOOR fill_edge_keys(
    const int64_t *ids,     // (n_ids)
    const int64_t *places,  // (n_places) in 1..n_ids-1
    int64_t n_vocabulary,
    int64_t *keys,          // (n_places, window)
    int64_t n_ids, int64_t n_places, int64_t window) {
    for (int64_t n = 0; n < n_places; n++)
        if (places[n] < window) return WRONG_SIZE;
    fill_edge_keys(ids, places, n_places, window, n_vocabulary, keys);
    return 0;
}

// Move the distinct keys of a sorted array to its beginning, and write how often each occurs. Returns their number.
DOOR count_keys(
    int64_t *keys,    // (n_keys)
    int64_t *counts,  // (n_keys)
    int64_t n_keys) {
    return count_runs(keys, counts, n_keys);
}

// Counts of distinct, increasing keys, merged into `keys` and `counts`. Returns how many keys there are.
DOOR merge_counts(
    const int64_t *keys_a,    // (n_a)
    const int64_t *counts_a,  // (n_a)
    const int64_t *keys_b,    // (n_b)
    const int64_t *counts_b,  // (n_b)
    int64_t *keys,            // (n_a+n_b)
    int64_t *counts,          // (n_a+n_b)
    int64_t n_a, int64_t n_b) {
    return merge_counts({keys_a, counts_a, n_a}, {keys_b, counts_b, n_b}, keys, counts);
}
