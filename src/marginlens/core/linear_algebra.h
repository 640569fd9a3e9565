// Linear algebra for small dense problems: products, norms, Gram matrices and Cholesky factors.
//
// Matrices are C-contiguous; rows lie `stride` numbers apart where a function says so. Sums are added up in the order that is written, four
// partial sums at a time, and rows are taken four at a time so that each load of a shared vector serves four sums.
#pragma once
#include "lanes.h"

// The inner products of each a with each b over n entries, sums[i * columns + j] of a[i] and b[j]. Every one is added up as two times four
// partial sums, and then the last entries: how many are formed at a time changes no bit.
template <int rows, int columns>
CORE void dot_all(const double *const *a, const double *const *b, int64_t n, double *sums) {
    Eight s[rows][columns];
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++) s[i][j] = twice(spread(0.0));
    int64_t k = 0;
    for (; k + 8 <= n; k += 8) {
        Eight y[columns];
        for (int j = 0; j < columns; j++) y[j] = load_8(b[j], k);
        for (int i = 0; i < rows; i++) {
            const Eight x = load_8(a[i], k);
            for (int j = 0; j < columns; j++) s[i][j] += x * y[j];
        }
    }
    constexpr int count = rows * columns, whole = count - count % 4;
    const int64_t rest = n - n % 4;
    Lanes sum[count];
    for (int i = 0; i < count; i++) {
        const Eight x = s[i / columns][i % columns];
        sum[i] = low_half(x);
        if (k < rest) sum[i] += load(a[i / columns], k) * load(b[i % columns], k);
        sum[i] += high_half(x);
    }
    for (int i = 0; i < whole; i += 4) {  // four times the sum over lanes
        transpose(sum[i], sum[i + 1], sum[i + 2], sum[i + 3]);
        store(sums, i, (sum[i] + sum[i + 1]) + (sum[i + 2] + sum[i + 3]));
    }
    for (int i = whole; i < count; i++) sums[i] = lane_sum(sum[i]);
    for (int64_t c = rest; c < n; c++)
        for (int i = 0; i < count; i++) sums[i] += a[i / columns][c] * b[i % columns][c];
}

// x · y, two times eight partial sums, whose additions do not wait for each other.
CORE double dot(const double *x, const double *y, int64_t n) {
    Eight even = twice(spread(0.0)), odd = even;
    int64_t k = 0;
    for (; k + 16 <= n; k += 16) {
        even += load_8(x, k) * load_8(y, k);
        odd += load_8(x, k + 8) * load_8(y, k + 8);
    }
    if (k + 8 <= n) {
        even += load_8(x, k) * load_8(y, k);
        k += 8;
    }
    Lanes low = low_half(even) + low_half(odd);
    if (k + 4 <= n) {
        low += load(x, k) * load(y, k);
        k += 4;
    }
    double total = lane_sum(low + (high_half(even) + high_half(odd)));
    for (; k < n; k++) total += x[k] * y[k];
    return total;
}

// The inner products of four rows with x, over their first n entries.
CORE void dot_4(const double *a, const double *b, const double *c, const double *e, const double *x, int64_t n, double sums[4]) {
    const double *rows[4] = {a, b, c, e};
    dot_all<4, 1>(rows, &x, n, sums);
}

// out = A x, A (n, d); where `rows` is given, A[rows] x for n of its rows.
OUTLINED void matvec(const double *A, int64_t n, int64_t d, const double *x, double *out, const int64_t *rows = nullptr) {
    const auto row = [&](int64_t i) { return A + (rows ? rows[i] : i) * d; };
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) dot_4(row(i), row(i + 1), row(i + 2), row(i + 3), x, d, out + i);
    for (; i < n; i++) out[i] = dot(row(i), x, d);
}

