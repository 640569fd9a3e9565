"""The report and the pages of a probe, opened from their files in a real browser."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from browser_page import (
    DESKTOP,
    PHONE,
    accessibility_violations,
    background_brightness,
    lab_state,
    open_lab,
    open_page,
    overflowing,
    prefer,
    press,
    resize,
    settle,
    wait_for,
    without_script,
)
from fake_claims import changed, fake_claim, finding, raising
from html_validator import markup_faults, write_shown
from made_up_probe import EVIL, HEADS, LAYERS, STEPS, made_up_curves, made_up_result
from marginlens.lab import write_lab
from marginlens.probe import difference_page, probe_page
from marginlens.probe.monitor.alarms import find_alarms
from marginlens.probe.page import checkpoint_page
from marginlens.probe.result import Example
from marginlens_papers.report import reproduce
from marginlens_papers.report.thumbnail import LETTERS, SIZE
from result_samples import probes


def image_example() -> Example:
    """An example of a vision model: three by four patches after a token that is no patch."""
    rng = np.random.default_rng(0)
    attention = rng.dirichlet(np.ones(13), size=(LAYERS, HEADS, 1)).astype(np.float32)
    tokens = ("[CLS]", *(f"{k // 4},{k % 4}" for k in range(12)))
    pixels = rng.integers(0, 256, size=(6, 8, 3), dtype=np.uint8)
    margins = rng.random((LAYERS, HEADS, 1))
    return Example("image 0", tokens, np.arange(1), attention, attention.argmax(axis=-1), margins, (3, 4), pixels)


def write_pages(folder: Path) -> dict[str, Path]:
    claims = (
        changed(fake_claim("A-1"), title=EVIL, statement=EVIL, protocol=EVIL),
        fake_claim("A-2", finding(0.9996, note="Higher than the paper's.")),
        fake_claim("A-3", finding(0.9, assumption_met=False)),
        fake_claim("A-4", raising(ValueError("no luck"))),
    )
    made_up = made_up_result()
    monitored = made_up_curves(entropy=np.where(STEPS < 4, 1.0, np.nan))
    assert len(find_alarms(monitored)) >= LAYERS
    texts = {
        "heads": probe_page(
            made_up_result(examples=(*made_up.examples, image_example())), introduction=[EVIL], lab="lab.html"
        ),
        "checkpoints": checkpoint_page(made_up_curves()),
        "monitor": checkpoint_page(monitored, find_alarms(monitored)),
        "difference": difference_page(dict(probes())["a difference of models"]),
    }
    paths = {"report": reproduce(claims, folder / "report").page, "lab": write_lab(folder / "lab.html")}
    for name, text in texts.items():
        paths[name] = folder / f"{name}.html"
        paths[name].write_text(text, encoding="utf-8")
    return paths


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    return write_pages(tmp_path_factory.mktemp("pages"))


@pytest.fixture(params=["report", "heads", "checkpoints", "monitor", "difference"])
def page(request, pages):
    return pages[request.param]


@pytest.fixture
def heads(browser, pages):
    """The browser with a probe's page."""
    open_page(browser, pages["heads"])
    return browser


def texts(browser, selector):
    return browser.execute_script(
        "return [...document.querySelectorAll(arguments[0])].map((node) => node.textContent)", selector
    )


def shown(browser, selector):
    """How many elements of this kind are visible."""
    script = "return [...document.querySelectorAll(arguments[0])].filter((node) => node.checkVisibility()).length"
    return browser.execute_script(script, selector)


def click(browser, selector):
    """Click an element wherever it is, without waiting for the page to scroll there smoothly."""
    browser.execute_script("document.querySelector(arguments[0]).click()", selector)


def focused(browser):
    return browser.switch_to.active_element.get_attribute("id")


# ---- every page


def test_no_element_overflows_on_a_phone(browser, page):
    resize(browser, PHONE)
    open_page(browser, page, "#L1H2")
    assert browser.execute_script("return innerWidth") == PHONE[0]
    assert overflowing(browser) == []


def test_color_scheme_follows_the_reader(browser, page):
    open_page(browser, page)
    assert background_brightness(browser) > 0.9
    prefer(browser, color_scheme="dark")
    assert background_brightness(browser) < 0.2


