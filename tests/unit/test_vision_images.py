"""Images from files: CIFAR-10 in three forms, and pickles that hold more than data."""

import datetime
import pickle

import numpy as np
import pytest

from marginlens.errors import InputError
from marginlens.vision.image_files import read_images
from marginlens.vision.images import CIFAR10, LabelledImages, digit_images
from marginlens.vision.plain_pickle import read_plain_pickle


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
    assert repr(found) == "LabelledImages(c: 6 images to train on and 4 to test, 32 × 32 in colour, 10 classes)"


@pytest.mark.parametrize("protocol", [2, 4])
def test_python_batches_are_read_in_the_order_of_their_numbers(tmp_path, parts, protocol):
    x_train, y_train, x_test, y_test = parts
    for name, x, y in (
        ("data_batch_1", x_train[:2], y_train[:2]),
        ("data_batch_2", x_train[2:], y_train[2:]),
        ("test_batch", x_test, y_test),
    ):
        batch = {b"batch_label": b"made up", b"labels": y.tolist(), b"data": rows(x), b"filenames": [b"a.png"] * len(y)}
        (tmp_path / name).write_bytes(pickle.dumps(batch, protocol=protocol))
    same(read_images(tmp_path), parts)


def test_batches_of_python_2_are_read(tmp_path):
    x, y = colours(1)
    content = rows(x).tobytes()
    python_2 = (  # cPickle's protocol 2: byte strings as SHORT_BINSTRING and BINSTRING, arrays by numpy.core.multiarray
        b"\x80\x02}("
        + b"U\x04data"
        + b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        + b"(K\x01K\x01M\x00\x0c\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        + b"\x89T"
        + len(content).to_bytes(4, "little")
        + content
        + b"tb"
        + b"U\x06labels](K"
        + bytes([int(y[0])])
        + b"eu."
    )
    for name in ("data_batch_1", "test_batch"):
        (tmp_path / name).write_bytes(python_2)
    found = read_images(tmp_path)
    assert np.array_equal(found.x_train, x)
    assert found.y_test.tolist() == y.tolist()


def test_binary_batches_are_read(tmp_path, parts):
    x_train, y_train, x_test, y_test = parts
    for name, x, y in (("data_batch_1", x_train, y_train), ("test_batch", x_test, y_test)):
        np.hstack([y[:, None].astype(np.uint8), rows(x)]).tofile(tmp_path / f"{name}.bin")
    same(read_images(tmp_path), parts)
    (tmp_path / "data_batch_1.bin").write_bytes(b"1234")
    with pytest.raises(InputError, match=r"'data' argument must be records of 3073 bytes; got .* of 4 bytes"):
        read_images(tmp_path)


# ---- pickles


class Touches:
    """A pickle that would make a file when it is read."""

    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return (open, (str(self.place), "w"))


@pytest.mark.parametrize("inside", [lambda bad: bad, lambda bad: {b"data": [bad]}])
def test_a_pickle_that_would_run_code_is_refused_and_runs_nothing(tmp_path, inside):
    mark = tmp_path / "made-by-the-pickle"
    (tmp_path / "p").write_bytes(pickle.dumps(inside(Touches(mark))))
    with pytest.raises(InputError, match=r"plain arrays alone; got .*, which asks for (io|_io)[.]open instead"):
        read_plain_pickle(tmp_path / "p", "data")
    assert not mark.exists()


@pytest.mark.parametrize(
    ("value", "asked"),
    [
        (np.array([{}, print], dtype=object), r"builtins.print|__builtin__.print|an array of"),
        (np.array([{}], dtype=object), "an array of dtype O8"),
        (np.zeros(2, dtype=[("a", "i4")]), "an array of"),
        (np.array(["a"]), "an array of dtype U1"),
        (datetime.date(2020, 1, 1), "datetime.date"),
        (np.random.default_rng(0), "numpy.random"),
        (eval, "builtins.eval"),
    ],
)
def test_a_pickle_of_anything_but_plain_data_is_refused(tmp_path, value, asked):
    (tmp_path / "p").write_bytes(pickle.dumps({"data": value}, protocol=4))
    with pytest.raises(InputError, match=f"which asks for .*({asked})"):
        read_plain_pickle(tmp_path / "p", "data")