// out += Aᵀ weights, A (n, d); where `rows` is given, A[rows]ᵀ weights for n of its rows.
OUTLINED void add_rows(const double *weights, const double *A, const int64_t *rows, int64_t n, int64_t d, double *__restrict out) {
    for (int64_t i = 0; i < n; i += 4) {
        double four[4];
        const double *row[4];
        for (int64_t j = 0; j < 4; j++) {
            const int64_t r = smaller(i + j, n - 1);
            four[j] = i + j < n ? weights[i + j] : 0.0;
            row[j] = A + (rows ? rows[r] : r) * d;
        }
        if (four[0] == 0.0 && four[1] == 0.0 && four[2] == 0.0 && four[3] == 0.0) continue;
        const double *a = row[0], *b = row[1], *c = row[2], *e = row[3];
        for (int64_t k = 0; k < d; k++) out[k] = (((out[k] + four[0] * a[k]) + four[1] * b[k]) + four[2] * c[k]) + four[3] * e[k];
    }
}

// out = Aᵀ weights, with the arguments of `add_rows`.
OUTLINED void vecmat(const double *weights, const double *A, const int64_t *rows, int64_t n, int64_t d, double *out) {
    for (int64_t k = 0; k < d; k++) out[k] = 0.0;
    add_rows(weights, A, rows, n, d, out);
}

// ‖x‖², ‖y‖² and x · y, n entries, a multiple of the number of lanes.
CORE void products_of_two(const double *x, const double *y, int64_t n, double *xx, double *yy, double *xy) {
    Lanes a = spread(0.0), b = a, c = a;
    for (int64_t k = 0; k < n; k += N_LANES) {
        const Lanes u = load(x, k), v = load(y, k);
        a += u * u;
        b += v * v;
        c += u * v;
    }
    *xx = lane_sum(a), *yy = lane_sum(b), *xy = lane_sum(c);
}

// x becomes cosine (x - first y) and y becomes cosine (y + second x), n entries, a multiple of the number of lanes.
CORE void rotate(double cosine, double first, double second, double *x, double *y, int64_t n) {
    for (int64_t k = 0; k < n; k += N_LANES) {
        const Lanes u = load(x, k), v = load(y, k);
        store(x, k, cosine * (u - first * v));
        store(y, k, cosine * (v + second * u));
    }
}

// `rows` rows of a matrix product, `columns` registers of each, kept while the rows of Y pass; arguments as in `matrix_product`.
template <class Register, int rows, int columns>
CORE void product_tile(
    const double *__restrict X, int64_t down, int64_t across, const double *__restrict Y, int64_t n, double *__restrict out, int64_t width) {
    constexpr int64_t size = sizeof(Register) / sizeof(double);
    Register sums[rows][columns];
    for (int a = 0; a < rows; a++)
        for (int b = 0; b < columns; b++) sums[a][b] = Register{};
    for (int64_t k = 0; k < n; k++) {
        Register row[columns];
        for (int b = 0; b < columns; b++) read(Y + k * width + size * b, row[b]);
        for (int a = 0; a < rows; a++)
            for (int b = 0; b < columns; b++) sums[a][b] += row[b] * X[a * down + k * across];
    }
    for (int a = 0; a < rows; a++)
        for (int b = 0; b < columns; b++) write(out + a * width + size * b, sums[a][b]);
}

// Some columns of a matrix product. The last rows are taken together with some before them, which changes no bit of these.
template <class Register, int rows, int columns>
static inline void product_columns(
    const double *X, int64_t down, int64_t across, const double *Y, int64_t n, double *out, int64_t height, int64_t width) {
    if (height < rows) {
        if (height) product_columns<Register, (rows + 1) / 2, columns>(X, down, across, Y, n, out, height, width);
        return;
    }
    for (int64_t i = 0; i < height; i += rows) {
        const int64_t a = smaller(i, height - rows);
        product_tile<Register, rows, columns>(X + a * down, down, across, Y, n, out + a * width, width);
    }
}

