"""The layer in front of the compiled functions: what they declare, and that no argument reaches them unchecked."""

import contextlib
import os

import numpy as np
import pytest

from core_calls import fitting, random_argument
from marginlens import core
from marginlens.core.signatures import core_functions
from marginlens.errors import InputError
from refusals import raised

FUZZED_CALLS = int(os.environ.get("MARGINLENS_FUZZED_CALLS", "300"))  # of each function
LAYOUTS = ("minimise_likelihoods", "next_token_weights")  # random indices seldom fit them; they have tests of their own
ODD_NUMBERS = np.array([0.0] * 6 + [1.0] * 6 + [-2.0] * 4 + [1e300, 1e-300, np.nan, np.inf])


def descent(n=3, T=4, d=2, n_saved=2, seed=0):
    """The arguments of one right call."""
    rng = np.random.default_rng(seed)
    places = (n + 3) // 4 * 4 * T
    return {
        "first": 0,
        "last": 2,
        "keys": rng.normal(size=(2, n, T, d)),
        "scores": rng.normal(size=(2, n, T)),
        "lengths": rng.integers(1, T + 1, (2, n)),
        "offsets": np.empty(0),
        "start": np.zeros((2, d)),
        "normalized": 1,
        "step": 0.5,
        "loss": 0,
        "n_steps": 5,
        "stop": 5,
        "save": np.arange(n_saved),
        "states": np.empty((2, d)),
        "logits": np.empty((2, places)),
        "ends": np.zeros((2, 2), dtype=np.int64),
        "gram": np.empty(0),
        "has_gram": np.zeros(1, dtype=np.int64),
        "out": np.empty((2, n_saved, d)),
    }


def test_a_function_takes_all_arguments_but_sizes():
    assert [parameter.name for parameter in core.descend_attention.given] == list(descent())
    assert core.descend_attention(*descent().values()) == 0


def test_arguments_may_be_named_but_neither_left_out_nor_made_up():
    named = descent()
    first = named.pop("first")
    assert core.descend_attention(first, **named) == 0
    np.testing.assert_array_equal(named["ends"][:, 1], 5)
    with raised(TypeError, "descend_attention"):
        core.descend_attention(first, **{name: value for name, value in named.items() if name != "stop"})
    with raised(TypeError, "descend_attention"):
        core.descend_attention(first, **named, momentum=0.5)


def test_a_struct_has_the_fields_of_its_header():
    settings = core.struct_type("OptimizerSettings")
    assert settings.names[:2] == ("power", "momentum")
    assert settings.itemsize == 8 * len(settings)
    assert [settings[name] for name in settings.names] == [np.float64] * len(settings)


def test_a_bound_function_sees_updated_arrays():
    rng = np.random.default_rng(0)
    keys, scores, lengths = rng.normal(size=(3, 4, 2)), rng.normal(size=(3, 4)), np.full(3, 4)
    lengths.flags.writeable = False
    fixed = (keys, np.linalg.norm(keys, axis=-1), scores)
    c, g, terms = np.empty(2), np.empty(2), np.empty(1)
    at_c = core.attention_gradient.bound(*fixed, lengths.view(), 0, c, g, terms)
    for point in rng.normal(size=(3, 2)):
        expected, total = np.empty(2), np.empty(1)
        core.attention_gradient(*fixed, lengths, 0, point, expected, total)
        c[:] = point
        assert at_c() == 0
        np.testing.assert_array_equal(g, expected)
        np.testing.assert_array_equal(terms, total)


def test_a_function_is_not_bound_to_arrays_that_need_copies():
    keys, c = np.zeros((3, 4, 2)), np.zeros(2)
    with raised(TypeError, "bound"):
        core.attention_gradient.bound(
            keys[:, ::-1][:, ::-1], keys[::-1, :, 0], keys[..., 0], np.full(3, 4), 0, c, c.copy(), np.zeros(1)
        )
    with raised(TypeError, "bound"):
        core.descend_attention.bound(*descent().values())


