"""The site of this checkout, built once for all tests of a session without running the gallery and without pages of source, and the
browser that opens it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from browser.conftest import axe, browser, session_browser  # noqa: F401  fixtures that tests of this folder take
from marginlens_papers.documentation.site import SiteSettings, build_site

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site. A warning of Sphinx fails the build, and with it every test here."""
    pytest.importorskip("sphinx", reason="the site needs pip install '.[site]'")
    place = tmp_path_factory.mktemp("site") / "site"
    return build_site(ROOT, place, SiteSettings(runs_examples=False, report="none")).parent
