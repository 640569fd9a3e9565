"""Text decoders without rotary positions: GPT-2 and OPT have positions in the inputs, and BLOOM adds them to logits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

from marginlens.probe.models.adapters.base import Captured, FusedAdapter, LinearAdapter, interleaved_columns
from marginlens.words import Fact

if TYPE_CHECKING:
    import torch


class Gpt2Adapter(FusedAdapter):
    """GPT-2 and its options: no scale, a scale that decreases with the layer, and products in float32."""

    families: ClassVar[tuple[str, ...]] = ("gpt2",)
    projections: tuple[str, ...] = ("c_attn",)
    call_options: ClassVar[dict[str, Any]] = {"use_cache": False}

    def scale(self, layer: int) -> float:
        scale = 1.0 / math.sqrt(self.shape(layer).d_head) if self.config.scale_attn_weights else 1.0
        return scale / (layer + 1) if self.config.scale_attn_by_inverse_layer_idx else scale

    def products(self, layer: int, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        import torch

        if not self.config.reorder_and_upcast_attn:
            return super().products(layer, queries, keys)
        with torch.autocast(queries.device.type, enabled=False):
            return super().products(layer, queries.float(), keys.float())


class OptAdapter(LinearAdapter):
    """OPT."""

    families: ClassVar[tuple[str, ...]] = ("opt",)
    projections: tuple[str, ...] = ("q_proj", "k_proj")
    softmax_in_single: ClassVar[bool] = True
    call_options: ClassVar[dict[str, Any]] = {"use_cache": False}


class BloomAdapter(FusedAdapter):
    """BLOOM, which adds the token's position times a slope of the head to a logit (ALiBi); it is the reading's `bias`."""

    families: ClassVar[tuple[str, ...]] = ("bloom",)
    projections: tuple[str, ...] = ("query_key_value",)
    beyond_w: str | Fact = Fact("beyond_w.slope")
    softmax_in_single: ClassVar[bool] = True
    call_options: ClassVar[dict[str, Any]] = {"use_cache": False}

    def columns(self, layer: int) -> tuple[list[int], list[int]]:
        return interleaved_columns(self.shape(layer))

    def bias(self, layer: int, captured: Captured, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        alibi = captured.arguments["alibi"]  # (B H, 1, T)
        return alibi.view(queries.shape[0], -1, *alibi.shape[1:])
