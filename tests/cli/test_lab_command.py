"""`marginlens lab`: where the page goes, what it begins with, how it is opened, and how it refuses."""

import json
import webbrowser

import pytest

import marginlens as ml
from marginlens.data import figure_8, write_problem, write_sequences
from marginlens.lab import preset
from marginlens.lab import write_problem as write_lab_problem
from one_command import command, refusal

lab, _ = command("lab")


@pytest.fixture
def opened(monkeypatch):
    """The addresses that a browser is asked to open."""
    addresses = []
    monkeypatch.setattr(webbrowser, "open", lambda address: addresses.append(address) or True)
    return addresses


def beginning(path):
    """What the page begins with."""
    return json.loads(path.read_text(encoding="utf-8").split('id="problem">')[1].split("</script>")[0])


def test_lab_command_writes_the_page_and_opens_it(here, opened):
    result = lab()
    assert result.exit_code == 0, result.output
    assert result.stdout == "Written to lab.html\n"
    assert opened == [(here / "lab.html").as_uri()]
    assert beginning(here / "lab.html") is None
    assert len((here / "lab.html").read_bytes()) <= 400_000
    assert lab("--no-open").exit_code == 0  # over the earlier page
    assert len(opened) == 1


def test_lab_command_opens_the_page_with_the_file(here, opened):
    data, head = figure_8()
    write_problem("p.npz", data, head)
    write_lab_problem("p.json", data, head, start=[1, -1], optimizer=ml.SignDescent(0.2), n_steps=9)
    for file in ("p.npz", "p.json"):
        result = lab(file, "--out", "own.html", "--no-open")
        assert result.exit_code == 0, result.output
        begin = beginning(here / "own.html")
        assert begin["problem"]["keys"] == data.K.tolist()
    assert begin["starts"] == [[1.0, -1.0]]
    assert begin["problem"]["optimizer"] == {"name": "sign-descent", "size": 0.2, "decay": 0.0, "momentum": 0.0}
    assert opened == []


def test_sequences_begin_on_the_text_tab(here, opened):
    write_sequences("text.json", ml.data.figure_2(), names=["a", "b", "c", "d"])
    assert lab("text.json").exit_code == 0
    begin = beginning(here / "lab.html")
    assert begin["tab"] == "text"
    assert begin["text"]["sequences"]["names"] == ["a", "b", "c", "d"]
    assert begin["text"]["sequences"]["labels"] == [3, 1, 2, 2, 0, 1, 1]
    assert begin["text"]["sequences"]["samples"][0] == [1, 3, 0]


def test_a_preset_is_chosen_by_its_name(here, opened):
    assert lab("--preset", "a-f3B").exit_code == 0
    assert beginning(here / "lab.html") == preset("A-F3b").state()
    assert "A-F1a" in refusal(lab("--preset", "A-F99"))


def test_lab_command_without_a_browser_prints_the_path(here, monkeypatch):
    monkeypatch.setattr(webbrowser, "open", lambda address: False)
    result = lab()
    assert result.exit_code == 0
    assert "open the file in one" in result.stdout
