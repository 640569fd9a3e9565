"""A Figs 6, 7 in small: as a vision transformer learns, its CLS map gets sparser and its key-query matrix grows; else neither."""

from dataclasses import replace

import numpy as np
import pytest

from fake_claims import changed
from marginlens_papers.claim import Effort, Progress, Verdict
from marginlens_papers.claims.a import vision as a_f67
from marginlens_papers.claims.a.vision import DIGITS, trends
from marginlens_papers.claims.a.vision_runs import VisionCurves, VisionRun, VisionSettings, vision_run
from marginlens_papers.claims.a.vision_training import digit_images, train_vision
from quick_claims import quick_run
from tolerances import ROUNDING, SIX_DIGITS

OF_KEPT_RUNS = {"maps-cifar10", "curves-cifar10", "runs-cifar10"}
RISES_AFTER_LEARNING, RISES_WITHOUT_LEARNING = ("cifar10-shifts-4", "cifar10-adamw-1e-4"), "cifar10-adamw-3e-3"
STILL = 1e-3  # how far anything moves at a rate of 1e-9
needs_training = pytest.mark.skipif(not a_f67.TRAINS, reason="torch, transformers or scikit-learn is not installed")


def curves(sparsity, norm):
    """Curves of two layers of which the last is given."""
    n = len(sparsity)
    layers = {
        "sparsity": np.stack([np.ones(n), sparsity], axis=1),
        "norm": np.stack([np.ones(n), norm], axis=1),
    }
    scalars = {name: np.linspace(0.1, 0.9, n) for name in ("train_accuracy", "test_accuracy")}
    return VisionCurves(np.arange(float(n)), scalars, layers, (0, n - 1), np.full((2, 3, 16), 1 / 16), ("a", "b", "c"))


@pytest.mark.statement("A Fig 7")
def test_trends_are_ranks_with_the_epoch_and_a_share_of_the_first_value():
    found = trends(curves([1.0, 0.8, 0.9, 0.5], [1.0, 2.0, 3.0, 10.0]))
    assert found.share_of_first == 0.5
    assert found.norm_rank == pytest.approx(1.0, rel=SIX_DIGITS, abs=ROUNDING)
    assert found.sparsity_rank == pytest.approx(
        -0.8, rel=SIX_DIGITS, abs=ROUNDING
    )  # one pair of neighbours out of order


@needs_training
@pytest.mark.statement("A Fig 6", "A Fig 7")
def test_without_learning_the_map_stays_dense():
    whole = digit_images()
    data = replace(whole, x_train=whole.x_train[:256], y_train=whole.y_train[:256])
    run = train_vision(data, replace(DIGITS, epochs=1, learning_rate=1e-9, batch=256))
    for name in ("sparsity", "norm"):
        first, last = run.curves.by_layer[name]
        assert np.abs(last / first - 1.0).max() < STILL
    assert run.curves.by_layer["sparsity"][0].min() > 0.9  # random weights attend to nearly everything alike


@pytest.fixture(scope="module")
def quick():
    """The claim at quick effort."""
    if not a_f67.TRAINS:
        pytest.skip("torch, transformers or scikit-learn is not installed")
    return quick_run("A-F67").finding


@pytest.mark.statement("A Fig 6", "A Fig 7")
def test_maps_of_digits_concentrate_within_all_bounds(quick):
    claim = a_f67.A_F67()
    trends_of_the_paper = set(a_f67._bounds("cifar10")) - {"cifar10_accuracy"}
    assert set(claim.expected) == {*a_f67._bounds("digits"), "cifar10_accuracy"}
    assert claim.judge(quick) is Verdict.HOLDS_IN_PART
    missed = {name for name, bound in claim.as_stated.items() if not bound.holds(quick.numbers[name])}
    # fewer epochs and images, a denser map in the end, none of it at the stated rate
    assert missed == set(claim.as_stated) - trends_of_the_paper
    maps = quick.arrays["digits"][0].maps
    assert (maps[-1] ** 2).sum(axis=1).mean() > 1.2 * (maps[0] ** 2).sum(axis=1).mean()


