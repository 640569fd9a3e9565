"""The adapters of all families of models, and the choice of the adapter for a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from marginlens.errors import InputError
from marginlens.probe.models.adapters.attention_only import AttentionOnlyAdapter
from marginlens.probe.models.adapters.base import Adapter
from marginlens.probe.models.adapters.decoders import BloomAdapter, Gpt2Adapter, OptAdapter
from marginlens.probe.models.adapters.encoder_decoder import BartAdapter, T5Adapter
from marginlens.probe.models.adapters.encoders import AlbertAdapter, BertAdapter, DebertaAdapter, DistilBertAdapter
from marginlens.probe.models.adapters.rotary import (
    CappedAdapter,
    GptNeoXAdapter,
    GptOssAdapter,
    LlamaAdapter,
    ModernBertAdapter,
    NormalisedAdapter,
    Phi3Adapter,
)
from marginlens.probe.models.adapters.vision import ClipAdapter, Dinov2Adapter, SwinAdapter, ViTAdapter

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

ADAPTERS: tuple[type[Adapter], ...] = (
    BertAdapter,
    DistilBertAdapter,
    AlbertAdapter,
    DebertaAdapter,
    ModernBertAdapter,
    ViTAdapter,
    Dinov2Adapter,
    SwinAdapter,
    ClipAdapter,
    Gpt2Adapter,
    OptAdapter,
    BloomAdapter,
    LlamaAdapter,
    GptOssAdapter,
    NormalisedAdapter,
    CappedAdapter,
    Phi3Adapter,
    GptNeoXAdapter,
    BartAdapter,
    T5Adapter,
)
GUIDE = "docs/adapters.md"

Kind = TypeVar("Kind", bound=type[Adapter])
_REGISTERED: list[type[Adapter]] = []  # by others, the last first: a family may be taken over


def register_adapter(adapter: Kind) -> Kind:
    """Add the adapter of a new family, or replace one of the library's; also usable as a class decorator.

    Args:
        adapter: a subclass of `Adapter` whose `families` name at least one value of config.model_type. `marginlens.testing.check_adapter`
            compares it with a model's own attention.
    """
    _check_adapter(adapter)
    if adapter not in _REGISTERED:
        _REGISTERED.insert(0, adapter)
    return adapter


def _check_adapter(adapter: object) -> None:
    if not (isinstance(adapter, type) and issubclass(adapter, Adapter)):
        raise InputError("adapter", "a subclass of marginlens.probe.Adapter", repr(adapter))
    families = adapter.families
    if not families or isinstance(families, str) or not all(isinstance(name, str) for name in families):
        raise InputError("adapter", "a class whose 'families' is a tuple of model types", f"families = {families!r}")


def supported_families() -> tuple[str, ...]:
    """Return the values of config.model_type that have an adapter."""
    known = (family for adapter in (*ADAPTERS, *reversed(_REGISTERED)) for family in adapter.families)
    return tuple(dict.fromkeys(known))


def check_family(config: PretrainedConfig) -> type[Adapter] | None:
    """Return the adapter of the family that a model's configuration names; None if there is none, and only attention is read.

    Registered adapters come first, then those of the library.
    """
    family = getattr(config, "model_type", None)
    return next((kind for kind in (*_REGISTERED, *ADAPTERS) if family in kind.families), None)


def adapter_for(model: PreTrainedModel) -> Adapter:
    """Return the adapter of an already loaded Hugging Face model; `AttentionOnlyAdapter` if its family has none or its W has another form.

    Args:
        model: a model that returns its attention, i.e. loaded with attn_implementation="eager".
    """
    if not is_hugging_face(model):
        inside = "Pass the model that it holds as .module." if hasattr(model, "module") else ""
        raise InputError("model", "a loaded Hugging Face model", type(model).__name__, inside)
    adapter = check_family(model.config)
    _check_tuning(model)
    implementation = getattr(model.config, "_attn_implementation", None)
    if implementation != "eager":
        raise InputError(
            "model",
            "a model whose attention can be seen",
            f"attn_implementation={implementation!r}, which hides it",
            'Load it with attn_implementation="eager", or call model.set_attn_implementation("eager").',
        )
    offloaded = any(hasattr(module, "_hf_hook") for module in model.modules())  # accelerate loads weights when used
    if not offloaded and all(weight.device.type == "meta" for weight in model.parameters()):
        raise InputError("model", "a model with weights", "one on the meta device, which has none")
    reason = "" if adapter is None else adapter.without_weights(model)
    return AttentionOnlyAdapter(model, reason) if adapter is None or reason else adapter(model)


def is_hugging_face(model: object) -> bool:
    """Return whether this is a model of transformers, as opposed to a module that contains one."""
    return hasattr(getattr(model, "config", None), "model_type") and hasattr(model, "base_model")


def _check_tuning(model: PreTrainedModel) -> None:
    """Raise if peft changes the inputs of a model and not only its modules."""
    tuned = getattr(model, "active_peft_config", None)
    kind = getattr(getattr(tuned, "peft_type", None), "value", None)
    if getattr(tuned, "is_prompt_learning", False):
        raise InputError(
            "model", "a model that reads the tokens it is given alone", f"one with a learned prompt ({kind})"
        )
    if getattr(tuned, "alora_invocation_tokens", None):
        raise InputError(
            "model",
            "a model whose projections are the same for all tokens",
            "an activated LoRA, which starts at a token of the text",
        )


__all__ = ["ADAPTERS", "GUIDE", "Adapter", "adapter_for", "check_family", "register_adapter", "supported_families"]
