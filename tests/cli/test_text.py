"""`marginlens text`: training with its table, explanations, figures, encoding, and how each refuses."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest

import marginlens_papers
from marginlens.cli.text._options import FileForm
from marginlens.cli.text._parts import TrainingRequest, read_parts
from marginlens.data.files import read_labelled
from marginlens.text.baselines import INVERSE_PENALTIES
from marginlens.text.classifier import AttentionTextClassifier
from marginlens.text.text_files import TextFile
from one_command import command, refusal

GOOD, BAD, FILLER = ("wonderful", "superb"), ("dull", "awful"), ("the", "film", "plot", "scene", "was", "with")


run, numbers = command("text")


def write_table(path, n=160, *, columns=("text", "label", "split"), seed=0):
    rng = np.random.default_rng(seed)
    with Path(path).open("w", newline="", encoding="utf-8") as stream:
        rows = csv.writer(stream)
        rows.writerow(columns)
        for i in range(n):
            word = rng.choice(GOOD if i % 2 else BAD)
            text = " ".join(rng.permutation([*rng.choice(FILLER, 6), word]))
            rows.writerow([text, "pos" if i % 2 else "neg", "test" if i % 4 > 1 else "train"][: len(columns)])


@pytest.fixture
def table(here):
    write_table("r.csv")
    return "r.csv"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A saved model, trained by the command."""
    folder = tmp_path_factory.mktemp("saved")
    write_table(folder / "r.csv")
    assert run("train", folder / "r.csv", "--out", folder / "m").exit_code == 0
    return folder / "m"


# ---- train


def test_training_prints_accuracies_beside_the_comparison(table):
    result = run("train", table, "--compare", "--out", "m")
    assert result.exit_code == 0, result.output
    for words in (
        "80 texts to train on, 80 to test on",
        "TF-IDF of words and pairs",
        "that contribute most",
        "Written to m",
    ):
        assert words in result.stdout
    reviews = TextFile(table).rows(labelled=True)
    tested = [i for i, part in enumerate(reviews.split) if part == "test"]
    test, labels = [reviews.texts[i] for i in tested], [reviews.labels[i] for i in tested]
    saved = AttentionTextClassifier.load("m")
    told = json.loads(Path("m/model.json").read_text())["facts"]
    assert told["models"][0]["test_accuracy"] == saved.score(test, labels)
    assert saved.score(test, labels) > 0.9
    own, rival = (row["test_accuracy"] for row in told["models"])
    assert rival > 0.9
    assert float(told["models"][1]["model"].rpartition("C = ")[2]) in INVERSE_PENALTIES  # tuned by cross-validation
    lead = own - rival
    words = "equally many" if lead == 0.0 else f"{'better' if lead > 0.0 else 'worse'} than"
    assert words in result.stdout.rpartition("┘")[2]  # behind all tables
    assert told["command"] == "marginlens text train r.csv --compare"
    assert str(Path.cwd()) not in Path("m/model.json").read_text()


def test_its_json_holds_the_same_numbers(table):
    told = numbers("train", table)
    assert (told["trained_on"], told["tested_on"], told["classes"]) == (80, 80, ["neg", "pos"])
    (row,) = told["models"]
    assert row["training_accuracy"] > 0.9
    assert row["tokens"] > 8
    assert row["cpu_seconds"] > 0.0
    tokens = {one["token"]: one for one in told["tokens"]}
    assert tokens["wonderful"]["posterior_difference"] == 1.0
    assert tokens["dull"]["b"] < 0 < tokens["superb"]["b"]
    assert all(row["contribution"] > 0.0 and 0.0 < row["attention"] < 1.0 for row in told["tokens"])
    assert told["training"]["readings"] == 16 * 80


PARTS = {
    "train and test": (("train", "test", "more"), {}, {"train"}, {"test"}),
    "only test": (("fit", "test", "more"), {}, {"fit", "more"}, {"test"}),
    "another part": (("fit", "test", "more"), {"test": "more"}, {"fit", "test"}, {"more"}),
    "both named": (("fit", "test", "more"), {"part": "more", "test": "fit"}, {"more"}, {"fit"}),
    "neither": (("fit", "extra", "more"), {}, {"fit", "extra", "more"}, set()),
    "trained on test": (("fit", "test", "more"), {"part": "test"}, {"test"}, set()),
    "a share": (("train", "test", "more"), {"test": "0.25"}, {"train"}, {"train"}),
}


