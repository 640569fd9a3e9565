// Margin problems in the spectral, nuclear and max-row norm: a primal-dual interior-point method over pairs of positive definite blocks.
//
// Each problem is a semidefinite programme in two matrices S, Y ⪰ 0 with S Y = 0 at the optimum:
//   spectral: min τ, Y = (τ I, W; Wᵀ, τ I);   nuclear: min ½ tr S, S = (P, W; Wᵀ, Q), Y = ½ (I, -M; -Mᵀ, I), M = Σ_r λ_r A_r
// with ⟨A_r, W⟩ ≥ b_r and ⟨C_s, W⟩ = 0. In the spectral problem S is free but for its trace of one and its corner -M/2. The max-row norm is the
// spectral one with a block for every row of W. Each step takes the direction of Helmberg, Kojima and Monteiro with Mehrotra's correction; the
// equations have as many unknowns as W, for the nuclear norm as rows. Nothing is believed of what comes out: the bracket of the norm is
// computed from W and the multipliers alone.
#pragma once
#include "../exponential.h"
#include "../linear_algebra.h"
#include "../simd_layout.h"
#include "../arena.h"

constexpr int64_t MAX_BARRIER_STEPS = 60, MAX_STALLED_STEPS = 4;  // the latter without a better bracket, after which the best one is taken
constexpr double BRACKET_BELOW = 1e-5;  // share of the norm that complementarity may still leave when brackets begin to be computed
constexpr double RIDGE = 1e-15, RIDGE_FACTOR = 100.0, MAX_RIDGE = 1e-3;  // of the largest diagonal entry, on all: many W may be optimal
constexpr double EQUALITY_RIDGE = 1e-9;                    // proximal weight of the multipliers of equalities
constexpr double STEP_RTOL = 0.03, SHORTEST_STEP = 1e-8;   // accuracy of the longest step to the edge of the cone, and where it counts as none
constexpr double MIN_CENTRING = 1e-6;
constexpr double RESIDUAL_ATOL = 1e-13;                    // of a row, up to which it is rounding
constexpr double ROTATED_COSINE = 1e-15;                   // between rows that Jacobi's rotations still rotate
constexpr int64_t MAX_ROTATION_SWEEPS = 30;

// One problem: rows of unit norm, the inequalities first, over W cut into blocks of `height` rows and `width` columns.
struct Cone {
    const double *rows;          // (n_rows, n)
    const double *left, *right;  // (n_rows, height) and (n_rows, width) where every row is an outer product of both; else null
    const double *lower;         // (m,)
    int64_t m, n_rows, n, height, width;
    bool nuclear;
};

// The largest spectral norm and the sum of the nuclear norms of the blocks of C (n,), by Jacobi's rotations of their rows. `scratch` is for
// `height` rows of whole lanes.
static inline void norms_of_blocks(
    const double *C, int64_t n, int64_t height, int64_t width, double *scratch, double *spectral, double *nuclear) {
    const int64_t stride = whole_lanes(width);
    *spectral = *nuclear = 0.0;
    for (int64_t first = 0; first < n; first += height * width) {
        for (int64_t i = 0; i < height; i++)
            for (int64_t k = 0; k < stride; k++) scratch[i * stride + k] = k < width ? C[first + i * width + k] : 0.0;
        bool rotated = true;
        for (int64_t sweep = 0; rotated && sweep < MAX_ROTATION_SWEEPS; sweep++) {
            rotated = false;
            for (int64_t i = 0; i < height; i++)
                for (int64_t j = 0; j < i; j++) {
                    double a, b, c, *x = scratch + i * stride, *y = scratch + j * stride;
                    products_of_two(x, y, stride, &a, &b, &c);
                    if (!(modulus(c) > ROTATED_COSINE * square_root(a * b))) continue;
                    rotated = true;
                    const double ratio = (b - a) / (2.0 * c);
                    const double tangent = with_sign(1.0 / (modulus(ratio) + square_root(1.0 + ratio * ratio)), ratio);
                    rotate(1.0 / square_root(1.0 + tangent * tangent), tangent, tangent, x, y, stride);
                }
        }
        for (int64_t i = 0; i < height; i++) {
            const double value = square_root(dot(scratch + i * stride, scratch + i * stride, stride));
            *spectral = larger(value, *spectral);
            *nuclear += value;
        }
    }
}

