"""Models of any family that return their attention: measures that need no weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from marginlens.errors import InputError
from marginlens.probe.heads.statistics import AttentionRule
from marginlens.probe.models.adapters.base import (
    Adapter,
    LayerKind,
    LayerReading,
    LayerShape,
    Projection,
    evaluating,
    real_tokens,
)
from marginlens.probe.models.adapters.encoder_decoder import with_decoder_inputs
from marginlens.words import Fact

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

_OUTPUTS = {  # of a model's output, in the order of layers → the part of the model they belong to
    "encoder_attentions": "encoder",
    "attentions": "",
    "decoder_attentions": "decoder",
    "cross_attentions": "cross",
}
_LEAST_LOGIT = -1e4  # whose exponential is 0
_SUM_ATOL = 1e-2  # by which the attention of a query may miss the sum 1, in half precision


class AttentionOnlyAdapter(Adapter):
    """The adapter of a model of any family, whose own attention is taken as it is.

    Logits are the logarithms of the attention, which differ from the model's by a constant of the query. Selections and margins
    are therefore the same unless probabilities underflow. A token without attention in any head of a layer counts as hidden.
    There is no W, and a reading has no inputs: its queries and keys are zeros of width 1, and its bias holds the logits.

    Args:
        model: a loaded Hugging Face model with attn_implementation="eager".

        reason: the reason why W is not read, as a clause or a fact; by default, the family has no adapter.
    """

    reads_weights: ClassVar[bool] = False

    def __init__(self, model: PreTrainedModel, reason: str | Fact = "") -> None:
        self.model = model.base_model
        self.config = self.model.config
        self.reason = reason or Fact("no_weights.family", {"family": self.config.model_type})
        self.module_names: tuple[str, ...] = ()
        self._modules: list[Any] = []
        # tower, kind and heads of each layer, once it has run
        self._layers: list[tuple[str, LayerKind, int]] | None = None

    def observe(self, inputs: Mapping[str, torch.Tensor]) -> AttentionOnlyAdapter:
        """Run a batch to find the numbers of layers and heads."""
        if self._layers is None:
            for _ in self.readings(dict(inputs)):
                pass
        return self

    @property
    def layers(self) -> list[tuple[str, LayerKind, int]]:
        """The tower, kind and number of heads of each layer."""
        if self._layers is None:
            raise InputError("model", "one whose layers are known", "one without an adapter", "Read a batch first.")
        return self._layers

    @property
    def n_layers(self) -> int:
        return len(self.layers)

    def shape(self, layer: int) -> LayerShape:
        n_heads = self.layers[self.check_layer(layer)][2]
        return LayerShape(n_heads, n_heads, 0, 0)

    def tower(self, layer: int) -> str:
        return self.layers[layer][0]

    def kind(self, layer: int) -> LayerKind:
        return self.layers[layer][1]

    def readings(self, inputs: dict[str, torch.Tensor], layers: Sequence[int] | None = None) -> Iterator[LayerReading]:
        """Read the attention of the layers, all of them by default, on a batch of tensors."""
        import torch

        completed = with_decoder_inputs(self.config, inputs) if hasattr(self.model, "decoder") else inputs
        with torch.no_grad(), evaluating(self.model):
            output = self.model(**completed, output_attentions=True, return_dict=True)
        found = [
            (tower, maps)
            for name, tower in _OUTPUTS.items()
            for maps in (getattr(output, name, None) or ())
            if maps is not None
        ]
        n_inputs = len(next(value for value in completed.values() if hasattr(value, "shape")))
        described, kept = [], []
        for tower, maps in found:
            self._check(maps, n_inputs)
            kind = (
                LayerKind.WINDOW if len(maps) != n_inputs else LayerKind.CROSS if tower == "cross" else LayerKind.SELF
            )
            described.append((tower, kind, int(maps.shape[1])))
            kept.append(maps)
        if not described:
            raise InputError(
                "model",
                "a model that hands out its attention",
                f"{type(self.model).__name__}, whose output has none",
                "It has no attention, as state-space models have none, or keeps it to itself.",
            )
        self._layers = described
        for layer in range(len(kept)) if layers is None else layers:
            yield self._reading(self.check_layer(layer), kept[layer], completed)

    def _check(self, maps: torch.Tensor, n_inputs: int) -> None:
        is_map = getattr(maps, "ndim", 0) == 4 and len(maps) % n_inputs == 0
        sums = maps.sum(dim=-1) if is_map else None
        if sums is None or bool(((sums - 1.0).abs() > _SUM_ATOL).logical_and(sums.abs() > _SUM_ATOL).any()):
            raise InputError(
                "model",
                "a model whose attention is (n_inputs, n_heads, n_queries, n_tokens) and sums to 1 over tokens",
                f"{type(self.model).__name__}, whose attention is something else, of shape {tuple(maps.shape)}",
            )

    def _reading(self, layer: int, maps: torch.Tensor, inputs: Mapping[str, torch.Tensor]) -> LayerReading:
        import torch

        tower, kind, _ = self.layers[layer]
        name = "decoder_attention_mask" if tower in ("decoder", "cross") else "attention_mask"
        stated = inputs.get(name)
        if stated is None or stated.ndim != 2 or tuple(stated.shape) != (len(maps), maps.shape[2]):
            stated = None
        real = real_tokens(stated, maps[:, 0])
        visible = (maps > 0).any(dim=1) & real[:, :, None]
        logits = maps.log().masked_fill(~visible[:, None], float("-inf"))
        eps = torch.finfo(maps.dtype).eps
        finite = torch.where(torch.isfinite(logits), logits.abs(), 0.0).amax(dim=-1)
        bias = logits.clamp(min=_LEAST_LOGIT)  # a token that this head alone gives nothing is seen all the same
        rule = AttentionRule(scale=1.0, bias=bias, mask=visible[:, None])
        n_inputs, n_heads, n_queries, n_tokens = maps.shape
        queries, keys = (
            maps.new_zeros((n_inputs, n_heads, n_queries, 1)),
            maps.new_zeros((n_inputs, n_heads, n_tokens, 1)),
        )
        rounding = 4.0 * eps * (1.0 + finite)
        reading = LayerReading(layer, None, queries, keys, rule, visible.any(dim=-1), rounding, self, kind)
        vars(reading).update(logits=logits, attention=maps, visible=visible)  # as they are, not by way of a logarithm
        return reading

    def scale(self, layer: int) -> float:
        return 1.0

    def project(self, layer: int, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        raise InputError("model", "one whose weights can be read", f"{self.config.model_type!r}: {self.reason}")

    def projection(self, layer: int) -> Projection:
        raise InputError("model", "one whose weights can be read", f"{self.config.model_type!r}: {self.reason}")
