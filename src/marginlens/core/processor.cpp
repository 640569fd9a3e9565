// Which of the levels of build.py this processor runs: 0 for plain x86-64, 1 for x86-64-v3, 2 for x86-64-v4. Compiled by itself too.
#include "abi/abi.h"
#if defined(__x86_64__)
#include <cpuid.h>

constexpr unsigned bits() { return 0; }
template <class... Others>
constexpr unsigned bits(unsigned k, Others... others) {
    return 1u << k | bits(others...);
}
constexpr unsigned BASIC = bits(12, 22, 27, 28, 29);      // FMA, MOVBE, OSXSAVE, AVX, F16C, in ecx of leaf 1
constexpr unsigned EXTENDED = bits(3, 5, 8);              // BMI1, AVX2, BMI2, in ebx of leaf 7
constexpr unsigned WIDE = bits(16, 17, 28, 30, 31);       // AVX512F, DQ, CD, BW, VL, in ebx of leaf 7
constexpr unsigned COUNTED = bits(5);                     // LZCNT, in ecx of leaf 0x80000001
constexpr unsigned SAVED = bits(1, 2), SAVED_WIDE = bits(1, 2, 5, 6, 7);  // registers that the system keeps for a thread

EXPORT processor_level() {
    unsigned a, b, c, d, low, high, extended;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & BASIC) != BASIC) return 0;
    if (!__get_cpuid_count(7, 0, &a, &extended, &c, &d) || (extended & EXTENDED) != EXTENDED) return 0;
    if (!__get_cpuid(0x80000001, &a, &b, &c, &d) || (c & COUNTED) != COUNTED) return 0;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if ((low & SAVED) != SAVED) return 0;
#ifndef __APPLE__  // where the system keeps wide registers from their first use on
    if ((low & SAVED_WIDE) != SAVED_WIDE) return 1;
#endif
    return (extended & WIDE) == WIDE ? 2 : 1;
}
#else
EXPORT processor_level() { return 0; }
#endif
