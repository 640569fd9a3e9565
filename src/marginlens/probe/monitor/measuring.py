"""The measures of all heads of a model that is being trained, on one batch, with nothing of the training touched.

They are those of `probe_model`, computed where the model is: on a GPU only the sums over queries come back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from marginlens.errors import InputError, reject
from marginlens.probe.heads.key_query import factor_norms
from marginlens.probe.models.adapters import Adapter
from marginlens.probe.models.adapters.base import LayerKind, LayerReading, device_of
from marginlens.probe.models.implementation import eager_attention, is_hugging_face
from marginlens.probe.models.inputs import InputBatch
from marginlens.probe.models.reading import adapter_of_batch, read_attention
from marginlens.probe.result import MarginCounts, ProbeSettings
from marginlens.probe.run import NORMS, head_norms, max_margin_measures
from marginlens.runtime.threads import single_blas_thread
from marginlens.typing import BoolArray, FloatArray, IntArray

MAX_INPUTS, MAX_TOKENS = 8, 64  # of a batch that nobody chose for the monitor: it is cut to these
MAP_MEASURES = ("relative_nnz", "nnz", "entropy", "top_probability")
SHARES = ("decisive_share", "first_share", "sink_share", "tied_share")
_LAYERS_AT_ONCE = (
    4  # whose norms are made in parallel: beside a GPU, small eigenvalue problems take longer than all else
)
LIKELY_POSITIONS = ("max_position_embeddings", "n_positions", "max_sequence_length")


# ---- the batch


@dataclass(frozen=True, eq=False)
class MonitorBatch:
    """One batch of inputs as a model is called with it, on the CPU; for the probe's functions it is a set of inputs."""

    inputs: Mapping[str, Any]  # NumPy arrays, the first axis is the inputs

    grid = None

    @classmethod
    def of(cls, batch: Any, *, is_chosen: bool) -> MonitorBatch:
        """A batch as it is, or cut to a few short inputs where it was not chosen for the monitor.

        Args:
            batch: a mapping with input_ids, inputs_embeds or pixel_values, and what else the model is called with.
        """
        if not isinstance(batch, Mapping):
            expected = "what the model is called with, a mapping with input_ids or pixel_values"
            raise reject("batch", expected, type(batch).__name__, "Tokenise texts first, with padding=True.")
        arrays: dict[str, Any] = {}
        for name, value in batch.items():
            if name in ("labels", "label", "label_ids") or value is None or isinstance(value, str | bool):
                continue
            try:
                arrays[name] = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
            except (TypeError, ValueError) as problem:
                remedy = "Pad texts to one length, and say in attention_mask where."
                raise reject("batch", f"numbers of one shape under {name!r}", "none", remedy) from problem
            if arrays[name].dtype.kind not in "biuf":
                remedy = "Pad texts to one length, and say in attention_mask where."
                raise reject("batch", f"numbers of one shape under {name!r}", f"{arrays[name].dtype}", remedy)
        return cls(arrays if is_chosen else _cut(arrays))

    def __len__(self) -> int:
        return max((len(value) for value in self.inputs.values() if value.ndim), default=0)

    @property
    def lengths(self) -> IntArray:
        """(n_inputs,) tokens of each input."""
        mask = self.inputs.get("attention_mask")
        if mask is not None and mask.ndim == 2:
            return np.asarray(mask.sum(axis=1), dtype=np.int64)
        ids = self.inputs.get("input_ids")
        return np.full(len(self), 1 if ids is None else ids.shape[-1], dtype=np.int64)

    def subset(self, places: Sequence[int]) -> MonitorBatch:
        """The inputs at these places."""
        n = len(self)
        rows = list(places)
        return MonitorBatch(
            {name: value[rows] if value.ndim and len(value) == n else value for name, value in self.inputs.items()}
        )

    def batches(self) -> Iterator[InputBatch]:
        """The batch itself, as one."""
        yield InputBatch(np.arange(len(self), dtype=np.int64), self.inputs, ((),) * len(self))

    def check(self, model: Any) -> None:
        """Refuse token ids that the model has no embedding for, and texts longer than its positions, before a GPU sees them."""
        ids = self.inputs.get("input_ids")
        if not any(name in self.inputs for name in ("input_ids", "inputs_embeds", "pixel_values", "input_features")):
            names = ", ".join(map(str, self.inputs)) or "nothing"
            raise reject("batch", "a mapping with input_ids, inputs_embeds or pixel_values", f"one with {names}")
        if ids is None:
            return
        if ids.ndim != 2 or not ids.size or ids.dtype.kind not in "iu":
            expected = "whole numbers input_ids of shape (n_inputs, n_tokens)"
            raise reject("batch", expected, f"shape {ids.shape} with dtype {ids.dtype}")
        config = model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config
        n_words = getattr(config, "vocab_size", None)
        if isinstance(n_words, int) and (int(ids.max()) >= n_words or int(ids.min()) < 0):
            got = f"the id {int(ids.max()) if int(ids.max()) >= n_words else int(ids.min())}"
            remedy = "Tokenise with the model's own tokenizer."
            raise reject("batch", f"token ids from 0 to {n_words - 1}, which this model has", got, remedy)
        positions = next((getattr(config, name) for name in LIKELY_POSITIONS if hasattr(config, name)), None)
        if isinstance(positions, int) and 0 < positions < ids.shape[1]:
            got = f"inputs of {ids.shape[1]} tokens"
            raise reject("batch", f"inputs of at most {positions} tokens, the model's positions", got)


