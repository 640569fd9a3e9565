"""Tokenizers of other packages as units of text."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from marginlens.errors import reject, require
from marginlens.runtime.files import as_path, unusable


def read_tokenizer(path: str | os.PathLike[str]) -> Any:
    """Read the `tokenizers.Tokenizer` that a JSON file holds."""
    require("tokenizers", "text", "Reading a tokenizer")
    expected = "a JSON file that the package tokenizers has saved"
    file = as_path(path, "path", expected)
    try:
        content = file.read_bytes().decode("utf-8-sig")
    except OSError as problem:
        raise reject("path", expected, unusable(file, problem)) from problem
    except UnicodeDecodeError as problem:
        raise reject("path", expected, f"{str(file)!r}, which is not UTF-8 at byte {problem.start}") from problem
    try:
        return import_module("tokenizers").Tokenizer.from_str(content)
    except Exception as problem:  # the package raises bare Exception
        reason = (str(problem) or type(problem).__name__).splitlines()[0]
        raise reject("path", expected, f"{str(file)!r}, which the package refuses ({reason})") from problem
