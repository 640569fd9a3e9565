"""Encoded reviews come back from the cache as they went in, and only when bytes and settings are the same."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from marginlens.errors import InputError
from marginlens.text import (
    EncodedReviews,
    Reviews,
    ReviewTable,
    StopWords,
    TextPipeline,
    WordPiece,
    cache_folder,
    encode_reviews,
)
from marginlens.text.cache import cache_key

PIPELINE = TextPipeline(min_count=1, empty="drop")
TABLE = "text,label,split\ngood film,1,train\nthe,1,train\nbad film,0,train\nodd film,0,test\n"


@pytest.fixture
def source(tmp_path: Path) -> ReviewTable:
    path = tmp_path / "reviews.csv"
    path.write_text(TABLE)
    return ReviewTable(path)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list that grows whenever a table is read."""
    seen: list[str] = []
    read = ReviewTable.read

    def noted(self: ReviewTable) -> Reviews:
        seen.append(str(self.path))
        return read(self)

    monkeypatch.setattr(ReviewTable, "read", noted)
    return seen


def assert_same(one: EncodedReviews, other: EncodedReviews) -> None:
    for name in ("tokens", "offsets", "y"):
        a, b = getattr(one.data, name), getattr(other.data, name)
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype
    assert one.vocabulary.names == other.vocabulary.names
    np.testing.assert_array_equal(one.vocabulary.counts, other.vocabulary.counts)
    np.testing.assert_array_equal(one.kept, other.kept)
    assert one.split is not None
    assert other.split is not None
    assert one.split.tolist() == other.split.tolist()
    assert (one.classes, one.left_out) == (other.classes, other.left_out)


