// Four doubles as one value, which compilers keep in vector registers: one of AVX, two of SSE, NEON or WebAssembly.
//
// What happens in one lane never depends on the others, and sums over lanes are added in one fixed order. So a loop gives the same bits on
// every processor, whatever the width of its registers: products are never fused with sums (-ffp-contract=off).
#pragma once
#include "arithmetic.h"

constexpr int64_t N_LANES = 4;

// A vector of doubles, a vector of their bits, and what is done to each entry beside arithmetic.
#define VECTOR(Doubles, Bits, n_bytes)                                                                     \
    typedef double Doubles __attribute__((vector_size(n_bytes)));                                          \
    typedef uint64_t Bits __attribute__((vector_size(n_bytes)));                                           \
    CORE Bits bits_of(Doubles x) { return (Bits)x; }                                                       \
    CORE Doubles double_of(Bits bits) { return (Doubles)bits; }                                            \
    CORE Doubles modulus(Doubles x) { return (Doubles)((Bits)x & (uint64_t)INT64_MAX); }                   \
    CORE Doubles power_of_two(Doubles x) { return (Doubles)((Bits)x << 52); }                              \
    CORE Doubles where_greater(Doubles x, Doubles y, Doubles yes, Doubles no) { return x > y ? yes : no; } \
    CORE Doubles where_equal(Doubles x, Doubles y, Doubles yes, Doubles no) { return x == y ? yes : no; }  \
    CORE void read(const double *x, Doubles &y) { __builtin_memcpy(&y, x, sizeof y); }                     \
    CORE void write(double *x, Doubles y) { __builtin_memcpy(x, &y, sizeof y); }

// A vector of two halves. GCC keeps its own vectors in memory where they are longer than a register, and these in two registers.
template <class Half>
struct Two {
    Half low, high;
    CORE_MEMBER double operator[](int64_t k) const { return k < N_LANES / 2 ? low[k] : high[k - N_LANES / 2]; }
    CORE_MEMBER double &operator[](int64_t k) { return reinterpret_cast<double *>(this)[k]; }
    CORE_MEMBER Two operator-() const { return {-low, -high}; }
};

#define FOR_HALVES(symbol)                                                                                          \
    template <class Half>                                                                                           \
    CORE Two<Half> operator symbol(Two<Half> x, Two<Half> y) { return {x.low symbol y.low, x.high symbol y.high}; } \
    template <class Half, class Number>                                                                             \
    CORE Two<Half> operator symbol(Two<Half> x, Number y) { return {x.low symbol y, x.high symbol y}; }             \
    template <class Half>                                                                                           \
    CORE Two<Half> operator symbol(double x, Two<Half> y) { return {x symbol y.low, x symbol y.high}; }             \
    template <class Half, class Other>                                                                              \
    CORE Two<Half> &operator symbol##=(Two<Half> &x, Other y) { return x = x symbol y; }
FOR_HALVES(+)
FOR_HALVES(-)
FOR_HALVES(*)
FOR_HALVES(/)
FOR_HALVES(&)
FOR_HALVES(|)
FOR_HALVES(<<)
FOR_HALVES(>>)

#if defined(__clang__) || defined(__AVX__)
VECTOR(Lanes, BitLanes, 32)
CORE Lanes lanes_of(double a, double b, double c, double d) { return Lanes{a, b, c, d}; }

#if defined(__clang__) || __GNUC__ >= 12
#define CHOOSE __builtin_shufflevector  // entries of two vectors, by their numbers
#else
typedef int64_t WholeLanes __attribute__((vector_size(32)));
#define CHOOSE(x, y, ...) __builtin_shuffle(x, y, WholeLanes{__VA_ARGS__})
#endif

// ((0) + (1)) + ((2) + (3)).
CORE double lane_sum(Lanes x) {
    const Lanes pairs = x + CHOOSE(x, x, 1, 0, 3, 2);
    return pairs[0] + pairs[2];
}

// The 4 × 4 matrix with these rows, by its columns.
CORE void transpose(Lanes &a, Lanes &b, Lanes &c, Lanes &d) {
    const Lanes ab_even = CHOOSE(a, b, 0, 4, 2, 6), ab_odd = CHOOSE(a, b, 1, 5, 3, 7);
    const Lanes cd_even = CHOOSE(c, d, 0, 4, 2, 6), cd_odd = CHOOSE(c, d, 1, 5, 3, 7);
    a = CHOOSE(ab_even, cd_even, 0, 1, 4, 5);
    b = CHOOSE(ab_odd, cd_odd, 0, 1, 4, 5);
    c = CHOOSE(ab_even, cd_even, 2, 3, 6, 7);
    d = CHOOSE(ab_odd, cd_odd, 2, 3, 6, 7);
}
#else
VECTOR(Pair, BitPair, 16)
typedef Two<Pair> Lanes;
CORE Lanes lanes_of(double a, double b, double c, double d) { return {Pair{a, b}, Pair{c, d}}; }
CORE double lane_sum(Lanes x) { return (x.low[0] + x.low[1]) + (x.high[0] + x.high[1]); }
CORE void transpose(Lanes &a, Lanes &b, Lanes &c, Lanes &d) {
    const Lanes rows[] = {a, b, c, d};
    a = {Pair{rows[0].low[0], rows[1].low[0]}, Pair{rows[2].low[0], rows[3].low[0]}};
    b = {Pair{rows[0].low[1], rows[1].low[1]}, Pair{rows[2].low[1], rows[3].low[1]}};
    c = {Pair{rows[0].high[0], rows[1].high[0]}, Pair{rows[2].high[0], rows[3].high[0]}};
    d = {Pair{rows[0].high[1], rows[1].high[1]}, Pair{rows[2].high[1], rows[3].high[1]}};
}
#endif

