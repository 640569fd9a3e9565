"""The script of a probe's page, run: clicks and keys lead to the right head and measure, and every number shown is the page's own."""

import base64
import dataclasses
import json
import re

import numpy as np
import pytest

from fake_browser import FakeBrowser
from marginlens.graphs import graphs_of_edges
from marginlens.probe.heads.preference_graph import NamedGraph
from marginlens.probe.margins import MarginCounts
from marginlens.probe.measures import HeadMeasures, MaxMarginMeasures
from marginlens.probe.pages.page import page_data, probe_page
from marginlens.probe.result import Example, NamedPreference, ProbeResult
from marginlens.probe.settings import ProbeSettings

LAYERS, HEADS = 2, 3
ALL = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]
LAST_DIGIT = 0.5001  # of its unit: a number that is rounded to the digits it shows
EVIL = "<b>&amp;</script>"
TIED = (0, 1)  # the head whose last query ties
SIZES = np.array([[-8.2e-5, 0.0, 0.0472], [0.997, 123.4, 45_678.0]])  # every form that a number takes


def example(rng, name, tokens, grid=None):
    n_queries = len(tokens) if grid is None else 1
    attention = rng.dirichlet(np.ones(len(tokens)), size=(LAYERS, HEADS, n_queries)).astype(np.float32)
    selected = attention.argmax(axis=-1)
    margins = rng.lognormal(size=selected.shape)
    if grid is None:
        selected[:, :, 0], margins[:, :, 0] = -1, np.nan  # a query that sees one token
    selected[TIED][-1], margins[TIED][-1] = -1, 0.0
    image = None if grid is None else rng.integers(0, 256, size=(4, 6, 3), dtype=np.uint8)
    return Example(name, tokens, np.arange(n_queries), attention, selected, margins, grid, image)


@pytest.fixture(scope="module")
def result():
    rng = np.random.default_rng(0)
    counts = MarginCounts.empty(LAYERS, HEADS)
    for layer in range(LAYERS):
        counts.add(layer, rng.lognormal(size=(HEADS, 50)))
    heads = {one.name: rng.random((LAYERS, HEADS)) for one in dataclasses.fields(HeadMeasures)}
    heads |= {"frobenius": SIZES, "strict_share": np.array([[0.0, 0.03, 0.5], [0.99, 0.997, 1.0]])}
    heads["tied_share"] = np.array([[0.0, 0.25, 0.0], [0.0, 0.0, 0.0]])
    heads["nuclear"][0, 1] = np.nan
    margin = {one.name: rng.normal(size=(LAYERS, HEADS)) for one in dataclasses.fields(MaxMarginMeasures)}
    patches = tuple(f"{k // 3},{k % 3}" for k in range(6))
    edges = np.array([(0, 1), (1, 2), (2, 0), (2, 3)]).T
    graph = NamedGraph(("a", "b", "c", EVIL), graphs_of_edges(np.zeros_like(edges[0]), *edges, 4)[0])
    return ProbeResult(
        model="made up",
        family="bert",
        n_inputs=7,
        n_queries=90,
        mean_tokens=4.0,
        heads=HeadMeasures(**heads),
        margins=counts,
        settings=ProbeSettings(max_margin=True),
        max_margin=MaxMarginMeasures(**margin),
        examples=(
            example(rng, "one", ("[CLS]", EVIL, "a_token_of_many_letters", "[SEP]")),
            example(rng, "two", ("x", "y")),
            example(rng, "image", ("[CLS]", *patches), (2, 3)),
        ),
        preferences={(1, 2): (NamedPreference("a", EVIL, 5, 1, 8), NamedPreference("b", "c", 3, 0, 4))},
        graphs={(1, 2): graph},
    )


@pytest.fixture(scope="module")
def text(result):
    return probe_page(result)


@pytest.fixture(scope="module")
def data(result):
    return json.loads(json.dumps(page_data(result)))


