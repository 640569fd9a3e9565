"""Match and copy under the squared loss: where runs whose loss vanishes end (X M)."""

from __future__ import annotations

from typing import Any

import numpy as np

from marginlens.papers import implements
from marginlens.risk.copying import CopyRisk
from marginlens.status import Status
from marginlens.svm import MarginSolution, att_svm
from marginlens.theory.assumptions import Check, TheoremVerdict
from marginlens.theory.prediction import Prediction, predictions

INDEPENDENT_RTOL = (
    1e-10  # smallest over largest singular value of an input's values, from which on they count as independent
)


@predictions.register
@implements("X", "M")
def predict_copying(risk: CopyRisk, start: Any, optimizer: Any, max_problems: int) -> list[Prediction]:
    r"""What is known of attention that is to copy the value of the matching token, problem by problem.

    .. math:: \min_p \|p\| \quad \text{s.t.} \quad (k_{i m_i} - k_{it})^\top p \ge 1 \quad \text{for all } t \ne m_i

    If the values of an input, less the one to copy, are linearly independent, the loss vanishes only where the matching token has all
    attention. If some direction separates the matching tokens, gradient descent whose loss vanishes diverges in norm, and its direction
    tends to that of the shortest such p. Whether the loss of a run vanishes is not known in advance.
    """
    problems: list[Any] = [risk[j] for j in range(len(risk))] if risk.is_batch else [risk]
    return [_of_problem(problem) for problem in problems]


def _of_problem(risk: CopyRisk) -> Prediction:
    solution = att_svm(risk.data, risk.match)
    known = (_separable(solution), _independent(risk))
    open_question = Check("vanishing loss", False, "nothing says in advance whether the loss of a run vanishes")
    conclusion = "gradient descent tends to the max-margin direction that selects the matching tokens"
    verdict = TheoremVerdict("X M", (*known, open_question), conclusion)
    if not all(known):
        failed = "; ".join(check.sentence for check in known if not check)
        return Prediction("CopyRisk", (verdict,), f"Not certain: {failed}.", details=solution)
    why = (
        f"Not certain: {open_question.sentence}; where it does, the direction is that of the ATT-SVM of the matching tokens, with margin "
        f"{float(solution.margin):.4g} (X M)."
    )
    return Prediction("CopyRisk", (verdict,), why, observed=solution.direction, details=solution)


def _separable(solution: MarginSolution) -> Check:
    holds = solution.status is Status.OPTIMAL
    said = f"with margin {float(solution.margin):.4g}" if holds else "does not exist"
    return Check("separable matches", holds, f"a direction that selects the matching token of every input {said}")


def _independent(risk: CopyRisk) -> Check:
    """Whether the values of each input, less the one to copy, are linearly independent."""
    data, ratios = risk.data, []
    for i, match in enumerate(risk.match.tolist()):
        n = int(data.lengths[i])
        singular = np.linalg.svd(np.delete(data.X[i, :n], match, axis=0), compute_uv=False)
        full = n - 1 <= data.d_model
        ratios.append(
            float(singular[-1] / singular[0]) if full and n > 1 and singular[0] > 0.0 else float(full and n == 1)
        )
    least = min(ratios)
    holds = least > INDEPENDENT_RTOL
    said = "are" if holds else "of some input are not"
    sentence = f"the values, less the one to copy, {said} linearly independent"
    return Check("independent values", holds, sentence, {"smallest_ratio": least})