def _cut(arrays: dict[str, Any]) -> dict[str, Any]:
    """The first few inputs and tokens; all tokens where that would leave an input without two of them, as with padding on the left."""
    rows = {name: value[:MAX_INPUTS] if value.ndim else value for name, value in arrays.items()}
    ids, mask = rows.get("input_ids"), rows.get("attention_mask")
    if ids is None or ids.ndim != 2 or ids.shape[1] <= MAX_TOKENS:
        return rows
    if mask is not None and (mask.ndim != 2 or bool((mask[:, :MAX_TOKENS].sum(axis=1) < 2).any())):
        return rows
    has_tokens = {name for name, value in rows.items() if value.ndim >= 2 and value.shape[1] == ids.shape[1]}
    return {name: value[:, :MAX_TOKENS] if name in has_tokens else value for name, value in rows.items()}


# ---- a model in training


def inner_model(model: Any) -> Any:
    """The Hugging Face model in what a training loop has: compiled, in data parallel, or a module that has one model in it."""
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
        got = f"{type(model).__name__} with {count}"
        raise reject("model", "a Hugging Face model, or a module with one inside", got, "Pass the model itself.")
    return found[0]


def _topmost(module: Any) -> Iterator[Any]:
    for _, child in module.named_children():
        if is_hugging_face(child):
            yield child
        else:
            yield from _topmost(child)


def check_whole(model: Any) -> None:
    """Refuse a model of which this process has a part: to run it, all processes would have to."""
    for _, weight in model.named_parameters():
        kind = "DeepSpeed ZeRO-3" if hasattr(weight, "ds_id") else None
        kind = "FSDP or tensor parallelism" if type(weight).__name__ in ("DTensor", "FlatParameter") else kind
        if kind is not None:
            raise InputError(
                f"A model whose weights are spread over processes ({kind}) cannot be watched from one of them: save checkpoints, and "
                "draw their curves with marginlens probe FOLDER --checkpoints."
            )


@contextmanager
def untouched(model: Any) -> Iterator[None]:
    """Eager attention, float32, no autocast; afterwards attention, weights, modes and random numbers as they were."""
    import torch

    device = device_of(model)
    kind = torch.device(device).type
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        devices = [device] if kind == "cuda" else []
        stack.enter_context(torch.random.fork_rng(devices=devices))
        if torch.amp.is_autocast_available(kind):
            stack.enter_context(torch.autocast(kind, enabled=False))
        stack.enter_context(eager_attention(model))
        stack.enter_context(_single_precision(model))
        yield


