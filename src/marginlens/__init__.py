"""marginlens predicts, trains and verifies what softmax attention selects."""

from marginlens import data
from marginlens.data import TokenDataset

__all__ = ["TokenDataset", "data"]
__version__ = "0.1.0"
