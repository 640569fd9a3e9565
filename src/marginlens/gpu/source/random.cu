// Random problems by counter: the numbers of marginlens/data/counter_based.py, bit by bit.
//
// Philox4x32-10 under the key (seed) makes 128 bits of the counter (block, problem, cell), and Box and Muller's method two normals of
// them. No product and sum is fused, and sums have the order of the CPU's: only so do both make the same bits.
#include "warp.h"

constexpr int ROWS_AT_ONCE = 4;  // of keys that a lane sums together
typedef unsigned long long uint64;
constexpr uint64 FRACTION_BITS = (1ull << 52) - 1, BITS_OF_ONE = 0x3FFull << 52;
constexpr int64 BITS_OF_HALF_ROOT = 0x3FE6A09E667F3BCDll;  // √½ as the integer with its bits
constexpr double LN_2 = 0.6931471805599453, HALF_PI = 1.5707963267948966;

#ifdef __CUDACC__
DEVICE double times(double a, double b) { return __dmul_rn(a, b); }
DEVICE double plus(double a, double b) { return __dadd_rn(a, b); }
DEVICE uint64 bits_of(double x) { return (uint64)__double_as_longlong(x); }
DEVICE double from_bits(uint64 bits) { return __longlong_as_double((int64)bits); }
#else  // compiled without contraction
DEVICE double times(double a, double b) { return a * b; }
DEVICE double plus(double a, double b) { return a + b; }
DEVICE lanes<double> times(const lanes<double> &a, const lanes<double> &b) { return a * b; }
DEVICE lanes<double> plus(const lanes<double> &a, const lanes<double> &b) { return a + b; }
DEVICE uint64 bits_of(double x) {
    uint64 bits;
    std::memcpy(&bits, &x, 8);
    return bits;
}
DEVICE double from_bits(uint64 bits) {
    double x;
    std::memcpy(&x, &bits, 8);
    return x;
}
#endif

// c[0] + q (c[1] + q (c[2] + …)), rounded after every operation.
template <int n>
DEVICE double series(const double (&c)[n], double q) {
    double sum = c[n - 1];
#pragma unroll
    for (int k = n - 2; k >= 0; --k) sum = plus(c[k], times(q, sum));
    return sum;
}

struct stream {  // of one problem
    uint64 seed, problem, cell;
};

