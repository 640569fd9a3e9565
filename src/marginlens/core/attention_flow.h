// The gradient flow of the attention risk on p by arc length, dc/ds = F(c) = -g/‖g‖ with g = ∇L(c), in coordinates c of the keys' span.
//
// An explicit Runge-Kutta method takes the steps, and Radau IIA, which is implicit, those that stability alone would limit otherwise.
//
// With u = g/‖g‖ and P = I - u uᵀ the derivative is F' = -P H/‖g‖. Its eigenvalues are real, and a system with it is one with the symmetric
// M = P H P/‖g‖: (μ I - F') x = b has u·x = u·b/μ and (μ I + M) P x = P b - (u·b/μ) P H u/‖g‖.
#pragma once
#include "attention_descent.h"

constexpr int64_t MAX_STAGE_ITERATIONS = 6;
constexpr double STALE_RATE = 0.01;  // convergence slower than this asks for a new derivative
constexpr double MIN_FACTOR = 0.2, MAX_FACTOR = 8.0, SAFETY = 0.9;  // from a step's length to the next one's
constexpr double FIRST_FLOW_STEP = 0.01;                            // over the length at which a logit moves by one
// A step times the largest eigenvalue: the explicit method is stable up to 6.1. What one step shows of it fades by REACH_DECAY in the next.
// After STIFF_STEPS or LOOSE_STEPS in a row beyond these bounds the other method goes on; factors make it dear for many coordinates.
constexpr double STIFF_REACH = 5.0, LOOSE_REACH = 2.0, REACH_DECAY = 0.9;
constexpr int64_t STIFF_STEPS = 15, COORDINATES_PER_STEP = 8, LOOSE_STEPS = 5;
constexpr double FEW_WEIGHT = 1e-6;          // of the largest weight, below which a token does not matter for a derivative
constexpr double ARC_LENGTH_RTOL = 1e-12;    // at which an arc length counts as reached
constexpr double CANCELLED_GRADIENT = 1e-9;  // a gradient this small beside its terms has no direction in double precision

// How a call ends: at its length, at a zero of the gradient, at steps as short as rounding, or after a step that was shorter than asked.
enum FlowEnd : int64_t { FLOW_REACHED = 0, FLOW_STATIONARY = 1, FLOW_FAILED = 2, FLOW_SHORT = 3 };

// The explicit method of Dormand and Prince of order 8, with Hairer's two estimates of its error, of orders 5 and 3. Stage i + 1 is at the start
// plus h Σ_{j≤i} EXPLICIT[i][j] k_j, and the last one is where the step ends.
constexpr int N_STAGES = 12;
constexpr double EXPLICIT[N_STAGES][N_STAGES] = {
    {0.05260015195876773},
    {0.0197250569845379, 0.0591751709536137},
    {0.02958758547680685, 0.0, 0.08876275643042054},
    {0.2413651341592667, 0.0, -0.8845494793282861, 0.924834003261792},
    {0.037037037037037035, 0.0, 0.0, 0.17082860872947386, 0.12546768756682242},
    {0.037109375, 0.0, 0.0, 0.17025221101954405, 0.06021653898045596, -0.017578125},
    {0.03709200011850479, 0.0, 0.0, 0.17038392571223998, 0.10726203044637328, -0.015319437748624402, 0.008273789163814023},
    {0.6241109587160757, 0.0, 0.0, -3.3608926294469414, -0.868219346841726, 27.59209969944671, 20.154067550477894, -43.48988418106996},
    {0.47766253643826434, 0.0, 0.0, -2.4881146199716677, -0.590290826836843, 21.230051448181193, 15.279233632882423, -33.28821096898486,
     -0.020331201708508627},
    {-0.9371424300859873, 0.0, 0.0, 5.186372428844064, 1.0914373489967295, -8.149787010746927, -18.52006565999696, 22.739487099350505,
     2.4936055526796523, -3.0467644718982196},
    {2.273310147516538, 0.0, 0.0, -10.53449546673725, -2.0008720582248625, -17.9589318631188, 27.94888452941996, -2.8589982771350235,
     -8.87285693353063, 12.360567175794303, 0.6433927460157636},
    {0.054293734116568765, 0.0, 0.0, 0.0, 0.0, 4.450312892752409, 1.8915178993145003, -5.801203960010585, 0.3111643669578199,
     -0.1521609496625161, 0.20136540080403034, 0.04471061572777259}};
