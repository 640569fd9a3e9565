// Exports: what the conditions of theorems are decided by, tubes that descent provably never leaves, rates in any norm, and balls around minima.
#include "../any_norm.h"
#include "../attraction.h"
#include "../finite_minimum.h"
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
    const double *offsets,      // (n_offsets) of all tokens, or none
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
    int64_t batch, int64_t n_inputs, int64_t n_tokens, int64_t d, int64_t n_offsets) {
    const int64_t most = n_inputs * n_tokens;
    if (n_offsets && n_offsets != batch * most) return WRONG_SIZE;
    Arena arena;
    AttractionRows rows(arena, n_inputs, n_tokens, d);
    double *gram_room = arena.doubles(d * d), *right = arena.doubles(most), *rest = arena.doubles(most);
    int64_t *listed = arena.integers(most);
    if (arena.failed) return OUT_OF_MEMORY;
    rows.steepness = steepness;
    for (int64_t b = first; b < last; b++) {
        const double *direct = direction + b * d, *point = points + b * d;
        double *q = anchor + b * d;
        Tube tube{};
        for (int64_t k = 0; k < d; k++) q[k] = 0.0;
        TubeOutcome found = collect_rows(
            rows, keys + b * most * d, scores + b * most, n_offsets ? offsets + b * most : nullptr, lengths + b * n_inputs, selected + b * n_inputs, log_slope + b * n_inputs,
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

// Bounds on what steps to each vertex of the unit ball leave of the potential, Eq. (14), until all show the rate that is needed; see any_norm.h.
EXPORT bound_vertex_steps(
    const double *rows,  // (n_leading, d)
    int64_t by_signs,    // in 0..1 whether vertices are vectors of signs, else ±e_k
    double gamma,
    double length,
    double needed,
    double *duals,       // (n_turns, 1+d) κ, then z
    double *values,      // (n_turns) of the bounds without errors of the gradient
    double *slopes,      // (n_turns) κ + ‖z‖
    int64_t n_leading, int64_t d, int64_t n_turns) {
    if (!n_leading || !d || n_turns != (by_signs ? (int64_t)1 << smaller(d, (int64_t)40) : 2 * d)) return WRONG_SIZE;
    Arena arena;
    VertexBounds bounds(arena, rows, n_leading, d, by_signs != 0, gamma, length);
    double *room = arena.doubles(1 + d);
    bool *improved = arena.take<bool>(n_turns);
    if (arena.failed) return OUT_OF_MEMORY;
    bounds.find(needed, n_turns, duals, values, slopes, room, improved);
    return 0;
}

// The least that log F falls per unit of length if gradients err by up to ν.
EXPORT find_least_fall(
    const SteepestNumbers *numbers,
    const double *values,  // (n_turns) of bounds for vertices, if there are any
    const double *slopes,  // (n_turns)
    double nu,
    double *fall,          // (1)
    int64_t n_turns) {
    *fall = least_fall(*numbers, values, slopes, n_turns, nu);
    return 0;
}

// The rate at which log F falls from a point on, by X Theorem 4; 0 where its conditions do not hold. See any_norm.h.
EXPORT find_steepest_rate(
    const double *rows,         // (m, d)
    const double *delta,        // (m)
    const double *log_slope,    // (m)
    const int64_t *input,       // (m) in 0..n_inputs-1
    const bool *leading,        // (m)
    const double *multipliers,  // (n_others, n_leading)
    const double *rest,         // (n_others)
    const double *sizes,        // (n_others)
    const double *values,       // (n_turns)
    const double *slopes,       // (n_turns)
    const double *remembered,   // (3) the size of the memory, its error and its distance, without the ball
    const SteepestNumbers *numbers,
    const double *point,        // (d)
    double *others,             // (n_inputs) bounds on the attention of tokens that are not selected
    double *rate,               // (1)
    int64_t m, int64_t d, int64_t n_others, int64_t n_leading, int64_t n_turns, int64_t n_inputs) {
    int64_t count = 0;
    for (int64_t r = 0; r < m; r++) count += leading[r];
    if (count != n_leading || m - count != n_others || !count) return WRONG_SIZE;
    Arena arena;
    double *at = arena.doubles(m), *log_phi = arena.doubles(m), *plus = arena.doubles(n_inputs), *minus = arena.doubles(n_inputs);
    if (arena.failed) return OUT_OF_MEMORY;
    matvec(rows, m, d, point, at);
    const SteepestPlace place{
        at, delta, log_slope, input, leading, m, n_inputs, n_leading, multipliers, rest, sizes, values, slopes, n_turns, remembered,
        log_phi, others, plus, minus};
    *rate = place.rate(*numbers);
    return 0;
}

// A ball around a point in which the risk is strictly convex and has a minimum, from the smallest second derivative and the length of the
// gradient at the point. Returns 1 if there is one; ball: its radius, a bound on the curvature, and the radius of points it is shown for.
EXPORT find_ball(
    const double *keys,      // (n_inputs, n_tokens, d)
    const double *scores,    // (n_inputs, n_tokens)
    const int64_t *lengths,  // (n_inputs) in 1..n_tokens
    int64_t loss,            // in 0..2
    const double *point,     // (d)
    double smallest,
    double slope,
    double *ball,            // (3)
    int64_t n_inputs, int64_t n_tokens, int64_t d) {
    const TokenProblem problem{keys, scores, lengths, n_inputs, n_tokens, d};
    Arena arena;
    double *logits = arena.doubles(n_tokens);
    if (arena.failed) return OUT_OF_MEMORY;
    for (int64_t k = 0; k < 3; k++) ball[k] = 0.0;
    const double third = third_bound(problem, loss, point, 0.0, logits);
    if (!(smallest > 0.0 && third > 0.0)) return 0;
    double radius = smaller(0.25 * smallest / third, 1.0);
    while (radius * third_bound(problem, loss, point, radius, logits) > 0.5 * smallest) radius *= 0.5;
    const double curvature = 0.4 * smallest, tolerance = smaller(BALL_TOLERANCE * norm(point, d), 0.25 * radius);
    ball[0] = radius, ball[1] = curvature, ball[2] = tolerance;
    return tolerance + 2.0 * slope / curvature <= 0.9 * radius;
}
