"""Optimizers as theorems see them: the properties of their steps, and the steps that no theorem covers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from marginlens.kinds import defining_class, inherited_attr
from marginlens.norms import L2, Norm
from marginlens.optimizers import (
    Adam,
    Blockwise,
    GradientDescent,
    MirrorDescent,
    NormalizedGD,
    Optimizer,
    PowerDecay,
    SteepestDescent,
)
from marginlens.optimizers.decay import Decaying
from marginlens.optimizers.schedules import StepSize
from marginlens.words import Fact

# The classes that define `init` and `update`. All other optimizers of the library inherit from these.
LIBRARY = (GradientDescent, NormalizedGD, SteepestDescent, MirrorDescent, Adam)


@dataclass(frozen=True)
class Steps:
    """The properties of an optimizer that matter to theorems, read once.

    Attributes:
        optimizer: the optimizer itself.

        kind: the library class whose steps it takes, None if it defines its own.

        redefined: whether it derives from a library class but takes other steps.

        norm: the norm in which its steps are steepest, None if it names none.

        size: the step size or its schedule, None if it names none.

        momentum, nesterov, weight_decay: these settings, 0 and False if it has none.

        betas, eps: (β₁, β₂) and ε of Adam, else None and 0.
    """

    optimizer: Optimizer
    kind: type | None
    redefined: bool
    norm: Norm | None
    size: StepSize | None
    momentum: float
    nesterov: bool
    weight_decay: float
    betas: tuple[float, float] | None
    eps: float

    @property
    def power(self) -> float | None:
        """The exponent a of steps η_t ∝ t^-a, 0 for constant steps; None for other schedules, about which nothing is known."""
        if isinstance(self.size, PowerDecay):
            return self.size.power
        return None if callable(self.size) else 0.0


def steps_of(optimizer: Optimizer) -> Steps:
    """Read the properties of an optimizer that matter to theorems.

    Args:
        optimizer: any optimizer. The parts of a `Blockwise` are not examined.

    Returns:
        Its `Steps`.
    """
    defining, library = defining_class(optimizer), next((kind for kind in LIBRARY if isinstance(optimizer, kind)), None)
    return Steps(
        optimizer=optimizer,
        kind=library if defining is library else None,
        redefined=redefines_steps(optimizer),
        norm=optimizer.norm
        if isinstance(optimizer, SteepestDescent) and defining is SteepestDescent
        else inherited_attr(optimizer, "norm"),
        size=getattr(optimizer, "size", None),
        momentum=getattr(optimizer, "momentum", 0.0),
        nesterov=getattr(optimizer, "nesterov", False),
        weight_decay=getattr(optimizer, "weight_decay", 0.0),
        betas=optimizer.betas if isinstance(optimizer, Adam) else None,
        eps=optimizer.eps if isinstance(optimizer, Adam) else 0.0,
    )


def part_of(optimizer: Optimizer) -> Any:
    """Return the optimizer of each part of a `Blockwise`, else the optimizer itself."""
    return optimizer.optimizer if isinstance(optimizer, Blockwise) else optimizer


class UnprovedSteps:
    """Marks an optimizer that no theorem on plain steps covers: it has momentum, weight decay, mini-batches, or steps of its own."""

    def __init__(self, optimizer: Optimizer, batch_size: int | None = None) -> None:
        self.optimizer, self.batch_size = optimizer, batch_size
        self.init, self.update = optimizer.init, optimizer.update


def as_theorems_see(optimizer: Optimizer) -> Any:
    """Return the optimizer as theorems about steps without momentum and weight decay see it.

    Args:
        optimizer: any optimizer.

    Returns:
        The optimizer, or an `UnprovedSteps` if no theorem covers its steps.
    """
    part = part_of(optimizer)
    has_momentum = isinstance(part, GradientDescent) and part.momentum > 0.0
    if redefines_steps(part) or getattr(part, "weight_decay", 0.0) > 0.0 or has_momentum:
        return UnprovedSteps(optimizer)
    if isinstance(optimizer, NormalizedGD) and optimizer.momentum > 0.0:
        return SteepestDescent(L2(), optimizer.size, optimizer.momentum)
    return optimizer


def redefines_steps(optimizer: Optimizer) -> bool:
    """Return whether an optimizer derives from a library class but takes other steps, to which results about that class do not apply."""
    return isinstance(optimizer, Decaying) and defining_class(optimizer) not in LIBRARY


def optimizer_words(optimizer: Optimizer) -> Fact:
    """Name an optimizer with the settings that can change its bias.

    Args:
        optimizer: any optimizer.

    Returns:
        A `Fact` to be used inside others.
    """
    if isinstance(optimizer, Blockwise):
        return Fact("named_optimizer.by_block", {"optimizer": optimizer_words(optimizer.optimizer)})
    if isinstance(optimizer, UnprovedSteps):
        inner = optimizer_words(optimizer.optimizer)
        if optimizer.batch_size is None:
            return inner
        return Fact("named_optimizer.mini_batches", {"optimizer": inner, "batch_size": optimizer.batch_size})
    name, settings = Fact("named_optimizer.plain", {"name": type(optimizer).__name__}), _settings(optimizer)
    if type(optimizer) is SteepestDescent:
        name = Fact("named_optimizer.steepest", {"norm": repr(optimizer.norm)})
    return Fact("named_optimizer.with_settings", {"name": name, "settings": settings}) if settings else name


def _settings(optimizer: Optimizer) -> list[Fact]:
    """List the settings that can change the bias of an optimizer."""
    settings = []
    if isinstance(optimizer, Adam):
        first, second = optimizer.betas
        settings.append(Fact("named_optimizer.betas", {"beta_1": first, "beta_2": second, "eps": optimizer.eps}))
    if isinstance(optimizer, MirrorDescent):
        settings.append(Fact("named_optimizer.power", {"p": optimizer.p}))
    steps = steps_of(optimizer) if isinstance(optimizer, Decaying) else None
    if steps is not None and steps.momentum > 0.0:
        case = "nesterov" if steps.nesterov else "default"
        settings.append(Fact("named_optimizer.momentum", {"case": case, "momentum": steps.momentum}))
    if steps is not None and steps.weight_decay > 0.0:
        settings.append(Fact("named_optimizer.weight_decay", {"weight_decay": steps.weight_decay}))
    return settings
