"""`marginlens reproduce` and `marginlens claims`: what they print, where they write, how they end."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tolerances
from fake_claims import fake_claim, finding, raising
from marginlens.cli import app as cli
from marginlens_papers.claims import catalogue

CLAIMS = (fake_claim("A-1"), fake_claim("A-2"))
TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run the command line in an empty folder, on these claims, with a sentence in the place of the page on a real model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "marginlens_papers.report.model_page.write_model_page", lambda folder, effort, progress: "No model."
    )

    def invoke(*arguments, claims=CLAIMS):
        monkeypatch.setattr(catalogue, "claims", lambda: claims)
        return CliRunner().invoke(cli.app, list(arguments))

    return invoke


def ids():
    return [row["id"] for row in json.loads(Path("report/ledger.json").read_text(encoding="utf-8"))]


def test_reproduce_prints_claims_counts_and_the_report_path(run):
    result = run("reproduce")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        "We checked 2 statements about attention: 2 hold.",
        "Written to report/index.html",
        "No model.",
    ]
    lines = result.stderr.splitlines()
    assert [line.split()[:5] for line in lines] == [["✓", "holds", "as", "stated", name] for name in ("A-1", "A-2")]
    assert run("claims").stdout.splitlines() == lines
    assert Path("report/index.html").is_file()
    assert ids() == ["A-1", "A-2"]


def test_a_failing_claim_exits_1_after_writing_the_report(run):
    noted = fake_claim("A-2", finding(0.9996, note="A word for the page."))
    result = run("reproduce", claims=(fake_claim("A-1", raising(ValueError("no luck"))), noted))
    assert result.exit_code == 1
    assert "ValueError in fake_claims.py" in result.stderr
    assert "A word for the page." not in result.stderr
    assert ids() == ["A-1", "A-2"]


@pytest.mark.parametrize("only", [("--only", "A-3", "--only", "a-1"), ("--only", "A-3, A-1,A-3")])
def test_only_takes_several_ids_in_any_case_and_keeps_the_rest(run, only):
    claims = tuple(fake_claim(f"A-{k}") for k in (1, 2, 3))
    result = run("reproduce", "--quick", *only, claims=claims)
    assert result.exit_code == 0, result.output
    assert ids() == ["A-1", "A-3"]
    assert result.stdout.endswith("Written to report/index.html\n")  # and no other page is made
    run("reproduce", "--only", "A-2", claims=claims)
    rows = json.loads(Path("report/ledger.json").read_text(encoding="utf-8"))
    assert [(row["id"], row["effort"]) for row in rows] == [("A-1", "quick"), ("A-2", "paper"), ("A-3", "quick")]


def test_claims_without_a_report_name_the_searched_path(run):
    result = run("claims", "--report", "nowhere")
    assert result.exit_code == 0
    assert "A-1" in result.stdout
    assert "marginlens reproduce --out nowhere" in result.stderr
    assert run("claims").stderr.endswith(": marginlens reproduce.\n")
    run("reproduce")
    assert run("claims").stderr == ""


@pytest.mark.parametrize("only", ["A-7", "A-1,", ""])
def test_an_unknown_id_exits_with_one_line_and_writes_nothing(run, only):
    result = run("reproduce", "--only", only)
    assert result.exit_code == 2
    assert result.stderr.startswith("marginlens: --only must be ")
    assert "which marginlens claims lists" in result.stderr
    assert result.stdout == ""
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("place", ["taken", "taken/report", "/proc/marginlens", "full", "."])
def test_an_unwritable_output_is_refused_before_computing(run, place):
    Path("taken").write_text("a file")
    Path("full").mkdir()
    Path("full", "thesis.tex").write_text("years of work")
    result = run("reproduce", "--out", place, claims=(fake_claim(compute=raising(SystemExit("computed"))),))
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("marginlens: --out must be a folder")
    assert len(result.stderr.splitlines()) == 1
    assert sorted(path.name for path in Path().rglob("*")) == ["full", "taken", "thesis.tex"]


def stopping(claim_id):
    return fake_claim(claim_id, raising(KeyboardInterrupt()))


THREE = tuple(fake_claim(f"A-{k}") for k in (1, 2, 3))


def test_an_interrupted_run_resumes_with_missing_claims(run):
    stopped = run("reproduce", "--quick", claims=(THREE[0], stopping("A-2"), THREE[2]))
    assert stopped.exit_code == 130
    last = stopped.stderr.splitlines()[-1]
    assert last.startswith("marginlens: interrupted. 1 of 3 claims")
    assert "report/index.html" in last
    assert last.endswith(": marginlens reproduce --resume --quick.")
    listed = run("claims", claims=THREE)
    assert "A-2 and A-3" in listed.stderr
    assert listed.stderr.endswith(": marginlens reproduce --resume --quick.\n")
    resumed = run("reproduce", "--resume", "--quick", claims=THREE)
    assert resumed.exit_code == 0, resumed.output
    assert "A-1" not in resumed.stderr
    assert resumed.stdout.splitlines()[-3:] == [
        "We checked 3 statements about attention: 3 hold.",
        "Written to report/index.html",
        "No model.",
    ]
    assert ids() == ["A-1", "A-2", "A-3"]
    assert run("claims", claims=THREE).stderr == ""


def test_resuming_needs_the_size_of_the_interrupted_run(run):
    nothing = run("reproduce", "--resume", claims=THREE)
    assert nothing.exit_code == 2
    assert "got 'report', which has none." in nothing.stderr
    run("reproduce", "--quick", "--out", "two words", claims=(THREE[0], stopping("A-2"), THREE[2]))
    other = run("reproduce", "--resume", "--out", "two words", claims=THREE)
    assert other.exit_code == 2
    assert ": marginlens reproduce --resume --quick --out 'two words'." in other.stderr
    both = run("reproduce", "--resume", "--only", "A-2", claims=THREE)
    assert both.exit_code == 2
    assert "--resume must be given without --only" in both.stderr


_SLOW = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background hands down an ignored one
import time
import marginlens_command
from fake_claims import fake_claim
from marginlens_papers.claims import catalogue

def compute(effort, progress):
    print("computing", flush=True)
    while True:
        time.sleep(1.0)

finished = [fake_claim("A-1")] * FINISHED
catalogue.claims = lambda: (*finished, fake_claim("A-2", compute))
marginlens_command.main()
"""


