// Doors: descent on v and p, descent on the weights W of next tokens, and the risk over cyclic components.
#include "../joint_descent.h"
#include "abi.h"

// Descent on v and p: steps up to `stop` of problems first … last - 1, from where v, p and ends say they are.
DOOR descend_jointly(
    int64_t first,              // in 0..last
    int64_t last,               // in 0..batch
    const double *tokens,       // (n_problems, n_inputs, n_tokens, d_model)
    const double *keys,         // (n_problems, n_inputs, n_tokens, d_key)
    const double *labels,       // (n_problems, n_inputs)
    const int64_t *lengths,     // (n_problems, n_inputs) in 1..n_tokens
    int64_t normalized,         // in 0..1
    double step,
    int64_t loss,               // in 0..2
    int64_t n_steps,            // in 0..
    int64_t stop,               // in 0..n_steps
    const int64_t *save,        // (n_saved)
    double *v,                  // (batch, d_model)
    double *p,                  // (batch, d_key)
    int64_t *ends,              // (batch, 2)
    double *heads,              // (batch, n_saved, d_model)
    double *points,             // (batch, n_saved, d_key)
    int64_t n_problems, int64_t n_inputs, int64_t n_tokens, int64_t d_model, int64_t d_key, int64_t batch, int64_t n_saved) {
    if (!n_problems) return WRONG_SIZE;
    Room room;
    JointProblem problem{tokens, keys, labels, lengths, n_inputs, n_tokens, d_model, d_key};
    const JointRoom work(room, problem);
    if (room.failed) return OUT_OF_MEMORY;
    for (int64_t b = first; b < last; b++) {
        const int64_t i = b % n_problems * n_inputs, t = i * n_tokens;
        problem = {tokens + t * d_model, keys + t * d_key, labels + i, lengths + i, n_inputs, n_tokens, d_model, d_key};
        descend_jointly(
            problem, {normalized != 0, step, loss}, {n_steps, stop, save, n_saved},
            {v + b * d_model, p + b * d_key, ends + 2 * b, ends + 2 * b + 1}, work, heads + b * n_saved * d_model,
            points + b * n_saved * d_key);
    }
    return 0;
}
