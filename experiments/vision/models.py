"""Saving a vision transformer: as `from_pretrained` reads it, and with its optimiser as arrays of a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from marginlens.runtime.files import write_whole
from marginlens_papers.claims.a.vision_training import LabelledImages

PROCESSOR = "preprocessor_config.json"
_WEIGHT, _STATE = "weight/", "moment/"


def save_model(model: Any, data: LabelledImages, folder: Path) -> None:
    """Write a model as transformers' `from_pretrained` reads it, together with how its pixels are scaled."""
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


def state_arrays(model: Any, optimiser: Any) -> dict[str, Any]:
    """Weights and moments as NumPy arrays by name."""
    arrays = {}
    for name, parameter in model.named_parameters():
        arrays[_WEIGHT + name] = parameter.detach().cpu().numpy()
        for kind, value in optimiser.state.get(parameter, {}).items():
            if value is not None:
                arrays[f"{_STATE}{kind}/{name}"] = (
                    value.detach().cpu().numpy() if hasattr(value, "cpu") else np.array(value)
                )
    return arrays


def restore_arrays(model: Any, optimiser: Any, arrays: Mapping[str, Any]) -> None:
    """Put weights and moments back; KeyError, RuntimeError, TypeError or ValueError if they are another model's."""
    import torch

    by_name = dict(model.named_parameters())
    with torch.no_grad():
        for name, parameter in by_name.items():
            weight = torch.from_numpy(arrays[_WEIGHT + name])
            if weight.shape != parameter.shape:  # which copy_ would stretch if it can
                raise ValueError(name)
            parameter.copy_(weight)
    for key, value in arrays.items():
        if key.startswith(_STATE):
            kind, name = key.removeprefix(_STATE).split("/", 1)
            parameter = by_name[name]
            moment = torch.from_numpy(np.array(value))
            if moment.ndim and moment.shape != parameter.shape:  # the number of steps has no axis
                raise ValueError(key)
            optimiser.state[parameter][kind] = moment.to(parameter.device)
