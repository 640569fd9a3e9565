"""Files of arrays: what is written comes back, and every kind of damage is noticed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from marginlens.runtime.array_file import DamagedFile, read_arrays, write_arrays

ARRAYS = {
    "ids": np.arange(7, dtype=np.uint16),
    "none": np.empty((0, 2), dtype=np.int64),
    "pairs": np.arange(12.0).reshape(6, 2)[::2],
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write_arrays(tmp_path / "arrays", {"name": "é", "numbers": [1, 2]}, ARRAYS, "out")
    return tmp_path / "arrays"


def test_arrays_and_facts_come_back(place: Path) -> None:
    file = read_arrays(place)
    file.verify()
    assert file.facts == {"name": "é", "numbers": [1, 2]}
    for name, array in ARRAYS.items():
        assert file.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(file.arrays[name], array)
    assert [entry.name for entry in place.parent.iterdir()] == ["arrays"]


def test_every_changed_byte_is_noticed_unless_nobody_reads_it(place: Path) -> None:
    whole = place.read_bytes()
    unnoticed = []
    for k in range(len(whole)):
        place.write_bytes(whole[:k] + bytes([whole[k] ^ 1]) + whole[k + 1 :])
        try:
            read_arrays(place).verify()
            unnoticed.append(k)
        except DamagedFile:
            pass
    assert {whole[k] for k in unnoticed} <= {0, 32}  # what fills the gaps between arrays


def test_truncated_longer_and_other_files_are_noticed(place: Path) -> None:
    whole = place.read_bytes()
    for content in (*(whole[:length] for length in (0, 5, 30, 150, -1)), whole + b"more", bytes(1000)):
        place.write_bytes(content)
        with pytest.raises(DamagedFile):
            read_arrays(place)
    with pytest.raises(DamagedFile):
        read_arrays(place.parent / "missing")
