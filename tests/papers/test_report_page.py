"""The page: every claim in it, well-formed, self-contained; and figures of a reasonable size."""

import numpy as np
import pytest
from matplotlib.figure import Figure

import marginlens as ml
from fake_claims import changed, fake_claim, finding, raising
from marginlens.lab import permalink, presets
from marginlens.plotting.files import MAX_VECTOR_BYTES, svg
from marginlens_papers.claim import Bound, Verdict
from marginlens_papers.report import reproduce
from marginlens_papers.report.ledger import read_ledger
from marginlens_papers.report.page import page
from outline import Outline


@pytest.fixture
def report(tmp_path):
    claims = (
        fake_claim("A-1"),
        fake_claim("A-2", finding(0.9996, note="Higher than the paper's & for a reason.")),
        fake_claim("A-3", finding(0.9, assumption_met=False)),
        fake_claim("A-4", raising(ValueError("no <luck>"))),
    )
    return reproduce(claims, tmp_path / "report")


def test_the_page_holds_every_claim_with_all_that_was_said_and_measured(report):
    outline = Outline(report.page.read_text(encoding="utf-8"))
    articles = [attributes["id"] for tag, attributes in outline.elements if tag == "article"]
    assert articles == ["A-1", "A-2", "A-3", "A-4"]
    for entry in report.entries:
        for part in (entry.title, entry.statement, entry.protocol, entry.paper_value, entry.command):
            assert part in outline.text
        for part in (entry.result.measured, entry.result.note, entry.result.verdict.value):
            assert part in outline.text
    assert "≥\N{NO-BREAK SPACE}0.999" in outline.text
    assert "✗ does not hold" in outline.text


def test_the_summary_links_to_the_real_model_where_there_is_its_page(report):
    (report.folder / "minilm.json").write_text('{"findings": ["Heads are sparse."]}', encoding="utf-8")
    entries = read_ledger(report.folder)
    assert len(Outline(page(entries, report.folder)).attributes("a", "href")) == 4
    (report.folder / "minilm.html").write_text("a page", encoding="utf-8")
    outline = Outline(page(entries, report.folder))
    links = outline.attributes("a", "href")
    assert links == ["#A-1", "#A-2", "#A-3", "#A-4", "#real-model", "minilm.html"]
    assert "real-model" in outline.attributes("section", "id")
    assert "Heads are sparse." in outline.text


def test_a_figure_file_that_vanished_is_said_to_be_missing(report):
    (report.folder / "figures" / "A-1-correlation.png").unlink()
    text = page(read_ledger(report.folder), report.folder)
    assert "The file figures/A-1-correlation.png is missing: run the claim again." in Outline(text).text


# ---- figures


def cloud(n_points: int) -> Figure:
    figure = Figure(figsize=(4, 3))
    axes = figure.add_subplot()
    x, y = np.random.default_rng(0).normal(size=(2, n_points))
    axes.plot(x, y, linewidth=0.3)
    return figure


def test_a_heavy_svg_is_drawn_as_an_image_and_the_figure_left_as_it_was():
    heavy = cloud(60_000)
    drawing = svg(heavy)
    assert len(drawing) < MAX_VECTOR_BYTES
    assert b"<image" in drawing
    assert b"<image" not in svg(cloud(50))
    assert not heavy.axes[0].lines[0].get_rasterized()


# ---- words


def test_a_bound_of_the_papers_letter_is_told_apart_and_kept(tmp_path):
    claim = changed(fake_claim("A-5"), as_stated={"mean_corr": Bound(low=0.9999)})
    report = reproduce([claim], tmp_path / "report")
    assert report.entries[0].result.verdict is Verdict.PARTLY_REPRODUCED
    assert "✗ not as the paper states" in report.page.read_text(encoding="utf-8")
    assert [check.as_stated for check in read_ledger(tmp_path / "report")[0].result.checks] == [False, True]


# ---- the lab


def test_claims_in_the_plane_open_in_the_lab_beside_the_report(tmp_path):
    report = reproduce((fake_claim("A-F1b"), fake_claim("A-F3"), fake_claim("A-F9")), tmp_path / "report")
    links = [link for link in Outline(report.page.read_text(encoding="utf-8")).attributes("a", "href") if "lab" in link]
    assert links == ["lab.html", *("lab.html" + permalink(name) for name in ("A-F1b", "A-F3a", "A-F3b"))]
    assert (report.folder / "lab.html").stat().st_size > 100_000
    assert {preset.claim for preset in presets()} - {""} <= {claim.id for claim in ml.ledger()}


def test_a_report_without_such_claims_has_no_lab(report):
    assert not (report.folder / "lab.html").exists()
