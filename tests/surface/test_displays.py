"""What every result can do: one line of repr, plain JSON, HTML for light and dark, a picture, a data frame."""

import importlib
import json
import pkgutil
import re
import sys
from contextlib import suppress
from dataclasses import FrozenInstanceError, fields, is_dataclass
from functools import cache

import matplotlib.pyplot as plt
import numpy as np
import pytest

import marginlens
import marginlens as ml
from marginlens.errors import MissingExtra
from marginlens.result import Described, Displayed, Result, Tabular
from outline import Outline
from result_samples import samples

SAMPLES = samples()
TABLES = {name: result for name, result in SAMPLES.items() if hasattr(result, "to_frame")}


@cache
def html_of(name):
    """The display of a sample in a notebook."""
    return SAMPLES[name]._repr_html_()


@pytest.fixture(autouse=True)
def _closed_figures():
    yield
    plt.close("all")


def displayed_classes():
    """Every class of the library that shows itself."""
    for module in pkgutil.walk_packages(marginlens.__path__, "marginlens."):
        if not module.name.startswith(("marginlens.cli", "marginlens.gpu", "marginlens.__main__")):
            with suppress(MissingExtra):  # as Triton is, where there is no GPU
                importlib.import_module(module.name)
    waiting, found = [Displayed], set()
    while waiting:
        for kind in waiting.pop().__subclasses__():
            waiting.append(kind)
            if kind.__module__.startswith("marginlens.") and not kind.__name__.startswith("_") and kind is not Result:
                found.add(kind)
    return found


def test_every_class_that_shows_itself_is_among_the_samples():
    shown = {type(result).__name__ for result in SAMPLES.values()}
    known = {base.__name__ for result in SAMPLES.values() for base in type(result).__mro__}
    names = {kind.__name__ for kind in displayed_classes()}
    assert names - known == set()
    assert len(shown) > 50


@pytest.mark.parametrize("name", SAMPLES)
def test_a_result_is_frozen_its_repr_is_one_line_and_its_dict_is_plain(name):
    result = SAMPLES[name]
    assert "\n" not in repr(result)
    assert len(type(result).__name__) + 2 < len(repr(result)) <= 260
    if is_dataclass(result):
        with pytest.raises(FrozenInstanceError):
            setattr(result, fields(result)[0].name, None)
    if hasattr(result, "to_dict"):
        described = json.loads(json.dumps(result.to_dict(), allow_nan=False))
        if isinstance(status := getattr(result, "status", None), ml.Status):
            assert described["status"] == status.name


def test_a_status_has_a_sentence_and_says_whether_the_answer_was_found():
    assert SAMPLES["a solution"].status.ok
    assert not SAMPLES["an infeasible problem"].status.ok
    assert all(status.value.endswith(".") for status in ml.Status)


