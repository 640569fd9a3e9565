// Lanes of a warp: one source for a GPU (nvcc or NVRTC) and for a CPU (any C++17 compiler).
//
// A value of type lanes<T> differs from lane to lane: a register of each of 32 threads on a GPU, 32 numbers in a row on a CPU. A plain T
// is the same in all lanes. Branches and loops are taken on plain values only, so that a warp never diverges, and the types see to it:
// on a CPU no lanes<bool> converts to bool. Sums of a warp are added in the same order on both, in pairs of lanes 16, 8, 4, 2, 1 apart.
//
// A kernel is declared by `KERNEL name(long long n_problems, ...)`, with whole numbers as long long and reals as double, and takes
// problems warp_of_grid(), warp_of_grid() + warps_of_grid(), … in a loop. `warp_memory(n)` gives each warp n doubles of shared memory.
#pragma once

typedef long long int64;
constexpr int LANES = 32;

#ifdef __CUDACC__  // ------------------------------------------------------------------------------------------------------------- GPU

#ifndef WARPS_PER_BLOCK
#define WARPS_PER_BLOCK 4
#endif
#ifndef BLOCKS_PER_SM  // at least, which bounds the registers of a thread
#define BLOCKS_PER_SM 1
#endif
#define DEVICE __device__ __forceinline__
#define KERNEL extern "C" __global__ void __launch_bounds__(32 * WARPS_PER_BLOCK, BLOCKS_PER_SM)
#define ALL_LANES 0xffffffffu

template <class T>
using lanes = T;

DEVICE int64 warp_of_grid() { return (int64)blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5); }
DEVICE int64 warps_of_grid() { return (int64)gridDim.x * (blockDim.x >> 5); }
DEVICE lanes<int> lane_number() { return threadIdx.x & 31; }
#define FOR_LANES(k, count) for (int k = threadIdx.x & 31; k < (count); k += LANES)  // plain code for each k, shared by the lanes
DEVICE void warp_sync() { __syncwarp(); }
extern __shared__ double shared_memory[];
DEVICE double *warp_memory(int n_doubles) { return shared_memory + (threadIdx.x >> 5) * n_doubles; }

DEVICE double select(bool which, double yes, double no) { return which ? yes : no; }
DEVICE int select(bool which, int yes, int no) { return which ? yes : no; }
DEVICE bool select(bool which, bool yes, bool no) { return which ? yes : no; }
DEVICE bool is_finite(double x) { return isfinite(x); }
DEVICE int high_word(double x) { return __double2hiint(x); }
DEVICE double power_of_two(int exponent) { return __hiloint2double((exponent + 1023) << 20, 0); }  // exponent from -1022 to 1023
DEVICE int whole(double x) { return __double2int_rn(x); }
DEVICE int narrow(int64 x) { return (int)x; }
DEVICE int64 widen(int x) { return x; }
DEVICE double real(int x) { return (double)x; }
DEVICE double infinity() { return __longlong_as_double(0x7ff0000000000000LL); }

template <class T>
DEVICE T shuffle(T x, int lane) { return __shfl_sync(ALL_LANES, x, lane); }
template <class T>
DEVICE T shuffle_xor(T x, int mask) { return __shfl_xor_sync(ALL_LANES, x, mask); }
DEVICE bool any_lane(bool x) { return __any_sync(ALL_LANES, x); }
DEVICE bool all_lanes(bool x) { return __all_sync(ALL_LANES, x); }
DEVICE unsigned lane_bits(bool x) { return __ballot_sync(ALL_LANES, x); }
template <class T>
DEVICE T uniform(T x) { return x; }  // of a value that is known to be the same in all lanes
DEVICE double of_lane(double x, int lane) { return __shfl_sync(ALL_LANES, x, lane); }  // `lane` is the same in all lanes
DEVICE int of_lane(int x, int lane) { return __shfl_sync(ALL_LANES, x, lane); }
#if __CUDA_ARCH__ >= 800
DEVICE int warp_max(int x) { return __reduce_max_sync(ALL_LANES, x); }
#else
DEVICE int warp_max(int x) {
    for (int apart = 16; apart > 0; apart >>= 1) x = max(x, __shfl_xor_sync(ALL_LANES, x, apart));
    return x;
}
#endif

