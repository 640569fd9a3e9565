"""What every attention layer of a model computes on a batch, read while the model runs once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from threading import Lock, get_ident
from typing import Any

import numpy as np

from marginlens.data.tokens import BoolArray, IntArray
from marginlens.errors import InputError, reject
from marginlens.probe.models.adapters import Adapter, adapter_for
from marginlens.probe.models.adapters.affine import evaluating
from marginlens.probe.models.adapters.base import Captured, LayerReading, device_of, hidden_by
from marginlens.probe.models.own_attention import check_own, own_rows

_OF_THE_HEAD = ("labels", "return_dict", "output_attentions", "output_hidden_states")  # not the base model's to read

_AXES = {  # of what a model reads
    "input_ids": ("n_inputs", "n_tokens"),
    "inputs_embeds": ("n_inputs", "n_tokens", "d_model"),
    "pixel_values": ("n_inputs", "channels", "height", "width"),
}
_ANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_REGISTERING = Lock()  # torch numbers its hooks by a counter that two threads may read at once
_TOKENS = 1024  # of one batch, so that the maps of a layer fit into memory; a longer input is a batch of its own


@dataclass(frozen=True, eq=False)
class InputBatch:
    """Some of a user's inputs as a model reads them."""

    index: IntArray  # (B,) places of these inputs among all of them
    inputs: Mapping[str, Any]  # what the model is called with, as NumPy arrays
    tokens: tuple[tuple[str, ...], ...]  # names of the real tokens of each input


