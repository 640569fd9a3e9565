"""`marginlens text`: training with its table, explanations, figures, encoding; two classes and more, rare ones, other tokenizers."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
from sklearn import metrics
from typer.main import get_command

import marginlens_papers
from marginlens.cli.app import app
from marginlens.cli.text._options import FileForm
from marginlens.cli.text._parts import TrainingRequest, read_parts
from marginlens.data.files import read_labelled
from marginlens.text.baselines import INVERSE_PENALTIES
from marginlens.text.classifier import FEW_TEXTS, AttentionTextClassifier
from marginlens.text.text_files import TextFile
from one_command import command, refusal

GOOD, BAD, FILLER = ("wonderful", "superb"), ("dull", "awful"), ("the", "film", "plot", "scene", "was", "with")
WORDS = {"art": ("painting", "museum"), "food": ("soup", "bread"), "sport": ("match", "goal")}
PLAIN = ("the", "a", "was", "with", "today", "there")


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


# ---- more than two classes


def texts(sizes, seed=0):
    """(text, label) pairs, each with one word that decides."""
    rng = np.random.default_rng(seed)
    pairs = []
    for label, size in sizes.items():
        for _ in range(size):
            words = rng.permutation([*rng.choice(PLAIN, 5), rng.choice(WORDS[label])])
            pairs.append((" ".join(words), label))
    return [pairs[i] for i in rng.permutation(len(pairs))]


def write_lines(path, pairs):
    lines = [json.dumps({"text": text, "label": label}) for text, label in pairs]
    Path(path).write_text("\n".join(lines), encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with texts of three classes and a model of them."""
    place = tmp_path_factory.mktemp("classes")
    write_lines(place / "t.jsonl", texts({"art": 60, "food": 40, "sport": 30}))
    write_lines(place / "more.jsonl", texts({"art": 8, "food": 6, "sport": 5}, seed=1))
    told = numbers("train", place / "t.jsonl", "--test", "0.2", "--out", place / "m")
    assert told["classes"] == ["art", "food", "sport"]
    assert told["texts_by_class"] == {"art": 48, "food": 32, "sport": 24}
    assert [row["texts"] for row in told["measures"]["classes"]] == [12, 8, 6]  # a fifth of each
    assert told["measures"]["accuracy"] > 0.9
    assert {row["label"] for row in told["tokens"]} <= set(WORDS)
    return place


@pytest.mark.parametrize("classes", [["art", "food", "sport"], ["art", "food"]])
def test_measures_are_those_of_scikit_learn(here, classes):
    write_lines("t.jsonl", texts(dict.fromkeys(classes, 40)))
    assert run("train", "t.jsonl", "--out", "m").exit_code == 0
    found, labels = map(list, zip(*texts(dict.fromkeys(classes, 6), seed=1), strict=True))
    labels[0] = next(name for name in classes if name != labels[0])  # a mistake
    write_lines("more.jsonl", zip(found, labels, strict=True))
    told, model = numbers("evaluate", "m", "more.jsonl"), AttentionTextClassifier.load("m")
    probabilities, predicted = model.predict_proba(found), model.predict(found)
    assert told["accuracy"] == metrics.accuracy_score(labels, predicted) < 1.0
    assert told["balanced_accuracy"] == pytest.approx(metrics.balanced_accuracy_score(labels, predicted))
    assert told["macro_f1"] == pytest.approx(metrics.f1_score(labels, predicted, average="macro"))
    assert told["log_loss"] == pytest.approx(metrics.log_loss(labels, probabilities, labels=classes))
    scores = probabilities if len(classes) > 2 else probabilities[:, 1]
    assert told["auc"] == pytest.approx(metrics.roc_auc_score(labels, scores, multi_class="ovr", labels=classes))
    assert told["confusion"] == metrics.confusion_matrix(labels, predicted, labels=classes).tolist()
    shown = run("evaluate", "m", "more.jsonl").stdout
    for words in ("balanced accuracy", "macro F1", *(f"said {name}" for name in classes)):
        assert words in shown
    write_lines("art.jsonl", texts({"art": 5}))
    told = numbers("evaluate", "m", "art.jsonl")  # texts of a single class
    assert (told["auc"], told["classes"][1]["texts"]) == (None, 0)


def test_the_worst_mistakes_are_shown(folder, here):
    pairs = texts({"art": 8, "food": 6}, seed=1)
    write_lines("w.jsonl", [("a painting in the museum", "food"), *pairs])
    mistakes = numbers("evaluate", folder / "m", "w.jsonl", "--mistakes", "2")["mistakes"]
    assert 1 <= len(mistakes) <= 2
    assert (mistakes[0]["text"], mistakes[0]["said"]) == ("a painting in the museum", "art")
    assert "a painting in the museum" in run("evaluate", folder / "m", "w.jsonl").stdout
    assert numbers("evaluate", folder / "m", "w.jsonl", "--mistakes", "0")["mistakes"] == []


