// Exports: strong components of priority graphs, the likelihoods over them, and the logits at which they are in balance.
#include "../components.h"
#include "../exponential.h"
#include "../newton.h"
#include "abi.h"

// The likelihood over cyclic subsets by the logits of their cells, values, slopes and Hessians of its components in one pass. Sample i has the
// entries offsets[i] … offsets[i + 1] - 1, the label among them, in the cells of one component.
struct CyclicRisk {
    const int64_t *cell, *offsets, *label, *component;
    const double *log_count, *share;
    int64_t n_samples;
    const Blocks &layout;
    double *s;  // room for the entries of a sample

    // Whether every index is in its range.
    bool fits(int64_t n_cells, int64_t n_entries, int64_t n_squares) const {
        for (int64_t c = 0; c < layout.count; c++) {
            const int64_t size = layout.sizes[c], first = layout.first[c], corner = layout.corners[c];
            if (size < 0 || size > INT32_MAX || first < 0 || first > n_cells - size) return false;
            if (corner < 0 || corner > n_squares - size * size) return false;
        }
        for (int64_t i = 0; i < n_samples; i++) {
            const int64_t begin = offsets[i], end = offsets[i + 1], c = component[i];
            if (begin < 0 || end > n_entries || label[i] < begin || label[i] >= end || c < 0 || c >= layout.count) return false;
            for (int64_t t = begin; t < end; t++)
                if (cell[t] < layout.first[c] || cell[t] - layout.first[c] >= layout.sizes[c]) return false;
        }
        return true;
    }

    // Add sample i to its component's value, to the slopes of its cells and to its component's Hessian. Curvatures s_a s_b enter rows and
    // diagonal alike, so that rows add up to zero.
    void add(int64_t i, const double *cells, double *values, double *slopes, double *squares) const {
        const int64_t begin = offsets[i], n = offsets[i + 1] - begin, right = label[i] - begin, c = component[i];
        const int64_t *at = cell + begin, width = layout.sizes[c], origin = layout.first[c];
        double *hessian = squares + layout.corners[c], top = -INF, others = 0.0, total = 0.0;
        for (int64_t t = 0; t < n; t++) {
            s[t] = cells[at[t]] + log_count[begin + t];
            top = larger(s[t], top);
        }
        const double behind = top - s[right];
        for (int64_t t = 0; t < n; t++) {
            s[t] = exp(s[t] - top);
            total += s[t];
            if (t != right) others += s[t];
        }
        values[c] += share[i] * (behind == 0.0 ? log1p(others) : behind + log(total));
        for (int64_t t = 0; t < n; t++) {
            s[t] /= total;
            slopes[at[t]] += share[i] * (t == right ? -others / total : s[t]);
        }
        for (int64_t t = 0; t < n; t++) {
            const int64_t a = at[t] - origin;
            const double part = share[i] * s[t];
            double row = 0.0;
            for (int64_t u = 0; u < t; u++) {
                const int64_t b = at[u] - origin;
                const double both = part * s[u];
                hessian[a * width + b] -= both;
                hessian[b * width + a] -= both;
                hessian[b * width + b] += both;
                row += both;
            }
            hessian[a * width + a] += row;
        }
    }

    // Its Hessian is lifted along the constants, on which the risk does not depend, so that each component has one minimum.
    void operator()(const double *cells, double *values, double *slopes, double *squares) const {
        layout.clear(values, slopes, squares);
        for (int64_t i = 0; i < n_samples; i++) add(i, cells, values, slopes, squares);
        for (int64_t c = 0; c < layout.count; c++) {
            const int64_t size = layout.sizes[c];
            double *hessian = squares + layout.corners[c], trace = 0.0;
            for (int64_t k = 0; k < size; k++) trace += hessian[k * (size + 1)];
            for (int64_t k = 0; k < size * size; k++) hessian[k] += trace / (double)(size * size);
        }
    }
};

