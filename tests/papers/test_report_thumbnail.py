"""The pictures on tiles: of one size, with no letter that is too small to read or that touches another."""

from io import BytesIO
from itertools import combinations

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from marginlens.plotting import figure as house_figure
from marginlens_papers.report.thumbnail import LETTERS, SIZE, thumbnail
from quick_claims import quick_run


def visible_letters(figure: Figure) -> list[Text]:
    """The texts of a figure that are drawn, without empty ones."""
    axes = [ax for ax in figure.axes if ax.axison]
    ticks = [tick for ax in axes for axis in (ax.xaxis, ax.yaxis) for tick in axis.get_major_ticks()]
    unseen = {label for tick in ticks for label in (tick.label1, tick.label2) if not label.get_visible()}
    return [text for text in figure.findobj(Text) if text.get_visible() and text.get_text() and text not in unseen]


def assert_readable(figure: Figure) -> None:
    shown = visible_letters(figure)
    assert all(text.get_fontsize() >= LETTERS for text in shown)
    figure.canvas.draw()
    boxes = [text.get_window_extent() for text in shown]
    assert not [1 for one, other in combinations(boxes, 2) if one.overlaps(other)]
    assert all(figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 for box in boxes)
    assert not figure.legends
    assert not any(ax.get_legend() for ax in figure.axes)


def panels() -> tuple[Figure, list]:
    """Two panels with names that fit, one axis that does not, a legend, numbers and a text in small letters."""
    figure, axes = house_figure(2, width=6.0, height=5.0)
    for ax, name in zip(axes, ("sign", "Adam"), strict=True):
        ax.plot(np.arange(5.0), label="a line")
        ax.set(title=name, xlabel="step", ylabel="share of the best margin in the optimizer's own norm")
        ax.legend()
    axes[0].text(2.0, 1.0, "here", fontsize=6.0)
    for k in range(9):
        axes[1].text(2.0, 2.0 + 0.01 * k, f"note {k}")
    figure.supxlabel("what both panels show")
    return figure, axes


def test_only_texts_that_fit_stay_and_have_the_letters_of_a_tile():
    figure, axes = panels()
    picture = Image.open(BytesIO(thumbnail(figure)))
    assert picture.size == (2 * SIZE[0], 2 * SIZE[1])
    assert sorted(text.get_text() for text in visible_letters(figure)) == ["Adam", "here", "sign", "step", "step"]
    assert_readable(figure)
    assert axes[0].get_title() == "sign"


def test_the_same_figure_gives_the_same_picture():
    assert thumbnail(panels()[0]) == thumbnail(panels()[0])


@pytest.mark.parametrize("claim_id", ["A-F1c", "A-L2", "A-T2", "C-L2"])
def test_pictures_of_claims_are_readable(claim_id):
    run = quick_run(claim_id)
    figure = next(iter(run.claim.draw(run.finding).values()))
    picture = thumbnail(figure)
    assert len(picture) < 200_000
    assert_readable(figure)
