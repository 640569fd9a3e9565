// The likelihood over a cyclic subset by the logits of its cells: values, slopes and Hessians of its components in one pass.
#pragma once
#include "exponential.h"
#include "newton.h"

// Samples with the entries offsets[i] … offsets[i + 1] - 1, the label among them, in the cells of one component each.
struct CyclicSamples {
    const int64_t *cell, *offsets, *label, *component;
    const double *log_count, *share;
    int64_t n_samples;
};

// Whether every index is in its range.
static inline bool fits(
    const CyclicSamples &x, const Blocks &layout, int64_t n_cells, int64_t n_entries, int64_t n_squares) {
    for (int64_t c = 0; c < layout.count; c++) {
        const int64_t size = layout.sizes[c], first = layout.first[c], corner = layout.corners[c];
        if (size < 0 || size > INT32_MAX || first < 0 || first > n_cells - size) return false;
        if (corner < 0 || corner > n_squares - size * size) return false;
    }
    for (int64_t i = 0; i < x.n_samples; i++) {
        const int64_t begin = x.offsets[i], end = x.offsets[i + 1], c = x.component[i];
        if (begin < 0 || end > n_entries || x.label[i] < begin || x.label[i] >= end || c < 0 || c >= layout.count) return false;
        for (int64_t t = begin; t < end; t++)
            if (x.cell[t] < layout.first[c] || x.cell[t] - layout.first[c] >= layout.sizes[c]) return false;
    }
    return true;
}

// Add every sample to its component's value, to the slopes of its cells and to its component's Hessian. Curvatures s_a s_b enter rows and
// diagonal alike, so that rows add up to zero. `s` is room for the entries of a sample.
static inline void add_likelihoods(
    const double *cells, const CyclicSamples &x, const Blocks &layout, double *s, double *values, double *slopes, double *squares) {
    for (int64_t i = 0; i < x.n_samples; i++) {
        const int64_t begin = x.offsets[i], n = x.offsets[i + 1] - begin, label = x.label[i] - begin, c = x.component[i];
        const int64_t *cell = x.cell + begin, width = layout.sizes[c], origin = layout.first[c];
        const double share = x.share[i];
        double *hessian = squares + layout.corners[c], top = -INF, others = 0.0, total = 0.0;
        for (int64_t t = 0; t < n; t++) {
            s[t] = cells[cell[t]] + x.log_count[begin + t];
            top = larger(s[t], top);
        }
        const double behind = top - s[label];
        for (int64_t t = 0; t < n; t++) {
            s[t] = exp(s[t] - top);
            total += s[t];
            if (t != label) others += s[t];
        }
        values[c] += share * (behind == 0.0 ? log1p(others) : behind + log(total));
        for (int64_t t = 0; t < n; t++) {
            s[t] /= total;
            slopes[cell[t]] += share * (t == label ? -others / total : s[t]);
        }
        for (int64_t t = 0; t < n; t++) {
            const int64_t a = cell[t] - origin;
            const double part = share * s[t];
            double row = 0.0;
            for (int64_t u = 0; u < t; u++) {
                const int64_t b = cell[u] - origin;
                const double both = part * s[u];
                hessian[a * width + b] -= both;
                hessian[b * width + a] -= both;
                hessian[b * width + b] += both;
                row += both;
            }
            hessian[a * width + a] += row;
        }
    }
}

// The same as a function that has one minimum for each component: its Hessian is lifted along the constants, on which the risk does not depend.
struct CyclicRisk {
    const CyclicSamples &samples;
    const Blocks &layout;
    double *s;  // room for the entries of a sample

    void operator()(const double *cells, double *values, double *slopes, double *squares) const {
        for (int64_t c = 0; c < layout.count; c++) {
            values[c] = 0.0;
            for (int64_t k = 0; k < layout.sizes[c]; k++) slopes[layout.first[c] + k] = 0.0;
            for (int64_t k = 0; k < layout.sizes[c] * layout.sizes[c]; k++) squares[layout.corners[c] + k] = 0.0;
        }
        add_likelihoods(cells, samples, layout, s, values, slopes, squares);
        for (int64_t c = 0; c < layout.count; c++) {
            const int64_t size = layout.sizes[c];
            double *hessian = squares + layout.corners[c], trace = 0.0;
            for (int64_t k = 0; k < size; k++) trace += hessian[k * (size + 1)];
            for (int64_t k = 0; k < size * size; k++) hessian[k] += trace / (double)(size * size);
        }
    }
};
