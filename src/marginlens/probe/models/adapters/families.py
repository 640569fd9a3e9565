"""One adapter for each family of models: encoders of text and of images, GPT-2, and decoders with rotary positions."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from marginlens.errors import reject
from marginlens.probe.heads.key_query import KeyQueryMap
from marginlens.probe.models.adapters.base import Adapter, Factors, LinearAdapter, Projection
from marginlens.typing import FloatArray

_CHANGING_FREQUENCIES = ("dynamic", "longrope")  # rotary types whose frequencies depend on how long the text is


class BertAdapter(LinearAdapter):
    """BERT, RoBERTa, CamemBERT, XLM-RoBERTa and ELECTRA, with positions that are part of the inputs."""

    families: ClassVar[tuple[str, ...]] = ("bert", "roberta", "camembert", "xlm-roberta", "electra")
    projections: tuple[str, ...] = ("query", "key")

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        kind = getattr(self.config, "position_embedding_type", None) or "absolute"
        if kind != "absolute":
            raise reject("model", "a model whose positions are part of its inputs", f"one with {kind!r} positions")


class DistilBertAdapter(LinearAdapter):
    """DistilBERT: BERT's layers under other names."""

    families: ClassVar[tuple[str, ...]] = ("distilbert",)
    projections: tuple[str, ...] = ("q_lin", "k_lin")


class ViTAdapter(LinearAdapter):
    """ViT and DeiT. Token 0 is the class token, DeiT's token 1 the distillation token; patches follow row by row."""

    families: ClassVar[tuple[str, ...]] = ("vit", "deit")
    projections: tuple[str, ...] = ("q_proj", "k_proj")
    softmax_in_single: ClassVar[bool] = True

    @property
    def d_head(self) -> int:
        return int(getattr(self.config, "head_dim", None) or self.d_model // self.n_heads)


class Dinov2Adapter(ViTAdapter):
    """DINOv2 without registers, whose softmax keeps the model's precision."""

    families: ClassVar[tuple[str, ...]] = ("dinov2",)
    softmax_in_single: ClassVar[bool] = False

    def __init__(self, model: Any) -> None:
        if not any(hasattr(module, "q_proj") for module in model.modules()):
            self.projections = ("query", "key")  # what earlier versions of transformers call them
        super().__init__(model)


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


class LlamaAdapter(LinearAdapter):
    r"""Llama, Mistral, Qwen2, Gemma and StarCoder2; a sliding window reaches the reading through the model's own mask.

    A query at position m and a key at position n are turned by R(m) and R(n) before their product, so that the logit
    is :math:`x^\top W_K R(m-n) W_Q^\top z` times the scale: it has no matrix of its own, only one for each offset m - n.
    """

    families: ClassVar[tuple[str, ...]] = ("llama", "mistral", "qwen2", "gemma", "starcoder2")
    projections: tuple[str, ...] = ("q_proj", "k_proj")
    rotary: ClassVar[bool] = True
    softmax_in_single: ClassVar[bool] = True
    call_options: ClassVar[dict[str, Any]] = {"use_cache": False}

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        if any(hasattr(module, name) for module in self._modules for name in ("q_norm", "k_norm")):
            raise reject("model", "a model whose queries are linear in its inputs", "one that normalises its queries")

    @property
    def n_key_heads(self) -> int:
        return int(self.config.num_key_value_heads)

    @property
    def d_head(self) -> int:
        return int(getattr(self.config, "head_dim", None) or self.d_model // self.n_heads)

    def rotate(self, heads: Any, rotation: Any) -> Any:
        import torch

        cos, sin = (table[:, None] for table in rotation)  # (1 or B, 1, T, d_h)
        first, second = heads.chunk(2, dim=-1)
        return heads * cos + torch.cat((-second, first), dim=-1) * sin

    def _map(self, layer: int, factors: Factors, offset: int | None) -> KeyQueryMap:
        """The effective map of one head at one offset, R(offset) taken into W_K.

        Among tokens at that offset a key bias adds the same to every logit of a query; between offsets it does not.
        """
        if offset is None or isinstance(offset, bool) or not isinstance(offset, int | np.integer):
            raise reject(
                "offset",
                "a whole number of positions (of the query minus of the token)",
                repr(offset),
                "Rotary positions turn queries and keys, so this model has a key-query matrix for each offset "
                "but none that is free of positions.",
            )
        W_Q, b_Q, W_K = factors
        rotation, factor = self._rotation(int(offset))
        return KeyQueryMap(W_K=W_K @ rotation, W_Q=W_Q, b_Q=b_Q, scale=self.scale(layer) * factor)

    def _rotation(self, offset: int) -> tuple[FloatArray, float]:
        """R(offset), (d_h, d_h), as it acts on a column, and the factor that some rotary types put on every logit."""
        rotary = next(module.rotary_emb for module in self.model.modules() if hasattr(module, "rotary_emb"))
        if rotary.rope_type in _CHANGING_FREQUENCIES:
            raise reject("model", "one whose rotary frequencies stay the same", f"the rotary type {rotary.rope_type!r}")
        angle = offset * rotary.inv_freq.detach().cpu().double().numpy()  # (d_h / 2,)
        cos, sin = np.diag(np.cos(angle)), np.diag(np.sin(angle))
        return np.block([[cos, -sin], [sin, cos]]), float(rotary.attention_scaling) ** 2
