"""What the theory exports is documented and tied to a statement that some test checks."""

import re
from pathlib import Path

from marginlens import theory
from marginlens.papers import implementations

TESTS = Path(__file__).resolve().parents[1]


def test_everything_exported_exists_and_every_function_names_its_statement():
    named = {one.name for one in implementations() if one.module.startswith(("marginlens.theory", "marginlens.risk"))}
    for name in theory.__all__:
        thing = getattr(theory, name)
        assert thing.__doc__
        if not isinstance(thing, type):
            assert name in named


def test_every_statement_of_the_theory_has_a_test():
    marked = set()
    for path in [*TESTS.rglob("test_*.py")]:
        for labels in re.findall(r"mark\.statement\(([^\n]*)\)", path.read_text(encoding="utf-8")):
            marked |= set(re.findall(r'"([^"]+)"', labels))
    cited = {
        one.citation for one in implementations() if one.module.startswith(("marginlens.theory", "marginlens.risk"))
    }
    assert len(cited) > 25
    assert cited <= marked
