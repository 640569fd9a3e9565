"""`AttentionTextClassifier`: scikit-learn's contract for text estimators, what it computes, explains, saves and refuses."""

import json
import math
import pickle
import re
from collections import Counter
from html import unescape
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import coo_array
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

import marginlens as ml
from made_up_reviews import BAD, FILLER, GOOD, reviews
from marginlens.text import TextPipeline
from marginlens.text.classifier import ARRAYS_FILE, FEW_TEXTS, IMPORTANCE, SETTINGS_FILE
from marginlens.text.explanation import FULL_COLOUR
from marginlens.text.learning import Votes, token_sets
from marginlens.text.phrases import PlainIds, WordsAndPhrases
from refusals import refused
from tolerances import ROUNDING


class TokenIdClassifier(ml.AttentionTextClassifier):
    """As it reads arrays of token ids: scikit-learn's checks give whole numbers to estimators of this tag, and otherwise skip texts."""

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array, tags.input_tags.categorical = False, True, True
        tags.classifier_tags.poor_score = True  # a set of ids does not know which column an id stands in
        return tags


COLUMNS = "samples are sets of tokens of any length: there are no columns to count"
MEASURED = "the check gives fractions or negative numbers, which are no token ids and are refused"
WORDING = "refused, in this library's words"
FAILS = {
    "check_n_features_in": COLUMNS,
    "check_n_features_in_after_fitting": COLUMNS,
    "check_classifiers_train": COLUMNS,
    "check_positive_only_tag_during_fit": MEASURED,
    "check_estimators_dtypes": MEASURED,
    "check_sample_weights_not_overwritten": MEASURED,
    "check_sample_weight_equivalence_on_dense_data": MEASURED,
    "check_class_weight_classifiers": MEASURED,
    "check_decision_proba_consistency": MEASURED,
    "check_dtype_object": MEASURED,
    "check_complex_data": WORDING,
    "check_estimators_nan_inf": WORDING,
    "check_estimators_empty_data_messages": WORDING,
    "check_fit2d_predict1d": WORDING,
    "check_requires_y_none": WORDING,
    "check_supervised_y_2d": "labels in a column are refused, where scikit-learn warns",
    "check_sample_weights_pandas_series": "the samples come as a data frame, which is refused: which column has the texts?",
    "check_sample_weights_not_an_array": "the samples have no length",
    "check_classifier_data_not_an_array": "the samples have no length",
}


@pytest.fixture(scope="module")
def data():
    return reviews(240)


@pytest.fixture(scope="module")
def fitted(data):
    return ml.AttentionTextClassifier().fit(*data)


# ---- scikit-learn's contract


@parametrize_with_checks([TokenIdClassifier(epochs=2)], expected_failed_checks=lambda _: FAILS, xfail_strict=True)
def test_it_passes_the_checks_of_scikit_learn(estimator, check):
    check(estimator)
    assert is_classifier(estimator)


def test_fitting_twice_gives_the_same_bits(data, fitted):
    again = clone(fitted).fit(*data).fit(*data)
    assert np.array_equal(again.a_, fitted.a_)
    assert np.array_equal(again.b_, fitted.b_)
    other = ml.AttentionTextClassifier(random_state=1).fit(*data)
    assert not np.array_equal(other.a_, fitted.a_)


def test_probabilities_decisions_and_predictions_agree(fitted):
    texts, y = reviews(100, seed=5)
    f, proba = fitted.decision_function(texts), fitted.predict_proba(texts)
    assert proba.shape == (100, 2)
    np.testing.assert_allclose(proba.sum(axis=1), 1.0, rtol=ROUNDING, atol=0.0)
    np.testing.assert_allclose(np.log(proba[:, 1] / proba[:, 0]), f, rtol=1e3 * ROUNDING, atol=0.0)
    assert np.array_equal(fitted.predict(texts), fitted.classes_[(proba[:, 1] > 0.5).astype(int)])
    assert fitted.score(texts, y) > 0.94


