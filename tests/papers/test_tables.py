"""Tables of long runs as claims read them: missing ones, other contents and other settings are refused in one sentence."""

import json

import pytest

from marginlens_papers import tables
from marginlens_papers.claims.a.scale_runs import ScaleRuns, archived_scale_runs
from marginlens_papers.claims.a.vision_runs import VisionRun, vision_run
from marginlens_papers.claims.b.embedding_runs import EmbeddingRun, embedding_runs
from marginlens_papers.claims.c.held_out import HeldOutTable, shakespeare
from marginlens_papers.claims.c.text_graphs import TextGraphs, text_table
from marginlens_papers.claims.ours.norm_proof_runs import NormProofRuns, archived_norm_proof_runs
from marginlens_papers.claims.ours.norm_proof_shares import NormProofShares, archived_norm_proof_shares
from marginlens_papers.claims.ours.norm_runs import NormRuns, archived_norm_runs
from marginlens_papers.claims.ours.proof_runs import ProofRuns, archived_proof_runs
from refusals import refused

KINDS = [
    ScaleRuns,
    VisionRun,
    EmbeddingRun,
    HeldOutTable,
    TextGraphs,
    NormRuns,
    ProofRuns,
    NormProofRuns,
    NormProofShares,
]
READERS = {
    "scale-runs": archived_scale_runs,
    "vision-cifar10": lambda: vision_run("cifar10"),
    "shakespeare-held-out": shakespeare,
    "shakespeare-window-3": lambda: text_table(3),
    "norm-runs-W-100000": lambda: archived_norm_runs("W", 100_000),
    "norm-runs-p-100000": lambda: archived_norm_runs("p", 100_000),
    "norm-proof-shares": archived_norm_proof_shares,
    "proof-runs": archived_proof_runs,
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_with_other_contents_is_refused(tmp_path, kind):
    for content in ("", "{", "[]", "{}", "[" * 100_000, json.dumps({"form": "x"}), json.dumps({"form": kind.FORM})):
        (tmp_path / "runs.json").write_text(content)
        with refused("path"):
            tables.read_file(tmp_path / "runs.json", kind)
    with refused("path"):
        tables.read_file(tmp_path / "none.json", kind)


@pytest.mark.parametrize("name", READERS)
def test_a_missing_table_names_its_command(tmp_path, monkeypatch, name):
    assert READERS[name]()
    monkeypatch.setattr(tables, "results_folder", lambda: tmp_path)
    with refused("name") as error:
        READERS[name]()
    assert name in error.value.got
    assert error.value.remedy.startswith("In a checkout, `")


def test_proofs_in_norms_of_all_seeds_are_counted_together():
    runs, first = archived_norm_proof_runs(), tables.read("norm-proof-runs-0", NormProofRuns)
    assert runs.total("problems") >= first.total("problems") > 0
    assert runs.contradicted == 0


CHANGES = {
    "scale-runs": lambda values: values["plan"].update(n_steps=10),
    "shakespeare-held-out": lambda values: values.update(file="other.txt"),
    "shakespeare-window-3": lambda values: values["settings"].update(window=4),
    "norm-runs-W-100000": lambda values: values["descents"].update(nuclear="SteepestDescent(norm=Nuclear(), size=1.0)"),
    "norm-runs-p-100000": lambda values: values.update(n_steps=1000),
    "proof-runs": lambda values: values["settings"].update(step=2.0),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_table_of_other_settings_is_refused(tmp_path, monkeypatch, name):
    values = json.loads((tables.results_folder() / f"{name}.json").read_text(encoding="utf-8"))
    monkeypatch.setattr(tables, "results_folder", lambda: tmp_path)
    (tmp_path / f"{name}.json").write_text(json.dumps(values))
    assert READERS[name]()
    CHANGES[name](values)
    (tmp_path / f"{name}.json").write_text(json.dumps(values))
    with refused("path"):
        READERS[name]()


def test_embedding_runs_are_sorted_by_data_depth_and_rate():
    for source, layers in (("imdb", 1), ("imdb", 2), ("yelp", 1), ("yelp", 2), ("levels", 1)):
        found = embedding_runs(source, layers)
        assert {(run.source, run.settings.layers) for run in found} == {(source, layers)}
        rates = [run.settings.learning_rate for run in found]
        assert rates == sorted(rates, reverse=True)
    assert embedding_runs("imdb", 3) == ()