@pytest.mark.parametrize("case", PARTS)
def test_no_text_is_trained_and_tested_on(here, case):
    names, options, trained, tested = PARTS[case]
    rows = [f"text{i} {names[i % 3]},{('bad', 'good')[i % 2]},{names[i % 3]}" for i in range(60)]
    Path("t.csv").write_text("\n".join(["text,label,split", *rows]))
    parts = read_parts(TrainingRequest(Path("t.csv"), FileForm(split="split"), **options))
    assert {text.split()[1] for text in parts.texts} == trained
    assert {text.split()[1] for text in parts.test_texts} == tested
    assert not set(parts.texts) & set(parts.test_texts)
    assert len(parts.texts + parts.test_texts) == 20 * len(trained | tested)
    assert (len(parts.texts), len(parts.test_texts)) == (len(parts.labels), len(parts.test_labels))
    assert (parts.tested_on is None) == (not tested)
    other = read_parts(TrainingRequest(Path("t.csv"), FileForm(split="split"), **options, seed=1))
    assert (other.test_texts == parts.test_texts) == (case != "a share")


def test_other_sources_are_read(here):
    lines = [{"text": f"{w} " * 120, "stars": s} for w, s in (("wonderful", 5), ("atrocious", 1)) for _ in range(6)]
    lines += [{"text": "wonderful", "stars": 5}, {"text": "so so " * 200, "stars": 3}]
    Path("y.json").write_text("\n".join(json.dumps(one) for one in lines))
    told = numbers("train", "y.json")
    assert told["left_out"] == {"3 stars": 1}  # and none for its length
    assert told["classes"] == ["1 or 2 stars", "4 or 5 stars"]
    for part in ("train/pos", "train/neg", "test/pos", "test/neg"):
        folder = Path("aclImdb") / part
        folder.mkdir(parents=True)
        for k in range(4):
            (folder / f"{k}_9.txt").write_text("a superb film" if "pos" in part else "an awful film")
    told = numbers("train", "aclImdb")
    assert (told["trained_on"], told["tested_on"], told["models"][0]["test_accuracy"]) == (8, 8, 1.0)


@pytest.mark.parametrize(("row", "reason"), [("?!,pos", "no token left"), ("superb,", "no label"), (",pos", "no text")])
def test_rows_that_cannot_be_used_are_refused_or_dropped_and_counted(here, row, reason):
    write_table("r.csv", columns=("text", "label"))
    Path("r.csv").write_text(Path("r.csv").read_text() + f"{row}\n")
    assert "--drop leaves them out." in refusal(run("train", "r.csv", "--min-count", "2", "--out", "m"))
    assert not Path("m").exists()
    assert numbers("train", "r.csv", "--min-count", "2", "--drop")["left_out"] == {reason: 1}


# ---- explain


def test_texts_are_explained_as_a_table_and_as_html(here, model):
    result = run("explain", model, "The plot was <i>superb</i>", "zebra [bold]", "--html", "e.html")
    assert result.exit_code == 0, result.output
    assert "pos (probability" in result.stdout
    assert "superb" in result.stdout
    assert "zebra [bold]" in result.stdout
    assert "none of the text's words is known" in result.stdout
    page = Path("e.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "&lt;i&gt;" in page
    assert "<i>" not in page


def test_an_evaluation_is_a_page_of_numbers_mistakes_and_tokens(here, model):
    texts = ["the superb film", "a dull plot", "superb <i>scene</i>"]
    rows = zip(texts, ("pos", "neg", "neg"), strict=True)
    Path("t.csv").write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows), encoding="utf-8")
    options = ("evaluate", model, "t.csv", "--mistakes", "1", "--html")
    assert numbers(*options, "p.html")["accuracy"] == pytest.approx(2 / 3)
    page = Path("p.html").read_text(encoding="utf-8")
    for words in ("t.csv: 3 texts", "66.7%", "True label neg, said pos", "&lt;", "<th>dull</th>"):
        assert words in page
    assert "<i>" not in page
    found = [row for text in texts for row in AttentionTextClassifier.load(model).explain(text).rows]
    superb = [row for row in found if row.token == "superb"]
    cells = [np.mean([row.attention for row in superb]), superb[0].b, sum(abs(row.contribution) for row in superb)]
    shown = re.search("<tr><th>superb</th>(.*)</tr>", page)[1].replace("</td>", "").split("<td>")[1:]
    assert [float(cell) for cell in shown[:3]] == pytest.approx(cells, abs=0.01)
    assert shown[3] == "2"  # of these texts
    assert "Written to q.html" in run(*options, "q.html").stdout
    assert run(*options, "q.html", "--quiet").exit_code == 0
    assert Path("q.html").read_text(encoding="utf-8") == page
    for place in ("p.txt", "nowhere/p.html"):
        refused = run(*options, place)
        assert refused.exit_code == 2
        assert "--html must be" in refused.stderr