def test_the_second_time_comes_from_the_cache(source: ReviewTable, reads: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "cache"
    first = encode_reviews(source, PIPELINE, cache=folder)
    second = encode_reviews(source, PIPELINE, cache=folder)
    assert len(reads) == 1
    assert_same(first, second)
    assert first.kept.tolist() == [0, 2, 3]
    assert first.left_out == {"no token left": 1}
    assert first.classes == ("0", "1")
    key = cache_key(source, PIPELINE)
    assert sorted(path.name for path in folder.iterdir()) == [f"{key}.json", f"{key}.npz"]
    assert second.vocabulary.encode(["a good film"], [1]).data[0][0].tolist() == first.data[0][0].tolist()
    assert_same(first, encode_reviews(source, PIPELINE))
    assert len(reads) == 2


def test_a_copy_of_the_file_has_the_same_key(source: ReviewTable, tmp_path: Path) -> None:
    (tmp_path / "copy.csv").write_text(TABLE)
    assert cache_key(ReviewTable(tmp_path / "copy.csv"), PIPELINE) == cache_key(source, PIPELINE)


@pytest.mark.parametrize(
    "other",
    [
        replace(PIPELINE, min_count=2),
        replace(PIPELINE, empty="refuse"),
        replace(PIPELINE, stop_words=StopWords(keep_negations=True)),
        replace(PIPELINE, stop_words=StopWords(frozenset({"film"}))),
        replace(PIPELINE, stop_words=None),
        replace(PIPELINE, pieces=WordPiece(("a", "[UNK]"))),
        replace(PIPELINE, cleaning=replace(PIPELINE.cleaning, keep_case=True)),
    ],
)
def test_other_settings_have_other_keys(source: ReviewTable, other: TextPipeline) -> None:
    assert cache_key(source, other) != cache_key(source, PIPELINE)


def test_other_bytes_columns_and_parts_have_other_keys(source: ReviewTable, tmp_path: Path) -> None:
    keys = {
        cache_key(source, PIPELINE),
        cache_key(source, PIPELINE, "train"),
        cache_key(replace(source, text="split"), PIPELINE),
    }
    for ending in ("tsv", "parquet"):
        (tmp_path / f"reviews.{ending}").write_text(TABLE)  # the same bytes, read in another way
        keys.add(cache_key(ReviewTable(tmp_path / f"reviews.{ending}"), PIPELINE))
    Path(source.path).write_text(TABLE + "new film,1,test\n")
    keys.add(cache_key(source, PIPELINE))
    assert len(keys) == 6


def test_another_version_of_unicode_has_another_key(source: ReviewTable, monkeypatch: pytest.MonkeyPatch) -> None:
    before = cache_key(source, PIPELINE)
    monkeypatch.setattr("marginlens.text.cache.unicodedata.unidata_version", "1.0")
    assert cache_key(source, PIPELINE) != before


def test_more_tokens_than_two_bytes_can_number_come_back(tmp_path: Path) -> None:
    words = " ".join(f"w{k}" for k in range(2**16 + 2))
    (tmp_path / "many.csv").write_text(f"text,label,split\n{words},1,train\n{words},0,train\n")
    source, pipeline = ReviewTable(tmp_path / "many.csv"), TextPipeline(stop_words=None, min_count=1)
    assert_same(*(encode_reviews(source, pipeline, cache=tmp_path / "cache") for _ in range(2)))


@pytest.mark.parametrize("ending", ["npz", "json"])
@pytest.mark.parametrize("content", [b"", b"{}", b"PK\x03\x04 cut short", None])
def test_a_damaged_cache_is_made_again(source: ReviewTable, tmp_path: Path, ending: str, content: bytes | None) -> None:
    first = encode_reviews(source, PIPELINE, cache=tmp_path / "cache")
    path = tmp_path / "cache" / f"{cache_key(source, PIPELINE)}.{ending}"
    whole = path.read_bytes()
    path.unlink() if content is None else path.write_bytes(content)
    assert_same(first, encode_reviews(source, PIPELINE, cache=tmp_path / "cache"))
    if ending == "json":
        assert path.read_bytes() == whole
    assert path.stat().st_size == len(whole)


def test_pickled_arrays_are_never_loaded(source: ReviewTable, reads: list[str], tmp_path: Path) -> None:
    encode_reviews(source, PIPELINE, cache=tmp_path)
    key = cache_key(source, PIPELINE)
    np.savez(tmp_path / f"{key}.npz", tokens=np.array([object()], dtype=object))
    said = json.loads((tmp_path / f"{key}.json").read_bytes())
    said["sha256"] = __import__("hashlib").sha256((tmp_path / f"{key}.npz").read_bytes()).hexdigest()
    (tmp_path / f"{key}.json").write_text(json.dumps(said))
    encode_reviews(source, PIPELINE, cache=tmp_path)
    assert len(reads) == 2


def test_an_interrupted_write_leaves_nothing(
    source: ReviewTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: Path, target: Path) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        encode_reviews(source, PIPELINE, cache=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_no_text_of_a_review_is_kept(source: ReviewTable, tmp_path: Path) -> None:
    encode_reviews(source, PIPELINE, cache=tmp_path / "cache")
    for path in (tmp_path / "cache").iterdir():
        assert b"good film" not in path.read_bytes()


def test_tokens_counted_in_one_part(source: ReviewTable) -> None:
    found = encode_reviews(source, replace(PIPELINE, min_count=2), count_in="train")
    assert found.names == found.vocabulary.names == ("film",)
    assert found.vocabulary.counts.tolist() == [2]
    assert len(found.part("train")) == 2
    assert found.part("test").y.tolist() == [-1]
    assert repr(found) == f"EncodedReviews({found.data!r})"
    with pytest.raises(
        InputError, match=r"'name' argument must be a part that the reviews name \('test', 'train'\); got 'dev'"
    ):
        found.part("dev")
    with pytest.raises(InputError, match=r"'count_in'.*\('test', 'train'\); got 'dev'"):
        encode_reviews(source, PIPELINE, count_in="dev")


def test_a_source_without_parts(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\ngood,1\nbad,0\n")
    with pytest.raises(InputError, match=r"\(none, so leave it out\); got 'train'"):
        encode_reviews(ReviewTable(tmp_path / "a.csv"), PIPELINE, count_in="train")


def test_a_cache_that_cannot_be_made(source: ReviewTable) -> None:
    with pytest.raises(InputError, match=r"'cache' argument must be a folder that can be made"):
        encode_reviews(source, PIPELINE, cache=Path(source.path) / "cache")


def test_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "marginlens" / "text"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "marginlens" / "text"
