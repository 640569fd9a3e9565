"""Signatures of the compiled functions, read from their declarations, and checks of every argument before a call.

A declaration in `abi/*.cpp` has one parameter per line with a comment: `(n, d)` is the shape of an array, `in 0..n` bounds a
number or all entries of an array, and `or none` allows None instead of the array. The sizes in shapes are parameters of the
function too, but they are taken from the arrays: a caller passes everything else, in the order of the declaration or by name. A
struct of numbers is a structured array without axes, whose fields are those that its header defines: `struct_type` makes its
dtype.
"""

from __future__ import annotations

import ast
import ctypes
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from marginlens.errors import InputError

FOLDER = Path(__file__).parent
# The codes of arena.h.
OUT_OF_MEMORY, WRONG_SIZE = -1000, -1001

_TYPES = {
    "double": np.float64,
    "float": np.float32,
    "int64_t": np.int64,
    "int32_t": np.int32,
    "uint64_t": np.uint64,
    "uint32_t": np.uint32,
    "uint8_t": np.uint8,
    "bool": np.bool_,
}
_FUNCTION = re.compile(r"^EXPORT (IN_PRECISION\()?(\w+)\)?\((.*?)\) \{$", re.DOTALL | re.MULTILINE)
# Functions IN_PRECISION have names that end in one of these.
_PRECISIONS = {"_float32": "float", "_float64": "double"}
_STRUCT, _FIELDS = re.compile(r"^struct (\w+) \{\n(.*?)^\};", re.DOTALL | re.MULTILINE), re.compile(r"(\w+) ([\w, ]+);")
_PARAMETER = re.compile(r"(const )?(\w+) (\*?)(\w+)$")
_SHAPE, _BOUNDS = re.compile(r"\(([^)]*)\)"), re.compile(r"\bin (\S*)\.\.(\S*)")
_OPERATORS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}

_BUFFER = ctypes.c_char * 0
# Kinds of calls that are remembered for each function.
_MAX_KINDS = 64

Size = Callable[[dict[str, int]], int]


@dataclass(frozen=True)
class Parameter:
    """A parameter: its type, and for an array the sizes of its axes, as names or as sums and products of sizes."""

    name: str
    kind: Any
    is_array: bool
    is_written: bool
    is_optional: bool
    shape: tuple[str, ...]
    low: str
    high: str

    @cached_property
    def dtype(self) -> Any:
        """The dtype of NumPy arrays for this parameter."""
        return np.dtype(self.kind)

    @cached_property
    def sizes(self) -> tuple[Size, ...]:
        """The size of each axis, from the sizes that are known."""
        return tuple(_size(axis) for axis in self.shape)

    @cached_property
    def bounds(self) -> tuple[Size | None, Size | None]:
        """The smallest and the largest value allowed, from the sizes that are known."""
        return _size(self.low) if self.low else None, _size(self.high) if self.high else None

    def checked(self, given: Any, known: dict[str, int]) -> Any:
        """Return the array or number as the function gets it, and fill `known` with the sizes that its shape tells."""
        if not self.is_array:
            if self.kind is np.float64:
                return float(given)
            known[self.name] = operator.index(given)
            limits = np.iinfo(self.kind)
            # ctypes would cut the value off.
            if not limits.min <= known[self.name] <= limits.max:
                raise InputError(self.name, f"a whole number of {limits.min}..{limits.max}", given)
            return known[self.name]
        if given is None and self.is_optional:
            return None
        if not isinstance(given, np.ndarray) or given.dtype != self.dtype or given.ndim != len(self.shape):
            raise self._refusal(_described(given))
        for axis, length in zip(self.shape, given.shape, strict=True):
            known.setdefault(axis, length)
        flags = given.flags
        if self.is_written:
            # The array is contiguous, aligned and writable.
            if not flags.carray:
                wrong = "not contiguous" if flags.writeable else "read-only"
                raise self._refusal(f"{_described(given)} that is {wrong}")
        elif not (flags.c_contiguous and flags.aligned):
            return np.ascontiguousarray(given) if flags.aligned else given.copy()
        return given

    def check_sizes(self, given: Any, known: dict[str, int]) -> None:
        """Raise for an array of another shape, and for numbers out of bounds."""
        if self.is_array and given is not None and given.shape != tuple(size(known) for size in self.sizes):
            raise self._refusal(_described(given), known)
        if any(self.bounds):
            self.check_bounds(given, known)

    def check_bounds(self, given: Any, known: dict[str, int]) -> None:
        """Raise for numbers out of bounds."""
        low, high = self.bounds
        if given is None or (self.is_array and not given.size):
            return
        least, most = (int(given.min()), int(given.max())) if self.is_array else (given, given)
        if (low and least < low(known)) or (high and most > high(known)):
            limits = f"{low(known) if low else ''}..{high(known) if high else ''}"
            raise InputError(self.name, f"whole numbers in {limits}", f"{least}..{most}")

    def _refusal(self, got: str, known: dict[str, int] | None = None) -> Exception:
        axes = self.shape if known is None else tuple(str(size(known)) for size in self.sizes)
        what = "a writable, contiguous array" if self.is_written else "an array"
        return InputError(self.name, f"{what} of {self.dtype.name} with shape ({', '.join(axes)})", got)


