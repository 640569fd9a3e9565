// Exports: rows of normals, labels and keys, from random numbers by counter.
#include "../linear_algebra.h"
#include "../random.h"
#include "../arena.h"
#include "abi.h"

constexpr int64_t BLOCKS_AT_ONCE = 1024;  // that are made together and stay in the first cache

struct NormalBlocks {  // room for blocks that are made together
    uint64_t *low, *high;
    double *even, *odd;
};

// The normals of blocks first … first + n - 1.
static inline void fill_blocks(Stream s, uint64_t first, int64_t n, NormalBlocks blocks) {
    uint64_t *__restrict low = blocks.low, *__restrict high = blocks.high;
    double *__restrict even = blocks.even, *__restrict odd = blocks.odd;
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

// Fill rows[first:last] with normals of the problems from `problem` on; each row begins a new block.
EXPORT fill_normals(
    int64_t first,  // in 0..last
    int64_t last,   // in 0..n_problems
    uint64_t problem,
    uint64_t seed,
    uint64_t cell,
    uint64_t first_block,
    int64_t on_sphere,  // in 0..1
    double *rows,       // (n_problems, n_rows, d)
    int64_t n_problems, int64_t n_rows, int64_t d) {
    const int64_t n_blocks = (d + 1) / 2;
    const int64_t at_once = larger(1, smaller(n_rows, BLOCKS_AT_ONCE / larger(1, n_blocks)));  // rows whose blocks are made together
    Arena arena;
    const NormalBlocks blocks{
        arena.take<uint64_t>(at_once * n_blocks), arena.take<uint64_t>(at_once * n_blocks), arena.doubles(at_once * n_blocks),
        arena.doubles(at_once * n_blocks)};
    if (arena.failed) return OUT_OF_MEMORY;
    for (int64_t k = first * n_rows; k < last * n_rows; k++) {
        const int64_t r = k % n_rows, begin = r % at_once * n_blocks;
        const Stream s{seed, problem + (uint64_t)(k / n_rows), cell};
        if (!begin) fill_blocks(s, first_block + (uint64_t)(r * n_blocks), smaller(at_once, n_rows - r) * n_blocks, blocks);
        double *row = rows + k * d;
        const double *__restrict even = blocks.even + begin, *__restrict odd = blocks.odd + begin;
        for (int64_t b = 0; b < d / 2; b++) row[2 * b] = even[b], row[2 * b + 1] = odd[b];
        if (d % 2) row[d - 1] = even[n_blocks - 1];
        if (!on_sphere) continue;
        const double factor = 1.0 / square_root(squared_norm_by_eights(row, d));
        for (int64_t c = 0; c < d; c++) row[c] *= factor;
    }
    return 0;
}

// Labels ±1 of the problems from `problem` on.
EXPORT fill_labels(
    uint64_t problem,
    uint64_t seed,
    uint64_t cell,
    uint64_t first_block,
    double *y,  // (n_problems, n_inputs)
    int64_t n_problems, int64_t n_inputs) {
    for (int64_t k = 0; k < n_problems * n_inputs; k++)
        y[k] = label({seed, problem + (uint64_t)(k / n_inputs), cell}, first_block, k % n_inputs);
    return 0;
}

// Rows first … last - 1 of K = X Wᵀ, summed over coordinates in their order.
EXPORT fill_keys(
    int64_t first,               // in 0..last
    int64_t last,                // in 0..n_rows
    const double *W_transposed,  // (d, d)
    const double *X,             // (n_rows, d)
    double *K,                   // (n_rows, d)
    int64_t d, int64_t n_rows) {
    matrix_product(X + first * d, d, 1, W_transposed, d, K + first * d, last - first, d);
    return 0;
}
