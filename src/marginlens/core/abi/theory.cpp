// Doors: what the conditions of theorems are decided by.
#include "../token_optimality.h"
#include "abi.h"

// γ_α - γ_t of every token, zero where rounding can make the difference and where there is no token.
DOOR compare_scores(
    const double *scores,     // (batch, n_inputs, n_tokens)
    const double *blur,       // (batch, n_inputs, n_tokens) what rounding can add to each score
    const int64_t *lengths,   // (batch, n_inputs) in 1..n_tokens
    const int64_t *selected,  // (batch, n_inputs) in 0..n_tokens-1
    double *differences,      // (batch, n_inputs, n_tokens)
    int64_t batch, int64_t n_inputs, int64_t n_tokens) {
    for (int64_t i = 0; i < batch * n_inputs; i++) {
        const int64_t at = i * n_tokens;
        for (int64_t t = lengths[i]; t < n_tokens; t++) differences[at + t] = 0.0;
        score_differences(scores + at, blur + at, lengths[i], selected[i], differences + at);
    }
    return 0;
}

// The neighbours of selections: the tokens that hold the margin of each, from the solutions of their ATT-SVM. Selections j, j + n_problems, …
// are of problem j.
DOOR find_neighbours(
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
    Room room;
    SupportRows support(room, selection);
    double *row = room.doubles(d);
    if (room.failed) return OUT_OF_MEMORY;
    for (int64_t j = 0; j < batch; j++) {
        const int64_t problem = j % n_problems;
        selection.keys = keys + problem * n * T * d, selection.lengths = lengths + problem * n;
        selection.alpha = selected + j * n, selection.p = x + j * d, selection.multipliers = multipliers + j * n * T;
        find_neighbours(selection, support, row, neighbours + j * n * T);
    }
    return 0;
}
