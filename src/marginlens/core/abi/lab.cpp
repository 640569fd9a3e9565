// Exports: attention at points, descent in the plane from many starts and sectors that catch it, and descent on next-token weights with one-hot embeddings.
#include "../next_token_coefficients.h"
#include "../plane_sectors.h"
#include "abi.h"

// ℓ(margin).
static double loss_value(int64_t loss, double margin) {
    if (loss == LOGISTIC) return margin > 0.0 ? log1p(exp(-margin)) : -margin + log1p(exp(margin));
    return loss == EXPONENTIAL ? exp(-margin) : -margin;
}

// The probabilities of an input's tokens, n of them, from their logits; returns its margin: the score of the largest logit less what the
// others take away, so that it is exact where the softmax is saturated.
static double input_margin(const double *logits, const double *scores, int64_t n, double *probabilities) {
    const int64_t best = largest_of(logits, n);
    double mass = 0.0, delta = 0.0;
    for (int64_t t = 0; t < n; t++) {
        probabilities[t] = exp(logits[t] - logits[best]);
        mass += probabilities[t];
        delta += probabilities[t] * (scores[best] - scores[t]);
    }
    for (int64_t t = 0; t < n; t++) probabilities[t] /= mass;
    return scores[best] - delta / mass;
}

// Probabilities of all tokens, zero where there is none, margins of all inputs and the risk at every point p.
EXPORT measure_attention(
    const double *keys,      // (n_inputs, n_tokens, d)
    const double *scores,    // (n_inputs, n_tokens)
    const int64_t *lengths,  // (n_inputs) in 1..n_tokens
    int64_t loss,            // in 0..2
    const double *points,    // (batch, d)
    double *probabilities,   // (batch, n_inputs, n_tokens)
    double *margins,         // (batch, n_inputs)
    double *risks,           // (batch)
    int64_t n_inputs, int64_t n_tokens, int64_t d, int64_t batch) {
    const int64_t n = n_inputs, T = n_tokens, m = n * T;
    Arena arena;
    double *rows = arena.doubles(m * d), *mean = arena.doubles(d), *logits = arena.doubles(m);
    if (arena.failed) return OUT_OF_MEMORY;
    centre(keys, lengths, n, T, d, mean, rows);
    for (int64_t k = 0; k < batch * m; k++) probabilities[k] = 0.0;
    for (int64_t b = 0; b < batch; b++) {
        matvec(rows, m, d, points + b * d, logits);
        risks[b] = 0.0;
        for (int64_t i = 0; i < n; i++) {
            const double margin = input_margin(logits + i * T, scores + i * T, lengths[i], probabilities + b * m + i * T);
            margins[b * n + i] = margin;
            risks[b] += loss_value(loss, margin) / (double)n;
        }
    }
    return 0;
}

constexpr int64_t LOOK = 8;            // steps between two looks whether a run in the plane is caught
constexpr int64_t RETURN = 64;         // and whether it has come back to where it was
constexpr double RETURN_RTOL = 1e-12;  // of its coordinates, up to which it has

// Descent from every start with steps of one length, steepest in a norm: the starts become the ends, and each has the label of the sector
// (x, y, left, right, radius, turn) that caught it, n_sectors where it came back to where it was, else -1.
EXPORT descend_in_plane(
    const double *keys,      // (n_inputs, n_tokens, 2)
    const double *scores,    // (n_inputs, n_tokens)
    const int64_t *lengths,  // (n_inputs) in 1..n_tokens
    int64_t loss,            // in 0..2
    int64_t norm,            // in 0..3
    double power,
    const double *sectors,   // (n_sectors, 6)
    const double *sizes,     // (batch)
    const int64_t *n_steps,  // (batch) in 0..
    double *points,          // (batch, 2)
    int64_t *labels,         // (batch)
    int64_t n_inputs, int64_t n_tokens, int64_t n_sectors, int64_t batch) {
    Arena arena;
    double *rows = arena.doubles(2 * n_inputs * n_tokens), mean[2];
    const PlaneProblem problem{rows, scores, lengths, n_inputs, n_tokens, loss, norm, power};
    const PlaneGradient gradient(arena, problem);
    if (arena.failed) return OUT_OF_MEMORY;
    centre(keys, lengths, n_inputs, n_tokens, 2, mean, rows);
    int64_t which[N_LANES], left[N_LANES], next = 0, going = 0;
    Lanes x = spread(0.0), y = x, size = x, last_x = x, last_y = x;
    for (int64_t lane = 0; lane < N_LANES; lane++) which[lane] = -1, left[lane] = 0;
    auto end = [&](int64_t lane, int64_t label) {
        points[2 * which[lane]] = x[lane], points[2 * which[lane] + 1] = y[lane];
        labels[which[lane]] = label;
        which[lane] = -1, left[lane] = 0, size[lane] = 0.0;
        going--;
    };
    for (int64_t step = 0; next < batch || going > 0; step++) {
        for (int64_t lane = 0; lane < N_LANES; lane++) {
            if (which[lane] < 0 && step % LOOK == 0 && next < batch) {
                which[lane] = next, left[lane] = n_steps[next], size[lane] = sizes[next];
                x[lane] = last_x[lane] = points[2 * next], y[lane] = last_y[lane] = points[2 * next + 1];
                next++, going++;
            }
            if (which[lane] < 0) continue;
            const int64_t taken = n_steps[which[lane]] - left[lane];
            if (taken % LOOK == 0)
                for (int64_t k = 0; k < n_sectors && which[lane] >= 0; k++)
                    if (left[lane] > 0 && ((const Sector *)sectors)[k].holds(x[lane], y[lane], size[lane])) end(lane, k);
            if (which[lane] < 0) continue;
            if (taken > 0 && taken % RETURN == 0) {
                const double moved = modulus(x[lane] - last_x[lane]) + modulus(y[lane] - last_y[lane]);
                if (moved <= RETURN_RTOL * (modulus(x[lane]) + modulus(y[lane]))) end(lane, n_sectors);
                last_x[lane] = x[lane], last_y[lane] = y[lane];
            }
            if (which[lane] >= 0 && left[lane] == 0) end(lane, -1);
        }
        if (going == 0) continue;
        Lanes d_x, d_y;
        gradient.at(x, y, d_x, d_y);
        steepest_in_plane(gradient.problem, d_x, d_y);
        const Lanes x_next = x - size * d_x, y_next = y - size * d_y;
        for (int64_t lane = 0; lane < N_LANES; lane++) {
            const bool moves = (d_x[lane] != 0.0 || d_y[lane] != 0.0) && is_finite(x_next[lane] + y_next[lane]);
            if (which[lane] >= 0 && !moves) end(lane, -1);
            left[lane]--;
        }
        x = x_next, y = y_next;
    }
    return 0;
}

