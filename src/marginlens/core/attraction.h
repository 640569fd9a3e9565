// Tubes around the ray of a max-margin direction which descent on p provably never leaves: X Theorem 1, proved in docs/proofs/attraction.md.
//
// With p = P p̄ + q, q ⊥ p̄, the tube is { P ≥ P_0, ‖q - q*‖ ≤ R + (K / 2R) (P - P_0) }. A row a = k_α - k_t belongs to a token that is not
// selected; Δ is how much lower its score is than that of the selected one.
#pragma once
#include "exponential.h"
#include "linear_algebra.h"
#include "steepness.h"
#include "arena.h"

enum TubeOutcome : int64_t {
    PROVED = 0,
    SUPPORT_SCORES_HIGHER = 1,  // a token on the margin has at least the score of the selected one
    DEPENDENT_SUPPORT = 2,      // the rows that carry the margin are linearly dependent, or nearly so
    TIGHT_WITHOUT_WEIGHT = 3,   // a row is on the margin and carries nothing of it
    WEIGHTS_TOO_LARGE = 4,      // tokens that are not selected still have too much of the attention
    OUTWEIGHED = 5,             // tokens of higher score still pull as much as those on the margin
    TUBE_TOO_STEEP = 6,         // the tube would grow faster than gaps between logits do
    TUBE_TOO_NARROW = 7,        // what the drift adds up to does not fit
};

constexpr double NO_MULTIPLIER = 1e-9;  // share of the largest multiplier below which a row carries nothing
constexpr double NO_SLACK = 1e-9;       // by which share of the margin other rows have to be beyond it
constexpr double NO_PIVOT = 1e-10;      // share of the largest diagonal entry of a Gram matrix below which rows count as dependent
constexpr double SLOW = 0.1;            // share of R² that the sum over one row may take
constexpr double ANCHOR_ERROR = 1e-13;  // of q*, over 1/max ‖a‖, times the cube of the smallest pivot; ten times the largest seen
constexpr double ROOM = 1e-6;           // share of a constant that is left to the rounding of all of this
constexpr double ROOM_AROUND = 0.01;    // the same of the radius of the ball around the point
constexpr double EULER = 2.718281828459045;
constexpr int64_t PAIRWISE_ROWS = 64;   // up to which the spread of the rows is taken over all pairs

// The constants of a tube. `step` bounds the length of a step; `progress` is θ', the least that a unit of mass moves along p̄.
struct Tube {
    double along, deviation, radius, growth, share, step, progress;
};

struct AttractionRows {
    int64_t m = 0, d;
    double *a, *along, *wide, *at_anchor, *delta, *lead, *multiplier, *slope, *raise, *fall, *tau;
    int64_t *input;
    double *share_of_others;  // of each input: a bound on the attention that tokens have that are not selected
    double theta, level, spread, steepness, anchor_error;
    int64_t n;

    AttractionRows(Arena &arena, int64_t n_inputs, int64_t n_tokens, int64_t width) : d(width), n(n_inputs) {
        const int64_t most = n_inputs * n_tokens;
        a = arena.doubles(most * width);
        along = arena.doubles(most), wide = arena.doubles(most), at_anchor = arena.doubles(most), delta = arena.doubles(most), lead = arena.doubles(most);
        multiplier = arena.doubles(most), slope = arena.doubles(most), raise = arena.doubles(most), fall = arena.doubles(most), tau = arena.doubles(most);
        input = arena.integers(most);
        share_of_others = arena.doubles(n_inputs);
    }

    bool carries(int64_t r) const { return multiplier[r] > 0.0; }
    double slack(int64_t r) const { return along[r] - theta; }
};

