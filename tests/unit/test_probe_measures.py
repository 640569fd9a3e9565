"""Sparsity of attention maps, and norms of a key-query matrix from its factors."""

from __future__ import annotations

import numpy as np
import pytest

import tolerances
from marginlens.errors import InputError
from marginlens.probe.heads.key_query import KeyQueryMap
from marginlens.probe.heads.sparsity import entropy, relative_sparsity, soft_sparsity, top_probability


def random_map(seed: int, d_model: int = 30, d_head: int = 5) -> KeyQueryMap:
    rng = np.random.default_rng(seed)
    W_K, W_Q = rng.normal(size=(2, d_model, d_head))
    return KeyQueryMap(W_K, W_Q, rng.normal(size=d_head), d_head**-0.5)


@pytest.mark.statement("A Fig 6", "A Fig 7")
@pytest.mark.parametrize("n_attended", [1, 3, 8])
def test_soft_sparsity_counts_tokens_that_share_the_attention_evenly(n_attended: int) -> None:
    s = np.zeros(8)
    s[:n_attended] = 1.0 / n_attended
    assert soft_sparsity(s) == pytest.approx(n_attended, rel=tolerances.ROUNDING)
    assert relative_sparsity(s) == pytest.approx(n_attended / 8, rel=tolerances.ROUNDING)
    assert entropy(s) == pytest.approx(np.log(n_attended), abs=tolerances.ROUNDING)
    assert top_probability(s) == pytest.approx(1.0 / n_attended, rel=tolerances.ROUNDING)


@pytest.mark.statement("A Fig 6", "A Fig 7")
def test_soft_sparsity_is_the_ratio_of_norms_and_lies_between_one_and_the_visible_tokens() -> None:
    rng = np.random.default_rng(0)
    maps = rng.dirichlet(np.full(10, 0.3), size=(4, 6))
    maps[1, :, 7:] = 0.0
    maps /= maps.sum(axis=-1, keepdims=True)
    counts = soft_sparsity(maps)
    expected = np.linalg.norm(maps, 1, axis=-1) / np.linalg.norm(maps, axis=-1) ** 2
    np.testing.assert_allclose(counts, expected, rtol=tolerances.ROUNDING)
    assert (counts >= 1.0).all()
    assert (counts[1] <= 7.0).all()
    assert (counts <= 10.0).all()
    n_visible = np.where(np.arange(4)[:, None] == 1, 7, 10) * np.ones(6)
    np.testing.assert_allclose(relative_sparsity(maps, n_visible), counts / n_visible, rtol=tolerances.ROUNDING)
    np.testing.assert_allclose(soft_sparsity(3.0 * maps), counts / 3.0, rtol=tolerances.ROUNDING)


def test_a_map_without_attention_has_no_sparsity() -> None:
    maps = np.array([[0.0, 0.0], [0.25, 0.75]])
    for measure in (soft_sparsity, entropy, top_probability):
        assert np.isnan(measure(maps)).tolist() == [True, False]
    assert np.isnan(relative_sparsity(maps, [0, 2])).tolist() == [True, False]
    assert not np.signbit(entropy([1.0, 0.0]))


@pytest.mark.parametrize("measure", [soft_sparsity, relative_sparsity, entropy, top_probability])
def test_what_is_no_attention_map_is_refused(measure: object) -> None:
    for maps in ([0.5, -0.5], [np.nan, 1.0]):
        with pytest.raises(InputError, match="none of them negative or nan"):
            measure(maps)  # type: ignore[operator]
    with pytest.raises(InputError, match="at least one token"):
        measure(np.empty((3, 0)))  # type: ignore[operator]


@pytest.mark.parametrize("shape", [(30, 5), (6, 6), (4, 7)])
def test_norms_from_the_factors_are_those_of_the_formed_matrix(shape: tuple[int, int]) -> None:
    one = random_map(1, *shape)
    W = one.scale * one.W_K @ one.W_Q.T
    np.testing.assert_allclose(one.matrix, W, rtol=tolerances.ROUNDING)
    assert one.frobenius == pytest.approx(np.linalg.norm(W), rel=tolerances.ROUNDING)
    assert one.spectral == pytest.approx(np.linalg.norm(W, 2), rel=tolerances.ROUNDING)
    assert one.nuclear == pytest.approx(np.linalg.norm(W, "nuc"), rel=tolerances.ROUNDING)
    assert one.augmented_frobenius == pytest.approx(np.linalg.norm(one.augmented), rel=tolerances.ROUNDING)
    assert one.augmented.shape == (shape[0], shape[0] + 1)
    np.testing.assert_allclose(one.augmented[:, -1], one.bias_column, rtol=tolerances.ROUNDING)


def test_norms_survive_factors_of_very_different_size() -> None:
    one = random_map(2)
    scaled = KeyQueryMap(1e9 * one.W_K, 1e-9 * one.W_Q, one.b_Q, one.scale)
    for name in ("frobenius", "spectral", "nuclear"):
        assert getattr(scaled, name) == pytest.approx(getattr(one, name), rel=tolerances.ROUNDING)


def test_the_matrix_gives_the_logits_of_keys_and_queries_up_to_a_constant() -> None:
    rng = np.random.default_rng(3)
    one = random_map(3, 12, 4)
    X, z, b_K = rng.normal(size=(7, 12)), rng.normal(size=12), rng.normal(size=4)
    logits = one.scale * (X @ one.W_K + b_K) @ (z @ one.W_Q + one.b_Q)
    ours = X @ one.matrix @ z + X @ one.bias_column
    np.testing.assert_allclose(ours, X @ one.augmented @ np.append(z, 1.0), atol=tolerances.ROUNDING * 100)
    np.testing.assert_allclose(np.diff(logits), np.diff(ours), atol=tolerances.ROUNDING * 100)
    assert not np.allclose(logits, ours)


def test_factors_that_do_not_fit_are_named() -> None:
    W = np.ones((6, 2))
    with pytest.raises(InputError, match=r"'W_Q' argument must be an array of finite numbers of shape \(6, 2\)"):
        KeyQueryMap(W, W[:5], np.zeros(2), 1.0)
    with pytest.raises(InputError, match=r"'b_Q' argument must be .* of shape \(2,\)"):
        KeyQueryMap(W, W, np.zeros(3), 1.0)
    with pytest.raises(InputError, match="'scale' argument must be a positive number"):
        KeyQueryMap(W, W, np.zeros(2), 0.0)
    assert repr(KeyQueryMap(W, W, np.zeros(2), 0.5)) == "KeyQueryMap(d_model=6, d_head=2, frobenius=6)"
