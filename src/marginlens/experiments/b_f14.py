"""B Figs 1, 4: on IMDB and Yelp, the two-layer model's embeddings follow the posterior difference too."""

from __future__ import annotations

from matplotlib.figure import Figure

from marginlens.experiments.claim import Effort, Finding, Progress
from marginlens.experiments.embedding_points import text_bounds, text_figures, text_finding

ID = "B-F14"
LABELS = ("B Fig 1", "B Fig 4", "B Eq. (36)", "B Eq. (37)")
TITLE = "On IMDB and Yelp, two layers: embeddings follow the posterior difference"
STATEMENT = (
    "The two-layer model with a skip connection and layer-norm reaches a loss of the order of 1e-5 on both datasets, and its embeddings "
    "still have ⟨E_s, v⟩ ordered by the posterior difference and ⟨E_s, p⟩ by its modulus."
)
PROTOCOL = (
    "Data, training and measures as for B-F3, with the two-layer model; the paper states the same settings for both. A loss is of the "
    "paper's order or below when the nearest power of ten is 1e-5 or less; a run at the stated settings decides if it is, else the kept "
    "run with the nearest loss."
)
PAPER_VALUE = "figures; loss of the order of 1e-5"
LAYERS, EXPONENT = 2, -5
EXPECTED = text_bounds(EXPONENT)
EXPLAINED = (
    "The stated rate is the cause: an AdamW step of .01 is half as long as the entries of an embedding at the start, 1/√2048 = .022; a "
    "rate of .0003 goes far below the paper's order. Those runs stop before epoch 500, when their losses have long passed 1e-5."
)


def compute(effort: Effort, progress: Progress) -> Finding:
    """Measure the kept two-layer runs."""
    return text_finding(LAYERS, EXPONENT, effort, progress, EXPLAINED)


def draw(finding: Finding) -> dict[str, Figure]:
    """The paper's two panels for each run, and the curves of training."""
    return text_figures(finding)
