"""Datasets as files: what is written is read back, and whatever is wrong with a file is one sentence."""

import json
import pickle
from io import BytesIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import marginlens as ml
from marginlens import InputError, SequenceDataset
from marginlens.data import (
    LabelledSequences,
    TokenDataset,
    figure_2,
    figure_8,
    gaussian_tokens,
    read_labelled,
    read_problem,
    read_sequences,
    sphere_tokens,
    write_labelled,
    write_problem,
    write_sequences,
)
from marginlens.data.files import read_sequence_problem
from random_problems import ragged_problem

X = np.array([[[0.5, 0.0], [-0.5, 0.0]], [[-1.0, 0.75], [1.0, -0.75]]])
GOOD = {"X": X, "y": np.array([1.0, -1.0]), "v": np.array([0.1, 0.2])}


def ragged_batch(rng):
    problems = [ragged_problem(rng, 3, 4, 5)[0] for _ in range(4)]
    tokens = [[data.X[i, : data.lengths[i]] for i in range(3)] for data in problems]
    return TokenDataset(tokens, [data.y for data in problems]), rng.standard_normal((4, 5))


MAKERS = {
    "one problem with K": lambda rng: figure_8(),
    "one ragged problem with K": lambda rng: ragged_problem(rng, 4, 5, 3, d_key=2),
    "one input, one token": lambda rng: (TokenDataset(rng.standard_normal((1, 1, 2)), [1.0]), rng.standard_normal(2)),
    "a batch": lambda rng: sphere_tokens(5, 2, 3, 4, rng),
    "a batch with W": lambda rng: gaussian_tokens(5, 2, 3, 4, rng),
    "a ragged batch": ragged_batch,
}


@pytest.mark.parametrize("form", ["npz", "json"])
@pytest.mark.parametrize("maker", MAKERS)
def test_a_problem_is_read_back_exactly(tmp_path, form, maker):
    data, v = MAKERS[maker](np.random.default_rng(7))
    write_problem(tmp_path / f"problem.{form}", data, v)
    again, head = read_problem(tmp_path / f"problem.{form}")
    assert again == data
    assert (again.W is None) == (data.W is None)
    assert ml.data.load(tmp_path / f"problem.{form}") == data
    np.testing.assert_array_equal(head, v)
    assert [path.name for path in tmp_path.iterdir()] == [f"problem.{form}"]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["tokens", "sequences", "labelled"]))
def test_every_dataset_survives_save_and_load(tmp_path_factory, seed, kind):
    rng = np.random.default_rng(seed)
    sequences = [rng.integers(5, size=n) for n in rng.integers(1, 6, size=4)]
    data = {
        "tokens": lambda: ragged_problem(rng, 3, 4, 2)[0],
        "sequences": lambda: SequenceDataset(
            sequences, rng.integers(5, size=4), rng.standard_normal((5, 3)), unrealizable="keep"
        ),
        "labelled": lambda: LabelledSequences(sequences, rng.choice([-1, 1], size=4), 7),
    }[kind]()
    place = tmp_path_factory.mktemp("saved") / "data.npz"
    data.save(place)
    assert ml.data.load(place) == data
    assert [path.name for path in place.parent.iterdir()] == ["data.npz"]


def test_what_is_no_dataset_is_neither_saved_nor_loaded(tmp_path):
    with pytest.raises(InputError, match="a name that ends in"):
        figure_2().save(tmp_path / "data.json")
    with pytest.raises(InputError, match="'data' argument must be a TokenDataset, a SequenceDataset"):
        ml.data.save(tmp_path / "data.npz", X)
    np.savez(tmp_path / "other.npz", a=X)
    with pytest.raises(InputError, match="which holds 'a'"):
        ml.data.load(tmp_path / "other.npz")
    np.savez(tmp_path / "other.npz", format="marginlens-data-9", **GOOD)
    with pytest.raises(InputError, match=r"in the format marginlens-data-1; got .* of another format"):
        ml.data.load(tmp_path / "other.npz")


def test_plain_savez_and_hand_written_json_are_read(tmp_path):
    np.savez(tmp_path / "a.npz", X=X.astype(np.float32), y=np.array([1, -1]), v=[1, 2], W=[[1, 2]], note=[None])
    data, v = read_problem(tmp_path / "a.npz")
    assert data.d_key == 1
    np.testing.assert_array_equal(v, [1.0, 2.0])
    text = '\ufeff{"X": [[[1, 2], [3, 4]], [[5, 6]]], "y": [1, -1], "v": [1, 0], "K": null, "source": "by hand"}'
    (tmp_path / "b.json").write_text(text, encoding="utf-8")
    np.testing.assert_array_equal(read_problem(str(tmp_path / "b.json"))[0].lengths, [2, 1])


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


