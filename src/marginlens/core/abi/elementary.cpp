// Exports: elementary functions of arrays, entry by entry, by which they are tested.
#include "../exponential.h"
#include "abi.h"

// out = f(x): exp (0), log (1), log1p (2), expm1 (3), tanh (4), x^a (5); exp of eight (6), exp (7), log (8) and x^a (9) of four at a time.
EXPORT elementary(
    int64_t code,     // in 0..9
    const double *x,  // (n)
    double a,
    double *out,      // (n)
    int64_t n) {
    int64_t i = 0;
    for (; code == 6 && i + 8 <= n; i += 8) store(out, i, exp(load_8(x, i)));
    for (; code >= 7 && i + 4 <= n; i += 4) {
        const Lanes y = load(x, i);
        store(out, i, code == 7 ? exp(y) : code == 8 ? log(y) : pow(y, a));
    }
    for (; i < n; i++) {
        const double y = x[i];
        const int64_t kind = code == 8 ? 1 : code == 9 ? 5 : code;
        out[i] = kind == 1 ? log(y) : kind == 2 ? log1p(y) : kind == 3 ? expm1(y) : kind == 4 ? tanh(y) : kind == 5 ? pow(y, a) : exp(y);
    }
    return 0;
}
