"""`AttentionTextClassifier`: scikit-learn's contract for text estimators, what it computes, how it explains and refuses."""

import math
import re
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError, SkipTestWarning
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import estimator_checks as sk

from made_up_reviews import BAD, FILLER, GOOD, reviews
from marginlens.embeddings.classifier import IMPORTANCE, AttentionTextClassifier
from marginlens.embeddings.classifier_tokens import MOST_TOKENS, fit_words
from marginlens.embeddings.classifier_training import learn_products, outputs
from marginlens.embeddings.settings import TrainingSettings
from marginlens.embeddings.statistics import token_statistics
from marginlens.errors import InputError
from marginlens.progress import Silence
from marginlens.text import TextPipeline
from tolerances import ROUNDING

# What check_estimator would fit on tables of numbers cannot be asked of an estimator that reads texts; these need no data.
APPLICABLE = (
    sk.check_estimator_cloneable,
    sk.check_estimator_tags_renamed,
    sk.check_valid_tag_types,
    sk.check_estimator_repr,
    sk.check_no_attributes_set_in_init,
    sk.check_do_not_raise_errors_in_init_or_set_params,
    sk.check_mixin_order,
    sk.check_parameters_default_constructible,
    sk.check_get_params_invariance,
    sk.check_set_params,
)


@pytest.fixture(scope="module")
def data():
    return reviews(240)


@pytest.fixture(scope="module")
def fitted(data):
    return AttentionTextClassifier().fit(*data)


# ---- scikit-learn's contract


@pytest.mark.parametrize("check", APPLICABLE, ids=lambda check: check.__name__)
def test_it_passes_the_checks_that_need_no_table_of_numbers(check):
    check("AttentionTextClassifier", AttentionTextClassifier())


def test_check_estimator_skips_the_rest_because_texts_are_no_table():
    with pytest.warns(SkipTestWarning, match="Can't test estimator AttentionTextClassifier"):
        done = sk.check_estimator(AttentionTextClassifier(), on_fail=None)
    assert not [one["check_name"] for one in done if one["status"] == "failed"]
    assert is_classifier(AttentionTextClassifier())


def test_fit_learns_and_changes_no_parameter(data):
    model = AttentionTextClassifier(epochs=2)
    before, kept = model.get_params(), dict(vars(model))
    assert model.fit(*data) is model
    assert model.get_params() == before
    new = set(vars(model)) - set(kept)
    assert new
    assert all(name.endswith("_") for name in new)
    learned = {name: value for name, value in vars(model).items() if name in new}
    model.predict(data[0])
    model.explain(data[0][0])
    assert {name for name in learned if vars(model)[name] is not learned[name]} == set()


def test_fitting_twice_gives_the_same_bits(data, fitted):
    again = clone(fitted).fit(*data).fit(*data)
    assert np.array_equal(again.a_, fitted.a_)
    assert np.array_equal(again.b_, fitted.b_)
    other = AttentionTextClassifier(random_state=1).fit(*data)
    assert not np.array_equal(other.a_, fitted.a_)


def test_each_text_is_judged_by_itself(data, fitted):
    texts = data[0][:30]
    together = fitted.decision_function(texts)
    one_by_one = np.concatenate([fitted.decision_function([text]) for text in texts])
    assert np.array_equal(together, one_by_one)
    order = np.random.default_rng(0).permutation(30)
    assert np.array_equal(fitted.decision_function([texts[i] for i in order]), together[order])


def test_probabilities_decisions_and_predictions_agree(fitted):
    texts, y = reviews(100, seed=5)
    f, proba = fitted.decision_function(texts), fitted.predict_proba(texts)
    assert proba.shape == (100, 2)
    np.testing.assert_allclose(proba.sum(axis=1), 1.0, rtol=ROUNDING)
    np.testing.assert_allclose(np.log(proba[:, 1] / proba[:, 0]), f, rtol=1e3 * ROUNDING)
    assert np.array_equal(fitted.predict(texts), fitted.classes_[(proba[:, 1] > 0.5).astype(int)])
    assert fitted.score(texts, y) > 0.95