def is_shown(text, value, percent=False):
    """Whether a text is the number, to the digits that it shows and to 5% at least; less than all is never 100%."""
    if value is None:
        return text == "–"
    form = re.fullmatch(r"(−?\d+(?:\.(\d+))?(?:e([+−]\d+))?)(%?)", text)
    if form is None or bool(form[4]) != percent or (percent and (text == "100%") != (value == 1.0)):
        return False
    size = 100.0 * value if percent else value
    unit = 10.0 ** (int((form[3] or "0").replace("−", "-")) - len(form[2] or ""))
    error = abs(float(form[1].replace("−", "-")) - size)
    return error <= LAST_DIGIT * unit and error <= max(0.05 * abs(size), 0.05 * percent)


def redness(colour):
    return int(re.fullmatch(r"rgb\((\d+),\d+,\d+\)", colour)[1])


def all_levels(example):
    raw = np.frombuffer(base64.b64decode(example["maps"]), dtype=np.uint8)
    return raw.reshape(LAYERS, HEADS, len(example["queries"]), len(example["tokens"]))


def corners(boxes):
    return np.array([(float(one.given["x"]), float(one.given["y"])) for one in boxes])


def pairs(tokens):
    return [(query, token) for query in tokens for token in tokens]


def at(layer, head):
    return f"#L{layer}H{head}"


# ---- all heads


def test_the_page_opens_on_all_heads_with_the_first_measure(text, data):
    browser = FakeBrowser(text)
    assert browser.texts("#measures button") == [one["label"] for one in data["measures"]]
    assert [one.given["aria-pressed"] for one in browser.see("#measures button")][:2] == ["true", "false"]
    assert browser.texts("#head") == [""]
    assert browser.where().name == "body"
    assert [row[0] for row in browser.tables("#heat")["layer \\ head", "0", "1", "2"]] == ["0", "1"]
    groups = [one.given["aria-label"] for one in browser.see('#measures div[role="group"]')]
    assert groups == browser.texts("#measures span") == list(dict.fromkeys(one["group"] for one in data["measures"]))


def test_every_measure_switches_the_heat_map(text, data):
    browser = FakeBrowser(text)
    for k, measure in reversed(list(enumerate(data["measures"]))):
        browser.click("#measures button", k)
        pressed = [one.given["aria-pressed"] == "true" for one in browser.see("#measures button")]
        assert pressed == [one == k for one in range(len(data["measures"]))]
        assert browser.texts("#says") == [measure["says"]]
        cells = browser.see("#heat button")
        values = [value for row in measure["values"] for value in row]
        for cell, value, (layer, head) in zip(cells, values, ALL, strict=True):
            assert is_shown(cell.text, value, measure["percent"]), (measure["name"], cell.text, value)
            assert cell.given["id"] == f"cell-{layer}-{head}"
            assert cell.given["aria-label"] == f"Layer {layer}, head {head}: {measure['title']} {cell.text}"
        ends = browser.texts("#legend")[0].removesuffix(f" {measure['title']}")
        assert any(
            is_shown(ends[:cut], measure["range"][0], measure["percent"])
            and is_shown(ends[cut:], measure["range"][1], measure["percent"])
            for cut in range(len(ends))
        )


def test_a_darker_cell_has_a_larger_number(text, data):
    browser = FakeBrowser(text)
    for k, measure in enumerate(data["measures"]):
        browser.click("#measures button", k)
        values = [value for row in measure["values"] for value in row]
        shades = [one.background for one in browser.see("#heat button")]
        known = [one for one in range(len(values)) if values[one] is not None]
        order = sorted(known, key=lambda one: values[one])
        red = [redness(shades[one]) for one in order]
        assert red == sorted(red, reverse=True)
        low, high = measure["range"]
        ends = re.findall(r"rgb\([\d,]+\)", browser.see("#legend i")[0].background)
        for one in known:
            if values[one] in (low, high):
                assert shades[one] == ends[-1 if values[one] == high else 0]
        assert all(shades[one] not in ends for one in range(len(values)) if values[one] is None)
    assert sum(value is None for row in data["measures"][10]["values"] for value in row) == 1


# ---- one head


