"""`marginlens text` with more than two classes, rare classes, other tokenizers, and texts explained from a file."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from sklearn import metrics
from typer.main import get_command

from marginlens.cli.app import app
from marginlens.cli.text._options import FileForm
from marginlens.cli.text._parts import TrainingRequest, read_parts
from marginlens.text.classifier import FEW_TEXTS, AttentionTextClassifier
from one_command import command

run, numbers = command("text")
WORDS = {"art": ("painting", "museum"), "food": ("soup", "bread"), "sport": ("match", "goal")}
FILLER = ("the", "a", "was", "with", "today", "there")


def texts(sizes, seed=0):
    """(text, label) pairs, each with one word that decides."""
    rng = np.random.default_rng(seed)
    pairs = []
    for label, size in sizes.items():
        for _ in range(size):
            words = rng.permutation([*rng.choice(FILLER, 5), rng.choice(WORDS[label])])
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
