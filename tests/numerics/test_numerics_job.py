"""The numerics job: every file it lists exists, what a machine cannot do is said, and a failure is a failure."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def job() -> ModuleType:
    spec = importlib.util.spec_from_file_location("numerics_job", ROOT / "tests" / "numerics" / "run.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["numerics_job"] = module
    spec.loader.exec_module(module)
    return module


def test_every_file_of_the_numerics_job_exists(job: ModuleType) -> None:
    assert [name for name in job.FILES if not (ROOT / name).is_file()] == []
    assert len(set(job.FILES)) == len(job.FILES)


def test_arithmetic_that_does_not_apply_is_reported(job: ModuleType) -> None:
    by_name = {one.name.split()[-1]: one for one in job.PERSONALITIES}
    assert by_name["Haswell"].not_applicable("aarch64", frozenset()) == "not applicable: this is aarch64"
    assert by_name["SkylakeX"].not_applicable("x86_64", frozenset({"avx2"})).endswith("this processor has no avx512f")
    assert by_name["THUNDERX"].not_applicable("x86_64", frozenset()) == "not applicable: this is x86_64"
    assert by_name["threads"].not_applicable("riscv64", frozenset()) == ""  # on any machine


def test_an_unsupported_openblas_core_type_is_detected(job: ModuleType) -> None:
    unknown = job.Personality.of_core("NOSUCHCORE", ())
    assert unknown.not_applicable("x86_64", frozenset()).startswith("not applicable: NumPy and SciPy take")


def test_a_failure_prints_the_command_to_reproduce_it(
    job: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lucky = tmp_path / "test_lucky.py"
    lucky.write_text("import os\n\ndef test_it():\n    assert os.environ['KIND'] == 'one'\n")
    kinds = tuple(job.Personality(f"kind {kind}", {"KIND": kind}) for kind in ("one", "another"))
    monkeypatch.setattr(job, "PERSONALITIES", kinds)
    monkeypatch.setattr(job, "FILES", (str(lucky),))
    assert job.main([]) == 1
    printed = capsys.readouterr().out
    assert "kind one: passed" in printed
    assert "kind another: FAILED" in printed
    assert f"again with: KIND=another python -m pytest {lucky}" in printed