@pytest.mark.parametrize("labels", [("no", "yes"), (0, 1), (-3, 7), (False, True), (0.5, 2.5)])
@pytest.mark.parametrize("kind", ["texts", "ids"])
def test_any_two_labels_do_and_survive_saving(labels, kind, tmp_path):
    samples, y = reviews(120, labels=labels) if kind == "texts" else ([[0, 1, 2], [3, 1, 2]] * 20, list(labels) * 20)
    pipeline = TextPipeline(stop_words=None, min_count=1)
    model = ml.AttentionTextClassifier(pipeline, epochs=1).fit(samples, y)
    assert model.classes_.tolist() == list(labels)
    assert np.mean(model.predict(samples) == np.array(y)) > 0.95
    model.save(tmp_path / "m")
    again = ml.AttentionTextClassifier.load(tmp_path / "m")
    assert again.classes_.tolist() == list(labels)
    assert again.classes_.dtype == model.classes_.dtype
    assert isinstance(again.tokens_, PlainIds) == (kind == "ids")
    assert again.pipeline == pipeline
    assert np.array_equal(again.predict(samples), model.predict(samples))


def test_it_works_in_a_pipeline_in_cross_validation_and_in_a_search():
    texts, y = reviews(500)
    steps = Pipeline([("lower", FunctionTransformer(_lowered)), ("model", ml.AttentionTextClassifier())])
    assert cross_val_score(steps, np.array(texts, dtype=object), np.array(y), cv=3).min() > 0.9
    search = GridSearchCV(ml.AttentionTextClassifier(), {"ngrams": [1, 3]}, cv=3).fit(texts, y)
    scores = search.cv_results_["mean_test_score"]
    assert scores[0] < 0.8 < scores[1]  # words alone cannot know what "not" turns around


def _lowered(texts):
    return [text.lower() for text in texts]


# ---- what it computes


@pytest.mark.statement("B Eq. (1)")
@pytest.mark.parametrize("n_outputs", [1, 3])
def test_outputs_are_the_softmax_average_written_plainly(n_outputs):
    rng = np.random.default_rng(3)
    texts = [[0, 2, 2, 5], [], [1], [3, 1, 4, 0, 1]]
    E, p, V = rng.standard_normal((7, 5)), 300.0 * rng.standard_normal(5), rng.standard_normal((5, n_outputs))
    a, b = E @ p, E @ V  # the last row is the rest token's
    offsets = np.concatenate([[0], np.cumsum([len(text) for text in texts])])
    sets = token_sets(np.concatenate(texts).astype(int), offsets, 6)
    found = Votes(a[:6], b[:6], a[6], b[6]).outputs(sets)
    for i, text in enumerate(texts):
        rows = E[[*sorted(set(text)), 6]]
        weights = [math.exp(score - max(rows @ p)) for score in rows @ p]
        expected = sum(w * (row @ V) for w, row in zip(weights, rows, strict=True)) / sum(weights)
        np.testing.assert_allclose(found[i], expected, rtol=100 * ROUNDING, atol=0.0)


def test_token_ids_train_the_same_model_as_the_words_they_stand_for(data):
    words = ml.AttentionTextClassifier(ngrams=1, epochs=1).fit(*data)
    tokens, offsets = words.tokens_.positions(data[0])
    ids = [tokens[first:last].tolist() for first, last in pairwise(offsets)]
    plain = ml.AttentionTextClassifier(epochs=1).fit(ids, data[1])
    assert np.array_equal(plain.a_, words.a_)
    assert np.array_equal(plain.decision_function(ids), words.decision_function(data[0]))
    assert np.array_equal(plain.predict([[*ids[0], 10_000]]), plain.predict([ids[0]]))  # an id never met says nothing
    assert [row.token for row in plain.explain(ids[0]).rows]
    assert "</span>" in plain.explain(ids[0]).to_html()


def test_token_importance_has_the_statistics_of_the_training_texts(data, fitted):
    table = fitted.token_importance_
    assert table.dtype == IMPORTANCE
    tokens, offsets = fitted.tokens_.positions(data[0])
    y = np.where(np.array(data[1]) == "good", 1, -1)
    sequences = [tokens[first:last] for first, last in pairwise(offsets)]
    known = ml.token_statistics(sequences, y)
    assert np.array_equal(table["alpha"], known.alpha)
    assert np.array_equal(table["posterior_difference"], known.posterior_difference)
    assert np.array_equal(table["count"], known.count)
    selected = np.bincount([ids[np.argmax(fitted.a_[ids])] for ids in sequences], minlength=len(table))
    assert np.array_equal(table["selected"], selected)
    assert table["selected"].sum() == len(data[0])
    of = {row["token"]: row for row in table}
    assert of["not dull"]["b"] > 0 > of["not wonderful"]["b"]
    assert min(of[word]["a"] for word in GOOD + BAD) > max(of[word]["a"] for word in FILLER)


