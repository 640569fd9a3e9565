// Four doubles as one value, which compilers keep in vector registers: one of AVX, two of SSE, NEON or WebAssembly.
//
// What happens in one lane never depends on the others, and sums over lanes are added in one fixed order. So a loop gives the same bits on
// every processor, whatever the width of its registers: products are never fused with sums (-ffp-contract=off).
#pragma once
#include "arithmetic.h"

typedef double Lanes __attribute__((vector_size(32)));
typedef int64_t WholeLanes __attribute__((vector_size(32)));
typedef uint64_t BitLanes __attribute__((vector_size(32)));

constexpr int64_t N_LANES = 4;

CORE Lanes spread(double x) { return Lanes{x, x, x, x}; }

// The entries k, …, k + 3 of an array.
CORE Lanes load(const double *x, int64_t k) {
    Lanes y;
    __builtin_memcpy(&y, x + k, sizeof y);
    return y;
}

CORE void store(double *x, int64_t k, Lanes y) { __builtin_memcpy(x + k, &y, sizeof y); }

// `yes` where x > y, `no` elsewhere.
CORE Lanes where_greater(Lanes x, Lanes y, Lanes yes, Lanes no) { return x > y ? yes : no; }

CORE Lanes where_equal(Lanes x, Lanes y, Lanes yes, Lanes no) { return x == y ? yes : no; }

// The larger and the smaller of two, neither of which is nan.
#ifdef __AVX__  // one instruction, which compilers do not find by themselves
CORE Lanes larger(Lanes x, Lanes y) { return __builtin_ia32_maxpd256(x, y); }
CORE Lanes smaller(Lanes x, Lanes y) { return __builtin_ia32_minpd256(x, y); }
#else
CORE Lanes larger(Lanes x, Lanes y) { return x > y ? x : y; }
CORE Lanes smaller(Lanes x, Lanes y) { return x < y ? x : y; }
#endif

CORE Lanes modulus(Lanes x) {
    const int64_t mask = INT64_MAX;
    return (Lanes)((WholeLanes)x & WholeLanes{mask, mask, mask, mask});
}

// The double whose biased exponent is in the last bits of x.
CORE Lanes power_of_two(Lanes x) { return (Lanes)((WholeLanes)x << 52); }
CORE BitLanes bits_of(Lanes x) { return (BitLanes)x; }
CORE Lanes double_of(BitLanes bits) { return (Lanes)bits; }

#if defined(__clang__) || __GNUC__ >= 12
#define CHOOSE __builtin_shufflevector  // entries of two vectors, by their numbers
#else
#define CHOOSE(x, y, ...) __builtin_shuffle(x, y, WholeLanes{__VA_ARGS__})
#endif

// ((0) + (1)) + ((2) + (3)).
CORE double lane_sum(Lanes x) {
    const Lanes pairs = x + CHOOSE(x, x, 1, 0, 3, 2);
    return pairs[0] + pairs[2];
}
CORE double lane_max(Lanes x) { return larger(larger(x[0], x[1]), larger(x[2], x[3])); }

// The 4 × 4 matrix with these rows, by its columns.
CORE void transpose(Lanes &a, Lanes &b, Lanes &c, Lanes &d) {
    const Lanes ab_even = CHOOSE(a, b, 0, 4, 2, 6), ab_odd = CHOOSE(a, b, 1, 5, 3, 7);
    const Lanes cd_even = CHOOSE(c, d, 0, 4, 2, 6), cd_odd = CHOOSE(c, d, 1, 5, 3, 7);
    a = CHOOSE(ab_even, cd_even, 0, 1, 4, 5);
    b = CHOOSE(ab_odd, cd_odd, 0, 1, 4, 5);
    c = CHOOSE(ab_even, cd_even, 2, 3, 6, 7);
    d = CHOOSE(ab_odd, cd_odd, 2, 3, 6, 7);
}

// The sums over the lanes of four values, each added as `lane_sum` does.
CORE Lanes lane_sums(Lanes a, Lanes b, Lanes c, Lanes d) {
    transpose(a, b, c, d);
    return (a + b) + (c + d);
}

