"""Joint training in the page's kernels against the library: best selections, p^mm and p^relax."""

from __future__ import annotations

import numpy as np
import pytest

import marginlens as ml
from lab_kernels import as_json, needs_node, run_in_page
from marginlens.theory.label_margin import best_selections, label_margin

pytestmark = needs_node

DIRECTION_ATOL = 1e-9
N_RANDOM = 40
CODE = """
import { jointLimits } from "../kernels/joint.js";
import { directionOf } from "../kernels/margin.js";
import { readProblem } from "../kernels/problem.js";
const shown = (solution) => solution && Array.from(directionOf(solution));
answer(given.map((json) => {
  const { margin, complete, found } = jointLimits(readProblem(json));
  const entries = found.map(({ selected, support, head, strict, relaxed }) =>
    ({ selected, support, head: Array.from(head), strict: shown(strict), relaxed: shown(relaxed) }));
  return { margin, complete, entries };
}));
"""


def _random_problem(seed: int) -> ml.TokenDataset:
    rng = np.random.default_rng(seed)
    n_inputs, n_tokens = int(rng.integers(1, 5)), int(rng.integers(1, 5))
    return ml.TokenDataset(rng.standard_normal((n_inputs, n_tokens, 2)), rng.choice([-1.0, 1.0], n_inputs))


def test_joint_kernels_agree_on_figure_3_and_random_problems() -> None:
    problems = [ml.data.figure_3a(), ml.data.figure_3b(), *(_random_problem(seed) for seed in range(N_RANDOM))]
    answers = run_in_page(CODE, [as_json(data, None) for data in problems])
    n_limits = n_relaxed = 0
    for data, found in zip(problems, answers, strict=True):
        best = best_selections(data)
        assert found["complete"]
        assert found["margin"] == pytest.approx(best.margin, rel=1e-9, abs=1e-12)
        expected = [
            selected
            for selected in best.selections
            if best.margin > 0 and ml.att_svm(data, selected).status is ml.Status.OPTIMAL
        ]
        assert [entry["selected"] for entry in found["entries"]] == [selected.tolist() for selected in expected]
        for entry, selected in zip(found["entries"], expected, strict=True):
            head = label_margin(data, selected)
            assert [bool(active) for active in entry["support"]] == head.support.tolist()
            np.testing.assert_allclose(entry["head"], head.head.direction, rtol=0, atol=DIRECTION_ATOL)
            np.testing.assert_allclose(
                entry["strict"], ml.att_svm(data, selected).direction, rtol=0, atol=DIRECTION_ATOL
            )
            n_limits += 1
            if entry["relaxed"] is not None:
                relaxed = ml.relaxed_svm(data, selected, head.support)
                np.testing.assert_allclose(entry["relaxed"], relaxed.direction, rtol=0, atol=DIRECTION_ATOL)
                n_relaxed += 1
    assert n_limits > N_RANDOM // 4
    assert n_relaxed > N_RANDOM // 8
