"""Queries, keys, logits and attention of every layer of a model on a batch, checked against the model's own attention."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from threading import Lock, get_ident
from typing import TYPE_CHECKING, Any

import numpy as np

from marginlens.errors import InputError
from marginlens.probe.models.adapters import Adapter, adapter_for
from marginlens.probe.models.adapters.attention_only import AttentionOnlyAdapter
from marginlens.probe.models.adapters.base import Captured, LayerReading, device_of, evaluating
from marginlens.probe.models.loading import FUSED, attention_implementation
from marginlens.typing import ArrayLike, BoolArray

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

_IGNORED = ("labels", "return_dict", "output_attentions", "output_hidden_states")  # not the base model's to read
_AXES = {  # of what a model reads
    "input_ids": ("n_inputs", "n_tokens"),
    "inputs_embeds": ("n_inputs", "n_tokens", "d_model"),
    "pixel_values": ("n_inputs", "channels", "height", "width"),
    "input_features": ("n_inputs", "bands", "frames"),
}
_NUMBERS = ("pixel_values", "inputs_embeds", "input_features")  # brought to the model's precision
_HOOK_LOCK = Lock()  # torch numbers its hooks by a counter that two threads may read at once
# Queries of each input, evenly spread, at which both attentions are compared: a small part of all maps.
_N_COMPARED = 16
_ATTENTION_ATOL = 1e-4  # of a probability, beyond what rounding explains; adapters are tested to a tenth of it
_LIKE_ITS_FAMILY = "one that attends as its family does"


def read_attention(
    model: PreTrainedModel,
    batch: Mapping[str, ArrayLike],
    layers: Sequence[int] | None = None,
    *,
    allow_nan: bool = False,
) -> Iterator[LayerReading]:
    """Read queries, keys, logits and attention of the layers of a model on one batch.

    The model runs once, up to the last requested layer, in evaluation mode and without gradients. The inputs of each attention
    layer are kept, and the maps (B, H, T, T) of a layer are computed when its turn comes, so only one layer's maps are in
    memory at a time. They have the precision in which the layer ran, including any autocast. At a few queries they are compared
    with the model's own attention; a layer that differs from its family is an error. A model in evaluation mode may be read
    from several threads at once.

    Args:
        model: a loaded Hugging Face model with attn_implementation="eager"; it is left unchanged.

        batch: the inputs of the model by name, such as input_ids and attention_mask, or pixel_values; arrays or tensors.

        layers: the layers in the desired order; all by default.

        allow_nan: whether to return heads whose attention is not finite (`finite_heads` marks the finite ones), or to raise an
            error.

    Examples:
        >>> from marginlens.data import write_samples
        >>> from marginlens.probe import load_model, read_attention
        >>> written = write_samples("samples")
        >>> loaded = load_model("samples/tiny-model")
        >>> batch = loaded.tokenizer(["the cat sat"], return_tensors="pt")
        >>> for reading in read_attention(loaded.model, batch):
        ...     print(reading)
        LayerReading(layer 0: 1 inputs, 4 heads, 5 tokens)
        LayerReading(layer 1: 1 inputs, 4 heads, 5 tokens)
    """
    return _readings(adapter_for(model), batch, layers, is_checked=True, allow_nan=allow_nan)


def read_layers(
    adapter: Adapter, batch: Mapping[str, ArrayLike], layers: Sequence[int] | None = None
) -> Iterator[LayerReading]:
    """Read layers like `read_attention`, without its checks, with any attention implementation, fused ("sdpa") or not.

    `fused_reading` checks once, on a short batch, whether a model can be read this way. Heads that are not finite are returned
    as they are.
    """
    return _readings(adapter, batch, layers, is_checked=False, allow_nan=True)


def _readings(
    adapter: Adapter, batch: Mapping[str, ArrayLike], layers: Sequence[int] | None, *, is_checked: bool, allow_nan: bool
) -> Iterator[LayerReading]:
    """Return the readings of layers, compared with the model's own attention or not. The model runs at the call, and errors are
    raised then.
    """
    import torch

    readings: Iterator[LayerReading]
    if isinstance(adapter, AttentionOnlyAdapter):  # whose layers are all in memory at once
        readings = adapter.readings(model_inputs(adapter.model, batch), layers)
    else:
        wanted = range(adapter.n_layers) if layers is None else [adapter.check_layer(layer) for layer in layers]
        with torch.no_grad():
            record = record_layers(adapter, batch, set(wanted), with_attention=is_checked)
        for layer in [] if allow_nan else sorted(record.captured):
            if not bool(record.captured[layer].inputs.isfinite().all()):
                raise InputError(
                    "model",
                    f"one that computes finite numbers before its layer {layer} on this batch",
                    "numbers that are not finite",
                    "Its weights are not finite or overflow in half precision, or padded tokens of a float64 model see nothing: "
                    "give it float32 weights, or inputs without padding.",
                )
        missing = sorted(set(wanted) - set(record.captured))
        if is_checked and layers is not None and missing:
            raise InputError(
                "layers",
                "layers that this batch reaches",
                f"{missing}",
                "Give the inputs of that part of the model too.",
            )
        readings = _made(adapter, record, [layer for layer in wanted if layer in record.captured])
    return readings if allow_nan else map(_finite, readings)


def fused_reading(adapter: Adapter, model: PreTrainedModel, batch: Mapping[str, ArrayLike]) -> bool:
    """Return whether fused attention, which needs no maps, gives the same reading as the model's own attention on a short batch.

    A layer that attends differently from its family is an error, as in `read_attention`. If the result is False, use eager
    attention.
    """
    with attention_implementation(model, "eager"):
        eager = {reading.layer: reading for reading in read_attention(adapter.model, batch, allow_nan=True)}
    if isinstance(adapter, AttentionOnlyAdapter):
        return False
    try:
        with attention_implementation(model, FUSED):
            fused = {reading.layer: reading for reading in read_layers(adapter, batch)}
            for reading in fused.values():
                _check_attention(reading, eager[reading.layer].attention, adapter.module_name(reading.layer))
    except (InputError, RuntimeError, TypeError, AttributeError, LookupError):
        return False  # no such attention, or another kind of mask
    return fused.keys() == eager.keys()


def adapter_of_batch(model: PreTrainedModel, batch: Mapping[str, ArrayLike]) -> Adapter:
    """Return the adapter of a model; an adapter that reads only attention first runs the batch to learn its layers."""
    adapter = adapter_for(model)
    if isinstance(adapter, AttentionOnlyAdapter):
        adapter.observe(model_inputs(model, batch))
    return adapter


def _finite(reading: LayerReading) -> LayerReading:
    """Return the reading, unless some head's attention is not finite, which is refused."""
    if not finite_heads(reading).all():
        raise InputError(
            "model",
            f"one whose attention is finite in its layer {reading.layer} on this batch",
            "attention that is not finite",
            "Its weights are not finite, or its logits overflow in half precision: give it float32 weights.",
        )
    return reading


