"""Words cut into pieces: BERT's WordPiece from a vocabulary file, or any tokenizer that the package tokenizers has saved as JSON."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol

from marginlens.data.files import as_path
from marginlens.errors import missing_extra, reject
from marginlens.text.stopwords import listed_words

_LISTED = "a vocabulary file: UTF-8 text with one token on each line"


class Pieces(Protocol):
    """A way to cut words into named pieces."""

    def cut(self, words: list[str]) -> list[tuple[str, ...]]:
        """The pieces of each word."""

    def to_dict(self) -> dict[str, Any]:
        """Everything that decides the pieces, as JSON holds it."""


@dataclass(frozen=True, repr=False)
class WordPiece:
    """From left to right the longest piece in the vocabulary; pieces inside a word start with "##".

    Args:
        tokens: the vocabulary; a token's place in it is its id there.
        unknown: the piece that a word becomes when it cannot be cut, or is longer than 100 characters.
    """

    tokens: tuple[str, ...]
    unknown: str = "[UNK]"
    _known: frozenset[str] = field(init=False, repr=False, compare=False)
    _longest: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", listed_words(self.tokens, "tokens"))
        if not self.tokens:
            raise reject("tokens", "a vocabulary with at least one token", "an empty one")
        if not isinstance(self.unknown, str):
            raise reject("unknown", "a piece, which is a string", type(self.unknown).__name__)
        object.__setattr__(self, "_known", frozenset(self.tokens))
        object.__setattr__(self, "_longest", max(map(len, self.tokens)))

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], n_tokens: int | None = None) -> WordPiece:
        """The vocabulary in a file with one token on each line; `n_tokens` refuses a file of another length."""
        return cls(read_vocabulary(path, n_tokens))

    def cut(self, words: list[str]) -> list[tuple[str, ...]]:
        """The pieces of each word."""
        return [self._cut(word) for word in words]

    def to_dict(self) -> dict[str, Any]:
        """Everything that decides the pieces, as JSON holds it."""
        return {"kind": "WordPiece", "tokens": list(self.tokens), "unknown": self.unknown}

    def _cut(self, word: str) -> tuple[str, ...]:
        if word in self._known:
            return (word,)
        if len(word) > 100:
            return (self.unknown,)
        found: list[str] = []
        start = 0
        while start < len(word):
            mark = "##" if start else ""
            for end in range(min(len(word), start + self._longest), start, -1):
                piece = mark + word[start:end]
                if piece in self._known:
                    found.append(piece)
                    start = end
                    break
            else:
                return (self.unknown,)
        return tuple(found)

    def __repr__(self) -> str:
        return f"WordPiece({len(self.tokens)} tokens)"


@dataclass(frozen=True, repr=False)
class SavedTokenizer:
    """A tokenizer saved by the package tokenizers; special tokens, truncation and padding are switched off.

    Args:
        content: the JSON text of the file.
    """

    content: str

    def __post_init__(self) -> None:
        if not isinstance(self.content, str):
            raise reject("content", "the JSON text of a saved tokenizer", type(self.content).__name__)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> SavedTokenizer:
        """The tokenizer in a JSON file."""
        expected = "a tokenizer saved as JSON by the package tokenizers"
        content = _read(path, expected)
        try:
            saved = json.loads(content)
        except (ValueError, RecursionError) as problem:
            raise reject("path", expected, f"{str(path)!r}, which is not JSON") from problem
        if not isinstance(saved, dict) or "model" not in saved:
            raise reject("path", expected, f"{str(path)!r}, whose JSON has no 'model'")
        one = cls(content)
        one._tokenizer()
        return one

    def cut(self, words: list[str]) -> list[tuple[str, ...]]:
        """The pieces of each word."""
        found = self._tokenizer().encode_batch(words, add_special_tokens=False)
        return [tuple(one.tokens) for one in found]

    def to_dict(self) -> dict[str, Any]:
        """Everything that decides the pieces, as JSON holds it."""
        return {"kind": "SavedTokenizer", "content": self.content}

    def _tokenizer(self) -> Any:
        try:
            tokenizers = import_module("tokenizers")
        except ImportError as problem:
            raise missing_extra("tokenizers", "text", "A tokenizer saved as JSON") from problem
        try:
            tokenizer = tokenizers.Tokenizer.from_str(self.content)
        except Exception as problem:  # the package raises bare Exception
            reason = str(problem).splitlines()[0] if str(problem) else "no reason given"
            raise reject(
                "content", "a tokenizer that the package tokenizers can load", f"one it refuses ({reason})"
            ) from problem
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer

    def __repr__(self) -> str:
        return f"SavedTokenizer({len(self.content)} characters of JSON)"


def read_pieces(path: str | os.PathLike[str]) -> Pieces:
    """The pieces that a file describes: a saved tokenizer if its name ends in .json, else a WordPiece vocabulary."""
    place = as_path(path, "path", "a file with a vocabulary or a saved tokenizer")
    return SavedTokenizer.from_file(path) if place.suffix.lower() == ".json" else WordPiece.from_file(path)


def pieces_from_dict(saved: dict[str, Any]) -> Pieces:
    """The pieces that `to_dict` described."""
    if saved.get("kind") == "SavedTokenizer":
        return SavedTokenizer(saved["content"])
    if saved.get("kind") == "WordPiece":
        return WordPiece(tuple(saved["tokens"]), saved["unknown"])
    raise reject("saved", 'pieces of the kind "WordPiece" or "SavedTokenizer"', repr(saved.get("kind")))


def read_vocabulary(path: str | os.PathLike[str], n_tokens: int | None = None) -> tuple[str, ...]:
    """The tokens of a file with one on each line, refused when empty, with a blank or repeated line, or not `n_tokens` long."""
    lines = _read(path, _LISTED).split("\n")
    if lines[-1] == "":
        lines.pop()
    tokens = tuple(line.removesuffix("\r") for line in lines)
    first: dict[str, int] = {}
    for number, token in enumerate(tokens, start=1):
        if not token.strip():
            raise reject("path", _LISTED, f"{str(path)!r}, whose line {number} is blank")
        if token in first:
            raise reject(
                "path", f"{_LISTED}, none twice", f"{str(path)!r} with {token!r} on lines {first[token]} and {number}"
            )
        first[token] = number
    if n_tokens is not None and len(tokens) != n_tokens:
        raise reject("path", f"a vocabulary file of {n_tokens} tokens", f"{str(path)!r} with {len(tokens)}")
    return tokens


def _read(path: str | os.PathLike[str], expected: str) -> str:
    try:
        content = as_path(path, "path", expected).read_bytes()
    except OSError as problem:
        raise reject("path", expected, f"{str(path)!r} ({problem.strerror or problem})") from problem
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise reject("path", expected, f"{str(path)!r}, which is not UTF-8 at byte {problem.start}") from problem
    if not text.strip():
        raise reject("path", expected, f"{str(path)!r}, which is empty")
    return text
