"""The summary of a sweep by cell: shares with confidence intervals, means with standard errors, quantiles; and its plot."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from marginlens.errors import InputError, real_array
from marginlens.names import nearest
from marginlens.result import Result, Tabular, axes_for
from marginlens.result.palette import ACCENTS
from marginlens.sweeps.chunk import arrow
from marginlens.typing import ArrayLike, Axes, FloatArray

# Levels of the quantiles, and confidence of the intervals of shares.
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
CONFIDENCE = 0.95
# Dashes of lines that show the same words.
_DASHES = ("-", "--", ":", "-.")


@dataclass(frozen=True, repr=False)
class Shares:
    """Counts of each word, or of True and False, in a column.

    Attributes:
        counts: the number of problems with each word.

        intervals: the exact (Clopper–Pearson) 95% interval of each word's probability.
    """

    counts: Mapping[str, int]

    @classmethod
    def of(cls, column: Any) -> Shares:
        """Count the words or booleans of an Arrow column."""
        words = column.combine_chunks().cast(arrow().string())
        counts = {entry["values"]: entry["counts"] for entry in words.value_counts().to_pylist()}
        return cls(dict(sorted(counts.items())))

    @property
    def n(self) -> int:
        """The number of counted problems."""
        return sum(self.counts.values())

    @property
    def shares(self) -> dict[str, float]:
        """The share of the problems with each word."""
        return {word: count / self.n for word, count in self.counts.items()}

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """The interval of each word's probability."""
        return {word: share_interval(count, self.n) for word, count in self.counts.items()}

    def __repr__(self) -> str:
        return ", ".join(f"{word} {100 * share:.4g}%" for word, share in self.shares.items())


@dataclass(frozen=True, repr=False)
class Numbers:
    """Statistics of a column of numbers.

    Attributes:
        n: the number of problems with a finite number; the statistics below refer to these.

        n_undefined: the number of problems with nan.

        n_infinite: the number of problems with ±inf.

        mean: the mean, nan if n is 0.

        standard_error: the standard error of the mean, nan if n is 0.

        smallest: the smallest number, nan if n is 0.

        largest: the largest number, nan if n is 0.

        quantiles: the quantiles by level.
    """

    n: int
    n_undefined: int
    n_infinite: int
    mean: float
    standard_error: float
    smallest: float
    largest: float
    quantiles: Mapping[float, float]

    @classmethod
    def of(cls, values: FloatArray, levels: FloatArray) -> Numbers:
        """Compute the statistics of a column, with quantiles of these levels."""
        finite = values[np.isfinite(values)]
        n, undefined = len(finite), int(np.isnan(values).sum())
        if n == 0:
            nothing = dict.fromkeys(levels.tolist(), np.nan)
            return cls(0, undefined, len(values) - undefined, *(np.nan,) * 4, nothing)
        spread = float(np.std(finite, ddof=1) / np.sqrt(n)) if n > 1 else np.nan
        mean, smallest, largest = float(np.mean(finite)), float(finite.min()), float(finite.max())
        at = np.quantile(finite, levels, method="inverted_cdf", overwrite_input=True)
        ranks = dict(zip(levels.tolist(), np.atleast_1d(at).tolist(), strict=True))
        return cls(n, undefined, len(values) - n - undefined, mean, spread, smallest, largest, ranks)

    def __repr__(self) -> str:
        return f"{self.mean:.6g} ± {self.standard_error:.1g}"


@dataclass(frozen=True)
class CellSummary:
    """The summary of one cell: its axes, its number of problems, and `Numbers` or `Shares` by column."""

    axes: Mapping[str, Any]
    n_problems: int
    columns: Mapping[str, Numbers | Shares]

    @classmethod
    def of(cls, axes: Mapping[str, object], table: Any, levels: FloatArray) -> CellSummary:
        """Summarise the rows of one cell, an Arrow table of the columns that `summarized_columns` names."""
        pa, found = arrow(), dict[str, Numbers | Shares]()
        for field in table.schema:
            column = table[field.name]
            is_words = pa.types.is_dictionary(field.type) or pa.types.is_boolean(field.type)
            found[field.name] = Shares.of(column) if is_words else Numbers.of(column.to_numpy().astype(float), levels)
        return cls(axes, table.num_rows, found)


@dataclass(frozen=True, repr=False, eq=False)
class Summary(Result, Tabular):
    """The summary of a sweep: its cells in order.

    `to_frame()` has one row per cell: its axes, problems, and for each column of numbers NAME its NAME (mean), NAME_error (standard error)
    and NAME_median; for each column of words NAME_WORD, the share of each word.
    """

    cells: tuple[CellSummary, ...]

    def __len__(self) -> int:
        return len(self.cells)

    def __getitem__(self, index: int) -> CellSummary:
        return self.cells[index]

    def _columns(self) -> dict[str, Any]:
        rows: list[dict[str, Any]] = []
        for cell in self.cells:
            row: dict[str, Any] = {**cell.axes, "problems": cell.n_problems}
            for name, of in cell.columns.items():
                if isinstance(of, Shares):
                    row |= {f"{name}_{word}": share for word, share in of.shares.items()}
                else:
                    row |= {
                        name: of.mean,
                        f"{name}_error": of.standard_error,
                        f"{name}_median": of.quantiles.get(0.5, np.nan),
                    }
            rows.append(row)
        names = list(dict.fromkeys(name for row in rows for name in row))
        return {name: [row.get(name, 0.0) for row in rows] for name in names}

    def __repr__(self) -> str:
        names = ", ".join(self.cells[0].columns) if self.cells else "nothing"
        return f"Summary({len(self)} cells, {sum(cell.n_problems for cell in self.cells):,} problems: {names})"

    def plot(self, ax: Axes | None = None, *, column: str | None = None, axis: str | None = None) -> Axes:
        """Draw one column over one axis of the grid: shares with their intervals, or medians with the middle 90%. Returns the axes.

        Args:
            column: the column; by default "optimality" if it was recorded, otherwise the first.

            axis: the axis; by default the first whose values are numbers. Every combination of the other axes has its own line.
        """
        return draw(self, axes_for(ax), column, axis)


