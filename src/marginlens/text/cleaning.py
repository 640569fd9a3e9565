"""How a review becomes words: markup, punctuation, capitals and accents, each dropped unless it is kept by name."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import cache

from marginlens.errors import reject

_TAGS = "a|b|big|blockquote|br|center|code|div|em|font|h[1-6]|hr|i|img|li|ol|p|pre|small|span|strong|sub|sup|table|td|tr|u|ul"
_MARKUP = re.compile(rf"</?(?:{_TAGS})\b[^<>]*>|&(?:#\d+|#x[0-9a-f]+|amp|apos|gt|lt|nbsp|quot);", re.IGNORECASE)
_ASCII_WORD = r"[A-Za-z0-9]++(?:'[A-Za-z0-9]++)*+"
_MARKS = range(0x300, 0x10000)  # where the marks that combine with letters are
_VARIANTS = range(0xFE00, 0xFE10)  # selectors of variants of signs, which are no words


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
        if not isinstance(text, str):
            raise reject("text", "a string", type(text).__name__)
        plain = self._without_markup(text)
        return self._pattern(plain).findall(plain)

    def places(self, text: str) -> list[tuple[int, int]]:
        """Where each word of `words(text)` starts and ends in the text."""
        if not isinstance(text, str):
            raise reject("text", "a string", type(text).__name__)
        plain = self._without_markup(text)
        return [found.span() for found in self._pattern(plain).finditer(plain)]

    def form(self, word: str) -> str:
        """How a word is written once capitals, accents and curly apostrophes are dropped."""
        written = word if self.keep_case else word.lower()
        if written.isascii():
            return written
        written = written.replace("\u2019", "'")
        if self.keep_accents:
            return unicodedata.normalize("NFC", written)
        apart = unicodedata.normalize("NFD", written)
        return unicodedata.normalize("NFC", "".join(c for c in apart if not _is_accent(c)))

    def _without_markup(self, text: str) -> str:
        """The text with blanks in place of its markup, so that every other character stays where it was."""
        if self.keep_markup or ("<" not in text and "&" not in text):
            return text
        return _MARKUP.sub(lambda found: " " * len(found.group()), text)

    def _pattern(self, text: str) -> re.Pattern[str]:
        return _compiled(self.keep_punctuation, text.isascii())


@cache
def _compiled(keep_punctuation: bool, is_ascii: bool) -> re.Pattern[str]:
    word = _ASCII_WORD
    if not is_ascii:
        letters = rf"(?:[^\W_]++[{_marks()}]*+)++"  # letters and digits, with the marks that combine with them
        word = rf"{letters}(?:['\u2019]{letters})*+"
    return re.compile(rf"{word}|[^\w\s]|_" if keep_punctuation else word)


def _marks() -> str:
    """The marks that combine with letters: accents, and the vowel and sound signs of scripts that write them so."""
    found = (chr(k) for k in _MARKS if k not in _VARIANTS)
    return "".join(c for c in found if unicodedata.category(c) in ("Mn", "Mc"))


def _is_accent(mark: str) -> bool:
    """Whether a character is an accent or a point, which a word can be written without; a vowel sign or a tone is not."""
    kind = unicodedata.combining(mark)
    return 10 <= kind < 36 or kind >= 200
