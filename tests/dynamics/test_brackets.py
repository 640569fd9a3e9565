"""Runs that certify themselves: brackets from iterates and residual attention contain the optimum that solvers find."""

import numpy as np
import pytest

import marginlens as ml
from marginlens.optimizers import Blockwise
from tolerances import ROUNDING

NORMS = [ml.L1(), ml.L2(), ml.LInf()]
MATRIX_NORMS = [ml.L1(), ml.L2(), ml.LInf(), ml.Spectral(), ml.Nuclear()]


def problems(batch=2):
    data, v = ml.data.sphere_tokens(batch, 3, 4, 6, 5)
    rng = np.random.default_rng(1)
    queries = rng.normal(size=(batch, 3, 4))
    return ml.AttentionRisk(data, v), queries / np.linalg.norm(queries, axis=-1, keepdims=True)


def smallest_norm(risk, selected, norm):
    """Of the margin problem of the selected tokens, by the solvers."""
    if not hasattr(risk, "query"):
        return ml.att_svm(risk.data, selected, norm=norm).bracket()
    n, T = risk.of_p.data.mask.shape
    triples = [(i, i * T + selected[i], i * T + t) for i in range(n) for t in range(T) if t != selected[i]]
    tokens = risk.of_p.data.X.reshape(n * T, -1)
    return ml.svm.bilinear_svm(tokens, risk.query, np.array(triples), norm=norm).bracket()


@pytest.mark.parametrize("norm", NORMS, ids=repr)
def test_a_run_on_p_brackets_its_own_margin(norm):
    risk, _ = problems()
    run = ml.descend(risk, optimizer=ml.SteepestDescent(norm, 0.05), n_steps=3000)
    found = run.bracket(norm)
    assert found.lower.shape == (2,)
    for j in range(2):
        best = smallest_norm(risk[j], run.selected[j], norm)
        assert found.lower[j] <= best.upper * (1.0 + 1e-9)
        assert found.upper[j] >= best.lower * (1.0 - 1e-9)
        assert found.gap[j] < 0.08
        single = run[j].bracket(norm)
        assert single.lower == pytest.approx(found.lower[j], rel=1e-12, abs=ROUNDING)


@pytest.mark.parametrize("norm", MATRIX_NORMS, ids=repr)
@pytest.mark.parametrize("n_steps", [3, 2500])
def test_a_run_on_W_brackets_its_own_margin(norm, n_steps):
    """Never wrong, also after three steps; narrow after thousands."""
    risk, queries = problems()
    run = ml.descend(risk.as_matrix(queries), optimizer=ml.SteepestDescent(norm, 0.1), n_steps=n_steps)
    for j in range(2):
        found, best = run[j].bracket(norm), smallest_norm(run[j].risk, run.selected[j], norm)
        assert found.lower <= best.upper * (1.0 + 1e-8)
        assert found.upper >= best.lower * (1.0 - 1e-8)
        assert n_steps < 100 or found.gap < 0.08


def test_brackets_without_sums_come_from_the_last_attention():
    """Runs of the Euclidean loops, of optimizers of one's own and on factors."""
    risk, queries = problems()
    run = ml.descend(risk, optimizer=ml.NormalizedGD(0.05), n_steps=20_000)
    assert run.witness is None
    best = smallest_norm(risk[0], run.selected[0], ml.L2())
    found = run[0].bracket(ml.L2())
    assert found.lower <= best.upper * (1.0 + 1e-9)
    assert found.gap < 0.01
    factors = risk[0].as_factors(queries[0], 4)
    start = 0.3 * np.random.default_rng(2).normal(size=factors.shape)
    run = ml.descend(factors, optimizer=Blockwise(ml.NormalizedGD(0.1)), n_steps=500, start=start)
    best = smallest_norm(risk[0].as_matrix(queries[0]), run.selected, ml.Nuclear())
    found = run.bracket(ml.Nuclear())
    assert found.lower <= best.upper * (1.0 + 1e-8)
    assert found.upper >= best.lower * (1.0 - 1e-8)


def test_residual_attention_is_the_gradient_by_margin_rows():
    risk, queries = problems()
    for each in (risk[0], risk[0].as_matrix(queries[0])):
        x = np.random.default_rng(3).normal(size=each.shape)
        selected = each.select(x)
        rows = each.margin_rows(selected).rows
        weights = each.residual_attention(x)[np.arange(4) != selected[:, None]]
        combined = -np.tensordot(weights, rows, axes=1)
        assert ml.correlation(combined.ravel(), each.gradient(x).array.ravel()) == pytest.approx(
            1.0, abs=1e-12, rel=0.0
        )
