"""Problems as the lab writes them, JSON of the format "marginlens-problem": tokens, keys, labels, head and scores."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from marginlens.data.tokens import TokenDataset, as_dataset
from marginlens.errors import InputError, reject
from marginlens.typing import FloatArray

PROBLEM_FORMAT = "marginlens-problem"  # the entry "format" of every such file
PROBLEM_VERSION = 1
ATTENTION, BOTH = "attention", "both"  # what is trained, the entry "train"


class ProblemTokens(NamedTuple):
    """One problem, its head v (d_model,) where it has one, and whether the head is trained too."""

    data: TokenDataset
    head: FloatArray | None
    trains_head: bool


def is_problem(entries: Any) -> bool:
    """Whether a JSON value is a problem of this format, by its entry "format"."""
    return isinstance(entries, Mapping) and entries.get("format") == PROBLEM_FORMAT


def problem_tokens(entries: Mapping[str, Any], source: str) -> ProblemTokens:
    """The dataset and the head of a problem of any size; entries that are null count as left out.

    Args:
        entries: "tokens", inputs of vectors, and "keys" of the same shape where they differ; "labels", 1 or -1, all 1 by default;
            "head" v, or "scores" of all tokens, which then need keys alone. With "train": "both" the head may be left out.
        source: what the entries are from, for sentences about them.
    """
    entry = {name: value for name, value in entries.items() if value is not None}
    if entry.get("format", PROBLEM_FORMAT) != PROBLEM_FORMAT:
        raise refuse("format", repr(PROBLEM_FORMAT), entry["format"], source)
    if entry.get("version", PROBLEM_VERSION) != PROBLEM_VERSION:
        raise refuse("version", f"{PROBLEM_VERSION}, the version that is read", entry["version"], source)
    train = entry.get("train", ATTENTION)
    if train not in (ATTENTION, BOTH):
        raise refuse("train", f"{ATTENTION!r} or {BOTH!r}", train, source)
    if "scores" in entry and "head" in entry:
        raise refuse("scores", "left out where a head is given", entry["scores"], source)
    if "scores" in entry and train == BOTH:
        raise refuse("scores", "left out where the head is trained too", entry["scores"], source)
    if "scores" not in entry and "tokens" not in entry:
        raise reject("tokens", "a list of inputs, each a list of vectors", f"none in {source}")
    keys_name = "keys" if "keys" in entry else "tokens"
    if keys_name not in entry:
        raise reject("keys", "a list of inputs, each a list of vectors", f"none in {source}")
    keys = _inputs(entry[keys_name], keys_name, source)
    lengths = [len(vectors) for vectors in keys]
    y = _labels(entry.get("labels", [1.0] * len(keys)), len(keys), source)
    if "scores" in entry:
        scores = _scores(entry["scores"], lengths, source)
        X = [np.column_stack([K, label * row]) for K, label, row in zip(keys, y, scores, strict=True)]
        return ProblemTokens(TokenDataset(X, y, K=keys), np.eye(keys[0].shape[1] + 1)[-1], False)
    tokens = _inputs(entry["tokens"], "tokens", source)
    if [len(vectors) for vectors in tokens] != lengths:
        raise reject("keys", "one for each token", f"inputs of {', '.join(map(str, lengths))} keys in {source}")
    data = TokenDataset(tokens, y, K=None if keys_name == "tokens" else keys)
    if "head" not in entry and train == ATTENTION:
        raise reject("head", "given, or scores, where attention alone is trained", f"neither in {source}")
    head = vector(entry["head"], "head", data.d_model, source) if "head" in entry else None
    return ProblemTokens(data, head, train == BOTH)


def tokens_json(data: TokenDataset, head: Any, trains_head: bool = False) -> dict[str, Any]:
    """The entries of a problem, which `problem_tokens` reads back exactly: numbers are written with all their digits.

    A head that reads scores off a last coordinate which the keys leave out, as `scored_tokens` makes it, is written as scores.
    """
    v = checked_head(data, head, trains_head)
    lengths = data.lengths.tolist()
    keys = nested(data.K, lengths)
    entries: dict[str, Any] = {
        "format": PROBLEM_FORMAT,
        "version": PROBLEM_VERSION,
        "labels": data.y.astype(int).tolist(),
    }
    if v is not None and not trains_head and _holds_scores(data, v):
        scores = data.y[:, None] * data.X[..., -1]
        entries |= {"keys": keys, "scores": [scores[i, :n].tolist() for i, n in enumerate(lengths)]}
    else:
        entries["tokens"] = nested(data.X, lengths)
        entries |= {} if np.array_equal(data.K, data.X) else {"keys": keys}
        entries |= {} if v is None else {"head": v.tolist()}
    return {**entries, "train": BOTH if trains_head else ATTENTION}


def checked_head(data: TokenDataset, head: Any, trains_head: bool) -> FloatArray | None:
    """The head (d_model,) of one problem, not a batch; None is refused unless the head is trained too."""
    if as_dataset(data).is_batch:
        raise reject("data", "one problem", f"a batch of {len(data)}", "Take one with data[j].")
    if head is None and not trains_head:
        raise reject("head", "given where attention alone is trained", "none")
    return None if head is None else np.array(data.head(head))


def refuse(key: str, expected: str, got: Any, source: str) -> InputError:
    """The error for an entry of a problem: which one, of what, and what it must be."""
    shown = repr(got)
    shown = shown if len(shown) <= 40 else f"{shown[:37]}…"
    return reject(key, expected, f"{shown} in {source}")


def number(value: Any, key: str, source: str, expected: str = "a finite number") -> float:
    """A finite number of a problem; true, false and texts are none."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not math.isfinite(value):
        raise refuse(key, expected, value, source)
    return float(value)


