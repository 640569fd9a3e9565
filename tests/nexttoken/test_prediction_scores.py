"""Accuracy and log-loss of the automaton, of layers and of n-grams, against one sequence at a time."""

from collections import Counter, defaultdict

import numpy as np
import pytest

import marginlens as ml
from marginlens import SequenceDataset
from marginlens.data import cyclic_sequences, split_sequences, split_text_windows, text_windows
from marginlens.nexttoken import NextTokenAutomaton, WindowNgram, score_held_out
from marginlens_papers.claims.random_data import random_sequences
from tolerances import CONDITIONED, ROUNDING, SIX_DIGITS


def scored_singly(rule, ds):
    """(accuracy, log-loss, the same with 1% uniform, share of the impossible, of the unknown) from `predict_proba` of every sequence."""
    hits, losses, mixed, impossible, unknown = 0, [], [], 0, 0
    for i in range(len(ds)):
        ids, label = ds[i]
        probability = rule.predict_proba(ids)
        if np.isnan(probability).any():
            unknown, truth = unknown + 1, 0.0
        else:
            hits += int(np.argmax(probability)) == label
            truth = probability[label]
            impossible += truth == 0.0
        losses.append(-np.log(truth) if truth else np.inf)
        floor = 0.01 * (label in ids) / len(set(ids.tolist()))
        mixed.append(-np.log(0.99 * truth + floor) if truth or floor else np.inf)
    n = len(ds)
    return hits / n, np.mean(losses), np.mean(mixed), impossible / n, unknown / n


def numbers_of(score):
    return [score.accuracy, score.log_loss, score.mixed_log_loss, score.impossible, score.unknown]


@pytest.mark.filterwarnings("ignore::marginlens.nexttoken.SlowLimitWarning")
@pytest.mark.parametrize("seed", range(8))
def test_automaton_scores_follow_its_predictions(seed):
    E = np.eye(6) if seed % 2 else np.random.default_rng(seed).normal(size=(6, 8))
    made = cyclic_sequences(6, 8, 10, 4, seed)
    ds = SequenceDataset([made[i][0] for i in range(len(made))], made.labels, E)
    automaton = NextTokenAutomaton.fit(ds)
    new = random_sequences(6, 8, 60, 5, seed + 100)
    new = SequenceDataset([new[i][0] for i in range(len(new))], new.labels, E)
    for data in (ds, new):
        score = automaton.score(data)
        assert score.n_samples == len(data)
        np.testing.assert_allclose(numbers_of(score), scored_singly(automaton, data), rtol=0.0, atol=CONDITIONED)
    assert automaton.score(ds).impossible == 0.0  # training sequences keep the label's component
    W = np.random.default_rng(seed).normal(size=E.shape[1:] * 2)
    layer = type("Layer", (), {"predict_proba": lambda self, ids: automaton.predict_proba(ids, W=W)})()
    np.testing.assert_allclose(
        numbers_of(automaton.score(new, W=W)), scored_singly(layer, new), rtol=0.0, atol=CONDITIONED
    )
    ids = new[3][0]
    np.testing.assert_allclose(
        automaton.predict_proba(ids, W=W),
        np.bincount(ids, new[3:4].attention(W), minlength=6),
        rtol=0.0,
        atol=ROUNDING,
    )


def test_a_layer_at_finite_norm_can_differ_from_the_limit():
    """Where a slow term decides, the layer of norm 30 is far from the limit; a ridge path that plain Newton finds agrees with it."""
    sequences, labels = [[0, 2, 5], [1, 4, 5], [0, 3, 4, 5], [0, 3, 5]], [0, 1, 0, 0]
    ds = SequenceDataset(sequences, labels, np.eye(6))
    automaton, new = NextTokenAutomaton.fit(ds), [0, 1, 5]
    np.testing.assert_array_equal(automaton.predict_proba(new, slow="limit"), np.eye(6)[0])
    rows = [np.eye(6)[ids] - np.eye(6)[label] for ids, label in zip(sequences, labels, strict=True)]
    u, ridge = np.zeros(6), 1e-9  # the column of W that the only last token reads
    for _ in range(200):
        slope, hessian = ridge * u, ridge * np.eye(6)
        for row in rows:
            p = np.exp(row @ u) / np.exp(row @ u).sum()
            slope = slope + row.T @ p / 4
            hessian = hessian + row.T @ (np.diag(p) - np.outer(p, p)) @ row / 4
        u = u - np.linalg.solve(hessian, slope)
    assert np.linalg.norm(slope) < ROUNDING
    W = ml.path(ds, [np.linalg.norm(u)]).points[0]
    expected = np.exp(u[new]) / np.exp(u[new]).sum()
    np.testing.assert_allclose(automaton.predict_proba(new, W=W)[new], expected, rtol=1e-6, atol=0.0)
    assert expected[1] > 0.02


def witten_bell(text, order, K):
    """P(x | context) by the formula, from a text, with dictionaries."""
    followers = defaultdict(Counter)
    for t in range(1, len(text)):
        for m in range(min(order, t + 1)):
            followers[tuple(text[t - m : t])][text[t]] += 1

    def probability(x, context):
        lower = 1.0 / K if not context else probability(x, context[1:])
        seen = followers.get(context)
        return lower if seen is None else (seen[x] + len(seen) * lower) / (sum(seen.values()) + len(seen))

    return lambda x, window: probability(x, tuple(window[len(window) - min(order - 1, len(window)) :]))


