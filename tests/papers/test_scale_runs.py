"""Sweeps counted by width: counts that add up, and outcomes that are those of descent."""

import numpy as np
import pytest

import marginlens as ml
from marginlens.data.counter_based import sphere_problems
from marginlens_papers.claims.a import scale_runs as scale
from tolerances import ROUNDING, SIX_DIGITS

WIDTHS, COUNT = (2, 10), 60


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    plan = scale.scale_plan(COUNT, widths=WIDTHS)
    return scale.counted(ml.sweep(plan, tmp_path_factory.mktemp("scale") / "sweep"))


def test_every_run_is_counted_once(runs):
    np.testing.assert_array_equal(runs.counts.sum(axis=1), COUNT)
    np.testing.assert_array_equal(runs.gaps.sum(axis=1), runs.n_saturated)
    np.testing.assert_array_equal(runs.misses[:, 0].sum(axis=-1), runs.n_saturated)
    np.testing.assert_array_equal(runs.misses[:, 1].sum(axis=-1), runs.counts[:, scale.NEGATIVE])
    for k in range(len(WIDTHS)):
        np.testing.assert_array_equal(np.bincount(runs.first[k], minlength=4), runs.counts[k])


@pytest.mark.statement("A Def 2")
def test_outcomes_equal_those_of_descent_and_optimality(runs):
    for k, d in enumerate(WIDTHS):
        data, v = sphere_problems(0, COUNT, scale.N_INPUTS, scale.N_TOKENS, d, scale.SEED, k)
        run = ml.descend(data, v, n_steps=scale.N_STEPS)
        found = ml.token_optimality(data, v, run.selected)
        chosen = np.take_along_axis(run.attention, run.selected[..., None], axis=-1)[..., 0]
        saturated = (chosen.mean(axis=-1) >= scale.SATURATED) & found.is_feasible
        np.testing.assert_array_equal(runs.first[k] != scale.UNSATURATED, saturated)
        np.testing.assert_array_equal(runs.first[k] == scale.GLOBAL, saturated & found.is_globally_optimal)
        miss = 1.0 - np.asarray(ml.correlation(run.final, found.solution.x))[saturated]
        assert runs.mean_miss[k, 0] == pytest.approx(miss.mean(), rel=1e-6, abs=ROUNDING)
        assert runs.share_missing(1e-2)[k] == pytest.approx(np.mean(miss >= 1e-2), rel=SIX_DIGITS, abs=ROUNDING)
