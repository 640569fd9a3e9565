"""How max-margin a head is: constructed heads, feasibility of own selections, baselines, causal and repeated tokens."""

from __future__ import annotations

import numpy as np
import pytest

import tolerances
from marginlens.errors import InputError
from marginlens.probe.heads.key_query import KeyQueryMap
from marginlens.probe.heads.max_margin import (
    HeadMargin,
    MarginMatch,
    head_margin,
    layer_margins,
    random_selection,
    selected_tokens,
    selection_constraints,
)
from marginlens.probe.heads.max_margin_sample import MaxMarginSettings, QuerySample, real_tokens, sample_queries
from marginlens.svm import Status, least_distance
from marginlens.svm.bilinear import bilinear_svm

SAME_POINT = 1e-8  # two exact solvers on rows whose roundings differ, relative to the solution
SIGMAS = 4.5  # standard deviations by which a count of draws may be off, over a dozen counts
FOUND_AGAIN = 1e-9  # a head built from the SVM's matrix by a singular value decomposition, against that matrix


def random_inputs(seed: int, n_inputs: int = 12, d_model: int = 6) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    centre = rng.normal(size=d_model)
    return [centre + rng.normal(size=(int(n), d_model)) for n in rng.integers(3, 8, size=n_inputs)]


def random_head(seed: int, d_model: int = 6, d_head: int = 3, *, bias: float = 1.0) -> KeyQueryMap:
    rng = np.random.default_rng([seed, 7])
    W_K, W_Q = rng.normal(size=(2, d_model, d_head))
    return KeyQueryMap(W_K, W_Q, bias * rng.normal(size=d_head), d_head**-0.5)


def factored(W: np.ndarray) -> KeyQueryMap:
    """A head whose augmented matrix is W (d_model, d_model + 1), or whose matrix is W (d_model, d_model)."""
    left, values, right = np.linalg.svd(W, full_matrices=False)
    d = len(W)
    b_Q = right[:, d] if W.shape[1] > d else np.zeros(len(values))
    return KeyQueryMap(left * values, right[:, :d].T, b_Q, 1.0)


def rows_by_hand(sample: QuerySample, head: KeyQueryMap) -> np.ndarray:
    """The constraints of the head's own selections, formed one by one from the logits."""
    rows = []
    for q in range(len(sample)):
        z = np.append(sample.tokens[sample.queries[q]], 1.0)
        seen = sample.tokens[sample.seen[sample.offsets[q] : sample.offsets[q + 1]]]
        logits = seen @ head.augmented @ z
        best = int(np.argmax(logits))
        rows += [np.outer(seen[best] - x, z).reshape(-1) for t, x in enumerate(seen) if t != best]
    return np.array(rows)


@pytest.mark.parametrize("seed", range(5))
def test_numbers_are_those_of_an_exact_solver_on_formed_rows(seed: int) -> None:
    head = random_head(seed)
    sample = sample_queries(random_inputs(seed), settings=MaxMarginSettings(queries_per_input=2, seed=seed))
    own = head_margin(sample, head).own
    rows = rows_by_hand(sample, head)
    best = least_distance(rows, np.ones(len(rows)))
    W = head.augmented.reshape(-1)
    gaps = rows @ W / np.linalg.norm(W)
    assert own.status is Status.OPTIMAL
    assert own.residual <= tolerances.SVM_KKT
    assert own.n_constraints == len(rows)
    assert own.best_margin == pytest.approx(best.margin, rel=SAME_POINT)
    assert own.correlation == pytest.approx(W @ best.x / np.linalg.norm(W) / np.linalg.norm(best.x), abs=SAME_POINT)
    assert own.margin_ratio == pytest.approx(gaps.min() / best.margin, rel=SAME_POINT)
    assert own.low_ratio == pytest.approx(np.quantile(gaps, 0.05) / best.margin, rel=SAME_POINT)
    assert own.active == pytest.approx(np.mean(best.active), abs=tolerances.ROUNDING)


