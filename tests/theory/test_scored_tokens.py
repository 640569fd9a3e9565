"""A problem with its head and loss: what it computes once, and that a prediction computes nothing twice."""

import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import marginlens as ml
from marginlens.svm.solvers.least_distance import shortest_above
from marginlens.theory.scored_tokens import ScoredTokens
from tolerances import ROUNDING

RULES = [None, ml.NormalizedGD(1.0), ml.GradientDescent(0.5)]


def counted(question):
    """How often theory computes scores, which checks data and head, and the rows of the margin problems that are solved."""
    calls, rows = Counter(), Counter()

    def look(frame, event, _):
        if event != "call":
            return
        code = frame.f_code
        if code.co_name == "finite_scores" and Path(frame.f_back.f_code.co_filename).parent.name == "theory":
            calls[code.co_name] += 1
        if code is shortest_above.__code__:
            given = frame.f_locals["rows"]
            problems = given if given.ndim == 3 else given[None]
            rows.update(problem.tobytes() for problem in problems)

    sys.setprofile(look)
    try:
        question()
    finally:
        sys.setprofile(None)
    return calls, rows


@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("start", [None, [1.0, -0.5, 2.0]])
def test_a_prediction_solves_every_margin_problem_once_and_validates_once(rule, start):
    data, v = (batch[0] for batch in ml.data.sphere_tokens(1, 4, 6, 3, 5))
    calls, rows = counted(lambda: ml.predict_limit(data, v, optimizer=rule, start=start))
    assert rows
    # The implicit bias of an optimizer solves the problem of its own tokens, in the norm of the optimizer.
    assert sum(rows.values()) - len(rows) <= (0 if rule is None else 1)
    assert calls["finite_scores"] == 1


def test_scores_ties_and_margins_equal_those_of_a_loop_over_the_batch():
    data, v = ml.data.sphere_tokens(5, 3, 4, 3, 8)
    batch = ScoredTokens(data, v)
    every = batch.margin(batch.optimal)
    for j, problem in enumerate(batch):
        assert problem is batch[j]
        np.testing.assert_array_equal(problem.scores, ScoredTokens(data[j], v[j]).scores)
        np.testing.assert_array_equal(problem.dependent, batch.dependent[j])
        assert problem.margin(problem.optimal).margin == pytest.approx(every[j].margin, rel=ROUNDING, abs=ROUNDING)
        assert problem.margin(problem.optimal) is problem.margin(problem.optimal)
        assert problem.n_solved == 1
    some = batch[np.array([True, False, True, False, False])]
    assert [some[0], some[1]] == [batch[0], batch[2]]


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_progress_of_predictions_ends_with_everything_done(rule):
    data, v = ml.data.sphere_tokens(3, 2, 4, 5, 9)
    told = []
    ml.predict_limit(data, v, optimizer=rule, progress=lambda done, total: told.append((done, total)))
    assert len(told) > 3
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1][0] == told[-1][1]
