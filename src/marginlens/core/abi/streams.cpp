// Doors: random numbers by counter, edges of priority graphs in streams, distinct tokens, text learner, slopes of embeddings.
#include "../embeddings.h"
#include "../graphs.h"
#include "../random_rows.h"
#include "../room.h"
#include "../text_learner.h"
#include "abi.h"

// Fill rows[first:last] with normals of the problems from `problem` on; each row begins a new block.
DOOR fill_normals(
    int64_t first,  // in 0..last
    int64_t last,   // in 0..n_problems
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
    double *y,  // (n_problems, n_inputs)
    int64_t n_problems, int64_t n_inputs) {
    for (int64_t k = 0; k < n_problems * n_inputs; k++)
        y[k] = label({seed, problem + (uint64_t)(k / n_inputs), cell}, first_block, k % n_inputs);
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
    matrix_product(X + first * d, d, 1, W_transposed, d, K + first * d, last - first, d);
    return 0;
}

// Places from `first` on whose token occurs among the `window` tokens before it in its text, and how many have a window. Returns their number.
DOOR find_followed(
    int64_t n_vocabulary,   // in 0..
    const int64_t *ids,     // (n_ids) in 0..n_vocabulary-1
    const int64_t *starts,  // (n_starts)
    int64_t first,
    int64_t window,  // in 1..
    int64_t separator,
    int64_t *places,       // (n_ids)
    int64_t *n_windows,    // (1)
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
    int64_t *keys,  // (n_places, window)
    int64_t n_ids, int64_t n_places, int64_t window) {
    for (int64_t n = 0; n < n_places; n++)
        if (places[n] < window) return WRONG_SIZE;
    fill_edge_keys(ids, places, n_places, window, (uint64_t)n_vocabulary, keys);
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

// The distinct tokens of every text in the order of their first occurrence, how often each occurs, and their offsets. Returns their number.
DOOR find_distinct(
    const int32_t *tokens,   // (n_entries)
    const int64_t *offsets,  // (n_offsets)
    int64_t *place,          // (n_tokens), zero before
    int32_t *distinct,       // (n_entries)
    int32_t *count,          // (n_entries) or none
    int64_t *bounds,         // (n_offsets)
    int64_t n_entries, int64_t n_offsets, int64_t n_tokens) {
    if (!n_offsets) return WRONG_SIZE;
    const int64_t found = find_distinct({tokens, offsets, n_entries, n_tokens}, n_offsets - 1, place, distinct, count, bounds);
    return found < 0 ? WRONG_SIZE : found;
}

// ---- text learner

// Outputs f of every text, by scores a and votes b of its tokens and those of the rest token.
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
    const VotesOfTokens model{a, b, n_outputs, rest_a, rest_b};
    for (int64_t i = 0; i < n_texts; i++) text_outputs(model, token + offsets[i], offsets[i + 1] - offsets[i], q, f + i * n_outputs);
    return 0;
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

// ---- embeddings

// Derivatives of the summed loss of some sequences by a and b, added to by_a and by_b, and the outputs f.
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
        f[n] = add_slopes(token + begin, count + begin, size, {a, b}, y[n], q, by_a, by_b);
    }
    return 0;
}
