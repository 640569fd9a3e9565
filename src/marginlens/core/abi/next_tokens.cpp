// Exports: descent on v and p, and on the weights W of next tokens.
#include "../joint_descent.h"
#include "../next_token_descent.h"
#include "abi.h"

// Descent on v and p: steps up to `stop` of problems first … last - 1, from where v, p and ends say they are.
EXPORT descend_jointly(
    int64_t first,              // in 0..last
    int64_t last,               // in 0..batch
    const double *tokens,       // (n_problems, n_inputs, n_tokens, d_model)
    const double *keys,         // (n_problems, n_inputs, n_tokens, d_key)
    const double *labels,       // (n_problems, n_inputs)
    const int64_t *lengths,     // (n_problems, n_inputs) in 1..n_tokens
    int64_t normalized,         // in 0..1
    double step,
    double power,               // of the mirror's potential, 2 for gradient descent
    int64_t loss,               // in 0..2
    int64_t n_steps,            // in 0..
    int64_t stop,               // in 0..n_steps
    const int64_t *save,        // (n_saved)
    double *v,                  // (batch, d_model) its image, as that of p
    double *p,                  // (batch, d_key)
    int64_t *ends,              // (batch, 2)
    double *heads,              // (batch, n_saved, d_model)
    double *points,             // (batch, n_saved, d_key)
    int64_t n_problems, int64_t n_inputs, int64_t n_tokens, int64_t d_model, int64_t d_key, int64_t batch, int64_t n_saved) {
    if (!n_problems || !(power > 1.0)) return WRONG_SIZE;
    Arena arena;
    JointProblem problem{tokens, keys, labels, lengths, n_inputs, n_tokens, d_model, d_key};
    const JointArrays work(arena, problem);
    if (arena.failed) return OUT_OF_MEMORY;
    for (int64_t b = first; b < last; b++) {
        const int64_t i = b % n_problems * n_inputs, t = i * n_tokens;
        problem = {tokens + t * d_model, keys + t * d_key, labels + i, lengths + i, n_inputs, n_tokens, d_model, d_key};
        descend_jointly(
            problem, {{normalized != 0, step, loss}, power}, {n_steps, stop, save, n_saved},
            {v + b * d_model, p + b * d_key, ends + 2 * b, ends + 2 * b + 1}, work, heads + b * n_saved * d_model,
            points + b * n_saved * d_key);
    }
    return 0;
}

// The weights of the next-token gradient at the logits a, written into w, and their scale's logarithm, nan where the loss is not finite.
EXPORT next_token_weights(
    const double *a,            // (n_pairs)
    const int64_t *pair,        // (n_entries)
    const double *log_count,    // (n_entries)
    const double *score,        // (n_entries)
    const int64_t *token,       // (n_entries)
    const int64_t *span,        // (n_samples, 2)
    const double *share,        // (n_samples)
    const int64_t *label,       // (n_samples)
    const double *head,         // (n_classes, n_classes)
    int64_t loss,               // in -2..3
    double *w,                  // (n_pairs)
    double *log_scale,          // (1)
    int64_t n_pairs, int64_t n_entries, int64_t n_samples, int64_t n_classes) {
    const NextTokenSamples samples{
        pair, token, span, label, log_count, score, share, head, n_pairs, n_samples, n_entries, n_classes};
    if (loss == -1 || !samples.fits(loss >= CROSS_ENTROPY)) return WRONG_SIZE;
    Arena arena;
    NextTokenArrays work(arena, n_entries, LikelihoodPlaces::n_rows(samples), n_samples, n_classes);
    if (arena.failed) return OUT_OF_MEMORY;
    if (loss == LIKELIHOOD) work.places.fill(samples);
    *log_scale = all_finite(a, n_pairs) ? next_token_weights(a, samples, loss, w, work) : NOT_A_NUMBER;
    return 0;
}

