"""The adapter protocol: finding a model's attention layers, reading their queries and keys, and measuring the weights behind them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from marginlens.errors import InputError, whole_number
from marginlens.probe.heads.key_query import KeyQueryMap
from marginlens.probe.heads.statistics import (
    AttentionRule,
    AttentionStatistics,
    attention_statistics,
    received_attention,
    sees,
)
from marginlens.result import Described
from marginlens.typing import FloatArray
from marginlens.words import Fact

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

AFFINE_RTOL = 0.05  # of its outputs, by which a module may miss the affine map measured on it: inputs rounded to 8 bits cost up to 0.03
# Of the random inputs that the measured map is tried on, each size on its own.
_TRIAL_SIZES, _N_TRIALS = (0.1, 1.0, 10.0), 64
LEFT_OUT = "crossattention"  # in the name of modules of BERT and GPT-2 that attend to another model's output
_AFFINE = "one whose query and key modules are affine maps of each token"
_MAX_MULTIPLE = 2.0**12  # of unit vectors that is tried

Factors = tuple[FloatArray, FloatArray, FloatArray]  # W_Q (d, d_h), b_Q (d_h,) and W_K (d, d_h) of one head


@dataclass(frozen=True)
class Captured:
    """The inputs of one attention layer on one batch, as torch tensors."""

    inputs: torch.Tensor  # (B, T, d): what the query map reads, and the key map too if there is no memory
    # (1 or B, 1 or H, T, S) that the model adds to the logits, or True if it is seen; None if it gives none
    mask: torch.Tensor | None
    real: torch.Tensor  # (B, T) bool: the token is not padding
    # (cos, sin), each (1 or B, T, d_h), if the family has rotary positions
    rotation: Any = None
    memory: torch.Tensor | None = None  # (B, S, d): what the key map of cross-attention reads
    arguments: Mapping[str, Any] = field(default_factory=dict)  # all that the module was called with, by name
    causal: bool = False  # without a mask a query sees no token behind its own, as fused attention leaves it unsaid


class LayerKind(Enum):
    """The kind of tokens that the queries of a layer attend to."""

    SELF = "self"  # the tokens of their own input
    CROSS = "cross"  # the tokens of another: a decoder's queries those of the encoder
    WINDOW = "window"  # those of their own window, a part of the input: B counts windows


class LayerShape(NamedTuple):
    """The sizes of one attention layer."""

    n_heads: int
    n_key_heads: int  # fewer than heads if queries are grouped
    d_head: int
    d_model: int


class HeadInputs(NamedTuple):
    """Queries (B, T, H d_h) and keys (B, S, G d_h) before positions act on them, and the factors of a norm if there is one."""

    queries: torch.Tensor
    keys: torch.Tensor
    query_factor: torch.Tensor | None = None  # (B, H, T)
    key_factor: torch.Tensor | None = None  # (B, G, S)


@dataclass(frozen=True, repr=False)
class LayerReading(Described):
    r"""The reading of one attention layer on one batch, as torch tensors in the model's own precision.

    B inputs, H query heads, T queries, S tokens that they attend to (T of them, except in cross-attention), width d, head width
    d_h. It holds queries, keys and the attention rule. `statistics` uses memory linear in T. The maps `logits`, `attention` and
    `visible` grow with its square and are computed only on demand. Ignore the rows of padded queries in maps; `visible` is
    False there. The rule includes everything that a family adds to the logits of W. With the W of the head and, if positions
    are rotary, of the offset,

    .. math:: \text{logit}(x, z) = \mathrm{cap}\big(r_z r_x (x^\top W z + x^\top w_0 + c_z) + b(x, z)\big)
    """

    layer: int
    inputs: (
        torch.Tensor
    )  # (B, T, d): what the layer's query and key maps read, after the layer's own norm if there is one
    queries: torch.Tensor  # (B, H, T, d_h) as they enter the logits, rotary applied if the family has it
    grouped_keys: torch.Tensor  # (B, G, S, d_h) alike, of the G heads that have keys
    rule: AttentionRule  # scale, mask, bias b, cap and learned sinks
    real: torch.Tensor  # (B, T) bool: the query is not padding
    rounding: torch.Tensor  # (B, H, T) by how much rounding alone may part two logits of a query
    adapter: Adapter
    kind: LayerKind = LayerKind.SELF
    memory: torch.Tensor | None = None  # (B, S, d) what the keys of cross-attention are made from
    query_factor: torch.Tensor | None = None  # (B, H, T) the factors r_z and
    key_factor: torch.Tensor | None = (
        None  # (B, H, S) r_x that normalising queries and keys puts on a logit; all above zero
    )
    quantities = "layer {layer}: {rounding.shape[0]} inputs, {rounding.shape[1]} heads, {rounding.shape[2]} tokens"

    @property
    def bias(self) -> torch.Tensor | None:
        """The term b of the logits beside W, (1 or B, 1 or H, T or 1, S), such as relative positions; or None."""
        return self.rule.bias

    @property
    def cap(self) -> float | None:
        """The cap c if the model's logits are c tanh(l/c), otherwise None."""
        return self.rule.softcap

    @cached_property
    def keys(self) -> torch.Tensor:
        """The keys (B, H, S, d_h), with grouped keys repeated for the query heads; None if a model returns only attention."""
        if self.grouped_keys is None:
            return None
        heads = range(self.queries.shape[1])
        return self.grouped_keys[:, [self.adapter.key_head(head, self.layer) for head in heads]]

    @cached_property
    def visible(self) -> torch.Tensor:
        """The visible pairs, (B, T, S) booleans: query i sees token j in some head, and i is not padding."""
        n_inputs, _, n_queries, _ = self.queries.shape
        visible = self.real.new_ones((n_inputs, n_queries, self.grouped_keys.shape[2]))
        if self.rule.mask is not None:
            visible = visible & sees(self.rule.mask).any(dim=1)
        if self.rule.causal:
            visible = visible.tril()
        return visible & self.real[:, :, None]

    @cached_property
    def logits(self) -> torch.Tensor:
        """The scaled logits (B, H, T, S), -inf for a token that the model hides from a query."""
        import torch

        logits, rule = self.adapter.products(self.layer, self.queries, self.keys), self.rule
        if rule.bias is not None:
            logits = logits + rule.bias
        if rule.softcap is not None:
            logits = torch.tanh(logits / rule.softcap) * rule.softcap
        if rule.mask is not None:
            logits = logits if rule.mask.dtype is torch.bool else logits + rule.mask
            logits = logits.masked_fill(~sees(rule.mask), -math.inf)
        if rule.causal:
            logits = logits.masked_fill(~torch.ones_like(logits[0, 0], dtype=torch.bool).tril(), -math.inf)
        return logits

    @cached_property
    def attention(self) -> torch.Tensor:
        """The softmax of the logits and the sink's over the last axis, (B, H, T, S); zeros if a query sees nothing."""
        import torch

        logits = self.logits
        if self.rule.sinks is not None:
            sinks = self.rule.sinks.to(logits)[None, :, None, None].expand(*logits.shape[:3], 1)
            logits = torch.cat((logits, sinks), dim=-1)
        single = self.adapter.softmax_in_single
        attention = torch.softmax(logits, dim=-1, dtype=torch.float32 if single else None)[..., : self.logits.shape[-1]]
        attention = attention.to(self.queries.dtype) if single else attention  # as the family's own code does
        return attention.masked_fill(self.logits == -math.inf, 0.0)  # a query that sees nothing: 0 rather than 0/0

    @property
    def sink(self) -> torch.Tensor | None:
        """The attention to a learned sink, (B, H, T), if heads have one; otherwise None."""
        return None if self.rule.sinks is None else self.statistics().learned_sink

    def statistics(self, tolerances: Sequence[float] = (), left_out: torch.Tensor | None = None) -> AttentionStatistics:
        """Compute `attention_statistics` of the layer: padded queries see nothing, and ties are those up to the model's rounding."""
        options: dict[str, Any] = {"tolerances": tolerances, "left_out": left_out}
        found = attention_statistics(self.queries, self.grouped_keys, self.rule, **options)
        is_padding = ~self.real[:, None].expand_as(found.selected)
        return replace(
            found,
            selected=found.selected.masked_fill(is_padding, -1),
            margin=found.margin.masked_fill(is_padding, math.nan),
            tied=(found.margin <= self.rounding) & ~is_padding,
            rounding=self.rounding,
            n_visible=found.n_visible.masked_fill(is_padding, 0),
        )

    def received(self, log_sum_exp: torch.Tensor) -> torch.Tensor:
        """Compute `received_attention` of the layer, (B, H, S)."""
        return received_attention(self.queries, self.grouped_keys, log_sum_exp, self.rule)

    def n_seen(self, counted: torch.Tensor) -> torch.Tensor:
        """Count, for each token (B, S), the queries that see it among those marked by `counted` (B, T)."""
        import torch

        mask = None if self.rule.mask is None else sees(self.rule.mask).any(dim=1, keepdim=True)
        rule = AttentionRule(scale=1.0, causal=self.rule.causal, mask=mask)
        q, k = (
            torch.zeros((len(counted), 1, n, 1), device=counted.device)
            for n in (counted.shape[1], self.grouped_keys.shape[2])
        )
        logs = torch.zeros_like(q[..., 0]).masked_fill(~counted[:, None], math.inf)  # of logits 0: every token counts 1
        return received_attention(q, k, logs, rule)[:, 0].round().long()

    def sees_beside(self, offset: int) -> torch.Tensor:
        """Mark the queries at i that see the token at i + offset, as booleans (B, T)."""
        import torch

        n_queries, n_tokens = self.queries.shape[2], self.grouped_keys.shape[2]
        place = torch.arange(n_queries, device=self.real.device) + offset
        inside = (place >= 0) & (place < n_tokens) & (not self.rule.causal or offset <= 0)
        beside = self.real & inside
        if self.rule.mask is not None:
            allowed = sees(self.rule.mask).any(dim=1).expand(-1, n_queries, n_tokens)
            beside = beside & allowed.take_along_dim(place.clamp(0, n_tokens - 1)[None, :, None], dim=2)[..., 0]
        return beside

    def part(self, row: int, n_queries: int | None = None) -> LayerReading:
        """Return the reading of one input of the batch, in single precision at least, of its first queries only if their number
        is given.
        """
        import torch

        one, some = slice(row, row + 1), slice(0, n_queries)
        # in half precision logits can overflow that statistics have
        wide = torch.promote_types(self.queries.dtype, torch.float32)

        def cut(value: torch.Tensor | None) -> torch.Tensor | None:
            if value is None:
                return None
            value = value if len(value) == 1 else value[one]
            return value if value.shape[2] == 1 else value[:, :, some]

        return replace(
            self,
            queries=self.queries[one, :, some].to(wide),
            grouped_keys=self.grouped_keys[one].to(wide),
            rule=replace(self.rule, bias=cut(self.rule.bias), mask=cut(self.rule.mask)),
            real=self.real[one, some],
            rounding=self.rounding[one, :, some],
        )