// out = X Y with out[a, b] = Σ_{k<n} X[a down + k across] Y[k, b], added up in the order of k. The rows of Y and of out, `height` of them,
// have `width` entries.
static inline void matrix_product(
    const double *X, int64_t down, int64_t across, const double *Y, int64_t n, double *out, int64_t height, int64_t width) {
    int64_t b = 0;
#ifdef __AVX512F__
    for (; b + 32 <= width; b += 32) product_columns<Eight, 6, 4>(X, down, across, Y + b, n, out + b, height, width);
    for (; b + 16 <= width; b += 16) product_columns<Eight, 6, 2>(X, down, across, Y + b, n, out + b, height, width);
    for (; b + 8 <= width; b += 8) product_columns<Eight, 6, 1>(X, down, across, Y + b, n, out + b, height, width);
#else
    for (; b + 8 <= width; b += 8) product_columns<Lanes, 4, 2>(X, down, across, Y + b, n, out + b, height, width);
#endif
    for (; b < width && width >= N_LANES; b += N_LANES) {  // the last columns are taken together with some before them, too
        const int64_t at = smaller(b, width - N_LANES);
        product_columns<Lanes, 4, 1>(X, down, across, Y + at, n, out + at, height, width);
    }
    for (; b < width; b++) product_columns<double, 4, 1>(X, down, across, Y + b, n, out + b, height, width);
}

// The largest modulus among n entries.
CORE double max_abs(const double *x, int64_t n) {
    double largest = 0.0;
    for (int64_t k = 0; k < n; k++) largest = larger(modulus(x[k]), largest);
    return largest;
}

// ‖x‖ without overflow or underflow.
static inline double norm(const double *x, int64_t n) {
    const double scale = max_abs(x, n);
    if (scale == 0.0 || !is_finite(scale)) return scale;
    Lanes sums = spread(0.0);
    double rest = 0.0;
    int64_t k = 0;
    for (; k + N_LANES <= n; k += N_LANES) {
        const Lanes y = load(x, k) / scale;
        sums += y * y;
    }
    for (; k < n; k++) rest += (x[k] / scale) * (x[k] / scale);
    return scale * square_root(lane_sum(sums) + rest);
}

// Whether no entry is nan or infinite.
static inline bool all_finite(const double *x, int64_t n) {
    Lanes sums = spread(0.0);
    double rest = 0.0;
    int64_t k = 0;
    for (; k + N_LANES <= n; k += N_LANES) sums += load(x, k) * 0.0;  // nan as soon as one entry is not finite
    for (; k < n; k++) rest += x[k] * 0.0;
    return lane_sum(sums) + rest == 0.0;
}

// Keys (n, T, d) less the mean key of their input, rows past an input's length zero. The mean changes no softmax and no gradient, but
// without it the Gram matrix is more accurate. `mean` is room for d numbers.
static inline void centre(const double *keys, const int64_t *lengths, int64_t n, int64_t T, int64_t d, double *mean, double *rows) {
    for (int64_t i = 0; i < n; i++) {
        for (int64_t k = 0; k < d; k++) mean[k] = 0.0;
        for (int64_t t = 0; t < lengths[i]; t++)
            for (int64_t k = 0; k < d; k++) mean[k] += keys[(i * T + t) * d + k] / (double)lengths[i];
        for (int64_t t = 0; t < T; t++)
            for (int64_t k = 0; k < d; k++)
                rows[(i * T + t) * d + k] = t < lengths[i] ? keys[(i * T + t) * d + k] - mean[k] : 0.0;
    }
}

// The mean of the first `count` rows of d entries, none of whose sums overflows.
static inline void mean_of_rows(const double *rows, int64_t count, int64_t d, double *out) {
    const double share = 1.0 / (double)count;
    for (int64_t k = 0; k < d; k++) out[k] = rows[k] * share;
    for (int64_t t = 1; t < count; t++)
        for (int64_t k = 0; k < d; k++) out[k] += rows[t * d + k] * share;
    for (int64_t k = 0; k < d; k++) {  // a coordinate that all rows share is its own mean, which rounding would miss
        int64_t t = 1;
        while (t < count && rows[t * d + k] == rows[k]) t++;
        if (t >= count) out[k] = rows[k];
    }
}

// (x - y) · z, two times four partial sums, and then the last entries.
CORE double dot_of_difference(const double *x, const double *y, const double *z, int64_t n) {
    Eight sums = twice(spread(0.0));
    int64_t k = 0;
    for (; k + 8 <= n; k += 8) sums += (load_8(x, k) - load_8(y, k)) * load_8(z, k);
    Lanes low = low_half(sums);
    if (k + 4 <= n) {
        low += (load(x, k) - load(y, k)) * load(z, k);
        k += 4;
    }
    double total = lane_sum(low + high_half(sums));
    for (; k < n; k++) total += (x[k] - y[k]) * z[k];
    return total;
}

