"""Conjugate gradients on rows that are known by their products: a shifted Gram system, and least squares."""

from __future__ import annotations

import numpy as np

from marginlens.data.tokens import FloatArray, IntArray
from marginlens.svm.graph_products import BlockInverse, GraphProducts

EPS = 2.0**-52
DIRECT = 30_000_000  # up to so many operations, rows are formed and their equations solved directly
_LEAST_SQUARES_STEPS = 800
_SAME_DISTANCE = 1e-12  # squared distances that differ by less, relatively, differ by rounding
_GRADIENT_ROUNDING = 2  # roundoffs of a sum of unit rows, relative to the sum of its weights


def shifted_solution(
    products: GraphProducts, some: IntArray, right: FloatArray, shift: float, accuracy: float
) -> FloatArray:
    """u with (shift + Gram matrix of the rows `some`) u = right, up to a residual of `accuracy` times that of zero."""
    inverse = products.preconditioner(some, shift)
    u, rest = np.zeros_like(right), right.copy()
    change = inverse.times(rest)
    step, square = change.copy(), float(rest @ change)
    goal = accuracy * float(np.linalg.norm(right))
    for _ in range(1000):
        if not float(np.linalg.norm(rest)) > goal or not square > 0.0:
            break
        image = products.gram(step, some) + shift * step
        length = square / float(step @ image)
        u += length * step
        rest -= length * image
        change = inverse.times(rest)
        square, last = float(rest @ change), square
        step = change + square / last * step
    return u


def least_squares(
    products: GraphProducts, some: IntArray, right: FloatArray, weigh: BlockInverse | None, goal: float
) -> tuple[FloatArray, FloatArray]:
    """v that brings the Gram matrix of the rows `some` times v closest to `right`, and the residual `right` minus that product.

    The distance is measured in the norm of `weigh`, or of the identity. Rows may be dependent and `right` out of reach. Every step goes
    as far as the distance decreases, and what comes back is the best iterate: the one of the smallest distance, and of the smallest
    gradient among those whose distances differ by rounding. It stops when the residual is no longer than `goal`, or when its products
    with the rows are rounding.
    """

    def weighed(vector: FloatArray) -> FloatArray:
        return vector.copy() if weigh is None else weigh.times(vector)

    v, residual = np.zeros_like(right), right.copy()
    weighted = weighed(residual)
    gradient = products.combine(weighted, some)
    square, distance = float(np.vdot(gradient, gradient)), float(residual @ weighted)
    direction, combined = weighted.copy(), gradient.copy()  # combined is always the sum of the rows times direction
    best, lowest, flattest = (v.copy(), residual.copy()), distance, square
    for _ in range(_LEAST_SQUARES_STEPS):
        if not float(np.linalg.norm(residual)) > goal:
            break
        if not square**0.5 > _GRADIENT_ROUNDING * EPS * float(np.abs(weighted).sum()):
            break
        image = products.apply(combined, some)
        curvature, descent = float(image @ weighed(image)), float(np.vdot(combined, gradient))
        if not curvature > 0.0 or not descent > 0.0:
            break
        products.n_products += 1
        v += descent / curvature * direction
        residual -= descent / curvature * image
        weighted = weighed(residual)
        distance = float(residual @ weighted)
        gradient = products.combine(weighted, some)
        square, last = float(np.vdot(gradient, gradient)), square
        closer = distance < lowest * (1.0 - _SAME_DISTANCE)
        if closer or (distance <= lowest * (1.0 + _SAME_DISTANCE) and square < flattest):
            best, lowest, flattest = (v.copy(), residual.copy()), min(lowest, distance), square
        combined = gradient + square / last * combined
        direction = weighted + square / last * direction
    return best
