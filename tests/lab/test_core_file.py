"""The page's compiled core: of these sources, small, and the same numbers as Python's core, bit by bit."""

from __future__ import annotations

from typing import Any

import numpy as np

from lab_kernels import ask, needs_node
from marginlens.core.signatures import core_functions
from marginlens.core.wasm import FILE, section
from marginlens.dynamics.kernels.attention_descent import moves_in_keys, n_places

MAX_SIZE = 240_000  # bytes


def test_the_file_is_of_these_sources() -> None:
    assert FILE.read_bytes().endswith(section()), "core.wasm is of other sources: run make lab-core"


def test_the_file_is_small() -> None:
    assert FILE.stat().st_size <= MAX_SIZE


def assert_same_bits(name: str, calls: list[dict[str, Any]]) -> None:
    """Call a function by its parameters' names in node and in Python; whatever it writes must be the same."""
    function = core_functions()[name]
    plain = [
        {
            key: value.astype(float).ravel().tolist() if isinstance(value, np.ndarray) else value
            for key, value in (given | _sizes(function, given)).items()
        }
        for given in calls
    ]
    answers = ask([{"call": "core", "name": name, "given": _spelled(given)} for given in plain])
    for given, answer in zip(calls, answers, strict=True):
        assert function(*(given[parameter.name] for parameter in function.given)) == answer["result"]
        for parameter in function.given:
            if parameter.is_written:
                found = np.array(answer[parameter.name], dtype=float).reshape(given[parameter.name].shape)
                np.testing.assert_array_equal(found, given[parameter.name])


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


def _problem(rng: np.random.Generator, d: int) -> dict[str, Any]:
    n, T = int(rng.integers(1, 9)), int(rng.integers(1, 13))
    return {
        "keys": rng.normal(size=(1, n, T, d)) * 10.0 ** rng.integers(-2, 3),
        "lengths": rng.integers(1, T + 1, size=(1, n)),
        "normalized": int(rng.integers(2)),
        "step": float(10.0 ** rng.integers(-2, 2)),
        "loss": int(rng.integers(3)),
        "n_steps": 300,
        "stop": 300,
        "save": np.array([0, 7, 64, 300]),
        "ends": np.zeros((1, 2), dtype=np.int64),
        "first": 0,
        "last": 1,
    }


@needs_node
def test_descent_on_p_has_the_bits_of_python() -> None:
    rng = np.random.default_rng(4021)
    calls = []
    for _ in range(300):
        given = _problem(rng, d := int(rng.integers(1, 9)))
        _, n, T, _ = given["keys"].shape
        places = n_places(n, T)
        given |= {
            "scores": rng.normal(size=(1, n, T)),
            "start": rng.normal(size=(1, d)) * rng.integers(2),
            "states": np.zeros((1, d if moves_in_keys(n * T, d) else places)),
            "logits": np.zeros((1, places)),
            "gram": np.zeros(0),
            "has_gram": np.zeros(1, dtype=np.int64),
            "out": np.zeros((1, 4, d)),
        }
        calls.append(given)
    assert_same_bits("descend_attention", calls)


@needs_node
def test_joint_descent_has_the_bits_of_python() -> None:
    rng = np.random.default_rng(4022)
    calls = []
    for _ in range(100):
        given = _problem(rng, d := int(rng.integers(1, 5)))
        _, n, T, _ = given["keys"].shape
        given |= {
            "tokens": rng.normal(size=(1, n, T, d + 1)),
            "labels": rng.choice([-1.0, 1.0], size=(1, n)),
            "power": float(rng.choice([1.75, 2.0, 3.0])),
            "v": rng.normal(size=(1, d + 1)),
            "p": rng.normal(size=(1, d)),
            "heads": np.zeros((1, 4, d + 1)),
            "points": np.zeros((1, 4, d)),
        }
        calls.append(given)
    assert_same_bits("descend_jointly", calls)


@needs_node
def test_other_optimizers_have_the_bits_of_python() -> None:
    rng = np.random.default_rng(4023)
    calls = []
    for _ in range(150):
        given = _problem(rng, d := int(rng.integers(1, 5)))
        _, n, T, _ = given["keys"].shape
        given |= {
            "scores": rng.normal(size=(1, n, T)),
            "queries": np.ones((1, 1, 1)),
            "kind": int(rng.choice([0, 2])),
            "norm": int(rng.choice([0, 1, 2, 3])),
            "settings": np.array([3.0, rng.choice([0.0, 0.9]), 0.0, 0.9, 0.99, 0.0, 2.0, 0.0]),
            "sizes": np.full(300, 0.1),
            "begin": 0,
            "points": rng.normal(size=(1, 1, d)),
            "logits": np.zeros((1, n * T)),
            "memory": np.zeros((1, 2, 1, d)),
            "scales": np.full((1, 1), -np.inf),
            "residuals": np.zeros((1, 2, n * T)),
            "anchors": np.zeros((1, 2, 1, d)),
            "out": np.zeros((1, 4, 1, d)),
        }
        calls.append(given)
    assert_same_bits("descend_matrices", calls)


