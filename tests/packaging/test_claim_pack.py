"""A package that adds a claim: built and installed as a user does, then in the ledger, the command line and the report beside ours."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import marginlens as ml
from made_up_packs import on_the_path, write_pack
from marginlens.runtime.packs import CLAIMS, PackWarning
from marginlens_papers import report
from marginlens_papers.claim import Effort, Progress, Verdict
from marginlens_papers.claims import catalogue
from marginlens_papers.commands import claim_ids
from refusals import warned
from tolerances import HANGING

ROOT = Path(__file__).resolve().parents[2]
PACK = ROOT / "examples" / "claim_pack"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder into which pip has installed the example."""
    folder = tmp_path_factory.mktemp("installed")
    source = tmp_path_factory.mktemp("source") / "claim_pack"
    shutil.copytree(PACK, source, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation", "--no-index"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(folder), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANGING, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def found(installed):
    """The example on the path of this process."""
    with on_the_path(installed):
        yield


@pytest.mark.usefixtures("found")
def test_the_ledger_lists_the_claim_with_its_package(tmp_path):
    entry = ml.ledger(tmp_path)["ntp-l1"]
    assert (entry.package, entry.paper, entry.label) == ("marginlens-ntp", "NTP", "NTP Lemma 1")
    assert [entry.package for entry in ml.ledger(tmp_path)].count("") == len(catalogue.claims())
    assert claim_ids("a-l1,nt") == ["a-l1,NTP-L1"]
    claim = catalogue.claim("NTP-L1")
    assert not vars(claim)  # of the object: what its class has, another process finds by importing it
    assert type(pickle.loads(pickle.dumps(claim))) is type(claim)


@pytest.mark.usefixtures("found")
def test_the_claim_runs_and_its_page_names_package_and_paper(tmp_path):
    published = report.reproduce(catalogue.chosen(["ntp-l1"]), tmp_path / "report", effort=Effort.QUICK)
    (entry,) = published.entries
    assert entry.result is not None
    assert entry.result.verdict is Verdict.HOLDS_AS_STATED
    page = published.page.read_text(encoding="utf-8")
    assert " from marginlens-ntp</span>" in page
    assert "Implicit Optimization Bias of Next-Token Prediction" in page
    (stored,) = report.ledger(tmp_path / "report")[-1:]
    assert stored == entry


@pytest.mark.usefixtures("found")
def test_the_verdict_of_the_pack_changes_for_narrow_data(monkeypatch):
    """The statement is false for fewer dimensions than contexts, and the claim must then say so."""
    import marginlens_ntp.separability as module

    monkeypatch.setattr(module, "WIDTHS", (3, 4, 6))
    wide = module.ntp_contexts
    monkeypatch.setattr(module, "ntp_contexts", lambda count, d, rng: wide(count, min(d, 4), rng=rng))
    claim = catalogue.claim("NTP-L1")
    assert claim.judge(claim.compute(Effort.QUICK, Progress())) is Verdict.DOES_NOT_HOLD


def test_the_command_lists_the_pack_and_reports_a_broken_one(installed, tmp_path):
    write_pack(tmp_path, "broken-pack", "raise ValueError('half an idea')", {CLAIMS: {"Z-9": "Z_9"}})
    path = os.pathsep.join([str(installed), str(tmp_path), str(ROOT / "src")])
    command = [sys.executable, "-m", "marginlens", "claims", "--json", "--report", str(tmp_path / "none")]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=HANGING, check=False, env={**os.environ, "PYTHONPATH": path}
    )
    assert done.returncode == 0
    rows = {row["id"]: row for row in json.loads(done.stdout)}
    assert rows["NTP-L1"]["package"] == "marginlens-ntp"
    assert {claim.id for claim in catalogue.claims()} == set(rows) - {"NTP-L1"}
    (line,) = done.stderr.splitlines()
    assert all(name in line for name in ("Z-9", "broken-pack", "ValueError (half an idea)"))


CLAIM = """
from marginlens_papers.claim import Bound, Claim, Finding, Paper

class {name}(Claim):
    labels = ("{label}",)
    title = statement = protocol = paper_value = "A claim."
    expected = {{}}
    source = {source}

    def compute(self, effort, progress):
        return Finding("", {{}})

    def draw(self, finding):
        return {{}}
"""
PAPER = 'Paper("Q", "Nobody", "Nothing", 2026)'


@pytest.mark.parametrize(
    ("entry", "name", "source", "reason"),
    [
        ("Q-1", "Q_2", PAPER, "got Q-2"),
        ("A-F9", "A_F9", "None", "got A-F9"),
        ("Q-1", "Q_1", "None", "got no source"),
        ("R-1", "R_1", PAPER, "key R"),
    ],
)
def test_a_claim_invalid_for_the_ledger_is_left_out(packs, entry, name, source, reason):
    packs("odd-pack", CLAIM.format(name=name, label="Q Thm 1", source=source), {CLAIMS: {entry: name}})
    with warned(PackWarning, f"'{entry}'", "odd-pack", reason):
        assert len(catalogue.known_claims()) == len(catalogue.claims())


def test_objects_that_are_not_claims_are_left_out(packs):
    source = "from marginlens_papers.claim import Claim\nnumber = 3\n\nclass Q_1(Claim):\n    pass\n"
    packs("odd-pack", source, {CLAIMS: {"Q-1": "Q_1", "Q-2": "number"}})
    with pytest.warns(PackWarning) as caught:
        catalogue.known_claims()
    assert len(caught) == 2
    assert all("marginlens_papers.claim.Claim" in str(warning.message) for warning in caught)


def test_a_claim_about_a_paper_of_the_library_needs_no_source(packs):
    packs("more-pack", CLAIM.format(name="A_T99", label="A Thm 3", source="None"), {CLAIMS: {"A-T99": "A_T99"}})
    claim = catalogue.claim("a-t99")
    assert (claim.package, claim.source) == ("more-pack", None)
