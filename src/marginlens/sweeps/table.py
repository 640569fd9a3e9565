"""The table of a sweep: one row a problem, in order of cell and problem, read chunk by chunk; and its digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from marginlens.errors import InputError, reject
from marginlens.result.frames import frame_of_arrow
from marginlens.runtime.files import as_path, check_place, written_aside
from marginlens.sweeps.choices import nearest
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
    finished = list(store.listed())
    missing = store.grid.n_chunks - len(finished)
    if missing and not partial:
        raise InputError(
            f"The sweep in {str(store.folder)!r} is not finished: {missing:,} of {store.grid.n_chunks:,} chunks are missing. "
            "Run it again to go on, or ask for what is there with partial=True."
        )
    return finished


def recorded_columns(store: Store) -> list[str]:
    """The columns of the chunks, those of cell and problem first; none where there is no chunk yet."""
    first = next(iter(store.listed()), None)
    return [] if first is None else list(store.read(first).column_names)


def with_settings(store: Store, table: Any, cell: int) -> Any:
    """A chunk's table with the axes of the grid as columns behind `cell` and `problem`; lists whose lengths vary over the grid as such."""
    pa = arrow()
    axes, place = store.grid.cells[cell].axes, sum(name in table.column_names for name in ("cell", "problem"))
    for k, (name, value) in enumerate(axes.items()):
        column = pa.repeat(_scalar(store.grid.axes[name], value), table.num_rows)
        table = table.add_column(place + k, name, column.dictionary_encode() if column.type == pa.string() else column)
    for name, axis in (("selection", "n_inputs"), ("final", "d")):
        if axis in axes and name in table.column_names:
            values = table.schema.field(name).type.value_type
            table = table.set_column(table.column_names.index(name), name, table[name].cast(pa.list_(values)))
    return table


def _scalar(values: tuple[Any, ...], value: Any) -> Any:
    """One of the values of an axis as Arrow has it: a whole number, a number, or a word for everything else."""
    pa, kinds = arrow(), {type(entry) for entry in values}
    if kinds <= {int, float}:
        return pa.scalar(value, pa.int64() if kinds == {int} else pa.float64())
    return pa.scalar(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def whole_table(store: Store, columns: list[str] | None = None, *, format: str = "arrow", partial: bool = False) -> Any:
    """All pieces as one table, or as a frame of pandas or polars."""
    if format not in TABLE_FORMATS:
        raise reject("format", f"one of {', '.join(TABLE_FORMATS)}", repr(format))
    pa = arrow()
    known = recorded_columns(store)
    for name in columns or ():
        if known and name not in known:
            listed = ", ".join(known[2:])
            raise reject("columns", f"names among {listed}", repr(name), nearest(str(name), known[2:]))
    pieces = list(batches(store, columns, partial=partial))
    if not pieces:
        raise InputError(f"The sweep in {str(store.folder)!r} has no finished chunk yet.")
    table = pa.concat_tables(pieces).unify_dictionaries()
    return table if format == "arrow" else frame_of_arrow(table, format)


def write_table(store: Store, path: Any, *, partial: bool = False) -> int:
    """Write the table to a .parquet or .csv file, a chunk at a time, lists in CSV as texts; returns the number of rows."""
    pa, place, n_rows = arrow(), as_path(path, "path", "the path of a file"), 0
    check_place(place, "path", (".parquet", ".csv"))
    pieces = batches(store, partial=partial)
    with written_aside(place, "path") as aside, ExitStack() as stack:
        writer: Any = None
        for piece in pieces:
            table = _plain(pa, piece, with_lists=place.suffix.lower() == ".parquet")
            if writer is None:
                make = pa.csv.CSVWriter if place.suffix.lower() == ".csv" else pa.parquet.ParquetWriter
                writer = stack.enter_context(make(aside, table.schema))
            writer.write_table(table)
            n_rows += table.num_rows
        if writer is None:
            raise InputError(f"The sweep in {str(store.folder)!r} has no finished chunk yet.")
    return n_rows


def _plain(pa: Any, table: Any, *, with_lists: bool) -> Any:
    """Dictionaries as plain words, which are the same in every chunk; without lists these as words too, their entries between spaces."""
    for k, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            table = table.set_column(k, field.name, table[field.name].cast(pa.string()))
        elif pa.types.is_nested(field.type) and not with_lists:
            texts = [" ".join(map(str, entry)) for entry in table[field.name].to_pylist()]
            table = table.set_column(k, field.name, pa.array(texts))
    return table


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