// The largest share up to one with x + share · step >= 0, n entries.
CORE double longest_positive_step(const double *x, const double *step, int64_t n) {
    double share = 1.0;
    for (int64_t r = 0; r < n; r++)
        if (step[r] < 0.0) share = smaller(-x[r] / step[r], share);
    return share;
}

// Cholesky factor of H (n_all, n_all), its lower triangle, in place, with as small a ridge on the first n diagonal entries as it takes.
static inline bool factor_with_ridge(double *H, int64_t n_all, int64_t n, double *spare) {
    double largest = 0.0;
    for (int64_t i = 0; i < n; i++) largest = larger(H[i * n_all + i], largest);
    copy(H, n_all * n_all, spare);
    for (double ridge = RIDGE; ridge <= MAX_RIDGE; ridge *= RIDGE_FACTOR) {
        for (int64_t i = 0; i < n; i++) H[i * n_all + i] += ridge * largest;
        if (cholesky(H, n_all, n_all, 0.0) < 0) return true;
        copy(spare, n_all * n_all, H);
    }
    return false;
}

// A point of the method, its step, and room. Blocks lie one above the other, (n_blocks size, stride), filled up with zeros to whole lanes.
struct InteriorPoint {
    const Cone &cone;
    int64_t size, stride, order, n_entries, n_system, across;
    double *S, *Y, *S_step, *Y_step, *inverse, *factor, *target, *correction;
    double *slack, *multiplier, *slack_step, *multiplier_step, *slack_correction, *weight, *product, *residual, *total;  // (n_rows,)
    double *corner, *M, *equations;       // (n,), (n,) and (n + 1,)
    double *system, *spare;               // (n_system, n_system) the factored equations
    double *columns;                      // (n, ·) weighted rows, transposed
    double *first, *second, *images, *part;  // products of the rows' factors
    double *kronecker, *block, *rotated;

    InteriorPoint(Arena &arena, const Cone &cone)
        : cone(cone), size(cone.height + cone.width), stride(whole_lanes(size)), order(cone.n / (cone.height * cone.width) * size),
          n_entries(order * stride), n_system(cone.nuclear ? cone.n_rows : cone.n + 1), across(whole_lanes(cone.n_rows)) {
        double **blocks[] = {&S, &Y, &S_step, &Y_step, &inverse, &factor, &target, &correction};
        for (double **matrix : blocks) *matrix = arena.zeros(n_entries);
        double **vectors[] = {&slack,  &multiplier, &slack_step, &multiplier_step, &slack_correction,
                              &weight, &product,    &residual,   &total};
        for (double **vector : vectors) *vector = arena.zeros(cone.n_rows);
        corner = arena.doubles(cone.n);
        M = arena.doubles(cone.n);
        equations = arena.doubles(cone.n + 1);
        system = arena.doubles(n_system * n_system);
        spare = arena.doubles(n_system * n_system);
        const bool by_factors = cone.nuclear && cone.left;
        columns = arena.zeros(cone.nuclear ? 0 : cone.n * across);
        first = arena.doubles(by_factors ? n_system * n_system : 0);
        second = arena.doubles(by_factors ? n_system * n_system : 0);
        images = arena.doubles(cone.nuclear ? cone.n_rows * larger(cone.n, size) : 0);
        part = arena.doubles(size * size);
        kronecker = arena.doubles(cone.nuclear && !cone.left ? cone.n * cone.n : 0);
        block = arena.zeros(size * stride);
        rotated = arena.doubles(cone.height * whole_lanes(cone.width));
    }

    // ---- blocks

    // Cholesky factors of blocks + share · step, in `factor`; false where one is not positive definite.
    bool factor_blocks(const double *blocks, const double *step, double share) {
        for (int64_t k = 0; k < n_entries; k++) factor[k] = blocks[k] + share * step[k];
        for (int64_t k = 0; k < n_entries; k += size * stride)
            if (cholesky(factor + k, size, stride, 0.0) >= 0) return false;
        return true;
    }

