"""What a training run tells: why it stopped, and how it goes, to whoever listens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Ending(Enum):
    """Why training stopped."""

    FINISHED = "All epochs are done."
    UNFINISHED = "The run was still going when this was written."
    TIME_LIMIT = "The time limit came before the last epoch; the checkpoint, where there is one, holds where to go on."
    DIVERGED = "The loss or a weight is no longer a finite number, so training stopped; a smaller rate may help."


@dataclass(frozen=True)
class Listener:
    """Who is told of more than epochs: `epoch` of every record, `saved` of the run so far, with every checkpoint or where one would be."""

    epoch: Callable[[Any], None]
    saved: Callable[[Any], None]

    def __call__(self, record: Any) -> None:
        """Pass on a record."""
        self.epoch(record)
