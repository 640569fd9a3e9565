"""The table of a sweep: one row a problem, in order of cell and problem, read chunk by chunk; and its digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from marginlens.errors import InputError, missing_extra, reject
from marginlens.sweeps.chunk import arrow, column_digest
from marginlens.sweeps.store import Store

if TYPE_CHECKING:
    import pyarrow

TABLE_FORMATS = ("arrow", "pandas", "polars")
DIGEST_FORMAT = "marginlens-table-1"


def batches(store: Store, columns: list[str] | None = None, *, partial: bool = False) -> Iterator[pyarrow.Table]:
    """The table of a sweep in pieces, a chunk each, with the cell's settings as columns after its number.

    Args:
        columns: which of the recorded columns; all by default.
        partial: take those chunks that are there; else a sweep that is not finished is refused.
    """
    for index in finished_chunks(store, partial=partial):
        yield with_settings(store, store.read(index, columns), store.grid.chunk_at(index).cell)


def finished_chunks(store: Store, *, partial: bool = False) -> list[int]:
    """The chunks that are there, all of them unless `partial`."""
    there = list(store.listed())
    missing = store.grid.n_chunks - len(there)
    if missing and not partial:
        raise InputError(
            f"The sweep in {str(store.folder)!r} is not finished: {missing:,} of {store.grid.n_chunks:,} chunks are missing. "
            "Run it again to go on, or ask for what is there with partial=True."
        )
    return there


def with_settings(store: Store, table: Any, cell: int) -> Any:
    """A chunk's table with the axes of the grid as columns behind `cell` and `problem`; lists whose lengths vary over the grid as such."""
    pa = arrow()
    axes, place = store.grid.cells[cell].axes, sum(name in table.column_names for name in ("cell", "problem"))
    for k, (name, value) in enumerate(axes.items()):
        table = table.add_column(place + k, name, constant_column(pa, _kind(store, name), value, table.num_rows))
    varies = {"selection": "n_inputs", "final": "d"}
    for name, axis in varies.items():
        if axis in axes and name in table.column_names:
            values = table.schema.field(name).type.value_type
            table = table.set_column(table.column_names.index(name), name, table[name].cast(pa.list_(values)))
    return table


def constant_column(pa: Any, kind: Any, value: Any, length: int) -> Any:
    """A column with one value; words as a dictionary."""
    if kind == pa.string():
        words = pa.array([value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)])
        return pa.DictionaryArray.from_arrays(pa.array(np.zeros(length, dtype=np.int8)), words)
    return pa.array(np.full(length, value, dtype=kind.to_pandas_dtype()))


def _kind(store: Store, axis: str) -> Any:
    """The Arrow type of an axis: whole numbers, numbers, or words for everything else."""
    pa, values = arrow(), store.grid.axes[axis]
    if all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        return pa.int64()
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return pa.float64()
    return pa.string()


def whole_table(store: Store, columns: list[str] | None = None, *, format: str = "arrow", partial: bool = False) -> Any:
    """All pieces as one table, or as a frame of pandas or polars."""
    if format not in TABLE_FORMATS:
        raise reject("format", f"one of {', '.join(TABLE_FORMATS)}", repr(format))
    pa = arrow()
    pieces = list(batches(store, columns, partial=partial))
    if not pieces:
        raise InputError(f"The sweep in {str(store.folder)!r} has no finished chunk yet.")
    table = pa.concat_tables(pieces).unify_dictionaries()
    if format == "arrow":
        return table
    try:
        if format == "pandas":
            return table.to_pandas()
        import polars
    except ImportError as problem:
        raise missing_extra(format, format, f"A table as a frame of {format}") from problem
    return polars.from_arrow(table)


def digest(store: Store) -> str:
    """SHA-256 of the table's content, column by column, independent of chunks, of their compression and of who computed them."""
    digests: dict[str, Any] = {}
    for index in finished_chunks(store):
        table = store.read(index)
        for name in table.column_names:
            column_digest(table[name].chunks, digests.setdefault(name, hashlib.sha256()))
    content = {name: made.hexdigest() for name, made in digests.items()}
    axes = {name: list(values) for name, values in store.grid.axes.items()}
    said = {"format": DIGEST_FORMAT, "axes": axes, "n_problems": store.grid.n_problems, "columns": content}
    return hashlib.sha256(json.dumps(said, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
