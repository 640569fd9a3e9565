"""A chunk of a sweep: making, training and measuring its problems, and the Parquet file with the records."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from marginlens import __version__
from marginlens.data.counter_based import gaussian_problems, sphere_problems
from marginlens.data.sequences import SequenceDataset
from marginlens.data.tokens import TokenDataset
from marginlens.dynamics import Record, descend
from marginlens.errors import EngineError, InputError, rename_arguments, require
from marginlens.gpu.device import Device, as_device
from marginlens.gpu.random_problems import Numbers
from marginlens.optimizers.choice import optimizer_named
from marginlens.runtime.progress import ProgressCallback
from marginlens.runtime.threads import single_blas_thread
from marginlens.sweeps.choices import called, loss_named, starting_point
from marginlens.sweeps.grid import Cell, Chunk
from marginlens.sweeps.on_device import Training, device_columns, device_parts, made_on_device
from marginlens.sweeps.plan import FORMAT, Plan
from marginlens.sweeps.records import Categories, ChunkRun, SequenceChunkRun, joined, recorded
from marginlens.typing import FloatArray

if TYPE_CHECKING:
    import pyarrow

# The entry of a file's schema that says which chunk of which plan it is.
METADATA = b"marginlens"
# What a chunk draws random numbers for.
DATA_NUMBERS, START_NUMBERS = 0, 1
COMPRESSION = "zstd"


def arrow() -> Any:
    """Import pyarrow, or raise an error that names the extra that brings it, loky and filelock."""
    for package in ("pyarrow", "loky", "filelock"):
        require(package, "sweep", "A sweep")
    import pyarrow
    import pyarrow.csv
    import pyarrow.parquet

    return pyarrow


# ---- the work of a chunk


@dataclass(frozen=True)
class ChunkWork:
    """Compute a chunk by its number: make its problems, train and measure them, and return the bytes of its file.

    Args:
        stop: a file that the process of the sweep makes when it no longer waits for chunks. Workers on other machines see it if
            they share the folder; otherwise they finish their present chunk.
    """

    plan: Plan
    stop: Path | None = None
    version: str = __version__

    def __call__(self, index: int) -> bytes:
        if self.version != __version__:
            raise EngineError(
                f"Workers need marginlens {self.version}, the version of this process; one has {__version__}."
            )
        self.check_wanted()
        chunk = self.plan.grid.chunk_at(index)
        return encoded(measured(self.plan, chunk, self.check_wanted), chunk, self.plan.hash)

    def check_wanted(self, done: int = 0, total: int = 0) -> None:
        """Raise if the sweep has ended: an executor cannot take back what it has handed to a worker."""
        if self.stop is not None and self.stop.exists():
            raise EngineError("The sweep that this chunk belongs to has ended.")


def measured(plan: Plan, chunk: Chunk, progress: ProgressCallback | None = None) -> dict[str, Any]:
    """Return what was recorded of the problems of a chunk by name: an array whose first axis counts them, or `Categories`."""
    settings, device = plan.cells[chunk.cell].settings, as_device(plan.device)
    # Sums then have the same order, whatever else is running.
    with single_blas_thread():
        if device is None or not isinstance(settings["data"], str):
            return _columns(plan, chunk, progress=progress)
        pieces = [
            _columns(plan, chunk, span, progress) if plan.measures else _columns_on_device(plan, chunk, span, device)
            for span in device_parts(device, settings, chunk.n_problems)
        ]
    return {name: joined([piece[name] for piece in pieces]) for name in pieces[0]}


def _columns_on_device(plan: Plan, chunk: Chunk, span: tuple[int, int], device: Device) -> dict[str, Any]:
    """Return what is recorded of the random problems first … last - 1 of a chunk, made and measured on a GPU."""
    settings, (first, last) = plan.cells[chunk.cell].settings, span
    numbers = Numbers(chunk.first + first, plan.seed, plan.cells[chunk.cell].stream)
    with rename_arguments(d_model="d"):
        made = made_on_device(device, settings, numbers, last - first)
    start = _start(plan, chunk, (settings["d"],))
    training = Training(**_training(plan, chunk), start=None if start is None else start[first:last])
    return device_columns(made, training, plan.record or (), device)


def _columns(
    plan: Plan, chunk: Chunk, span: tuple[int, int] | None = None, progress: ProgressCallback | None = None
) -> dict[str, Any]:
    """Return what is recorded of a chunk, or of its problems first … last - 1, by name, including what the user's functions measure."""
    run = trained(plan, chunk, span, progress)
    n_problems = chunk.n_problems if span is None else span[1] - span[0]
    columns = recorded(run, plan.record or ())
    for name, measure in plan.measures.items():
        value = called(measure, "measures", run)
        parts = (
            {f"{name}_{part}": array for part, array in value.items()} if isinstance(value, Mapping) else {name: value}
        )
        columns |= {part: _checked_measure(array, part, n_problems) for part, array in parts.items()}
    return columns


