"""Styles for papers and slides, and figures as files."""

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest

import marginlens as ml
from marginlens.plotting.files import FIGURE_SUFFIXES, png_and_svg, write_figure


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
    import numpy as np

    figure, ax = plt.subplots()
    ax.scatter(*np.random.default_rng(0).standard_normal((2, 60_000)), s=1)
    plt.close(figure)
    assert len(ml.plotting.pdf(figure)) < ml.plotting.files.MAX_VECTOR_BYTES


def test_two_formats_share_one_layout():
    figures = [ml.plotting.figure(2)[0] for _ in range(2)]
    for fig in figures:
        fig.axes[0].plot([0.0, 1e6], label="a line with a long name")
        fig.axes[0].set(title="a title", ylabel="a quantity")
        fig.legend(loc="outside lower center")
    fig, other = figures
    engine, dots = fig.get_layout_engine(), fig.dpi
    pixels, curves = png_and_svg(fig)
    assert (fig.get_layout_engine(), fig.dpi) == (engine, dots)
    assert pixels == ml.plotting.png(other)
    other.set_layout_engine("none")
    assert curves == ml.plotting.svg(other)
