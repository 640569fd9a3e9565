"""The adapters of all families of models, and which one fits a model."""

from __future__ import annotations

from typing import Any

from marginlens.errors import InputError, reject
from marginlens.probe.models.adapters.base import Adapter
from marginlens.probe.models.adapters.families import (
    BertAdapter,
    Dinov2Adapter,
    DistilBertAdapter,
    Gpt2Adapter,
    LlamaAdapter,
    ViTAdapter,
)

ADAPTERS: tuple[type[Adapter], ...] = (
    BertAdapter,
    DistilBertAdapter,
    ViTAdapter,
    Dinov2Adapter,
    Gpt2Adapter,
    LlamaAdapter,
)
GUIDE = "docs/adapters.md"

_NORMALISED = "it normalises queries and keys, so a logit is not linear in the token"
_CAPPED = "it caps its logits, so a logit is not linear in the token"
_WITH_NORMS = ("qwen3", "qwen3_moe", "gemma3", "gemma3_text", "olmo2", "olmo3", "olmoe", "exaone4")
_REFUSED = {**dict.fromkeys(_WITH_NORMS, _NORMALISED), "gemma2": _CAPPED}


def supported_families() -> tuple[str, ...]:
    """The values of config.model_type that have an adapter."""
    return tuple(family for adapter in ADAPTERS for family in adapter.families)


def check_family(config: Any) -> type[Adapter]:
    """The adapter of the family that a model's configuration names."""
    family = getattr(config, "model_type", None)
    adapter = next((kind for kind in ADAPTERS if family in kind.families), None)
    if adapter is None:
        why = f" ({_REFUSED[family]})" if family in _REFUSED else ""
        raise InputError(
            f"The model family {family!r} has no adapter{why}: there is one for {', '.join(supported_families())}, "
            f"and {GUIDE} says in five steps how to add another."
        )
    return adapter


def adapter_for(model: Any) -> Adapter:
    """The adapter of an already loaded Hugging Face model.

    Args:
        model: a model whose attention can be seen, i.e. loaded with attn_implementation="eager".
    """
    config = getattr(model, "config", None)
    if not hasattr(config, "model_type") or not hasattr(model, "base_model"):
        inside = "Pass the model that it holds as .module." if hasattr(model, "module") else ""
        raise reject("model", "a loaded Hugging Face model", type(model).__name__, inside)
    adapter = check_family(config)
    _check_tuning(model)
    implementation = getattr(config, "_attn_implementation", None)
    if implementation != "eager":
        raise reject(
            "model",
            "a model whose attention can be seen",
            f"attn_implementation={implementation!r}, which hides it",
            'Load it with attn_implementation="eager", or call model.set_attn_implementation("eager").',
        )
    offloaded = any(hasattr(module, "_hf_hook") for module in model.modules())  # accelerate loads weights when used
    if not offloaded and all(weight.device.type == "meta" for weight in model.parameters()):
        raise reject("model", "a model with weights", "one on the meta device, which has none")
    return adapter(model)


def _check_tuning(model: Any) -> None:
    """Refuse what peft puts around a model where this changes what the model reads, and not only its modules."""
    tuned = getattr(model, "active_peft_config", None)
    kind = getattr(getattr(tuned, "peft_type", None), "value", None)
    if getattr(tuned, "is_prompt_learning", False):
        raise reject("model", "a model that reads the tokens it is given alone", f"one with a learned prompt ({kind})")
    if getattr(tuned, "alora_invocation_tokens", None):
        got = "an activated LoRA, which starts at a token of the text"
        raise reject("model", "a model whose projections are the same for all tokens", got)


__all__ = ["ADAPTERS", "GUIDE", "Adapter", "adapter_for", "check_family", "supported_families"]