// Move the logits of the cells to the minimum of every component's part of a likelihood. Returns the number of Newton's steps, or less than 0
// where they end elsewhere.
EXPORT minimise_likelihoods(
    double *cells,               // (n_cells)
    const int64_t *cell,         // (n_entries)
    const double *log_count,     // (n_entries)
    const int64_t *offsets,      // (n_samples+1)
    const int64_t *label,        // (n_samples)
    const double *share,         // (n_samples)
    const int64_t *component,    // (n_samples)
    const int64_t *first,        // (n_components)
    const int64_t *sizes,        // (n_components)
    const int64_t *corners,      // (n_components+1)
    int64_t n_cells, int64_t n_entries, int64_t n_samples, int64_t n_components) {
    const Blocks layout{first, sizes, corners, n_components};
    const int64_t n_squares = corners[n_components];
    Arena arena;
    const CyclicRisk risk{cell, offsets, label, component, log_count, share, n_samples, layout, arena.doubles(n_entries)};
    if (!risk.fits(n_cells, n_entries, n_squares)) return WRONG_SIZE;
    Newton newton(arena, layout, n_cells, n_squares);
    return arena.failed ? OUT_OF_MEMORY : newton.minimise(risk, cells);
}

// The strong component of each node of several graphs, numbered from 0 in each graph by the longest chain of arcs above it, which is its level,
// then by its smallest node. Returns how many there are.
EXPORT rank_components(
    const int64_t *heads,  // (n_arcs) in 0..n_nodes-1
    const int64_t *tails,  // (n_arcs) in 0..n_nodes-1
    const int64_t *graph,  // (n_nodes) in 0..n_nodes-1 of each node
    int64_t *ranks,        // (n_nodes)
    int64_t *levels,       // (n_nodes)
    int64_t n_arcs, int64_t n_nodes) {
    Arena arena;
    StrongComponents components(arena, n_nodes, n_arcs);
    if (arena.failed) return OUT_OF_MEMORY;
    components.find(heads, tails, n_arcs);
    components.rank(graph, ranks, levels);
    return components.count;
}

// The logits of components at which the residual attention of active pairs is a dual solution of Graph-SVM, which minimise
// Σ c_r e^-(z_u - z_l) + λ_r (z_u - z_l) over the pairs that carry, block by block of components that they join. The component at place -1 of
// each block stays at zero.
struct Balance {
    const int64_t *upper, *lower;  // components of each pair, its log c, its multiplier, and whether it carries one
    const double *log_c, *multipliers;
    const bool *carries;
    int64_t n_pairs;
    const int64_t *place, *block;  // of components
    const Blocks &blocks;

    double gap(const double *z, int64_t r) const {
        const int64_t u = place[upper[r]], l = place[lower[r]];
        return (u < 0 ? 0.0 : z[u]) - (l < 0 ? 0.0 : z[l]);
    }

    // Add what a pair pulls its ends apart by, and its curvature.
    void add(int64_t r, double slope, double weight, double *slopes, double *squares) const {
        const int64_t ends[2] = {place[upper[r]], place[lower[r]]}, b = block[upper[r]];
        double *H = squares + blocks.corners[b];
        for (int64_t s = 0; s < 2; s++) {
            if (ends[s] < 0) continue;
            slopes[ends[s]] += s ? -slope : slope;
            for (int64_t t = 0; t < 2; t++)
                if (ends[t] >= 0) H[(ends[s] - blocks.first[b]) * blocks.sizes[b] + ends[t] - blocks.first[b]] += s == t ? weight : -weight;
        }
    }

    void operator()(const double *z, double *values, double *slopes, double *squares) const {
        blocks.clear(values, slopes, squares);
        for (int64_t r = 0; r < n_pairs; r++) {
            if (!carries[r]) continue;
            const double apart = gap(z, r), weight = exp(log_c[r] - apart);
            values[block[upper[r]]] += weight + multipliers[r] * apart;
            add(r, multipliers[r] - weight, weight, slopes, squares);
        }
    }

