"""Reviews from tables, from the folder aclImdb and from Yelp's lines, and a sentence for whatever is wrong with them."""

import csv
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from marginlens.errors import InputError, MissingExtra
from marginlens.text import ImdbFolder, Reviews, ReviewTable, YelpLines, review_source, two_classes

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
    ("labels", "says"),
    [
        ([1, 1], r"exactly two classes; got 1 ('1')"),
        ([], "exactly two classes; got none"),
        (["a", "b", "c", "d", "e"], "got 5 ('a', 'b', 'c', 'd', ...)"),
        (["a", None], "a label for every review; got none at index 1"),
        (["a", " "], "got none at index 1"),
        ([1.0, float("nan")], "got none at index 1"),
    ],
)
def test_labels_that_are_not_two_classes(labels: list[object], says: str) -> None:
    with pytest.raises(InputError, match=re.escape(says)):
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


def test_csv_needs_no_other_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("pandas", "pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, package, None)
    assert len(ReviewTable(write_csv(tmp_path / "a.csv", ["text", "label"], ROWS)).read()) == 3
    (tmp_path / "a.parquet").write_bytes(b"PAR1....PAR1")
    with pytest.raises(MissingExtra, match=r"Reading parquet needs the package pyarrow.*\[text\]"):
        ReviewTable(tmp_path / "a.parquet").read()


def test_csv_with_long_texts_and_a_mark_at_its_start(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"\xef\xbb\xbftext,label\r\n" + b"a" * 200_000 + b",1\r\n\r\nb,0\r\n")
    usual = csv.field_size_limit(1_234)
    try:
        reviews = ReviewTable(path).read()
        assert csv.field_size_limit() == 1_234  # others' limit stays as it was
    finally:
        csv.field_size_limit(usual)
    assert [len(text) for text in reviews.texts] == [200_000, 1]


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
            "The 'text' argument must be a column of .*, which has 'words', 'label', 'mark'; got 'body' instead",
        ),
        ({}, "The 'text' argument must be a column of .*; got none of 'text', 'review', 'sentence', 'content' instead"),
        ({"text": "words", "label": "stars"}, "The 'label' argument.* which has 'words', 'label', 'mark'; got 'stars'"),
        ({"text": "words", "split": "part"}, "The 'split' argument.*got 'part'"),
        (
            {"text": "words", "label": "mark"},
            r"The 'label' argument must be labels of exactly two classes; got 3 \('1', '2', '3'\)",
        ),
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
    ("name", "content", "says"),
    [
        ("a.csv", b"", "a.csv', which is empty"),
        ("a.csv", b"text,label\n", "which has names but no rows"),
        ("a.csv", b"text,label\na,1\nb\n", "with 1 fields in the row that ends on line 3 and 2 names of columns"),
        ("a.csv", b"text,label\n\xff\xfe,1\n", "which is not UTF-8 after line 1"),
        ("a.parquet", b"", "a.parquet', which is empty"),
        ("a.parquet", b"PAR1 and nothing else PAR1", "a.parquet', which is damaged"),
        ("a.parquet", b"text,label\n", "a.parquet', which is damaged"),
    ],
)
def test_bad_tables(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow.parquet")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=says):
        review_source(tmp_path / name).read()


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_columns_of_one_name_are_not_chosen_from(tmp_path: Path, form: str) -> None:
    path = tmp_path / f"a.{form}"
    if form == "csv":
        write_csv(path, ["text", "label", "text"], [("a", "1", "b"), ("c", "0", "d")])
    else:
        pyarrow = pytest.importorskip("pyarrow")
        columns = [pyarrow.array(one) for one in (["a", "c"], [1, 0], ["b", "d"])]
        pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table(columns, ["text", "label", "text"]), path)
    with pytest.raises(
        InputError, match=r"'text' argument must be a column that .* has once; got 'text', which it has 2"
    ):
        review_source(path).read()