def trained(
    plan: Plan, chunk: Chunk, span: tuple[int, int] | None = None, progress: ProgressCallback | None = None
) -> ChunkRun | SequenceChunkRun:
    """Train on the problems of a chunk, or on problems first … last - 1 with `span` = (first, last); return the problems and
    the descent.
    """
    cell = plan.cells[chunk.cell]
    settings = {**cell.settings, "step": plan.step_of(cell)}
    first, last = (0, chunk.n_problems) if span is None else span
    part = replace(chunk, first=chunk.first + first, last=chunk.first + last)
    data, head = made_problems(cell, part, plan.seed)
    record = Record(list(plan.saved_steps), ("x",)) if plan.saved_steps else None
    shape = (data.d_key,) if plan.problem == "selection" else (data[0].d_model, data[0].d_model)
    start = _start(plan, chunk, shape)
    start = None if start is None else start[first:last]
    options = {"record": record, "progress": progress, "device": plan.device, **_training(plan, chunk)}
    run = descend(data, head, start=start, **options)
    kind = ChunkRun if plan.problem == "selection" else SequenceChunkRun
    return kind(data, head, run, settings)


def _training(plan: Plan, chunk: Chunk) -> dict[str, Any]:
    """Return the loss, optimizer and number of steps of a chunk, as `descend` takes them."""
    cell = plan.cells[chunk.cell]
    return {
        "loss": loss_named(cell.settings["loss"], plan.problem),
        "optimizer": optimizer_named(cell.settings["optimizer"], plan.step_of(cell)),
        "n_steps": cell.settings["n_steps"],
    }


def _start(plan: Plan, chunk: Chunk, shape: tuple[int, ...]) -> FloatArray | None:
    """Return x(0) of all problems of a chunk, (n_problems, *shape); None for zero."""
    cell = plan.cells[chunk.cell]
    rng = random_numbers(plan.seed, cell, chunk, START_NUMBERS)
    return starting_point(cell.settings["start"], chunk.n_problems, shape, rng)


def made_problems(cell: Cell, chunk: Chunk, seed: int) -> tuple[Any, Any]:
    """Make the problems of a chunk and their heads, which depend only on seed, stream and number, not on who makes them when."""
    settings = cell.settings
    if isinstance(settings["data"], str):
        make = {"sphere": sphere_problems, "gaussian": gaussian_problems}[settings["data"]]
        shape = settings["n_inputs"], settings["n_tokens"], settings["d"]
        with rename_arguments(d_model="d"):
            return make(chunk.first, chunk.last, *shape, seed, cell.stream)
    rng = random_numbers(seed, cell, chunk, DATA_NUMBERS)
    made = called(settings["data"], "data", rng, chunk.n_problems, dict(settings))
    expected = f"a function that returns (data, head) with {chunk.n_problems} problems"
    if not isinstance(made, tuple) or len(made) != 2:
        raise InputError("data", expected, type(made).__name__)
    data, head = made
    if isinstance(data, TokenDataset):
        data = data.as_batch()
    elif not isinstance(data, list) or not all(isinstance(problem, SequenceDataset) for problem in data):
        raise InputError("data", f"{expected} as a TokenDataset or as a list of SequenceDataset", type(data).__name__)
    if len(data) != chunk.n_problems:
        raise InputError("data", expected, f"{len(data)} of them")
    return data, head


def random_numbers(seed: int, cell: Cell, chunk: Chunk, purpose: int) -> np.random.Generator:
    """Return the generator of a chunk for one purpose, by counter: Philox under a key of seed, stream and number of the chunk."""
    key = (cell.stream, chunk.number) if purpose == DATA_NUMBERS else (cell.stream, chunk.number, purpose)
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=key)))


