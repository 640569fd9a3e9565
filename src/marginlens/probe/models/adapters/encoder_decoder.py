"""Encoders with a decoder that attends to them: T5, BART and Whisper."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from marginlens.errors import InputError
from marginlens.probe.models.adapters.base import Captured, LayerShape, LinearAdapter, real_tokens
from marginlens.words import Fact

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig

_CROSS = ("EncDecAttention", "encoder_attn")  # what families call the attention of decoder to encoder


class EncoderDecoderAdapter(LinearAdapter):
    """The base for T5, BART and Whisper: the layers of the encoder, then self-attention and cross-attention of the decoder in turn.

    If a batch has no decoder_input_ids, the decoder reads the encoder's text shifted by one token, as if it were writing this
    text. After an encoder of sound it reads only its start token.
    """

    call_options: ClassVar[dict[str, Any]] = {"use_cache": False}

    def tower(self, layer: int) -> str:
        name = self.module_names[layer]
        if any(part in name for part in _CROSS):
            return "cross"
        return "decoder" if name.startswith("decoder") else "encoder"

    def shape(self, layer: int) -> LayerShape:
        module = self.attention_module(layer)
        return LayerShape(module.num_heads, module.num_heads, module.head_dim, module.embed_dim)

    def complete(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        has_decoder = any(name.startswith("decoder") for name in self.module_names)
        return with_decoder_inputs(self.config, inputs) if has_decoder else inputs

    def capture(self, layer: int, arguments: Mapping[str, Any], inputs: Mapping[str, torch.Tensor]) -> Captured:
        tokens, is_encoder = arguments["hidden_states"], self.tower(layer) == "encoder"
        stated = inputs.get("attention_mask" if is_encoder else "decoder_attention_mask")
        if stated is not None and tuple(stated.shape) != tuple(tokens.shape[:2]):
            stated = None  # of frames of sound, which the encoder shortens and does not hide
        mask = arguments.get("attention_mask", arguments.get("mask"))
        memory = arguments.get("key_value_states")
        return Captured(tokens, mask, real_tokens(stated, tokens), memory=memory, arguments=arguments)


class BartAdapter(EncoderDecoderAdapter):
    """BART and Whisper, whose positions are part of the inputs; Whisper's encoder reads sound."""

    families: ClassVar[tuple[str, ...]] = ("bart", "whisper")
    projections: tuple[str, ...] = ("q_proj", "k_proj")


class T5Adapter(EncoderDecoderAdapter):
    """T5, whose logits are not scaled; all layers of a stack add the distance bias of its first layer.

    The cross-attention has no bias.
    """

    families: ClassVar[tuple[str, ...]] = ("t5",)
    projections: tuple[str, ...] = ("q", "k")
    beyond_w: str | Fact = Fact("beyond_w.distance")
    attention_output: ClassVar[int] = 2

    def shape(self, layer: int) -> LayerShape:
        module = self.attention_module(layer)
        return LayerShape(module.n_heads, module.n_heads, module.key_value_proj_dim, module.d_model)

    def scale(self, layer: int) -> float:
        return 1.0

    def bias(self, layer: int, captured: Captured, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor | None:
        given, module = captured.arguments.get("position_bias"), self.attention_module(layer)
        if given is not None or not module.has_relative_attention_bias:
            return given
        return module.compute_bias(queries.shape[2], keys.shape[2], device=queries.device)


def with_decoder_inputs(config: PretrainedConfig, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a batch of tensors with decoder_input_ids: those given, or the encoder's shifted by one after the start token, or
    only that token.
    """
    import torch

    if "decoder_input_ids" in inputs or "decoder_inputs_embeds" in inputs:
        return inputs
    start = start_token(config)
    ids = inputs.get("input_ids")
    if ids is None:
        first = next(iter(inputs.values()))
        return {**inputs, "decoder_input_ids": torch.full((len(first), 1), start, device=first.device)}
    moved = torch.cat((torch.full_like(ids[:, :1], start), ids[:, :-1]), dim=1)
    completed = {**inputs, "decoder_input_ids": moved}
    if "attention_mask" in inputs and inputs["attention_mask"].ndim == 2:
        completed["decoder_attention_mask"] = inputs["attention_mask"]
    return completed


def start_token(config: PretrainedConfig) -> int:
    """Return the token that a decoder reads first."""
    start = getattr(config, "decoder_start_token_id", None)
    start = getattr(config, "pad_token_id", None) if start is None else start
    if start is None:
        raise InputError(
            "batch",
            "one with decoder_input_ids, because the configuration of this model has no start token",
            "one without them",
        )
    return int(start)
