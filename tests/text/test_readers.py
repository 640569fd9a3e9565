"""Reviews from tables, from the folder aclImdb and from Yelp's lines, and a sentence for whatever is wrong with them."""

import csv
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from marginlens.errors import InputError, MissingExtra
from marginlens.text import ImdbFolder, ReviewPart, Reviews, ReviewTable, YelpLines, review_source, two_classes

ROWS = [('Good, "really"\ngood', "positive"), ("Bad caf\u00e9", "negative"), ("NA", "positive")]


def write_csv(path: Path, names: list[str], rows: list[tuple[str, ...]], delimiter: str = ",") -> Path:
    with path.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream, delimiter=delimiter).writerows([names, *rows])
    return path


def write_parquet(path: Path, **columns: list[object]) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table(columns), path)
    return path


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


@pytest.mark.parametrize(
    "labels", [[1, 1], [], ["a", "b", "c", "d", "e"], ["a", None], ["a", " "], [1.0, float("nan")]]
)
def test_labels_that_are_not_two_classes(labels: list[object]) -> None:
    with pytest.raises(InputError, match=r"exactly two classes|a label for every review"):
        two_classes(labels)


# ---- tables


@pytest.mark.parametrize(("name", "delimiter"), [("reviews.csv", ","), ("reviews.tsv", "\t"), ("reviews", ",")])
def test_csv(tmp_path: Path, name: str, delimiter: str) -> None:
    path = write_csv(tmp_path / name, ["review", "sentiment"], ROWS, delimiter)
    reviews = review_source(path).read()
    assert reviews.texts == [text for text, _ in ROWS]
    assert reviews.y.tolist() == [1, -1, 1]
    assert reviews.classes == ("negative", "positive")
    assert reviews.split is None
    assert repr(reviews) == "Reviews(3: 1 'negative' as -1, 2 'positive' as +1)"


def test_csv_with_long_texts_and_a_mark_at_its_start(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"\xef\xbb\xbftext,label\r\n" + b"a" * 200_000 + b",1\r\n\r\nb,0\r\n")
    assert [len(text) for text in ReviewTable(path).read().texts] == [200_000, 1]


def test_an_absent_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_csv(tmp_path / "a.csv", ["text", "label"], ROWS)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"Reading tables needs the package pyarrow.*\[text\]"):
        ReviewTable(path).read()


def test_parquet_with_split_and_columns_by_name(tmp_path: Path) -> None:
    columns = {"text": ["x", "y"], "body": ["a", "b"], "stars": [5, 1], "label": [1, 0], "split": ["train", "test"]}
    path = write_parquet(tmp_path / "a.bin", **columns)
    by_default, by_name = review_source(path).read(), review_source(path, text="body", label="stars").read()
    assert by_default.texts == ["x", "y"]
    assert by_default.split is not None
    assert by_default.split.tolist() == ["train", "test"]
    assert by_name.texts == ["a", "b"]
    assert by_name.classes == ("1", "5")
    assert by_name.y.tolist() == [1, -1]


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (
            {"text": "body"},
            "The 'text' argument must be a column of .*, which has 'words', 'label', 'mark'; got 'body'",
        ),
        ({}, "The 'text' argument.*got none of 'text', 'review', 'sentence', 'content' instead"),
        ({"text": "words", "label": "stars"}, "The 'label' argument.*got 'stars'"),
        ({"text": "words", "split": "part"}, "The 'split' argument.*got 'part'"),
        ({"text": "words", "label": "mark"}, r"The 'label' argument.*two classes; got 3 \('1', '2', '3'\)"),
    ],
)
def test_missing_columns(tmp_path: Path, form: str, asked: dict[str, str], says: str) -> None:
    columns = {"words": ["a", "b", "c"], "label": ["1", "0", "1"], "mark": ["1", "2", "3"]}
    rows = list(zip(*columns.values(), strict=True))
    path = tmp_path / f"a.{form}"
    write_csv(path, list(columns), rows) if form == "csv" else write_parquet(path, **columns)
    with pytest.raises(InputError, match=says):
        ReviewTable(path, **asked).read()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", b""),
        ("a.csv", b"text,label\n"),
        ("a.csv", b"text,label\na,1\nb\n"),
        ("a.csv", b"text,label\n\xff\xfe,1\n"),
        ("a.csv", b"text,label,text\na,1,b\nc,0,d\n"),
        ("a.csv", b'text,label\n"never closed,1\nb,0\n'),
        ("a.parquet", b""),
        ("a.parquet", b"PAR1 and nothing else PAR1"),
        ("a.parquet", b"text,label\n"),
    ],
)
def test_bad_tables(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=f"{name}'") as refusal:
        review_source(tmp_path / name).read()
    assert "\n" not in str(refusal.value)


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


