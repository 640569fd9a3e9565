"""What is measured of one head: sparsity, key-query matrix, selections, preferences, and how max-margin it is."""

from __future__ import annotations

import numpy as np
import pytest

import tolerances
from marginlens.probe import (
    KeyQueryMap,
    MaxMarginSettings,
    head_margin,
    relative_sparsity,
    sample_queries,
    select_tokens,
    soft_sparsity,
)
from marginlens.probe.heads.max_margin import (
    SAME_TOKEN_RTOL,
    QuerySample,
    layer_margins,
    selected_tokens,
    selection_constraints,
)
from marginlens.probe.heads.preferences import MAX_GRAPH_TOKENS, POOLED, head_preferences, visible_types
from marginlens.svm import Status, least_distance
from marginlens.svm.bilinear import bilinear_svm
from refusals import refused

NAMES = {k: str(k) for k in range(100)}


def random_head(seed: int, d_model: int = 6, d_head: int = 3, *, bias: float = 1.0) -> KeyQueryMap:
    rng = np.random.default_rng([seed, 7])
    W_K, W_Q = rng.normal(size=(2, d_model, d_head))
    return KeyQueryMap(W_K, W_Q, bias * rng.normal(size=d_head), d_head**-0.5)


@pytest.mark.statement("A Fig 6", "A Fig 7")
def test_soft_sparsity_is_the_norm_ratio_between_one_and_visible_tokens() -> None:
    for n_attended in (1, 3, 8):
        s = np.repeat([1.0 / n_attended, 0.0], [n_attended, 8 - n_attended])
        assert soft_sparsity(s) == pytest.approx(n_attended, rel=tolerances.ROUNDING, abs=tolerances.ROUNDING)
        assert relative_sparsity(s) == pytest.approx(n_attended / 8, rel=tolerances.ROUNDING, abs=tolerances.ROUNDING)
    rng = np.random.default_rng(0)
    maps = rng.dirichlet(np.full(10, 0.3), size=(4, 6))
    maps[1, :, 7:] = 0.0
    maps /= maps.sum(axis=-1, keepdims=True)
    counts = soft_sparsity(maps)
    expected = np.linalg.norm(maps, 1, axis=-1) / np.linalg.norm(maps, axis=-1) ** 2
    np.testing.assert_allclose(counts, expected, rtol=tolerances.ROUNDING, atol=0.0)
    assert (counts >= 1.0).all()
    assert (counts[1] <= 7.0).all()
    assert (counts <= 10.0).all()
    n_visible = np.where(np.arange(4)[:, None] == 1, 7, 10) * np.ones(6)
    np.testing.assert_allclose(
        relative_sparsity(maps, n_visible), counts / n_visible, rtol=tolerances.ROUNDING, atol=0.0
    )
    np.testing.assert_allclose(soft_sparsity(3.0 * maps), counts / 3.0, rtol=tolerances.ROUNDING, atol=0.0)


@pytest.mark.parametrize("shape", [(30, 5), (6, 6), (4, 7)])
def test_norms_from_factors_equal_those_of_the_matrix(shape: tuple[int, int]) -> None:
    one = random_head(1, *shape)
    W = one.scale * one.W_K @ one.W_Q.T
    np.testing.assert_allclose(one.matrix, W, rtol=tolerances.ROUNDING, atol=0.0)
    assert one.frobenius == pytest.approx(np.linalg.norm(W), rel=tolerances.ROUNDING, abs=tolerances.ROUNDING)
    assert one.spectral == pytest.approx(np.linalg.norm(W, 2), rel=tolerances.ROUNDING, abs=tolerances.ROUNDING)
    assert one.nuclear == pytest.approx(np.linalg.norm(W, "nuc"), rel=tolerances.ROUNDING, abs=tolerances.ROUNDING)
    assert one.augmented.shape == (shape[0], shape[0] + 1)
    np.testing.assert_allclose(one.augmented[:, -1], one.bias_column, rtol=tolerances.ROUNDING, atol=0.0)


