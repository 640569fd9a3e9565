"""Problems as files: what is written is read back, and whatever is wrong with a file is said in one sentence."""

import json
import pickle
from io import BytesIO

import numpy as np
import pytest

from marginlens.data import TokenDataset, figure_8, gaussian_tokens, read_problem, sphere_tokens, write_problem
from marginlens.errors import InputError
from random_problems import ragged_problem

FORMS = ("npz", "json")
X = np.array([[[0.5, 0.0], [-0.5, 0.0]], [[-1.0, 0.75], [1.0, -0.75]]])
GOOD = {"X": X, "y": np.array([1.0, -1.0]), "v": np.array([0.1, 0.2])}


def ragged_batch(rng):
    problems = [ragged_problem(rng, 3, 4, 5)[0] for _ in range(4)]
    tokens = [[one.X[i, : one.lengths[i]] for i in range(3)] for one in problems]
    return TokenDataset(tokens, [one.y for one in problems]), rng.standard_normal((4, 5))


def shared_lengths(rng):
    """A batch whose problems differ in length but whose inputs do not, and one head for all."""
    tokens = [[rng.standard_normal((length, 2)) for _ in range(2)] for length in (3, 2)]
    return TokenDataset(tokens, np.ones((2, 2))), rng.standard_normal(2)


def second_of(data, v):
    return data[1], v[1]


