"""Comprehensiveness and sufficiency: values found by hand, exact sums, and a control that must do worse."""

import numpy as np
import pytest

import marginlens as ml
from benchmarks.faithfulness import eraser_scores
from benchmarks.tfidf_contributions import ExplainedTfidf
from made_up_reviews import reviews
from marginlens.errors import InputError

TEXTS, LABELS = reviews(240)
SUPPORT = {"good": 0.25, "fine": 0.125, "dull": -0.25}


class Counted:
    """P(second class) = 1/2 plus the support of each word, so that every number can be found by hand."""

    def predict_proba(self, texts):
        p = [0.5 + sum(SUPPORT.get(word, 0.0) for word in text.split()) for text in texts]
        return np.column_stack([1.0 - np.array(p), p])

    def contributions(self, text):
        sign, place, found = (1.0 if self.predict_proba([text])[0, 1] > 0.5 else -1.0), 0, []
        for word in text.split():
            place = text.index(word, place)
            found.append((place, place + len(word), sign * SUPPORT.get(word, 0.0)))
            place += len(word)
        return found


def test_values_found_by_hand():
    """P = .875. Of four words the best is "good" (.25), the best two "good" and "fine" (.125); the others have no support.

    A quarter: without "good" .625, with it only .75. Half: without both .5, with both .875.
    """
    scores = eraser_scores(Counted(), ["a good  fine film"], shares=[0.25, 0.5])
    np.testing.assert_allclose(scores.probability, [0.875], rtol=0, atol=1e-15)
    np.testing.assert_allclose(scores.removed, [[0.25, 0.375]], rtol=0, atol=1e-15)
    np.testing.assert_allclose(scores.only, [[0.125, 0.0]], rtol=0, atol=1e-15)
    assert scores.comprehensiveness == pytest.approx(0.3125, abs=1e-15)
    assert scores.sufficiency == pytest.approx(0.0625, abs=1e-15)


def test_the_predicted_class_counts_also_where_it_is_the_first():
    """P(first) = .75 by "dull", which is removed, although at 1 % a text of four words has less than one."""
    scores = eraser_scores(Counted(), ["a dull film again"], shares=[0.01])
    np.testing.assert_allclose([scores.comprehensiveness, scores.sufficiency], [0.25, 0.0], rtol=0, atol=1e-15)
    reverse = eraser_scores(Counted(), ["a dull film again"], lambda text: [(0, 1, 1.0)], shares=[0.01])
    np.testing.assert_allclose([reverse.comprehensiveness, reverse.sufficiency], [0.0, 0.25], rtol=0, atol=1e-15)


@pytest.mark.parametrize("make", [ml.AttentionTextClassifier, ExplainedTfidf], ids=["attention", "tfidf"])
def test_explanations_of_the_classifiers_are_more_faithful_than_chance(make):
    model, texts = make().fit(TEXTS, LABELS), TEXTS[:40]
    rng = np.random.default_rng(0)
    chance = eraser_scores(model, texts, lambda text: [(k, k + 1, rng.random()) for k in range(len(text))])
    scores = eraser_scores(model, texts)
    assert scores.comprehensiveness > chance.comprehensiveness + 0.1
    assert scores.sufficiency < chance.sufficiency - 0.05
    table = scores.to_frame()
    assert list(table["share"]) == [0.01, 0.05, 0.1, 0.2, 0.5]
    assert table["comprehensiveness"].mean() == pytest.approx(scores.comprehensiveness)


def test_contributions_of_the_attention_classifier_add_up_to_its_output():
    three = [text + f" {colour}" for text, colour in zip(TEXTS[:90], ["red", "green", "blue"] * 30, strict=True)]
    for model in (
        ml.AttentionTextClassifier().fit(TEXTS, LABELS),
        ml.AttentionTextClassifier().fit(three, ["red", "green", "blue"] * 30),
    ):
        for text in (TEXTS[0], "Not dull, blue.", "unheard of"):
            explanation = model.explain(text)
            total = sum(value for _, value in explanation.words) + explanation.rest.contribution
            assert total == pytest.approx(explanation.f, abs=1e-12)


def test_a_classifier_of_characters_loses_characters():
    texts, labels = ["好好片好", "差差片差", "好片好片", "差片差片"] * 5, ["good", "bad"] * 10
    model = ml.AttentionTextClassifier(characters=True, ngrams=1).fit(texts, labels)
    scores = eraser_scores(model, ["好片好片"], shares=[0.5])
    assert scores.comprehensiveness > 0.0
    whole, rest = model.predict_proba(["好片好片", "片片"])[:, 1]
    assert scores.removed[0, 0] == pytest.approx(whole - rest, abs=1e-12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"texts": "a text"}, "'texts'.*a list of at least one text"),
        ({"texts": []}, "'texts'.*a list of at least one text"),
        ({"texts": ["a"], "shares": [0.0, 0.5]}, "'shares'.*above 0 and below 1"),
        ({"texts": ["a"], "shares": "half"}, "'shares'.*above 0 and below 1"),
        ({"texts": ["a"], "model": object()}, "'model'.*predict_proba"),
    ],
    ids=["a text", "no text", "share 0", "share in words", "no model"],
)
def test_what_cannot_be_measured_is_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        eraser_scores(**{"model": Counted(), **arguments})


def test_a_model_that_explains_nothing_needs_contributions():
    class Silent:
        predict_proba = Counted().predict_proba

    with pytest.raises(InputError, match=r"'contributions'.*explains nothing"):
        eraser_scores(Silent(), ["a good film"])
    assert eraser_scores(Silent(), ["a good film"], Counted().contributions).comprehensiveness > 0.0
