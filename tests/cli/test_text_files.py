"""`marginlens text` on files as people have them: every form gives the same texts and labels; predictions, measures and refusals."""

import bz2
import csv
import gzip
import json
import lzma
from pathlib import Path

import pytest

from marginlens.text.classifier import AttentionTextClassifier
from marginlens.text.text_files import TextFile
from one_command import command
from refusals import refused

run, numbers = command("text")
ROWS = [(f"{'superb' if k % 2 else 'dull'} film, café {k}", "pos" if k % 2 else "neg") for k in range(40)]


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


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scored")
    (folder / "r.csv").write_text(table(";"), encoding="utf-8")
    told = numbers(
        "train", folder / "r.csv", "--out", folder / "m", "--test", "0.25", "--epochs", "2", "--min-count", "1"
    )
    assert (told["trained_on"], told["tested_on"]) == (30, 10)
    assert [row["texts"] for row in told["measures"]["classes"]] == [5, 5]  # as many of each class as in the file
    assert (told["settings"]["epochs"], told["settings"]["min_count"]) == (2, 1)
    return folder / "m"


def test_predictions_are_those_of_the_model_in_every_form(here, model):
    Path("t.txt").write_text("a superb film\na dull film\n\n", encoding="utf-8")
    expected = AttentionTextClassifier.load(model).predict_proba(["a superb film", "a dull film"])
    for name in ("s.csv", "s.jsonl"):
        result = run("predict", model, "t.txt", "--out", name)
        assert result.exit_code == 0, result.output
        assert result.stdout.endswith(f"Written to {name}\n")
    lines = [json.loads(line) for line in Path("s.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["predicted"] for row in lines] == ["pos", "neg"]
    assert [row["probabilities"]["pos"] for row in lines] == expected[:, 1].tolist()
    with Path("s.csv").open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert [float(row["probability of pos"]) for row in rows] == expected[:, 1].tolist()
    typed = run("predict", model, "-", "--out", "-", stdin="a superb film\n")
    assert json.loads(typed.stdout) == lines[0]
    assert numbers("predict", model, "t.txt")["predictions"] == lines


ODD = {
    "t.csv": 'id,text,label,predicted,,id\n7,"a superb, odd film",pos,x,y,z\n8,"",neg\n9,dull,neg,,,,more\n',
    "t.tsv": "label\ttext\tprobability of pos\nneg\ta superb film\t3\nneg\t\t\npos\tdull\t4\n",
    "t.jsonl": '{"id": 1, "text": "superb", "tags": ["a", 2]}\n{"text": "", "probability": 0.5}\n{"text": "dull", "id": null}\n',
    "t.txt": "a superb film\n\ndull\n",
}


@pytest.mark.parametrize("name", ODD)
def test_predictions_keep_every_row_and_column_of_the_file(here, model, name):
    Path(name).write_text(ODD[name], encoding="utf-8")
    told = numbers("predict", model, name, "--out", "s.csv")
    classifier, called = AttentionTextClassifier.load(model), told["columns"]
    texts, rows = TextFile(name).entries()
    assert len(texts) == 3
    assert not texts[1]
    expected = classifier.predict_proba(texts)
    for row, before, shares in zip(told["predictions"], rows, expected, strict=True):
        assert {key: row[key] for key in before} == before
        assert list(row[called["probabilities"]].values()) == shares.tolist()
        assert row[called["predicted"]] == classifier.classes_[shares.argmax()]
    with Path("s.csv").open(newline="", encoding="utf-8") as stream:
        header, *cells = list(csv.reader(stream))
    assert len(header) == len(set(header)) == len(cells[0])
    assert [float(row[-1]) for row in cells] == expected[:, 1].tolist()
    for k, column in enumerate(rows[0]):
        assert header[k] == column
        if isinstance(rows[0][column], str):
            assert [row[k] for row in cells] == [row.get(column, "") for row in rows]
    said = run("predict", model, name).stdout
    assert "3 texts: " in said
    assert "1 without a text" in said
    clash = called["predicted"] != "predicted" or called["probability"] != "probability"
    assert clash == (name in ("t.csv", "t.jsonl")) == ("has columns of these names already" in said)
    assert run("predict", model, name, "--drop").stdout.startswith("2 texts: ")


@pytest.mark.parametrize(
    "content", [table().encode(), gzip.compress(json_lines().encode())], ids=["table", "packed lines"]
)
def test_training_on_standard_input_equals_training_on_the_file(here, content):
    Path("r.jsonl" if content[:1] == b"\x1f" else "r.csv").write_bytes(content)
    options = ("--test", "0.25", "--epochs", "2")
    piped, read = numbers("train", "-", *options, stdin=content), numbers("train", *Path().glob("r.*"), *options)
    for name in ("sha256", "size", "measures", "tokens"):
        assert piped[name] == read[name]
    assert run("train", "-", stdin="").exit_code == 2


@pytest.mark.parametrize("name", ["semicolon.csv", "latin.csv", "lines.jsonl.gz"])
def test_every_form_of_a_file_can_be_encoded(here, name):
    content, options = FORMS[name]
    Path(name).write_bytes(content())
    Path("pieces.txt").write_text("\n".join(["[UNK]", "superb", "dull", "film"]), encoding="utf-8")
    given = [word for option, value in options.items() for word in (f"--{option}", value)]
    found = numbers("encode", name, "--out", "ids.npz", "--pieces", "pieces.txt", "--drop", *given)
    assert (found["samples"], found["classes"]) == (40, ["neg", "pos"])
