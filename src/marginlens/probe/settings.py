"""How a model is probed: every choice in one frozen object."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from marginlens.errors import reject, whole_number


@dataclass(frozen=True)
class ProbeSettings:
    """Choices of one probe.

    Args:
        max_margin: whether to ask how max-margin each head is, by far the most expensive question.
        queries: queries of each input, drawn at random, whose selections the max-margin problem has to make.
        max_margin_inputs: inputs that the max-margin part uses, evenly spread over all; the other measures use all.
        offset: for models with rotary positions, query position minus key position at which W is taken; without it they have no norms
            of W and no max-margin part.
        examples: inputs whose attention maps are kept.
        longest_example: tokens of such an input; of longer ones only the first query's map is kept.
        preferences: rows kept of what each head prefers over what.
        seed: of everything random, which is in the max-margin part alone: the sampled queries, the selections and the weights of the
            baselines.
    """

    max_margin: bool = False
    queries: int = 1
    max_margin_inputs: int = 200
    offset: int | None = None
    examples: int = 6
    longest_example: int = 24
    preferences: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.max_margin, bool):
            raise reject("max_margin", "True or False", repr(self.max_margin))
        for name, least in (("queries", 1), ("max_margin_inputs", 1), ("examples", 0), ("longest_example", 2)):
            whole_number(getattr(self, name), name, at_least=least)
        for name in ("preferences", "seed"):
            whole_number(getattr(self, name), name, at_least=0)
        if self.offset is not None:
            whole_number(self.offset, "offset", at_least=0)

    def told(self) -> dict[str, Any]:
        """The settings as plain values, by name."""
        return dataclasses.asdict(self)
