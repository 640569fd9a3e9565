"""Chains that their context weighs: to and from weights, maximum likelihood against Hunter's method, trajectories and topics."""

import numpy as np
import pytest

import marginlens as ml
from marginlens.nexttoken import MarkovChain, topic_change
from tolerances import ROUNDING

K = 4


def a_chain(seed=0, n_tokens=K):
    return MarkovChain(np.random.default_rng(seed).dirichlet(np.full(n_tokens, 3.0), n_tokens))


def prompts(chain, n, rng, length=4):
    tokens = rng.integers(0, len(chain.P), (n, length))
    return ml.SequenceDataset(tokens, chain.sample(tokens, 1, rng)[:, 0], np.eye(len(chain.P)))


def by_hunter(data):
    """Rows of maximum likelihood by Hunter's MM algorithm for choice among weighted alternatives, one last token after the other."""
    P = np.zeros((data.n_vocabulary, data.n_vocabulary))
    for k in range(data.n_vocabulary):
        chosen = np.flatnonzero(data.last == k)
        held = np.array([np.bincount(data[i][0], minlength=data.n_vocabulary) for i in chosen])
        wins = np.bincount(data.labels[chosen], minlength=data.n_vocabulary)
        weights = np.full(data.n_vocabulary, 1.0 / data.n_vocabulary)
        for _ in range(20_000):
            new = wins / (held / (held @ weights)[:, None]).sum(axis=0)
            new /= new.sum()
            moved, weights = np.abs(new - weights).max(), new
            if moved < 1e-15:
                break
        P[k] = weights
    return P


def test_weights_and_chains_are_one_to_one():
    chain, rng = a_chain(), np.random.default_rng(1)
    E = rng.standard_normal((K, 7))
    W = chain.to_weights(E)
    np.testing.assert_allclose(MarkovChain.from_weights(W, E).P, chain.P, rtol=0.0, atol=1e-12)
    again = MarkovChain.from_weights(rng.standard_normal((7, 7)), E)
    shortest = again.to_weights(E)
    np.testing.assert_allclose(MarkovChain.from_weights(shortest, E).P, again.P, rtol=0.0, atol=1e-12)
    span, shift = (
        np.linalg.pinv(E) @ E,
        np.linalg.pinv(E) @ np.ones((K, 1)) @ rng.standard_normal((1, K)) @ np.linalg.pinv(E).T,
    )
    np.testing.assert_allclose(
        span @ shortest @ span, shortest, rtol=0.0, atol=1e-12
    )  # nothing outside the span of the embeddings
    assert np.linalg.norm(shortest + 1e-3 * shift) > np.linalg.norm(shortest)
    np.testing.assert_allclose(MarkovChain.from_weights(shortest + shift, E).P, again.P, rtol=0.0, atol=1e-12)


def test_predictions_are_the_attention_of_the_layer():
    chain, rng = a_chain(), np.random.default_rng(2)
    data = prompts(chain, 20, rng)
    W = chain.to_weights(data.E)
    attention = data.attention(W)
    for i in range(len(data)):
        ids = data[i][0]
        summed = np.bincount(ids, weights=attention[data.offsets[i] : data.offsets[i + 1]], minlength=K)
        np.testing.assert_allclose(chain.predict_proba(ids), summed, rtol=0.0, atol=1e-12)
    assert chain.log_likelihood(data) == pytest.approx(-float(ml.NextTokenRisk(data).value(W)), rel=1e-12, abs=ROUNDING)


@pytest.mark.statement("X C1")
def test_the_fit_equals_hunters_and_maximizes_likelihood():
    rng = np.random.default_rng(3)
    for seed in range(5):
        data = prompts(a_chain(seed), 300, rng)
        found = MarkovChain.fit(data)
        assert found.identified.all()
        np.testing.assert_allclose(found.P, by_hunter(data), rtol=0.0, atol=1e-10)
        for _ in range(5):
            other = MarkovChain(0.99 * found.P + 0.01 * rng.dirichlet(np.ones(K), K))
            assert other.log_likelihood(data) < found.log_likelihood(data)