@pytest.mark.parametrize(("stop", "n_finished"), [(signal.SIGINT, 1), (signal.SIGTERM, 0)])
def test_a_signal_exits_130_and_keeps_finished_claims(tmp_path, stop, n_finished):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])}
    process = subprocess.Popen(
        [sys.executable, "-c", f"FINISHED = {n_finished}\n{_SLOW}", "reproduce"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout.readline() == "computing\n"
        found = sorted(path.name for path in tmp_path.iterdir())  # the report grows from the first claim on
        assert [name.endswith(".partial") for name in found] == [True, False][: 1 + n_finished]
        process.send_signal(stop)
        output, error = process.communicate(timeout=tolerances.HANGING)
    assert process.returncode == 130
    assert output == ""
    assert "Traceback" not in error
    if n_finished == 0:
        assert error.startswith("marginlens: interrupted. The earlier report")
        assert list(tmp_path.iterdir()) == []
    else:
        assert "marginlens: interrupted. 1 of 2 claims" in error
        assert [path.name for path in tmp_path.iterdir()] == ["report"]
        rows = json.loads((tmp_path / "report" / "ledger.json").read_text(encoding="utf-8"))
        assert [(row["id"], row.get("verdict"), row.get("unfinished")) for row in rows] == [
            ("A-1", "holds_as_stated", None),
            ("A-2", None, "paper"),
        ]
