"""How the text classifier learns: scores and votes of tokens by Adam, a rest token in every text, and calibration on held-out texts."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax, logsumexp, softmax

from marginlens.embeddings.models import ADAMW_BETAS, ADAMW_EPSILON
from marginlens.errors import reject
from marginlens.kernels.linalg import COMPILED
from marginlens.runtime.compilation import njit
from marginlens.runtime.progress import Progress
from marginlens.typing import FloatArray, IntArray

REST_SCORE = (
    6.0  # of the rest token before training: it outweighs 400 tokens, so that training starts from a sum of votes
)
VOTE_RATE = (
    25.0  # learning rate of votes over that of scores: votes are log-odds of several units, scores logarithms of shares
)
REST_RATE = 2.5  # learning rate of the rest token over that of scores
BATCH = 128  # texts in a step
MIN_STEPS = 100  # of a run, however few the texts: by fewer, votes do not reach the size of log-odds
LONG_STEPS = 400  # of the other run that few texts try: texts of few words need more steps than texts of many
EXCERPT_SHARE = (
    0.2  # of the texts of an epoch, which are read in part, so that the model learns how sure short texts may make it
)
MIN_EXCERPT = 2  # tokens
FOLDS_BELOW = 3000  # texts; fewer are calibrated on N_FOLDS folds, more on a tenth of them
N_FOLDS = 5
HELD_OUT_SHARE = 0.1
MIN_CALIBRATED = 10  # texts; with fewer there is nothing to calibrate on
REST_RAISES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)  # of the rest token's score, among which calibration chooses
CALIBRATION_PENALTY = (
    0.5  # of the squared logarithm of the scale and of the squared shifts: the calibration of few texts changes little
)
_STRIDE = 25  # steps between two looks for an interrupt


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


def token_sets(tokens: IntArray, offsets: IntArray, n_tokens: int) -> TokenSets:
    """The distinct tokens of every text, from its tokens in the order of their places."""
    flat = np.ascontiguousarray(tokens, dtype=np.int32)
    token, bounds = np.empty(len(flat), dtype=np.int32), np.zeros(len(offsets), dtype=np.int64)
    n_entries = _distinct(flat, offsets, np.full(n_tokens, -1), token, bounds)
    return TokenSets(token[:n_entries].copy(), bounds, n_tokens)


@njit(**COMPILED)
def _distinct(tokens: Any, offsets: Any, last_text: Any, token: Any, bounds: Any) -> int:
    entries = 0
    for i in range(len(offsets) - 1):
        for k in range(offsets[i], offsets[i + 1]):
            if last_text[tokens[k]] != i:
                last_text[tokens[k]] = i
                token[entries] = tokens[k]
                entries += 1
        bounds[i + 1] = entries
    return entries


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
    def initial(cls, n_tokens: int, n_outputs: int) -> Votes:
        """Equal scores, no votes, and a rest token of score `REST_SCORE`."""
        return cls(np.zeros(n_tokens), np.zeros((n_tokens, n_outputs)), REST_SCORE, np.zeros(n_outputs))

    def outputs(self, texts: TokenSets) -> FloatArray:
        r"""What the model says about each text; the rest token's votes where a text has no token.

        .. math:: f_c(X) = \frac{e^{a_0} b_{0c} + \sum_{s \in X} e^{a_s} b_{sc}}{e^{a_0} + \sum_{s \in X} e^{a_s}}

        Returns:
            (n_texts, n_outputs) f.
        """
        f = np.empty((len(texts.offsets) - 1, self.b.shape[1]))
        _outputs(texts.token, texts.offsets, self.a, self.b, self.rest_a, self.rest_b, f)
        return f

    def calibrated(self, found: Calibration) -> Votes:
        """The model with a raised rest token and outputs scale · f + shift: attention adds up to 1, so every vote is changed alike.

        With more than two classes every token's votes are made to add up to zero, which changes no probability.
        """
        b, rest_b = (found.scale * votes + np.asarray(found.shift) for votes in (self.b, self.rest_b))
        if len(rest_b) > 1:
            b, rest_b = b - b.mean(axis=1, keepdims=True), rest_b - rest_b.mean()
        return Votes(self.a, b, self.rest_a + found.raised, rest_b)


@njit(**COMPILED)
def _outputs(token: Any, offsets: Any, a: Any, b: Any, rest_a: float, rest_b: Any, f: Any) -> None:
    for i in range(len(offsets) - 1):
        top = rest_a
        for k in range(offsets[i], offsets[i + 1]):
            top = max(top, a[token[k]])
        total = math.exp(rest_a - top)
        for c in range(b.shape[1]):
            f[i, c] = total * rest_b[c]
        for k in range(offsets[i], offsets[i + 1]):
            weight = math.exp(a[token[k]] - top)
            total += weight
            for c in range(b.shape[1]):
                f[i, c] += weight * b[token[k], c]
        for c in range(b.shape[1]):
            f[i, c] /= total


@njit(**COMPILED)
def _slopes(f: Any, label: int, weight: float, slopes: Any) -> None:
    """The derivatives of a text's loss by its outputs."""
    if len(f) == 1:
        sign = 1.0 if label == 1 else -1.0
        slopes[0] = -sign * weight / (1.0 + math.exp(min(sign * f[0], 700.0)))
        return
    top, total = f[0], 0.0
    for c in range(1, len(f)):
        top = max(top, f[c])
    for c in range(len(f)):
        slopes[c] = math.exp(f[c] - top)
        total += slopes[c]
    for c in range(len(f)):
        slopes[c] = weight * (slopes[c] / total - (1.0 if c == label else 0.0))


