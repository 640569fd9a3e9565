"""The automaton of a dataset: its rule, its reasons, its continuations and what it refuses."""

import pickle
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import softmax

import marginlens as ml
from marginlens import GradientDescent, InputError, SequenceDataset, descend, priority_graphs
from marginlens.data import acyclic_sequences, cyclic_sequences, figure_2
from marginlens.nexttoken import path_expansion
from marginlens.nexttoken.automaton import NextTokenAutomaton, SlowLimitWarning, TieBreak
from marginlens.nexttoken.path_expansion import ExpansionKind
from marginlens.svm.dual_balance import balance, can_carry
from marginlens_papers.claims.random_data import random_sequences
from random_examples import examples
from refusals import raised, refused, warned
from tolerances import CONDITIONED, ROUNDING, SIX_DIGITS

A, B, C, D = range(4)


def limit_by_softmax(automaton, ids, scale):
    """The softmax of scale · W^mm + W^cyc over the positions of a sequence, added up by token."""
    E = automaton.E
    logits = E[ids] @ (scale * automaton.priority.x + automaton.mix.x) @ E[ids[-1]]
    return np.bincount(ids, weights=softmax(logits), minlength=len(E))


@pytest.mark.statement("C Abstract")
@pytest.mark.parametrize("seed", range(6))
def test_automaton_is_the_limit_of_the_softmax(seed):
    ds = cyclic_sequences(6, 8, 8, 4, seed)
    automaton = NextTokenAutomaton.fit(ds)
    for i in range(len(ds)):
        ids, _ = ds[i]
        np.testing.assert_allclose(
            automaton.predict_proba(ids), limit_by_softmax(automaton, ids, 60.0), rtol=0.0, atol=CONDITIONED
        )
    weights = 60.0 * automaton.priority.x + automaton.mix.x
    assert automaton.total_variation(ds, weights).max() < CONDITIONED
    assert automaton.total_variation(ds, np.zeros((8, 8))).max() > 0.1


@pytest.mark.statement("C Abstract")
@pytest.mark.parametrize("seed", range(8))
def test_automaton_retrieves_the_label_component_of_every_training_sequence(seed):
    ds = (cyclic_sequences if seed % 2 else acyclic_sequences)(7, 9, 10, 5, seed)
    graphs, automaton = priority_graphs(ds), NextTokenAutomaton.fit(ds)
    for i in range(len(ds)):
        ids, label = ds[i]
        graph = graphs[int(ids[-1])]
        component = set(graph.components[graph.component(label)].tolist())
        assert set(np.flatnonzero(automaton.predict_proba(ids)).tolist()) == component & set(ids.tolist())


def test_the_mix_fits_the_label_frequencies_of_a_free_component():
    sequences = [[A, B, C]] * 7 + [[A, B]] * 4  # two graphs: last token C and last token B
    labels = [A] * 5 + [B] * 2 + [A] + [B] * 3
    automaton = NextTokenAutomaton.fit(SequenceDataset(sequences, labels, np.eye(3)))
    np.testing.assert_allclose(automaton.predict_proba([A, B, C]), [5 / 7, 2 / 7, 0.0], rtol=0.0, atol=CONDITIONED)
    np.testing.assert_allclose(automaton.predict_proba([A, B]), [1 / 4, 3 / 4, 0.0], rtol=0.0, atol=CONDITIONED)
    np.testing.assert_allclose(
        automaton.predict_proba([A, A, B, C]), [10 / 12, 2 / 12, 0.0], rtol=0.0, atol=CONDITIONED
    )


# ---- tokens of equal height that no training sequence compares


TIED_BY_CHANCE = SequenceDataset([[A, B, D]] * 3 + [[A, C, D]], [A] * 4, np.eye(4))
E4, Z5 = 4, 5
DECIDED_SLOWLY = SequenceDataset([[A, C, Z5], [B, E4, Z5], [A, D, E4, Z5]], [A, B, A], np.eye(6))