@pytest.mark.parametrize(("scheme", "size"), [("light", DESKTOP), ("dark", DESKTOP), ("light", PHONE)], ids=str)
def test_the_page_is_accessible(browser, page, axe, scheme, size):
    prefer(browser, color_scheme=scheme)
    resize(browser, size)
    open_page(browser, page, "#L1H2")
    assert accessibility_violations(browser) == []


def test_the_page_is_valid_html_as_written_and_as_shown(browser, page, validator, tmp_path):
    open_page(browser, page, "#L1H2")
    assert markup_faults([page, write_shown(browser, tmp_path / f"shown-{page.name}")], tmp_path) == []


def test_the_lab_is_valid_html_as_written_and_as_shown(browser, pages, validator, tmp_path):
    open_lab(browser, pages["lab"])
    assert markup_faults([pages["lab"], write_shown(browser, tmp_path / "shown-lab.html")], tmp_path) == []


def test_faults_of_markup_are_found(validator, tmp_path):
    page = tmp_path / "page.html"
    page.write_text(
        '<!doctype html><html lang="en"><head><title>Faults</title></head><body><p id="a">One<p id="a">Two'
        "<table><tr><th scope='&#34;col&#34;'>Column</th></tr></table></body></html>",
        encoding="utf-8",
    )
    found = {fault.split(": ")[1] for fault in markup_faults([page], tmp_path)}
    assert {"no-dup-id", "attribute-allowed-values"} <= found


# ---- the report


def test_the_wall_begins_with_claims_that_do_not_hold(browser, pages):
    open_page(browser, pages["report"])
    parts = ["What does not hold", "What could not be tested", "What holds"]
    assert texts(browser, "#wall h3") == parts
    ids = "return [...document.querySelectorAll('#wall article')].map((tile) => tile.id)"
    assert browser.execute_script(ids) == ["A-4", "A-3", "A-1", "A-2"]


def test_pictures_on_tiles_have_readable_letters_on_every_screen(browser, pages):
    open_page(browser, pages["report"])
    for width in (*range(330, 1500, 45), DESKTOP[0]):
        resize(browser, (width, 900))
        shown_widths = browser.execute_script(
            "return [...document.querySelectorAll('.thumbnail img')].map((image) => image.getBoundingClientRect().width)"
        )
        assert min(shown_widths) / SIZE[0] * LETTERS >= 9.0, width


def test_every_figure_is_decoded(browser, pages):
    open_page(browser, pages["report"])
    names = browser.execute_script("return performance.getEntriesByType('resource').map((one) => one.name)")
    assert all(name.endswith("-small.png") for name in names)  # all claims are closed
    click(browser, "button.all")
    settle(browser)
    loaded = "[...document.images].map((image) => { image.loading = 'eager'; return image.decode(); })"
    browser.execute_async_script(f"Promise.all({loaded}).then(arguments[0])")
    widths = browser.execute_script("return [...document.images].map((image) => image.naturalWidth)")
    assert len(widths) == 6  # a small one and the figure itself; the claim that failed has none
    assert min(widths) > 0


def test_the_wall_is_filtered_by_paper_verdict_and_words(browser, tmp_path):
    claims = (fake_claim("A-1"), fake_claim("B-1"), fake_claim("B-2", finding(0.5)), fake_claim("C-1"))
    open_page(browser, reproduce(claims, tmp_path / "report").page)

    parts = []  # how many headings are shown

    def after(script):
        browser.execute_script(
            f"{script}; document.querySelector('.filters').dispatchEvent(new Event('input', {{ bubbles: true }}))"
        )
        headings = "[...document.querySelectorAll('#wall h3')].filter((heading) => heading.checkVisibility()).length"
        parts.append(browser.execute_script(f"return {headings}"))
        tiles = "[...document.querySelectorAll('.wall > article')].filter((tile) => tile.checkVisibility())"
        rows = browser.execute_script(f"return {tiles}.map((tile) => tile.id)")
        return rows, browser.find_element("css selector", ".filters output").text

    form = "document.querySelector('.filters')"
    assert after("") == (["B-2", "A-1", "B-1", "C-1"], "4 claims")
    assert after(f"{form}.paper.value = 'B'") == (["B-2", "B-1"], "2 of 4 claims")
    assert after(f"{form}.verdict.value = 'does-not-hold'") == (["B-2"], "1 of 4 claims")
    assert after(f"{form}.reset(); {form}.words.value = '(c-1) RANDOM'") == (["C-1"], "1 of 4 claims")
    assert parts == [2, 2, 1, 1]
    browser.execute_script("location.hash = '#A-1'")  # a link to a claim that the filter hides shows it
    settle(browser)
    assert shown(browser, "#A-1 .statement") == 1
    assert after("")[1] == "4 claims"


