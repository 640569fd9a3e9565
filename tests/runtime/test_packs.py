"""Packs of other packages: found without being imported, loaded when asked for, and left out in one sentence if they are broken."""

from __future__ import annotations

import sys

import pytest

from marginlens.errors import InputError
from marginlens.runtime.packs import CLAIMS, Added, PackWarning, load_pack, load_packs, pack_names
from refusals import warned


def check(added: Added) -> None:
    """Refuse what is no function."""
    if not callable(added.value):
        raise InputError("claim", "a function", type(added.value).__name__)


def test_names_are_listed_without_importing_the_package(packs):
    packs("loud-pack", "raise RuntimeError('imported')", {CLAIMS: {"Z-1": "Z_1"}, "marginlens.datasets": {"z": "z"}})
    assert pack_names(CLAIMS) == ("Z-1",)
    assert "loud_pack" not in sys.modules


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (
            "raise RuntimeError('no licence\\nfound')",
            "RuntimeError (no licence found)",
        ),
        ("import a_package_that_nobody_has", "ModuleNotFoundError"),
        ("import sys\nsys.exit(3)", "SystemExit (3)"),
        ("def other(): ...", "AttributeError"),
        ("make = 3", "bad_pack:make"),
        ("def make(:", "SyntaxError"),
    ],
)
def test_a_broken_pack_is_named(packs, source, reason):
    packs("bad-pack", source, {CLAIMS: {"bad": "make"}})
    with warned(PackWarning, "claim 'bad'", "bad-pack", reason):
        assert load_pack(CLAIMS, "bad", check) is None


def test_other_packs_are_loaded_after_a_broken_one(packs):
    packs("bad-pack", "1 / 0", {CLAIMS: {"bad": "make"}})
    packs("good-pack", "def make(size=2): return [0] * size", {CLAIMS: {"good": "make"}})
    with warned(PackWarning, "'bad'", "bad-pack"):
        loaded = load_packs(CLAIMS)
    assert [(added.name, added.package) for added in loaded] == [("good", "good-pack")]
    assert loaded[0].value(size=3) == [0, 0, 0]


def test_of_two_packs_with_the_same_name_the_first_is_used(packs):
    packs("b-pack", "def make(): return 'b'", {CLAIMS: {"same": "make"}})
    packs("a-pack", "def make(): return 'a'", {CLAIMS: {"same": "make"}})
    with warned(PackWarning, "a-pack", "b-pack"):
        assert load_pack(CLAIMS, "same").value() == "a"
