"""Reviews encoded once and kept: under a key of their content, their reader's rules and the pipeline's settings."""

from __future__ import annotations

import hashlib
import json
import os
import unicodedata
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from marginlens.data.files import as_path, write_whole
from marginlens.data.labelled import LabelledSequences
from marginlens.data.tokens import IntArray
from marginlens.errors import reject
from marginlens.progress import Progress
from marginlens.text.pipeline import TextPipeline, Vocabulary
from marginlens.text.reviews import ReviewSource

FORMAT = 2  # raised whenever the same text and settings would give other tokens, or the files change


@dataclass(frozen=True, repr=False, eq=False)
class EncodedReviews:
    """Reviews as token ids.

    Sample i of `data` is review `kept[i]` of the source, in part `split[i]` where the source names parts; -1 stands for `classes[0]`
    and +1 for `classes[1]`; `left_out` counts what the reader and the pipeline left out.
    """

    data: LabelledSequences
    vocabulary: Vocabulary
    kept: IntArray
    classes: tuple[str, str]
    split: npt.NDArray[np.str_] | None = None
    left_out: Mapping[str, int] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The token that each id stands for."""
        return self.vocabulary.names

    def part(self, name: str) -> LabelledSequences:
        """The samples of one part, e.g. "train"."""
        return self.data.subset(np.flatnonzero(_in_part(self.split, name, "name")))

    def __repr__(self) -> str:
        return f"EncodedReviews({self.data!r})"


def encode_reviews(
    source: ReviewSource,
    pipeline: TextPipeline,
    *,
    count_in: str | None = None,
    cache: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> EncodedReviews:
    """Read and encode the reviews of a source, or take them from the cache when the same bytes were encoded before.

    Args:
        source: where the reviews are, e.g. `review_source(path)`.
        pipeline: how they are encoded.
        count_in: the part in which tokens are counted, e.g. "train"; all reviews by default.
        cache: a folder, made when it is not there; None neither reads nor writes. `cache_folder()` is the user's own.
        progress: hears of every review read.
    """
    if not all(callable(getattr(source, name, None)) for name in ("read", "digest", "to_dict")):
        raise reject("source", "where reviews are read from, e.g. review_source(path)", type(source).__name__)
    if not isinstance(pipeline, TextPipeline):
        raise reject("pipeline", "a TextPipeline", type(pipeline).__name__)
    if count_in is not None and not isinstance(count_in, str):
        raise reject("count_in", "the name of a part, or None for all reviews", type(count_in).__name__)
    if cache is not None:
        as_path(cache, "cache", "a folder, or None")
    key = None if cache is None else cache_key(source, pipeline, count_in)
    if cache is not None and key is not None:
        found = _read(Path(cache), key, pipeline)
        if found is not None:
            return found
    reviews = source.read()
    counted = None if count_in is None else _in_part(reviews.split, count_in, "count_in")
    encoded = pipeline.encode(reviews.texts, reviews.y, counted=counted, progress=progress)
    lost = len(reviews) - len(encoded.kept)
    result = EncodedReviews(
        encoded.data,
        encoded.vocabulary,
        encoded.kept,
        reviews.classes,
        None if reviews.split is None else reviews.split[encoded.kept],
        dict(reviews.left_out) | ({"no token left": lost} if lost else {}),
    )
    if cache is not None and key is not None:
        _write(Path(cache), key, result)
    return result


def cache_key(source: ReviewSource, pipeline: TextPipeline, count_in: str | None = None) -> str:
    """SHA-256 of all that decides the tokens: the source's bytes and rules, the settings, and the versions that matter."""
    decides = {
        "format": FORMAT,
        "unicode": unicodedata.unidata_version,
        "stemmer": pipeline.stemming.made_with() if pipeline.stemming else None,
        "bytes": source.digest(),
        "source": source.to_dict(),
        "pipeline": pipeline.to_dict(),
        "count_in": count_in,
    }
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()


def cache_folder() -> Path:
    """The folder for encoded reviews among the user's caches."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "marginlens" / "text"


def _in_part(split: npt.NDArray[np.str_] | None, name: str, argument: str) -> npt.NDArray[np.bool_]:
    there = [] if split is None else sorted(set(split.tolist()))
    if split is None or name not in there:
        parts = ", ".join(map(repr, there)) or "none, so leave it out"
        raise reject(argument, f"a part that the reviews name ({parts})", repr(name))
    return split == name


def _write(folder: Path, key: str, result: EncodedReviews) -> None:
    """Two files, the arrays first: without its JSON nothing is read."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise reject(
            "cache", "a folder that can be made", f"{str(folder)!r} ({problem.strerror or problem})"
        ) from problem
    small = np.uint16 if len(result.vocabulary) <= 2**16 else np.int32
    arrays: dict[str, Any] = {
        "tokens": result.data.tokens.astype(small),
        "offsets": result.data.offsets,
        "y": result.data.y.astype(np.int8),
        "kept": result.kept,
        "counts": result.vocabulary.counts,
    }
    if result.split is not None:
        arrays["split"] = result.split
    stream = BytesIO()
    np.savez(stream, **arrays)
    said = {
        "format": FORMAT,
        "names": result.vocabulary.names,
        "classes": result.classes,
        "left_out": dict(result.left_out),
        "sha256": hashlib.sha256(stream.getvalue()).hexdigest(),
    }
    write_whole(folder / f"{key}.npz", stream.getvalue(), "cache")
    write_whole(folder / f"{key}.json", json.dumps(said, ensure_ascii=False).encode(), "cache")


def _read(folder: Path, key: str, pipeline: TextPipeline) -> EncodedReviews | None:
    """What the cache holds under a key; None where it holds nothing, or nothing whole."""
    try:
        said = json.loads((folder / f"{key}.json").read_bytes())
        content = (folder / f"{key}.npz").read_bytes()
        if said["format"] != FORMAT or said["sha256"] != hashlib.sha256(content).hexdigest():
            return None
        with np.load(BytesIO(content), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        vocabulary = Vocabulary(pipeline, tuple(said["names"]), arrays["counts"])
        tokens, y = arrays["tokens"].astype(np.int64), arrays["y"].astype(np.float64)
        data = LabelledSequences.of_positions(tokens, arrays["offsets"], y, len(vocabulary))
        classes = (said["classes"][0], said["classes"][1])
        return EncodedReviews(data, vocabulary, arrays["kept"], classes, arrays.get("split"), said["left_out"])
    except (OSError, ValueError, KeyError, TypeError, IndexError, EOFError, zipfile.BadZipFile, zlib.error):
        return None
