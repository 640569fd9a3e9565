"""The measures of a probe over the checkpoints of a training run: as curves, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import spearmanr

from marginlens.colours import INK, SEQUENCE, STYLE
from marginlens.data.tokens import FloatArray
from marginlens.errors import reject
from marginlens.probe.measures import MEASURES
from marginlens.probe.result import plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DRAWN = {
    "relative_nnz": "nnz/T, all queries",
    "first_relative_nnz": "nnz/T, query of the first token",
    "frobenius": "Frobenius norm of W",
    "margin_median": "median logit margin of the selection",
}


@dataclass(frozen=True, repr=False, eq=False)
class CheckpointCurves:
    """Measures of every checkpoint, in the order of training.

    Attributes:
        model: the family and size that all checkpoints share. names: (n_checkpoints) what they are called.
        steps: (n_checkpoints,) the numbers in these names, or 0, 1, 2, … where they have none.
        measures: name → (n_checkpoints, n_layers, n_heads). n_inputs: on how many inputs.
    """

    model: str
    names: tuple[str, ...]
    steps: FloatArray
    measures: Mapping[str, FloatArray]
    n_inputs: int

    @property
    def n_layers(self) -> int:
        """How many attention layers there are."""
        return int(next(iter(self.measures.values())).shape[1])

    def by_layer(self, name: str) -> FloatArray:
        """(n_checkpoints, n_layers) the mean of a measure over the heads of each layer."""
        if name not in self.measures:
            raise reject("name", f"one of {', '.join(self.measures)}", repr(name))
        return np.asarray(np.mean(self.measures[name], axis=2))

    def trend(self, name: str) -> FloatArray:
        """(n_layers,) the rank correlation of a layer's mean with the order of training; nan where it never changes."""
        return np.array([_rank(self.steps, curve) for curve in self.by_layer(name).T])

    def rows(self, layer: int = -1) -> list[dict[str, Any]]:
        """One row per checkpoint: means over the heads of one layer, the last by default."""
        shown = [one for one in MEASURES if one.name in self.measures]
        means = {one.title: self.by_layer(one.name)[:, layer] for one in shown}
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
            "measures": {name: plain(values) for name, values in self.measures.items()},
            "trends": {name: plain(self.trend(name)) for name in self.measures},
        }

    def draw(self) -> Figure:
        """Sparsity, norms and margins over training, one line for the mean of each layer's heads."""
        import matplotlib as mpl
        from matplotlib.figure import Figure

        drawn = {name: words for name, words in _DRAWN.items() if np.isfinite(self.measures.get(name, np.nan)).any()}
        n_rows = (len(drawn) + 1) // 2
        with mpl.rc_context(STYLE):
            figure = Figure(figsize=(10.4, 3.6 * n_rows + 0.7), layout="constrained")
            colours = mpl.colormaps[SEQUENCE](np.linspace(0.0, 0.86, self.n_layers))
            for k, (name, words) in enumerate(drawn.items()):
                axes = figure.add_subplot(n_rows, 2, k + 1)
                for layer, curve in enumerate(self.by_layer(name).T):
                    look: dict[str, Any] = {"color": colours[layer], "marker": "o", "markersize": 3.5}
                    axes.plot(self.steps, curve, label=f"layer {layer}", **look)
                said = f"last layer: rank correlation {self.trend(name)[-1]:.2f}".replace("-", "−")
                axes.set(xlabel="checkpoint", title=words, ylim=(0.0, None))
                ground: dict[str, Any] = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.5}
                place: dict[str, Any] = {"transform": axes.transAxes, "ha": "right", "va": "bottom"}
                axes.text(0.97, 0.03, said, color=INK, fontsize=9, bbox=ground, **place)
            handles, labels = figure.axes[0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside lower center", ncols=min(self.n_layers, 8))
        return figure

    def __repr__(self) -> str:
        return f"CheckpointCurves({self.model}: {len(self.names)} checkpoints, {self.n_layers} layers, {self.n_inputs} inputs)"


def _rank(steps: FloatArray, curve: FloatArray) -> float:
    if not np.isfinite(curve).all() or np.ptp(curve) == 0.0:
        return float("nan")
    return float(spearmanr(steps, curve).statistic)