@pytest.mark.parametrize("seed", range(4))
def test_a_head_satisfies_its_own_selections_and_beats_no_svm(seed: int) -> None:
    sample = sample_queries(random_inputs(seed, 15))
    heads = [random_head(10 * seed + k) for k in range(3)]
    for found in layer_margins(sample, heads, MaxMarginSettings(seed=seed)):
        for match in (found.own, *found.random_head):
            assert match.satisfied == 1.0
            assert 0.0 < match.margin_ratio <= 1.0 + tolerances.SVM_KKT
            assert match.margin_ratio <= match.low_ratio
            assert 0.0 < match.correlation <= 1.0
            assert 0.0 < match.active <= 1.0
        for match in (*found.random_selections, *found.random_matrix):
            assert match.satisfied < 1.0
            assert match.status is not Status.OPTIMAL or match.margin_ratio < 0.0


@pytest.mark.parametrize("bias", [0.0, 1.0])
def test_a_head_that_is_the_max_margin_solution_is_found_to_be(bias: float) -> None:
    inputs = random_inputs(3)
    sample = sample_queries(inputs)
    other = random_head(3, bias=bias)
    queries = sample.augmented if bias else sample.tokens[sample.queries]
    selected = selected_tokens(sample, other)
    solution = bilinear_svm(sample.tokens, queries, selection_constraints(sample, selected))
    head = factored(5.0 * solution.x)
    np.testing.assert_array_equal(selected_tokens(sample, head), selected)
    found = head_margin(sample, head)
    assert repr(found).startswith(f"HeadMargin(OPTIMAL, correlation {found.own.correlation:.3f}, random heads ")
    assert len(repr(found)) < 100
    assert found.own.correlation == pytest.approx(1.0, abs=FOUND_AGAIN)
    assert found.own.margin_ratio == pytest.approx(1.0, abs=FOUND_AGAIN)
    assert max(one.correlation for one in found.random_head) < 0.9
    assert max(abs(one.correlation) for one in found.random_matrix) < 0.9


def test_scale_and_order_of_inputs_and_tokens_change_no_number_of_the_head() -> None:
    inputs, head = random_inputs(4), random_head(4)
    everyone = MaxMarginSettings(queries_per_input=10)
    first = head_margin(sample_queries(inputs, settings=everyone), head).own
    rng = np.random.default_rng(0)
    shuffled = [rng.permutation(inputs[i]) for i in rng.permutation(len(inputs))]
    larger = KeyQueryMap(40.0 * head.W_K, head.W_Q, head.b_Q, head.scale)
    second = head_margin(sample_queries(shuffled, settings=everyone), larger).own
    for name in ("correlation", "margin_ratio", "low_ratio", "active", "best_margin", "n_constraints"):
        assert getattr(second, name) == pytest.approx(getattr(first, name), rel=SAME_POINT)


def test_heads_of_a_layer_share_baselines_and_do_not_change_each_other() -> None:
    sample = sample_queries(random_inputs(5))
    heads = [random_head(k) for k in range(3)]
    together = layer_margins(sample, heads)
    assert together[0].random_head == together[2].random_head
    assert [head_margin(sample, head) for head in heads] == list(together)
    assert layer_margins(sample, heads) == together
    other = layer_margins(sample, heads, MaxMarginSettings(seed=1))
    assert [one.own for one in other] == [one.own for one in together]
    assert other[0].random_head != together[0].random_head


def test_random_selections_take_every_visible_token_with_the_same_chance() -> None:
    inputs = random_inputs(15, 4)
    sample = sample_queries(inputs, [np.tri(len(x), dtype=bool) for x in inputs])
    rng, n_draws = np.random.default_rng(0), 4000
    drawn = np.array([random_selection(sample, rng) for _ in range(n_draws)])
    for q in range(len(sample)):
        seen = sample.seen[sample.offsets[q] : sample.offsets[q + 1]]
        counts = np.array([np.sum(drawn[:, q] == token) for token in seen])
        assert counts.sum() == n_draws
        chance = 1.0 / len(seen)
        assert np.abs(counts - n_draws * chance).max() <= SIGMAS * (n_draws * chance * (1.0 - chance)) ** 0.5
    first, second = head_margin(sample_queries(inputs), random_head(15)).random_selections
    assert first != second


