"""Names of tokens: where they are kept, which are refused, and that verdicts, plots and files show them."""

from __future__ import annotations

import numpy as np
import pytest

import marginlens as ml
from marginlens.data.files import read_problem, write_problem
from marginlens.lab.problem_files import LabProblem
from marginlens.theory.outcome import token_fact
from refusals import refused

NAMES = (("the", "cat", "the"), ("a", ""))


def two_inputs(**parts):
    X = [np.array([[0.0, 2.0], [1.0, 0.0], [-1.0, 0.0]]), np.array([[1.0, 1.0], [0.0, -1.0]])]
    return ml.TokenDataset(X, [1, 1], tokens=[list(names) for names in NAMES], **parts)


def test_indexing_batching_and_saving_keep_names(tmp_path):
    data = two_inputs()
    assert data.tokens == NAMES
    for other in (
        data[0],
        data.as_batch(),
        data.repeat(3)[1],
        data.repeat(2)[[True, False]],
        data.with_keys(2.0 * data.K),
    ):
        assert other.tokens == NAMES
    assert data.take_inputs([1]).tokens == NAMES[1:]
    assert data.shortened(np.array([2, 1])).tokens == (("the", "cat"), ("a",))
    data.save(tmp_path / "data.npz")
    assert ml.data.load(tmp_path / "data.npz").tokens == NAMES
    for name in ("problem.json", "problem.npz"):
        write_problem(tmp_path / name, data, [1.0, 0.5])
        assert read_problem(tmp_path / name)[0].tokens == NAMES
    assert data.to_frame()["name"].tolist() == ["the", "cat", "the", "a", ""]


@pytest.mark.parametrize(
    "tokens", ["the cat", ["the", "cat"], [["the", "cat"], ["a", "b"]], [["the", "cat", 3], ["a", "b"]], 7]
)
def test_names_are_one_text_per_token(tokens):
    with refused("tokens"):
        two_inputs().named(tokens)


def test_verdicts_and_plots_say_names_and_indices_of_repeated_or_nameless_ones():
    data, v = two_inputs(), [1.0, 1.5]
    for optimizer in (None, ml.SignDescent(0.05)):
        found = ml.predict_limit(data, v, optimizer=optimizer)
        first, *_ = str(found.outcome).split("\n")
        assert found.outcome.selected.tolist() == [0, 0]
        assert first.endswith("in input 0, “a” in input 1.")
        assert "“the” (token 0) " in first
        assert "token 1" in str(found.outcome.because[1])
    shown = {text.get_text() for text in data.plot().texts}
    assert shown == {"the", "cat", "a", "1"}
    one = ml.TokenDataset([[[0.0, 1.0], [1.0, 0.0]]], [1], tokens=["dog", "cat"])
    assert str(ml.predict_limit(one, [2.0, 1.0]).outcome.ends_at) == "“cat” wins"


def test_a_lab_problem_takes_the_names_of_its_data():
    problem = LabProblem(two_inputs(), [1.0, 0.5])
    assert problem.words == NAMES
    read = LabProblem.from_dict(problem.to_dict())
    assert read.data.tokens == NAMES
    assert LabProblem(two_inputs(), [1.0, 0.5], words=[["x", "y", "z"], ["u", "w"]]).data.tokens[1] == ("u", "w")


def test_a_kind_of_dataset_is_kept_and_chooses_the_nouns_of_its_verdict(tmp_path):
    keys = np.random.default_rng(5).standard_normal((12, 3, 7))
    plain = ml.TokenDataset(keys, [1, -1] * 6)
    bags = ml.TokenDataset(keys, [1, -1] * 6, kind="bag")
    assert (plain.kind, bags.kind) == ("default", "bag")
    head = np.random.default_rng(6).standard_normal(7)
    for optimizer in (None, ml.SignDescent(0.05)):
        words = ml.predict_limit(plain, head, optimizer=optimizer).outcome.answer.in_full
        assert " in input 0" in words
        assert "3 more inputs" in words
        renamed = words.replace("oken ", "atch ").replace("Tatch", "Patch").replace("tatch", "patch")
        renamed = renamed.replace(" input ", " bag ").replace(" more inputs", " more bags")
        assert ml.predict_limit(bags, head, optimizer=optimizer).outcome.answer.in_full == renamed
    bags.save(tmp_path / "bags.npz")
    for other in (ml.data.load(tmp_path / "bags.npz"), bags.repeat(2)[1], bags.take_inputs([3]), bags.with_keys(keys)):
        assert other.kind == "bag"
    named = bags.take_inputs([0]).named(["a", "b", "a"])
    assert {"“a” (patch 2)", "“b”"} >= {str(token_fact(0, t, named.tokens, named.kind)) for t in (1, 2)}


def test_a_kind_is_one_of_those_that_have_nouns():
    with refused("kind"):
        two_inputs(kind="slide")
