"""What the text classifier learns: the shares of classes, how often it calls a text rare, and what its options do."""

import numpy as np
import pytest

from marginlens.runtime.progress import Progress
from marginlens.text.classifier import AttentionTextClassifier, default_pipeline
from marginlens.text.learning import LearningSettings, Votes, outputs_of_shares, run_adagrad, token_sets
from marginlens.text.phrases import MAX_PHRASE, MAX_TOKENS, WordsAndPhrases
from tolerances import ROUNDING

NOISE = [f"noise{chr(97 + i % 26)}{chr(97 + i // 26)}" for i in range(400)]
UNKNOWN = ["zyzzyva", ""]


def noisy_texts(counts, seed, *, n_noise=20, right=0.8):
    """Texts of noise and three words that each name the class with probability `right`, and otherwise any other class."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(len(counts)), counts))
    texts = []
    for label in labels:
        words = rng.choice(NOISE, n_noise).tolist()
        for _ in range(3):
            named = label if rng.random() < right else rng.choice(np.delete(np.arange(len(counts)), label))
            words.insert(rng.integers(len(words) + 1), f"sign{'abc'[named]}{'vwxyz'[rng.integers(5)]}")
        texts.append(" ".join(words))
    return texts, labels


@pytest.mark.parametrize("counts", [(200, 10), (27, 3), (90, 20, 40), (3, 2)])
def test_a_text_without_known_tokens_gets_the_shares_of_the_classes(counts):
    texts, y = noisy_texts(counts, seed=11)
    shares = np.array(counts) / sum(counts)
    plain = AttentionTextClassifier(epochs=2).fit(texts, y)
    np.testing.assert_allclose(plain.predict_proba(UNKNOWN), [shares] * 2, rtol=100 * ROUNDING, atol=0.0)
    balanced = AttentionTextClassifier(epochs=2, class_weight="balanced").fit(texts, y)
    np.testing.assert_allclose(balanced.predict_proba(UNKNOWN), 1.0 / len(counts), rtol=100 * ROUNDING, atol=0.0)
    weights = np.random.default_rng(12).random(len(y))
    weighted = AttentionTextClassifier(epochs=2).fit(texts, y, sample_weight=weights)
    shares = np.bincount(y, weights=weights) / weights.sum()
    np.testing.assert_allclose(weighted.predict_proba(UNKNOWN), [shares] * 2, rtol=100 * ROUNDING, atol=0.0)


def test_a_class_is_given_as_often_as_it_occurs():
    for counts, test_counts in (((760, 40), (3800, 200)), ((300, 60, 40), (1500, 300, 200))):
        found = []
        for seed in (21, 22, 23):
            texts, _ = noisy_texts(test_counts, seed=seed + 100)
            found.append(
                AttentionTextClassifier().fit(*noisy_texts(counts, seed=seed)).predict_proba(texts).mean(axis=0)
            )
        shares = np.array(counts) / sum(counts)
        np.testing.assert_allclose(np.mean(found, axis=0), shares, rtol=0.15, atol=0.0)


def test_weight_decay_makes_votes_smaller_and_helps_where_most_words_are_noise():
    sizes = []
    texts = token_sets(np.random.default_rng(31).integers(0, 50, 600), np.arange(0, 601, 6), 50)
    labels = np.random.default_rng(32).integers(0, 2, 100)
    start = Votes.naive_bayes(texts, labels, np.ones(100), outputs_of_shares(labels, np.ones(100), 2))
    for decay in (0.0, 0.01, 0.1, 1.0, 10.0):
        settings = LearningSettings(weight_decay=decay)
        sizes.append(np.abs(run_adagrad(texts, labels, np.ones(100), start, settings, Progress(None, 800)).b).mean())
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < 0.1 * sizes[0]
    train, (texts_apart, y) = noisy_texts((400, 400), seed=33), noisy_texts((1000, 1000), seed=34)
    models = [AttentionTextClassifier(weight_decay=decay).fit(*train) for decay in (0.0, 1.0)]
    losses = [-np.log(model.predict_proba(texts_apart)[np.arange(2000), y]).mean() for model in models]
    assert losses[1] < losses[0] - 0.03
    assert models[1].score(*train) < models[0].score(*train)  # learns less of the noise by heart


@pytest.mark.parametrize("counts", [(300, 300), (200, 200, 200)])
def test_selective_attention_is_on_few_tokens_that_tell_the_classes_apart(counts, tmp_path):
    train, (texts, y) = noisy_texts(counts, seed=51, right=0.95), noisy_texts(counts, seed=52, right=0.95)
    plain, selective = (AttentionTextClassifier(selective=each).fit(*train) for each in (False, True))
    held = []
    for model in (plain, selective):
        rows = [sorted((row.attention for row in model.explain(text).known), reverse=True) for text in texts[:40]]
        held.append(np.mean([np.searchsorted(np.cumsum(each), 0.9 * sum(each)) + 1 for each in rows]))
    assert held[1] < 0.7 * held[0]
    assert selective.score(texts, y) > 0.9
    most_attended = {max(selective.explain(text).known, key=lambda row: row.attention).token for text in texts[:40]}
    assert all("sign" in token for token in most_attended)
    selective.save(tmp_path / "m")
    again = AttentionTextClassifier.load(tmp_path / "m")
    assert again.get_params() == selective.get_params()
    assert np.array_equal(again.predict_proba(texts), selective.predict_proba(texts))


@pytest.mark.parametrize(("kind", "options"), [("texts", {}), ("texts", {"class_weight": "balanced"}), ("ids", {})])
def test_a_weight_of_zero_leaves_a_text_out(kind, options):
    texts, y = noisy_texts((260, 230, 60), seed=41)  # with 500 texts or more, other settings are usual
    X = texts if kind == "texts" else np.random.default_rng(42).integers(0, 40, (len(y), 7)) + 5 * y[:, None]
    weights = np.random.default_rng(43).integers(0, 3, len(y)).astype(float)
    weights[y == 1] = np.maximum(weights[y == 1], 1.0)
    counted = np.flatnonzero(weights)
    apart = AttentionTextClassifier(epochs=2, **options).fit([X[i] for i in counted], y[counted], weights[counted])
    found = AttentionTextClassifier(epochs=2, **options).fit(X, y, weights)
    assert found.tokens_.names == apart.tokens_.names
    assert np.array_equal(found.class_counts_, apart.class_counts_)
    assert np.array_equal(found.predict_proba(X), apart.predict_proba(X))


def test_texts_left_out_are_counted_where_they_stand_among_all():
    X, y = ["fine film", "", "dull film", "zebra", "fine plot", "dull plot"], [1, 1, 0, 0, 1, 0]
    with pytest.warns(UserWarning, match="1 of 5 texts"):
        model = AttentionTextClassifier(min_count=2, epochs=1).fit(X, y, sample_weight=[1, 0, 1, 1, 1, 1])
    assert model.left_out_.tolist() == [3]


def test_the_keys_of_phrases_do_not_overflow():
    assert MAX_TOKENS**MAX_PHRASE < 2**63
    texts = ["to be or not to be", "not to be or to be"]
    for most, n_phrases in ((9, 5), (5, 1), (4, 0), (3, 0)):  # four words
        tokens, places = WordsAndPhrases.fit(texts, default_pipeline(min_count=1), 3, 1, max_tokens=most)
        assert len(tokens) - len(tokens.vocabulary) <= n_phrases
        assert np.array_equal(tokens.positions(texts).tokens, places.tokens)
