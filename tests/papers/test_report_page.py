"""The page: every claim in it, well-formed, in words, small; and figures of a reasonable size."""

import json
import re
from dataclasses import replace
from shutil import copytree

import numpy as np
import pytest
from matplotlib.figure import Figure

import marginlens as ml
from fake_claims import changed, fake_claim, finding, raising
from marginlens.lab import permalink, presets
from marginlens.plotting.files import MAX_VECTOR_BYTES, svg
from marginlens_papers.claim import Bound, Effort, FigureText, Finding, NoteKind, Verdict
from marginlens_papers.claims.catalogue import OWN_IDS, claims
from marginlens_papers.report import BoundCheck, ClaimResult, Entry, Picture, reproduce
from marginlens_papers.report.ledger import read_ledger
from marginlens_papers.report.page import found_sentence, page, papers, wall_parts
from outline import Outline

FOUND = ClaimResult(
    verdict=Verdict.HOLDS_WITH_CAVEATS,
    measured="A number with $W^mm$ in it. " * 30,
    note="A sentence. " * 150,
    seconds=1.0,
    effort=Effort.QUICK,
    checks=(),
    numbers={},
    pictures=(),
    finished="2026-01-01T00:00:00+00:00",
    versions={},
)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Of four claims; what changes a file of it takes a copy."""
    claims = (
        fake_claim("A-1"),
        fake_claim("A-2", finding(0.9996, note="Higher than the paper's & for a reason.")),
        fake_claim("A-3", finding(0.9, assumption_met=False)),
        fake_claim("A-4", raising(ValueError("no <luck>"))),
    )
    return reproduce(claims, tmp_path_factory.mktemp("site") / "report")


def test_the_page_has_every_claim_with_texts_and_numbers(report):
    outline = Outline(report.page.read_text(encoding="utf-8"))
    articles = [attributes["id"] for tag, attributes in outline.elements if tag == "article"]
    assert articles == ["A-4", "A-3", "A-1", "A-2"]  # what does not hold, what could not be tested, the rest
    assert outline.attributes("section", "class").count("part") == 3
    for entry in report.entries:
        for part in (entry.title, entry.statement, entry.protocol, entry.paper_value, entry.command):
            assert part in outline.text
        for part in (entry.result.measured, entry.result.verdict.title):
            assert part in outline.text
    for words in (
        "1 of 4 claims holds as stated; 1 holds with caveats; 1 does not: A-4; 1 could not be tested: A-3.",  # of paper A
        "Max-Margin Token Selection in Attention Mechanism",
        "Higher than the paper's & for a reason.",
        "no <luck>",
        "≥\N{NO-BREAK SPACE}0.999",
        "✗ does not hold",
        f"{len(OWN_IDS)} of this library's {len(OWN_IDS)} claims have not been run here.",
    ):
        assert words in outline.text
    assert [paper.key for paper in papers(report.entries)] == ["A"]
    assert not (report.folder / "lab.html").exists()  # no claim has a problem in the plane


def test_the_first_sentence_is_plain_and_names_no_claim(report):
    text = report.page.read_text(encoding="utf-8")
    sentence = re.search(r"<h1>(.*?)</h1>", text)[1]
    assert sentence == "We checked 4 statements about attention: 1 does not hold, 1 could not be tested and 2 hold."
    assert f"{sentence.removesuffix('.')}</title>" in text
    before_the_wall = Outline(text).text.partition("The claims")[0]
    assert not [entry.id for entry in report.entries if entry.id in before_the_wall]


def test_parts_of_the_wall_come_in_the_order_of_interest():
    ends = {"A-1": Verdict.HOLDS_WITH_CAVEATS, "A-2": Verdict.HOLDS_IN_PART, "B-1": Verdict.DOES_NOT_HOLD}
    ends |= {"B-2": Verdict.HOLDS_AS_STATED, "C-1": Verdict.DOES_NOT_HOLD, "X-1": Verdict.HOLDS_BY_OUR_OWN_BOUNDS}
    entries = [replace(Entry.of(fake_claim(name)), result=replace(FOUND, verdict=end)) for name, end in ends.items()]
    entries += [Entry.of(fake_claim("X-2"), unfinished=Effort.QUICK), Entry.of(fake_claim("X-3"))]
    assert [(part.name, [entry.id for entry in part.entries]) for part in wall_parts(entries)] == [
        ("failing", ["B-1", "C-1"]),
        ("partly", ["A-2"]),
        ("holding", ["A-1", "B-2", "X-1"]),
        ("not_run", ["X-2"]),
    ]
    said = "We checked 6 statements about attention: 2 do not hold, 1 holds in part and 3 hold."
    assert found_sentence(entries) == said


def test_checks_have_texts_and_formulas_are_rendered(report):
    text = report.page.read_text(encoding="utf-8")
    assert "mean_corr" not in text
    assert "$" not in Outline(text).text
    assert (
        "Mean correlation of <math><mi>p</mi></math> with <math><msup><mi>p</mi><mtext>mm</mtext></msup></math>" in text
    )


def test_every_figure_is_a_lazily_loaded_file(report):
    images = [
        attributes for tag, attributes in Outline(report.page.read_text(encoding="utf-8")).elements if tag == "img"
    ]
    tiles, figures = ([image for image in images if bool(image["alt"]) is said] for said in (False, True))
    assert len(tiles) == len(figures) == 3  # the claim that failed has none
    for tile in tiles:
        assert tile["loading"] == "lazy"
        assert (report.folder / tile["src"]).stat().st_size < 50_000
    for image in figures:
        assert image["loading"] == "lazy"
        assert image["alt"] == "One line that rises from 0 to almost 1."
        assert (report.folder / image["src"]).is_file()
        assert int(image["width"]) == pytest.approx(2 * int(image["height"]), abs=2, rel=0.0)  # six inches by three


def test_a_figure_is_one_file_for_the_page_and_a_pdf(tmp_path):
    """An SVG if that is small, otherwise a PNG; both are as large on the screen as the figure says."""
    figures = {"light": cloud(50), "heavy": cloud(5000)}
    report = reproduce([fake_claim("A-1", draw=lambda found: figures)], tmp_path / "report")
    names = ("A-1-light-small.png", "A-1-light.pdf", "A-1-light.svg", "A-1-heavy.pdf", "A-1-heavy.png")
    assert {path.name for path in (report.folder / "figures").iterdir()} == set(names)
    images = [
        attributes for tag, attributes in Outline(report.page.read_text(encoding="utf-8")).elements if tag == "img"
    ]
    assert [image["src"] for image in images] == [f"figures/{names[k]}" for k in (0, 2, 4)]
    assert [(image["width"], image["height"]) for image in images[1:]] == [("400", "300")] * 2  # four inches by three


def test_figures_of_an_earlier_report_are_shown(report, tmp_path):
    """It had each figure as SVG and as PNG."""
    folder = copytree(report.folder, tmp_path / "report")
    rows = json.loads((folder / "ledger.json").read_text(encoding="utf-8"))
    for row in rows:
        for figure in row["figures"]:
            figure |= {"svg": figure.pop("file"), "png": figure.pop("pdf").replace(".pdf", ".png")}
    (folder / "ledger.json").write_text(json.dumps(rows), encoding="utf-8")
    outline = Outline(page(read_ledger(folder), folder))
    assert outline.attributes("img", "src") == Outline(report.page.read_text(encoding="utf-8")).attributes("img", "src")


def test_a_figure_with_meaningful_brightness_is_not_inverted(tmp_path):
    text = FigureText("A map of attention over the patches of an image.", "Bright patches on dark ground.", True)
    report = reproduce([changed(fake_claim("A-1"), figures={"correlation": text})], tmp_path / "report")
    assert "picture as-drawn" in Outline(report.page.read_text(encoding="utf-8")).attributes("a", "class")
    assert read_ledger(report.folder)[0].result.pictures[0].brightness_speaks


def test_the_top_links_to_existing_model_page_and_site(report, tmp_path):
    folder = copytree(report.folder, tmp_path / "report")
    (folder / "minilm.json").write_text('{"findings": ["Heads are sparse."]}', encoding="utf-8")
    entries = read_ledger(folder)
    before = Outline(page(entries, folder)).attributes("a", "href")
    assert not {"minilm.html", "../index.html"} & set(before)
    (folder / "minilm.html").write_text("a page", encoding="utf-8")
    for name in ("index.html", "objects.inv"):
        (folder.parent / name).write_text("of a site", encoding="utf-8")
    outline = Outline(page(entries, folder))
    links = outline.attributes("a", "href")
    assert links[:5] == ["#wall", "#papers", "minilm.html", "../index.html", "ledger.json"]
    assert "real-model" in outline.attributes("section", "id")
    assert "Heads are sparse." in outline.text


def test_a_deleted_figure_file_is_marked_missing(report, tmp_path):
    folder = copytree(report.folder, tmp_path / "report")
    (folder / "figures" / "A-1-correlation.svg").unlink()
    text = page(read_ledger(folder), folder)
    assert "figures/A-1-correlation.svg is missing" in Outline(text).text


def test_a_page_with_all_claims_is_small(tmp_path):
    """Every word of the catalogue, with long sentences in place of what runs find."""
    entries = []
    for claim in claims():
        checks = tuple(
            BoundCheck(name, bound, 1.2345e-11, False, claim.words[name].sentence, claim.words[name].unit)
            for name, bound in {**claim.expected, **claim.as_stated}.items()
        )
        pictures = []
        for name, text in claim.figures.items():
            stem = f"{claim.id}-{name}"
            (tmp_path / f"{stem}.svg").write_text('<svg width="720pt" height="360pt">', encoding="utf-8")
            pictures.append(Picture(name, f"{stem}.svg", f"{stem}.pdf", text.caption, text.alt))
        entries.append(Entry.of(claim, replace(FOUND, checks=checks, pictures=tuple(pictures))))
    text = page(entries, tmp_path)
    assert len(text.encode()) < 1_000_000
    outline = Outline(text)
    assert len([alt for alt in outline.attributes("img", "alt") if alt]) == sum(
        len(claim.figures) for claim in claims()
    )
    assert "$" not in outline.text


# ---- figures


def cloud(n_points: int) -> Figure:
    figure = Figure(figsize=(4, 3))
    axes = figure.add_subplot()
    x, y = np.random.default_rng(0).normal(size=(2, n_points))
    axes.plot(x, y, linewidth=0.3)
    return figure


def test_a_heavy_svg_is_rasterized_without_changing_the_figure():
    heavy = cloud(60_000)
    drawing = svg(heavy)
    assert len(drawing) < MAX_VECTOR_BYTES
    assert b"<image" in drawing
    assert b"<image" not in svg(cloud(50))
    assert not heavy.axes[0].lines[0].get_rasterized()


# ---- words


def test_only_long_measurement_texts_are_folded(tmp_path):
    long = " ".join(["The mean correlation over every run of every width is 0.5."] * 9)
    for name, measured, folds in (("long", long, 1), ("short", long[:280], 0)):
        found = Finding(measured, {"mean_corr": 0.9996})
        claim = fake_claim("A-5", lambda effort, progress, found=found: found)
        text = reproduce([claim], tmp_path / name).page.read_text(encoding="utf-8")
        assert text.count("<summary>Details</summary>") == folds
        assert measured.split()[-1] in Outline(text).text


@pytest.mark.parametrize(
    ("claim_id", "kind", "verdict"),
    [
        *zip(["A-5"] * 3, NoteKind, ("holds with caveats", "holds with caveats", "holds as stated"), strict=True),
        *(("X-5", kind, "holds by our own bounds") for kind in NoteKind),
    ],
)
def test_a_note_has_its_kind_and_a_remark_keeps_the_color(tmp_path, claim_id, kind, verdict):
    claim = changed(fake_claim(claim_id, finding(0.9996, note="The softmax saturates.")), note_kind=kind)
    report = reproduce([claim], tmp_path / "report")
    outline = Outline(report.page.read_text(encoding="utf-8"))
    assert outline.attributes("article", "class") == [verdict.replace(" ", "-")]
    assert kind.title in outline.text
    # on the tile as its reason
    assert outline.text.count("The softmax saturates.") == (1 if kind is NoteKind.REMARK else 2)
    assert read_ledger(report.folder)[0].result.note_kind is kind


def test_the_papers_number_is_shown_with_ours(report, tmp_path):
    outline = Outline(report.page.read_text(encoding="utf-8"))
    assert outline.text.count("$.997$".strip("$")) >= 8  # of four claims, each on its tile and in its table
    silent = changed(fake_claim("A-5"), paper_numbers={}, paper_value="a figure")
    text = Outline(reproduce([silent], tmp_path / "report").page.read_text(encoding="utf-8")).text
    assert ".997" not in text
    assert "must be" in text


def test_a_bound_from_the_papers_text_is_marked(tmp_path):
    claim = changed(fake_claim("A-5"), as_stated={"mean_corr": Bound(low=0.9999), "n_draws": Bound(low=100.0)})
    report = reproduce([claim], tmp_path / "report")
    assert report.entries[0].result.verdict is Verdict.HOLDS_IN_PART
    assert "✗ not as stated" in report.page.read_text(encoding="utf-8")
    assert [check.as_stated for check in read_ledger(tmp_path / "report")[0].result.checks] == [False, True, True]


# ---- the lab


def test_claims_in_the_plane_link_to_the_lab(tmp_path):
    report = reproduce((fake_claim("A-F1b"), fake_claim("A-F3"), fake_claim("A-F9")), tmp_path / "report")
    links = [link for link in Outline(report.page.read_text(encoding="utf-8")).attributes("a", "href") if "lab" in link]
    assert links == ["lab.html", *("lab.html" + permalink(name) for name in ("A-F1b", "A-F3a", "A-F3b"))]
    assert (report.folder / "lab.html").stat().st_size > 100_000
    assert {preset.claim for preset in presets()} - {""} <= {claim.id for claim in ml.ledger()}
