"""C Eqs (17) to (23), Lemmas 3, 5 and 6 and Theorem 4: what the next-token risk is like."""

import numpy as np
import pytest

import marginlens as ml
from marginlens.data.sequence_generators import acyclic_sequences, cyclic_sequences
from marginlens.graphs.subspace import cyclic_subspace
from marginlens_papers.claims.c.gradient import matrix_form, random_sequences
from tolerances import HIGH_PRECISION, ROUNDING


@pytest.mark.statement("C Eq. (19)")
def test_the_sum_runs_over_the_tokens_that_differ_from_the_label():
    for seed in range(10):
        rng = np.random.default_rng(seed)
        ds = random_sequences(rng)
        W = rng.normal(size=(ds.d_model, ds.d_model))
        found = ml.NextTokenRisk(ds).gradient(W).value()
        assert np.abs(found - matrix_form(ds, W, others=True)).max() < HIGH_PRECISION
        assert not matrix_form(ds, W, others=False).any()  # as printed the sum is empty of content
        assert found.any()


@pytest.mark.statement("C Eq. (23)")
def test_the_sharp_constant_is_attained_by_two_tokens_and_the_papers_is_never_below_it():
    E = np.array([[1.0, 0.0], [-1.0, 0.0]])
    two = ml.SequenceDataset([[0, 1]], [0], E)
    h = 1e-4
    along = np.array([[-1.0, 0.0], [0.0, 0.0]])
    slope = np.linalg.norm(
        ml.NextTokenRisk(two).gradient(h * along).value() - ml.NextTokenRisk(two).gradient(-h * along).value()
    ) / (2 * h)
    assert slope == pytest.approx(ml.NextTokenRisk(two).sharp_smoothness(), rel=1e-6)
    assert ml.NextTokenRisk(two).sharp_smoothness() == pytest.approx(1.0)
    # the fourth power, as far as there are numbers
    for scale, smooth in ((1e-50, 1e-200), (1e-160, 0.0), (1e160, np.inf)):
        longer = ml.SequenceDataset([two[i][0] for i in range(len(two))], two.labels, scale * two.E)
        assert ml.NextTokenRisk(longer).sharp_smoothness() == pytest.approx(smooth, rel=1e-6, abs=0.0)
        assert ml.NextTokenRisk(longer).smoothness() >= ml.NextTokenRisk(longer).sharp_smoothness()
    assert ml.NextTokenRisk(two).smoothness() == pytest.approx(2.0 * np.sqrt(2.0) * 4.0)
    for seed in range(50):
        ds = random_sequences(np.random.default_rng(seed))
        assert ml.NextTokenRisk(ds).sharp_smoothness() * 4.0 * np.sqrt(ds.lengths.max()) <= ml.NextTokenRisk(
            ds
        ).smoothness() * (1 + ROUNDING)


@pytest.mark.statement("C Eq. (23)")
def test_repeated_tokens_break_the_bound_on_x_but_not_the_constant():
    """‖X‖ = √T ‖e‖ exceeds ‖E‖ when one token is repeated, which Eq. (21) overlooks."""
    E = np.eye(2)
    ds = ml.SequenceDataset([[0, 1, 1, 1, 1, 1, 1]], [0], E)
    assert np.linalg.norm(E[ds[0][0]], 2) > np.linalg.norm(E, 2)
    rng = np.random.default_rng(0)
    for _ in range(30):
        W, V = 3.0 * rng.normal(size=(2, 2, 2))
        apart = np.linalg.norm(ml.NextTokenRisk(ds).gradient(W).value() - ml.NextTokenRisk(ds).gradient(V).value())
        assert apart <= ml.NextTokenRisk(ds).sharp_smoothness() * np.linalg.norm(W - V)


@pytest.mark.statement("C Lemma 5")
def test_steps_up_to_one_over_l_keep_their_promise_and_long_ones_break_it():
    E = np.array([[1.0, 0.0], [-1.0, 0.0]])
    tied = ml.SequenceDataset([[0, 1], [1, 0, 1]], [0, 1], E)  # cyclic: the minimum is finite and the curvature stays
    for ds in (tied, cyclic_sequences(5, 4, 5, 4, 0), random_sequences(np.random.default_rng(3))):
        ratios = _promise_kept(ds, 1.0 / ml.NextTokenRisk(ds).sharp_smoothness())
        assert ratios.min() >= 1.0 - 1e-6
        assert _promise_kept(ds, 1.0 / ml.NextTokenRisk(ds).smoothness()).min() > 1.0
    # far beyond, the risk goes up
    assert _promise_kept(tied, 12.0 / ml.NextTokenRisk(tied).sharp_smoothness()).min() < 0.0