def test_without_biases_queries_are_not_augmented() -> None:
    sample, head = sample_queries(random_inputs(6)), random_head(6, bias=0.0)
    found = head_margin(sample, head)
    solution = bilinear_svm(
        sample.tokens, sample.tokens[sample.queries], selection_constraints(sample, selected_tokens(sample, head))
    )
    assert solution.x.shape == (6, 6)
    assert found.own.best_margin == pytest.approx(solution.margin, rel=SAME_POINT)


def test_causal_queries_choose_among_what_they_see_and_the_first_has_no_choice() -> None:
    inputs = random_inputs(7)
    masks = [np.tri(len(x), dtype=bool) for x in inputs]
    sample = sample_queries(inputs, masks, MaxMarginSettings(queries_per_input=10))
    assert (sample.places[:, 1] > 0).all()
    assert len(sample) == sum(len(x) - 1 for x in inputs)
    assert (np.diff(sample.offsets) == sample.places[:, 1] + 1).all()
    selected = selected_tokens(sample, random_head(7))
    assert (selected <= sample.queries).all()
    assert (selected > sample.queries - np.diff(sample.offsets)).all()


def test_copies_of_the_selected_token_are_no_constraints() -> None:
    rng = np.random.default_rng(8)
    x = rng.normal(size=(3, 6))
    inputs = [np.stack([x[0], x[1], x[0], x[2]]), rng.normal(size=(4, 6))]
    sample = sample_queries(inputs, settings=MaxMarginSettings(queries_per_input=4))
    assert len(sample) == 7  # the second copy of x[0] is not asked again
    for k in range(10):
        head = random_head(k)
        selected = selected_tokens(sample, head)
        triples = selection_constraints(sample, selected)
        copies = np.isin(selected, [0, 2]) & (sample.places[:, 0] == 0)
        counts = np.bincount(triples[:, 0], minlength=len(sample))
        assert (counts == np.where(copies, 2, 3)).all()
        own = head_margin(sample, head).own
        assert own.status is Status.OPTIMAL
        assert own.satisfied == 1.0


def test_repeated_queries_are_drawn_once_and_inputs_without_a_choice_not_at_all() -> None:
    rng = np.random.default_rng(9)
    first = rng.normal(size=6)
    inputs = [np.stack([first, rng.normal(size=6)]) for _ in range(5)]
    sample = sample_queries(
        [*inputs, first[None], np.stack([first, first])], settings=MaxMarginSettings(queries_per_input=2)
    )
    assert len(sample) == 6
    assert sample.places[:, 0].max() == 4
    with pytest.raises(InputError, match="a query that sees two different tokens or more; got none of them"):
        sample_queries([first[None]])


def test_impossible_random_selections_say_so_instead_of_a_number() -> None:
    rng = np.random.default_rng(10)
    inputs = [rng.normal(size=(6, 1)) for _ in range(8)]  # in one dimension only the two ends can be selected
    head = KeyQueryMap(np.ones((1, 1)), np.ones((1, 1)), np.ones(1), 1.0)
    found = head_margin(sample_queries(inputs), head)
    assert found.own.status is Status.OPTIMAL
    for match in found.random_selections:
        assert match.status is Status.INFEASIBLE
        assert match.best_margin == 0.0
        assert np.isnan([match.correlation, match.margin_ratio, match.low_ratio, match.active]).all()
        assert 0.0 <= match.satisfied < 1.0


