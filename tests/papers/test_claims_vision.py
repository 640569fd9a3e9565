"""Figures 6 and 7 of long runs: as many epochs as fit, the last among them, and no legend over a curve."""

import numpy as np
import pytest

from marginlens_papers.claims.a.vision import COLUMNS, curve_figure, map_figure
from marginlens_papers.vision.results import BY_LAYER, VisionCurves
from marginlens_papers.vision.training import map_epochs


def run_of(epochs, of):
    """A made-up run of 12 layers with as many epochs of as many planned; its last maps are one patch each."""
    e = np.arange(epochs + 1.0)
    layers = np.linspace(1.0, 3.0, 12)
    grows = np.log1p(e)[:, None] * layers + 0.1
    by_layer = {name: grows if "norm" in name else 1.0 / (1.0 + grows) for name in BY_LAYER}
    scalars = {name: np.where(e > 0, 1 - np.exp(-e / 30), np.nan) for name in ("loss", "train_accuracy")}
    scalars |= {"test_accuracy": 1 - np.exp(-e / 50), "seconds": 9 * e}
    shown = tuple(sorted({one for one in map_epochs(of) if one <= epochs} | {epochs}))
    maps = np.random.default_rng(0).dirichlet(np.ones(256), (len(shown), 6))
    maps[-1] = np.eye(256)[:6]
    return VisionCurves(e, scalars, by_layer, shown, maps, ("a", "b", "c", "d", "e", "f"))


@pytest.mark.parametrize(("epochs", "of"), [(100, 100), (337, 400), (2000, 2000)])
def test_long_runs_fit_with_their_first_and_last_epoch(epochs, of):
    fig = map_figure(run_of(epochs, of), "title")
    titles = [ax.get_title() for ax in fig.axes if ax.get_title()]
    assert len(titles) <= COLUMNS
    assert (titles[0], titles[-1]) == ("epoch 0", f"epoch {epochs}")
    assert fig.axes[len(titles) - 1].get_xlabel() == "nnz/T 0.004"  # 1/256, which two digits would make nothing
    assert fig.get_size_inches()[0] < 12


def test_legends_stand_above_all_curves():
    fig = curve_figure([run_of(100, 100)], "title")
    fig.canvas.draw()
    for ax in fig.axes:
        legend = ax.get_legend().get_window_extent()
        highest = max(float(np.nanmax(line.get_ydata())) for line in ax.get_lines())
        assert legend.y0 > ax.transData.transform((0.0, highest))[1]
        assert legend.x0 > ax.bbox.x0
        assert legend.x1 < ax.bbox.x1
