"""How well next tokens are predicted: accuracy and log-loss on sequences, and the bigram that any prediction should beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from marginlens.data.sequences import SequenceDataset, as_sequences, check_sequence
from marginlens.errors import array_of_any, reject, whole_number
from marginlens.result import Displayed, axes_for
from marginlens.result.drawing import draw_bars
from marginlens.risk.sequence_batch import ReducedProblem, reduce_sequences
from marginlens.typing import FloatArray, IntArray


@dataclass(frozen=True)
class PredictionScore(Displayed):
    r"""How predicted probabilities P_i agree with the tokens y_i that follow n sequences.

    .. math:: \text{accuracy} = \frac1n \sum_i [\arg\max_x P_i(x) = y_i], \qquad \text{log-loss} = -\frac1n \sum_i \log P_i(y_i)

    Attributes:
        n_samples: how many sequences. accuracy: the share whose most probable token follows; the smallest id counts where several tie.
        log_loss: infinite where some token that follows has probability zero. finite_log_loss: the mean over the others alone; nan where
            there are none.
        impossible: the share of sequences whose next token has probability zero. unknown: the share whose probabilities are not
            known; these count as mistakes and are in neither log-loss.
    """

    n_samples: int
    accuracy: float
    log_loss: float
    finite_log_loss: float
    impossible: float
    unknown: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """The numbers by name."""
        return {
            "samples": self.n_samples,
            "accuracy": self.accuracy,
            "log_loss": self.log_loss,
            "finite_log_loss": self.finite_log_loss,
            "impossible": self.impossible,
            "unknown": self.unknown,
        }

    def plot(self, ax: Any = None) -> Any:
        """Draw which shares of the sequences are predicted right, impossible and unknown. Returns the axes."""
        ax = axes_for(ax)
        shares = {"predicted right": self.accuracy, "impossible": self.impossible, "unknown": self.unknown}
        draw_bars(ax, list(shares), list(shares.values()), "share of the sequences", ylabel="next token")
        ax.set_xlim(0.0, 1.0)
        return ax

    def _facts(self) -> dict[str, Any]:
        return self.to_dict()


def score_shares(problem: ReducedProblem, shares: FloatArray) -> PredictionScore:
    """The score of probabilities (n_entries,) of the different tokens of each merged sample; nan where they are not known."""
    first, sample = problem.offsets[:-1], problem.sample
    best = np.maximum.reduceat(np.nan_to_num(shares, nan=-1.0), first)
    leads = np.flatnonzero(shares == best[sample])
    winner = leads[
        np.unique(sample[leads], return_index=True)[1]
    ]  # the first, so the smallest id, of each known sample
    predicted = np.full(len(problem.labels), -1)
    predicted[sample[winner]] = problem.tokens[winner]
    truth = np.add.reduceat(
        np.where(problem.is_label, shares, 0.0), first
    )  # zero for a label that is not in its sequence
    unknown = np.bitwise_or.reduceat(np.isnan(shares), first)
    weight, known = problem.share, ~unknown
    possible = known & (truth > 0.0)
    with np.errstate(divide="ignore"):
        loss = -np.log(np.where(possible, truth, 1.0))
    impossible = float(weight[known & ~possible].sum())
    finite, total = float(weight[possible].sum()), float(weight[known].sum())
    summed = float(weight[possible] @ loss[possible])
    return PredictionScore(
        n_samples=len(problem.merged),
        accuracy=float(weight[known & (predicted == problem.labels)].sum()),
        log_loss=np.inf if impossible > 0.0 else summed / total if total else np.nan,
        finite_log_loss=summed / finite if finite else np.nan,
        impossible=impossible,
        unknown=float(weight[unknown].sum()),
    )


@dataclass(frozen=True, repr=False, eq=False)
class WindowBigram:
    r"""How often each token followed the last one, restricted to the tokens of the sequence: the simplest prediction to compare with.

    .. math:: P(x \mid X) = \frac{N(\bar x, x)}{\sum_{z \in X} N(\bar x, z)} \quad (x \in X)

    All tokens of the sequence are equally probable where none of them ever followed the last one.

    Attributes:
        counts: (n_vocabulary, n_vocabulary) N, how often each token (column) followed each token (row).
    """

    counts: FloatArray

    def __repr__(self) -> str:
        return f"WindowBigram({len(self.counts)} tokens, {int(self.counts.sum())} pairs)"

    @classmethod
    def fit(cls, data: SequenceDataset) -> WindowBigram:
        """Count the label after the last token of every sequence."""
        return cls.of_pairs(as_sequences(data).last, data.labels, data.n_vocabulary)

    @classmethod
    def of_text(cls, ids: Any, n_vocabulary: int) -> WindowBigram:
        """Count every token of a text (n_tokens,) after the one before it."""
        text = check_sequence(ids, n_vocabulary, "ids")
        return cls.of_pairs(text[:-1], text[1:], n_vocabulary)

    @classmethod
    def of_pairs(cls, first: Any, second: Any, n_vocabulary: int) -> WindowBigram:
        """Count pairs of ids, each (n_pairs,)."""
        K = whole_number(n_vocabulary, "n_vocabulary", at_least=1)
        before, after = (
            array_of_any(ids, name, "a list of ids") for ids, name in ((first, "first"), (second, "second"))
        )
        if before.shape != after.shape or before.ndim != 1:
            raise reject("second", f"as many ids as 'first', shape {before.shape}", f"shape {after.shape}")
        for name, ids in (("first", before), ("second", after)):
            if ids.size and (ids.dtype.kind not in "iu" or ids.min() < 0 or ids.max() >= K):
                raise reject(name, f"token ids from 0 to {K - 1}", f"{ids.min()} … {ids.max()}")
        keys: IntArray = before.astype(np.int64) * K + after.astype(np.int64)
        return cls(np.bincount(keys, minlength=K * K).reshape(K, K).astype(np.float64))

    def predict_proba(self, sequence: Any) -> FloatArray:
        """(n_vocabulary,) the probability of each token to follow the sequence; zero for tokens that the sequence lacks."""
        ids = check_sequence(sequence, len(self.counts))
        tokens = np.unique(ids)
        weight = self.counts[ids[-1], tokens]
        weight = weight if weight.any() else np.ones(len(tokens))
        probability = np.zeros(len(self.counts))
        probability[tokens] = weight / weight.sum()
        return probability

    def score(self, data: SequenceDataset) -> PredictionScore:
        """How well it predicts the labels of a dataset."""
        problem = reduce_sequences(as_sequences(data))
        first, sample = problem.offsets[:-1], problem.sample
        weight = self.counts[problem.queries[problem.column[sample]], problem.tokens]
        weight = np.where(np.add.reduceat(weight, first)[sample] > 0.0, weight, 1.0)
        return score_shares(problem, weight / np.add.reduceat(weight, first)[sample])
