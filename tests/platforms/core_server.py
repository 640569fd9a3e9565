"""The core of another platform, called from here: a small program that an emulator runs loads its library, and reads calls from stdin.

The program is generated from the declarations of the core's functions, and compiled by ziglang. A call is the number of the function,
then each argument: 8 bytes of a number, or the count of bytes of an array and these bytes, -1 for none. The answer is the result, then
every array.
"""

from __future__ import annotations

import ctypes
import struct
import subprocess
import threading
from contextlib import contextmanager

from marginlens.core import build, signatures

C_TYPES = {"float64": "double", "float32": "float", "bool": "bool", "uint8": "uint8_t"}
PROGRAM = r"""
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef _WIN32
#include <fcntl.h>
#include <io.h>
#include <windows.h>
static void *symbol(const char *name, const char *file) { return (void *)GetProcAddress(LoadLibraryA(file), name); }
static void prepare() { _setmode(0, _O_BINARY), _setmode(1, _O_BINARY); }
#else
#include <dlfcn.h>
static void *symbol(const char *name, const char *file) { return dlsym(dlopen(file, RTLD_NOW), name); }
static void prepare() {}
#endif

struct Argument {
    void *array;
    int64_t size, whole;
    double real;
};
static Argument given[64];
static int count = 0;

static bool take(void *place, size_t size) { return fread(place, 1, size, stdin) == size; }
static int64_t whole() {
    int64_t value = 0;
    if (!take(&value, 8)) exit(1);
    return value;
}
static double real() {
    double value = 0;
    if (!take(&value, 8)) exit(1);
    return value;
}
static void *array() {
    Argument &one = given[count++];
    one.size = whole();
    one.array = one.size < 0 ? nullptr : malloc(one.size + 64);
    if (one.size > 0 && !take(one.array, one.size)) exit(1);
    return one.array;
}

int main(int, char **words) {
    prepare();
    for (int64_t code = 0; take(&code, 8); fflush(stdout)) {
        count = 0;
        int64_t result = 0;
        switch (code) {
CASES
        }
        fwrite(&result, 8, 1, stdout);
        for (int k = 0; k < count; k++) {
            if (given[k].size > 0) fwrite(given[k].array, 1, given[k].size, stdout);
            free(given[k].array);
        }
    }
}
"""


def _case(number, function):
    """The lines that read the arguments of a function and call it, in the order of its declaration."""
    types, lines, passed = [], [], []
    for k, one in enumerate(function.parameters):
        kind = "void *" if one.is_array else C_TYPES.get(one.dtype.name, f"{one.dtype.name}_t")
        read = "array()" if one.is_array else "real()" if one.dtype.kind == "f" else "whole()"
        lines.append(f"            {kind} a{k} = ({kind}){read};")
        types.append(kind)
        passed.append(f"a{k}")
    call = f'((int64_t (*)({", ".join(types)}))symbol("{function.name}", words[1]))({", ".join(passed)})'
    return "\n".join(
        [f"        case {number}: {{", *lines, f"            result = {call};", "            break;", "        }"]
    )


def compiled(folder, platform):
    """The program for a platform."""
    functions = signatures.core_functions().values()
    source = folder / "core_server.cpp"
    source.write_text(
        PROGRAM.replace("CASES", "\n".join(_case(number, one) for number, one in enumerate(functions))),
        encoding="utf-8",
    )
    made = folder / ("core_server.exe" if platform.startswith("win") else "core_server")
    options = ["-std=c++17", "-O1", "-target", build.PLATFORMS[platform], "-nostdlib++", "-fno-sanitize=all", "-s"]
    subprocess.run([*build.ZIGLANG, *options, str(source), "-o", str(made)], check=True, capture_output=True)
    return made


class Server:
    """The functions of a library, run by the program."""

    def __init__(self, command, folder):
        self.process = subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.lock = threading.Lock()
        self.numbers = {name: number for number, name in enumerate(signatures.core_functions())}
        self.n_calls = 0

    def call(self, function, passed):
        """The result of a function; arrays that it writes are written here."""
        # Threads share arrays, of which each writes its own part: they are read only when it is this thread's turn.
        with self.lock:
            self.n_calls += 1
            arrays, sent = [], [struct.pack("<q", self.numbers[function.name])]
            for one, value in zip(function.parameters, passed, strict=True):
                if not one.is_array:
                    sent.append(struct.pack("<d" if one.dtype.kind == "f" else "<q", value))
                elif value is None:
                    sent.append(struct.pack("<q", -1))
                else:
                    arrays.append((one, value))
                    sent += [struct.pack("<q", value.nbytes), value.tobytes()]
            self.process.stdin.write(b"".join(sent))
            self.process.stdin.flush()
            (result,) = struct.unpack("<q", self._read(8))
            for one, value in arrays:
                answer = self._read(value.nbytes)
                if one.is_written and value.nbytes:
                    ctypes.memmove(value.ctypes.data, answer, value.nbytes)
                assert one.is_written or answer == value.tobytes()
            return result

    def _read(self, size):
        answer = self.process.stdout.read(size)
        if len(answer) < size:
            raise RuntimeError(f"the core's server ended with status {self.process.wait()}")
        return answer


@contextmanager
def called_by(command, folder):
    """Let every function of the core be called in the program that this command starts in a folder."""
    server = Server(command, folder)
    usual = {name: vars(signatures.CoreFunction)[name] for name in ("_passed", "_call")}
    signatures.CoreFunction._passed = lambda self, values, known: [*values, *(known[name] for name in self.sizes)]
    signatures.CoreFunction._call = property(lambda self: lambda *passed: server.call(self, passed))
    try:
        yield server
    finally:
        for name, value in usual.items():
            setattr(signatures.CoreFunction, name, value)
        server.process.kill()
        with server.process:  # which closes its pipes, and waits for its end
            pass
