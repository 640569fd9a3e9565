"""What attention reads: token datasets and the papers' protocols for making them."""

from marginlens.data.tokens import TokenDataset

__all__ = ["TokenDataset"]
