"""`python -m experiments.figure`: the tokens of a run of embeddings."""

from pathlib import Path

import pytest

from experiments.figure import main as figure
from marginlens_papers.tables import results_folder


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder of the test's own to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_training_runs_and_kept_runs_are_drawn(here):
    rows = [(s, f"word{'abcdef'[s]}", 0.1 * s, 0.2 * s, 0.0, 0.3 * s - 0.9, 300 + s) for s in range(6)]
    head = "id,token,a,b,alpha,posterior_difference,count"
    Path("run").mkdir()
    Path("run/tokens.csv").write_text("\n".join([head, *(",".join(map(str, row)) for row in rows)]))
    kept = sorted(results_folder().glob("embeddings-*.json"))[0]
    for drawn, name, words in (
        ("run", "r.png", b"\x89PNG"),
        ("run", "r.svg", b"worda"),
        (kept, "k.svg", b"posterior difference"),
    ):
        assert figure([str(drawn), name]) == 0
        assert words in Path(name).read_bytes()
    Path("run/tokens.csv").write_text("id,token\n1,a\n")
    assert figure(["run", "f.svg"]) == 2
