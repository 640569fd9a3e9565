"""Token ids that need not fit in memory: arrays, mapped files and tokenised datasets, read in chunks of windows."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from marginlens.data.sequences import SequenceDataset
from marginlens.data.text_windows import SequenceSplit, held_out_share
from marginlens.data.vocabulary import NamedSequences, Vocabulary
from marginlens.errors import reject, require, whole_number
from marginlens.runtime.files import as_path, unusable
from marginlens.runtime.progress import Progress
from marginlens.typing import FloatArray, IntArray

MAX_CHUNK_POSITIONS = 1 << 24  # tokens of all windows of a chunk: 128 MB as counted triples
MAX_POSITIONS_IN_MEMORY = 1 << 25  # tokens of all windows that are made at once: 256 MB, several times in a dataset
_BLOCK_TOKENS = 1 << 22  # that are looked through at a time
_RAW_DTYPES = ("uint8", "uint16", "uint32", "int32", "int64")
S = TypeVar("S", bound=Any)
_SOURCE = "an array of token ids, the path of a .npy, .bin or .arrow file or of a folder that datasets wrote, or a list of these"


class Chunk(NamedTuple):
    """The tokens that the windows of a chunk are made of.

    Attributes:
        ids: (n_ids,) token ids. starts: (n_starts,) where in `ids` a text begins, increasing. first: the first place in `ids` that is
            a label of this chunk; what comes before belongs to windows alone.
    """

    ids: IntArray
    starts: IntArray
    first: int

    def labels(self, window: int, separator: int | None) -> IntArray:
        """(n_windows,) the places in `ids` of the labels that have a whole window of their text before them."""
        places = np.arange(len(self.ids))
        begins = np.zeros(len(self.ids) + 1, dtype=np.int64)  # of the text that each place lies in
        begins[self.starts] = self.starts
        if separator is not None:
            after = np.flatnonzero(self.ids == separator) + 1
            begins[after] = after
        inside = places - window >= np.maximum.accumulate(begins)[:-1]
        if separator is not None:
            inside &= self.ids != separator
        return np.flatnonzero(inside & (places >= self.first))


class _Texts(NamedTuple):
    """Texts one after the other: `ids` (n_ids,) of any whole type, text i at `edges[i]:edges[i + 1]`; `name` is where they come from."""

    ids: npt.NDArray[Any]
    edges: IntArray
    name: str


class TokenStream:
    r"""Every window of texts in token ids, followed by its next token: what `text_windows` makes of a text, a chunk at a time.

    .. math:: X_i = (x_i, \dots, x_{i+T-1}), \quad y_i = x_{i+T}

    No window reaches from one text into another. `priority_graphs(stream)` counts the windows that hold the token which follows them.

    Args:
        source: where the ids are: an array (n_tokens,), which is one text, or (n_texts, n_tokens), one in each row; the path of a .npy
            file with such an array, or of a raw file of whole numbers such as .bin, one text, both mapped into memory; an .arrow file, a
            folder that `save_to_disk` of Hugging Face datasets wrote, or a pyarrow table, one text in each row of the column
            `column`; or a list of these.
        window: T, the tokens of each window.
        n_vocabulary: how many tokens there are; by default one more than the largest id.
        separator: an id that stands between texts and belongs to none, such as an end-of-text token.
        dtype: of raw files, "uint16" unless said otherwise.
        chunk: labels of a chunk; by default such that its windows have 16 million tokens. It changes no result.

    Attributes:
        names: (n_vocabulary,) what the tokens are called, for those who read the graphs; None unless it is set.
        held_out: the share of the tokens, at the end, that is not counted; see `hold_out`.
    """

    names: tuple[str, ...] | None = None
    held_out: float = 0.0

    def __init__(
        self,
        source: Any,
        window: int,
        *,
        n_vocabulary: int | None = None,
        separator: int | None = None,
        dtype: str = "uint16",
        column: str = "input_ids",
        chunk: int | None = None,
    ) -> None:
        self.window = whole_number(window, "window", at_least=1)
        self.separator = None if separator is None else whole_number(separator, "separator", at_least=0)
        default = max(1, MAX_CHUNK_POSITIONS // self.window)
        self.tokens_per_chunk = default if chunk is None else whole_number(chunk, "chunk", at_least=1)
        self._sources = tuple(_as_sources(source, dtype, column))
        self._n_vocabulary = None if n_vocabulary is None else whole_number(n_vocabulary, "n_vocabulary", at_least=1)
        if not any(np.any(np.diff(texts.edges) > self.window) for texts in self._texts):
            longest = max((int(np.diff(texts.edges).max(initial=0)) for texts in self._texts), default=0)
            raise reject("window", f"shorter than the longest text, which has {longest} tokens", self.window)

    def __repr__(self) -> str:
        n_texts = sum(len(texts.edges) - 1 for texts in self._texts)
        text = "1 text" if n_texts == 1 else f"{n_texts} texts"
        return f"TokenStream({self.n_tokens} tokens in {text}, window={self.window})"

    def __getstate__(self) -> dict[str, Any]:
        opened = ("_texts", "_edges", "n_vocabulary")  # maps of files are opened anew in another process
        return {name: value for name, value in vars(self).items() if name not in opened} | {
            "_n_vocabulary": self.n_vocabulary
        }

    @cached_property
    def _texts(self) -> list[_Texts]:
        return [texts for source in self._sources for texts in source()]

    @cached_property
    def _edges(self) -> IntArray:
        """Where each part of the source begins among all tokens, and their number."""
        return np.cumsum([0, *(len(texts.ids) for texts in self._texts)])

    @property
    def n_tokens(self) -> int:
        """How many tokens there are in all texts, separators among them, without those held out."""
        total = int(self._edges[-1])
        return total - round(self.held_out * total)

    @property
    def n_chunks(self) -> int:
        """How many chunks the labels make."""
        return -(-self.n_tokens // self.tokens_per_chunk)

    @cached_property
    def n_vocabulary(self) -> int:
        """How many tokens there are, K: as given, or one more than the largest id, for which all ids are looked through once."""
        if self._n_vocabulary is not None:
            return self._n_vocabulary
        return 1 + max(int(block.max(initial=0)) for texts in self._texts for block in _blocks(texts.ids))

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of all ids and of what decides how they are counted."""
        decisive = [self.window, self.separator, self.n_vocabulary, *([self.held_out] if self.held_out else [])]
        digest = hashlib.sha256(json.dumps(decisive).encode())
        for texts in self._texts:
            digest.update(np.ascontiguousarray(texts.edges).data)
            for block in _blocks(texts.ids):
                digest.update(np.ascontiguousarray(block, dtype=block.dtype.newbyteorder("<")).data)
        return digest.hexdigest()

    def tokens(self, folder: Path, progress: Progress) -> TokenStream:
        """The stream itself: its tokens have their ids."""
        return self

    def hold_out(self, share: float) -> TokenStream:
        """The same stream without this share of its tokens, between 0 and 1, at the end; `split` has both parts."""
        return without_end(self, share)

    def read(self, index: int) -> Chunk:
        """The tokens of one chunk, checked against the vocabulary."""
        first = index * self.tokens_per_chunk
        last = min(first + self.tokens_per_chunk, self.n_tokens)
        return self._read(max(0, first - self.window), first, last)

    def sequences(self, E: FloatArray) -> SequenceDataset:
        """The windows that hold the token which follows them, as far as they fit in memory: those of the first `n_in_memory` tokens.

        Args:
            E: (n_vocabulary, d_model) embeddings.
        """
        return self._sequences(0, self.n_tokens, E)[0]

    def split(self, vocabulary: Vocabulary, E: FloatArray) -> SequenceSplit:
        """Windows to learn from and windows held out, of the first `n_in_memory` tokens of each part; as `split_text_windows`."""
        training, text = self._sequences(0, self.n_tokens, E)
        held_out, rest = self._sequences(self.n_tokens, int(self._edges[-1]), E)
        return SequenceSplit(NamedSequences(training, vocabulary), held_out, training.original_samples(), text, rest)

    @property
    def n_in_memory(self) -> int:
        """Of how many tokens at most windows are made all at once."""
        return max(MAX_POSITIONS_IN_MEMORY // self.window, self.window + 1)

    def _sequences(self, first: int, last: int, E: FloatArray) -> tuple[SequenceDataset, IntArray]:
        """The windows in the tokens from `first` on that fit in memory, and these tokens."""
        T, chunk = self.window, self._read(first, first, min(last, first + self.n_in_memory))
        labels = chunk.labels(T, self.separator)
        if not any(np.any(chunk.ids[labels - t] == chunk.ids[labels]) for t in range(1, T + 1)):
            got = f"{T}, where none of {len(chunk.ids):,} tokens follows such a window"
            raise reject("window", "long enough that some window holds the token that follows it", got)
        windows = np.lib.stride_tricks.sliding_window_view(chunk.ids, T)[labels - T]
        return SequenceDataset(windows, chunk.ids[labels], E, unrealizable="drop"), chunk.ids

    def _read(self, begin: int, first: int, last: int) -> Chunk:
        """The tokens from `begin` to `last` - 1, of which those from `first` on are labels."""
        ids, starts = [], []
        for part in range(int(np.searchsorted(self._edges, begin, side="right")) - 1, len(self._texts)):
            origin, texts = int(self._edges[part]), self._texts[part]
            if origin >= last:
                break
            a, b = max(begin - origin, 0), min(last - origin, len(texts.ids))
            ids.append(np.asarray(texts.ids[a:b]).astype(np.int64))
            self._check(ids[-1], a, texts.name)
            lowest, highest = np.searchsorted(texts.edges, (a, b))
            starts.append(texts.edges[lowest:highest] + (origin - begin))
        return Chunk(np.concatenate(ids), np.concatenate(starts).astype(np.int64), first - begin)

    def _check(self, ids: IntArray, first: int, name: str) -> None:
        """Refuse ids outside the vocabulary, with the place of the first."""
        if len(ids) and not 0 <= ids.min() <= ids.max() < self.n_vocabulary:
            place = int(np.argmax((ids < 0) | (ids >= self.n_vocabulary)))
            expected = f"token ids from 0 to {self.n_vocabulary - 1}"
            raise reject("source", expected, f"id {ids[place]} at position {first + place} of {name}")


def without_end(stream: S, share: float) -> S:
    """A copy of a stream that holds out this share of its tokens."""
    part = copy(stream)
    part.held_out = held_out_share(share)
    vars(part).pop("fingerprint", None)
    return part


def _blocks(ids: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    return (ids[a : a + _BLOCK_TOKENS] for a in range(0, len(ids), _BLOCK_TOKENS))


# ---- where ids come from

_Source = Callable[[], list[_Texts]]  # the texts of a source, mapped into memory where it is a file


def _array_texts(array: npt.NDArray[Any], name: str = "the array") -> list[_Texts]:
    """The texts of an array in memory, or of one that is mapped."""
    if array.ndim not in (1, 2) or array.dtype.kind not in "iu":
        expected = "whole numbers of shape (n_tokens,) or (n_texts, n_tokens)"
        raise reject("source", expected, f"shape {array.shape} with dtype {array.dtype} in {name}")
    length = array.shape[-1]
    edges = np.array([0, length]) if array.ndim == 1 else np.arange(len(array) + 1) * length
    return [_Texts(array.reshape(-1), edges, name)]


def _npy_texts(path: Path) -> list[_Texts]:
    expected = "a .npy file with an array of token ids"
    try:
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as problem:
        raise reject("source", expected, unusable(path, problem)) from problem
    except (ValueError, EOFError) as problem:
        raise reject("source", expected, f"{str(path)!r}, which is truncated or no such file") from problem
    if not isinstance(mapped, np.ndarray):
        raise reject("source", expected, f"{str(path)!r}, an archive of several")
    return _array_texts(mapped, repr(str(path)))


@dataclass(frozen=True)
class RawFile:
    """Ids in a file without a header, little-endian; called, it has the texts, mapped into memory.

    Args:
        edges: where each text begins among the ids, and their number; one text where not given.
    """

    path: Path
    dtype: str
    edges: tuple[int, ...] | None = None

    def __call__(self) -> list[_Texts]:
        kind = np.dtype(self.dtype).newbyteorder("<")
        try:
            size = self.path.stat().st_size
            if size % kind.itemsize:
                got = f"{str(self.path)!r} of {size} bytes, which is truncated or of another type"
                raise reject("source", f"a file of whole {self.dtype} numbers of {kind.itemsize} bytes", got)
            if size == 0:
                raise reject("source", "a file with at least one token id", f"{str(self.path)!r}, which is empty")
            ids = np.memmap(self.path, dtype=kind, mode="r")
        except OSError as problem:
            raise reject("source", "a file of token ids", unusable(self.path, problem)) from problem
        edges = (0, len(ids)) if self.edges is None else self.edges
        if edges[-1] != len(ids):
            raise reject("source", f"a file of {edges[-1]} token ids", f"{str(self.path)!r} with {len(ids)}")
        return [_Texts(ids, np.array(edges, dtype=np.int64), repr(str(self.path)))]


def _arrow_texts(path: Path, column: str) -> list[_Texts]:
    """The texts of a file of the package datasets (Arrow's stream format) or of Arrow's file format."""
    pyarrow, expected = _pyarrow(), "an Arrow file that can be read"
    try:
        mapped = pyarrow.memory_map(str(path))
        try:
            table = pyarrow.ipc.open_stream(mapped).read_all()
        except pyarrow.ArrowInvalid:
            table = pyarrow.ipc.open_file(mapped).read_all()
    except pyarrow.ArrowInvalid as problem:
        raise reject("source", expected, f"{str(path)!r}, which is truncated or no such file") from problem
    except OSError as problem:
        raise reject("source", expected, unusable(path, problem)) from problem
    return _table_texts(table, column, repr(str(path)))


def _table_texts(table: Any, column: str, name: str = "the table") -> list[_Texts]:
    """The texts of a table, one list of ids in each row, without a copy."""
    pyarrow = _pyarrow()
    expected = f"a table with lists of token ids in the column {column!r}"
    if column not in table.column_names:
        listed = ", ".join(map(repr, table.column_names)) or "none"
        raise reject("column", f"one of the columns of {name} ({listed})", repr(column))
    texts = []
    for rows in table.column(column).chunks:
        kind = rows.type
        if not (
            pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind) or pyarrow.types.is_fixed_size_list(kind)
        ) or not pyarrow.types.is_integer(kind.value_type):
            raise reject("source", expected, f"{kind} in {name}")
        if rows.null_count or rows.flatten().null_count:
            raise reject("source", expected, f"missing values in {name}")
        if pyarrow.types.is_fixed_size_list(kind):
            edges = np.arange(len(rows) + 1, dtype=np.int64) * kind.list_size
        else:
            edges = rows.offsets.to_numpy().astype(np.int64)
            edges -= edges[0]
        texts.append(_Texts(rows.flatten().to_numpy(), edges, name))
    return texts


def _pyarrow() -> Any:
    require("pyarrow", "text", "Reading tokenised datasets")
    import_module("pyarrow.ipc")
    return import_module("pyarrow")


def _as_sources(source: Any, dtype: str, column: str) -> Iterator[_Source]:
    if isinstance(source, RawFile):
        yield source
    elif isinstance(source, str | os.PathLike):
        yield from _path_sources(as_path(source, "source", _SOURCE), dtype, column)
    elif isinstance(source, np.ndarray):
        yield partial(_array_texts, source)
    elif hasattr(source, "column_names") and hasattr(source, "schema"):
        yield partial(_table_texts, source, column)
    elif isinstance(source, Sequence) and source:
        if all(isinstance(entry, int | np.integer) for entry in source):
            yield partial(_array_texts, np.asarray(source))
            return
        for entry in source:
            yield from _as_sources(entry, dtype, column)
    else:
        raise reject("source", _SOURCE, "an empty list" if isinstance(source, list | tuple) else type(source).__name__)


def _path_sources(path: Path, dtype: str, column: str) -> list[_Source]:
    if not path.exists():
        raise reject("source", _SOURCE, f"{str(path)!r}, which is not there")
    path = path.resolve()  # workers may be in another folder
    if path.is_dir():
        return [partial(_arrow_texts, file, column) for file in _dataset_files(path)]
    suffix = path.suffix.lower()
    if suffix == ".npy":
        return [partial(_npy_texts, path)]
    if suffix == ".arrow":
        return [partial(_arrow_texts, path, column)]
    if not isinstance(dtype, str) or dtype not in _RAW_DTYPES:
        raise reject("dtype", f"one of {', '.join(_RAW_DTYPES)}", repr(dtype))
    return [RawFile(path, dtype)]


def _dataset_files(folder: Path) -> list[Path]:
    """The Arrow files of a folder that `save_to_disk` wrote, in their order."""
    if (folder / "dataset_dict.json").is_file():
        splits = sorted(place.name for place in folder.iterdir() if place.is_dir())
        raise reject("source", "the folder of one split", f"{str(folder)!r}, which has {', '.join(splits)}")
    try:
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        files = [folder / entry["filename"] for entry in state["_data_files"]]
        shuffled = bool(state.get("_indices_data_files"))
    except (OSError, ValueError, KeyError, TypeError):
        files, shuffled = sorted(folder.glob("*.arrow")), False
    if shuffled:
        raise reject(
            "source",
            "a dataset whose rows are in their order",
            f"{str(folder)!r}, which was shuffled or selected from",
            "Call flatten_indices() before save_to_disk().",
        )
    if not files:
        raise reject("source", "a folder with .arrow files", f"{str(folder)!r} without any")
    return files
