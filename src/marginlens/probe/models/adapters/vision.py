"""Image models: the ViT family, CLIP's two towers, and Swin, which attends inside shifted windows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from marginlens.probe.models.adapters.base import Captured, LayerKind, LayerShape, LinearAdapter, real_tokens
from marginlens.words import Fact

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

_SWIN_HIDES = -100.0  # what Swin adds to the logit of a token from another part of the image


class ViTAdapter(LinearAdapter):
    """ViT and DeiT. Token 0 is the class token, DeiT's token 1 the distillation token; patches follow row by row."""

    families: ClassVar[tuple[str, ...]] = ("vit", "deit")
    projections: tuple[str, ...] = ("q_proj", "k_proj")
    softmax_in_single: ClassVar[bool] = True


class Dinov2Adapter(ViTAdapter):
    """DINOv2, whose softmax keeps the model's precision; registers, if any, are between the class token and the patches."""

    families: ClassVar[tuple[str, ...]] = ("dinov2", "dinov2_with_registers")
    softmax_in_single: ClassVar[bool] = False

    def __init__(self, model: PreTrainedModel) -> None:
        if not any(hasattr(module, "q_proj") for module in model.modules()):
            self.projections = ("query", "key")  # what earlier versions of transformers call them
        super().__init__(model)


class ClipAdapter(LinearAdapter):
    """CLIP: a tower for texts, with causal attention, and a tower for images; each runs if its inputs are given."""

    families: ClassVar[tuple[str, ...]] = ("clip", "clip_text_model", "clip_vision_model")
    projections: tuple[str, ...] = ("q_proj", "k_proj")
    softmax_in_single: ClassVar[bool] = True

    def shape(self, layer: int) -> LayerShape:
        module = self.attention_module(layer)
        return LayerShape(module.num_heads, module.num_heads, module.head_dim, module.embed_dim)

    def tower(self, layer: int) -> str:
        names = ("text", "vision") if self.config.model_type == "clip" else ()
        return next((name for name in names if f"{name}_model" in self.module_names[layer]), "")

    def run(self, inputs: dict[str, torch.Tensor]) -> object:
        if self.config.model_type != "clip":
            return super().run(inputs)
        texts = {name: value for name, value in inputs.items() if name != "pixel_values"}
        if "input_ids" in texts or "inputs_embeds" in texts:
            self.model.text_model(**texts)
        if "pixel_values" in inputs:
            self.model.vision_model(pixel_values=inputs["pixel_values"])
        return None

    def capture(self, layer: int, arguments: Mapping[str, Any], inputs: Mapping[str, torch.Tensor]) -> Captured:
        tokens, is_text = arguments["hidden_states"], self.tower(layer) != "vision"
        real = real_tokens(inputs.get("attention_mask") if is_text else None, tokens)
        return Captured(tokens, arguments.get("attention_mask"), real, arguments=arguments)


class SwinAdapter(LinearAdapter):
    """Swin: a query attends inside its window; every second layer shifts the windows and hides tokens that the shift brings together.

    The position of a token relative to the query has a learned bias besides W. A reading counts windows instead of inputs; heads
    become more, and tokens wider, from stage to stage.
    """

    families: ClassVar[tuple[str, ...]] = ("swin",)
    projections: tuple[str, ...] = ("q_proj", "k_proj")
    beyond_w: str | Fact = Fact("beyond_w.window")
    softmax_in_single: ClassVar[bool] = True

    def shape(self, layer: int) -> LayerShape:
        module = self.attention_module(layer)
        n_heads, width = int(module.num_attention_heads), int(module.head_dim)
        return LayerShape(n_heads, n_heads, width, n_heads * width)

    def kind(self, layer: int) -> LayerKind:
        return LayerKind.WINDOW

    def capture(self, layer: int, arguments: Mapping[str, Any], inputs: Mapping[str, torch.Tensor]) -> Captured:
        import torch

        # (B n_windows, w², d) and (n_windows, w², w²)
        tokens, mask = arguments["hidden_states"], arguments.get("attention_mask")
        if mask is not None:
            mask = mask.masked_fill(mask <= _SWIN_HIDES, torch.finfo(mask.dtype).min)
            mask = mask[:, None].repeat(len(tokens) // len(mask), 1, 1, 1)
        return Captured(tokens, mask, real_tokens(None, tokens), arguments=arguments)

    def bias(self, layer: int, captured: Captured, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        return self.attention_module(layer).relative_position_bias()