def test_parquet_without_a_text_in_a_row(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="with nothing for a text in row 1"):
        ReviewTable(write_parquet(tmp_path / "a.parquet", text=["a", None], label=[0, 1])).read()
    with pytest.raises(InputError, match="with a int for a text in row 0"):
        ReviewTable(write_parquet(tmp_path / "a.parquet", text=[1, 2], label=[0, 1])).read()
    with pytest.raises(InputError, match="which has no rows"):
        ReviewTable(write_parquet(tmp_path / "a.parquet", text=[], label=[])).read()


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none.csv', which is not there"):
        review_source(tmp_path / "none.csv")
    for source in (ReviewTable(tmp_path / "none.csv"), YelpLines(tmp_path / "none.json")):
        with pytest.raises(InputError, match=r"No such file"):
            source.read()
    with pytest.raises(InputError, match="got the folder"):
        ReviewTable(tmp_path).read()
    with pytest.raises(
        InputError, match="'label' argument must be left out unless the reviews are in a table; got 'x'"
    ):
        review_source(tmp_path, label="x")


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
    first, second = (tmp_path / "aclImdb/train/neg" / name for name in ("2_7.txt", "10_7.txt"))
    one, other = first.read_bytes(), second.read_bytes()
    second.write_bytes(b"\0" + other)
    moved = ImdbFolder(tmp_path).digest()
    first.write_bytes(one + b"train/neg/10_7.txt\0\0" + other)
    second.unlink()
    assert ImdbFolder(tmp_path).digest() != moved  # the same characters in one file instead of two
    first.write_bytes(one)
    second.write_bytes(other)
    assert ImdbFolder(tmp_path).digest() == before
    (tmp_path / "aclImdb/test/pos/2_7.txt").write_bytes(b"\xff")
    assert ImdbFolder(tmp_path).digest() != before
    with pytest.raises(InputError, match=r"2_7.txt', which is not at byte 0"):
        ImdbFolder(tmp_path).read()


def test_a_folder_that_is_not_aclimdb(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the folder aclImdb.*where train/neg holds no .txt file"):
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


def test_yelps_draw_is_random_and_repeatable(tmp_path: Path) -> None:
    path = write_yelp(tmp_path / "a.json", [(f"{i}", 1 + 4 * (i % 2)) for i in range(40)])
    draws = [read_yelp(path, shortest=0, n_reviews=10, seed=seed) for seed in range(400)]
    numbers = np.array([[int(text) for text in draw.texts] for draw in draws])
    assert (np.diff(numbers, axis=1) > 0).all()
    assert draws[0].left_out["not drawn"] == 30
    assert read_yelp(path, shortest=0, n_reviews=10).texts == draws[0].texts
    counts = np.bincount(numbers.ravel(), minlength=40)  # each 100 expected, standard deviation 8.7
    assert counts.min() > 60
    assert counts.max() < 140
    assert len(read_yelp(path, shortest=0, n_reviews=100)) == 40
    four = write_yelp(tmp_path / "b.json", [(f"{i}", 1 + 4 * (i % 2)) for i in range(4)])
    drawn = [int(text) for seed in range(400) for text in read_yelp(four, shortest=0, n_reviews=3, seed=seed).texts]
    left_out = 400 - np.bincount(drawn, minlength=4)  # each 100 expected again
    assert left_out.min() > 60
    assert left_out.max() < 140


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "which is empty"),
        (b'{"text": "a", "stars": 1}\n{"text"\n', "line 2 of .*, which is not JSON"),
        (b'{"text": "\xff", "stars": 1}\n', "line 1 of .*, which is not JSON"),
        (b'{"text": "a", "rating": 1}\n', r"line 1 of .* without 'stars' \(it has 'text', 'rating'\)"),
        (b"[1]\n", r"without 'text' \(it has none\)"),
        (b'{"text": 3, "stars": 1}\n', "whose 'text' is no string"),
        (b'{"text": "a", "stars": 6}\n', "from 1 to 5; got line 1 of .* with 6 stars"),
        (b'{"text": "a", "stars": "5"}\n', "with '5' stars"),
        (b'{"text": "a", "stars": true}\n', "with True stars"),
        (b'{"text": "a", "stars": 1}\n', "with none \\(0 with 3 stars, 1 with under 1000 characters"),
        (json.dumps({"text": "a" * 1200, "stars": 5}).encode(), r"exactly two classes; got .* with 1 that are all \+1"),
    ],
)
def test_bad_yelp_files(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    with pytest.raises(InputError, match=says):
        review_source(path).read()


def test_bad_yelp_rules() -> None:
    with pytest.raises(InputError, match="'longest' argument must be a whole number of at least 1000"):
        YelpLines("a", longest=10)
    with pytest.raises(InputError, match="'n_reviews'"):
        YelpLines("a", n_reviews=0)


def test_prose_and_wide_tables_are_not_quoted_whole(tmp_path: Path) -> None:
    path = tmp_path / "prose.csv"
    write_csv(path, ["word " * 3000, *(f"c{k}" for k in range(40))], [])
    with pytest.raises(InputError, match=r"which has 'word word .*…', 'c0', .*'c6' and 33 more; got none of") as told:
        ReviewTable(path).read()
    assert len(str(told.value)) < 400 + len(str(path))
