"""GPT-2: one map makes queries, keys and values; a token sees itself and the tokens before it."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from marginlens.probe.models.adapters.base import Adapter, Projection


class Gpt2Adapter(Adapter):
    """GPT-2, with its options: no scale, a scale that falls with the layer, products in float32."""

    families: ClassVar[tuple[str, ...]] = ("gpt2",)
    projections: tuple[str, ...] = ("c_attn",)
    call_options: ClassVar[dict[str, Any]] = {"use_cache": False}

    def project(self, layer: int, inputs: Any) -> tuple[Any, Any]:
        queries, keys, _ = self.attention_module(layer).c_attn(inputs).split(self.d_model, dim=2)
        return queries, keys

    def projection(self, layer: int) -> Projection:
        d = self.d_model
        joint = self._affine(layer, "c_attn", used=2 * d)  # W (d, 2 d), without the values
        return Projection(joint.W[:, :d], None if joint.b is None else joint.b[:d], joint.W[:, d:], joint.deviation)

    def scale(self, layer: int) -> float:
        scale = 1.0 / math.sqrt(self.d_head) if self.config.scale_attn_weights else 1.0
        return scale / (layer + 1) if self.config.scale_attn_by_inverse_layer_idx else scale

    def products(self, layer: int, queries: Any, keys: Any) -> Any:
        import torch

        if not self.config.reorder_and_upcast_attn:
            return super().products(layer, queries, keys)
        with torch.autocast(queries.device.type, enabled=False):
            return super().products(layer, queries.float(), keys.float())
