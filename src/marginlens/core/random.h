// Random numbers by counter: Philox4x32-10, and two normals of each of its blocks by Box and Muller's method.
//
// Additions, multiplications, divisions and square roots alone, none of them fused, and sums in a fixed order: the bits are the same on
// CPUs and GPUs, and those of results that were saved.
#pragma once
#include "arithmetic.h"

#ifdef __CUDACC__
typedef uint32_t Word;
#else
typedef uint64_t Word;  // whose upper half is zero, so that words and their products have lanes of one width
#endif

struct Stream {  // of one problem
    uint64_t seed, problem, cell;
};

// Words 0 and 1, and words 2 and 3, of a block, as two numbers with the first word below.
CORE void philox(Stream s, uint64_t block, uint64_t &low, uint64_t &high) {
    const uint64_t lower = 0xFFFFFFFF;
    Word c0 = block & lower, c1 = s.problem & lower, c2 = s.problem >> 32, c3 = s.cell & lower;
    Word k0 = s.seed & lower, k1 = s.seed >> 32;
    UNROLLED for (int round = 0; round < 10; round++) {
        const uint64_t product_0 = (uint64_t)0xD2511F53 * c0, product_1 = (uint64_t)0xCD9E8D57 * c2;
        c0 = (product_1 >> 32) ^ c1 ^ k0;
        c2 = (product_0 >> 32) ^ c3 ^ k1;
        c1 = product_1 & lower;
        c3 = product_0 & lower;
        k0 = (k0 + 0x9E3779B9) & lower;
        k1 = (k1 + 0xBB67AE85) & lower;
    }
    low = c0 | (uint64_t)c1 << 32;
    high = c2 | (uint64_t)c3 << 32;
}

// c[0] + q (c[1] + q (c[2] + …)).
template <int n>
CORE double power_series(const double (&c)[n], double q) {
    double sum = c[n - 1];
    UNROLLED for (int k = n - 2; k >= 0; k--) sum = c[k] + q * sum;
    return sum;
}

// √(-2 ln u), u uniform on (0, 1] in steps of 2⁻⁵²: u = 2ᵉ m with √½ ≤ m < √2, and ln m = 2 artanh((m - 1)/(m + 1)).
CORE double normal_radius(uint64_t word) {
    const double c[] = {1.0 / 3, 1.0 / 5, 1.0 / 7, 1.0 / 9, 1.0 / 11, 1.0 / 13, 1.0 / 15, 1.0 / 17, 1.0 / 19, 1.0 / 21};
    const uint64_t one = 0x3FF0000000000000, half_root = 0x3FE6A09E667F3BCD, bias = 1024;
    const uint64_t bits = bits_of(2.0 - double_of((word >> 12) | one));
    const uint64_t biased = (bits - half_root + (bias << 52)) >> 52;  // e + 1024
    const double exponent = double_of(biased | 0x4330000000000000) - (0x1p52 + bias);
    const double m = double_of(bits - ((biased - bias) << 52));
    const double s = (m - 1.0) / (m + 1.0), q = s * s;
    return square_root(-2.0 * (exponent * 0.6931471805599453 + 2.0 * (s + s * (q * power_series(c, q)))));
}

// cos and sin of a uniform angle: a quadrant of two bits, and within it π/2 times a number of [-½, ½), by their power series.
CORE void unit_vector(uint64_t word, double &x, double &y) {
    const double sine_c[] = {1.0 / 6, -1.0 / 120, 1.0 / 5040, -1.0 / 362880, 1.0 / 39916800, -1.0 / 6227020800, 1.0 / 1307674368000};
    const double cosine_c[] = {1.0 / 2,       -1.0 / 24,        1.0 / 720,         -1.0 / 40320,
                               1.0 / 3628800, -1.0 / 479001600, 1.0 / 87178291200, -1.0 / 20922789888000};
    const uint64_t quadrant = word >> 62, sign = (uint64_t)1 << 63;
    const double angle = 1.5707963267948966 * (double_of(((word >> 10) & 0x000FFFFFFFFFFFFF) | 0x3FF0000000000000) - 1.5);
    const double q = angle * angle;
    const double sine = angle - angle * (q * power_series(sine_c, q)), cosine = 1.0 - q * power_series(cosine_c, q);
    const bool is_odd = (quadrant & 1) != 0;
    // The cosine is negative in quadrants 1 and 2, the sine in 2 and 3.
    x = double_of(bits_of(is_odd ? sine : cosine) ^ ((quadrant + 1) << 62 & sign));
    y = double_of(bits_of(is_odd ? cosine : sine) ^ (quadrant << 62 & sign));
}

// The two normals of a block.
CORE void block_normals(Stream s, uint64_t block, double &even, double &odd) {
    uint64_t low, high;
    philox(s, block, low, high);
    unit_vector(high, even, odd);
    const double radius = normal_radius(low);
    even *= radius, odd *= radius;
}

// Label i of a problem, ±1: bit i mod 32 of word (i div 32) mod 4 of block i div 128 from `first_block` on.
CORE double label(Stream s, uint64_t first_block, int64_t i) {
    uint64_t low, high;
    philox(s, first_block + (uint64_t)(i / 128), low, high);
    return (i % 128 < 64 ? low : high) >> (i % 64) & 1 ? 1.0 : -1.0;
}
