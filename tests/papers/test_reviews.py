"""Reviews as paper B takes them: two classes, parts of a source, and their encoding."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from marginlens.errors import InputError
from marginlens.text import TextPipeline
from marginlens.text.text_files import TextFile
from marginlens_papers.reviews import ReviewPart, TwoClassFile, encode_reviews, two_classes
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
def test_two_classes(labels: object, y: list[int], classes: tuple[str, str]) -> None:
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
def test_bad_tables(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=r"'(path|text|label|encoding)' argument") as refusal:
        TwoClassFile(TextFile(tmp_path / name)).read()
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


def test_a_share_of_each_class_is_held_out_and_equal_texts_stay_together(source: TwoClassFile) -> None:
    reviews = ReviewPart(source, hold_out=0.2).read()
    held = reviews.in_part("held-out")
    assert [int(np.sum(held & (reviews.y == sign))) for sign in (-1, 1)] == [6, 14]
    assert np.array_equal(~held, reviews.in_part("train"))
    distinct = [set(np.array(reviews.texts)[which]) for which in (held, ~held)]
    assert [len(texts) for texts in distinct] == [10, 40]
    assert not distinct[0] & distinct[1]
    assert np.array_equal(ReviewPart(source, hold_out=0.2).read().split, reviews.split)
    assert not np.array_equal(ReviewPart(source, hold_out=0.2, seed=1).read().split, reviews.split)


def test_a_part_and_a_sample_are_taken_in_the_sources_order_and_proportion(source: TwoClassFile) -> None:
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
