// Doors: steps and sums of embeddings in single and in double precision. The file includes itself once for each, which names the doors.
#ifndef IN_PRECISION
#include "../embeddings.h"
#include "abi.h"
#define Real float
#define IN_PRECISION(name) name##_float32
#include "embeddings.cpp"
#undef Real
#undef IN_PRECISION
#define Real double
#define IN_PRECISION(name) name##_float64
#include "embeddings.cpp"
#else

// One step of AdamW on rows first … last - 1 of E with the gradient x pᵀ + y vᵀ, and the new rows' products with the new p and v.
DOOR IN_PRECISION(step_embeddings)(
    int64_t first,           // in 0..last
    int64_t last,            // in 0..n_tokens
    Real *E,                 // (n_tokens, d)
    Real *M,                 // (n_tokens, d)
    Real *S,                 // (n_tokens, d)
    const Real *x,           // (n_tokens)
    const Real *y,           // (n_tokens)
    const Real *p,           // (d)
    const Real *v,           // (d)
    const Real *new_p,       // (d)
    const Real *new_v,       // (d)
    const Real *constants,   // (7)
    Real *a,                 // (n_tokens)
    Real *b,                 // (n_tokens)
    int64_t n_tokens, int64_t d) {
    const Real *c = constants;
    const AdamW<Real> adamw{c[0], c[1], c[2], c[3], c[4], c[5], c[6]};
    for (int64_t k = first; k < last; k++) step_row<Real>({E, M, S, d}, k, {p, v, new_p, new_v}, x[k], y[k], adamw, a[k], b[k]);
    return 0;
}

// Eᵀx and Eᵀy over rows of E, each of shares first … last - 1 of the rows into its own sums.
DOOR IN_PRECISION(sum_embeddings)(
    int64_t first,        // in 0..last
    int64_t last,         // in 0..n_shares
    const Real *E,        // (n_tokens, d)
    const int64_t *rows,  // (n_rows) in 0..n_tokens-1
    const Real *x,        // (n_tokens)
    const Real *y,        // (n_tokens)
    Real *sums,           // (n_shares, 2, d)
    int64_t n_tokens, int64_t d, int64_t n_rows, int64_t n_shares) {
    for (int64_t share = first; share < last; share++) {
        const int64_t begin = n_rows * share / n_shares, end = n_rows * (share + 1) / n_shares;
        sum_rows<Real>({E, x, y, d}, rows + begin, end - begin, sums + 2 * share * d, sums + (2 * share + 1) * d);
    }
    return 0;
}

#endif
