"""Films of runs in the plane: where the weights are, step by step, on the disc of log radius."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.animation import FFMpegWriter, FuncAnimation, PillowWriter
from matplotlib.figure import Figure

from marginlens.errors import MissingExtra, positive_number, reject, whole_number
from marginlens.plotting.plane import log_radius, log_radius_rings
from marginlens.plotting.style import house_style, shades
from marginlens.result.palette import GLOBAL, INK
from marginlens.runtime.files import as_path, check_place, write_whole

if TYPE_CHECKING:
    from marginlens.dynamics import Trajectory

FILM_SUFFIXES = (".gif", ".mp4")
MAX_PATHS = 60  # runs of a batch that a film shows


def animate(
    run: Trajectory, path: str | os.PathLike[str], *, seconds: float = 6.0, frames_per_second: int = 15
) -> None:
    """Write a film of the weights of a run, or of a batch of runs, on the plane squeezed to a disc: norm r at log(1 + r) from the centre.

    Frames are spread over the logarithm of the steps, since a direction settles ever more slowly.

    Args:
        run: a descent whose weights have two coordinates, with the iterates: `record=ml.Record(keep="x")`.
        path: a .gif file, or an .mp4 file where the program ffmpeg is installed.
        seconds: of the film. frames_per_second: of them.
    """
    place = as_path(path, "path", "the path of a file")
    check_place(place, "path", FILM_SUFFIXES)
    rate = whole_number(frames_per_second, "frames_per_second", at_least=1)
    n_frames = max(2, round(positive_number(seconds, "seconds") * rate))
    if "x" not in run.saved or run.final.shape[-1] != 2 or run.final.ndim > 2:
        expected = 'a descent of weights with two coordinates that was run with record=ml.Record(keep="x")'
        raise reject("run", expected, f"{run!r}, which has {', '.join(run.saved) or 'nothing'} of it")
    points = np.asarray(run.saved["x"] if run.is_batch else run.saved["x"][None])[:MAX_PATHS]
    with TemporaryDirectory() as folder:
        aside = Path(folder) / f"film{place.suffix.lower()}"
        _film(points, np.asarray(run.saved.steps), n_frames).save(aside, writer=_writer(place, rate), dpi=100)
        write_whole(place, aside.read_bytes(), "path")


def _writer(place: Path, rate: int) -> Any:
    if place.suffix.lower() == ".gif":
        return PillowWriter(fps=rate)
    if not FFMpegWriter.isAvailable():
        raise MissingExtra("A film as .mp4 needs the program ffmpeg, which is not installed. Write a .gif instead.")
    return FFMpegWriter(fps=rate)


def _film(points: Any, steps: Any, n_frames: int) -> FuncAnimation:
    """The film of points (n_runs, n_saved, 2) at these steps."""
    norms = np.linalg.norm(points, axis=-1)
    far = max(float(norms.max()), 1e-12) * 1.05
    unit = 10.0 ** np.floor(np.log10(far / 300.0))
    squeezed = log_radius(points, unit)
    last = float(np.log1p(steps[-1]))
    shown = np.searchsorted(np.log1p(steps), np.linspace(0.0, last, n_frames) - 1e-9).clip(0, len(steps) - 1)
    with mpl.rc_context(house_style()):
        figure = Figure(figsize=(5.0, 5.2), layout="constrained")
        ax = figure.add_subplot()
        log_radius_rings(ax, far, unit)
        colours = shades(len(points)) if len(points) > 1 else [INK]
        lines = [ax.plot([], [], color=colour, linewidth=1.6, zorder=4)[0] for colour in colours]
        (heads,) = ax.plot([], [], "o", color=GLOBAL, markersize=6, zorder=7)
        title = ax.set_title(f"step {steps[-1]:,}")

    def draw(frame: int) -> list[Any]:
        k = int(shown[frame])
        for line, path in zip(lines, squeezed, strict=True):
            line.set_data(*path[: k + 1].T)
        heads.set_data(*squeezed[:, k].T)
        title.set_text(f"step {steps[k]:,}")
        return [*lines, heads, title]

    return FuncAnimation(figure, draw, frames=n_frames, blit=False)
