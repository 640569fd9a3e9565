"""Scores of predicted next tokens: accuracy and log-loss on sequences, and n-grams for comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from marginlens.data.sequences import SequenceDataset, as_sequences, check_sequence
from marginlens.data.text_windows import SequenceSplit
from marginlens.errors import InputError, whole_number
from marginlens.result import Described, Displayed
from marginlens.risk.sequence_batch import ReducedProblem, reduce_sequences
from marginlens.typing import ArrayLike, BoolArray, FloatArray, IntArray
from marginlens.words import text

if TYPE_CHECKING:
    from marginlens.nexttoken.automaton import NextTokenAutomaton

# Share of the uniform distribution over a sequence's tokens in `PredictionScore.mixed_log_loss`.
MIXED_SHARE = 0.01


@dataclass(frozen=True)
class PredictionScore(Displayed):
    r"""Agreement of predicted probabilities P_i with the next tokens y_i of n sequences; every sequence counts in every number.

    .. math:: \text{accuracy} = \frac1n \sum_i [\arg\max_x P_i(x) = y_i], \qquad \text{log-loss} = -\frac1n \sum_i \log P_i(y_i)

    Attributes:
        n_samples: number of sequences.

        accuracy: share of sequences whose most probable token follows; the smallest id counts if several tie.

        log_loss: mean log-loss, infinite if some next token has probability zero.

        mixed_log_loss: log-loss of .99 P_i + .01 U_i with U_i uniform over the different tokens of sequence i, to compare rules that
            give zeros with others.

        impossible: share of sequences whose next token has probability zero.

        unknown: share of sequences whose probabilities are not known; these count as mistakes, and in the log-losses as probability zero.

        slow: share of sequences whose limit slowly growing weights decide; only layers of enormous norm predict the same.
    """

    n_samples: int
    accuracy: float
    log_loss: float
    mixed_log_loss: float
    impossible: float
    unknown: float = 0.0
    slow: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers by name."""
        numbers = asdict(self)
        return {"samples": numbers.pop("n_samples"), **numbers}


def score_shares(problem: ReducedProblem, shares: FloatArray, is_slow: BoolArray | None = None) -> PredictionScore:
    """Score the probabilities of the different tokens of each merged sample.

    Args:
        problem: the merged samples.

        shares: (n_entries,) probabilities, nan if they are not known.

        is_slow: (n_merged,) whether slowly growing weights decide in a sample; in none by default.
    """
    first, sample = problem.offsets[:-1], problem.sample
    best = np.maximum.reduceat(np.nan_to_num(shares, nan=-1.0), first)
    leads = np.flatnonzero(shares == best[sample])
    # The first token that leads in each sample, so the one with the smallest id.
    winner = leads[np.unique(sample[leads], return_index=True)[1]]
    predicted = np.full(len(problem.labels), -1)
    predicted[sample[winner]] = problem.tokens[winner]
    unknown = np.bitwise_or.reduceat(np.isnan(shares), first)
    # Both are zero for a label that is not in its sequence.
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
    """Counts of the tokens that followed the contexts of one length, which are numbered in the order of `keys`.

    Attributes:
        keys: (n_contexts,) the number of the context without its first token, times n_vocabulary, plus that token; increasing.

        pairs: (n_pairs,) context times n_vocabulary plus a token that followed it, increasing.

        counts: (n_pairs,) how often it did.

        total: (n_contexts,) the number of tokens that followed each context.

        different: (n_contexts,) the number of different tokens that followed it.
    """

    keys: IntArray
    pairs: IntArray
    counts: IntArray
    total: FloatArray
    different: FloatArray


