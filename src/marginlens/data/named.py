"""Datasets by name: the papers' figures and protocols, and what installed packages add under `marginlens.datasets`."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from typing import Any

from marginlens.errors import reject
from marginlens.runtime.packs import DATASETS, Added, load_pack, pack_names

_MODULES = {  # functions of marginlens.data that make a dataset, by their module
    "paper_examples": (
        "figure_1a figure_1b figure_1c figure_2 figure_3a figure_3b figure_5 figure_8 "
        "cone_example basin_example norm_example norm_selection_example"
    ),
    "random_tokens": "sphere_tokens sphere_queries gaussian_tokens",
    "sequence_generators": ("acyclic_sequences cyclic_sequences ordered_sequences level_sequences"),
}
_OWN = {name: module for module, names in _MODULES.items() for name in names.split()}


def dataset_names() -> tuple[str, ...]:
    """The names that `dataset` takes: this library's, then those of installed packages, which are not imported for it."""
    return (*_OWN, *(name for name in pack_names(DATASETS) if name not in _OWN))


def dataset(name: str, **settings: Any) -> Any:
    """The dataset of a name, as its function returns it.

    `dataset("figure_1b")` is `figure_1b()`, and `dataset("sphere_tokens", n_problems=8, n_inputs=4, n_tokens=6, d_model=10, rng=0)`
    draws random problems.

    Args:
        name: one of `dataset_names()`: a function of this module, or what an installed package lists as an entry point of the group
            `marginlens.datasets`. settings: what the function takes.
    """
    return _function(name)(**settings)


def _function(name: Any) -> Callable[..., Any]:
    if isinstance(name, str) and name in _OWN:
        made: Callable[..., Any] = getattr(import_module(f"marginlens.data.{_OWN[name]}"), name)
        return made
    known = dataset_names()
    added = load_pack(DATASETS, name, _check) if isinstance(name, str) else None
    if added is None:
        near = get_close_matches(str(name), known, 1, 0.5)
        advice = f"Did you mean {near[0]}?" if near and near[0] != name else ""
        raise reject("name", f"one of {', '.join(known)}", repr(name), advice)
    function: Callable[..., Any] = added.value
    return function


def _check(added: Added) -> None:
    if not callable(added.value):
        raise reject("dataset", "a function that returns a dataset", type(added.value).__name__)
