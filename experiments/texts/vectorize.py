"""Texts to token ids: words, stop words, stems, subwords, and the vocabulary that occurs often enough."""

from __future__ import annotations

import json
import os
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from marginlens.errors import InputError, require, whole_number
from marginlens.result import Described
from marginlens.runtime.files import as_path, unusable
from marginlens.runtime.progress import Progress, ProgressCallback
from marginlens.typing import BoolArray, IntArray

_PROGRESS_STRIDE = 500  # texts

_TAGS = "a|b|big|blockquote|br|center|code|div|em|font|h[1-6]|hr|i|img|li|ol|p|pre|small|span|strong|sub|sup|table|td|tr|u|ul"
_MARKUP = re.compile(rf"</?(?:{_TAGS})\b[^<>]*>|&(?:#\d+|#x[0-9a-f]+|amp|apos|gt|lt|nbsp|quot);", re.IGNORECASE)
_ASCII_WORD = r"[A-Za-z0-9]++(?:'[A-Za-z0-9]++)*+"
_COMBINING = range(0x300, 0x10000)  # where the marks that combine with letters are
_VARIATION_SELECTORS = range(0xFE00, 0xFE10)
_PICTURE = "[\u2600-\u27bf\U0001f000-\U0001faff]"  # emoji; those joined, tinted or asked for as pictures are one sign
_EMOJI = rf"{_PICTURE}[\ufe0f\U0001f3fb-\U0001f3ff]*+(?:\u200d{_PICTURE}[\ufe0f\U0001f3fb-\U0001f3ff]*+)*+"

# english.json has the words by group; a contraction is listed with its apostrophe and counts without it too
_WORDS = json.loads(Path(__file__).with_name("english.json").read_text(encoding="utf-8"))
NEGATIONS = frozenset(_WORDS["negations"].split())
ENGLISH = NEGATIONS | {word for group in _WORDS["stop words"].values() for word in group.split()}
NEGATED_VERBS = frozenset(form for word in _WORDS["negated verbs"].split() for form in (word, word.replace("'", "")))


# ---- words


@dataclass(frozen=True)
class Cleaning:
    """Which parts of a text are words, and how each word is written.

    Args:
        keep_markup: read HTML tags and entities as text; otherwise they separate words, as blanks do.
        keep_punctuation: make every punctuation mark a word of its own; otherwise it separates words.
        keep_case: leave capitals as they are.
        keep_accents: leave accents on letters.

    An apostrophe between letters belongs to the word ("don't"); what becomes of it is decided with the stop words.
    """

    keep_markup: bool = False
    keep_punctuation: bool = False
    keep_case: bool = False
    keep_accents: bool = False

    def words(self, text: str) -> list[str]:
        """The words of a text as they stand in it."""
        plain = self._without_markup(text)
        return self._pattern(plain).findall(plain)

    def normalize(self, word: str) -> str:
        """How a word is written once capitals, accents and curly apostrophes are dropped."""
        written = word if self.keep_case else word.lower()
        if written.isascii():
            return written
        written = written.replace("\u2019", "'")
        if self.keep_accents:
            return unicodedata.normalize("NFC", written)
        decomposed = unicodedata.normalize("NFD", written)
        return unicodedata.normalize("NFC", "".join(c for c in decomposed if not _is_accent(c)))

    def _pattern(self, text: str) -> re.Pattern[str]:
        return _word_pattern(self.keep_punctuation, text.isascii())

    def _without_markup(self, text: str) -> str:
        """The text with blanks in place of its markup, so that every other character stays where it was."""
        if not isinstance(text, str):
            raise InputError("text", "a string", type(text).__name__)
        if self.keep_markup or ("<" not in text and "&" not in text):
            return text
        return _MARKUP.sub(lambda match: " " * len(match.group()), text)


@cache
def _word_pattern(keep_punctuation: bool, is_ascii: bool) -> re.Pattern[str]:
    word = _ASCII_WORD
    if (
        not is_ascii
    ):  # letters and digits with the marks that combine with them: accents, and vowel signs in many scripts
        candidates = (chr(k) for k in _COMBINING if k not in _VARIATION_SELECTORS)
        marks = "".join(c for c in candidates if unicodedata.category(c) in ("Mn", "Mc"))
        letters = rf"(?:[^\W_]++[{marks}]*+)++"
        word = rf"{letters}(?:['\u2019]{letters})*+"
    signs = r"[^\w\s]|_" if is_ascii else rf"{_EMOJI}|[^\w\s]|_"
    return re.compile(rf"({word}|{signs})" if keep_punctuation else rf"({word})")


def _is_accent(mark: str) -> bool:
    """Whether a character is an accent or a point, which a word can be written without; a vowel sign or a tone is not."""
    combining_class = unicodedata.combining(mark)
    return 10 <= combining_class < 36 or combining_class >= 200


