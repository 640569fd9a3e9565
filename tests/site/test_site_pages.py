"""The site: a page for each public name, links that lead somewhere, nothing from the network, and pages that everybody can read."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from browser_page import (
    PHONE,
    accessibility_violations,
    background_brightness,
    open_page,
    overflowing,
    prefer,
    resize,
    wait_for,
)
from marginlens.papers import registered
from marginlens_papers.documentation import public_names

READ_PAGES = (
    "index.html",
    "start.html",
    "which-theorem.html",
    "select.html",
    "optimizers.html",
    "probe.html",
    "theorems.html",
    "api/index.html",
    "api/marginlens.svm.module.html",
    "api/marginlens.att_svm.html",
    "api/marginlens.Trajectory.html",
    "gallery/index.html",
)


class Page(HTMLParser):
    """The links of a page, the places that links can name, and what it loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.places: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.places |= {values[key] for key in ("id", "name") if values.get(key)}
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        if tag in ("img", "script", "iframe") and values.get("src"):
            self.loaded.append(values["src"])
        if tag == "link" and values.get("href"):
            self.loaded.append(values["href"])


@pytest.fixture(scope="module")
def pages(site):
    return {path: Page(path) for path in site.rglob("*.html") if path.name != "lab.html"}


def text_of(path):
    return path.read_text(encoding="utf-8")


# ---- what is there


def test_every_public_name_has_a_page_with_its_statements_and_backends(site):
    names, statements = public_names(), registered()
    assert len({entry.page.lower() for entry in names}) == len(names)  # also where capitals do not count
    for entry in names:
        text = text_of(site / "api" / f"{entry.page}.html")
        assert f'id="{entry.path}"' in text, entry.path  # the signature
        for heading in ("runs-on", "statements-of-the-papers", "examples"):
            assert f'id="{heading}"' in text, (entry.path, heading)
        for backend in entry.backends:
            assert f"<strong>{backend}</strong>" in text, (entry.path, backend)
        for statement in entry.statements(statements):
            assert re.search(rf">{re.escape(statement.citation)}</a>", text.replace("&#39;", "'")), (
                entry.path,
                statement,
            )


def test_backends_follow_the_signature():
    backends = {entry.path: set(entry.backends) for entry in public_names()}
    assert backends["marginlens.descend"] == backends["marginlens.att_svm"] == {"CPU", "GPU"}
    assert backends["marginlens.label_svm"] == {"CPU"}
    assert backends["marginlens.data.DeviceTokens"] == {"GPU"}
    assert "PyTorch" in backends["marginlens.probe.load_model"]


def test_formulas_are_drawn_by_the_browser_itself(site):
    text = text_of(site / "api" / "marginlens.relaxed_svm.html")
    assert '<div class="formula"><math' in text
    assert "𝒮" in text  # a letter of the script alphabet, which browsers draw only as a character of its own
    assert not re.search(r"mathjax|katex", text, flags=re.IGNORECASE)


def test_the_first_result_is_two_clicks_from_home(pages, site):
    assert "start.html" in pages[site / "index.html"].links
    own_data = ("a-table-of-texts-with-labels", "arrays-of-token-vectors", "a-transformer")
    assert set(own_data) <= pages[site / "start.html"].places


def test_examples_in_the_plane_lead_to_the_lab(site):
    linked = [path for path in (site / "gallery").rglob("*.html") if "lab.html#1." in text_of(path)]
    assert all(f'href="{"../" * len(path.relative_to(site).parts[:-1])}lab.html#1.' in text_of(path) for path in linked)
    assert (site / "lab.html").is_file()
    assert 'src="lab.html"' not in text_of(site / "index.html")


# ---- links


def test_every_link_leads_to_a_page_and_a_place(pages):
    broken = []
    for page in pages.values():
        for link in {*page.links, *page.loaded}:
            parts = urlsplit(link)
            if parts.scheme or link.startswith("//"):
                continue
            target = (page.path.parent / unquote(parts.path)).resolve() if parts.path else page.path
            if not target.is_file() or (
                parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].places
            ):
                broken.append(f"{page.path.name}: {link}")
    assert broken == []


def test_no_page_loads_anything_from_elsewhere(pages, site):
    for page in pages.values():
        assert not [address for address in page.loaded if re.match(r"(https?:)?//", address)], page.path
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//|@import", text_of(style)), style


# ---- in a browser


@pytest.mark.parametrize("name", READ_PAGES)
def test_a_page_is_accessible_in_light_and_dark_and_fits_a_phone(browser, site, axe, name):
    for scheme, is_dark in (("light", False), ("dark", True)):
        prefer(browser, color_scheme=scheme)
        open_page(browser, site / name)
        assert (background_brightness(browser) < 0.5) == is_dark
        assert accessibility_violations(browser) == []
    resize(browser, PHONE)
    open_page(browser, site / name)
    assert overflowing(browser) == []
    assert accessibility_violations(browser) == []


def test_the_search_finds_a_function_from_the_disk(browser, site):
    browser.get(f"{(site / 'search.html').as_uri()}?q=relaxed_svm")
    wait_for(browser, "document.querySelector('#search-results li a')")
    found = browser.execute_script(
        "return [...document.querySelectorAll('#search-results li a')].map((link) => link.href)"
    )
    assert any("marginlens.relaxed_svm.html" in address for address in found)
