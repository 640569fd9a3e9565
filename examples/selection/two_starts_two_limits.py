"""A Fig 1(b) and Fig 8: a problem can have several locally optimal directions, and the start decides which one descent takes.

Usage: python examples/selection/two_starts_two_limits.py [PICTURE.png]
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import marginlens as ml

# Data: the tokens of Figure 1(b), (-.1, 1), (1, 0) and (0, 0), with scores 1, .9 and 0.
data, v = ml.data.figure_1b()

# Solve: both locally optimal directions, and descent from six starts at once, every iterate kept.
optima = ml.locally_optimal_directions(data, v)
starts = np.array([(0.0, y) for y in (1.0, 0.5, 0.0, -0.5, -1.0, -1.5)])
run = ml.descend(
    data.repeat(len(starts)), v, optimizer=ml.NormalizedGD(0.1), n_steps=10_000, start=starts, record=ml.Record(1)
)

# Look: which direction each run ends at.
for start, selected, final in zip(starts, run.selected, run.final, strict=True):
    row = int(np.flatnonzero((optima.selections == selected).all(axis=1))[0])
    kind = "GMM" if optima.is_global[row] else "LMM"
    cosine = ml.correlation(final, optima.directions[row])
    print(f"start (0, {start[1]:4.1f}) ends at the {kind} {np.round(optima.directions[row], 2)}, cosine {cosine:.6f}")

figure = Figure(figsize=(5, 5), layout="constrained")
axes = figure.add_subplot()
for path, selected in zip(run.saved["x"], run.selected, strict=True):
    axes.plot(*path[:40].T, color="#C4420F" if selected == 0 else "#0F6FB4")
for direction, is_global in zip(optima.directions, optima.is_global, strict=True):
    name = "GMM direction" if is_global else "LMM direction"
    axes.plot(*np.outer([0, 4], direction).T, "--", color="#C4420F" if is_global else "#0F6FB4", label=name)
axes.scatter(*starts.T, color="white", edgecolor="black", zorder=3, label="start")
axes.scatter(*data.K[0].T, marker="*", color="#5B6168", s=120, zorder=3, label="token")
axes.set(xlabel="first coordinate of p", ylabel="second coordinate", title="Two limits", aspect="equal")
axes.legend()
place = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp()) / "two_limits.png"
figure.savefig(place)
print(f"The picture is at {place}")

# What to notice: the lower starts end at the token with score .9 although another scores 1: it beats its neighbours, which is enough.