# ---- stop words and stems


@dataclass(frozen=True, repr=False)
class StopWords(Described):
    """Which words are left out.

    Args:
        words: the words to leave out, in lower case; by default the list `ENGLISH` of this module.
        keep_negations: keep "no", "nor", "not", "cannot" and "neither", and read "don't", "isn't" and their like, with or without
            apostrophe, as "not"; otherwise such a contraction is left out if "not" is.
    """

    words: frozenset[str] = ENGLISH
    keep_negations: bool = False
    quantities = "{words:#} words{keep_negations:; negations kept|}"

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", frozenset(_strings(self.words, "words")))

    def remaining(self, word: str) -> tuple[str, ...]:
        """What is left of a word: itself, its parts at apostrophes, or nothing."""
        if word.lower() in NEGATED_VERBS and "not" in self.words:
            return ("not",) if self.keep_negations else ()
        return tuple(part for part in word.split("'") if part and not self._left_out(part.lower()))

    def _left_out(self, word: str) -> bool:
        return word in self.words and not (self.keep_negations and word in NEGATIONS)


@dataclass(frozen=True)
class Snowball:
    """Porter's second stemmer and its sisters in other languages.

    Args:
        language: a language that the package snowballstemmer knows, e.g. "english".
    """

    language: str = "english"

    def stems(self, words: Sequence[str]) -> list[str]:
        """The stem of each word."""
        require("snowballstemmer", "dev", "Stemming")
        snowballstemmer = import_module("snowballstemmer")
        languages = snowballstemmer.algorithms()
        if not isinstance(self.language, str) or self.language not in languages:
            expected = f"a language with a Snowball stemmer ({', '.join(sorted(languages))})"
            raise InputError("language", expected, repr(self.language))
        listed = _strings(words, "words")
        stems = snowballstemmer.stemmer(self.language).stemWords(listed)
        return [stem or word for word, stem in zip(listed, stems, strict=True)]


# ---- subwords


@dataclass(frozen=True, repr=False)
class SubwordTokenizer(Described):
    """Words cut into pieces by the package tokenizers; special tokens, truncation and padding are switched off.

    Args:
        content: the tokenizer as the JSON text that the package saves.
    """

    content: str
    quantities = "{tokenizer.get_vocab_size} pieces"

    @classmethod
    def word_piece(cls, tokens: Sequence[str], unknown: str = "[UNK]") -> SubwordTokenizer:
        """From left to right the longest piece in a vocabulary; pieces inside a word start with "##".

        Args:
            tokens: the vocabulary.
            unknown: the piece that a word becomes when it cannot be cut, or is longer than 100 characters.
        """
        listed = _strings(tokens, "tokens")
        if not listed:
            raise InputError("tokens", "a vocabulary with at least one token", "an empty one")
        ids = {token: i for i, token in enumerate(dict.fromkeys((*listed, *_strings([unknown], "unknown"))))}
        tokenizers = _tokenizers()
        return cls(tokenizers.Tokenizer(tokenizers.models.WordPiece(ids, unk_token=unknown)).to_str())

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> SubwordTokenizer:
        """A tokenizer that the package tokenizers saved as .json, or WordPiece with the vocabulary in a file, one token on each line."""
        expected = "a vocabulary file (UTF-8 text with one token on each line) or a tokenizer saved as .json"
        file = as_path(path, "path", expected)
        try:
            content = file.read_bytes().decode("utf-8-sig")
        except OSError as problem:
            raise InputError("path", expected, unusable(path, problem)) from problem
        except UnicodeDecodeError as problem:
            raise InputError(
                "path", expected, f"{str(path)!r}, which is not UTF-8 at byte {problem.start}"
            ) from problem
        if file.suffix.lower() == ".json":
            saved = cls(content)
            saved.tokenizer  # noqa: B018  refuses what the package cannot load
            return saved
        tokens = [line.removesuffix("\r") for line in content.split("\n") if line.strip()]
        if not tokens:
            raise InputError("path", expected, f"{str(path)!r}, which is empty")
        if len(set(tokens)) < len(tokens):
            raise InputError("path", f"{expected}, no token twice", f"{str(path)!r} with a token on two lines")
        return cls.word_piece(tokens)

    def cut(self, words: Sequence[str]) -> list[tuple[str, ...]]:
        """The pieces of each word."""
        encodings = self.tokenizer.encode_batch(list(_strings(words, "words")), add_special_tokens=False)
        return [tuple(encoding.tokens) for encoding in encodings]

    @cached_property
    def tokenizer(self) -> Any:
        """The `tokenizers.Tokenizer`."""
        try:
            tokenizer = _tokenizers().Tokenizer.from_str(self.content)
        except ImportError:
            raise
        except Exception as problem:  # the package raises bare Exception
            reason = (str(problem) or type(problem).__name__).splitlines()[0]
            expected = "a tokenizer that the package tokenizers has saved as JSON"
            raise InputError("content", expected, f"one it refuses ({reason})") from problem
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer


def _tokenizers() -> Any:
    require("tokenizers", "text", "Cutting words into pieces")
    return import_module("tokenizers")


# ---- the pipeline


class TokenizedTexts(NamedTuple):
    """All tokens of all texts: text i holds `names[ids[t]]` for t in `offsets[i]:offsets[i + 1]`."""

    names: list[str]
    ids: IntArray  # (n_positions,)
    offsets: IntArray  # (n_texts + 1,)

    def renumbered(self, new_ids: IntArray) -> tuple[IntArray, IntArray]:
        """(n_positions,) ids and offsets once name k has the id `new_ids[k]`; if that is negative the token is left out."""
        ids = new_ids[self.ids]
        kept = ids >= 0
        return ids[kept], np.concatenate([[0], np.cumsum(kept)])[self.offsets]


@dataclass(frozen=True)
class TextPipeline:
    r"""How texts become sequences of token ids: clean, leave out stop words, stem, cut into pieces, leave out rare tokens.

    .. math:: \text{text} \mapsto X_i = (x_{i1}, \dots, x_{iT_i}), \quad x_{it} \in \mathcal S = \{s : \text{count}(s) \ge m\}

    Args:
        cleaning: what counts as a word and how it is written.
        stop_words: words to leave out; None keeps all.
        stemming: `Snowball("english")` cuts words to their stems; None leaves them whole.
        pieces: `SubwordTokenizer.from_file(path)` cuts stems into pieces; None keeps them whole.
        min_count: tokens that occur less often than this in all texts together are left out.
        empty: what to do with a text that loses all its tokens: "refuse" names it, "drop" leaves it out and lists it.

    Every step is a function of single words, so it is done once for each distinct word. `experiments.reviews` has paper B's settings.
    """

    cleaning: Cleaning = field(default_factory=Cleaning)
    stop_words: StopWords | None = field(default_factory=StopWords)
    stemming: Snowball | None = None
    pieces: SubwordTokenizer | None = None
    min_count: int = 50
    empty: str = "refuse"

    def __post_init__(self) -> None:
        if not isinstance(self.cleaning, Cleaning):
            raise InputError("cleaning", "a Cleaning", type(self.cleaning).__name__)
        for argument, method in (("stop_words", "remaining"), ("stemming", "stems"), ("pieces", "cut")):
            value = getattr(self, argument)
            if value is not None and not callable(getattr(value, method, None)):
                raise InputError(argument, f"an object with the method {method}, or None", type(value).__name__)
        whole_number(self.min_count, "min_count", at_least=1)
        if not isinstance(self.empty, str) or self.empty not in ("refuse", "drop"):
            raise InputError("empty", '"refuse" or "drop"', repr(self.empty))

    def fit(self, texts: Sequence[str], progress: ProgressCallback | None = None) -> TextVocabulary:
        """The tokens that occur at least `min_count` times in the texts."""
        return self.vocabulary(self.tokenize(texts, progress))

    def tokenize(self, texts: Sequence[str], progress: ProgressCallback | None = None) -> TokenizedTexts:
        """All tokens of the texts, rare ones included."""
        listed = as_texts(texts)
        watch = Progress(progress, len(listed))
        index: defaultdict[str, int] = defaultdict()
        index.default_factory = index.__len__  # a new word gets the next number
        parts: list[IntArray] = []
        for i, text in enumerate(listed):
            of_text = self.cleaning.words(text)
            parts.append(np.fromiter(map(index.__getitem__, of_text), dtype=np.int32, count=len(of_text)))
            if i % _PROGRESS_STRIDE == _PROGRESS_STRIDE - 1:
                watch.advance(_PROGRESS_STRIDE)
        watch.advance(len(listed) % _PROGRESS_STRIDE)
        word_offsets = offsets_of([len(part) for part in parts])
        words = np.concatenate(parts)  # (n_words,) numbers of distinct words
        names, ids, starts = _flatten(self.tokens_of(list(index)))
        sizes = np.diff(starts)[words]  # tokens of each word in the texts
        words, sizes_kept = words[sizes > 0], sizes[sizes > 0]
        ends = np.cumsum(sizes_kept)
        position = np.repeat(starts[words] - ends + sizes_kept, sizes_kept) + np.arange(int(sizes_kept.sum()))
        return TokenizedTexts(names, ids[position], offsets_of(sizes)[word_offsets])

    def tokens_of(self, words: Sequence[str]) -> list[tuple[str, ...]]:
        """What each word becomes: no token, one, or several."""
        forms = [self.cleaning.normalize(word) for word in words]
        parts = {form: self._parts(form) for form in dict.fromkeys(forms)}
        if self.stemming is None and self.pieces is None:
            return [parts[form] for form in forms]
        whole = list(dict.fromkeys(part for several in parts.values() for part in several))
        stems = self.stemming.stems(whole) if self.stemming else whole
        distinct = list(dict.fromkeys(stems))
        pieces = (
            dict(zip(distinct, self.pieces.cut(distinct), strict=True)) if self.pieces else {s: (s,) for s in distinct}
        )
        of_part = {part: pieces[stem] for part, stem in zip(whole, stems, strict=True)}
        return [tuple(piece for part in parts[form] for piece in of_part[part]) for form in forms]

    def _parts(self, form: str) -> tuple[str, ...]:
        """What is left of a word in its written form when stop words are gone."""
        if form == "'":  # a punctuation mark that was kept
            return (form,)
        if self.stop_words is None:
            return tuple(filter(None, form.split("'")))
        return self.stop_words.remaining(form)

    def vocabulary(self, tokenized: TokenizedTexts, counted: BoolArray | None = None) -> TextVocabulary:
        """The tokens that occur at least `min_count` times in these texts, or in those that `counted` (n_texts,) says."""
        names, ids, offsets = tokenized
        counts = np.bincount(
            ids if counted is None else ids[np.repeat(counted, np.diff(offsets))], minlength=len(names)
        )
        kept = sorted(np.flatnonzero(counts >= self.min_count).tolist(), key=lambda k: (-counts[k], names[k]))
        if not kept:
            n_texts = len(offsets) - 1 if counted is None else int(counted.sum())
            got = f"{n_texts} whose most frequent token occurs {int(counts.max(initial=0))} times"
            remedy = "Give more texts, or a smaller `min_count`."
            raise InputError("texts", f"reviews with a token that occurs {self.min_count} times", got, remedy)
        return TextVocabulary(self, tuple(names[k] for k in kept), counts[kept])


