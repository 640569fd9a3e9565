"""How the text classifier learns: naive Bayes as a start, AdaGrad on scores and votes, calibration on held-out texts."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import scipy

from marginlens import core
from marginlens.errors import reject
from marginlens.runtime.progress import Progress
from marginlens.typing import FloatArray, IntArray

START_SCALE = 8.0  # of the starting votes over the log-ratios of naive Bayes: a mean over a text becomes log-odds
START_SCALE_OF_MANY = 4.0  # the same for more than two classes
PRIOR_COUNT = 1.0  # occurrences as expected without the label, added to those observed
SELECTIVE_START = 1.0  # of selective attention: a token's starting score over the largest log-ratio of naive Bayes
ENTROPY_PENALTY = 0.7  # of selective attention, in log-loss
START_SQUARES = 10.0  # of AdaGrad's sums, in squares of a token's mean share of a text: the first steps are small
VOTE_RATE = 60.0  # learning rate of votes over that of scores: votes are log-odds, scores logarithms of shares
MAX_DROPPED = (
    0.5  # the largest share of its tokens that a text is read without; the share is drawn anew at each reading
)
EXCERPT_SHARE = 0.2  # of the readings, which see a stretch of the text alone, so that short texts make it less sure
MIN_EXCERPT = 2  # tokens
FOLDS_BELOW = 3000  # texts; fewer are calibrated on N_FOLDS folds, more on a tenth of them
N_FOLDS = 5
HELD_OUT_SHARE = 0.1
MIN_CALIBRATED = 10  # texts; with fewer there is nothing to calibrate on
REST_SCORES = tuple(map(float, range(-2, 9)))  # among which calibration chooses the rest token's
CALIBRATION_PENALTY = (
    0.5  # of the squared logarithm of the scale and of the squared shifts: the calibration of few texts changes little
)
_STRIDE = 500  # texts read between two looks for an interrupt


class TokenSets(NamedTuple):
    """Texts as sets of tokens: text i holds `token[offsets[i]:offsets[i + 1]]`, each once, in the order of first occurrence."""

    token: Any  # (n_entries,) int32
    offsets: IntArray  # (n_texts + 1,)
    n_tokens: int

    def take(self, texts: IntArray) -> TokenSets:
        """The sets of these texts."""
        return self.between(np.column_stack([self.offsets[:-1], self.offsets[1:]])[texts])

    def between(self, ranges: IntArray) -> TokenSets:
        """The sets of the entries `ranges[i, 0]` to `ranges[i, 1]`."""
        lengths = ranges[:, 1] - ranges[:, 0]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        places = np.repeat(ranges[:, 0] - offsets[:-1], lengths) + np.arange(offsets[-1])
        return TokenSets(self.token[places], offsets, self.n_tokens)

    def without_unknown(self, known: TokenSets, min_texts: int) -> TokenSets:
        """These sets less the tokens that fewer than `min_texts` of the sets `known` have: as texts look to a model of those."""
        kept = (np.bincount(known.token, minlength=self.n_tokens) >= min_texts)[self.token]
        offsets = np.concatenate([[0], np.cumsum(kept)])[self.offsets]
        return TokenSets(self.token[kept], offsets, self.n_tokens)


def token_sets(tokens: IntArray, offsets: IntArray, n_tokens: int) -> TokenSets:
    """The distinct tokens of every text, from its tokens in the order of their places."""
    flat = np.ascontiguousarray(tokens, dtype=np.int32)
    token, bounds = np.empty(len(flat), dtype=np.int32), np.zeros(len(offsets), dtype=np.int64)
    n_entries = core.find_distinct(flat, offsets, np.zeros(n_tokens, dtype=np.int64), token, None, bounds)
    return TokenSets(token[:n_entries].copy(), bounds, n_tokens)


@dataclass(frozen=True, repr=False)
class Votes:
    """Scores `a` (n_tokens,) and votes `b` (n_tokens, n_outputs) of the tokens, `rest_a` and `rest_b` (n_outputs,) of the rest token.

    `n_outputs` is 1 for two classes, whose only output is the log-odds of the second, else the number of classes.
    """

    a: FloatArray
    b: FloatArray
    rest_a: float
    rest_b: FloatArray

    @classmethod
    def naive_bayes(cls, texts: TokenSets, labels: IntArray, weights: FloatArray, prior: FloatArray) -> Votes:
        r"""Equal scores, and votes from how much more often than expected a token stands in texts of a class.

        .. math:: b_{sc} = \kappa \log \frac{n_{sc} + 1}{n_s N_c / N + 1} + \pi_c

        n counts tokens in texts, N_c those of a class, `prior` (n_outputs,) is π; votes are taken less their mean over the classes, and
        the difference of two where there are two.
        """
        n_classes = max(len(prior), 2)
        labels_of_entries, weights_of_entries = (np.repeat(x, np.diff(texts.offsets)) for x in (labels, weights))
        size = texts.n_tokens * n_classes
        entries = texts.token.astype(np.int64) * n_classes + labels_of_entries
        observed = np.bincount(entries, weights=weights_of_entries, minlength=size).reshape(-1, n_classes)
        expected = observed.sum(axis=1, keepdims=True) * (observed.sum(axis=0) / observed.sum())
        scale = START_SCALE if n_classes == 2 else START_SCALE_OF_MANY
        b = scale * np.log((observed + PRIOR_COUNT) / (expected + PRIOR_COUNT))
        b = b[:, 1:] - b[:, :1] if n_classes == 2 else b - b.mean(axis=1, keepdims=True)
        return cls(np.zeros(texts.n_tokens), b + prior, 0.0, prior)

    def outputs(self, texts: TokenSets) -> FloatArray:
        r"""What the model says about each text; the rest token's votes where a text has no token.

        .. math:: f_c(X) = \frac{e^{a_0} b_{0c} + \sum_{s \in X} e^{a_s} b_{sc}}{e^{a_0} + \sum_{s \in X} e^{a_s}}

        Returns:
            (n_texts, n_outputs) f.
        """
        f = np.empty((len(texts.offsets) - 1, self.b.shape[1]))
        core.fill_text_outputs(texts.token, texts.offsets, self.a, self.b, self.rest_a, self.rest_b, f)
        return f

    def rest_attention(self, texts: TokenSets) -> FloatArray:
        """(n_texts, 1) the rest token's share of each text's attention."""
        return Votes(self.a, np.zeros((len(self.a), 1)), self.rest_a, np.ones(1)).outputs(texts)

    def calibrated(self, found: Calibration) -> Votes:
        """The model with another rest token, and with votes scale · b + shift of all others.

        With more than two classes every token's votes are made to add up to zero, which changes no probability.
        """
        b = found.scale * self.b + np.asarray(found.shift)
        if b.shape[1] > 1:
            b -= b.mean(axis=1, keepdims=True)
        return Votes(self.a, b, found.rest_score, np.asarray(found.rest_vote))


@dataclass(frozen=True)
class LearningSettings:
    """Readings of every text, AdaGrad's rate for scores, the decay of votes, and the seed of order, omissions and excerpts.

    While all texts are read once, every vote falls by the factor exp(-weight_decay), less as the rate of learning falls.
    `min_texts` is in how many texts a token has to stand to be one. `selective` attention starts at tokens that tell classes apart, and
    pays for its entropy.
    """

    epochs: int = 8
    learning_rate: float = 0.07
    weight_decay: float = 0.0
    seed: int = 0
    min_texts: int = 1
    selective: bool = False


def run_adagrad(
    texts: TokenSets,
    labels: IntArray,
    weights: FloatArray,
    start: Votes,
    settings: LearningSettings,
    progress: Progress,
) -> Votes:
    """Train from `start` text by text, in random order, with a rate that falls to zero; texts are read in part.

    Args:
        labels: (n_texts,) class indices. weights: (n_texts,) with mean 1.
    """
    rng = np.random.default_rng(settings.seed)
    n, n_outputs = len(labels), len(start.rest_b)
    share = np.mean(1.0 / np.diff(texts.offsets))
    state = np.full((len(start.a) + 1, 2 + 2 * n_outputs), START_SQUARES * share**2)
    state[:, 0] = np.append(start.a, start.rest_a)
    votes = slice(2, 2 + n_outputs)
    state[:, votes] = np.vstack([start.b, start.rest_b])
    for done in range(0, settings.epochs * n, n):
        order = rng.permutation(n)
        for k in range(0, n, _STRIDE):
            part = order[k : k + _STRIDE]
            bounds = 1.0 - (done + k + np.array([0, len(part)])) / (settings.epochs * n)
            _read_texts(texts, labels, weights, part, state, settings, bounds, rng)
            if settings.weight_decay:  # outside AdaGrad's sums, which would make it slow learning instead
                state[:, votes] *= math.exp(-settings.weight_decay * bounds.mean() * len(part) / n)
            progress.advance(len(part))
    b = np.ascontiguousarray(state[:, votes])
    return Votes(state[:-1, 0].copy(), b[:-1], float(state[-1, 0]), b[-1])


def _read_texts(
    texts: TokenSets,
    labels: IntArray,
    weights: FloatArray,
    order: IntArray,
    state: FloatArray,
    settings: LearningSettings,
    bounds: FloatArray,
    rng: np.random.Generator,
) -> None:
    """Read the texts `order` one by one, and after each take a step of AdaGrad on the scores and votes of what was read of it.

    A row of `state` has a token's score, the sum of its squared derivatives, the votes, and their sums; the last row is the rest token's.
    `bounds` are the rate over that of the settings before the first text and after the last. `rng` draws on, as if by `rng.random()`.
    """
    rates, penalty = (settings.learning_rate * bounds).tolist(), ENTROPY_PENALTY * settings.selective
    whole = rng.bit_generator.state  # of PCG64
    numbers = [whole["state"][name] for name in ("state", "inc")]
    words = np.array([word for number in numbers for word in divmod(number, 2**64)], dtype=np.uint64)
    rules = (penalty, MAX_DROPPED, EXCERPT_SHARE, MIN_EXCERPT, VOTE_RATE)
    core.read_texts(texts.token, texts.offsets, labels, weights, order, state, *rates, *rules, words)
    whole["state"]["state"] = int(words[0]) << 64 | int(words[1])
    rng.bit_generator.state = whole


def excerpts(offsets: IntArray, rng: np.random.Generator) -> IntArray:
    """(n_texts, 2) a stretch of entries of each text, whose length is log-uniform."""
    first, lengths = offsets[:-1], np.diff(offsets)
    size = np.exp(rng.uniform(math.log(MIN_EXCERPT), np.log(np.maximum(lengths, MIN_EXCERPT)))).astype(np.int64)
    size = np.minimum(size, lengths)
    begin = first + (rng.random(len(lengths)) * (lengths - size + 1)).astype(np.int64)
    return np.column_stack([begin, begin + size])


# ---- probabilities and calibration


def log_probabilities(f: FloatArray) -> FloatArray:
    """(n_texts, n_classes) logarithms of the classes' probabilities, from outputs (n_texts, n_outputs)."""
    if f.shape[1] == 1:
        return -np.logaddexp(0.0, np.hstack([f, -f]))
    return np.asarray(scipy.special.log_softmax(f, axis=1))