def test_a_margin_of_zero_satisfies_nothing() -> None:
    inputs = [np.array([[1.0, 0.0, i], [0.0, 1.0, i], [0.0, 2.0, i]]) for i in range(12)]
    head = KeyQueryMap(np.eye(3)[:, :1], np.zeros((3, 1)), np.ones(1), 1.0)  # the first coordinate is the logit
    sample, settings = sample_queries(inputs), MaxMarginSettings(n_draws=1)
    (match,) = head_margin(sample, head, settings).random_selections
    drawn = random_selection(sample, np.random.default_rng([settings.seed, 1])) % 3
    assert 0.0 < np.mean(drawn == 0) < 1.0
    assert match.satisfied == pytest.approx(np.mean(drawn == 0))


def test_too_many_constraints_are_thinned_by_query() -> None:
    inputs = random_inputs(11, 30)
    few = sample_queries(inputs, settings=MaxMarginSettings(queries_per_input=2, most_constraints=40))
    everyone = sample_queries(inputs, settings=MaxMarginSettings(queries_per_input=2))
    assert 0 < len(few.seen) - len(few) <= 40 < len(everyone.seen) - len(everyone)
    assert {tuple(place) for place in few.places.tolist()} < {tuple(place) for place in everyone.places.tolist()}
    assert len(sample_queries(inputs, settings=MaxMarginSettings(most_constraints=1))) == 1


@pytest.mark.parametrize(("most", "n_queries"), [(16, 4), (15, 3), (12, 3), (11, 2)])
def test_as_many_queries_are_kept_as_have_the_constraints_allowed(most: int, n_queries: int) -> None:
    inputs = list(np.random.default_rng(13).normal(size=(4, 5, 3)))  # each query has four constraints
    settings = MaxMarginSettings(queries_per_input=1, most_constraints=most)
    assert len(sample_queries(inputs, settings=settings)) == n_queries


def test_padding_is_taken_out_of_a_batch() -> None:
    rng = np.random.default_rng(12)
    X = rng.normal(size=(2, 5, 3))
    visible = np.zeros((2, 5, 5), dtype=bool)
    visible[0, :3, :3] = np.tri(3, dtype=bool)
    visible[1, 1:, 1:] = True  # padded on the left
    tokens, masks = real_tokens(X, visible)
    np.testing.assert_array_equal(tokens[0], X[0, :3])
    np.testing.assert_array_equal(masks[0], np.tri(3, dtype=bool))
    np.testing.assert_array_equal(tokens[1], X[1, 1:])
    assert masks[1].all()
    with pytest.raises(InputError, match=r"'visible' argument must be of shape \(2, 5, 5\)"):
        real_tokens(X, visible[:, :4])


def test_wrong_shapes_are_named() -> None:
    inputs = random_inputs(13)
    sample = sample_queries(inputs)
    with pytest.raises(InputError, match=r"'heads\[0\]' argument must be a map of shape \(6, 3\); got shape \(5, 3\)"):
        head_margin(sample, random_head(0, d_model=5))
    with pytest.raises(InputError, match="'heads' argument must be at least one key-query map"):
        layer_margins(sample, [])
    with pytest.raises(InputError, match=r"'inputs\[1\]' argument must be .* of shape \(n_tokens, 6\)"):
        sample_queries([inputs[0], np.ones((3, 4))])
    with pytest.raises(InputError, match="one mask for each of 12 inputs; got 1"):
        sample_queries(inputs, [np.ones((3, 3))])
    with pytest.raises(InputError, match="'n_draws' argument must be a whole number of at least 1"):
        MaxMarginSettings(n_draws=0)


def test_results_are_plain_numbers() -> None:
    found = head_margin(sample_queries(random_inputs(14)), random_head(14), MaxMarginSettings(n_draws=3))
    assert isinstance(found, HeadMargin)
    assert len(found.random_selections) == len(found.random_head) == len(found.random_matrix) == 3
    for match in (found.own, *found.random_selections):
        assert isinstance(match, MarginMatch)
        assert isinstance(match.correlation, float)
        assert isinstance(match.residual, float)
