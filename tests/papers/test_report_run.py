"""Running claims: verdicts, what is kept from an earlier report, and reports that are whole whenever they are seen."""

import json

import numpy as np
import pytest

from fake_claims import changed, fake_claim, finding, raising
from marginlens.errors import InputError
from marginlens_papers.claim import Bound, Effort, Finding, Verdict
from marginlens_papers.claims import catalogue
from marginlens_papers.report import Entry, Interrupted, ledger, reproduce, run
from marginlens_papers.report.ledger import read_ledger
from marginlens_papers.report.page import page
from refusals import raised


def snapshot(folder):
    """Every file below a folder with its bytes."""
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def verdicts(report):
    return {entry.id: entry.result.verdict for entry in report.entries}


def test_every_kind_of_ending_has_its_verdict(tmp_path):
    claims = (
        fake_claim("A-1"),
        fake_claim("A-2", finding(0.9996, note="Exact gradients end higher than the paper's.")),
        fake_claim("A-3", finding(0.9)),
        fake_claim("A-4", finding(0.9, assumption_met=False)),
        fake_claim("A-5", raising(ZeroDivisionError("division\nby zero"))),
        fake_claim("A-6", expected={"mean_corr": Bound(low=0.5), "forgotten": Bound(high=1.0)}),
    )
    report = reproduce(claims, tmp_path / "report")
    assert verdicts(report) == {
        "A-1": Verdict.HOLDS_AS_STATED,
        "A-2": Verdict.HOLDS_WITH_CAVEATS,
        "A-3": Verdict.DOES_NOT_HOLD,
        "A-4": Verdict.ASSUMPTION_NOT_MET,
        "A-5": Verdict.DOES_NOT_HOLD,
        "A-6": Verdict.DOES_NOT_HOLD,
    }
    assert [entry.id for entry in report.failures] == ["A-3", "A-5", "A-6"]
    assert str(report.entries[0]) == "Entry(A-1: holds as stated)"
    stopped, forgotten = (entry.result for entry in report.entries[4:])
    assert "ZeroDivisionError in fake_claims.py, line " in stopped.note
    assert stopped.pictures == ()
    assert [check.holds for check in stopped.checks] == [False]
    assert {check.name: check.holds for check in forgotten.checks} == {"mean_corr": True, "forgotten": False}


def test_a_declared_verdict_is_not_a_failure_unless_stopped(tmp_path):
    claims = [
        changed(fake_claim("A-1", finding(0.9)), known=Verdict.DOES_NOT_HOLD),
        changed(fake_claim("A-2", raising(ValueError("no data"))), known=Verdict.DOES_NOT_HOLD),
        changed(fake_claim("A-3", draw=lambda found: {}["nothing"]), known=Verdict.DOES_NOT_HOLD),
        fake_claim("A-4", finding(0.9)),
    ]
    report = reproduce(claims, tmp_path / "report")
    assert set(verdicts(report).values()) == {Verdict.DOES_NOT_HOLD}
    assert [entry.id for entry in report.failures] == ["A-2", "A-3", "A-4"]
    assert [row.result.known for row in read_ledger(report.folder)] == [True, False, False, False]


def test_archived_numbers_are_marked_on_the_page_and_in_the_ledger(tmp_path):
    found = Finding("mean .9996", {"mean_corr": 0.9996, "other": 1.0}, {"corr": np.zeros(3)}, archived=["mean_corr"])
    report = reproduce([fake_claim("A-1", lambda effort, progress: found)], tmp_path / "report")
    (row,) = json.loads((report.folder / "ledger.json").read_text(encoding="utf-8"))
    assert row["archived"] == ["mean_corr"]
    assert read_ledger(report.folder)[0].result == report.entries[0].result
    page = report.page.read_text(encoding="utf-8")
    assert "<small>archived</small>" in page
    assert "<small>ours, archived</small>" in page
    again = reproduce([fake_claim("A-1")], tmp_path / "another").page.read_text(encoding="utf-8")
    assert "archived</small>" not in again


def test_the_watcher_is_called_at_start_and_end_of_every_claim(tmp_path):
    seen = []

    class Watcher:
        def begin(self, claim):
            seen.append(f"begin {claim.id}")
            return lambda done, total: seen.append((done, total))

        def finish(self, entry):
            seen.append(f"finish {entry.id}")

    reproduce((fake_claim("A-1"), fake_claim("A-2")), tmp_path / "report", watcher=Watcher())
    counted = [(done, 3) for done in (1, 2, 3)]
    assert seen == ["begin A-1", *counted, "finish A-1", "begin A-2", *counted, "finish A-2"]


