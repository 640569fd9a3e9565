"""Models that rotate queries and keys by their positions: the Llama family, with fused maps, normalised queries or capped logits."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from marginlens.errors import InputError
from marginlens.probe.heads.key_query import KeyQueryMap
from marginlens.probe.models.adapters.base import (
    Adapter,
    Factors,
    FusedAdapter,
    HeadInputs,
    LinearAdapter,
    Projection,
    interleaved_columns,
)
from marginlens.typing import FloatArray
from marginlens.words import Fact

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

_LONGEST_SHORT = {  # rotary types with other frequencies for long texts → what the configuration calls the length up to which one is short
    "dynamic": "max_position_embeddings",
    "longrope": "original_max_position_embeddings",
}


class RotaryAdapter(Adapter):
    r"""The base for families with rotary positions; a sliding window enters the reading through the model's own mask.

    A query at position m and a key at position n are rotated by R(m) and R(n) before their product, so the logit is
    :math:`x^\top W_K R(m-n) W_Q^\top z` times the scale. There is no single matrix W, only one for each offset m - n. If only
    the first coordinates of a head are rotated, R is the identity on the others.
    """

    rotary: ClassVar[bool] = True
    softmax_in_single: ClassVar[bool] = True
    call_options: ClassVar[dict[str, Any]] = {"use_cache": False}

    def rotate(self, heads: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        import torch

        cos, sin = (table[:, None] for table in rotation)  # (1 or B, 1, T, width that is turned)
        turned, rest = heads[..., : cos.shape[-1]], heads[..., cos.shape[-1] :]
        first, second = turned.chunk(2, dim=-1)
        turned = turned * cos + torch.cat((-second, first), dim=-1) * sin
        return torch.cat((turned, rest), dim=-1) if rest.shape[-1] else turned

    def _map(self, layer: int, factors: Factors, offset: int | None) -> KeyQueryMap:
        """Return the effective map of one head at one offset, with R(offset) included in W_K.

        Among tokens at that offset a key bias adds the same to every logit of a query; between offsets it does not.
        """
        if offset is None or isinstance(offset, bool) or not isinstance(offset, int | np.integer):
            raise InputError(
                "offset",
                "a whole number of positions (of the query minus of the token)",
                repr(offset),
                "Rotary positions turn queries and keys, so this model has a key-query matrix for each offset "
                "but none that is free of positions.",
            )
        W_Q, b_Q, W_K = factors
        return KeyQueryMap(W_K=W_K @ self.rotation(layer, int(offset)), W_Q=W_Q, b_Q=b_Q, scale=self.scale(layer))

    @property
    def longest_text(self) -> int | None:
        kinds = self._rotary.rope_type
        kind = next(
            (kind for kind in _LONGEST_SHORT if kind in (kinds.values() if isinstance(kinds, dict) else [kinds])), None
        )
        if kind is None:
            return None
        stated = (
            self.config.rope_parameters.get(_LONGEST_SHORT[kind]),
            getattr(self.config, _LONGEST_SHORT[kind], None),
        )
        return next((int(length) for length in stated if length), None)

    @property
    def _rotary(self) -> torch.nn.Module:
        return next(module.rotary_emb for module in self.model.modules() if hasattr(module, "rotary_emb"))

    def rotation(self, layer: int, offset: int) -> FloatArray:
        """Return R(offset), (d_h, d_h), as it acts on a column, including the factor of some rotary types."""
        rotary, prefix = self._rotary, ""
        kind = rotary.rope_type
        if isinstance(kind, dict):  # layers of several kinds, each with its own frequencies
            of_layer = self.config.layer_types[layer]
            kind, prefix = kind[of_layer], f"{of_layer}_"
        frequencies = "original_inv_freq" if kind in _LONGEST_SHORT else "inv_freq"  # those of short texts
        angle = offset * getattr(rotary, prefix + frequencies).detach().cpu().double().numpy()  # (width turned / 2,)
        cos, sin = np.diag(np.cos(angle)), np.diag(np.sin(angle))
        scaling = float(getattr(rotary, f"{prefix}attention_scaling"))
        turned = scaling**2 * np.block([[cos, -sin], [sin, cos]])
        matrix = np.eye(self.shape(layer).d_head)
        matrix[: len(turned), : len(turned)] = turned
        return matrix


class LlamaAdapter(RotaryAdapter, LinearAdapter):
    """Llama, Mistral, Mixtral, Qwen2, Gemma, StarCoder2, and Phi, which rotates only a part of each head."""

    families: ClassVar[tuple[str, ...]] = ("llama", "mistral", "mixtral", "qwen2", "gemma", "starcoder2", "phi")
    projections: tuple[str, ...] = ("q_proj", "k_proj")

    @classmethod
    def without_weights(cls, model: PreTrainedModel) -> str | Fact:
        norms = ("q_norm", "k_norm", "q_layernorm", "k_layernorm")
        normalises = any(hasattr(module, name) for module in model.modules() for name in norms)
        return Fact("no_weights.normalised") if normalises else ""


class GptOssAdapter(LlamaAdapter):
    """gpt-oss, whose heads each have a learned logit in addition to those of the tokens: a sink that takes attention and adds nothing."""

    families: ClassVar[tuple[str, ...]] = ("gpt_oss",)
    softmax_in_single: ClassVar[bool] = False

    def rotate(self, heads: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        import torch

        cos, sin = (torch.cat((table, table), dim=-1) for table in rotation)  # one angle a pair
        return super().rotate(heads, (cos, sin))

    def sink_logits(self, layer: int) -> torch.Tensor:
        return self.attention_module(layer).sinks.detach()


class NormalisedAdapter(RotaryAdapter, LinearAdapter):
    r"""Qwen3, Gemma 3 and OLMo 2 and 3, which normalise queries and keys before rotation.

    With :math:`\rho` the root mean square of a head's (or, in OLMo, of all heads') queries or keys and g the gain of the norm, the query is
    :math:`g_Q \odot W_Q^\top z/\rho_Q(z)` and the key :math:`g_K \odot W_K^\top x/\rho_K(x)`. The gains belong to W; the factors
    :math:`1/\rho` of query and token do not, and are the reading's `query_factor` and `key_factor`. The first changes how decisive a
    query is but not what it selects; the second can change the selection.
    """

    families: ClassVar[tuple[str, ...]] = ("qwen3", "qwen3_moe", "gemma3_text", "olmo2", "olmo3")
    projections: tuple[str, ...] = ("q_proj", "k_proj", "q_norm", "k_norm")
    beyond_w: str | Fact = Fact("beyond_w.normalised")

    def projection(self, layer: int) -> Projection:
        module, found = self.attention_module(layer), super().projection(layer)
        g_Q, g_K = _gains(module.q_norm, found.W_Q), _gains(module.k_norm, found.W_K)
        b_Q = None if found.b_Q is None else found.b_Q * g_Q
        return replace(found, W_Q=found.W_Q * g_Q, b_Q=b_Q, W_K=found.W_K * g_K)

    def normalise(self, layer: int, queries: torch.Tensor, keys: torch.Tensor) -> HeadInputs:
        module, shape = self.attention_module(layer), self.shape(layer)
        made, factors = [], []
        for flat, norm, n_heads in (
            (queries, module.q_norm, shape.n_heads),
            (keys, module.k_norm, shape.n_key_heads),
        ):
            by_head = len(norm.weight) == shape.d_head
            read = flat.view(*flat.shape[:2], n_heads, -1) if by_head else flat
            made.append(norm(read).reshape(flat.shape))
            factor = (read.double().square().mean(dim=-1) + _norm_eps(norm)).rsqrt().to(flat.dtype)
            factors.append((factor if by_head else factor[..., None].expand(-1, -1, n_heads)).transpose(1, 2))
        return HeadInputs(*made, *factors)

    def scale(self, layer: int) -> float:
        return float(self.attention_module(layer).scaling)


class CappedAdapter(RotaryAdapter, LinearAdapter):
    r"""Gemma 2, whose logits are :math:`c \tanh(l/c)` of l: the order of tokens is that of l, and so is the selection; margins shrink."""

    families: ClassVar[tuple[str, ...]] = ("gemma2",)
    projections: tuple[str, ...] = ("q_proj", "k_proj")
    beyond_w: str | Fact = Fact("beyond_w.cap")

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        if all(self.cap(layer) is None for layer in range(self.n_layers)):
            self.beyond_w = ""

    def scale(self, layer: int) -> float:
        return float(self.attention_module(layer).scaling)

    def cap(self, layer: int) -> float | None:
        cap = self.attention_module(layer).attn_logit_softcapping
        return None if cap is None else float(cap)


class Phi3Adapter(RotaryAdapter, FusedAdapter):
    """Phi-3: Llama's layers with a single map for queries, keys and values."""

    families: ClassVar[tuple[str, ...]] = ("phi3",)
    projections: tuple[str, ...] = ("qkv_proj",)