    // A start near the minimum, from multipliers that are positive everywhere.
    bool start(Newton &newton, int64_t n, double *z) const {
        double largest = 0.0;
        for (int64_t r = 0; r < n_pairs; r++) largest = larger(largest, multipliers[r]);
        blocks.clear(newton.values, newton.slopes, newton.squares);
        for (int64_t r = 0; r < n_pairs; r++) {
            const double weight = larger(multipliers[r], 1e-3 * largest);
            if (carries[r]) add(r, -weight * (log_c[r] - log(weight)), weight, newton.slopes, newton.squares);
        }
        const bool is_solved = newton.solve();
        copy(newton.step, n, z);
        return is_solved;
    }
};

// Which pairs of components can carry a multiplier, and the logits of components at which residual attention is a dual solution, the shortest
// by the tokens that components have. Returns 1, or 0 where Newton's method does not get there.
EXPORT balance_components(
    const int64_t *upper,       // (n_pairs) in 0..n_components-1
    const int64_t *lower,       // (n_pairs) in 0..n_components-1
    const double *log_c,        // (n_pairs)
    const double *multipliers,  // (n_pairs) of one dual solution
    const double *n_tokens,     // (n_components)
    bool *carries,              // (n_pairs)
    double *logits,             // (n_components)
    int64_t n_pairs, int64_t n_components) {
    const int64_t n = n_components;
    Arena arena;
    StrongComponents parts(arena, n, 2 * n_pairs);
    int64_t *heads = arena.integers(2 * n_pairs), *tails = arena.integers(2 * n_pairs), *place = arena.integers(n);
    int64_t *first = arena.integers(n), *sizes = arena.integers(n), *corners = arena.integers(n + 1);
    double *z = arena.doubles(n), *mean = arena.zeros(n), *weight = arena.zeros(n);
    if (arena.failed) return OUT_OF_MEMORY;
    for (bool is_known = false;; is_known = true) {  // flow may be sent round a cycle through a pair; then, what pairs that carry it join
        int64_t n_arcs = 0;
        for (int64_t r = 0; r < n_pairs; r++) {
            if (!is_known) carries[r] = multipliers[r] > 0.0;
            if (!is_known || carries[r]) heads[n_arcs] = upper[r], tails[n_arcs++] = lower[r];
            if (carries[r]) heads[n_arcs] = lower[r], tails[n_arcs++] = upper[r];
        }
        parts.find(heads, tails, n_arcs);
        if (is_known) break;
        for (int64_t r = 0; r < n_pairs; r++) carries[r] |= parts.component[upper[r]] == parts.component[lower[r]];
    }
    const int64_t *block = parts.component;
    const Blocks blocks{first, sizes, corners, parts.count};
    for (int64_t b = 0; b < parts.count; b++) sizes[b] = -1;
    for (int64_t c = 0; c < n; c++) place[c] = sizes[block[c]]++;  // the first of each block stays at zero
    corners[0] = 0;
    for (int64_t b = 0, n_free = 0; b < parts.count; n_free += sizes[b++])
        first[b] = n_free, corners[b + 1] = corners[b] + sizes[b] * sizes[b];
    for (int64_t c = 0; c < n; c++) place[c] += place[c] < 0 ? 0 : first[block[c]];
    Newton newton(arena, blocks, n - parts.count, corners[parts.count]);
    if (arena.failed) return OUT_OF_MEMORY;
    const Balance balance{upper, lower, log_c, multipliers, carries, n_pairs, place, block, blocks};
    if (!balance.start(newton, n - parts.count, z) || newton.minimise(balance, z) < 0) return 0;
    for (int64_t c = 0; c < n; c++) {
        logits[c] = place[c] < 0 ? 0.0 : z[place[c]];
        weight[block[c]] += n_tokens[c], mean[block[c]] += n_tokens[c] * logits[c];
    }
    for (int64_t c = 0; c < n; c++) logits[c] -= mean[block[c]] / weight[block[c]];
    return 1;
}
