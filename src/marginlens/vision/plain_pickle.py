"""Pickles that may hold plain data only: everything that could run code, or take the memory or the time of the machine, is refused."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from marginlens.errors import InputError, reject

_EXPECTED = "a pickle of dicts, lists, bytes, text, numbers and plain arrays alone"
_KINDS = "biuf"  # kinds of numbers that an array may hold
_LARGEST_KEY = 2**60  # whole numbers below it have hashes of their own, so that no file can make a dict slow
_OPCODES = (  # what protocols 0 to 4 write for plain data; not those for classes, sets, extensions, buffers and things outside the file
    *(pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.POP, pickle.POP_MARK, pickle.DUP),
    *(pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE, pickle.INT, pickle.BININT, pickle.BININT1, pickle.BININT2),
    *(pickle.LONG, pickle.LONG1, pickle.LONG4, pickle.FLOAT, pickle.BINFLOAT),
    *(
        pickle.STRING,
        pickle.BINSTRING,
        pickle.SHORT_BINSTRING,
        pickle.BINBYTES,
        pickle.SHORT_BINBYTES,
        pickle.BINBYTES8,
    ),
    *(pickle.UNICODE, pickle.BINUNICODE, pickle.SHORT_BINUNICODE, pickle.BINUNICODE8),
    *(pickle.TUPLE, pickle.EMPTY_TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3),
    *(
        pickle.EMPTY_LIST,
        pickle.LIST,
        pickle.APPEND,
        pickle.APPENDS,
        pickle.EMPTY_DICT,
        pickle.SETITEM,
        pickle.SETITEMS,
    ),
    *(pickle.GET, pickle.BINGET, pickle.LONG_BINGET, pickle.PUT, pickle.BINPUT, pickle.LONG_BINPUT, pickle.MEMOIZE),
    *(pickle.GLOBAL, pickle.STACK_GLOBAL, pickle.REDUCE, pickle.BUILD, pickle.DICT),
)


def read_plain_pickle(place: Path, argument: str) -> Any:
    """What a pickle file holds, where that is dicts, lists, tuples, bytes, text, numbers and NumPy arrays of plain numbers.

    A pickle is a small program that may call anything by name. Here the only names that it may use are stand-ins for how NumPy writes an
    array, which check what they are given; any other name is refused, and nothing of it is imported or called. What comes out holds no
    more values than the file has bytes, however often the file names one of them.
    """
    try:
        content = place.read_bytes()
        found = _PlainUnpickler(content).load()
        _count(found, {}, len(content))
        return _as_arrays(found)
    except InputError:
        raise
    except _Refused as problem:
        raise reject(argument, _EXPECTED, f"{str(place)!r}, which asks for {problem}") from problem
    except OSError as problem:
        raise reject(argument, _EXPECTED, f"{str(place)!r} ({problem.strerror or problem})") from problem
    except Exception as problem:  # a damaged pickle may fail in any way
        raise reject(argument, _EXPECTED, f"{str(place)!r}, which cannot be read") from problem


class _Refused(Exception):
    """What plain data does not need."""


class _Budget:
    """How many bytes the stand-ins may still copy: a file of plain data names each of its bytes once or, in protocol 2, twice."""

    def __init__(self, content: bytes) -> None:
        self.left = 2 * len(content)

    def take(self, n_bytes: int) -> None:
        self.left -= n_bytes
        if self.left < 0:
            raise _Refused("more bytes than it has")


class _PlainType:
    """Stands for a NumPy dtype of plain numbers."""

    def __init__(self, code: Any, *flags: Any) -> None:
        if not isinstance(code, bytes | str) or len(code) > 8:
            raise _Refused("an array of another dtype than numbers")
        name = code.decode("ascii") if isinstance(code, bytes) else code
        kind = np.dtype(name)
        if kind.kind not in _KINDS:
            raise _Refused(f"an array of dtype {name}")
        self.dtype = kind

    def fill(self, state: Any) -> None:
        order: Any = state[1].decode("ascii") if isinstance(state[1], bytes) else state[1]
        if any(one is not None for one in state[2:5]):
            raise _Refused("an array of structures")
        self.dtype = self.dtype.newbyteorder(order)


class _PlainArray:
    """Stands for a NumPy array while it is read."""

    values: Any = None

    def __init__(self, budget: _Budget) -> None:
        self.budget = budget

    def fill(self, state: Any) -> None:
        _, shape, kind, by_column, content = state
        if not isinstance(kind, _PlainType) or not isinstance(content, bytes):
            raise _Refused("an array of objects")
        self.budget.take(len(content))
        flat = np.frombuffer(content, dtype=kind.dtype)
        self.values = flat.reshape(tuple(shape), order="F" if by_column is True else "C").copy()


class _Name:
    """Stands for a name that a pickle may use: what calling it makes, and nothing that could be changed."""

    __slots__ = ("make",)

    def __init__(self, make: Callable[..., Any]) -> None:
        self.make = make


def _nothing(*arguments: Any) -> Any:
    """Stands for calling numpy.ndarray, which no pickle of an array does."""
    raise _Refused("numpy.ndarray without numbers")


def _number(kind: Any, content: Any) -> Any:
    """Stands for NumPy's maker of single numbers."""
    if not isinstance(kind, _PlainType) or not isinstance(content, bytes) or len(content) != kind.dtype.itemsize:
        raise _Refused("a number that is an object")
    return np.frombuffer(content, dtype=kind.dtype)[0]