// The rows of one problem, and how far each is along the direction and beside it.
//
// log_slope: log(-ℓ'(γ_α) / n) of each input. offsets: what is added to the logits, (n, T), null for nothing; `lead` becomes b_α - b_t. multipliers: (n, T) with Σ λ a = p̄, zero at selected tokens. `raise` and `fall` become the largest
// positive and negative Δ of the row's input.
static inline TubeOutcome collect_rows(
    AttractionRows &rows, const double *keys, const double *scores, const double *offsets, const int64_t *lengths, const int64_t *selected,
    const double *log_slope, const double *multipliers, const double *direction, double margin, int64_t T) {
    const int64_t d = rows.d;
    rows.m = 0, rows.theta = margin;
    double largest = 0.0;
    for (int64_t k = 0; k < rows.n * T; k++) largest = larger(largest, multipliers[k]);
    for (int64_t i = 0; i < rows.n; i++) {
        const int64_t first = rows.m, chosen = i * T + selected[i];
        double raise = 0.0, fall = 0.0;
        for (int64_t t = 0; t < lengths[i]; t++) {
            if (t == selected[i]) continue;
            const int64_t r = rows.m++;
            double *a = rows.a + r * d;
            for (int64_t k = 0; k < d; k++) a[k] = keys[chosen * d + k] - keys[(i * T + t) * d + k];
            rows.along[r] = dot(a, direction, d);
            rows.wide[r] = square_root(larger(0.0, dot(a, a, d) - rows.along[r] * rows.along[r]));
            rows.delta[r] = scores[chosen] - scores[i * T + t];
            rows.lead[r] = offsets ? offsets[chosen] - offsets[i * T + t] : 0.0;
            rows.multiplier[r] = multipliers[i * T + t] > NO_MULTIPLIER * largest ? multipliers[i * T + t] : 0.0;
            rows.slope[r] = log_slope[i];
            rows.input[r] = i;
            raise = larger(raise, rows.delta[r]), fall = larger(fall, -rows.delta[r]);
            if (rows.carries(r) && !(rows.delta[r] > 0.0)) return SUPPORT_SCORES_HIGHER;
            if (!rows.carries(r) && !(rows.slack(r) > NO_SLACK * margin)) return TIGHT_WITHOUT_WEIGHT;
        }
        for (int64_t r = first; r < rows.m; r++) rows.raise[r] = raise, rows.fall[r] = fall;
    }
    return PROVED;
}

// q* with a · q* = log(C_r / λ_r) less its mean for the rows of the margin, C_r = c_i Δ_r e^-(b_α - b_t): the deviation from the ray at which these rows pull
// exactly along it. The Gram matrix squares the condition of the rows, so its solution is corrected by what it leaves of the equations for
// the rows themselves. What is left is the rounding of the rows, which their condition multiplies: of each a · q* the lowest value is kept,
// and the lead b_α - b_t that offsets give its logit is added, as the bounds have no other use for either.
// `gram_room` has d² numbers, `right`, `rest` and `listed` m.
static inline TubeOutcome find_anchor(
    AttractionRows &rows, double *anchor, double *gram_room, double *right, double *rest, int64_t *listed) {
    int64_t count = 0;
    const int64_t stride = rows.d;
    rows.level = 0.0;
    for (int64_t r = 0; r < rows.m; r++) {
        if (!rows.carries(r)) continue;
        right[count] = rows.slope[r] + log(rows.delta[r]) - log(rows.multiplier[r]) - rows.lead[r];
        rows.level += rows.theta * rows.multiplier[r] * right[count];
        listed[count++] = r;
    }
    if (!count || count > stride) return DEPENDENT_SUPPORT;
    gram(rows.a, rows.d, listed, count, 0, gram_room, stride);
    double scale = 0.0;
    for (int64_t k = 0; k < count; k++) scale = larger(scale, gram_room[k * stride + k]), right[k] -= rows.level;
    if (cholesky(gram_room, count, stride, NO_PIVOT * scale) >= 0) return DEPENDENT_SUPPORT;
    for (int64_t k = 0; k < rows.d; k++) anchor[k] = 0.0;
    for (int64_t round = 0; round < 3; round++) {
        for (int64_t j = 0; j < count; j++) rest[j] = right[j] - dot(rows.a + listed[j] * rows.d, anchor, rows.d);
        solve_factored(gram_room, count, stride, rest);
        for (int64_t j = 0; j < count; j++)
            for (int64_t k = 0; k < rows.d; k++) anchor[k] += rest[j] * rows.a[listed[j] * rows.d + k];
    }
    const double longest = square_root(scale);
    double pivot = 1.0;
    for (int64_t k = 0; k < count; k++) pivot = smaller(pivot, gram_room[k * stride + k] / longest);
    rows.anchor_error = ANCHOR_ERROR * (1.0 / longest + pivot * norm(anchor, rows.d)) / (pivot * pivot * pivot);
    for (int64_t r = 0; r < rows.m; r++)
        rows.at_anchor[r] = dot(rows.a + r * rows.d, anchor, rows.d) - rows.wide[r] * rows.anchor_error + rows.lead[r];
    return PROVED;
}

