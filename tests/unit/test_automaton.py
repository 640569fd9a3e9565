"""The automaton of a dataset: its rule, its reasons, its continuations and what it refuses."""

import numpy as np
import pytest
from scipy.special import softmax

from marginlens import InputError, SequenceDataset, priority_graphs
from marginlens.data import acyclic_sequences, cyclic_sequences, figure_2
from marginlens.nexttoken.automaton import NextTokenAutomaton
from marginlens.nexttoken.explanation import Explanation, Rival
from tolerances import CONDITIONED, ROUNDING

A, B, C, D = range(4)


def limit_by_softmax(automaton, ids, scale):
    """The softmax of scale · W^mm + W^cyc over the positions of a sequence, added up by token."""
    E = automaton.E
    logits = E[ids] @ (scale * automaton.priority.x + automaton.mix.x) @ E[ids[-1]]
    return np.bincount(ids, weights=softmax(logits), minlength=len(E))


@pytest.mark.statement("C Abstract")
@pytest.mark.parametrize("seed", range(12))
def test_it_is_the_limit_of_the_softmax(seed):
    ds = cyclic_sequences(6, 8, 8, 4, seed)
    automaton = NextTokenAutomaton.fit(ds)
    for i in range(len(ds)):
        ids, _ = ds[i]
        np.testing.assert_allclose(
            automaton.predict_proba(ids), limit_by_softmax(automaton, ids, 60.0), atol=CONDITIONED
        )
    weights = 60.0 * automaton.priority.x + automaton.mix.x
    assert automaton.total_variation(ds, weights).max() < CONDITIONED
    assert automaton.total_variation(ds, np.zeros((8, 8))).max() > 0.1


@pytest.mark.statement("C Abstract")
def test_total_variation_is_half_the_sum_of_differences():
    ds = SequenceDataset([[A, B], [A, A, C, B]], [A, A], np.eye(3))  # uniform attention against all of it on A
    distance = NextTokenAutomaton.fit(ds).total_variation(ds, np.zeros((3, 3)))
    np.testing.assert_allclose(distance, [0.5, 0.5], atol=ROUNDING)


@pytest.mark.statement("C Abstract")
@pytest.mark.parametrize("seed", range(8))
def test_it_retrieves_the_label_component_of_every_training_sequence(seed):
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
    np.testing.assert_allclose(automaton.predict_proba([A, B, C]), [5 / 7, 2 / 7, 0.0], atol=CONDITIONED)
    np.testing.assert_allclose(automaton.predict_proba([A, B]), [1 / 4, 3 / 4, 0.0], atol=CONDITIONED)
    np.testing.assert_allclose(automaton.predict_proba([A, A, B, C]), [10 / 12, 2 / 12, 0.0], atol=CONDITIONED)


def test_probabilities_add_up_and_stay_inside_the_sequence():
    automaton = NextTokenAutomaton.fit(figure_2())
    for ids in ([A], [D, B], [A, B, C, D, A]):
        probability = automaton.predict_proba(ids)
        assert probability.sum() == pytest.approx(1.0, abs=ROUNDING)
        assert set(np.flatnonzero(probability)) <= set(ids)
        assert automaton.predict(ids) == int(np.argmax(probability))


def test_reasons_name_winners_losers_and_the_chain():
    automaton = NextTokenAutomaton.fit(figure_2())
    told = automaton.explain([A, D, B], names="abcd")
    assert {one.token for one in told.winners} == {A, B}
    assert told.is_known
    assert told.is_ranked
    assert told.chain[-1] == (D,)
    assert {(i, j) for i, j, _ in told.reasons} == {(A, D), (B, D)}
    text = str(told)
    assert "They form one component." in text
    assert "> d." in text
    assert "a over d" in text
    alone = automaton.explain([B, D, A])
    assert str(alone).startswith("After 0 comes 3.")
    assert alone.rivals[0].probability == 1.0
    assert repr(alone) == "Explanation(last=0, {3: 1}, over 2 others)"


def test_multipliers_of_the_reasons_make_up_the_priorities():
    ds = SequenceDataset([[A, B, D], [B, C, D], [C, D]], [A, B, C], np.eye(4) + 0.1 * np.eye(4, k=1))
    automaton = NextTokenAutomaton.fit(ds)
    strict = automaton.explain([A, B, C, D]).strict
    made = sum(weight * np.outer(ds.E[i] - ds.E[j], ds.E[D]) for (i, j), weight in strict.items())
    np.testing.assert_allclose(made, automaton.priority.x, atol=ROUNDING)
    assert set(automaton.explain([A, C, D]).strict) == {(A, D), (C, D)}


