"""Tables, summaries and pictures of sweeps."""

import numpy as np
import pytest
from scipy.stats import binomtest

import marginlens as ml
from marginlens.sweeps import Sweep
from marginlens.sweeps.summary import Numbers, Shares, share_interval
from refusals import refused
from tolerances import ROUNDING, SIX_DIGITS

KEYS = {"n_inputs": [2, 3], "n_tokens": 3, "d": [3, 60], "n_steps": 20, "n_problems": 50, "chunk": 16}
RECORD = ["selection", "norm", "score_gap", "optimality", "steps_taken"]


def is_long(run):
    return run.trajectory.norm > 10.0


def undefined(run):
    return np.where(np.arange(len(run.data)) % 4 == 0, np.nan, np.where(np.arange(len(run.data)) % 4 == 1, np.inf, 1.0))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    measures = {"is_long": is_long, "undefined": undefined}
    return ml.sweep({**KEYS, "record": RECORD, "measures": measures}, tmp_path_factory.mktemp("sweep") / "made")


def test_a_summary_row_aggregates_the_rows_of_its_cell(made):
    frame, summary = made.table().to_pandas(), made.summary(quantiles=[0.1, 0.5])
    assert [dict(cell.axes) for cell in summary.cells] == [{"n_inputs": n, "d": d} for n in (2, 3) for d in (3, 60)]
    for k, cell in enumerate(summary.cells):
        rows = frame[frame["cell"] == k]
        norm, words = cell.columns["norm"], cell.columns["optimality"]
        assert isinstance(norm, Numbers)
        assert norm.mean == pytest.approx(rows["norm"].mean(), rel=SIX_DIGITS, abs=ROUNDING)
        assert norm.standard_error == pytest.approx(rows["norm"].std() / np.sqrt(50), rel=SIX_DIGITS, abs=ROUNDING)
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


def test_ragged_columns_are_lists(made):
    lengths = [len(row["selection"]) for row in made.table(["selection"]).to_pylist()]
    assert lengths == [2] * 100 + [3] * 100


def test_a_table_has_the_requested_columns(made):
    assert made.table(["norm"]).column_names == ["cell", "problem", "n_inputs", "d", "norm"]
    assert made.table(["norm"])["norm"].to_pylist() == made.to_frame()["norm"].tolist()
    with refused("columns"):
        made.table(["norms"])


def test_figures_show_shares_and_numbers_over_an_axis(made):
    shares = made.plot(axis="d")
    assert (shares.get_xlabel(), made.plot().get_xlabel()) == ("d", "n_inputs")
    assert {text.get_text() for text in shares.get_legend().get_texts()} >= {
        "global, n_inputs = 2",
        "local, n_inputs = 3",
    }
    norms = Sweep.open(made.folder).plot(column="norm", axis="n_inputs")
    assert (norms.get_xlabel(), norms.get_ylabel()) == ("n_inputs", "norm")
    with refused("column"):
        made.plot(column="nrom")
    with refused("axis"):
        made.plot(axis="loss")


def test_the_repr_is_one_paragraph(made):
    assert "4 cells (n_inputs: 2, 3; d: 3, 60)" in repr(made)
    assert "16 of 16 chunks (200 of 200 problems)" in repr(made)
    assert "\n" not in repr(made)
