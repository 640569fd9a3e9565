"""Runs followed after their proof: counts that add up, and contradictions that are seen."""

from concurrent.futures import ProcessPoolExecutor
from functools import reduce
from operator import add

import numpy as np
import pytest

from marginlens_papers.claim import Effort, Progress, Verdict
from marginlens_papers.claims.catalogue import claim
from marginlens_papers.claims.ours import proof_runs as proofs

COUNT = 90


def counted(**options):
    return reduce(add, proofs.proof_runs(COUNT, 3, **options))


@pytest.mark.statement("X Thm 1")
def test_every_problem_is_counted_once_and_no_proof_is_contradicted():
    runs = counted()
    np.testing.assert_array_equal(runs.counts[:, 0], COUNT // len(proofs.SHAPES))
    assert runs.contradicted == 0
    assert (runs.counts[:, 1] <= runs.counts[:, 0]).all()
    assert (np.diff(runs.open, axis=-1) <= 0).all()
    assert (runs.open_wrong <= runs.open).all()
    assert runs.open_wrong[:, 0].sum() > 0
    assert runs.total("further_steps") >= proofs.LEAST * runs.total("proved")
    with ProcessPoolExecutor(2) as executor:
        shared = counted(executor=executor)
    np.testing.assert_array_equal(shared.counts, runs.counts)
    np.testing.assert_array_equal(shared.open_wrong, runs.open_wrong)


@pytest.mark.parametrize("fault", ["narrow", "elsewhere", "early"])
def test_wrong_proofs_are_contradicted(monkeypatch, fault):
    true = proofs.find_tubes

    def wrong(*args):
        tubes = true(*args)
        if fault == "narrow":
            return tubes._replace(radius=0.01 * tubes.radius, growth=0.0 * tubes.growth)
        if fault == "elsewhere":
            return tubes._replace(selected=0 * tubes.selected)
        return tubes._replace(missing=0 * tubes.missing)

    monkeypatch.setattr(proofs, "find_tubes", wrong)
    assert counted().contradicted > 0
    found = claim("X-P2")
    assert found.judge(found.compute(Effort.QUICK, Progress())) is Verdict.DOES_NOT_HOLD