// Descent on W: steps up to `stop` of problems first … last - 1, from where states, logits, scales and ends say they are.
//
// `parts` says where each problem's pairs, queries, samples, entries, head and tokens begin; a problem's pairs, samples' spans and entries
// count from there, `token` and `queries` among all tokens. The state of a run is one of the three of
// next_token_descent.h, as its width says.
// A Gram matrix in `gram` serves several calls on one problem: it is filled where has_gram is 0.
EXPORT descend_next_tokens(
    int64_t first,              // in 0..last
    int64_t last,               // in 0..batch
    const double *centred,      // (n_tokens, d)
    const double *embeddings,   // (n_tokens, d)
    const int64_t *token,       // (n_pairs)
    const int64_t *query,       // (n_pairs)
    const int64_t *queries,     // (n_queries) in 0..n_tokens-1
    const int64_t *pair,        // (n_entries)
    const double *log_count,    // (n_entries)
    const double *score,        // (n_entries)
    const int64_t *entry_token, // (n_entries)
    const int64_t *span,        // (n_samples, 2)
    const double *share,        // (n_samples)
    const int64_t *label,       // (n_samples)
    const double *heads,        // (n_heads)
    const int64_t *parts,       // (batch+1, 6)
    const double *start,        // (batch, d, d)
    int64_t normalized,         // in 0..1
    double step,
    int64_t loss,               // in -2..3
    int64_t n_steps,            // in 0..
    int64_t stop,               // in 0..n_steps
    const int64_t *save,        // (n_saved)
    double *states,             // (n_states)
    const int64_t *offsets,     // (batch+1) in 0..n_states
    double *logits,             // (n_pairs)
    double *scales,             // (batch)
    int64_t *ends,              // (batch, 2)
    double *gram,               // (gram_size)
    int64_t *has_gram,          // (1)
    double *out,                // (batch, n_saved, d, d)
    int64_t n_tokens, int64_t d, int64_t n_pairs, int64_t n_queries, int64_t n_entries, int64_t n_samples, int64_t n_heads, int64_t batch,
    int64_t n_saved, int64_t n_states, int64_t gram_size) {
    const int64_t totals[6] = {n_pairs, n_queries, n_samples, n_entries, n_heads, n_tokens};
    const bool whole_head = loss >= CROSS_ENTROPY;
    NextTokenSizes sizes;
    auto problem_of = [&](int64_t b) {
        const int64_t *at = parts + 6 * b, K = at[11] - at[5];
        const NextTokenSamples samples{
            pair + at[3], entry_token + at[3], span + 2 * at[2], label + at[2], log_count + at[3], score + at[3], share + at[2],
            heads + at[4], at[6] - at[0], at[8] - at[2], at[9] - at[3], whole_head ? K : 1};
        return NextTokenProblem{
            centred + at[5] * d, embeddings, token + at[0], query + at[0], queries + at[1], K, at[7] - at[1], at[6] - at[0], d, at[5],
            samples};
    };
    auto run_of = [&](int64_t b) {
        return NextTokenRun{
            states + offsets[b], logits + parts[6 * b], scales + b, offsets[b + 1] - offsets[b], ends + 2 * b, ends + 2 * b + 1};
    };
    for (int64_t b = first; b < last; b++) {
        for (int64_t j = 0; j < 6; j++) {
            const int64_t begin = parts[6 * b + j], end = parts[6 * b + 6 + j];
            if (begin < 0 || end < begin || end > totals[j]) return WRONG_SIZE;
        }
        const NextTokenProblem x = problem_of(b);
        const NextTokenRun run = run_of(b);
        const int64_t gram_of = run.kind(x) == OF_PAIRS ? x.n_pairs * whole_lanes(x.n_pairs) : 0;
        if (whole_head && parts[6 * b + 10] - parts[6 * b + 4] != x.n_tokens * x.n_tokens) return WRONG_SIZE;
        if (loss == -1 || !run.fits(x) || !x.fits(whole_head) || (gram_of && gram_size && gram_size != gram_of)) return WRONG_SIZE;
        sizes.include(x, run, gram_size ? 0 : gram_of);
    }
    Arena arena;
    NextTokenWork work(arena, sizes, d);
    if (arena.failed) return OUT_OF_MEMORY;
    for (int64_t b = first; b < last; b++) {
        descend_next_tokens(
            problem_of(b), start + b * d * d, {normalized != 0, step, loss}, {n_steps, stop, save, n_saved}, run_of(b), work,
            gram_size ? gram : nullptr, gram_size && *has_gram, out + b * n_saved * d * d);
        *has_gram = gram_size > 0;
    }
    return 0;
}
