"""Vision transformers (ViT, DeiT, DINOv2): every patch sees every patch; inputs are read after the layer's norm."""

from __future__ import annotations

from typing import Any, ClassVar

from marginlens.probe.models.adapters.base import LinearAdapter


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


def image_shape(config: Any) -> tuple[int, int, int]:
    """Channels, height and width of the images that a configuration asks for."""
    size = config.image_size
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return int(config.num_channels), int(height), int(width)
