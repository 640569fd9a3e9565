"""The best margin of factors with bounded entries: against all atoms at once, and against factors that attain it."""

from itertools import product

import numpy as np
import pytest
from scipy.optimize import linprog

from marginlens.errors import InputError
from marginlens_papers.lemmas.sign_factors import largest_sign_product, sign_factor_margin
from tolerances import ROUNDING

SOLVER = 1e-8  # of two linear programmes


@pytest.mark.statement("X N3")
@pytest.mark.parametrize("shape", [(3, 3), (2, 4), (4, 3)])
def test_the_best_margin_is_that_of_a_programme_over_all_signs(shape):
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
    with pytest.raises(InputError, match="at most 16 rows or columns"):
        largest_sign_product(np.ones((17, 17)))
