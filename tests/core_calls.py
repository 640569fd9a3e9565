"""Random arguments of the core's functions, from their declarations."""

from __future__ import annotations

from typing import Any

import numpy as np


def fitting(name: str, sizes: dict[str, int]) -> dict[str, int]:
    """Sizes that belong together in ways that a declaration does not say, as far as they are among these."""
    places = (sizes.get("n_inputs", 0) + 3) // 4 * 4 * sizes.get("n_tokens", 0)
    height, width = max(1, sizes.get("height", 1)), max(1, sizes.get("width", 1))
    # Logits of every other shape have offsets.
    tokens = sizes.get("n_inputs", 0) * sizes.get("n_tokens", 0) * (sizes.get("n_tokens", 0) % 2)
    together: dict[str, dict[str, Any]] = {
        "descend_attention": {
            "n_places": places,
            "width": sizes.get("d"),
            "gram_size": 0,
            "n_offsets": tokens * sizes.get("n_problems", 0),
        },
        "find_tubes": {"n_offsets": tokens * sizes.get("batch", 0)},
        "weights_of_places": {"places": places},
        "descend_matrices": {
            "n_terms": 1,
            "n_memory": sizes.get("q", 0) + sizes.get("d", 0) + 1,
            "height": sizes.get("q", 0)
            + (sizes.get("d", 0) if sizes.get("n_inputs", 0) % 2 else 0),  # W or its factors
            "breadth": sizes.get("d"),
            "n_sizes": 9,
            "n_batches": 0,
            "batch_size": 0,
        },
        "solve_matrix_norm": {
            "height": height,
            "width": width,
            "n": height * width,
            "n_factors": 0,
            "m": sizes.get("n_rows"),
        },
        "bound_vertex_steps": {"d": min(2, sizes.get("d", 0)), "n_turns": 2 * min(2, sizes.get("d", 0))},
        "find_steepest_rate": {
            "m": sizes.get("n_others", 0) + sizes.get("n_leading", 0),
        },
        "solve_linear_programs": {"n_basic": sizes.get("d", 0) + 1},
    }
    return sizes | together.get(name, {})


def random_argument(parameter: Any, sizes: dict[str, int], most: int, rng: np.random.Generator, numbers: Any) -> Any:
    """An argument that the declaration allows, as far as its bounds are known by now; entries of arrays are drawn from `numbers`."""
    low, high = (
        0 if bound is None else bound(sizes | {"last": 1, "n_steps": 3, "stop": 3}) for bound in parameter.bounds
    )
    if not parameter.is_array:
        sizes[parameter.name] = int(rng.integers(low, max(low, high, 1) + 1))
        return float(rng.choice([-0.5, 0.5, 1.5, 3.0])) if parameter.kind is np.float64 else sizes[parameter.name]
    if parameter.dtype.names:
        return np.array(tuple(rng.choice(numbers, len(parameter.dtype))), dtype=parameter.dtype)
    shape = tuple(max(0, size(sizes)) for size in parameter.sizes)
    if np.issubdtype(parameter.kind, np.floating):
        values = rng.choice(numbers, shape)
        with np.errstate(over="ignore"):  # of single precision
            return values.astype(parameter.kind)
    return rng.integers(low, max(low, high if parameter.bounds[1] else most) + 1, shape).astype(parameter.kind)
