"""Results in a notebook: their repr, a small table of their fields, and their plot."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from enum import Enum
from importlib.util import find_spec
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt

from marginlens.errors import InputError, missing_extra
from marginlens.result.quantities import Described, line, tally

# A cell shows all entries of an array or a list if there are no more than this.
MAX_SHOWN = 8
# Characters of a cell.
MAX_CELL_LETTERS = 160
PICTURE_INCHES = (4.6, 3.0)
# More than the page shows, so that the picture stays sharp on fine screens.
DOTS_PER_INCH = 150
SCREEN_DOTS_PER_INCH = 100


class Displayed(Described):
    """The base of objects with a display in Jupyter and VS Code: the repr, a table of the fields, and the plot if there is one."""

    def _repr_html_(self) -> str:
        # They import Jinja2, which only displays need.
        from marginlens.pages import data_address, render

        picture, reason = _picture(self)
        return render(
            "marginlens.result",
            "notebook.html",
            {"in_words": in_words, "png_address": lambda content: data_address(content, "image/png")},
            account=str(self),
            numbers=_numbers(self),
            picture=picture,
            reason=reason,
            kind=type(self).__name__,
            width=round(PICTURE_INCHES[0] * SCREEN_DOTS_PER_INCH),
        ).strip()


def public_fields(shown: object) -> dict[str, Any]:
    """Collect the fields for `to_dict` and the table: those of a dataclass' repr without private ones, or all public attributes."""
    if not dataclasses.is_dataclass(shown):
        return {name: value for name, value in vars(shown).items() if not name.startswith("_")}
    names = [field.name for field in dataclasses.fields(shown) if field.repr and not field.name.startswith("_")]
    return {name: getattr(shown, name) for name in names}


def _numbers(shown: Described) -> dict[str, Any]:
    """Return the fields of an object that are not empty."""
    return {name: value for name, value in public_fields(shown).items() if value is not None and not _is_empty(value)}


def _is_empty(value: object) -> bool:
    return isinstance(value, str | tuple | list | Mapping) and not value


def in_words(value: Any) -> str:
    """Format a value in few characters: short arrays entry by entry, long ones by shape and range, statuses with their sentence."""
    if isinstance(value, Enum):
        text = f"{value.name}: {value.sentence}" if hasattr(value, "sentence") else value.name
    elif isinstance(value, np.ndarray | np.generic):
        text = _array_in_words(np.asarray(value))
    elif isinstance(value, bool):
        text = "yes" if value else "no"
    elif isinstance(value, float):
        text = f"{value:.6g}"
    elif isinstance(value, str):
        text = value
    elif isinstance(value, Mapping):
        text = _listed([f"{name}: {in_words(entry)}" for name, entry in list(value.items())[:MAX_SHOWN]], len(value))
    elif type(value) in (list, tuple):
        text = _listed([in_words(entry) for entry in value[:MAX_SHOWN]], len(value))
    elif isinstance(value, Described) and value.quantities:
        text = line(value)
    else:
        text = repr(value)
    return text if len(text) <= MAX_CELL_LETTERS else text[: MAX_CELL_LETTERS - 1] + "…"


def _array_in_words(value: npt.NDArray[Any]) -> str:
    if value.ndim == 0:
        return in_words(value.item())
    if value.dtype == object:
        return tally(value.ravel())
    if value.size <= MAX_SHOWN:
        text = np.array2string(
            value, separator=", ", formatter={"int": str, "float_kind": "{:.4g}".format, "bool": in_words}
        )
        return text.replace("\n", "")
    shape = " × ".join(map(str, value.shape))
    if value.dtype.kind == "b":
        return f"{shape} answers, {int(value.sum())} yes"
    if value.dtype.kind in "iuf" and (finite := value[np.isfinite(value)]).size:
        return f"{shape} numbers, {finite.min():.4g} to {finite.max():.4g}"
    return f"{shape} entries"


def _listed(entries: list[str], number: int) -> str:
    more = [f"and {number - len(entries):,} more"] if number > len(entries) else []
    return ", ".join(entries + more) or "none"


def _picture(shown: Displayed) -> tuple[bytes, str]:
    """Draw the plot as a PNG, or say why there is none; return neither for a class without a plot."""
    if not hasattr(shown, "plot"):
        return b"", ""
    if find_spec("matplotlib") is None:
        return b"", str(missing_extra("matplotlib", "plot", "A figure"))
    import matplotlib as mpl
    from matplotlib.figure import Figure

    stream = BytesIO()
    with mpl.rc_context({"font.size": 9, "legend.fontsize": 8, "axes.titlesize": 9}):
        figure = Figure(figsize=PICTURE_INCHES, layout="constrained")
        try:
            shown.plot(figure.add_subplot())
        except InputError as problem:
            # A sweep without a finished chunk has nothing to draw.
            return b"", str(problem)
        figure.savefig(stream, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    return stream.getvalue(), ""
