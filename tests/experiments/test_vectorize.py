"""Texts to token ids: against the same steps done word by word, and against WordPiece's definition."""

from collections import Counter

import numpy as np
import pytest

from experiments.reviews import encode_labelled, paper_pipeline
from experiments.texts import Cleaning, Snowball, StopWords, SubwordTokenizer, TextPipeline
from experiments.texts import vectorize as module
from marginlens.errors import InputError, MissingExtra
from refusals import raised, refused

# ---- words


def written(text, cleaning=None):
    cleaning = cleaning or Cleaning()
    return [cleaning.normalize(word) for word in cleaning.words(text)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A film.<br /><br />Great!", ["a", "film", "great"]),
        ("one<BR>two</p>three <i>four</i>", ["one", "two", "three", "four"]),
        ("salt &amp; pepper&#8230;&quot;yes&quot;", ["salt", "pepper", "yes"]),
        ("I <3 this, a > b < c", ["i", "3", "this", "a", "b", "c"]),
        ("<sigh> again", ["sigh", "again"]),
        ("don't 'quote' rock'n'roll' 10/10", ["don't", "quote", "rock'n'roll", "10", "10"]),
        ("don\u2019t caf\u00e9 na\u0308ive", ["don't", "cafe", "naive"]),
        ("gar\u00e7on Vi\u1ec7t \u0218tef\u0103nescu \u0105\u1e2b", ["garcon", "viet", "stefanescu", "ah"]),
        ("snake_case well-made", ["snake", "case", "well", "made"]),
        ("\u0939\u093f\u0928\u094d\u0926\u0940 \u092e", ["\u0939\u093f\u0928\u094d\u0926\u0940", "\u092e"]),
        ("\ud55c\uad6d \uc601\ud654", ["\ud55c\uad6d", "\uc601\ud654"]),
        ("\u304c\u3063\u3053\u3046 \u30ab\u3099", ["\u304c\u3063\u3053\u3046", "\u30ac"]),
        ("\u0628\u064e\u064a\u0652\u062a \u05e9\u05b8\u05dc", ["\u0628\u064a\u062a", "\u05e9\u05dc"]),
        ("1\ufe0f\u20e3 \u2764\ufe0f", ["1"]),
        ("\x85\u2014...", []),
    ],
)
def test_word_tokens_follow_the_pattern(text, words):
    assert written(text) == words


def test_named_token_filters_keep_their_tokens():
    assert written("Wow!<b>", Cleaning(keep_punctuation=True)) == ["wow", "!"]
    assert written("a_b \u2014", Cleaning(keep_punctuation=True)) == ["a", "_", "b", "\u2014"]
    assert written("Wow <b>", Cleaning(keep_markup=True)) == ["wow", "b"]
    assert written("Wow", Cleaning(keep_case=True)) == ["Wow"]
    assert written("Cafe\u0301", Cleaning(keep_accents=True)) == ["caf\u00e9"]
    for stop_words in (StopWords(), None):
        assert "'" in TextPipeline(Cleaning(keep_punctuation=True), stop_words, min_count=1).fit(["'film' don't"]).names


def test_stop_words_are_dropped_and_negations_kept():
    left = {word: StopWords().remaining(word) for word in ("the", "he's", "movie's", "not", "don't", "dont", "film")}
    assert left == {"movie's": ("movie",), "film": ("film",)} | dict.fromkeys(
        ("the", "he's", "not", "don't", "dont"), ()
    )
    for word in ("not", "don't", "isn't", "wouldnt", "Can't"):
        assert StopWords(keep_negations=True).remaining(word) == ("not",)
    assert StopWords(frozenset({"film"})).remaining("don't") == ("don", "t")
    assert all(word == word.lower() and word.isalpha() for word in module.ENGLISH)
    assert {"never", "nothing", "without", "good", "like"}.isdisjoint(module.ENGLISH)


def test_words_are_stemmed():
    pytest.importorskip("snowballstemmer")
    assert Snowball().stems(["movies", "loving", "generously"]) == ["movi", "love", "generous"]
    assert Snowball("german").stems(["katzen"]) == ["katz"]
    with refused("language"):
        Snowball("klingon").stems(["a"])


# ---- subwords

VOCABULARY = ["[UNK]", "a", "b", "ab", "bab", "##a", "##b", "##ba", "##aab", "un", "##able", "c"]


def greedy(word, known):
    """WordPiece's definition: the longest first piece that is known, then the same for the rest."""
    mark, pieces = "", []
    while word:
        ends = [k for k in range(1, len(word) + 1) if mark + word[:k] in known]
        if not ends:
            return ("[UNK]",)
        pieces.append(mark + word[: max(ends)])
        word, mark = word[max(ends) :], "##"
    return tuple(pieces)


def test_word_piece_takes_the_longest_piece_first(tmp_path):
    rng = np.random.default_rng(3)
    words = ["".join(rng.choice(list("aabbc"), size=rng.integers(1, 9))) for _ in range(400)] + ["unable", "ab"]
    pieces = SubwordTokenizer.word_piece(VOCABULARY)
    assert pieces.cut(words) == [greedy(word, set(VOCABULARY)) for word in words]
    assert pieces.cut(["a" * 100, "a" * 101]) == [("a",) + ("##a",) * 99, ("[UNK]",)]
    assert SubwordTokenizer.word_piece(VOCABULARY[1:]).cut(["z"]) == [("[UNK]",)]
    (tmp_path / "vocab.txt").write_bytes("\r\n".join(VOCABULARY).encode() + b"\r\n")
    assert SubwordTokenizer.from_file(tmp_path / "vocab.txt") == pieces


