"""Conjugate gradients on rows that are known by their products: a shifted Gram system, and least squares."""

from __future__ import annotations

import numpy as np

from marginlens.data.tokens import FloatArray, IntArray
from marginlens.svm.graph_products import BlockInverse, GraphProducts

EPS = 2.0**-52


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
    """v that brings the Gram matrix of the rows `some` times v closest to `right`, and what is left of `right`.

    The distance is measured in the norm of `weigh`, or of the identity. Dependent rows and a right side out of reach do no harm: the
    distance never grows. It stops when what is left is no longer than `goal`, or orthogonal to the rows up to rounding.
    """

    def weighed(vector: FloatArray) -> FloatArray:
        return vector.copy() if weigh is None else weigh.times(vector)

    v, rest = np.zeros_like(right), right.copy()
    turn = weighed(rest)
    step = products.combine(turn, some)
    square, lowest = float(np.vdot(step, step)), float(rest @ turn)
    for _ in range(800):
        image = products.apply(step, some)
        length = float(np.linalg.norm(rest))
        bend = float(image @ weighed(image))
        if not length > goal or not square**0.5 > 2 * EPS * length or not bend > 0.0:
            break
        products.n_products += 1
        v += square / bend * turn
        rest -= square / bend * image
        push = weighed(rest)
        distance = float(rest @ push)
        if not distance <= 1.01 * lowest:  # only rounding is left
            break
        lowest = min(lowest, distance)
        slope = products.combine(push, some)
        square, last = float(np.vdot(slope, slope)), square
        step = slope + square / last * step
        turn = push + square / last * turn
    return v, rest