// Words 0 and 1, and words 2 and 3, of a block, the first word below.
DEVICE void philox(const stream &s, uint64 block, uint64 &low, uint64 &high) {
    unsigned c0 = (unsigned)block, c1 = (unsigned)s.problem, c2 = (unsigned)(s.problem >> 32), c3 = (unsigned)s.cell;
    unsigned k0 = (unsigned)s.seed, k1 = (unsigned)(s.seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const uint64 product_0 = 0xD2511F53ull * c0, product_1 = 0xCD9E8D57ull * c2;
        c0 = (unsigned)(product_1 >> 32) ^ c1 ^ k0;
        c2 = (unsigned)(product_0 >> 32) ^ c3 ^ k1;
        c1 = (unsigned)product_1;
        c3 = (unsigned)product_0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    low = c0 | (uint64)c1 << 32;
    high = c2 | (uint64)c3 << 32;
}

// √(-2 ln u), u uniform on (0, 1] in steps of 2⁻⁵².
DEVICE double radius(uint64 word) {
    const double c[] = {1.0 / 3, 1.0 / 5, 1.0 / 7, 1.0 / 9, 1.0 / 11, 1.0 / 13, 1.0 / 15, 1.0 / 17, 1.0 / 19, 1.0 / 21};
    const int64 bits = (int64)bits_of(2.0 - from_bits((word >> 12) | BITS_OF_ONE));
    const int exponent = (int)((bits - BITS_OF_HALF_ROOT) >> 52);
    const double m = from_bits((uint64)bits - ((uint64)(int64)exponent << 52));
    const double s = plus(m, -1.0) / plus(m, 1.0);
    const double q = times(s, s), tail = times(q, series(c, q));
    return sqrt(times(-2.0, plus(times((double)exponent, LN_2), times(2.0, plus(s, times(s, tail))))));
}

// cos and sin of a uniform angle.
DEVICE void unit_vector(uint64 word, double &x, double &y) {
    const double sine_c[] = {1.0 / 6, -1.0 / 120, 1.0 / 5040, -1.0 / 362880, 1.0 / 39916800, -1.0 / 6227020800, 1.0 / 1307674368000};
    const double cosine_c[] = {1.0 / 2,        -1.0 / 24,        1.0 / 720,          -1.0 / 40320,
                               1.0 / 3628800, -1.0 / 479001600, 1.0 / 87178291200, -1.0 / 20922789888000};
    const int quadrant = (int)(word >> 62);
    const double angle = times(HALF_PI, plus(from_bits(((word >> 10) & FRACTION_BITS) | BITS_OF_ONE), -1.5));
    const double q = times(angle, angle);
    const double sine = plus(angle, -times(angle, times(q, series(sine_c, q))));
    const double cosine = plus(1.0, -times(q, series(cosine_c, q)));
    x = (quadrant & 1) ? sine : cosine;
    y = (quadrant & 1) ? cosine : sine;
    if ((quadrant + 1) & 2) x = -x;
    if (quadrant & 2) y = -y;
}

// Fill rows (n_rows, d) with normals; row r begins with block first_block + r ⌈d/2⌉.
DEVICE void normal_rows(const stream &s, int64 first_block, int n_rows, int d, double *rows) {
    const int n_blocks = (d + 1) / 2;
    FOR_LANES(b, n_rows * n_blocks) {
        uint64 low, high;
        double x, y;
        philox(s, (uint64)(first_block + b), low, high);
        unit_vector(high, x, y);
        const double length = radius(low);
        const int r = b / n_blocks, c = 2 * (b - r * n_blocks);
        rows[(int64)r * d + c] = times(length, x);
        if (c + 1 < d) rows[(int64)r * d + c + 1] = times(length, y);
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
        for (int c = 0; c < d; c += 8) {
            const lanes<double> x = load_if(exists && (part + lanes<int>(c)) < lanes<int>(d), rows, begin + lanes<int>(c), 0.0);
            square = plus(square, times(x, x));
        }
        for (int apart = 4; apart > 0; apart >>= 1) square = plus(square, shuffle_xor(square, apart));
        const lanes<double> factor = lanes<double>(1.0) / sqrt(square);
        for (int c = 0; c < d; c += 8) {
            const lanes<bool> inside = exists && (part + lanes<int>(c)) < lanes<int>(d);
            const lanes<double> x = load_if(inside, rows, begin + lanes<int>(c), 0.0);
            store_if(inside, rows, begin + lanes<int>(c), times(x, factor));
        }
    }
}

// Problems first … first + n_problems - 1: tokens X (n_problems, n_rows, d), heads v (n_problems, d) and labels y (n_problems, n_inputs);
// v and y may be null. The head's row comes after the tokens, and the bits of the labels after the head.
KERNEL random_problems(int64 n_problems, int64 first, int64 seed, int64 cell, int64 n_rows, int64 n_inputs, int64 d, int64 on_sphere,
                       double *X, double *v, double *y) {
    const int64 n_blocks = (d + 1) / 2;
    for (int64 j = warp_of_grid(); j < n_problems; j += warps_of_grid()) {
        const stream s = {(uint64)seed, (uint64)first + (uint64)j, (uint64)cell};
        double *rows = X + j * n_rows * d;
        normal_rows(s, 0, (int)n_rows, (int)d, rows);
        if (on_sphere) normalise_rows((int)n_rows, (int)d, rows);
        if (v) {
            normal_rows(s, n_rows * n_blocks, 1, (int)d, v + j * d);
            if (on_sphere) normalise_rows(1, (int)d, v + j * d);
        }
        if (y) {
            FOR_LANES(i, (int)n_inputs) {
                uint64 low, high;
                philox(s, (uint64)((n_rows + 1) * n_blocks + i / 128), low, high);
                const uint64 word = (i % 128 < 64) ? low : high;
                y[j * n_inputs + i] = (word >> (i % 64)) & 1 ? 1.0 : -1.0;
            }
        }
    }
}

// K[r] = W X[r] for n_problems rows of d numbers, summed over coordinates in their order; W is given by its transpose.
KERNEL random_keys(int64 n_problems, int64 n_rows, int64 d, const double *W_transposed, const double *X, double *K) {
    for (int64 j = warp_of_grid(); j < n_problems; j += warps_of_grid()) {
        for (int64 r = j * n_rows; r < (j + 1) * n_rows; r += ROWS_AT_ONCE) {
            const int count = (int)((j + 1) * n_rows - r < ROWS_AT_ONCE ? (j + 1) * n_rows - r : ROWS_AT_ONCE);
            FOR_LANES(k, (int)d) {
                double sum[ROWS_AT_ONCE];
#pragma unroll
                for (int a = 0; a < ROWS_AT_ONCE; ++a) sum[a] = 0.0;
                for (int c = 0; c < d; ++c) {
                    const double w = W_transposed[(int64)c * d + k];
#pragma unroll
                    for (int a = 0; a < ROWS_AT_ONCE; ++a) sum[a] = plus(sum[a], times(X[(r + (a < count ? a : 0)) * d + c], w));
                }
#pragma unroll
                for (int a = 0; a < ROWS_AT_ONCE; ++a)
                    if (a < count) K[(r + a) * d + k] = sum[a];
            }
        }
    }
}
