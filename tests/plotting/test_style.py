"""Styles for papers and slides, and figures as files."""

from io import BytesIO

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from PIL import Image

import marginlens as ml
from marginlens.plotting.files import FIGURE_SUFFIXES, MAX_PAGE_SVG_BYTES, page_and_print, with_palette, write_figure


def drawn(ax=None):
    figure, ax = plt.subplots()
    ax.plot([0.0, 1.0], [0.0, 1.0], label="a line")
    ax.set(xlabel="steps", ylabel="norm")
    plt.close(figure)
    return figure


@pytest.mark.parametrize(("width", "inches"), [("column", 3.25), ("double", 6.75), (5.5, 5.5)])
def test_a_paper_figure_has_its_stated_width(width, inches):
    with ml.plotting.paper(width):
        figure = drawn()
    assert figure.get_size_inches()[0] == inches
    assert figure.axes[0].xaxis.label.get_size() == 8.0
    assert 6.0 <= figure.axes[0].get_xticklabels()[0].get_size() <= 8.0


def test_a_style_works_as_context_decorator_and_dictionary():
    before = dict(mpl.rcParams)
    with ml.plotting.paper() as outer, ml.plotting.slides():
        assert mpl.rcParams["font.size"] > outer["font.size"]
    assert ml.plotting.paper(font_size=9)(lambda: mpl.rcParams["font.size"])() == 9.0
    with plt.style.context(ml.plotting.paper(height=1.5)):
        assert tuple(mpl.rcParams["figure.figsize"]) == (3.25, 1.5)
    assert dict(mpl.rcParams) == before

    def letters():  # of a picture with a style of its own
        return ml.plotting.figure()[1][0].xaxis.label.get_size()

    with ml.plotting.paper():
        assert letters() == 8.0
    assert letters() > 8.0
    with mpl.rc_context():
        ml.plotting.paper().use()
        try:
            assert letters() == 8.0
        finally:
            ml.plotting.style._ACTIVE.set(None)


def test_savefig_writes_vector_files_with_embedded_fonts(tmp_path):
    with ml.plotting.paper():
        drawn().savefig(tmp_path / "figure")
        drawn().savefig(tmp_path / "figure.svg")
    content = (tmp_path / "figure.pdf").read_bytes()
    assert b"/FontFile2" in content  # TrueType, embedded
    assert b"/Type3" not in content.replace(b" ", b"")
    assert "<text" not in (tmp_path / "figure.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize("suffix", FIGURE_SUFFIXES)
def test_every_kind_of_file_is_written_and_is_the_same_each_time(suffix, tmp_path):
    for name in ("first", "second"):
        write_figure(tmp_path / f"{name}{suffix}", drawn())
    first, second = ((tmp_path / f"{name}{suffix}").read_bytes() for name in ("first", "second"))
    assert first == second
    assert first.startswith({".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[suffix])


def test_a_heavy_pdf_has_its_points_as_an_image(tmp_path):
    figure, ax = plt.subplots()
    ax.scatter(*np.random.default_rng(0).standard_normal((2, 60_000)), s=1)
    plt.close(figure)
    assert len(ml.plotting.pdf(figure)) < ml.plotting.files.MAX_VECTOR_BYTES


@pytest.mark.parametrize("n_points", [2, 20_000])
def test_page_and_print_share_one_layout(n_points):
    figures = [ml.plotting.figure(2)[0] for _ in range(2)]
    for fig in figures:
        fig.axes[1].plot(*np.random.default_rng(3).standard_normal((2, n_points)))
        fig.axes[0].plot([0.0, 1e6], label="a line with a long name")
        fig.axes[0].set(title="a title", ylabel="a quantity")
        fig.legend(loc="outside lower center")
    fig, other = figures
    engine, dots = fig.get_layout_engine(), fig.dpi
    suffix, shown, printed = page_and_print(fig)
    assert (fig.get_layout_engine(), fig.dpi) == (engine, dots)
    pixels = ml.plotting.png(other)
    other.set_layout_engine("none")
    assert printed == ml.plotting.pdf(other)
    curves = ml.plotting.svg(other)
    assert (suffix, shown) == ((".svg", curves) if n_points == 2 else (".png", with_palette(pixels)))
    assert (len(curves) <= MAX_PAGE_SVG_BYTES) == (suffix == ".svg")


def test_a_palette_looks_the_same_and_is_smaller():
    """Also a mark of a colour that is in few pixels beside a map of many colours."""
    fig, (left, right) = ml.plotting.figure(2)
    left.imshow(np.add.outer(np.sin(np.arange(90.0)), np.arange(90.0) / 30.0), cmap="viridis")
    right.plot(np.random.default_rng(8).standard_normal((40, 30)).cumsum(axis=0))
    right.plot([2.0], [0.0], ".", color="#ff0000", markersize=3)
    pixels = ml.plotting.png(fig)
    reduced = with_palette(pixels)
    assert len(reduced) < 0.5 * len(pixels)
    before, after = (Image.open(BytesIO(content)) for content in (pixels, reduced))
    assert (after.mode, after.size) == ("P", before.size)
    assert after.info["dpi"] == pytest.approx(before.info["dpi"], rel=1e-3, abs=0)
    difference = np.abs(np.subtract(*(np.asarray(image.convert("RGB"), dtype=int) for image in (before, after))))
    assert difference.max() <= 32
    assert difference.mean() < 3.0