@dataclass(frozen=True, repr=False, eq=False)
class WindowNgram(Described):
    r"""An n-gram with Witten–Bell backoff: counts of each token after the last n - 1, restricted to the tokens of the sequence.

    .. math:: P_n(x \mid h) = \frac{N(hx) + D(h)\, P_{n-1}(x \mid h')}{N(h) + D(h)}, \qquad P_0 = 1 / K

    Here h' is h without its first token, N(h) the number of tokens that followed h and D(h) the number of different ones; P_n = P_{n-1}
    if none did. Unlike attention without positions, it reads the order of its context. No token of the sequence is impossible.

    Attributes:
        levels: counts after contexts of 0, 1, … n - 1 tokens.

        n_vocabulary: K.

    Examples:
        >>> from marginlens.nexttoken import WindowNgram
        >>> bigram = WindowNgram.of_text([0, 1, 0, 1, 0, 2], 2, n_vocabulary=3)
        >>> print(bigram.predict_proba([1, 2, 0]).round(3))
        [0.15 0.55 0.3 ]
    """

    levels: tuple[_Contexts, ...]
    n_vocabulary: int
    quantities = "{levels:#}-gram, {n_vocabulary} tokens, {levels[0].total.sum} events"

    @classmethod
    def fit(cls, data: SequenceDataset, order: int) -> WindowNgram:
        """Count the label of every sequence after its last order - 1 tokens.

        Args:
            data: sequences with their next tokens.

            order: n.

        Examples:
            >>> import numpy as np
            >>> import marginlens as ml
            >>> from marginlens.nexttoken import WindowNgram
            >>> data = ml.SequenceDataset([[0, 1, 2], [1, 0, 2]], [1, 1], np.eye(3))
            >>> WindowNgram.fit(data, 2).score(data).accuracy
            1.0
        """
        ends = as_sequences(data).offsets[1:]
        return cls._of_events(data.tokens, ends, data.lengths, data.labels, order, data.n_vocabulary)

    @classmethod
    def of_text(cls, ids: ArrayLike, order: int, n_vocabulary: int) -> WindowNgram:
        """Count every token of a text after the order - 1 tokens before it.

        Args:
            ids: (n_tokens,) the text.

            order: n.

            n_vocabulary: number of different tokens.
        """
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
                enough = lengths >= m
                ends, lengths, following, number = (column[enough] for column in (ends, lengths, following, number))
                keys, number = np.unique(number * K + tokens[ends - m], return_inverse=True)
            pairs, counts = np.unique(number * K + following, return_counts=True)
            total = np.bincount(pairs // K, counts, len(keys)).astype(np.float64)
            different = np.bincount(pairs // K, minlength=len(keys)).astype(np.float64)
            levels.append(_Contexts(keys, pairs, counts, total, different))
        return cls(tuple(levels), K)

    def predict_proba(self, sequence: ArrayLike) -> FloatArray:
        """Compute the probability of each token to follow a sequence.

        Args:
            sequence: token ids.

        Returns:
            (n_vocabulary,) probabilities, zero for tokens that the sequence lacks.
        """
        ids = check_sequence(sequence, self.n_vocabulary)
        tokens = np.unique(ids)
        probability = np.zeros(self.n_vocabulary)
        ends = np.array([len(ids)])
        probability[tokens] = self._shares(ids, ends, ends, np.zeros(len(tokens), dtype=np.int64), tokens)
        return probability / probability.sum()

    def score(self, data: SequenceDataset) -> PredictionScore:
        """Score the predictions of the labels of a dataset."""
        problem = reduce_sequences(as_sequences(data), merge=False)
        shares = self._shares(data.tokens, data.offsets[1:], data.lengths, problem.sample, problem.tokens)
        return score_shares(problem, shares / np.add.reduceat(shares, problem.offsets[:-1])[problem.sample])

    def _shares(
        self, tokens: IntArray, ends: IntArray, lengths: IntArray, sample: IntArray, candidates: IntArray
    ) -> FloatArray:
        """Compute P_n (n_entries,) of each candidate after its sample's context, which stands before `ends` (n_samples,) in `tokens`."""
        K, shares = self.n_vocabulary, np.full(len(candidates), 1.0 / self.n_vocabulary)
        # The number of each sample's context at this level, if the level has counted it.
        number, is_counted = np.zeros(len(ends), dtype=np.int64), np.ones(len(ends), dtype=np.bool_)
        for m, level in enumerate(self.levels):
            if m:
                is_counted &= lengths >= m
                index, exists = _find(level.keys, number[is_counted] * K + tokens[ends[is_counted] - m])
                number[is_counted] = index
                is_counted[is_counted] = exists
            entries = np.flatnonzero(is_counted[sample])
            context = number[sample[entries]]
            index, exists = _find(level.pairs, context * K + candidates[entries])
            times, different = np.where(exists, level.counts[index], 0), level.different[context]
            shares[entries] = (times + different * shares[entries]) / (level.total[context] + different)
            if not len(entries):
                break
        return shares


def _find(ordered: IntArray, keys: IntArray) -> tuple[IntArray, BoolArray]:
    """Find the index of each key in an increasing list, and whether the list has it."""
    if not len(ordered):
        return np.zeros(len(keys), dtype=np.int64), np.zeros(len(keys), dtype=np.bool_)
    index = np.minimum(np.searchsorted(ordered, keys), len(ordered) - 1)
    return index, ordered[index] == keys


# ---- a share of the data held out


class HeldOutScores(NamedTuple):
    """Scores of rules on the same held-out sequences: those that hold their next token, unless that is the unknown token.

    Attributes:
        scores: rule → its score.

        n_unknown: number of sequences left out because the unknown token follows them.

        n_windows: number of windows in the held-out part of a text, including those that lack their next token, but not those followed by
            the unknown token; None for listed sequences.

        free_accuracy: share of these windows that the bigram of the text predicts if it may choose any token, not only those of the
            window; nan for listed sequences.
    """

    scores: dict[str, PredictionScore]
    n_unknown: int
    n_windows: int | None
    free_accuracy: float

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers by name; `accuracy_of_all` of a rule counts windows that lack their next token as mistakes."""
        n = np.nan if self.n_windows is None else self.n_windows
        rows = [
            {"rule": rule, **score.to_dict(), "accuracy_of_all": score.accuracy * score.n_samples / n}
            for rule, score in self.scores.items()
        ]
        facts = {"windows": self.n_windows, "left_out": self.n_unknown, "free_bigram_accuracy": self.free_accuracy}
        return {**facts, "mixed": MIXED_SHARE, "scores": rows}

    def __str__(self) -> str:
        rule, first = next(iter(self.scores.items()))
        lines = [text("held_out.heading", sequences=first.n_samples)]
        width = max(map(len, self.scores))
        lines += [f"  {name:<{width}}  {_row(score)}" for name, score in self.scores.items()]
        if any(score.impossible for score in self.scores.values()):
            lines.append(text("held_out.impossible"))
        if any(score.slow for score in self.scores.values()):
            lines.append(text("held_out.slow"))
        if self.n_unknown:
            share = self.n_unknown / (self.n_unknown + first.n_samples)
            lines.append(text("held_out.left_out", sequences=self.n_unknown, share=share))
        if self.n_windows is not None:
            holding = first.n_samples / self.n_windows
            numbers = {"windows": self.n_windows, "holding": holding, "right": first.accuracy * holding}
            lines.append(text("held_out.windows", rule=rule, free=self.free_accuracy, **numbers))
        return "\n".join(lines)


def _row(score: PredictionScore) -> str:
    """Format a row of the table: accuracy, losses, and the shares that are not zero."""
    log_loss = f"{score.log_loss:.3f}".replace("inf", "∞")
    losses = {"log_loss": log_loss, "mixed_log_loss": score.mixed_log_loss, "mixed": MIXED_SHARE}
    shares = {"impossible": score.impossible, "unknown": score.unknown, "slow": score.slow}
    rest = "".join(f", {name} {share:.2%}" for name, share in shares.items() if share)
    return text("held_out.score", accuracy=score.accuracy, **losses) + rest


def score_held_out(split: SequenceSplit, rules: Mapping[str, NextTokenAutomaton | WindowNgram]) -> HeldOutScores:
    """Score rules on the held-out part of a split, together with n-grams of the other part that may choose among the same tokens.

    The n-grams are bigrams, a trigram, and the longest one that a window can feed; from three on they read the order of tokens.

    Args:
        split: a training part and a held-out part, such as those of `split_sequences` or `split_text_windows`.

        rules: automata and n-grams by name.

    Returns:
        The scores of all rules by name; it prints as a table.

    Examples:
        >>> import marginlens as ml
        >>> from marginlens.data import split_text_windows
        >>> from marginlens.nexttoken import score_held_out
        >>> split = split_text_windows("abababababababababab", 3, held_out=0.3)
        >>> scores = score_held_out(split, {"automaton": ml.NextTokenAutomaton.fit(split.training.data)}).scores
        >>> scores["automaton"].accuracy
        1.0
    """
    training, unknown = split.training.data, split.training.vocabulary.unknown
    followed = np.ones(len(split.held_out), dtype=np.bool_) if unknown is None else split.held_out.labels != unknown
    if not followed.any():
        raise InputError("held_out", "such that a known word follows some window", "unknown words alone")
    held_out, K = split.held_out.take(np.flatnonzero(followed)), training.n_vocabulary
    longest = int(max(training.lengths.max(), held_out.lengths.max())) + 1
    compared = {**rules, _rule("held_out.same_windows", 2): WindowNgram.fit(training, 2)}
    orders, n_windows, free_accuracy = sorted({2, min(3, longest), longest}), None, np.nan
    if split.text is None or split.held_out_text is None:
        compared |= {_rule("held_out.same_windows", n): WindowNgram.fit(training, n) for n in orders}
    else:
        ids, rest = split.text, split.held_out_text
        compared |= {_rule("held_out.whole_text", n): WindowNgram.of_text(ids, n, K) for n in orders}
        next_ones = np.flatnonzero(rest[longest - 1 :] != (-1 if unknown is None else unknown)) + longest - 1
        pairs, counts = np.unique(ids[:-1] * K + ids[1:], return_counts=True)
        # The most frequent successor of a token comes last, so that the assignment below keeps it.
        frequent = pairs[np.lexsort((-counts, pairs // K))][::-1]
        likeliest = np.full(K, -1)
        likeliest[frequent // K] = frequent % K
        n_windows, free_accuracy = len(next_ones), float(np.mean(likeliest[rest[next_ones - 1]] == rest[next_ones]))
    scores = {name: rule.score(held_out) for name, rule in compared.items()}
    return HeldOutScores(scores, int(np.sum(~followed)), n_windows, free_accuracy)


def _rule(code: str, order: int) -> str:
    return text(code, gram={2: "bigram", 3: "trigram"}.get(order, f"{order}-gram"))