@pytest.mark.parametrize(("order", "window", "K", "n"), [(1, 3, 4, 60), (2, 4, 7, 90), (3, 5, 3, 40), (6, 5, 5, 200)])
def test_an_n_gram_backs_off_by_witten_bell(order, window, K, n):
    rng = np.random.default_rng(100 * order + n)
    text = rng.integers(0, K, n).tolist()
    text = text + text[5:25]  # so that long contexts come again
    ngram, reference = WindowNgram.of_text(text, order, K), witten_bell(text, order, K)
    windows = rng.integers(0, K, (30, window)).tolist() + [text[t : t + window] for t in range(20, 40)] + [[1]]
    for ids in windows:
        raw = {x: reference(x, ids) for x in set(ids)}
        expected = [raw.get(x, 0.0) / sum(raw.values()) for x in range(K)]
        np.testing.assert_allclose(ngram.predict_proba(ids), expected, rtol=0.0, atol=ROUNDING)
    data = SequenceDataset(windows, rng.integers(0, K, len(windows)), np.eye(K), unrealizable="keep")
    np.testing.assert_allclose(numbers_of(ngram.score(data)), scored_singly(ngram, data), rtol=0.0, atol=ROUNDING)


def test_an_n_gram_of_windows_counts_their_labels():
    text = [0, 1, 2, 0, 1, 3, 0, 2, 1, 0, 1, 2]
    windows = [text[t : t + 3] for t in range(len(text) - 3)]
    data = SequenceDataset(windows, text[3:], np.eye(4), unrealizable="keep")
    fitted = WindowNgram.fit(data, 4)
    events = [*zip(windows, text[3:], strict=True)]
    assert fitted.levels[0].total == len(events)
    alone = WindowNgram.fit(data.take(np.array([1])), 3)
    # after (1, 2, 0) came 1, once: (1 + 1 · lower)/(1 + 1) at each of the three orders
    assert alone.predict_proba([1, 2, 0])[1] == pytest.approx(
        0.90625 / (0.90625 + 0.03125 * 2), rel=SIX_DIGITS, abs=ROUNDING
    )


def test_a_label_outside_its_sequence_is_impossible():
    ds = SequenceDataset([[0, 1], [0, 1], [0, 1]], [0, 0, 2], np.eye(3), unrealizable="keep")
    score = NextTokenAutomaton.fit(ds).score(ds)
    assert (score.accuracy, score.impossible) == (
        pytest.approx(2 / 3, rel=SIX_DIGITS, abs=ROUNDING),
        pytest.approx(1 / 3, rel=SIX_DIGITS, abs=ROUNDING),
    )
    assert score.log_loss == score.mixed_log_loss == np.inf


WORDS = "the cat and the dog and the cat met the dog and the bird and a dog met the cat and the bird slept and the cat saw the cat "


def test_every_rule_is_scored_on_the_same_windows_without_unknown_words():
    split = split_text_windows(
        WORDS * 2 + "a newt and the cat met a newt ", 4, ml.data.Words(max_vocabulary=5), held_out=0.4
    )
    vocabulary, K = split.training.vocabulary, split.training.data.n_vocabulary
    automaton = NextTokenAutomaton.fit(split.training.data)
    found = score_held_out(split, {"automaton": automaton})
    followed = [i for i in range(len(split.held_out)) if split.held_out.labels[i] != vocabulary.unknown]
    assert 0 < len(followed) < len(split.held_out)
    assert found.n_unknown == len(split.held_out) - len(followed)
    assert {score.n_samples for score in found.scores.values()} == {len(followed)}
    data = split.held_out.take(np.array(followed))
    rules = {
        "automaton": automaton,
        "bigram of the same windows": WindowNgram.fit(split.training.data, 2),
        "bigram of all of the text": WindowNgram.of_text(split.text, 2, K),
        "trigram of all of the text": WindowNgram.of_text(split.text, 3, K),
        "5-gram of all of the text": WindowNgram.of_text(split.text, 5, K),
    }
    assert list(found.scores) == list(rules)
    for name, rule in rules.items():
        np.testing.assert_allclose(
            numbers_of(found.scores[name]), scored_singly(rule, data), rtol=0.0, atol=CONDITIONED
        )
    rest, hits, windows = split.held_out_text.tolist(), 0, 0
    followers = defaultdict(Counter)
    for first, second in zip(split.text, split.text[1:], strict=False):
        followers[int(first)][int(second)] += 1
    for t in range(4, len(rest)):
        if rest[t] != vocabulary.unknown:
            windows += 1
            hits += min(followers[rest[t - 1]].items(), key=lambda item: (-item[1], item[0]))[0] == rest[t]
    assert (found.n_windows, found.free_accuracy) == (
        windows,
        pytest.approx(hits / windows, rel=SIX_DIGITS, abs=ROUNDING),
    )


def test_listed_sequences_are_compared_with_n_grams_of_the_same_sequences():
    split = split_sequences(text_windows("to be or not to be that is the question", 5), held_out=0.3, rng=3)
    found = score_held_out(split, {})
    assert list(found.scores) == [f"{gram} of the same windows" for gram in ("bigram", "trigram", "6-gram")]
    assert found.n_windows is None
    assert np.isnan(found.free_accuracy)
