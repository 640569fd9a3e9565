"""What every result can do: one line of repr, plain JSON, a plain element in a notebook, a data frame; and the plots of a dozen of them."""

import importlib
import json
import pkgutil
import re
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
from marginlens.result.notebook import in_words
from outline import Outline
from refusals import raised
from result_samples import samples

SAMPLES = samples()
PLOTTED = {name: result for name, result in SAMPLES.items() if hasattr(result, "plot")}
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


def test_every_displayed_class_has_a_sample():
    shown = {type(result).__name__ for result in SAMPLES.values()}
    known = {base.__name__ for result in SAMPLES.values() for base in type(result).__mro__}
    names = {kind.__name__ for kind in displayed_classes()}
    assert names - known == set()
    assert len(shown) > 45


@pytest.mark.parametrize("name", SAMPLES)
def test_a_result_is_frozen_with_one_line_repr_and_plain_dict(name):
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


def test_a_status_has_a_text_and_a_solved_flag():
    assert SAMPLES["a solution"].status.ok
    assert not SAMPLES["an infeasible problem"].status.ok
    assert all(status.sentence.endswith(".") for status in ml.Status)


# ---- in a notebook


@pytest.mark.parametrize("name", SAMPLES)
def test_the_html_is_self_contained(name):
    page = html_of(name)
    elements = Outline(page).elements  # each of them closed
    tags, attributes = {tag for tag, _ in elements}, [pair for _, given in elements for pair in given.items()]
    assert tags <= {"div", "p", "table", "tbody", "tr", "th", "td", "img"}
    draws_itself = type(SAMPLES[name])._repr_html_ is not Displayed._repr_html_
    assert ("img" in tags) == (hasattr(SAMPLES[name], "plot") and not draws_itself)
    assert not [name for name, _ in attributes if name.startswith("on")]
    assert all(value.startswith("data:image/png;base64,") for name, value in attributes if name in ("href", "src"))
    assert len(page) < 200_000


@pytest.mark.parametrize("name", SAMPLES)
def test_the_html_sets_no_color_without_its_background(name):
    # Letters of a color of their own need a ground of their own, on a light page and on a dark one.
    styles = [given.get("style", "") for _, given in Outline(html_of(name)).elements]
    assert all(("color:" in style) == ("background:" in style) for style in styles)


def test_the_html_has_the_printed_text_and_numbers():
    solution, page = SAMPLES["a solution"], html_of("a solution")
    assert repr(solution) in page
    rows = dict(re.findall(r"<tr><th[^>]*>(.*?)</th><td[^>]*>(.*?)</td></tr>", page))
    assert rows["rows"] == "6 × 6 numbers, -0.9687 to 1.271"
    assert rows["status"] == f"OPTIMAL: {solution.status.sentence}"
    refused = html_of("an infeasible problem")
    assert "INFEASIBLE: " in refused
    assert "the certificate proves it" in refused
    first, *_ = str(SAMPLES["an explanation"]).splitlines()
    assert first in html_of("an explanation")


def test_values_are_formatted_as_text():
    assert in_words(np.array([1.0, 2.5])) == "[1, 2.5]"
    assert in_words(np.arange(12.0).reshape(3, 4)) == "3 × 4 numbers, 0 to 11"
    assert in_words(np.full((3, 4), np.nan)) == "3 × 4 entries"
    assert in_words(np.arange(12) < 5) == "12 answers, 5 yes"
    assert in_words(np.array([True, False])) == "[yes, no]"
    assert in_words(np.array([ml.Status.OPTIMAL, ml.Status.OPTIMAL], dtype=object)) == "2 OPTIMAL"
    assert in_words(True) == "yes"
    assert in_words(()) == "none"
    assert in_words(list(range(11))) == "0, 1, 2, 3, 4, 5, 6, 7, and 3 more"
    assert in_words("long " * 100).endswith("…")


def test_data_texts_are_escaped():
    page = html_of("a probe") + html_of("an example of a probe")
    assert "<script" not in page
    assert "&lt;/script&gt;" in page


def test_the_html_without_a_plot_has_the_numbers(monkeypatch):
    solution = SAMPLES["a solution"]

    def empty(self, ax=None):
        raise ml.InputError("The sweep has no finished chunk yet.")

    monkeypatch.setattr(type(solution), "plot", empty)
    page = solution._repr_html_()
    assert "no finished chunk" in page
    assert "OPTIMAL" in page
    monkeypatch.setattr("marginlens.result.notebook.find_spec", lambda name: None)
    page = SAMPLES["a path"]._repr_html_()
    assert "the package matplotlib" in page


# ---- plots


def test_a_dozen_results_have_a_plot():
    assert {type(result).__name__ for result in PLOTTED.values()} == {
        "BilinearSolution",
        "CheckpointCurves",
        "CyclicCorrection",
        "GraphSolution",
        "MarginSolution",
        "MixtureSolution",
        "Path",
        "Prediction",
        "PriorityGraph",
        "ProbeDifference",
        "ProbeResult",
        "Summary",
        "Sweep",
        "TokenDataset",
        "TokenStatistics",
        "Trajectory",
    }


@pytest.mark.parametrize("name", PLOTTED)
def test_a_plot_uses_the_given_axes(name):
    assert PLOTTED[name].plot().figure.number in plt.get_fignums()  # of its own, where none are given
    plt.close("all")
    figure, ax = plt.subplots()
    assert PLOTTED[name].plot(ax) is ax
    assert (ax.get_xlabel() and ax.get_ylabel() and ax.has_data()) or ax.texts
    assert plt.get_fignums() == [figure.number]
    figure.draw_without_rendering()


# ---- tables


@pytest.mark.parametrize("name", TABLES)
def test_a_data_frame_has_the_columns_of_the_result(name):
    table = TABLES[name].to_frame()
    assert len(table.columns) > 1
    if isinstance(TABLES[name], Tabular):
        columns = TABLES[name]._columns()
        assert list(table.columns) == list(columns)
        assert {len(table), *map(len, columns.values())} == {len(table)}
        assert all(isinstance(value, list) for column in table for value in table[column] if np.ndim(value))


def test_a_data_frame_has_numbers_words_and_lists():
    solution = SAMPLES["a solution"]
    table = solution.to_frame()
    np.testing.assert_array_equal(table["multiplier"], solution.multipliers)
    assert table["active"].dtype == bool
    runs = SAMPLES["runs"]
    assert runs.to_frame()["selected"].tolist() == runs.selected.tolist()
    assert set(runs.to_frame()["status"]) == {status.name for status in runs.status}


def test_without_pandas_the_extra_is_named(monkeypatch):
    monkeypatch.setattr("marginlens.errors.find_spec", lambda name: None)
    for name in ("a solution", "a sweep"):
        with raised(MissingExtra, "marginlens[pandas]"):
            SAMPLES[name].to_frame()


# ---- what is declared


def test_declared_quantities_are_printed_and_not_hidden_by_fields():
    displayed_classes()  # which imports all
    waiting, found = [Described], set()
    while waiting:
        found.update(below := set(waiting.pop().__subclasses__()) - found)
        waiting += below
    for kind in found:
        declared = [getattr(kind, name, "") for name in ("quantities", "batch_quantities")]
        assert all(isinstance(line, str) for line in declared), kind
        if "quantities" in vars(kind):  # a dataclass that lacks repr=False would print its fields
            assert kind.__repr__ is Described.__repr__, kind
    assert len(found) > 80
