"""Figures as files: PNG for the page, SVG beside it, both small enough to mail and the same for the same figure."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.figure import Figure

from marginlens.runtime.files import write_whole

DOTS_PER_INCH = 150
WIDEST_PIXELS = 2000
LARGEST_SVG = 1_000_000


def png(figure: Figure) -> bytes:
    """The figure as a PNG of 150 dots per inch, fewer when it would be wider or taller than 2000 pixels."""
    dots = min(DOTS_PER_INCH, WIDEST_PIXELS / max(figure.get_size_inches()))
    return _saved(figure, "png", dots, {"Software": None})


def svg(figure: Figure) -> bytes:
    """The figure as an SVG; one of more than a megabyte has its curves and points drawn as an image inside it."""
    drawing = _saved(figure, "svg", DOTS_PER_INCH, {"Date": None})
    if len(drawing) <= LARGEST_SVG:
        return drawing
    heavy = [artist for axes in figure.axes for artist in _marks(axes) if not artist.get_rasterized()]
    for artist in heavy:
        artist.set_rasterized(True)
    try:
        return _saved(figure, "svg", DOTS_PER_INCH, {"Date": None})
    finally:
        for artist in heavy:
            artist.set_rasterized(False)


def write_figure(place: Path, figure: Figure, argument: str = "plot") -> None:
    """Write the figure to a file that appears whole or not at all: an SVG where its name says so, a PNG otherwise."""
    write_whole(place, (svg if place.suffix.lower() == ".svg" else png)(figure), argument)


def _marks(axes: mpl.axes.Axes) -> list[Artist]:
    return [*axes.lines, *axes.collections, *axes.patches, *axes.images]


def _saved(figure: Figure, form: str, dots: float, metadata: dict[str, str | None]) -> bytes:
    """The figure's bytes; its canvas is left as it was, so that a figure shown on a screen stays there."""
    stream = BytesIO()
    with mpl.rc_context({"svg.hashsalt": "marginlens", "svg.fonttype": "path"}):
        figure.savefig(stream, format=form, dpi=dots, metadata=metadata, facecolor="white")
    return stream.getvalue()
