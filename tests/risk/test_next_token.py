"""Outputs, risk and gradient of the next-token model: against autograd where it is accurate, and against decimals where it is not."""

import numpy as np
import pytest

from marginlens.data import SequenceDataset
from marginlens.data.sequence_generators import acyclic_sequences, cyclic_sequences
from marginlens.graphs import cyclic_subset
from marginlens.losses.next_token import CrossEntropy, LogLoss, SquaredLoss, SquaredProbability
from marginlens.risk import NextTokenRisk
from marginlens.risk.next_token_heads import as_head, check_head
from plain_losses import unknown
from random_problems import positive_head
from sequence_autograd import autograd
from sequence_decimals import gradient as decimal_gradient
from sequence_decimals import identity_scores, scores_of
from tolerances import AUTOGRAD, HIGH_PRECISION, ROUNDING

LOSSES = [LogLoss(), SquaredLoss(), CrossEntropy(), SquaredProbability()]


def ragged(seed, K=5, d=7, n=6):
    """Sequences of different lengths with repeated tokens, and labels among them."""
    rng = np.random.default_rng(seed)
    sequences = [rng.integers(K, size=int(rng.integers(1, 7))) for _ in range(n)]
    return SequenceDataset(sequences, [int(rng.choice(one)) for one in sequences], rng.normal(size=(K, d)) / np.sqrt(d))