class CoreFunction:
    """A compiled function. It is called with all arguments except the sizes, and returns a whole number."""

    def __init__(self, name: str, parameters: tuple[Parameter, ...]) -> None:
        self.name, self.parameters = name, parameters
        axes = {axis for parameter in parameters for axis in parameter.shape}
        self.given = tuple(parameter for parameter in parameters if parameter.name not in axes)
        if parameters[: len(self.given)] != self.given:
            raise SyntaxError(f"the sizes of the core's function {name} must be its last parameters")
        self.sizes = tuple(parameter.name for parameter in parameters[len(self.given) :])
        self.bounded_arrays = tuple((k, one) for k, one in enumerate(self.given) if one.is_array and any(one.bounds))
        # Sizes of calls whose arrays needed no copy, by kinds.
        self._known: dict[tuple[Any, ...], dict[str, int]] = {}

    @cached_property
    def _call(self) -> Any:
        from marginlens.core.library import loaded

        function = getattr(loaded(), self.name)
        function.argtypes = [
            ctypes.c_void_p if parameter.is_array else np.ctypeslib.as_ctypes_type(parameter.kind)
            for parameter in self.parameters
        ]
        function.restype = ctypes.c_int64
        return function

    def __call__(self, *arguments: Any, **named: Any) -> int:
        if named:
            arguments = self._in_order(arguments, named)
        if len(arguments) != len(self.given):
            raise TypeError(f"{self.name} takes {len(self.given)} arguments; got {len(arguments)}")
        kinds = tuple([_kind(given) for given in arguments])
        known, values = self._known.get(kinds), arguments
        if known is None:
            values, known = self._checked(arguments, kinds)
        else:
            for k, parameter in self.bounded_arrays:
                parameter.check_bounds(values[k], known)
        return self._result(self._passed(values, known), known)

    def _in_order(self, arguments: tuple[object, ...], named: Mapping[str, object]) -> tuple[Any, ...]:
        """Return the arguments in the order of the declaration; the last ones may be given by name."""
        names = [parameter.name for parameter in self.given[len(arguments) :]]
        if set(named) != set(names):
            raise TypeError(f"{self.name} takes the arguments {', '.join(names)}; got {', '.join(named)}")
        return (*arguments, *map(named.__getitem__, names))

    def bound(self, *arguments: Any, **named: Any) -> Callable[[], int]:
        """Bind these arguments, checked once, for thousands of calls on arrays that change in place.

        No array may need a copy or have bounds on its entries.
        """
        arguments = self._in_order(arguments, named) if named else arguments
        values, known = self._checked(arguments, tuple(map(_kind, arguments)))
        if self.bounded_arrays or any(value is not given for value, given in zip(values, arguments, strict=True)):
            raise TypeError(
                f"{self.name} can be bound to arrays of its own types alone, and where entries have no bounds"
            )
        passed = self._passed(values, known)

        # An address alone does not keep its array alive.
        def call(alive: tuple[object, ...] = values) -> int:
            return self._result(passed, known)

        return call

    def _passed(self, values: tuple[object, ...], known: dict[str, int]) -> list[Any]:
        """Return the values that the compiled function gets."""
        buffers = [_buffer(value) if isinstance(value, np.ndarray) else value for value in values]
        return [*buffers, *[known[name] for name in self.sizes]]

    def _result(self, passed: list[object], known: dict[str, int]) -> int:
        result = int(self._call(*passed))
        if result == OUT_OF_MEMORY:
            raise MemoryError(f"not enough memory for {self.name}")
        if result == WRONG_SIZE:
            raise ValueError(f"{self.name} was called with arrays whose sizes do not fit each other: {known}")
        return result

    def _checked(
        self, arguments: tuple[object, ...], kinds: tuple[object, ...]
    ) -> tuple[tuple[Any, ...], dict[str, int]]:
        """Return the arguments as the function gets them, and all sizes; if nothing is copied, calls of these kinds skip the checks."""
        known: dict[str, int] = {}
        values = tuple([one.checked(given, known) for one, given in zip(self.given, arguments, strict=True)])
        for parameter, value in zip(self.given, values, strict=True):
            parameter.check_sizes(value, known)
        for name in self.sizes:
            # Only arrays that are None have this axis.
            known.setdefault(name, 0)
        if all(value is given for value, given in zip(values, arguments, strict=True)):
            if len(self._known) >= _MAX_KINDS:
                self._known.clear()
            self._known[kinds] = known
        return values, known

    def __repr__(self) -> str:
        return f"<compiled function {self.name}({', '.join(parameter.name for parameter in self.given)})>"