def finite_heads(reading: LayerReading) -> BoolArray:
    """Return whether each head's attention is finite at every query of the batch that sees a token, (n_heads,)."""
    rows = reading.visible.any(dim=-1)[:, None, :, None]
    return np.asarray((reading.attention.isfinite() | ~rows).all(dim=3).all(dim=2).all(dim=0).cpu().numpy())


@dataclass(frozen=True, eq=False)
class LayerRecord:
    """The record of a run of the model for each layer that it reached."""

    captured: dict[int, Captured]
    autocast: dict[int, AbstractContextManager[object]]  # in which the layer ran, to be entered again
    attention: dict[int, torch.Tensor]  # the layer's own, at a few queries


def _made(adapter: Adapter, record: LayerRecord, layers: Sequence[int]) -> Iterator[LayerReading]:
    """Yield what is read of layers from what entered them, one after the other."""
    import torch

    for k, layer in enumerate(layers):
        again = layer in layers[k + 1 :]
        with torch.no_grad(), evaluating(adapter.attention_module(layer)), record.autocast[layer]:
            # all entered anew for each layer: what the caller does between two readings is its own
            reading = adapter.read(layer, record.captured[layer] if again else record.captured.pop(layer))
            if layer in record.attention:
                _check_attention(reading, record.attention[layer], adapter.module_name(layer))
        yield reading


