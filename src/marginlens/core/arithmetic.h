// Arithmetic of single numbers, for CPUs, browsers and GPUs: what functions of lanes and of numbers alike are made of.
#pragma once

#ifdef __CUDACC__  // compiled by NVRTC, which has no headers, and takes functions without a mark as functions of the device
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
typedef int Index;  // of a token: registers are scarce
#define CORE static __forceinline__
#define OUTLINED CORE
#define UNROLLED _Pragma("unroll")
#define ROLLED _Pragma("unroll 1")  // where speed does not matter and registers do
#define INF __longlong_as_double(0x7FF0000000000000)
#define NOT_A_NUMBER __longlong_as_double(0x7FF8000000000000)
CORE uint64_t bits_of(double x) { return (uint64_t)__double_as_longlong(x); }
CORE double double_of(uint64_t bits) { return __longlong_as_double((int64_t)bits); }
CORE double modulus(double x) { return fabs(x); }
CORE double square_root(double x) { return sqrt(x); }
CORE double with_sign(double size, double x) { return copysign(size, x); }
CORE double quotient(double x, double y) {  // x / y to a unit in the last place or two, for y from 1 up to 2^1022
    double inverse;
    asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(inverse) : "d"(y));
    inverse = fma(inverse, fma(-y, inverse, 1.0), inverse);
    return x * fma(inverse, fma(-y, inverse, 1.0), inverse);
}
#else
#include <stdint.h>
typedef int64_t Index;
#define CORE static inline __attribute__((always_inline))
#define UNROLLED _Pragma("GCC unroll 16")
#define ROLLED
#define CORE_MEMBER inline __attribute__((always_inline))
#define OUTLINED static __attribute__((noinline, unused))  // one copy for all callers in a file, which compiles sooner
constexpr double INF = __builtin_inf(), NOT_A_NUMBER = __builtin_nan("");
CORE uint64_t bits_of(double x) {
    uint64_t bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    return bits;
}
CORE double double_of(uint64_t bits) {
    double x;
    __builtin_memcpy(&x, &bits, sizeof x);
    return x;
}
CORE double modulus(double x) { return __builtin_fabs(x); }
CORE double square_root(double x) { return __builtin_sqrt(x); }  // exact by IEEE, so the same everywhere
CORE double with_sign(double size, double x) { return __builtin_copysign(size, x); }
template <class T>
CORE T quotient(T x, T y) {
    return x / y;
}
CORE void copy(const double *x, int64_t n, double *out) { __builtin_memcpy(out, x, n * sizeof(double)); }
#endif

constexpr double EPS = 2.220446049250313e-16;  // spacing of doubles at one

CORE bool is_finite(double x) { return x - x == 0.0; }
CORE double where_greater(double x, double y, double yes, double no) { return x > y ? yes : no; }
CORE double larger(double x, double y) { return x > y ? x : y; }  // neither of which is nan
CORE double smaller(double x, double y) { return x < y ? x : y; }
CORE int64_t larger(int64_t x, int64_t y) { return x > y ? x : y; }
CORE int64_t smaller(int64_t x, int64_t y) { return x < y ? x : y; }
CORE double power_of_two(double x) { return double_of(bits_of(x) << 52); }  // whose biased exponent is in the last bits of x
CORE double constant(double, double x) { return x; }