@pytest.mark.parametrize(
    "content",
    [
        b"cos\nsystem\n(S'true'\ntR.",  # protocol 0: os.system('true')
        b"cbuiltins\ngetattr\n(cnumpy\ndtype\nS'__class__'\ntR.",
        b"cnumpy\ndtype\nS'subclass'\n\x86R.",
        b"Pouter\n.",  # a persistent id
    ],
)
def test_pickles_written_by_hand_are_refused(tmp_path, content):
    (tmp_path / "p").write_bytes(content)
    with pytest.raises(InputError, match="'data' argument must be a pickle of dicts, lists"):
        read_plain_pickle(tmp_path / "p", "data")


def test_stand_ins_themselves_never_come_out(tmp_path):
    (tmp_path / "p").write_bytes(b"cnumpy\nndarray\n.")
    with pytest.raises(InputError, match="asks for a name or a type"):
        read_plain_pickle(tmp_path / "p", "data")


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_plain_data_comes_back_as_it_was(tmp_path, protocol):
    value = {"a": [1, 2.5, "ü", b"\xff", None, True], 3: (np.float64(2.5), np.arange(6.0).reshape(2, 3).T)}
    (tmp_path / "p").write_bytes(pickle.dumps(value, protocol=protocol))
    found = read_plain_pickle(tmp_path / "p", "data")
    assert found["a"] == value["a"]
    assert found[3][0] == 2.5
    assert np.array_equal(found[3][1], value[3][1])


# ---- what cannot be used


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"x_test": None}, "without x_test"),
        ({"x_train": np.zeros((6, 32, 32, 3))}, "'x_train' argument must be bytes of shape .* dtype float64"),
        ({"x_train": np.zeros((6, 32, 32, 2), np.uint8)}, "with 1 or 3 channels"),
        ({"x_test": np.zeros((4, 16, 16, 3), np.uint8)}, r"'x_test' argument must be images of shape \(32, 32, 3\)"),
        ({"y_train": np.zeros(5, int)}, r"'y_train' argument must be 6 whole numbers; got shape \(5,\)"),
        ({"y_test": np.full(4, -1)}, "'y_test' argument must be numbers from 0 to 9; got -1"),
        ({"y_test": np.full(4, 999)}, "'y_train' argument must be labels from 0 to 255"),
        ({"y_train": np.array([{}] * 6, dtype=object)}, "which cannot be read"),
    ],
)
def test_arrays_that_are_no_images_are_refused(tmp_path, parts, change, sentence):
    arrays = {**dict(zip(("x_train", "y_train", "x_test", "y_test"), parts, strict=True)), **change}
    np.savez(tmp_path / "c.npz", **{name: one for name, one in arrays.items() if one is not None})
    with pytest.raises(InputError, match=sentence):
        read_images(tmp_path / "c.npz")


def test_places_without_images_are_refused(tmp_path):
    with pytest.raises(InputError, match="without data_batch_1 and test_batch"):
        read_images(tmp_path)
    with pytest.raises(InputError, match="No such file"):
        read_images(tmp_path / "nothing.npz")
    (tmp_path / "text.npz").write_text("images")
    with pytest.raises(InputError, match="which is neither"):
        read_images(tmp_path / "text.npz")
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps({"data": np.zeros((2, 5), np.uint8), "labels": [0, 1]}))
    (tmp_path / "test_batch").write_bytes(pickle.dumps([1]))
    with pytest.raises(InputError, match="3072 bytes for each label"):
        read_images(tmp_path)


def test_digits_are_scaled_to_bytes_and_split():
    data = digit_images()
    assert (data.x_train.shape, data.x_test.shape) == ((1437, 8, 8, 1), (360, 8, 8, 1))
    assert (data.x_train.min(), data.x_train.max()) == (0, 255)
    mean, spread = data.channel_statistics()
    scaled = (data.x_train / 255.0 - mean) / spread
    assert scaled.mean() == pytest.approx(0.0, abs=1e-12)
    assert scaled.std() == pytest.approx(1.0, abs=1e-12)


def test_any_change_changes_the_fingerprint(parts):
    one = LabelledImages("a", *parts, classes=CIFAR10)
    again = LabelledImages("b", *(part.copy() for part in parts), classes=CIFAR10)
    assert one.fingerprint == again.fingerprint
    again.x_test[0, 0, 0, 0] ^= 1
    assert one.fingerprint != again.fingerprint