def test_a_click_shows_the_right_head(text):
    browser = FakeBrowser(text)
    for place, (layer, head) in enumerate(ALL):
        browser.click("#heat button", place)
        assert browser.texts("#head h2") == [f"Layer {layer}, head {head}"]
        assert browser.texts("#told") == [f"Layer {layer}, head {head} is shown below."]
        where = browser.where()
        assert (where.hash, where.scrolled, where.given["id"]) == (at(layer, head), "head", f"cell-{layer}-{head}")
        pressed = [one.given["aria-pressed"] == "true" for one in browser.see("#heat button")]
        assert pressed == [one == place for one in range(len(ALL))]


@pytest.mark.parametrize(("layer", "head"), ALL)
def test_the_tables_of_a_head_hold_its_numbers(text, data, layer, head):
    browser = FakeBrowser(text, at(layer, head))
    tables = browser.tables("#head table")
    rows = tables["measure", "this head", "rank, largest first", "mean of all heads"]
    for (title, own, rank, mean), measure in zip(rows, data["measures"], strict=True):
        values = np.array(measure["values"], dtype=float)
        value = measure["values"][layer][head]
        assert title == measure["title"]
        assert is_shown(own, value, measure["percent"])
        assert is_shown(mean, float(np.nanmean(values)), measure["percent"])
        place = f"{np.sum(values > values[layer, head]) + 1} of {np.sum(np.isfinite(values))}"
        assert rank == ("–" if value is None else place)
    beside = ("this head", "random selections", "random W", "random head")
    by_name = {one["name"]: one["values"][layer][head] for one in data["measures"]}
    rows = tables["measure", *beside]
    for row, name in zip(rows, ("correlation", "margin_ratio", "low_ratio"), strict=True):
        for shown, ending in zip(row[1:], ("", "_random_selections", "_random_matrix", "_random_head"), strict=True):
            assert is_shown(shown, by_name[name + ending])
    assert browser.texts('#head th[scope="row"]')[3:] == [one["title"] for one in data["measures"]]
    preferred = tables.get(("prefers", "over", "queries", "the reverse", "saw both"))
    assert preferred == ([["a", EVIL, "5", "1", "8"], ["b", "c", "3", "0", "4"]] if (layer, head) == (1, 2) else None)


@pytest.mark.parametrize(("layer", "head"), ALL)
@pytest.mark.parametrize("place", [0, 1])
def test_the_map_of_a_text_shows_its_attention_and_its_selections(text, data, layer, head, place):
    browser, told = FakeBrowser(text, at(layer, head)), data["examples"][place]
    browser.click("#head .choices button", place)
    tokens, n = told["tokens"], len(told["tokens"])
    shown = all_levels(told)[layer, head].ravel() / 255.0
    boxes = browser.see("#head .columns .scroll .map rect")
    cells, marks = ([one for one in boxes if (one.given["fill"] == "none") is kind] for kind in (False, True))
    cells = cells[: n * n]
    titles = browser.texts("#head .map title")[: n * n]
    expected = [f"{query} → {token}: {one:.2f}" for (query, token), one in zip(pairs(tokens), shown, strict=True)]
    assert titles == expected
    red = [redness(cells[k].given["fill"]) for k in np.argsort(shown, kind="stable")]
    assert red == sorted(red, reverse=True)
    chosen = told["selected"][layer][head]
    marked = [q * n + token for q, token in enumerate(chosen) if token >= 0]
    assert np.allclose(corners(marks[: len(marked)]), corners(cells[k] for k in marked) + 0.5)  # inside its cell
    rows = browser.tables("#head table")["query", "selects", "attention", "logit margin"]
    for row, q in zip(rows, range(1, n), strict=True):
        largest = shown[q * n : (q + 1) * n].max()
        assert row[:3] == [tokens[q], "– (tied)" if chosen[q] < 0 else tokens[chosen[q]], f"{largest:.2f}"]
        assert is_shown(row[3], told["margins"][layer][head][q])
    assert (chosen[-1] < 0) == ((layer, head) == TIED)


