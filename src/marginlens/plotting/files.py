"""Figures as files: PNG, SVG and PDF, small enough to mail and the same for the same figure."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.figure import Figure

from marginlens.runtime.files import write_whole

DOTS_PER_INCH = 150
WIDEST_PIXELS = 2000
MAX_VECTOR_BYTES = 1_000_000
MAX_PAGE_SVG_BYTES = 60_000  # a PNG of the same figure has 50,000 on average
FIGURE_SUFFIXES = (".png", ".svg", ".pdf")  # of the files that `write_figure` writes


def png(figure: Figure) -> bytes:
    """Return the figure as a PNG of 150 dots per inch, fewer if it would be wider or taller than 2000 pixels."""
    return _saved(figure, "png", _dots(figure), {"Software": None})


def svg(figure: Figure) -> bytes:
    """Return the figure as an SVG; above one megabyte, curves and points become an image inside it."""
    return _vector(figure, "svg", {"Date": None})


def pdf(figure: Figure) -> bytes:
    """Return the figure as a PDF with its fonts; above one megabyte, curves and points become an image inside it."""
    return _vector(figure, "pdf", {"CreationDate": None, "Creator": None, "Producer": None})


def page_and_print(figure: Figure) -> tuple[str, bytes, bytes]:
    """Return the figure for a page, with the suffix of that file, and as a PDF for print.

    For a page that is an SVG if it is small, otherwise a PNG with a palette. Both files have a single layout; each separate `savefig`
    would lay the figure out again.
    """
    engine, usual = figure.get_layout_engine(), figure.dpi
    with mpl.rc_context({"figure.autolayout": False, "figure.constrained_layout.use": False}):
        figure.dpi = _dots(figure)
        if engine is not None:
            engine.execute(figure)
        figure.set_layout_engine(None)
        try:
            drawing = svg(figure)
            if len(drawing) <= MAX_PAGE_SVG_BYTES:
                return ".svg", drawing, pdf(figure)
            return ".png", with_palette(png(figure)), pdf(figure)
        finally:
            figure.dpi = usual
            figure.set_layout_engine(engine)


def with_palette(pixels: bytes) -> bytes:
    """Return an opaque PNG with the 256 colours that cover its own best; of a figure it is a third as large, and looks the same.

    The colours come from the whole range of the picture, so a few red dots stay red, and nothing is dithered, so areas stay plain.
    """
    from PIL import Image

    picture = Image.open(BytesIO(pixels))
    reduced = picture.convert("RGB").quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    stream = BytesIO()
    reduced.save(stream, "PNG", optimize=True, dpi=picture.info.get("dpi"))
    return stream.getvalue()


def _vector(figure: Figure, form: str, metadata: dict[str, str | None]) -> bytes:
    drawing = _saved(figure, form, DOTS_PER_INCH, metadata)
    if len(drawing) <= MAX_VECTOR_BYTES:
        return drawing
    heavy = [artist for axes in figure.axes for artist in _marks(axes) if not artist.get_rasterized()]
    for artist in heavy:
        artist.set_rasterized(True)
    try:
        return _saved(figure, form, DOTS_PER_INCH, metadata)
    finally:
        for artist in heavy:
            artist.set_rasterized(False)


def write_figure(place: Path, figure: Figure, argument: str = "plot") -> None:
    """Write the figure to a file, complete or not at all: SVG or PDF by its name, otherwise PNG."""
    write_whole(place, {".svg": svg, ".pdf": pdf}.get(place.suffix.lower(), png)(figure), argument)


def _dots(figure: Figure) -> float:
    """Return the dots per inch of a figure as PNG."""
    return float(min(DOTS_PER_INCH, WIDEST_PIXELS / max(figure.get_size_inches())))


def _marks(axes: mpl.axes.Axes) -> list[Artist]:
    return [*axes.lines, *axes.collections, *axes.patches, *axes.images]


def _saved(figure: Figure, form: str, dots: float, metadata: dict[str, str | None]) -> bytes:
    """Return the figure's bytes and leave its canvas as it was: a figure shown on a screen stays there."""
    stream = BytesIO()
    with mpl.rc_context({"svg.hashsalt": "marginlens", "svg.fonttype": "path", "pdf.fonttype": 42}):
        figure.savefig(stream, format=form, dpi=dots, metadata=metadata, facecolor="white")
    return stream.getvalue()
