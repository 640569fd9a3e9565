"""What the site is made of: docstrings that reStructuredText leaves as they are, and links of Markdown that hold in the site."""

from pathlib import Path

import pytest

from marginlens.errors import InputError
from marginlens_papers.documentation import stage_source
from marginlens_papers.documentation.api_pages import escaped, escaped_docstring, statement_anchor

ROOT = Path(__file__).resolve().parents[2]


def test_sentences_are_escaped_and_code_is_not():
    assert escaped("classes_ and |x| times *p*, as `coef_` or :math:`|x|*2` say") == (
        r"classes\_ and \|x\| times \*p\*, as `coef_` or :math:`|x|*2` say"
    )


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