def _checked_measure(value: object, name: str, n_problems: int) -> Any:
    array = np.asarray(value)
    if array.dtype.kind not in "biuf" or array.ndim not in (1, 2) or len(array) != n_problems:
        got = f"shape {array.shape} with dtype {array.dtype}"
        raise InputError(
            "measures", f"functions that return numbers ({n_problems},) or ({n_problems}, k)", f"{got} by {name}"
        )
    return array if array.dtype.kind == "b" and array.ndim == 1 else array.astype(np.float64)


# ---- its file


def encoded(columns: Mapping[str, object], chunk: Chunk, plan_hash: str) -> bytes:
    """Encode the Parquet file of a chunk: what was recorded, which chunk of which plan it is, and checksums of the data."""
    pa = arrow()
    problems = np.arange(chunk.first, chunk.last, dtype=np.int64)
    arrays = {"cell": pa.array(np.full(chunk.n_problems, chunk.cell, dtype=np.int32)), "problem": pa.array(problems)}
    arrays |= {name: _as_arrow(value) for name, value in columns.items()}
    about = {"format": FORMAT, "plan": plan_hash, "chunk": chunk.index, "cell": chunk.cell, "number": chunk.number}
    words = [name for name, array in arrays.items() if pa.types.is_dictionary(array.type)]
    table, sink = pa.table(arrays).replace_schema_metadata({METADATA: json.dumps(about).encode()}), io.BytesIO()
    pa.parquet.write_table(
        table, sink, compression=COMPRESSION, use_dictionary=words, write_statistics=False, write_page_checksum=True
    )
    return sink.getvalue()


def decoded(file: Path, chunk: Chunk, plan_hash: str, columns: list[str] | None = None) -> pyarrow.Table:
    """Decode the table of a chunk's file, of all columns or some; a file that is not what was written is refused by name."""
    pa = arrow()
    try:
        with pa.parquet.ParquetFile(file, page_checksum_verification=True) as parquet:
            about = json.loads(parquet.schema_arrow.metadata[METADATA])
            table = parquet.read(columns=columns, use_threads=False)
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as problem:
        raise _damaged(file, " ".join(str(problem).split())) from problem
    if (about.get("format"), about.get("plan"), about.get("chunk")) != (FORMAT, plan_hash, chunk.index):
        raise _damaged(file, "it is of another plan or place")
    return table.replace_schema_metadata(None)


def _damaged(file: Path, reason: str) -> InputError:
    remedy = "Delete it, and the same sweep computes it anew."
    return InputError("folder", "that of undamaged chunks", f"{str(file)!r}, which is damaged ({reason})", remedy)


def _as_arrow(value: object) -> Any:
    """Convert a column to an Arrow array: words as a dictionary, (n, k) as lists of k, nan and zero with one pattern of bits each."""
    pa = arrow()
    if isinstance(value, Categories):
        names = pa.array(value.names)
        return pa.DictionaryArray.from_arrays(pa.array(value.codes.astype(np.int8)), names)
    array = np.asarray(value)
    if array.dtype.kind == "f":
        array = np.where(np.isnan(array), np.nan, array + 0.0)
    elif array.dtype.kind in "iu":
        array = array.astype(np.int32)
    if array.ndim == 1:
        return pa.array(array)
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(array).ravel()), array.shape[1])


def add_to_digest(digest: Any, column: Any) -> None:
    """Add a column's content to a SHA-256 that does not depend on chunks, compression or encoding.

    Numbers are added as bytes (little-endian, lists as their entries in order), words as text, one per line.
    """
    pa = arrow()
    for piece in column.chunks:
        if pa.types.is_dictionary(piece.type):
            words = [str(word).encode() + b"\n" for word in piece.dictionary.to_pylist()]
            digest.update(b"".join(map(words.__getitem__, piece.indices.to_pylist())))
            continue
        values = piece.flatten() if pa.types.is_nested(piece.type) else piece
        numbers = values.to_numpy(zero_copy_only=False)
        digest.update(np.ascontiguousarray(numbers, dtype=numbers.dtype.newbyteorder("<")).data)
