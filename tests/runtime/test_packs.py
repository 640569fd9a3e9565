"""Packs of other packages: found without being imported, loaded when asked for, and left out in one sentence where they are broken."""

from __future__ import annotations

import sys

import pytest

import marginlens as ml
from marginlens.errors import InputError
from marginlens.runtime.packs import ADAPTERS, CLAIMS, DATASETS, PackWarning, load_packs, pack_names


def test_names_are_listed_without_importing_the_package(packs):
    packs("loud-pack", "raise RuntimeError('imported')", {DATASETS: {"loud": "make"}, CLAIMS: {"Z-1": "Z_1"}})
    assert pack_names(DATASETS) == ("loud",)
    assert pack_names(CLAIMS) == ("Z-1",)
    assert pack_names(ADAPTERS) == ()
    assert "loud" in ml.data.dataset_names()
    assert "loud_pack" not in sys.modules


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (
            "raise RuntimeError('no licence\\nfound')",
            r"importing bad_pack:make raised RuntimeError \(no licence found\)",
        ),
        ("import a_package_that_nobody_has", r"raised ModuleNotFoundError \(No module named"),
        ("import sys\nsys.exit(3)", r"raised SystemExit \(3\)"),
        ("def other(): ...", r"raised AttributeError"),
        ("make = 3", r"bad_pack:make must be a function that returns a dataset; got int instead"),
        ("def make(:", r"raised SyntaxError"),
    ],
)
def test_a_broken_pack_is_named_in_one_sentence(packs, source, reason):
    packs("bad-pack", source, {DATASETS: {"bad": "make"}})
    with (
        pytest.warns(PackWarning, match=rf"^The dataset 'bad' of the package bad-pack is left out: .*{reason}.*\.$"),
        pytest.raises(InputError, match="'name' argument"),
    ):
        ml.data.dataset("bad")


def test_the_others_go_on(packs):
    packs("bad-pack", "1 / 0", {DATASETS: {"bad": "make"}})
    packs("good-pack", "def make(size=2): return [0] * size", {DATASETS: {"good": "make"}})
    with pytest.warns(PackWarning, match="'bad' of the package bad-pack") as caught:
        loaded = load_packs(DATASETS)
    assert [(added.name, added.package) for added in loaded] == [("good", "good-pack")]
    assert len(caught) == 1
    assert ml.data.dataset("good", size=3) == [0, 0, 0]


def test_the_first_of_two_packs_with_the_same_name_has_it(packs):
    packs("b-pack", "def make(): return 'b'", {DATASETS: {"same": "make"}})
    packs("a-pack", "def make(): return 'a'", {DATASETS: {"same": "make"}})
    with pytest.warns(PackWarning, match="package b-pack is left out: the package a-pack has one of the same name"):
        assert ml.data.dataset("same") == "a"


def test_every_dataset_of_the_library_has_its_name():
    for name in ml.data.dataset_names():
        assert callable(getattr(ml.data, name))
    data, head = ml.data.dataset("figure_1b")
    expected, expected_head = ml.data.figure_1b()
    assert (data.X == expected.X).all()
    assert (head == expected_head).all()
    with pytest.raises(InputError, match=r"Did you mean figure_1b\?"):
        ml.data.dataset("figure_1bb")


ADAPTER = """
from marginlens.probe.models.adapters.encoders import BertAdapter

class Ernie(BertAdapter):
    families = ("ernie", "bert")
"""


def test_an_adapter_is_loaded_when_its_family_is_looked_up(packs):
    from types import SimpleNamespace

    from marginlens.probe.models.adapters import check_family, supported_families
    from marginlens.probe.models.adapters.encoders import BertAdapter

    packs("ernie-pack", ADAPTER, {ADAPTERS: {"ernie": "Ernie", "wrong": "Ernie"}})
    assert "ernie" in supported_families()
    assert check_family(SimpleNamespace(model_type="bert")) is BertAdapter  # which the pack does not list
    assert "ernie_pack" not in sys.modules
    assert check_family(SimpleNamespace(model_type="ernie")).__name__ == "Ernie"
    with pytest.warns(PackWarning, match="'wrong' of the package ernie-pack is left out: .* among its families"):
        assert check_family(SimpleNamespace(model_type="wrong")) is None
