"""The style of all figures: a palette safe for colour-blind readers, one type size, and styles for papers and slides."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, Self

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.rcsetup import cycler

from marginlens.errors import InputError, positive_number
from marginlens.result.palette import ACCENTS, FAINT, INK, SEQUENCE

STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.labelsize": 11,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
    "legend.fontsize": 10,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.prop_cycle": cycler(color=ACCENTS),
    "lines.linewidth": 1.8,
    "legend.frameon": False,
    "figure.facecolor": "white",
    "svg.fonttype": "none",
}


WIDTHS = {"column": 3.25, "double": 6.75}  # inches of one column of a two-column paper, and of both
GOLDEN_RATIO = 1.618  # of a figure's width to its height, unless the height is given


class PlotStyle(dict[str, Any]):
    """Matplotlib parameters that are used in a `with` block, on top of a function, or for the rest of a session.

    It is a dictionary of rcParams, so `plt.style.use(style)` and `mpl.rc_context(style)` accept it too:

        with ml.plotting.paper():        # figures made in the block
            run.plot()

        @ml.plotting.paper("double")     # figures made by the function
        def draw(): ...

        ml.plotting.slides().use()       # figures made from now on

    Figures of the library with their own style use these parameters on top of it.
    """

    _entered: list[AbstractContextManager[None]]

    def __enter__(self) -> Self:
        active = self._active()
        active.__enter__()
        self.__dict__.setdefault("_entered", []).append(active)
        return self

    def __exit__(self, *problem: Any) -> None:
        self._entered.pop().__exit__(*problem)

    def __call__(self, draw: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `draw` to run in this style."""
        if not callable(draw):
            raise InputError("draw", "a function that draws", repr(draw))

        @wraps(draw)
        def styled(*arguments: Any, **options: Any) -> Any:
            with self._active():
                return draw(*arguments, **options)

        return styled

    def use(self) -> None:
        """Use the style from now on."""
        mpl.rcParams.update(self)
        _ACTIVE.set(self)

    @contextmanager
    def _active(self) -> Iterator[None]:
        token = _ACTIVE.set(self)
        try:
            with mpl.rc_context(self):
                yield
        finally:
            _ACTIVE.reset(token)

    def __repr__(self) -> str:
        width, height = self["figure.figsize"]
        return f"PlotStyle({width:.4g} × {height:.4g} inches, {self['font.size']:g} pt, savefig as {self['savefig.format']})"


_ACTIVE: ContextVar[PlotStyle | None] = ContextVar("marginlens_plot_style", default=None)


def house_style() -> dict[str, Any]:
    """Return the parameters that the library's figures are drawn with: `STYLE`, overridden by a `PlotStyle` in force."""
    return {**STYLE, **(_ACTIVE.get() or {})}


def paper(width: float | str = "column", height: float | None = None, *, font_size: float = 8.0) -> PlotStyle:
    """Return a style for figures in a paper: one column wide, with small type and embedded fonts.

    `savefig("name")` writes a PDF with embedded TrueType fonts (`pdf.fonttype` 42, since publishers refuse Type 3). An SVG
    holds its letters as outlines (`svg.fonttype` "path"), which look the same without the font; set "none" to keep texts
    editable.

    Args:
        width: "column" (3.25 inches), "double" (6.75 inches), or a number of inches; for a LaTeX page, `\\the\\columnwidth`
            over 72.27.

        height: the height in inches; by default the golden section of the width.

        font_size: the size of labels and legend in points; ticks are one point smaller.
    """
    wide = WIDTHS.get(width) if isinstance(width, str) else positive_number(width, "width")
    if wide is None:
        raise InputError("width", f"{' or '.join(map(repr, WIDTHS))}, or a number of inches", repr(width))
    size = positive_number(font_size, "font_size")
    high = wide / GOLDEN_RATIO if height is None else positive_number(height, "height")
    return PlotStyle(
        {
            **_lettering(size, size - 1.0),
            **_VECTOR,
            "figure.figsize": (wide, high),
            "figure.constrained_layout.use": True,
            "axes.linewidth": 0.6,
            "grid.linewidth": 0.4,
            "lines.linewidth": 1.2,
            "lines.markersize": 3.5,
            "xtick.major.width": 0.6,
            "ytick.major.width": 0.6,
            "xtick.major.size": 2.5,
            "ytick.major.size": 2.5,
            "legend.handlelength": 1.4,
        }
    )


def slides(width: float = 10.0, height: float = 5.6) -> PlotStyle:
    """Return a style for 16:9 slides, with type and lines readable from the last row. Files are vector graphics, as those of `paper`.

    Args:
        width: the width in inches.

        height: the height in inches.
    """
    size = (positive_number(width, "width"), positive_number(height, "height"))
    return PlotStyle(
        {
            **_lettering(18.0, 16.0),
            **_VECTOR,
            "figure.figsize": size,
            "figure.constrained_layout.use": True,
            "axes.linewidth": 1.2,
            "grid.linewidth": 0.8,
            "lines.linewidth": 3.0,
            "lines.markersize": 9.0,
        }
    )


_VECTOR: dict[str, Any] = {
    "savefig.format": "pdf",
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
    "svg.fonttype": "path",
    "savefig.bbox": None,  # the figure is as wide as it says
}


def _lettering(size: float, tick_size: float) -> dict[str, Any]:
    """Return the house style with letters of this size, in points."""
    large = dict.fromkeys(("font.size", "axes.titlesize", "axes.labelsize", "figure.titlesize"), size)
    small = dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "legend.fontsize"), tick_size)
    return {**STYLE, **large, **small}


def figure(n_panels: int = 1, *, width: float = 4.6, height: float = 4.0) -> tuple[Figure, list[Axes]]:
    """Make a figure with `n_panels` axes side by side, each `width` × `height` inches, in the house style."""
    with mpl.rc_context(house_style()):
        fig = Figure(figsize=(width * n_panels, height), layout="constrained")
        axes = [fig.add_subplot(1, n_panels, k + 1) for k in range(n_panels)]
    return fig, axes


def in_style(draw: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `draw` to run in the house style, with nothing changed afterwards."""

    @wraps(draw)
    def styled(*arguments: Any, **options: Any) -> Any:
        with mpl.rc_context(house_style()):
            return draw(*arguments, **options)

    return styled


def shades(count: int) -> list[Any]:
    """Return `count` colours of the ordered palette, without the ends that are invisible on a light or a dark background."""
    return [mpl.colormaps[SEQUENCE](level) for level in np.linspace(0.2, 0.86, count)]


def note_at(ax: Axes, text: str, at: Any, offset: tuple[float, float], **style: Any) -> None:
    """Write a short text next to a point, `offset` in points, on a white background that keeps it readable over lines."""
    ground = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
    look = {"fontsize": 10, "ha": "left", "va": "center", "zorder": 8, "bbox": ground, **style}
    ax.annotate(text, xy=tuple(at), xytext=offset, textcoords="offset points", **look)