def share_interval(count: int, n: int) -> tuple[float, float]:
    """Compute the exact (Clopper–Pearson) interval of a probability of which `count` of `n` were observed."""
    from scipy.stats import beta

    tail = (1.0 - CONFIDENCE) / 2.0
    low = 0.0 if count == 0 else float(beta.ppf(tail, count, n - count + 1))
    high = 1.0 if count == n else float(beta.ppf(1.0 - tail, count + 1, n - count))
    return low, high


def quantile_levels(quantiles: ArrayLike) -> FloatArray:
    """Check levels of quantiles, numbers from 0 to 1."""
    levels = real_array(quantiles, "quantiles", ("n_levels",))
    if np.any((levels < 0.0) | (levels > 1.0)):
        raise InputError("quantiles", "numbers from 0 to 1", levels.tolist())
    return levels


def summarized_columns(schema: Any) -> list[str]:
    """Return the columns of words and of numbers, which are summarised; lists are not."""
    is_nested = arrow().types.is_nested
    return [field.name for field in schema if field.name not in ("cell", "problem") and not is_nested(field.type)]


# ---- drawing


def draw(summary: Summary, ax: Axes, column: str | None, axis: str | None) -> Axes:
    """Draw one column of a summary over one axis of the grid."""
    columns, axes = summary[0].columns, summary[0].axes
    name = column if column is not None else ("optimality" if "optimality" in columns else next(iter(columns), None))
    if name is None or name not in columns:
        raise InputError(
            "column",
            f"one of {', '.join(columns) or 'those with numbers or words'}",
            repr(column),
            nearest(str(column), columns),
        )
    over = (
        axis
        if axis is not None
        else next((key for key, value in axes.items() if _is_number(value)), next(iter(axes), ""))
    )
    if over and over not in axes:
        raise InputError("axis", f"one of {', '.join(axes)}", repr(axis), nearest(str(axis), axes))
    lines: dict[str, list[CellSummary]] = {}
    for cell in summary.cells:
        label = ", ".join(f"{key} = {value}" for key, value in cell.axes.items() if key != over)
        lines.setdefault(label, []).append(cell)
    places = [cell.axes.get(over, 0) for cell in next(iter(lines.values()))]
    x = np.asarray(places, dtype=float) if all(map(_is_number, places)) else np.arange(len(places), dtype=float)
    is_shares = isinstance(columns[name], Shares)
    words = sorted({word for cell in summary.cells for word in _words(cell.columns[name])})
    for (k, (label, cells)), (j, word) in itertools.product(enumerate(lines.items()), enumerate(words)):
        middle, low, high = np.array([_marks(cell.columns[name], word) for cell in cells]).T
        look: dict[str, Any] = {"color": ACCENTS[(j if is_shares else k) % len(ACCENTS)], "marker": "o", "ms": 4}
        look |= {"ls": _DASHES[k % len(_DASHES)] if is_shares else "-", "label": ", ".join(filter(None, (word, label)))}
        ax.errorbar(x[: len(middle)], middle, np.abs([middle - low, high - middle]), capsize=3, **look)
    if is_shares:
        ax.set_ylim(-0.02, 1.02)
    ax.set(xlabel=over or "all problems", ylabel=f"share by {name}" if is_shares else name)
    if not over:
        ax.set_xticks([])
    elif not all(map(_is_number, places)):
        ax.set_xticks(x, [str(place) for place in places])
    elif len(x) > 1 and x.min() > 0 and x.max() / x.min() >= 20:
        ax.set_xscale("log")
        ax.set_xticks(x, [str(place) for place in places])
        ax.minorticks_off()
    if ax.get_legend_handles_labels()[1]:
        ax.legend()
    return ax


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _words(column: Numbers | Shares) -> Iterable[str]:
    """Return the words with a line each; numbers have one line without a word."""
    return column.counts if isinstance(column, Shares) else ("",)


def _marks(column: Numbers | Shares, word: str) -> tuple[float, float, float]:
    """Return a point with the ends of its bar: the share of a word with its interval, or the median between the outermost quantiles."""
    if isinstance(column, Shares):
        count = column.counts.get(word, 0)
        return (count / column.n, *share_interval(count, column.n))
    levels = sorted(column.quantiles)
    return column.quantiles.get(0.5, column.mean), column.quantiles[levels[0]], column.quantiles[levels[-1]]