def test_the_matrix_gives_the_logits_up_to_a_constant() -> None:
    rng = np.random.default_rng(3)
    one = random_head(3, 12, 4)
    X, z, b_K = rng.normal(size=(7, 12)), rng.normal(size=12), rng.normal(size=4)
    logits = one.scale * (X @ one.W_K + b_K) @ (z @ one.W_Q + one.b_Q)
    ours = X @ one.matrix @ z + X @ one.bias_column
    np.testing.assert_allclose(ours, X @ one.augmented @ np.append(z, 1.0), rtol=0.0, atol=tolerances.ROUNDING * 100)
    np.testing.assert_allclose(np.diff(logits), np.diff(ours), rtol=0.0, atol=tolerances.ROUNDING * 100)
    assert not np.allclose(logits, ours, rtol=0.01, atol=0.0)


HIDDEN = -np.inf


def test_the_largest_visible_logit_is_selected_with_its_margin_and_ties_have_none() -> None:
    found = select_tokens([[1.0, 4.0, 2.5], [9.0, HIDDEN, 3.0], [HIDDEN, 7.0, HIDDEN], [HIDDEN] * 3, [2.0, 1.0, 2.0]])
    assert found.selected.tolist() == [1, 0, 1, -1, 0]
    np.testing.assert_array_equal(found.margin, [1.5, 6.0, np.inf, np.nan, 0.0])
    assert found.n_tied.tolist() == [1, 1, 1, 0, 2]
    assert repr(found) == "Selection(3 choices, 1 tied)"


def test_a_mask_without_heads_applies_to_every_head() -> None:
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
            assert found.margin[b, h, q] == pytest.approx(expected, abs=tolerances.ROUNDING, rel=0.0)
    np.testing.assert_array_equal(select_tokens(np.where(visible[:, None], logits, HIDDEN)).selected, found.selected)


SAME_POINT = 1e-8  # two exact solvers on rows whose roundings differ, relative to the solution
FOUND_AGAIN = 1e-9  # a head built from the SVM's matrix by a singular value decomposition, against that matrix


def random_inputs(seed: int, n_inputs: int = 12, d_model: int = 6) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    centre = rng.normal(size=d_model)
    return [centre + rng.normal(size=(int(n), d_model)) for n in rng.integers(3, 8, size=n_inputs)]


def factored(W: np.ndarray) -> KeyQueryMap:
    """A head whose augmented matrix is W (d_model, d_model + 1), or whose matrix is W (d_model, d_model)."""
    left, values, right = np.linalg.svd(W, full_matrices=False)
    d = len(W)
    b_Q = right[:, d] if W.shape[1] > d else np.zeros(len(values))
    return KeyQueryMap(left * values, right[:, :d].T, b_Q, 1.0)


def matrix_of(head: KeyQueryMap) -> np.ndarray:
    return head.augmented if head.b_Q.any() else head.matrix


def rows_by_hand(sample: QuerySample, head: KeyQueryMap) -> np.ndarray:
    """The constraints of the head's own selections, formed one by one from the logits; queries are (z, 1) where it has a bias."""
    rows = []
    for q in range(len(sample)):
        z = np.append(sample.tokens[sample.queries[q]], [1.0] * bool(head.b_Q.any()))
        seen = sample.tokens[sample.visible[sample.offsets[q] : sample.offsets[q + 1]]]
        logits = seen @ matrix_of(head) @ z
        best = int(np.argmax(logits))
        rows += [np.outer(seen[best] - x, z).reshape(-1) for t, x in enumerate(seen) if t != best]
    return np.array(rows)