@njit(**COMPILED)
def _gradients(token: Any, ranges: Any, labels: Any, weights: Any, values: Any, gradients: Any) -> None:
    """Add the derivatives of the mean loss of a batch; entries `ranges[i, 0]` to `ranges[i, 1]` are what is read of text i.

    With attention q, the derivative of f_c by a_s is q_s (b_sc - f_c), and by b_sc it is q_s.
    """
    a, b, rest_a, rest_b = values
    by_a, by_b, by_rest_a, by_rest_b = gradients
    n_texts, n_outputs, longest = len(labels), b.shape[1], 0
    for i in range(n_texts):
        longest = max(longest, ranges[i, 1] - ranges[i, 0])
    q, f, slopes = np.empty(longest), np.empty(n_outputs), np.empty(n_outputs)
    for i in range(n_texts):
        first, last = ranges[i, 0], ranges[i, 1]
        top = rest_a[0]
        for k in range(first, last):
            top = max(top, a[token[k]])
        rest = math.exp(rest_a[0] - top)
        total = rest
        for c in range(n_outputs):
            f[c] = rest * rest_b[c]
        for k in range(first, last):
            s = token[k]
            weight = math.exp(a[s] - top)
            q[k - first] = weight
            total += weight
            for c in range(n_outputs):
                f[c] += weight * b[s, c]
        for c in range(n_outputs):
            f[c] /= total
        _slopes(f, labels[i], weights[i] / n_texts, slopes)
        for k in range(first, last):
            s = token[k]
            share = q[k - first] / total
            pull = 0.0
            for c in range(n_outputs):
                step = slopes[c] * share
                by_b[s, c] += step
                pull += step * (b[s, c] - f[c])
            by_a[s] += pull
        share = rest / total
        for c in range(n_outputs):
            by_rest_b[c] += slopes[c] * share
            by_rest_a[0] += slopes[c] * share * (rest_b[c] - f[c])


@njit(**COMPILED)
def _adam(x: Any, moments: Any, gradient: Any, rate: float, decay: float, step: int) -> None:
    """One AdamW step on a flat array, in place; the gradient is set to zero for the next."""
    first, second = ADAMW_BETAS
    unbias, unbias_square = 1.0 / (1.0 - first**step), 1.0 / (1.0 - second**step)
    m, s = moments
    for j in range(x.shape[0]):
        g = gradient[j]
        m[j] += (g - m[j]) * (1.0 - first)
        s[j] += (g * g - s[j]) * (1.0 - second)
        x[j] -= rate * (decay * x[j] + m[j] * unbias / (math.sqrt(s[j] * unbias_square) + ADAMW_EPSILON))
        gradient[j] = 0.0


@njit(**COMPILED)
def _steps(token: Any, plan: Any, values: Any, moments: Any, gradients: Any, rates: Any, done: Any) -> None:
    """The steps of a stride: `plan` has what is read of each text of an epoch, labels, weights and the batches' bounds."""
    ranges, labels, weights, bounds = plan
    a, b, rest_a, rest_b = values
    by_a, by_b, by_rest_a, by_rest_b = gradients
    rate, decay = rates[0], rates[1]
    step, total = done
    for n in range(len(bounds) - 1):
        first, last = bounds[n], bounds[n + 1]
        _gradients(token, ranges[first:last], labels[first:last], weights[first:last], values, gradients)
        eta = rate * (1.0 - (step + n) / total)
        t = step + n + 1
        _adam(a, moments[0], by_a, eta, decay, t)
        _adam(b.ravel(), moments[1], by_b.ravel(), VOTE_RATE * eta, decay, t)
        _adam(rest_a, moments[2], by_rest_a, REST_RATE * eta, 0.0, t)
        _adam(rest_b, moments[3], by_rest_b, VOTE_RATE * eta, 0.0, t)


