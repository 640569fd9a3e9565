"""The pictures that lie in the repository: the README's, drawn by a claim, and that of the page about optimizers, drawn by an example."""

from __future__ import annotations

import runpy
from pathlib import Path

from marginlens_papers.claim import Effort, Progress
from marginlens_papers.claims import catalogue

PICTURE = "docs/images/trajectories.png"
PICTURED_CLAIM = "A-F1b"
PICTURED_EXAMPLE = "examples/optimizers/five_optimizers_five_limits.py"
PICTURE_OF_EXAMPLE = "docs/images/five_limits.png"


def write_pictures(root: Path) -> None:
    """Draw the first figure of the README's claim, and the figure with which the example ends."""
    import matplotlib.pyplot as plt

    from marginlens.plotting.files import png

    claim = catalogue.claim(PICTURED_CLAIM)
    figure = next(iter(claim.draw(claim.compute(Effort.PAPER, Progress())).values()))
    (root / PICTURE).parent.mkdir(parents=True, exist_ok=True)
    (root / PICTURE).write_bytes(png(figure))
    plt.switch_backend("agg")  # whose plt.show() leaves the figure as it is
    runpy.run_path(str(root / PICTURED_EXAMPLE))
    (root / PICTURE_OF_EXAMPLE).write_bytes(png(plt.gcf()))
