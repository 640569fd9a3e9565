"""The measures of all heads of a model in training, read by hooks in an ordinary forward pass.

A hook sees the inputs of an attention layer, computes the queries of a few tokens and the keys of all tokens with the layer's
own modules, and takes their `attention_statistics`. The model is not changed, and nothing waits for a GPU: numbers stay on
their device until the step is over. In a compiled model, hooks run once, during tracing; they leave an operation in the graph
that passes its arguments to the reader at every step.
"""

from __future__ import annotations

import inspect
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from marginlens.errors import InputError
from marginlens.probe.heads.statistics import AttentionStatistics, attention_statistics
from marginlens.probe.models.adapters import Adapter, adapter_for, is_hugging_face
from marginlens.probe.models.adapters.attention_only import AttentionOnlyAdapter
from marginlens.probe.models.adapters.base import Captured, LayerKind, evaluating
from marginlens.probe.models.loading import attention_implementation
from marginlens.typing import FloatArray

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

# Of the training batch: inputs, their tokens together, and queries of each input.
MAX_INPUTS, MAX_TOKENS, MAX_QUERIES = 8, 16_384, 64
SELECTED_NATS = 0.1  # mean entropy at which a head is said to have selected
QUERY_MEASURES = (
    "entropy",
    "max_logit",
    "margin_median",
    "top_probability",
    "decisive_share",
    "relative_nnz",
    "first_sink_share",
)
NORM_MEASURES = ("frobenius", "spectral", "largest_entry")
# Of W's Gram matrix: the largest eigenvalue of the power 2^20 is off by d^(2^-20), 4e-6 for heads of width 64.
_N_SQUARINGS = 20
_MAX_ENTRIES = 2**26  # of matrices W in memory at a time
_CHECKPOINTS = "Save checkpoints instead, and draw their curves with marginlens probe FOLDER --checkpoints."
_BEGIN, _END = -2, -1  # of a forward pass, beside the modules of attention, which are counted from 0
_READERS: WeakValueDictionary[int, HeadReader] = WeakValueDictionary()  # those that operations in compiled models find


def inner_model(model: torch.nn.Module) -> PreTrainedModel:
    """Return the Hugging Face model inside the model of a training loop: compiled, in data parallel, or a module that contains
    one model.
    """
    for _ in range(8):  # wrappers in wrappers
        inside = getattr(model, "_orig_mod", None)
        if inside is None and not is_hugging_face(model):
            inside = getattr(model, "module", None)
        if inside is None:
            break
        model = inside
    if is_hugging_face(model) or not hasattr(model, "named_children"):
        return model
    found = list(_topmost(model))
    if len(found) != 1:
        count = "none" if not found else f"{len(found)} of them"
        raise InputError(
            "model",
            "a Hugging Face model, or a module with one inside",
            f"{type(model).__name__} with {count}",
            "Pass the model itself.",
        )
    return found[0]


def _topmost(module: torch.nn.Module) -> Iterator[Any]:
    for _, child in module.named_children():
        if is_hugging_face(child):
            yield child
        else:
            yield from _topmost(child)


