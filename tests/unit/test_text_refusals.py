"""What no step from reviews to token ids can use, refused in one sentence that names the argument."""

import numpy as np
import pytest

from marginlens.errors import InputError
from marginlens.text import (
    ImdbFolder,
    ReviewTable,
    SavedTokenizer,
    Snowball,
    StopWords,
    TextPipeline,
    WordPiece,
    YelpLines,
    encode_reviews,
    read_pieces,
    review_source,
    two_classes,
)

PIPELINE = TextPipeline(min_count=1)
VOCABULARY = PIPELINE.fit(["good film", "bad film"])
NO_PATHS = [None, 3, ["reviews.csv"], b"reviews.csv"]


@pytest.mark.parametrize("path", NO_PATHS, ids=repr)
@pytest.mark.parametrize(
    "read",
    [
        lambda path: ImdbFolder(path).read(),
        lambda path: ReviewTable(path).read(),
        lambda path: YelpLines(path).read(),
        review_source,
        read_pieces,
        WordPiece.from_file,
        SavedTokenizer.from_file,
    ],
    ids=["imdb", "table", "yelp", "source", "pieces", "vocabulary", "tokenizer"],
)
def test_what_is_no_path_is_refused(read, path):
    with pytest.raises(InputError, match=f"^The 'path' argument must be .*; got {type(path).__name__} instead"):
        read(path)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: TextPipeline(cleaning=None), "'cleaning' argument must be a Cleaning; got NoneType"),
        (lambda: TextPipeline(stop_words=["the"]), "'stop_words' argument must be StopWords, or None.*got list"),
        (lambda: TextPipeline(stemming="english"), "'stemming' argument must be a Snowball stemmer.*got str"),
        (lambda: TextPipeline(pieces="bert.txt"), "'pieces' argument must be a WordPiece.*got str"),
        (lambda: TextPipeline(empty=np.ones(2)), "'empty' argument must be \"refuse\" or \"drop\""),
        (lambda: TextPipeline.from_dict(np.ones(3)), "'saved' argument must be the settings of a text pipeline"),
        (lambda: StopWords("the"), "'words' argument must be a list of words; got 'the'"),
        (lambda: StopWords(None), "'words' argument must be a list of words; got NoneType"),
        (lambda: StopWords([1]), "'words' argument must be a list of words, which are strings; got int among them"),
        (lambda: Snowball(["english"]).stems(["films"]), "'language' argument must be a language"),
        (lambda: Snowball().stems(np.array(1.0)), "'words' argument must be a list of words; got ndarray"),
        (lambda: WordPiece(None), "'tokens' argument must be a list of words; got NoneType"),
        (lambda: WordPiece("abc"), "'tokens' argument must be a list of words; got 'abc'"),
        (lambda: WordPiece(("a",), None), "'unknown' argument must be a piece, which is a string; got NoneType"),
        (lambda: SavedTokenizer(None), "'content' argument must be the JSON text of a saved tokenizer; got NoneType"),
        (lambda: PIPELINE.encode(["a", "b"], [[1, 2], [3]]), "'y' argument must be labels.*lists of different lengths"),
        (lambda: PIPELINE.encode(["a"], [1], counted=[[1, 2], [3]]), "'counted' argument must be booleans"),
        (lambda: PIPELINE.encode({"a", "b"}, [1, -1]), "'texts' argument must be a list of strings.*got set instead. Give"),
        (lambda: PIPELINE.fit({"text": ["a"]}), "'texts' argument must be a list of strings.*got dict instead. Give the"),
        (lambda: VOCABULARY.places(None), "'text' argument must be a string; got NoneType"),
        (lambda: two_classes(None), "'labels' argument must be a list of labels of two classes; got NoneType"),
        (lambda: two_classes("ab"), "'labels' argument must be a list of labels of two classes; got str"),
        (lambda: two_classes({0, 1}), "'labels' argument must be a list of labels of two classes; got set"),
        (lambda: two_classes([[1, 2], [3]]), "'labels' argument must be numbers, booleans or words; got list at index 0"),
        (lambda: encode_reviews(None, PIPELINE), "'source' argument must be where reviews are read from.*got NoneType"),
        (lambda: encode_reviews(ReviewTable("x"), None), "'pipeline' argument must be a TextPipeline; got NoneType"),
        (lambda: encode_reviews(ReviewTable("x"), PIPELINE, count_in=3), "'count_in' argument must be the name of a part"),
        (lambda: encode_reviews(ReviewTable("x"), PIPELINE, cache=3), "'cache' argument must be a folder, or None"),
    ],
)  # fmt: skip
def test_what_is_of_another_kind_is_refused(make, sentence):
    with pytest.raises(InputError, match=f"^The {sentence}"):
        make()


@pytest.mark.parametrize("column", ["text", "label", "split"])
def test_columns_are_asked_for_by_name(tmp_path, column):
    (tmp_path / "reviews.csv").write_text("text,label\ngood,1\nbad,0\n")
    with pytest.raises(InputError, match=f"'{column}' argument must be the name of a column; got ndarray"):
        ReviewTable(tmp_path / "reviews.csv", **{column: np.ones(2)}).read()
