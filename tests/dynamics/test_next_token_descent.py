"""Descent on the next-token weights: the compiled loop against NumPy and autograd, batches against single runs, what is saved, errors."""

import numpy as np
import pytest

import marginlens as ml
from marginlens.data.sequence_generators import acyclic_sequences, cyclic_sequences
from marginlens_papers.claims.random_data import random_start
from random_problems import mixed_sequences
from refusals import refused
from tolerances import LOOP_AGREEMENT, ROUNDING, SIX_DIGITS


@pytest.mark.statement("C Algo-GD")
def test_every_step_is_the_step_of_the_exact_gradient():
    ds = cyclic_sequences(6, 8, 6, 4, 0)
    run = ml.descend(ds, optimizer=ml.NormalizedGD(0.1), n_steps=200, record=ml.Record(steps=1))
    W = run.saved["x"]
    for k in (0, 1, 63, 64, 199):
        slope = ml.NextTokenRisk(ds).gradient(W[k]).array
        assert np.abs(W[k + 1] - W[k] + 0.1 * slope / np.linalg.norm(slope)).max() < LOOP_AGREEMENT
    plain = ml.descend(ds, optimizer=ml.GradientDescent(0.3), n_steps=50, record=ml.Record(steps=1)).saved["x"]
    for k in (0, 20, 49):
        assert (
            np.abs(plain[k + 1] - plain[k] + 0.3 * ml.NextTokenRisk(ds).gradient(plain[k]).value()).max()
            < LOOP_AGREEMENT
        )


def test_a_normalised_step_has_its_length_where_the_gradient_almost_cancels():
    """The label is the mean of the others: near W = 0 pulls of order one leave a gradient of 1e-10."""
    others = [0.3, 0.9, -1.7]
    ds = ml.SequenceDataset([[1, 2, 3, 0]], [3], np.array([[x, 0.0] for x in (*others, np.mean(others))]))
    start = np.array([[1e-9, 0.0], [0.0, 0.0]])
    run = ml.descend(ds, optimizer=ml.NormalizedGD(0.1), n_steps=1, start=start)
    assert abs(run.final[0, 0] - start[0, 0]) == pytest.approx(
        0.1, rel=1e-4, abs=ROUNDING
    )  # rounding over what does not cancel


def test_the_loop_continues_below_the_smallest_float64():
    ds = acyclic_sequences(8, 8, 4, 6, 0)
    run = ml.descend(ds, optimizer=ml.NormalizedGD(1.0), n_steps=20_000, record=ml.Record(steps=[10_000, 20_000]))
    assert run.norm > 1.9e4
    assert ml.NextTokenRisk(ds).gradient(run.final).log_norm < -1000
    slope = ml.NextTokenRisk(ds).gradient(run.saved["x"][0]).array
    onwards = ml.descend(ds, optimizer=ml.NormalizedGD(1.0), n_steps=1, start=run.saved["x"][0])
    assert np.abs(onwards.final - run.saved["x"][0] + slope / np.linalg.norm(slope)).max() < 1e-9
    assert run.status is ml.Status.COMPLETED


def test_saved_quantities_are_those_of_the_saved_weights():
    batch = mixed_sequences()[:2]
    names = ("x", "norm", "attention", "selected", "risk", "excess_risk")
    run = ml.descend(batch, n_steps=30, record=ml.Record(steps=10, keep=names))
    assert run.saved.steps.tolist() == [0, 10, 20, 30]
    assert run.saved["x"].shape == (2, 4, 7, 7)
    for b, ds in enumerate(batch):
        for k in range(4):
            W = run.saved["x"][b, k]
            assert run.saved["norm"][b, k] == pytest.approx(np.linalg.norm(W), rel=SIX_DIGITS, abs=ROUNDING)
            assert run.saved["risk"][b, k] == pytest.approx(ml.NextTokenRisk(ds).value(W), rel=1e-13, abs=ROUNDING)
            excess = ml.NextTokenRisk(ds).excess(W)
            assert run.saved["excess_risk"].sign[b, k] == excess.sign
            assert run.saved["excess_risk"].log[b, k] == pytest.approx(float(excess.log), rel=1e-12, abs=ROUNDING)
            flat = run.saved["attention"][b, k][
                np.arange(run.saved["attention"].shape[-1]) < _lengths(ds, run)[:, None]
            ]
            assert np.allclose(flat, ds.attention(W), rtol=0, atol=ROUNDING)
    assert np.array_equal(run.saved["selected"][:, -1], run.selected)
    alone = ml.descend(batch[0], n_steps=30, record=ml.Record(steps=10, keep=names))
    assert alone.saved["x"].shape == (4, 7, 7)
    assert np.allclose(alone.saved["risk"], run.saved["risk"][0], rtol=1e-12, atol=0)
    assert "x" in ml.descend(batch[0], n_steps=3, record=ml.Record()).saved


def test_risks_of_many_steps_are_all_kept(monkeypatch):
    ds = mixed_sequences()[1]
    monkeypatch.setattr("marginlens.risk.next_token._LOGITS_AT_ONCE", 3 * len(ds.tokens))
    run = ml.descend(ds, n_steps=7, record=ml.Record(steps=1, keep=("x", "risk", "excess_risk")))
    assert run.saved["risk"] == pytest.approx(
        [ml.NextTokenRisk(ds).value(W) for W in run.saved["x"]], rel=ROUNDING, abs=ROUNDING
    )
    assert run.saved["excess_risk"].log.shape == (8,)


def _lengths(ds, run):
    """Lengths padded with zeros to the batch's number of samples."""
    return np.concatenate([ds.lengths, np.zeros(run.attention.shape[1] - len(ds), dtype=int)])


def test_a_start_is_taken_or_refused():
    ds = mixed_sequences()
    W = random_start(ds, np.random.default_rng(3))
    assert W.shape == (4, 7, 7)
    assert np.abs(W).max() <= 1 / np.sqrt(7)
    assert np.abs(W).max() > 0.9 / np.sqrt(7)
    assert np.array_equal(W, random_start(ds, 3))
    assert random_start(ds[0], 3).shape == (7, 7)
    for rng in (None, "3", -1, [3]):
        with refused("rng"):
            random_start(ds, rng)
    run = ml.descend(ds, n_steps=0, start=W[0])
    assert np.array_equal(run.final, np.repeat(W[:1], 4, axis=0))
    assert not ml.descend(ds[0], n_steps=0).final.any()


def test_heads_can_be_shared_or_one_per_problem():
    twins = [cyclic_sequences(4, 5, 4, 4, seed) for seed in range(2)]
    C = np.random.default_rng(0).normal(size=(4, 5))
    options = {"loss": ml.CrossEntropy(), "n_steps": 20}
    finals = [ml.descend(twins, head=head, **options).final for head in (C, C.tolist(), [C, C], np.stack([C, C]))]
    assert all(np.array_equal(one, finals[0]) for one in finals)
    mixture = ml.descend(twins, head=[None, C], **options).final
    assert np.array_equal(mixture[1], finals[0][1])
    assert np.array_equal(mixture[0], ml.descend(twins[0], **options).final)
    assert not np.allclose(mixture[0], finals[0][0], rtol=0, atol=1e-3)
