// Exports: the gradient flow on p, and its field.
#include "../attention_flow.h"
#include "abi.h"

// The gradient flow of one problem from c for an arc length, or until a step is shorter than `short_step`; how it ends, see attention_flow.h.
EXPORT follow_attention(
    const double *keys,      // (n_inputs, n_tokens, d)
    const double *norms,     // (n_inputs, n_tokens) of the keys
    const double *scores,    // (n_inputs, n_tokens)
    const int64_t *lengths,  // (n_inputs)
    int64_t loss,            // in 0..4
    const FlowSettings *settings,
    double *c,               // (d)
    FlowState *state,
    int64_t n_inputs, int64_t n_tokens, int64_t d) {
    for (int64_t i = 0; i < n_inputs; i++)
        if (lengths[i] < 1 || lengths[i] > n_tokens) return WRONG_SIZE;
    const TokenProblem problem{keys, scores, lengths, n_inputs, n_tokens, d};
    Arena arena;
    AttentionFlow flow(arena, problem, loss, norms, *settings, c, *state);
    return arena.failed ? OUT_OF_MEMORY : flow.follow();
}

// A positive multiple of ∇L at c, of keys with these norms, and the length it would have if no two of its terms cancelled.
EXPORT attention_gradient(
    const double *keys,      // (n_inputs, n_tokens, d)
    const double *norms,     // (n_inputs, n_tokens)
    const double *scores,    // (n_inputs, n_tokens)
    const int64_t *lengths,  // (n_inputs)
    int64_t loss,            // in 0..4
    const double *c,         // (d)
    double *gradient,        // (d)
    double *terms,           // (1)
    int64_t n_inputs, int64_t n_tokens, int64_t d) {
    for (int64_t i = 0; i < n_inputs; i++)
        if (lengths[i] < 1 || lengths[i] > n_tokens) return WRONG_SIZE;
    const TokenProblem problem{keys, scores, lengths, n_inputs, n_tokens, d};
    Arena arena;
    FlowField field(arena, problem, loss);
    double *direction = arena.doubles(d);
    if (arena.failed) return OUT_OF_MEMORY;
    field.evaluate(c, direction);
    copy(field.gradient, d, gradient);
    *terms = field.terms(norms);
    return 0;
}
