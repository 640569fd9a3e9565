// The functions that Python and the browser call: plain C, with every size and every array's shape in the declaration.
//
// The comment after a parameter is read by marginlens/core/signatures.py: `(n, d)` is the shape of an array, whose sizes are parameters
// that a caller in Python leaves out; `in 0..n` are the bounds of a number or of all entries, both included; `or none` allows a null pointer.
// A function returns 0, or what its comment says, or OUT_OF_MEMORY or WRONG_SIZE of arena.h.
#pragma once
#include <stdint.h>

#ifdef _WIN32
#define EXPORT extern "C" __declspec(dllexport) int64_t
#else
#define EXPORT extern "C" __attribute__((visibility("default"))) int64_t
#endif