@dataclass(frozen=True)
class LearningSettings:
    """Passes over the texts, Adam's rate for scores, the decay of scores and votes, and the seed of order and excerpts."""

    epochs: int = 3
    learning_rate: float = 0.02
    weight_decay: float = 0.0
    seed: int = 0
    excerpt_share: float = EXCERPT_SHARE
    min_steps: int = MIN_STEPS


def excerpts(offsets: IntArray, share: float, rng: np.random.Generator) -> IntArray:
    """(n_texts, 2) the entries that are read of each text: all, or for this share of the texts a stretch whose length is log-uniform."""
    first, lengths = offsets[:-1], np.diff(offsets)
    cut = (rng.random(len(lengths)) < share) & (lengths > MIN_EXCERPT)
    size = np.exp(rng.uniform(math.log(MIN_EXCERPT), np.log(np.maximum(lengths, MIN_EXCERPT)))).astype(np.int64)
    size = np.where(cut, size, lengths)
    begin = first + (rng.random(len(lengths)) * (lengths - size + 1)).astype(np.int64)
    return np.column_stack([begin, begin + size])


def n_steps(n_texts: int, settings: LearningSettings) -> int:
    """Steps of one run over so many texts."""
    return max(settings.min_steps, settings.epochs * math.ceil(n_texts / BATCH))


def run_adam(
    texts: TokenSets,
    labels: IntArray,
    weights: FloatArray,
    start: Votes,
    settings: LearningSettings,
    progress: Progress,
) -> Votes:
    """Train from `start` by Adam on minibatches, with a rate that falls to zero; a share of the texts of each epoch is read in part.

    Args:
        labels: (n_texts,) class indices. weights: (n_texts,) with mean 1.
    """
    rng = np.random.default_rng(settings.seed)
    n = len(labels)
    values = (start.a.copy(), start.b.copy(), np.array([start.rest_a]), start.rest_b.copy())
    gradients = tuple(np.zeros_like(x) for x in values)
    moments = tuple((np.zeros(x.size), np.zeros(x.size)) for x in values)
    total, step = n_steps(n, settings), 0
    while step < total:
        order = rng.permutation(n)
        ranges = excerpts(texts.offsets, settings.excerpt_share, rng)[order]
        bounds = np.append(np.arange(0, n, BATCH), n)
        for k in range(0, len(bounds) - 1, _STRIDE):
            part = bounds[k : k + _STRIDE + 1][: total - step + 1]
            plan = (ranges, labels[order], weights[order], part)
            _steps(
                texts.token,
                plan,
                values,
                moments,
                gradients,
                (settings.learning_rate, settings.weight_decay),
                (step, total),
            )
            step += len(part) - 1
            progress.advance(len(part) - 1)
            if step >= total:
                break
    return Votes(values[0], values[1], float(values[2][0]), values[3])


# ---- probabilities and calibration


def log_probabilities(f: FloatArray) -> FloatArray:
    """(n_texts, n_classes) logarithms of the classes' probabilities, from outputs (n_texts, n_outputs)."""
    if f.shape[1] == 1:
        return -np.logaddexp(0.0, np.hstack([f, -f]))
    return np.asarray(log_softmax(f, axis=1))


def mean_log_loss(f: FloatArray, labels: IntArray, weights: FloatArray) -> float:
    """The weighted mean of -log of the probability of each text's label."""
    return float(-np.average(log_probabilities(f)[np.arange(len(labels)), labels], weights=weights))


class Calibration(NamedTuple):
    """What is changed after training: the rest token's score is raised, outputs are scaled and shifted; `loss` of the held-out texts."""

    raised: float
    scale: float
    shift: tuple[float, ...]
    loss: float


def calibration(trials: list[tuple[Votes, TokenSets]], labels: IntArray, weights: FloatArray) -> Calibration:
    """The changes at which texts held out of training, and excerpts of them, lose least.

    Args:
        trials: models with the texts that each has not been trained on. labels, weights: of all these texts.
    """
    found = []
    for raised in REST_RAISES:
        outputs = [replace(votes, rest_a=votes.rest_a + raised).outputs(texts) for votes, texts in trials]
        f = np.concatenate(outputs)
        scale, shift = scale_and_shift(f, labels, weights)
        found.append(
            Calibration(raised, scale, tuple(shift.tolist()), mean_log_loss(scale * f + shift, labels, weights))
        )
    return min(found, key=lambda trial: trial.loss)


