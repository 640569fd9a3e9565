"""Queries, keys, logits and attention of every layer of a model on a batch, checked against the model's own attention."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from threading import Lock, get_ident
from typing import Any

import numpy as np

from marginlens.errors import InputError, reject
from marginlens.probe.models.adapters import Adapter, adapter_for
from marginlens.probe.models.adapters.base import Captured, LayerReading, device_of, evaluating, hidden_by
from marginlens.typing import BoolArray

_IGNORED = ("labels", "return_dict", "output_attentions", "output_hidden_states")  # not the base model's to read
_AXES = {  # of what a model reads
    "input_ids": ("n_inputs", "n_tokens"),
    "inputs_embeds": ("n_inputs", "n_tokens", "d_model"),
    "pixel_values": ("n_inputs", "channels", "height", "width"),
}
_HOOK_LOCK = Lock()  # torch numbers its hooks by a counter that two threads may read at once
_N_COMPARED = (
    16  # queries of each input, evenly spread, at which both attentions are compared: a small part of all maps
)
_ATTENTION_ATOL = 1e-4  # of a probability, beyond what rounding explains; adapters are tested to a tenth of it
_OTHERWISE = "attends otherwise than its family does, so that it cannot be read as one of it"


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
        record = _run(adapter, batch, set(wanted))
    for layer in [] if allow_nan else sorted(record.captured):
        if not bool(record.captured[layer].inputs.isfinite().all()):
            raise InputError(
                f"The model itself computes numbers that are not finite before its layer {layer} on this batch: its "
                "weights are not finite, or overflow in half precision, or it is a float64 model whose padded tokens see "
                "nothing, where its mask overflows (give it inputs without padding, or float32 weights)."
            )
    return _readings(adapter, record, wanted, allow_nan)


def finite_heads(reading: LayerReading) -> BoolArray:
    """(n_heads,) whether a head's attention is finite at every query of the batch that sees a token."""
    rows = reading.visible.any(dim=-1)[:, None, :, None]
    return np.asarray((reading.attention.isfinite() | ~rows).all(dim=3).all(dim=2).all(dim=0).cpu().numpy())


@dataclass(frozen=True, eq=False)
class _Record:
    """What a run of the model leaves of each layer."""

    captured: dict[int, Captured]
    autocast: dict[int, Any]  # in which the layer ran, to be entered again
    attention: dict[int, Any]  # the layer's own, at a few queries


def _readings(adapter: Adapter, record: _Record, layers: Sequence[int], allow_nan: bool) -> Iterator[LayerReading]:
    import torch

    for k, layer in enumerate(layers):
        again = layer in layers[k + 1 :]
        with torch.no_grad(), evaluating(adapter.attention_module(layer)), record.autocast[layer]:
            # all entered anew for each layer: what the caller does between two readings is its own
            reading = adapter.read(layer, record.captured[layer] if again else record.captured.pop(layer))
        if not allow_nan and not finite_heads(reading).all():
            raise InputError(
                f"The model itself computes attention that is not finite in its layer {layer} on this batch: its weights are not "
                "finite, or its logits overflow in half precision (give it float32 weights)."
            )
        _check_attention(reading, record.attention[layer], adapter.module_name(layer))
        yield reading


class _Stop(Exception):
    """The last layer that was asked for has attended; what the model would compute from there on is not needed."""


