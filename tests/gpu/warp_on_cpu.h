// Lanes of a warp on a CPU, for tests of the kernels: 32 numbers in a row. No lanes<bool> converts to bool, so that no warp can diverge.
#pragma once
#include <stdint.h>
#include <stdlib.h>

constexpr int WARP = 32;

#define DEVICE static inline
#define KERNEL extern "C" void
#define FOR_LANES(k, count) for (int k = 0; k < (count); ++k)

template <class T>
struct lanes {
    T v[WARP];
    lanes() = default;
    lanes(T x) {
        for (int k = 0; k < WARP; ++k) v[k] = x;
    }

    template <class F>
    static lanes each(F f) {
        lanes out;
        for (int k = 0; k < WARP; ++k) out.v[k] = f(k);
        return out;
    }
    friend lanes operator+(const lanes &a, const lanes &b) { return each([&](int k) { return a.v[k] + b.v[k]; }); }
    friend lanes operator-(const lanes &a, const lanes &b) { return each([&](int k) { return a.v[k] - b.v[k]; }); }
    friend lanes operator*(const lanes &a, const lanes &b) { return each([&](int k) { return a.v[k] * b.v[k]; }); }
    friend lanes operator/(const lanes &a, const lanes &b) { return each([&](int k) { return a.v[k] / b.v[k]; }); }
    friend lanes operator-(const lanes &a) { return each([&](int k) { return -a.v[k]; }); }
    lanes &operator+=(const lanes &b) { return *this = *this + b; }
    lanes &operator-=(const lanes &b) { return *this = *this - b; }
    lanes &operator*=(const lanes &b) { return *this = *this * b; }
    lanes &operator/=(const lanes &b) { return *this = *this / b; }
    friend lanes<bool> operator<(const lanes &a, const lanes &b) { return lanes<bool>::each([&](int k) { return a.v[k] < b.v[k]; }); }
    friend lanes<bool> operator>(const lanes &a, const lanes &b) { return lanes<bool>::each([&](int k) { return a.v[k] > b.v[k]; }); }
    friend lanes<bool> operator<=(const lanes &a, const lanes &b) { return lanes<bool>::each([&](int k) { return a.v[k] <= b.v[k]; }); }
    friend lanes<bool> operator>=(const lanes &a, const lanes &b) { return lanes<bool>::each([&](int k) { return a.v[k] >= b.v[k]; }); }
    friend lanes<bool> operator==(const lanes &a, const lanes &b) { return lanes<bool>::each([&](int k) { return a.v[k] == b.v[k]; }); }
    friend lanes<bool> operator!=(const lanes &a, const lanes &b) { return lanes<bool>::each([&](int k) { return a.v[k] != b.v[k]; }); }
    friend lanes<bool> operator&&(const lanes &a, const lanes &b) { return lanes<bool>::each([&](int k) { return a.v[k] && b.v[k]; }); }
    friend lanes<bool> operator||(const lanes &a, const lanes &b) { return lanes<bool>::each([&](int k) { return a.v[k] || b.v[k]; }); }
    friend lanes<bool> operator!(const lanes &a) { return lanes<bool>::each([&](int k) { return !a.v[k]; }); }
    friend lanes operator%(const lanes &a, const lanes &b) { return each([&](int k) { return a.v[k] % b.v[k]; }); }
    friend lanes operator&(const lanes &a, const lanes &b) { return each([&](int k) { return a.v[k] & b.v[k]; }); }
    friend lanes operator|(const lanes &a, const lanes &b) { return each([&](int k) { return a.v[k] | b.v[k]; }); }
    friend lanes operator^(const lanes &a, const lanes &b) { return each([&](int k) { return a.v[k] ^ b.v[k]; }); }
    friend lanes operator<<(const lanes &a, int by) { return each([&](int k) { return a.v[k] << by; }); }
    friend lanes operator>>(const lanes &a, int by) { return each([&](int k) { return a.v[k] >> by; }); }

    friend lanes select(const lanes<bool> &which, const lanes &yes, const lanes &no) {
        return each([&](int k) { return which.v[k] ? yes.v[k] : no.v[k]; });
    }
    friend lanes shuffle(const lanes &x, const lanes<int> &lane) { return each([&](int k) { return x.v[lane.v[k] & 31]; }); }
    friend lanes shuffle_xor(const lanes &x, int mask) { return each([&](int k) { return x.v[k ^ mask]; }); }
    friend T of_lane(const lanes &x, int lane) { return x.v[lane]; }
    friend T uniform(const lanes &x) { return x.v[0]; }
    friend lanes fma(const lanes &a, const lanes &b, const lanes &c) {
        return each([&](int k) { return __builtin_fma(a.v[k], b.v[k], c.v[k]); });
    }
    friend lanes sqrt(const lanes &a) { return each([&](int k) { return __builtin_sqrt(a.v[k]); }); }
    friend lanes fabs(const lanes &a) { return each([&](int k) { return __builtin_fabs(a.v[k]); }); }
    friend lanes fmax(const lanes &a, const lanes &b) { return each([&](int k) { return __builtin_fmax(a.v[k], b.v[k]); }); }
    friend lanes fmin(const lanes &a, const lanes &b) { return each([&](int k) { return __builtin_fmin(a.v[k], b.v[k]); }); }
    friend lanes max(const lanes &a, const lanes &b) { return each([&](int k) { return a.v[k] > b.v[k] ? a.v[k] : b.v[k]; }); }
    friend lanes min(const lanes &a, const lanes &b) { return each([&](int k) { return a.v[k] < b.v[k] ? a.v[k] : b.v[k]; }); }
    friend lanes copysign(const lanes &a, const lanes &b) { return each([&](int k) { return __builtin_copysign(a.v[k], b.v[k]); }); }
    friend lanes<bool> is_finite(const lanes &a) { return lanes<bool>::each([&](int k) { return __builtin_isfinite(a.v[k]); }); }
};