def layer_on(sequence, W, E):
    """The next-token probabilities of a layer with weights W."""
    ids = np.asarray(sequence)
    return np.bincount(ids, weights=softmax(E[ids] @ W @ E[ids[-1]]), minlength=len(E))


def facts_of(explanation):
    """The numbers of the facts of an explanation, by code."""
    return {fact.code: fact.numbers for fact in explanation.facts}


@pytest.mark.statement("C Abstract", "X O")
def test_tokens_of_equal_height_share_by_the_constant_term_of_the_path():
    automaton = NextTokenAutomaton.fit(TIED_BY_CHANCE)
    expected = np.array([0.0, 4.0, 12.0, 3.0]) / 19.0
    np.testing.assert_allclose(automaton.predict_proba([B, C, D]), expected, rtol=0.0, atol=ROUNDING)
    np.testing.assert_allclose(
        automaton.predict_proba([B, B, C, D]), [0.0, 8 / 23, 12 / 23, 3 / 23], rtol=0.0, atol=ROUNDING
    )
    path = ml.path(TIED_BY_CHANCE, [1e2, 1e4, 1e6])
    error = [np.abs(layer_on([B, C, D], W, np.eye(4)) - expected).max() for W in path.points]
    assert error[0] > 10.0 * error[1] > 100.0 * error[2]  # like 1/R
    run = descend(TIED_BY_CHANCE, optimizer=GradientDescent(1.0), n_steps=50_000)
    assert np.abs(layer_on([B, C, D], run.final, np.eye(4)) - expected).max() < 0.02
    assert np.abs(np.full(3, 1 / 3) - expected[1:]).max() > 0.2  # what W^cyc alone would say
    explanation = automaton.explain([B, C, D], names="abcd")
    assert str(explanation).startswith("After d comes c (63.2%), b (21.1%) and d (15.8%).")
    assert explanation.tie is TieBreak.OFFSET
    assert facts_of(explanation)["explanation.tie"]["tie"].code == "automaton.tie.offset"
    assert automaton.expansion(D).status is ExpansionKind.CONSTANT


@pytest.mark.statement("C Abstract", "X O")
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("shape", [(6, 8, 6, 4), (10, 12, 20, 5)])
def test_on_new_sequences_the_path_ends_in_the_automaton(shape, seed):
    ds = cyclic_sequences(*shape, seed)
    automaton, rng = NextTokenAutomaton.fit(ds), np.random.default_rng(seed)
    new = [np.append(rng.integers(0, ds.n_vocabulary, 4), rng.choice(ds.last)) for _ in range(40)]
    sequences = SequenceDataset(new, [int(ids[0]) for ids in new], ds.E)
    W = ml.path(ds, [1e6 / automaton.priority.margin]).points[-1]
    assert automaton.total_variation(sequences, W).mean() < 1e-4


@pytest.mark.statement("C Abstract", "X O")
def test_a_term_that_grows_like_the_logarithm_of_the_norm_decides_first():
    automaton = NextTokenAutomaton.fit(DECIDED_SLOWLY)
    found = automaton.expansion(Z5)
    assert found.status is ExpansionKind.SLOW
    halves = np.array([1.0, -1.0, 1.0, 1.0, -1.0, -1.0]) / 2.0  # A with what it alone outranks, B with what it outranks
    np.testing.assert_allclose(found.slow[0] @ np.eye(6)[Z5], halves, rtol=0.0, atol=ROUNDING)
    np.testing.assert_array_equal(automaton.predict_proba([A, B, Z5], slow="limit"), np.eye(6)[A])
    told = automaton.explain([A, B, Z5])
    assert told.tie is TieBreak.SLOW
    assert told.chain == ((A, B), (Z5,))
    assert facts_of(told)["explanation.tie"]["tokens"] == ["0", "1"]
    assert "explanation.inferred" not in facts_of(told)  # no margin ranks them
    radii = np.array([1e2, 1e4, 1e6, 1e8])
    loser = [layer_on([A, B, Z5], W, np.eye(6))[B] for W in ml.path(DECIDED_SLOWLY, radii).points]
    slope = np.diff(np.log(loser)) / np.diff(np.log(radii))
    assert np.all(slope < -0.8)  # like log R/R
    assert np.all(slope > -1.0)