@pytest.mark.statement("C Eq. (19)", "C Eq. (1)", "C (ERM)", "C Eq. (18)")
@pytest.mark.parametrize("loss", LOSSES, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("general", [False, True])
def test_risk_and_gradient_agree_with_autograd(loss, general):
    for seed in range(5):
        ds = ragged(seed)
        W = 2.0 * np.random.default_rng(100 + seed).normal(size=(7, 7))
        C = positive_head(ds, seed) if general else None
        value, theirs = autograd(ds, W, C, type(loss).__name__)
        assert NextTokenRisk(ds, head=C, loss=loss).value(W) == pytest.approx(value, rel=1e-11, abs=ROUNDING)
        for one in (loss, unknown(loss)):  # compiled, and in NumPy
            ours = NextTokenRisk(ds, head=C, loss=one).gradient(W).value()
            assert np.linalg.norm(ours - theirs) < AUTOGRAD * np.linalg.norm(theirs)


@pytest.mark.statement("C Eq. (19)")
@pytest.mark.parametrize("loss", LOSSES, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("size", [1.0, 40.0, 1e3, 1e5])
def test_gradient_is_exact_at_any_norm(loss, size):
    """At ‖W‖ = 1e5 the gradient is far below the smallest float64, and still right to eleven digits."""
    smallest = 0.0
    for seed in range(3):
        ds = (acyclic_sequences if seed % 2 else cyclic_sequences)(4, 4, 3, 3, seed)
        W = size * np.random.default_rng(50 + seed).normal(size=(4, 4))
        for C in (None, ds.E if isinstance(loss, SquaredLoss) else positive_head(ds, seed)):
            H = identity_scores(4) if C is None else scores_of(as_head(ds, C).table)
            found = NextTokenRisk(ds, head=C, loss=loss).gradient(W)
            direction, log_norm = decimal_gradient(ds, W, H, type(loss).__name__)
            assert np.abs(found.array / np.linalg.norm(found.array) - direction).max() < HIGH_PRECISION
            assert found.log_norm == pytest.approx(log_norm, rel=1e-13, abs=1e-10 * max(1.0, size / 100))
            smallest = min(smallest, log_norm)
    assert size < 1e5 or smallest < -745  # the test means what it says


def test_outputs_are_probabilities_without_a_head_and_c_f_with_one():
    ds = ragged(3)
    W = np.random.default_rng(0).normal(size=(7, 7))
    shares = NextTokenRisk(ds).outputs(W)
    assert np.allclose(shares.sum(axis=1), 1.0, rtol=0, atol=ROUNDING)
    f = np.stack([ds.attention(W)[ds.offsets[i] : ds.offsets[i + 1]] @ ds.E[ds[i][0]] for i in range(len(ds))])
    assert np.allclose(NextTokenRisk(ds, head=ds.E).outputs(W), f @ ds.E.T, rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("loss", LOSSES[:2], ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("general", [False, True])
def test_excess_is_the_difference_of_risks_and_linear_in_the_norm(loss, general):
    ds = acyclic_sequences(6, 6, 4, 4, 3)
    C = positive_head(ds, 0) if general else None
    W = np.random.default_rng(1).normal(size=(6, 6))
    H = as_head(ds, C)
    floor = float(np.mean(loss.scalar(H.scores(ds.labels, ds.labels))[0]))
    found = NextTokenRisk(ds, head=C, loss=loss).excess(W)
    plain = NextTokenRisk(ds, head=C, loss=loss).value(W) - floor
    assert found.sign * np.exp(found.log) == pytest.approx(plain, rel=1e-10, abs=ROUNDING)
    if not general:
        far = [float(NextTokenRisk(ds, loss=loss).excess(R * _separator(ds)).log) for R in (1e4, 2e4)]
        assert far[0] < -745
        assert far[1] / far[0] == pytest.approx(2.0, abs=1e-3, rel=0.0)


@pytest.mark.parametrize("gap", [0.5, 4.0, 12.0, 20.0, 24.0, 33.0, 36.5, 40.0, 800.0])
def test_excess_of_one_pair_is_its_closed_form_at_every_size(gap):
    """Two tokens a gap apart: log(1 + e^-gap) under C Eᵀ = I, -log(1 - δ/h) and δ (2 - 2h + δ) with a head, δ = s (h - h')."""
    ds, W = SequenceDataset([[0, 1]], [0], np.eye(2)), np.array([[0.0, gap], [0.0, 0.0]])
    log_s = -gap - np.log1p(np.exp(-gap))
    assert NextTokenRisk(ds).excess(W).log == pytest.approx(
        -gap if gap > 40 else np.log(np.log1p(np.exp(-gap))), abs=ROUNDING, rel=0.0
    )
    for own, other in ((0.8, 0.3), (0.8, -0.1), (0.3, 0.8), (1.5, 0.1)):
        C, delta = np.array([[own, other], [0.0, 1.0]]), np.exp(log_s) * (own - other)
        log, squared = (NextTokenRisk(ds, head=C, loss=loss).excess(W) for loss in LOSSES[:2])
        assert log.sign == np.sign(own - other)
        tiny = log_s + np.log(abs(own - other))
        exact = np.log(np.abs(np.log1p(-delta / own))) if gap < 700 else tiny - np.log(own)
        assert log.log == pytest.approx(exact, abs=ROUNDING, rel=0.0)
        assert squared.sign == np.sign((own - other) * (2.0 - 2.0 * own + delta))
        assert squared.log == pytest.approx(tiny + np.log(np.abs(2.0 - 2.0 * own + delta)), abs=ROUNDING, rel=0.0)


def _separator(ds):
    """A matrix whose logits fall with the place in the order that all labels follow."""
    from marginlens.graphs import priority_graphs
    from marginlens.svm.graph import graph_svm

    return graph_svm(ds.E, priority_graphs(ds)).x


def test_excess_of_an_infinite_log_loss_is_infinite():
    ds = SequenceDataset([[0, 1], [1]], [0, 1], np.eye(2))
    above = NextTokenRisk(ds, head=np.array([[1.0, -3.0], [0.0, 1.0]])).excess(np.zeros((2, 2)))
    assert (above.sign, above.log) == (1.0, np.inf)
    for own in ([-1.0, 1.0], [0.0, 1.0], [1.0, 0.0], [1.0, -1.0]):
        unknown = NextTokenRisk(ds, head=np.diag(own)).excess(np.zeros((2, 2)))
        assert np.isnan(unknown.sign)
        assert np.isnan(unknown.log)


def test_a_sequence_of_one_token_has_zero_gradient():
    ds = SequenceDataset([[1], [1, 1]], [1, 1], np.eye(3))
    for loss in [*LOSSES, *map(unknown, LOSSES)]:
        assert not NextTokenRisk(ds, loss=loss).gradient(np.eye(3)).array.any()
    assert NextTokenRisk(ds).value(np.eye(3)) == 0.0
    assert NextTokenRisk(ds).excess(np.eye(3)).sign == 0.0


def test_the_cyclic_subset_keeps_its_queries():
    """A removed last token still asks: the gradient of the subset is that of the same samples with the query put back."""
    ds = cyclic_sequences(5, 4, 6, 4, 1)
    subset = cyclic_subset(ds)
    W = np.random.default_rng(0).normal(size=(4, 4))
    _, theirs = autograd(subset, W, None, "LogLoss")
    assert np.abs(NextTokenRisk(subset).gradient(W).value() - theirs).max() < AUTOGRAD


def test_a_common_offset_of_embeddings_keeps_accuracy():
    """Weights add up to zero over the tokens of a query, so what all embeddings share drops out of the left factor."""
    ds = ragged(2)
    moved = SequenceDataset([ds[i][0] for i in range(len(ds))], ds.labels, ds.E + 2.0**20)
    W = 2.0**-40 * np.random.default_rng(3).normal(size=(7, 7))
    found = NextTokenRisk(moved).gradient(W)
    direction, _ = decimal_gradient(moved, W, identity_scores(5), "LogLoss")
    assert np.abs(found.array / np.linalg.norm(found.array) - direction).max() < HIGH_PRECISION


# ---- heads


@pytest.mark.statement("C Assumption 4", "C Eq. (17)")
def test_the_dual_basis_is_the_identity_head():
    rng = np.random.default_rng(0)
    ds = SequenceDataset([[0, 1, 2], [3, 2]], [1, 3], rng.normal(size=(4, 6)))
    C = np.linalg.pinv(ds.E).T
    assert check_head(ds, C).assumption_4
    assert as_head(ds, C).table is None
    assert check_head(ds).assumption_3
    assert not check_head(ds, C + 1e-9).assumption_4
    assert np.array_equal(as_head(ds, None).scores(np.array([1, 1]), np.array([1, 2])), [1.0, 0.0])
    W = rng.normal(size=(6, 6))
    assert np.array_equal(NextTokenRisk(ds, head=C).gradient(W).array, NextTokenRisk(ds).gradient(W).array)


@pytest.mark.parametrize(("roundings", "kept"), [(4, False), (64, True)])
def test_a_score_within_the_rounding_of_its_sum_is_zero_or_one(roundings, kept):
    off = roundings * np.finfo(float).eps
    ds = SequenceDataset([[0, 1]], [0], np.array([[1.0, 1.0], [1.0, 2.0]]))
    H = as_head(
        ds, np.array([[1.0, off - 1.0], [0.0, 1.0 + off]])
    ).table  # scores 0 and 1 by cancellation, but for `off`
    assert (H[0, 0] != 0.0) == (H[1, 0] != 1.0) == kept


@pytest.mark.statement("C Assumption 4")
@pytest.mark.parametrize(("off", "identity"), [(1e-11, True), (1e-9, False)])
def test_an_ill_conditioned_inverse_counts_as_identity_head_within_rounding(off, identity):
    ds = SequenceDataset([[0, 1]], [0], np.diag([1.0, 1e-8]))
    assert (as_head(ds, np.array([[1.0, 1e8 * off], [0.0, 1e8]])).table is None) == identity


@pytest.mark.statement("C Assumption 3")
def test_assumption_3_lists_failing_labels_and_rivals():
    ds = SequenceDataset([[0, 1, 2]], [1], np.array([[1.0, 0.0], [0.0, 1.0], [3.0, 0.0]]))
    found = check_head(ds, ds.E)
    assert found.failing.tolist() == [0]
    assert found.rival[0] == 2
    assert found.gap[0] == -2.0
    assert not found.assumption_3
    assert "1 labels fail Assumption 3" in repr(found)
    tie = check_head(ds, np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]))
    assert tie.failing.tolist() == [0, 2]
    unit = ds.E / np.linalg.norm(ds.E, axis=1, keepdims=True)
    unit[2] = [0.6, 0.8]
    assert check_head(SequenceDataset([[0, 1, 2]], [1], unit), unit).assumption_3
    assert check_head(SequenceDataset([[0]], [0], np.ones((1, 2))), np.ones((1, 2))).rival.tolist() == [-1]


def test_a_nonpositive_output_has_no_log_loss():
    ds = SequenceDataset([[0, 1]], [0], np.eye(2))
    assert np.isnan(NextTokenRisk(ds, head=-np.eye(2)).gradient(np.zeros((2, 2))).array).all()
    assert NextTokenRisk(ds, head=-np.eye(2)).value(np.zeros((2, 2))) == np.inf
    with_one_token = SequenceDataset([[0, 1], [1]], [0, 1], np.eye(2))
    for loss in (LogLoss(), unknown(LogLoss())):
        found = NextTokenRisk(with_one_token, head=np.diag([1.0, -1.0]), loss=loss).gradient(np.zeros((2, 2)))
        assert np.isnan(found.array).all()
