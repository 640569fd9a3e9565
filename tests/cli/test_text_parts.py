"""Which texts `marginlens text train` trains on and which it tests on: never the same one."""

import csv

import pytest

from marginlens.commands.text_training import Parts, Request
from marginlens.errors import InputError


@pytest.fixture
def table(tmp_path):
    """A table of 60 texts, 20 in each of these parts."""

    def write(*parts):
        with (tmp_path / "t.csv").open("w", newline="") as stream:
            rows = csv.writer(stream)
            rows.writerow(("text", "label", "split"))
            rows.writerows((f"text{i} {parts[i % 3]}", ("bad", "good")[i % 2], parts[i % 3]) for i in range(60))
        return tmp_path / "t.csv"

    return write


PARTS = {
    "train and test": (("train", "test", "more"), {}, {"train"}, {"test"}),
    "test alone": (("fit", "test", "more"), {}, {"fit", "more"}, {"test"}),
    "another part": (("fit", "test", "more"), {"test": "more"}, {"fit", "test"}, {"more"}),
    "both named": (("fit", "test", "more"), {"part": "more", "test": "fit"}, {"more"}, {"fit"}),
    "neither": (("fit", "extra", "more"), {}, {"fit", "extra", "more"}, set()),
    "trained on test": (("fit", "test", "more"), {"part": "test"}, {"test"}, set()),
}


@pytest.mark.parametrize("case", PARTS)
def test_no_text_is_in_both_parts(table, case):
    names, options, trained, tested = PARTS[case]
    found = Parts.of(Request(table(*names), (None, None, "split"), **options))
    assert {text.split()[1] for text in found.texts} == trained
    assert {text.split()[1] for text in found.test_texts} == tested
    assert len(found.texts) == len(found.labels) == 20 * len(trained)
    assert len(found.test_texts) == len(found.test_labels) == 20 * len(tested)
    assert (found.tested_on is None) == (not tested)


def test_a_share_is_drawn_from_what_would_be_trained_on_by_its_seed(table):
    path = table("train", "test", "more")
    first, again, other = (Parts.of(Request(path, (None, None, "split"), test="0.25", seed=seed)) for seed in (0, 0, 1))
    assert (len(first.texts), len(first.test_texts)) == (15, 5)
    assert not set(first.texts) & set(first.test_texts)
    assert {text.split()[1] for text in first.texts + first.test_texts} == {"train"}
    assert first.test_texts == again.test_texts != other.test_texts
    assert first.tested_on == "0.25 of them, drawn at random"


def test_a_file_to_test_on_has_the_same_classes(table, tmp_path):
    path = table("a", "b", "c")
    (tmp_path / "other.csv").write_text("text,label\none,bad\ntwo,good\n")
    found = Parts.of(Request(path, (None, None, None), test=str(tmp_path / "other.csv")))
    assert (len(found.texts), found.test_texts, found.tested_on) == (60, ["one", "two"], "other.csv")
    (tmp_path / "other.csv").write_text("text,label\none,no\ntwo,yes\n")
    with pytest.raises(
        InputError, match="'test' argument must be a file with the classes 'bad' and 'good'; got 'no' and"
    ):
        Parts.of(Request(path, (None, None, None), test=str(tmp_path / "other.csv")))


@pytest.mark.parametrize("share", ["0", "1", "-0.5", "nan", "1e3"])
def test_a_share_is_between_0_and_1(table, share):
    with pytest.raises(InputError, match="'test' argument must be a part, a file, or a share between 0 and 1; got"):
        Parts.of(Request(table("a", "b", "c"), (None, None, None), test=share))


def test_a_share_leaves_something_to_train_on(table):
    with pytest.raises(InputError, match="'test' argument must be a share that leaves some of 60 texts to train on"):
        Parts.of(Request(table("a", "b", "c"), (None, None, None), test="0.999"))


def test_the_command_it_names_has_every_choice(tmp_path):
    (tmp_path / "more.csv").write_text("")
    request = Request(tmp_path / "t.csv", ("t", "l", "s"), "fit", str(tmp_path / "more.csv"), drop=True, seed=7)
    told = (
        "marginlens text train t.csv --text t --label l --split s --train fit --test more.csv --drop --compare --seed 7"
    )
    assert request.command(compare=True) == told
    assert Request(tmp_path / "a b.csv", (None, None, None)).command(compare=False) == "marginlens text train 'a b.csv'"
