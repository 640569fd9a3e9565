"""Fitted classifiers on disk: a folder with JSON and plain arrays, safetensors where it is installed, never a pickle."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import zipfile
import zlib
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from marginlens.data.files import as_path
from marginlens.embeddings.classifier_tokens import PlainIds, WordsAndPairs
from marginlens.embeddings.statistics import TokenStatistics
from marginlens.errors import InputError, missing_extra, reject
from marginlens.text.pipeline import TextPipeline, Vocabulary

FORM = "marginlens text classifier 1"
FACTS, TENSORS, ARRAYS = "model.json", "arrays.safetensors", "arrays.npz"
_EXPECTED = "a folder that AttentionTextClassifier.save wrote"
_PARAMETERS = ("pair_count", "d_model", "epochs", "learning_rate", "weight_decay")
_PER_TOKEN = ("a", "b", "selected", "in_positive", "in_negative")


def check_folder(folder: str | os.PathLike[str], argument: str = "folder") -> Path:
    """A place where a model can be written: nothing there yet, or an earlier model and nothing else, in a folder that is there."""
    place = as_path(folder, argument, "a folder")
    if place.exists() and not (place.is_dir() and _may_be_replaced(place)):
        raise reject(
            argument, "a new folder, or one with only an earlier model", f"{str(place)!r}, which holds something else"
        )
    if not place.resolve().parent.is_dir():
        raise reject(argument, "a place in a folder that exists", repr(str(place)))
    return place


def _may_be_replaced(place: Path) -> bool:
    """Whether a folder is empty, or all that it holds was written by `save`."""
    there = {one.name for one in place.iterdir()}
    if not there:
        return True
    if not there <= {FACTS, TENSORS, ARRAYS}:
        return False
    try:
        told = json.loads((place / FACTS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(told, dict) and told.get("form") == FORM


def save_classifier(model: Any, folder: str | os.PathLike[str], facts: dict[str, Any] | None = None) -> None:
    """Write a fitted classifier aside, then rename it into its place.

    Args:
        facts: kept beside the settings, e.g. test accuracies; JSON values.
    """
    place = check_folder(folder)
    name, content = _packed(_arrays(model))
    told = {
        "form": FORM,
        "parameters": _parameters(model),
        "classes": _classes_told(model.classes_),
        "norm_p": model.norm_p_,
        "training": {name: None if one != one else one for name, one in model.training_.items()},
        "n_positions": model.statistics_.n_positions,
        "tokens": _tokens_told(model.tokens_),
        "arrays": {"file": name, "sha256": hashlib.sha256(content).hexdigest()},
        "facts": facts or {},
    }
    final = place.resolve()
    try:
        with tempfile.TemporaryDirectory(prefix=f".{final.name}-", suffix=".partial", dir=final.parent) as workshop:
            made = Path(workshop) / "model"
            made.mkdir()
            (made / name).write_bytes(content)
            (made / FACTS).write_text(json.dumps(told, ensure_ascii=False, indent=1), encoding="utf-8")
            _exchange(made, final, Path(workshop) / "earlier")
    except OSError as problem:
        raise reject(
            "folder", "a place that can be written", f"{str(place)!r} ({problem.strerror or problem})"
        ) from problem


def _exchange(made: Path, final: Path, earlier: Path) -> None:
    """Put a folder in its place; one that was there before comes back if that fails."""
    if final.exists():
        final.rename(earlier)
    try:
        made.rename(final)
    except BaseException:
        if earlier.exists():
            earlier.rename(final)
        raise


def load_classifier(cls: Any, folder: str | os.PathLike[str]) -> Any:
    """The classifier in a folder; arrays that were changed or belong to another model are refused."""
    place = as_path(folder, "folder", _EXPECTED)
    try:
        told = json.loads((place / FACTS).read_text(encoding="utf-8"))
        if told.get("form") != FORM:
            raise reject("folder", _EXPECTED, f"{str(place)!r}, of another form ({told.get('form')!r})")
        arrays = _unpacked(place, told["arrays"])
        return _built(cls, told, arrays, place)
    except InputError:
        raise
    except OSError as problem:
        raise reject("folder", _EXPECTED, f"{str(place)!r} ({problem.strerror or problem})") from problem
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        IndexError,
        EOFError,
        zipfile.BadZipFile,
        zlib.error,
    ) as problem:
        raise reject("folder", _EXPECTED, f"{str(place)!r}, which cannot be read ({problem})") from problem


def _built(cls: Any, told: dict[str, Any], arrays: dict[str, Any], place: Path) -> Any:
    parameters = dict(told["parameters"])
    saved = parameters.pop("pipeline")
    model = cls(**parameters, pipeline=None if saved is None else TextPipeline.from_dict(saved))
    tokens = _tokens_of(told["tokens"], arrays)
    for name in _PER_TOKEN:
        if arrays[name].shape != (len(tokens),):
            expected = f"{_EXPECTED}, with {len(tokens)} tokens"
            raise reject("folder", expected, f"{str(place)!r} with {name} of shape {arrays[name].shape}")
    model.classes_ = np.array(told["classes"]["labels"], dtype=told["classes"]["dtype"])
    model.tokens_ = tokens
    model.a_, model.b_, model.selected_ = arrays["a"], arrays["b"], arrays["selected"]
    model.statistics_ = TokenStatistics(arrays["in_positive"], arrays["in_negative"], told["n_positions"])
    model.norm_p_, model.left_out_ = told["norm_p"], arrays["left_out"]
    model.training_ = {k: float("nan") if v is None else v for k, v in told["training"].items()}
    return model


def _parameters(model: Any) -> dict[str, Any]:
    numbers = {name: np.asarray(getattr(model, name)).item() for name in _PARAMETERS}
    state = model.random_state
    seed = int(state) if isinstance(state, int | np.integer) else None
    return {**numbers, "random_state": seed, "pipeline": None if model.pipeline is None else model.pipeline.to_dict()}


def _classes_told(classes: Any) -> dict[str, Any]:
    labels, kind = classes.tolist(), classes.dtype.kind
    if kind not in "biufU" and not all(isinstance(one, str | int | float | bool) for one in labels):
        raise reject("classes_", "labels that are words or numbers, which JSON can hold", f"dtype {classes.dtype}")
    return {"labels": labels, "dtype": "object" if kind == "O" else classes.dtype.str}


def _tokens_told(tokens: WordsAndPairs | PlainIds) -> dict[str, Any]:
    if isinstance(tokens, PlainIds):
        return {"kind": "ids", "n_tokens": tokens.n_tokens}
    words = tokens.vocabulary
    return {"kind": "words", "pipeline": words.pipeline.to_dict(), "names": list(words.names)}


def _tokens_of(told: dict[str, Any], arrays: dict[str, Any]) -> WordsAndPairs | PlainIds:
    if told["kind"] == "ids":
        return PlainIds(int(told["n_tokens"]))
    vocabulary = Vocabulary(TextPipeline.from_dict(told["pipeline"]), tuple(told["names"]), arrays["word_counts"])
    pairs = arrays["pairs"]
    if pairs.ndim != 2 or pairs.shape[1] != 2 or (len(pairs) and not 0 <= pairs.min() <= pairs.max() < len(vocabulary)):
        raise reject("folder", f"{_EXPECTED}, with pairs of {len(vocabulary)} words", f"pairs of shape {pairs.shape}")
    return WordsAndPairs(vocabulary, pairs)


def _arrays(model: Any) -> dict[str, Any]:
    known = model.statistics_
    arrays = {
        "a": model.a_,
        "b": model.b_,
        "selected": model.selected_,
        "in_positive": known.in_positive,
        "in_negative": known.in_negative,
        "left_out": model.left_out_,
    }
    if isinstance(model.tokens_, WordsAndPairs):
        arrays |= {"pairs": model.tokens_.pairs, "word_counts": model.tokens_.vocabulary.counts}
    return {name: np.ascontiguousarray(one) for name, one in arrays.items()}


def _packed(arrays: dict[str, Any]) -> tuple[str, bytes]:
    """The arrays as the content of a file, and its name."""
    try:
        tensors = import_module("safetensors.numpy")
    except ImportError:
        stream = BytesIO()
        np.savez_compressed(stream, **arrays)
        return ARRAYS, stream.getvalue()
    return TENSORS, tensors.save(arrays)


def _unpacked(place: Path, told: dict[str, Any]) -> dict[str, Any]:
    if told["file"] not in (TENSORS, ARRAYS):
        raise reject("folder", _EXPECTED, f"{str(place)!r} with arrays in {told['file']!r}")
    content = (place / told["file"]).read_bytes()
    if hashlib.sha256(content).hexdigest() != told["sha256"]:
        raise reject("folder", _EXPECTED, f"{str(place)!r}, whose arrays are damaged or belong to another model")
    if told["file"] == ARRAYS:
        with np.load(BytesIO(content), allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    try:
        tensors = import_module("safetensors.numpy")
    except ImportError as problem:
        raise missing_extra("safetensors", "text", "Reading this model") from problem
    return dict(tensors.load(content))
