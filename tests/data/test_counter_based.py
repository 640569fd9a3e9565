"""Problems by counter: Philox's published answers, the same bits however they are asked for, and the laws they are drawn from."""

import hashlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from marginlens import core
from marginlens.data import gaussian_problems, sphere_problems
from marginlens.data.counter_based import shared_matrix
from random_examples import examples

ULPS = 2.0**-50  # four units in the last place, of the largest number that a sum passes through
KNOWN_ANSWERS = (  # counter, key, words: Random123's file of known answers for philox4x32-10
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
)


def philox(counter, key):
    """The four words of a block, whose bits are the signs of its 128 labels."""
    labels = np.empty((1, 128))
    core.fill_labels(counter[1] | counter[2] << 32, key[0] | key[1] << 32, counter[3], counter[0], labels)
    return tuple(np.packbits(labels[0] > 0.0, bitorder="little").view("<u4").tolist())


def test_philox_gives_the_published_words():
    for counter, key, words in KNOWN_ANSWERS:
        assert philox(counter, key) == words


def box_muller(problem, seed, cell, block):
    """Two normals of a block by NumPy's functions, from the same words."""
    counter = (block, problem % 2**32, problem // 2**32, cell)
    w = philox(counter, (seed % 2**32, seed // 2**32))
    low, high = w[0] | w[1] << 32, w[2] | w[3] << 32
    u = 1.0 - (low >> 12) * 2.0**-52
    angle = np.pi / 2 * ((high >> 62) + (high >> 10 & (2**52 - 1)) * 2.0**-52 - 0.5)
    return np.sqrt(-2 * np.log(u)) * np.array([np.cos(angle), np.sin(angle)])


@examples(10)
@given(st.integers(0, 2**62), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.integers(1, 9))
def test_normal_numbers_follow_box_muller(problem, seed, cell, d):
    data, v = gaussian_problems(problem, problem + 1, 2, 3, d, seed, cell)
    rows = np.concatenate([data.X[0].reshape(-1, d), v])
    n_blocks = (d + 1) // 2
    for r, row in enumerate(rows):
        expected = np.concatenate([box_muller(problem, seed, cell, r * n_blocks + b) for b in range(n_blocks)])[:d]
        np.testing.assert_allclose(row, expected, rtol=ULPS, atol=8 * ULPS)
    labels = philox((len(rows) * n_blocks, problem % 2**32, problem // 2**32, cell), (seed % 2**32, seed // 2**32))
    assert np.array_equal(data.y[0], [2.0 * (labels[0] >> i & 1) - 1.0 for i in range(2)])
    np.testing.assert_allclose(data.K, data.X @ shared_matrix(d, seed, cell).T, rtol=0, atol=100 * ULPS)


@examples(10)
@given(
    st.integers(0, 50), st.integers(1, 40), st.integers(1, 20), st.sampled_from([sphere_problems, gaussian_problems])
)
def test_a_problem_is_the_same_in_any_chunk(first, count, d, make):
    data, v = make(first, first + count, 2, 3, d, 7, 3)
    j = count // 2
    single, head = make(first + j, first + j + 1, 2, 3, d, 7, 3)
    assert data[j] == single[0]
    assert np.array_equal(v[j], head[0])


def test_a_problem_is_the_same_with_any_number_of_threads(monkeypatch):
    monkeypatch.setenv("MARGINLENS_THREADS", "3")
    data, v = gaussian_problems(0, 3000, 2, 3, 8, 1)
    monkeypatch.setenv("MARGINLENS_THREADS", "1")
    again, head = gaussian_problems(0, 3000, 2, 3, 8, 1)
    assert data == again
    assert np.array_equal(v, head)


def test_bits_are_the_same_on_every_processor():
    content = hashlib.sha256()
    for d in (1, 2, 5, 10, 33, 100):
        for make in (sphere_problems, gaussian_problems):
            data, v = make(2**40, 2**40 + 20, 3, 4, d, 2**63 + 5, 11)
            for array in (data.X, data.K, data.y, v):
                content.update(np.ascontiguousarray(array).astype("<f8").tobytes())
    assert content.hexdigest() == "0b8383781e8825211a64f948021ac7dd347954b997de30cd75c2bde151bbcbb7"


def test_cells_seeds_and_problems_are_independent():
    def first_numbers(j, seed, cell):
        return gaussian_problems(j, j + 1, 3, 4, 50, seed, cell)[0].X.ravel()

    numbers = np.stack([first_numbers(*which) for which in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 2**32, 0))])
    correlations = np.corrcoef(numbers)[np.triu_indices(5, 1)]
    assert np.abs(correlations).max() < 5 / np.sqrt(numbers.shape[1])


def test_numbers_follow_the_normal_law():
    data, v = gaussian_problems(0, 500, 4, 6, 20, 3)
    numbers = np.concatenate([data.X.ravel(), v.ravel()])
    assert stats.kstest(numbers, "norm").pvalue > 1e-3
    for power, moment in ((1, 0), (2, 1), (3, 0), (4, 3), (6, 15)):
        powers = numbers**power
        assert abs(powers.mean() - moment) < 4.5 * powers.std() / np.sqrt(numbers.size)
    even, odd = data.X[..., ::2].ravel(), data.X[..., 1::2].ravel()
    assert stats.kstest(stats.norm.cdf(even) + stats.norm.cdf(odd), stats.triang(0.5, 0, 2).cdf).pvalue > 1e-3
    assert stats.binomtest(int((data.y > 0).sum()), data.y.size).pvalue > 1e-3


def test_sphere_problems_are_uniform_on_the_sphere():
    data, v = sphere_problems(0, 2000, 4, 6, 3, 5)
    for vectors in (data.X.reshape(-1, 3), v):
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=4 * ULPS, atol=0.0)
        for c in range(3):  # each coordinate of a uniform point of the sphere in three dimensions is uniform on [-1, 1]
            assert stats.kstest(vectors[:, c], stats.uniform(-1, 2).cdf).pvalue > 1e-4
    assert data.W is not None
    assert np.array_equal(data.K, data.X)