class HeadReader:
    """Hooks on a model that read the next forward pass of its training after `expect` was called, and the losses of all passes.

    Args:
        model: the Hugging Face model in training, or a wrapper of it: plain, in data parallel or FSDP2, with or without
            activation checkpoints, compiled by torch.compile or not. It is not changed.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = inner_model(model)
        with attention_implementation(self.model, "eager"):  # for the time of this call
            self.adapter: Adapter = adapter_for(self.model)
        if isinstance(self.adapter, AttentionOnlyAdapter):
            raise InputError(
                "model", "one whose family has an adapter", f"{type(self.model).__name__}, which has none", _CHECKPOINTS
            )
        if any(hasattr(weight, "ds_id") for weight in self.model.parameters()):
            raise InputError(
                "model",
                "one whose weights are whole in this process",
                "weights that DeepSpeed ZeRO-3 gathers module by module",
                f"Train with ZeRO 1 or 2 or FSDP2. {_CHECKPOINTS}",
            )
        self._layers: dict[int, list[int]] = defaultdict(list)  # id of a module → the layers that it serves, in turn
        for layer in range(self.adapter.n_layers):
            self._layers[id(self.adapter.attention_module(layer))].append(layer)
        self._is_expected = self._is_training_pass = False
        self._losses: list[Any] = []
        self.seconds = 0.0  # that hooks have taken
        self._clear()
        modules = {id(module): module for module in map(self.adapter.attention_module, range(self.adapter.n_layers))}
        self._modules = tuple(modules.values())
        self._names = [tuple(inspect.signature(module.forward).parameters) for module in self._modules]
        self._key = _make_operation(), id(self)
        _READERS[id(self)] = self
        self._hooks = [
            module.register_forward_pre_hook(partial(self._before, place), with_kwargs=True)
            for place, module in enumerate(self._modules)
        ]
        self._hooks.append(self.model.register_forward_pre_hook(self._begin, with_kwargs=True))
        self._hooks.append(self.model.register_forward_hook(self._end))

    def remove(self) -> None:
        """Remove the hooks from the model."""
        for hook in self._hooks:
            hook.remove()

    def expect(self) -> None:
        """Read the next forward pass."""
        self._clear()
        self._is_expected = True

    @property
    def has_read(self) -> bool:
        """True if a pass was read and is not collected yet."""
        return self._is_expected and bool(self._found)

    def add_loss(self, loss: torch.Tensor | float) -> None:
        """Record the loss of a step, a number or a tensor, without waiting for it."""
        self._losses.append(loss.detach() if hasattr(loss, "detach") else loss)

    def _clear(self) -> None:
        self._found: dict[int, tuple[AttentionStatistics, Any]] = {}  # layer → of its queries, and which of them count
        self._grams: dict[int, tuple[Any, Any]] = {}
        self._entries: dict[int, Any] = {}
        self.notes: list[str] = []  # what was not measured
        self._problem: Exception | None = None
        self._n_calls: dict[int, int] = defaultdict(int)
        self.n_inputs = 0

    # ---- hooks

    def _begin(self, module: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, Any]) -> None:
        masks = {name: kwargs.get(name) for name in ("attention_mask", "decoder_attention_mask")}
        self._tell(_BEGIN, masks)

    def _end(self, module: torch.nn.Module, args: tuple[object, ...], output: object) -> None:
        self._tell(_END, {"loss": output.get("loss") if hasattr(output, "get") else None})

    def _before(self, place: int, module: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, Any]) -> None:
        arguments = {**dict(zip(self._names[place], args, strict=False)), **kwargs}
        arguments.setdefault("hidden_states", args[0] if args else None)
        self._tell(place, arguments)

    def _tell(self, place: int, arguments: dict[str, Any]) -> None:
        """Record the arguments of a module, now or, in a compiled model, at each of its calls."""
        import torch

        if not torch.compiler.is_compiling():
            self.heard(place, arguments, is_training=torch.is_grad_enabled())
            return
        named = {}
        for name, value in arguments.items():
            if isinstance(value, torch.Tensor):
                named[name] = value.detach()
            elif isinstance(value, tuple) and all(isinstance(part, torch.Tensor) for part in value):
                named |= {f"{name}.{k}": part.detach() for k, part in enumerate(value)}
        counter, key = self._key
        torch.ops.marginlens.hear(counter, list(named.values()), " ".join(named), key, place, torch.is_grad_enabled())

    def heard(self, place: int, arguments: dict[str, Any], *, is_training: bool) -> None:
        """Record what a module is called with: the model before and after its pass, or a module of attention.

        A layer is read once: recomputed activations and later batches of an accumulated gradient are ignored.
        """
        import torch

        if place == _BEGIN:
            self._is_training_pass, self._inputs = is_training, arguments
            return
        if place == _END:
            if arguments.get("loss") is not None and is_training:
                self.add_loss(arguments["loss"])
            self._is_training_pass = False
            return
        if not self._is_expected or not self._is_training_pass or self._problem is not None:
            return
        module = self._modules[place]
        layers, count = self._layers[id(module)], self._n_calls[id(module)]
        if count >= len(layers):
            return
        self._n_calls[id(module)] += 1
        began = time.perf_counter()
        try:
            with torch.no_grad(), evaluating(module):
                self._read(layers[count], module, arguments)
        except Exception as problem:  # whatever it is, it must not end the training
            self._problem = problem
        self.seconds += time.perf_counter() - began

    # ---- one layer

    def _read(self, layer: int, module: torch.nn.Module, arguments: dict[str, Any]) -> None:
        import torch

        for _, weight in module.named_parameters():
            if type(weight).__name__ == "DTensor":
                raise InputError(
                    "model",
                    "one whose heads are whole in this process",
                    f"heads of {self.adapter.module_name(layer)} that are split over a mesh",
                    "Use no tensor parallelism, and shard whole blocks rather than single linear layers.",
                )
        adapter, has_bias = self.adapter, type(self.adapter).bias is not Adapter.bias
        captured = adapter.capture(layer, arguments, self._inputs)
        if not has_bias:  # which some families give for all inputs together
            captured = _first_inputs(captured, max(1, min(MAX_INPUTS, MAX_TOKENS // captured.inputs.shape[1])))
        self.n_inputs = max(self.n_inputs, len(captured.inputs))
        reading = adapter.read(layer, _with_rule(captured, adapter.kind(layer), module))
        n_tokens = reading.queries.shape[2]
        positions = (
            torch.linspace(0, n_tokens - 1, min(MAX_QUERIES, n_tokens), device=reading.queries.device).round().long()
        )

        def sampled(value: torch.Tensor | None) -> torch.Tensor | None:
            return value[..., positions, :] if value is not None and value.shape[-2] > 1 else value

        window = getattr(module, "sliding_window", None) if reading.rule.causal else None
        rule = replace(
            reading.rule,
            mask=sampled(reading.rule.mask),
            bias=sampled(reading.rule.bias),
            window=window if isinstance(window, int) else None,
        )
        found = attention_statistics(reading.queries[:, :, positions], reading.grouped_keys, rule, positions=positions)
        self._found[layer] = found, (found.n_visible >= 2) & captured.real[:, None, positions]
        try:
            self._grams[layer], self._entries[layer] = _weights(adapter, layer)
        except InputError as problem:
            self.notes.append(str(problem))

    # ---- all of them

    def collect(self) -> dict[str, FloatArray]:
        """Return the measures of the finished pass by name, (n_layers, n_heads), nan if missing, with the mean of all losses
        since the last call; an empty dict if none was read.
        """
        import torch

        if not self._is_expected:
            return {}
        self._is_expected = False
        problem, adapter = self._problem, self.adapter
        if problem is not None:
            if isinstance(problem, InputError | MemoryError | torch.OutOfMemoryError):
                raise problem
            words = " ".join(str(problem).split())[:160] or type(problem).__name__
            raise InputError(
                "model",
                "one whose queries and keys can be read",
                f"{type(self.model).__name__}, where this failed ({words})",
            ) from problem
        if not self._found:
            return {}
        if not any(
            bool(counts.any()) for _, counts in self._found.values()
        ):  # zeros would look like attention that has selected
            raise InputError(
                "model", "called on inputs in which a query sees two tokens", "a pass without such a query"
            )
        measures = {
            name: np.full((adapter.n_layers, adapter.n_heads), np.nan) for name in (*QUERY_MEASURES, *NORM_MEASURES)
        }
        for names, rows in (
            (QUERY_MEASURES, _query_measures(self._found)),
            (NORM_MEASURES, _norms(self._grams, self._entries)),
        ):
            for layer, values in _on_cpu(rows).items():
                for name, numbers in zip(names, values, strict=True):
                    measures[name][layer, : len(numbers)] = numbers + 0.0  # no negative zero
        measures["loss"] = np.full((adapter.n_layers, adapter.n_heads), self.mean_loss())
        return measures

    @property
    def has_losses(self) -> bool:
        """True if there were losses since the last measurement."""
        return bool(self._losses)

    def mean_loss(self) -> float:
        """Return the mean of the losses since the last call; nan if there were none."""
        import torch

        losses, self._losses = self._losses, []
        if not losses:
            return float("nan")
        return float(
            torch.stack(
                [torch.as_tensor(loss).float().mean().to(torch.as_tensor(losses[0]).device) for loss in losses]
            ).mean()
        )


@cache
def _make_operation() -> torch.Tensor:
    """Make the operation that compiled models keep in place of a hook; it has an effect, a count, since otherwise it would be removed."""
    import torch

    schema = "(Tensor(a!) counter, Tensor[] tensors, str names, int key, int place, bool is_training) -> ()"

    @torch.library.custom_op("marginlens::hear", mutates_args=("counter",), schema=schema)
    def hear(
        counter: torch.Tensor, tensors: Sequence[torch.Tensor], names: str, key: int, place: int, is_training: bool
    ) -> None:
        reader = _READERS.get(key)
        if reader is None:  # the monitor has finished
            return
        arguments: dict[str, Any] = {}
        for name, tensor in zip(names.split(), tensors, strict=True):
            whole, _, part = name.partition(".")
            arguments[whole] = (*arguments.get(whole, ()), tensor) if part else tensor
        reader.heard(place, arguments, is_training=is_training)

    hear.register_fake(lambda *_: None)
    return torch.zeros(1, dtype=torch.int64)


def _first_inputs(captured: Captured, count: int) -> Captured:
    """Return what entered a layer, for the first inputs only."""

    def cut(value: torch.Tensor | None) -> torch.Tensor | None:
        if value is None or getattr(value, "ndim", 0) < 2 or len(value) != len(captured.inputs):
            return value
        return value[:count]

    rotation = tuple(map(cut, captured.rotation)) if isinstance(captured.rotation, tuple) else captured.rotation
    return replace(
        captured,
        inputs=captured.inputs[:count],
        mask=cut(captured.mask),
        real=captured.real[:count],
        rotation=rotation,
        memory=cut(captured.memory),
    )


def _with_rule(captured: Captured, kind: LayerKind, module: torch.nn.Module) -> Captured:
    """Return the inputs of a layer with its mask also under fused attention, in which the module itself is causal and a mask
    (B, S) marks padding.
    """
    import torch

    mask = captured.mask if isinstance(captured.mask, torch.Tensor) else None
    if mask is not None and mask.ndim > 2:
        return captured
    is_causal = kind is LayerKind.SELF and bool(getattr(module, "is_causal", False))
    return replace(captured, mask=None if mask is None else mask[:, None, None].bool(), causal=is_causal)


def _query_measures(found: dict[int, tuple[AttentionStatistics, torch.Tensor]]) -> dict[int, Any]:
    """Compute `QUERY_MEASURES` by layer, (n_measures, H): means over the queries that see at least two tokens and are not padding.

    All layers of one shape are summed at once, since small operations on a GPU cost as much as larger ones.
    """
    import torch

    measures: dict[int, Any] = {}
    for layers in _by_shape({layer: counts for layer, (_, counts) in found.items()}):
        by_layer, counts = [found[layer][0] for layer in layers], torch.stack([found[layer][1] for layer in layers])
        values = [one.by_measure for one in by_layer]
        by_name = {name: torch.stack([of[name] for of in values]).double() for name in values[0]}  # (L, B, H, Q)
        n_queries = counts.sum(dim=(1, 3)).clamp(min=1)
        by_name = {name: of.masked_fill(~counts, 0.0).sum(dim=(1, 3)) / n_queries for name, of in by_name.items()}
        best = torch.stack([torch.maximum(one.largest.abs(), one.second.abs()) for one in by_layer]).double()
        by_name["max_logit"] = best.masked_fill(~counts, 0.0).amax(dim=(1, 3))
        margins = torch.stack([one.margin for one in by_layer]).double()
        by_name["margin_median"] = (
            margins.masked_fill(~counts, torch.nan).transpose(1, 2).flatten(2).nanmedian(2).values
        )
        rows = torch.stack([by_name[name] for name in QUERY_MEASURES], dim=1)  # (L, n_measures, H)
        rows = rows.masked_fill(~by_name["entropy"].isfinite()[:, None], torch.nan)
        measures |= dict(zip(layers, rows, strict=True))
    return measures


def _by_shape(tensors: dict[int, torch.Tensor]) -> list[list[int]]:
    """Group layers whose tensors have one shape."""
    groups: dict[Any, list[int]] = defaultdict(list)
    for layer, tensor in tensors.items():
        groups[tensor.shape].append(layer)
    return list(groups.values())


# ---- weights


def _weights(adapter: Adapter, layer: int) -> tuple[tuple[Any, Any], Any]:
    """Compute the Gram matrices (H, d_h, d_h) of W_K, with the scale, and W_Q, and (H,) the largest entry of each W in modulus.

    With rotary positions W is taken at offset 0, for a token at the query's own position.
    """
    import torch

    weights, shape, scale = adapter.projection(layer), adapter.shape(layer), adapter.scale(layer)
    with torch.autocast(weights.W_Q.device.type, enabled=False):
        queries, keys = (
            W.detach().reshape(shape.d_model, -1, shape.d_head).permute(1, 0, 2) for W in (weights.W_Q, weights.W_K)
        )  # (H, d, d_h), (G, d, d_h)
        keys = keys.repeat_interleave(shape.n_heads // shape.n_key_heads, dim=0).float() * scale
        queries = queries.float()
        at_once = max(1, _MAX_ENTRIES // shape.d_model**2)
        entries = torch.cat(
            [
                (k @ q.transpose(1, 2)).abs().amax(dim=(1, 2))
                for k, q in zip(keys.split(at_once), queries.split(at_once), strict=True)
            ]
        )
        G_K, G_Q = (W.double().transpose(1, 2) @ W.double() for W in (keys, queries))
    return (G_K, G_Q), entries


def _norms(grams: dict[int, tuple[torch.Tensor, torch.Tensor]], entries: dict[int, torch.Tensor]) -> dict[int, Any]:
    r"""Compute `NORM_MEASURES` by layer, (3, H).

    The squares of the singular values of W are the eigenvalues of :math:`M = G_K G_Q`. So :math:`\|W\|_F^2` is its trace, and
    the largest eigenvalue is the limit of :math:`\mathrm{tr}(M^k)^{1/k}`, computed by repeated squaring for all heads at once.
    """
    import torch

    found: dict[int, Any] = {}
    for layers in _by_shape({layer: G_K for layer, (G_K, _) in grams.items()}):
        M = torch.stack([grams[layer][0] @ grams[layer][1] for layer in layers])  # (n_layers, H, d_h, d_h)
        trace = M.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
        power, logs = M / trace.clamp(min=1e-300)[..., None, None], torch.zeros_like(trace)
        for k in range(_N_SQUARINGS):
            power = power @ power
            size = power.diagonal(dim1=-2, dim2=-1).sum(dim=-1).clamp(min=1e-300)
            power = power / size[..., None, None]
            logs = logs + size.log() / 2 ** (k + 1)
        spectral = (0.5 * (trace.log() + logs)).exp()
        for row, layer in enumerate(layers):
            found[layer] = torch.stack([trace[row].sqrt(), spectral[row], entries[layer].double()])
    return found


def _on_cpu(rows: dict[int, torch.Tensor]) -> dict[int, FloatArray]:
    """Copy all tensors to the CPU at once."""
    import torch

    if not rows:
        return {}
    flat = torch.cat([row.flatten() for row in rows.values()]).cpu().numpy()
    ends = np.cumsum([row.numel() for row in rows.values()])
    return {
        layer: part.reshape(row.shape)
        for (layer, row), part in zip(rows.items(), np.split(flat, ends[:-1]), strict=True)
    }
