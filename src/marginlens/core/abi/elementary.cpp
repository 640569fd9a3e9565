// Doors: elementary functions of arrays, entry by entry, by which they are tested.
#include "../exponential.h"
#include "abi.h"

// out = f(x): exp (0), log (1), log1p (2), expm1 (3), tanh (4), x^a (5), and exp of four (6) and of eight (7) at a time.
DOOR elementary(
    int64_t code,     // in 0..7
    const double *x,  // (n)
    double a,
    double *out,      // (n)
    int64_t n) {
    int64_t i = 0;
    for (; code == 6 && i + 4 <= n; i += 4) store(out, i, exp(load(x, i)));
    for (; code == 7 && i + 8 <= n; i += 8) store(out, i, exp(load_8(x, i)));
    for (; i < n; i++) {
        const double y = x[i];
        out[i] = code == 1 ? log(y) : code == 2 ? log1p(y) : code == 3 ? expm1(y) : code == 4 ? tanh(y) : code == 5 ? pow(y, a) : exp(y);
    }
    return 0;
}
