"""Tokenizers of other packages, and functions, as units of text."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from marginlens.data.vocabulary import Characters, Unit, Vocabulary
from marginlens.errors import InputError, brief_repr, require
from marginlens.runtime.files import as_path, unusable
from marginlens.typing import IntArray

_LINE = re.compile(r"[^\n]*\n|[^\n]+")
# The methods of a `tokenizers.Tokenizer` that are used.
_METHODS = ("encode_batch", "decode", "id_to_token", "token_to_id", "to_str")


class TokenizerUnit:
    """Tokens as a tokenizer cuts them, line by line; the most frequent token has id 0.

    Only tokens that occur have an id here, whatever the tokenizer's own vocabulary.

    Args:
        tokenizer: a function from a text to a list of strings or whole numbers, a `tokenizers.Tokenizer`, or a fast tokenizer of
            transformers. Special tokens, truncation and padding are switched off.
    """

    def __init__(self, tokenizer: Any) -> None:
        package = getattr(tokenizer, "backend_tokenizer", tokenizer)
        self._package = None
        if all(hasattr(package, method) for method in _METHODS):
            # Truncation and padding are switched off in a copy, so that the caller's tokenizer keeps its own.
            self._package = type(package).from_str(package.to_str())
            self._package.no_truncation()
            self._package.no_padding()
        elif not callable(tokenizer) or isinstance(tokenizer, type):
            expected = "Characters(), Words(...), a tokenizers.Tokenizer, or a function from a text to its tokens"
            raise InputError("unit", expected, brief_repr(tokenizer))
        self._function = tokenizer
        self._name = cache(self._name_of)

    def __repr__(self) -> str:
        name = getattr(self._function, "__qualname__", type(self._function).__name__)
        return f"TokenizerUnit({name})"

    def split(self, text: str) -> list[str]:
        """Cut a text into tokens by name: a number is named by its digits, or as the tokenizer names it."""
        if not isinstance(text, str):
            raise InputError("text", "a string", type(text).__name__)
        lines = _LINE.findall(text)
        if self._package is not None:
            encodings = self._package.encode_batch(lines, add_special_tokens=False)
            return [self._name(k) for encoding in encodings for k in encoding.ids]
        return [name for line in lines for name in _names(self._function(line))]

    def join(self, names: Sequence[str]) -> str:
        """Join tokens to a text, as the tokenizer decodes them, or with spaces between them if a function made them."""
        if self._package is None:
            return " ".join(names)
        ids = [self._package.token_to_id(name) for name in names]
        return str(self._package.decode([k for k in ids if k is not None], skip_special_tokens=False))

    def vocabulary(self, counts: Mapping[str, int]) -> Vocabulary:
        """Return the vocabulary of the tokens that occur."""
        ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
        return Vocabulary(tuple(name for name, _ in ordered), self)

    def index(self, text: str) -> tuple[Vocabulary, IntArray]:
        """Return the vocabulary of the tokens that occur, and the text in their ids (n_tokens,)."""
        names = self.split(text)
        vocabulary = self.vocabulary(Counter(names))
        return vocabulary, vocabulary.ids(names)

    def _name_of(self, token: int) -> str:
        name = None if self._package is None else self._package.id_to_token(token)
        return f"<{token}>" if name is None else str(name)


def _names(tokens: object) -> list[str]:
    """Return the tokens that a function made of a line, as names."""
    expected = "a function from a text to a list of strings or whole numbers"
    if isinstance(tokens, str | bytes | Mapping) or not isinstance(tokens, Iterable):
        raise InputError("unit", expected, f"one that returns a {type(tokens).__name__}")
    listed = list(tokens)
    for token in listed:
        if isinstance(token, bool) or not isinstance(token, str | int | np.integer):
            raise InputError("unit", expected, f"one that returns a {type(token).__name__} in its list")
    return [str(token) for token in listed]


def as_unit(unit: Any) -> Unit:
    """Return the unit that cuts a text: `Characters()` by default, a unit as it is, or a tokenizer."""
    if unit is None:
        return Characters()
    is_unit = all(hasattr(unit, name) for name in ("split", "join", "vocabulary", "index"))
    if is_unit and not isinstance(unit, type | str | bytes):
        cut: Unit = unit
        return cut
    return TokenizerUnit(unit)


def read_tokenizer(path: str | os.PathLike[str]) -> Any:
    """Read the `tokenizers.Tokenizer` that a JSON file holds."""
    require("tokenizers", "text", "Reading a tokenizer")
    expected = "a JSON file that the package tokenizers has saved"
    file = as_path(path, "path", expected)
    try:
        content = file.read_bytes().decode("utf-8-sig")
    except OSError as problem:
        raise InputError("path", expected, unusable(file, problem)) from problem
    except UnicodeDecodeError as problem:
        raise InputError("path", expected, f"{str(file)!r}, which is not UTF-8 at byte {problem.start}") from problem
    try:
        return import_module("tokenizers").Tokenizer.from_str(content)
    # The package raises bare Exception.
    except Exception as problem:
        reason = (str(problem) or type(problem).__name__).splitlines()[0]
        raise InputError("path", expected, f"{str(file)!r}, which the package refuses ({reason})") from problem