@pytest.mark.parametrize("bias", [0.0, 1.0])
@pytest.mark.parametrize(  # a few seeds, then few tokens, few queries, and neither beside the dimensions
    ("seed", "n_inputs", "d_model"), [*((seed, 12, 6) for seed in range(5)), (6, 3, 40), (6, 9, 40), (6, 2, 6)]
)
def test_numbers_equal_an_exact_solvers_on_formed_rows(seed: int, n_inputs: int, d_model: int, bias: float) -> None:
    head, settings = random_head(seed, d_model, bias=bias), MaxMarginSettings(queries_per_input=2, seed=seed)
    sample = sample_queries(random_inputs(seed, n_inputs, d_model), settings=settings)
    own, rows, W = head_margin(sample, head).own, rows_by_hand(sample, head), matrix_of(head).reshape(-1)
    best, gaps = least_distance(rows, np.ones(len(rows))), rows @ W / np.linalg.norm(W)
    assert own.status is best.status is Status.OPTIMAL
    assert own.residual <= tolerances.SVM_KKT
    assert own.n_constraints == len(rows)
    assert own.correlation == pytest.approx(
        W @ best.x / np.linalg.norm(W) / np.linalg.norm(best.x), abs=SAME_POINT, rel=0.0
    )
    expected = {"best_margin": best.margin, "margin_ratio": gaps.min() / best.margin}
    expected |= {"low_ratio": np.quantile(gaps, 0.05) / best.margin}
    for name, number in expected.items():
        assert getattr(own, name) == pytest.approx(number, rel=SAME_POINT, abs=tolerances.ROUNDING), name


@pytest.mark.parametrize("seed", range(4))
def test_a_head_satisfies_its_selections_and_does_not_beat_the_svm(seed: int) -> None:
    sample = sample_queries(random_inputs(seed, 15))
    heads = [random_head(10 * seed + k) for k in range(3)]
    for found in layer_margins(sample, heads, MaxMarginSettings(seed=seed)):
        for match in (found.own, *found.random_head):
            assert 0.0 < match.margin_ratio <= 1.0 + tolerances.SVM_KKT
            assert match.margin_ratio <= match.low_ratio
            assert 0.0 < match.correlation <= 1.0


@pytest.mark.parametrize("bias", [0.0, 1.0])
def test_a_max_margin_head_is_recognized(bias: float) -> None:
    inputs = random_inputs(3)
    sample = sample_queries(inputs)
    other = random_head(3, bias=bias)
    queries = sample.augmented if bias else sample.tokens[sample.queries]
    selected = selected_tokens(sample, other)
    solution = bilinear_svm(sample.tokens, queries, selection_constraints(sample, selected))
    head = factored(5.0 * solution.x)
    np.testing.assert_array_equal(selected_tokens(sample, head), selected)
    found = head_margin(sample, head)
    assert found.own.correlation == pytest.approx(1.0, abs=FOUND_AGAIN, rel=0.0)
    assert found.own.margin_ratio == pytest.approx(1.0, abs=FOUND_AGAIN, rel=0.0)
    assert max(one.correlation for one in found.random_head) < 0.9


def test_head_numbers_are_invariant_to_scale_and_order() -> None:
    inputs, head = random_inputs(4), random_head(4)
    everyone = MaxMarginSettings(queries_per_input=10)
    first = head_margin(sample_queries(inputs, settings=everyone), head).own
    rng = np.random.default_rng(0)
    shuffled = [rng.permutation(inputs[i]) for i in rng.permutation(len(inputs))]
    larger = KeyQueryMap(40.0 * head.W_K, head.W_Q, head.b_Q, head.scale)
    second = head_margin(sample_queries(shuffled, settings=everyone), larger).own
    for name in ("correlation", "margin_ratio", "low_ratio", "best_margin", "n_constraints"):
        assert getattr(second, name) == pytest.approx(getattr(first, name), rel=SAME_POINT, abs=tolerances.ROUNDING)


def test_heads_of_a_layer_share_baselines_and_are_independent() -> None:
    sample = sample_queries(random_inputs(5))
    heads = [random_head(k) for k in range(3)]
    together = layer_margins(sample, heads)
    assert together[0].random_head == together[2].random_head
    assert [head_margin(sample, head) for head in heads] == list(together)
    assert layer_margins(sample, heads) == together
    other = layer_margins(sample, heads, MaxMarginSettings(seed=1))
    assert [one.own for one in other] == [one.own for one in together]
    assert other[0].random_head != together[0].random_head