def test_the_folder_aclimdb(tmp_path: Path) -> None:
    write_imdb(tmp_path / "aclImdb")
    for path in (tmp_path, tmp_path / "aclImdb"):
        source = review_source(path)
        assert isinstance(source, ImdbFolder)
        reviews = source.read()
        assert reviews.texts[:4] == [f"train {name} {number} \u00e9" for name in ("neg", "pos") for number in (2, 10)]
        assert reviews.y.tolist() == [-1, -1, 1, 1] * 2
        assert reviews.split is not None
        assert reviews.split.tolist() == ["train"] * 4 + ["test"] * 4
    before = ImdbFolder(tmp_path).digest()
    assert ImdbFolder(tmp_path / "aclImdb").digest() == before
    (tmp_path / "aclImdb/test/pos/2_7.txt").write_bytes(b"\xff")
    assert ImdbFolder(tmp_path).digest() != before
    with pytest.raises(InputError, match=r"2_7.txt', which is not at byte 0"):
        ImdbFolder(tmp_path).read()


# ---- Yelp


def write_yelp(path: Path, reviews: list[tuple[str, object]]) -> Path:
    path.write_text("\n".join(json.dumps({"review_id": "x", "text": text, "stars": stars}) for text, stars in reviews))
    return path


def read_yelp(path: Path, **rules: int) -> Reviews:
    return YelpLines(path, **rules).read()


def test_yelps_rules(tmp_path: Path) -> None:
    lengths = [999, 1000, 1500, 1501]
    reviews = [("x" * length, stars) for length in lengths for stars in (1.0, 2.0, 3.0, 4.0, 5.0)]
    path = write_yelp(tmp_path / "a.json", reviews)
    assert isinstance(review_source(path), YelpLines)
    found = read_yelp(path)
    assert [len(text) for text in found.texts] == [1000] * 4 + [1500] * 4
    assert found.y.tolist() == [-1, -1, 1, 1] * 2
    assert found.left_out == {"3 stars": 4, "under 1000 characters": 4, "over 1500 characters": 4}
    assert len(read_yelp(path, shortest=0, longest=2000)) == 16


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "which is empty"),
        (b'{"text": "a", "stars": 1}\n{"text"\n', "in line 2 of"),
        (b'{"text": "\xff", "stars": 1}\n', "in line 1 of"),
        (b'{"text": "a", "rating": 1}\n', "in line 1 of"),
        (b"[1]\n", "in line 1 of"),
        (b'{"text": 3, "stars": 1}\n', "in line 1 of"),
        (b'{"text": "a", "stars": 6}\n', "in line 1 of"),
        (b'{"text": "a", "stars": true}\n', "in line 1 of"),
        (b'{"text": "a", "stars": 1}\n', r"with 0 that count \(0 with 3 stars, 1 with under 1000 characters"),
        (json.dumps({"text": "a" * 1200, "stars": 5}).encode(), "exactly two classes; got .* with 1 that count"),
    ],
)
def test_bad_yelp_files(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    with pytest.raises(InputError, match=says):
        review_source(path).read()


# ---- parts


@pytest.fixture
def source(tmp_path: Path) -> ReviewTable:
    """100 reviews, 70 of them positive, every fifth in the part "b", each text twice."""
    rows = [
        (f"film number{i // 2} {'good' if i < 70 else 'bad'}", str(int(i < 70)), "b" if i % 5 == 0 else "a")
        for i in range(100)
    ]
    return ReviewTable(write_csv(tmp_path / "reviews.csv", ["text", "label", "split"], rows))


def test_a_share_of_each_class_is_held_out_and_equal_texts_stay_together(source: ReviewTable) -> None:
    reviews = ReviewPart(source, hold_out=0.2).read()
    held = reviews.in_part("held-out")
    assert [int(np.sum(held & (reviews.y == sign))) for sign in (-1, 1)] == [6, 14]
    assert np.array_equal(~held, reviews.in_part("train"))
    distinct = [set(np.array(reviews.texts)[which]) for which in (held, ~held)]
    assert [len(texts) for texts in distinct] == [10, 40]
    assert not distinct[0] & distinct[1]
    assert np.array_equal(ReviewPart(source, hold_out=0.2).read().split, reviews.split)
    assert not np.array_equal(ReviewPart(source, hold_out=0.2, seed=1).read().split, reviews.split)


def test_a_part_and_a_sample_are_taken_in_the_sources_order_and_proportion(source: ReviewTable) -> None:
    part = ReviewPart(source, "b").read()
    assert part.texts == source.read().texts[::5]
    assert set(part.split) == {"b"}
    sample = ReviewPart(source, sample=20).read()
    assert (len(sample), int(np.sum(sample.y > 0))) == (20, 14)
    numbers = [int(text.split("number")[1].split()[0]) for text in sample.texts]
    assert numbers == sorted(numbers)
