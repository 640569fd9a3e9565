"""Random data follow their protocols: tokens, next-token sequences, K-level and balanced labelled sequences."""

from collections import Counter

import numpy as np
import pytest

import marginlens as ml
from marginlens.data import Levels, acyclic_sequences, cyclic_sequences, level_sequences, ordered_sequences
from marginlens.embeddings import check_assumption_4, token_statistics
from marginlens.graphs import is_acyclic, priority_graphs
from marginlens_papers.claims.random_data import (
    acyclic_sequences_as_coded,
    balanced_sequences,
    class_clusters,
    cyclic_sequences_as_coded,
)
from refusals import refused
from tolerances import ROUNDING

MAKERS = {
    "acyclic": acyclic_sequences,
    "cyclic": cyclic_sequences,
    "acyclic as coded": acyclic_sequences_as_coded,
    "cyclic as coded": cyclic_sequences_as_coded,
}


@pytest.mark.statement("A App. E")
def test_sphere_tokens_follow_the_protocol():
    data, v = ml.data.sphere_tokens(200, 4, 6, 7, np.random.default_rng(0))
    np.testing.assert_allclose(np.linalg.norm(data.X, axis=-1), 1, rtol=ROUNDING, atol=0.0)
    np.testing.assert_allclose(np.linalg.norm(v, axis=-1), 1, rtol=ROUNDING, atol=0.0)
    assert abs(data.y.mean()) < 0.15
    assert np.abs(data.X.mean(axis=(0, 1, 2))).max() < 0.03
    assert ml.data.sphere_tokens(200, 4, 6, 7, 0)[0] == data


def test_scored_tokens_have_the_scores_asked_for():
    rng = np.random.default_rng(0)
    keys, scores = rng.normal(size=(3, 4, 2)), rng.normal(size=(3, 4))
    data, v = ml.data.scored_tokens(keys, scores, y=[1, -1, 1])
    np.testing.assert_allclose(data.scores(v), scores, rtol=0.0, atol=ROUNDING)
    assert np.array_equal(data.K, keys)


@pytest.mark.statement("C App. D")
@pytest.mark.parametrize("kind", MAKERS)
def test_sequences_have_the_requested_sizes_embeddings_and_kind(kind):
    for seed in range(10):
        data = MAKERS[kind](6, 5, 6, 4, np.random.default_rng(seed))
        assert len(data) == 6
        assert data.E.shape == (6, 5)
        assert np.all(data.lengths == 4)
        assert np.linalg.norm(data.E, axis=1) == pytest.approx(np.ones(6), abs=ROUNDING, rel=0.0)
        assert is_acyclic(priority_graphs(data)) is kind.startswith("acyclic")
        assert data == MAKERS[kind](6, 5, 6, 4, seed)
        if kind.endswith("coded"):
            assert all(len(set(ids.tolist())) == 4 for ids in data.tokens.reshape(6, 4))


def test_a_label_is_the_first_token_in_the_order():
    order = [3, 0, 4, 1, 2]
    data = ordered_sequences(order, 3, 200, 3, 0)
    for ids, label in (data[i] for i in range(len(data))):
        assert label == next(token for token in order if token in ids)


def test_one_order_explains_all_acyclic_labels():
    data = acyclic_sequences(7, 4, 300, 4, 1)
    above = {(label, int(t)) for ids, label in (data[i] for i in range(len(data))) for t in ids if t != label}
    assert above
    assert not any((j, i) in above for i, j in above)


def test_a_cyclic_label_is_uniform_among_different_tokens():
    data = cyclic_sequences(2, 2, 40_000, 3, 5)
    mixed = data.tokens.reshape(-1, 3).sum(axis=1) == 1  # 0, 0, 1 in some order
    shares = Counter(data.labels[mixed].tolist())
    assert shares[1] / mixed.sum() == pytest.approx(0.5, abs=0.02, rel=0.0)  # a uniform position would give a third


@pytest.mark.statement("B Eq. (33)")
def test_the_parts_of_figure_2_add_up_to_its_vocabulary():
    law = Levels()
    assert law.n_vocabulary == 2048
    assert law.sizes == (6, 8, 12, 20, 36, 68, 132, 260)
    assert np.bincount(law.level).tolist() == [964, *(2 * size for size in law.sizes)]
    for k, size in enumerate(law.sizes, start=1):
        assert np.sum(law.sign[law.level == k] == 1) == np.sum(law.sign[law.level == k] == -1) == size
    assert (law.sign[law.level == 0] == 0).all()