def test_reasons_are_listed_from_the_heaviest_and_counted_beyond_six():
    rivals = (Rival(0, 1, 1.0, 0, 1.0), *(Rival(j, 1, 0.0, j, 0.0) for j in range(1, 9)))
    told = Explanation(8, rivals, {(0, j): j / 10 for j in range(1, 9)}, True, tuple("abcdefghi"))
    assert [j for _, j, _ in told.reasons] == [8, 7, 6, 5, 4, 3, 2, 1]
    assert "Training sequences rank a over i, a over h, a over g, a over f, a over e, a over d and 2 more." in str(told)


def test_rivals_come_by_height_then_share_then_id():
    labels = [A] * 2 + [B] * 5
    automaton = NextTokenAutomaton.fit(SequenceDataset([[A, B, C]] * 7, labels, np.eye(3)))
    assert [one.token for one in automaton.explain([C, A, B, C]).rivals] == [B, A, C]


def test_heights_are_exactly_equal_within_a_component():
    ds = cyclic_sequences(6, 8, 12, 4, 0)
    automaton = NextTokenAutomaton.fit(ds)
    for last, graph in automaton.graphs.items():
        assert all(np.ptp(automaton.heights(last)[members]) == 0.0 for members in graph.components)


@pytest.mark.parametrize(("short", "winners"), [(1e-5, {A}), (1e-8, {A, C})])
def test_a_token_as_high_as_the_winner_to_seven_digits_shares_with_it(short, winners):
    E = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0 - short, 0.0, 1.0]])
    automaton = NextTokenAutomaton.fit(SequenceDataset([[A, B]], [A], E))
    assert set(np.flatnonzero(automaton.predict_proba([A, C, B]))) == winners
    assert set(automaton.explain([A, C, B]).chain[0]) == winners


def test_an_unknown_last_token_and_an_unseen_pair_are_said():
    automaton = NextTokenAutomaton.fit(figure_2())
    told = automaton.explain([A, B, D])
    assert not told.is_known
    assert "No training sequence ends in 3" in str(told)
    assert len(told.winners) == 3
    assert not told.is_ranked  # equal by the embeddings alone
    skew = SequenceDataset([[A, B]], [A], np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 1.0]]))
    guessed = str(NextTokenAutomaton.fit(skew).explain([A, B, C]))
    assert "Priority: 0 > 1 = 2." in guessed
    assert "Inferred" not in guessed
    ranked = NextTokenAutomaton.fit(SequenceDataset([[A, B, D], [B, C, D]], [A, B], np.eye(4))).explain([A, C, D])
    assert ranked.winners[0].token == A
    assert "not seen in training: that this comes before 2" in str(ranked)
    apart = NextTokenAutomaton.fit(SequenceDataset([[A, B], [C, B]], [A, C], np.eye(4))).explain([A, C, B])
    assert not apart.is_ranked
    assert "the data do not compare them" in str(apart)


def test_heights_that_differ_by_rounding_are_one_level_of_the_chain():
    rivals = [Rival(0, 1, 0.3, 1, 0.5), Rival(2, 1, 0.3 - 1e-16, 2, 0.5), Rival(1, 1, 0.2, 3, 0.0)]
    told = Explanation(1, tuple(rivals), {}, True, ("a", "b", "c"))
    assert told.chain == ((0, 2), (1,))
    assert "Priority: a = c > b." in str(told)


def test_continuations_are_reproducible_and_look_back_only_as_far_as_asked():
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
    contradictory = SequenceDataset(
        [[A, B, C, D], [C, A, B, D]], [B, B], E
    )  # the middle one above both ends, on a line
    with pytest.raises(InputError, match="no automaton: their Graph-SVM is infeasible"):
        NextTokenAutomaton.fit(contradictory)


def test_data_whose_mix_is_no_number_are_refused():
    ds = SequenceDataset([[A, B]] * 3, [A, B, B], 1e-170 * np.eye(2))
    with pytest.raises(
        InputError, match=r"no automaton: their cyclic correction is inaccurate\. Neither a minimum nor"
    ):
        NextTokenAutomaton.fit(ds)


def test_bad_sequences_are_refused_by_name():
    automaton = NextTokenAutomaton.fit(figure_2())
    with pytest.raises(InputError, match="'sequence' argument must be ids from 0 to 3; got id 4"):
        automaton.predict_proba([A, 4])
    with pytest.raises(InputError, match="at least one token id"):
        automaton.predict_proba([])
    with pytest.raises(InputError, match="one name for each of 4 tokens"):
        automaton.explain([A], names="ab")
    with pytest.raises(InputError, match="'names' argument must be one name for each of 4 tokens; got int"):
        automaton.explain([A], names=4)
    for last in (True, None, -1, "A", [A], 1.0):
        with pytest.raises(InputError, match="'last' argument must be a whole number of at least 0"):
            automaton.heights(last)
    with pytest.raises(InputError, match="'last' argument must be an id from 0 to 3; got 4"):
        automaton.heights(4)
    automaton.heights(A)[:] = 7.0  # a copy, which leaves the automaton as it is
    assert automaton.heights(A).max() < 7.0
