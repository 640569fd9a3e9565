"""The benchmark of collapse: its archive says what its runs give, and one short run goes through all of it."""

import json

import pytest

from benchmarks import collapse
from marginlens_papers.archive import results_folder


def archived():
    return json.loads((results_folder() / "collapse-bench.json").read_text(encoding="utf-8"))


def test_the_archive_has_every_run_of_the_plan_and_its_rows_follow_from_them():
    archive = archived()
    assert [
        collapse.Spec(**{name: run[name] for name in collapse.Spec.__dataclass_fields__}) for run in archive["runs"]
    ] == collapse.SPECS
    assert collapse.table(archive["runs"]) == archive["rows"]
    assert len(collapse.SPECS) >= 200
    assert sum(spec.is_provoked for spec in collapse.SPECS) == len(collapse.SPECS) / 2


def test_forecasts_tell_collapse_from_health_a_hundred_steps_ahead_and_thresholds_do_not():
    forecast, *thresholds, summary = archived()["rows"]
    assert summary["collapsed"] >= 90
    assert forecast["auc"] >= 0.95
    assert forecast["false_alarms_healthy"] <= 0.02
    assert forecast["alarmed_ahead"] > 0.5  # so that the median lead is at least a hundred steps
    for other in thresholds:
        assert other["auc"] < forecast["auc"]
        assert other["false_alarms_healthy"] > forecast["false_alarms_healthy"]


@pytest.mark.filterwarnings("ignore:mkldnn")  # torch's Muon multiplies in bfloat16, which some processors cannot
@pytest.mark.parametrize("optimizer", ["adam", "muon", "sgd"])
def test_a_short_run_is_watched_and_scored(optimizer, monkeypatch):
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    if optimizer == "muon" and not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")
    monkeypatch.setattr(collapse, "N_STEPS", 70)
    found = collapse.watched_run(collapse.Spec("copy", optimizer, 1e-3, 20, optimizer == "adam", 0, False))
    assert found["collapse"] is None
    assert found["is_finite"]
    assert set(found["scores"]) == {"forecast", "logit", "entropy", "loss"}
    assert found["scores"]["forecast"] < -1000.0  # nothing is near


def test_scores_count_only_until_a_hundred_steps_before_a_collapse():
    runs = [
        {
            "is_provoked": provoked,
            "collapse": when,
            "is_finite": True,
            "scores": dict.fromkeys(("forecast", "logit", "entropy", "loss"), score),
        }
        for provoked, when, score in (
            (True, 400, -50.0),
            (True, 300, -500.0),
            (True, 60, None),
            (False, None, -400.0),
            (False, None, -140.0),
        )
    ]
    forecast, *_, summary = collapse.table(runs)
    assert (forecast["auc"], forecast["alarmed_ahead"], forecast["false_alarms"]) == (0.5, 0.5, 0.5)
    assert (summary["collapsed"], summary["too_early_to_tell"]) == (3, 1)
