// Memory for the length of one call. All of it is taken before the work begins, so that a call that finds none has done nothing.
#pragma once
#include <stdint.h>
#ifdef __wasm__
extern "C" int posix_memalign(void **, unsigned long, unsigned long);  // of wasm.cpp
extern "C" void free(void *);
#elif defined(_WIN32)
#include <malloc.h>
static inline int posix_memalign(void **block, size_t alignment, size_t size) {
    *block = _aligned_malloc(size, alignment);
    return !*block;
}
#define free _aligned_free
#else
#include <stdlib.h>
#endif

constexpr int64_t OUT_OF_MEMORY = -1000, WRONG_SIZE = -1001;  // what a function returns then

class Arena {
    struct Block {
        Block *next;
        double padding[7];  // what follows is aligned like a register of eight doubles
    };
    Block *last = nullptr;

  public:
    bool failed = false;
    Arena() = default;
    Arena(const Arena &) = delete;
    Arena &operator=(const Arena &) = delete;
    ~Arena() {
        while (last) {
            Block *block = last;
            last = block->next;
            free(block);
        }
    }

    // Space for n values of a type, not filled; a null pointer, and `failed`, where there is none.
    template <class T>
    T *take(int64_t n) {
        void *block = nullptr;
        if (n < 0 || n > (int64_t)1 << 48 || posix_memalign(&block, 64, sizeof(Block) + n * sizeof(T))) {
            failed = true;
            return nullptr;
        }
        Block *taken = (Block *)block;
        taken->next = last;
        last = taken;
        return (T *)(taken + 1);
    }

    __attribute__((noinline)) double *doubles(int64_t n) { return take<double>(n); }
    __attribute__((noinline)) double *zeros(int64_t n) {
        double *taken = doubles(n);
        for (int64_t k = 0; taken && k < n; k++) taken[k] = 0.0;
        return taken;
    }
    int64_t *integers(int64_t n) { return take<int64_t>(n); }
};
