// Rows of normals, from random numbers by counter.
#pragma once
#include "linear_algebra.h"
#include "random.h"

constexpr int64_t BLOCKS_AT_ONCE = 1024;  // that are made together and stay in the first cache

struct NormalBlocks {  // room for blocks that are made together
    uint64_t *low, *high;
    double *even, *odd;
};

// The normals of blocks first … first + n - 1.
static inline void fill_blocks(Stream s, uint64_t first, int64_t n, NormalBlocks room) {
    uint64_t *__restrict low = room.low, *__restrict high = room.high;
    double *__restrict even = room.even, *__restrict odd = room.odd;
    for (int64_t b = 0; b < n; b++) philox(s, first + (uint64_t)b, low[b], high[b]);
    for (int64_t b = 0; b < n; b++) {
        double x, y;
        unit_vector(high[b], x, y);
        const double radius = normal_radius(low[b]);
        even[b] = radius * x;
        odd[b] = radius * y;
    }
}

// Σ x² as eight sums, each over every eighth coordinate, added in pairs four, two and one apart.
CORE double squared_norm_by_eights(const double *x, int64_t d) {
    Eight sums = twice(spread(0.0));
    int64_t k = 0;
    for (; k + 8 <= d; k += 8) sums += load_8(x, k) * load_8(x, k);
    double rest[8] = {};
    for (int64_t left = k; left < d; left++) rest[left - k] = x[left];
    sums += load_8(rest, 0) * load_8(rest, 0);
    const Lanes four = sum_of_halves(sums);
    return (four[0] + four[2]) + (four[1] + four[3]);
}

// Fill rows (n_rows, d) of a problem with normals, each row from a new block on; at most `at_once` rows together.
static inline void fill_normals(
    Stream s, uint64_t first_block, bool on_sphere, int64_t n_rows, int64_t d, int64_t at_once, NormalBlocks room, double *rows) {
    const int64_t n_blocks = (d + 1) / 2;
    for (int64_t r = 0; r < n_rows; r++) {
        const int64_t begin = r % at_once * n_blocks;
        if (!begin) fill_blocks(s, first_block + (uint64_t)(r * n_blocks), smaller(at_once, n_rows - r) * n_blocks, room);
        double *row = rows + r * d;
        const double *__restrict even = room.even + begin, *__restrict odd = room.odd + begin;
        for (int64_t b = 0; b < d / 2; b++) row[2 * b] = even[b], row[2 * b + 1] = odd[b];
        if (d % 2) row[d - 1] = even[n_blocks - 1];
        if (!on_sphere) continue;
        const double factor = 1.0 / square_root(squared_norm_by_eights(row, d));
        for (int64_t k = 0; k < d; k++) row[k] *= factor;
    }
}
