"""Images from files: one .npz, and CIFAR-10's binary batches."""

import re

import numpy as np
import pytest

from experiments.vision.images import CIFAR10, read_images, summary_of
from refusals import refused


def colours(n, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8), rng.integers(0, 10, n)


def rows(x):
    return x.transpose(0, 3, 1, 2).reshape(len(x), -1)  # CIFAR-10's own order: one channel after the other


@pytest.fixture
def parts():
    return (*colours(6), *colours(4, seed=1))


def same(found, parts):
    x_train, y_train, x_test, y_test = parts
    assert np.array_equal(found.x_train, x_train)
    assert np.array_equal(found.y_train, y_train)
    assert np.array_equal(found.x_test, x_test)
    assert np.array_equal(found.y_test, y_test)
    assert found.classes == CIFAR10


def test_one_file_of_arrays_is_read(tmp_path, parts):
    np.savez(tmp_path / "c.npz", **dict(zip(("x_train", "y_train", "x_test", "y_test"), parts, strict=True)))
    found = read_images(tmp_path / "c.npz")
    same(found, parts)
    assert re.findall(r"\d+", summary_of(found)) == ["6", "4", "32", "32", "10"]


def test_binary_batches_are_read(tmp_path, parts):
    x_train, y_train, x_test, y_test = parts
    for name, x, y in (
        ("data_batch_1", x_train[:2], y_train[:2]),
        ("data_batch_3", x_train[2:], y_train[2:]),
        ("test_batch", x_test, y_test),
    ):
        np.hstack([y[:, None].astype(np.uint8), rows(x)]).tofile(tmp_path / f"{name}.bin")
    same(read_images(tmp_path), parts)
    (tmp_path / "data_batch_1.bin").write_bytes(b"1234")
    with refused("data"):
        read_images(tmp_path)


# ---- what cannot be used


@pytest.mark.parametrize(
    ("argument", "change"),
    [
        ("data", {"x_test": None}),
        ("x_train", {"x_train": np.zeros((6, 32, 32, 3))}),
        ("x_train", {"x_train": np.zeros((6, 32, 32, 2), np.uint8)}),
        ("x_test", {"x_test": np.zeros((4, 16, 16, 3), np.uint8)}),
        ("y_train", {"y_train": np.zeros(5, int)}),
        ("y_test", {"y_test": np.full(4, -1)}),
        ("y_train", {"y_test": np.full(4, 999)}),
        ("data", {"y_train": np.array([{}] * 6, dtype=object)}),
    ],
)
def test_arrays_that_are_not_images_are_refused(tmp_path, parts, argument, change):
    arrays = {**dict(zip(("x_train", "y_train", "x_test", "y_test"), parts, strict=True)), **change}
    np.savez(tmp_path / "c.npz", **{name: one for name, one in arrays.items() if one is not None})
    with refused(argument):
        read_images(tmp_path / "c.npz")
