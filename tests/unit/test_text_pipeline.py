"""Reviews to token ids, against the same steps done word by word in plain Python."""

import json
from collections import Counter

import numpy as np
import pytest

from marginlens.errors import InputError
from marginlens.text import Cleaning, Snowball, StopWords, TextPipeline, WordPiece, paper_pipeline

LEXICON = ["good", "bad", "film's", "don't", "the", "not", "Loving", "loved", "movies", "movie", "isn't", "of"]
LEXICON += ["plot", "plots", "caf\u00e9", "acting", "actor", "xyz"]
PIECES = WordPiece(
    ("[UNK]", "good", "bad", "film", "mo", "##vi", "love", "lov", "plot", "act", "##or", "cafe", "x", "not")
)


def random_texts(n_texts: int, seed: int = 0) -> tuple[list[str], np.ndarray]:
    rng = np.random.default_rng(seed)
    texts = [" ".join(rng.choice(LEXICON, size=rng.integers(1, 30))) + ".<br />Film!" for _ in range(n_texts)]
    return texts, np.where(rng.random(n_texts) < 0.5, -1.0, 1.0)


def by_hand(pipeline: TextPipeline, text: str) -> list[str]:
    """The pieces of one text, word after word."""
    tokens = []
    for word in pipeline.cleaning.words(text):
        form = pipeline.cleaning.form(word)
        for part in pipeline.stop_words.remaining(form) if pipeline.stop_words else form.split("'"):
            stem = pipeline.stemming.stems([part])[0] if pipeline.stemming else part
            tokens += pipeline.pieces.cut([stem])[0] if pipeline.pieces else (stem,)
    return tokens


PIPELINES = [
    TextPipeline(min_count=3),
    TextPipeline(stop_words=None, min_count=1),
    TextPipeline(stop_words=StopWords(keep_negations=True), pieces=PIECES, min_count=40),
    TextPipeline(cleaning=Cleaning(keep_case=True, keep_punctuation=True), min_count=90),
]


@pytest.mark.parametrize("pipeline", [*PIPELINES, paper_pipeline(PIECES)], ids=range(5))
def test_every_token_as_by_hand(pipeline: TextPipeline) -> None:
    if pipeline.stemming:
        pytest.importorskip("snowballstemmer")
    texts, y = random_texts(120)
    expected = [by_hand(pipeline, text) for text in texts]
    counts = Counter(token for tokens in expected for token in tokens)
    kept = {token for token, count in counts.items() if count >= pipeline.min_count}
    encoded = pipeline.encode(texts, y)
    assert set(encoded.names) == kept
    assert encoded.vocabulary.counts.tolist() == [counts[name] for name in encoded.names]
    assert list(encoded.vocabulary.counts) == sorted(encoded.vocabulary.counts, reverse=True)
    for i, tokens in enumerate(expected):
        ids, label = encoded.data[i]
        assert [encoded.names[s] for s in ids] == [token for token in tokens if token in kept]
        assert label == y[i]
    assert encoded.data.n_vocabulary == len(encoded.names)


def test_fit_then_encode_is_encode() -> None:
    texts, y = random_texts(60)
    pipeline = TextPipeline(min_count=20)
    vocabulary = pipeline.fit(texts)
    once, twice = pipeline.encode(texts, y), vocabulary.encode(texts, y)
    assert vocabulary.names == once.names == twice.names
    np.testing.assert_array_equal(once.data.tokens, twice.data.tokens)
    np.testing.assert_array_equal(once.data.offsets, twice.data.offsets)
    assert repr(once) == f"EncodedTexts({once.data!r})"
    assert repr(vocabulary) == f"Vocabulary({len(vocabulary)} tokens, {len(once.data.tokens)} occurrences)"


def test_new_texts_keep_only_known_tokens() -> None:
    vocabulary = TextPipeline(min_count=2).fit(["good good bad bad bad rare"])
    assert vocabulary.names == ("bad", "good")
    tokens, offsets = vocabulary.positions(["rare", "Good, bad rare GOOD", "bad"])
    assert tokens.tolist() == [1, 0, 1, 0]
    assert offsets.tolist() == [0, 0, 3, 4]


def test_tokens_counted_in_some_texts_only() -> None:
    texts = ["good bad", "good bad", "good odd odd odd"]
    encoded = TextPipeline(min_count=2).encode(texts, [1, -1, 1], counted=np.array([True, True, False]))
    assert encoded.names == ("bad", "good")
    assert encoded.vocabulary.counts.tolist() == [2, 2]
    assert encoded.data[2][0].tolist() == [1]
    with pytest.raises(InputError, match=r"booleans of shape \(3,\); got shape \(2,\)"):
        TextPipeline(min_count=2).encode(texts, [1, -1, 1], counted=np.array([True, False]))