@pytest.mark.parametrize(("share", "verdict"), [(0.59, Verdict.HOLDS_IN_PART), (0.61, Verdict.DOES_NOT_HOLD)])
def test_a_kept_run_is_checked_against_the_same_bounds(quick, monkeypatch, share, verdict):
    n = 21
    settings = VisionSettings(layers=2, heads=2, width=4, epochs=n - 1, optimiser="adamw", warmup=5)
    facts = {"data": {"train": 18_000}}
    made_up = curves(np.linspace(1.0, share, n), np.linspace(1.0, 2.0, n))
    kept = VisionRun("cifar10", settings, made_up, 0.5, True, facts)
    monkeypatch.setattr(a_f67, "train_vision", lambda data, chosen, advance: _Done(quick.arrays["digits"][0]))
    monkeypatch.setattr(a_f67, "vision_run", lambda name: kept)
    finding = a_f67.A_F67().compute(Effort.QUICK, Progress())
    claim = changed(a_f67.A_F67(), expected={**a_f67._bounds("digits"), **a_f67._bounds("cifar10")})
    assert claim.judge(finding) is verdict
    assert f"({share:.2f} of the first)" in finding.measured
    assert "AdamW at rate 0.003, batch 250, 5 steps of warm-up" in finding.note
    assert set(claim.draw(finding)) == {*OF_KEPT_RUNS, "maps-digits", "curves-digits"}


@pytest.mark.statement("A Fig 7")
def test_the_kept_run_of_100_epochs_meets_all_bounds(quick):
    kept = vision_run("cifar10")
    assert kept.finished
    assert int(kept.curves.epochs[-1]) == 100
    assert quick.numbers["cifar10_share_of_first"] < 0.2
    assert quick.numbers["cifar10_norm_rank"] > 0.999
    assert quick.numbers["cifar10_sparsity_rank"] < -0.85
    assert "nnz/T is lowest at epoch 71 (0.141, " in quick.note


@pytest.mark.statement("A Fig 6", "A Fig 7")
def test_a_run_that_does_not_learn_does_not_reproduce(quick, monkeypatch):
    still = vision_run("cifar10-adamw-3e-3")
    numbers = a_f67._numbers_of(still)
    missed = [name for name, bound in a_f67._bounds("cifar10").items() if not bound.holds(numbers[name])]
    assert missed == ["cifar10_accuracy"]
    claim = a_f67.A_F67()
    assert claim.judge(replace(quick, numbers={**quick.numbers, **numbers})) is Verdict.DOES_NOT_HOLD
    assert f"test accuracy {still.accuracy:.3f}); more epochs were not tried" in quick.note
    assert np.isnan(a_f67.stated_rate_share([still]))
    assert a_f67.stated_rate_share([still, vision_run("cifar10-sgd-3e-3")]) == pytest.approx(0.9895, abs=1e-4, rel=0.0)


@pytest.mark.statement("A Fig 7")
def test_a_run_as_the_paper_describes_it_would_be_reproduced(quick):
    claim = a_f67.A_F67()
    as_described = {
        "cifar10_epochs": 400.0,
        "cifar10_training_images": 50_000.0,
        "cifar10_last_over_lowest": 1.0,
        "stated_rate_share_of_first": 0.2,
    }
    assert claim.judge(replace(quick, numbers={**quick.numbers, **as_described})) is Verdict.HOLDS_WITH_CAVEATS


@pytest.mark.statement("A Fig 7")
@pytest.mark.parametrize("name", ["cifar10", *a_f67.OTHERS])
def test_the_map_gets_denser_only_after_most_images_are_learned(name):
    run = vision_run(name).curves
    s, accuracy = run.by_layer["sparsity"][:, -1], run.scalars["train_accuracy"]
    over_ten = np.convolve(s, np.full(10, 0.1), "valid") if len(s) > 10 else s
    lowest = int(np.argmin(over_ten)) + len(s) - len(over_ten)  # the last of the ten epochs
    assert trends(run.until(lowest)).sparsity_rank < -0.85
    rises = over_ten[-1] > 1.1 * over_ten.min()
    assert rises == (name in (*RISES_AFTER_LEARNING, RISES_WITHOUT_LEARNING))
    assert (accuracy[-1] > 0.2) == (name != RISES_WITHOUT_LEARNING)
    if name in RISES_AFTER_LEARNING:
        assert accuracy[lowest] > 0.8


class _Done:
    """A finished run with these curves."""

    accuracy = 0.9

    def __init__(self, made):
        self.curves = made
