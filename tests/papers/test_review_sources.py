"""Reviews from the folder aclImdb and from Yelp's lines, and a sentence for whatever is wrong with them."""

import json
from pathlib import Path

import pytest

from marginlens.errors import InputError
from marginlens_papers.reviews import ImdbFolder, Reviews, YelpLines

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
        reviews = ImdbFolder(path).read()
        assert reviews.texts[:4] == [f"train {name} {number} \u00e9" for name in ("neg", "pos") for number in (2, 10)]
        assert reviews.y.tolist() == [-1, -1, 1, 1] * 2
        assert reviews.split is not None
        assert reviews.split.tolist() == ["train"] * 4 + ["test"] * 4
    (tmp_path / "aclImdb/test/pos/2_7.txt").write_bytes(b"\xff")
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
    found = read_yelp(path)
    assert [len(text) for text in found.texts] == [1000] * 4 + [1500] * 4
    assert found.y.tolist() == [-1, -1, 1, 1] * 2
    assert found.left_out == {"3 stars": 4, "under 1000 characters": 4, "over 1500 characters": 4}
    assert len(read_yelp(path, shortest=0, longest=2000)) == 16


@pytest.mark.parametrize(
    ("content", "argument", "says"),
    [
        (b"", "path", "no texts"),
        (b'{"text": "a", "stars": 1}\n{"text"\n', "path", "line 2"),
        (b'{"text": "\xff", "stars": 1}\n', "encoding", "byte 10"),
        (b'{"review": "a", "stars": 1}\n', "text", "line 1"),
        (b"[1]\n", "path", "line 1"),
        (b'{"text": "a", "rating": 1}\n', "path", "None in review 1"),
        (b'{"text": "a", "stars": 6}\n', "path", "6 in review 1"),
        (b'{"text": "a", "stars": true}\n', "path", "True in review 1"),
        (b'{"text": "a", "stars": 1}\n', "path", "0 that count (0 with 3 stars, 1 with under 1000 characters"),
        (json.dumps({"text": "a" * 1200, "stars": 5}).encode(), "path", "1 that count"),
    ],
)
def test_bad_yelp_files(tmp_path: Path, content: bytes, argument: str, says: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        YelpLines(path).read()
    assert caught.value.argument == argument
    assert says in caught.value.got
