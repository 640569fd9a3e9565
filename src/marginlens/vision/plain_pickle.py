"""Pickles that may hold plain data only: everything that could run code is refused before it is made."""

from __future__ import annotations

import pickle
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from marginlens.errors import InputError, reject

_EXPECTED = "a pickle of dicts, lists, bytes, text, numbers and plain arrays alone"
_KINDS = "biuf"  # kinds of numbers that an array may hold


def read_plain_pickle(place: Path, argument: str) -> Any:
    """What a pickle file holds, where that is dicts, lists, tuples, bytes, text, numbers and NumPy arrays of plain numbers.

    A pickle is a small program that may call anything by name. Here the only names that it may use are stand-ins for how NumPy writes an
    array, which check what they are given; any other name is refused, and nothing of it is imported or called.
    """
    try:
        content = place.read_bytes()
        return _as_arrays(_PlainUnpickler(BytesIO(content), encoding="bytes").load())
    except InputError:
        raise
    except _Refused as problem:
        raise reject(argument, _EXPECTED, f"{str(place)!r}, which asks for {problem}") from problem
    except OSError as problem:
        raise reject(argument, _EXPECTED, f"{str(place)!r} ({problem.strerror or problem})") from problem
    except Exception as problem:  # a damaged pickle may fail in any way
        raise reject(argument, _EXPECTED, f"{str(place)!r}, which cannot be read") from problem


class _Refused(Exception):
    """A name that plain data does not need."""


class _PlainType:
    """Stands for a NumPy dtype of plain numbers."""

    def __init__(self, code: Any, *flags: Any) -> None:
        name = code.decode("ascii") if isinstance(code, bytes) else str(code)
        kind = np.dtype(name)
        if kind.kind not in _KINDS:
            raise _Refused(f"an array of dtype {name}")
        self.dtype = kind

    def __setstate__(self, state: Any) -> None:
        order: Any = state[1].decode("ascii") if isinstance(state[1], bytes) else state[1]
        if any(one is not None for one in state[2:5]):
            raise _Refused("an array of structures")
        self.dtype = self.dtype.newbyteorder(order)


class _PlainArray:
    """Stands for a NumPy array while it is read."""

    values: Any = None

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, by_column, content = state
        if not isinstance(kind, _PlainType) or not isinstance(content, bytes):
            raise _Refused("an array of objects")
        flat = np.frombuffer(content, dtype=kind.dtype)
        self.values = flat.reshape(tuple(shape), order="F" if by_column else "C").copy()


def _new_array(*arguments: Any) -> _PlainArray:
    """Stands for NumPy's maker of empty arrays, which `__setstate__` then fills."""
    return _PlainArray()


def _number(kind: Any, content: bytes) -> Any:
    """Stands for NumPy's maker of single numbers."""
    if not isinstance(kind, _PlainType) or not isinstance(content, bytes):
        raise _Refused("a number that is an object")
    return np.frombuffer(content, dtype=kind.dtype)[0]


def _latin_bytes(text: Any, encoding: Any = "latin1") -> bytes:
    """Stands for how protocol 2 writes bytes."""
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise _Refused("another encoding than latin1")
    return text.encode("latin1")


_NUMPY = ("numpy.core.multiarray", "numpy._core.multiarray")
_ALLOWED: dict[tuple[str, str], Any] = {
    **{(module, "_reconstruct"): _new_array for module in _NUMPY},
    **{(module, "scalar"): _number for module in _NUMPY},
    ("numpy", "ndarray"): _PlainArray,
    ("numpy", "dtype"): _PlainType,
    ("_codecs", "encode"): _latin_bytes,
}


class _PlainUnpickler(pickle.Unpickler):
    """An unpickler that knows no name but the stand-ins above."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise _Refused(f"{module}.{name}") from None

    def persistent_load(self, key: Any) -> Any:
        raise _Refused("something outside the file")


def _as_arrays(value: Any) -> Any:
    """The value with arrays in the place of their stand-ins; anything but plain data is refused."""
    if isinstance(value, _PlainArray) and value.values is not None:
        return value.values
    if isinstance(value, dict):
        return {_as_arrays(key): _as_arrays(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_as_arrays(one) for one in value)
    if value is None or isinstance(value, bytes | str | bool | int | float | np.generic):
        return value
    raise _Refused(f"a {type(value).__name__}")
