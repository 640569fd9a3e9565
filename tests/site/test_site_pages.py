"""The site: every public name is described, links lead somewhere, nothing comes from the network, and everybody can read the pages."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import pytest
from PIL import Image

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
from html_validator import markup_faults, write_shown
from marginlens.papers import registered

ROOT = Path(__file__).resolve().parents[2]
LAB = "lab/index.html"
LABS = (LAB, "report/lab.html")  # their addresses hold problems, not places
MOST_BYTES = 20e6  # without the pictures of the gallery and the report
MOST_MENU_ENTRIES = 16
READ_PAGES = (
    "index.html",
    "start.html",
    "which-theorem.html",
    "select.html",
    "optimizers.html",
    "probe.html",
    "theorems.html",
    "api.html",
    "api/marginlens.svm.html",
    "api/marginlens.dynamics.html",
    "api/marginlens.theory.html",
    "gallery/index.html",
    "gallery/selection/two_starts_two_limits.html",
    "ledger.html",
    "more.html",
    "nexttoken.html",
    "search.html",
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
    return {path: Page(path) for path in site.rglob("*.html") if path.relative_to(site).as_posix() not in LABS}


def text_of(path):
    return path.read_text(encoding="utf-8")


# ---- what is there


def rooms():
    """The parts of the library that users import from, and what each offers; one without a list offers what it defines."""
    homes = vars(ml)["_HOMES"]
    for name in sorted({name for name, home in homes.items() if home == "marginlens"} | {"testing"}):
        room = import_module(f"marginlens.{name}")
        offered = getattr(room, "__all__", None) or [
            name
            for name, value in vars(room).items()
            if getattr(value, "__module__", "") == room.__name__ and name[0] != "_"
        ]
        yield room, [name for name in offered if callable(getattr(room, name))]


def test_every_public_name_has_a_description(pages, site):
    described = set().union(*(page.places for path, page in pages.items() if path.parent.name == "api"))
    for room, names in rooms():
        assert f"module-{room.__name__}" in pages[site / "api" / f"{room.__name__}.html"].places
        for name in names:
            home = ".".join(getattr(room, name).__module__.split(".")[:2])
            assert {f"{room.__name__}.{name}", f"{home}.{name}"} & described, f"{room.__name__}.{name}"


def test_a_function_lists_its_statements(pages, site):
    links = set(pages[site / "api" / "marginlens.svm.html"].links)
    assert {"../theorems.html#a-att-svm", "../theorems.html#a-eq-10"} <= links
    assert {one.citation for one in registered()} >= {"A ATT-SVM", "A Eq. (10)"}


def test_a_name_in_backticks_links_to_its_description(pages, site):
    assert "api/marginlens.dynamics.html#marginlens.dynamics.descend" in pages[site / "optimizers.html"].links
    assert "api/marginlens.svm.html#marginlens.svm.att_svm" in pages[site / "theorems.html"].links


def test_formulas_are_mathml(site):
    text = text_of(site / "api" / "marginlens.svm.html")
    assert '<div class="formula"><math' in text
    assert not re.search(r"mathjax|katex", text, flags=re.IGNORECASE)


def test_the_first_result_is_two_clicks_from_home(pages, site):
    assert "start.html" in pages[site / "index.html"].links
    own_data = ("arrays-of-token-vectors", "a-transformer", "a-text")
    assert set(own_data) <= pages[site / "start.html"].places


def test_the_function_used_most_is_described_in_full(site):
    text = text_of(site / "api" / "marginlens.theory.html")
    start, end = (text.index(f'id="marginlens.theory.{name}"') for name in ("predict_limit", "residual_law"))
    page = text[start:end]
    for name in ml.predict_limit.__kwdefaults__ | {"data": None, "head": None}:
        assert f"<strong>{name}</strong>" in page
    assert "See also" in page
    assert "Another name for" in text[text.index('id="marginlens.theory.predict"') :][:1000]


def test_a_statement_links_to_its_proof_or_its_row(pages, site):
    links = pages[site / "which-theorem.html"].links
    assert {"theorems.html#a-thm-3", "proofs/any_norm.html#x-thm-4"} <= {*links}
    assert "x-thm-1" in pages[site / "proofs" / "attraction.html"].places


def test_the_menu_is_short(site):
    text = text_of(site / "index.html")
    assert 10 <= len(re.findall(r'<li class="toctree-l1', text)) <= MOST_MENU_ENTRIES


def test_the_site_is_small(site):
    assert (
        sum(path.stat().st_size for path in site.rglob("*") if path.is_file() and ".doctrees" not in path.parts)
        <= MOST_BYTES
    )


def test_the_report_is_copied_with_one_file_a_figure(site):
    """`test_every_link_has_a_target` says that its page finds them."""
    names = {path.relative_to(site / "report").as_posix() for path in (site / "report").rglob("*") if path.is_file()}
    figures = {"A-F1b-correlation.svg", "A-F1b-correlation-small.png", "A-F9-walk.png", "A-F9-walk-small.png"}
    assert names == {"index.html", "lab.html", "ledger.json", *(f"figures/{name}" for name in figures)}
    assert (site / "report" / "figures" / "A-F9-walk.png").read_bytes().startswith(b"\x89PNG")


def test_pictures_have_palettes(site):
    pictures = list((site / "_images").glob("*.png"))
    assert pictures
    for path in pictures:
        with Image.open(path) as picture:
            assert picture.mode == "P", path.name


# ---- links


def test_every_link_has_a_target(pages, site):
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


def test_no_page_loads_external_files(pages, site):
    for page in pages.values():
        assert not [address for address in page.loaded if re.match(r"(https?:)?//", address)], page.path
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//|@import", text_of(style)), style


def test_links_of_examples_open_the_lab_with_their_problem(browser, pages, site):
    links = {link for page in pages.values() for link in page.links if f"/{LAB}#" in link}
    opened = {urlsplit(link).fragment for link in links}
    assert {"A-F2", "C-F2"} <= opened
    for name in sorted(opened):
        open_lab(browser, site / LAB, f"#{name}")
        assert lab_state(browser)["preset"] == name
    assert f'src="{LAB}"' in text_of(site / "lab.html")  # the page about the lab holds the lab


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


def test_pages_are_valid_html_as_written_and_as_shown(browser, site, validator, tmp_path):
    written = sorted(site.rglob("*.html"))
    assert len(written) > len(READ_PAGES)
    shown = []
    for name in READ_PAGES:
        open_page(browser, site / name)
        shown.append(write_shown(browser, tmp_path / f"shown-{name.replace('/', '-')}"))
    assert markup_faults([*written, *shown], tmp_path) == []


def results_of(browser, site, words):
    """The results of a search from local files: the address, the heading and the excerpt of each."""
    browser.get(f"{(site / 'search.html').as_uri()}?q={quote(words)}")
    wait_for(browser, "document.querySelector('#search-results li a')")
    script = """return [...document.querySelectorAll('#search-results li')].map((item) =>
        [item.querySelector('a').href, item.firstChild.textContent, item.querySelector('p')?.textContent ?? ""])"""
    return [(address.removeprefix(f"{site.as_uri()}/"), *rest) for address, *rest in browser.execute_script(script)]


def test_the_search_ranks_pages_before_members_and_shows_excerpts(browser, site, axe):
    found = results_of(browser, site, "adam")
    addresses = [address for address, _, _ in found]
    assert addresses[0] == "api/marginlens.optimizers.html#marginlens.optimizers.Adam"
    assert any(address.startswith("optimizers.html") for address in addresses[:3])
    assert addresses.index("api/marginlens.optimizers.html#marginlens.optimizers.Adam.batched") > len(found) // 2
    assert all("adam" in f"{title} {excerpt}".lower() for _, title, excerpt in found[:10])
    assert accessibility_violations(browser) == []
    resize(browser, PHONE)
    assert overflowing(browser) == []


@pytest.mark.parametrize(
    ("words", "address"),
    [
        ("relaxed_svm", "api/marginlens.svm.html#marginlens.svm.relaxed_svm"),
        ("ml.predict_limit(data, v)", "api/marginlens.theory.html#marginlens.theory.predict_limit"),
        ("MarginSolution.kkt_residual", "api/marginlens.svm.html#marginlens.svm.MarginSolution.kkt_residual"),
    ],
)
def test_a_search_for_a_name_finds_its_description_first(browser, site, words, address):
    assert results_of(browser, site, words)[0][0] == address
