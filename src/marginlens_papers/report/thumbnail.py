"""The picture on a claim's tile: its first figure laid out anew at the tile's size, with the few letters that fit there."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from io import BytesIO
from itertools import combinations
from typing import TYPE_CHECKING

from marginlens.typing import Figure

if TYPE_CHECKING:
    from matplotlib.text import Text

SIZE = (360, 190)  # pixels on the page: a point of the figure is a pixel of the page
LETTERS = 13  # pixels on the page, which leaves 9 if a tile shows it 250 pixels wide
_GAP = 6.0  # pixels on the page between two texts, at least
_SHARPNESS = 2  # pixels of the file for a pixel of the page, for fine screens


def thumbnail(figure: Figure) -> bytes:
    """Return the figure as a small PNG, with all letters of one readable size. Draw the figure itself before: this changes it.

    Legends, numbers on axes and texts around the panels are left out. Names of panels and of axes, and texts in a panel, stay if all
    of their kind fit.
    """
    from matplotlib import rc_context
    from matplotlib.text import Text

    from marginlens.plotting.files import with_palette

    figure.set_size_inches(SIZE[0] / 72.0, SIZE[1] / 72.0)
    figure.set_dpi(72.0 * _SHARPNESS)
    for legend in (*figure.legends, *(ax.get_legend() for ax in figure.axes)):
        if legend is not None:
            legend.remove()
    for ax in figure.axes:
        ax.tick_params(which="both", length=0, labelbottom=False, labeltop=False, labelleft=False, labelright=False)
    kinds = [[text for text in texts if text.get_text()] for texts in _kinds(figure)]
    _show([text for text in figure.findobj(Text) if text.get_text()], False)
    shown: list[Text] = []
    stream = BytesIO()
    with rc_context({"figure.constrained_layout.use": False}):
        if any(ax.get_subplotspec() for ax in figure.axes):  # none if all panels are placed by hand
            figure.set_layout_engine("constrained", w_pad=0.03, h_pad=0.03)
        for texts in filter(None, kinds):
            _show(texts, True)
            if _fit(figure, [*shown, *texts]):
                shown += texts
            else:
                _show(texts, False)
        figure.savefig(stream, format="png", dpi=72.0 * _SHARPNESS, metadata={"Software": None}, facecolor="white")
    return with_palette(stream.getvalue())


def _kinds(figure: Figure) -> Iterator[Sequence[Text]]:
    """The texts of a figure of which all or none are shown, the most useful first."""
    yield [ax.title for ax in figure.axes]
    yield [ax.xaxis.label for ax in figure.axes]
    yield [ax.yaxis.label for ax in figure.axes]
    for ax in figure.axes:
        yield ax.texts


def _show(texts: Sequence[Text], visible: bool) -> None:
    for text in texts:
        text.set(visible=visible, fontsize=LETTERS)


def _fit(figure: Figure, texts: Sequence[Text]) -> bool:
    """Whether these texts are inside the figure, or inside their panel if they belong to it, and none touches another."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            figure.draw_without_rendering()
    except UserWarning:  # the panels have no space left
        return False
    boxes = [text.get_window_extent() for text in texts]
    panels = {text: ax.bbox for ax in figure.axes for text in ax.texts}
    for text, box in zip(texts, boxes, strict=True):
        ground = panels.get(text, figure.bbox)
        if not (ground.x0 <= box.x0 and ground.y0 <= box.y0 and box.x1 <= ground.x1 and box.y1 <= ground.y1):
            return False
    return not any(one.padded(_SHARPNESS * _GAP).overlaps(other) for one, other in combinations(boxes, 2))