    // (L Lᵀ)⁻¹ of every block from its factor; L⁻¹ is written over L as the columns of its upper triangle.
    void invert_factors() {
        for (int64_t start = 0; start < n_entries; start += size * stride) {
            double *L = factor + start, *out = inverse + start;
            for (int64_t j = 0; j < size; j++) {
                const double head = 1.0 / L[j * stride + j];
                for (int64_t i = j + 1; i < size; i++) {
                    const double sum = dot(L + i * stride + j + 1, L + j * stride + j + 1, i - j - 1);
                    L[j * stride + i] = -(L[i * stride + j] * head + sum) / L[i * stride + i];
                }
            }
            for (int64_t i = 0; i < size; i++) L[i * stride + i] = 1.0 / L[i * stride + i];
            for (int64_t i = 0; i < size; i++)
                for (int64_t j = 0; j <= i; j++)
                    out[i * stride + j] = out[j * stride + i] = dot(L + i * stride + i, L + j * stride + i, size - i);
        }
    }

    // The largest share up to one, to 3 %, with blocks + share · step positive definite.
    double longest_step(const double *blocks, const double *step) {
        if (factor_blocks(blocks, step, 1.0)) return 1.0;
        double low = 0.0, high = 1.0;
        while (high - low > STEP_RTOL * low && high > SHORTEST_STEP) {
            const double middle = 0.5 * (low + high);
            (factor_blocks(blocks, step, middle) ? low : high) = middle;
        }
        return low;
    }

    // out = (A B C + C B A)/2 of symmetric blocks.
    void symmetric_product(const double *A, const double *B, const double *C, double *out) {
        for (int64_t k = 0; k < n_entries; k += size * stride) {
            matrix_product(A + k, stride, 1, B + k, size, block, size, stride);
            matrix_product(block, stride, 1, C + k, size, out + k, size, stride);
            for (int64_t i = 0; i < size; i++)
                for (int64_t j = 0; j < i; j++) {
                    double &x = out[k + i * stride + j], &y = out[k + j * stride + i];
                    x = y = 0.5 * (x + y);
                }
        }
    }

    // out (n,) = the upper right corners of all blocks.
    void get_corner(const double *blocks, double *out) const {
        for (int64_t top = 0; top < order; top += size)
            for (int64_t i = top; i < top + cone.height; i++)
                for (int64_t j = cone.height; j < size; j++) *out++ = blocks[i * stride + j];
    }

    // Blocks (a I, s C; s Cᵀ, a I) with C the corners (n,).
    void set_arrow(double *blocks, double diagonal, const double *C, double scale) const {
        for (int64_t k = 0; k < n_entries; k++) blocks[k] = 0.0;
        for (int64_t i = 0; i < order; i++) blocks[i * stride + i % size] = diagonal;
        for (int64_t top = 0; top < order; top += size)
            for (int64_t i = 0; i < cone.height; i++)
                for (int64_t j = cone.height; j < size; j++)
                    blocks[(top + i) * stride + j] = blocks[(top + j) * stride + i] = scale * *C++;
    }

    double trace(const double *blocks) const {
        double sum = 0.0;
        for (int64_t i = 0; i < order; i++) sum += blocks[i * stride + i % size];
        return sum;
    }

    // ⟨S + a S_step, Y + b Y_step⟩.
    double inner(double a, double b) const {
        Lanes sums = spread(0.0);
        for (int64_t k = 0; k < n_entries; k += N_LANES)
            sums += (load(S, k) + a * load(S_step, k)) * (load(Y, k) + b * load(Y_step, k));
        return lane_sum(sums);
    }