def test_phrases_are_neighbours_counted_by_hand():
    texts = ["a b a b", "b a c", "a b a"]
    pipeline = TextPipeline(stop_words=None, min_count=1)
    tokens, (ids, offsets) = WordsAndPhrases.fit(texts, pipeline, 3, 2)
    assert set(tokens.names) == {"a", "b", "c", "a b", "b a", "a b a"}  # "a c" and "b a b" occur once
    found = [[tokens.names[s] for s in ids[first:last]] for first, last in pairwise(offsets)]
    assert found[0] == ["a", "a b", "a b a", "b", "b a", "a", "a b", "b"]
    assert found[1] == ["b", "b a", "a", "c"]
    again = tokens.positions(["", *texts])
    assert np.array_equal(again.tokens, ids)
    assert np.array_equal(again.offsets, np.concatenate([[0], offsets]))
    assert set(WordsAndPhrases.fit(texts, pipeline, 1, 2)[0].names) == {"a", "b", "c"}


def test_what_occurs_once_is_a_token_of_few_texts_only():
    texts, y = reviews(FEW_TEXTS)
    texts[0] += " zebra"
    few = ml.AttentionTextClassifier(epochs=1).fit(texts[:-1], y[:-1]).tokens_.names
    many = ml.AttentionTextClassifier(epochs=1).fit(texts, y).tokens_.names
    asked = ml.AttentionTextClassifier(ngrams=3, min_count=2, epochs=1).fit(texts[:-1], y[:-1]).tokens_.names
    assert "zebra" in few
    assert not {"zebra"} & {*many, *asked}
    assert [max(len(name.split()) for name in names) for names in (few, many, asked)] == [2, 3, 3]


def test_a_phrase_is_shared_by_the_words_it_joins():
    pipeline = TextPipeline(stop_words=None, min_count=1)
    tokens, _ = WordsAndPhrases.fit(["not dull", "not dull"], pipeline, 2, 2)
    spans = tokens.read("not dull").spans()
    found = [(span.start, span.end, *(tokens.names[s] for s in span.tokens)) for span in spans]
    assert found == [(0, 3, "not", "not dull"), (4, 8, "dull", "not dull")]
    assert [span.shares for span in spans] == [(1.0, 0.5)] * 2


# ---- explanations


def test_an_explanation_has_the_bits_of_the_prediction_and_its_contributions_add_up(data, four_classes, fitted):
    texts = ["", "zebra", "Dull dull, zebra: not DULL!", "naïve 😀 <br />film's", "Wonderful", *data[0][5:9]]
    sequences = [[3, 1, 3, 2], [0, 2, 1], [1, 1, 2], [3, 0, 2]] * 5
    ids = ml.AttentionTextClassifier(epochs=2).fit(sequences, [i % 3 for i in range(20)])
    cut = ml.AttentionTextClassifier(tokenizer=str.split, epochs=2).fit(*data)
    several = ml.AttentionTextClassifier(epochs=2).fit(*four_classes)
    for model, samples in ((fitted, texts), (cut, texts), (several, texts), (ids, [[2, 9, 2, -1, 0], [8], [3, 1]])):
        for sample in samples:
            told, names = model.explain(sample), model.tokens_.names
            f, proba = model.decision_function([sample])[0], model.predict_proba([sample])[0]
            assert list(told.probabilities) == proba.tolist()
            assert (told.label, told.probability) == (model.predict([sample])[0], proba.max())
            assert told.f == (f if np.ndim(f) == 0 else f.max())
            total = np.sum([row.contributions for row in told.rows], axis=0)
            np.testing.assert_allclose(total, np.atleast_1d(f), rtol=0, atol=1e4 * ROUNDING)
            assert told.rest.contribution + sum(part for _, part in told.words) == pytest.approx(told.f)
            assert sum(row.attention for row in told.rows) == pytest.approx(1.0, rel=1e3 * ROUNDING)
            places = model.tokens_.positions([sample]).tokens.tolist()
            assert {row.token: row.count for row in told.known} == Counter(names[s] for s in places)
            assert sum(share for span, _ in told.words for share in span.shares) == pytest.approx(len(places))
            of = {row.token: row for row in told.rows}
            for span, part in told.words:
                named = [of[names[s]] for s in span.tokens]
                terms = [share * row.contribution / row.count for share, row in zip(span.shares, named, strict=True)]
                assert part == pytest.approx(sum(terms), abs=1e3 * ROUNDING)


