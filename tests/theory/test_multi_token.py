"""Several tokens of an input that keep their attention: the finite part and the direction of W."""

from __future__ import annotations

import numpy as np
import pytest

import tolerances
from marginlens.data import TokenDataset
from marginlens.norms import Nuclear
from marginlens.svm import Status, att_svm
from marginlens_papers.claims.d.multi_token_limit import multi_token_limit

SETS = [[0, 2], [1], [0, 1, 3]]


def problem(seed: int, d: int = 8) -> tuple[TokenDataset, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    data = TokenDataset(rng.standard_normal((3, 4, d)), np.ones(3))
    s = np.zeros((3, 4))
    for i, tokens in enumerate(SETS):
        s[i, tokens] = rng.dirichlet(np.ones(len(tokens)))
    return data, s, rng.standard_normal((3, d))


def attention(data: TokenDataset, W: np.ndarray, z: np.ndarray) -> np.ndarray:
    logits = np.einsum("itd,qd,iq->it", data.X, W, z)
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


@pytest.mark.statement("D SVMeq")
@pytest.mark.parametrize("norm", [None, Nuclear()], ids=["Frobenius", "Nuclear"])
def test_attention_of_finite_part_and_direction_has_the_given_limit(norm: object) -> None:
    """W^fin + R W^dir has s on the sets in the limit, and 1 - s on them falls like e^(-R)."""
    data, s, z = problem(0)
    limit = multi_token_limit(data, SETS, s, z, **({} if norm is None else {"norm": norm}))
    assert limit.direction.status is Status.OPTIMAL
    assert limit.residual <= tolerances.CONDITIONED
    far = attention(data, limit.finite + 40.0 * limit.direction.x, z)
    np.testing.assert_allclose(far, s, rtol=0.0, atol=tolerances.CONDITIONED)
    outside = [1.0 - attention(data, limit.finite + R * limit.direction.x, z)[s > 0].sum() / 3 for R in (8.0, 9.0)]
    assert np.log(outside[0] / outside[1]) == pytest.approx(1.0, rel=0.05, abs=tolerances.ROUNDING)
    wrong = attention(data, 40.0 * limit.direction.x, z)  # without the finite part every set has equal weights
    assert np.abs(wrong - s).max() > 0.01


@pytest.mark.statement("D SVMeq")
def test_a_matrix_is_decomposed() -> None:
    data, s, z = problem(1)
    limit = multi_token_limit(data, SETS, s, z)
    W = limit.finite + 7.0 * limit.direction.x
    parts = limit.split(W)
    np.testing.assert_allclose(parts.finite + parts.growing, W, rtol=0.0, atol=tolerances.ROUNDING * np.abs(W).max())
    assert limit.finite_error(W) <= tolerances.CONDITIONED
    assert limit.correlation(W) == pytest.approx(1.0, abs=tolerances.ROUNDING, rel=0.0)


@pytest.mark.statement("D SVMeq", "D W-SVM")
def test_single_tokens_equal_att_svm() -> None:
    data, _, z = problem(2)
    limit = multi_token_limit(data, [[0], [1], [3]], np.ones((3, 4)), z)
    assert not limit.finite.any()
    np.testing.assert_array_equal(limit.direction.x, att_svm(data, [0, 1, 3], query=z).x)
