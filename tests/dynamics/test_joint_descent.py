"""Joint descent: its gradients against decimals and differences, and the directions of the figures."""

from decimal import Decimal

import numpy as np
import pytest

from decimal_oracle import attention, decimals, dot, long_decimals
from decimal_oracle import gradient as decimal_gradient
from marginlens.data import figure_3a, figure_3b
from marginlens.risk import JointRisk
from marginlens.svm import att_svm, label_svm, relaxed_svm
from random_problems import ragged_problem
from tolerances import HIGH_PRECISION, ROUNDING


def decimal_head_gradient(data, v, p):
    """(direction, log norm) of the logistic risk's gradient in v, in 60-digit decimals."""
    with long_decimals(60):
        total = [Decimal(0)] * data.d_model
        for i in range(data.n_inputs):
            s, label = attention(data, i, p), Decimal(float(data.y[i]))
            output = [dot(s, decimals(data.X[i, : len(s), k])) for k in range(data.d_model)]
            factor = -label / (1 + (label * dot(output, decimals(v))).exp())
            total = [x + factor * z / data.n_inputs for x, z in zip(total, output, strict=True)]
        norm = dot(total, total).sqrt()
        return np.array([float(x / norm) for x in total]), float(norm.ln())


@pytest.mark.statement("A (ERM)")
@pytest.mark.parametrize("size", [0.5, 30.0, 1e4])
def test_gradients_are_exact_at_any_norm(size):
    rng = np.random.default_rng(0)
    for _ in range(4):
        data, v = ragged_problem(rng, 3, 4, 3)
        v, p = size * v, size * rng.standard_normal(3)
        gradient = JointRisk(data).gradient(np.concatenate([v, p]))
        of_v, of_p = gradient.block("v"), gradient.block("p")
        for found, (direction, log_norm) in (
            (of_v, decimal_head_gradient(data, v, p)),
            (of_p, decimal_gradient(data, v, p, "Logistic")),
        ):
            assert found.array / np.linalg.norm(found.array) == pytest.approx(
                direction, abs=HIGH_PRECISION * size, rel=0.0
            )
            assert found.log_norm == pytest.approx(log_norm, rel=HIGH_PRECISION, abs=HIGH_PRECISION * size)


@pytest.mark.statement("A Fig 3(a)", "A Fig 3(b)", "A Eq. (10)")
@pytest.mark.parametrize(
    ("data", "support", "p_mm", "p_relax"),
    [(figure_3a(), [0, 1, 2], (4 / 3, 1 / 3), (4 / 3, 1 / 3)), (figure_3b(), [0, 1], (1.25, 0.25), (1.0, 0.0))],
    ids=["3a", "3b"],
)
def test_figure_directions_are_reached(data, support, p_mm, p_relax):
    head = label_svm(data.X[:, 1], data.y)
    assert head.x == pytest.approx([0.0, 1.0], abs=ROUNDING, rel=0.0)
    assert np.flatnonzero(head.active).tolist() == support
    assert att_svm(data, [1, 1, 1]).x == pytest.approx(p_mm, abs=ROUNDING, rel=0.0)
    assert relaxed_svm(data, [1, 1, 1], head.active).x == pytest.approx(p_relax, abs=ROUNDING, rel=0.0)
