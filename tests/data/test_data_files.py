"""Datasets as files: what is written is read back, and whatever is wrong with a file is one sentence."""

import json
import pickle
from io import BytesIO

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import marginlens as ml
from marginlens import InputError, SequenceDataset
from marginlens.data.files import read_sequence_problem
from random_examples import examples
from random_problems import ragged_problem
from refusals import refused

X = np.array([[[0.5, 0.0], [-0.5, 0.0]], [[-1.0, 0.75], [1.0, -0.75]]])
GOOD = {"X": X, "y": np.array([1.0, -1.0]), "v": np.array([0.1, 0.2])}


def ragged_batch(rng):
    problems = [ragged_problem(rng, 3, 4, 5)[0] for _ in range(4)]
    tokens = [[data.X[i, : data.lengths[i]] for i in range(3)] for data in problems]
    return ml.data.TokenDataset(tokens, [data.y for data in problems]), rng.standard_normal((4, 5))


MAKERS = {
    "one problem with K": lambda rng: ml.data.figure_8(),
    "one ragged problem with K": lambda rng: ragged_problem(rng, 4, 5, 3, d_key=2),
    "one input, one token": lambda rng: (
        ml.data.TokenDataset(rng.standard_normal((1, 1, 2)), [1.0]),
        rng.standard_normal(2),
    ),
    "a batch": lambda rng: ml.data.sphere_tokens(5, 2, 3, 4, rng),
    "a batch with W": lambda rng: ml.data.gaussian_tokens(5, 2, 3, 4, rng),
    "a ragged batch": ragged_batch,
}


@pytest.mark.parametrize("form", ["npz", "json"])
@pytest.mark.parametrize("maker", MAKERS)
def test_a_problem_is_read_back_exactly(tmp_path, form, maker):
    data, v = MAKERS[maker](np.random.default_rng(7))
    if data.is_batch and form == "json":
        with refused("data"):
            ml.data.write_problem(tmp_path / "problem.json", data, v)
        return
    ml.data.write_problem(tmp_path / f"problem.{form}", data, v)
    again, head = ml.data.read_problem(tmp_path / f"problem.{form}")
    assert again == data
    assert (again.W is None) == (data.W is None)
    assert ml.data.load(tmp_path / f"problem.{form}") == data
    np.testing.assert_array_equal(head, v)
    assert [path.name for path in tmp_path.iterdir()] == [f"problem.{form}"]


@examples(20)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["tokens", "sequences", "labelled"]))
def test_every_dataset_survives_save_and_load(tmp_path_factory, seed, kind):
    rng = np.random.default_rng(seed)
    sequences = [rng.integers(5, size=n) for n in rng.integers(1, 6, size=4)]
    data = {
        "tokens": lambda: ragged_problem(rng, 3, 4, 2)[0],
        "sequences": lambda: SequenceDataset(
            sequences, rng.integers(5, size=4), rng.standard_normal((5, 3)), unrealizable="keep"
        ),
        "labelled": lambda: ml.data.LabelledSequences(sequences, rng.choice([-1, 1], size=4), 7),
    }[kind]()
    place = tmp_path_factory.mktemp("saved") / "data.npz"
    data.save(place)
    assert ml.data.load(place) == data
    assert [path.name for path in place.parent.iterdir()] == ["data.npz"]


def test_objects_that_are_not_datasets_are_refused(tmp_path):
    with refused("path"):
        ml.data.figure_2().save(tmp_path / "data.json")
    with refused("data"):
        ml.data.save(tmp_path / "data.npz", X)
    np.savez(tmp_path / "other.npz", a=X)
    with refused("path"):
        ml.data.load(tmp_path / "other.npz")
    np.savez(tmp_path / "other.npz", format="marginlens-data-9", **GOOD)
    with refused("path"):
        ml.data.load(tmp_path / "other.npz")


def test_plain_savez_and_hand_written_json_are_read(tmp_path):
    np.savez(tmp_path / "a.npz", X=X.astype(np.float32), y=np.array([1, -1]), v=[1, 2], W=[[1, 2]], note=[None])
    data, v = ml.data.read_problem(tmp_path / "a.npz")
    assert data.d_key == 1
    np.testing.assert_array_equal(v, [1.0, 2.0])
    text = '\ufeff{"X": [[[1, 2], [3, 4]], [[5, 6]]], "y": [1, -1], "v": [1, 0], "K": null, "source": "by hand"}'
    (tmp_path / "b.json").write_text(text, encoding="utf-8")
    np.testing.assert_array_equal(ml.data.read_problem(str(tmp_path / "b.json"))[0].lengths, [2, 1])


