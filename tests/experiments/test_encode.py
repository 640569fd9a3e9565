"""`python -m experiments.encode`: labelled texts of every form of file as token ids."""

import bz2
import csv
import gzip
import json
import lzma
from pathlib import Path

import numpy as np
import pytest

from experiments.encode import main as encode
from experiments.texts import TextFile
from marginlens.data.files import read_labelled
from refusals import refused

GOOD, BAD, FILLER = ("wonderful", "superb"), ("dull", "awful"), ("the", "film", "plot", "scene", "was", "with")
ROWS = [(f"{'superb' if k % 2 else 'dull'} film, café {k}", "pos" if k % 2 else "neg") for k in range(40)]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder of the test's own to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_table(path, n):
    rng = np.random.default_rng(0)
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(("text", "label", "split"))
        for i in range(n):
            words = rng.permutation([*rng.choice(FILLER, 6), rng.choice(GOOD if i % 2 else BAD)])
            rows.writerow([" ".join(words), "pos" if i % 2 else "neg", "test" if i % 4 > 1 else "train"])


def table(delimiter=",", *, header=True):
    lines = ([["text", "label"]] if header else []) + [list(row) for row in ROWS]
    return "".join(delimiter.join(f'"{cell}"' for cell in line) + "\n" for line in lines)


def json_lines():
    return "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in ROWS)


FORMS = {
    "comma.csv": (lambda: table().encode(), {}),
    "semicolon.csv": (lambda: table(";").encode(), {}),
    "tab.tsv": (lambda: table("\t").encode(), {}),
    "bar.csv": (lambda: table("|").encode(), {"delimiter": "|"}),
    "latin.csv": (lambda: table().encode("latin-1"), {"encoding": "latin-1"}),
    "utf16.csv": (lambda: table().encode("utf-16"), {"encoding": "utf-16"}),
    "marked.csv": (lambda: table().encode("utf-8-sig"), {}),
    "packed.csv.gz": (lambda: gzip.compress(table().encode()), {}),
    "packed.csv.bz2": (lambda: bz2.compress(table().encode()), {}),
    "packed.csv.xz": (lambda: lzma.compress(table().encode()), {}),
    "numbered.csv": (lambda: table(header=False).encode(), {"header": False, "text": "1", "label": "2"}),
    "lines.jsonl": (lambda: json_lines().encode(), {}),
    "lines.jsonl.gz": (lambda: gzip.compress(json_lines().encode()), {}),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_a_file_gives_the_same_texts_and_labels(tmp_path, name):
    content, options = FORMS[name]
    (tmp_path / name).write_bytes(content())
    found = TextFile(tmp_path / name, **options).rows()
    assert list(zip(found.texts, found.labels, strict=True)) == ROWS


def test_columns_are_found_by_name_and_number(tmp_path):
    (tmp_path / "t.csv").write_text("one,sentiment,three\nuno,a,drei\ndue,b,vier\n", encoding="utf-8")
    with refused("text"):
        TextFile(tmp_path / "t.csv").rows()
    assert TextFile(tmp_path / "t.csv", text="Three").rows().texts == ["drei", "vier"]
    assert TextFile(tmp_path / "t.csv", text="1").rows() == (["uno", "due"], ["a", "b"], None)


def test_a_folder_for_each_class_and_parquet_are_read(tmp_path):
    for k, (text, label) in enumerate(ROWS):
        (tmp_path / "t" / label).mkdir(parents=True, exist_ok=True)
        (tmp_path / "t" / label / f"{k:02}.txt").write_text(text, encoding="utf-8")
    found = TextFile(tmp_path / "t").rows()
    assert sorted(zip(found.texts, found.labels, strict=True)) == sorted(ROWS)
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"text": [t for t, _ in ROWS], "label": [y for _, y in ROWS]}), tmp_path / "t.parquet")
    found = TextFile(tmp_path / "t.parquet").rows()
    assert list(zip(found.texts, found.labels, strict=True)) == ROWS


@pytest.mark.parametrize("name", ["semicolon.csv", "latin.csv", "lines.jsonl.gz"])
def test_every_form_of_a_file_can_be_encoded(here, name, capsys):
    content, options = FORMS[name]
    Path(name).write_bytes(content())
    Path("pieces.txt").write_text("\n".join(["[UNK]", "superb", "dull", "film"]), encoding="utf-8")
    given = [word for option, value in options.items() for word in (f"--{option}", value)]
    assert encode([name, "--out", "ids.npz", "--pieces", "pieces.txt", "--drop", *given]) == 0
    assert "40 texts" in capsys.readouterr().out
    data, _ = read_labelled("ids.npz")
    assert np.array_equal(data.y, np.tile([-1.0, 1.0], 20))


def test_encoding_follows_the_paper_and_can_hold_out_a_share(here):
    pytest.importorskip("snowballstemmer")
    write_table("r.csv", 900)
    stems = ["wonder", "superb", "dull", "aw", "film", "plot", "scene"]
    Path("v.txt").write_text("\n".join(["[UNK]", *stems]))
    assert encode(["r.csv", "--out", "x.npz", "--pieces", "v.txt", "--drop"]) == 0
    data, names = read_labelled("x.npz")
    assert set(names) <= set(stems)  # and no stop word
    assert 0 < len(read_labelled("x.npz", split="train")[0]) < len(data)
    assert encode(["r.csv", "--out", "y.npz", "--pieces", "v.txt", "--sample", "800", "--hold-out", "0.25"]) == 0
    train, held_out = (read_labelled("y.npz", split=part)[0] for part in ("train", "held-out"))
    assert len(train) + len(held_out) == 800
    assert len(held_out) == 200
    assert np.bincount(train.tokens, minlength=train.n_vocabulary).min() >= 50  # counted in the rest