@pytest.mark.parametrize("labels", [("no", "yes"), (0, 1), (-3, 7), (False, True), (0.5, 2.5)])
def test_any_two_labels_do(labels):
    texts, y = reviews(60, labels=labels)
    model = AttentionTextClassifier(epochs=1).fit(texts, y)
    assert model.classes_.tolist() == list(labels)
    assert set(model.predict(texts).tolist()) <= set(labels)
    assert model.predict(texts).tolist() == y


def test_it_works_in_a_pipeline_in_cross_validation_and_in_a_search():
    texts, y = reviews(500)
    steps = Pipeline([("lower", FunctionTransformer(_lowered)), ("model", AttentionTextClassifier(epochs=1))])
    assert cross_val_score(steps, np.array(texts, dtype=object), np.array(y), cv=3).min() > 0.9
    search = GridSearchCV(AttentionTextClassifier(epochs=1), {"pair_count": [0, 3]}, cv=2).fit(texts, y)
    scores = search.cv_results_["mean_test_score"]
    assert scores[0] < 0.9 < scores[1]  # negated words are a coin flip to words alone: 0.85 at best


def _lowered(texts):
    return [text.lower() for text in texts]


def test_a_generator_or_a_random_state_may_draw(data):
    for state in (np.random.default_rng(0), np.random.RandomState(0), None):
        assert AttentionTextClassifier(epochs=1, random_state=state).fit(*data).score(*data) > 0.95


# ---- what it computes


@pytest.mark.statement("B Eq. (1)")
def test_outputs_are_the_softmax_average_written_plainly():
    rng = np.random.default_rng(3)
    lengths = [4, 0, 1, 7, 0]
    tokens, offsets = rng.integers(0, 6, sum(lengths)), np.concatenate([[0], np.cumsum(lengths)])
    E, p, v = rng.standard_normal((6, 5)), 300.0 * rng.standard_normal(5), rng.standard_normal(5)
    found = outputs(tokens, offsets, E @ p, E @ v)
    for i, length in enumerate(lengths):
        rows = E[tokens[offsets[i] : offsets[i + 1]]]
        weights = [math.exp(one - max(rows @ p)) for one in rows @ p]
        expected = sum(w * (row @ v) for w, row in zip(weights, rows, strict=True)) / sum(weights) if length else 0.0
        assert found[i] == pytest.approx(expected, rel=100 * ROUNDING)


def test_token_ids_train_the_same_model_as_the_words_they_stand_for(data):
    words = AttentionTextClassifier(pair_count=0, epochs=1).fit(*data)
    tokens, offsets = words.tokens_.positions(data[0])
    ids = [tokens[first:last].tolist() for first, last in pairwise(offsets)]
    plain = AttentionTextClassifier(epochs=1).fit(ids, data[1])
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
    known = token_statistics(sequences, y)
    assert np.array_equal(table["alpha"], known.alpha)
    assert np.array_equal(table["posterior_difference"], known.posterior_difference)
    assert np.array_equal(table["count"], known.count)
    selected = np.bincount([ids[np.argmax(fitted.a_[ids])] for ids in sequences], minlength=len(table))
    assert np.array_equal(table["selected"], selected)
    assert table["selected"].sum() == len(data[0])
    of = {row["token"]: row for row in table}
    assert of["not dull"]["b"] > 0 > of["not wonderful"]["b"]
    assert min(of[word]["a"] for word in GOOD + BAD) > max(of[word]["a"] for word in FILLER)


def test_pairs_are_neighbours_counted_by_hand():
    texts = ["a b a b", "b a c", "a b"]
    tokens, sequences, kept = fit_words(
        texts, np.array([1.0, -1.0, 1.0]), TextPipeline(stop_words=None, min_count=1), 2
    )
    assert set(tokens.names) == {"a", "b", "c", "a b", "b a"}  # "a b" stands there three times, "b a" twice, "a c" once
    said = [sorted(tokens.names[s] for s in sequences[i][0]) for i in range(3)]
    assert said == [["a", "a", "a b", "a b", "b", "b", "b a"], ["a", "b", "b a", "c"], ["a", "a b", "b"]]
    assert kept.tolist() == [0, 1, 2]
    again, offsets = tokens.positions(["", *texts])
    assert np.array_equal(again, sequences.tokens)
    assert np.array_equal(offsets, np.concatenate([[0], sequences.offsets]))