# ---- the ledger on disk


def test_the_ledger_is_strict_json_with_the_promised_keys(tmp_path):
    nowhere = fake_claim("A-2", finding(float("nan")))
    reproduce((fake_claim("A-1"), nowhere), tmp_path / "report")

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    rows = json.loads((tmp_path / "report" / "ledger.json").read_text(encoding="utf-8"), parse_constant=refuse)
    promised = {"id", "label", "statement", "paper_value", "measured", "verdict", "seconds", "note"}
    more = {"title", "protocol", "expected", "numbers", "effort", "figures", "command", "versions", "finished"}
    for row in rows:
        assert promised | more <= set(row)
    decided = {"name": "mean_corr", "low": 0.999, "high": None, "number": 0.9996, "holds": True, "as_stated": False}
    assert rows[0]["expected"] == [
        {**decided, "sentence": "Mean correlation of $p$ with $p^mm$", "unit": "number", "paper": "$.997$"}
    ]
    assert rows[1]["expected"][0]["number"] is None
    assert rows[0]["label"] == "A Fig 9(a), A Thm 4"
    assert rows[0]["versions"]["marginlens"]
    for figure in rows[0]["figures"]:
        assert (tmp_path / "report" / figure["pdf"]).read_bytes().startswith(b"%PDF")
        assert b"<svg" in (tmp_path / "report" / figure["file"]).read_bytes()


def test_a_ledger_of_an_earlier_version_is_read(tmp_path):
    """Without what was added since: sentences and units of the checks, captions, the number of the table."""
    reproduce((fake_claim("A-1"),), tmp_path / "report")
    path = tmp_path / "report" / "ledger.json"
    (row,) = json.loads(path.read_text(encoding="utf-8"))
    del row["headline"], row["note_kind"], row["expected"][0]["sentence"], row["expected"][0]["unit"]
    del row["figures"][0]["caption"], row["figures"][0]["alt"]
    path.write_text(json.dumps([row]), encoding="utf-8")
    (entry,) = read_ledger(tmp_path / "report")
    assert entry.key_check.name == "mean_corr"
    assert entry.result.pictures[0].alt == ""
    assert "mean corr" in page([entry], tmp_path / "report")


def test_a_ledger_entry_round_trips_through_json(tmp_path):
    bounds = {"A-1": Bound(0.1, 1.0), "A-2": Bound(low=0.1), "A-3": Bound(high=1.0)}
    claims = [fake_claim(name, expected={"mean_corr": bound}) for name, bound in bounds.items()]
    report = reproduce((*claims, fake_claim("A-4", raising(ValueError()))), tmp_path / "report")
    assert read_ledger(tmp_path / "report") == list(report.entries)


_UNKNOWN_EFFORT = json.dumps([{**Entry.of(fake_claim()).to_dict(), "unfinished": 3}])


@pytest.mark.parametrize("text", ["{", "{}", "[1]", '[{"id": "A-1"}]', '[{"id": "A-1", "labels": 3}]', _UNKNOWN_EFFORT])
def test_an_unreadable_ledger_is_named(tmp_path, text):
    (tmp_path / "ledger.json").write_text(text)
    with raised(InputError, "ledger.json"):
        read_ledger(tmp_path)


# ---- rerunning some claims


def test_rerunning_one_claim_keeps_the_others(tmp_path):
    folder = tmp_path / "report"
    claims = (fake_claim("A-1"), fake_claim("A-2"), fake_claim("A-3"))
    before = reproduce(claims, folder)
    kept = snapshot(folder)
    again = fake_claim("A-2", finding(0.9991))
    report = reproduce((again,), folder, retained=(claims[0], again, claims[2]))
    assert report.ran == ("A-2",)
    assert [entry.id for entry in report.entries] == ["A-1", "A-2", "A-3"]
    assert report.entries[0] == before.entries[0]
    assert report.entries[1].result.numbers["mean_corr"] == 0.9991
    after = snapshot(folder)
    assert set(after) == set(kept)
    changed = {path.as_posix() for path in kept if after[path] != kept[path]}
    drawn = {f"figures/A-2-correlation{ending}" for ending in (".svg", "-small.png", ".pdf")}
    assert changed == {*drawn, "index.html", "ledger.json"}


