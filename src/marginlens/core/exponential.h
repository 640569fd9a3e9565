// Exponentials and logarithms without branches or calls, so that those of several numbers are formed at once, with the same bits everywhere.
//
// e^x = 2^k e^r with |r| ≤ log(2)/2, and log x = k log 2 + log(1 + f) with √½ ≤ 1 + f < √2: polynomials on a short interval, and exact
// powers of two beyond it. exp and log are within 1.1 units in the last place, subnormal numbers included; zero, infinities and nan are as
// in NumPy. log1p, expm1 and tanh are within 4 units, pow where it is between 1e-100 and 1e100 too.
#pragma once
#include "arithmetic.h"
#ifndef __CUDACC__
#include "lanes.h"
#endif

constexpr double LOG2_E = 1.4426950408889634;
constexpr double LN2_HIGH = 6.93147180369123816490e-01, LN2_LOW = 1.90821492927058770002e-10;  // LN2_HIGH times any exponent is exact
constexpr double ROUNDING = 6755399441055744.0;  // 1.5 · 2^52: a number plus this is a whole number, which stands in the last bits
constexpr double SCALING = ROUNDING + 1023.0;    // the same, with the bias of exponents

// e^(x - k log 2) where k is the whole number next to x / log 2: a polynomial, whose short sums do not wait for each other.
template <class T>
CORE T exp_near_one(T x, T k) {
    const T r = (x - k * LN2_HIGH) - k * LN2_LOW;
    const T r2 = r * r, r4 = r2 * r2;
    const T low = (0.5000000000000001 + 0.16666666666666669 * r) + r2 * (0.041666666666623824 + 0.008333333333330039 * r);
    const T middle =
        (0.0013888888917367081 + 0.00019841269863171557 * r) + r2 * (2.4801521057868204e-05 + 2.7557268276905696e-06 * r);
    const T high = 2.7620201591031547e-07 + 2.5100472505694996e-08 * r;
    return 1.0 + (r + r2 * (low + r4 * (middle + r4 * high)));
}

// e^x of a number or of lanes.
template <class T>
CORE T exp(T x) {
    const T lowest = constant(x, -746.0), highest = constant(x, 710.0);  // e^x is 0 below and infinite above
    x = where_greater(lowest, x, lowest, where_greater(x, highest, highest, x));
    const T k = (x * LOG2_E + ROUNDING) - ROUNDING;
    const T half = k * 0.5 + SCALING;  // 2^k as a product of two powers, neither of which is subnormal
    const T other = (k - (half - SCALING)) + SCALING;
    return exp_near_one(x, k) * power_of_two(half) * power_of_two(other);
}

// e^x of a number or of lanes that are at most 700; 0 where that is below 1e-282, so that products with it are rarely subnormal, which
// takes processors a hundred times as long.
template <class T>
CORE T exp_of_nonpositive(T x) {
    const T shifted = x * LOG2_E + SCALING;
    return where_greater(x, constant(x, -650.0), exp_near_one(x, shifted - SCALING) * power_of_two(shifted), constant(x, 0.0));
}

// A number x > 0 as 2^k (1 + f) with √½ ≤ 1 + f < √2, subnormal numbers included.
template <class T>
struct Reduced {
    T k, f;
};
template <class T>
CORE Reduced<T> reduced(T x) {
    const uint64_t half_root = 0x3FE6A09E667F3BCD, one = 0x3FF0000000000000;  // the bits of √½ and of 1
    const T tiny = constant(x, 0x1p-1022);
    const auto bits = bits_of(where_greater(tiny, x, x * 0x1p54, x)) + (one - half_root);
    const T bias = where_greater(tiny, x, constant(x, 0x1p52 + 1023.0 + 54.0), constant(x, 0x1p52 + 1023.0));
    return {double_of((bits >> 52) | (uint64_t)0x4330000000000000) - bias, double_of((bits & (uint64_t)0x000FFFFFFFFFFFFF) + half_root) - 1.0};
}

// q of log(1 + f) = 2 s + s z q with s = f/(2 + f) and z = s².
template <class T>
CORE T log_series(T z) {
    T q = constant(z, 0.13088034850927555);
    q = q * z + 0.13268638369266825;
    q = q * z + 0.15386244737621665;
    q = q * z + 0.18181795547521137;
    q = q * z + 0.22222222392581045;
    q = q * z + 0.28571428570799784;
    q = q * z + 0.40000000000000885;
    return q * z + 0.6666666666666666;
}

