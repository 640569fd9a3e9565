"""Random problems made on a device are those of the CPU, bit by bit."""

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from gpu.twin import device_arrays
from marginlens.data import gaussian_problems, sphere_problems
from marginlens.gpu.device import to_host
from marginlens.gpu.random_problems import Numbers, RandomArrays, token_scores
from marginlens.sweeps.on_device import made_on_device
from random_examples import examples

MAKE = {"sphere": sphere_problems, "gaussian": gaussian_problems}


def check_bits(device, name, numbers, shape, n_problems):
    """What the device makes is what the CPU makes."""
    settings = dict(zip(("data", "n_inputs", "n_tokens", "d"), (name, *shape), strict=True))
    made = RandomArrays(*map(to_host, made_on_device(device, settings, numbers, n_problems)))
    data, head = MAKE[name](numbers.first, numbers.first + n_problems, *shape, numbers.seed, numbers.cell)
    for found, expected in zip(made, (data.X, data.K, head, data.y), strict=True):
        assert np.array_equal(found, expected)


@examples(15)
@given(
    st.sampled_from(sorted(MAKE)),
    st.integers(0, 2**62),
    st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 40)),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**32 - 1),
)
@example("sphere", 2**40, (4, 6, 500), 2**63 + 3, 5)
@example("gaussian", 2**40, (4, 6, 100), 2**63 + 3, 5)
def test_random_problems_have_the_bits_of_the_cpu(device, name, first, shape, seed, cell):
    check_bits(device, name, Numbers(first, seed, cell), shape, 3)


def test_many_labels_span_several_blocks(device):
    check_bits(device, "sphere", Numbers(5, 9, 0), (300, 1, 3), 2)


def test_scores_do_not_depend_on_other_columns(device):
    data, head = sphere_problems(0, 5, 3, 4, 6, 0)
    scores = to_host(token_scores(device, device_arrays(device, data, head)))
    np.testing.assert_allclose(scores, data.scores(head), rtol=1e-13, atol=1e-15)
    few = device_arrays(device, data[3:], head[3:])
    np.testing.assert_array_equal(to_host(token_scores(device, few)), scores[3:])