def test_an_explanation_leads_with_what_speaks_for_the_decision(fitted):
    for text in ("Not dull, not AWFUL: a superb quokka film!", "boring boring plot", "was it moving"):
        told = fitted.explain(text)
        sign = 1.0 if told.label == "good" else -1.0
        top = max(told.rows, key=lambda row: sign * row.contribution)
        assert f"for it '{top.token}' ({top.contribution:+.2f})" in told.verdict
        sizes = [abs(row.contribution) for row in told.rows]
        assert sizes == sorted(sizes, reverse=True)
        assert told.table(3)[-1]["token"] == "(rest)"
        left = sum(row.contribution for row in told.known[2:])
        assert f"{left:+.4f} in all" in (told.others(3) or [f"{left:+.4f} in all"])[0]
    assert fitted.explain("a superb quokka, a quokka, an ibex").unknown == ("quokka", "an", "ibex")
    assert "unknown: 'quokka'" in fitted.explain("a superb quokka film").verdict


def test_a_token_is_selected_only_where_it_has_half_of_the_attention(fitted):
    model = pickle.loads(pickle.dumps(fitted))
    name, other = (model.tokens_.names.index(word) for word in ("film", "plot"))
    for gain, selected in ((30.0, "film"), (-30.0, None)):
        model.a_ = fitted.a_.copy()
        model.a_[name] = fitted.rest_a_ + gain
        model.a_[other] = fitted.rest_a_ - 40.0
        told = model.explain("film plot")
        assert told.selected == selected
        assert ("'film' has 100% of the attention: selected" in told.verdict) == (selected == "film")
        assert ("the rest token has 100% of the attention" in told.verdict) == (selected is None)
    model.a_[[name, other]] = fitted.rest_a_  # a third each, as far as the pair is not known
    assert model.explain("film plot").selected is None
    assert "selected" not in model.explain("film plot").verdict


def test_colours_have_one_scale_in_all_texts(fitted):
    def colours(text):
        told = fitted.explain(text)
        shown = re.findall(r"<span style=\"([^\"]*)\" title=\"contributes ([^\"]*)\"", told.to_html())
        return {abs(float(contribution)): float(style.rstrip(")").rsplit(",", 1)[1]) for style, contribution in shown}

    faint, deep = colours("the film with a plot"), colours("superb superb wonderful")
    assert max(faint) < FULL_COLOUR < max(deep)
    for contribution, opacity in {**faint, **deep}.items():
        assert opacity == pytest.approx(0.45 * min(contribution / FULL_COLOUR, 1.0) ** 0.5, abs=0.011)
    assert 'class="unknown" title="unknown to the model">zebra<' in fitted.explain("superb zebra").to_html()


def test_html_is_escaped_and_keeps_the_text():
    texts, y = reviews(60)
    model = ml.AttentionTextClassifier(epochs=1).fit(texts, ["<bad>" if one == "bad" else "good&" for one in y])
    text = 'A <script>alert("dull")</script> film & nothing\nelse'
    page = model.explain(text).to_html()
    assert "<script" not in page
    assert "&lt;bad&gt;" in page
    assert "good&amp;" in page
    body = re.search(r"<p class=\"words\">.*?</p>", page, re.DOTALL).group()
    words = re.sub(r"</?p[^<>]*>", "", body)
    assert unescape(re.sub(r"<[^<>]*>", "", words)) == text
    assert words in model.explain(text)._repr_html_()


@pytest.mark.statement("B Eq. (9)")
def test_the_selection_margin_is_the_smallest_gap_at_unit_length(fitted):
    text = "the film was not wonderful"
    a = fitted.a_[np.unique(fitted.tokens_.positions([text]).tokens)]
    best = int(np.argmax(a))
    assert fitted.selection_margin(text) == pytest.approx(min(a[best] - np.delete(a, best)), rel=1e3 * ROUNDING)
    assert fitted.explain(text).margin == fitted.selection_margin(text)
    assert fitted.selection_margin("wonderful") == math.inf
    assert math.isnan(fitted.selection_margin("zebra"))


# ---- more classes, weights, tokenizers, warm starts


