"""The page's logic without a browser: every file *.test.mjs of this folder, run by node."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab_kernels import needs_node, run_node

pytestmark = needs_node

FILES = sorted(Path(__file__).parent.glob("*.test.mjs"))


@pytest.mark.parametrize("path", FILES, ids=[path.name for path in FILES])
def test_page_logic_tests_pass_in_node(path: Path) -> None:
    done = run_node("--test", str(path))
    assert done.returncode == 0, done.stdout
