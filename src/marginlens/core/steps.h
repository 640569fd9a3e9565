// What all descents share: the rule of a step, which steps are taken and kept, and how a run ends.
#pragma once
#include "arithmetic.h"

enum End : int64_t { RAN_ALL = 0, STATIONARY = 1, NON_FINITE = 2, TIED = 3 };

constexpr int64_t RESYNC = 64;  // steps after which accumulated logits are computed afresh
constexpr double EXTREME_KEY = 1e60;  // keys up to it, whose inverses are too, have no product of two and a weight out of range
constexpr double CANCELLED_SHARE = 1e-6;  // of the sum of moduli, below which rounding decides a sum

constexpr double TIE_RTOL = 1e-12;  // of the largest modulus: entries this close to it are as large, whichever way sums were rounded

struct StepRule {
    bool normalized;
    double step;
    int64_t loss;
};

// Which steps to take, and after which to keep what moves.
struct Steps {
    int64_t n_steps, stop;
    const int64_t *save;
    int64_t n_saved;
};
