"""Files of the version before features were cut, as it wrote them: every kind still opens with the same content."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import marginlens as ml
from marginlens.lab import read_problem
from marginlens.sweeps import Sweep

FILES = Path(__file__).parent / "earlier_files"
ROUNDING = 1e-9
CONSTANTS = 1e-3  # a proof is searched for with other constants since, so its radius moves a little
PLAN = {
    "n_inputs": 2,
    "n_tokens": 3,
    "d": [3, 5],
    "n_steps": 5,
    "n_problems": 4,
    "chunk": 4,
    "loss": "correlation",
    "optimizer": "sign",
    "record": ["norm", "optimality"],
}


def test_earlier_datasets_can_be_read():
    assert ml.data.load(FILES / "data.npz") == ml.data.figure_1b()[0]
    assert ml.data.load(FILES / "sequences.npz") == ml.data.acyclic_sequences(6, 8, 4, 4, 1)
    assert ml.data.read_sequences(FILES / "sequences.json").data == ml.data.acyclic_sequences(6, 8, 4, 4, 1)


@pytest.mark.parametrize(
    ("file", "optimizer", "loss"),
    [
        ("signs.json", ml.SignDescent(0.1), ml.CorrelationLoss()),
        ("l3.json", ml.SteepestDescent(ml.Lp(3.0), 0.1), ml.Logistic()),
    ],
)
def test_earlier_lab_problems_can_be_read(file, optimizer, loss):
    problem = read_problem(FILES / file)
    assert repr(problem.optimizer) == repr(optimizer)
    assert problem.loss == loss
    data, head = ml.data.figure_1b()
    np.testing.assert_array_equal(problem.data.K, data.K)
    np.testing.assert_allclose(problem.data.scores(problem.head), data.scores(head), rtol=ROUNDING, atol=ROUNDING)


def test_earlier_results_can_be_read():
    data, head = ml.data.figure_8()
    best = ml.att_svm(data, data.optimal(head), norm=ml.LInf())
    solution = ml.MarginSolution.load(FILES / "margin.npz")
    assert solution.norm == best.norm
    np.testing.assert_allclose(solution.x, best.x, rtol=ROUNDING, atol=ROUNDING)
    point = 40.0 * ml.att_svm(data, data.optimal(head)).x
    certificate = ml.certify(data, head, point, optimizer=ml.NormalizedGD(0.1))
    earlier = ml.Certificate.load(FILES / "certificate.npz")
    assert (earlier.loss, repr(earlier.optimizer)) == (certificate.loss, repr(certificate.optimizer))
    assert earlier.radius == pytest.approx(certificate.radius, rel=CONSTANTS, abs=0.0)
    run = ml.Trajectory.load(FILES / "run.npz")
    np.testing.assert_allclose(
        run.final, ml.descend(*ml.data.figure_1b(), n_steps=5).final, rtol=ROUNDING, atol=ROUNDING
    )


def test_earlier_sweeps_can_be_read_and_resumed(tmp_path):
    pytest.importorskip("pyarrow")
    folder = Path(shutil.copytree(FILES / "sweep", tmp_path / "sweep"))
    counts = Sweep.open(folder).summary()[1].columns["optimality"].counts
    fresh = ml.sweep(PLAN, tmp_path / "fresh")
    assert counts == fresh.summary()[1].columns["optimality"].counts
    (folder / "chunks" / "000000.parquet").unlink()
    assert ml.sweep(PLAN, folder).status().is_finished


def test_earlier_monitor_files_can_be_read():
    pytest.importorskip("pyarrow")
    curves = ml.probe.read_run(FILES / "monitor.parquet")
    assert "4 inputs" in repr(curves)
