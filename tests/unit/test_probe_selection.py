"""Which token a query selects, and by how much."""

from __future__ import annotations

import numpy as np
import pytest

import tolerances
from marginlens.errors import InputError
from marginlens.probe.heads.selection import select_tokens

HIDDEN = -np.inf


def test_the_largest_visible_logit_is_selected_with_its_margin() -> None:
    found = select_tokens([[1.0, 4.0, 2.5], [9.0, HIDDEN, 3.0], [HIDDEN, 7.0, HIDDEN], [HIDDEN] * 3])
    assert found.selected.tolist() == [1, 0, 1, -1]
    np.testing.assert_array_equal(found.margin, [1.5, 6.0, np.inf, np.nan])
    assert found.n_tied.tolist() == [1, 1, 1, 0]
    assert found.n_choices == 2
    assert found.n_ties == 0


def test_ties_have_no_margin_and_are_counted() -> None:
    found = select_tokens([[2.0, 2.0, 1.0, 2.0], [0.0, 1.0, 1.0, -1.0], [5.0, 4.0, 3.0, 2.0]])
    assert found.selected.tolist() == [0, 1, 0]
    assert found.margin.tolist() == [0.0, 0.0, 1.0]
    assert found.n_tied.tolist() == [3, 2, 1]
    assert found.n_ties == 2
    assert found.share_tied == pytest.approx(2 / 3)
    assert repr(found) == "Selection(3 choices, 2 tied)"


def test_a_near_tie_is_no_tie() -> None:
    found = select_tokens([[1.0, 1.0 + 1e-9, 0.0]])
    assert found.selected.tolist() == [1]
    assert found.n_tied.tolist() == [1]
    assert found.margin[0] == pytest.approx(1e-9, rel=1e-6, abs=0.0)


def test_a_mask_without_heads_holds_for_every_head_and_hides_larger_logits() -> None:
    rng = np.random.default_rng(0)
    logits, visible = rng.normal(size=(3, 4, 6, 6)), np.tri(6, dtype=bool) & (rng.random((3, 6, 6)) < 0.7)
    given = logits.copy()
    found = select_tokens(logits, visible)
    np.testing.assert_array_equal(logits, given)
    for b, h, q in np.ndindex(3, 4, 6):
        seen = np.flatnonzero(visible[b, q])
        order = seen[np.argsort(-logits[b, h, q, seen])]
        assert found.selected[b, h, q] == (order[0] if len(order) else -1)
        if len(order) > 1:
            expected = logits[b, h, q, order[0]] - logits[b, h, q, order[1]]
            assert found.margin[b, h, q] == pytest.approx(expected, abs=tolerances.ROUNDING)
    np.testing.assert_array_equal(select_tokens(np.where(visible[:, None], logits, HIDDEN)).selected, found.selected)


def test_shares_count_queries_with_a_choice_only() -> None:
    found = select_tokens([[3.0, 0.0], [1.0, 0.5], [1.0, HIDDEN], [HIDDEN, HIDDEN]])
    assert found.share_above(1.0) == 0.5
    assert found.share_above(3.0) == 0.0
    assert found.share_above(2.999) == 0.5
    assert np.isnan(select_tokens([[1.0, HIDDEN]]).share_above(1.0))
    with pytest.raises(InputError, match="'threshold' argument must be a positive number"):
        found.share_above(-1.0)


def test_what_cannot_be_selected_from_is_refused() -> None:
    with pytest.raises(InputError, match="'logits' argument must be numbers where a token is visible; got nan"):
        select_tokens([[np.nan, 1.0]], [[True, True]])
    assert select_tokens([[np.nan, 1.0]], [[False, True]]).selected.tolist() == [1]
    with pytest.raises(InputError, match="at least one token"):
        select_tokens(np.empty((2, 0)))
    with pytest.raises(InputError, match=r"a mask for logits of shape \(2, 3\); got shape \(3, 2\)"):
        select_tokens(np.zeros((2, 3)), np.ones((3, 2), dtype=bool))
