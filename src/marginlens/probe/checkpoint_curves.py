"""The measures of a probe over the checkpoints of a training run: as curves, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from marginlens.data.tokens import FloatArray
from marginlens.errors import reject
from marginlens.probe.measures import MEASURES, Measure
from marginlens.probe.rank_test import RankTest, rank_test
from marginlens.probe.result import plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False, eq=False)
class CheckpointCurves:
    """Measures of every checkpoint, in the order of training.

    Attributes:
        model: the family and size that all checkpoints share. names: (n_checkpoints) what they are called.
        steps: (n_checkpoints,) the numbers in these names, or 0, 1, 2, … where they have none.
        measures: name → (n_checkpoints, n_layers, n_heads), those of the max-margin part among them where it was asked for.
        n_inputs: on how many inputs. notes: sentences on what could not be measured, each said once.
    """

    model: str
    names: tuple[str, ...]
    steps: FloatArray
    measures: Mapping[str, FloatArray]
    n_inputs: int
    notes: tuple[str, ...] = ()

    @property
    def n_layers(self) -> int:
        """How many attention layers there are."""
        return int(next(iter(self.measures.values())).shape[1])

    @property
    def shown(self) -> tuple[Measure, ...]:
        """The measures that some head has a number for at some checkpoint, in the order in which they are shown."""
        return tuple(one for one in MEASURES if one.name in self.measures and one.tells(self.measures[one.name]))

    def by_layer(self, name: str) -> FloatArray:
        """(n_checkpoints, n_layers) the mean of a measure over the heads of each layer that have it; nan where none has."""
        if name not in self.measures:
            raise reject("name", f"one of {', '.join(self.measures)}", repr(name))
        values = self.measures[name]
        known = np.isfinite(values)
        count = known.sum(axis=2)
        total = np.sum(np.where(known, values, 0.0), axis=2)
        return np.where(count > 0, total / np.maximum(count, 1), np.nan)

    def trend(self, name: str) -> FloatArray:
        """(n_layers,) the rank correlation of a layer's mean with the order of training; nan where it never changes."""
        return np.array([test.correlation for test in self.trend_tests(name)])

    def trend_tests(self, name: str) -> list[RankTest]:
        """For each layer the rank correlation of its mean with the order of training, and how often chance gives as strong a one."""
        return [rank_test(self.steps, curve) for curve in self.by_layer(name).T]

    def relative_change(self, name: str) -> FloatArray:
        """(n_layers,) last over first mean of each layer, minus 1; nan where the first is zero or unknown."""
        means = self.by_layer(name)
        with np.errstate(divide="ignore", invalid="ignore"):
            change = means[-1] / means[0] - 1.0
        return np.where(np.isfinite(change), change, np.nan)

    def rows(self, layer: int = -1) -> list[dict[str, Any]]:
        """One row per checkpoint: means over the heads of one layer, the last by default."""
        means = {one.title: self.by_layer(one.name)[:, layer] for one in self.shown}
        return [
            {
                "checkpoint": name,
                **{title: float(values[k]) for title, values in means.items() if np.isfinite(values).any()},
            }
            for k, name in enumerate(self.names)
        ]

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values: lists over checkpoints, layers and heads, None where there is no number."""
        return {
            "model": self.model,
            "checkpoints": list(self.names),
            "steps": plain(self.steps),
            "inputs": self.n_inputs,
            "notes": list(self.notes),
            "measures": {name: plain(values) for name, values in self.measures.items()},
            "trends": {name: plain(self.trend(name)) for name in self.measures},
            "trend_p_values": {
                name: plain(np.array([test.p_value for test in self.trend_tests(name)])) for name in self.measures
            },
        }

    def draw(self) -> Figure:
        """Sparsity, norms and margins over training, and correlation beside its baselines: a line for the mean of each layer's heads."""
        from marginlens.probe.pages.checkpoints import MAIN, draw_curves

        return draw_curves(self, [one.name for one in self.shown if one.name in MAIN])

    def __repr__(self) -> str:
        return f"CheckpointCurves({self.model}: {len(self.names)} checkpoints, {self.n_layers} layers, {self.n_inputs} inputs)"