def test_user_files_in_the_report_folder_are_kept(tmp_path):
    folder = tmp_path / "report"
    reproduce((fake_claim(),), folder)
    (folder / "notes").mkdir()
    (folder / "notes" / "mine.txt").write_text("keep me")
    (tmp_path / "data").mkdir()
    (folder / "data").symlink_to(tmp_path / "data")
    (folder / "first.txt").symlink_to("notes/mine.txt")
    reproduce((fake_claim(),), folder)
    assert (folder / "notes" / "mine.txt").read_text() == "keep me"
    assert (folder / "data").readlink() == tmp_path / "data"
    assert (folder / "first.txt").readlink().as_posix() == "notes/mine.txt"


# ---- whole or not at all


def test_an_interrupt_before_the_first_result_keeps_the_old_report(tmp_path):
    folder = tmp_path / "report"
    reproduce((fake_claim("A-1"),), folder)
    before = snapshot(tmp_path)
    with raised(KeyboardInterrupt, "now"):
        reproduce((fake_claim("A-1", raising(KeyboardInterrupt("now"))), fake_claim("A-2")), folder)
    assert snapshot(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == ["report"]


def interrupted_report(claims, folder, **options):
    """The report that an interrupted run leaves behind."""
    with pytest.raises(Interrupted) as raised:
        reproduce(claims, folder, **options)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    assert read_ledger(folder) == list(raised.value.report.entries)
    return raised.value.report


def test_an_interrupted_run_publishes_what_it_finished_and_marks_the_rest(tmp_path):
    claims = (fake_claim("A-1"), fake_claim("A-2", raising(KeyboardInterrupt())), fake_claim("A-3"))
    report = interrupted_report(claims, tmp_path / "report", effort=Effort.QUICK)
    assert report.ran == ("A-1",)
    assert [entry.id for entry in report.unfinished] == ["A-2", "A-3"]
    assert [(entry.result is None, entry.unfinished) for entry in report.entries] == [
        (False, None),
        (True, Effort.QUICK),
        (True, Effort.QUICK),
    ]
    text = report.page.read_text(encoding="utf-8")
    assert "incomplete</title>" in text
    assert "A-2, A-3 (<code>marginlens reproduce --resume --quick</code>" in text
    assert text.count("not run") == 2


def test_the_report_is_written_after_every_claim(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "_PUBLISH_SECONDS", -1.0)
    seen = []

    def look(effort, progress):
        seen.append([(entry.id, entry.verdict) for entry in read_ledger(tmp_path / "report")])
        assert page(read_ledger(tmp_path / "report"), tmp_path / "report")
        return finding(0.9996)(effort, progress)

    reproduce([fake_claim(f"A-{k}", look) for k in (1, 2, 3)], tmp_path / "report")
    assert seen == [
        [],
        [("A-1", "holds as stated"), ("A-2", "not run"), ("A-3", "not run")],
        [("A-1", "holds as stated"), ("A-2", "holds as stated"), ("A-3", "not run")],
    ]
    pictures = [picture for entry in read_ledger(tmp_path / "report") for picture in entry.result.pictures]
    assert len(pictures) == 3
    assert all((tmp_path / "report" / picture.file).is_file() for picture in pictures)


def test_an_empty_folder_or_a_link_can_hold_the_report(tmp_path):
    (tmp_path / "empty").mkdir()
    reproduce((fake_claim(),), tmp_path / "empty")
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    report = reproduce((fake_claim("A-2"),), tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert report.page == (tmp_path / "empty" / "index.html")


def test_the_ledger_is_a_sequence_by_number_and_by_id(tmp_path, monkeypatch):
    claims = (fake_claim("A-1"), fake_claim("A-2"))
    monkeypatch.setattr(catalogue, "claims", lambda: claims)
    reproduce(claims[1:], tmp_path / "report")
    found = ledger(tmp_path / "report")
    assert len(found) == 2
    assert found["a-2"] is found[1] is found[-1]
    assert [entry.id for entry in found[:1]] == ["A-1"]
    assert found.to_dict()["A-2"]["verdict"] == "holds_as_stated"
    assert found.to_frame()["claim"].tolist() == ["A-1", "A-2"]
    assert repr(found) == "Ledger(1 of 1 claim holds as stated)"
    with pytest.raises(InputError):
        found["A-3"]
