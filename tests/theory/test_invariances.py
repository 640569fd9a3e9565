"""Laws that hold for every problem: permuted tokens and inputs, shifted keys, other units, and batches that equal loops."""

from dataclasses import is_dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

import marginlens as ml
from marginlens.arithmetic.directions import unit
from marginlens.data import sphere_tokens
from marginlens.theory import (
    check_assumption_a,
    check_assumption_b,
    check_separable,
    check_step,
    check_strict_optimum,
    directional_margin,
    label_margin,
    residual_law,
    smoothness,
)
from marginlens_papers.claims.a.direction_cases import dominance, undercut_radius
from marginlens_papers.claims.a.general_position import check_distinct_scores, constructive_separator
from marginlens_papers.claims.a.gradient_conditions import descent_correlation, gradient_ratio
from marginlens_papers.claims.ours.residual_attention import deviation
from random_examples import examples
from tolerances import CONDITIONED

SIZES = st.tuples(st.integers(1, 3), st.integers(2, 4), st.integers(2, 5))  # n_inputs, n_tokens, d_model
law = examples(12)


def problem(sizes, seed):
    """One problem with its head, tokens and head on the sphere."""
    data, v = sphere_tokens(1, *sizes, seed)
    return data[0], v[0]


def same(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=CONDITIONED, atol=CONDITIONED)


@law
@given(SIZES, st.integers(0, 2**32 - 1))
def test_the_order_of_tokens_and_inputs_does_not_matter(sizes, seed):
    data, v = problem(sizes, seed)
    rng = np.random.default_rng(seed)
    order, inputs = rng.permutation(data.n_tokens), rng.permutation(data.n_inputs)
    moved = ml.TokenDataset(data.X[inputs][:, order], data.y[inputs])
    place = np.argsort(order)
    alpha = data.optimal(v)
    plain, other = ml.token_optimality(data, v, alpha), ml.token_optimality(moved, v, place[alpha[inputs]])
    rows = plain.solution.rows
    can_be_led = linprog(np.zeros(data.d_key), A_ub=-rows, b_ub=-np.ones(len(rows)), bounds=(None, None)).status == 0
    assert plain.is_feasible == other.is_feasible == can_be_led
    assert plain.is_locally_optimal == other.is_locally_optimal
    np.testing.assert_array_equal(other.neighbours, plain.neighbours[inputs][:, order])
    if plain.is_feasible:
        same(other.solution.x, plain.solution.x)
    q = rng.standard_normal(data.d_key)
    at, there = directional_margin(data, q, v), directional_margin(moved, q, v)
    np.testing.assert_array_equal(there.selected, place[at.selected[inputs]])
    same((there.margin, there.second_gap), (at.margin, at.second_gap))
    listed, found = ml.locally_optimal_directions(data, v), ml.locally_optimal_directions(moved, v)
    same(found.margins, listed.margins)
    same(label_margin(moved, place[alpha[inputs]]).margin, label_margin(data, alpha).margin)
    assert ml.predict_limit(moved, v).details.basin == ml.predict_limit(data, v).details.basin
    for check in (check_assumption_a, check_assumption_b, check_strict_optimum, check_distinct_scores, check_separable):
        assert check(moved, v).holds == check(data, v).holds


@law
@given(SIZES, st.integers(0, 2**32 - 1), st.floats(-1e3, 1e3))
def test_shifted_keys_have_the_same_margins(sizes, seed, shift):
    """The softmax of an input does not change when the same vector is added to all its keys."""
    data, v = problem(sizes, seed)
    rng = np.random.default_rng(seed)
    moved = ml.TokenDataset(data.X, data.y, K=data.K + shift * rng.standard_normal((data.n_inputs, 1, data.d_key)))
    q = rng.standard_normal(data.d_key)
    at, there = directional_margin(data, q, v), directional_margin(moved, q, v)
    np.testing.assert_array_equal(there.selected, at.selected)
    np.testing.assert_allclose(there.margin, at.margin, rtol=1e-7, atol=1e-9)
    listed, found = ml.locally_optimal_directions(data, v), ml.locally_optimal_directions(moved, v)
    np.testing.assert_array_equal(found.selections, listed.selections)
    np.testing.assert_allclose(found.directions, listed.directions, rtol=1e-6, atol=1e-6)