WRONG = {
    "no y and v": ({"y": None, "v": None}, r"without y and v \(it holds 'X'\)"),
    "lower-case w": ({"w": np.eye(2)}, r"in this spelling; got '.*' with 'w'"),
    "flat X": ({"X": X[0]}, r"'X' entry of .* must be of shape \(n_inputs, n_tokens, d_model\).*; got shape \(2, 2\)"),
    "long head": ({"v": np.ones(3)}, r"'v' entry of .* must be .* of shape \(2,\); got shape \(3,\)"),
    "K and W": ({"K": X, "W": np.eye(2)}, r"'K' entry of .* must be left out when W is given"),
    "texts": ({"y": np.array(["a", "b"])}, r"'y' entry of .* must be an array of real numbers; got dtype <U1"),
    "objects": ({"X": np.array([[1.0], "a"], dtype=object)}, r"'X' .*an array of numbers; got pickled obj"),
    "lengths too large": ({"lengths": [2, 3]}, r"'lengths' entry of .* must be whole numbers from 1 to 2 .*; got 3"),
    "flat X with lengths": ({"X": X[0, 0], "lengths": [1, 2]}, r"'lengths' entry of .* must be left out unless"),
    "short K": ({"K": X[:, :1], "lengths": [1, 2]}, r"'K' entry of .* must be tokens for lengths of shape \(2,\)"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_contents_of_a_problem_are_one_sentence(tmp_path, case):
    changes, sentence = WRONG[case]
    np.savez(tmp_path / "bad.npz", **{name: a for name, a in {**GOOD, **changes}.items() if a is not None})
    with pytest.raises(InputError, match=sentence):
        read_problem(tmp_path / "bad.npz")


def archive():
    stream = BytesIO()
    np.savez(stream, **GOOD)
    return stream.getvalue()


def damaged():
    """One flipped byte in y, which only its checksum can tell."""
    content = bytearray(archive())
    content[content.find(GOOD["y"].tobytes())] ^= 0xFF
    return bytes(content)


FILES = {
    "nothing there": (None, r"got '.*' \(No such file or directory\)"),
    "empty": (b"", r"which is neither"),
    "not text": (b"\xff\xfe\x00\x01", r"which is neither"),
    "a list": (b"[1, 2]", r"whose JSON is no object with names"),
    "too deep": (b"[" * 100_000, r"which is neither"),
    "a pickle": (pickle.dumps(GOOD), r"which is neither"),
    "truncated": (archive()[:-30], r"which begins as an archive and is none"),
    "damaged": (damaged(), r"in which y cannot be read"),
    "huge number": (b'{"X": [[[1' + b"0" * 400 + b', 2]]], "y": [1], "v": [1, 1]}', r"'X' .*finite numbers; got inf"),
}


@pytest.mark.parametrize("case", FILES)
def test_a_file_that_is_no_problem_is_one_sentence(tmp_path, case):
    content, sentence = FILES[case]
    if content is not None:
        (tmp_path / "thing").write_bytes(content)
    with pytest.raises(InputError, match=sentence) as caught:
        read_problem(tmp_path / "thing")
    assert len(str(caught.value).splitlines()) == 1


# ---- sequences


def written(place, **content):
    place.write_text(json.dumps(content))
    return place


@pytest.mark.parametrize("form", ["npz", "json"])
def test_sequences_names_and_head_are_read_back(tmp_path, form):
    rng = np.random.default_rng(0)
    data, C = SequenceDataset([[0, 1], [2, 1, 0]], [1, 2], rng.standard_normal((3, 2))), rng.standard_normal((3, 2))
    write_sequences(tmp_path / f"s.{form}", data, ["a", "é", "\ud83d"], head=C)
    named, head = read_sequence_problem(tmp_path / f"s.{form}")
    assert named.vocabulary.names == ("a", "é", "\ud83d")
    assert named.data == data
    np.testing.assert_array_equal(head, C)


def test_names_and_ids_say_the_same(tmp_path):
    by_name = read_sequences(written(tmp_path / "n.json", sequences=[["a", "c"], ["b", "a"]], labels=["c", "b"]))
    names = ["a", "b", "c"]
    by_id = read_sequences(written(tmp_path / "i.json", sequences=[[0, 2], [1, 0]], labels=[2, 1], vocabulary=names))
    assert by_name.vocabulary == by_id.vocabulary
    assert by_name.data == by_id.data
    assert np.array_equal(by_name.data.E, np.eye(3))
    ids_alone = read_sequences(written(tmp_path / "a.json", sequences=[[0, 4]], labels=[4]))
    assert ids_alone.vocabulary.names == ("0", "1", "2", "3", "4")
    dropped = read_sequences(written(tmp_path / "d.json", sequences=[[0], [1]], labels=[2, 1]), unrealizable="drop")
    assert dropped.data.dropped.tolist() == [0]


UNUSABLE = {
    "no labels": ({"sequences": [[0]]}, r"without labels \(it holds 'sequences'\)"),
    "text": ({"sequences": ["ab"], "labels": [0]}, r"'sequences' entry of .* must be a list of lists of tokens; got"),
    "one label": ({"sequences": [[0]], "labels": 0}, "'labels' entry of .* must be a list with one token per sequence"),
    "mixed": ({"sequences": [[0, "a"]], "labels": [0]}, "or names in all; got values of type int and str"),
    "negative": ({"sequences": [[0, -1]], "labels": [0]}, "id -1 at position 1 of sample 0"),
    "none": ({"sequences": [], "labels": []}, "at least one sequence"),
    "large": ({"sequences": [[0, 10**30]], "labels": [0]}, "ids below 4096 where the file has no E; got id 10000"),
    "unknown": ({"sequences": [["a"]], "labels": ["b"], "vocabulary": ["a"]}, "'labels' .* got 'b', which is none"),
    "twice": ({"sequences": [["a"]], "labels": ["a"], "vocabulary": ["a", "a"]}, "no two alike; got 'a' twice"),
    "rows": ({"sequences": [[0]], "labels": [0], "vocabulary": ["a"], "E": [[1], [2]]}, "one row for each of the 1"),
    "null in E": ({"sequences": [[0, 1]], "labels": [0], "E": [[1, None], [1, 2]]}, "'E' .*an array of finite"),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_unusable_sequences_are_one_sentence(tmp_path, case):
    content, sentence = UNUSABLE[case]
    with pytest.raises(InputError, match=sentence):
        read_sequences(written(tmp_path / "s.json", **content))


# ---- labelled sequences


def test_labelled_sequences_names_and_parts_are_read_back(tmp_path):
    data, place = LabelledSequences([[3, 1], [2], [0, 0, 1], [1, 3]], [1, -1, 1, -1], 6), tmp_path / "l.npz"
    write_labelled(place, data, list("abcdef"), ["train", "test", "train", "test"])
    again, names = read_labelled(place)
    assert again == data
    assert names == list("abcdef")
    assert read_labelled(place, "test")[0] == data[[1, 3]]
    with pytest.raises(InputError, match=r"'split' argument must be one of test, train, those of"):
        read_labelled(place, "other")
    with pytest.raises(InputError, match=r"'names' argument must be 6 names; got shape \(1,\)"):
        write_labelled(place, data, ["a"])


ARRAYS = {"tokens": [0, 1, 0], "offsets": [0, 2, 3], "y": [1, -1]}
BROKEN = {
    "no y": ({"y": None}, "without y"),
    "fractions": ({"tokens": [0.5, 1.0, 0.0]}, "'tokens' entry of .* must be a list of whole numbers"),
    "an empty sequence": ({"offsets": [0, 0, 3]}, "'offsets' entry of .* must be .* that increase"),
    "offsets beyond": ({"offsets": [0, 2, 9]}, "'offsets' entry of .* must be numbers from 0 to 3"),
    "a label": ({"y": [1, 2]}, "'y' entry of .* must be labels, each -1 or .*the label 2"),
    "a token": ({"names": ["a"]}, "ids from 0 to 0.*; got id 1 at position 1 of sample 0"),
    "names": ({"names": [["a"], ["b"]]}, "'names' entry of .* must be a list of names"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_labelled_files_are_one_sentence(tmp_path, case):
    changes, sentence = BROKEN[case]
    np.savez(tmp_path / "l.npz", **{name: a for name, a in {**ARRAYS, **changes}.items() if a is not None})
    with pytest.raises(InputError, match=sentence):
        read_labelled(tmp_path / "l.npz")
