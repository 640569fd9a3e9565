"""`marginlens encode` and `marginlens figure`: labelled texts as token ids, and the tokens of a run of embeddings."""

import bz2
import csv
import gzip
import json
import lzma
from pathlib import Path

import numpy as np
import pytest

import marginlens_papers
from marginlens.data.files import read_labelled
from marginlens_papers.texts import TextFile
from one_command import command
from refusals import refused

encode, numbers = command("encode")
figure, _ = command("figure")
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
    "utf16.csv": (lambda: table().encode("utf-16"), {}),
    "marked.csv": (lambda: table().encode("utf-8-sig"), {}),
    "packed.csv.gz": (lambda: gzip.compress(table().encode()), {}),
    "packed.csv.bz2": (lambda: bz2.compress(table().encode()), {}),
    "packed.csv.xz": (lambda: lzma.compress(table().encode()), {}),
    "bare.csv": (lambda: table(header=False).encode(), {"header": False}),
    "numbered.csv": (lambda: table(header=False).encode(), {"header": False, "text": "1", "label": "2"}),
    "lines.jsonl": (lambda: json_lines().encode(), {}),
    "lines.jsonl.gz": (lambda: gzip.compress(json_lines().encode()), {}),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_a_file_gives_the_same_texts_and_labels(tmp_path, name):
    content, options = FORMS[name]
    (tmp_path / name).write_bytes(content())
    found = TextFile(tmp_path / name, **options).rows(labelled=True)
    assert list(zip(found.texts, found.labels, strict=True)) == ROWS


def test_two_columns_of_one_name_are_refused_unless_one_is_given_by_number(tmp_path):
    (tmp_path / "t.csv").write_text("text,label,Text\none,a,uno\ntwo,b,due\n", encoding="utf-8")
    for asked in (None, "text"):
        with refused("text"):
            TextFile(tmp_path / "t.csv", text=asked).rows(labelled=True)
    assert TextFile(tmp_path / "t.csv", text="3").rows(labelled=True).texts == ["uno", "due"]


def test_a_folder_for_each_class_and_parquet_are_read(tmp_path):
    for k, (text, label) in enumerate(ROWS):
        (tmp_path / "t" / label).mkdir(parents=True, exist_ok=True)
        (tmp_path / "t" / label / f"{k:02}.txt").write_text(text, encoding="utf-8")
    found = TextFile(tmp_path / "t").rows(labelled=True)
    assert sorted(zip(found.texts, found.labels, strict=True)) == sorted(ROWS)
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"text": [t for t, _ in ROWS], "label": [y for _, y in ROWS]}), tmp_path / "t.parquet")
    found = TextFile(tmp_path / "t.parquet").rows(labelled=True)
    assert list(zip(found.texts, found.labels, strict=True)) == ROWS


@pytest.mark.parametrize("name", ["semicolon.csv", "latin.csv", "lines.jsonl.gz"])
def test_every_form_of_a_file_can_be_encoded(here, name):
    content, options = FORMS[name]
    Path(name).write_bytes(content())
    Path("pieces.txt").write_text("\n".join(["[UNK]", "superb", "dull", "film"]), encoding="utf-8")
    given = [word for option, value in options.items() for word in (f"--{option}", value)]
    told = numbers(name, "--out", "ids.npz", "--pieces", "pieces.txt", "--drop", *given)
    assert (told["samples"], told["classes"]) == (40, ["neg", "pos"])
    assert (
        numbers("-", "--out", "piped.npz", "--pieces", "pieces.txt", "--drop", *given, stdin=content())["samples"] == 40
    )


def test_encoding_follows_the_paper_keeps_the_parts_and_may_hold_out_a_share(here):
    pytest.importorskip("snowballstemmer")
    write_table("r.csv", 900)
    stems = ["wonder", "superb", "dull", "aw", "film", "plot", "scene"]
    Path("v.txt").write_text("\n".join(["[UNK]", *stems]))
    told = numbers("r.csv", "--out", "x.npz", "--pieces", "v.txt", "--drop")
    data, names = read_labelled("x.npz")
    assert (told["samples"], told["tokens"]) == (len(data), data.n_vocabulary)
    assert told["seconds"] > 0.0
    assert set(names) <= set(stems)  # and no stop word
    assert 0 < len(read_labelled("x.npz", split="train")[0]) < len(data)
    told = numbers("r.csv", "--out", "y.npz", "--pieces", "v.txt", "--sample", "800", "--hold-out", "0.25")
    train, held_out = (read_labelled("y.npz", split=part)[0] for part in ("train", "held-out"))
    assert told["parts"] == {"train": len(train), "held-out": len(held_out)}
    assert len(train) + len(held_out) == 800
    assert np.bincount(train.tokens, minlength=train.n_vocabulary).min() >= 50  # counted in the rest


def test_training_runs_and_kept_runs_are_drawn(here):
    rows = [(s, f"word{'abcdef'[s]}", 0.1 * s, 0.2 * s, 0.0, 0.3 * s - 0.9, 300 + s) for s in range(6)]
    head = "id,token,a,b,alpha,posterior_difference,count"
    Path("run").mkdir()
    Path("run/tokens.csv").write_text("\n".join([head, *(",".join(map(str, row)) for row in rows)]))
    kept = sorted((Path(marginlens_papers.__file__).parent / "results").glob("embeddings-*.json"))[0]
    for drawn, name, words in (
        ("run", "r.png", b"\x89PNG"),
        ("run", "r.svg", b"worda"),
        (kept, "k.svg", b"posterior difference"),
    ):
        assert figure(drawn, "--plot", name).exit_code == 0
        assert words in Path(name).read_bytes()
    Path("run/tokens.csv").write_text("id,token\n1,a\n")
    assert figure("run", "--plot", "f.svg").exit_code == 2
