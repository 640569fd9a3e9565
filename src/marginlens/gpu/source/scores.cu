// Scores of tokens under a head, one problem a warp; sums have one order, whatever problems are beside it.
#include "warp.h"

// X (n_problems, n_inputs, n_tokens, d), y and lengths (n_problems, n_inputs), lengths or null, heads (n_problems, d) or one for all.
// Out: (n_problems, n_inputs, n_tokens) y_i v·x_it, zero where there is no token.
KERNEL token_scores(int64_t n_problems, const double *X, const double *y, const double *heads, int64_t is_one_head, const int64_t *lengths,
                    int64_t n_inputs, int64_t n_tokens, int64_t d, double *scores) {
    const int n_rows = (int)(n_inputs * n_tokens);
    for (int64_t j = warp_of_grid(); j < n_problems; j += warps_of_grid()) {
        const double *v = heads + (is_one_head ? 0 : j * d);
        for (int q = 0; q < n_rows; ++q) {
            const int i = q / (int)n_tokens, t = q - i * (int)n_tokens;
            const double *token = X + (j * n_rows + q) * d;
            const bool is_token = !lengths || t < (int)lengths[j * n_inputs + i];
            lanes<double> sum = 0.0;
            for (int first = 0; is_token && first < (int)d; first += LANES) {
                const lanes<int> c = lanes<int>(first) + lane_number();
                const lanes<bool> inside = c < lanes<int>((int)d);
                sum = fma(load_if(inside, token, c, 0.0), load_if(inside, v, c, 0.0), sum);
            }
            store_one(scores + j * n_rows + q, y[j * n_inputs + i] * warp_sum(sum));
        }
    }
}
