"""What the site is made of: docstrings that reStructuredText leaves as they are, and links of Markdown that hold in the site."""

import io
import re
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

import marginlens as ml
from marginlens.errors import InputError
from marginlens.plotting.files import write_figure
from marginlens_papers.claim import Effort, Verdict
from marginlens_papers.claims.catalogue import claims
from marginlens_papers.documentation.api_pages import escaped, escaped_docstring, separated_entries, statement_anchor
from marginlens_papers.documentation.gallery import LAB_PRESETS, example_files, presets_shown
from marginlens_papers.documentation.site import bibtex, copy_report, ledger_page, lighten, stage_source
from marginlens_papers.report.ledger import ClaimResult, Entry, write_ledger

ROOT = Path(__file__).resolve().parents[2]


def test_sentences_are_escaped_and_code_is_not():
    assert escaped("classes_ and |x| times *shape, as `coef_` or :math:`|x|*2` say") == (
        r"classes\_ and \|x\| times \*shape, as `coef_` or :math:`|x|*2` say"
    )
    assert escaped("at *its own* place (…, *shape) of *args") == r"at *its own* place (…, \*shape) of \*args"


def test_each_argument_has_an_entry_of_its_own():
    lines = [
        "Words.",
        "",
        "    Args:",
        "        a, b: of both. c: its",
        "            size. Note: a word.",
        "        d: (n,)",
        "    Returns:",
        "        a: b",
    ]
    assert separated_entries(lines, {"a", "b", "c", "d"}) == [
        *lines[:3], "        a: of both.", "        b: of both.", "        c: its size. Note: a word.", *lines[5:]
    ]  # fmt: skip
    formula = ["Args:", "    a: such that", "", "        .. math:: a", "", "    b: other", ""]
    assert separated_entries(formula, {"a", "b"}) == formula


def test_formulas_of_docstrings_stay_as_they_are():
    lines = ["Least |x|.", "", ".. math:: |x| *", "", "    y_ |", "", "Then |y|.", "Args:", "    coef_: of |x|."]
    done = escaped_docstring(lines)
    assert done[2:5] == lines[2:5]
    assert done[-1] == r"    coef_: of \|x\|."
    assert done[6] == r"Then \|y\|."


def test_every_statement_has_a_place_of_its_own():
    assert statement_anchor("A Eq. (10)") == "a-eq-10"
    assert statement_anchor("B' Eq. (22)") != statement_anchor("B Eq. (22)")


def test_links_of_the_checkout_lead_to_pages_of_the_site(tmp_path):
    source = stage_source(ROOT, tmp_path)
    theorems = (source / "theorems.md").read_text(encoding="utf-8")
    assert '<span id="a-thm-3"></span>' in theorems
    assert 'href="api/marginlens.att_svm.html"' in theorems
    assert "](../" not in theorems
    assert "(contributing.md)" in (source / "select.md").read_text(encoding="utf-8")
    before = (source / "theorems.md").stat().st_mtime_ns
    (source / "api" / "gone.rst").write_text("Gone\n====\n")
    stage_source(ROOT, tmp_path)
    assert (source / "theorems.md").stat().st_mtime_ns == before  # what is as it was is not written again
    assert not (source / "api" / "gone.rst").exists()


def test_a_folder_that_is_no_checkout_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"no docs/conf\.py"):
        stage_source(tmp_path, tmp_path / "source")


# ---- the ledger and the citation


def test_the_page_of_the_ledger_has_a_verdict_for_every_claim_that_was_run(tmp_path):
    result = ClaimResult(
        Verdict.HOLDS_IN_PART, "2 of 3", "", 1.0, Effort.QUICK, (), {}, (), "2026-01-01T00:00:00+00:00", {}
    )
    claim = claims()[0]
    write_ledger([Entry.of(claim, result)], tmp_path)
    page = ledger_page(tmp_path)
    assert f"0 of 1 claim hold as stated; 1 holds in part: {claim.id}. They were run at reduced sizes" in page
    assert f'<a href="report/index.html#{claim.id}">holds in part</a> |' in page
    assert page.count("| not run |") == len(claims()) - 1
    assert "without a report" in ledger_page(tmp_path / "none")