constexpr double ERROR_5[N_STAGES] = {
    0.01312004499419488, 0.0, 0.0, 0.0, 0.0, -1.2251564463762044, -0.4957589496572502, 1.6643771824549864, -0.35032884874997366,
    0.3341791187130175, 0.08192320648511571, -0.022355307863886294};
constexpr double ERROR_3[N_STAGES] = {
    -0.18980075407240762, 0.0, 0.0, 0.0, 0.0, 4.450312892752409, 1.8915178993145003, -5.801203960010585, -0.4226823213237919,
    -0.1521609496625161, 0.20136540080403034, 0.02265179219836082};

// Radau IIA of order 5: with z = FROM w its three coupled stages fall apart into a system with MU/h and one with (MU_RE + i MU_IM)/h in place
// of the inverse of its matrix; w = TO z.
constexpr double ROOT_6 = 2.449489742783178, NODES[4] = {0.0, (4.0 - ROOT_6) / 10.0, (4.0 + ROOT_6) / 10.0, 1.0};
constexpr double MU = 3.637834252744496, MU_RE = 2.681082873627752, MU_IM = -3.050430199247411;
constexpr double RADAU_ERROR[3] = {(-13.0 - 7.0 * ROOT_6) / 3.0, (-13.0 + 7.0 * ROOT_6) / 3.0, -1.0 / 3.0};
constexpr double FROM[3][3] = {
    {0.09443876248897524, -0.14125529502095421, 0.03002919410514742},
    {0.25021312296533332, 0.20412935229379994, -0.38294211275726192},
    {1.0, 1.0, 0.0}};
constexpr double TO[3][3] = {
    {4.17871859155190428, 0.32768282076106237, 0.52337644549944951},
    {-4.17871859155190428, -0.32768282076106237, 0.47662355450055044},
    {0.50287263494578682, -2.57192694985560522, 0.59603920482822492}};

// The field F of one problem, and its derivative where it was evaluated last.
class FlowField {
    const TokenProblem &p;
    const int64_t loss, m;
    double *logits, *weights, *logs, *margins, *means, *rows, *weighted;

  public:
    double *gradient, *along, *M, *across;  // g, u, M and P H u/‖g‖
    double length = 0.0, log_scale = 0.0;  // ‖g‖, and the logarithm of what g is to be multiplied with for ∇L

    FlowField(Arena &arena, const TokenProblem &p, int64_t loss) : p(p), loss(loss), m(p.n_inputs * p.n_tokens) {
        logits = arena.doubles(m), weights = arena.doubles(m), logs = arena.doubles(m), margins = arena.doubles(p.n_inputs);
        means = arena.doubles(p.d), gradient = arena.doubles(p.d), along = arena.doubles(p.d), across = arena.doubles(p.d);
        M = arena.doubles(p.d * p.d), rows = arena.doubles((m + p.n_inputs) * p.d), weighted = arena.doubles((m + p.n_inputs) * p.d);
    }

    // out = F(c); nan where the gradient is zero.
    void evaluate(const double *c, double *out) {
        const int64_t d = p.d, T = p.n_tokens;
        double biggest = 0.0;
        log_scale = 0.0;
        for (int64_t k = 0; k < d; k++) gradient[k] = 0.0;
        for (int64_t i = 0; i < p.n_inputs; i++) {  // one pass over the keys, unless weights underflow
            matvec(p.keys + i * T * d, p.lengths[i], d, c, logits + i * T);
            margins[i] = direct_weights(logits + i * T, p.scores + i * T, p.lengths[i], T, loss, weights + i * T, biggest);
            add_rows(weights + i * T, p.keys + i * T * d, nullptr, p.lengths[i], d, gradient);
        }
        if (!(larger(SQUARABLE, smallest_direct(loss)) < biggest && biggest < LARGEST_WEIGHT)) {
            log_scale = pair_weights(logits, p.scores, p.lengths, p.n_inputs, T, loss, logs, weights, margins);
            vecmat(weights, p.keys, nullptr, m, d, gradient);
        }
        length = square_root(dot(gradient, gradient, d));
        for (int64_t k = 0; k < d; k++) out[k] = length > 0.0 ? gradient[k] / -length : NOT_A_NUMBER;
    }