def test_causal_queries_choose_among_what_they_see_and_the_first_has_no_choice() -> None:
    inputs = random_inputs(7)
    masks = [np.tri(len(x), dtype=bool) for x in inputs]
    sample = sample_queries(inputs, masks, MaxMarginSettings(queries_per_input=10))
    assert (sample.positions[:, 1] > 0).all()
    assert len(sample) == sum(len(x) - 1 for x in inputs)
    assert (np.diff(sample.offsets) == sample.positions[:, 1] + 1).all()
    selected = selected_tokens(sample, random_head(7))
    assert (selected <= sample.queries).all()
    assert (selected > sample.queries - np.diff(sample.offsets)).all()


def test_copies_of_the_selected_token_add_no_constraint() -> None:
    rng = np.random.default_rng(8)
    x = rng.normal(size=(3, 6))
    inputs = [np.stack([x[0], x[1], x[0], x[2]]), rng.normal(size=(4, 6))]
    sample = sample_queries(inputs, settings=MaxMarginSettings(queries_per_input=4))
    assert len(sample) == 7  # the second copy of x[0] is not asked again
    for k in range(10):
        head = random_head(k)
        selected = selected_tokens(sample, head)
        triples = selection_constraints(sample, selected)
        copies = np.isin(selected, [0, 2]) & (sample.positions[:, 0] == 0)
        counts = np.bincount(triples[:, 0], minlength=len(sample))
        assert (counts == np.where(copies, 2, 3)).all()
        own = head_margin(sample, head).own
        assert own.status is Status.OPTIMAL
        assert own.margin_ratio > 0.0


def test_sampled_queries_are_distinct_and_have_a_choice() -> None:
    rng = np.random.default_rng(9)
    first = rng.normal(size=6)
    inputs = [np.stack([first, rng.normal(size=6)]) for _ in range(5)]
    sample = sample_queries(
        [*inputs, first[None], np.stack([first, first])], settings=MaxMarginSettings(queries_per_input=2)
    )
    assert len(sample) == 6
    assert sample.positions[:, 0].max() == 4
    with refused("inputs"):
        sample_queries([first[None]])


JUST = 1e-6  # by which a bracket is above or below its bound, relative to it
EVERYONE = MaxMarginSettings(queries_per_input=10)


def test_logits_tie_only_within_rounding():
    logits = np.array([[1.0, 3.0, 3.0 - 1e-3], [3.0, 3.0, 2.9], [0.0, 5.0, -np.inf]])
    for rounding, n_tied in ((0.0, [1, 2, 1]), (1e-3 * (1 - JUST), [1, 2, 1]), (1e-3 * (1 + JUST), [2, 2, 1])):
        chosen = select_tokens(logits, rounding=rounding)
        assert chosen.n_tied.tolist() == n_tied
        assert chosen.unique.tolist() == [
            one if count == 1 else -1 for one, count in zip(chosen.selected, n_tied, strict=True)
        ]
    each = select_tokens(logits, rounding=[1.0, 0.0, 6.0])
    assert each.n_tied.tolist() == [2, 2, 2]
    assert each.margin.tolist() == select_tokens(logits).margin.tolist()
    assert select_tokens([[-np.inf, -np.inf]], rounding=1.0).unique.tolist() == [-1]


def plane(seed=0):
    """Inputs of four tokens in the plane, of which the first two differ along the second axis only, and a head that sees the first only."""
    rng = np.random.default_rng(seed)
    inputs = [rng.normal(size=(4, 2)) for _ in range(5)]
    for X in inputs[:2]:
        X[0, 0] = X[1, 0] = 3.0 + rng.random()  # the largest
    return inputs, KeyQueryMap(np.array([[1.0], [0.0]]), np.array([[0.0], [0.0]]), np.array([1.0]), 1.0)


