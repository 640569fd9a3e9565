"""What is particular to the claims of papers D, E and F: margins in norms, clocks and ranks."""

import numpy as np

from marginlens_papers.claims.f import figure_2 as f_1
from quick_claims import quick_run
from tolerances import ROUNDING


def test_no_run_has_more_than_the_best_margin_of_any_norm():
    _, finding, _ = quick_run("F-1")
    shares = [s for runs in finding.arrays["runs"].values() for run in runs.values() for s in run.share.values()]
    assert np.max(shares) <= 1.0 + ROUNDING


def test_exponents_are_those_of_power_laws():
    steps = np.unique(np.geomspace(1, 10_000, 60).astype(int))
    assert abs(f_1._slope(steps, 3.0 * steps**-0.5) + 0.5) < ROUNDING
