"""Random problems made on a device are those of the CPU, bit by bit."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import marginlens as ml
from marginlens.data import gaussian_problems, gaussian_tokens, sphere_problems, sphere_tokens
from marginlens.gpu.device import to_host


def same_bits(made, expected):
    (tokens, v), (data, head) = made, expected
    host = tokens.to_host()
    assert np.array_equal(host.X, data.X)
    assert np.array_equal(host.K, data.K)
    assert np.array_equal(host.y, data.y)
    assert np.array_equal(to_host(v), head)


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from([sphere_problems, gaussian_problems]),
    st.integers(0, 2**62),
    st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 40)),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**32 - 1),
)
@example(sphere_problems, 2**40, (4, 6, 500), 2**63 + 3, 5)
@example(gaussian_problems, 2**40, (4, 6, 100), 2**63 + 3, 5)
def test_a_device_makes_the_bits_of_the_cpu(device, make, first, shape, seed, cell):
    expected = make(first, first + 3, *shape, seed, cell)
    same_bits(make(first, first + 3, *shape, seed, cell, device="cuda"), expected)


def test_many_labels_come_from_several_blocks(device):
    same_bits(sphere_problems(5, 7, 300, 1, 3, 9, device="cuda"), sphere_problems(5, 7, 300, 1, 3, 9))


def test_generators_take_a_device_and_a_seed_from_their_rng(device):
    for tokens, problems in ((sphere_tokens, sphere_problems), (gaussian_tokens, gaussian_problems)):
        seed = int(np.random.default_rng(4).integers(0, 2**64, dtype=np.uint64))
        same_bits(tokens(3, 2, 3, 5, 4, device="cuda"), problems(0, 3, 2, 3, 5, seed))


def test_problems_that_do_not_fit_are_refused_with_the_number_that_does(small_device):
    small_device(10_000)
    with pytest.raises(ml.InputError, match=r"100 problems need .* where 12 fit"):
        sphere_problems(0, 100, 4, 6, 3, 0, device="cuda")