@pytest.mark.parametrize("maker", MAKERS)
def test_json_files_of_earlier_versions_are_read(tmp_path, maker):
    """They had X, y, v and K or W, as nested lists without padding, for one problem or a batch."""
    data, v = MAKERS[maker](np.random.default_rng(7))
    content = {name: array.tolist() for name, array in data.arrays().items() if name in ("y", "W")} | {"v": v.tolist()}
    batch = data.as_batch()
    for name in data.arrays().keys() & {"X", "K"}:
        padded = getattr(batch, name)
        listed = [[x[:n].tolist() for x, n in zip(*of, strict=True)] for of in zip(padded, batch.lengths, strict=True)]
        content[name] = listed if data.is_batch else listed[0]
    again, head = ml.data.read_problem(written(tmp_path / "old.json", **content))
    assert again == data
    np.testing.assert_array_equal(head, v)


def test_a_missing_head_and_unknown_formats_are_refused(tmp_path):
    joint = written(tmp_path / "joint.json", format="marginlens-problem", tokens=X.tolist(), train="both")
    with refused("path"):
        ml.data.read_problem(joint)
    for name, changed in {"format": {"format": "png"}, "version": {"version": 3}}.items():
        for content in ({"tokens": X.tolist(), "head": [1, 2]}, {"sequences": [[0]], "labels": [0]}):
            with refused(name):
                read = ml.data.read_sequences if "sequences" in content else ml.data.read_problem
                read(written(tmp_path / "other.json", **content, **changed))