@law
@given(SIZES, st.integers(0, 2**32 - 1), st.sampled_from([1e-60, 1e-9, 7.0, 1e9, 1e60]))
def test_scaled_keys_scale_margins_and_keep_directions(sizes, seed, scale):
    data, v = problem(sizes, seed)
    moved = ml.TokenDataset(data.X, data.y, K=scale * data.K)
    q = np.random.default_rng(seed).standard_normal(data.d_key)
    at, there = directional_margin(data, q, v), directional_margin(moved, q, v)
    np.testing.assert_array_equal(there.neighbours, at.neighbours)
    same(np.divide(there.margin, scale), at.margin)
    listed, found = ml.locally_optimal_directions(data, v), ml.locally_optimal_directions(moved, v)
    np.testing.assert_array_equal(found.selections, listed.selections)
    same(found.directions, listed.directions)
    same(found.margins / scale, listed.margins)
    first, second = ml.predict_limit(data, v), ml.predict_limit(moved, v)
    assert [verdict.applies for verdict in first.verdicts] == [verdict.applies for verdict in second.verdicts]


BATCHED = {
    "token_optimality": lambda data, v, q: ml.token_optimality(data, v, data.optimal(v)).solution.x,
    "directional_margin": lambda data, v, q: directional_margin(data, q, v).margins,
    "dominance": lambda data, v, q: dominance(data, v, q, q + 0.1).radius,
    "undercut_radius": lambda data, v, q: undercut_radius(data, v, q),
    "gradient_ratio": lambda data, v, q: gradient_ratio(data, v, q, data.optimal(v)),
    "descent_correlation": lambda data, v, q: descent_correlation(data, v, q),
    "smoothness": lambda data, v, q: np.moveaxis([smoothness(data, v).L_p, smoothness(data, v).from_keys], 0, -1),
    "residual_law": lambda data, v, q: residual_law(data, v, data.optimal(v)).offset,
    "deviation": lambda data, v, q: deviation(residual_law(data, v, data.optimal(v)), q),
}
LISTED = {
    "check_assumption_a": lambda data, v: check_assumption_a(data, v),
    "check_assumption_b": lambda data, v: check_assumption_b(data, v),
    "check_separable": lambda data, v: check_separable(data, v),
    "check_step": lambda data, v: check_step(data, v, ml.GradientDescent(0.1)),
    "constructive_separator": lambda data, v: constructive_separator(data, v),
    "predict_limit": lambda data, v: ml.predict_limit(data, v),
}


@pytest.mark.parametrize("name", BATCHED)
def test_a_batch_equals_a_loop(name):
    has_numbers = []

    @law
    @given(SIZES, st.integers(0, 2**32 - 1))
    def batch_equals_loop(sizes, seed):
        data, v = sphere_tokens(3, *sizes, seed)
        q = unit(np.random.default_rng(seed).standard_normal((3, data.d_key)))
        together = BATCHED[name](data, v, q)
        for j in range(3):
            single = BATCHED[name](data[j], v[j], q[j])
            same(together[j], single)
            has_numbers.append(np.isfinite(single).any())

    batch_equals_loop()
    assert np.mean(has_numbers) >= 0.5  # of infeasible problems nan is compared with nan


def same_fields(one, other):
    """Whether two results have the same type and the same numbers in all their fields."""
    assert type(one) is type(other)
    if isinstance(one, ml.TokenDataset):
        one, other = one.arrays(), other.arrays()
    if is_dataclass(one):
        one, other = vars(one), vars(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        one, other = list(one.values()), list(other.values())
    if isinstance(one, list | tuple):
        assert len(one) == len(other)
        for part, its_twin in zip(one, other, strict=True):
            same_fields(part, its_twin)
    elif isinstance(one, float | np.ndarray) and np.asarray(one).dtype.kind == "f":
        same(one, other)
    else:
        assert np.array_equal(one, other)


@pytest.mark.parametrize("seed", [0, 5])
@pytest.mark.parametrize("name", LISTED)
def test_a_batch_gives_the_list_of_its_problems(name, seed):
    data, v = sphere_tokens(3, 2, 3, 4, seed)
    together = LISTED[name](data, v)
    for j in range(3):
        same_fields(together[j], LISTED[name](data[j], v[j]))
        with pytest.raises(AssertionError):
            same_fields(together[j], LISTED[name](data[j - 1], v[j - 1]))