@cache
def core_functions() -> dict[str, CoreFunction]:
    """Return all functions that the core declares, by name."""
    found = {}
    for file in sorted((FOLDER / "abi").glob("*.cpp")):
        for in_precision, stem, declared in _FUNCTION.findall(file.read_text(encoding="utf-8")):
            for ending, real in _PRECISIONS.items() if in_precision else [("", "")]:
                name = stem + ending
                found[name] = CoreFunction(name, tuple(_parameters(declared.replace("Real", real))))
    return found


@cache
def _structs() -> dict[str, str]:
    """Return the text between the braces of every struct of the core, by name."""
    texts = [file.read_text(encoding="utf-8") for file in sorted(FOLDER.glob("*.h"))]
    return dict(pair for text in texts for pair in _STRUCT.findall(text))


@cache
def struct_type(name: str) -> np.dtype[Any]:
    """Return the dtype of a struct of numbers, as its header defines it."""
    fields = [
        (field.strip(), _TYPES[kind]) for kind, names in _FIELDS.findall(_structs()[name]) for field in names.split(",")
    ]
    return np.dtype(fields, align=True)


def _parameters(declared: str) -> list[Parameter]:
    parameters = []
    for line in declared.strip().splitlines():
        code, _, comment = line.partition("//")
        for text in filter(None, (part.strip() for part in code.split(","))):
            matched = _PARAMETER.fullmatch(text)
            if matched is None:
                raise SyntaxError(f"a parameter of the core that cannot be read: {text!r}")
            constant, kind, star, name = matched.groups()
            shape, bounds = _SHAPE.search(comment), _BOUNDS.search(comment)
            axes = tuple(axis.strip() for axis in shape[1].split(",") if axis.strip()) if star and shape else ()
            low, high = bounds.groups() if bounds else ("", "")
            parameters.append(
                Parameter(
                    name,
                    _TYPES.get(kind) or struct_type(kind),
                    bool(star),
                    bool(star and not constant),
                    "or none" in comment,
                    axes,
                    low,
                    high,
                )
            )
    return parameters


def _size(text: str) -> Size:
    """Evaluate a size: a name, a number, or a sum, difference or product of such."""
    return _evaluation(ast.parse(text, mode="eval").body)


def _evaluation(node: ast.AST) -> Size:
    match node:
        case ast.Constant(value=int(value)):
            return lambda known: value
        case ast.Name(id=name):
            return lambda known: known[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            negated = _evaluation(operand)
            return lambda known: -negated(known)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            combine, first, second = _OPERATORS[type(op)], _evaluation(left), _evaluation(right)
            return lambda known: combine(first(known), second(known))
    raise SyntaxError(f"a size of the core that cannot be read: {ast.unparse(node)!r}")


def _kind(given: object) -> Any:
    """Return what the checks of an argument depend on, apart from the entries of an array."""
    if isinstance(given, np.ndarray):
        return given.shape, given.dtype, given.flags.num
    return given if isinstance(given, int) else type(given)


def _buffer(array: Any) -> Any:
    """Return what ctypes takes as the address of an array."""
    if array.flags.writeable:
        # This is several times quicker than asking for the address as a number.
        return _BUFFER.from_buffer(array)
    return array.__array_interface__["data"][0]


def _described(given: object) -> str:
    if isinstance(given, np.ndarray):
        return f"an array of {given.dtype} with shape {given.shape}"
    return type(given).__name__