    // The length that g would have if no two of its terms cancelled, for keys with these norms.
    double terms(const double *norms) const {
        double total = 0.0;
        for (int64_t k = 0; k < m; k++) total += modulus(weights[k]) * norms[k];
        return total;
    }

    // Whether g is zero beside its terms, to nine digits.
    bool is_stationary(const double *norms) const { return !(length > CANCELLED_GRADIENT * terms(norms)); }

    // ℓ''/ℓ'² of one input, times e^log_scale: 1 for -log u, and (½ - u)|ℓ'| for the arcsine.
    double steep_curvature(const double *a, const double *gamma, int64_t count) const {
        if (loss == LOG_PROBABILITY) return exp(log_scale);
        const Shortfall at = shortfall_of(a, gamma, count);
        if (at.nearest == -INF) return 0.0;
        const double u = gamma[at.best] - at.delta * exp(at.nearest);
        return (0.5 - u) * exp(log_scale + log_slope(loss, gamma[at.best], at.delta, at.nearest));
    }

    // Set `along`, M and `across` at the point of the last evaluation. H is the sum over inputs of
    //     Σ_t w_t (k_t - k̄) (k_t - k̄)ᵀ + ℓ''/ℓ'² (Σ w_t k_t) (Σ w_t k_t)ᵀ  with  k̄ = Σ s_t k_t,
    // where ℓ''/ℓ'² is e^margin for LOGISTIC and EXPONENTIAL.
    void differentiate() {
        const int64_t d = p.d, T = p.n_tokens;
        int64_t n_rows = 0;
        const double least = FEW_WEIGHT * max_abs(weights, m);
        for (int64_t k = 0; k < d; k++) along[k] = gradient[k] / length, across[k] = 0.0;
        const auto add = [&](double weight) {  // the row that was put last
            double *row = rows + n_rows * d, *copied = weighted + n_rows * d;
            const double part = dot(along, row, d);
            for (int64_t k = 0; k < d; k++) {
                row[k] -= part * along[k];
                copied[k] = weight * row[k];
                across[k] += part * copied[k];
            }
            n_rows++;
        };
        for (int64_t i = 0; i < p.n_inputs; i++) {
            const double *keys = p.keys + i * T * d, *w = weights + i * T, *a = logits + i * T;
            const int64_t best = largest_of(a, p.lengths[i]);
            if (max_abs(w, T) <= least) continue;
            double *shares = logs, mass = 0.0;
            for (int64_t t = 0; t < p.lengths[i]; t++) mass += shares[t] = exp(a[t] - a[best]);
            for (int64_t t = 0; t < p.lengths[i]; t++) shares[t] /= mass;
            vecmat(shares, keys, nullptr, p.lengths[i], d, means);
            for (int64_t t = 0; t < p.lengths[i]; t++) {
                if (!(modulus(w[t]) > least)) continue;
                for (int64_t k = 0; k < d; k++) rows[n_rows * d + k] = keys[t * d + k] - means[k];
                add(w[t] / length);
            }
            vecmat(w, keys, nullptr, p.lengths[i], d, rows + n_rows * d);
            if (loss < LINEAR) add(exp(log_scale + margins[i]) / length);
            if (loss > LINEAR) add(steep_curvature(a, p.scores + i * T, p.lengths[i]) / length);
        }
        matrix_product(weighted, 1, d, rows, n_rows, M, d, d);
    }
};

// What a call asks for: the relative tolerance of a step, the length at which a logit moves by one, the arc length to go, and the length of a
// step at which to stop.
struct FlowSettings {
    double rtol, unit, longest, short_step;
};

// Where a flow stands between calls: the arc length behind it, the next step's length, whether the implicit method takes it, and for how many
// steps the other one would have done better.
struct FlowState {
    double arc_length, step, is_implicit, doubts, taken;
};

