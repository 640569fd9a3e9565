"""Classifiers to compare with: they learn, are tuned on their training texts, say what each word contributes, and fill one table."""

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from benchmarks.fasttext_rival import LEARNING_RATES, FastText
from benchmarks.nb_svm import NaiveBayesSvm
from benchmarks.tfidf_contributions import ExplainedTfidf
from made_up_reviews import reviews
from marginlens.text.baselines import INVERSE_PENALTIES, TfidfLogistic

TEXTS, LABELS = reviews(240)
OTHERS, OTHER_LABELS = reviews(80, seed=1)
THREE = [text + f" {colour}" for text, colour in zip(TEXTS[:90], ["red", "green", "blue"] * 30, strict=True)]
COLOURS = ["red", "green", "blue"] * 30


def test_tfidf_is_scikit_learns_with_the_chosen_penalty():
    model = TfidfLogistic().fit(TEXTS, LABELS)
    assert model.chosen["C"] in INVERSE_PENALTIES
    assert model.n_tokens > TfidfLogistic(1).fit(TEXTS, LABELS).n_tokens
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"\w+|[^\w\s]")
    expected = LogisticRegression(C=model.chosen["C"], max_iter=1000).fit(vectorizer.fit_transform(TEXTS), LABELS)
    np.testing.assert_allclose(
        model.predict_proba(OTHERS), expected.predict_proba(vectorizer.transform(OTHERS)), rtol=1e-6, atol=0.0
    )
    assert np.mean(model.predict(OTHERS) == OTHER_LABELS) > 0.9


@pytest.mark.parametrize(("texts", "labels"), [(TEXTS, LABELS), (THREE, COLOURS)], ids=["two", "three"])
def test_contributions_of_words_and_the_intercept_add_up_to_the_output(texts, labels):
    model = ExplainedTfidf().fit(texts, labels)
    for text in [*texts[:5], "Not DULL, not dull: İstanbul!", "unheard"]:
        stretches = model.contributions(text)
        total = sum(stretch.contribution for stretch in stretches) + model.intercept(text)
        assert total == pytest.approx(model.output(text), abs=1e-12)
        odds = np.log(model.predict_proba([text])[0])
        if len(odds) == 2:
            assert model.output(text) == pytest.approx(abs(odds[1] - odds[0]), abs=1e-9)
    assert [text[s.start : s.end] for s in model.contributions(text)] == ["unheard"]


@pytest.mark.parametrize("make", [ExplainedTfidf, NaiveBayesSvm, FastText])
def test_all_read_the_same_words_without_markup(make):
    if make is FastText:
        pytest.importorskip("fasttext")
    model = make().fit(TEXTS, LABELS)
    plain, marked = "A dull plot. I was moved!", "A dull<br /><br />plot.<br />I <b>was</b> moved!"
    np.testing.assert_allclose(model.predict_proba([marked]), model.predict_proba([plain]), rtol=1e-9, atol=0.0)
    if make is ExplainedTfidf:
        words = [marked[stretch.start : stretch.end] for stretch in model.contributions(marked)]
        assert words == ["A", "dull", "plot", ".", "I", "was", "moved", "!"]


def test_a_single_text_of_a_class_is_not_cross_validated():
    model = TfidfLogistic().fit([*TEXTS[:10], "odd"], [*LABELS[:10], "rare"])
    assert model.chosen == {"C": 1.0}


@pytest.mark.parametrize("make", [NaiveBayesSvm, FastText])
@pytest.mark.parametrize(("texts", "labels"), [(TEXTS, LABELS), (THREE, COLOURS)], ids=["two", "three"])
def test_the_others_learn_any_number_of_classes(make, texts, labels):
    if make is FastText:
        pytest.importorskip("fasttext")
    model = make().fit(texts, labels)
    proba = model.predict_proba(texts)
    np.testing.assert_allclose(proba.sum(axis=1), 1.0, rtol=1e-7, atol=1e-6)
    assert list(model.classes_) == sorted(set(labels))
    assert np.mean(model.predict(texts) == labels) > 0.95
    assert np.array_equal(model.predict(texts), model.classes_[proba.argmax(axis=1)])


def test_nb_svm_weighs_what_a_text_has_by_the_ratio_of_smoothed_shares():
    """By hand: 'good' is in 2 texts of class 1 and none of 0, and there are 4 features with 4 and 4 occurrences."""
    texts, labels = ["good film", "good plot", "bad film", "bad plot"], [1, 1, 0, 0]
    model = NaiveBayesSvm(ngrams=1).fit(texts, labels)
    ((ratio, _),) = model._parts
    by_name = dict(zip(model._vectorizer.get_feature_names_out(), ratio, strict=True))
    assert by_name["good"] == pytest.approx(np.log(3.0 / 8.0) - np.log(1.0 / 8.0))
    assert by_name["film"] == pytest.approx(0.0)


def test_the_rate_of_fasttext_is_chosen_on_texts_it_was_not_trained_on():
    pytest.importorskip("fasttext")
    model = FastText().fit(TEXTS, LABELS)
    assert model.chosen == {"learning_rate": model.chosen["learning_rate"], "epochs": 100}
    assert model.chosen["learning_rate"] in LEARNING_RATES
    again = FastText().fit(TEXTS, LABELS)
    assert np.array_equal(model.predict_proba(OTHERS), again.predict_proba(OTHERS))
    order = np.argsort(LABELS, kind="stable")  # texts may be sorted by class
    model = FastText().fit([TEXTS[i] for i in order], [LABELS[i] for i in order])
    assert np.mean(model.predict(OTHERS) == OTHER_LABELS) > 0.85