// The largest distance beside the ray between rows of tokens that score below the selected one, or a bound on it.
static inline double spread_of(const AttractionRows &rows) {
    double widest = 0.0, spread = 0.0;
    for (int64_t r = 0; r < rows.m; r++) widest = rows.delta[r] > 0.0 ? larger(widest, rows.wide[r]) : widest;
    if (rows.m > PAIRWISE_ROWS) return 2.0 * widest;
    for (int64_t r = 0; r < rows.m; r++)
        for (int64_t s = 0; s < r; s++) {
            if (!(rows.delta[r] > 0.0 && rows.delta[s] > 0.0)) continue;
            double squares = 0.0;
            for (int64_t k = 0; k < rows.d; k++) {
                const double difference = rows.a[r * rows.d + k] - rows.a[s * rows.d + k];
                squares += difference * difference;
            }
            const double apart = rows.along[r] - rows.along[s];
            spread = larger(spread, squares - apart * apart);
        }
    return square_root(spread);
}

// Whether a tube of radius R is proved, and its constants; the letters are those of the proof.
//
// size: η, a bound on the length of normalised steps, or what plain steps multiply the gradient by; 0 for the flow.
static inline TubeOutcome try_tube(AttractionRows &rows, double R, double psi, bool normalized, double size, Tube &tube) {
    const double P = tube.along, theta = rows.theta;
    tube.radius = R, tube.share = psi;
    for (int64_t i = 0; i < rows.n; i++) rows.share_of_others[i] = 0.0;
    for (int64_t r = 0; r < rows.m; r++)
        rows.share_of_others[rows.input[r]] += exp(rows.wide[r] * R - rows.along[r] * P - rows.at_anchor[r]);
    double log_high = 0.0, log_low = 0.0, step = normalized ? size : 0.0;
    for (int64_t r = 0; r < rows.m; r++) {
        const double eps = rows.share_of_others[rows.input[r]], raise = rows.raise[r], fall = rows.fall[r], delta = rows.delta[r];
        const double steepness = steepness_near(rows.steepness, rows.slope[r], eps, raise);
        if (!(eps < 1.0 && steepness >= 0.0)) return WEIGHTS_TOO_LARGE;
        if (!normalized) {
            const double length = square_root(rows.along[r] * rows.along[r] + rows.wide[r] * rows.wide[r]);
            const double pull = exp(rows.slope[r] + eps * steepness * raise + rows.wide[r] * R - rows.along[r] * P - rows.at_anchor[r]);
            step += size * pull * (modulus(delta) + eps * larger(raise, fall)) * length;
        }
        if (!rows.carries(r)) continue;
        if (!(eps * raise < delta)) return WEIGHTS_TOO_LARGE;
        log_high = larger(log_high, eps * (steepness * raise + fall / delta));
        log_low = larger(log_low, eps * steepness * fall - log1p(-eps) - log1p(-eps * raise / delta));
    }
    const double variation = log_high + log_low, low = exp(-log_low);
    // rows beyond the margin: those that pull forward, by what they add to the mass (o), and the others (τ)
    double forward_sum = 0.0, forward_wide = 0.0, forward_rate = INF, forward_integral = 0.0, backward_along = 0.0, backward_wide = 0.0;
    double widest_support = 0.0, steepest = 0.0, slow_sum = 0.0;
    for (int64_t r = 0; r < rows.m; r++) {
        const double eps = rows.share_of_others[rows.input[r]], raise = rows.raise[r], fall = rows.fall[r], delta = rows.delta[r];
        if (rows.carries(r)) widest_support = larger(widest_support, rows.wide[r]);
        steepest = larger(steepest, rows.wide[r] / rows.along[r]);
        rows.tau[r] = -1.0;  // not backward
        if (rows.carries(r)) continue;
        const double steepness = steepness_near(rows.steepness, rows.slope[r], eps, raise);
        const double weight = theta * exp(rows.slope[r] + eps * steepness * raise - rows.level - rows.slack(r) * P - rows.at_anchor[r]);
        if (delta > 0.0 && eps * raise <= delta) {
            const double o = weight * (delta + eps * fall);
            forward_wide += o * rows.wide[r];
            if (o > SLOW * R * R * theta * rows.slack(r)) {  // it stays for too long to be summed up: let the tube grow instead
                slow_sum += o;
            } else {
                forward_sum += o, forward_integral += o / rows.slack(r);
                forward_rate = smaller(forward_rate, rows.slack(r));
            }
            continue;
        }
        const double tau = weight * (modulus(delta) + eps * larger(raise, fall)) * exp(rows.wide[r] * R) / low;
        rows.tau[r] = tau;
        backward_along += tau * rows.along[r], backward_wide += tau * rows.wide[r];
        steepest = larger(steepest, rows.wide[r] / rows.slack(r));
    }
    const double progress = (1.0 - ROOM) * (theta - backward_along);
    if (!(progress > 0.0)) return OUTWEIGHED;
    const double e = 0.5 * widest_support * expm1(variation) + forward_wide / low + backward_wide;
    // A² is no smaller than θ'/h, so that short steps have K = 0 and a finite term of e² where all rows lie on the ray
    const double A2 = rows.spread * rows.spread / (4.0 * (1.0 - psi));
    double sideways = step * e * e / (progress * psi), grown = 0.0;
    if (step * A2 > (1.0 - ROOM) * progress) sideways = e * e / (A2 * psi), grown = step * step * A2 / 4.0;
    tube.step = step, tube.progress = progress;
    tube.growth = (1.0 + ROOM) * (grown + 2.0 * log1p(slow_sum) + (slow_sum > 0.0 ? sideways : 0.0)) / progress;
    const double kappa = tube.growth / (2.0 * R);
    if (!(kappa * steepest < 1.0)) return TUBE_TOO_STEEP;
    double rate = INF, backward_integral = 0.0;
    for (int64_t r = 0; r < rows.m; r++) rate = smaller(rate, rows.along[r] - rows.wide[r] * kappa);
    double slowest = smaller(rate, forward_rate);
    for (int64_t r = 0; r < rows.m; r++) {
        if (rows.tau[r] < 0.0) continue;
        const double decay = rows.slack(r) - rows.wide[r] * kappa;
        const double high = R + 2.0 * kappa / (EULER * decay);  // (R + κx) e^(-decay x) falls, or is below high · e^(-decay x / 2)
        backward_integral += rows.tau[r] * rows.wide[r] *
                             (decay * R > kappa ? R / decay + kappa / (decay * decay) + step * R : high * (2.0 / decay + step));
        slowest = smaller(slowest, decay);
    }
    double drift = variation * (1.0 / rate + step) + forward_integral + forward_sum * step + backward_integral;
    if (!(slow_sum > 0.0)) drift += 0.5 * sideways * (0.5 / slowest + step);
    const double needed = tube.deviation * tube.deviation + 2.0 * drift / progress;
    return needed <= (1.0 - ROOM) * R * R ? PROVED : TUBE_TOO_NARROW;  // also where the drift is nan
}

