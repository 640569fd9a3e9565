"""Reviews as paper B takes them: aclImdb, Yelp's lines, two classes, parts of a source, and their encoding."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from experiments.reviews import (
    ImdbFolder,
    ReviewPart,
    Reviews,
    TwoClassFile,
    YelpLines,
    encode_reviews,
    two_classes,
)
from experiments.texts import TextFile, TextPipeline
from marginlens.errors import InputError
from refusals import refused

# ---- labels


@pytest.mark.parametrize(
    ("labels", "y", "classes"),
    [
        ([0, 1, 0], [-1, 1, -1], ("0", "1")),
        ([-1.0, 1, "1"], [-1, 1, 1], ("-1", "1")),
        (["10", "9"], [1, -1], ("9", "10")),
        (["pos", " neg "], [1, -1], ("neg", "pos")),
        ([True, False], [1, -1], ("False", "True")),
        (["good", "Bad"], [1, -1], ("Bad", "good")),
        (["a", "A"], [1, -1], ("A", "a")),
        (["nan", "inf"], [1, -1], ("inf", "nan")),
        (["nan", "3", "3"], [1, -1, -1], ("3", "nan")),
        (np.array([2, 5], dtype=np.int8), [-1, 1], ("2", "5")),
    ],
)
def test_only_two_classes_are_accepted(labels: object, y: list[int], classes: tuple[str, str]) -> None:
    found, names = two_classes(labels)  # type: ignore[arg-type]
    assert found.tolist() == y
    assert names == classes


# ---- files


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", b""),
        ("a.csv", b"text,label\n"),
        ("a.csv", b"text,label\na,1\nb\n"),
        ("a.csv", b"text,label\n\xff\xfe,1\n"),
        ("a.csv", b'text,label\n"never closed,1\nb,0\n'),
        ("a.parquet", b""),
        ("a.parquet", b"PAR1 and nothing else PAR1"),
        ("a.parquet", b"text,label\n"),
    ],
)
def test_invalid_tables_are_refused(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as refusal:
        TwoClassFile(TextFile(tmp_path / name)).read()
    assert refusal.value.argument in ("path", "text", "label", "encoding")
    assert "\n" not in str(refusal.value)


# ---- parts


@pytest.fixture
def source(tmp_path: Path) -> TwoClassFile:
    """100 reviews, 70 of them positive, every fifth in the part "b", each text twice."""
    rows = [
        f"film number{i // 2} {'good' if i < 70 else 'bad'},{int(i < 70)},{'b' if i % 5 == 0 else 'a'}\n"
        for i in range(100)
    ]
    (tmp_path / "reviews.csv").write_text("".join(["text,label,split\n", *rows]), encoding="utf-8")
    return TwoClassFile(TextFile(tmp_path / "reviews.csv"))


def test_held_out_shares_are_per_class_and_keep_equal_texts_together(source: TwoClassFile) -> None:
    reviews = ReviewPart(source, hold_out=0.2).read()
    held = reviews.in_part("held-out")
    assert [int(np.sum(held & (reviews.y == sign))) for sign in (-1, 1)] == [6, 14]
    assert np.array_equal(~held, reviews.in_part("train"))
    distinct = [set(np.array(reviews.texts)[which]) for which in (held, ~held)]
    assert [len(texts) for texts in distinct] == [10, 40]
    assert not distinct[0] & distinct[1]
    assert np.array_equal(ReviewPart(source, hold_out=0.2).read().split, reviews.split)
    assert not np.array_equal(ReviewPart(source, hold_out=0.2, seed=1).read().split, reviews.split)


def test_samples_keep_the_order_and_proportion_of_their_source(source: TwoClassFile) -> None:
    part = ReviewPart(source, "b").read()
    assert part.texts == source.read().texts[::5]
    assert set(part.split) == {"b"}
    sample = ReviewPart(source, sample=20).read()
    assert (len(sample), int(np.sum(sample.y > 0))) == (20, 14)
    numbers = [int(text.split("number")[1].split()[0]) for text in sample.texts]
    assert numbers == sorted(numbers)


def test_reviews_of_a_source_are_encoded_with_their_parts(tmp_path):
    (tmp_path / "r.csv").write_text(
        "text,label,split\ngood film,1,train\n!!!,0,train\nbad film,0,train\nodd odd,0,test\n"
    )
    source, pipeline = TwoClassFile(TextFile(tmp_path / "r.csv")), TextPipeline(min_count=1, empty="drop")
    encoded = encode_reviews(source, pipeline)
    assert encoded.kept.tolist() == [0, 2, 3]
    assert (encoded.split.tolist(), encoded.classes) == (["train", "train", "test"], ("0", "1"))
    assert encoded.left_out == {"no token left": 1}
    assert encode_reviews(source, replace(pipeline, min_count=2), count_in="train").names == ("film",)
    with refused("count_in"):
        encode_reviews(source, pipeline, count_in="dev")
    held_out = encode_reviews(ReviewPart(source, "train"), pipeline)
    assert set(held_out.split) == {"train"}


# ---- aclImdb


def write_imdb(root: Path) -> Path:
    for split in ("train", "test"):
        for name in ("pos", "neg"):
            folder = root / split / name
            folder.mkdir(parents=True)
            for number in (2, 10):
                (folder / f"{number}_7.txt").write_text(f"{split} {name} {number} \u00e9", encoding="utf-8")
    (root / "train" / "unsup").mkdir()
    (root / "train" / "unsup" / "0_0.txt").write_text("unlabelled")
    return root


def test_an_aclimdb_folder_is_read(tmp_path: Path) -> None:
    write_imdb(tmp_path / "aclImdb")
    for path in (tmp_path, tmp_path / "aclImdb"):
        reviews = ImdbFolder(path).read()
        assert reviews.texts[:4] == [f"train {name} {number} \u00e9" for name in ("neg", "pos") for number in (2, 10)]
        assert reviews.y.tolist() == [-1, -1, 1, 1] * 2
        assert reviews.split is not None
        assert reviews.split.tolist() == ["train"] * 4 + ["test"] * 4
    (tmp_path / "aclImdb/test/pos/2_7.txt").write_bytes(b"\xff")
    with refused("path"):
        ImdbFolder(tmp_path).read()


# ---- Yelp


def write_yelp(path: Path, reviews: list[tuple[str, object]]) -> Path:
    path.write_text("\n".join(json.dumps({"review_id": "x", "text": text, "stars": stars}) for text, stars in reviews))
    return path


def read_yelp(path: Path, **rules: int) -> Reviews:
    return YelpLines(path, **rules).read()


def test_yelp_reviews_follow_the_rules_of_the_dataset(tmp_path: Path) -> None:
    lengths = [999, 1000, 1500, 1501]
    reviews = [("x" * length, stars) for length in lengths for stars in (1.0, 2.0, 3.0, 4.0, 5.0)]
    path = write_yelp(tmp_path / "a.json", reviews)
    found = read_yelp(path)
    assert [len(text) for text in found.texts] == [1000] * 4 + [1500] * 4
    assert found.y.tolist() == [-1, -1, 1, 1] * 2
    assert found.left_out == {"3 stars": 4, "under 1000 characters": 4, "over 1500 characters": 4}
    assert len(read_yelp(path, shortest=0, longest=2000)) == 16


@pytest.mark.parametrize(
    ("content", "argument", "says"),
    [
        (b"", "path", "no texts"),
        (b'{"text": "a", "stars": 1}\n{"text"\n', "path", "cannot be read"),
        (b'{"text": "\xff", "stars": 1}\n', "path", "cannot be read"),
        (b'{"review": "a", "stars": 1}\n', "text", "'text'"),
        (b"[1]\n", "text", "'text'"),
        (b'{"text": "a", "rating": 1}\n', "label", "'stars'"),
        (b'{"text": "a", "stars": 6}\n', "path", "6 in review 1"),
        (b'{"text": "a", "stars": true}\n', "path", "True in review 1"),
        (b'{"text": "a", "stars": 1}\n', "path", "0 that count (0 with 3 stars, 1 with under 1000 characters"),
        (json.dumps({"text": "a" * 1200, "stars": 5}).encode(), "path", "1 that count"),
    ],
)
def test_invalid_yelp_files_are_refused(tmp_path: Path, content: bytes, argument: str, says: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        YelpLines(path).read()
    assert caught.value.argument == argument
    assert says in caught.value.got
