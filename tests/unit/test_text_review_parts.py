"""Part of a source's reviews: a named part, a sample, and a share held out from training."""

import numpy as np
import pytest

from marginlens.errors import InputError
from marginlens.text import ReviewPart, ReviewTable, TextPipeline, encode_reviews


@pytest.fixture
def source(tmp_path):
    """100 reviews, 70 of them positive, every fifth in the part "b", each text twice."""
    rows = [
        f"film number{i // 2} {'good' if i < 70 else 'bad'},{int(i < 70)},{'b' if i % 5 == 0 else 'a'}"
        for i in range(100)
    ]
    (tmp_path / "reviews.csv").write_text("\n".join(["text,label,split", *rows]))
    return ReviewTable(tmp_path / "reviews.csv")


def test_a_share_of_each_class_is_held_out_and_equal_texts_stay_together(source):
    reviews = ReviewPart(source, hold_out=0.2).read()
    held = reviews.split == "held-out"
    assert [int(np.sum(held & (reviews.y == sign))) for sign in (-1, 1)] == [6, 14]
    assert set(reviews.split) == {"train", "held-out"}
    distinct = [set(np.array(reviews.texts)[which]) for which in (held, ~held)]
    assert [len(texts) for texts in distinct] == [10, 40]
    assert not distinct[0] & distinct[1]
    assert np.array_equal(ReviewPart(source, hold_out=0.2).read().split, reviews.split)
    assert not np.array_equal(ReviewPart(source, hold_out=0.2, seed=1).read().split, reviews.split)


def test_a_part_and_a_sample_are_taken_in_the_sources_order_and_proportion(source):
    part = ReviewPart(source, "b").read()
    assert part.texts == source.read().texts[::5]
    assert set(part.split) == {"b"}
    sample = ReviewPart(source, sample=20).read()
    assert (len(sample), int(np.sum(sample.y > 0))) == (20, 14)
    places = [int(text.split("number")[1].split()[0]) for text in sample.texts]
    assert places == sorted(places)


def test_tokens_are_counted_in_what_is_trained_on(source):
    pipeline = TextPipeline(min_count=2, stop_words=None)
    found = encode_reviews(ReviewPart(source, hold_out=0.2), pipeline, count_in="train")
    trained_on = found.part("train")
    assert np.bincount(trained_on.tokens, minlength=trained_on.n_vocabulary).min() >= 2
    assert len(found.part("held-out")) == 20  # "film" is in every text


def test_the_cache_tells_parts_of_one_source_apart(source, tmp_path):
    pipeline = TextPipeline(min_count=2, stop_words=None)
    sizes = [
        len(encode_reviews(ReviewPart(source, part), pipeline, cache=tmp_path / "cache").data)
        for part in (None, "b", None, "b")
    ]
    assert sizes == [100, 20, 100, 20]


@pytest.mark.parametrize(
    ("choice", "sentence"),
    [
        ({"part": "c"}, r"'part' argument must be a part that the reviews name \('a', 'b'\); got 'c'"),
        ({"sample": 101}, "'sample' argument must be at most 100"),
        ({"sample": 1}, "'sample' argument"),
        ({"hold_out": 1.0}, "'hold_out' argument must be a share between 0 and 1"),
        ({"hold_out": 0.001}, "'hold_out' argument must be a share that parts 15 texts of one class"),
        ({"seed": -1}, "'seed' argument"),
    ],
)
def test_what_cannot_be_taken_is_refused(source, choice, sentence):
    with pytest.raises(InputError, match=sentence):
        ReviewPart(source, **choice).read()