@pytest.mark.parametrize("name", SAMPLES)
def test_the_html_is_whole_and_needs_nothing_else(name):
    page = html_of(name)
    elements = Outline(page).elements  # each of them closed
    tags, attributes = {tag for tag, _ in elements}, [pair for _, given in elements for pair in given.items()]
    assert type(SAMPLES[name]).__name__ in page
    assert "svg" in tags
    assert "There is no picture" not in page
    assert not {"script", "iframe", "link", "object", "foreignobject"} & tags
    assert not [name for name, _ in attributes if name.startswith("on")]
    addresses = [value for name, value in attributes if name in ("href", "src", "xlink:href")]
    assert all(address.startswith(("#", "data:")) for address in addresses)
    assert len(page) < 400_000
    ids = [value for name, value in attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert all(address[1:] in ids for address in addresses if address.startswith("#"))


@pytest.mark.parametrize("name", SAMPLES)
def test_the_html_has_no_ink_that_vanishes_on_a_dark_or_a_light_ground(name):
    page = html_of(name)
    for colour in re.findall(r"(?:fill|stroke|color|background)\s*[:=]\s*['\"]?(#[0-9a-fA-F]{6})\b", page):
        light = relative_luminance(colour)
        against = min(contrast(light, relative_luminance(ground)) for ground in ("#ffffff", "#1e1e1e"))
        assert against > 1.15, colour  # marks may be faint, yet are seen on both
    text_colours = re.findall(r"<text[^>]*?(?:style=\"[^\"]*fill: |fill=\")(#[0-9a-fA-F]{6})", page)
    for colour in text_colours:
        assert min(contrast(relative_luminance(colour), relative_luminance(g)) for g in ("#ffffff", "#1e1e1e")) >= 4.5


def relative_luminance(colour):
    channels = np.array([int(colour[k : k + 2], 16) for k in (1, 3, 5)]) / 255.0
    linear = np.where(channels <= 0.03928, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(a, b):
    return (max(a, b) + 0.05) / (min(a, b) + 0.05)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_picture_is_drawn_on_the_axes_that_are_given(name):
    assert SAMPLES[name].plot().figure.number in plt.get_fignums()  # of its own, where none are given
    plt.close("all")
    figure, ax = plt.subplots()
    assert SAMPLES[name].plot(ax) is ax
    assert ax.get_xlabel()
    assert ax.get_ylabel()
    assert ax.has_data() or ax.texts
    assert plt.get_fignums() == [figure.number]
    figure.draw_without_rendering()


@pytest.mark.parametrize("name", TABLES)
def test_a_data_frame_is_the_same_in_every_library(name):
    result = TABLES[name]
    pandas, polars, arrow = (result.to_frame(library) for library in ("pandas", "polars", "pyarrow"))
    assert list(pandas.columns) == list(polars.columns) == list(arrow.column_names)
    assert len(pandas) == len(polars) == arrow.num_rows
    assert len(pandas.columns) > 1
    for column in pandas.columns:
        first, second, third = pandas[column].tolist(), polars[column].to_list(), arrow[column].to_pylist()
        assert same(first, second), column
        assert same(second, third), column
    assert type(result.to_frame()) is type(pandas)


def same(a, b):
    if isinstance(a, list | np.ndarray) or isinstance(b, list | np.ndarray):
        return len(a) == len(b) and all(map(same, list(a), list(b)))
    return a == b or (a != a and b != b)


@pytest.mark.parametrize("name", [name for name, result in SAMPLES.items() if isinstance(result, Tabular)])
def test_the_first_rows_stand_behind_a_closed_line(name):
    page, rows = html_of(name), len(SAMPLES[name].to_frame())
    assert ("<details>" in page) == (rows > 0) or "more field" in page
    if rows > 10:
        assert f"the first 10 of {rows:,} rows" in page
    assert "<details open" not in page


# ---- which library makes the frame


def test_the_frame_is_of_the_first_library_that_is_installed_and_what_is_missing_is_named(monkeypatch):
    solution = SAMPLES["a solution"]
    for library in ("pandas", "polars", "pyarrow"):
        assert type(solution.to_frame()).__module__.split(".")[0] == library
        with pytest.raises(ml.InputError):
            solution.to_frame("excel")
        monkeypatch.setitem(sys.modules, library, None)
        with pytest.raises(ml.errors.MissingExtra, match=library):
            solution.to_frame(library)
    with pytest.raises(ml.errors.MissingExtra, match=r"pip install 'marginlens\[pandas\]'"):
        solution.to_frame()
    assert "to_frame" in solution._repr_html_()  # the display needs none of them


# ---- what stands on top


def test_the_status_and_its_sentence_stand_on_top():
    page = html_of("an infeasible problem")
    assert page.index("INFEASIBLE") < page.index("<table>")
    assert "the certificate proves it" in page
    assert "ml-not" in re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL)


def test_texts_of_data_never_become_markup():
    page = html_of("a probe") + html_of("an example of a probe")
    assert "<script" not in page
    assert "&lt;/script&gt;" in page


def test_a_result_whose_picture_fails_still_shows_its_numbers(monkeypatch):
    solution = SAMPLES["a solution"]

    def broken(self, ax=None):
        raise RuntimeError("no ink left")

    monkeypatch.setattr(type(solution), "plot", broken)
    page = solution._repr_html_()
    assert "no ink left" in page
    assert "OPTIMAL" in page


# ---- what is declared


def test_a_class_that_declares_its_quantities_prints_them_and_no_field_hides_them():
    displayed_classes()  # which imports all
    waiting, found = [Described], set()
    while waiting:
        found.update(below := set(waiting.pop().__subclasses__()) - found)
        waiting += below
    for kind in found:
        declared = [getattr(kind, name, "") for name in ("quantities", "batch_quantities", "table_quantities")]
        assert all(isinstance(line, str) for line in declared), kind
        if "quantities" in vars(kind):  # a dataclass that lacks repr=False would print its fields
            assert kind.__repr__ is Described.__repr__, kind
    assert len(found) > 80
