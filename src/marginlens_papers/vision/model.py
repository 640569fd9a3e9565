"""Vision transformers built from settings, and saved as transformers reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from marginlens.errors import missing_extra, reject
from marginlens.papers import uses
from marginlens.runtime.files import write_whole
from marginlens_papers.vision.images import LabelledImages
from marginlens_papers.vision.settings import VisionSettings

PROCESSOR = "preprocessor_config.json"


@uses("A", {"Eq. (4)": "The self-attention of every layer of the model whose attention maps Figures 6 and 7 measure."})
def vision_transformer(settings: VisionSettings, data: LabelledImages) -> Any:
    """A `ViTForImageClassification` in float32 on the processor, with the weights that the seed gives.

    Training runs the fused attention that hides its weights; `model.set_attn_implementation("eager")` shows them.
    """
    try:
        import torch
        from transformers import ViTConfig, ViTForImageClassification
    except ImportError as problem:
        raise missing_extra("transformers", "probe", "Training a vision transformer") from problem
    height, width, channels = data.x_train.shape[1:]
    if height != width or height % settings.patch:
        raise reject("patch", f"a divisor of both edges of images of {height} × {width} pixels", settings.patch)
    names = dict(enumerate(data.classes))
    config = ViTConfig(
        hidden_size=settings.width,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        intermediate_size=settings.mlp,
        image_size=height,
        patch_size=settings.patch,
        num_channels=channels,
        initializer_range=float(settings.spread),
        encoder_stride=settings.patch,
        id2label=names,
        label2id={name: k for k, name in names.items()},
        attn_implementation="sdpa",
    )
    with torch.random.fork_rng(devices=[]):  # transformers draws from the global generator
        torch.manual_seed(settings.seed)
        return ViTForImageClassification(config).float()


def save_model(model: Any, data: LabelledImages, folder: Path) -> None:
    """Write a model as transformers' `from_pretrained` reads it, with how its pixels are scaled beside it."""
    from transformers.utils import logging

    folder.mkdir(parents=True, exist_ok=True)
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # a bar for each file would stand between the lines of the run
    try:
        model.save_pretrained(folder)
    finally:
        if shown:
            logging.enable_progress_bar()
    mean, spread = data.channel_statistics()
    height, width = data.x_train.shape[1:3]
    processor = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": False,
        "size": {"height": height, "width": width},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": mean,
        "image_std": spread,
    }
    write_whole(folder / PROCESSOR, json.dumps(processor, indent=1).encode(), "save_models")