class GptNeoXAdapter(RotaryAdapter, FusedAdapter):
    """GPT-NeoX and Pythia: a single map with the parts of each head side by side, and rotation of a part of each head."""

    families: ClassVar[tuple[str, ...]] = ("gpt_neox",)
    projections: tuple[str, ...] = ("query_key_value",)

    def columns(self, layer: int) -> tuple[list[int], list[int]]:
        return interleaved_columns(self.shape(layer))


class ModernBertAdapter(RotaryAdapter, FusedAdapter):
    """ModernBERT: an encoder with rotary positions, which most layers use inside a window around the query."""

    families: ClassVar[tuple[str, ...]] = ("modernbert",)
    projections: tuple[str, ...] = ("Wqkv",)
    call_options: ClassVar[dict[str, Any]] = {}

    def rotate(self, heads: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return super().rotate(heads.float(), rotation).to(heads.dtype)  # in single precision, as the family's own code


def _norm_eps(norm: torch.nn.Module) -> float:
    return float(getattr(norm, "variance_epsilon", None) or getattr(norm, "eps", None) or 0.0)


def _gains(norm: torch.nn.Module, W: torch.Tensor) -> torch.Tensor:
    """Return the factors by which a norm multiplies the columns of W (d, heads d_h): its outputs at ones, whose root mean square is 1."""
    import torch

    with torch.no_grad():
        gain = norm(torch.ones_like(norm.weight)) * math.sqrt(1.0 + _norm_eps(norm))  # of a head, or of all
    return gain.to(W).repeat(W.shape[1] // len(gain))
