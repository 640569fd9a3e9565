"""`AttentionTextClassifier` on disk: what is saved comes back the same, whole or not at all, and nothing foreign is read."""

import json
import pickle
import sys

import numpy as np
import pytest

from made_up_reviews import reviews
from marginlens.embeddings.classifier import AttentionTextClassifier
from marginlens.embeddings.classifier_tokens import PlainIds, WordsAndPairs
from marginlens.embeddings.saving import ARRAYS, FACTS, TENSORS, _exchange
from marginlens.errors import InputError, MissingExtra
from marginlens.text import TextPipeline


@pytest.fixture(scope="module")
def data():
    return reviews(240)


@pytest.fixture(scope="module")
def fitted(data):
    return AttentionTextClassifier().fit(*data)


@pytest.mark.parametrize("form", [ARRAYS, TENSORS])
def test_a_saved_model_says_the_same(form, data, fitted, tmp_path, monkeypatch):
    if form == TENSORS:
        pytest.importorskip("safetensors")
    else:
        monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    fitted.save(tmp_path / "model")
    assert sorted(one.name for one in (tmp_path / "model").iterdir()) == [form, FACTS]
    again = AttentionTextClassifier.load(tmp_path / "model")
    assert np.array_equal(again.decision_function(data[0]), fitted.decision_function(data[0]))
    assert np.array_equal(again.token_importance_, fitted.token_importance_)
    assert again.predict(data[0]).dtype == fitted.predict(data[0]).dtype
    assert again.get_params() == fitted.get_params()
    assert again.training_ == fitted.training_
    assert str(again.explain("not dull")) == str(fitted.explain("not dull"))
    assert sorted(one.name for one in tmp_path.iterdir()) == ["model"]  # nothing half-written beside it


@pytest.mark.parametrize("labels", [(False, True), (0, 1), (0.5, 2.5), ("no", "yes")])
def test_labels_and_ids_survive_saving(labels, tmp_path):
    ids = [[0, 1, 2], [3, 1, 2]] * 5
    pipeline = TextPipeline(stop_words=None, min_count=1)
    model = AttentionTextClassifier(pipeline, epochs=1).fit(ids, list(labels) * 5)
    model.left_out_ = np.array([1, 4])
    model.save(tmp_path / "m")
    again = AttentionTextClassifier.load(tmp_path / "m")
    assert again.left_out_.tolist() == [1, 4]
    assert again.classes_.tolist() == list(labels)
    assert again.classes_.dtype == model.classes_.dtype
    assert isinstance(again.tokens_, PlainIds)
    assert again.pipeline == pipeline
    assert np.array_equal(again.predict(ids), model.predict(ids))


def test_a_model_replaces_an_earlier_one_and_nothing_else(fitted, tmp_path):
    fitted.save(tmp_path / "m")
    AttentionTextClassifier(epochs=1).fit([[0], [1]] * 3, [0, 1] * 3).save(tmp_path / "m")
    assert isinstance(AttentionTextClassifier.load(tmp_path / "m").tokens_, PlainIds)
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "a.txt").write_text("dear")
    with pytest.raises(InputError, match="which holds something else"):
        fitted.save(tmp_path / "letters")
    with pytest.raises(InputError, match="a place in a folder that exists"):
        fitted.save(tmp_path / "nowhere" / "m")
    (tmp_path / "m" / "notes.txt").write_text("mine")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "empty").mkdir()
    for content in ("{}", "[1]", "{", '{"form": "a cake"}'):
        (tmp_path / "foreign" / FACTS).write_text(content)
        for folder in ("m", "foreign"):
            before = {one.name: one.read_bytes() for one in (tmp_path / folder).iterdir()}
            with pytest.raises(InputError, match=r"one with only an earlier model; got .*, which holds something else"):
                fitted.save(tmp_path / folder)
            assert {one.name: one.read_bytes() for one in (tmp_path / folder).iterdir()} == before
    fitted.save(tmp_path / "empty")
    assert AttentionTextClassifier.load(tmp_path / "empty").training_ == fitted.training_


def test_an_interrupted_save_leaves_the_earlier_model(fitted, tmp_path, monkeypatch):
    fitted.save(tmp_path / "m")
    before = {one.name: one.read_bytes() for one in (tmp_path / "m").iterdir()}

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("marginlens.embeddings.saving._exchange", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fitted.save(tmp_path / "m")
    assert {one.name: one.read_bytes() for one in (tmp_path / "m").iterdir()} == before
    assert [one.name for one in tmp_path.iterdir()] == ["m"]


def test_an_earlier_model_comes_back_where_the_new_one_cannot_take_its_place(tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / FACTS).write_text("earlier")
    with pytest.raises(FileNotFoundError, match="gone"):
        _exchange(tmp_path / "gone", tmp_path / "m", tmp_path / "aside")
    assert (tmp_path / "m" / FACTS).read_text() == "earlier"


def test_pickling_in_memory_works(data, fitted):
    again = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(again.decision_function(data[0]), fitted.decision_function(data[0]))
    assert isinstance(again.tokens_, WordsAndPairs)


def test_damaged_or_foreign_models_are_refused(fitted, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    fitted.save(tmp_path / "m")
    load = AttentionTextClassifier.load
    place, arrays = tmp_path / "m" / FACTS, tmp_path / "m" / ARRAYS
    whole, told = place.read_text(), json.loads(place.read_text())
    AttentionTextClassifier(epochs=1).fit([[0], [1]] * 3, [0, 1] * 3).save(tmp_path / "other")
    kept = arrays.read_bytes()
    arrays.write_bytes((tmp_path / "other" / ARRAYS).read_bytes())
    with pytest.raises(InputError, match="whose arrays are damaged or belong to another model"):
        load(tmp_path / "m")
    arrays.write_bytes(kept)
    for change, sentence in (
        ({"form": "a cake"}, r"of another form \('a cake'\)"),
        ({"arrays": {**told["arrays"], "file": "../x"}}, r"with arrays in '\.\./x'"),
        ({"arrays": {**told["arrays"], "file": TENSORS}}, "No such file"),
        ({"tokens": {**told["tokens"], "names": told["tokens"]["names"][:-1]}}, "with pairs of|tokens; got"),
        ({"classes": None}, "which cannot be read"),
    ):
        place.write_text(json.dumps({**told, **change}))
        with pytest.raises(InputError, match=sentence):
            load(tmp_path / "m")
    place.write_text(whole[:-20])
    with pytest.raises(InputError, match="which cannot be read"):
        load(tmp_path / "m")
    with pytest.raises(InputError, match="No such file"):
        load(tmp_path / "nothing")
    place.write_text(whole)
    arrays.rename(tmp_path / "m" / TENSORS)
    place.write_text(json.dumps({**told, "arrays": {**told["arrays"], "file": TENSORS}}))
    with pytest.raises(MissingExtra, match="safetensors"):
        load(tmp_path / "m")
