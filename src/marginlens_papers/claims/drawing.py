"""Drawings that claims share: descent in the plane, curves over steps with bands, levels, slopes and distributions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from marginlens import plotting
from marginlens.data import TokenDataset
from marginlens.data.tokens import FloatArray, IntArray
from marginlens.dynamics import descend
from marginlens.optimizers import NormalizedGD
from marginlens_papers import figures


class Limit(NamedTuple):
    """A direction that paths in the plane may converge to, and the tokens (n_inputs,) that it selects."""

    name: str
    direction: FloatArray
    selected: Sequence[int]
    colour: str = plotting.GLOBAL


class Note(NamedTuple):
    """A text beside a point of the plane, shifted by `offset` in points."""

    text: str
    at: Any
    offset: tuple[float, float]
    side: str = "left"


def starts_that_select(
    data: TokenDataset, head: Any, window: figures.Window, n_grid: int, n_steps: int, token: tuple[int, int]
) -> FloatArray:
    """For a square grid of starts over the window, [row, column]: 1 where descent ends with this (input, token), 0 elsewhere."""
    x, y = (np.linspace(low, high, n_grid) for low, high in window)
    start = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)
    run = descend(data.repeat(len(start)), head, optimizer=NormalizedGD(0.1), n_steps=n_steps, start=start)
    return (run.selected[:, token[0]] == token[1]).astype(float).reshape(n_grid, n_grid)


def paths_in_plane(
    at: Mapping[str, Any],
    limits: Sequence[Limit],
    notes: Sequence[Note],
    window: figures.Window,
    title: str,
    *,
    legend: str = "lower left",
    shaded: bool = False,
    height: float = 5.8,
    token_size: float = 70.0,
) -> tuple[Figure, Axes, Axes, Axes]:
    """Paths of descent among tokens and limits in a plane, beside two empty panels over the steps: 1 - correlation, and the norm.

    Args:
        at: `keys` (n_inputs, n_tokens, 2), `scores`, `points` (n_paths, n_steps, 2), and `basins` where starts are shaded by their limit.
        shaded: give each path a colour of the ordered palette instead of one for all.
    """
    fig, plane, upper, lower = figures.plane_and_curves(height=height)
    if "basins" in at:
        x, y = (np.linspace(low, high, len(at["basins"])) for low, high in window)
        figures.basins(plane, x, y, at["basins"])
    line = "separating line" if len(limits) == 1 else "its separating line"
    for limit in limits:
        plotting.ray(plane, limit.direction, 20.0, color=limit.colour, label=f"{limit.name} direction")
        colour = plotting.PATH if len(limits) == 1 else limit.colour
        figures.common_separating_line(plane, at["keys"], limit.selected, limit.direction, color=colour, label=line)
    colours = plotting.shades(len(at["points"])) if shaded else [None] * len(at["points"])
    for colour, path in zip(colours, at["points"], strict=True):
        inside = figures.until_it_leaves(path, window)
        plotting.arrowed_path(plane, inside, **({"color": colour} if colour else {}))
        plotting.starts(plane, inside[0], **({"edgecolor": colour} if colour else {}))
    figures.scatter_tokens(plane, at["keys"], at["scores"], size=token_size)
    for note in notes:
        plotting.note_at(plane, note.text, note.at, note.offset, ha=note.side)
    figures.finish_plane(plane, window, title, legend, n_inputs=len(at["keys"]))
    name = limits[0].name if len(limits) == 1 else "limit"
    upper.set(ylabel=f"1 − correlation with {name}")
    lower.set(xlabel="step", ylabel="‖p‖")
    return fig, plane, upper, lower


def gaps_and_norms(upper: Axes, lower: Axes, at: Mapping[str, Any], looks: Sequence[Mapping[str, Any]]) -> None:
    """1 - correlation (`gap`) and norm of every path in `points` over the `steps` from 1 on, each with its look."""
    for gap, path, look in zip(at["gap"], at["points"], looks, strict=True):
        upper.loglog(at["steps"][1:], gap[1:], **look)
        lower.loglog(at["steps"][1:], np.linalg.norm(path[1:], axis=-1), **look)


def shaded_looks(starts: Any) -> list[dict[str, Any]]:
    """A colour of the ordered palette for each start, named by its coordinates."""
    names = [figures.point(*start) for start in starts]
    return [{"color": colour, "label": name} for colour, name in zip(plotting.shades(len(names)), names, strict=True)]


def mean_curve(ax: Axes, steps: IntArray, values: FloatArray, label: str, **style: Any) -> None:
    """The mean over the trials of (n_trials, n_saved); trials with nan are left out."""
    known = values[~np.isnan(values).any(axis=1)]
    if len(known):
        ax.plot(steps, known.mean(axis=0), label=label, **style)


def mean_band(ax: Axes, steps: IntArray, values: FloatArray, label: str, **style: Any) -> None:
    """The mean over the trials, and a band from their 10th to their 90th percentile."""
    known = values[~np.isnan(values).any(axis=1)]
    mean_curve(ax, steps, known, label, **style)
    if len(known):
        low, high = np.percentile(known, [10, 90], axis=0)
        ax.fill_between(steps, low, high, color=style["color"], alpha=0.16, lw=0)


def level(ax: Axes, y: float, text: str, *, side: str = "left", dash: str = "--") -> None:
    """A horizontal line in ink with a text just above it, at the left or the right end of the axes."""
    ax.axhline(y, color=plotting.INK, ls=dash, lw=1.2)
    end, shift = (0.0, 4) if side == "left" else (1.0, -4)
    look: dict[str, Any] = {"ha": side, "va": "bottom", "textcoords": "offset points"}
    ax.annotate(text, (end, y), (shift, 2), xycoords=ax.get_yaxis_transform(), **look)


def cumulative(ax: Axes, values: FloatArray, label: str, colour: Any) -> None:
    """The share of values up to each of them, as steps."""
    ordered = np.sort(values)
    ax.step(ordered, np.arange(1, len(ordered) + 1) / len(ordered), where="post", color=colour, label=label)
