// Newton's method on convex functions that are sums over blocks of their entries.
#pragma once
#include "linear_algebra.h"
#include "arena.h"

constexpr int64_t MAX_NEWTON_STEPS = 400, MAX_HALVINGS = 60;
constexpr double LAST_STEP_RTOL = 1e-8;  // a step this small is the last: the next would be of the order of its square

// Block b has sizes[b] entries from first[b] on, and its Hessian begins at corners[b].
struct Blocks {
    const int64_t *first, *sizes, *corners;
    int64_t count;

    void clear(double *values, double *slopes, double *squares) const {
        for (int64_t b = 0; b < count; b++) {
            values[b] = 0.0;
            for (int64_t k = 0; k < sizes[b]; k++) slopes[first[b] + k] = 0.0;
            for (int64_t k = 0; k < sizes[b] * sizes[b]; k++) squares[corners[b] + k] = 0.0;
        }
    }
};

class Newton {
    const Blocks blocks;
    const int64_t n;
    double *trial, *share;  // of blocks

    // The sum of the products of two vectors over a block.
    double product(int64_t b, const double *x, const double *y) const {
        return dot(x + blocks.first[b], y + blocks.first[b], blocks.sizes[b]);
    }

  public:
    double *values, *slopes, *squares, *step, *moved;  // the first of blocks

    Newton(Arena &arena, const Blocks &blocks, int64_t n, int64_t n_squares) : blocks(blocks), n(n) {
        values = arena.doubles(blocks.count), trial = arena.doubles(blocks.count), share = arena.doubles(blocks.count);
        slopes = arena.doubles(n), squares = arena.doubles(n_squares), step = arena.doubles(n), moved = arena.doubles(n);
    }

    // Solve squares · step = -slopes, with squares lifted by what rounding can take from the smallest curvature, and overwritten.
    bool solve() {
        for (int64_t b = 0; b < blocks.count; b++) {
            const int64_t size = blocks.sizes[b];
            double *H = squares + blocks.corners[b], *x = step + blocks.first[b], trace = 0.0;
            for (int64_t k = 0; k < size; k++) trace += H[k * (size + 1)];
            for (int64_t k = 0; k < size; k++) H[k * (size + 1)] += EPS * trace, x[k] = -slopes[blocks.first[b] + k];
            if (trace == 0.0) continue;  // then there is no slope either
            if (cholesky(H, size, size, 0.0) >= 0) return false;
            solve_factored(H, size, size, x);
        }
        return true;
    }

    // Move z to the minimum of a function, function(z, values, slopes, squares), with steps halved until each block's value falls. Returns the
    // number of steps, or less than 0 where there is no minimum to be found.
    template <class Function>
    int64_t minimise(const Function &function, double *z) {
        function(z, values, slopes, squares);
        for (int64_t steps = 1; steps <= MAX_NEWTON_STEPS; steps++) {
            if (!solve()) return -1;
            if (max_abs(step, n) <= LAST_STEP_RTOL * (1.0 + max_abs(z, n))) {
                const double steepness = norm(slopes, n);
                for (int64_t k = 0; k < n; k++) moved[k] = z[k] + step[k];
                function(moved, trial, slopes, squares);
                if (norm(slopes, n) < steepness) copy(moved, n, z);
                return steps;
            }
            for (int64_t b = 0; b < blocks.count; b++) {
                share[b] = product(b, slopes, step);  // the promised change of the value
                values[b] += 1e-14 * modulus(values[b]);
            }
            if (!shorten(function, z)) return -1;
            copy(moved, n, z);
            copy(trial, blocks.count, values);
        }
        return -1;
    }

  private:
    // Set moved to z and as much of the step as lowers each block's value by a part of the promised change, which is in `share`, with the
    // function there in trial, slopes and squares; whether any block moves.
    template <class Function>
    bool shorten(const Function &function, const double *z) {
        bool is_moving = false;
        for (int64_t k = 0; k < n; k++) moved[k] = z[k] + step[k];
        for (int64_t halved = 0; halved <= MAX_HALVINGS; halved++) {
            const double factor = halved < MAX_HALVINGS ? 0.5 : 0.0;
            bool is_done = true;
            is_moving = false;
            function(moved, trial, slopes, squares);
            for (int64_t b = 0; b < blocks.count; b++) {
                const bool is_lower = trial[b] <= values[b] + 1e-4 * share[b];
                is_moving |= is_lower;
                is_done &= is_lower;
                if (!is_lower) share[b] *= factor;
                for (int64_t k = blocks.first[b]; k < blocks.first[b] + blocks.sizes[b] && !is_lower; k++)
                    step[k] *= factor, moved[k] = z[k] + step[k];
            }
            if (is_done) return true;
        }
        function(moved, trial, slopes, squares);
        return is_moving;
    }
};
