"""The optimisers of a vision transformer, and their state by the names of the weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from marginlens_papers.vision.settings import MOMENTUM, VisionSettings

_WEIGHT, _STATE = "weight/", "moment/"


def optimiser_for(model: Any, settings: VisionSettings) -> Any:
    """Gradient descent with momentum, or AdamW; weight decay acts on matrices alone."""
    import torch

    matrices = [p for p in model.parameters() if p.ndim in (2, 4)]
    others = [p for p in model.parameters() if p.ndim not in (2, 4)]  # biases, norms, the CLS token and positions
    groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}]
    if settings.optimiser == "sgd":
        return torch.optim.SGD(groups, lr=settings.learning_rate, momentum=MOMENTUM, fused=True)
    return torch.optim.AdamW(groups, lr=settings.learning_rate, fused=True)


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
    """Put weights and moments back; KeyError, RuntimeError, TypeError or ValueError where they are another model's."""
    import torch

    by_name = dict(model.named_parameters())
    with torch.no_grad():
        for name, parameter in by_name.items():
            found = torch.from_numpy(arrays[_WEIGHT + name])
            if found.shape != parameter.shape:  # which copy_ would stretch where it can
                raise ValueError(name)
            parameter.copy_(found)
    for key, value in arrays.items():
        if key.startswith(_STATE):
            kind, name = key.removeprefix(_STATE).split("/", 1)
            parameter = by_name[name]
            moment = torch.from_numpy(np.array(value))
            if moment.ndim and moment.shape != parameter.shape:  # the number of steps has no axis
                raise ValueError(key)
            optimiser.state[parameter][kind] = moment.to(parameter.device)
