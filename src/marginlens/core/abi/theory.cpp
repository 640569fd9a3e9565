// Exports: what the conditions of theorems are decided by, and tubes that descent provably never leaves.
#include "../attraction.h"
#include "../token_optimality.h"
#include "abi.h"

// γ_α - γ_t of every token, zero where rounding can make the difference and where there is no token.
EXPORT compare_scores(
    const double *scores,     // (batch, n_inputs, n_tokens)
    const double *blur,       // (batch, n_inputs, n_tokens) what rounding can add to each score
    const int64_t *lengths,   // (batch, n_inputs) in 1..n_tokens
    const int64_t *selected,  // (batch, n_inputs) in 0..n_tokens-1
    double *differences,      // (batch, n_inputs, n_tokens)
    int64_t batch, int64_t n_inputs, int64_t n_tokens) {
    for (int64_t i = 0; i < batch * n_inputs; i++) {
        const int64_t alpha = i * n_tokens + selected[i];
        for (int64_t t = i * n_tokens; t < (i + 1) * n_tokens; t++) {
            const double gap = scores[alpha] - scores[t];
            differences[t] = t >= i * n_tokens + lengths[i] || modulus(gap) <= blur[alpha] + blur[t] ? 0.0 : gap;
        }
    }
    return 0;
}

// The neighbours of selections: the tokens that hold the margin of each, from the solutions of their ATT-SVM. Selections j, j + n_problems, …
// are of problem j.
EXPORT find_neighbours(
    const double *keys,         // (n_problems, n_inputs, n_tokens, d)
    const int64_t *lengths,     // (n_problems, n_inputs) in 1..n_tokens
    const int64_t *selected,    // (batch, n_inputs) in 0..n_tokens-1
    const double *x,            // (batch, d), nan where there is none
    const double *multipliers,  // (batch, n_inputs, n_tokens) of the other tokens
    bool *neighbours,           // (batch, n_inputs, n_tokens)
    int64_t n_problems, int64_t n_inputs, int64_t n_tokens, int64_t d, int64_t batch) {
    const int64_t n = n_inputs, T = n_tokens;
    if (batch > 0 && n_problems == 0) return WRONG_SIZE;
    Selection selection{keys, x, multipliers, lengths, selected, n, T, d};
    Arena arena;
    SupportRows support(arena, selection);
    double *row = arena.doubles(d);
    if (arena.failed) return OUT_OF_MEMORY;
    for (int64_t j = 0; j < batch; j++) {
        const int64_t problem = j % n_problems;
        selection.keys = keys + problem * n * T * d, selection.lengths = lengths + problem * n;
        selection.alpha = selected + j * n, selection.p = x + j * d, selection.multipliers = multipliers + j * n * T;
        find_neighbours(selection, support, row, neighbours + j * n * T);
    }
    return 0;
}

// For the points first … last - 1, each with its own problem: whether a tube around the ray of its max-margin direction holds the ball of
// radius `blur` around the point and is never left, see attraction.h.
//
// constants: along, deviation, radius, growth, share, step, progress of the tube.
EXPORT find_tubes(
    int64_t first,              // in 0..last
    int64_t last,               // in 0..batch
    const double *keys,         // (batch, n_inputs, n_tokens, d)
    const double *scores,       // (batch, n_inputs, n_tokens)
    const int64_t *lengths,     // (batch, n_inputs) in 1..n_tokens
    const int64_t *selected,    // (batch, n_inputs) in 0..n_tokens-1
    const double *log_slope,    // (batch, n_inputs)
    double steepness,
    const double *multipliers,  // (batch, n_inputs, n_tokens)
    const double *direction,    // (batch, d)
    const double *margin,       // (batch)
    const double *points,       // (batch, d)
    const double *blur,         // (batch)
    int64_t normalized,         // in 0..1
    double size,
    double *anchor,             // (batch, d)
    double *constants,          // (batch, 7)
    int64_t *outcome,           // (batch)
    int64_t batch, int64_t n_inputs, int64_t n_tokens, int64_t d) {
    const int64_t most = n_inputs * n_tokens;
    Arena arena;
    AttractionRows rows(arena, n_inputs, n_tokens, d);
    double *gram_room = arena.doubles(most * most), *right = arena.doubles(most), *rest = arena.doubles(most);
    int64_t *listed = arena.integers(most);
    if (arena.failed) return OUT_OF_MEMORY;
    rows.steepness = steepness;
    for (int64_t b = first; b < last; b++) {
        const double *direct = direction + b * d, *point = points + b * d;
        double *q = anchor + b * d;
        Tube tube{};
        for (int64_t k = 0; k < d; k++) q[k] = 0.0;
        TubeOutcome found = collect_rows(
            rows, keys + b * most * d, scores + b * most, lengths + b * n_inputs, selected + b * n_inputs, log_slope + b * n_inputs,
            multipliers + b * most, direct, margin[b], n_tokens);
        if (found == PROVED) found = find_anchor(rows, q, gram_room, right, rest, listed);
        if (found == PROVED) {
            const double along = dot(point, direct, d);
            double squares = 0.0;
            for (int64_t k = 0; k < d; k++) {
                const double beside = point[k] - along * direct[k] - q[k];
                squares += beside * beside;
            }
            const double around = (1.0 + ROOM_AROUND) * blur[b];
            tube.along = along - around, tube.deviation = square_root(squares) + around + rows.anchor_error;
            rows.spread = spread_of(rows);
            found = find_tube(rows, normalized != 0, size, tube);
        }
        outcome[b] = found;
        const double values[] = {tube.along, tube.deviation, tube.radius, tube.growth, tube.share, tube.step, tube.progress};
        copy(values, 7, constants + 7 * b);
    }
    return 0;
}