    // Add scale times the matrix of C ↦ corner of (S E T + T E S)/2 with E = (0, C; Cᵀ, 0) and T = Y⁻¹ to K, its lower triangle, block
    // diagonal. With S = (P, V; Vᵀ, Q) it is ½ (P C T₂₂ + T₁₁ C Q + V Cᵀ T₁₂ + T₁₂ Cᵀ V).
    void add_kronecker(double scale, double *K, int64_t width_of_K) const {
        const int64_t height = cone.height, width = cone.width;
        const double half = 0.5 * scale;
        for (int64_t top = 0, start = 0; top < order; top += size, start += height * width)
            for (int64_t i = 0; i < height; i++)
                for (int64_t j = 0; j < width; j++) {
                    const double *T_row = inverse + (top + height + j) * stride + height, *S_row = S + (top + height + j) * stride + height;
                    const double *V_row = S + (top + i) * stride + height, *T_12_row = inverse + (top + i) * stride + height;
                    double *out = K + (start + i * width + j) * width_of_K + start;
                    for (int64_t c = 0; c <= i; c++, out += width) {
                        const int64_t at = (top + i) * stride + c, beside = (top + c) * stride + height + j;
                        const double P = half * S[at], T_11 = half * inverse[at], T_12 = half * inverse[beside], V = half * S[beside];
                        for (int64_t l = 0; l < width; l++)
                            out[l] += ((P * T_row[l] + T_11 * S_row[l]) + V_row[l] * T_12) + T_12_row[l] * V;
                    }
                }
    }

    // ---- Newton's equations

    // The factored equations of the spectral norm in (W, τ): 2 K + Aᵀ D A, bordered by the corner and trace of (S Y⁻¹ + Y⁻¹ S)/2.
    bool factor_spectral() {
        const int64_t n = cone.n, wide = n + 1;
        for (int64_t r = 0; r < cone.n_rows; r++) {
            const double root = square_root(weight[r]);
            for (int64_t i = 0; i < n; i++) columns[i * across + r] = root * cone.rows[r * n + i];
        }
        gram(columns, across, nullptr, n, 0, system, wide);
        add_kronecker(2.0, system, wide);
        set_arrow(target, 1.0, corner, 0.0);
        symmetric_product(S, target, inverse, correction);
        get_corner(correction, corner);
        for (int64_t i = 0; i < n; i++) system[n * wide + i] = 2.0 * corner[i];
        system[n * wide + n] = trace(correction);
        return factor_with_ridge(system, wide, n, spare);
    }

    // out[r, s] = X[r] B Y[s]ᵀ of all rows, where B is the part (n_1, n_2) of a block that begins at `corner_of`.
    void forms_of_rows(
        const double *X, int64_t n_1, const double *corner_of, const double *Y_rows, int64_t n_2, bool lower_only, double *out) {
        for (int64_t i = 0; i < n_1; i++) copy(corner_of + i * stride, n_2, part + i * n_2);
        for (int64_t r = 0; r < cone.n_rows; r++) vecmat(X + r * n_1, part, nullptr, n_1, n_2, images + r * n_2);
        products_of_rows(images, Y_rows, n_2, nullptr, cone.n_rows, 0, lower_only, out, cone.n_rows);
    }

    // The factored equations of the nuclear norm in the multipliers, A K Aᵀ/2 + D⁻¹.
    //
    // For rows A_r = u_r v_rᵀ and the parts of S and T as in `add_kronecker`, A K Aᵀ has the entries
    // ½ (u_rᵀ P u_s v_rᵀ T₂₂ v_s + u_rᵀ T₁₁ u_s v_rᵀ Q v_s + u_rᵀ V v_s u_sᵀ T₁₂ v_r + u_rᵀ T₁₂ v_s u_sᵀ V v_r).
    bool factor_nuclear() {
        const int64_t n_rows = cone.n_rows, h = cone.height, w = cone.width, low = h * stride + h;
        if (cone.left) {
            for (int64_t k = 0; k < n_rows * n_rows; k++) system[k] = 0.0;
            for (int64_t swapped = 0; swapped < 2; swapped++) {
                forms_of_rows(cone.left, h, swapped ? inverse : S, cone.left, h, true, first);
                forms_of_rows(cone.right, w, (swapped ? S : inverse) + low, cone.right, w, true, second);
                for (int64_t r = 0; r < n_rows; r++)
                    for (int64_t k = r * n_rows; k <= r * n_rows + r; k++) system[k] += 0.25 * first[k] * second[k];
            }
            forms_of_rows(cone.left, h, S + h, cone.right, w, false, first);
            forms_of_rows(cone.left, h, inverse + h, cone.right, w, false, second);
            for (int64_t r = 0; r < n_rows; r++)
                for (int64_t s = 0; s <= r; s++) {
                    const int64_t k = r * n_rows + s, mirrored = s * n_rows + r;
                    system[k] += 0.25 * (first[k] * second[mirrored] + second[k] * first[mirrored]);
                }
        } else {
            const int64_t n = cone.n;
            for (int64_t k = 0; k < n * n; k++) kronecker[k] = 0.0;
            add_kronecker(0.5, kronecker, n);
            for (int64_t i = 0; i < n; i++)
                for (int64_t j = 0; j < i; j++) kronecker[j * n + i] = kronecker[i * n + j];
            for (int64_t r = 0; r < n_rows; r++) matvec(kronecker, n, n, cone.rows + r * n, images + r * n);
            products_of_rows(images, cone.rows, n, nullptr, n_rows, 0, true, system, n_rows);
        }
        for (int64_t r = 0; r < n_rows; r++) system[r * n_rows + r] += 1.0 / weight[r];
        return factor_with_ridge(system, n_rows, n_rows, spare);
    }

