"""The page of curves over checkpoints: its sentences follow the numbers, it needs no other file, and names stay text."""

import re

import numpy as np
import pytest

from made_up_probe import N_CHECKPOINTS, STEPS, made_up_curves
from marginlens.probe.checkpoint_curves import CheckpointCurves
from marginlens.probe.measures import MEASURES
from marginlens.probe.pages.checkpoint_findings import change, falls, grows, training_findings
from marginlens.probe.pages.checkpoints import checkpoint_page

DOWN, UP, FLAT = 0.9 - 0.1 * STEPS, 1.0 + STEPS, np.array([1.0, 3.0, 2.0, 3.0, 1.0, 2.0, 1.1])


def test_sparsity_that_falls_while_norms_grow_is_what_paper_a_says():
    curves = made_up_curves(relative_nnz=DOWN, first_relative_nnz=DOWN, frobenius=UP)
    for said in training_findings(curves)[:2]:
        assert "falls in 3 of 3 layers (the last layer: 0.9 → 0.3 (−1.00)" in said
        assert "the Frobenius norm of W grows in 3 (the last layer: 1 → 7 (1.00))." in said
        verdict = "So attention gets sparser while the key-query weights grow, as paper A's Figs 6 and 7 say"
        assert f"{verdict}: nnz/T falls by 67%, the norm grows by 600%." in said


def test_layers_that_do_otherwise_are_named():
    some = made_up_curves(relative_nnz=[DOWN, UP, DOWN], first_relative_nnz=UP, frobenius=[UP, UP, FLAT])
    mixed, none = training_findings(some)[:2]
    assert "falls in 2 of 3 layers" in mixed
    assert "grows in 2 (" in mixed
    assert "as paper A's Figs 6 and 7 say, in layer 0 only: nnz/T falls by 67%" in mixed
    assert (
        "So in no layer does attention get sparser while the key-query weights grow by more than chance explains"
        in none
    )
    assert falls(some, "relative_nnz").tolist() == [True, False, True]
    assert grows(some, "frobenius").tolist() == [True, True, False]


def test_a_clear_trend_is_asked_for_not_only_two_ends():
    curve = [0.5, 0.9, 1.0, 0.95, 0.97, 0.8, 0.4]  # ends below its first value, with a rank correlation near 0
    assert not falls(made_up_curves(relative_nnz=curve), "relative_nnz").any()
    assert not grows(made_up_curves(relative_nnz=[0.5, 0.4, 0.3, 0.2, 0.25, 0.3, 0.6]), "relative_nnz").any()


def test_a_steady_change_of_no_size_is_no_finding():
    curves = made_up_curves(relative_nnz=1.0 - 2e-4 * STEPS, frobenius=1.0 + 1e-3 * STEPS)
    assert not falls(curves, "relative_nnz").any()
    assert not grows(curves, "frobenius").any()
    assert "in no layer" in training_findings(curves)[0]


@pytest.mark.parametrize("n", [2, 4, 5])
def test_few_checkpoints_say_nothing_about_a_trend(n):
    whole = made_up_curves(relative_nnz=DOWN, frobenius=UP)
    measures = {name: values[:n] for name, values in whole.measures.items()}
    few = CheckpointCurves("bert", whole.names[:n], STEPS[:n], measures, 5)
    said = training_findings(few)[0]
    assert f"{n} checkpoints cannot say" in said
    assert "So attention gets sparser" not in said
    assert not falls(few, "relative_nnz").any()
    assert "(−1.00)" not in checkpoint_page(few)
    assert "rank correlation" not in checkpoint_page(few)


def test_unrelated_models_called_checkpoints_show_a_trend_as_rarely_as_stated():
    rng = np.random.default_rng(1)
    found = 0
    for _ in range(300):
        measures = {"relative_nnz": rng.random((8, 4, 2)), "frobenius": 1.0 + rng.random((8, 4, 2))}
        curves = CheckpointCurves("bert", tuple("abcdefgh"), np.arange(8.0), measures, 5)
        found += bool((falls(curves, "relative_nnz") | grows(curves, "relative_nnz")).any())
    assert found <= 25  # 15 expected at the stated 5%; more than 25 has a chance below 1%


def test_curves_stay_off_the_frame():
    panel = made_up_curves(relative_nnz=np.linspace(1.0, 0.999, N_CHECKPOINTS)).draw().axes[0]
    highest = max(line.get_ydata().max() for line in panel.lines)
    assert panel.get_ylim()[0] == 0.0
    assert highest < 0.95 * panel.get_ylim()[1]


def test_the_max_margin_part_stands_beside_its_baselines():
    curves = made_up_curves(
        correlation=0.2 + 0.1 * STEPS,
        correlation_random_head=np.full(N_CHECKPOINTS, 0.35),
        correlation_random_matrix=np.zeros(N_CHECKPOINTS),
    )
    correlation = training_findings(curves)[3]
    assert "the mean over the heads of the last layer, goes 0.2 → 0.8 (1.00)." in correlation
    assert "0 → 0 for random W, 0.35 → 0.35 for random head" in correlation
    assert "at 5 of 7 checkpoints" in correlation
    unknown = made_up_curves(correlation=np.full(N_CHECKPOINTS, np.nan))
    assert "is known at no checkpoint in the last layer" in training_findings(unknown)[3]
    assert change(unknown, "correlation") == "– → –"


def test_sentences_go_without_what_was_not_measured():
    margins = [one.name for one in MEASURES if one.name.startswith(("correlation", "margin_ratio", "low_ratio"))]
    curves = made_up_curves(
        without=margins, first_relative_nnz=np.full(N_CHECKPOINTS, np.nan), frobenius=np.full(N_CHECKPOINTS, np.nan)
    )
    sparsity, margin = training_findings(curves)
    assert sparsity.endswith("The norm of W is not known here, so that nothing is said about sparsity beside it.")
    assert margin.startswith("The median logit margin")
    page = checkpoint_page(curves)
    assert "max-margin" not in page.lower().replace("max-margin token selection", "")  # but for the paper's title


@pytest.fixture(scope="module")
def page():
    return checkpoint_page(made_up_curves(relative_nnz=DOWN))


def test_the_table_has_every_layer_from_first_to_last(page):
    rows = re.findall(r'<tr><th scope="row">(\d)</th>(.*?)</tr>', page)
    assert [layer for layer, _ in rows] == ["0", "1", "2"]
    assert rows[1][1].startswith("<td>0.9 → 0.3 (−1.00)</td>")
    assert rows[1][1].count("<td>") == 6
