"""The next-token benchmark: its rows, and that both sides train the same model."""

import numpy as np
import pytest

from benchmarks import nexttoken
from benchmarks.baselines import autograd_nexttoken
from marginlens.data.sequence_generators import acyclic_sequences, cyclic_sequences
from marginlens.dynamics.descend import descend
from marginlens.optimizers import NormalizedGD
from progress_counter import ProgressCounter
from tolerances import LOOP_AGREEMENT


@pytest.mark.parametrize("draw", [acyclic_sequences, cyclic_sequences])
def test_the_autograd_loop_takes_the_same_steps_while_it_is_accurate(draw):
    pytest.importorskip("torch")
    ds = draw(6, 5, 4, 4, 2)
    theirs = autograd_nexttoken(ds, 100, 0.02)
    ours = descend(ds, optimizer=NormalizedGD(0.02), n_steps=100).final
    assert np.abs(ours - theirs).max() < LOOP_AGREEMENT


def test_rows_name_data_and_methods_and_the_summary_has_the_ratio(monkeypatch):
    pytest.importorskip("torch")
    sizes = (
        nexttoken._Size("small", acyclic_sequences, (4, 4, 3, 3), 2, 40, 1, 40),
        nexttoken._Size("short", cyclic_sequences, (4, 4, 3, 3), 1, 20, 1, 20),
    )
    monkeypatch.setattr(nexttoken, "SIZES", sizes)
    monkeypatch.setattr(nexttoken, "COMPARED", 20)
    monkeypatch.setattr(nexttoken, "REPEATS", 1)
    progress = ProgressCounter()
    rows = nexttoken.bench_nexttoken(progress)
    assert [row["data"] for row in rows] == [
        *["small: K = 4, d = 4, n = 3, T = 3"] * 2,
        *["short: K = 4, d = 4, n = 3, T = 3"] * 2,
        "summary",
    ]
    assert rows[1]["times_slower"] == rows[-1]["times_slower_at_fig_3"] > 0.0
    assert rows[1]["difference_of_W"] < LOOP_AGREEMENT
    assert rows[3]["difference_of_W"] < LOOP_AGREEMENT
    assert "mean_corr_to_svm" in rows[0]
    assert "mean_corr_to_svm" not in rows[2]
    assert progress.done == progress.total == 6
