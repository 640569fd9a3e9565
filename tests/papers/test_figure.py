"""`marginlens figure`: the tokens of a run of embeddings."""

from pathlib import Path

import pytest

import marginlens_papers
from one_command import command

figure, _ = command("figure")


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
    kept = sorted((Path(marginlens_papers.__file__).parent / "results").glob("embeddings-*.json"))[0]
    for drawn, name, words in (
        ("run", "r.png", b"\x89PNG"),
        ("run", "r.svg", b"worda"),
        (kept, "k.svg", b"posterior difference"),
    ):
        assert figure(drawn, "--plot", name).exit_code == 0
        assert words in Path(name).read_bytes()
    Path("run/tokens.csv").write_text("id,token\n1,a\n")
    assert figure("run", "--plot", "f.svg").exit_code == 2
