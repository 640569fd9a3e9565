"""The bibliography and the registry of statements."""

import pytest

from marginlens import papers
from marginlens.papers import Implementation, implementations, implements, used_inside, uses
from refusals import raised


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    """An empty registry, so that what a test records is gone afterwards."""
    monkeypatch.setattr(papers, "_REGISTRY", [])


def test_a_decorated_function_is_recorded_once_and_unchanged():
    def relaxed():
        """Shortest p that only selects.

        More.
        """

    assert implements("A", "Eq. (10)", "Thm 6")(relaxed) is relaxed
    name = relaxed.__qualname__
    assert implementations() == (
        Implementation("A", "Eq. (10)", __name__, name, "Shortest p that only selects."),
        Implementation("A", "Thm 6", __name__, name, "Shortest p that only selects."),
    )
    assert implementations()[0].citation == "A Eq. (10)"


def test_a_paper_that_is_not_in_the_bibliography_is_refused():
    with raised(KeyError, "Z"):
        implements("Z", "Thm 1")


def test_a_step_inside_a_function_is_recorded_separately():
    @implements("A", "Lemma 7")
    @uses("A", {"Eq. (49)": "The first condition on the radius.", "Eq. (50)": "The second."})
    def radius():
        """Radius."""

    assert [record.citation for record in implementations()] == ["A Lemma 7"]
    assert used_inside() == (
        Implementation(
            "A", "Eq. (49)", __name__, radius.__qualname__, "The first condition on the radius.", inside=True
        ),
        Implementation("A", "Eq. (50)", __name__, radius.__qualname__, "The second.", inside=True),
    )
    with raised(KeyError, "Z"):
        uses("Z", {"Thm 1": "Used."})