@contextmanager
def _single_precision(model: Any) -> Iterator[None]:
    """With half-precision weights as float32 copies; the weights themselves, which the optimizer has, are put aside and back."""
    import torch

    half = (torch.float16, torch.bfloat16)
    places = [
        (store, name, tensor)
        for module in model.modules()
        for store in (module._parameters, module._buffers)
        for name, tensor in store.items()
        if tensor is not None and tensor.dtype in half
    ]
    copies: dict[int, Any] = {}  # tied weights stay tied
    try:
        for store, name, tensor in places:
            if id(tensor) not in copies:
                single = tensor.detach().float()
                is_weight = isinstance(tensor, torch.nn.Parameter)
                copies[id(tensor)] = torch.nn.Parameter(single, requires_grad=False) if is_weight else single
            store[name] = copies[id(tensor)]
        yield
    finally:
        for store, name, tensor in places:
            store[name] = tensor


# ---- measures


@dataclass(frozen=True, eq=False)
class Measured:
    """One measurement: name → (n_layers, n_heads), nan where there is no number, what was not measured, and names of layers."""

    measures: dict[str, FloatArray]
    notes: tuple[str, ...]
    layer_names: tuple[str, ...]


def measure_heads(
    model: Any, batch: MonitorBatch, *, offset: int | None = None, max_margin: ProbeSettings | None = None
) -> Measured:
    """The measures of every head of a model on one batch.

    Args:
        model: a Hugging Face model, in any mode and with any attention; it is left as it was found.
        offset: as in `ProbeSettings`. max_margin: settings of the max-margin part; None leaves it out.
    Returns:
        The numbers of `probe_model` under the same names, as far as they are asked for.
    """
    batch.check(model)
    with untouched(model):
        adapter = adapter_of_batch(model, batch.inputs)
        sums = _LayerSums(adapter.n_layers, adapter.n_heads)
        try:
            for reading in read_attention(model, batch.inputs, allow_nan=True):
                sums.add(reading)
        except (RuntimeError, IndexError, TypeError, ValueError) as problem:
            if isinstance(problem, InputError) or is_out_of_memory(problem):
                raise
            words = " ".join(str(problem).split())[:160] or type(problem).__name__
            raise reject("batch", "a batch that this model reads", f"one of which it says: {words}") from problem
        norms, notes = weight_norms(adapter, offset)
        measures = {**sums.measures(), **norms}
        if max_margin is not None:
            separated, more = max_margin_measures(adapter, batch, max_margin, sums.is_finite)  # type: ignore[arg-type]
            measures |= separated
            notes += more
    return Measured(measures, tuple(notes), adapter.layer_names)


def is_out_of_memory(problem: Exception) -> bool:
    """Whether torch says that a device has no memory left."""
    return type(problem).__name__ == "OutOfMemoryError"


