"""What the hard-margin problems refuse, and in which words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from marginlens.data import TokenDataset
from marginlens.errors import InputError
from marginlens.svm import att_svm, label_svm, least_distance, relaxed_svm, set_svm

ROWS, FLOOR = np.ones((2, 3)), np.ones(2)


@pytest.mark.parametrize(
    ("rows", "floor", "message"),
    [
        (np.ones(3), FLOOR, r"'rows' argument must be of shape \(n_rows, d\) or \(batch, n_rows, d\).*shape \(3,\)"),
        (np.ones((1, 1, 1, 1)), FLOOR, r"'rows' .* got shape \(1, 1, 1, 1\)"),
        (np.ones((2, 0)), FLOOR, "'rows' .* one coordinate"),
        (np.ones((0, 2, 3)), np.ones((0, 2)), "'rows' .* at least one problem"),
        ("rows", FLOOR, "'rows' argument must be numbers .* got 'rows'"),
        (ROWS * np.nan, FLOOR, r"'rows' .* finite .* nan at index \(0, 0\)"),
        (ROWS * np.inf, FLOOR, "'rows' .* finite .* inf"),
        (ROWS, np.ones(3), r"'floor' .* shape \(2,\).*got shape \(3,\)"),
        (ROWS, [1.0, np.nan], "'floor' .* finite .* nan"),
        (ROWS, [1.0, -0.5], "'floor' argument must be lower bounds of at least 0; got -0.5"),
    ],
)
def test_unusable_rows_and_floors(rows: Any, floor: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        least_distance(rows, floor)


def test_one_bad_number_in_a_batch_is_named() -> None:
    rows = np.ones((5, 2, 3))
    rows[3, 1, 2] = np.nan
    with pytest.raises(InputError, match=r"'rows' .* nan at index \(3, 1, 2\)"):
        least_distance(rows, np.ones((5, 2)))


@pytest.mark.parametrize(
    ("equalities", "message"),
    [
        (np.ones((1, 4)), r"'equalities' .* \(n_equalities, 3\).*got shape \(1, 4\)"),
        (np.ones((2, 1, 3)), r"'equalities' .* got shape \(2, 1, 3\)"),
        ([[1.0, np.inf, 0.0]], "'equalities' .* finite .* inf"),
    ],
)
def test_unusable_equalities(equalities: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        least_distance(ROWS, FLOOR, equalities=equalities)


def test_pairs_must_name_every_row() -> None:
    with pytest.raises(InputError, match=r"'pairs' argument must be whole numbers of shape \(2, 3\)"):
        least_distance(ROWS, FLOOR, pairs=np.zeros((1, 3), dtype=int))
    with pytest.raises(InputError, match=r"'pairs' .* float64"):
        least_distance(ROWS, FLOOR, pairs=np.zeros((2, 3)))


def test_selected_tokens_must_exist() -> None:
    data = TokenDataset(np.ones((2, 3, 4)), [1, 1])
    with pytest.raises(InputError, match=r"'selected' .* index 3"):
        att_svm(data, [0, 3])
    with pytest.raises(InputError, match=r"'selected' .* one token index per input"):
        att_svm(data, [0.5, 1.0])
    for solve in (att_svm, lambda X, which: relaxed_svm(X, which, [0]), lambda X, which: set_svm(X, [[0], [0]])):
        with pytest.raises(InputError, match="'data' argument must be a TokenDataset; got ndarray"):
            solve(data.X, [0, 0])


@pytest.mark.parametrize(
    ("R", "y", "message"),
    [
        (np.ones(3), [1.0], r"'R' .* \(n_inputs, d_model\).*got shape \(3,\)"),
        (ROWS, [1.0, 0.0], "'y' argument must be labels, each -1 or \\+1; got the label 0"),
        (ROWS, [1.0], r"'y' .* got shape \(1,\)"),
        (ROWS * np.nan, FLOOR, "'R' .* nan"),
        ([[1.0, 2.0], [1.0]], FLOOR, r"'R' .* got \[\[1.0, 2.0\], \[1.0\]\]"),
        (ROWS, [1, [1]], r"'y' .* got \[1, \[1\]\]"),
    ],
)
def test_unusable_labelled_points(R: Any, y: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        label_svm(R, y)
