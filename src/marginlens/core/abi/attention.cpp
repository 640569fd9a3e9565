// Exports: descent on p, gradient weights, logits.
#include "../attention_descent.h"
#include "abi.h"

// Gradient descent on p: steps up to `stop` of problems first … last - 1, from where states, logits and ends say they are.
//
// The state of a run is p itself where width = d, else its coefficients over the n_places keys. A Gram matrix in `gram` serves several calls on
// one problem: it is filled where has_gram is 0.
EXPORT descend_attention(
    int64_t first,               // in 0..last
    int64_t last,                // in 0..batch
    const double *keys,          // (n_problems, n_inputs, n_tokens, d)
    const double *scores,        // (n_problems, n_inputs, n_tokens)
    const int64_t *lengths,      // (n_problems, n_inputs) in 1..n_tokens
    const double *offsets,       // (n_offsets) of all tokens, or none
    const double *start,         // (batch, d)
    int64_t normalized,          // in 0..1
    double step,
    int64_t loss,                // in 0..4
    int64_t n_steps,             // in 0..
    int64_t stop,                // in 0..n_steps
    const int64_t *save,         // (n_saved)
    double *states,              // (batch, width)
    double *logits,              // (batch, n_places)
    int64_t *ends,               // (batch, 2)
    double *gram,                // (gram_size)
    int64_t *has_gram,           // (1)
    double *out,                 // (batch, n_saved, d)
    int64_t n_problems, int64_t n_inputs, int64_t n_tokens, int64_t d, int64_t batch, int64_t n_saved, int64_t width, int64_t n_places,
    int64_t gram_size, int64_t n_offsets) {
    const int64_t m = ::n_places(n_inputs, n_tokens);
    if (n_places != m || (width != d && width != m) || (width == m && gram_size && gram_size != m * m) || !n_problems) return WRONG_SIZE;
    if (n_offsets && n_offsets != n_problems * n_inputs * n_tokens) return WRONG_SIZE;
    Arena arena;
    const TokenProblem shape{keys, scores, lengths, n_inputs, n_tokens, d};
    const int together = last - first > 1 && !gram_size && m <= SMALL_PROBLEM ? 2 : 1;
    AttentionArrays work[2] = {AttentionArrays(arena, shape, gram_size ? d : width), AttentionArrays(arena, shape, gram_size ? d : width)};
    if (arena.failed) return OUT_OF_MEMORY;
    if (gram_size) work[0].gram = gram;
    const Steps steps{n_steps, stop, save, n_saved};
    for (int64_t b = first; b < last; b += together) {
        AttentionDescent runs[2];
        const int count = (int)smaller((int64_t)together, last - b);
        for (int q = 0; q < count; q++) {
            const int64_t j = (b + q) % n_problems, n = n_inputs * n_tokens;
            int64_t *end = ends + 2 * (b + q);
            runs[q].problem = {keys + j * n * d, scores + j * n, lengths + j * n_inputs, n_inputs, n_tokens, d};
            if (n_offsets) runs[q].problem.offsets = offsets + j * n;
            runs[q].arrays = &work[q];
            runs[q].run = {states + (b + q) * width, logits + (b + q) * m, width, end, end + 1};
            runs[q].out = out + (b + q) * n_saved * d;
            runs[q].rule = {normalized != 0, step, loss};
            runs[q].m = m;
            runs[q].in_keys = width != m;
            runs[q].prepare(start + (b + q) * d, steps, gram_size && *has_gram);
        }
        descend_attention(runs, count, steps);
        *has_gram = gram_size > 0;
    }
    return 0;
}