@pytest.mark.statement("B Eq. (34)", "B Eq. (35)")
def test_chances_sum_to_one_and_bayes_gives_the_posterior():
    law = Levels(deltas=(0.4, 0.1, 0.0), sizes=(2, 3, 5), n_irrelevant=7, share=0.3)
    up, down = law.chances(1), law.chances(-1)
    assert abs(up.sum() - 1.0) < ROUNDING
    assert abs(down.sum() - 1.0) < ROUNDING
    np.testing.assert_allclose((up - down) / (up + down), law.posterior_difference, rtol=0, atol=ROUNDING)
    assert law.posterior_difference[law.level == 2].tolist() == [0.8] * 3 + [-0.8] * 3
    assert up[law.sign == 0].sum() == pytest.approx(0.7, abs=ROUNDING, rel=0.0)


@pytest.mark.statement("B Eq. (34)")
def test_frequencies_of_drawn_sequences_follow_the_law():
    law = Levels(deltas=(0.3, 0.05), sizes=(2, 3), n_irrelevant=4, share=0.4)
    data = level_sequences(4000, 25, 3, law)
    assert data.lengths.tolist() == [25] * 4000
    known = token_statistics(data)
    for counts, label in ((known.in_positive, 1), (known.in_negative, -1)):
        expected = law.chances(label) * counts.sum()
        assert np.all(np.abs(counts - expected) < 5 * np.sqrt(expected) + 1)
    assert data == level_sequences(4000, 25, 3, law)


@pytest.mark.statement("B Assumption 4")
@pytest.mark.parametrize(("n", "T", "important", "irrelevant"), [(2, 2, 1, 1), (10, 4, 5, 15), (200, 5, 2, 10)])
def test_balanced_data_obey_assumption_4_to_the_count(n, T, important, irrelevant):
    data = balanced_sequences(n, T, important, irrelevant, 1)
    known = token_statistics(data)
    assert check_assumption_4(data).holds
    assert known.kind.tolist() == [2] * important + [-2] * important + [0] * irrelevant
    assert (known.count > 0).all()
    assert data.n_vocabulary == 2 * important + irrelevant
    assert data.y.sum() == 0
    if n == 200:  # decisive tokens stand anywhere
        assert (np.bincount(np.argmax(data.tokens.reshape(n, T) < 2 * important, axis=1), minlength=T) > 20).all()


def test_sphere_queries_are_drawn_for_each_input():
    data, v, z = ml.data.sphere_queries(3, 4, 5, 6, 0)
    tokens, head = ml.data.sphere_tokens(3, 4, 5, 6, 0)
    np.testing.assert_array_equal(data.X, tokens.X)
    np.testing.assert_array_equal(v, head)
    assert z.shape == (3, 4, 6)
    np.testing.assert_allclose(np.linalg.norm(z, axis=-1), 1.0, rtol=ROUNDING, atol=0.0)


def test_clusters_have_one_unit_mean_per_class():
    points, classes = class_clusters(4, 200, 6, 0.1, 0)
    assert points.shape == (800, 6)
    np.testing.assert_array_equal(np.bincount(classes), [200] * 4)
    means = np.stack([points[classes == c].mean(axis=0) for c in range(4)])
    np.testing.assert_allclose(np.linalg.norm(means, axis=1), 1.0, rtol=0.0, atol=0.05)
    np.testing.assert_allclose(np.std(points - means[classes]), 0.1, rtol=0.05, atol=0.0)


@pytest.mark.statement("X F")
def test_signal_and_noise_fit_flipped_labels_and_generalize_above_a_ratio():
    data, classes = ml.data.signal_and_noise(30, 400, 0.7, 3, flipped=0.1)
    assert (data.y != classes).tolist() == [True] * 3 + [False] * 27
    np.testing.assert_array_equal(data.X[:, 0, 0] - data.X[:, 0, 1], 0.7 * classes)
    assert np.all(data.X[:, 1, :2] == 0.0)
    np.testing.assert_allclose(np.linalg.norm(data.X[:, 1], axis=-1), 1.0, rtol=0.0, atol=0.15)
    right = {}
    for ratio in (0.1, 0.7):  # times √30: .5 and 3.8
        data, classes = ml.data.signal_and_noise(30, 400, ratio, 3, flipped=0.1)
        risk = ml.JointRisk(data)
        run = ml.descend(risk, optimizer=ml.optimizers.Blockwise(ml.NormalizedGD(0.5)), n_steps=200)
        v, p = risk.split(run.final)
        assert np.all(ml.AttentionRisk(data, v).margins(p) > 0.0)
        new, _ = ml.data.signal_and_noise(200, 400, ratio, 4)
        right[ratio] = np.mean(ml.AttentionRisk(new, v).margins(p) > 0.0)
    assert right[0.7] == 1.0
    assert right[0.1] < 0.8
    for argument, wrong in {"signal": (30, 9, 0.0, 0), "d_model": (30, 2, 1.0, 0)}.items():
        with refused(argument):
            ml.data.signal_and_noise(*wrong)
    with refused("flipped"):
        ml.data.signal_and_noise(30, 9, 1.0, 0, flipped=1.0)