def test_the_rarest_pairs_give_way_where_there_are_too_many(monkeypatch):
    monkeypatch.setattr("marginlens.embeddings.classifier_tokens.MOST_TOKENS", 6)
    texts = ["a b a b a b", "c d c d", "a d", "b c"]
    pipeline = TextPipeline(stop_words=None, min_count=1)
    tokens, _, _ = fit_words(texts, np.array([1.0, -1.0, 1.0, -1.0]), pipeline, 1)
    assert len(tokens) <= 6 < MOST_TOKENS
    assert tokens.names == (
        *tokens.vocabulary.names,
        "a b",
    )  # three times; "b a" and "c d" twice each would be one too many


def test_the_step_that_loses_least_on_held_out_texts_is_kept(data):
    tokens, sequences, _ = fit_words(data[0], np.where(np.array(data[1]) == "good", 1.0, -1.0), _words(), 3)
    found = learn_products(sequences, TrainingSettings(d_model=8, epochs=1, milestones=(), spread=0.3), Silence())
    assert found.held_out == 24
    assert 0 < found.kept_step <= found.steps <= 300
    order = np.random.default_rng(0).permutation(len(sequences))
    watched = sequences.subset(np.sort(order[:24]))
    f = outputs(watched.tokens, watched.offsets, found.a, found.b)
    assert found.held_out_loss == pytest.approx(np.mean(np.logaddexp(0.0, -watched.y * f)), rel=100 * ROUNDING)
    few = learn_products(sequences.subset(np.arange(50)), TrainingSettings(d_model=8, milestones=()), Silence())
    assert (few.held_out, math.isnan(few.held_out_loss)) == (0, True)
    assert few.steps == few.kept_step
    assert len(tokens) == len(found.a)


@pytest.mark.parametrize("early", [False, True])
def test_progress_hears_of_all_that_it_was_told_to_expect(early, monkeypatch):
    rising = iter(range(10))
    changes = {"BETWEEN_CHECKS": 1, "PATIENCE": 2, "_loss": lambda *_: next(rising)} if early else {}
    for name, value in {"FEWEST_STEPS": 1, **changes}.items():
        monkeypatch.setattr(f"marginlens.embeddings.classifier_training.{name}", value)
    (texts, y), told, done = reviews(150), [], []
    heard = SimpleNamespace(expect=told.append, advance=lambda units=1: done.append(units))
    model = AttentionTextClassifier().fit([*texts, *["?!"] * 150], [*y, *y], progress=heard)  # half is left out
    assert sum(told) == sum(done) == 300 + 9
    assert (model.training_["steps"], model.training_["kept_step"]) == ((3, 1) if early else (6, 6))
    assert math.isfinite(model.training_["held_out_loss"])  # that of the last step too


def _words():
    return TextPipeline(stop_words=None, min_count=2)


# ---- explanations


def test_contributions_add_up_to_the_output(data, fitted):
    for text in (data[0][0], "Not dull, not AWFUL: a superb film!", "Wonderful"):
        told = fitted.explain(text)
        f = float(fitted.decision_function([text])[0])
        assert told.f == f
        assert sum(row.contribution for row in told.rows) == pytest.approx(f, rel=1e3 * ROUNDING)
        assert sum(part for _, part in told.words) == pytest.approx(f, rel=1e3 * ROUNDING)
        assert sum(row.attention for row in told.rows) == pytest.approx(1.0, rel=1e3 * ROUNDING)
        assert told.label == fitted.predict([text])[0]
        assert told.probability == pytest.approx(fitted.predict_proba([text]).max(), rel=1e3 * ROUNDING)


def test_an_explanation_prints_as_a_table(fitted):
    told = fitted.explain("The film was not dull.")
    lines = str(told).splitlines()
    assert lines[0].startswith("good (probability ")
    assert lines[1].split()[:4] == ["token", "times", "attention", "contribution"]
    assert lines[2].startswith("not dull")
    assert "\n" not in repr(told)
    assert fitted.explain("zebra").verdict == "bad: none of the text's words is known, so this is a guess."
    assert str(fitted.explain("")) == fitted.explain("").verdict