// The sector (x, y, left, right, radius, turn) that catches runs around the direction of a selection, with steps of one length that are steepest
// in ℓp. Returns 1 where one is proved, else 0.
EXPORT find_sector(
    const double *keys,       // (n_inputs, n_tokens, 2)
    const double *scores,     // (n_inputs, n_tokens)
    const double *blur,       // (n_inputs, n_tokens) what rounding can add to each score
    const int64_t *lengths,   // (n_inputs) in 1..n_tokens
    const int64_t *selected,  // (n_inputs) in 0..n_tokens-1
    const double *direction,  // (2)
    double power,             // the p of ℓp
    double log_slope_ratio,   // of the largest slope of the loss to the smallest
    double step,
    double *sector,           // (6)
    int64_t n_inputs, int64_t n_tokens) {
    Arena arena;
    const int64_t m = n_inputs * n_tokens;
    SectorRow *rows = arena.take<SectorRow>(m);
    double *margins = arena.doubles(m), *mass = arena.doubles(n_inputs), *shift = arena.doubles(n_inputs);
    if (arena.failed) return OUT_OF_MEMORY;
    int64_t n_rows = 0;
    for (int64_t i = 0; i < n_inputs; i++)
        for (int64_t t = 0; t < lengths[i]; t++) {
            const int64_t at = i * n_tokens + t, alpha = i * n_tokens + selected[i];
            if (at == alpha) continue;
            const Direction row{keys[2 * alpha] - keys[2 * at], keys[2 * alpha + 1] - keys[2 * at + 1]};
            const double gap = scores[alpha] - scores[at], doubt = blur[alpha] + blur[at];
            rows[n_rows++] = {row, gap - doubt, modulus(gap) + doubt, i};
        }
    const double size = norm(direction, 2);
    if (!(size > 0.0)) return 0;
    const Direction centre{direction[0] / size, direction[1] / size};
    return SectorProof{rows, n_rows, n_inputs, centre, power, log_slope_ratio, step, margins, mass, shift}.find((Sector *)sector);
}

// Descent on W with one-hot embeddings, for which it moves on the pairs (token, last token) that occur, alone, by the likelihood: steps up to
// `stop`, from where W, log_scale and end say it is.
EXPORT descend_one_hot(
    const int64_t *pair,      // (n_entries) in 0..n_pairs-1
    const double *log_count,  // (n_entries)
    const int64_t *span,      // (n_samples, 2) in 0..n_entries
    const double *share,      // (n_samples)
    int64_t normalized,       // in 0..1
    double step,
    int64_t stop,             // in 0..
    double *W,                // (n_pairs)
    double *log_scale,        // (1)
    int64_t *end,             // (2)
    int64_t n_entries, int64_t n_samples, int64_t n_pairs) {
    Arena arena;
    double *score = arena.doubles(n_entries), *w = arena.doubles(n_pairs), *next = arena.doubles(n_pairs);
    const NextTokenSamples samples{pair, nullptr, span, nullptr, log_count, score, share, nullptr, n_pairs, n_samples, n_entries, 1};
    if (arena.failed) return OUT_OF_MEMORY;
    if (!samples.fits(false)) return WRONG_SIZE;
    NextTokenArrays work(arena, n_entries, LikelihoodPlaces::n_rows(samples), n_samples, 1);
    if (arena.failed) return OUT_OF_MEMORY;
    for (int64_t k = 0; k < n_entries; k++) score[k] = 0.0;
    for (int64_t i = 0; i < n_samples; i++) score[span[2 * i]] = 1.0;  // of the label
    work.expect(*log_scale);
    work.places.fill(samples);
    *end = all_finite(W, n_pairs) ? RAN_ALL : NON_FINITE;
    for (int64_t &taken = end[1]; *end == RAN_ALL && taken < stop; taken++) {
        const double log_unit = next_token_weights(W, samples, LIKELIHOOD, w, work), reach = norm(w, n_pairs);
        const bool finite = subtract(W, normalized ? step / reach : step * exp(log_unit), w, n_pairs, next);
        if (reach == 0.0 || !finite) {
            *end = reach == 0.0 ? STATIONARY : NON_FINITE;
            break;
        }
        copy(next, n_pairs, W);
    }
    *log_scale = work.log_guess;
    return 0;
}