class _Stop(Exception):
    """Raised after the last requested layer has attended, to skip the rest of the model."""


class _Recorder:
    """The hooks of one run of a model, which record the inputs of layers and, if requested, the layers' own attention.

    A model may be read from several threads at once. Hooks of one thread then see the passes of others and ignore them.
    """

    def __init__(self, adapter: Adapter, inputs: dict[str, Any], layers: set[int], *, with_attention: bool) -> None:
        self.record = LayerRecord({}, {}, {})
        self._adapter, self._inputs, self._layers, self._with_attention = adapter, inputs, layers, with_attention
        self._thread, self._last = get_ident(), max(layers, default=-1)
        # id of a module → the layers that it serves, in the order of its calls
        self._layers_of: dict[int, list[int]] = {}
        for layer in range(adapter.n_layers):
            self._layers_of.setdefault(id(adapter.attention_module(layer)), []).append(layer)
        self._n_calls = dict.fromkeys(self._layers_of, 0)

    def before(self, module: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, Any] | None = None) -> None:
        """Record what a module is called with."""
        if get_ident() != self._thread:  # another batch, which may find this hook half registered or removed
            return
        layer = self._layers_of[id(module)][self._n_calls[id(module)]]
        if layer not in self._layers:
            return
        # The first argument is the tokens, also if another forward calls it otherwise.
        names = inspect.signature(module.forward).parameters
        arguments = {**dict(zip(names, args, strict=False)), **(kwargs or {})}
        arguments.setdefault("hidden_states", args[0] if args else None)
        captured = self._adapter.capture(layer, arguments, self._inputs)
        is_fused = getattr(self._adapter.config, "_attn_implementation", "eager") != "eager"
        # Fused attention takes causality as an argument instead of a mask.
        if is_fused and captured.mask is None and captured.memory is None:
            captured = replace(captured, causal=bool(getattr(module, "is_causal", True)))
        self.record.captured[layer] = captured
        self.record.autocast[layer] = _autocast(arguments["hidden_states"].device.type)

    def after(self, module: torch.nn.Module, args: tuple[object, ...], output: object) -> None:
        """Record the attention of a module, and stop the model after the last layer."""
        if get_ident() != self._thread:
            return
        layer = self._layers_of[id(module)][self._n_calls[id(module)]]
        self._n_calls[id(module)] += 1
        if layer not in self._layers:
            return
        if self._with_attention:
            place = self._adapter.attention_output
            attention: Any = output[place] if isinstance(output, tuple) and len(output) > place else None
            if getattr(attention, "ndim", 0) != 4:
                raise InputError(
                    "model",
                    "one that hands out the attention that its readings are compared with",
                    f"the module {self._adapter.module_name(layer)}, which does not hand it out,",
                    'Load it with attn_implementation="eager".',
                )
            self.record.attention[layer] = attention[:, :, _compared_queries(attention)]
        if layer == self._last:
            raise _Stop