def test_predictions_have_a_probability_for_every_class(folder, here):
    assert run("predict", folder / "m", folder / "more.jsonl", "--out", "s.csv").exit_code == 0
    with Path("s.csv").open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    model = AttentionTextClassifier.load(folder / "m")
    expected = model.predict_proba([row["text"] for row in rows])
    found = [[float(row[f"probability of {name}"]) for name in WORDS] for row in rows]
    np.testing.assert_array_equal(found, expected)
    assert [row["predicted"] for row in rows] == model.predict([row["text"] for row in rows]).tolist()
    assert {row["label"] for row in rows} == set(WORDS)  # the file's own column
    explained = [model.explain(row["text"]).known for row in rows]
    strongest = [max(tokens, key=lambda row: row.contribution).token for tokens in explained]
    assert [row["strongest_token"] for row in rows] == strongest


def test_texts_of_a_file_are_explained(folder, here):
    told = numbers("explain", folder / "m", "--file", folder / "more.jsonl", "--limit", "3")
    assert [row["text"] for row in told] == [text for text, _ in texts({"art": 8, "food": 6, "sport": 5}, seed=1)][:3]
    assert set(told[0]["probabilities"]) == set(WORDS)
    shown = run("explain", folder / "m", "--file", folder / "more.jsonl", "--limit", "1", "--html", "w.html").stdout
    assert "and 18 texts more; --limit 19 explains them all." in shown
    assert Path("w.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert run("figure", folder / "m", "--class", "food", "--plot", "f.svg").exit_code == 0
    assert "soup" in Path("f.svg").read_text()


def test_balanced_weights_find_more_of_a_rare_class(here):
    pairs = [(text.replace("match", "soup").replace("goal", "soup"), label) for text, label in texts({"sport": 6})]
    pairs += [(f"{text} soup", label) for text, label in texts({"art": 30, "sport": 6})]
    write_lines("rare.jsonl", texts({"art": 300}) + pairs)
    rare = {}
    for words in ((), ("--class-weight", "balanced"), ("--class-weight", "art=1,sport=9")):
        told = numbers("train", "rare.jsonl", *words, "--out", "m")
        rare[words] = AttentionTextClassifier.load("m").predict_proba(["soup with the soup"])[0, 1]
        assert told["command"].endswith(" ".join(["rare.jsonl", *words]))
    assert rare["--class-weight", "balanced"] > rare[()]
    assert rare["--class-weight", "art=1,sport=9"] > rare[()]


def test_a_model_carries_its_tokenizer(here):
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0, "soup": 1, "goal": 2}, unk_token="?"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.save("words.json")
    write_lines("t.jsonl", [("soup soup", "food"), ("goal goal", "sport")] * 20)
    told = numbers("train", "t.jsonl", "--tokenizer", "words.json", "--ngrams", "1", "--out", "m")
    assert told["settings"]["tokenizer"] == "words.json"
    assert told["models"][0]["tokens"] == 2
    Path("words.json").unlink()
    Path("new.txt").write_text("a goal\n")
    assert numbers("predict", "m", "new.txt")["predictions"][0]["predicted"] == "sport"


def test_letters_are_words_where_they_are_asked_for(here):
    write_lines("t.jsonl", [("很好看的电影", "good"), ("太难看的电影", "bad")] * 20)
    told = numbers("train", "t.jsonl", "--characters", "--ngrams", "1", "--out", "m")
    assert told["settings"]["characters"] is True
    Path("new.txt").write_text("好\n难\n", encoding="utf-8")
    assert [row["predicted"] for row in numbers("predict", "m", "new.txt")["predictions"]] == ["good", "bad"]


def test_a_share_is_drawn_of_every_class(here):
    write_lines("t.jsonl", texts({"art": 50, "food": 20, "sport": 3}))
    parts = read_parts(TrainingRequest(Path("t.jsonl"), FileForm(), test="0.2"))
    names, counts = np.unique(parts.test_labels, return_counts=True)
    assert dict(zip(names.tolist(), counts.tolist(), strict=True)) == {"art": 10, "food": 4, "sport": 1}


def test_equal_texts_are_drawn_together(here):
    pairs = texts({"art": 40, "food": 40})
    write_lines("t.jsonl", pairs + pairs[:30] + [(pairs[0][0], "food"), (pairs[0][0], "art")])
    for seed in range(5):
        parts = read_parts(TrainingRequest(Path("t.jsonl"), FileForm(), test="0.3", seed=seed))
        assert not set(parts.texts) & set(parts.test_texts)
        assert len(parts.texts) + len(parts.test_texts) == 112
        assert set(parts.test_labels) == {"art", "food"}


def test_defaults_in_the_help_are_those_of_the_classifier():
    train = get_command(app).get_command(None, "text").get_command(None, "train")
    options = {param.name: param for param in train.params}
    for name, default in AttentionTextClassifier().get_params().items():
        if name in ("learning_rate", "weight_decay"):
            assert float(options[name].show_default) == default
        elif name in options and isinstance(options[name].show_default, str):
            assert default is None
            assert options[name].show_default.endswith(f" below {FEW_TEXTS} texts")
        elif name in options:
            assert options[name].default == default
    assert options["seed"].default == AttentionTextClassifier().random_state
    of_many, of_few = (AttentionTextClassifier()._size_settings(n)._asdict() for n in (FEW_TEXTS, FEW_TEXTS - 1))
    for name, number in of_many.items():
        assert options[name].show_default == f"{number}; {of_few[name]} below {FEW_TEXTS} texts"