// The natural logarithm of a number or of lanes; -inf at 0 and nan below.
template <class T>
CORE T log(T x) {
    const Reduced<T> r = reduced(x);
    const T s = r.f / (2.0 + r.f), z = s * s, half = 0.5 * r.f * r.f;
    const T y = r.k * LN2_HIGH - ((half - (s * (half + z * log_series(z)) + r.k * LN2_LOW)) - r.f);
    const T zero = constant(x, 0.0), beside = where_greater(zero, x, constant(x, NOT_A_NUMBER), x * 0.0 - INF);
    return where_greater(constant(x, INF), x, where_greater(x, zero, y, beside), x);
}

#ifdef __wasm__  // where size counts: one copy for all callers
OUTLINED double exp(double x) { return exp<double>(x); }
OUTLINED double log(double x) { return log<double>(x); }
#endif

#ifndef __CUDACC__  // which has functions of these names
// log(1 + x): what 1 + x loses to rounding is made good by the ratio of x to what is left of it.
CORE double log1p(double x) {
    const double u = 1.0 + x;
    return u == 1.0 ? x : (u < INF ? log(u) * (x / (u - 1.0)) : log(u));
}

// e^x - 1, by the same correction: (u - 1) x / log u with u = e^x.
CORE double expm1(double x) {
    const double u = exp(x);
    if (u == 1.0) return x;
    return x < -40.0 ? -1.0 : (x < 700.0 ? (u - 1.0) * (x / log(u)) : u);
}

CORE double tanh(double x) {
    const double y = expm1(-2.0 * modulus(x));  // in (-1, 0]
    return with_sign(-y / (2.0 + y), x);
}
#endif

// The first 26 bits of a number, so that the product of two such is exact.
template <class T>
CORE T leading_bits(T x) {
    return double_of(bits_of(x) & (uint64_t)0xFFFFFFFFF8000000);
}

// x^a of a number or of lanes x >= 0. Their logarithm is formed as a sum of two doubles, of about 60 bits, with s = s_1 + s_2.
template <class T>
CORE T pow(T x, double a) {
    if (a == 0.0) return constant(x, 1.0);
    const Reduced<T> r = reduced(x);
    const T u = 2.0 + r.f, u_1 = leading_bits(u), s = r.f / u, s_1 = leading_bits(s), z = s * s;
    const T s_2 = ((r.f - s_1 * u_1) - s_1 * (r.f - (u_1 - 2.0))) / u;
    const T whole = r.k * LN2_HIGH, twice_s = 2.0 * s_1, high = whole + twice_s;  // where k is not 0 it is the larger of the two
    const T lost_before = where_greater(modulus(whole), constant(x, 0.0), (whole - high) + twice_s, constant(x, 0.0));
    const T rest = lost_before + (2.0 * s_2 + (s * z * log_series(z) + r.k * LN2_LOW));
    const T l = high + rest, l_1 = leading_bits(l), l_2 = l - l_1, product = a * l;
    const double a_1 = leading_bits(a), a_2 = a - a_1;
    const T lost = (((a_1 * l_1 - product) + a_1 * l_2) + a_2 * l_1) + (a_2 * l_2 + a * ((high - l) + rest));
    const T e = exp(product), y = where_greater(constant(x, 709.0), modulus(product), e + e * lost, e);
    const T at_zero = x * 0.0 + (a > 0.0 ? 0.0 : INF), at_infinity = constant(x, a > 0.0 ? INF : 0.0);
    return where_greater(x, constant(x, 0.0), where_greater(constant(x, INF), x, y, at_infinity), at_zero);
}

#ifdef __wasm__
OUTLINED double pow(double x, double a) { return pow<double>(x, a); }
#endif

// 2^k for a whole number k from -1022 to 1023.
CORE double scale_of(int64_t k) { return double_of((uint64_t)(k + 1023) << 52); }

// The whole number k with 2^k ≤ x < 2^(k + 1), for a normal x > 0; -1023 below.
CORE int64_t exponent_of(double x) { return (int64_t)((bits_of(x) >> 52) & 0x7FF) - 1023; }