@pytest.fixture(scope="module")
def four_classes():
    texts, y = reviews(320)
    return [f"{text} {'bravo' if i % 4 < 2 else 'encore'}" for i, text in enumerate(texts)], [
        f"{label} {'one' if i % 4 < 2 else 'two'}" for i, label in enumerate(y)
    ]


def test_more_classes_have_one_softmax_and_an_exact_account_for_each(four_classes, tmp_path):
    texts, y = four_classes
    model = ml.AttentionTextClassifier().fit(texts, y)
    assert model.classes_.tolist() == sorted(set(y))
    f, proba = model.decision_function(texts), model.predict_proba(texts)
    assert f.shape == proba.shape == (320, 4)
    np.testing.assert_allclose(proba, np.exp(f) / np.exp(f).sum(axis=1, keepdims=True), rtol=1e4 * ROUNDING, atol=0.0)
    assert model.score(texts, y) > 0.9
    explanation = model.explain(texts[0])
    assert len(explanation.to_frame("pyarrow")) == len(explanation.rows)
    model.save(tmp_path / "m")
    assert np.array_equal(ml.AttentionTextClassifier.load(tmp_path / "m").predict_proba(texts), proba)
    of = {row["token"]: row for row in model.token_importance_}
    assert of["bravo"]["label"].endswith("one")
    assert explanation.poles == (f"against {explanation.label}", f"for {explanation.label}")
    page = explanation.to_html()
    assert all(f">{pole}</span>" in page for pole in explanation.poles)
    assert all(str(label) in page for label in model.classes_)


def test_weights_count_as_repetitions_in_what_is_balanced():
    texts, y = reviews(120)
    few = [i for i in range(120) if y[i] == "bad" or i % 12 == 1]
    X, labels = [texts[i] for i in few], [y[i] for i in few]
    plain = ml.AttentionTextClassifier().fit(X, labels)
    balanced = ml.AttentionTextClassifier(class_weight="balanced").fit(X, labels)
    by_hand = [60 / labels.count(label) for label in labels]
    weighted = ml.AttentionTextClassifier().fit(X, labels, sample_weight=by_hand)
    np.testing.assert_allclose(weighted.decision_function(X), balanced.decision_function(X), rtol=1e-6, atol=0.0)
    assert balanced.predict_proba([""])[0, 1] > plain.predict_proba([""])[0, 1]


def test_a_tokenizer_takes_the_place_of_the_words(data, tmp_path):
    model = ml.AttentionTextClassifier(tokenizer=str.split).fit(*data)
    assert any(name.endswith(".") for name in model.tokens_.names)
    span = model.explain(data[0][0]).words[0][0]
    assert data[0][0][span.start : span.end] == data[0][0].split()[0]
    model.save(tmp_path / "m")
    again = ml.AttentionTextClassifier.load(tmp_path / "m", tokenizer=str.split)
    assert np.array_equal(again.decision_function(data[0]), model.decision_function(data[0]))
    with pytest.raises(ml.InputError, match="which its files do not hold"):
        ml.AttentionTextClassifier.load(tmp_path / "m")


def test_letters_are_words_where_there_are_no_blanks_and_emoji_are_words():
    texts = ["这部电影很好看非常精彩值得一看推荐大家去看", "这部电影很难看非常无聊不值得一看不推荐大家"] * 6
    y = [1, 0] * 6
    with pytest.warns(UserWarning, match="characters=True"):
        ml.AttentionTextClassifier().fit(texts, y)
    model = ml.AttentionTextClassifier(characters=True).fit(texts, y)
    assert "好 看" in model.tokens_.names
    assert model.score(texts, y) == 1.0
    signs = ml.AttentionTextClassifier().fit(["fine 👍🏽 film", "fine 👎 film"] * 6, y)
    assert {"👍🏽", "👎"} <= set(signs.tokens_.names)
    assert signs.predict(["👍🏽", "👎"]).tolist() == [1, 0]


def test_a_warm_start_keeps_tokens_and_goes_on(data):
    model = ml.AttentionTextClassifier(warm_start=True).fit(*data)
    names, a = model.tokens_.names, model.a_
    model.fit(*reviews(60, seed=9))
    assert model.tokens_.names == names
    assert not np.array_equal(model.a_, a)
    with pytest.raises(ml.InputError):  # other classes than those of the first fit
        model.fit(["a a", "b b"], [0, 1])
    again = ml.AttentionTextClassifier(warm_start=True).fit(*data).fit(*data)
    assert again.training_["scale"] <= 1.0  # no surer than training makes it
    assert again.score(*data) > 0.95