def batch_size(n_tokens: int) -> int:
    """How many inputs of so many tokens go into one batch."""
    return max(1, _TOKENS // n_tokens)


def read_attention(
    model: Any, batch: Mapping[str, Any], layers: Sequence[int] | None = None, *, allow_nan: bool = False
) -> Iterator[LayerReading]:
    """Queries, keys, logits and attention of the layers of a model on one batch.

    The model runs once, up to the last layer wanted, in evaluation mode and without gradients. What enters each
    attention layer is kept, and the maps (B, H, T, T) of a layer are made when its turn comes, so that only one layer's
    are held at a time, in the precision in which it ran: under the autocast of that moment where there was one. At a few
    queries they are compared with the model's own; a layer that attends otherwise than its family does is refused.
    A model in evaluation mode may be read from several threads at once.

    Args:
        model: a loaded Hugging Face model with attn_implementation="eager"; it is left as it was found.
        batch: what the model is called with: input_ids and attention_mask, or pixel_values; arrays or tensors.
        layers: which layers, in the order wanted; all of them by default.
        allow_nan: whether heads whose attention is not finite are handed out as they are (`finite_heads` tells them) or refused.
    """
    import torch

    adapter = adapter_for(model)
    wanted = range(adapter.n_layers) if layers is None else [adapter.check_layer(layer) for layer in layers]
    with torch.no_grad():
        ran = _run(adapter, batch, set(wanted))
    if not allow_nan:
        for layer in sorted(ran.entered):
            _check_finite(ran.entered[layer], layer)
    return _readings(adapter, ran, wanted, allow_nan)


def finite_heads(reading: LayerReading) -> BoolArray:
    """(n_heads,) whether a head's attention is finite at every query of the batch that sees a token."""
    rows = reading.visible.any(dim=-1)[:, None, :, None]
    return np.asarray((reading.attention.isfinite() | ~rows).all(dim=3).all(dim=2).all(dim=0).cpu().numpy())


@dataclass(frozen=True, eq=False)
class _Ran:
    """What is kept of the layers of a model that ran."""

    entered: dict[int, Captured]
    cast: dict[int, Any]  # the autocast in which the layer ran, to be entered again
    own: dict[int, Any]  # the layer's own attention at a few queries


def _readings(adapter: Adapter, ran: _Ran, layers: Sequence[int], allow_nan: bool) -> Iterator[LayerReading]:
    import torch

    for place, layer in enumerate(layers):
        again = layer in layers[place + 1 :]
        with torch.no_grad(), evaluating(adapter.attention_module(layer)), ran.cast[layer]:
            # all entered anew for each layer: what the caller does between two readings is its own
            reading = adapter.read(layer, ran.entered[layer] if again else ran.entered.pop(layer))
        if not allow_nan:
            _check_attention(reading)
        check_own(reading, ran.own[layer], adapter.module_name(layer))
        yield reading


class _Enough(Exception):
    """The last layer that was asked for has attended; what the model would compute from there on is not needed."""


def _run(adapter: Adapter, batch: Mapping[str, Any], layers: set[int]) -> _Ran:
    """Run the model once, up to the last of the layers, and keep what enters each of them."""
    inputs = _as_model_inputs(adapter.model, batch)
    kept = _Ran({}, {}, {})
    here, last = get_ident(), max(layers, default=-1)

    def enters(layer: int) -> Callable[..., None]:
        def hook(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
            if get_ident() != here:  # a thread with another batch, which may find this hook half registered or removed
                return
            named = _named(module, args, kwargs or {})
            tokens = named["hidden_states"]
            real = _real_tokens(inputs.get("attention_mask"), tokens)
            kept.entered[layer] = Captured(tokens, named.get("attention_mask"), real, named.get("position_embeddings"))
            kept.cast[layer] = _autocast(tokens.device.type)

        return hook

    def attended(layer: int) -> Callable[..., None]:
        def hook(module: Any, args: tuple[Any, ...], output: Any) -> None:
            if get_ident() != here:
                return
            kept.own[layer] = own_rows(output, adapter.module_name(layer))
            if layer == last:
                raise _Enough

        return hook

    hooks = []
    try:
        for layer in sorted(layers):
            with _REGISTERING:
                module = adapter.attention_module(layer)
                hooks.append(module.register_forward_pre_hook(enters(layer), with_kwargs=True))
                hooks.append(module.register_forward_hook(attended(layer), prepend=True))  # before what others change
        with evaluating(adapter.model), suppress(_Enough):
            adapter.model(**inputs, **adapter.call_options)
    finally:
        for one in hooks:
            one.remove()
    return kept


def _autocast(device: str) -> Any:
    """What casts to a lower precision on a kind of device at this moment, or that nothing does."""
    import torch

    if not torch.amp.is_autocast_available(device):
        return nullcontext()
    return torch.autocast(device, dtype=torch.get_autocast_dtype(device), enabled=torch.is_autocast_enabled(device))


def _check_finite(captured: Captured, layer: int) -> None:
    if not bool(captured.inputs.isfinite().all()):
        raise InputError(
            f"The model itself computes numbers that are not finite before its layer {layer} on this batch: its "
            "weights are not finite, or overflow in half precision, or it is a float64 model whose padded tokens see "
            "nothing, where its mask overflows (give it inputs without padding, or float32 weights)."
        )


def _check_attention(reading: LayerReading) -> None:
    if not finite_heads(reading).all():
        raise InputError(
            f"The model itself computes attention that is not finite in its layer {reading.layer} on this batch: its weights are not "
            "finite, or its logits overflow in half precision (give it float32 weights)."
        )


def _named(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a module's forward by name; the first are the tokens, also where another forward calls them otherwise."""
    names = [name for name, one in inspect.signature(module.forward).parameters.items() if one.kind not in _ANY]
    named = {**dict(zip(names, args, strict=False)), **kwargs}
    return {"hidden_states": args[0], **named} if args else named


def _as_model_inputs(model: Any, batch: Mapping[str, Any]) -> dict[str, Any]:
    """The batch as tensors where the model is, images in its precision."""
    import torch

    if not isinstance(batch, Mapping) or not any(name in batch for name in _AXES):
        raise reject("batch", "a mapping with input_ids, inputs_embeds or pixel_values", type(batch).__name__)
    if batch.get("past_key_values") is not None:
        raise reject("batch", "whole inputs", "past_key_values", "Pass the tokens that made the cache as input_ids.")
    inputs, device = {}, device_of(model)
    for name, value in batch.items():
        if name in _OF_THE_HEAD or value is None:
            continue
        try:
            tensor = torch.as_tensor(value, device=device)
        except (TypeError, ValueError, RuntimeError) as problem:
            got = "no numbers, or lists of different lengths"
            remedy = "Pad texts to one length, and say in attention_mask where."
            raise reject("batch", f"numbers of one shape under {name!r}", got, remedy) from problem
        axes = _AXES.get(name)
        if axes is not None and (tensor.ndim != len(axes) or not tensor.numel()):
            raise reject(
                "batch", f"{name} of shape ({', '.join(axes)}), none of them 0", f"shape {tuple(tensor.shape)}"
            )
        inputs[name] = tensor.to(model.dtype) if name in ("pixel_values", "inputs_embeds") else tensor
    return inputs


def _real_tokens(attention_mask: Any, tokens: Any) -> Any:
    """(B, T) bool: which tokens are not padding: the batch's mask says so, or that a token sees itself; else all."""
    import torch

    if attention_mask is not None and attention_mask.ndim == 2:
        return attention_mask.to(device=tokens.device, dtype=torch.bool)
    if attention_mask is not None and attention_mask.ndim == 4:  # (B, 1, T, T), added to logits as it is
        itself = ~hidden_by(attention_mask).all(dim=1).diagonal(dim1=1, dim2=2)
        return itself.to(tokens.device).expand(tokens.shape[:2])
    return torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)


__all__ = ["Captured", "InputBatch", "LayerReading", "batch_size", "finite_heads", "read_attention"]
