"""Paper A's Figures 6 and 7: CLS attention maps over epochs, and curves of sparsity and key-query norms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter, ScalarFormatter

from marginlens.plotting import figure, shades
from marginlens.plotting.style import ACCENTS, INK, PATH
from marginlens.probe.heads.sparsity import relative_sparsity
from marginlens_papers.vision.results import VisionCurves

COLUMNS = 8  # epochs shown side by side, at most
_CELL = 1.15  # inches
_HEADROOM = 1.22  # the largest value times it: the legend stands above all curves, wherever they run


def map_figure(curves: VisionCurves, title: str, images: Any = None) -> Figure:
    """Figure 6: one row for each image, one column for each kept epoch, each map on a scale from 0 to its own largest entry.

    Args:
        images: (n_chosen, height, width, channels) bytes, drawn at the left where they are given.
    """
    epochs = _thinned(curves.map_epochs)
    first = 0 if images is None else 1
    rows, columns = len(curves.labels), len(epochs) + first
    fig = Figure(figsize=(0.4 + _CELL * columns, 0.7 + 1.22 * _CELL * rows), layout="constrained")
    axes = fig.subplots(rows, columns, squeeze=False)
    for row, label in enumerate(curves.labels):
        if images is not None:
            axes[row, 0].imshow(np.squeeze(images[row]), cmap="gray", interpolation="nearest")
            axes[row, 0].set_xlabel("image", fontsize=9, labelpad=2)
        for column, epoch in enumerate(epochs):
            s = curves.maps[curves.map_epochs.index(epoch), row]
            edge = int(np.sqrt(s.size))
            ax = axes[row, column + first]
            ax.imshow(s.reshape(edge, edge), cmap="viridis", vmin=0.0, vmax=s.max(), interpolation="nearest")
            ax.set_xlabel(f"nnz/T {_short(float(relative_sparsity(s)))}", fontsize=9, labelpad=2)
            if row == 0:
                ax.set_title(f"epoch {epoch}", fontsize=11)
        axes[row, 0].set_ylabel(label)
    for ax in axes.ravel():
        ax.set(xticks=[], yticks=[])
        ax.grid(False)
    fig.suptitle(f"{title}\neach map from 0 (dark) to its own largest entry (bright)", fontsize=12)
    return fig


def curve_figure(runs: Sequence[VisionCurves], title: str) -> Figure:
    """Figure 7: nnz/T and ‖W‖_F of every layer over epochs, and accuracies; one run, or a few that differ in their seed."""
    fig, (left, middle, right) = figure(3, width=4.4, height=3.9)
    n_layers = runs[0].by_layer["sparsity"].shape[1]
    colours = shades(max(n_layers - 1, 1))
    for ax, name in ((left, "sparsity"), (middle, "norm")):
        for layer in range(n_layers):
            last = layer == n_layers - 1
            colour = ACCENTS[0 if ax is left else 1] if last else colours[layer]
            look = {"color": colour, "linewidth": 2.2 if last else 0.9, "zorder": 4 if last else 3}
            _curves(ax, runs, [one.by_layer[name][:, layer] for one in runs], look, _layer_label(layer, n_layers))
    left.set(ylabel="nnz(s)/T", title="Sparsity of the CLS map")
    middle.set(ylabel="‖W‖_F, all heads", title="Key-query matrix")
    for name, colour, label in (("train_accuracy", PATH, "training"), ("test_accuracy", ACCENTS[2], "test")):
        _curves(right, runs, [one.scalars[name] for one in runs], {"color": colour, "linewidth": 1.6}, label)
    right.set(ylabel="accuracy", title="Accuracy")
    largest = max(float(np.nanmax(one.by_layer["norm"])) for one in runs)
    for ax, top in ((left, 1.0), (middle, largest), (right, 1.0)):
        ax.set(xlabel="epoch", ylim=(0.0, _HEADROOM * top))
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.legend(loc="upper center", ncols=3, fontsize=9, columnspacing=1.2, handlelength=1.5)
    for ax in (left, right):
        ax.set_yticks(np.linspace(0.0, 1.0, 6))
    fig.suptitle(title, fontsize=12, color=INK)
    return fig


def runs_figure(runs: Mapping[str, VisionCurves], title: str) -> Figure:
    """The last layer's nnz/T and ‖W‖_F, and the training accuracy, of runs that differ in their settings; norms on a logarithmic scale."""
    fig, axes = figure(3, width=4.4, height=4.2)
    marks = ("-", "--", "-.", ":", (0, (1, 1)), (0, (6, 2, 1, 2, 1, 2)))
    for k, (name, run) in enumerate(runs.items()):
        values = (run.by_layer["sparsity"][:, -1], run.by_layer["norm"][:, -1], run.scalars["train_accuracy"])
        for ax, one in zip(axes, values, strict=True):
            ax.plot(run.epochs, one, color=ACCENTS[k], linestyle=marks[k % len(marks)], linewidth=2.0, label=name)
    for ax, label, name in zip(
        axes,
        ("nnz(s)/T", "‖W‖_F, all heads", "accuracy"),
        ("Sparsity", "Key-query matrix", "Training accuracy"),
        strict=True,
    ):
        ax.set(xlabel="epoch", ylabel=label, title=name)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    for ax in (axes[0], axes[2]):
        ax.set_ylim(0.0, 1.05)
    axes[1].set(yscale="log", yticks=(1, 2, 5, 10))
    axes[1].yaxis.set_major_formatter(ScalarFormatter())
    axes[1].yaxis.set_minor_formatter(NullFormatter())
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=min(len(runs), 3))
    fig.suptitle(title, fontsize=12, color=INK)
    return fig


def _curves(ax: Axes, runs: Sequence[VisionCurves], values: Sequence[Any], look: dict[str, Any], label: str) -> None:
    """One curve, or the median of several with each of them thin behind it."""
    if len(values) == 1:
        ax.plot(runs[0].epochs, values[0], label=label or None, **look)
        return
    for run, one in zip(runs, values, strict=True):
        ax.plot(run.epochs, one, **{**look, "linewidth": 0.7, "alpha": 0.5})
    ax.plot(runs[0].epochs, np.median(values, axis=0), label=f"{label}, median" if label else None, **look)


def _layer_label(layer: int, n_layers: int) -> str:
    """Names for the last layer, and for the first and the last of the others."""
    if layer == n_layers - 1:
        return "last layer"
    if layer == 0:
        return "layer 1"
    return f"layer {layer + 1}" if layer == n_layers - 2 else ""


def _short(share: float) -> str:
    """Two digits, or three where two would make it nothing."""
    return f"{share:.2f}" if share >= 0.1 else f"{share:.3f}"


def _thinned(epochs: Sequence[int]) -> list[int]:
    """At most so many epochs as fit, the first and the last among them."""
    if len(epochs) <= COLUMNS:
        return list(epochs)
    chosen = np.round(np.linspace(0, len(epochs) - 1, COLUMNS)).astype(int)
    return [epochs[k] for k in chosen]