template <class T>
DEVICE T load(const T *from, int at) { return from[at]; }
template <class T, class U>
DEVICE T load_if(bool where, const T *from, int at, U otherwise) { return where ? from[at] : otherwise; }
template <class T, class U>
DEVICE void store(T *to, int at, U x) { to[at] = x; }
template <class T, class U>
DEVICE void store_if(bool where, T *to, int at, U x) {
    if (where) to[at] = x;
}
template <class T, class U>
DEVICE void store_one(T *to, U x) {  // a value that is the same in all lanes, written once
    if ((threadIdx.x & 31) == 0) *to = x;
}

#else  // ---------------------------------------------------------------------------------------------------------------------------- CPU

#include <cmath>
#include <cstring>
#include <vector>

#define DEVICE static inline
#define KERNEL extern "C" void
#define FOR_LANES(k, count) for (int k = 0; k < (count); ++k)

template <class T>
struct lanes {
    T v[LANES];
    lanes() = default;
    lanes(T x) {
        for (int k = 0; k < LANES; ++k) v[k] = x;
    }

    template <class F>
    static lanes each(F f) {
        lanes out;
        for (int k = 0; k < LANES; ++k) out.v[k] = f(k);
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
        return each([&](int k) { return std::fma(a.v[k], b.v[k], c.v[k]); });
    }
    friend lanes exp(const lanes &a) { return each([&](int k) { return std::exp(a.v[k]); }); }
    friend lanes log(const lanes &a) { return each([&](int k) { return std::log(a.v[k]); }); }
    friend lanes log1p(const lanes &a) { return each([&](int k) { return std::log1p(a.v[k]); }); }
    friend lanes sqrt(const lanes &a) { return each([&](int k) { return std::sqrt(a.v[k]); }); }
    friend lanes rint(const lanes &a) { return each([&](int k) { return std::rint(a.v[k]); }); }
    friend lanes cos(const lanes &a) { return each([&](int k) { return std::cos(a.v[k]); }); }
    friend lanes sin(const lanes &a) { return each([&](int k) { return std::sin(a.v[k]); }); }
    friend lanes pow(const lanes &a, const lanes &b) { return each([&](int k) { return std::pow(a.v[k], b.v[k]); }); }
    friend lanes fabs(const lanes &a) { return each([&](int k) { return std::fabs(a.v[k]); }); }
    friend lanes fmax(const lanes &a, const lanes &b) { return each([&](int k) { return std::fmax(a.v[k], b.v[k]); }); }
    friend lanes fmin(const lanes &a, const lanes &b) { return each([&](int k) { return std::fmin(a.v[k], b.v[k]); }); }
    friend lanes max(const lanes &a, const lanes &b) { return each([&](int k) { return a.v[k] > b.v[k] ? a.v[k] : b.v[k]; }); }
    friend lanes min(const lanes &a, const lanes &b) { return each([&](int k) { return a.v[k] < b.v[k] ? a.v[k] : b.v[k]; }); }
    friend lanes copysign(const lanes &a, const lanes &b) { return each([&](int k) { return std::copysign(a.v[k], b.v[k]); }); }
    friend lanes<bool> is_finite(const lanes &a) { return lanes<bool>::each([&](int k) { return std::isfinite(a.v[k]); }); }
};

using std::copysign, std::exp, std::fabs, std::fma, std::fmax, std::fmin, std::log, std::log1p, std::pow, std::rint, std::sqrt;

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
    for (int k = 0; k < LANES; ++k) to[at.v[k]] = x.v[k];
}
template <class T>
static inline void store_if(const lanes<bool> &where, T *to, const lanes<int> &at, const typename the_same<lanes<T>>::type &x) {
    for (int k = 0; k < LANES; ++k)
        if (where.v[k]) to[at.v[k]] = x.v[k];
}

