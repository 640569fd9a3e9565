"""Files of named arrays with a checksum: written aside, flushed to the disk, renamed into place, and mapped when they are read."""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from marginlens.errors import reject
from marginlens.runtime.files import durable_file, unusable

_MAGIC = b"MLARRAYS"
_HEAD = struct.Struct("<8sQI")  # magic, bytes of the description, checksum of the description
_ALIGNMENT = 64


class DamagedFile(Exception):
    """A file that is not what was written; the message says why."""


@dataclass(frozen=True, eq=False)
class ArrayFile:
    """What a file of arrays holds.

    Attributes:
        path: the file. facts: what was written beside the arrays. arrays: by name, mapped from the file and not to be written to.
        checksum: of the bytes of all arrays.
    """

    path: Path
    facts: Mapping[str, Any]
    arrays: Mapping[str, npt.NDArray[Any]]
    checksum: int

    def verify(self) -> None:
        """Read every byte, and raise `DamagedFile` where the checksum is not that of the file."""
        if _checksum(self.arrays) != self.checksum:
            raise DamagedFile("its checksum is not the one it was written with")


def write_arrays(place: Path, facts: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]], argument: str) -> None:
    """Write arrays and JSON facts to a file that appears whole or not at all, also when the machine stops."""
    parts = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    offset, listed = 0, []
    for name, array in parts.items():
        listed.append([name, array.dtype.str, list(array.shape), offset])
        offset += _padded(array.nbytes)
    description = {"facts": dict(facts), "arrays": listed, "bytes": offset, "checksum": _checksum(parts)}
    text = json.dumps(description).encode()
    try:
        with durable_file(place) as file:
            file.write(_HEAD.pack(_MAGIC, len(text), zlib.crc32(text)))
            file.write(text.ljust(_padded(_HEAD.size + len(text)) - _HEAD.size))
            for array in parts.values():
                file.write(array.data.cast("B") if array.size else b"")
                file.write(bytes(_padded(array.nbytes) - array.nbytes))
    except OSError as problem:
        raise reject(argument, "a file that can be written", unusable(place, problem)) from problem


def read_arrays(path: Path) -> ArrayFile:
    """The arrays of a file, mapped; `DamagedFile` where its length or description is not what was written. `verify` reads the rest."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD.size)
            if len(head) < _HEAD.size:
                raise DamagedFile("it is truncated")
            magic, length, checksum = _HEAD.unpack(head)
            size = os.fstat(file.fileno()).st_size
            text = file.read(min(length, size))
    except OSError as problem:
        raise DamagedFile(problem.strerror or str(problem)) from problem
    if magic != _MAGIC:
        raise DamagedFile("it is no file of arrays")
    if len(text) < length or zlib.crc32(text) != checksum:
        raise DamagedFile("its description is not the one it was written with")
    description = json.loads(text)
    begin = _padded(_HEAD.size + length)
    if size != begin + description["bytes"]:
        raise DamagedFile("it is truncated" if size < begin + description["bytes"] else "it is too long")
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name, kind, shape, offset in description["arrays"]:
        if 0 in shape:
            arrays[name] = np.empty(shape, dtype=kind)
        else:
            arrays[name] = np.memmap(path, dtype=kind, mode="r", offset=begin + offset, shape=tuple(shape))
    return ArrayFile(path, description["facts"], arrays, description["checksum"])


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _checksum(arrays: Mapping[str, npt.NDArray[Any]]) -> int:
    value = 0
    for array in arrays.values():
        value = zlib.crc32(array.data.cast("B"), value) if array.size else value
    return value
