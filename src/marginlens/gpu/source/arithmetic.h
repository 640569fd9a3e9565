// Exponentials, reciprocals and reciprocal roots that a step takes, without branches.
#pragma once
#include "warp.h"

#ifdef __CUDACC__
DEVICE int low_word(double x) { return __double2loint(x); }
DEVICE double next_above(int upper) { return __hiloint2double(upper + 1, 0); }  // of moduli whose upper half is `upper`
DEVICE double rough_reciprocal(double x) {
    double y;
    asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(x));
    return y;
}
DEVICE double rough_reciprocal_root(double x) {
    double y;
    asm("rsqrt.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(x));
    return y;
}
#else
static inline int low_word(double x) {
    int64 bits;
    std::memcpy(&bits, &x, 8);
    return (int)bits;
}
static inline lanes<int> low_word(const lanes<double> &x) {
    return lanes<int>::each([&](int k) { return low_word(x.v[k]); });
}
static inline double next_above(int upper) {
    const int64 bits = (int64)(upper + 1) << 32;
    double x;
    std::memcpy(&x, &bits, 8);
    return x;
}
static inline double rough(double x) {  // the upper half, as a GPU gives it
    int64 bits;
    std::memcpy(&bits, &x, 8);
    bits &= ~0xffffffffLL;
    std::memcpy(&x, &bits, 8);
    return x;
}
static inline double rough_reciprocal(double x) { return rough(1.0 / x); }
static inline lanes<double> rough_reciprocal(const lanes<double> &x) {
    return lanes<double>::each([&](int k) { return rough_reciprocal(x.v[k]); });
}
static inline double rough_reciprocal_root(double x) { return rough(1.0 / std::sqrt(x)); }
#endif

#ifdef LIBRARY_ARITHMETIC
DEVICE lanes<double> exponential(lanes<double> x) { return exp(x); }
DEVICE lanes<double> reciprocal(lanes<double> x) { return 1.0 / x; }
DEVICE double reciprocal_root(double x) { return 1.0 / sqrt(x); }
#else

// e^x to about a unit in the last place: 2^k e^r with |r| ≤ log(2) / 2 and a polynomial in r, as in marginlens/kernels/exponential.py.
// Below 2^-1022 it stays there, and from 2^1024 on it is too small but above 2^1022: callers look at the size of what they form.
DEVICE lanes<double> exponential(lanes<double> x) {
    const double rounding = 6755399441055744.0;  // 1.5 · 2^52: a number plus this has its whole part in the lower word
    const lanes<double> shifted = fma(x, lanes<double>(1.4426950408889634), lanes<double>(rounding));
    const lanes<int> exponent = min(max(low_word(shifted), lanes<int>(-1022)), lanes<int>(1023));
    const lanes<double> k = shifted - rounding;
    lanes<double> r = fma(k, lanes<double>(-6.93147180369123816490e-01), x);
    r = fma(k, lanes<double>(-1.90821492927058770002e-10), r);
    const lanes<double> r2 = r * r, r4 = r2 * r2;
    const lanes<double> low = fma(
        r2, fma(r, lanes<double>(0.008333333333330039), lanes<double>(0.041666666666623824)),
        fma(r, lanes<double>(0.16666666666666669), lanes<double>(0.5000000000000001)));
    const lanes<double> high = fma(
        r2, fma(r, lanes<double>(2.7557268276905696e-06), lanes<double>(2.4801521057868204e-05)),
        fma(r, lanes<double>(0.00019841269863171557), lanes<double>(0.0013888888917367081)));
    const lanes<double> highest = fma(r, lanes<double>(2.5100472505694996e-08), lanes<double>(2.7620201591031547e-07));
    const lanes<double> q = fma(r4, fma(r4, highest, high), low);
    return (1.0 + fma(r2, q, r)) * power_of_two(exponent);
}

// 1 / x for x from 1 up to 2^1022, to a unit in the last place; 0 or nan beyond.
DEVICE lanes<double> reciprocal(lanes<double> x) {
    lanes<double> y = rough_reciprocal(x);
    y = fma(y, fma(-x, y, lanes<double>(1.0)), y);
    return fma(y, fma(-x, y, lanes<double>(1.0)), y);
}

// 1 / √x for x from 1e-280 to 1e280.
DEVICE double reciprocal_root(double x) {
    double y = rough_reciprocal_root(x);
    const double half = 0.5 * x;
    y = fma(y, fma(-half * y, y, 0.5), y);
    return fma(y, fma(-half * y, y, 0.5), y);
}
#endif