    void solve_equations(double *right) const { solve_factored(system, n_system, n_system, right); }

    // S_step = target - S - (S Y_step Y⁻¹ + Y⁻¹ Y_step S)/2.
    void finish_S_step() {
        symmetric_product(S, Y_step, inverse, S_step);
        for (int64_t k = 0; k < n_entries; k++) S_step[k] = target[k] - S[k] - S_step[k];
    }

    // Solve once more for what a spectral step leaves of M = -2 corner of S and of the trace: large weights amplify its rounding.
    void refine_spectral_step() {
        const int64_t n = cone.n;
        for (int64_t r = 0; r < cone.n_rows; r++) total[r] = multiplier[r] + multiplier_step[r];
        vecmat(total, cone.rows, nullptr, cone.n_rows, n, equations);
        get_corner(S, corner);
        for (int64_t i = 0; i < n; i++) equations[i] += 2.0 * corner[i];
        get_corner(S_step, corner);
        for (int64_t i = 0; i < n; i++) equations[i] += 2.0 * corner[i];
        equations[n] = (trace(S) + trace(S_step)) - 1.0;
        solve_equations(equations);
        matvec(cone.rows, cone.n_rows, n, equations, total);
        for (int64_t r = 0; r < cone.n_rows; r++) {
            slack_step[r] += total[r];
            multiplier_step[r] -= weight[r] * total[r];
        }
        set_arrow(factor, equations[n], equations, 1.0);
        for (int64_t k = 0; k < n_entries; k++) Y_step[k] += factor[k];
        finish_S_step();
    }

    // The step towards complementarity `aim`, less the correction.
    void nuclear_step(double aim) {
        const int64_t m = cone.m, n = cone.n, n_rows = cone.n_rows;
        matvec(cone.rows, n_rows, n, corner, multiplier_step);
        for (int64_t r = 0; r < n_rows; r++) {
            multiplier_step[r] = -multiplier_step[r];
            if (r < m) multiplier_step[r] += (aim - slack_correction[r]) / multiplier[r] + cone.lower[r];
        }
        solve_equations(multiplier_step);
        vecmat(multiplier_step, cone.rows, nullptr, n_rows, n, corner);
        set_arrow(Y_step, 0.0, corner, -0.5);
        finish_S_step();
        get_corner(S_step, corner);
        matvec(cone.rows, n_rows, n, corner, slack_step);
        for (int64_t r = 0; r < m; r++) slack_step[r] += residual[r];
    }

    void spectral_step(double aim) {
        const int64_t m = cone.m, n = cone.n, n_rows = cone.n_rows;
        for (int64_t r = 0; r < n_rows; r++) {
            const double pull = r < m ? (aim - slack_correction[r]) / slack[r] : multiplier[r];
            multiplier_step[r] = pull - weight[r] * residual[r];
        }
        vecmat(multiplier_step, cone.rows, nullptr, n_rows, n, equations);
        for (int64_t i = 0; i < n; i++) equations[i] += 2.0 * corner[i];
        equations[n] = trace(target) - 1.0;
        solve_equations(equations);
        set_arrow(Y_step, equations[n], equations, 1.0);
        finish_S_step();
        matvec(cone.rows, n_rows, n, equations, slack_step);
        for (int64_t r = 0; r < m; r++) {
            slack_step[r] += residual[r];
            multiplier_step[r] = ((aim - slack_correction[r]) / slack[r] - multiplier[r]) - weight[r] * slack_step[r];
        }
        for (int64_t r = m; r < n_rows; r++) multiplier_step[r] = -weight[r] * (slack_step[r] + residual[r]);
        refine_spectral_step();
    }