@dataclass(frozen=True, repr=False, eq=False)
class TextVocabulary(Described):
    """The tokens that a pipeline keeps, most frequent first: `names[s]` is token s and `counts[s]` how often it occurred."""

    pipeline: TextPipeline
    names: tuple[str, ...]
    counts: IntArray
    quantities = "{self:#} tokens, {counts.sum} occurrences"

    def positions(self, texts: Sequence[str], progress: ProgressCallback | None = None) -> tuple[IntArray, IntArray]:
        """Token ids of all texts in one array, and where each text starts; a text may be left with no token."""
        tokenized = self.pipeline.tokenize(texts, progress)
        return tokenized.renumbered(self.ids(tokenized.names))

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def _index(self) -> dict[str, int]:
        return {name: s for s, name in enumerate(self.names)}

    def ids(self, names: list[str]) -> IntArray:
        """The id of each name, -1 for a name outside the vocabulary."""
        return np.array([self._index.get(name, -1) for name in names], dtype=np.int64)


# ---- arrays and arguments


def offsets_of(lengths: Any) -> IntArray:
    """(n + 1,) where each of n consecutive stretches of these lengths starts, and where the last ends."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _flatten(several: list[tuple[str, ...]]) -> tuple[list[str], IntArray, IntArray]:
    """The distinct names, all names in one array of their indices, and where each group starts."""
    index: dict[str, int] = {}
    flat = [index.setdefault(name, len(index)) for names in several for name in names]
    return list(index), np.array(flat, dtype=np.int64), offsets_of([len(names) for names in several])


def as_texts(texts: Any) -> list[str]:
    """`texts` as a list of strings."""
    expected = "a list of strings, one for each review"
    if isinstance(texts, str | bytes | Mapping | Set) or hasattr(texts, "columns") or not isinstance(texts, Iterable):
        raise InputError("texts", expected, type(texts).__name__, "Give a list of texts, in the order of their labels.")
    listed = list(texts)
    if not listed:
        raise InputError("texts", "at least one review", "none")
    for i, text in enumerate(listed):
        if not isinstance(text, str):
            raise InputError("texts", expected, f"{type(text).__name__} at index {i}")
    return listed


def _strings(words: Any, argument: str) -> tuple[str, ...]:
    """`words` as strings; a single string is not a list of words."""
    if isinstance(words, str | bytes) or not isinstance(words, Iterable) or not getattr(words, "ndim", 1):
        raise InputError(
            argument, "a list of words", repr(words)[:60] if isinstance(words, str) else type(words).__name__
        )
    listed = tuple(words)
    for word in listed:
        if not isinstance(word, str):
            raise InputError(argument, "a list of words, which are strings", f"{type(word).__name__} among them")
    return listed
