"""Accuracy and log-loss of the automaton and of the bigram, against one sequence at a time."""

import numpy as np
import pytest

from marginlens import SequenceDataset
from marginlens.data import cyclic_sequences, random_sequences, text_windows
from marginlens.nexttoken import NextTokenAutomaton, WindowBigram
from tolerances import CONDITIONED, ROUNDING


def scored_one_by_one(rule, ds):
    """(accuracy, log-loss of the possible, share of the impossible, share of the unknown) from `predict_proba` of every sequence."""
    hits, losses, impossible, unknown = 0, [], 0, 0
    for i in range(len(ds)):
        ids, label = ds[i]
        probability = rule.predict_proba(ids)
        if np.isnan(probability).any():
            unknown += 1
            continue
        hits += int(np.argmax(probability)) == label
        if probability[label] > 0.0:
            losses.append(-np.log(probability[label]))
        else:
            impossible += 1
    n = len(ds)
    return hits / n, np.mean(losses) if losses else np.nan, impossible / n, unknown / n


@pytest.mark.parametrize("seed", range(8))
def test_the_automaton_is_scored_as_it_predicts(seed):
    E = np.eye(6) if seed % 2 else np.random.default_rng(seed).normal(size=(6, 8))
    made = cyclic_sequences(6, 8, 10, 4, seed)
    ds = SequenceDataset([made[i][0] for i in range(len(made))], made.labels, E)
    automaton = NextTokenAutomaton.fit(ds)
    new = random_sequences(6, 8, 60, 5, seed + 100)
    new = SequenceDataset([new[i][0] for i in range(len(new))], new.labels, E)
    for data in (ds, new):
        score = automaton.score(data)
        accuracy, loss, impossible, unknown = scored_one_by_one(automaton, data)
        assert score.n_samples == len(data)
        np.testing.assert_allclose(
            [score.accuracy, score.finite_log_loss, score.impossible, score.unknown],
            [accuracy, loss, impossible, unknown],
            atol=CONDITIONED,
        )
        assert score.log_loss == (np.inf if impossible else pytest.approx(loss))
    assert automaton.score(ds).impossible == 0.0  # training sequences keep the label's component


def test_a_bigram_is_scored_as_it_predicts():
    text = "to be or not to be that is the question whether tis nobler in the mind to suffer"
    ds = text_windows(text[:50], 5).data
    new = SequenceDataset(
        [[0, 3, 2], [5, 1, 5, 0], [4, 4], [2, 6, 1]], [3, 1, 4, 6], np.eye(ds.n_vocabulary), unrealizable="keep"
    )
    for bigram in (WindowBigram.fit(ds), WindowBigram.of_text([0, 3, 0, 1, 1, 6, 4], ds.n_vocabulary)):
        for data in (ds, new):
            score = bigram.score(data)
            accuracy, loss, impossible, _ = scored_one_by_one(bigram, data)
            np.testing.assert_allclose(
                [score.accuracy, score.finite_log_loss, score.impossible], [accuracy, loss, impossible], atol=ROUNDING
            )


def test_bigram_probabilities_are_counts_within_the_sequence():
    bigram = WindowBigram.of_text([0, 1, 0, 2, 0, 1], 4)
    np.testing.assert_array_equal(bigram.predict_proba([1, 2, 2, 0]), [0.0, 2.0 / 3.0, 1.0 / 3.0, 0.0])
    np.testing.assert_array_equal(bigram.predict_proba([0, 1, 3]), [1.0 / 3.0, 1.0 / 3.0, 0.0, 1.0 / 3.0])


def test_a_label_outside_its_sequence_is_impossible():
    ds = SequenceDataset([[0, 1], [0, 1], [0, 1]], [0, 0, 2], np.eye(3), unrealizable="keep")
    score = NextTokenAutomaton.fit(ds).score(ds)
    assert (score.accuracy, score.impossible) == (pytest.approx(2 / 3), pytest.approx(1 / 3))
    assert (score.log_loss, score.finite_log_loss) == (np.inf, 0.0)