def test_places_point_at_the_words_of_tokens() -> None:
    vocabulary = TextPipeline(pieces=PIECES, min_count=1).fit(["movi good plot"])
    text = "The <b>Plot</b> of this movi is GOOD."
    found = [(text[start:end], [vocabulary.names[s] for s in ids]) for start, end, ids in vocabulary.places(text)]
    assert found == [("Plot", ["plot"]), ("movi", ["mo", "##vi"]), ("GOOD", ["good"])]
    assert (
        np.concatenate([ids for *_, ids in vocabulary.places(text)]).tolist()
        == vocabulary.positions([text])[0].tolist()
    )
    assert vocabulary.places("") == []


def test_reviews_without_tokens() -> None:
    texts, y = ["good", "the of", "bad", "!!!"], [1, 1, -1, -1]
    with pytest.raises(InputError, match=r"none in the review at index 1 and 1 more instead. Use empty=\"drop\""):
        TextPipeline(min_count=1).encode(texts, y)
    encoded = TextPipeline(min_count=1, empty="drop").encode(texts, y)
    assert encoded.kept.tolist() == [0, 2]
    assert [encoded.names[ids[0]] for ids, _ in (encoded.data[0], encoded.data[1])] == ["good", "bad"]
    assert encoded.data.y.tolist() == [1.0, -1.0]
    assert encoded.data.offsets.tolist() == [0, 1, 2]
    with pytest.raises(InputError, match="none in any of 1"):
        encoded.vocabulary.encode(["other"], [1])


def test_settings_survive_json() -> None:
    for pipeline in [*PIPELINES, paper_pipeline(PIECES, empty="drop"), TextPipeline(stemming=Snowball("french"))]:
        assert TextPipeline.from_dict(json.loads(json.dumps(pipeline.to_dict()))) == pipeline
    with pytest.raises(InputError, match=r"the settings of a text pipeline.*KeyError"):
        TextPipeline.from_dict({"min_count": 3})


def test_an_apostrophe_kept_as_punctuation_is_a_token() -> None:
    kept = Cleaning(keep_punctuation=True)
    for stop_words in (StopWords(), None):
        assert "'" in TextPipeline(kept, stop_words, min_count=1).fit(["'film' don't"]).names


def test_the_papers_settings() -> None:
    pipeline = paper_pipeline(PIECES)
    assert pipeline.stemming == Snowball("english")
    assert pipeline.min_count == 50
    assert pipeline.stop_words is not None
    assert "not" in pipeline.stop_words.words
    assert not pipeline.stop_words.keep_negations


def test_progress_hears_of_every_text() -> None:
    class Heard:
        total, done = 0, 0

        def expect(self, total: int) -> None:
            self.total += total

        def advance(self, units: int = 1) -> None:
            self.done += units

    heard = Heard()
    TextPipeline().fit(["good"] * 1_234, progress=heard)
    assert heard.total == heard.done == 1_234


@pytest.mark.parametrize(
    ("texts", "y", "says"),
    [
        ("good", [1], "got one string instead"),
        ([], [], "at least one review; got none"),
        (["good", None], [1, 1], "NoneType at index 1"),
        (3, [1], "got int instead"),
        (["good"], [1, 1], r"shape \(1,\); got shape \(2,\)"),
        (["good", "bad"], [1, 0], "got .*0.* at index 1 instead. two_classes maps other labels"),
        (["good", "bad"], ["pos", "neg"], "'pos'.* at index 0"),
        (["good", "bad good"], [1, -1], "a token that occurs 50 times; got 2 whose most frequent token occurs 2 times"),
        (["the"], [1], "most frequent token occurs 0 times"),
    ],
)
def test_bad_texts(texts: object, y: object, says: str) -> None:
    with pytest.raises(InputError, match=says):
        TextPipeline().encode(texts, y)  # type: ignore[arg-type]


def test_too_few_tokens_are_told_of_the_texts_that_count() -> None:
    with pytest.raises(InputError, match="occurs 3 times; got 1 whose most frequent token occurs 2 times"):
        TextPipeline(min_count=3).encode(["good good", "good"], [1, -1], counted=[True, False])


def test_bad_settings() -> None:
    with pytest.raises(InputError, match=r"'min_count'.*at least 1"):
        TextPipeline(min_count=0)
    with pytest.raises(InputError, match="'empty' argument must be \"refuse\" or \"drop\"; got 'keep'"):
        TextPipeline(empty="keep")
