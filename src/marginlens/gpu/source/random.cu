// Random problems by counter, made of the core's numbers: those of marginlens/data/counter_based.py, bit by bit.
//
// No product and sum is fused (--fmad=false), and sums have the order of the CPU's: only so do both make the same bits.
#include "warp.h"

#include "../../core/random.h"

constexpr int ROWS_AT_ONCE = 4;  // of keys that a lane sums together

// Fill rows (n_rows, d) with normals; row r begins with block first_block + r ⌈d/2⌉.
DEVICE void normal_rows(const Stream &s, int64_t first_block, int n_rows, int d, double *rows) {
    const int n_blocks = (d + 1) / 2;
    FOR_LANES(b, n_rows * n_blocks) {
        double even, odd;
        block_normals(s, (uint64_t)(first_block + b), even, odd);
        const int r = b / n_blocks, c = 2 * (b - r * n_blocks);
        rows[(int64_t)r * d + c] = even;
        if (c + 1 < d) rows[(int64_t)r * d + c + 1] = odd;
    }
    warp_sync();
}

// Divide each row by its norm; eight lanes a row, each with every eighth coordinate.
DEVICE void normalise_rows(int n_rows, int d, double *rows) {
    const lanes<int> part = lane_number() & lanes<int>(7), group = lane_number() >> 3;
    for (int first = 0; first < n_rows; first += 4) {
        const lanes<int> row = lanes<int>(first) + group;
        const lanes<bool> exists = row < lanes<int>(n_rows);
        const lanes<int> begin = row * lanes<int>(d) + part;
        lanes<double> square = 0.0;
#pragma unroll 1
        for (int c = 0; c < d; c += 8) {
            const lanes<double> x = load_if(exists && (part + lanes<int>(c)) < lanes<int>(d), rows, begin + lanes<int>(c), 0.0);
            square += x * x;
        }
        for (int apart = 4; apart > 0; apart >>= 1) square += shuffle_xor(square, apart);
        const lanes<double> factor = lanes<double>(1.0) / sqrt(square);
#pragma unroll 1
        for (int c = 0; c < d; c += 8) {
            const lanes<bool> inside = exists && (part + lanes<int>(c)) < lanes<int>(d);
            const lanes<double> x = load_if(inside, rows, begin + lanes<int>(c), 0.0);
            store_if(inside, rows, begin + lanes<int>(c), x * factor);
        }
    }
}

// Problems first … first + n_problems - 1: tokens X (n_problems, n_rows, d), heads v (n_problems, d) and labels y (n_problems, n_inputs);
// v and y may be null. The head's row comes after the tokens, and the bits of the labels after the head.
KERNEL random_problems(int64_t n_problems, int64_t first, int64_t seed, int64_t cell, int64_t n_rows, int64_t n_inputs, int64_t d,
                       int64_t on_sphere, double *X, double *v, double *y) {
    const int64_t n_blocks = (d + 1) / 2;
    for (int64_t j = warp_of_grid(); j < n_problems; j += warps_of_grid()) {
        const Stream s = {(uint64_t)seed, (uint64_t)first + (uint64_t)j, (uint64_t)cell};
        double *rows = X + j * n_rows * d;
        normal_rows(s, 0, (int)n_rows, (int)d, rows);
        if (on_sphere) normalise_rows((int)n_rows, (int)d, rows);
        if (v) {
            normal_rows(s, n_rows * n_blocks, 1, (int)d, v + j * d);
            if (on_sphere) normalise_rows(1, (int)d, v + j * d);
        }
        FOR_LANES(i, y ? (int)n_inputs : 0) y[j * n_inputs + i] = label(s, (uint64_t)((n_rows + 1) * n_blocks), i);
    }
}

// K[r] = W X[r] for n_problems rows of d numbers, summed over coordinates in their order; W is given by its transpose.
KERNEL random_keys(int64_t n_problems, int64_t n_rows, int64_t d, const double *W_transposed, const double *X, double *K) {
    for (int64_t j = warp_of_grid(); j < n_problems; j += warps_of_grid()) {
        for (int64_t r = j * n_rows; r < (j + 1) * n_rows; r += ROWS_AT_ONCE) {
            const int count = (int)((j + 1) * n_rows - r < ROWS_AT_ONCE ? (j + 1) * n_rows - r : ROWS_AT_ONCE);
            FOR_LANES(k, (int)d) {
                double sum[ROWS_AT_ONCE];
#pragma unroll
                for (int a = 0; a < ROWS_AT_ONCE; ++a) sum[a] = 0.0;
                for (int c = 0; c < d; ++c) {
                    const double w = W_transposed[(int64_t)c * d + k];
#pragma unroll
                    for (int a = 0; a < ROWS_AT_ONCE; ++a) sum[a] += X[(r + (a < count ? a : 0)) * d + c] * w;
                }
#pragma unroll
                for (int a = 0; a < ROWS_AT_ONCE; ++a)
                    if (a < count) K[(r + a) * d + k] = sum[a];
            }
        }
    }
}