class AttentionFlow {
    FlowField field;
    FlowState &state;
    const double *norms;
    const int64_t d;
    const FlowSettings &settings;
    double *c, *slope, *point, *error, *stages[N_STAGES + 1];  // c and F(c) where a step begins, where it ends and its error
    double *z[3], *w[3], *right[3], *former[3];  // of the implicit method, with its points of the step before
    double *squared, *real, *complex;            // M², and factors of M + μ I for its eigenvalues
    bool is_fresh = false;                       // whether the derivative is that at c
    double factored_for = 0.0, rate = 0.0, curvature = 0.0, former_step = 0.0, reach = 0.0;
    int64_t iterations = 0;

    // Sums of squares of x over the tolerances at c and, where it is given, at another point.
    double relative(const double *x, const double *other = nullptr) const {
        double total = 0.0;
        for (int64_t k = 0; k < d; k++) {
            const double size = other ? larger(modulus(c[k]), modulus(other[k])) : modulus(c[k]);
            const double y = x[k] / (settings.rtol * (settings.unit + size));
            total += y * y;
        }
        return total / (double)d;
    }

    // out = base + h Σ_j weights_j x_j, of `count` vectors.
    void combine_stages(const double *base, double h, const double *weights, double *const *x, int count, double *out) const {
        for (int64_t k = 0; k < d; k++) out[k] = base ? base[k] : 0.0;
        for (int j = 0; j < count; j++)
            if (weights[j] != 0.0)
                for (int64_t k = 0; k < d; k++) out[k] += h * weights[j] * x[j][k];
    }

    // ---- the explicit method

    // Take a step of length h to `point`; the error relative to the tolerance, nan where there is no such step.
    double take_explicit(double h) {
        copy(slope, d, stages[0]);
        for (int i = 0; i < N_STAGES; i++) {
            if (i == N_STAGES - 1) copy(point, d, error);
            combine_stages(c, h, EXPLICIT[i], stages, i + 1, point);
            field.evaluate(point, stages[i + 1]);
        }
        double moved = 0.0, turned = 0.0;  // between the last two stages, which are both at the end
        for (int64_t k = 0; k < d; k++) {
            const double dx = point[k] - error[k], df = stages[N_STAGES][k] - stages[N_STAGES - 1][k];
            moved += dx * dx, turned += df * df;
        }
        reach = larger(REACH_DECAY * reach, moved > 0.0 ? h * square_root(turned / moved) : 0.0);
        state.doubts = reach > STIFF_REACH ? state.doubts + 1 : 0;
        combine_stages(nullptr, h, ERROR_5, stages, N_STAGES, error);
        const double fifth = relative(error, point);
        combine_stages(nullptr, h, ERROR_3, stages, N_STAGES, error);
        return fifth == 0.0 ? 0.0 : fifth / square_root(fifth + 0.01 * relative(error, point));
    }

    // ---- the implicit method

    // The derivative at c, where the field was evaluated last.
    void differentiate() {
        field.differentiate();
        matrix_product(field.M, d, 1, field.M, d, squared, d, d);
        factored_for = rate = 0.0, curvature = norm(field.M, d * d), is_fresh = true;
    }

    // Factor M + MU/h and |M + (MU_RE + i MU_IM)/h|²; whether they are positive definite.
    bool factorise(double h) {
        if (h == factored_for) return true;
        factored_for = 0.0;
        const double a = MU_RE / h, b = MU_IM / h;
        copy(field.M, d * d, real);
        for (int64_t k = 0; k < d * d; k++) complex[k] = squared[k] + 2.0 * a * field.M[k];
        for (int64_t k = 0; k < d; k++) real[k * d + k] += MU / h, complex[k * d + k] += a * a + b * b;
        if (cholesky(real, d, d, 0.0) >= 0 || cholesky(complex, d, d, 0.0) >= 0) return false;
        factored_for = h;
        return true;
    }

    // x becomes (MU/h - F')⁻¹ x.
    void solve_real(double h, double *x) const {
        const double *u = field.along, part = dot(u, x, d) * h / MU;
        for (int64_t k = 0; k < d; k++) x[k] -= part * (u[k] * MU / h + field.across[k]);
        solve_factored(real, d, d, x);
        for (int64_t k = 0; k < d; k++) x[k] += part * u[k];
    }

