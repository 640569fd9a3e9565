"""Optimizers by name."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from marginlens.errors import InputError
from marginlens.names import OPTIMIZERS
from marginlens.norms.choice import norm_named
from marginlens.optimizers.mirror_descent import MirrorDescent
from marginlens.optimizers.protocol import Optimizer
from marginlens.optimizers.schedules import StepSize
from marginlens.optimizers.steepest_descent import SteepestDescent

# Names that are not complete without a norm.
IN_A_NORM = ("steepest-descent", "mirror-descent")
# How earlier versions named steepest descent in this norm.
_NORM_ALONE = re.compile(r"l(inf|\d+(\.\d+)?)")


def optimizer_named(name: object, size: StepSize, norm: str | None = None, **settings: Any) -> Optimizer:
    """Make the optimizer of a name, with steps of this size.

    Args:
        name: a name of `marginlens.names.OPTIMIZERS`. Two of them take a norm after a colon: "steepest-descent:l3" is steepest
            descent in ℓ3, and "mirror-descent:l3" is normalised mirror descent with p = 3.

        size: the step size, or a schedule if the optimizer takes one.

        norm: the norm, unless the name includes it.

        settings: further arguments of the class, such as `momentum`.

    Examples:
        >>> from marginlens.optimizers.choice import optimizer_named
        >>> optimizer_named("steepest-descent:l3", 0.1)
        SteepestDescent(norm=Lp(p=3.0), size=0.1, momentum=0.0, nesterov=False)
        >>> optimizer_named("sign-descent", 0.1, momentum=0.9)
        SignDescent(0.1, momentum=0.9, nesterov=False)
    """
    argument = "norm" if norm else "optimizer"
    if norm is None and _NORM_ALONE.fullmatch(str(name)):
        name = f"steepest-descent:{name}"
    word, _, given = str(name).partition(":")
    geometry = norm or given
    word = OPTIMIZERS.name(word)
    if (word in IN_A_NORM) != bool(geometry):
        expected = (
            f"left out for {word}"
            if norm
            else f"{word}:NORM with a norm such as l3"
            if word in IN_A_NORM
            else f"{word} alone"
        )
        raise InputError(argument, expected, repr(norm or name))
    if word not in IN_A_NORM:
        made: Optimizer = OPTIMIZERS.class_named(word)(size, **settings)
        return made
    known = norm_named(geometry, argument)
    if word == "steepest-descent":
        return SteepestDescent(known, size, **settings)
    power = getattr(known, "power", np.inf)
    if not 1.0 < power < np.inf:
        raise InputError(argument, "lP with a number P above 1 for mirror descent", repr(norm or name))
    return MirrorDescent(power, size, normalized=True, **settings)