// The tube of the smallest radius among a few that is proved; else why the last one is not.
static inline TubeOutcome find_tube(AttractionRows &rows, bool normalized, double size, Tube &tube) {
    constexpr double SHARES[] = {0.1, 0.3, 0.5}, FACTORS[] = {1.02, 1.1, 1.3, 1.6, 2.2}, SUMMANDS[] = {0.1, 0.3, 1.0, 3.0};
    double widest = 0.0, steepest = 0.0;
    for (int64_t r = 0; r < rows.m; r++) {
        widest = larger(widest, rows.wide[r]);
        steepest = larger(steepest, rows.wide[r] / (rows.delta[r] > 0.0 ? rows.along[r] : rows.slack(r)));
    }
    const double unit = widest > 0.0 ? 1.0 / widest : 1.0;
    TubeOutcome outcome = TUBE_TOO_NARROW;
    for (const double psi : SHARES) {
        const double A2 = rows.spread * rows.spread / (4.0 * (1.0 - psi));
        const double growing = normalized && size * A2 > 0.99 * rows.theta ? 1.02 * size * size * A2 / (8.0 * rows.theta) * steepest : 0.0;
        for (const double factor : FACTORS) {
            outcome = try_tube(rows, larger(factor * tube.deviation, 1e-3 * unit), psi, normalized, size, tube);
            if (outcome == PROVED) return PROVED;
            if (growing > 0.0) outcome = try_tube(rows, larger(1.02 * tube.deviation, factor * factor * growing), psi, normalized, size, tube);
            if (outcome == PROVED) return PROVED;
        }
        for (const double summand : SUMMANDS)
            if ((outcome = try_tube(rows, tube.deviation + summand * unit, psi, normalized, size, tube)) == PROVED) return PROVED;
    }
    return outcome;
}