def test_a_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    place = tmp_path / "problem.npz"
    ml.data.write_problem(place, *ml.data.figure_8())
    before = place.read_bytes()

    def full(self, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    with refused("path"):
        ml.data.write_problem(place, *ml.data.sphere_tokens(2, 2, 2, 2, 0))
    assert place.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["problem.npz"]


# ---- sequences


def written(place, **content):
    place.write_text(json.dumps(content))
    return place


@pytest.mark.parametrize("form", ["npz", "json"])
def test_sequences_names_and_head_are_read_back(tmp_path, form):
    rng = np.random.default_rng(0)
    data, C = SequenceDataset([[0, 1], [2, 1, 0]], [1, 2], rng.standard_normal((3, 2))), rng.standard_normal((3, 2))
    ml.data.write_sequences(tmp_path / f"s.{form}", data, ["a", "é", "\ud83d"], head=C)
    named, head = read_sequence_problem(tmp_path / f"s.{form}")
    assert named.vocabulary.names == ("a", "é", "\ud83d")
    assert named.data == data
    np.testing.assert_array_equal(head, C)


def test_names_and_ids_give_the_same_dataset(tmp_path):
    by_name = ml.data.read_sequences(
        written(tmp_path / "n.json", sequences=[["a", "c"], ["b", "a"]], labels=["c", "b"])
    )
    names = ["a", "b", "c"]
    by_id = ml.data.read_sequences(
        written(tmp_path / "i.json", sequences=[[0, 2], [1, 0]], labels=[2, 1], vocabulary=names)
    )
    assert by_name.vocabulary == by_id.vocabulary
    assert by_name.data == by_id.data
    assert np.array_equal(by_name.data.E, np.eye(3))
    ids_alone = ml.data.read_sequences(written(tmp_path / "a.json", sequences=[[0, 4]], labels=[4]))
    assert ids_alone.vocabulary.names == ("0", "1", "2", "3", "4")
    dropped = ml.data.read_sequences(
        written(tmp_path / "d.json", sequences=[[0], [1]], labels=[2, 1]), unrealizable="drop"
    )
    assert dropped.data.dropped.tolist() == [0]


# ---- labelled sequences


def test_labelled_sequences_names_and_parts_are_read_back(tmp_path):
    data, place = ml.data.LabelledSequences([[3, 1], [2], [0, 0, 1], [1, 3]], [1, -1, 1, -1], 6), tmp_path / "l.npz"
    ml.data.write_labelled(place, data, list("abcdef"), ["train", "test", "train", "test"])
    again, names = ml.data.read_labelled(place)
    assert again == data
    assert names == list("abcdef")
    assert ml.data.read_labelled(place, "test")[0] == data[[1, 3]]
    with refused("split"):
        ml.data.read_labelled(place, "other")
    with refused("names"):
        ml.data.write_labelled(place, data, ["a"])


# ---- what cannot be read


def archive():
    stream = BytesIO()
    np.savez(stream, **GOOD)
    return stream.getvalue()


def damaged():
    """One flipped byte in y, which only its checksum can tell."""
    content = bytearray(archive())
    content[content.find(GOOD["y"].tobytes())] ^= 0xFF
    return bytes(content)


def arrays(**changes):
    """The entries of a problem, or of labelled sequences, with changes; without those that are None."""
    entries = {"tokens": [0, 1, 0], "offsets": [0, 2, 3], "y": [1, -1]} if changes.pop("labelled", False) else GOOD
    return {name: array for name, array in {**entries, **changes}.items() if array is not None}


@pytest.mark.parametrize(
    ("argument", "read", "content"),
    [
        ("path", ml.data.read_problem, arrays(y=None, v=None)),
        ("path", ml.data.read_problem, arrays(w=np.eye(2))),
        ("X", ml.data.read_problem, arrays(X=X[0])),
        ("v", ml.data.read_problem, arrays(v=np.ones(3))),
        ("K", ml.data.read_problem, arrays(K=X, W=np.eye(2))),
        ("y", ml.data.read_problem, arrays(y=np.array(["a", "b"]))),
        ("X", ml.data.read_problem, arrays(X=np.array([[1.0], "a"], dtype=object))),
        ("lengths", ml.data.read_problem, arrays(lengths=[2, 3])),
        ("lengths", ml.data.read_problem, arrays(X=X[0, 0], lengths=[1, 2])),
        ("lengths", ml.data.read_problem, arrays(K=X[:, :1], lengths=[1, 2])),
        ("path", ml.data.read_problem, None),
        ("path", ml.data.read_problem, b""),
        ("path", ml.data.read_problem, b"\xff\xfe\x00\x01"),
        ("path", ml.data.read_problem, b"[1, 2]"),
        ("path", ml.data.read_problem, b"[" * 100_000),
        ("path", ml.data.read_problem, pickle.dumps(GOOD)),
        ("path", ml.data.read_problem, archive()[:-30]),
        ("path", ml.data.read_problem, damaged()),
        ("X[0][0][0]", ml.data.read_problem, b'{"X": [[[1' + b"0" * 400 + b', 2]]], "y": [1], "v": [1, 1]}'),
        ("path", ml.data.read_sequences, b'{"sequences": [[0]]}'),
        ("sequences", ml.data.read_sequences, b'{"sequences": ["ab"], "labels": [0]}'),
        ("labels", ml.data.read_sequences, b'{"sequences": [[0]], "labels": 0}'),
        ("sequences", ml.data.read_sequences, b'{"sequences": [[0, "a"]], "labels": [0]}'),
        ("sequences", ml.data.read_sequences, b'{"sequences": [[0, -1]], "labels": [0]}'),
        ("sequences", ml.data.read_sequences, b'{"sequences": [], "labels": []}'),
        ("sequences", ml.data.read_sequences, b'{"sequences": [[0, 1000000000000000000000000000000]], "labels": [0]}'),
        ("labels", ml.data.read_sequences, b'{"sequences": [["a"]], "labels": ["b"], "vocabulary": ["a"]}'),
        ("vocabulary", ml.data.read_sequences, b'{"sequences": [["a"]], "labels": ["a"], "vocabulary": ["a", "a"]}'),
        ("E", ml.data.read_sequences, b'{"sequences": [[0]], "labels": [0], "vocabulary": ["a"], "E": [[1], [2]]}'),
        ("E", ml.data.read_sequences, b'{"sequences": [[0, 1]], "labels": [0], "E": [[1, null], [1, 2]]}'),
        ("path", ml.data.read_labelled, arrays(labelled=True, y=None)),
        ("tokens", ml.data.read_labelled, arrays(labelled=True, tokens=[0.5, 1.0, 0.0])),
        ("offsets", ml.data.read_labelled, arrays(labelled=True, offsets=[0, 0, 3])),
        ("offsets", ml.data.read_labelled, arrays(labelled=True, offsets=[0, 2, 9])),
        ("y", ml.data.read_labelled, arrays(labelled=True, y=[1, 2])),
        ("sequences", ml.data.read_labelled, arrays(labelled=True, names=["a"])),
        ("names", ml.data.read_labelled, arrays(labelled=True, names=[["a"], ["b"]])),
    ],
)
def test_an_unreadable_file_is_refused_with_its_entry(tmp_path, argument, read, content):
    place = tmp_path / "bad.npz"
    if isinstance(content, dict):
        np.savez(place, **content)
    elif content is not None:
        place.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read(place)
    assert caught.value.argument == argument
    assert caught.value.file == ("" if argument == "path" else str(place))
    assert len(str(caught.value).splitlines()) == 1
