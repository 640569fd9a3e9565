"""Attention that can be seen while a model is measured: fused implementations are put aside and back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from marginlens.errors import reject

_EAGER = 'Load the model with attn_implementation="eager".'


@contextmanager
def eager_attention(model: Any) -> Iterator[None]:
    """With attention that can be seen, and afterwards with the implementation that was there (sdpa, flash_attention_2, …).

    A model that cannot change its implementation is refused; what is no Hugging Face model is left to others to refuse.
    """
    configs = _configs(model) if is_hugging_face(model) else []
    before = [(config, config._attn_implementation) for config in configs if hasattr(config, "_attn_implementation")]
    if all(name == "eager" for _, name in before):
        yield
        return
    try:
        with _quiet_transformers(), suppress(AttributeError, ValueError, ImportError):  # said below, in our words
            model.set_attn_implementation("eager")
        name = getattr(model.config, "_attn_implementation", None)
        if name != "eager":
            expected = "a model whose attention can be seen"
            raise reject("model", expected, f"attn_implementation={name!r}, which this model cannot change", _EAGER)
        yield
    finally:
        for config, name in before:
            config._attn_implementation_internal = name


def is_hugging_face(model: Any) -> bool:
    """Whether this is a model of transformers, not a module that has one inside."""
    return hasattr(getattr(model, "config", None), "model_type") and hasattr(model, "base_model")


def _configs(model: Any) -> list[Any]:
    """The configurations of a model and of all models in it, each once."""
    waiting = [module.config for module in model.modules() if is_hugging_face(module)] + [model.config]
    found: dict[int, Any] = {}
    while waiting:
        config = waiting.pop()
        if config is not None and id(config) not in found:
            found[id(config)] = config
            waiting += [getattr(config, name, None) for name in getattr(config, "sub_configs", ())]
    return list(found.values())


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
