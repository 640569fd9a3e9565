"""What the text classifier learns: the shares of classes, how often it calls a text rare, and what its options do."""

import numpy as np
import pytest

from marginlens.runtime.progress import Progress
from marginlens.text.classifier import AttentionTextClassifier
from marginlens.text.learning import LearningSettings, Votes, outputs_of_shares, run_adagrad, token_sets
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
    np.testing.assert_allclose(plain.predict_proba(UNKNOWN), [shares] * 2, rtol=100 * ROUNDING)
    balanced = AttentionTextClassifier(epochs=2, class_weight="balanced").fit(texts, y)
    np.testing.assert_allclose(balanced.predict_proba(UNKNOWN), 1.0 / len(counts), rtol=100 * ROUNDING)
    weights = np.random.default_rng(12).random(len(y))
    weighted = AttentionTextClassifier(epochs=2).fit(texts, y, sample_weight=weights)
    shares = np.bincount(y, weights=weights) / weights.sum()
    np.testing.assert_allclose(weighted.predict_proba(UNKNOWN), [shares] * 2, rtol=100 * ROUNDING)


def test_a_class_is_given_as_often_as_it_occurs():
    for counts, test_counts in (((760, 40), (3800, 200)), ((300, 60, 40), (1500, 300, 200))):
        found = []
        for seed in (21, 22, 23):
            texts, _ = noisy_texts(test_counts, seed=seed + 100)
            found.append(
                AttentionTextClassifier().fit(*noisy_texts(counts, seed=seed)).predict_proba(texts).mean(axis=0)
            )
        shares = np.array(counts) / sum(counts)
        np.testing.assert_allclose(np.mean(found, axis=0), shares, rtol=0.15)


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
