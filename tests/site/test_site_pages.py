"""The site: a page for each public name, links that lead somewhere, nothing from the network, and pages that everybody can read."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import marginlens as ml
from browser_page import (
    PHONE,
    accessibility_violations,
    background_brightness,
    lab_state,
    open_lab,
    open_page,
    overflowing,
    prefer,
    resize,
    wait_for,
)
from marginlens.papers import registered
from marginlens_papers.documentation.gallery import example_files, presets_shown
from marginlens_papers.documentation.public_names import public_names
from marginlens_papers.documentation.site import LAB

ROOT = Path(__file__).resolve().parents[2]
MOST_PAGES = 380  # beside the report, which has at most twenty
MOST_BYTES = 15e6  # without the pictures of the gallery and the report, which take about 15 MB more
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
    "ledger.html",
    "nexttoken.html",
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
    return {path: Page(path) for path in site.rglob("*.html") if path != site / LAB}


def text_of(path):
    return path.read_text(encoding="utf-8")


# ---- what is there


def test_every_public_name_has_a_page_with_its_statements_and_backends(site):
    names, statements = public_names(), registered()
    assert len({entry.page.lower() for entry in names}) == len(names)  # also where capitals do not count
    for entry in names:
        text = text_of(site / "api" / entry.address.partition("#")[0])
        assert f'id="{entry.path}"' in text, entry.path  # the signature
        if not entry.has_own_page:
            continue
        for heading in ("runs-on", "statements-of-the-papers", "examples"):
            assert f'id="{heading}"' in text, (entry.path, heading)
        for backend in entry.backends:
            assert f"<strong>{backend}</strong>" in text, (entry.path, backend)
        for statement in entry.statements(statements):
            assert re.search(rf">{re.escape(statement.citation)}</a>", text.replace("&#39;", "'")), (
                entry.path,
                statement,
            )


def test_the_site_is_small_and_has_no_copies_of_source(site):
    files = [path for path in site.rglob("*") if path.is_file()]
    assert sum(path.suffix == ".html" for path in files) <= MOST_PAGES
    assert sum(path.stat().st_size for path in files) <= MOST_BYTES
    # the gallery's
    assert {path.relative_to(site).parts[0] for path in files if path.suffix == ".py"} == {"_downloads"}
    assert not (site / "source").exists()


def test_the_lab_is_third_in_the_menu(pages, site):
    menu = re.findall(
        r'class="toctree-l1[^"]*"><a class="reference internal" href="([^"]+)"', text_of(site / "index.html")
    )
    assert menu[:3] == ["start.html", "which-theorem.html", "lab.html"]


def test_backends_follow_the_signature():
    backends = {entry.path: set(entry.backends) for entry in public_names()}
    assert backends["marginlens.descend"] == backends["marginlens.att_svm"] == {"CPU", "GPU"}
    assert backends["marginlens.label_svm"] == {"CPU"}
    assert "PyTorch" in backends["marginlens.probe.load_model"]


def test_formulas_are_drawn_by_the_browser_itself(site):
    text = text_of(site / "api" / "marginlens.relaxed_svm.html")
    assert '<div class="formula"><math' in text
    assert "𝒮" in text  # a letter of the script alphabet, which browsers draw only as a character of its own
    assert not re.search(r"mathjax|katex", text, flags=re.IGNORECASE)


def test_the_first_result_is_two_clicks_from_home(pages, site):
    assert "start.html" in pages[site / "index.html"].links
    own_data = ("arrays-of-token-vectors", "a-transformer", "a-text")
    assert set(own_data) <= pages[site / "start.html"].places


def lab_links(page):
    return [link for link in page.links if re.search(rf"{LAB}#1\.", link)]


def test_examples_whose_problem_the_lab_has_lead_to_it(pages, site):
    for path in example_files(ROOT):
        page = pages[site / "gallery" / path.parent.name / f"{path.stem}.html"]
        expected = [f"../../{LAB}{ml.lab.permalink(name)}" for name in presets_shown(text_of(path))]
        assert lab_links(page) == expected, path.name
    assert f'src="{LAB}"' in text_of(site / "lab.html")  # the page about the lab holds the lab
    assert "window.lab" in text_of(site / LAB)


def test_the_link_of_an_example_opens_the_lab_with_its_preset(browser, pages, site):
    opened = set()
    for path in example_files(ROOT):
        names = presets_shown(text_of(path))
        page = site / "gallery" / path.parent.name / f"{path.stem}.html"
        for name, link in zip(names, lab_links(pages[page]), strict=True):
            if name not in opened:
                open_lab(browser, (page.parent / urlsplit(link).path).resolve(), f"#{urlsplit(link).fragment}")
                assert lab_state(browser)["preset"] == name
                opened.add(name)
    assert {"A-F2", "C-F2"} <= opened


# ---- links


def test_every_link_leads_to_a_page_and_a_place(pages, site):
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