@needs_node
def test_margins_have_the_bits_of_python() -> None:
    rng = np.random.default_rng(4024)
    for method in range(3):
        calls = []
        for _ in range(60):
            batch, m, d = (int(rng.integers(1, high)) for high in (6, 20, 9))
            calls.append(
                {
                    "first": 0,
                    "last": batch,
                    "listed": np.arange(batch),
                    "method": method,
                    "rows": rng.normal(size=(batch, m, d)) + rng.normal(size=d),
                    "lower": np.ones((batch, m)),
                    "x": np.zeros((batch, d)),
                    "multipliers": np.zeros((batch, m)),
                    "active": np.zeros((batch, m), dtype=bool),
                    "outcome": np.zeros(batch, dtype=np.int64),
                }
            )
        assert_same_bits("solve_margins", calls)


@needs_node
def test_descent_in_the_plane_has_the_bits_of_python() -> None:
    rng = np.random.default_rng(4025)
    calls = []
    for _ in range(60):
        n, T, batch = (int(rng.integers(1, high)) for high in (6, 8, 12))
        calls.append(
            {
                "keys": rng.normal(size=(n, T, 2)),
                "scores": rng.normal(size=(n, T)).round(1),
                "lengths": rng.integers(1, T + 1, size=n),
                "loss": int(rng.integers(3)),
                "norm": int(rng.integers(4)),
                "power": 3.0,
                "sectors": np.zeros((0, 6)),
                "sizes": np.full(batch, 0.1),
                "n_steps": rng.integers(0, 400, size=batch),
                "points": rng.normal(size=(batch, 2)) * 10.0 ** rng.integers(-1, 4),
                "labels": np.zeros(batch, dtype=np.int64),
            }
        )
    assert_same_bits("descend_in_plane", calls)


@needs_node
def test_descent_on_next_tokens_has_the_bits_of_python() -> None:
    rng = np.random.default_rng(4026)
    calls = []
    for _ in range(60):
        n_pairs, n_samples = (int(rng.integers(2, high)) for high in (20, 12))
        chosen = [rng.permutation(n_pairs)[: rng.integers(1, n_pairs + 1)] for _ in range(n_samples)]
        edges = np.cumsum([0, *map(len, chosen)])
        calls.append(
            {
                "pair": np.concatenate(chosen),
                "log_count": np.log(rng.integers(1, 4, size=edges[-1])),
                "span": np.column_stack([edges[:-1], edges[1:]]),
                "share": np.full(n_samples, 1.0 / n_samples),
                "normalized": int(rng.integers(2)),
                "step": 0.5,
                "stop": 300,
                "W": rng.normal(size=n_pairs) * 10.0 ** rng.integers(0, 5),
                "log_scale": np.zeros(1),
                "end": np.zeros(2, dtype=np.int64),
            }
        )
    assert_same_bits("descend_one_hot", calls)


@needs_node
def test_likelihoods_of_tied_tokens_have_the_bits_of_python() -> None:
    rng = np.random.default_rng(4027)
    calls = []
    for _ in range(40):
        n, size = int(rng.integers(1, 20)), int(rng.integers(2, 9))
        chosen = [rng.permutation(size)[: rng.integers(1, size + 1)] for _ in range(n)]
        offsets = np.cumsum([0, *map(len, chosen)])
        calls.append(
            {
                "cells": rng.normal(size=size) * 10.0 ** rng.integers(0, 4),
                "cell": np.concatenate(chosen),
                "log_count": np.log(rng.integers(1, 4, size=offsets[-1])),
                "offsets": offsets,
                "label": offsets[:-1],
                "share": np.full(n, 1.0 / n),
                "component": np.zeros(n, dtype=np.int64),
                "first": np.array([0]),
                "sizes": np.array([size]),
                "corners": np.array([0, size**2]),
                "values": np.zeros(1),
                "slopes": np.zeros(size),
                "squares": np.zeros(size**2),
            }
        )
    assert_same_bits("add_likelihoods", calls)


@needs_node
def test_neighbours_have_the_bits_of_python() -> None:
    rng = np.random.default_rng(4028)
    calls = []
    for _ in range(100):
        n, T, d, batch = (int(rng.integers(1, high)) for high in (5, 7, 6, 4))
        calls.append(
            {
                "keys": rng.normal(size=(1, n, T, d)).round(1) * 10.0 ** rng.integers(0, 6, size=(1, n, T, 1)),
                "lengths": rng.integers(1, T + 1, size=(1, n)),
                "selected": rng.integers(T, size=(batch, n)),
                "x": np.where(rng.random((batch, 1)) < 0.1, np.nan, rng.normal(size=(batch, d))),
                "multipliers": rng.normal(size=(batch, n, T)) * rng.integers(2, size=(batch, n, T)),
                "neighbours": np.zeros((batch, n, T), dtype=bool),
            }
        )
    assert_same_bits("find_neighbours", calls)