@pytest.mark.parametrize(("n", "options"), [(6, {}), (60, {}), (60, {"ngrams": 2}), (60, {"warm_start": True})])
def test_progress_counts_every_text_that_is_read_and_ends_at_its_total(n, options):
    texts, y = reviews(n)
    model = ml.AttentionTextClassifier(epochs=2, min_count=1, **options).fit(texts, y)
    calls = []
    with pytest.warns(UserWarning, match="which have no word that occurs once"):
        model.fit([*texts, ""], [*y, "good"], progress=lambda done, total: calls.append((done, total)))
    done, totals = zip(*calls, strict=True)
    assert list(done) == sorted(done)
    assert set(totals) == {done[-1]}
    held_out = model.training_["held_out"]
    assert (held_out > 0) == (n >= 10)
    assert done[-1] >= n + model.training_["readings"]


# ---- files


def test_a_saved_model_says_the_same(data, fitted, tmp_path):
    fitted.save(tmp_path / "model")
    assert sorted(file.name for file in (tmp_path / "model").iterdir()) == [ARRAYS_FILE, SETTINGS_FILE]
    again = ml.AttentionTextClassifier.load(tmp_path / "model")
    assert np.array_equal(again.decision_function(data[0]), fitted.decision_function(data[0]))
    assert np.array_equal(again.token_importance_, fitted.token_importance_)
    assert again.predict(data[0]).dtype == fitted.predict(data[0]).dtype
    assert again.get_params() == fitted.get_params()
    assert again.training_ == fitted.training_
    assert str(again.explain("not dull")) == str(fitted.explain("not dull"))
    in_memory = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(in_memory.decision_function(data[0]), fitted.decision_function(data[0]))


def test_a_model_replaces_an_earlier_one_or_an_empty_folder_and_nothing_else(fitted, tmp_path):
    fitted.save(tmp_path / "m")
    ml.AttentionTextClassifier(epochs=1).fit([[0], [1]] * 3, [0, 1] * 3).save(tmp_path / "m")
    assert isinstance(ml.AttentionTextClassifier.load(tmp_path / "m").tokens_, PlainIds)
    (tmp_path / "empty").mkdir()
    fitted.save(tmp_path / "empty")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["empty", "m"]  # nothing half-written beside them
    (tmp_path / "m" / "notes.txt").write_text("mine")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / SETTINGS_FILE).write_text("{}")
    for folder in ("m", "foreign"):
        before = {file.name: file.read_bytes() for file in (tmp_path / folder).iterdir()}
        with pytest.raises(ml.InputError, match="which holds something else"):
            fitted.save(tmp_path / folder)
        assert {file.name: file.read_bytes() for file in (tmp_path / folder).iterdir()} == before
    with pytest.raises(ml.InputError, match="a place in a folder that exists"):
        fitted.save(tmp_path / "nowhere" / "m")


def test_damaged_or_foreign_models_are_refused(fitted, tmp_path):
    fitted.save(tmp_path / "m")
    ml.AttentionTextClassifier(epochs=1).fit([[0], [1]] * 3, [0, 1] * 3).save(tmp_path / "other")
    whole, arrays = ((tmp_path / "m" / name).read_bytes() for name in (SETTINGS_FILE, ARRAYS_FILE))
    saved = json.loads(whole)
    foreign = (tmp_path / "other" / ARRAYS_FILE).read_bytes()
    for content, numbers in (
        (whole[:-20], arrays),
        (b"[1]", arrays),
        (json.dumps({**saved, "format": "a cake"}).encode(), arrays),
        (json.dumps({**saved, "format": "marginlens text classifier 2"}).encode(), arrays),
        (json.dumps({**saved, "tokens": {**saved["tokens"], "names": saved["tokens"]["names"][:-1]}}).encode(), arrays),
        (json.dumps({**saved, "classes": None}).encode(), arrays),
        (whole, foreign),
    ):
        (tmp_path / "m" / SETTINGS_FILE).write_bytes(content)
        (tmp_path / "m" / ARRAYS_FILE).write_bytes(numbers)
        with refused("folder"):
            ml.AttentionTextClassifier.load(tmp_path / "m")
    for folder in (tmp_path / "nothing", None):
        with refused("folder"):
            ml.AttentionTextClassifier.load(folder)


# ---- refusals

TWO = (["good good", "bad bad"], [1, 0])


