// How margin problems end, and the tolerances by which CPUs and GPUs solve and check them. Those of svm/solution.py have its names.
#pragma once
#include "../arithmetic.h"

enum Outcome : int64_t { OPTIMAL = 0, INFEASIBLE = 1, TRIVIAL = 2, UNVERIFIED = 3, OUT_OF_RANGE = 4, NEEDS_RECHECK = 5 };

constexpr double FAST_PATH_RTOL = 1e-13;         // residual up to which the quick methods are believed; beyond, rows enter one by one
constexpr double VERIFIED_RTOL = 1e-11;          // residual below which a solution counts as proved, a decade inside the promised 1e-10
constexpr double MAX_KKT_RTOL = 1e-4;            // the largest residual that is ever excused by rounding
constexpr double AMPLIFIED_EPS = 16 * EPS;       // times the amplification: what double precision leaves at best
constexpr double VIOLATION_RTOL = 16 * EPS;      // a distance that counts as none, relative to the sum of the multipliers, which is ≥ ‖x‖
constexpr double MIN_SQUARED_NORM = 1e-200, MAX_SQUARED_NORM = 1e200;  // of rows that are not zero
constexpr double ACTIVE_SLACK_RTOL = 1e-9, ROUNDOFF_RTOL = 1e-12;      // of the lower bound and of ‖x‖: a row of such a slack is active
constexpr double FARKAS_RTOL = 1e-14;            // unit rows, with weights that sum to one, that cancel to this contradict each other
constexpr double COEFFICIENT_RTOL = 64 * EPS;    // a coefficient this small, relative to the largest, is rounding
