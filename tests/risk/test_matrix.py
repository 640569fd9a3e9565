"""The risk of W and of its factors with a query for each input: against decimals, against one query, and in batches."""

import numpy as np
import pytest

import marginlens as ml
from decimal_oracle import matrix_gradient
from marginlens.arithmetic.log_scaled import RankOneTerms
from marginlens.risk import LogScaled
from tolerances import ROUNDING, SIX_DIGITS


def problem(seed=0, d_query=3):
    rng = np.random.default_rng(seed)
    data = ml.TokenDataset(rng.normal(size=(3, 4, 3)), [1.0, -1.0, 1.0])
    return ml.AttentionRisk(data, rng.normal(size=3)), rng.normal(size=(3, d_query))


@pytest.mark.parametrize("size", [0.1, 30.0, 1e4])
def test_gradients_of_tiny_terms_are_exact(size):
    """Inputs differ by e^1000 and more: the dense gradient keeps the largest, the terms keep all of them."""
    of_p, queries = problem(1)
    data, v = of_p.data, of_p.head
    W = size * np.random.default_rng(2).normal(size=(3, 3))
    found = of_p.as_matrix(queries).gradient(W)
    dense, log_norm, parts = matrix_gradient(data, v, W, queries, "Logistic")
    assert found.log_norm == pytest.approx(log_norm, rel=1e-12, abs=1e-9)
    assert np.allclose(found.direction(), dense, rtol=0, atol=1e-10)
    assert np.array_equal(found.terms.left, queries)
    for i, part in enumerate(parts):
        largest = max(abs(x) for x in part)
        right, scale = found.terms.right[i], float(found.terms.log_scale[i])
        assert np.allclose(right / np.abs(right).max(), [float(x / largest) for x in part], rtol=0, atol=1e-10)
        assert np.log(np.abs(right).max()) + scale == pytest.approx(float(largest.ln()), rel=1e-12, abs=1e-9)
    assert size < 1e4 or np.ptp(found.terms.log_scale) > 745


def test_entries_beyond_one_scale_have_their_own():
    terms = RankOneTerms(np.eye(2), np.array([[1.0, 0.0], [2.0, 3.0]]), np.array([0.0, -2000.0]))
    array, scale = terms.dense()
    assert np.array_equal(array, [[1.0, 0.0], [2.0, 3.0]])
    assert np.array_equal(scale, [[0.0, 0.0], [-2000.0, -2000.0]])
    array, scale = RankOneTerms(np.eye(2), terms.right, np.array([0.0, -20.0])).dense()
    assert np.shape(scale) == ()
    assert np.allclose(array, [[1.0, 0.0], [2.0 * np.exp(-20.0), 3.0 * np.exp(-20.0)]], rtol=1e-15, atol=0.0)


def test_the_same_query_for_all_is_one_query():
    of_p, queries = problem(3)
    W = np.random.default_rng(4).normal(size=(3, 3))
    single, many = of_p.as_matrix(queries[0]), of_p.as_matrix(np.tile(queries[0], (3, 1)))
    for method in ("value", "log_value", "margins", "attention", "select"):
        assert np.allclose(getattr(single, method)(W), getattr(many, method)(W), rtol=1e-12, atol=0.0)
    assert np.allclose(single.excess(W).log, many.excess(W).log, rtol=1e-12, atol=0.0)
    assert np.allclose(single.gradient(W).value(), many.gradient(W).value(), rtol=1e-11, atol=1e-15)
    chosen = single.select(W)
    assert np.allclose(single.margin_rows(chosen).rows, many.margin_rows(chosen).rows, rtol=1e-15, atol=0.0)
    assert single.smoothness() == pytest.approx(many.smoothness(), rel=SIX_DIGITS, abs=ROUNDING)


def test_terms_of_the_factors_add_up_block_by_block():
    of_p, queries = problem(5, d_query=2)
    risk = of_p.as_factors(queries, 2)
    x = np.random.default_rng(6).normal(size=risk.shape)
    gradient = risk.gradient(x)
    for name in ("Q", "K"):
        block = gradient.block(name)
        assert block.terms.left.shape == (3, {"Q": 2, "K": 3}[name])
        array, scale = block.terms.dense()
        assert np.allclose(array * np.exp(scale), block.value(), rtol=1e-12, atol=1e-15)
    W = risk.matrix(x)
    by_W, (Q, K) = of_p.as_matrix(queries).gradient(W).value(), risk.split(x)
    assert np.allclose(gradient.block("Q").value(), by_W @ K, rtol=1e-10, atol=1e-14)
    assert np.allclose(gradient.block("K").value(), by_W.T @ Q, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("own", [False, True])
def test_batches_equal_loops(own):
    data, v = ml.data.sphere_tokens(4, 3, 5, 3, 0)
    rng = np.random.default_rng(1)
    queries = rng.normal(size=(4, 3, 2) if own else (3, 2))
    of_p = ml.AttentionRisk(data, v)
    for risk in (of_p.as_matrix(queries), of_p.as_factors(queries, 2)):
        x = rng.normal(size=(4, *risk.shape))
        gradient = risk.gradient(x)
        for j in range(4):
            single = risk[j]
            assert np.allclose(single.value(x[j]), risk.value(x)[j], rtol=1e-13, atol=0.0)
            assert np.allclose(single.gradient(x[j]).value(), gradient[j].value(), rtol=1e-11, atol=1e-15)
            assert np.allclose(single.gradient(x[j]).terms.right, gradient.terms[j].right, rtol=1e-11, atol=1e-15)
        part = risk[[1, 3]]
        assert np.allclose(part.value(x[[1, 3]]), risk.value(x)[[1, 3]], rtol=1e-13, atol=0.0)


def test_a_gradient_keeps_its_terms_when_it_is_indexed():
    terms = RankOneTerms(np.ones((2, 3, 1)), np.ones((2, 3, 2)), np.zeros((2, 3)))
    gradient = LogScaled(np.ones((2, 1, 2)), np.zeros(2), axes=2, terms=terms)
    assert gradient[0].terms.left.shape == (3, 1)
    assert gradient[None].terms.log_scale.shape == (1, 2, 3)