def vector(value: Any, key: str, width: int | None, source: str) -> FloatArray:
    """A vector of a problem, of any width where it is None."""
    expected = f"a list of {'' if width is None else f'{width} '}numbers"
    if not isinstance(value, list) or not value or (width is not None and len(value) != width):
        raise refuse(key, expected, value, source)
    return np.array([number(entry, f"{key}[{k}]", source) for k, entry in enumerate(value)])


def _inputs(value: Any, key: str, source: str) -> list[FloatArray]:
    """Inputs of vectors of one width, each (n_tokens_i, width)."""
    if not isinstance(value, list) or not value:
        raise refuse(key, "a list of inputs, each a list of vectors", value, source)
    inputs, width = [], None
    for i, listed in enumerate(value):
        if not isinstance(listed, list) or not listed:
            raise refuse(f"{key}[{i}]", "a list of at least one vector", listed, source)
        rows = []
        for t, entry in enumerate(listed):
            rows.append(vector(entry, f"{key}[{i}][{t}]", width, source))
            width = len(rows[-1])
        inputs.append(np.array(rows))
    return inputs


def _labels(value: Any, n_inputs: int, source: str) -> list[float]:
    if (
        not isinstance(value, list)
        or len(value) != n_inputs
        or any(isinstance(y, bool) or y not in (1, -1) for y in value)
    ):
        raise refuse("labels", f"a list with 1 or -1 for each of {n_inputs} inputs", value, source)
    return [float(label) for label in value]


def _scores(value: Any, lengths: list[int], source: str) -> list[FloatArray]:
    if not isinstance(value, list) or len(value) != len(lengths):
        raise refuse("scores", f"a list of scores for each of {len(lengths)} inputs", value, source)
    return [vector(row, f"scores[{i}]", lengths[i], source) for i, row in enumerate(value)]


def _holds_scores(data: TokenDataset, v: FloatArray) -> bool:
    """Whether tokens are their keys with a last coordinate, which is all that the head reads."""
    same_width = data.d_model == data.d_key + 1 and np.array_equal(v, np.eye(data.d_model)[-1])
    return same_width and np.array_equal(data.X[..., :-1], data.K)


def nested(padded: FloatArray, lengths: list[int]) -> list[Any]:
    """Vectors of inputs (n_inputs, n_tokens, width) as lists, without what lies beyond the lengths."""
    return [padded[i, :n].tolist() for i, n in enumerate(lengths)]
