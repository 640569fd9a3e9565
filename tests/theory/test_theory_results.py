"""What the theory exports is documented and tied to a statement; that some test checks each is said in test_documentation.py."""

from marginlens import theory
from marginlens.papers import implementations


def test_exports_exist_and_functions_name_their_statement():
    named = {one.name for one in implementations() if one.module.startswith(("marginlens.theory", "marginlens.risk"))}
    for name in theory.__all__:
        thing = getattr(theory, name)
        assert thing.__doc__
        if not isinstance(thing, type):
            assert thing.__name__ in named
