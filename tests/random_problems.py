"""Random problems of every shape that the theory has to cope with."""

import numpy as np

from marginlens.data import LabelledSequences, SequenceDataset, TokenDataset
from marginlens.embeddings import initial_parameters
from marginlens.graphs import priority_graphs
from marginlens.losses import Logistic
from marginlens.svm import Status, graph_svm
from marginlens.theory import basin_cone, locally_optimal_directions

MAX_DRAWS = 1000  # after which a test that looks for a problem with some property fails instead of drawing on


def ragged_problem(rng, n_inputs, longest, d_model, *, d_key=None):
    """One problem whose inputs have 1 to `longest` tokens, and a head."""
    lengths = rng.integers(1, longest + 1, size=n_inputs)
    lengths[0] = longest  # something to separate
    X = [rng.standard_normal((length, d_model)) for length in lengths]
    K = None if d_key is None else [rng.standard_normal((length, d_key)) for length in lengths]
    return TokenDataset(X, rng.choice([-1.0, 1.0], n_inputs), K=K), rng.standard_normal(d_model)


def problem(rng, n_inputs, n_tokens, d_model):
    """One problem with normal tokens, and a head."""
    X = rng.standard_normal((n_inputs, n_tokens, d_model))
    return TokenDataset(X, rng.choice([-1.0, 1.0], n_inputs)), rng.standard_normal(d_model)


def cones(seed, n_problems=25, loss=None):
    """Problems of all shapes with up to three of their basin cones each: (data, v, cone)."""
    rng = np.random.default_rng(seed)
    for k in range(n_problems):
        make = ragged_problem if k % 2 else problem
        data, v = make(rng, int(rng.integers(1, 5)), int(rng.integers(2, 6)), int(rng.integers(2, 6)))
        for selection in locally_optimal_directions(data, v).selections[:3]:
            yield data, v, basin_cone(data, v, selection, loss=loss or Logistic())


def two_level_scores(rng, n_inputs, n_tokens, d_key):
    """Keys and scores that obey Assumption B: one token per input scores above the others, which all score the same."""
    keys = rng.standard_normal((n_inputs, n_tokens, d_key))
    low = rng.uniform(-1.0, 1.0, size=(n_inputs, 1))
    scores = np.repeat(low, n_tokens, axis=1)
    optimal = rng.integers(n_tokens, size=n_inputs)
    scores[np.arange(n_inputs), optimal] += rng.uniform(0.2, 1.5, size=n_inputs)
    return keys, scores


def feasible_sequences(generator, shape, seed):
    """Random sequences whose Graph-SVM has a solution other than zero, and that solution."""
    rng = np.random.default_rng(seed)
    for _ in range(MAX_DRAWS):
        ds = generator(*shape, rng)
        found = graph_svm(ds.E, priority_graphs(ds))
        if found.status is Status.OPTIMAL:
            return ds, found
    raise AssertionError(f"none of {MAX_DRAWS} datasets has a Graph-SVM with a solution other than zero")


def mixed_sequences(seed=0, d=7):
    """Datasets of different sizes, lengths and vocabularies, with embeddings of length one."""
    rng, datasets = np.random.default_rng(seed), []
    for K, n in ((3, 2), (7, 6), (5, 1), (4, 9)):
        drawn = [rng.integers(K, size=int(rng.integers(2, 7))) for _ in range(n)]
        E = rng.normal(size=(K, d))
        labels = [int(rng.choice(one)) for one in drawn]
        datasets.append(SequenceDataset(drawn, labels, E / np.linalg.norm(E, axis=1, keepdims=True)))
    return datasets


def ragged_labelled(rng, n, vocabulary, longest):
    """Labelled sequences of one to `longest` tokens."""
    lists = [rng.integers(vocabulary, size=rng.integers(1, longest + 1)) for _ in range(n)]
    return LabelledSequences(lists, rng.choice([-1.0, 1.0], size=n), vocabulary)


def started(seed, data, d):
    """Random initial parameters for the tokens of labelled sequences."""
    return initial_parameters(data.n_vocabulary, d, np.random.default_rng(seed), np.float64)


def positive_head(ds, seed=0):
    """A general head with positive scores, C Eᵀ = H; needs linearly independent embeddings."""
    H = np.random.default_rng(seed).uniform(0.1, 0.9, size=(ds.n_vocabulary, ds.n_vocabulary))
    return (H + 0.5 * np.eye(ds.n_vocabulary)) @ np.linalg.pinv(ds.E).T
