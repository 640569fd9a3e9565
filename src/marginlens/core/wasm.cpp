// Memory where there is no C library, in WebAssembly: a stack that grows upwards and is cut back by the caller after every call.
#ifdef __wasm__
#include "abi/abi.h"

constexpr unsigned long PAGE = 65536, ALIGNED = 64;
extern unsigned char __heap_base;  // of the linker
static unsigned long top = 0;

// The address of `size` bytes, 0 where there are no more.
extern "C" unsigned long allocate(unsigned long size) {
    const unsigned long first = ((top ? top : (unsigned long)&__heap_base) + ALIGNED - 1) / ALIGNED * ALIGNED;
    const unsigned long pages = (first + size + PAGE - 1) / PAGE, known = __builtin_wasm_memory_size(0);
    if (first + size < first || (pages > known && __builtin_wasm_memory_grow(0, pages - known) == (unsigned long)-1)) return 0;
    top = first + size;
    return first;
}

// Give back all memory from an address on.
extern "C" void release(unsigned long address) { top = address; }

extern "C" int posix_memalign(void **out, unsigned long, unsigned long size) {
    *out = (void *)allocate(size);
    return !*out;
}

extern "C" void free(void *) {}  // `release` gives it back
#endif
