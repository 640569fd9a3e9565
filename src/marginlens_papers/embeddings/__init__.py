"""Paper B's experiments: embeddings trained together with attention, on encoded texts or on K-level sequences."""

from marginlens_papers.embeddings.settings import TrainingSettings
from marginlens_papers.embeddings.train import (
    EpochRecord,
    Evaluation,
    RankCorrelations,
    TrainingRun,
    evaluate,
    train_embeddings,
)
from marginlens_papers.training.loop import Ending

__all__ = [
    "Ending",
    "EpochRecord",
    "Evaluation",
    "RankCorrelations",
    "TrainingRun",
    "TrainingSettings",
    "evaluate",
    "train_embeddings",
]