static inline int64 warp_of_grid() { return 0; }
static inline int64 warps_of_grid() { return 1; }
static inline void warp_sync() {}
static inline lanes<int> lane_number() {
    return lanes<int>::each([](int k) { return k; });
}
static inline double *warp_memory(int n_doubles) {
    static thread_local std::vector<double> memory;
    if ((int)memory.size() < n_doubles) memory.resize(n_doubles);
    return memory.data();
}
static inline bool is_finite(double x) { return std::isfinite(x); }
static inline double select(bool which, double yes, double no) { return which ? yes : no; }
static inline int select(bool which, int yes, int no) { return which ? yes : no; }
static inline lanes<double> select(const lanes<bool> &which, double yes, double no) { return select(which, lanes<double>(yes), lanes<double>(no)); }
static inline lanes<int> select(const lanes<bool> &which, int yes, int no) { return select(which, lanes<int>(yes), lanes<int>(no)); }
static inline int max(int a, int b) { return a > b ? a : b; }
static inline int min(int a, int b) { return a < b ? a : b; }
static inline int high_word(double x) {
    int64 bits;
    std::memcpy(&bits, &x, 8);
    return (int)(bits >> 32);
}
static inline double power_of_two(int exponent) {
    const int64 bits = (int64)(exponent + 1023) << 52;
    double x;
    std::memcpy(&x, &bits, 8);
    return x;
}
static inline int whole(double x) { return (int)std::rint(x); }
static inline double infinity() { return INFINITY; }
static inline lanes<int64> widen(const lanes<int> &x) {
    return lanes<int64>::each([&](int k) { return (int64)x.v[k]; });
}
static inline lanes<double> real(const lanes<int> &x) {
    return lanes<double>::each([&](int k) { return (double)x.v[k]; });
}
static inline lanes<int> high_word(const lanes<double> &x) {
    return lanes<int>::each([&](int k) { return high_word(x.v[k]); });
}
static inline lanes<double> power_of_two(const lanes<int> &x) {
    return lanes<double>::each([&](int k) { return power_of_two(x.v[k]); });
}
static inline lanes<int> whole(const lanes<double> &x) {
    return lanes<int>::each([&](int k) { return whole(x.v[k]); });
}
static inline lanes<int> narrow(const lanes<int64> &x) {
    return lanes<int>::each([&](int k) { return (int)x.v[k]; });
}
static inline bool any_lane(const lanes<bool> &x) {
    bool result = false;
    for (int k = 0; k < LANES; ++k) result = result || x.v[k];
    return result;
}
static inline bool all_lanes(const lanes<bool> &x) {
    bool result = true;
    for (int k = 0; k < LANES; ++k) result = result && x.v[k];
    return result;
}
static inline unsigned lane_bits(const lanes<bool> &x) {
    unsigned bits = 0;
    for (int k = 0; k < LANES; ++k) bits |= (unsigned)x.v[k] << k;
    return bits;
}
static inline int warp_max(const lanes<int> &x) {
    int largest = x.v[0];
    for (int k = 1; k < LANES; ++k) largest = max(largest, x.v[k]);
    return largest;
}
template <class T, class U>
static inline void store_one(T *to, U x) { *to = x; }

#endif  // ------------------------------------------------------------------------------------------------------------------------- both

// The sum over each group of `size` lanes in a row, a power of two, in all of its lanes.
template <int size>
DEVICE lanes<double> group_sum(lanes<double> x) {
    for (int apart = size / 2; apart > 0; apart >>= 1) x = x + shuffle_xor(x, apart);
    return x;
}

template <int size>
DEVICE lanes<double> group_max(lanes<double> x) {
    for (int apart = size / 2; apart > 0; apart >>= 1) x = fmax(x, shuffle_xor(x, apart));
    return x;
}

// `at` of the largest `x` in each group of lanes, the smallest one where several tie; `x` becomes the largest.
template <int size>
DEVICE lanes<int> group_argmax(lanes<double> &x, lanes<int> at) {
    for (int apart = size / 2; apart > 0; apart >>= 1) {
        const lanes<double> other = shuffle_xor(x, apart);
        const lanes<int> other_at = shuffle_xor(at, apart);
        const lanes<bool> better = other > x || (other == x && other_at < at);
        x = select(better, other, x);
        at = select(better, other_at, at);
    }
    return at;
}

// The same over all lanes, as plain values.
DEVICE double warp_sum(lanes<double> x) { return uniform(group_sum<LANES>(x)); }
DEVICE double warp_max(lanes<double> x) { return uniform(group_max<LANES>(x)); }
DEVICE int warp_argmax(lanes<double> x, lanes<int> at) { return uniform(group_argmax<LANES>(x, at)); }