def test_different_tokens_of_one_logit_are_not_selected():
    inputs, head = plane()
    sample = sample_queries(inputs, settings=EVERYONE)
    selected = selected_tokens(sample, head)
    tied = sample.positions[:, 0] < 2
    assert (selected[tied] == -1).all()
    assert (selected[~tied] >= 0).all()
    triples = selection_constraints(sample, selected)
    assert np.unique(triples[:, 0]).tolist() == np.flatnonzero(~tied).tolist()
    found = head_margin(sample, head, EVERYONE)
    assert found.n_tied == tied.sum()
    without = head_margin(sample_queries(inputs[2:], settings=EVERYONE), head, EVERYONE)
    assert without.n_tied == 0
    assert found.own.n_constraints == without.own.n_constraints
    for name in ("correlation", "margin_ratio", "low_ratio", "best_margin"):
        assert getattr(found.own, name) == pytest.approx(
            getattr(without.own, name), rel=1e-9, abs=tolerances.ROUNDING
        ), name
    assert found.own.margin_ratio > 0.0
    for one in found.random_head:  # at the same queries
        assert one.n_constraints == found.own.n_constraints


def test_ties_of_one_head_do_not_change_others():
    inputs, head = plane()
    rng = np.random.default_rng(1)
    others = [KeyQueryMap(*rng.normal(size=(2, 2, 1)), rng.normal(size=1), 1.0) for _ in range(2)]
    sample = sample_queries(inputs, settings=EVERYONE)
    together = layer_margins(sample, [others[0], head, others[1]], EVERYONE)
    for one, alone in zip(together, (others[0], head, others[1]), strict=True):
        assert repr(head_margin(sample, alone, EVERYONE)) == repr(one)  # repr: nan is itself
    assert [one.n_tied > 0 for one in together] == [False, True, False]
    assert together[0].random_head == together[2].random_head != together[1].random_head


@pytest.mark.parametrize("rounding", [SAME_TOKEN_RTOL, 1e-2])
def test_the_bound_of_a_tie_is_relative_to_query_and_key(rounding):
    inputs, head = plane(1)
    inputs = inputs[:1]
    longest = inputs[0][0, 0]
    for share, tied in ((1 - 1e-3, True), (1 + 1e-3, False)):
        inputs[0][1, 0] = longest * (1.0 - share * rounding)
        sample = sample_queries(inputs, settings=EVERYONE)
        for size in (1.0, 1e5):  # the length of queries and keys does not matter
            larger = KeyQueryMap(size * head.W_K, head.W_Q, size * head.b_Q, 1.0)
            assert (selected_tokens(sample, larger, rounding) == (-1 if tied else 0)).all()


def test_a_head_with_only_tied_queries_has_no_problem():
    inputs, head = plane(2)
    found = head_margin(sample_queries(inputs[:2], settings=EVERYONE), head)
    assert found.own.status is Status.TRIVIAL
    assert found.n_tied == 8
    numbers = (found.own.correlation, found.own.margin_ratio, found.own.low_ratio, found.own.best_margin)
    assert np.isnan(numbers).all()


def random_choices(seed: int, n_inputs: int = 40, *, causal: bool = False) -> tuple[list, list, list]:
    """Inputs of ids, which repeat, masks, and for every query a visible position, or -1 for none."""
    rng = np.random.default_rng(seed)
    ids = [10 * rng.integers(1, 7, size=int(n)) for n in rng.integers(1, 7, size=n_inputs)]
    masks = [np.tri(len(one), dtype=bool) if causal else np.ones((len(one), len(one)), dtype=bool) for one in ids]
    selected = [np.array([rng.choice([-1, *np.flatnonzero(row)]) for row in mask]) for mask in masks]
    return ids, masks, selected