def test_tiles_open_without_script(browser, pages):
    with without_script(browser):
        open_page(browser, pages["report"])
    assert shown(browser, ".wall > article h4") == 4
    assert shown(browser, ".filters") == 0
    click(browser, "#A-1 summary")
    assert shown(browser, "#A-1 .statement") == 1


def test_every_claim_is_accessible_when_it_is_open(browser, pages, axe):
    open_page(browser, pages["report"])
    click(browser, "button.all")
    assert accessibility_violations(browser) == []
    resize(browser, PHONE)
    settle(browser)
    assert overflowing(browser) == []


# ---- a probe


def test_the_map_of_kinds_comes_first_with_a_legend_and_in_words(heads):
    result = made_up_result()
    kinds, beside = result.kinds.ravel().tolist(), result.kinds_beside.ravel().tolist()
    shown = [
        f"{kind}› {other}" if other not in ("", "content") else kind for kind, other in zip(kinds, beside, strict=True)
    ]
    assert "first› same" in shown
    assert [cell.replace("\n", "") for cell in texts(heads, "#heat tbody button")] == shown
    backgrounds = "return [...document.querySelectorAll('#heat tbody button')].map((cell) => cell.style.background)"
    colours = dict(zip(shown, heads.execute_script(backgrounds), strict=True))
    assert len(set(colours.values())) == len(set(shown))
    named = {*kinds, *beside} - {"", "content"} | ({"content"} & set(kinds))
    assert {text.split()[0] for text in texts(heads, "#legend span")} == named
    cut = (
        "return [...document.querySelectorAll('#heat tbody button')].map((cell) => cell.scrollWidth > cell.clientWidth)"
    )
    assert not any(heads.execute_script(cut))  # no word is cut
    listed = " ".join(texts(heads, ".heads details li"))
    assert sorted(re.findall(r"L\dH\d", listed)) == [
        f"L{layer}H{head}" for layer in range(LAYERS) for head in range(HEADS)
    ]
    assert heads.execute_script("return document.querySelector('#heat').getBoundingClientRect().bottom") < 900
    resize(heads, PHONE)
    settle(heads)
    assert heads.execute_script("return document.querySelector('#heat').getBoundingClientRect().right") <= PHONE[0]


def test_a_head_shows_at_most_twelve_numbers(heads):
    rows = "return [...document.querySelectorAll('#head h3')].find((one) => one.textContent === 'Its numbers')"
    counts = [
        f"{rows}.{place}.querySelectorAll('tbody tr').length" for place in ("parentElement", "nextElementSibling")
    ]
    everything, plain = map(heads.execute_script, counts)
    assert (everything, plain) == (12, 8)  # the others are folded
    folded = texts(heads, "#head details tbody th")
    assert folded == ["Frobenius norm", "tied", "correlation: this head", "correlation: random head"]


def test_a_head_and_a_sentence_open_in_the_lab(heads, pages):
    open_page(heads, pages["heads"], "#L1H2")
    (said,) = [text for text in texts(heads, "#head .under") if "runner-up" in text]
    assert "among the 3 tokens" in said
    heads.execute_script("document.querySelector('#head .columns p a').click()")
    heads.execute_script("return window.lab.ready")
    state = lab_state(heads)
    (start,), (keys,) = state["starts"], state["problem"]["keys"]
    assert np.allclose(start[0] * np.array(keys), [[0.0, 0.0], [-1.0, 0.5], [-2.0, -1.0]], rtol=1e-3, atol=0.0)
    assert state["problem"]["scores"] == [[1, 0, 0]]
    assert state["problem"]["words"] == [["two", "[CLS]", "[SEP]"]]
    wait_for(heads, "document.getElementById('headline')?.textContent.startsWith('“two” ')")
    labels = "[...document.querySelectorAll('#plane .token .handle-text')].map((text) => text.textContent)"
    wait_for(heads, f"{labels}.join() === 'two,[CLS],[SEP]'")
    assert state["view"]["half"] > start[0] > start[1] == 0