@pytest.mark.statement("X C1")
def test_a_row_is_identified_iff_its_tokens_are_strongly_connected():
    sequences = [[0, 1, 2], [1, 0, 2], [0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 2, 1]]
    labels = [0, 1, 2, 1, 2, 2]  # after 2: 0, 1 and 2 are all chosen; after 1 only 2 is chosen; after 0 only 1
    found = MarkovChain.fit(ml.SequenceDataset(sequences, labels, np.eye(3)))
    assert found.identified.tolist() == [False, False, True]
    with pytest.raises(ml.InputError):
        found.to_weights(np.eye(3))


@pytest.mark.statement("X C2")
def test_a_self_preferring_token_absorbs_the_chain():
    P = np.full((3, 3), 0.2) + 0.4 * np.eye(3)
    P[2] = [0.6, 0.3, 0.1]
    chain = MarkovChain(P)
    np.testing.assert_allclose(chain.winners()[:2], 0.2 / 0.6 - 1.0, rtol=ROUNDING, atol=0.0)
    assert np.isnan(chain.winners()[2])
    start = np.tile([0, 1, 2, 2, 2, 2], (200, 1))
    drawn = chain.sample(start, 3_000, 0)
    last = np.stack([np.bincount(row[-500:], minlength=3) for row in drawn]) / 500
    assert last.max(axis=1).mean() > 0.85
    assert (last.argmax(axis=1) == 2).mean() < 0.02
    np.testing.assert_array_equal(drawn, chain.sample(start, 3_000, 0))


def test_draws_follow_the_probabilities():
    chain = a_chain()
    prompt = [0, 1, 1, 3, 2]
    drawn = chain.sample(np.tile(prompt, (200_000, 1)), 1, 5)[:, 0]
    np.testing.assert_allclose(
        np.bincount(drawn, minlength=K) / len(drawn), chain.predict_proba(prompt), rtol=0.0, atol=0.005
    )


def topics(orders, sizes, rng, n_tokens=5):
    parts = []
    for order, n in zip(orders, sizes, strict=True):
        tokens = rng.integers(0, n_tokens, (n, 4))
        parts.append((tokens, tokens[np.arange(n), np.argmin(np.argsort(order)[tokens], axis=1)]))
    both = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return [ml.NextTokenAutomaton.fit(ml.SequenceDataset(*part, np.eye(n_tokens))) for part in (parts[0], both)]


@pytest.mark.statement("X C3")
def test_a_topic_change_needs_a_tie_of_counts_times_weights():
    rng = np.random.default_rng(4)
    own, both = topics([np.arange(5), rng.permutation(5)], [120, 80], rng)
    changes = 0
    for x in rng.integers(0, 5, (300, 8)):
        found = topic_change(own, both, x)
        tokens, counts = np.unique(x, return_counts=True)
        above = [i for i in tokens if own.graphs[x[-1]].reaches(i, found.predicted) and i != found.predicted]
        assert found.changed == bool(above)
        assert set(found.expected) <= set(tokens)
        if not found.changed:
            continue
        changes += 1
        assert found.tied
        weights = np.exp(both.mix.x[tokens, x[-1]]) * counts
        place = {int(token): weight for token, weight in zip(tokens, weights, strict=True)}
        assert all(place[found.predicted] >= place[int(i)] for i in above)
        held = dict(zip(tokens.tolist(), counts.tolist(), strict=True))
        assert found.outnumbers == all(held[found.predicted] > held[int(i)] for i in above)
    assert changes > 20
    same = topics([np.arange(5), np.arange(5)], [120, 80], rng)
    assert not any(topic_change(*same, x).changed for x in rng.integers(0, 5, (100, 8)))
    with pytest.raises(ml.InputError):
        topic_change(ml.NextTokenAutomaton.fit(ml.SequenceDataset([[0, 1]], [0], np.eye(5))), both, [2, 3])


@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("P", lambda: MarkovChain([[0.5, 0.4], [0.5, 0.5]])),
        ("P", lambda: MarkovChain([0.5, 0.5])),
        ("E", lambda: a_chain().to_weights(np.ones((K, 2)))),
        ("prompts", lambda: a_chain().sample([[K]], 1, 0)),
        ("data", lambda: MarkovChain.fit(None)),
    ],
)
def test_invalid_arguments_are_refused(argument, call):
    with pytest.raises(ml.InputError) as refusal:
        call()
    assert refusal.value.argument == argument