def outputs_of_shares(labels: IntArray, weights: FloatArray, n_classes: int) -> FloatArray:
    """(n_outputs,) the outputs at which probabilities are the weighted shares of the classes."""
    log_shares = np.log(np.bincount(labels, weights=weights, minlength=n_classes) / weights.sum())
    return log_shares[1:] - log_shares[:1] if n_classes == 2 else log_shares - log_shares.mean()


class Calibration(NamedTuple):
    """What is changed after training: the scale and shift of the tokens' votes, and the rest token.

    The rest token votes for the shares of the classes, which are all that is known of a text without any token. Training leaves it a small
    and chancy part of long texts, so that none of what it learned stays. `loss` is that of the held-out texts as wholes.
    """

    scale: float
    shift: tuple[float, ...]
    rest_score: float
    rest_vote: tuple[float, ...]
    loss: float


def calibration(
    trials: list[tuple[Votes, TokenSets]], labels: IntArray, weights: FloatArray, prior: FloatArray, most: float = 5.0
) -> Calibration:
    """The changes at which texts held out of training, and excerpts of them, lose least; the shift is that of whole texts.

    Args:
        trials: models with the texts that each has not been trained on; the second half has excerpts of the texts of the first.
        labels, weights: of all these texts and excerpts. prior: (n_outputs,) the rest token's votes.
        most: the largest logarithm of the scale.
    """
    n_outputs, found = len(prior), []
    for score in REST_SCORES:
        models = [(replace(votes, rest_a=score, rest_b=0.0 * prior), texts) for votes, texts in trials]
        f = np.concatenate([votes.outputs(texts) for votes, texts in models])
        rest = np.concatenate([votes.rest_attention(texts) for votes, texts in models])
        bounds = [(-5.0, most), *[(-10.0, 10.0)] * n_outputs]
        x, loss = scale_and_shift(f, rest, labels, weights, prior, np.zeros(1 + n_outputs), bounds)
        found.append((loss, score, x, f, rest))
    _, score, x, f, rest = min(found, key=lambda trial: trial[0])
    # Of a rare class excerpts say less than of a common one: a shift that suits both kinds of texts makes whole texts too seldom rare.
    whole = slice(len(labels) // 2)
    bounds = [(x[0], x[0]), *[(-20.0, 20.0)] * n_outputs]
    x, loss = scale_and_shift(f[whole], rest[whole], labels[whole], weights[whole], prior, x, bounds)
    return Calibration(float(np.exp(x[0])), tuple(x[1:].tolist()), score, tuple(prior.tolist()), loss)


def scale_and_shift(
    f: FloatArray,
    rest: FloatArray,
    labels: IntArray,
    weights: FloatArray,
    prior: FloatArray,
    centre: FloatArray,
    bounds: list[tuple[float, float]],
) -> tuple[FloatArray, float]:
    r"""The logarithm of the scale and the shift of the tokens' votes at which texts lose least, drawn a little towards `centre`.

    .. math:: \min_{\tau, \delta} \sum_i w_i\, \ell(y_i, e^\tau f_i + (1 - q_{i0}) \delta + q_{i0} \pi)
        + \tfrac{\rho}2 \|(\tau, \delta) - x_0\|^2

    Args:
        f: (n_texts, n_outputs), with a rest token that votes for nothing. rest: (n_texts, 1) its attention q_i0. prior: π.
        centre: (1 + n_outputs,) x_0. bounds: of each of these numbers.
    Returns:
        (1 + n_outputs,) τ and δ, and the weighted mean of the loss.
    """
    rows = np.arange(len(labels))

    def value(x: FloatArray) -> tuple[float, FloatArray]:
        log_p = log_probabilities(np.exp(x[0]) * f + (1.0 - rest) * x[1:] + rest * prior)
        slope = np.exp(log_p)
        slope[rows, labels] -= 1.0
        slope = weights[:, None] * slope[:, -f.shape[1] :]  # for two classes f is the output of the second
        gradient = np.append(np.sum(slope * f) * np.exp(x[0]), (slope * (1.0 - rest)).sum(axis=0))
        penalty = 0.5 * CALIBRATION_PENALTY * np.sum((x - centre) ** 2)
        return float(penalty - weights @ log_p[rows, labels]), gradient + CALIBRATION_PENALTY * (x - centre)

    x = scipy.optimize.minimize(value, centre, jac=True, method="L-BFGS-B", bounds=bounds).x
    f = np.exp(x[0]) * f + (1.0 - rest) * x[1:] + rest * prior
    return x, float(-np.average(log_probabilities(f)[rows, labels], weights=weights))


@dataclass(frozen=True)
class Learned:
    """The calibrated model and how it was found: texts read, texts it was calibrated on, and what calibration changed."""

    votes: Votes
    readings: int
    held_out: int
    calibration: Calibration

    def facts(self) -> dict[str, Any]:
        """Everything but the model, as JSON holds it; `held_out_loss` is the mean log-loss of the held-out texts as wholes."""
        scale, shift, rest_score, rest_vote, loss = self.calibration
        counts = {"readings": self.readings, "held_out": self.held_out, "held_out_loss": loss}
        changes = {"scale": scale, "shift": list(shift), "rest_score": rest_score, "rest_vote": list(rest_vote)}
        return counts | changes


def held_out_folds(labels: IntArray, seed: int) -> list[IntArray]:
    """Texts to hold out in turn, each class spread over them: folds, one tenth of many texts, none of too few."""
    n = len(labels)
    if n < MIN_CALIBRATED:
        return []
    shuffled = np.random.default_rng(seed + 1).permutation(n)
    spread = shuffled[np.argsort(labels[shuffled], kind="stable")]  # class by class, each in random order
    n_folds = N_FOLDS if n < FOLDS_BELOW else round(1.0 / HELD_OUT_SHARE)
    folds = [np.sort(spread[k::n_folds]) for k in range(n_folds)]
    return folds if n < FOLDS_BELOW else folds[:1]


def planned_readings(labels: IntArray, settings: LearningSettings) -> int:
    """Texts that `learn` reads in all its runs."""
    n = len(labels)
    return settings.epochs * (n + sum(n - len(fold) for fold in held_out_folds(labels, settings.seed)))


def learn(
    texts: TokenSets,
    labels: IntArray,
    weights: FloatArray,
    n_classes: int,
    settings: LearningSettings,
    progress: Progress,
    start: Votes | None = None,
) -> Learned:
    """Train on parts of the texts to see how sure the model may be of others, train on all of them, and calibrate.

    Args:
        texts: n_texts sets of tokens. labels: (n_texts,) class indices. weights: (n_texts,) with mean 1.
        progress: counts every text read; `planned_readings` are taken.
        start: where training goes on; naive Bayes where None. Texts that it has learned from cannot say how sure it may be, so
            calibration makes it no surer.
    """

    def trained(chosen: IntArray) -> Votes:
        parts = (texts.take(chosen), labels[chosen], weights[chosen])
        first = Votes.naive_bayes(*parts, prior) if start is None else start
        if settings.selective and start is None:
            scale = START_SCALE if n_classes == 2 else START_SCALE_OF_MANY
            first = replace(first, a=SELECTIVE_START / scale * np.abs(first.b - prior).max(axis=1))
        return run_adagrad(*parts, first, settings, progress)

    prior = outputs_of_shares(labels, weights, n_classes)
    rng = np.random.default_rng(settings.seed + 2)
    every, folds = np.arange(len(labels)), held_out_folds(labels, settings.seed)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        trials: list[tuple[Votes, TokenSets]] = []
        for fold in folds:
            others = np.setdiff1d(every, fold)
            whole = texts.take(fold).without_unknown(texts.take(others), settings.min_texts)
            trials.append((trained(others), whole))
        trials += [(votes, whole.between(excerpts(whole.offsets, rng))) for votes, whole in trials]
        votes = trained(every)
    if not (np.isfinite(votes.a).all() and np.isfinite(votes.b).all()):
        got = f"{settings.learning_rate:g} with weight_decay = {settings.weight_decay:g}"
        remedy = f"A rate of {LearningSettings().learning_rate:g} suits most texts."
        raise reject("learning_rate", "so small that training does not run away", got, remedy)
    if not folds:
        unchanged = Calibration(1.0, (0.0,) * len(prior), votes.rest_a, tuple(prior.tolist()), float("nan"))
        return Learned(votes.calibrated(unchanged), settings.epochs * len(labels), 0, unchanged)
    judged = np.tile(np.concatenate(folds), 2)
    found = calibration(trials, labels[judged], weights[judged], prior, most=5.0 if start is None else 0.0)
    return Learned(votes.calibrated(found), settings.epochs * len(labels), sum(map(len, folds)), found)
