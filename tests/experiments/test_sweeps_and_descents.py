"""The runs of X-S, X-N1, X-N2 and X-P2: what they write is what the claims read, without any place of the machine."""

from dataclasses import replace

import numpy as np

import marginlens as ml
from experiments import norm_runs, proof_runs, scale_runs
from marginlens_papers.claim import Effort, Progress, Verdict
from marginlens_papers.claims.a.scale_runs import ScaleRuns, counted, scale_plan
from marginlens_papers.claims.catalogue import claim
from marginlens_papers.claims.ours.norm_runs import SETTINGS, NormRuns, settings_of
from marginlens_papers.claims.ours.norm_runs import norm_runs as take_norm_runs
from marginlens_papers.claims.ours.proof_runs import ProofRuns, table_settings
from marginlens_papers.tables import read_file


def test_counts_of_a_sweep_are_read_as_they_were_written(tmp_path):
    made = counted(ml.sweep(scale_plan(60, widths=(2, 10)), tmp_path / "sweep"))
    runs = replace(made, facts={"command": "python -m experiments.scale_runs", "seconds": 1.0})
    scale_runs.write_scale_runs(runs, tmp_path / "runs.json")
    found = read_file(tmp_path / "runs.json", ScaleRuns)
    assert (found.n_problems, found.facts["seconds"]) == (60, 1.0)
    for name in ("widths", "counts", "misses", "gaps", "first"):
        np.testing.assert_array_equal(getattr(found, name), getattr(runs, name))


def test_the_sweep_prints_the_path_of_its_counts(tmp_path, capsys):
    place = tmp_path / "runs.json"
    assert scale_runs.main(["--problems", "5", "--widths", "3", "--out", str(place)]) == 0
    assert "problems a second" in capsys.readouterr().out
    assert str(tmp_path) not in place.read_text(encoding="utf-8")
    assert scale_runs.main(["--problems", "0", "--out", str(place)]) == 2


def test_shares_of_margins_are_read_as_they_were_written(tmp_path):
    runs = take_norm_runs(SETTINGS["p"].draw(2), SETTINGS["p"].geometries, 200)
    place = tmp_path / "runs.json"
    norm_runs.write_norm_runs(runs, "p", "python -m experiments.norm_runs p --out /there/runs.json", place)
    found = read_file(place, NormRuns, settings_of("p", 200))
    np.testing.assert_allclose(found.share, runs.share, rtol=1e-5, atol=0.0)
    np.testing.assert_array_equal(found.selected, runs.selected)
    assert found.names == runs.names
    assert "/there" not in place.read_text(encoding="utf-8")


def test_the_descents_print_their_path(tmp_path, capsys):
    place = tmp_path / "runs.json"
    assert norm_runs.main(["p", "--steps", "200", "--problems", "1", "--out", str(place)]) == 0
    assert read_file(place, NormRuns).steps[-1] == 200
    assert "mean share of the own margin" in capsys.readouterr().out


def test_proved_limits_are_counted_and_read_by_the_claim(tmp_path, capsys, monkeypatch):
    place = tmp_path / "runs.json"
    assert proof_runs.main(["--problems", "30", "--seed", "3", "--workers", "1", "--out", str(place)]) == 0
    assert "0 contradicted" in capsys.readouterr().out
    assert str(tmp_path) not in place.read_text(encoding="utf-8")
    runs = read_file(place, ProofRuns, table_settings())
    assert runs.total("problems") == runs.facts["settings"]["problems"] == 30
    contradicted = replace(runs, counts=runs.counts + np.eye(6, dtype=np.int64)[2])
    monkeypatch.setattr("marginlens_papers.claims.ours.proofs.archived_proof_runs", lambda: contradicted)
    found = claim("X-P2")
    finding = found.compute(Effort.QUICK, Progress())
    assert finding.numbers["stored_contradictions"] == finding.numbers["contradictions"] == 6
    assert found.judge(finding) is Verdict.DOES_NOT_HOLD

    assert proof_runs.main(["--problems", "0", "--out", str(place)]) == 2
