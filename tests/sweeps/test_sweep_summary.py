"""Tables, summaries and pictures of sweeps, and the commands that show them."""

import numpy as np
import pytest
from scipy.stats import binomtest

import marginlens as ml
from marginlens.sweeps.summary import Numbers, Shares, share_interval
from one_command import command
from refusals import refused

run, numbers = command("sweep")
KEYS = {"n_inputs": [2, 3], "n_tokens": 3, "d": [3, 60], "n_steps": 20, "n_problems": 50, "chunk": 16}
RECORD = ["selection", "norm", "score_gap", "optimality", "steps_taken"]


def is_long(run):
    return run.trajectory.norm > 10.0


def undefined(run):
    return np.where(np.arange(len(run.data)) % 4 == 0, np.nan, np.where(np.arange(len(run.data)) % 4 == 1, np.inf, 1.0))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    measures = {"is_long": is_long, "undefined": undefined}
    return ml.sweep(out=tmp_path_factory.mktemp("sweep") / "made", **KEYS, record=RECORD, measures=measures)


def test_a_summary_says_of_each_cell_what_its_rows_say(made):
    frame, summary = made.table(format="pandas"), made.summary(quantiles=[0.1, 0.5])
    assert [dict(cell.axes) for cell in summary.cells] == [{"n_inputs": n, "d": d} for n in (2, 3) for d in (3, 60)]
    for k, cell in enumerate(summary.cells):
        rows = frame[frame["cell"] == k]
        norm, words = cell.columns["norm"], cell.columns["optimality"]
        assert isinstance(norm, Numbers)
        assert norm.mean == pytest.approx(rows["norm"].mean())
        assert norm.standard_error == pytest.approx(rows["norm"].std() / np.sqrt(50))
        assert norm.quantiles == {0.1: np.sort(rows["norm"])[4], 0.5: np.sort(rows["norm"])[24]}
        assert isinstance(words, Shares)
        assert dict(words.counts) == rows["optimality"].astype(str).value_counts().to_dict()
        assert cell.columns["is_long"].counts.get("true", 0) == rows["is_long"].sum()
        gaps = cell.columns["undefined"]
        assert (gaps.n, gaps.n_undefined, gaps.n_infinite, gaps.mean) == (24, 13, 13, 1.0)
        assert "selection" not in cell.columns


@pytest.mark.parametrize(("count", "n"), [(0, 10), (3, 10), (10, 10), (999, 100_000)])
def test_intervals_of_shares_are_exact(count, n):
    expected = binomtest(count, n).proportion_ci(0.95, method="exact")
    np.testing.assert_allclose(share_interval(count, n), (expected.low, expected.high), rtol=1e-9, atol=0.0)


def test_lists_whose_length_varies_over_the_grid_are_lists(made):
    lengths = [len(row) for row in made.table(["selection"], format="pandas")["selection"]]
    assert lengths == [2] * 100 + [3] * 100


def test_tables_are_the_same_as_arrow_pandas_and_polars(made):
    arrow, pandas, polars = (made.table(["norm"], format=name) for name in ("arrow", "pandas", "polars"))
    assert arrow.column_names == list(pandas.columns) == polars.columns == ["cell", "problem", "n_inputs", "d", "norm"]
    assert arrow["norm"].to_pylist() == pandas["norm"].tolist() == polars["norm"].to_list()
    with pytest.raises(ml.InputError, match="one of arrow, pandas, polars; got 'csv'"):
        made.table(format="csv")
    with refused("columns"):
        made.table(["norms"])


def test_pictures_show_shares_and_numbers_over_an_axis(made):
    shares = made.plot(axis="d")
    assert (shares.get_xlabel(), made.plot().get_xlabel()) == ("d", "n_inputs")
    assert {text.get_text() for text in shares.get_legend().get_texts()} >= {
        "global, n_inputs = 2",
        "local, n_inputs = 3",
    }
    norms = ml.sweep.plot(made.folder, column="norm", axis="n_inputs")
    assert (norms.get_xlabel(), norms.get_ylabel()) == ("n_inputs", "norm")
    with refused("column"):
        made.plot(column="nrom")
    with refused("axis"):
        made.plot(axis="loss")


def test_the_repr_is_one_paragraph(made):
    assert "4 cells (n_inputs: 2, 3; d: 3, 60) with 50 problems each, recording selection, norm" in repr(made)
    assert "16 of 16 chunks (200 of 200 problems)" in repr(made)
    assert "\n" not in repr(made)


# ---- commands


@pytest.fixture
def plan(tmp_path):
    file = tmp_path / "plan.toml"
    file.write_text(
        "n_inputs = 2\nn_tokens = 3\nd = [2, 3]\nn_steps = 5\nn_problems = 6\nchunk = 4\n", encoding="utf-8"
    )
    return file


def test_commands_run_a_plan_and_read_its_folder(plan, tmp_path):
    out = tmp_path / "out"
    for arguments in ((plan, "--out", out), ("--out", out, "--workers", 2, plan), ("run", plan, "--out", out)):
        done = run(*arguments)
        assert done.exit_code == 0, done.output
        assert "4 of 4 chunks (12 of 12 problems)" in " ".join(done.output.split())
    assert numbers("status", out)["is_finished"]
    assert "finished" in run("status", out, "--check").output
    rows = numbers("summary", out)
    assert [row["cell"] for row in rows] == [{"d": 2}, {"d": 3}]
    assert rows[0]["columns"]["status"]["intervals"]["COMPLETED"][1] == 1.0
    assert "optimality" in run("summary", out).output
    table = ml.sweep.table(out)
    for name in ("table.csv", "table.parquet"):
        assert "12 rows. Written to" in " ".join(run("table", out, "--out", tmp_path / name).output.split())
    import pyarrow.csv
    import pyarrow.parquet

    assert pyarrow.parquet.read_table(tmp_path / "table.parquet")["norm"].equals(table["norm"])
    assert pyarrow.csv.read_csv(tmp_path / "table.csv")["norm"].equals(table["norm"])


def test_a_damaged_chunk_is_named_by_the_command(plan, tmp_path):
    run(plan, "--out", tmp_path / "out")
    (tmp_path / "out" / "chunks" / "000001.parquet").write_bytes(b"PAR1")
    done = run(plan, "--out", tmp_path / "out")
    assert done.exit_code == 0
    assert done.stderr.endswith("000001.parquet' is damaged and computed anew.\n")