    void set_step(double aim) {
        for (int64_t k = 0; k < n_entries; k++) target[k] = aim * inverse[k] - correction[k];
        get_corner(target, corner);
        if (cone.nuclear)
            nuclear_step(aim);
        else
            spectral_step(aim);
    }

    // ---- the method

    // A point in the interior, from the Euclidean solution: W half as long again, and its multipliers with a floor.
    void start(const double *x, const double *multipliers) {
        const int64_t m = cone.m, n = cone.n, n_rows = cone.n_rows;
        double *W = equations, mean = 0.0, spectral, nuclear, length, ignored;
        for (int64_t i = 0; i < n; i++) W[i] = 1.5 * x[i];
        matvec(cone.rows, n_rows, n, W, product);
        for (int64_t r = 0; r < m; r++) {
            slack[r] = larger(product[r] - cone.lower[r], 0.1 * larger(cone.lower[r], 0.1));
            mean += multipliers[r] / (double)m;
        }
        for (int64_t r = 0; r < n_rows; r++) multiplier[r] = r < m ? larger(multipliers[r], 0.3 * mean) : multipliers[r];
        vecmat(multiplier, cone.rows, nullptr, n_rows, n, M);
        norms_of_blocks(W, n, cone.height, cone.width, rotated, &length, &ignored);
        norms_of_blocks(M, n, cone.height, cone.width, rotated, &spectral, &nuclear);
        const double diagonal = 1.0 / (double)order;
        for (int64_t r = 0; r < n_rows; r++) multiplier[r] *= cone.nuclear ? 0.7 / spectral : 1.0 / nuclear;
        if (cone.nuclear) {
            set_arrow(Y, 0.5, M, -0.35 / spectral);
            set_arrow(S, 1.5 * length, W, 1.0);
        } else {
            set_arrow(Y, 1.5 * length, W, 1.0);
            set_arrow(S, diagonal, M, -smaller(0.5 / nuclear, 0.8 * diagonal / spectral));
        }
    }

    // Store W, scaled to satisfy every row, or the multipliers, where they give a better end of the bracket; whether it shrank.
    bool improve_bracket(double bracket[2], double *best, double *best_multipliers) {
        double ratio = INF, size_of_W, dual, other, width_before = bracket[1] - bracket[0];
        for (int64_t r = 0; r < cone.m; r++)
            if (cone.lower[r] > 0.0)
                ratio = smaller(product[r] / cone.lower[r], ratio);
            else if (product[r] < 0.0)
                ratio = 0.0;
        vecmat(multiplier, cone.rows, nullptr, cone.n_rows, cone.n, M);
        norms_of_blocks(corner, cone.n, cone.height, cone.width, rotated, cone.nuclear ? &other : &size_of_W, cone.nuclear ? &size_of_W : &other);
        norms_of_blocks(M, cone.n, cone.height, cone.width, rotated, cone.nuclear ? &dual : &other, cone.nuclear ? &other : &dual);
        if (ratio > 0.0 && size_of_W / ratio < bracket[1]) {
            bracket[1] = size_of_W / ratio;
            for (int64_t i = 0; i < cone.n; i++) best[i] = corner[i] / ratio;
        }
        const double lower = dot(cone.lower, multiplier, cone.m) / dual;
        if (lower > bracket[0]) {
            bracket[0] = lower;
            for (int64_t r = 0; r < cone.n_rows; r++) best_multipliers[r] = multiplier[r] / dual;
        }
        return bracket[1] - bracket[0] < 0.9 * width_before;
    }

