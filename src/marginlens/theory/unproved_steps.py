"""Optimizers as theorems about plain steps see them, and what they are called in sentences."""

from __future__ import annotations

from typing import Any

from marginlens.kinds import kind_of
from marginlens.norms import L2
from marginlens.optimizers import (
    Adam,
    Blockwise,
    GradientDescent,
    MirrorDescent,
    NormalizedGD,
    SteepestDescent,
)
from marginlens.optimizers.decay import Decaying

# the classes that define `init` and `update`; all other optimizers of the library inherit from these
LIBRARY = (GradientDescent, NormalizedGD, SteepestDescent, MirrorDescent, Adam)


class UnprovedSteps:
    """Marks an optimizer that no theorem on plain steps covers: it has momentum, weight decay, mini-batches, or steps of its own."""

    def __init__(self, optimizer: Any, batch_size: int | None = None) -> None:
        self.optimizer, self.batch_size = optimizer, batch_size
        self.init, self.update = optimizer.init, optimizer.update


def as_theorems_see(rule: Any) -> Any:
    """The optimizer itself, or what it is to theorems about steps without momentum and decay."""
    inner = rule.optimizer if isinstance(rule, Blockwise) else rule
    if redefines_steps(inner):
        return UnprovedSteps(rule)
    if getattr(inner, "weight_decay", 0.0) > 0.0 or (isinstance(inner, GradientDescent) and inner.momentum > 0.0):
        return UnprovedSteps(rule)
    if isinstance(rule, NormalizedGD) and rule.momentum > 0.0:
        return SteepestDescent(L2(), rule.size, rule.momentum)
    return rule


def redefines_steps(rule: Any) -> bool:
    """Whether a class derived from an optimizer of the library takes steps of its own, which nothing known of that one covers."""
    return isinstance(rule, Decaying) and kind_of(rule) not in LIBRARY


def optimizer_words(rule: Any) -> str:
    """The optimizer as it is written, without what never changes its bias."""
    if isinstance(rule, Blockwise):
        return f"Blockwise({optimizer_words(rule.optimizer)})"
    if isinstance(rule, UnprovedSteps):
        batches = "" if rule.batch_size is None else f" on mini-batches of {rule.batch_size}"
        return optimizer_words(rule.optimizer) + batches
    name, settings, momentum = type(rule).__name__, [], getattr(rule, "momentum", 0.0)
    if name == "SteepestDescent":
        name = f"SteepestDescent({rule.norm!r})"
    if isinstance(rule, Adam):
        settings.append(f"β = {rule.betas} and ε = {rule.eps:g}")
    if isinstance(rule, MirrorDescent):
        settings.append(f"p = {rule.p:g}")
    if isinstance(rule, Decaying) and momentum > 0.0:
        ahead = "Nesterov's momentum" if getattr(rule, "nesterov", False) else "momentum"
        settings.append(f"{ahead} {momentum:g}")
    if isinstance(rule, Decaying) and rule.weight_decay > 0.0:
        settings.append(f"weight decay {rule.weight_decay:g}")
    return f"{name} with {' and '.join(settings)}" if settings else name
