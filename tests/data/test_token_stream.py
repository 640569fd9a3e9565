"""Streams of token ids: every kind of source gives the same tokens, and a wrong one a sentence."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import marginlens as ml

TEXTS = [[0, 1, 2, 1, 0, 3], [4], [], [2, 2, 1, 4, 0, 0, 1]]


def tokens(stream: ml.data.TokenStream) -> tuple[list[int], list[int]]:
    """All ids of a stream, chunk by chunk, and where its texts begin."""
    ids: list[int] = []
    starts: list[int] = []
    for index in range(stream.n_chunks):
        chunk = stream.read(index)
        starts += [len(ids) + start - chunk.first for start in chunk.starts.tolist() if start >= chunk.first]
        ids += chunk.ids[chunk.first :].tolist()
    return ids, starts


def write_arrow(path: Path, texts: list[list[int]], kind: Any = None) -> None:
    table = pa.table({"input_ids": pa.array(texts, kind or pa.list_(pa.int32()))})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        for batch in table.to_batches(max_chunksize=2):
            writer.write_batch(batch)


def test_every_source_gives_the_same_tokens(tmp_path: Path) -> None:
    ids = np.concatenate([np.array(text, dtype=np.int64) for text in TEXTS])
    np.save(tmp_path / "ids.npy", ids.astype(np.int32))
    ids.astype("<u2").tofile(tmp_path / "ids.bin")
    ids.astype("<u4").tofile(tmp_path / "ids.u32")
    sources = [
        (ids, {}),
        (tmp_path / "ids.npy", {}),
        (tmp_path / "ids.bin", {}),
        (str(tmp_path / "ids.u32"), {"dtype": "uint32"}),
    ]
    for source, options in sources:
        stream = ml.data.TokenStream(source, 3, chunk=4, **options)
        assert tokens(stream) == (ids.tolist(), [0])
        assert stream.n_vocabulary == 5
        assert stream.n_tokens == len(ids)


@pytest.mark.parametrize("kind", [pa.list_(pa.int32()), pa.large_list(pa.int64())], ids=["list", "large_list"])
def test_rows_of_a_tokenised_dataset_are_texts(tmp_path: Path, kind: Any) -> None:
    folder = tmp_path / "dataset"
    folder.mkdir()
    write_arrow(folder / "data-00000-of-00002.arrow", TEXTS[:3], kind)
    write_arrow(folder / "data-00001-of-00002.arrow", TEXTS[3:], kind)
    names = [{"filename": f"data-0000{k}-of-00002.arrow"} for k in range(2)]
    (folder / "state.json").write_text(json.dumps({"_data_files": names, "_indices_data_files": None}))
    table = pa.table({"input_ids": pa.array(TEXTS, kind)})
    listed = [np.array(text, dtype=np.int64) for text in TEXTS]
    ids = np.concatenate(listed).tolist()
    for source in (folder, table, listed, sorted(folder.glob("*.arrow"))):
        stream = ml.data.TokenStream(source, 3, chunk=5)
        found, starts = tokens(stream)
        assert found == ids
        assert sorted({*starts}) == [0, 6, 7]
        assert tokens(pickle.loads(pickle.dumps(stream))) == (found, starts)


def test_rows_of_an_array_are_texts(tmp_path: Path) -> None:
    rows = np.arange(12).reshape(3, 4)
    np.save(tmp_path / "rows.npy", rows)
    assert tokens(ml.data.TokenStream(tmp_path / "rows.npy", 2)) == (list(range(12)), [0, 4, 8])
    fixed = pa.table({"ids": pa.FixedSizeListArray.from_arrays(pa.array(range(12)), 4)})
    assert tokens(ml.data.TokenStream(fixed, 2, column="ids")) == (list(range(12)), [0, 4, 8])


def test_a_wrong_source_ends_in_a_sentence(tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", np.arange(1000))
    whole = (tmp_path / "ids.npy").read_bytes()
    (tmp_path / "cut.npy").write_bytes(whole[:500])
    (tmp_path / "cut.bin").write_bytes(bytes(15))
    (tmp_path / "empty.bin").write_bytes(b"")
    np.save(tmp_path / "real.npy", np.ones(3))
    write_arrow(tmp_path / "ids.arrow", TEXTS)
    (tmp_path / "cut.arrow").write_bytes((tmp_path / "ids.arrow").read_bytes()[:100])
    (tmp_path / "splits").mkdir()
    (tmp_path / "splits" / "dataset_dict.json").write_text("{}")
    (tmp_path / "nothing").mkdir()
    nulls = pa.table({"input_ids": pa.array([[0, None, 1]], pa.list_(pa.int32()))})
    for source, options, words in (
        (tmp_path / "missing.npy", {}, "which is not there"),
        (tmp_path / "cut.npy", {}, "truncated"),
        (tmp_path / "cut.bin", {}, "15 bytes, which is truncated"),
        (tmp_path / "empty.bin", {}, "which is empty"),
        (tmp_path / "real.npy", {}, "dtype float64"),
        (tmp_path / "cut.arrow", {}, "truncated"),
        (tmp_path / "ids.arrow", {"column": "tokens"}, "'column' argument must be one of the columns"),
        (tmp_path / "splits", {}, "the folder of one split"),
        (tmp_path / "nothing", {}, "a folder with .arrow files"),
        (tmp_path / "ids.bin", {"dtype": "float32"}, "which is not there"),
        (tmp_path / "cut.bin", {"dtype": "float32"}, "'dtype'"),
        (nulls, {}, "missing values"),
        ([], {}, "an empty list"),
        (3.5, {}, "float"),
        (np.arange(8), {}, "shorter than the longest text, which has 8 tokens"),
    ):
        with pytest.raises(ml.InputError) as refusal:
            ml.data.TokenStream(source, 8, **options)
        assert words in str(refusal.value)


def test_ids_beyond_the_vocabulary_are_named_with_their_place(tmp_path: Path) -> None:
    ids = np.zeros(100, dtype=np.uint16)
    ids[70] = 9
    ids.tofile(tmp_path / "ids.bin")
    with pytest.raises(ml.InputError, match=r"ids from 0 to 4; got id 9 at position 70 of '.*ids.bin'"):
        ml.priority_graphs(ml.data.TokenStream(tmp_path / "ids.bin", 3, n_vocabulary=5, chunk=30))