    // The step with Mehrotra's correction; how far S, with what belongs to it, and Y may follow it, up to one.
    void predict_and_correct(double complementarity, double *of_S, double *of_Y) {
        const double *with_S = cone.nuclear ? slack : multiplier, *with_Y = cone.nuclear ? multiplier : slack;
        const double *step_S = cone.nuclear ? slack_step : multiplier_step, *step_Y = cone.nuclear ? multiplier_step : slack_step;
        for (int64_t k = 0; k < n_entries; k++) correction[k] = 0.0;
        for (int64_t r = 0; r < cone.n_rows; r++) slack_correction[r] = 0.0;
        double aim = 0.0;
        for (int64_t corrected = 0; corrected < 2; corrected++) {
            set_step(aim);
            *of_S = smaller(longest_step(S, S_step), longest_positive_step(with_S, step_S, cone.m));
            *of_Y = smaller(longest_step(Y, Y_step), longest_positive_step(with_Y, step_Y, cone.m));
            if (corrected) return;
            double left = inner(*of_S, *of_Y);
            for (int64_t r = 0; r < cone.m; r++) {
                left += (with_S[r] + *of_S * step_S[r]) * (with_Y[r] + *of_Y * step_Y[r]);
                slack_correction[r] = step_S[r] * step_Y[r];
            }
            const double share = larger(left / complementarity, 0.0), square = share * share;
            const double centring = smaller(*of_S, *of_Y) > 0.5 ? square * share : square;
            aim = smaller(larger(centring, MIN_CENTRING), 1.0) * complementarity / (double)(order + cone.m);
            symmetric_product(S_step, Y_step, inverse, correction);
        }
    }

    // Take the step, most of the way to the edge of the cone.
    void advance(double of_S, double of_Y) {
        const double share = 0.9 + 0.09 * smaller(of_S, of_Y);
        if (of_S != 1.0) of_S *= share;
        if (of_Y != 1.0) of_Y *= share;
        for (int64_t k = 0; k < n_entries; k++) {
            S[k] += of_S * S_step[k];
            Y[k] += of_Y * Y_step[k];
        }
        for (int64_t r = 0; r < cone.n_rows; r++) {
            slack[r] += (cone.nuclear ? of_S : of_Y) * slack_step[r];
            multiplier[r] += (cone.nuclear ? of_Y : of_S) * multiplier_step[r];
        }
    }

    // Solve from a feasible x (n,) to a bracket gap; writes the best W and multipliers met, and returns the number of steps.
    //
    // Multipliers are scaled to a dual norm of one: their products with the lower bounds add up to the lower end of the bracket.
    int64_t solve(const double *x, const double *multipliers, double gap, double *best, double *best_multipliers) {
        double bracket[2] = {0.0, INF};
        int64_t stalled = 0;
        start(x, multipliers);
        for (int64_t step = 0; step < MAX_BARRIER_STEPS; step++) {
            get_corner(cone.nuclear ? S : Y, corner);
            matvec(cone.rows, cone.n_rows, cone.n, corner, product);
            const double complementarity = inner(0.0, 0.0) + dot(slack, multiplier, cone.m);
            const bool is_close = complementarity < larger(BRACKET_BELOW, gap) * dot(cone.lower, multiplier, cone.m);
            if (is_close || step > MAX_BARRIER_STEPS / 2) {
                stalled = improve_bracket(bracket, best, best_multipliers) ? 0 : stalled + 1;
                if (bracket[1] - bracket[0] <= gap * bracket[0] || stalled > MAX_STALLED_STEPS) return step;
            }
            if (!factor_blocks(Y, Y, 0.0)) return step;
            invert_factors();
            for (int64_t r = 0; r < cone.n_rows; r++) {
                weight[r] = r < cone.m ? multiplier[r] / slack[r] : 1.0 / EQUALITY_RIDGE;
                const double left = product[r] - (r < cone.m ? cone.lower[r] + slack[r] : 0.0);
                residual[r] = modulus(left) > RESIDUAL_ATOL ? left : 0.0;  // weights would amplify rounding
            }
            if (!(cone.nuclear ? factor_nuclear() : factor_spectral())) return step;
            double of_S, of_Y;
            predict_and_correct(complementarity, &of_S, &of_Y);
            advance(of_S, of_Y);
        }
        return MAX_BARRIER_STEPS;
    }
};