@pytest.mark.parametrize(
    ("options", "X", "y", "argument"),
    [
        ({}, "one text", [1], "X"),
        ({}, ["a a", 3], [0, 1], "X"),
        ({"min_count": 2}, ["good good", "unique"], [1, 0], "X"),
        ({}, TWO[0], [1, "a"], "y"),
        ({}, TWO[0], [1], "y"),
        ({}, TWO[0], [1, 1], "y"),
        ({}, TWO[0], None, "y"),
        ({}, ["good good", "bad bad"] * 600, [f"text {i}" for i in range(1200)], "y"),
        ({}, ["good good", "bad bad"] * 20, [i / 7 for i in range(40)], "y"),
        ({}, ["good good", "bad bad"] * 20, [f"{i}.5" for i in range(40)], "y"),
        ({}, ["good good", "bad bad"] * 20, list(range(40)), "y"),
        ({}, ["good good"] * 100_000, list(map(str, range(100_000))), "y"),
        ({}, coo_array(np.eye(2, dtype=int)), [1, 0], "X"),
        ({}, ["fine \ud83d film", "dull film"] * 2, [1, 0] * 2, "X"),
        ({}, *zip(*[("fine film", "good\ud83d"), ("dull film", "bad")] * 2, strict=True), "y"),
        ({}, TWO[0] * 2, pd.Series(["good", "bad", pd.NA, "bad"], dtype="string"), "y"),
        ({}, TWO[0] * 2, [1, 0, pd.NA, 0], "y"),
        ({"class_weight": "even"}, *TWO, "class_weight"),
        ({"class_weight": {0: 0.0, 1: 1.0}}, *TWO, "class_weight"),
        ({"tokenizer": 3}, *TWO, "tokenizer"),
        ({"ngrams": 4}, *TWO, "ngrams"),
        ({"learning_rate": 1e308}, *TWO, "learning_rate"),
        ({"pipeline": "words"}, *TWO, "pipeline"),
        ({"epochs": 0}, *TWO, "epochs"),
        ({"random_state": "x"}, *TWO, "random_state"),
        *(({"sample_weight": weights}, *TWO, "sample_weight") for weights in ([1.0], [1.0, -1.0], [1.0, 0.0])),
    ],
)
def test_what_cannot_be_fitted_is_refused(options, X, y, argument):
    weights = {"sample_weight": options.pop("sample_weight")} if "sample_weight" in options else {}
    with refused(argument):
        ml.AttentionTextClassifier(**options).fit(X, y, **weights)


def test_texts_without_a_token_are_left_out_counted_and_judged_by_the_rest_token():
    texts, y = reviews(60)
    with pytest.warns(UserWarning, match="2 of 62 texts, which have no word that occurs 2 times"):
        model = ml.AttentionTextClassifier(min_count=2, epochs=1).fit(["?!", *texts, "zebra"], ["good", *y, "bad"])
    assert model.left_out_.tolist() == [0, 61]
    assert model.decision_function(["?!", ""]).tolist() == [float(model.rest_b_[0])] * 2
    for text, why in (("?!", "none of the text's words is known"), ("", "the text has no words")):
        assert f"{why}, so this is the share of its class in training" in model.explain(text).verdict
    weighted = ml.AttentionTextClassifier(class_weight={"good": 3, "bad": 1}, epochs=1).fit(texts[:-1], y[:-1])
    assert "the weighted share of its class" in weighted.explain("?!").verdict


def test_ids_and_texts_are_not_mixed_up(fitted):
    plain = ml.AttentionTextClassifier(epochs=1).fit([[0], [1]] * 3, [0, 1] * 3)
    for call in (
        lambda: fitted.predict([[0, 1]]),
        lambda: plain.predict(["a"]),
        lambda: fitted.explain([0, 1]),
        lambda: plain.explain("a"),
        lambda: plain.selection_margin([0.5]),
    ):
        with pytest.raises(ml.InputError, match=r"as in training|list of at least one token id"):
            call()


@pytest.mark.parametrize(
    "ask", ["predict", "predict_proba", "decision_function", "explain", "selection_margin", "save"]
)
def test_an_unfitted_classifier_says_so(ask):
    with pytest.raises(NotFittedError, match="is not fitted yet"):
        getattr(ml.AttentionTextClassifier(), ask)(["a"])
    assert not hasattr(ml.AttentionTextClassifier(), "token_importance_")