#ifdef __AVX512F__
constexpr int GRAM_BLOCK = 4;  // rows and columns of a block whose sums fit into the registers
#else
constexpr int GRAM_BLOCK = 2;
#endif

// out[r, s] = A[r] · B[s] of n rows of d entries each, from row `known` on, for s ≤ r or for all; the rows of `out` lie `stride` apart. Where
// `rows` is not null, they are A[rows[r]] and B[rows[s]].
OUTLINED void products_of_rows(
    const double *A, const double *B, int64_t d, const int64_t *rows, int64_t n, int64_t known, bool lower_only, double *out, int64_t stride) {
    constexpr int size = GRAM_BLOCK;
    for (int64_t i = known; i < n; i += size)
        for (int64_t j = 0; j < (lower_only ? smaller(i + size, n) : n); j += size) {  // a little above the diagonal nothing is read
            const double *left[size], *right[size];
            double sums[size * size];
            for (int a = 0; a < size; a++) {
                const int64_t p = smaller(i + a, n - 1), q = smaller(j + a, n - 1);
                left[a] = A + (rows ? rows[p] : p) * d, right[a] = B + (rows ? rows[q] : q) * d;
            }
            dot_all<size, size>(left, right, d, sums);
            for (int a = 0; a < size; a++)
                for (int b = 0; b < size; b++) out[smaller(i + a, n - 1) * stride + smaller(j + b, n - 1)] = sums[size * a + b];
        }
}

// The lower triangle of the Gram matrix of A[rows], from row `known` on.
CORE void gram(const double *A, int64_t d, const int64_t *rows, int64_t n, int64_t known, double *G, int64_t stride) {
    products_of_rows(A, A, d, rows, n, known, true, G, stride);
}

// Factor the leading n × n block, given by its lower triangle, in place as L Lᵀ; its rows lie `stride` apart.
// Returns -1, or the first index whose pivot is not above `smallest`, where the factorisation stopped.
OUTLINED int64_t cholesky(double *L, int64_t n, int64_t stride, double smallest) {
    for (int64_t j = 0; j < n; j++) {
        double pivot = 0.0, inverse = 0.0;
        for (int64_t i = j; i < n; i += 4) {
            double *row[4], sums[4], left[4];
            for (int64_t a = 0; a < 4; a++) row[a] = L + smaller(i + a, n - 1) * stride;
            dot_4(row[0], row[1], row[2], row[3], L + j * stride, j, sums);
            for (int64_t a = 0; a < 4; a++) left[a] = row[a][j] - sums[a];
            if (i == j) {
                if (!(left[0] > smallest)) return j;
                pivot = square_root(left[0]);
                inverse = 1.0 / pivot;
            }
            for (int64_t a = 0; a < 4; a++) row[a][j] = left[a] * inverse;
        }
        L[j * stride + j] = pivot;
    }
    return -1;
}

// right becomes L⁻¹ right, n entries.
static inline void solve_lower(const double *L, int64_t n, int64_t stride, double *right) {
    for (int64_t i = 0; i < n; i++) {
        double total = right[i];
        if (i < 16)
            for (int64_t j = 0; j < i; j++) total -= L[i * stride + j] * right[j];
        else
            total -= dot(L + i * stride, right, i);
        right[i] = total / L[i * stride + i];
    }
}

// right becomes L⁻ᵀ right, n entries.
static inline void solve_upper(const double *L, int64_t n, int64_t stride, double *right) {
    for (int64_t i = n - 1; i >= 0; i--) {
        right[i] /= L[i * stride + i];
        for (int64_t j = 0; j < i; j++) right[j] -= L[i * stride + j] * right[i];
    }
}

// right becomes (L Lᵀ)⁻¹ right, n entries.
static inline void solve_factored(const double *L, int64_t n, int64_t stride, double *right) {
    solve_lower(L, n, stride, right);
    solve_upper(L, n, stride, right);
}
