"""Words that carry grammar and little else, as our own list, with the negations among them marked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from marginlens.errors import reject

NEGATIONS = frozenset({"no", "nor", "not", "cannot", "neither"})

_GROUPS = {
    "pronouns": """
        i me my mine myself we us our ours ourselves you your yours yourself yourselves he him his himself she her hers herself
        it its itself they them their theirs themselves one oneself who whom whose which what that this these those
        anybody anyone anything everybody everyone everything somebody someone something another whatever whoever whichever""",
    "auxiliaries": """
        am is are was were be been being have has had having do does did doing done will would shall should can could may might must
        ought""",
    "articles and quantities": "a an the all any both each every few more most much many several other others some such own same",
    "prepositions": """
        of at by for with about above across after against along among amongst around as before behind below beneath beside besides
        between beyond despite down during except from in inside into near off on onto out outside over per since than
        through throughout till to toward towards under underneath until up upon via while within""",
    "conjunctions": "and but if or because so either whether whereas though although unless",
    "adverbs": "again further then once here there when where why how however only very too just now also ever yet",
    "what apostrophes leave": "s t d m o y ll re ve",
}

ENGLISH = NEGATIONS | {word for group in _GROUPS.values() for word in group.split()}

_NEGATED = """
    ain't aren't can't couldn't daren't didn't doesn't don't hadn't hasn't haven't isn't mayn't mightn't mustn't needn't oughtn't shan't
    shouldn't wasn't weren't won't wouldn't"""
NEGATED_VERBS = frozenset(_NEGATED.split()) | {word.replace("'", "") for word in _NEGATED.split()}


@dataclass(frozen=True)
class StopWords:
    """Which words are left out.

    Args:
        words: the words to leave out, in lower case; by default the list `ENGLISH` of this module.
        keep_negations: keep "no", "nor", "not", "cannot" and "neither", and read "don't", "isn't" and their like, with or without
            apostrophe, as "not"; otherwise such a contraction is left out where "not" is.
    """

    words: frozenset[str] = ENGLISH
    keep_negations: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", frozenset(listed_words(self.words, "words")))

    def remaining(self, word: str) -> tuple[str, ...]:
        """What is left of a word: itself, its parts at apostrophes, or nothing."""
        if word.lower() in NEGATED_VERBS and "not" in self.words:
            return ("not",) if self.keep_negations else ()
        return tuple(part for part in word.split("'") if part and not self._left_out(part.lower()))

    def _left_out(self, word: str) -> bool:
        return word in self.words and not (self.keep_negations and word in NEGATIONS)

    def __repr__(self) -> str:
        return f"StopWords({len(self.words)} words{', negations kept' if self.keep_negations else ''})"


def listed_words(words: Any, argument: str) -> tuple[str, ...]:
    """`words` as strings, one after the other; a single string is none of several words."""
    if isinstance(words, str | bytes) or not isinstance(words, Iterable) or not getattr(words, "ndim", 1):
        raise reject(argument, "a list of words", repr(words)[:60] if isinstance(words, str) else type(words).__name__)
    listed = tuple(words)
    wrong = [type(one).__name__ for one in listed if not isinstance(one, str)]
    if wrong:
        raise reject(argument, "a list of words, which are strings", f"{wrong[0]} among them")
    return tuple(map(str, listed))