def record_layers(
    adapter: Adapter, batch: Mapping[str, ArrayLike], layers: set[int], *, with_attention: bool = False
) -> LayerRecord:
    """Run the model once, up to the last of the layers, and record the inputs of each and, if requested, its own attention."""
    inputs = adapter.complete(model_inputs(adapter.model, batch))
    recorder, hooks = _Recorder(adapter, inputs, layers, with_attention=with_attention), []
    try:
        modules = {id(module): module for module in map(adapter.attention_module, sorted(layers))}
        for module in modules.values():
            with _HOOK_LOCK:
                hooks.append(module.register_forward_pre_hook(recorder.before, with_kwargs=True))
                # Before the hooks of others, which may change the output.
                hooks.append(module.register_forward_hook(recorder.after, prepend=True))
        with evaluating(adapter.model), suppress(_Stop):
            adapter.run(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return recorder.record


def _compared_queries(attention: torch.Tensor) -> torch.Tensor:
    """Return which queries of attention (B, H, T, T) are compared."""
    import torch

    n_queries = attention.shape[-2]
    return torch.linspace(0, n_queries - 1, min(n_queries, _N_COMPARED), device=attention.device).round().long()


def _check_attention(reading: LayerReading, theirs: torch.Tensor, name: str) -> None:
    """Raise if a reading differs from the module's own attention, at a few queries or all, by more than rounding."""
    import torch

    queries = _compared_queries(reading.attention)
    ours = reading.attention[:, :, queries]
    theirs = theirs if theirs.shape[2] == len(queries) else theirs[:, :, queries]
    if theirs.shape != ours.shape:
        got, expected = ("({0} inputs, {1} heads, {3} tokens)".format(*maps.shape) for maps in (theirs, ours))
        raise InputError(
            "model", _LIKE_ITS_FAMILY, f"the module {name}, whose attention has shape {got}, not {expected},"
        )
    eps = max(torch.finfo(maps.dtype).eps for maps in (theirs, ours))
    # of logits; probabilities move by a quarter of it at most
    rounding = reading.rounding[:, :, queries].double()[..., None]
    theirs = theirs.to(ours.device)
    difference = (ours.double() - theirs.double()).abs()
    both_nan = ours.isnan().any(dim=-1, keepdim=True) & theirs.isnan().any(dim=-1, keepdim=True)
    compared = reading.visible[:, queries].any(dim=-1)[:, None, :, None] & ~both_nan
    if bool((theirs.isnan() & compared).any()):
        raise InputError(
            "model",
            f"one whose attention is finite in its layer {reading.layer} on this batch, as its weights give it",
            "attention that is not finite",
            "Padded tokens of a float64 model see nothing: give it inputs without padding, or float32 weights.",
        )
    if bool((compared & ~(difference <= _ATTENTION_ATOL + eps + 0.5 * rounding)).any()):
        worst = float(difference.masked_fill(~compared, 0.0).max())
        raise InputError("model", _LIKE_ITS_FAMILY, f"the module {name}, whose attention differs by up to {worst:.2g},")


def _autocast(device: str) -> AbstractContextManager[object]:
    """Return the autocast context that is active on a kind of device at this moment, or one that does nothing."""
    import torch

    if not torch.amp.is_autocast_available(device):
        return nullcontext()
    return torch.autocast(device, dtype=torch.get_autocast_dtype(device), enabled=torch.is_autocast_enabled(device))


def model_inputs(model: PreTrainedModel, batch: Mapping[str, ArrayLike]) -> dict[str, torch.Tensor]:
    """Return the batch as tensors on the model's device, images in its precision."""
    import torch

    if not isinstance(batch, Mapping) or not any(name in batch for name in _AXES):
        raise InputError(
            "batch", "a mapping with input_ids, inputs_embeds, pixel_values or input_features", type(batch).__name__
        )
    if batch.get("past_key_values") is not None:
        raise InputError(
            "batch", "whole inputs", "past_key_values", "Pass the tokens that made the cache as input_ids."
        )
    inputs, device = {}, device_of(model)
    for name, value in batch.items():
        if name in _IGNORED or value is None:
            continue
        try:
            tensor = torch.as_tensor(value, device=device)
        except (TypeError, ValueError, RuntimeError) as problem:
            raise InputError(
                "batch",
                f"numbers of one shape under {name!r}",
                "no numbers, or lists of different lengths",
                "Pad texts to one length, and mark the padding in attention_mask.",
            ) from problem
        axes = _AXES.get(name)
        if axes is not None and (tensor.ndim != len(axes) or not tensor.numel()):
            raise InputError(
                "batch", f"{name} of shape ({', '.join(axes)}), none of them 0", f"shape {tuple(tensor.shape)}"
            )
        inputs[name] = tensor.to(model.dtype) if name in _NUMBERS else tensor
    return inputs