template <class Half>
CORE auto bits_of(Two<Half> x) {
    return Two<decltype(bits_of(x.low))>{bits_of(x.low), bits_of(x.high)};
}
template <class Half>
CORE auto double_of(Two<Half> bits) {
    return Two<decltype(double_of(bits.low))>{double_of(bits.low), double_of(bits.high)};
}
template <class Half>
CORE Two<Half> modulus(Two<Half> x) {
    return {modulus(x.low), modulus(x.high)};
}
// The double whose biased exponent is in the last bits of x.
template <class Half>
CORE Two<Half> power_of_two(Two<Half> x) {
    return {power_of_two(x.low), power_of_two(x.high)};
}
// `yes` where x > y, `no` elsewhere.
template <class Half>
CORE Two<Half> where_greater(Two<Half> x, Two<Half> y, Two<Half> yes, Two<Half> no) {
    return {where_greater(x.low, y.low, yes.low, no.low), where_greater(x.high, y.high, yes.high, no.high)};
}
template <class Half>
CORE Two<Half> where_equal(Two<Half> x, Two<Half> y, Two<Half> yes, Two<Half> no) {
    return {where_equal(x.low, y.low, yes.low, no.low), where_equal(x.high, y.high, yes.high, no.high)};
}
CORE void read(const double *x, double &y) { y = *x; }
CORE void write(double *x, double y) { *x = y; }
template <class Half>
CORE void read(const double *x, Two<Half> &y) {
    read(x, y.low);
    read(x + sizeof y.low / sizeof *x, y.high);
}
template <class Half>
CORE void write(double *x, Two<Half> y) {
    write(x, y.low);
    write(x + sizeof y.low / sizeof *x, y.high);
}

CORE Lanes spread(double x) { return lanes_of(x, x, x, x); }

// The entries k, …, k + 3 of an array.
CORE Lanes load(const double *x, int64_t k) {
    Lanes y;
    read(x + k, y);
    return y;
}
CORE void store(double *x, int64_t k, Lanes y) { write(x + k, y); }

// The larger and the smaller of two, neither of which is nan.
#ifdef __AVX__  // one instruction, which compilers do not find by themselves
CORE Lanes larger(Lanes x, Lanes y) { return __builtin_ia32_maxpd256(x, y); }
CORE Lanes smaller(Lanes x, Lanes y) { return __builtin_ia32_minpd256(x, y); }
#else
CORE Lanes larger(Lanes x, Lanes y) { return where_greater(x, y, x, y); }
CORE Lanes smaller(Lanes x, Lanes y) { return where_greater(y, x, x, y); }
#endif
CORE Lanes square_root(Lanes x) { return lanes_of(square_root(x[0]), square_root(x[1]), square_root(x[2]), square_root(x[3])); }
CORE double lane_max(const Lanes x) { return larger(larger(x[0], x[1]), larger(x[2], x[3])); }

// ---- eight numbers: one register of AVX-512, or twice four lanes

#if defined(__AVX512F__) && (defined(__clang__) || __GNUC__ >= 12)
#define WIDE_REGISTERS
VECTOR(Eight, BitEight, 64)
CORE Eight join(Lanes a, Lanes b) { return CHOOSE(a, b, 0, 1, 2, 3, 4, 5, 6, 7); }
CORE Lanes low_half(Eight x) { return CHOOSE(x, x, 0, 1, 2, 3); }
CORE Lanes high_half(Eight x) { return CHOOSE(x, x, 4, 5, 6, 7); }
#else
typedef Two<Lanes> Eight;
CORE Eight join(Lanes a, Lanes b) { return {a, b}; }
CORE Lanes low_half(Eight x) { return x.low; }
CORE Lanes high_half(Eight x) { return x.high; }
#endif
CORE Eight load_8(const double *x, int64_t k) {
    Eight y;
    read(x + k, y);
    return y;
}
CORE void store(double *x, int64_t k, Eight y) { write(x + k, y); }
CORE Eight twice(Lanes x) { return join(x, x); }
CORE Lanes sum_of_halves(Eight x) { return low_half(x) + high_half(x); }
CORE Eight smaller(Eight x, Eight y) { return where_greater(y, x, x, y); }

CORE Lanes constant(Lanes, double x) { return spread(x); }
CORE Eight constant(Eight, double x) { return twice(spread(x)); }
