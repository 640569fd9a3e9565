"""The rule that guesses a layer's optimizer: it is the one its archive gives, on matrices whose making is known it says so."""

import json

import numpy as np
import pytest

from benchmarks import optimizers
from marginlens.probe import KeyQueryMap, margin_shares, optimizer_like, sample_queries
from marginlens.probe.heads import optimizer
from marginlens_papers.archive import results_folder

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def archive():
    return json.loads((results_folder() / "optimizers-bench.json").read_text(encoding="utf-8"))


def test_the_rule_and_its_error_rates_are_those_of_the_archive(archive):
    features = np.array([row["features"] for row in archive["layers"]])
    labels = np.array([list(optimizers.PLAN).index(row["optimizer"]) for row in archive["layers"]])
    discriminants, centres = optimizers.fitted_rule(features, labels)
    np.testing.assert_allclose(optimizer._DISCRIMINANTS, discriminants, atol=5e-4)
    np.testing.assert_allclose(optimizer._CENTRES, centres, atol=5e-4)
    np.testing.assert_allclose(optimizer._LEAST, features.min(axis=0), atol=6e-4)
    np.testing.assert_allclose(optimizer._MOST, features.max(axis=0), atol=6e-4)
    assert optimizers.table(archive["layers"], archive["heads"]) == archive["rows"]
    rows = {row["by"]: row for row in archive["rows"]}
    assert rows["weights"]["balanced_accuracy_decided"] > 0.9
    assert rows["weights"]["balanced_accuracy"] > 0.7
    assert min(np.bincount(labels)) * optimizers.N_HEADS >= 60
    words = [optimizer.guess_of(row).word for row in features]
    assert {"Adam-like", "Muon-like", "SGD-like", "undecided"} == set(words)


def test_a_rule_that_sees_wrong_labels_is_no_better_than_chance(archive):
    """The control of the error rate: with labels shuffled within each task nothing is left to tell."""
    features = np.array([row["features"] for row in archive["layers"]])
    labels = np.array([list(optimizers.PLAN).index(row["optimizer"]) for row in archive["layers"]])
    shuffled = np.random.default_rng(0).permutation(labels)
    tasks = np.array([row["task"] for row in archive["layers"]])
    right = optimizers.unseen_tasks(features, shuffled, tasks).argmax(axis=1) == shuffled
    assert right.mean() < 0.45


def layer(make, n_heads=4, d_head=16, seed=0):
    """Heads whose W_Q and W_K, side by side, are two matrices that `make` gives."""
    rng = np.random.default_rng(seed)
    W_Q, W_K = (make(rng, n_heads * d_head).reshape(-1, n_heads, d_head) for _ in range(2))
    return [KeyQueryMap(W_K[:, head], W_Q[:, head], np.zeros(d_head), 0.25) for head in range(n_heads)]


def test_random_weights_are_undecided_and_the_rule_is_free_of_scale():
    guess = optimizer_like(layer(lambda rng, d: rng.normal(size=(d, d))))
    assert guess.word == "undecided"
    assert guess.probabilities.sum() == pytest.approx(1.0)
    larger = optimizer_like(layer(lambda rng, d: 1e3 * rng.normal(size=(d, d))))
    np.testing.assert_allclose(larger.probabilities, guess.probabilities, rtol=1e-6)
    assert optimizer_like(layer(lambda rng, d: np.zeros((d, d)))).word == "undecided"
    set_by_hand = optimizer_like(layer(lambda rng, d: np.diag(np.arange(d) % 3 == 0).astype(float)))
    assert set_by_hand.probabilities.max() > optimizer.MIN_PROBABILITY  # beyond all that the rule has seen
    assert set_by_hand.word == "undecided"


def test_sums_of_steps_look_like_the_optimizer_that_makes_them():
    """Signs of gradients of low rank, and their polar factors, added up: what Adam and Muon do, without any training."""

    def steps(of):
        def make(rng, d):
            left, right = rng.normal(size=(2, 12, d))
            found = 0.16 / np.sqrt(d) * rng.normal(size=(d, d))
            for k in range(300):
                fades = np.exp(-np.arange(12) * k / 300)
                noise = rng.normal(size=(d, 2)) @ rng.normal(size=(2, d))
                found += 2e-3 * of((left * fades[:, None]).T @ right + 0.3 * noise)
            return found

        return make

    def polar(gradient):
        U, values, V = np.linalg.svd(gradient)
        return (U * (values > 1e-9 * values[0])) @ V

    guesses = [optimizer_like(layer(steps(of))) for of in (np.sign, polar)]
    assert guesses[0].probabilities[0] > guesses[1].probabilities[0]
    assert guesses[1].probabilities[1] > guesses[0].probabilities[1]


def test_shares_of_margins_are_one_at_the_solution_and_less_elsewhere():
    rng = np.random.default_rng(0)
    inputs = list(rng.normal(size=(4, 5, 6)))
    sample = sample_queries(inputs)
    head = KeyQueryMap(rng.normal(size=(6, 6)), rng.normal(size=(6, 6)), np.zeros(6), 1.0)
    shares = margin_shares(sample, head)
    assert all(0.0 < share < 1.0 for share in shares)
    biased = margin_shares(sample, KeyQueryMap(head.W_K, head.W_Q, rng.normal(size=6), 1.0))
    assert all(np.isfinite(biased))


@pytest.mark.parametrize("name", optimizers.PLAN)
def test_a_short_run_goes_through_all_of_the_benchmark(monkeypatch, name):
    monkeypatch.setattr(optimizers, "TASKS", ("copy", "lookup", "text", "sum", "third", "third", "largest"))
    monkeypatch.setitem(optimizers.PLAN, name, optimizers.PLAN[name][:1])
    for is_rotary in (False, True):
        group = optimizers.Group(name, 16, is_rotary, optimizers.SMALL_START, (0,))
        weights, losses = optimizers.trained(group, n_steps=2)
        rows = optimizers.layer_rows(group, weights, losses)
        assert len(rows) == 2 * len(group.runs)
        assert np.isfinite([row["features"] for row in rows]).all()
    group = optimizers.Group(name, 16, False, optimizers.SMALL_START, (0,))
    weights, _ = optimizers.trained(group, n_steps=1)
    row = optimizers.shares_row(optimizers.head_problems(group, weights)[0])
    assert len(row["own"]) == len(row["random"]) == 3
