"""Words cut to their stems by a Snowball stemmer."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from marginlens.errors import missing_extra, reject
from marginlens.text.stopwords import listed_words


@dataclass(frozen=True)
class Snowball:
    """Porter's second stemmer and its sisters in other languages.

    Args:
        language: a language that the package snowballstemmer knows, e.g. "english".
    """

    language: str = "english"

    def stems(self, words: list[str]) -> list[str]:
        """The stem of each word."""
        listed = listed_words(words, "words")
        return [stem or word for word, stem in zip(listed, self._stemmer().stemWords(listed), strict=True)]

    def made_with(self) -> str:
        """The packages that decide the stems, with their versions."""
        return f"snowballstemmer {_version('snowballstemmer')}, PyStemmer {_version('PyStemmer')}"

    def _stemmer(self) -> Any:
        try:
            snowballstemmer = import_module("snowballstemmer")
        except ImportError as problem:
            raise missing_extra("snowballstemmer", "text", "Stemming") from problem
        known = snowballstemmer.algorithms()
        if not isinstance(self.language, str) or self.language not in known:
            raise reject(
                "language", f"a language with a Snowball stemmer ({', '.join(sorted(known))})", repr(self.language)
            )
        return snowballstemmer.stemmer(self.language)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"
