// Scores of tokens under a head, one problem a warp; sums have one order, whatever problems are beside it.
#include "warp.h"

// X (n_problems, n_inputs, n_tokens, d), y (n_problems, n_inputs), heads (n_problems, d). Out: (n_problems, n_inputs, n_tokens) y_i v·x_it.
KERNEL token_scores(int64_t n_problems, const double *X, const double *y, const double *heads, int64_t n_inputs, int64_t n_tokens, int64_t d,
                    double *scores) {
    const int n_rows = (int)(n_inputs * n_tokens);
    for (int64_t j = warp_of_grid(); j < n_problems; j += warps_of_grid()) {
        const double *v = heads + j * d;
        for (int q = 0; q < n_rows; ++q) {
            const int i = q / (int)n_tokens;
            const double *token = X + (j * n_rows + q) * d;
            lanes<double> sum = 0.0;
            for (int first = 0; first < (int)d; first += LANES) {
                const lanes<int> c = lanes<int>(first) + lane_number();
                const lanes<bool> inside = c < lanes<int>((int)d);
                sum = fma(load_if(inside, token, c, 0.0), load_if(inside, v, c, 0.0), sum);
            }
            store_one(scores + j * n_rows + q, y[j * n_inputs + i] * warp_sum(sum));
        }
    }
}
