"""Attention that can be seen while a model is measured: fused implementations are put aside and back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from marginlens.errors import reject

_EAGER = 'Load the model with attn_implementation="eager".'


FUSED = "sdpa"  # torch's own, whose masks can be read


@contextmanager
def attention_implementation(model: Any, name: str) -> Iterator[None]:
    """With attention of an implementation, and afterwards with the one that was there (sdpa, flash_attention_2, …).

    A model that cannot change its implementation is refused; what is no Hugging Face model is left to others to refuse.
    """
    configs = _configs(model) if is_hugging_face(model) else []
    before = [(config, config._attn_implementation) for config in configs if hasattr(config, "_attn_implementation")]
    if all(found == name for _, found in before):
        yield
        return
    try:
        with _quiet_transformers(), suppress(AttributeError, ValueError, ImportError):  # said below, in our words
            model.set_attn_implementation(name)
        found = getattr(model.config, "_attn_implementation", None)
        if found != name:
            expected = f"a model that can attend by {name!r}, where what it reads can be seen"
            raise reject("model", expected, f"attn_implementation={found!r}, which this model cannot change", _EAGER)
        yield
    finally:
        for config, found in before:
            config._attn_implementation_internal = found


def eager_attention(model: Any) -> Any:
    """`attention_implementation` with attention that the model hands out as maps."""
    return attention_implementation(model, "eager")


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