class _LayerSums:
    """The averages over the queries of a batch, layer by layer; heads that a layer has not are nan."""

    def __init__(self, n_layers: int, n_heads: int) -> None:
        self._values = {name: np.full((n_layers, n_heads), np.nan) for name in (*MAP_MEASURES, *SHARES)}
        self._margins = MarginCounts.empty(n_layers, n_heads)
        self.is_finite: BoolArray = np.zeros((n_layers, n_heads), dtype=bool)
        self._has_queries = False

    def add(self, reading: LayerReading) -> None:
        """Average over the queries that see at least two tokens, in float64 on the model's device."""
        import torch

        visible = reading.visible  # (B, T, S)
        n_visible = visible.sum(dim=-1)
        counted = n_visible >= 2
        n_queries = int(counted.sum())
        if not n_queries:
            return
        self._has_queries = True
        finite = (
            (reading.attention.isfinite() | ~visible.any(dim=-1)[:, None, :, None]).flatten(2).all(dim=2).all(dim=0)
        )
        sees = visible[:, None] & finite[None, :, None, None]
        maps = torch.where(sees, reading.attention.double(), 0.0)  # (B, H, T, S)
        weights = counted[:, None].double()  # (B, 1, T)
        total = maps.sum(dim=-1, keepdim=True)
        rest = maps if reading.sink is None else maps / total.masked_fill(total == 0.0, 1.0)  # what no sink takes
        square = rest.square().sum(dim=-1)
        nnz = rest.sum(dim=-1) / square.masked_fill(square == 0.0, 1.0)
        top = maps.amax(dim=-1)
        logits = reading.logits.double().masked_fill(~sees, -torch.inf)
        best = logits.topk(2, dim=-1)
        margin = best.values[..., 0] - best.values[..., 1]
        ties = (logits >= (best.values[..., :1] - reading.rounding.double()[..., None])) & sees
        is_unique = ties.sum(dim=-1) == 1
        first = visible.any(dim=1).int().argmax(dim=-1)[:, None, None]  # (B, 1, 1) the first token of the input
        selects_first = (is_unique & (best.indices[..., 0] == first)).double()
        if reading.kind is LayerKind.WINDOW:  # of an image, which has no first token
            selects_first.fill_(torch.nan)
        received = (maps * weights[..., None]).sum(dim=2)  # (B, H, S)
        sums = {
            "relative_nnz": (nnz / n_visible.clamp(min=1)[:, None] * weights),
            "nnz": nnz * weights,
            "entropy": -torch.special.xlogy(rest, rest).sum(dim=-1) * weights,
            "top_probability": top * weights,
            "decisive_share": (top > 0.5) * weights,
            "first_share": selects_first * weights,
            "sink_share": received.amax(dim=-1, keepdim=True),
            "tied_share": ~is_unique * weights,
        }
        stacked = torch.stack([values.sum(dim=(0, 2)) for values in sums.values()]) / n_queries  # (n_measures, H)
        stacked = stacked.masked_fill(~finite, torch.nan)
        layer, n_heads = reading.layer, stacked.shape[1]
        for name, values in zip(sums, stacked.cpu().numpy(), strict=True):
            self._values[name][layer, :n_heads] = values + 0.0  # no negative zero
        self.is_finite[layer, :n_heads] = finite.cpu().numpy()
        margins = margin.transpose(0, 1)[:, counted].masked_fill(~finite[:, None], torch.nan).cpu().numpy()
        filled = np.full((self.is_finite.shape[1], margins.shape[1]), np.nan)
        filled[:n_heads] = margins
        self._margins.add(layer, filled)

    def measures(self) -> dict[str, FloatArray]:
        """The averages (n_layers, n_heads) by name."""
        if not self._has_queries:
            raise reject("batch", "inputs with at least two tokens each", "none in which a query sees two")
        margins = {
            name: self._margins.quantile(share) for name, share in (("margin_median", 0.5), ("margin_low", 0.05))
        }
        return {**self._values, **margins}


def weight_norms(adapter: Adapter, offset: int | None = None) -> tuple[dict[str, FloatArray], list[str]]:
    """The norms of `head_norms`, from Gram matrices made where the weights are, for layers that store them plainly."""
    is_usual = all(
        getattr(type(adapter), name) is getattr(Adapter, name) for name in ("_map", "_of_head", "layer_maps")
    )
    norms = {name: np.full((adapter.n_layers, adapter.n_heads), np.nan) for name in NORMS}
    if not is_usual or adapter.rotary or not adapter.reads_weights or adapter.beyond_w:
        found, notes, _ = head_norms(adapter, offset)
        return found, notes
    weights = [adapter.projection(layer) for layer in range(adapter.n_layers)]
    if any(layer.deviation is not None for layer in weights):  # measured, not stored
        found, notes, _ = head_norms(adapter, offset)
        return found, notes

    def of_layer(layer: int) -> dict[str, FloatArray]:
        d_model, d_head = weights[layer].W_Q.shape[0], adapter.shape(layer).d_head
        queries, keys = (
            W.detach().reshape(d_model, -1, d_head).permute(1, 0, 2) for W in (weights[layer].W_Q, weights[layer].W_K)
        )
        keys = keys[[adapter.key_head(head, layer) for head in range(len(queries))]]
        return factor_norms(keys, queries, adapter.scale(layer))

    with single_blas_thread(), ThreadPoolExecutor(_LAYERS_AT_ONCE) as pool:
        for layer, by_name in enumerate(pool.map(of_layer, range(adapter.n_layers))):
            for name, values in by_name.items():
                norms[name][layer, : len(values)] = values
    return norms, []
