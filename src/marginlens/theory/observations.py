"""The claims of the ledger that ran an optimizer on a variable, by the runs listed in `observed.json`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from marginlens.kinds import defining_class
from marginlens.names import kebab
from marginlens.norms import LInf, Lp, Norm
from marginlens.optimizers import (
    Adam,
    Blockwise,
    GradientDescent,
    MirrorDescent,
    NormalizedGD,
    Optimizer,
    SteepestDescent,
)
from marginlens.svm import MarginSolution
from marginlens.theory.bias_conditions import gain_of_first_step
from marginlens.theory.unproved_steps import steps_of
from marginlens.words import Fact


def run_kind(optimizer: Optimizer) -> tuple[Any, ...] | None:
    """Return the settings that optimizers share if they differ only in the size of their steps.

    Args:
        optimizer: any optimizer.

    Returns:
        Its settings; None for a user's own optimizer, a custom schedule, or weight decay.
    """
    if isinstance(optimizer, Blockwise):
        part = run_kind(optimizer.optimizer)
        # Sign descent by block or on the whole point is the same.
        by_entry = defining_class(getattr(optimizer.optimizer, "norm", None)) is LInf
        return part if part is None or by_entry else ("by block", *part)
    steps = steps_of(optimizer)
    is_momentum_alone = steps.kind is GradientDescent and steps.momentum > 0.0
    if steps.kind is None or steps.power is None or steps.weight_decay > 0.0 or is_momentum_alone:
        return None
    return _KINDS[steps.kind](optimizer, steps)


_KINDS: dict[type, Any] = {
    GradientDescent: lambda rule, steps: ("GradientDescent",),
    NormalizedGD: lambda rule, steps: ("steepest", "l2", steps.momentum, False, steps.power),
    SteepestDescent: lambda rule, steps: (
        "steepest",
        _norm_key(steps.norm),
        steps.momentum,
        steps.nesterov and steps.momentum > 0.0,
        steps.power,
    ),
    Adam: lambda rule, steps: ("Adam", steps.betas, rule.eps > 0.0, steps.power),
    MirrorDescent: lambda rule, steps: ("mirror", rule.p, rule.normalized, steps.power),
}


def _norm_key(norm: Norm) -> str:
    """Name a norm as `observed.json` does."""
    kind = defining_class(norm)
    return f"l{norm.p:g}" if isinstance(norm, Lp) and kind is Lp else kebab(kind.__name__)


def listed_kind(optimizer: Optimizer) -> list[Any] | None:
    """Return `run_kind` as a JSON file holds it: with lists instead of tuples."""
    kind: list[Any] | None = json.loads(json.dumps(run_kind(optimizer)))
    return kind


def observed_by(
    optimizer: Optimizer,
    variable: str,
    label: str = "",
    *,
    solution: MarginSolution | None = None,
    width: int | None = None,
) -> tuple[str, ...]:
    """Find the claims that declare runs of an optimizer on a variable with such steps and widths.

    Args:
        optimizer: any optimizer.

        variable: what was trained, such as "p".

        label: a statement such as "A Thm 3"; if given, only claims about it count.

        solution: the margin problem in the norm of the steps. A claim that ran constant steps up to some ηγ counts only if ηγ here is no
            larger.

        width: the width of factors.

    Returns:
        The ids of the claims, in the order of the ledger.
    """
    kind, gain = listed_kind(optimizer), gain_of_first_step(steps_of(optimizer), solution)

    def covers(run: dict[str, Any]) -> bool:
        """Return whether a claim's run is of this kind, and within what it declares."""
        largest, widths = run.get("eta_gamma"), run.get("widths")
        if largest is not None and (gain is None or gain > largest):
            return False
        if widths is not None and width is not None and not widths[0] <= width <= widths[1]:
            return False
        return bool(run["variable"] == variable and run["kind"] == kind)

    return tuple(
        claim
        for claim, row in _observations().items()
        if kind is not None and (not label or label in row["labels"]) and any(map(covers, row["runs"]))
    )


def claim_words(ids: Sequence[str]) -> Fact:
    """Name claims, as in "claims A-F9 and X-N2"."""
    return Fact("claims.named", {"ids": list(ids), "count": len(ids)})


@cache
def _observations() -> dict[str, dict[str, Any]]:
    """Read the declared runs by claim id, as `make docs` wrote them from the claims."""
    rows: dict[str, dict[str, Any]] = json.loads(
        (files("marginlens.theory") / "observed.json").read_text(encoding="utf-8")
    )
    return rows
