"""What the tests of the command line share."""

import pytest


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder of the test's own to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