MAKERS = {
    "one problem with K": lambda rng: figure_8(),
    "one ragged problem": lambda rng: ragged_problem(rng, 4, 5, 3),
    "one ragged problem with K": lambda rng: ragged_problem(rng, 4, 5, 3, d_key=2),
    "one input, one token": lambda rng: (TokenDataset(rng.standard_normal((1, 1, 2)), [1.0]), rng.standard_normal(2)),
    "a batch": lambda rng: sphere_tokens(5, 2, 3, 4, rng),
    "a batch with W": lambda rng: gaussian_tokens(5, 2, 3, 4, rng),
    "a problem of a batch with W": lambda rng: second_of(*gaussian_tokens(3, 2, 3, 4, rng)),
    "a ragged batch": ragged_batch,
    "a batch of one": lambda rng: sphere_tokens(1, 2, 3, 4, rng),
    "a batch of two lengths": shared_lengths,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("maker", MAKERS)
def test_what_is_written_is_read_back_exactly(tmp_path, form, maker):
    data, v = MAKERS[maker](np.random.default_rng(7))
    write_problem(tmp_path / f"problem.{form}", data, v)
    again, head = read_problem(tmp_path / f"problem.{form}")
    assert again.is_batch == data.is_batch
    for name in ("X", "K", "y", "lengths", "mask"):
        np.testing.assert_array_equal(getattr(again, name), getattr(data, name))
    assert (again.W is None) == (data.W is None)
    np.testing.assert_array_equal(head, v)
    assert [path.name for path in tmp_path.iterdir()] == [f"problem.{form}"]


def test_plain_savez_and_hand_written_json_are_read(tmp_path):
    np.savez(tmp_path / "a.npz", X=X.astype(np.float32), y=np.array([1, -1]), v=[1, 2], W=[[1, 2]])
    data, v = read_problem(tmp_path / "a.npz")
    assert data.d_key == 1
    np.testing.assert_array_equal(v, [1.0, 2.0])
    text = '\ufeff{"X": [[[1, 2], [3, 4]], [[5, 6]]], "y": [1, -1], "v": [1, 0], "K": null, "source": "by hand"}'
    (tmp_path / "b.json").write_text(text, encoding="utf-8")
    data, _ = read_problem(str(tmp_path / "b.json"))
    np.testing.assert_array_equal(data.lengths, [2, 1])


def test_a_failed_write_leaves_the_old_file_alone(tmp_path, monkeypatch):
    place = tmp_path / "problem.npz"
    write_problem(place, *figure_8())
    before = place.read_bytes()

    def full(self, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    with pytest.raises(InputError, match=r"The 'path' argument must be a file that can be written; .*No space left"):
        write_problem(place, *sphere_tokens(2, 2, 2, 2, 0))
    assert place.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["problem.npz"]


def test_a_link_stays_a_link_to_the_new_content(tmp_path):
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "problem.npz", tmp_path / "link.npz"
    write_problem(target, *figure_8())
    link.symlink_to(target)
    data, v = sphere_tokens(2, 2, 2, 2, 0)
    write_problem(link, data, v)
    assert link.is_symlink()
    np.testing.assert_array_equal(read_problem(target)[0].X, data.X)


BAD_ARRAYS = {
    "no X": ({"X": None}, r"'path' argument must be .* without X \(it holds 'v', 'y'\)"),
    "no y and v": ({"y": None, "v": None}, r"without y and v \(it holds 'X'\)"),
    "nothing": (dict.fromkeys(GOOD), r"without X and y and v \(it holds nothing\)"),
    "lower-case w": ({"w": np.eye(2)}, r"in this spelling; got '.*' with 'w'"),
    "capital lengths": ({"Lengths": np.array([2, 1])}, r"in this spelling; got '.*' with 'Lengths'"),
    "flat X": ({"X": X[0]}, r"'X' argument must be of shape \(n_inputs, n_tokens, d_model\).*; got shape \(2, 2\)"),
    "X with nan": ({"X": X * np.nan}, r"'X' argument must be finite numbers; got nan at index"),
    "wrong labels": ({"y": np.array([0.0, 1.0])}, r"'y' argument must be labels, each -1 or \+1, .*got the label 0"),
    "too many labels": ({"y": np.ones(3)}, r"'y' argument must be labels, .* got shape \(3,\)"),
    "long head": (
        {"v": np.ones(3)},
        r"'v' argument must be an array of finite numbers of shape \(2,\); got shape \(3,\)",
    ),
    "keys of other tokens": ({"K": X[:1]}, r"'K' argument must be keys for tokens of shape \(2, 2\)"),
    "K and W": ({"K": X, "W": np.eye(2)}, r"'K' argument must be left out when W is given"),
    "wide W": ({"W": np.ones((2, 3))}, r"'W' argument must be .* of shape \(d_key, 2\)"),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", BAD_ARRAYS)
def test_wrong_contents_are_one_sentence_in_either_form(tmp_path, form, case):
    changes, sentence = BAD_ARRAYS[case]
    arrays = {name: values for name, values in {**GOOD, **changes}.items() if values is not None}
    place = tmp_path / f"bad.{form}"
    if form == "npz":
        np.savez(place, **arrays)
    else:
        place.write_text(json.dumps({name: values.tolist() for name, values in arrays.items()}))
    with pytest.raises(InputError, match=sentence):
        read_problem(place)


NPZ_ONLY = {
    "objects": (
        {"X": np.array([[1.0], "a"], dtype=object)},
        r"'X' argument must be an array of numbers; got pickled obj",
    ),
    "texts": ({"y": np.array(["a", "b"])}, r"'y' argument must be an array of real numbers; got dtype <U1"),
    "complex": ({"v": np.array([1j, 0])}, r"'v' argument must be an array of real numbers; got dtype complex128"),
    "lengths too large": ({"lengths": [2, 3]}, r"'lengths' argument must be whole numbers from 1 to 2 .*; got 3"),
    "lengths of half": ({"lengths": [2, 1.5]}, r"'lengths' argument must be whole numbers .*; got 1.5"),
    "lengths of truth": ({"lengths": [True, False]}, r"'lengths' argument must be whole numbers .*; got 0"),
    "one length": (
        {"lengths": [2]},
        r"'lengths' argument must be whole numbers .* of shape \(2,\).*; got shape \(1,\)",
    ),
    "flat X with lengths": ({"X": X[0], "lengths": [1, 2]}, r"'lengths' argument must be left out unless X"),
    "short K": ({"K": X[:, :1], "lengths": [1, 2]}, r"'K' argument must be tokens for lengths of shape \(2,\)"),
}


@pytest.mark.parametrize("case", NPZ_ONLY)
def test_wrong_arrays_of_a_npz_are_one_sentence(tmp_path, case):
    changes, sentence = NPZ_ONLY[case]
    np.savez(tmp_path / "bad.npz", **{**GOOD, **changes})
    with pytest.raises(InputError, match=sentence):
        read_problem(tmp_path / "bad.npz")


def archive():
    stream = BytesIO()
    np.savez(stream, **GOOD)
    return stream.getvalue()


def damaged(path):
    """One flipped byte in y, which only its checksum can tell."""
    content = bytearray(archive())
    content[content.find(GOOD["y"].tobytes())] ^= 0xFF
    path.write_bytes(bytes(content))


def huge_whole_number(path):
    path.write_text('{"X": [[[1' + "0" * 400 + ', 2]]], "y": [1], "v": [1, 1]}')


FILES = {
    "nothing there": (lambda path: None, r"got '.*' \(No such file or directory\)"),
    "a folder": (lambda path: path.mkdir(), r"\(Is a directory\)"),
    "empty": (lambda path: path.write_bytes(b""), r"which is neither"),
    "prose": (lambda path: path.write_text("Dear reader,"), r"which is neither"),
    "not text": (lambda path: path.write_bytes(b"\xff\xfe\x00\x01"), r"which is neither"),
    "a list": (lambda path: path.write_text("[1, 2]"), r"whose JSON is no object with names"),
    "too deep": (lambda path: path.write_text("[" * 100_000), r"which is neither"),
    "a pickle": (lambda path: path.write_bytes(pickle.dumps(GOOD)), r"which is neither"),
    "one array": (lambda path: path.write_bytes(npy(X)), r"a single array instead. Save all of them with np.savez"),
    "truncated": (lambda path: path.write_bytes(archive()[:-30]), r"in which the file cannot be read"),
    "damaged": (damaged, r"in which y cannot be read"),
    "huge number": (huge_whole_number, r"'X' argument must be finite numbers; got inf"),
}


def npy(array):
    stream = BytesIO()
    np.save(stream, array)
    return stream.getvalue()


@pytest.mark.parametrize("case", FILES)
def test_a_file_that_is_no_problem_is_one_sentence(tmp_path, case):
    make, sentence = FILES[case]
    make(tmp_path / "thing")
    with pytest.raises(InputError, match=sentence) as caught:
        read_problem(tmp_path / "thing")
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("problem.csv", r"must be a name that ends in .npz or .json; got '.*problem.csv'"),
        ("nowhere/problem.npz", r"must be a file in a folder that exists; got '.*nowhere/problem.npz'"),
        ("folder.json", r"must be a file that can be written; got '.*folder.json', which is there and is no file"),
    ],
)
def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path, place, sentence):
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(InputError, match=sentence):
        write_problem(tmp_path / place, *figure_8())


def test_what_is_no_problem_is_not_written(tmp_path):
    data, v = figure_8()
    with pytest.raises(InputError, match=r"The 'data' argument must be a TokenDataset; got ndarray"):
        write_problem(tmp_path / "a.npz", X, v)
    with pytest.raises(InputError, match=r"The 'v' argument must be an array of finite numbers of shape \(3,\)"):
        write_problem(tmp_path / "a.npz", data, [1.0])
    assert list(tmp_path.iterdir()) == []
