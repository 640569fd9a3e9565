"""Sweeps of tests are computed in the process of the test unless it says otherwise: starting others takes longer than the problems."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def _one_processor():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MARGINLENS_THREADS", "1")
        yield
