"""A refusal in one line: which argument an error names. Its words are tested once per kind, in `surface/test_refusals.py`."""

from contextlib import contextmanager

import pytest

from marginlens.errors import InputError


@contextmanager
def refused(argument):
    """The block must end in an `InputError` of one line that names this argument."""
    with pytest.raises(InputError) as caught:
        yield
    assert caught.value.argument == argument
    assert "\n" not in str(caught.value)
