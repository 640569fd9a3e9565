// What a selection amounts to, one problem a warp: score gap and kind of optimality as marginlens/theory/optimality.py defines them,
// correlation with a p, and the smallest attention that p gives a selected token.
#include "warp.h"

#include "../../core/exponential.h"
#include "../../core/margin/tolerances.h"

// Per token of a problem: score and its blur, exp of its logit less that of the selected token, and whether its constraint is tight.
struct token_measures {
    double *score, *blur, *weight, *tight;  // (n_inputs n_tokens)
};
constexpr double LOOSE = 0.0, TIGHT = 1.0, DOUBTFUL = 2.0;
constexpr int GLOBAL_OPTIMUM = 0, LOCAL_OPTIMUM = 1, NO_OPTIMUM = 2, NO_SOLUTION = 3, UNDECIDED = 4;

// K (n_problems, n_inputs, n_tokens, d_key), X (…, d_model), y and selected (n_problems, n_inputs), heads (n_problems, d_model), x of ATT-SVM
// and p (n_problems, d_key), outcomes of ATT-SVM.
// Out: (n_problems,) the gap, nan where the selection is infeasible; the kind, UNDECIDED where rounding leaves a constraint open;
// correlation of p and x, nan where a norm is zero; the smallest attention of a selected token under p.
KERNEL selection_measures(int64_t n_problems, const double *K, const double *X, const double *y, const double *heads,
                          const int64_t *selected, const double *xs, const double *ps, const int64_t *outcomes, int64_t n_inputs,
                          int64_t n_tokens, int64_t d_key, int64_t d_model, int64_t warp_doubles, double *gaps, int64_t *kinds,
                          double *correlations, double *probabilities) {
    const int n_rows = (int)(n_inputs * n_tokens), d = (int)d_key;
    double *memory = warp_memory((int)warp_doubles);
    const token_measures of = {memory, memory + n_rows, memory + 2 * n_rows, memory + 3 * n_rows};
    double *input_gap = memory + 4 * n_rows, *input_best = input_gap + n_inputs, *input_probability = input_best + n_inputs;
    for (int64_t j = warp_of_grid(); j < n_problems; j += warps_of_grid()) {
        const double *x = xs + j * d_key, *p = ps + j * d_key, *v = heads + j * d_model;
        const double *keys = K + j * n_rows * d_key, *tokens = X + j * n_rows * d_model;
        const int64_t *alpha = selected + j * n_inputs;
        const int64_t outcome = outcomes[j];
        const bool is_feasible = outcome == OPTIMAL || outcome == TRIVIAL;

        lanes<double> x_square = 0.0, p_square = 0.0;
        for (int first = 0; first < d; first += LANES) {
            const lanes<int> c = lanes<int>(first) + lane_number();
            const lanes<bool> inside = c < lanes<int>(d);
            const lanes<double> a = load_if(inside, x, c, 0.0), b = load_if(inside, p, c, 0.0);
            x_square = fma(a, a, x_square);
            p_square = fma(b, b, p_square);
        }
        const double x_length = sqrt(warp_sum(x_square)), p_length = sqrt(warp_sum(p_square));

        FOR_LANES(q, n_rows) {
            const int i = q / (int)n_tokens, t = q - i * (int)n_tokens, chosen = (int)alpha[i];
            const double *key = keys + q * d_key, *best = keys + (i * n_tokens + chosen) * d_key, *token = tokens + q * d_model;
            const bool is_other = t != chosen;
            double product = 0.0, terms = 0.0, square = 0.0, logit = 0.0, score = 0.0, size = 0.0;
            for (int c = 0; c < d; ++c) {
                const double difference = best[c] - key[c];
                product = fma(difference, x[c], product);
                terms = fma(fabs(best[c]) + fabs(key[c]), fabs(x[c]), terms);
                square = fma(difference, difference, square);
                logit = fma(difference, p[c], logit);
            }
            for (int c = 0; c < (int)d_model; ++c) {
                score = fma(v[c], token[c], score);
                size += fabs(v[c] * token[c]);
            }
            of.score[q] = y[j * n_inputs + i] * score;
            of.blur[q] = SCORE_RTOL * size;
            of.weight[q] = is_other ? exp(-logit) : 1.0;
            const double slack = product - 1.0;
            const bool is_tight = slack <= NEIGHBOUR_SLACK_RTOL * terms;
            const bool is_doubtful = slack <= SOLVER_SLACK_RTOL * sqrt(square) * x_length;
            of.tight[q] = !is_other ? LOOSE : is_tight ? TIGHT : is_doubtful ? DOUBTFUL : LOOSE;
        }
        warp_sync();
        FOR_LANES(i, (int)n_inputs) {
            const int begin = i * (int)n_tokens, chosen = begin + (int)alpha[i], end = begin + (int)n_tokens;
            double gap = INF, best = 1.0, sum = 0.0;
            for (int q = begin; q < end; ++q) {
                double difference = of.score[chosen] - of.score[q];
                if (fabs(difference) <= of.blur[chosen] + of.blur[q]) difference = 0.0;
                if (q != chosen && difference < 0.0 && best > 0.0) best = 0.0;
                if (of.tight[q] == TIGHT && difference < gap) gap = difference;
                if (of.tight[q] == DOUBTFUL) best = -1.0;
                sum += of.weight[q];
            }
            input_gap[i] = gap;
            input_best[i] = best;
            input_probability[i] = 1.0 / sum;
        }
        warp_sync();
        double gap = INF, best = 1.0, probability = 1.0;
        for (int i = 0; i < (int)n_inputs; ++i) {
            gap = fmin(gap, input_gap[i]);
            best = fmin(best, input_best[i]);
            probability = fmin(probability, input_probability[i]);
        }
        const bool is_undecided = outcome == OPTIMAL && best < 0.0;
        const int kind = !is_feasible ? NO_SOLUTION : is_undecided ? UNDECIDED : best > 0.0 ? GLOBAL_OPTIMUM : gap > 0.0 ? LOCAL_OPTIMUM : NO_OPTIMUM;
        store_one(gaps + j, is_feasible ? gap : NOT_A_NUMBER);
        store_one(kinds + j, kind);
        lanes<double> apart = 0.0;
        for (int first = 0; first < d; first += LANES) {
            const lanes<int> c = lanes<int>(first) + lane_number();
            const lanes<bool> inside = c < lanes<int>(d);
            const lanes<double> a = load_if(inside, p, c, 0.0), b = load_if(inside, x, c, 0.0);
            const lanes<double> difference = a / lanes<double>(p_length) - b / lanes<double>(x_length);
            apart = fma(difference, difference, apart);
        }
        store_one(correlations + j, 1.0 - 0.5 * warp_sum(apart));
        store_one(probabilities + j, probability);
        warp_sync();
    }
}