def _run(adapter: Adapter, batch: Mapping[str, Any], layers: set[int]) -> _Record:
    """Run the model once, up to the last of the layers, and record what enters each of them."""
    inputs = _as_model_inputs(adapter.model, batch)
    record = _Record({}, {}, {})
    thread, last = get_ident(), max(layers, default=-1)

    def before(layer: int) -> Callable[..., None]:
        def hook(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
            if get_ident() != thread:  # another batch, which may find this hook half registered or removed
                return
            # the first argument is the tokens, also where another forward calls it otherwise
            names = inspect.signature(module.forward).parameters
            named = {**dict(zip(names, args, strict=False)), **(kwargs or {})}
            tokens = named["hidden_states"] if "hidden_states" in named else args[0]
            real = _real_tokens(inputs.get("attention_mask"), tokens)
            mask, rotation = named.get("attention_mask"), named.get("position_embeddings")
            record.captured[layer] = Captured(tokens, mask, real, rotation)
            record.autocast[layer] = _autocast(tokens.device.type)

        return hook

    def after(layer: int) -> Callable[..., None]:
        def hook(module: Any, args: tuple[Any, ...], output: Any) -> None:
            if get_ident() != thread:
                return
            attention: Any = output[1] if isinstance(output, tuple) and len(output) > 1 else None
            if getattr(attention, "ndim", 0) != 4:
                raise InputError(
                    f"The module {adapter.module_name(layer)} does not hand out its attention, so that what is read of it cannot be "
                    'compared with the model\'s own; the model needs the attention of attn_implementation="eager".'
                )
            record.attention[layer] = attention[:, :, _compared_queries(attention)]
            if layer == last:
                raise _Stop

        return hook

    hooks = []
    try:
        for layer in sorted(layers):
            with _HOOK_LOCK:
                module = adapter.attention_module(layer)
                hooks.append(module.register_forward_pre_hook(before(layer), with_kwargs=True))
                hooks.append(module.register_forward_hook(after(layer), prepend=True))  # before what others change
        with evaluating(adapter.model), suppress(_Stop):
            adapter.model(**inputs, **adapter.call_options)
    finally:
        for hook in hooks:
            hook.remove()
    return record


def _compared_queries(attention: Any) -> Any:
    """Which queries of attention (B, H, T, T) are compared."""
    import torch

    n_tokens = attention.shape[-1]
    return torch.linspace(0, n_tokens - 1, min(n_tokens, _N_COMPARED), device=attention.device).round().long()


def _check_attention(reading: LayerReading, theirs: Any, name: str) -> None:
    """Refuse a reading that is not what the module itself computed, up to rounding."""
    import torch

    queries = _compared_queries(reading.attention)
    ours = reading.attention[:, :, queries]
    if theirs.shape != ours.shape:
        got, expected = ("({0} inputs, {1} heads, {3} tokens)".format(*maps.shape) for maps in (theirs, ours))
        raise InputError(f"The module {name} {_OTHERWISE}: its attention has shape {got}, not {expected}.")
    eps = max(torch.finfo(maps.dtype).eps for maps in (theirs, ours))
    rounding = reading.rounding[:, :, queries].double()[
        ..., None
    ]  # of logits; probabilities move by a quarter of it at most
    theirs = theirs.to(ours.device)
    difference = (ours.double() - theirs.double()).abs()
    both_nan = ours.isnan().any(dim=-1, keepdim=True) & theirs.isnan().any(dim=-1, keepdim=True)
    compared = reading.visible[:, queries].any(dim=-1)[:, None, :, None] & ~both_nan
    if bool((compared & ~(difference <= _ATTENTION_ATOL + eps + 0.5 * rounding)).any()):
        worst = float(difference.masked_fill(~compared, 0.0).max())
        raise InputError(f"The module {name} {_OTHERWISE}: its attention differs by up to {worst:.2g}.")


def _autocast(device: str) -> Any:
    """What casts to a lower precision on a kind of device at this moment, or that nothing does."""
    import torch

    if not torch.amp.is_autocast_available(device):
        return nullcontext()
    return torch.autocast(device, dtype=torch.get_autocast_dtype(device), enabled=torch.is_autocast_enabled(device))


def _as_model_inputs(model: Any, batch: Mapping[str, Any]) -> dict[str, Any]:
    """The batch as tensors where the model is, images in its precision."""
    import torch

    if not isinstance(batch, Mapping) or not any(name in batch for name in _AXES):
        raise reject("batch", "a mapping with input_ids, inputs_embeds or pixel_values", type(batch).__name__)
    if batch.get("past_key_values") is not None:
        raise reject("batch", "whole inputs", "past_key_values", "Pass the tokens that made the cache as input_ids.")
    inputs, device = {}, device_of(model)
    for name, value in batch.items():
        if name in _IGNORED or value is None:
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