def scale_and_shift(f: FloatArray, labels: IntArray, weights: FloatArray) -> tuple[float, FloatArray]:
    r"""The scale and the shifts of the outputs at which texts lose least, drawn a little towards 1 and 0.

    .. math:: \min_{\tau, \delta} \sum_i w_i\, \ell(y_i, e^\tau f_i + \delta) + \tfrac{\rho}2 (\tau^2 + \|\delta\|^2)
    """
    n_outputs = f.shape[1]

    def value(x: FloatArray) -> tuple[float, FloatArray]:
        z = np.exp(x[0]) * f + x[1:]
        if n_outputs == 1:
            margin = np.where(labels == 1, 1.0, -1.0) * z[:, 0]
            loss = np.logaddexp(0.0, -margin)
            slope = (-np.where(labels == 1, 1.0, -1.0) * np.exp(-np.logaddexp(0.0, margin)))[:, None]
        else:
            loss = logsumexp(z, axis=1) - z[np.arange(len(labels)), labels]
            slope = softmax(z, axis=1)
            slope[np.arange(len(labels)), labels] -= 1.0
        slope = slope * weights[:, None]
        gradient = np.concatenate([[np.sum(slope * f) * np.exp(x[0])], slope.sum(axis=0)]) + CALIBRATION_PENALTY * x
        return float(weights @ loss + 0.5 * CALIBRATION_PENALTY * (x @ x)), gradient

    bounds = [(-5.0, 5.0), *[(-10.0, 10.0)] * n_outputs]
    found = minimize(value, np.zeros(1 + n_outputs), jac=True, method="L-BFGS-B", bounds=bounds).x
    return float(np.exp(found[0])), found[1:]


@dataclass(frozen=True)
class Learned:
    """The calibrated model and how it was found: steps of the last run, texts it was calibrated on, and what calibration changed."""

    votes: Votes
    steps: int
    held_out: int
    calibration: Calibration

    def facts(self) -> dict[str, Any]:
        """Everything but the model, as JSON holds it."""
        raised, scale, shift, loss = self.calibration
        counts = {"steps": self.steps, "held_out": self.held_out, "held_out_loss": loss}
        return counts | {"rest_raised": raised, "scale": scale, "shift": list(shift)}


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


def candidates(n_texts: int, settings: LearningSettings) -> list[LearningSettings]:
    """Settings among which held-out texts choose: few texts try a long run too."""
    long_run = replace(settings, min_steps=max(LONG_STEPS, settings.min_steps))
    return [settings, long_run] if MIN_CALIBRATED <= n_texts < FOLDS_BELOW else [settings]


def planned_steps(labels: IntArray, settings: LearningSettings) -> int:
    """Steps of all runs together, at most."""
    n, folds, tried = len(labels), held_out_folds(labels, settings.seed), candidates(len(labels), settings)
    return sum(n_steps(n - len(fold), trial) for fold in folds for trial in tried) + max(
        n_steps(n, trial) for trial in tried
    )


def learn(
    texts: TokenSets,
    labels: IntArray,
    weights: FloatArray,
    start: Votes,
    settings: LearningSettings,
    progress: Progress,
) -> Learned:
    """Train on parts of the texts to see how sure the model may be of others, train on all of them, and calibrate.

    Args:
        texts: n_texts sets of tokens. labels: (n_texts,) class indices. weights: (n_texts,) with mean 1. start: where training starts.
        progress: counts every step; `planned_steps` are taken.
    """
    rng = np.random.default_rng(settings.seed + 2)
    folds = held_out_folds(labels, settings.seed)
    watched = [part for fold in folds for part in _whole_and_in_part(texts.take(fold), rng)]
    judged = np.concatenate([np.append(fold, fold) for fold in folds]) if folds else np.empty(0, dtype=np.int64)
    tried: list[tuple[Calibration, LearningSettings]] = []
    with np.errstate(over="ignore", invalid="ignore"):
        for attempt in candidates(len(labels), settings) if folds else []:
            trials: list[tuple[Votes, TokenSets]] = []
            for k, fold in enumerate(folds):
                others = np.setdiff1d(np.arange(len(labels)), fold)
                trial = run_adam(texts.take(others), labels[others], weights[others], start, attempt, progress)
                trials += [(trial, part) for part in watched[2 * k : 2 * k + 2]]
            tried.append((calibration(trials, labels[judged], weights[judged]), attempt))
        unchanged = Calibration(0.0, 1.0, (0.0,) * start.b.shape[1], float("nan"))
        found, chosen = min(tried, key=lambda pair: pair[0].loss) if tried else (unchanged, settings)
        votes = run_adam(texts, labels, weights, start, chosen, progress)
    if not (np.isfinite(votes.a).all() and np.isfinite(votes.b).all()):
        got = f"{settings.learning_rate:g} with weight_decay = {settings.weight_decay:g}"
        remedy = "A rate of .02 suits most texts."
        raise reject("learning_rate", "so small that training does not run away", got, remedy)
    return Learned(votes.calibrated(found), n_steps(len(labels), chosen), len(judged) // 2, found)


def _whole_and_in_part(texts: TokenSets, rng: np.random.Generator) -> tuple[TokenSets, TokenSets]:
    return texts, texts.between(excerpts(texts.offsets, 1.0, rng))
