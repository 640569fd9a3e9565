"""The text learner of the core against the same steps in plain Python, with NumPy's own random numbers."""

import math

import numpy as np
import pytest

from marginlens import core
from tolerances import ROUNDING

RULES = {"penalty": 0.0, "max_dropped": 0.5, "excerpt_share": 0.3, "min_excerpt": 2, "vote_rate": 60.0}


def drawn(n_outputs, seed, n_tokens=30, n=40):
    """Texts, labels, weights, an order and a state."""
    rng = np.random.default_rng(seed)
    sets = [rng.permutation(n_tokens)[: rng.integers(0, n_tokens)].astype(np.int32) for _ in range(n)]
    offsets = np.concatenate([[0], np.cumsum([len(one) for one in sets])]).astype(np.int64)
    state = 0.1 + rng.random((n_tokens + 1, 2 + 2 * n_outputs))
    of_texts = (rng.integers(0, max(2, n_outputs), n), rng.random(n), rng.permutation(n)[: n // 2])
    return (np.concatenate(sets), offsets, *of_texts, state)


def words_of(rng):
    numbers = [rng.bit_generator.state["state"][name] for name in ("state", "inc")]
    return np.array([word for number in numbers for word in divmod(number, 2**64)], dtype=np.uint64)


def read_plainly(token, offsets, labels, weights, order, state, before, after, rules, rng):
    """As the core does it, a text at a time with arrays of its tokens."""
    n_outputs, rest = state.shape[1] // 2 - 1, len(state) - 1
    for j, i in enumerate(order):
        text, weight = token[offsets[i] : offsets[i + 1]], weights[i]
        dropped, n = rules["max_dropped"] * rng.random(), len(text)
        if rng.random() < rules["excerpt_share"] and n > rules["min_excerpt"]:
            size = int(rules["min_excerpt"] * (n / rules["min_excerpt"]) ** rng.random())
            first = int(rng.random() * (n - size + 1))
            text, weight = text[first : first + size], weight * size / n
        elif dropped:
            text = text[[rng.random() >= dropped for _ in text]]
        read = np.append(text, rest)
        a, votes = state[read, 0], state[read, 2 : 2 + n_outputs]
        q = np.exp(a - a.max()) / np.exp(a - a.max()).sum()
        f = q @ votes
        p = np.exp(f - f.max()) / np.exp(f - f.max()).sum()
        sign = 1.0 if labels[i] == 1 else -1.0
        slopes = p - np.eye(n_outputs)[labels[i]] if n_outputs > 1 else np.array([-sign / (1 + math.exp(sign * f[0]))])
        slopes, rate = weight * slopes, before + (after - before) * j / len(order)
        pull = (votes - f) @ slopes
        if rules["penalty"]:
            pull -= weight * rules["penalty"] * (np.log(q) - q @ np.log(q))
        by_a, by_b = q * pull, np.outer(q, slopes)
        state[read, 1] += by_a**2
        state[read, 0] -= rate * by_a / np.sqrt(state[read, 1])
        state[read, 2 + n_outputs :] += by_b**2
        state[read, 2 : 2 + n_outputs] -= rules["vote_rate"] * rate * by_b / np.sqrt(state[read, 2 + n_outputs :])


@pytest.mark.parametrize("n_outputs", [1, 2, 5])
@pytest.mark.parametrize(
    "changes", [{}, {"penalty": 0.7}, {"max_dropped": 0.0}, {"excerpt_share": 1.0, "min_excerpt": 1}]
)
def test_reading_texts_is_the_same_in_plain_python(n_outputs, changes):
    *texts, state = drawn(n_outputs, seed=n_outputs)
    expected, rules, rng = state.copy(), RULES | changes, np.random.default_rng(7)
    words = words_of(rng)
    core.read_texts(*texts, state, 0.07, 0.02, *rules.values(), words)
    read_plainly(*texts, expected, 0.07, 0.02, rules, rng)
    np.testing.assert_allclose(state, expected, rtol=ROUNDING, atol=0.0)
    assert np.array_equal(words, words_of(rng))  # as many numbers were drawn


@pytest.mark.parametrize(("part", "value"), [(0, 30), (0, -1), (1, 10**6), (1, -1)])
def test_texts_outside_the_arrays_are_refused(part, value):
    *texts, state = drawn(1, seed=3)
    texts[part] = np.full_like(texts[part], value)
    with pytest.raises(ValueError, match="sizes"):
        core.read_texts(*texts, state, 0.1, 0.1, *RULES.values(), np.zeros(4, dtype=np.uint64))
    with pytest.raises(ValueError, match="sizes"):
        core.fill_text_outputs(*texts[:2], state[:-1, 0], state[:-1, 2:3], 0.0, np.zeros(1), np.empty((40, 1)))


def test_nan_and_texts_without_tokens_end():
    *texts, state = drawn(3, seed=5)
    state[:5] = np.nan
    core.read_texts(*texts, state, 0.1, 0.0, *(RULES | {"penalty": 0.1}).values(), np.ones(4, dtype=np.uint64))
    assert np.isnan(state[:5, 0]).all()
    f, nothing = np.empty((2, 1)), (np.empty(0, dtype=np.int32), np.zeros(3, dtype=np.int64))
    core.fill_text_outputs(*nothing, np.empty(0), np.empty((0, 1)), -800.0, np.array([3.0]), f)
    assert f.tolist() == [[3.0], [3.0]]
