"""The page: every claim in it, well-formed, self-contained; and figures of a reasonable size."""

import re
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure

from fake_claims import changed, fake_claim, finding, raising
from marginlens.cli._terminal import duration
from marginlens.plotting.files import LARGEST_SVG, png, svg
from marginlens_papers.claim import Bound, Effort, Verdict
from marginlens_papers.report import reproduce
from marginlens_papers.report.ledger import read_ledger, tally
from marginlens_papers.report.page import _number as number
from marginlens_papers.report.page import _sizes as sizes
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


def test_the_summary_links_to_every_claim(report):
    outline = Outline(report.page.read_text(encoding="utf-8"))
    assert outline.attributes("a", "href") == ["#A-1", "#A-2", "#A-3", "#A-4"]
    assert (
        "<title>marginlens: 4 claims: 1 reproduced, 1 reproduced with a note, 1 not reproduced, 1 assumption not met</title>"
        in (report.page.read_text(encoding="utf-8"))
    )


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


def test_results_of_another_version_and_reduced_sizes_are_marked(tmp_path, monkeypatch):
    one, two = fake_claim("A-1"), fake_claim("A-2")
    monkeypatch.setattr("marginlens_papers.report.run.versions", lambda: {"numpy": "1.26.0"})
    reproduce((one,), tmp_path / "report", effort=Effort.QUICK)
    monkeypatch.setattr("marginlens_papers.report.run.versions", lambda: {"numpy": "2.0.0"})
    monkeypatch.setattr("marginlens_papers.report.page._moment", lambda iso: "then")
    (tmp_path / "report" / "ledger.json").write_text(
        re.sub(
            r'"finished": "\d+', '"finished": "1999', (tmp_path / "report" / "ledger.json").read_text(encoding="utf-8")
        ),
        encoding="utf-8",
    )
    text = Outline(reproduce((two,), tmp_path / "report", keep=(one, two)).page.read_text(encoding="utf-8")).text
    assert "s at reduced sizes, then, numpy 1.26.0" in text
    assert text.count("numpy 2.0.0") == 1


def test_the_page_counts_the_verdicts_and_shows_their_shares(tmp_path):
    claims = (fake_claim("A-1"), fake_claim("A-2"), fake_claim("A-3", finding(0.5)))
    text = reproduce(claims, tmp_path / "report").page.read_text(encoding="utf-8")
    counts = re.findall(r'<li class="([a-z-]+)"><b>(\d+)</b>', text)
    assert counts == [
        ("reproduced", "2"),
        ("reproduced-with-note", "0"),
        ("partly-reproduced", "0"),
        ("not-reproduced", "1"),
        ("assumption-not-met", "0"),
    ]
    shares = re.findall(r'<span class="([a-z-]+)" style="flex:(\d+)">', text)
    assert shares == [("reproduced", "2"), ("not-reproduced", "1")]


def test_the_page_explains_the_letters_of_its_labels_and_no_others(report):
    entries = read_ledger(report.folder)
    footer = page(entries, report.folder).split("<footer>")[1]
    assert re.findall(r"<dt>(\w)</dt>", footer) == ["A"]
    own = page([replace(entries[0], labels=("X O", "A Thm 4"))], report.folder).split("<footer>")[1]
    assert re.findall(r"<dt>(\w)</dt>", own) == ["A", "X"]
    assert "Statements beyond the papers" in own


def test_bounds_have_true_minus_signs_that_stay_with_their_numbers(tmp_path):
    claim = fake_claim(expected={"mean_corr": Bound(-1e-8, 1.0)})
    text = Outline(reproduce((claim,), tmp_path / "report").page.read_text(encoding="utf-8")).text
    assert "−1e−08\N{NO-BREAK SPACE}… 1" in text


def test_a_figure_is_as_wide_as_its_letters_ask_for(report):
    assert set(Outline(report.page.read_text(encoding="utf-8")).attributes("img", "width")) == {"672"}  # 6 inches


def test_an_empty_report_is_a_page_too(tmp_path):
    assert "0 claims: none run" in reproduce((), tmp_path / "report").page.read_text(encoding="utf-8")


# ---- figures


def cloud(n_points: int) -> Figure:
    figure = Figure(figsize=(4, 3))
    axes = figure.add_subplot()
    x, y = np.random.default_rng(0).normal(size=(2, n_points))
    axes.plot(x, y, linewidth=0.3)
    return figure


def test_the_same_figure_gives_the_same_files():
    assert svg(cloud(50)) == svg(cloud(50))
    assert png(cloud(50)) == png(cloud(50))


def test_a_heavy_svg_is_drawn_as_an_image_and_the_figure_left_as_it_was():
    heavy = cloud(60_000)
    drawing = svg(heavy)
    assert len(drawing) < LARGEST_SVG
    assert b"<image" in drawing
    assert b"<image" not in svg(cloud(50))
    assert not heavy.axes[0].lines[0].get_rasterized()


def test_a_huge_figure_gets_fewer_dots():
    wide, tall = png(Figure(figsize=(40, 10))), png(Figure(figsize=(10, 40)))
    assert [int.from_bytes(wide[k : k + 4], "big") for k in (16, 20)] == [2000, 500]
    assert [int.from_bytes(tall[k : k + 4], "big") for k in (16, 20)] == [500, 2000]


# ---- words


def test_times_numbers_and_counts_read_as_people_say_them():
    assert [duration(t) for t in (0.04, 9.94, 10, 59.6, 184, 3599.6, 3725)] == [
        "0.0 s",
        "9.9 s",
        "10 s",
        "1 min 0 s",
        "3 min 4 s",
        "1 h 0 min",
        "1 h 2 min",
    ]
    assert [number(x) for x in (0.99961234, -1e-12, float("nan"), float("inf"))] == [
        "0.999612",
        "−1e−12",
        "not found",
        "inf",
    ]
    assert tally([Verdict.REPRODUCED]) == "1 claim: 1 reproduced"
    assert sizes({Effort.QUICK}) == "reduced sizes (--quick)"
    assert [str(b) for b in (Bound(1, 1), Bound(low=2), Bound(high=3), Bound(1, 2))] == ["= 1", "≥ 2", "≤ 3", "1 … 2"]


def test_a_bound_of_the_papers_letter_is_told_apart_and_kept(tmp_path):
    claim = changed(fake_claim("A-5"), as_stated={"mean_corr": Bound(low=0.9999)})
    report = reproduce([claim], tmp_path / "report")
    assert report.entries[0].result.verdict is Verdict.PARTLY_REPRODUCED
    assert "✗ not as the paper states" in report.page.read_text(encoding="utf-8")
    assert [check.as_stated for check in read_ledger(tmp_path / "report")[0].result.checks] == [False, True]
