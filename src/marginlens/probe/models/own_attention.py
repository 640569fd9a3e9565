"""Whether what is read of a layer is the model's own attention: compared at a few queries of every batch."""

from __future__ import annotations

from typing import Any

from marginlens.errors import InputError
from marginlens.probe.models.adapters.base import LayerReading

_QUERIES = 16  # of each input, evenly spread, at which both are compared: a small part of the maps of all layers
_APART = 1e-4  # of a probability, beyond what rounding explains; adapters are tested to a tenth of it
_OTHERWISE = "attends otherwise than its family does, so that it cannot be read as one of it"


def own_rows(output: Any, name: str) -> Any:
    """(B, H, n, T) what an attention module handed out as its attention, at a few queries.

    Args:
        output: of the module: its values, then its attention. name: what it is called, for the sentence where it has none.
    """
    own: Any = output[1] if isinstance(output, tuple) and len(output) > 1 else None
    if getattr(own, "ndim", 0) != 4:
        raise InputError(
            f"The module {name} does not hand out its attention, so that what is read of it cannot be compared with the model's own; "
            'the model needs the attention of attn_implementation="eager".'
        )
    return own[:, :, _places(own.shape[2], own.device)]


def check_own(reading: LayerReading, own: Any, name: str) -> None:
    """Refuse a reading that is not what the module itself computed, up to rounding."""
    import torch

    n_tokens = reading.attention.shape[-1]
    places = _places(n_tokens, reading.attention.device)
    read = reading.attention[:, :, places]
    if own.shape != read.shape:
        raise InputError(f"The module {name} {_OTHERWISE}: its attention has shape {_shape(own)}, not {_shape(read)}.")
    eps = max(torch.finfo(one.dtype).eps for one in (own, read))
    parted = reading.rounding[:, :, places].double()[..., None]  # by rounding; probabilities by a quarter of it at most
    bar = _APART + eps + 0.5 * parted
    theirs = own.to(read.device)
    apart = (read.double() - theirs.double()).abs()
    broken = read.isnan().any(dim=-1, keepdim=True) & theirs.isnan().any(
        dim=-1, keepdim=True
    )  # not finite in both: no difference
    seen = reading.visible[:, places].any(dim=-1)[:, None, :, None] & ~broken
    if bool((seen & ~(apart <= bar)).any()):
        worst = float(apart.masked_fill(~seen, 0.0).max())
        raise InputError(f"The module {name} {_OTHERWISE}: its attention differs by up to {worst:.2g}.")


def _shape(maps: Any) -> str:
    n_inputs, n_heads, _, n_tokens = maps.shape
    return f"({n_inputs} inputs, {n_heads} heads, {n_tokens} tokens)"


def _places(n_tokens: int, device: Any) -> Any:
    import torch

    return torch.linspace(0, n_tokens - 1, min(n_tokens, _QUERIES), device=device).round().long()