    // x + i y becomes ((MU_RE + i MU_IM)/h - F')⁻¹ (x + i y).
    void solve_complex(double h, double *x, double *y, double *mx, double *my) const {
        const double *u = field.along, a = MU_RE / h, b = MU_IM / h, ux = dot(u, x, d), uy = dot(u, y, d), square = a * a + b * b;
        const double px = (ux * a + uy * b) / square, py = (uy * a - ux * b) / square;  // u·(x + i y)/μ
        for (int64_t k = 0; k < d; k++) {
            x[k] -= ux * u[k] + px * field.across[k];
            y[k] -= uy * u[k] + py * field.across[k];
        }
        matvec(field.M, d, d, x, mx);
        matvec(field.M, d, d, y, my);
        for (int64_t k = 0; k < d; k++) {  // times M + a - i b
            const double re = mx[k] + a * x[k] + b * y[k], im = my[k] + a * y[k] - b * x[k];
            x[k] = re, y[k] = im;
        }
        solve_factored(complex, d, d, x);
        solve_factored(complex, d, d, y);
        for (int64_t k = 0; k < d; k++) x[k] += px * u[k], y[k] += py * u[k];
    }

    // Set z, w: what the polynomial through the former step gives for a step of length h, zero without one.
    void guess(double h) {
        for (int i = 0; i < 3; i++) {
            double weights[3] = {};
            for (int j = 1; j < 4 && former_step > 0.0; j++) {
                double weight = 1.0;
                for (int l = 0; l < 4; l++)
                    if (l != j) weight *= (1.0 + NODES[i + 1] * h / former_step - NODES[l]) / (NODES[j] - NODES[l]);
                weights[j - 1] = j == 3 ? weight - 1.0 : weight;  // less where that step ended
            }
            combine_stages(nullptr, 1.0, weights, former, 3, z[i]);
        }
        for (int i = 0; i < 3; i++) combine_stages(nullptr, 1.0, TO[i], z, 3, w[i]);
    }

    // Newton's method for z_i = h Σ_j a_ij F(c + z_j); the number of its iterations, 0 where it does not converge.
    int64_t solve_stages(double h) {
        const double tolerance = larger(10.0 * EPS / settings.rtol, smaller(0.03, square_root(settings.rtol)));
        double last = 0.0;
        rate = 0.0;
        for (int64_t n = 1; n <= MAX_STAGE_ITERATIONS; n++) {
            for (int i = 0; i < 3; i++) {
                for (int64_t k = 0; k < d; k++) point[k] = c[k] + z[i][k];
                field.evaluate(point, stages[i]);
            }
            for (int i = 0; i < 3; i++) combine_stages(nullptr, 1.0, TO[i], stages, 3, right[i]);
            for (int64_t k = 0; k < d; k++) {
                right[0][k] -= MU / h * w[0][k];
                right[1][k] -= (MU_RE * w[1][k] - MU_IM * w[2][k]) / h;
                right[2][k] -= (MU_RE * w[2][k] + MU_IM * w[1][k]) / h;
            }
            solve_real(h, right[0]);
            solve_complex(h, right[1], right[2], stages[0], stages[1]);
            const double size = square_root((relative(right[0]) + relative(right[1]) + relative(right[2])) / 3.0);
            if (n > 1) rate = size / last;
            if (!(size < INF) || !(rate < 1.0)) return 0;
            if (n > 1 && pow(rate, (double)(MAX_STAGE_ITERATIONS - n + 1)) / (1.0 - rate) * size > tolerance) return 0;
            for (int i = 0; i < 3; i++)
                for (int64_t k = 0; k < d; k++) w[i][k] += right[i][k];
            for (int i = 0; i < 3; i++) combine_stages(nullptr, 1.0, FROM[i], w, 3, z[i]);
            if (size == 0.0 || (n > 1 && rate / (1.0 - rate) * size < tolerance)) return n;
            last = size;
        }
        return 0;
    }

