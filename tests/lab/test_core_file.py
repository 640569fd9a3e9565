"""The page's compiled core: of these sources, small, and the same numbers as Python's core, bit by bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core_calls import fitting, random_argument
from lab_kernels import ask, needs_node
from marginlens import core
from marginlens.core.signatures import core_functions
from marginlens.core.wasm import FILE, FUNCTIONS, section

MAX_SIZE = 275_000
N_CALLS = 60  # of each function
ONE_RUN = {
    "n_problems": 1,
    "batch": 1,
    "n_saved": 4,
    "q": 1,
    "n_terms": 1,
    "n_memory": 1,
    "n_sizes": 300,
    "n_components": 3,
}
A_RUN: dict[str, Any] = {  # arguments by name, where the declarations allow more than makes a run
    "first": 0,
    "last": 1,
    "begin": 0,
    "n_steps": 300,
    "stop": 300,
    "save": np.array([0, 7, 64, 300]),
    "step": 0.5,
    "power": 2.5,
    "ends": np.zeros((1, 2), dtype=np.int64),
    "end": np.zeros(2, dtype=np.int64),
    "has_gram": np.zeros(1, dtype=np.int64),
    "settings": np.array((3.0, 0.9, 0.0, 0.9, 0.99, 0.0, 2.0, 0.0, 0.05), dtype=core.struct_type("OptimizerSettings")),
    "sizes": np.full(300, 0.1),
    "scales": np.full((1, 1), -np.inf),
}


def test_the_wasm_file_matches_the_sources() -> None:
    assert FILE.read_bytes().endswith(section()), "core.wasm is of other sources: run make lab-core"


def test_the_wasm_file_is_small() -> None:
    assert FILE.stat().st_size <= MAX_SIZE


def _samples(rng: np.random.Generator, cells: list[Any]) -> dict[str, Any]:
    """Samples of different cells, each from one of some lists, as the functions on next tokens take them."""
    component = rng.integers(len(cells), size=int(rng.integers(1, 12)))
    chosen = [rng.permutation(cells[c])[: rng.integers(1, len(cells[c]) + 1)] for c in component]
    offsets, cell = np.cumsum([0, *map(len, chosen)]), np.concatenate(chosen)
    return {
        "cell": cell,
        "pair": cell,
        "log_count": np.log(rng.integers(1, 4, size=len(cell))),
        "offsets": offsets,
        "span": np.column_stack([offsets[:-1], offsets[1:]]),
        "label": offsets[:-1],
        "share": np.full(len(component), 1.0 / len(component)),
        "component": component,
    }


def _special(name: str, sizes: dict[str, int], rng: np.random.Generator) -> dict[str, Any]:
    """Arguments that belong together in ways that a declaration does not say."""
    if name == "minimise_likelihoods":
        blocks = {"first": np.array([0, 2, 5]), "sizes": np.array([2, 3, 4]), "corners": np.array([0, 4, 13, 29])}
        return {"cells": rng.normal(size=9), **blocks, **_samples(rng, [[0, 1], [2, 3, 4], [5, 6, 7, 8]])}
    if name == "descend_one_hot":
        return A_RUN | {"W": rng.normal(size=6), "log_scale": np.zeros(1), **_samples(rng, [range(6)])}
    if name == "descend_in_plane":
        return {
            "sizes": np.full(sizes["batch"], 0.1),
            "n_steps": rng.integers(0, 400, size=sizes["batch"]),
            "power": 3.0,
        }
    if name == "solve_margins":
        shape = (sizes["batch"], sizes["n_rows"])
        return {"first": 0, "last": shape[0], "listed": np.arange(shape[0]), "lower": np.ones(shape)}
    if name == "descend_matrices":
        return A_RUN | {"loss": int(rng.integers(3)), "heads": 1}
    if name == "find_tubes":
        return {"first": 0, "last": sizes["batch"]}
    if name == "find_steepest_rate":
        return _place(sizes, rng)
    if name == "follow_attention":
        keys = rng.normal(size=(sizes["n_inputs"], sizes["n_tokens"], sizes["d"]))
        settings = np.array((1e-7, 0.5, 4.0, 1e-5), dtype=core.struct_type("FlowSettings"))
        state = np.zeros((), dtype=core.struct_type("FlowState"))
        lengths = rng.integers(1, sizes["n_tokens"] + 1, size=sizes["n_inputs"])
        norms = np.linalg.norm(keys, axis=-1)
        return {"keys": keys, "norms": norms, "settings": settings, "state": state, "lengths": lengths}
    return A_RUN | {"loss": int(rng.integers(3))} if name.startswith("descend") else {}


def _place(sizes: dict[str, int], rng: np.random.Generator) -> dict[str, Any]:
    """Rows of which some lead, far enough out that they often have a rate."""
    m, n_others = sizes["m"], sizes["n_others"]
    numbers = (1.0, 2.0, 1.0, 0.1, float(rng.choice([0.0, 0.3])), 1.0, 1e-6)
    return {
        "leading": rng.permutation(np.arange(m) >= n_others),
        "delta": rng.uniform(0.5, 1.0, m),
        "rows": rng.uniform(0.5, 1.0, (m, sizes["d"])),
        "point": rng.uniform(4.0, 30.0, sizes["d"]),
        "log_slope": -rng.uniform(0.0, 1.0, m),
        "multipliers": rng.uniform(0.5, 2.0, (n_others, m - n_others)),
        "rest": rng.uniform(0.0, 0.3, n_others),
        "sizes": rng.uniform(0.5, 1.0, n_others),
        "values": rng.uniform(0.8, 0.9, sizes["n_turns"]),
        "slopes": rng.uniform(0.0, 1.0, sizes["n_turns"]),
        "remembered": rng.choice([0.0, 1.0]) * rng.uniform(0.0, 1e-2, 3),
        "numbers": np.array(numbers, dtype=core.struct_type("SteepestNumbers")),
    }


def _arguments(function: Any, rng: np.random.Generator) -> dict[str, Any]:
    names = {axis for parameter in function.parameters for axis in parameter.shape if axis.isidentifier()}
    sizes = {name: int(rng.integers(1, 8)) for name in sorted(names)}
    if function.name in ("descend_attention", "descend_matrices", "descend_jointly"):
        sizes |= {name: size for name, size in ONE_RUN.items() if name in names}
    sizes = fitting(function.name, sizes)
    if function.name == "descend_matrices":
        sizes["height"] = sizes["q"]  # the page descends on W, not on its factors
    special, numbers = _special(function.name, sizes, rng), rng.normal(size=200).round(int(rng.integers(1, 9)))
    return {
        parameter.name: np.copy(special[parameter.name])
        if parameter.is_array and parameter.name in special
        else special.get(parameter.name, random_argument(parameter, sizes, 3, rng, numbers))
        for parameter in function.given
    }


@needs_node
@pytest.mark.parametrize("name", [name for names in FUNCTIONS.values() for name in names])
def test_wasm_functions_have_the_bits_of_python(name: str) -> None:
    function, rng = core_functions()[name], np.random.default_rng([4021, len(name)])
    calls = [_arguments(function, rng) for _ in range(N_CALLS)]
    plain = [
        {
            key: _plain(value) if isinstance(value, np.ndarray) else value
            for key, value in (given | _sizes(function, given)).items()
        }
        for given in calls
    ]
    answers = ask([{"call": "core", "name": name, "given": _spelled(given)} for given in plain])
    for given, answer in zip(calls, answers, strict=True):
        assert function(*(given[parameter.name] for parameter in function.given)) == answer["result"]
        for parameter in function.given:
            if parameter.is_written:
                left = _plain(given[parameter.name])
                entries = list(left.values()) if isinstance(left, dict) else left
                found = answer[parameter.name]
                np.testing.assert_array_equal(
                    np.array(list(found.values()) if isinstance(found, dict) else found), entries
                )


def _plain(value: np.ndarray) -> Any:
    """A list of an array's entries, or a struct's fields by name."""
    if value.dtype.names:
        return {name: float(value[name]) for name in value.dtype.names}
    return value.astype(float).ravel().tolist()


def _spelled(given: dict[str, Any]) -> dict[str, Any]:
    """Numbers that JSON lacks as words."""
    return {
        key: [entry if np.isfinite(entry) else str(entry) for entry in value] if isinstance(value, list) else value
        for key, value in given.items()
    }


def _sizes(function: Any, given: dict[str, Any]) -> dict[str, int]:
    arrays = [parameter for parameter in function.given if parameter.is_array]
    return {
        axis: size
        for parameter in arrays
        for axis, size in zip(parameter.shape, given[parameter.name].shape, strict=True)
        if axis.isidentifier()
    }
