"""Parts of the plots of results: axes, labelled bars, fans of curves, checklists, rays, heat maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from marginlens.errors import require
from marginlens.result.palette import FAILS, FAINT, GLOBAL, HOLDS, INK, LOCAL
from marginlens.typing import ArrayLike, Axes, FloatArray

# Runs of a batch that are drawn as lines.
MAX_LINES = 100
# Letters of a bar's name.
MAX_NAME = 32
# Bars of one picture; of more, the largest are shown.
MAX_BARS = 14
# Percentiles of a batch that its band spans.
_BAND = (5.0, 95.0)
# A batch of so many runs has a band.
_BAND_FROM = 5


def axes_for(ax: Axes | None) -> Axes:
    """Return `ax`, or new axes of a new figure."""
    if ax is not None:
        return ax
    require("matplotlib", "plot", "A figure")
    import matplotlib.pyplot as plt

    return plt.subplots(layout="constrained")[1]


def draw_sentence(ax: Axes, sentence: str) -> None:
    """Write a sentence on empty axes that says why there is nothing to draw."""
    ax.text(0.5, 0.5, sentence, ha="center", va="center", wrap=True, transform=ax.transAxes)
    ax.set_axis_off()


def draw_matrix(ax: Axes, matrix: FloatArray, colours: str = "RdBu_r", smallest: float | None = None) -> None:
    """Draw a matrix by colour with its scale beside it: blue below zero, white at zero and red above, unless another map is named."""
    from matplotlib.ticker import MaxNLocator

    finite = np.abs(matrix[np.isfinite(matrix)])
    largest = float(finite.max()) if finite.size and finite.max() > 0.0 else 1.0
    low = -largest if smallest is None else smallest
    image = ax.imshow(matrix, cmap=colours, vmin=low, vmax=largest, aspect="auto", interpolation="nearest")
    ax.figure.colorbar(image, ax=ax)
    ax.grid(visible=False)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))


def draw_bars(
    ax: Axes,
    names: Sequence[str],
    values: ArrayLike,
    xlabel: str,
    *,
    colours: Sequence[str],
    ylabel: str,
) -> None:
    """Draw horizontal bars with their names, the first on top; of many, only those of largest modulus, in their order, with
    their number.
    """
    sizes = np.nan_to_num(np.asarray(values, dtype=float), nan=0.0, posinf=np.inf, neginf=-np.inf)
    shown = np.sort(np.argsort(-np.abs(sizes), kind="stable")[:MAX_BARS])
    finite = np.abs(sizes[np.isfinite(sizes)])
    limit = 1.1 * float(finite.max(initial=0.0)) or 1.0
    heights = np.clip(sizes[shown], -limit, limit)
    ax.barh(np.arange(len(shown)), heights, color=[colours[k] for k in shown], height=0.7)
    ax.set_yticks(np.arange(len(shown)), [_short_name(names[k]) for k in shown])
    ax.set_ylim(len(shown) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    ax.grid(visible=False, axis="y")
    more = f" (the {len(shown)} largest of {len(sizes)})" if len(sizes) > len(shown) else ""
    ax.set(xlabel=xlabel, ylabel=ylabel + more)


def draw_fan(ax: Axes, x: ArrayLike, curves: FloatArray) -> None:
    """Draw curves (n_curves, n_points): one as a line; several as thin lines, their median, and the band of their middle 90%."""
    if len(curves) == 1:
        ax.plot(x, curves[0], color=LOCAL)
        return
    ax.plot(x, curves[:MAX_LINES].T, color=LOCAL, linewidth=0.7, alpha=max(0.12, min(0.6, 6.0 / len(curves))))
    known = np.isfinite(curves).any(axis=0)
    middle, low, high = np.full((3, curves.shape[1]), np.nan)
    if known.any():
        rows = np.where(np.isfinite(curves), curves, np.nan)[:, known]
        low[known], middle[known], high[known] = np.nanpercentile(rows, (_BAND[0], 50.0, _BAND[1]), axis=0)
    if len(curves) >= _BAND_FROM:
        ax.fill_between(x, low, high, color=LOCAL, alpha=0.18, linewidth=0.0, label="middle 90%")
    ax.plot(x, middle, color=GLOBAL, linewidth=2.0, label=f"median of {len(curves)} runs")
    ax.legend()


def draw_checklist(ax: Axes, conditions: Sequence[tuple[str, str, bool]]) -> None:
    """Draw conditions (group, name, whether it holds), one below the other: a disc for one that holds, a cross for one that does not."""
    groups = list(dict.fromkeys(group for group, _, _ in conditions))
    for k, (_, _, holds) in enumerate(conditions):
        look: dict[str, Any] = {"markersize": 8.0, "linestyle": "", "markeredgewidth": 2.2}
        ax.plot([0.5], [k], marker="o" if holds else "x", color=HOLDS if holds else FAILS, **look)
    labels = [f"{group}: {name}" if len(groups) > 1 and group else name for group, name, _ in conditions]
    ax.set_yticks(np.arange(len(labels)), labels)
    ax.tick_params(axis="y", length=0)
    ax.set(xlim=(0.0, 1.0), ylim=(len(labels) - 0.4, -0.6), xticks=[])
    ax.grid(visible=False)
    n_held = sum(holds for _, _, holds in conditions)
    ax.set(
        xlabel=f"{n_held} of {len(labels)} conditions hold",
        ylabel=(groups[0] if len(groups) == 1 else "") or "condition",
    )
    for k in range(1, len(conditions)):
        if conditions[k][0] != conditions[k - 1][0]:
            ax.axhline(k - 0.5, color=FAINT, linewidth=0.8)


def draw_rays(ax: Axes, directions: FloatArray, names: Sequence[str], colours: Sequence[str]) -> None:
    """Draw directions of the plane (n, 2) as rays to the unit circle, with their names at the rim."""
    angle = np.linspace(0.0, 2.0 * np.pi, 200)
    ax.plot(np.cos(angle), np.sin(angle), color=FAINT, linewidth=1.0)
    for direction, name, colour in zip(directions, names, colours, strict=True):
        ax.annotate("", xy=direction, xytext=(0.0, 0.0), arrowprops={"arrowstyle": "-|>", "color": colour, "lw": 1.8})
        x, y = 1.08 * direction
        side = "center" if abs(direction[0]) < 0.3 else "left" if direction[0] > 0.0 else "right"
        ax.text(x, y, name, color=INK, ha=side, va="center" if side != "center" else "bottom" if y > 0.0 else "top")
    ax.set(xlim=(-1.9, 1.9), ylim=(-1.35, 1.35), xticks=[-1, 0, 1], yticks=[-1, 0, 1], aspect="equal")
    ax.set(xlabel="first coordinate", ylabel="second coordinate")


def _short_name(name: str) -> str:
    """Shorten a name to at most `MAX_NAME` letters, on one line, with nothing that matplotlib takes for a formula."""
    text = " ".join(name.split()).replace("$", "\\$")
    return text if len(text) <= MAX_NAME else text[: MAX_NAME - 1] + "…"
