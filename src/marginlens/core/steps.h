// What all descents share: the rule of a step, which steps are taken and kept, and how a run ends.
#pragma once
#include <stdint.h>

enum End : int64_t { RAN_ALL = 0, STATIONARY = 1, NON_FINITE = 2, TIED = 3 };

constexpr int64_t RESYNC = 64;  // steps after which accumulated logits are computed afresh

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