def counted_by_hand(ids: list, masks: list, selected: list) -> dict[tuple[int, int], int]:
    """(winner, loser) → in how many queries, by loops over sets."""
    wins: dict[tuple[int, int], int] = {}
    for tokens, mask, chosen in zip(ids, masks, selected, strict=True):
        for q, winner in ((q, winner) for q, winner in enumerate(chosen) if winner >= 0):
            for loser in {int(t) for t in tokens[mask[q]]} - {int(tokens[winner])}:
                wins[int(tokens[winner]), loser] = wins.get((int(tokens[winner]), loser), 0) + 1
    return wins


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_preference_counts_equal_loops_over_queries(seed: int, causal: bool) -> None:
    ids, masks, selected = random_choices(seed, causal=causal)
    found = head_preferences(visible_types(ids, masks), selected, min_wins=1, min_share=0.0)
    pooled = counted_by_hand(ids, masks, selected)
    edges = zip(found.graph.edges.tolist(), found.graph.counts.tolist(), strict=True)
    assert {tuple(pair): n for pair, n in edges} == pooled  # paper C's graph: every win is an edge
    assert {(int(i), int(j)): int(n) for (i, j), n in zip(found.pairs, found.wins, strict=True)} == pooled
    for (i, j), losses in zip(found.pairs.tolist(), found.losses.tolist(), strict=True):
        assert losses == pooled.get((j, i), 0)
    both = {frozenset(pair) for pair in pooled if pair[::-1] in pooled}
    assert found.contested_share == pytest.approx(
        len(both) / len({frozenset(pair) for pair in pooled}), rel=tolerances.SIX_DIGITS, abs=tolerances.ROUNDING
    )


def test_the_rule_is_exact_at_its_bounds() -> None:
    # 7 wins over 8 nine times and loses once
    ids, selected = [np.array([7, 8])] * 5, [np.array([0, 0])] * 4 + [np.array([0, 1])]
    seen = visible_types(ids)
    for share, expected in ((0.9, [[7, 8]]), (0.91, [])):
        found = head_preferences(seen, selected, min_wins=9, min_share=share)
        assert found.graph.edges.tolist() == expected
    assert head_preferences(seen, selected, min_wins=10, min_share=0.0).graph.edges.tolist() == []
    assert head_preferences(seen, selected, min_wins=1, min_share=0.0).graph.edges.tolist() == [[7, 8], [8, 7]]
    assert head_preferences(seen, selected, min_wins=1, min_share=0.0).strict_share == 0.0
    assert head_preferences(seen, selected).contested_share == 1.0


def test_a_cycle_of_three_is_not_strict_and_an_order_is() -> None:
    pairs = [np.array([1, 2]), np.array([2, 3]), np.array([3, 1])]
    beats_next = [np.array([0, 0])] * 3
    cyclic = head_preferences(visible_types(pairs), beats_next)
    assert cyclic.graph.last == POOLED
    assert cyclic.strict_share == 0.0
    assert [one.tolist() for one in cyclic.graph.components] == [[1, 2, 3]]
    ordered = head_preferences(visible_types(pairs), [*beats_next[:2], np.array([1, 1])])
    assert ordered.strict_share == 1.0
    assert [one.tolist() for one in ordered.graph.components] == [[1], [2], [3]]
    assert ordered.contested_share == 0.0


def test_preferences_are_sorted_by_strength_with_their_counts() -> None:
    ids = [np.array([1, 2, 3])] * 3 + [np.array([2, 3])]
    selected = [np.array([0, 0, 0])] * 3 + [np.array([0, 0])]
    found = head_preferences(visible_types(ids), selected)
    rows = [(one.preferred, one.over, one.wins, one.losses, one.met) for one in found.strongest(5, NAMES)]
    assert rows == [("1", "2", 9, 0, 9), ("1", "3", 9, 0, 9), ("2", "3", 2, 0, 11)]
    assert len(found.strongest(1, NAMES)) == 1
    assert repr(found) == "HeadPreferences(3 pairs, 3 preferences, strict 1)"
    alone = head_preferences(visible_types([np.array([5, 5])]), [np.array([0, 1])])
    assert len(alone.pairs) == len(alone.strongest(3, NAMES)) == 0
    assert np.isnan([alone.strict_share, alone.contested_share]).all()
    assert alone.strongest_graph(NAMES) is None


def test_the_preference_graph_has_the_strongest_preferences() -> None:
    ids, chosen = [np.arange(30)] * 2, [np.full(30, 4)] * 2  # all queries select token 4
    graph = head_preferences(visible_types(ids), chosen).strongest_graph({k: f"t{k}" for k in range(30)})
    assert graph is not None
    assert len(graph.names) == MAX_GRAPH_TOKENS
    assert graph.names[4] == "t4"
    assert graph.to_dict()["edges"] == [[4, k, 60] for k in range(MAX_GRAPH_TOKENS) if k != 4]
