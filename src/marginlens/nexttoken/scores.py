"""How well next tokens are predicted: accuracy and log-loss on sequences, and the n-grams that a prediction should be compared with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from marginlens.data.sequences import SequenceDataset, as_sequences, check_sequence
from marginlens.data.text_windows import SequenceSplit
from marginlens.errors import InputError, whole_number
from marginlens.result import Described, Displayed, counted
from marginlens.risk.sequence_batch import ReducedProblem, reduce_sequences
from marginlens.typing import BoolArray, FloatArray, IntArray

if TYPE_CHECKING:
    from marginlens.nexttoken.automaton import NextTokenAutomaton

MIXED_SHARE = 0.01  # of the uniform distribution over a sequence's tokens, in `PredictionScore.mixed_log_loss`


@dataclass(frozen=True)
class PredictionScore(Displayed):
    r"""How predicted probabilities P_i agree with the tokens y_i that follow n sequences; every sequence counts in every number.

    .. math:: \text{accuracy} = \frac1n \sum_i [\arg\max_x P_i(x) = y_i], \qquad \text{log-loss} = -\frac1n \sum_i \log P_i(y_i)

    Attributes:
        n_samples: how many sequences.
        accuracy: the share whose most probable token follows; the smallest id counts where several tie.
        log_loss: infinite where some token that follows has probability zero.
        mixed_log_loss: that of .99 P_i + .01 U_i, where U_i is uniform over the different tokens of sequence i, so that rules with zeros
            can be compared with others.
        impossible: the share of sequences whose next token has probability zero.
        unknown: the share whose probabilities are not known; these count as mistakes, and in the log-losses as probability zero.
        slow: the share of sequences whose limit slowly growing weights decide, so that only layers of enormous norm predict as it does.
    """

    n_samples: int
    accuracy: float
    log_loss: float
    mixed_log_loss: float
    impossible: float
    unknown: float = 0.0
    slow: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """The numbers by name."""
        numbers = asdict(self)
        return {"samples": numbers.pop("n_samples"), **numbers}


def score_shares(problem: ReducedProblem, shares: FloatArray, is_slow: BoolArray | None = None) -> PredictionScore:
    """The score of probabilities (n_entries,) of the different tokens of each merged sample; nan where they are not known.

    Args:
        is_slow: (n_merged,) whether slowly growing weights decide in a sample; no sample if left out.
    """
    first, sample = problem.offsets[:-1], problem.sample
    best = np.maximum.reduceat(np.nan_to_num(shares, nan=-1.0), first)
    leads = np.flatnonzero(shares == best[sample])
    winner = leads[
        np.unique(sample[leads], return_index=True)[1]
    ]  # the first, so the smallest id, of each known sample
    predicted = np.full(len(problem.labels), -1)
    predicted[sample[winner]] = problem.tokens[winner]
    unknown = np.bitwise_or.reduceat(np.isnan(shares), first)
    # zero for a label that is not in its sequence, where the uniform share is zero too
    truth = np.where(unknown, 0.0, np.add.reduceat(np.where(problem.is_label, shares, 0.0), first))
    uniform = np.bitwise_or.reduceat(problem.is_label, first) / np.diff(problem.offsets)
    with np.errstate(divide="ignore"):
        loss, mixed = -np.log(truth), -np.log((1.0 - MIXED_SHARE) * truth + MIXED_SHARE * uniform)
    weight = problem.share
    return PredictionScore(
        n_samples=len(problem.merged),
        accuracy=float(weight[~unknown & (predicted == problem.labels)].sum()),
        log_loss=float(weight @ loss),
        mixed_log_loss=float(weight @ mixed),
        impossible=float(weight[~unknown & (truth == 0.0)].sum()),
        unknown=float(weight[unknown].sum()),
        slow=0.0 if is_slow is None else float(weight[is_slow].sum()),
    )


class _Contexts(NamedTuple):
    """What followed the contexts of one length, numbered in the order of `keys`.

    Attributes:
        keys: (n_contexts,) the number of the context without its first token, times n_vocabulary, plus that token; increasing.
        pairs: (n_pairs,) context times n_vocabulary plus a token that followed it, increasing.
        counts: (n_pairs,) how often it did.
        total, different: (n_contexts,) how many tokens followed each context, and how many different ones.
    """

    keys: IntArray
    pairs: IntArray
    counts: IntArray
    total: FloatArray
    different: FloatArray


@dataclass(frozen=True, repr=False, eq=False)
class WindowNgram(Described):
    r"""How often each token followed the last n - 1 in their order, with Witten–Bell backoff, restricted to the tokens of the sequence.

    .. math:: P_n(x \mid h) = \frac{N(hx) + D(h)\, P_{n-1}(x \mid h')}{N(h) + D(h)}, \qquad P_0 = 1 / K

    Here h' is h without its first token, N(h) how many tokens followed h and D(h) how many different ones; P_n = P_{n-1} where none
    did. Unlike attention without positions, it reads the order of its context. Nothing that the sequence holds is impossible.

    Attributes:
        levels: what followed contexts of 0, 1, … n - 1 tokens.
        n_vocabulary: K.
    """

    levels: tuple[_Contexts, ...]
    n_vocabulary: int
    quantities = "{levels:#}-gram, {n_vocabulary} tokens, {levels[0].total.sum} events"

    @classmethod
    def fit(cls, data: SequenceDataset, order: int) -> WindowNgram:
        """Count the label of every sequence after its last order - 1 tokens."""
        ends = as_sequences(data).offsets[1:]
        return cls._of_events(data.tokens, ends, data.lengths, data.labels, order, data.n_vocabulary)

    @classmethod
    def of_text(cls, ids: Any, order: int, n_vocabulary: int) -> WindowNgram:
        """Count every token of a text (n_tokens,) after the order - 1 before it."""
        text = check_sequence(ids, n_vocabulary, "ids")
        ends = np.arange(1, len(text))
        return cls._of_events(text, ends, ends, text[1:], order, n_vocabulary)

    @classmethod
    def _of_events(
        cls, tokens: IntArray, ends: IntArray, lengths: IntArray, following: IntArray, order: int, K: int
    ) -> WindowNgram:
        """Count each of `following` (n_events,) after the `lengths` tokens that stand before `ends` in `tokens`."""
        levels, number = [], np.zeros(len(ends), dtype=np.int64)
        for m in range(whole_number(order, "order", at_least=1)):
            keys = np.zeros(1, dtype=np.int64)
            if m:
                long = lengths >= m
                ends, lengths, following, number = (part[long] for part in (ends, lengths, following, number))
                keys, number = np.unique(number * K + tokens[ends - m], return_inverse=True)
            pairs, counts = np.unique(number * K + following, return_counts=True)
            total = np.bincount(pairs // K, counts, len(keys)).astype(np.float64)
            different = np.bincount(pairs // K, minlength=len(keys)).astype(np.float64)
            levels.append(_Contexts(keys, pairs, counts, total, different))
        return cls(tuple(levels), K)

    def predict_proba(self, sequence: Any) -> FloatArray:
        """(n_vocabulary,) the probability of each token to follow the sequence; zero for tokens that the sequence lacks."""
        ids = check_sequence(sequence, self.n_vocabulary)
        tokens = np.unique(ids)
        probability = np.zeros(self.n_vocabulary)
        ends = np.array([len(ids)])
        probability[tokens] = self._shares(ids, ends, ends, np.zeros(len(tokens), dtype=np.int64), tokens)
        return probability / probability.sum()

    def score(self, data: SequenceDataset) -> PredictionScore:
        """How well it predicts the labels of a dataset."""
        problem = reduce_sequences(as_sequences(data), merge=False)
        shares = self._shares(data.tokens, data.offsets[1:], data.lengths, problem.sample, problem.tokens)
        return score_shares(problem, shares / np.add.reduceat(shares, problem.offsets[:-1])[problem.sample])

    def _shares(
        self, tokens: IntArray, ends: IntArray, lengths: IntArray, sample: IntArray, candidates: IntArray
    ) -> FloatArray:
        """(n_entries,) P_n of each candidate after its sample's context, which stands before `ends` (n_samples,) in `tokens`."""
        K, shares = self.n_vocabulary, np.full(len(candidates), 1.0 / self.n_vocabulary)
        number, known = np.zeros(len(ends), dtype=np.int64), np.ones(len(ends), dtype=np.bool_)
        for m, level in enumerate(self.levels):
            if m:
                known &= lengths >= m
                place, found = _find(level.keys, number[known] * K + tokens[ends[known] - m])
                number[known] = place
                known[known] = found
            entries = np.flatnonzero(known[sample])
            context = number[sample[entries]]
            place, found = _find(level.pairs, context * K + candidates[entries])
            times, different = np.where(found, level.counts[place], 0), level.different[context]
            shares[entries] = (times + different * shares[entries]) / (level.total[context] + different)
            if not len(entries):
                break
        return shares


def _find(ordered: IntArray, keys: IntArray) -> tuple[IntArray, BoolArray]:
    """Where each key stands in an increasing list, and whether it is there."""
    if not len(ordered):
        return np.zeros(len(keys), dtype=np.int64), np.zeros(len(keys), dtype=np.bool_)
    place = np.minimum(np.searchsorted(ordered, keys), len(ordered) - 1)
    return place, ordered[place] == keys


# ---- a share of the data held out


class HeldOutScores(NamedTuple):
    """How well rules predict the same held-out sequences: those that hold the token which follows, unless that is the unknown one.

    Attributes:
        scores: rule → its score.
        n_unknown: how many sequences were left out because the unknown token follows them.
        n_windows: of a text, how many windows its held-out part has, also those that lack the token which follows, but not those followed
            by the unknown one; None for listed sequences.
        free_accuracy: the share of these windows that the bigram of the text predicts when it may choose any token, not only those of the
            window; nan for listed sequences.
    """

    scores: dict[str, PredictionScore]
    n_unknown: int
    n_windows: int | None
    free_accuracy: float

    def to_dict(self) -> dict[str, Any]:
        """The numbers by name; `accuracy_of_all` of a rule counts the windows that lack the token which follows as mistakes."""
        n = np.nan if self.n_windows is None else self.n_windows
        rows = [
            {"rule": rule, **score.to_dict(), "accuracy_of_all": score.accuracy * score.n_samples / n}
            for rule, score in self.scores.items()
        ]
        facts = {"windows": self.n_windows, "left_out": self.n_unknown, "free_bigram_accuracy": self.free_accuracy}
        return {**facts, "mixed": MIXED_SHARE, "scores": rows}

    def __str__(self) -> str:
        first = next(iter(self.scores.values()))
        lines = [
            f"Prediction of {counted(first.n_samples, 'sequence')} held out; every rule chooses among the tokens of the sequence:"
        ]
        width = max(map(len, self.scores))
        for rule, score in self.scores.items():
            shares = {"impossible": score.impossible, "unknown": score.unknown, "slow": score.slow}
            listed = "".join(f", {name} {share:.2%}" for name, share in shares.items() if share)
            losses = f"log-loss {score.log_loss:.3f} ({score.mixed_log_loss:.3f} at {MIXED_SHARE:.0%} uniform)"
            lines.append(f"  {rule:<{width}}  accuracy {score.accuracy:.3f}, {losses}{listed}".replace("inf", "∞"))
        if any(score.impossible for score in self.scores.values()):
            lines.append("Impossible: the token that follows had probability zero, which makes the log-loss infinite.")
        if any(score.slow for score in self.scores.values()):
            lines.append(
                "Slow: weights that grow only like the logarithm of the norm decide, which only enormous layers reach."
            )
        if self.n_unknown:
            share = self.n_unknown / (self.n_unknown + first.n_samples)
            lines.append(f"{self.n_unknown:,} more ({share:.0%}) are left out because <unknown> follows them.")
        if self.n_windows is not None:
            rule, right = next(iter(self.scores)), first.accuracy * first.n_samples / self.n_windows
            lines.append(
                f"Of all {self.n_windows:,} windows held out, {first.n_samples / self.n_windows:.1%} hold the token that follows. Of all, "
                f"the {rule} predicts {right:.1%}, and a bigram of the text that may choose any token {self.free_accuracy:.1%}."
            )
        return "\n".join(lines)


def score_held_out(split: SequenceSplit, rules: Mapping[str, NextTokenAutomaton | WindowNgram]) -> HeldOutScores:
    """Score rules on what a split holds out, beside n-grams of the other part that may choose among the same tokens.

    These are bigrams, a trigram, and the longest n-gram that a window can feed; from three on they read the order of tokens.
    """
    training, unknown = split.training.data, split.training.vocabulary.unknown
    followed = np.ones(len(split.held_out), dtype=np.bool_) if unknown is None else split.held_out.labels != unknown
    if not followed.any():
        raise InputError("held_out", "such that a known word follows some window", "unknown words alone")
    held_out, K = split.held_out.take(np.flatnonzero(followed)), training.n_vocabulary
    longest = int(max(training.lengths.max(), held_out.lengths.max())) + 1
    compared = {**rules, "bigram of the same windows": WindowNgram.fit(training, 2)}
    orders, n_windows, free_accuracy = sorted({2, min(3, longest), longest}), None, np.nan
    if split.text is None or split.held_out_text is None:
        compared |= {f"{_gram(n)} of the same windows": WindowNgram.fit(training, n) for n in orders}
    else:
        text, rest = split.text, split.held_out_text
        compared |= {f"{_gram(n)} of all of the text": WindowNgram.of_text(text, n, K) for n in orders}
        known = np.flatnonzero(rest[longest - 1 :] != (-1 if unknown is None else unknown)) + longest - 1
        pairs, counts = np.unique(text[:-1] * K + text[1:], return_counts=True)
        frequent = pairs[np.lexsort((-counts, pairs // K))][::-1]  # what followed a token most often comes last
        likeliest = np.full(K, -1)
        likeliest[frequent // K] = frequent % K
        n_windows, free_accuracy = len(known), float(np.mean(likeliest[rest[known - 1]] == rest[known]))
    scores = {name: rule.score(held_out) for name, rule in compared.items()}
    return HeldOutScores(scores, int(np.sum(~followed)), n_windows, free_accuracy)


def _gram(order: int) -> str:
    return {2: "bigram", 3: "trigram"}.get(order, f"{order}-gram")
