"""Errors in one line: which argument an error names. Its words are tested once per kind, in `surface/test_refusals.py`."""

from contextlib import contextmanager

import pytest

from marginlens.errors import InputError


@contextmanager
def refused(argument):
    """The block must end in an `InputError` of one line that names this argument; `value` of what is yielded is the error."""
    with pytest.raises(InputError) as caught:
        yield caught
    assert caught.value.argument == argument
    assert "\n" not in str(caught.value)


@contextmanager
def raised(kind, *names):
    """The block must end in an error of this kind whose message contains these names of files, packages, settings or numbers."""
    with pytest.raises(kind) as caught:
        yield caught
    assert [name for name in names if name not in str(caught.value)] == [], caught.value


@contextmanager
def warned(kind, *names):
    """The block must warn once, with these names in the message."""
    with pytest.warns(kind) as caught:
        yield
    assert len(caught) == 1
    assert [name for name in names if name not in str(caught[0].message)] == [], caught[0].message
