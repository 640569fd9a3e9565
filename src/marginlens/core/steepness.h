// Λ of the proofs about tubes and steps in any norm: a bound on the slope of log|ℓ'| for margins of one input.
#pragma once
#include "exponential.h"

// For margins from γ_α - ε raise on. `steepness` is Λ; for -log u, whose Λ is 1/(γ_α - ε raise), it is minus the number of inputs n, and
// log_slope is log(1/(n γ_α)).
CORE double steepness_near(double steepness, double log_slope, double eps, double raise) {
    if (!(steepness < 0.0)) return steepness;
    const double reciprocal = -steepness * exp(log_slope);
    return reciprocal / (1.0 - eps * raise * reciprocal);
}