def test_works_to_cite_have_entries_of_their_own():
    entries = bibtex((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    keys = re.findall(r"@misc\{(\w+),", entries)
    assert len(set(keys)) == len(keys) == entries.count("@misc") == 8
    assert f"version {ml.__version__}" in entries


def test_a_report_comes_with_one_file_for_each_figure_and_without_links_to_the_other(tmp_path):
    figures = tmp_path / "report" / "figures"
    figures.mkdir(parents=True)
    for name in ("a.svg", "a.png", "a-small.png", "a.pdf", "only.png", "../lab.html", "../minilm.json"):
        (figures / name).write_text("picture")
    links = '<a class="file" href="figures/a.svg">SVG</a> <a class="file" href="figures/a.png">PNG</a></figcaption>'
    shown = f'<a href="lab.html#A-F2">in the lab</a><img src="figures/a.svg">{links}'
    (tmp_path / "report" / "index.html").write_text(shown, encoding="utf-8")
    copy_report(tmp_path / "report", tmp_path / "site")
    kept = {path.name for path in (tmp_path / "site" / "figures").iterdir()}
    assert kept == {"a.svg", "a-small.png", "only.png"}
    page = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert page.endswith('href="figures/a.svg">SVG</a></figcaption>')
    assert page.startswith('<a href="../lab/index.html#A-F2">')
    assert {path.name for path in (tmp_path / "site").iterdir()} == {"figures", "index.html"}
    copy_report(None, tmp_path / "site")
    assert not (tmp_path / "site").exists()


def test_pictures_of_the_site_are_lighter_and_look_the_same(tmp_path):
    figure, (ax,) = ml.plotting.figure()
    ax.plot(np.sin(np.arange(300.0)), "o-", label="a curve")
    ax.imshow(np.random.default_rng(0).random((30, 30)), extent=(0, 300, -1, 1), aspect="auto", alpha=0.5)
    ax.legend()
    for name in ("a.png", "a.svg"):
        write_figure(tmp_path / name, figure)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    lighten(tmp_path)
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert all(len(after[name]) < 0.85 * len(before[name]) for name in before)
    dots, other = (
        np.asarray(Image.open(io.BytesIO(png)).convert("RGB"), float) for png in (before["a.png"], after["a.png"])
    )
    assert np.abs(dots - other).mean() < 2.0  # of 255
    assert (other[0, 0] == 255).all()
    drawing = ElementTree.fromstring(after["a.svg"])
    kinds = Counter(element.tag for element in drawing.iter())
    assert kinds == Counter(element.tag for element in ElementTree.fromstring(before["a.svg"]).iter())
    lighten(tmp_path)
    assert (tmp_path / "a.svg").read_bytes() == after["a.svg"]


# ---- the gallery's scripts

FIGURE_5_SCORE = 10.0  # C of the presets that examples with figure_5 lead to


@pytest.mark.parametrize("maker", LAB_PRESETS)
def test_the_presets_of_a_maker_show_its_problem(maker):
    made = getattr(ml.data, maker)(*([FIGURE_5_SCORE] if maker == "figure_5" else []))
    for preset in map(ml.lab.preset, LAB_PRESETS[maker]):
        if isinstance(made, ml.SequenceDataset):
            assert preset.text["sequences"]["samples"] == [made[i][0].tolist() for i in range(len(made))]
            assert preset.text["sequences"]["labels"] == made.labels.tolist()
            continue
        data, head = made if isinstance(made, tuple) else (made, None)
        shown = preset.problem
        np.testing.assert_array_equal(shown.data.X, data.X)
        np.testing.assert_array_equal(shown.data.y, data.y)
        assert (shown.head is None) == (head is None)
        if head is not None:
            np.testing.assert_array_equal(shown.head, head)


def test_a_script_leads_to_the_presets_of_the_problems_that_it_makes():
    assert presets_shown("data, v = ml.data.cone_example()\nds = ml.data.figure_2()") == ["C-F2", "A-F2"]
    assert presets_shown("rows = data.scores(v)") == []


def test_scripts_that_the_gallery_cannot_show_are_refused_and_packages_are_left_alone(tmp_path):
    def write(name, text):
        (tmp_path / "examples" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "examples" / name).write_text(text, encoding="utf-8")

    write("selection/titled.py", '"""\nA title\n=======\n\nWords.\n"""\n')
    write("claim_pack/pyproject.toml", "")
    write("claim_pack/src/pack/claims.py", '"""No script."""\n')
    assert [path.name for path in example_files(tmp_path)] == ["titled.py"]
    write("selection/untitled.py", '"""Words without a title."""\n')
    with pytest.raises(InputError, match=r"examples/selection/untitled\.py must open with a docstring"):
        example_files(tmp_path)
    write("selection/untitled.py", '"""\nA title\n=======\n"""\n')
    write("elsewhere/script.py", '"""\nA title\n=======\n"""\n')
    with pytest.raises(InputError, match=r"examples/elsewhere/script\.py must be in one of the gallery's groups"):
        example_files(tmp_path)