@pytest.mark.parametrize(
    ("argument", "given"),
    [
        ("keys", np.zeros((2, 3, 4, 2), dtype=np.float32)),
        ("keys", np.zeros((2, 3, 4))),
        ("keys", [[0.0]]),
        ("keys", None),
        ("scores", np.zeros((2, 3, 5))),
        ("lengths", np.full((2, 3), 5)),
        ("lengths", np.zeros((2, 3), dtype=np.int64)),
        ("lengths", np.full((2, 3), 4, dtype=np.int32)),
        ("loss", 2**63),
        ("loss", -(2**63) - 1),
        ("first", 3),
        ("last", 3),
        ("loss", 7),
        ("stop", 6),
        ("n_steps", -1),
        ("states", np.empty((4, 4))[::2, ::2]),
        ("states", np.broadcast_to(np.zeros(2), (2, 2))),
        ("out", np.empty((2, 3, 2))),
    ],
)
def test_arguments_of_wrong_type_are_refused(argument, given):
    with pytest.raises(InputError) as refusal:
        core.descend_attention(*(descent() | {argument: given}).values())
    assert refusal.value.argument in (argument, "first", "stop", "save")


def test_inconsistent_sizes_are_refused():
    with raised(ValueError, "sizes"):
        core.descend_attention(*(descent() | {"logits": np.empty((2, 99))}).values())


def test_a_noncontiguous_or_unaligned_input_is_copied():
    plain = descent()
    core.descend_attention(*plain.values())
    strided = descent()
    strided["keys"] = np.asfortranarray(strided["keys"])
    buffer = np.zeros(strided["scores"].nbytes + 1, dtype=np.uint8)[1:]
    strided["scores"] = np.frombuffer(buffer, dtype=np.float64).reshape(strided["scores"].shape)
    strided["scores"][:] = plain["scores"]
    core.descend_attention(*strided.values())
    np.testing.assert_array_equal(strided["out"], plain["out"])


def fuzzed_arguments(function, rng):
    """Arguments of small sizes that fit each other, one of which may be spoilt: another shape, type or order, out of bounds, missing."""
    names = sorted({axis for parameter in function.parameters for axis in parameter.shape if axis.isidentifier()})
    smallest = int(rng.random() < 0.9)  # a tenth of the calls have empty arrays
    sizes = fitting(function.name, dict(zip(names, rng.integers(smallest, 5, len(names)).tolist(), strict=True)))
    spoilt = rng.integers(2 * len(function.given))
    most = rng.choice([0, 3])  # offsets and indices that are all zero fit each other
    for k, parameter in enumerate(function.given):
        value = random_argument(parameter, sizes, most, rng, ODD_NUMBERS)
        yield spoil(value, rng) if k == spoilt else value


def spoil(value, rng):
    """Something else in place of an argument."""
    if not isinstance(value, np.ndarray):
        return [2**62, -1, 2**64, np.nan, "x", None, 1.5][rng.integers(7)]
    read_only = value.copy()
    read_only.flags.writeable = False
    if value.dtype.names:
        return [None, value[None], read_only, value.tolist()][rng.integers(4)]
    others = [
        None,
        value[:-1] if value.ndim else None,
        value[None],
        value.astype(np.complex128),
        read_only,
        value.tolist(),
    ]
    if value.dtype.kind in "iu":
        return [*others, value + 7, value - 9 if value.dtype.kind == "i" else value][rng.integers(8)]
    return [*others, value.T, value[..., ::-1] if value.ndim else value][rng.integers(8)]


@pytest.mark.parametrize("name", sorted(core_functions()))
def test_fuzzed_calls_return_or_raise(name):
    function, rng = core_functions()[name], np.random.default_rng(len(name))
    answers = 0
    for _ in range(FUZZED_CALLS):
        with contextlib.suppress(ValueError, TypeError, OverflowError, MemoryError):
            function(*fuzzed_arguments(function, rng))
            answers += 1
    assert answers < FUZZED_CALLS  # what is spoilt is noticed
    assert name in LAYOUTS or answers > FUZZED_CALLS / 50  # and many calls reach the core