    // As `take_explicit`. The derivative is formed anew where Newton's method fails with that of an earlier point.
    double take_implicit(double h, bool rejected) {
        for (;;) {
            guess(h);
            iterations = factorise(h) ? solve_stages(h) : 0;
            if (iterations) break;
            if (is_fresh) return NOT_A_NUMBER;
            field.evaluate(c, slope);
            differentiate();
        }
        for (int64_t k = 0; k < d; k++) point[k] = c[k] + z[2][k];
        combine_stages(slope, 1.0 / h, RADAU_ERROR, z, 3, error);
        solve_real(h, error);
        double size = square_root(relative(error, point));
        if (rejected && size > 1.0) {
            for (int64_t k = 0; k < d; k++) error[k] += c[k];
            field.evaluate(error, stages[0]);
            combine_stages(stages[0], 1.0 / h, RADAU_ERROR, z, 3, error);
            solve_real(h, error);
            size = square_root(relative(error, point));
        }
        return size;
    }

    // ---- both

    // Take a step of length h at most to `point`, shorter ones until the error is within the tolerance; its length, 0 where there is none.
    double step(double longest) {
        bool rejected = false;
        for (;;) {
            const double h = smaller(state.step, longest);
            if (!(h > 10.0 * EPS * state.arc_length)) return 0.0;
            const double size = state.is_implicit ? take_implicit(h, rejected) : take_explicit(h);
            double safety = SAFETY;  // less after many iterations
            if (state.is_implicit) safety *= (2.0 * MAX_STAGE_ITERATIONS + 1.0) / (double)(2 * MAX_STAGE_ITERATIONS + iterations);
            double factor = size < INF ? safety * pow(larger(size, 1e-10), state.is_implicit ? -0.25 : -0.125) : 0.5;
            factor = larger(MIN_FACTOR, smaller(factor, rejected ? 1.0 : MAX_FACTOR));
            if (size <= 1.0) {
                if (state.is_implicit && factor < 1.2) factor = 1.0;  // the factors serve again
                if (h == state.step || h * factor > state.step) state.step = h * factor;
                return h;
            }
            state.step = h * smaller(factor, SAFETY), rejected = true;
        }
    }

    // Make `point` the start of the next step.
    void accept(double h) {
        copy(point, d, c);
        state.arc_length += h, state.taken++;
        if (!state.is_implicit) {
            copy(stages[N_STAGES], d, slope);
            return;
        }
        for (int i = 0; i < 3; i++) copy(z[i], d, former[i]);
        former_step = h, is_fresh = false;
        field.evaluate(c, slope);
        if (iterations > 2 && rate > STALE_RATE) differentiate();
    }

    // Go on with the other method where it would have done better for several steps.
    void choose_method(double h) {
        if (state.is_implicit) state.doubts = h * curvature < LOOSE_REACH ? state.doubts + 1 : 0;
        if (state.doubts < (state.is_implicit ? LOOSE_STEPS : STIFF_STEPS + d / COORDINATES_PER_STEP)) return;
        state.is_implicit = !state.is_implicit, state.doubts = 0, former_step = reach = 0.0;
        if (state.is_implicit) differentiate();
    }

  public:
    AttentionFlow(Arena &arena, const TokenProblem &p, int64_t loss, const double *norms, const FlowSettings &settings, double *c, FlowState &state)
        : field(arena, p, loss), state(state), norms(norms), d(p.d), settings(settings), c(c) {
        slope = arena.doubles(d), point = arena.doubles(d), error = arena.doubles(d);
        for (double *&vector : stages) vector = arena.doubles(d);
        for (int i = 0; i < 3; i++) z[i] = arena.doubles(d), w[i] = arena.doubles(d), right[i] = arena.doubles(d), former[i] = arena.doubles(d);
        squared = arena.doubles(d * d), real = arena.doubles(d * d), complex = arena.doubles(d * d);
    }

    // Follow the flow as the settings ask, or until it ends.
    FlowEnd follow() {
        const double end = state.arc_length + settings.longest;
        if (state.step == 0.0) state.step = FIRST_FLOW_STEP * settings.unit;
        field.evaluate(c, slope);
        if (field.is_stationary(norms)) return FLOW_STATIONARY;
        if (state.is_implicit) differentiate();
        while (end - state.arc_length > ARC_LENGTH_RTOL * state.arc_length) {
            const double h = step(end - state.arc_length);
            if (h == 0.0) return FLOW_FAILED;
            accept(h);
            if (field.is_stationary(norms)) return FLOW_STATIONARY;
            if (h < settings.short_step) return FLOW_SHORT;
            choose_method(h);
        }
        return FLOW_REACHED;
    }
};