@pytest.mark.parametrize(("layer", "head"), ALL)
def test_the_map_of_an_image_shows_its_patches(text, data, layer, head):
    browser, told = FakeBrowser(text, at(layer, head)), data["examples"][2]
    browser.click("#head .choices button", 2)
    shown = all_levels(told)[layer, head, 0] / 255.0 * told["peaks"][layer][head]
    assert [one.given["href"] for one in browser.see("#head .map image")] == [told["image"]]
    patches = told["tokens"][1:]
    titles = [f"{name}: {one:.4f}" for name, one in zip(patches, shown[1:], strict=True)]
    assert browser.texts("#head .map title")[:6] == titles
    boxes = [one for one in browser.see("#head .map rect") if one.given.get("stroke") == "#d8d4cb"]
    red = [redness(boxes[k].given["fill"]) for k in np.argsort(shown[1:], kind="stable")]
    assert red == sorted(red, reverse=True)
    (chosen,) = told["selected"][layer][head]
    rows = browser.tables("#head table")["query", "selects", "attention", "logit margin"]
    name = "– (tied)" if chosen < 0 else told["tokens"][chosen]
    assert rows[0][:3] == ["[CLS]", name, f"{shown.max():.3f}"]
    scale = browser.texts("#head .scale")[0]
    assert ("It selects [CLS], which is no patch." in scale) == (chosen == 0)
    assert ("It selects none: several tokens tie." in scale) == (chosen < 0)
    assert scale.endswith("□selected") == (chosen > 0)
    marks = corners(browser.see('#head .map rect[stroke-width="2.2"]'))
    assert len(marks) == (2 if chosen > 0 else 0)  # on the image and on the map
    if chosen > 0:
        assert (marks[1] == corners(boxes)[chosen - 1]).all()


@pytest.mark.parametrize(("layer", "head"), ALL)
def test_the_bars_are_as_high_as_their_counts(text, data, layer, head):
    browser = FakeBrowser(text, at(layer, head))
    edges, every = data["margins"]["edges"], data["margins"]["counts"][layer][head]
    counts = [one for one in every if one]
    tied = f"Margins of {sum(counts)} queries, 25% of them tied"
    assert browser.texts("#head h3")[1] == (tied if (layer, head) == TIED else f"Margins of {sum(counts)} selections")
    bars = browser.see('#head .map rect[fill="#4286be"]')
    heights = np.array([float(one.given["height"]) for one in bars])
    assert np.allclose(heights / heights.max(), np.array(counts) / max(counts))
    by_name = {one["name"]: one["values"][layer][head] for one in data["measures"]}
    labels = browser.texts('#head .map text[paint-order="stroke"]')
    assert is_shown(labels[0].removeprefix("5% "), by_name["margin_low"])
    assert is_shown(labels[1].removeprefix("median "), by_name["margin_median"])
    places = np.log10([edge for edge, one in zip(edges[:-1], every, strict=True) if one])
    scale, start = np.polyfit(places, corners(bars)[:, 0], 1)
    lines = [float(one.given["x1"]) for one in browser.see('#head .map line[stroke="#c4420f"]')]
    assert np.allclose(lines, start + scale * np.log10([by_name["margin_low"], by_name["margin_median"]]))


def test_a_head_with_preferences_has_its_graph(text, data):
    browser, graph = FakeBrowser(text, at(1, 2)), data["graphs"]["1.2"]
    names = [one.text for one in browser.see("#head .graph text") if one.text != "↻ cycle"]
    assert names == [name for *_, name in graph["names"]]
    assert len(browser.see("#head .graph polyline")) == len(graph["arrows"]) + len(graph["turns"])
    assert all(one.svg for one in browser.see("#head .graph text"))  # what is in no SVG namespace, no browser draws
    assert "cycles, in which preferences lead back to where they began" in " ".join(browser.texts("#head .under"))
    assert not FakeBrowser(text, at(0, 0)).see("#head .graph")


# ---- keys and addresses