def test_html_is_escaped_and_keeps_the_text():
    texts, y = reviews(60)
    model = AttentionTextClassifier(epochs=1).fit(texts, ["<bad>" if one == "bad" else "good&" for one in y])
    text = 'A <script>alert("dull")</script> film & nothing\nelse'
    page = model.explain(text).to_html()
    assert "<script" not in page
    assert "&lt;bad&gt;" in page
    assert "good&amp;" in page
    body = re.search(r"<p style=\"line-height.*?</p>", page, re.DOTALL).group()
    shown = re.sub(r"<[^<>]*>", "", body).replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", '"')
    assert shown.replace("&amp;", "&") == text
    assert model.explain(text)._repr_html_() == page


def test_the_words_that_decide_are_painted_deepest(fitted):
    page = fitted.explain("The film was wonderful and the plot was boring").to_html()
    paint = {word: (colour, float(depth)) for colour, depth, word in
             re.findall(r"rgba\((\d+,\d+,\d+),([\d.]+)\)[^>]*title[^>]*>([^<]+)<", page)}  # fmt: skip
    assert paint["wonderful"][0] != paint["boring"][0]
    assert min(paint["wonderful"][1], paint["boring"][1]) > 2 * max(paint["film"][1], paint["plot"][1])


@pytest.mark.statement("B Eq. (9)")
def test_the_selection_margin_is_the_smallest_gap_at_unit_length(fitted):
    text = "the film was not wonderful"
    ids = np.unique(fitted.tokens_.positions([text])[0])
    a = fitted.a_[ids] / fitted.norm_p_
    best = int(np.argmax(a))
    assert fitted.selection_margin(text) == pytest.approx(min(a[best] - np.delete(a, best)), rel=1e3 * ROUNDING)
    assert fitted.explain(text).margin == fitted.selection_margin(text)
    assert fitted.selection_margin("wonderful") == math.inf
    assert math.isnan(fitted.selection_margin("zebra"))


# ---- refusals

TWO = (["good good", "bad bad"], [1, 0])


@pytest.mark.parametrize(
    ("options", "X", "y", "sentence"),
    [
        ({}, "one text", [1], "'X' argument must be a list of texts, or a list of token-id lists; got one string"),
        ({}, 3, [1], "'X' argument must be a list of texts, or a list of token-id lists; got int"),
        ({}, [], [], "'X' argument must be at least one sample; got none"),
        ({}, (one for one in "ab"), [0, 1], "'X' argument must be a list of texts.*got generator"),
        ({}, ["a a", 3], [0, 1], "'X' argument must be a list of strings.*got int at index 1"),
        ({}, set(TWO[0]), [1, 0], "'X' argument must be a list of texts.*got set, which has no order"),
        ({}, dict.fromkeys(TWO[0]), [1, 0], "'X' argument must be a list of texts.*got dict, which has no order"),
        ({}, np.array(TWO[0])[:, None], [1, 0], r"'X' argument must be a list of token-id lists.*got shape \(2, 1\)"),
        ({}, [[0.5, 1], [1, 2]], [1, 0], r"'X\[0\]' argument must be a list of whole-number token ids"),
        ({}, ["", "!"], [1, 0], "'X' argument must be reviews with a token that occurs 2 times"),
        ({}, TWO[0], [[1, 2], [3]], "'y' argument must be 2 labels.*got lists of different lengths"),
        ({}, TWO[0], [1, "a"], "'y' argument must be labels of one kind.*got a mixture"),
        ({}, TWO[0], ["a", float("nan")], "'y' argument must be a label for every sample; got none at index 1"),
        (
            {"learning_rate": 1e5},
            *TWO,
            r"'learning_rate' argument must be so small.*got 100000 with weight_decay = 0.1",
        ),
        ({"weight_decay": 1e30}, *TWO, "'learning_rate' argument must be so small.*got 0.01 with weight_decay = 1e"),
        ({}, TWO[0], None, "'y' argument must be 2 labels of exactly two classes; got None"),
        ({}, TWO[0], [1], r"'y' argument must be 2 labels, one for each sample of X; got shape \(1,\)"),
        ({}, TWO[0], [1, 1], r"'y' argument must be labels of exactly two classes; got 1 \(1\)"),
        ({}, ["a", "b", "c"], [1, 2, 3], r"exactly two classes; got 3 \(1, 2, 3\)"),
        ({}, TWO[0], [1.0, float("nan")], "'y' argument must be a label for every sample; got none at index 1"),
        ({}, ["good good", "unique"], [1, 0], "both classes that keep a token; got only 1"),
        ({}, ["one", "two"], [1, 0], "a smaller min_count"),
        ({"pipeline": TextPipeline(stop_words=None, min_count=2)}, ["a a", "b b", "c"], [1, 0, 1], "index 2 instead"),
        ({"pipeline": "words"}, *TWO, "'pipeline' argument must be a TextPipeline or None; got str"),
        ({"pair_count": -1}, *TWO, "'pair_count' argument must be a whole number of at least 0"),
        ({"d_model": 0}, *TWO, "'d_model' argument must be a whole number of at least 1"),
        ({"epochs": 0}, *TWO, "'epochs' argument must be a whole number of at least 1"),
        ({"learning_rate": -1.0}, *TWO, "'learning_rate' argument must be a positive number"),
        ({"weight_decay": -1.0}, *TWO, "'weight_decay' argument must be a number of at least 0"),
        ({"random_state": "x"}, *TWO, "'random_state' argument must be a whole number, None"),
    ],
)
def test_what_cannot_be_fitted_is_refused_in_one_sentence(options, X, y, sentence):
    with pytest.raises(InputError, match=sentence) as problem:
        AttentionTextClassifier(**options).fit(X, y)
    assert "\n" not in str(problem.value)