// ---- eight numbers: one register of AVX-512, or twice four lanes

#if defined(__AVX512F__) && (defined(__clang__) || __GNUC__ >= 12)
#define WIDE_REGISTERS
typedef double Eight __attribute__((vector_size(64)));
typedef int64_t WholeEight __attribute__((vector_size(64)));
CORE Eight modulus(Eight x) {
    const int64_t mask = INT64_MAX;
    return (Eight)((WholeEight)x & WholeEight{mask, mask, mask, mask, mask, mask, mask, mask});
}
CORE Eight power_of_two(Eight x) { return (Eight)((WholeEight)x << 52); }
CORE Eight where_greater(Eight x, Eight y, Eight yes, Eight no) { return x > y ? yes : no; }
CORE Eight where_equal(Eight x, Eight y, Eight yes, Eight no) { return x == y ? yes : no; }
CORE Eight join(Lanes a, Lanes b) { return CHOOSE(a, b, 0, 1, 2, 3, 4, 5, 6, 7); }
CORE Lanes low_half(Eight x) { return CHOOSE(x, x, 0, 1, 2, 3); }
CORE Lanes high_half(Eight x) { return CHOOSE(x, x, 4, 5, 6, 7); }
CORE Eight load_8(const double *x, int64_t k) {
    Eight y;
    __builtin_memcpy(&y, x + k, sizeof y);
    return y;
}
CORE void store(double *x, int64_t k, Eight y) { __builtin_memcpy(x + k, &y, sizeof y); }
#else
struct Eight {
    Lanes low, high;
};
CORE Eight operator+(Eight x, Eight y) { return {x.low + y.low, x.high + y.high}; }
CORE Eight operator-(Eight x, Eight y) { return {x.low - y.low, x.high - y.high}; }
CORE Eight operator*(Eight x, Eight y) { return {x.low * y.low, x.high * y.high}; }
CORE Eight operator+(Eight x, double y) { return {x.low + y, x.high + y}; }
CORE Eight operator-(Eight x, double y) { return {x.low - y, x.high - y}; }
CORE Eight operator*(Eight x, double y) { return {x.low * y, x.high * y}; }
CORE Eight operator+(double x, Eight y) { return {x + y.low, x + y.high}; }
CORE Eight operator*(double x, Eight y) { return {x * y.low, x * y.high}; }
CORE Eight &operator+=(Eight &x, Eight y) { return x = x + y; }
CORE Eight modulus(Eight x) { return {modulus(x.low), modulus(x.high)}; }
CORE Eight power_of_two(Eight x) { return {power_of_two(x.low), power_of_two(x.high)}; }
CORE Eight where_greater(Eight x, Eight y, Eight yes, Eight no) {
    return {where_greater(x.low, y.low, yes.low, no.low), where_greater(x.high, y.high, yes.high, no.high)};
}
CORE Eight where_equal(Eight x, Eight y, Eight yes, Eight no) {
    return {where_equal(x.low, y.low, yes.low, no.low), where_equal(x.high, y.high, yes.high, no.high)};
}
CORE Eight join(Lanes a, Lanes b) { return {a, b}; }
CORE Lanes low_half(Eight x) { return x.low; }
CORE Lanes high_half(Eight x) { return x.high; }
CORE Eight load_8(const double *x, int64_t k) { return {load(x, k), load(x, k + N_LANES)}; }
CORE void store(double *x, int64_t k, Eight y) {
    store(x, k, y.low);
    store(x, k + N_LANES, y.high);
}
#endif

CORE Eight twice(Lanes x) { return join(x, x); }
CORE Lanes sum_of_halves(Eight x) { return low_half(x) + high_half(x); }
CORE Eight smaller(Eight x, Eight y) { return where_greater(y, x, x, y); }

CORE Lanes constant(Lanes, double x) { return spread(x); }
CORE Eight constant(Eight, double x) { return twice(spread(x)); }