def test_arrow_keys_go_from_head_to_head_and_enter_chooses(text):
    browser = FakeBrowser(text)
    assert [one.stop for one in browser.see("#heat button")] == [0, -1, -1, -1, -1, -1]
    browser.focus("#heat button", 0)
    for key, cell in [("ArrowRight", "0-1"), ("ArrowDown", "1-1"), ("ArrowLeft", "1-0"), ("ArrowUp", "0-0")]:
        assert not browser.press(key)  # or the page would scroll
        assert browser.where().given["id"] == f"cell-{cell}"
        assert [one.given["id"] for one in browser.see("#heat button") if one.stop == 0] == [f"cell-{cell}"]
    for key in ("ArrowLeft", "ArrowUp", "a"):
        assert browser.press(key)
        assert browser.where().given["id"] == "cell-0-0"
    browser.press("ArrowRight")
    assert browser.texts("#head h2") == []
    browser.press("Enter")
    assert browser.texts("#head h2") == ["Layer 0, head 1"]
    where = browser.where()
    assert (where.hash, where.given["id"], where.stop) == ("#L0H1", "cell-0-1", 0)
    browser.press("ArrowDown")
    browser.press(" ")
    assert browser.texts("#head h2") == ["Layer 1, head 1"]


def test_measures_and_examples_keep_the_focus(text, data):
    browser = FakeBrowser(text, at(1, 1))
    for key, k in [("Enter", 3), (" ", 9)]:
        browser.focus("#measures button", k)
        browser.press(key)
        where = browser.where()
        assert (where.text, where.given["aria-pressed"]) == (data["measures"][k]["label"], "true")
        assert browser.texts("#says") == [data["measures"][k]["says"]]
    for key, k in [("Enter", 2), (" ", 1)]:
        browser.focus("#head .choices button", k)
        browser.press(key)
        where = browser.where()
        assert (where.text, where.given["aria-pressed"]) == (data["examples"][k]["name"], "true")
    assert browser.texts("#head h2") == ["Layer 1, head 1"]


def test_links_step_through_the_heads_and_keep_the_focus(text):
    browser = FakeBrowser(text, at(0, 0))
    assert not browser.see('#head a[rel="prev"]')
    browser.focus('#head a[rel="next"]')
    for layer, head in ALL[1:]:
        browser.press("Enter")
        assert browser.texts("#head h2") == [f"Layer {layer}, head {head}"]
        assert browser.where().hash == at(layer, head)
        if (layer, head) != ALL[-1]:
            assert browser.where().given["rel"] == "next"
    assert not browser.see('#head a[rel="next"]')
    assert browser.where().given["id"] == "head"
    browser.click('#head a[rel="prev"]')
    assert browser.texts("#head h2") == ["Layer 1, head 1"]
    assert browser.where().text == "← L1H0"


def test_the_address_decides_which_head_is_open(text):
    assert FakeBrowser(text, "#L1H2").texts("#head h2") == ["Layer 1, head 2"]
    for address in ("#L2H0", "#L0H3", "#heads-title", "#L1H2x"):
        assert FakeBrowser(text, address).texts("#head h2") == []
    browser = FakeBrowser(text, "#L1H2")
    browser.visit("#heads-title")
    assert browser.texts("#head h2") == ["Layer 1, head 2"]
    browser.visit("#L0H1")
    assert browser.texts("#head h2") == ["Layer 0, head 1"]
    browser.visit("")
    assert browser.texts("#head") == [""]
    assert [one.given["aria-pressed"] for one in browser.see("#heat button")] == ["false"] * len(ALL)


def test_texts_of_a_user_enter_as_text(text):
    browser = FakeBrowser(text, "#L1H2")
    assert EVIL in browser.texts("#head td")
    assert not browser.see("#head b")


def test_long_names_are_shortened_on_the_map_alone(text):
    browser = FakeBrowser(text, "#L1H2")
    names = ["[CLS]", EVIL[:15] + "…", "a_token_of_many…", "[SEP]"]
    assert browser.texts("#head .map text")[:10] == ["token attended to", "query", *names, *names]
    assert "a_token_of_many_letters" in browser.texts("#head td")


def test_a_page_without_examples_or_max_margin_is_whole(result):
    bare = dataclasses.replace(result, examples=(), max_margin=None, preferences={}, graphs={})
    browser = FakeBrowser(probe_page(bare), "#L1H1")
    assert browser.texts("#head h3") == ["Margins of 50 selections", "All its numbers"]