@dataclass(frozen=True, eq=False)
class AffineMap:
    """The affine map x W + b of one module on tokens.

    Attributes:
        W: (d_in, d_out) the matrix, a torch tensor.

        b: (d_out,) the bias, a torch tensor, or None if there is none.

        deviation: the relative deviation of the module's outputs from this map on random inputs; None if W is the module's own
            weight.
    """

    W: torch.Tensor
    b: torch.Tensor | None
    deviation: float | None = None


@dataclass(frozen=True)
class Projection:
    """The query and key maps of a layer as torch tensors; a token x has the query x W_Q + b_Q.

    They are the stored weights if the maps are plain linear layers, and measured otherwise; `deviation` is then the relative
    deviation of the layer's outputs from these maps.
    """

    W_Q: torch.Tensor  # (d, H d_h)
    b_Q: torch.Tensor | None  # (H d_h,) or None
    W_K: torch.Tensor  # (d, G d_h) for G key heads
    deviation: float | None = None


@dataclass(frozen=True, eq=False)
class LayerMaps:
    """The key-query maps of all heads of a layer, and the deviation of measured ones (see `Projection`)."""

    heads: tuple[KeyQueryMap | None, ...]  # None for a head whose weights are not finite
    deviation: float | None


class Adapter(ABC):
    """The adapter of a family of models. `reading.read_attention` runs the model; the adapter describes where and how its layers attend.

    Args:
        model: a loaded Hugging Face model of the family that returns its attention ("eager").
    """

    families: ClassVar[tuple[str, ...]] = ()  # values of config.model_type
    projections: tuple[str, ...] = ()  # children that make a module an attention layer
    reads_weights: ClassVar[bool] = True  # whether there is a W; `layer_maps` gives it
    rotary: ClassVar[bool] = False  # W depends on the offset of query and key
    # What the family's logits have besides W and rotary positions, as a clause or a fact.
    beyond_w: str | Fact = ""
    softmax_in_single: ClassVar[bool] = False  # the family's own code takes the softmax in float32, whatever the dtype
    attention_output: ClassVar[int] = 1  # which of a module's outputs is its attention
    call_options: ClassVar[dict[str, Any]] = {}  # passed to the model beside the batch

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model.base_model
        self.config = self.model.config
        layers = self.find_layers()
        self.module_names, self._modules = tuple(name for name, _ in layers), [module for _, module in layers]
        if not self._modules:
            family = getattr(self.config, "model_type", "?")
            raise InputError("model", f"a model with attention layers of the {family} family", type(model).__name__)

    @classmethod
    def without_weights(cls, model: PreTrainedModel) -> str | Fact:
        """Return why the family's adapter cannot read a W of this model, as a clause or a fact; empty if it can.

        For such a model only the returned attention is measured.
        """
        return ""

    def find_layers(self) -> list[tuple[str, Any]]:
        """Return the attention modules by name, in the order in which they are called; twice if one serves two layers."""
        return [
            (name, module)
            for name, module in self.model.named_modules()
            if LEFT_OUT not in name and all(hasattr(module, child) for child in self.projections)
        ]

    # ---- sizes

    @property
    def n_layers(self) -> int:
        return len(self._modules)

    @property
    def n_heads(self) -> int:
        """The number of heads of the layer with the most heads."""
        return max(self.shape(layer).n_heads for layer in range(self.n_layers))

    def shape(self, layer: int) -> LayerShape:
        """Return the sizes of one layer as the configuration has them; in most families all layers share them."""
        config, n_heads, d_model = self.config, int(self.config.num_attention_heads), int(self.config.hidden_size)
        n_key_heads, d_head = (getattr(config, name, None) for name in ("num_key_value_heads", "head_dim"))
        return LayerShape(n_heads, int(n_key_heads or n_heads), int(d_head or d_model // n_heads), d_model)

    def key_head(self, head: int, layer: int = 0) -> int:
        """Return the key head that a query head reads: with grouped queries, neighbours share one."""
        shape = self.shape(layer)
        return head // (shape.n_heads // shape.n_key_heads)

    # ---- where the layers are

    def tower(self, layer: int) -> str:
        """Return the part of the model that a layer belongs to, if there are several: encoder, decoder, cross; text, vision."""
        return ""

    def kind(self, layer: int) -> LayerKind:
        """Return what the queries of a layer attend to."""
        return LayerKind.CROSS if self.tower(layer) == "cross" else LayerKind.SELF

    @property
    def layer_names(self) -> tuple[str, ...]:
        """The names of the layers, (n_layers,): their number, after the part of the model if there are several."""
        towers = [self.tower(layer) for layer in range(self.n_layers)]
        return tuple(
            f"{tower} {towers[:layer].count(tower)}" if tower else str(layer) for layer, tower in enumerate(towers)
        )

    def attention_module(self, layer: int) -> torch.nn.Module:
        """Return the module of layer `layer` whose inputs are read."""
        return self._modules[self.check_layer(layer)]

    def module_name(self, layer: int) -> str:
        """Return the name of a layer's module in the model, and its type."""
        return f"{self.module_names[layer]} of type {type(self._modules[layer]).__name__}"

    def check_layer(self, layer: int) -> int:
        if whole_number(layer, "layer", at_least=0) >= self.n_layers:
            raise InputError("layer", f"a layer from 0 to {self.n_layers - 1}", layer)
        return int(layer)

    # ---- running the model

    def complete(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Complete the batch with what the model needs besides what was given, such as a decoder's tokens."""
        return inputs

    def run(self, inputs: dict[str, torch.Tensor]) -> object:
        """Call the model on a batch."""
        return self.model(**inputs, **self.call_options)

    def capture(self, layer: int, arguments: Mapping[str, Any], inputs: Mapping[str, torch.Tensor]) -> Captured:
        """Read what a layer's module was called with.

        Args:
            arguments: the arguments of the module's forward by name; the tokens are `hidden_states`.

            inputs: the inputs of the model.
        """
        tokens = arguments["hidden_states"]
        real = real_tokens(inputs.get("attention_mask"), tokens)
        rotation = arguments.get("position_embeddings")
        return Captured(tokens, arguments.get("attention_mask"), real, rotation, arguments=arguments)

    # ---- what a layer computes

    @abstractmethod
    def project(self, layer: int, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Project the inputs (B, T, d) to queries (B, T, H d_h) and keys (B, T, G d_h), by the model's own modules."""

    @abstractmethod
    def projection(self, layer: int) -> Projection:
        """Return the weights behind `project`."""

    def normalise(self, layer: int, queries: torch.Tensor, keys: torch.Tensor) -> HeadInputs:
        """Apply what the layer does to its queries (B, T, H d_h) and keys (B, S, G d_h) before positions act on them: mostly nothing."""
        return HeadInputs(queries, keys)

    def scale(self, layer: int) -> float:
        """Return the factor of the products of queries and keys."""
        return 1.0 / math.sqrt(self.shape(layer).d_head)

    def products(self, layer: int, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Return the logits (B, H, T, S) before the mask."""
        return queries @ keys.transpose(2, 3) * self.scale(layer)

    def rotate(self, heads: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Rotate queries or keys (B, H, T, d_h) by their positions; they are unchanged if positions are part of the inputs."""
        return heads

    def bias(self, layer: int, captured: Captured, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor | None:
        """Return what the layer adds to the products besides its mask, (1 or B, 1 or H, T or 1, S); None if it adds nothing."""
        return None

    def cap(self, layer: int) -> float | None:
        """Return c if the layer's logits are c tanh(l/c), else None."""
        return None

    def sink_logits(self, layer: int) -> torch.Tensor | None:
        """Return the logits (H,) of the layer's learned sinks, which compete with those of tokens; None if it has none."""
        return None

    def read(self, layer: int, captured: Captured) -> LayerReading:
        """Compute the queries, keys and the rule of a layer from what went into it."""
        shape = self.shape(layer)
        flat_queries, flat_keys = self.project(layer, captured.inputs)
        if captured.memory is not None:
            flat_keys = self.project(layer, captured.memory)[1]
        made = self.normalise(layer, flat_queries, flat_keys)
        queries, keys = (
            self.rotate(flat.view(*flat.shape[:2], -1, shape.d_head).transpose(1, 2), captured.rotation)
            for flat in made[:2]
        )
        key_factor = made.key_factor
        if key_factor is not None and shape.n_key_heads != shape.n_heads:
            key_factor = key_factor[:, [self.key_head(head, layer) for head in range(shape.n_heads)]]
        bias, scale = self.bias(layer, captured, queries, keys), self.scale(layer)
        multiplied = self.products(layer, queries[:1, :1, :1], keys[:1, :1, :1]).dtype  # which autocast may lower
        real_keys = captured.real if captured.memory is None else captured.real.new_ones(captured.memory.shape[:2])
        rounding = scale * _rounding(queries, keys, real_keys, multiplied)
        if bias is not None:
            rounding = rounding + logit_rounding(multiplied) * bias.abs().amax(dim=-1)
        mask = captured.mask
        if mask is not None and mask.shape[-1] > keys.shape[2]:
            mask = mask[..., : keys.shape[2]]
        rule = AttentionRule(
            scale, captured.causal, None, self.cap(layer), bias, self.sink_logits(layer), mask,
        )  # fmt: skip
        return LayerReading(
            layer, captured.inputs, queries, keys, rule, captured.real, rounding, self,
            self.kind(layer), captured.memory, made.query_factor, key_factor,
        )  # fmt: skip

    # ---- the weights behind it

    def key_query(self, layer: int, head: int, offset: int | None = None) -> KeyQueryMap:
        r"""Return the key-query map of one head: a token x has, for a query z, the logit
        :math:`x^\top W z + x^\top w_0` up to a constant of the query.

        Args:
            offset: the position of the query minus the position of the token. Models with rotary positions need it; others
                ignore it.
        """
        n_heads = self.shape(self.check_layer(layer)).n_heads
        if whole_number(head, "head", at_least=0) >= n_heads:
            raise InputError("head", f"a head from 0 to {n_heads - 1}", head)
        factors = self._of_head(layer, self.projection(layer), head)
        if not _all_finite(factors):
            raise InputError(
                "head", f"one of layer {layer} with finite weights", f"{head}, whose weights are not finite,"
            )
        return self._map(layer, factors, offset)

    def layer_maps(self, layer: int, offset: int | None = None) -> LayerMaps:
        """Return `key_query` of all heads of a layer, whose projections are read or measured once."""
        weights = self.projection(self.check_layer(layer))
        factors = [self._of_head(layer, weights, head) for head in range(self.shape(layer).n_heads)]
        heads = [self._map(layer, head, offset) if _all_finite(head) else None for head in factors]
        return LayerMaps(tuple(heads), weights.deviation)

    @property
    def gives_logits(self) -> bool:
        """True if the logits of a head come from one W, up to a constant of the query."""
        return self.reads_weights and not self.rotary and not self.beyond_w

    @property
    def longest_text(self) -> int | None:
        """The longest text for which W at an offset is exact, if longer texts have other rotary frequencies."""
        return None

    def _map(self, layer: int, factors: Factors, offset: int | None) -> KeyQueryMap:
        W_Q, b_Q, W_K = factors
        return KeyQueryMap(W_K=W_K, W_Q=W_Q, b_Q=b_Q, scale=self.scale(layer))

    def _of_head(self, layer: int, weights: Projection, head: int) -> Factors:
        width, group = self.shape(layer).d_head, self.key_head(head, layer)
        query, key = slice(head * width, (head + 1) * width), slice(group * width, (group + 1) * width)
        b_Q = np.zeros(width) if weights.b_Q is None else _numpy(weights.b_Q[query])
        return _numpy(weights.W_Q[:, query]), b_Q, _numpy(weights.W_K[:, key])

    def _affine(self, layer: int, child: str, used: int | None = None) -> AffineMap:
        """Return the affine map that one of a layer's projections computes."""
        import torch

        attention = self.attention_module(layer)
        module = getattr(attention, child)
        like = torch.empty(0, device=device_of(module, attention, self.model), dtype=self.model.dtype)
        return affine_map(module, self.shape(layer).d_model, f"{self.module_names[layer]}.{child}", like, used)


class LinearAdapter(Adapter):
    """The adapter of a family whose layers have a linear map for queries and one for keys, the first two of `projections`."""

    def project(self, layer: int, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        module = self.attention_module(layer)
        query, key = (getattr(module, name)(inputs) for name in self.projections[:2])
        return query, key

    def projection(self, layer: int) -> Projection:
        query, key = (self._affine(layer, name) for name in self.projections[:2])
        deviations = [part.deviation for part in (query, key) if part.deviation is not None]
        return Projection(query.W, query.b, key.W, max(deviations, default=None))


class FusedAdapter(Adapter):
    """The adapter of a family whose layers compute queries, keys and values by one linear map, named in `projections`."""

    def columns(self, layer: int) -> tuple[Any, Any]:
        """Return which outputs of the map are the queries (H d_h) and which the keys (G d_h), each as a slice or a list of indices.

        Most families have all queries first, then all keys, then all values.
        """
        shape = self.shape(layer)
        n_query = shape.n_heads * shape.d_head
        return slice(0, n_query), slice(n_query, n_query + shape.n_key_heads * shape.d_head)

    def project(self, layer: int, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        joint = getattr(self.attention_module(layer), self.projections[0])(inputs)
        queries, keys = (joint[..., columns] for columns in self.columns(layer))
        return queries, keys

    def projection(self, layer: int) -> Projection:
        query, key = self.columns(layer)
        used = key.stop if isinstance(key, slice) else None  # queries and keys first: values are not measured
        joint = self._affine(layer, self.projections[0], used)
        return Projection(
            joint.W[:, query], None if joint.b is None else joint.b[query], joint.W[:, key], joint.deviation
        )


def interleaved_columns(shape: LayerShape) -> tuple[list[int], list[int]]:
    """Return the columns of queries and of keys if each head has its own queries, keys and values side by side."""
    width = shape.d_head
    query, key = (
        [3 * width * head + part * width + k for head in range(shape.n_heads) for k in range(width)] for part in (0, 1)
    )
    return query, key


def affine_map(module: torch.nn.Module, d_in: int, name: str, like: torch.Tensor, used: int | None = None) -> AffineMap:
    r"""Return the affine map that a module computes.

    For a plain linear layer the map is its weights. If a layer is wrapped by an adapter, quantised, parametrised or hooked, its
    weights are not the whole map. The module :math:`f` is then evaluated: b = f(0) and :math:`W_j = (f(c\, e_j) - b)/c` at the
    unit vectors, with c so large that b takes no digits from W. Random inputs measure the deviation of f from this map; if it
    exceeds `AFFINE_RTOL` of the outputs, there is no W and an error is raised.

    Args:
        d_in: the width of the inputs.

        name: the name of the module in its model.

        like: a torch tensor with the device and precision of the module's inputs.

        used: the number of leading outputs that are queries and keys; all by default.
    """
    import torch

    if is_plain(module):
        W, b = module.weight.T if isinstance(module, torch.nn.Linear) else module.weight, module.bias
        return AffineMap(W[:, :used], b if b is None else b[:used])
    what = f"the module {name} of type {type(module).__name__}"

    def applied(inputs: torch.Tensor) -> torch.Tensor:
        """Apply the module to inputs (1, n, d_in), in float64, and return its outputs (n, d_out)."""
        outputs = module(inputs)
        if getattr(outputs, "shape", ())[:2] != inputs.shape[:2]:
            raise InputError("model", _AFFINE, f"{what}, which does not give one vector for each token,")
        values = outputs[0].detach().cpu().double()
        if not bool(values.isfinite().all()):
            raise InputError("model", _AFFINE, f"{what}, which gives numbers that are not finite,")
        return values[:, :used]

    trials = torch.as_tensor(np.random.default_rng(0).standard_normal((1, _N_TRIALS, d_in))).to(like)
    with torch.no_grad(), evaluating(module):
        b = applied(like.new_zeros((1, 1, d_in)))[0]
        eye = torch.eye(d_in, device=like.device, dtype=like.dtype)[None]
        W = applied(eye) - b
        typical, offset = float(W.square().mean().sqrt()), float(b.abs().max())
        if 0.0 < typical < offset:  # unit vectors so long that what they add to b is as large as b
            multiple = float(min(2.0 ** np.ceil(np.log2(offset / typical)), _MAX_MULTIPLE))
            W = (applied(multiple * eye) - b) / multiple
        deviation = max(
            _deviation(applied(x), x[0].cpu().double() @ W + b) for x in (size * trials for size in _TRIAL_SIZES)
        )
    if deviation > AFFINE_RTOL:
        missed = f"which misses the affine map measured at unit vectors by {deviation:.0%} of its outputs"
        raise InputError(
            "model", _AFFINE, f"{what}, {missed},", f"Its heads have no key-query matrix beyond {AFFINE_RTOL:.0%}."
        )
    return AffineMap(W, b, deviation)


def is_plain(module: torch.nn.Module) -> bool:
    """Return whether a module computes exactly what its weight and bias state: it is an unwrapped linear layer of torch or transformers."""
    import torch
    from transformers.pytorch_utils import Conv1D

    if type(module) not in (torch.nn.Linear, Conv1D) or "forward" in vars(module):
        return False
    if module._forward_hooks or module._forward_pre_hooks:
        return False
    tensors = [tensor for tensor in (module.weight, module.bias) if tensor is not None]
    return all(type(tensor) in (torch.nn.Parameter, torch.Tensor) and tensor.is_floating_point() for tensor in tensors)


@contextmanager
def evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Turn off dropout inside the block, and restore every module afterwards."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _deviation(outputs: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the deviation of the worst coordinate of outputs (n, d_out) relative to all outputs; root mean squares over the inputs."""
    difference, size = (outputs - expected).square().mean(dim=0).max().sqrt(), outputs.square().mean().sqrt()
    return float(difference / size) if float(size) > 0.0 else float(difference > 0.0)


def device_of(*modules: Any) -> torch.device | str:
    """Return the device of the first loaded weight; the CPU if all weights are loaded on use."""
    tensors = (tensor for module in modules for tensor in chain(module.parameters(), module.buffers()))
    return next((tensor.device for tensor in tensors if tensor.device.type != "meta"), "cpu")


def logit_rounding(dtype: torch.dtype) -> float:
    """Return how far two logits that ought to be equal may differ, relative to the lengths of query and key.

    In half precision, queries and keys are rounded, and products are summed in single precision; otherwise the sums round as
    well, several times. If `torch.set_float32_matmul_precision` allows rounding of the factors of products, its precision
    counts.
    """
    import torch

    coarse = {"high": 2.0**-10, "medium": 2.0**-7}.get(torch.get_float32_matmul_precision(), 0.0)
    usual = float(torch.finfo(dtype).eps) * (1.0 if dtype.itemsize < 4 else 4.0)
    return max(usual, coarse) if dtype == torch.float32 else usual


def _rounding(queries: torch.Tensor, keys: torch.Tensor, real: torch.Tensor, multiplied: torch.dtype) -> torch.Tensor:
    """Return `logit_rounding` times the length of each query and of the longest key among the real tokens, (B, H, T).

    The coarser dtype counts, that of the queries or `multiplied`, the dtype of their products: autocast may lower only the
    latter.
    """
    import torch

    wide = torch.promote_types(queries.dtype, torch.float32)
    lengths, longest = (torch.linalg.vector_norm(x, dim=-1, dtype=wide) for x in (queries, keys))
    longest = longest.masked_fill(~real[:, None], 0.0).amax(dim=-1, keepdim=True)
    longest = longest.repeat_interleave(queries.shape[1] // keys.shape[1], dim=1)
    return max(map(logit_rounding, (queries.dtype, multiplied))) * lengths * longest


def real_tokens(attention_mask: torch.Tensor | None, tokens: torch.Tensor) -> torch.Tensor:
    """Mark the tokens (B, T, d) that are not padding, as booleans (B, T): by the batch's mask or because a token sees itself; else all."""
    import torch

    if attention_mask is not None and attention_mask.ndim == 2:
        return attention_mask.to(device=tokens.device, dtype=torch.bool)
    if attention_mask is not None and attention_mask.ndim == 4:  # (B, 1, T, T), added to logits as it is
        if not attention_mask.is_floating_point():
            raise InputError(
                "batch",
                "given a mask (B, T) of ones and zeros, or one that is added to logits",
                f"{attention_mask.dtype}",
            )
        itself = sees(attention_mask).any(dim=1).diagonal(dim1=1, dim2=2)
        return itself.to(tokens.device).expand(tokens.shape[:2])
    return torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)


def _all_finite(factors: Factors) -> bool:
    return all(bool(np.isfinite(array).all()) for array in factors)


def _numpy(tensor: torch.Tensor) -> FloatArray:
    return np.asarray(tensor.detach().cpu().double().numpy())