@pytest.mark.statement("X O")
@pytest.mark.parametrize("seed", [3, 4])
def test_decisions_by_slowly_growing_weights_warn(seed):
    """Over all pairs of tokens before each last token, of random data with such ties."""
    rng, n_slow = np.random.default_rng(seed), 0
    for _ in range(100):
        drawn = random_sequences(7, 7, 11, 4, rng)
        ds = SequenceDataset([drawn[i][0] for i in range(len(drawn))], drawn.labels, np.eye(7))
        try:
            automaton = NextTokenAutomaton.fit(ds)
        except InputError:
            continue
        pairs = [[i, j, last] for last in automaton.graphs for i, j in combinations(range(7), 2)]
        told = [automaton.explain(ids) for ids in pairs]
        for ids, one in zip(pairs, told, strict=True):
            if one.tie is not TieBreak.SLOW:
                given = automaton.predict_proba(ids)  # in silence, as warnings are errors here
                np.testing.assert_array_equal(automaton.predict_proba(ids, slow="unknown"), given)
                continue
            n_slow += 1
            with warned(SlowLimitWarning, "slow='unknown'"):
                limit = automaton.predict_proba(ids)
            np.testing.assert_array_equal(automaton.predict_proba(ids, slow="limit"), limit)
            unknown = automaton.predict_proba(ids, slow="unknown")
            assert np.flatnonzero(np.isnan(unknown)).tolist() == sorted(one.chain[0])
            assert np.nansum(unknown) == 0.0
            assert automaton.predict(ids) == np.argmax(limit)
            near = automaton.predict_proba(ids, W=ml.path(ds, [10.0]).points[0])
            assert 0.5 * np.abs(near - limit).sum() > 0.01  # a layer of norm 10 is not there
        asked = SequenceDataset(pairs, [ids[0] for ids in pairs], ds.E)
        share = np.mean([one.tie is TieBreak.SLOW for one in told])
        by_limit, open_ = automaton.score(asked), automaton.score(asked, slow="unknown")
        assert by_limit.slow == open_.slow == pytest.approx(share, abs=ROUNDING, rel=0.0)
        assert open_.unknown == pytest.approx(by_limit.unknown + share, abs=ROUNDING, rel=0.0)
        assert automaton.score(asked, W=np.zeros((7, 7))).slow == 0.0
        if n_slow >= 5:
            break
    assert n_slow >= 5


@pytest.mark.statement("X O")
def test_shares_that_cannot_be_computed_are_nan_with_a_warning(monkeypatch):
    automaton = NextTokenAutomaton.fit(cyclic_sequences(10, 12, 20, 5, 1))
    monkeypatch.setattr(path_expansion, "MAX_ROW_ENTRIES", 0)
    ids = next(s for s in tied_sequences(automaton) if np.isnan(automaton.predict_proba(s)).any())
    assert np.nansum(automaton.predict_proba(ids)) == 0.0
    told = automaton.explain(ids)
    assert told.tie is TieBreak.UNKNOWN
    assert told.reason.code == "expansion_reason.too_many_pairs"
    assert facts_of(told)["explanation.tie"]["reason"] == told.reason
    for call in (lambda: automaton.predict(ids), lambda: automaton.sample(ids, 1, 0)):
        with raised(InputError, "12 × 12"):
            call()


def tied_sequences(automaton):
    """Sequences of two tokens before a last token, with equal heights in different components."""
    for last, graph in automaton.graphs.items():
        height = automaton.heights(last)
        for i in graph.nodes.tolist():
            for j in graph.nodes.tolist():
                if (
                    graph.component(i) < graph.component(j)
                    and abs(height[i] - height[j]) < 1e-9 > height[last] - height[i]
                ):
                    yield [i, j, last]