_NUMPY = ("numpy.core.multiarray", "numpy._core.multiarray")


class _PlainUnpickler(pickle._Unpickler):
    """An unpickler that knows no name but stand-ins and no opcode but those of plain data.

    It is the one written in Python: the compiled one sets aside memory for whatever number of memoised values a file claims.
    """

    dispatch: ClassVar[dict[int, Any]] = {code[0]: pickle._Unpickler.dispatch[code[0]] for code in _OPCODES}
    stack: list[Any]

    def __init__(self, content: bytes) -> None:
        super().__init__(BytesIO(content), encoding="bytes")
        self.budget = _Budget(content)
        arrays = _Name(lambda *arguments: _PlainArray(self.budget))
        self.names = {
            **{(module, "_reconstruct"): arrays for module in _NUMPY},
            **{(module, "scalar"): _Name(_number) for module in _NUMPY},
            ("numpy", "ndarray"): _Name(_nothing),
            ("numpy", "dtype"): _Name(_PlainType),
            ("_codecs", "encode"): _Name(self.latin_bytes),
        }

    def latin_bytes(self, text: Any, encoding: Any = "latin1") -> bytes:
        """Stands for how protocol 2 writes bytes."""
        if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
            raise _Refused("another encoding than latin1")
        self.budget.take(len(text))
        return text.encode("latin1")

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self.names[module, name]
        except (KeyError, TypeError):
            raise _Refused(f"{module}.{name}"[:80]) from None

    # ---- opcodes that call, fill and hash what the file names

    def plain_reduce(self) -> None:
        arguments, name = self.stack.pop(), self.stack[-1]
        if not isinstance(name, _Name) or not isinstance(arguments, tuple):
            raise _Refused("a call of something that is no name")
        self.stack[-1] = name.make(*arguments)

    def plain_build(self) -> None:
        state, made = self.stack.pop(), self.stack[-1]
        if not isinstance(made, _PlainType | _PlainArray) or not isinstance(state, tuple):
            raise _Refused("a change of something that is no array")
        made.fill(state)

    def plain_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.put([key, value])

    def plain_items(self) -> None:
        items = self.pop_mark()  # type: ignore[attr-defined]  # not in the stubs
        self.put(items)

    def plain_dict(self) -> None:
        items = self.pop_mark()  # type: ignore[attr-defined]  # not in the stubs
        self.stack.append({})
        self.put(items)

    def put(self, items: Sequence[Any]) -> None:
        filled = self.stack[-1]
        if not isinstance(filled, dict) or len(items) % 2:
            raise _Refused("an entry of something that is no dict")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not (isinstance(key, str | bytes) or (isinstance(key, int) and abs(key) < _LARGEST_KEY)):
                raise _Refused("a dict with other keys than text, bytes and whole numbers")
            filled[key] = value

    dispatch |= {
        pickle.REDUCE[0]: plain_reduce,
        pickle.BUILD[0]: plain_build,
        pickle.SETITEM[0]: plain_item,
        pickle.SETITEMS[0]: plain_items,
        pickle.DICT[0]: plain_dict,
    }


def _count(value: Any, known: dict[int, int], most: int) -> int:
    """How many values there are when each is counted wherever it is named; one that holds itself has no end, and is refused."""
    if not isinstance(value, dict | list | tuple):
        return 1
    if id(value) in known:
        if known[id(value)] < 0:
            raise _Refused("a value that holds itself")
        return known[id(value)]
    known[id(value)] = -1
    total = 1 + sum(_count(one, known, most) for one in (value.values() if isinstance(value, dict) else value))
    if total > most:
        raise _Refused("more values than it has bytes")
    known[id(value)] = total
    return total


def _as_arrays(value: Any) -> Any:
    """The value with arrays in the place of their stand-ins; anything but plain data is refused."""
    if isinstance(value, _PlainArray) and value.values is not None:
        return value.values
    if isinstance(value, dict):
        return {key: _as_arrays(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_as_arrays(one) for one in value)
    if value is None or isinstance(value, bytes | str | bool | int | float | np.generic):
        return value
    raise _Refused("a name or a type in the place of data")
