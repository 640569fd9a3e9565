// Doors: descent on p, gradient weights, logits.
#include "../attention_descent.h"
#include "abi.h"

// Gradient descent on p: steps up to `stop` of problems first … last - 1, from where states, logits and ends say they are.
//
// The state of a run is p itself where width = d, else its coefficients over the n_places keys. A Gram matrix in `gram` serves several calls on
// one problem: it is filled where has_gram is 0.
DOOR descend_attention(
    int64_t first,               // in 0..last
    int64_t last,                // in 0..batch
    const double *keys,          // (n_problems, n_inputs, n_tokens, d)
    const double *scores,        // (n_problems, n_inputs, n_tokens)
    const int64_t *lengths,      // (n_problems, n_inputs) in 1..n_tokens
    const double *start,         // (batch, d)
    int64_t normalized,          // in 0..1
    double step,
    int64_t loss,                // in 0..2
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
    int64_t gram_size) {
    const int64_t m = ::n_places(n_inputs, n_tokens);
    if (n_places != m || (width != d && width != m) || (width == m && gram_size && gram_size != m * m) || !n_problems) return WRONG_SIZE;
    Room room;
    TokenProblem problem{keys, scores, lengths, n_inputs, n_tokens, d};
    AttentionRoom work(room, problem, gram_size ? d : width);
    if (room.failed) return OUT_OF_MEMORY;
    if (gram_size) work.gram = gram;
    for (int64_t b = first; b < last; b++) {
        const int64_t j = b % n_problems;
        problem = {keys + j * n_inputs * n_tokens * d, scores + j * n_inputs * n_tokens, lengths + j * n_inputs, n_inputs, n_tokens, d};
        const AttentionRun run{states + b * width, logits + b * m, width, ends + 2 * b, ends + 2 * b + 1};
        descend_attention(
            problem, start + b * d, {normalized != 0, step, loss}, {n_steps, stop, save, n_saved}, run, work, gram_size && *has_gram,
            out + b * n_saved * d);
        *has_gram = gram_size > 0;
    }
    return 0;
}
