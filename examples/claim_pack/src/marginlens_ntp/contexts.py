"""Random contexts, each followed by several tokens with given probabilities, and the margin problem that they pose."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from marginlens.typing import FloatArray, IntArray

CONCENTRATION = 2.0  # of the Dirichlet distribution that the next tokens' probabilities are drawn from


@dataclass(frozen=True)
class Contexts:
    """Contexts, the tokens that follow each and how often.

    Args:
        H: (n_contexts, d_model) one embedding a context. support: (n_contexts, n_next) the tokens that follow it.
        probabilities: (n_contexts, n_next) how often each does. n_vocabulary: tokens in all.
    """

    H: FloatArray
    support: IntArray
    probabilities: FloatArray
    n_vocabulary: int

    @property
    def equalities(self) -> FloatArray:
        """(n_contexts * (n_next - 1), n_vocabulary * d_model) rows (e_z - e_z')ᵀ W h of two tokens that follow a context."""
        return np.stack(
            [self._row(h, s[0], other) for h, s in zip(self.H, self.support, strict=True) for other in s[1:]]
        )

    @property
    def log_odds(self) -> FloatArray:
        """What each of the `equalities` is for weights that predict the probabilities: log p_z - log p_z'."""
        logs = np.log(self.probabilities)
        return np.ravel(logs[:, :1] - logs[:, 1:])

    @property
    def margins(self) -> FloatArray:
        """(n_contexts * (n_vocabulary - n_next), n_vocabulary * d_model) rows (e_z - e_v)ᵀ W h of tokens that follow and do not."""
        others = [[v for v in range(self.n_vocabulary) if v not in s] for s in self.support]
        rows = zip(self.H, self.support, others, strict=True)
        return np.stack([self._row(h, s[0], v) for h, s, outside in rows for v in outside])

    def _row(self, h: FloatArray, first: int, second: int) -> FloatArray:
        row = np.zeros((self.n_vocabulary, len(h)))
        row[first], row[second] = h, -h
        return row.ravel()


def ntp_contexts(
    n_contexts: int = 6, d_model: int = 7, n_vocabulary: int = 8, n_next: int = 3, rng: int | np.random.Generator = 0
) -> Contexts:
    """Gaussian contexts, each followed by `n_next` of the tokens."""
    generator = np.random.default_rng(rng)
    H = generator.standard_normal((n_contexts, d_model))
    support = np.stack([generator.choice(n_vocabulary, n_next, replace=False) for _ in range(n_contexts)])
    probabilities = generator.dirichlet(np.full(n_next, CONCENTRATION), n_contexts)
    return Contexts(H, support, probabilities, n_vocabulary)
