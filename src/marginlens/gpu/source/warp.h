// Lanes of a warp: one source for a GPU (NVRTC) and, in tests, for a CPU (any C++17 compiler, with tests/gpu/warp_on_cpu.h).
//
// A value of type lanes<T> differs from lane to lane: a register of each of 32 threads on a GPU, 32 numbers in a row on a CPU. A plain T
// is the same in all lanes. Branches and loops are taken on plain values only, so that a warp never diverges, and the types see to it:
// on a CPU no lanes<bool> converts to bool. Sums of a warp are added in the same order on both, in pairs of lanes 16, 8, 4, 2, 1 apart.
//
// A kernel is declared by `KERNEL name(long long n_problems, ...)`, with whole numbers as long long and reals as double, and takes
// problems warp_of_grid(), warp_of_grid() + warps_of_grid(), … in a loop. `warp_memory(n)` gives each warp n doubles of shared memory.
#pragma once
#include "../../core/arithmetic.h"

constexpr int LANES = 32;

#ifdef __CUDACC__

#ifndef WARPS_PER_BLOCK
#define WARPS_PER_BLOCK 4
#endif
#ifndef BLOCKS_PER_SM  // at least, which bounds the registers of a thread
#define BLOCKS_PER_SM 1
#endif
#define DEVICE static __forceinline__
#define KERNEL extern "C" __global__ void __launch_bounds__(32 * WARPS_PER_BLOCK, BLOCKS_PER_SM)
#define ALL_LANES 0xffffffffu

template <class T>
using lanes = T;

DEVICE int64_t warp_of_grid() { return (int64_t)blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5); }
DEVICE int64_t warps_of_grid() { return (int64_t)gridDim.x * (blockDim.x >> 5); }
DEVICE lanes<int> lane_number() { return threadIdx.x & 31; }
#define FOR_LANES(k, count) for (int k = threadIdx.x & 31; k < (count); k += LANES)  // plain code for each k, shared by the lanes
DEVICE void warp_sync() { __syncwarp(); }
extern __shared__ double shared_memory[];
DEVICE double *warp_memory(int n_doubles) { return shared_memory + (threadIdx.x >> 5) * n_doubles; }

DEVICE double select(bool which, double yes, double no) { return which ? yes : no; }
DEVICE int select(bool which, int yes, int no) { return which ? yes : no; }
DEVICE bool select(bool which, bool yes, bool no) { return which ? yes : no; }
DEVICE int high_word(double x) { return __double2hiint(x); }
DEVICE double next_above(int upper) { return __hiloint2double(upper + 1, 0); }  // of moduli whose upper half is `upper`
DEVICE double reciprocal_root(double x) {  // 1 / √x for x from 1e-280 to 1e280
    double y;
    asm("rsqrt.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(x));
    const double half = 0.5 * x;
    y = fma(y, fma(-half * y, y, 0.5), y);
    return fma(y, fma(-half * y, y, 0.5), y);
}
DEVICE int narrow(int64_t x) { return (int)x; }
DEVICE int64_t widen(int x) { return x; }
DEVICE double real(int x) { return (double)x; }

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

#endif

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