def test_a_saved_tokenizer_is_used_without_truncation_padding_and_special_tokens(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    ids = {name: k for k, name in enumerate(VOCABULARY)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=4, pad_token="[UNK]")
    special = [("[UNK]", 0)]
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single="[UNK] $A", special_tokens=special)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    saved = SubwordTokenizer.from_file(tmp_path / "tokenizer.json")
    assert saved.cut(["unable", "aaaa"]) == SubwordTokenizer.word_piece(VOCABULARY).cut(["unable", "aaaa"])


@pytest.mark.parametrize(
    ("name", "content"),
    [("v.txt", b"\n\n"), ("v.txt", b"a\nb\na\n"), ("v.txt", b"a\xff\n"), ("t.json", b"{"), ("t.json", b'{"model": 3}')],
)
def test_files_without_a_tokenizer_are_refused(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        SubwordTokenizer.from_file(tmp_path / name)
    assert caught.value.argument in ("path", "content")
    for path in (tmp_path, tmp_path / "missing.txt", None):
        with refused("path"):
            SubwordTokenizer.from_file(path)


def test_missing_packages_are_named(monkeypatch):
    pieces = SubwordTokenizer.word_piece(VOCABULARY)
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    monkeypatch.setitem(__import__("sys").modules, "snowballstemmer", None)
    with raised(MissingExtra, "tokenizers", "marginlens[text]"):
        pieces.cut(["a"])
    with raised(MissingExtra, "snowballstemmer"):
        Snowball().stems(["films"])


# ---- the pipeline

LEXICON = ["good", "bad", "film's", "don't", "the", "not", "Loving", "loved", "movies", "movie", "isn't", "of"]
LEXICON += ["plot", "plots", "caf\u00e9", "acting", "actor", "xyz"]
PIECES = SubwordTokenizer.word_piece(
    ["[UNK]", "good", "bad", "film", "mo", "##vi", "love", "lov", "plot", "act", "##or", "cafe", "x", "not"]
)
PIPELINES = [
    TextPipeline(min_count=3),
    TextPipeline(stop_words=None, min_count=1),
    TextPipeline(stop_words=StopWords(keep_negations=True), pieces=PIECES, min_count=40),
    TextPipeline(cleaning=Cleaning(keep_case=True, keep_punctuation=True), min_count=90),
    paper_pipeline(PIECES),
]


def random_texts(n_texts, seed=0):
    rng = np.random.default_rng(seed)
    texts = [" ".join(rng.choice(LEXICON, size=rng.integers(1, 30))) + ".<br />Film!" for _ in range(n_texts)]
    return texts, np.where(rng.random(n_texts) < 0.5, -1.0, 1.0)


def by_hand(pipeline, text):
    """The tokens of one text, word after word."""
    tokens = []
    for word in pipeline.cleaning.words(text):
        form = pipeline.cleaning.normalize(word)
        for part in pipeline.stop_words.remaining(form) if pipeline.stop_words else form.split("'"):
            stem = pipeline.stemming.stems([part])[0] if pipeline.stemming else part
            tokens += pipeline.pieces.cut([stem])[0] if pipeline.pieces else (stem,)
    return tokens


@pytest.mark.parametrize("pipeline", PIPELINES, ids=range(5))
def test_vectorized_texts_equal_hand_counts(pipeline):
    if pipeline.stemming:
        pytest.importorskip("snowballstemmer")
    texts, y = random_texts(120)
    expected = [by_hand(pipeline, text) for text in texts]
    counts = Counter(token for tokens in expected for token in tokens)
    kept = {token for token, count in counts.items() if count >= pipeline.min_count}
    encoded = encode_labelled(pipeline, texts, y)
    assert set(encoded.names) == kept
    assert encoded.vocabulary.counts.tolist() == sorted((counts[name] for name in kept), reverse=True)
    assert encoded.vocabulary.counts.tolist() == [counts[name] for name in encoded.names]
    for i, tokens in enumerate(expected):
        ids, label = encoded.data[i]
        assert [encoded.names[s] for s in ids] == [token for token in tokens if token in kept]
        assert label == y[i]
    assert np.array_equal(pipeline.fit(texts).positions(texts)[0], encoded.data.tokens)


def test_new_texts_keep_only_known_tokens():
    vocabulary = TextPipeline(min_count=2).fit(["good good bad bad bad rare"])
    assert vocabulary.names == ("bad", "good")
    tokens, offsets = vocabulary.positions(["rare", "Good, bad rare GOOD", "bad"])
    assert (tokens.tolist(), offsets.tolist()) == ([1, 0, 1, 0], [0, 0, 3, 4])


def test_rare_tokens_are_dropped_by_document_count():
    texts, pipeline = ["good bad", "good bad", "good odd odd odd"], TextPipeline(min_count=2)
    encoded = encode_labelled(pipeline, texts, [1, -1, 1], counted=np.array([True, True, False]))
    assert encoded.names == ("bad", "good")
    assert encoded.vocabulary.counts.tolist() == [2, 2]
    assert encoded.data[2][0].tolist() == [1]
    with refused("counted"):
        encode_labelled(pipeline, texts, [1, -1, 1], counted=np.array([True, False]))


def test_texts_without_tokens_are_reported():
    texts, y = ["good", "the of", "bad", "!!!"], [1, 1, -1, -1]
    with refused("texts"):
        encode_labelled(TextPipeline(min_count=1), texts, y)
    encoded = encode_labelled(TextPipeline(min_count=1, empty="drop"), texts, y)
    assert encoded.kept.tolist() == [0, 2]
    assert [encoded.names[encoded.data[i][0][0]] for i in range(2)] == ["good", "bad"]
    assert encoded.data.y.tolist() == [1.0, -1.0]