@pytest.mark.statement("X O")
def test_a_row_may_carry_a_multiplier_when_some_dual_solution_gives_it_one():
    square = np.array([[1.0, 0.0, -1.0, 0.0], [1.0, 0.0, 0.0, -1.0], [0.0, 1.0, -1.0, 0.0], [0.0, 1.0, 0.0, -1.0]])
    assert can_carry(square, np.array([0.5, 0.0, 0.0, 0.5])).all()  # round the square
    one_way = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.0, 2.0]])
    assert can_carry(one_way, np.array([1.0, 0.0, 0.0, 0.0])).tolist() == [True, False, False, False]
    assert can_carry(one_way[:2], np.array([1.0, 0.0])).tolist() == [True, False]


@pytest.mark.statement("X O")
@pytest.mark.parametrize("seed", range(5))
def test_the_balance_is_the_minimum_that_a_general_solver_finds(seed):
    rng = np.random.default_rng(seed)
    rows, log_c, dual = rng.standard_normal((9, 4)), 3.0 * rng.standard_normal(9), rng.uniform(0.1, 1.0, 9)
    target = rows.T @ dual
    run = minimize(lambda z: np.exp(log_c - rows @ z).sum() + target @ z, np.zeros(4), method="BFGS", tol=1e-12)
    found = balance(rows, log_c, dual)
    np.testing.assert_allclose(found, run.x, rtol=0.0, atol=1e-4)
    np.testing.assert_allclose(rows.T @ np.exp(log_c - rows @ found), target, rtol=0.0, atol=1e-10)


def test_an_automaton_can_be_pickled():
    automaton = NextTokenAutomaton.fit(TIED_BY_CHANCE)
    automaton.predict_proba([B, C, D])
    again = pickle.loads(pickle.dumps(automaton))
    np.testing.assert_array_equal(again.predict_proba([B, C, D]), automaton.predict_proba([B, C, D]))


def test_reasons_name_winners_losers_and_the_chain():
    automaton = NextTokenAutomaton.fit(figure_2())
    told = automaton.explain([A, D, B], names="abcd")
    assert {one.token for one in told.winners} == {A, B}
    assert told.is_known
    assert told.is_ranked
    assert told.chain[-1] == (D,)
    assert {(i, j) for i, j, _ in told.reasons} == {(A, D), (B, D)}
    assert "explanation.one_component" in facts_of(told)
    assert facts_of(told)["explanation.priority"]["order"].endswith("> d")
    assert "a over d" in str(told)
    alone = automaton.explain([B, D, A])
    assert str(alone).startswith("After 0 comes 3.")
    assert alone.rivals[0].probability == 1.0
    assert repr(alone) == "Explanation(last=0, {3: 1}, n_others=2)"


def test_multipliers_of_the_reasons_make_up_the_priorities():
    ds = SequenceDataset([[A, B, D], [B, C, D], [C, D]], [A, B, C], np.eye(4) + 0.1 * np.eye(4, k=1))
    automaton = NextTokenAutomaton.fit(ds)
    strict = automaton.explain([A, B, C, D]).strict
    made = sum(weight * np.outer(ds.E[i] - ds.E[j], ds.E[D]) for (i, j), weight in strict.items())
    np.testing.assert_allclose(made, automaton.priority.x, rtol=0.0, atol=ROUNDING)
    assert set(automaton.explain([A, C, D]).strict) == {(A, D), (C, D)}


def test_heights_are_exactly_equal_within_a_component():
    ds = cyclic_sequences(6, 8, 12, 4, 0)
    automaton = NextTokenAutomaton.fit(ds)
    for last, graph in automaton.graphs.items():
        assert all(np.ptp(automaton.heights(last)[members]) == 0.0 for members in graph.components)


@pytest.mark.parametrize(("short", "winners"), [(1e-5, {A}), (1e-8, {A, C})])
def test_a_token_tied_to_seven_digits_shares_with_the_winner(short, winners):
    E = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0 - short, 0.0, 1.0]])
    automaton = NextTokenAutomaton.fit(SequenceDataset([[A, B]], [A], E))
    assert set(np.flatnonzero(automaton.predict_proba([A, C, B]))) == winners
    assert set(automaton.explain([A, C, B]).chain[0]) == winners


