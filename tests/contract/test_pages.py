"""Every page that the project writes: it opens, keeps users' texts as text, and needs no other file, no network and no server."""

import base64
import re

import pytest

from fake_claims import changed, fake_claim, finding
from made_up_probe import EVIL, made_up_curves, made_up_result
from marginlens.probe.page import checkpoint_page, probe_page
from marginlens_papers.report import reproduce
from outline import Outline


def report_page(tmp_path):
    odd = changed(fake_claim("A-1"), title=EVIL, statement=EVIL, protocol=EVIL, paper_value=EVIL)
    noted = fake_claim("A-2", finding(0.9996, note=EVIL))
    return reproduce((odd, noted), tmp_path / "report").page.read_text(encoding="utf-8")


PAGES = {
    "report": (report_page, 2),
    "heads": (lambda _: probe_page(made_up_result(), introduction=[EVIL]), 0),
    "checkpoints": (lambda _: checkpoint_page(made_up_curves()), 2),
}


@pytest.fixture(params=PAGES, scope="module")
def page(request, tmp_path_factory):
    """The text of a page and how many figures it has."""
    write, n_figures = PAGES[request.param]
    return write(tmp_path_factory.mktemp("page")), n_figures


def test_the_page_is_well_formed_and_has_a_title_and_a_heading(page):
    outline = Outline(page[0])
    tags = [tag for tag, _ in outline.elements]
    assert page[0].startswith("<!doctype html>")
    assert [tags.count(tag) for tag in ("html", "title", "main", "h1")] == [1, 1, 1, 1]
    assert outline.attributes("html", "lang") == ["en"]
    identifiers = [attributes["id"] for _, attributes in outline.elements if "id" in attributes]
    assert len(set(identifiers)) == len(identifiers)


def test_user_text_is_escaped(page):
    outline = Outline(page[0])
    assert EVIL in outline.text
    assert "alert" not in page[0].replace("&lt;script&gt;alert", "").replace("\\u003cscript\\u003ealert", "")
    assert "innerHTML" not in page[0]  # what a script of the page shows enters as text


def test_the_page_needs_no_other_file_and_no_network(page):
    text, _ = page
    addresses = set(re.findall(r"https?://[^\"' <]*", text))
    assert addresses <= {"http://www.w3.org/2000/svg"}  # a name, which no browser fetches
    outline = Outline(text)
    assert not {"link", "iframe", "object", "base"} & {tag for tag, _ in outline.elements}
    assert not outline.attributes("script", "src")
    assert not re.search(r"@import|url\((?!#)", text)


def test_figures_are_embedded_or_linked_with_alternative_text(page):
    text, n_figures = page
    outline = Outline(text)
    sources, words = outline.attributes("img", "src"), outline.attributes("img", "alt")
    assert len(sources) == len(words)
    # on tiles, beside their titles
    small = [re.fullmatch(r"figures/[-\w.]+-small\.png", source) is not None for source in sources]
    assert [bool(said) for said in words] == [not is_small for is_small in small]
    assert small.count(False) == n_figures
    for source in sources:
        if re.fullmatch(r"figures/[-\w.]+(\.svg|-small\.png)", source):  # the report's
            continue
        kind, content = re.fullmatch(r"data:image/(png|svg\+xml);base64,(.*)", source).groups()
        assert base64.b64decode(content).lstrip().startswith(b"\x89PNG" if kind == "png" else b"<?xml")


def test_internal_links_have_targets(page):
    outline = Outline(page[0])
    identifiers = {attributes["id"] for _, attributes in outline.elements if "id" in attributes}
    links = [link for link in outline.attributes("a", "href") if link.startswith("#")]
    heads = {link for link in links if re.fullmatch(r"#L\d+H\d+", link)}  # shown by the script: tested in a browser
    assert {link[1:] for link in set(links) - heads} <= identifiers