def test_a_measure_colours_and_numbers_all_heads(heads):
    assert len(texts(heads, "#heat tbody button")) == LAYERS * HEADS
    heads.execute_script("document.getElementById('measures').parentElement.open = true")
    (count,) = [one for one in heads.find_elements("css selector", "#measures button") if one.text == "nnz/T"]
    before = texts(heads, "#says")
    count.click()
    shown = [float(number.replace("−", "-")) for number in texts(heads, "#heat tbody button")]
    assert shown == pytest.approx(made_up_result()["relative_nnz"].ravel(), abs=1e-3, rel=0.0)
    assert texts(heads, "#says") != before
    assert heads.switch_to.active_element.text == "nnz/T"


def test_a_head_opens_with_its_address(heads, pages):
    share = made_up_result()["relative_nnz"]
    layer, head = np.unravel_index(np.argmin(share), share.shape)
    assert texts(heads, "#head h2") == [f"Layer {layer}, head {head}"]  # the sparsest, until another is chosen
    assert texts(heads, "#announcement") == [""]
    heads.find_element("id", "cell-1-2").click()
    settle(heads)
    assert heads.current_url.endswith("#L1H2")
    assert texts(heads, "#head h2") == ["Layer 1, head 2"]
    assert texts(heads, "#announcement") == ["Layer 1, head 2 is shown below."]
    shown = texts(heads, "#head .columns td.token")
    assert EVIL in shown  # a text of the user's, as text
    heads.find_element("css selector", "a[rel='next']").click()
    settle(heads)
    assert texts(heads, "#head h2") == ["Layer 1, head 3"]
    heads.back()
    settle(heads)
    assert texts(heads, "#head h2") == ["Layer 1, head 2"]
    open_page(heads, pages["heads"], "#L2H0")
    assert texts(heads, "#head h2") == ["Layer 2, head 0"]


def test_keys_go_from_head_to_head(heads):
    from selenium.webdriver.common.keys import Keys

    heads.execute_script("document.getElementById('cell-0-0').focus()")
    press(heads, Keys.ARROW_DOWN)
    press(heads, Keys.ARROW_RIGHT)
    assert focused(heads) == "cell-1-1"
    press(heads, Keys.ENTER)
    settle(heads)
    assert texts(heads, "#head h2") == ["Layer 1, head 1"]
    assert focused(heads) == "cell-1-1"
    press(heads, Keys.TAB)
    press(heads, Keys.TAB, modifier=Keys.SHIFT)
    assert focused(heads) == "cell-1-1"  # one stop for the whole table


def test_examples_are_maps_of_tokens_or_of_patches(heads, pages):
    open_page(heads, pages["heads"], "#L0H1")
    _, image = heads.find_elements("css selector", ".choices button")
    assert len(texts(heads, "#head .columns .map rect title")) >= 16  # every token of four attends to four
    image.click()
    assert [one.text for one in heads.find_elements("css selector", ".choices [aria-pressed='true']")] == ["image 0"]
    assert heads.switch_to.active_element.text == "image 0"
    assert heads.execute_script("return document.querySelector('.map image').href.baseVal").startswith("data:image/png")


# ---- an evaluation of a text classifier


def listed_tokens(browser):
    """The cells of the tokens that are shown."""
    rows = "[...document.querySelectorAll('#tokens tbody tr')].filter((row) => !row.hidden)"
    return browser.execute_script(f"return {rows}.map((row) => [...row.cells].map((cell) => cell.textContent))")


def test_arrows_choose_a_head_of_a_difference(browser, pages):
    from selenium.webdriver.common.keys import Keys

    open_page(browser, pages["difference"])
    click(browser, "#cell-0-0")
    press(browser, Keys.ARROW_RIGHT)
    assert focused(browser) == "cell-0-1"
    assert texts(browser, "#head h2") == ["Layer 0, head 1"]
