"""The multiclass risk: its value and gradient keep their digits at any norm, and its rows say which class wins."""

import mpmath
import numpy as np
import pytest

import marginlens as ml
from marginlens.dynamics.loops import compiled_loop
from marginlens.risk import MulticlassRisk
from marginlens_papers.claims.random_data import class_clusters
from tolerances import SVM_ORACLE

RTOL = 1e-11


def risk(seed=0, n_classes=4, d=3):
    return MulticlassRisk(*class_clusters(n_classes, 5, d, 0.3, seed))


def oracle(of, W):
    """Value and gradient with 80 digits and an exponent without bounds."""
    with mpmath.workdps(80):
        logits = mpmath.matrix(W.tolist()) * mpmath.matrix(of.H.T.tolist())
        value, gradient = mpmath.mpf(0), mpmath.zeros(*W.shape)
        for i, y in enumerate(of.classes.tolist()):
            rest = [mpmath.e ** (logits[c, i] - logits[y, i]) if c != y else mpmath.mpf(0) for c in range(len(W))]
            total = mpmath.fsum(rest)
            value += mpmath.log1p(total) / len(of.H)
            for c, ratio in enumerate(rest):
                weight = -total if c == y else ratio
                for j in range(W.shape[1]):
                    gradient[c, j] += weight / (1 + total) * mpmath.mpf(of.H[i, j]) / len(of.H)
        return value, gradient


@pytest.mark.statement("F cross-entropy")
@pytest.mark.parametrize("norm", [0.0, 1.0, 100.0, 1e4])
def test_value_and_gradient_are_accurate(norm):
    of, rng = risk(), np.random.default_rng(1)
    # a classifier that is right everywhere, so that everything decays, and noise beside it
    W = ml.least_distance(of.margin_rows(of.classes).rows.reshape(-1, 12), np.ones(60)).x.reshape(4, 3)
    W = norm * (W / np.linalg.norm(W) + 0.01 * rng.standard_normal(W.shape))
    value, exact = oracle(of, W)
    assert abs(of.log_value(W) - float(mpmath.log(value))) <= RTOL * max(1.0, abs(float(mpmath.log(value))))
    gradient = of.gradient(W)
    with mpmath.workdps(80):
        scale = mpmath.e ** mpmath.mpf(float(gradient.log_scale))
        relative = np.array([[float(exact[c, j] / scale) for j in range(3)] for c in range(4)])
    rounding = RTOL * np.abs(relative).max() * max(1.0, norm / 100.0)  # of the logits themselves
    np.testing.assert_allclose(gradient.array, relative, rtol=0.0, atol=rounding)
    terms = gradient.terms
    rebuilt = np.einsum("m,mc,md->cd", np.exp(terms.log_scale - gradient.log_scale), terms.left, terms.right)
    np.testing.assert_allclose(rebuilt, gradient.array, rtol=0.0, atol=1e-13 * np.abs(relative).max())


def test_descent_reaches_the_svm_direction():
    of = risk(0)
    run = ml.descend(of, optimizer=ml.NormalizedGD(0.1), n_steps=3000)
    np.testing.assert_array_equal(run.selected, of.classes)
    rows, lower = of.margin_rows(of.classes)
    svm = ml.least_distance(rows.reshape(len(rows), -1), lower)
    assert ml.correlation(run.final.ravel(), svm.x) > 0.999
    np.testing.assert_allclose(of.margins(svm.x.reshape(of.shape)).min(), 1.0, rtol=SVM_ORACLE, atol=0.0)


def test_points_with_zeros_and_row_norms_use_plain_steps():
    of = MulticlassRisk(np.eye(3), np.arange(3))
    assert compiled_loop(of, ml.SignDescent(0.1)) is None
    assert compiled_loop(risk(), ml.SteepestDescent(ml.norms.MaxRow(), 0.1)) is None