def test_an_evaluation_says_how_many_texts_were_trained_on(here):
    write_table("r.csv", 120, columns=("text", "label"), seed=5)
    assert run("train", "r.csv", "--test", "0.25", "--out", "m", "--seed", "3").exit_code == 0
    parts = read_parts(TrainingRequest(Path("r.csv"), FileForm(), test="0.25", seed=3))
    told = numbers("evaluate", "m", "r.csv", "--html", "p.html")
    assert told["trained_on"] == sum(text in set(parts.texts) for text in parts.texts + parts.test_texts)
    correct = AttentionTextClassifier.load("m").predict(parts.test_texts) == parts.test_labels
    assert told["accuracy_of_unseen"] == pytest.approx(np.mean(correct))
    for said in (Path("p.html").read_text(encoding="utf-8"), " ".join(run("evaluate", "m", "r.csv").stdout.split())):
        assert f"{told['trained_on']} of 120 trained on" in said
        assert f"{told['trained_on']} of which were trained on: only the first number speaks for new texts" in said
    write_table("other.csv", 40, columns=("text", "label"), seed=6)
    rows = Path("other.csv").read_text().splitlines()
    new = [row.replace(",", " and so on,") for row in rows[1:]]
    Path("other.csv").write_text("\n".join([rows[0], *new]))
    assert "none of which was trained on" in run("evaluate", "m", "other.csv").stdout
    Path("other.csv").write_text("\n".join([rows[0], *new, f"  {parts.texts[0]}  ,{parts.labels[0]}"]))
    assert numbers("evaluate", "m", "other.csv")["trained_on"] == 1  # blanks aside


def test_explanations_as_json_are_those_of_the_model(model):
    told = numbers("explain", model, "the plot was dull", "dull", "zebra")
    found = AttentionTextClassifier.load(model).explain("the plot was dull")
    assert told[0]["label"] == "neg"
    assert told[0]["f"] == found.f
    assert told[0]["selection_margin"] == found.margin
    assert [row["token"] for row in told[0]["tokens"]] == [row.token for row in found.rows]
    assert told[1]["selection_margin"] is None  # infinite: there is no other token
    assert [row["token"] for row in told[2]["tokens"]] == ["(rest)"]


# ---- figure


def test_models_training_runs_and_kept_runs_are_drawn(here, model):
    rows = [(s, f"word{'abcdef'[s]}", 0.1 * s, 0.2 * s, 0.0, 0.3 * s - 0.9, 300 + s) for s in range(6)]
    head = "id,token,a,b,alpha,posterior_difference,count"
    Path("run").mkdir()
    Path("run/tokens.csv").write_text("\n".join([head, *(",".join(map(str, row)) for row in rows)]))
    kept = sorted((Path(marginlens_papers.__file__).parent / "results").glob("embeddings-*.json"))[0]
    for drawn, name, words in (
        (model, "m.png", b"\x89PNG"),
        (model, "m.svg", b"superb"),
        ("run", "r.svg", b"worda"),
        (kept, "k.svg", b"posterior difference"),
    ):
        assert run("figure", drawn, "--plot", name).exit_code == 0
        assert words in Path(name).read_bytes()
    Path("run/tokens.csv").write_text("id,token\n1,a\n")
    assert run("figure", "run", "--plot", "f.svg").exit_code == 2


# ---- encode


def test_encoding_follows_the_paper_keeps_the_parts_and_may_hold_out_a_share(here):
    pytest.importorskip("snowballstemmer")
    write_table("r.csv", 900)
    stems = ["wonder", "superb", "dull", "aw", "film", "plot", "scene"]
    Path("v.txt").write_text("\n".join(["[UNK]", *stems]))
    told = numbers("encode", "r.csv", "--out", "x.npz", "--pieces", "v.txt", "--drop")
    data, names = read_labelled("x.npz")
    assert (told["samples"], told["tokens"]) == (len(data), data.n_vocabulary)
    assert told["seconds"] > 0.0
    assert set(names) <= set(stems)  # and no stop word
    assert 0 < len(read_labelled("x.npz", split="train")[0]) < len(data)
    told = numbers("encode", "r.csv", "--out", "y.npz", "--pieces", "v.txt", "--sample", "800", "--hold-out", "0.25")
    train, held_out = (read_labelled("y.npz", split=part)[0] for part in ("train", "held-out"))
    assert told["parts"] == {"train": len(train), "held-out": len(held_out)}
    assert len(train) + len(held_out) == 800
    assert np.bincount(train.tokens, minlength=train.n_vocabulary).min() >= 50  # counted in the rest