def test_continuations_are_reproducible_and_limited_to_the_window():
    automaton = NextTokenAutomaton.fit(figure_2())
    first, again = (automaton.sample([A, B, C], 30, np.random.default_rng(3)) for _ in range(2))
    assert first.tolist() == again.tolist()
    assert len(automaton.sample([A], 0, 0)) == 0
    assert automaton.sample([A, C, B, B], 10, 0, window=1).tolist() == [B] * 10
    for window, following in ((1, A), (2, B), (3, D), (None, D)):
        assert automaton.sample([D, B, A], 1, 0, window=window).tolist() == [following]


def test_data_that_no_matrix_separates_are_refused():
    E = np.array([[0.0], [1.0], [2.0], [3.0]])
    ds = SequenceDataset([[A, B, D], [B, C, D]], [D, D], E)
    NextTokenAutomaton.fit(ds)
    # the middle one above both ends, on a line
    contradictory = SequenceDataset([[A, B, C, D], [C, A, B, D]], [B, B], E)
    with refused("data"):
        NextTokenAutomaton.fit(contradictory)


def test_data_with_a_nan_mix_are_refused():
    ds = SequenceDataset([[A, B]] * 3, [A, B, B], 1e-170 * np.eye(2))
    with refused("data"):
        NextTokenAutomaton.fit(ds)


def test_heights_are_a_copy():
    automaton = NextTokenAutomaton.fit(figure_2())
    automaton.heights(A)[:] = 7.0
    assert automaton.heights(A).max() < 7.0


def test_an_explanation_separates_known_and_inferred_priorities():
    automaton = NextTokenAutomaton.fit(figure_2())
    told = automaton.explain([A, B, D])
    assert facts_of(told)["explanation.unseen_last"] == {"last": "3"}
    assert not told.is_ranked  # equal by the embeddings alone
    ranked = NextTokenAutomaton.fit(SequenceDataset([[A, B, D], [B, C, D]], [A, B], np.eye(4))).explain([A, C, D])
    assert facts_of(ranked)["explanation.implied"]["tokens"] == ["2"]
    apart = NextTokenAutomaton.fit(SequenceDataset([[A, B, 4, D], [C, D]], [A, C], np.eye(5)))
    assert facts_of(apart.explain([A, C, D]))["explanation.inferred"]["tokens"] == ["2"]


@examples(15)
@given(st.integers(0, 2**32 - 1))
def test_names_of_tokens_and_order_of_samples_do_not_matter(seed):
    rng = np.random.default_rng(seed)
    data, name = cyclic_sequences(5, 6, 6, 4, rng), rng.permutation(5)  # token k is called name[k]
    order = rng.permutation(len(data))
    renamed = SequenceDataset([name[data[i][0]] for i in order], name[data.labels[order]], data.E[np.argsort(name)])
    first, second = NextTokenAutomaton.fit(data), NextTokenAutomaton.fit(renamed)
    for ids, _ in (data[i] for i in range(len(data))):
        probability = second.predict_proba(name[ids], slow="limit")[name]
        np.testing.assert_allclose(probability, first.predict_proba(ids, slow="limit"), rtol=0.0, atol=CONDITIONED)
        assert probability.sum() == pytest.approx(1.0, abs=ROUNDING, rel=0.0)
        assert set(np.flatnonzero(probability)) <= set(ids.tolist())


def test_the_score_of_all_is_the_mean_over_each():
    data = cyclic_sequences(6, 8, 12, 4, 3)
    automaton = NextTokenAutomaton.fit(data)
    scores = [automaton.score(data[i : i + 1]) for i in range(len(data))]
    assert automaton.score(data).accuracy == pytest.approx(
        np.mean([score.accuracy for score in scores]), rel=SIX_DIGITS, abs=ROUNDING
    )
    assert automaton.score(data).log_loss == pytest.approx(
        np.mean([score.log_loss for score in scores]), rel=SIX_DIGITS, abs=ROUNDING
    )
