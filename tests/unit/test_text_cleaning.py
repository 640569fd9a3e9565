"""What counts as a word, how it is written, and what stop words leave of it."""

import pytest

from marginlens.errors import InputError
from marginlens.text import Cleaning, StopWords
from marginlens.text.stopwords import ENGLISH, NEGATED_VERBS, NEGATIONS


def written(text: str, cleaning: Cleaning | None = None) -> list[str]:
    cleaning = cleaning or Cleaning()
    return [cleaning.form(word) for word in cleaning.words(text)]


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
        (
            "\u0939\u093f\u0928\u094d\u0926\u0940 \u092e\u0947\u0902",
            ["\u0939\u093f\u0928\u094d\u0926\u0940", "\u092e\u0947\u0902"],
        ),
        ("\ud55c\uad6d \uc601\ud654", ["\ud55c\uad6d", "\uc601\ud654"]),
        ("\u304c\u3063\u3053\u3046 \u30ab\u3099", ["\u304c\u3063\u3053\u3046", "\u30ac"]),
        ("\u0628\u064e\u064a\u0652\u062a \u05e9\u05b8\u05dc", ["\u0628\u064a\u062a", "\u05e9\u05dc"]),
        ("1\ufe0f\u20e3 \u2764\ufe0f", ["1"]),
        ("\x85\u2014...", []),
        ("", []),
    ],
)
def test_words(text: str, words: list[str]) -> None:
    assert written(text) == words


def test_what_is_kept_by_name() -> None:
    assert written("Wow!<b>", Cleaning(keep_punctuation=True)) == ["wow", "!"]
    assert written("a_b \u2014", Cleaning(keep_punctuation=True)) == ["a", "_", "b", "\u2014"]
    assert written("Wow <b>", Cleaning(keep_markup=True)) == ["wow", "b"]
    assert written("Wow", Cleaning(keep_case=True)) == ["Wow"]
    assert written("Cafe\u0301", Cleaning(keep_accents=True)) == ["caf\u00e9"]


@pytest.mark.parametrize(
    "text", ["A film.<br /><br />Isn't it &amp; so?", "Ünder_neath <i>na\u0308ive</i> don\u2019t \u0130stanbul!"]
)
@pytest.mark.parametrize("keep_punctuation", [False, True])
def test_places_are_where_the_words_stand(text: str, keep_punctuation: bool) -> None:
    cleaning = Cleaning(keep_punctuation=keep_punctuation)
    assert [text[start:end] for start, end in cleaning.places(text)] == cleaning.words(text)
    assert cleaning.words(text)


@pytest.mark.parametrize("text", [None, 3, b"film", ["film"]])
def test_what_is_no_text_has_no_words(text: object) -> None:
    for function in (Cleaning().words, Cleaning().places):
        with pytest.raises(InputError, match="'text' argument must be a string; got"):
            function(text)


def test_ascii_and_other_texts_are_cut_alike() -> None:
    text = "It's 10/10 -- 'a must' see_it, rock'n'roll!"
    assert Cleaning().words(text + " \u00e9") == [*Cleaning().words(text), "\u00e9"]


@pytest.mark.parametrize(
    ("word", "left"),
    [("the", ()), ("he's", ()), ("movie's", ("movie",)), ("not", ()), ("don't", ()), ("dont", ()), ("film", ("film",))],
)
def test_stop_words(word: str, left: tuple[str, ...]) -> None:
    assert StopWords().remaining(word) == left


@pytest.mark.parametrize("word", ["not", "don't", "isn't", "wouldnt", "Can't"])
def test_negations_can_be_kept(word: str) -> None:
    assert StopWords().remaining(word) == ()
    assert StopWords(keep_negations=True).remaining(word) == ("not",)
    assert StopWords(keep_negations=True).remaining("the") == ()


def test_own_list_of_stop_words() -> None:
    own = StopWords(frozenset({"film"}))
    assert own.remaining("film") == ()
    assert own.remaining("don't") == ("don", "t")
    assert repr(own) == "StopWords(1 words)"


def test_the_list_is_written_as_it_is_compared() -> None:
    assert NEGATIONS < ENGLISH
    assert all(word == word.lower() and word.isalpha() for word in ENGLISH)
    assert {"never", "nothing", "without", "good", "like"}.isdisjoint(ENGLISH)
    assert not NEGATED_VERBS & ENGLISH
