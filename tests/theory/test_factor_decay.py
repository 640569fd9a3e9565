"""Factors of W: weight decay balances them, minima are those of the nuclear norm, and the best margin of bounded entries."""

from itertools import product

import numpy as np
import pytest
from scipy.optimize import linprog

import marginlens as ml
from marginlens.theory import factor_balance, nuclear_stationarity
from marginlens_papers.claims.ours.sign_factors import largest_sign_product, sign_factor_margin
from refusals import refused
from tolerances import ROUNDING

STEP = 0.02  # of descent in place of the flow, whose law it misses by terms of this order


def factors(n_problems=1, seed=0, width=4):
    data, v = ml.data.sphere_tokens(n_problems, 3, 5, 6, seed)
    queries = np.random.default_rng(seed).normal(size=(n_problems, 3, 6))
    return ml.AttentionRisk(data, v).as_factors(queries, width)


def balance_of(risk, point):
    return factor_balance(*risk[0].split(point))


@pytest.mark.statement("X N8")
@pytest.mark.parametrize("decay", [0.0, 0.1, 0.4])
def test_imbalance_decays_by_its_law(decay):
    risk, start = factors(), np.random.default_rng(1).normal(size=(1, 12, 4))
    run = ml.descend(risk, optimizer=ml.GradientDescent(STEP, weight_decay=decay), n_steps=250, start=start)
    begun, ended = balance_of(risk, start[0]), balance_of(risk, run.final[0])
    predicted = begun.after(decay, 250 * STEP)
    assert np.linalg.norm(ended.imbalance - predicted) < 0.02 * np.linalg.norm(begun.imbalance)
    if decay == 0.0:  # the control: nothing fades
        assert np.linalg.norm(ended.imbalance) > 0.98 * np.linalg.norm(begun.imbalance)


@pytest.mark.statement("X N8")
def test_decayed_factors_are_stationary_for_the_nuclear_norm():
    risk, decay = factors(seed=3), 0.01
    start = 0.5 * np.random.default_rng(2).normal(size=(1, 12, 4))
    run = ml.descend(risk, optimizer=ml.GradientDescent(2.0, weight_decay=decay), n_steps=3000, start=start)
    balance = balance_of(risk, run.final[0])
    assert balance.nuclear_norm > 0.1
    assert balance.excess < 1e-9 * balance.nuclear_norm
    W = risk.matrix(run.final)[0]
    gradient = risk.of_p.as_matrix(risk.query)[0].gradient(W).value()
    found = nuclear_stationarity(gradient, W, decay)
    assert found.slack > -1e-6
    assert abs(found.misalignment) < 1e-6
    away = nuclear_stationarity(gradient, W + 0.1 * np.random.default_rng(0).normal(size=W.shape), decay)
    assert abs(away.misalignment) > 1e-3


@pytest.mark.statement("X N8")
def test_squares_exceed_the_nuclear_norm_unless_factors_balance():
    rng = np.random.default_rng(4)
    for _ in range(50):
        assert factor_balance(rng.normal(size=(5, 3)), rng.normal(size=(4, 3))).excess > 0.0
    u, s, vt = np.linalg.svd(rng.normal(size=(5, 4)), full_matrices=False)
    balanced = factor_balance(u * np.sqrt(s), vt.T * np.sqrt(s))
    assert abs(balanced.excess) < 1e-12 * balanced.nuclear_norm


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: factor_balance(np.eye(2), np.eye(3)), "K"),
        (lambda: nuclear_stationarity(np.eye(2), np.eye(2), 0.0), "decay"),
    ],
)
def test_invalid_factors_are_refused(call, argument):
    with refused(argument):
        call()


# ---- the best margin of factors with bounded entries


SOLVER = 1e-8  # of two linear programmes


@pytest.mark.statement("X N3")
@pytest.mark.parametrize("shape", [(3, 3), (2, 4), (4, 3)])
def test_the_best_margin_agrees_with_a_program_over_all_signs(shape):
    rows = np.random.default_rng(sum(shape)).standard_normal((5, *shape))
    atoms = [
        np.outer(s, t) for s in product([1.0, -1.0], repeat=shape[0]) for t in product([1.0, -1.0], repeat=shape[1])
    ]
    columns = np.einsum("rqd,jqd->jr", rows, atoms)  # the greatest g with Σ_j c_j columns[j] >= g
    whole = linprog(
        np.append(np.zeros(len(atoms)), -1.0),
        A_ub=np.hstack([-columns.T, np.ones((5, 1))]),
        b_ub=np.zeros(5),
        A_eq=[np.append(np.ones(len(atoms)), 0.0)],
        b_eq=[1.0],
        bounds=[(0, None)] * len(atoms) + [(None, None)],
    )
    found = sign_factor_margin(rows)
    assert abs(found.upper + whole.fun) < SOLVER
    assert found.gap < SOLVER
    W = np.einsum("j,jq,jd->qd", found.weights, found.left, found.right)
    assert abs(np.min(np.einsum("rqd,qd->r", rows, W)) - found.lower) < ROUNDING
    assert np.abs(W).max() <= 1.0 + ROUNDING


@pytest.mark.statement("X N3")
def test_no_factors_exceed_the_bound():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((6, 3, 4))
    found = sign_factor_margin(rows)
    for width in (1, 2, 7):
        Q, K = rng.uniform(-1.0, 1.0, (200, 3, width)), rng.uniform(-1.0, 1.0, (200, 4, width))
        margins = np.min(np.einsum("rqd,bqw,bdw->br", rows, Q, K), axis=1) / width
        assert margins.max() <= found.upper


def test_products_of_signs_are_exact_and_large_matrices_are_refused():
    G = np.random.default_rng(1).standard_normal((5, 3))
    value, s, t = largest_sign_product(G)
    everything = [np.array(a) @ G @ np.array(b) for a in product([1, -1], repeat=5) for b in product([1, -1], repeat=3)]
    assert abs(value - max(everything)) < ROUNDING
    assert abs(s @ G @ t - value) < ROUNDING
    with refused("G"):
        largest_sign_product(np.ones((17, 17)))
