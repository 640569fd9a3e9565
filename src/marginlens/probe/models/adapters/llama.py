"""Decoders with rotary positions and grouped queries: Llama, Mistral, Qwen2, Gemma, StarCoder2."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from marginlens.data.tokens import FloatArray
from marginlens.errors import reject
from marginlens.probe.heads.key_query import KeyQueryMap
from marginlens.probe.models.adapters.base import Factors, LayerMaps, LinearAdapter

_CHANGING = ("dynamic", "longrope")  # rotary frequencies that depend on how long the text is


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

        cos, sin = (one[:, None] for one in rotation)  # (1 or B, 1, T, d_h)
        first, second = heads.chunk(2, dim=-1)
        return heads * cos + torch.cat((-second, first), dim=-1) * sin

    def key_query(self, layer: int, head: int, offset: int | None = None) -> KeyQueryMap:
        r"""The effective key-query map of one head at one offset, R(offset) taken into W_K.

        Among tokens at that offset a key bias adds the same to every logit of a query; between offsets it does not.

        Args:
            offset: position of the query minus position of the token, e.g. 1 for the token just before.
        """
        return super().key_query(layer, head, self._checked(offset))

    def layer_maps(self, layer: int, offset: int | None = None) -> LayerMaps:
        """`key_query` of all heads of a layer at one offset."""
        return super().layer_maps(layer, self._checked(offset))

    def _checked(self, offset: int | None) -> int:
        if offset is None:
            raise reject(
                "offset",
                "a number of positions (of the query minus of the token)",
                "None",
                "Rotary positions turn queries and keys, so this model has a key-query matrix for each offset "
                "but none that is free of positions.",
            )
        if isinstance(offset, bool) or not isinstance(offset, int | np.integer):
            raise reject("offset", "a whole number of positions", repr(offset))
        return int(offset)

    def _map(self, layer: int, factors: Factors, offset: int | None) -> KeyQueryMap:
        W_Q, b_Q, W_K = factors
        turn, factor = self._turn(self._checked(offset))
        return KeyQueryMap(W_K=W_K @ turn, W_Q=W_Q, b_Q=b_Q, scale=self.scale(layer) * factor)

    def _turn(self, offset: int) -> tuple[FloatArray, float]:
        """R(offset), (d_h, d_h), as it acts on a column, and the factor that some rotary types put on every logit."""
        rotary = next(one.rotary_emb for one in self.model.modules() if hasattr(one, "rotary_emb"))
        if rotary.rope_type in _CHANGING:
            raise reject("model", "one whose rotary frequencies stay the same", f"the rotary type {rotary.rope_type!r}")
        angle = offset * rotary.inv_freq.detach().cpu().double().numpy()  # (d_h / 2,)
        cos, sin = np.diag(np.cos(angle)), np.diag(np.sin(angle))
        return np.block([[cos, -sin], [sin, cos]]), float(rotary.attention_scaling) ** 2