template <class T>
struct the_same {
    using type = T;
};
template <class T>
static inline lanes<T> load(const T *from, const lanes<int> &at) {
    return lanes<T>::each([&](int k) { return from[at.v[k]]; });
}
template <class T>
static inline lanes<T> load_if(const lanes<bool> &where, const T *from, const lanes<int> &at, const typename the_same<lanes<T>>::type &otherwise) {
    return lanes<T>::each([&](int k) { return where.v[k] ? from[at.v[k]] : otherwise.v[k]; });
}
template <class T>
static inline void store(T *to, const lanes<int> &at, const typename the_same<lanes<T>>::type &x) {
    for (int k = 0; k < WARP; ++k) to[at.v[k]] = x.v[k];
}
template <class T>
static inline void store_if(const lanes<bool> &where, T *to, const lanes<int> &at, const typename the_same<lanes<T>>::type &x) {
    for (int k = 0; k < WARP; ++k)
        if (where.v[k]) to[at.v[k]] = x.v[k];
}

static inline int64_t warp_of_grid() { return 0; }
static inline int64_t warps_of_grid() { return 1; }
static inline void warp_sync() {}
static inline lanes<int> lane_number() {
    return lanes<int>::each([](int k) { return k; });
}
static inline double *warp_memory(int n_doubles) {
    static thread_local int size = 0;
    static thread_local double *memory = nullptr;
    if (size < n_doubles) memory = (double *)realloc(memory, (size = n_doubles) * sizeof(double));
    return memory;
}
static inline double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
static inline double fabs(double x) { return __builtin_fabs(x); }
static inline double sqrt(double x) { return __builtin_sqrt(x); }
static inline double fmax(double a, double b) { return __builtin_fmax(a, b); }
static inline double fmin(double a, double b) { return __builtin_fmin(a, b); }
static inline double reciprocal_root(double x) { return 1.0 / sqrt(x); }
static inline double select(bool which, double yes, double no) { return which ? yes : no; }
static inline int select(bool which, int yes, int no) { return which ? yes : no; }
static inline lanes<double> select(const lanes<bool> &which, double yes, double no) { return select(which, lanes<double>(yes), lanes<double>(no)); }
static inline lanes<int> select(const lanes<bool> &which, int yes, int no) { return select(which, lanes<int>(yes), lanes<int>(no)); }
static inline int max(int a, int b) { return a > b ? a : b; }
static inline int min(int a, int b) { return a < b ? a : b; }
static inline int high_word(double x) {
    int64_t bits;
    __builtin_memcpy(&bits, &x, 8);
    return (int)(bits >> 32);
}
static inline double next_above(int upper) {
    const int64_t bits = (int64_t)(upper + 1) << 32;
    double x;
    __builtin_memcpy(&x, &bits, 8);
    return x;
}
static inline lanes<int64_t> widen(const lanes<int> &x) {
    return lanes<int64_t>::each([&](int k) { return (int64_t)x.v[k]; });
}
static inline lanes<double> real(const lanes<int> &x) {
    return lanes<double>::each([&](int k) { return (double)x.v[k]; });
}
static inline lanes<int> high_word(const lanes<double> &x) {
    return lanes<int>::each([&](int k) { return high_word(x.v[k]); });
}
static inline lanes<int> narrow(const lanes<int64_t> &x) {
    return lanes<int>::each([&](int k) { return (int)x.v[k]; });
}
static inline bool any_lane(const lanes<bool> &x) {
    bool result = false;
    for (int k = 0; k < WARP; ++k) result = result || x.v[k];
    return result;
}
static inline bool all_lanes(const lanes<bool> &x) {
    bool result = true;
    for (int k = 0; k < WARP; ++k) result = result && x.v[k];
    return result;
}
static inline unsigned lane_bits(const lanes<bool> &x) {
    unsigned bits = 0;
    for (int k = 0; k < WARP; ++k) bits |= (unsigned)x.v[k] << k;
    return bits;
}
static inline int warp_max(const lanes<int> &x) {
    int largest = x.v[0];
    for (int k = 1; k < WARP; ++k) largest = max(largest, x.v[k]);
    return largest;
}
template <class T, class U>
static inline void store_one(T *to, U x) { *to = x; }

// What functions of the core need to take lanes for a number.
static inline lanes<double> constant(const lanes<double> &, double x) { return x; }
static inline lanes<double> modulus(const lanes<double> &x) { return fabs(x); }
static inline lanes<double> square_root(const lanes<double> &x) { return sqrt(x); }
static inline lanes<double> where_greater(const lanes<double> &x, const lanes<double> &y, const lanes<double> &yes, const lanes<double> &no) {
    return select(x > y, yes, no);
}
static inline lanes<uint64_t> bits_of(const lanes<double> &x) {
    lanes<uint64_t> bits;
    __builtin_memcpy(&bits, &x, sizeof x);
    return bits;
}
static inline lanes<double> double_of(const lanes<uint64_t> &bits) {
    lanes<double> x;
    __builtin_memcpy(&x, &bits, sizeof x);
    return x;
}
static inline lanes<double> power_of_two(const lanes<double> &x) { return double_of(bits_of(x) << 52); }