def _promise_kept(ds, eta):
    """Decrease of the risk over η/2 ‖∇L‖² along forty steps, where it can be told from rounding."""
    start = 0.5 * np.random.default_rng(1).normal(size=(ds.d_model, ds.d_model))
    run = ml.descend(
        ds, optimizer=ml.GradientDescent(eta), n_steps=40, start=start, record=ml.Record(keep=("x", "risk"))
    )
    promised = np.array(
        [0.5 * eta * np.sum(ml.NextTokenRisk(ds).gradient(W).value() ** 2) for W in run.saved["x"][:-1]]
    )
    clear = promised > 1e-9
    return (-np.diff(run.saved["risk"]) / np.where(clear, promised, 1.0))[clear]


@pytest.mark.statement("C Lemma 3")
def test_the_log_loss_is_convex_and_the_squared_loss_is_not():
    above = {"log": [], "squared": []}
    for seed in range(20):
        rng = np.random.default_rng(seed)
        ds = cyclic_sequences(5, 4, 4, 4, rng)
        for _ in range(5):
            W, V = 4.0 * rng.normal(size=(2, 4, 4))
            for name, options in (("log", {}), ("squared", {"loss": ml.SquaredLoss()})):
                middle, first, last = (ml.NextTokenRisk(ds, **options).value(one) for one in ((W + V) / 2, W, V))
                above[name].append(middle - 0.5 * (first + last))
    assert max(above["log"]) <= ROUNDING
    assert max(above["squared"]) > 0.01


@pytest.mark.statement("C Lemma 3")
def test_on_s_cyc_the_curvature_is_positive_in_every_direction_and_elsewhere_it_may_vanish():
    for seed in range(5):
        ds = cyclic_sequences(5, 6, 5, 4, seed)
        basis = cyclic_subspace(ds.E, ml.priority_graphs(ds)).basis
        rng = np.random.default_rng(seed)
        W = np.einsum("r,rij->ij", rng.normal(size=len(basis)), basis)
        hessian = np.array([[np.sum(b * _slope_along(ds, W, c)) for c in basis] for b in basis])
        assert np.linalg.eigvalsh(0.5 * (hessian + hessian.T))[0] > 1e-4
        unused = np.linalg.svd(ds.E[np.unique(ds.last)])[2][-1]  # orthogonal to every query
        flat = np.outer(rng.normal(size=6), unused)
        assert np.abs(_slope_along(ds, W, flat)).max() < 1e-9


def _slope_along(ds, W, along, h=1e-4):
    """Directional derivative of the gradient by central differences."""
    return (
        ml.NextTokenRisk(ds).gradient(W + h * along).value() - ml.NextTokenRisk(ds).gradient(W - h * along).value()
    ) / (2 * h)


@pytest.mark.statement("C Lemma 6", "C Thm 4")
def test_w_mm_is_a_direction_of_descent_everywhere_so_nothing_is_critical():
    for seed in range(10):
        rng = np.random.default_rng(seed)
        ds = (acyclic_sequences if seed % 2 else cyclic_sequences)(6, 8, 4, 4, rng)
        solution = ml.graph_svm(ds.E, ml.priority_graphs(ds)).x
        for size in (0.0, 1.0, 8.0) if seed % 2 == 0 else (0.0, 1.0, 1e2, 1e5):
            found = ml.NextTokenRisk(ds).gradient(size * rng.normal(size=(8, 8)) / 8)
            assert np.sum(found.array * solution) < 0.0
            assert np.isfinite(found.log_norm)


@pytest.mark.statement("C Thm 4", "C Lemma 5")
def test_plain_descent_diverges_like_the_logarithm_and_its_gradient_vanishes():
    ds = acyclic_sequences(6, 8, 4, 4, 1)
    margin = float(ml.graph_svm(ds.E, ml.priority_graphs(ds)).margin)
    steps = [10**3, 10**4, 10**5]
    step = ml.GradientDescent(1.0 / ml.NextTokenRisk(ds).sharp_smoothness())
    run = ml.descend(ds, optimizer=step, n_steps=10**5, record=ml.Record(steps=steps, keep=("x", "norm")))
    growth = np.diff(run.saved["norm"])
    assert np.all(growth > 0.0)
    assert growth[-1] == pytest.approx(np.log(10.0) / margin, rel=0.1)
    logs = [ml.NextTokenRisk(ds).gradient(W).log_norm for W in run.saved["x"]]
    assert np.diff(logs) == pytest.approx([-np.log(10.0)] * 2, abs=0.1)  # ‖∇L‖ falls like 1/τ