def test_texts_without_a_token_are_left_out_and_listed():
    texts, y = reviews(60)
    model = AttentionTextClassifier(epochs=1).fit(["?!", *texts, "zebra"], ["good", *y, "bad"])
    assert model.left_out_.tolist() == [0, 61]
    assert model.decision_function(["?!", ""]).tolist() == [0.0, 0.0]
    assert model.predict(["?!"]).tolist() == ["bad"]
    assert model.predict_proba([""]).tolist() == [[0.5, 0.5]]


def test_ids_and_texts_are_not_mixed_up(fitted):
    with pytest.raises(InputError, match="'X' argument must be texts, as in training; got token-id lists"):
        fitted.predict([[0, 1]])
    plain = AttentionTextClassifier(epochs=1).fit([[0], [1]] * 3, [0, 1] * 3)
    with pytest.raises(InputError, match="token-id lists, as in training; got texts"):
        plain.predict(["a"])
    for ask in ("explain", "selection_margin"):
        for sample in (None, 3, ["a"], [0, 1]):
            with pytest.raises(InputError, match="'text' argument must be one text, as in training; got"):
                getattr(fitted, ask)(sample)
        for sample in (None, 3, "a", [], [0.5], [[1, 2], [3]]):
            with pytest.raises(InputError, match="'text' argument must be one list of at least one token id"):
                getattr(plain, ask)(sample)


class Table(dict):
    """What makes an object a table here: it names its columns, and iterating gives their names."""

    @property
    def columns(self):
        return list(self)


def test_a_table_is_asked_for_its_column():
    table = Table(text=np.array(TWO[0], dtype=object))
    with pytest.raises(InputError, match=r"'X' argument must be a list of texts.*got Table.*Give the column"):
        AttentionTextClassifier().fit(table, TWO[1])
    assert AttentionTextClassifier().fit(table["text"], TWO[1]).predict(table["text"]).tolist() == TWO[1]


@pytest.mark.parametrize(
    "ask", ["predict", "predict_proba", "decision_function", "explain", "selection_margin", "save"]
)
def test_an_unfitted_classifier_says_so(ask):
    with pytest.raises(NotFittedError, match="is not fitted yet"):
        getattr(AttentionTextClassifier(), ask)(["a"])
    assert not hasattr(AttentionTextClassifier(), "token_importance_")
