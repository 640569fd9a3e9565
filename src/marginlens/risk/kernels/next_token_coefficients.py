"""The weights of the exact next-token gradient, compiled: pairwise relative to the largest logit, and relative in logarithms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from marginlens.kernels.exponential import exp
from marginlens.kernels.lanes import N_LANES, load, pointer, store
from marginlens.kernels.linalg import COMPILED, dot
from marginlens.runtime.compilation import njit

LIKELIHOOD = -2  # the log-loss under C Eᵀ = I, whose weights are the probabilities themselves
LOG, SQUARED, CROSS_ENTROPY, SQUARED_PROBABILITY = 0, 1, 2, 3  # the codes of the losses
_FAR = 1e60  # how far the largest weight may be from the guessed scale to keep the guess
_TOO_FAR = 1e140  # and for its square to be safe


@njit(**COMPILED)
def gradient_weights(a: Any, problem: Any, code: int, w: Any, room: Any) -> float:
    """Weights w (n_pairs,) with ∇L = e^s Σ w_xk e_x e_kᵀ, written into `w`; returns s, nan where the loss is not finite.

    Args:
        a: (n_pairs,) the logits e_xᵀ W e_k of the pairs (token, query) that occur.
        problem: (pair, log_count, score, token, span, share, label, head). An entry is one of the different tokens of one sample, the
            label the first of each: its pair, log of its count, head score, and token. Sample i has the entries span[i, 0] …
            span[i, 1] - 1, a share of the data and a label. head[x, c] = c_cᵀ e_x serves the losses of all outputs.
        code: the loss's code, or LIKELIHOOD.
        room: (values, logs, outputs, scores): space for one number per entry and a last one, which is 0 before the first call; for one
            per sample; per token; and per entry.
    """
    pair, span = problem[0], problem[4]
    if code == LIKELIHOOD:
        entries = (pointer(pair), pointer(problem[1]), pointer(span), pointer(problem[5]))
        sizes = (w.shape[0], span.shape[0], pair.shape[0])
        log_scale = likelihood_weights(pointer(a), entries, sizes, pointer(w), pointer(room[0]))
        if not math.isnan(log_scale):
            return log_scale
        code = LOG
    largest = -np.inf
    n_samples = span.shape[0]
    for i in range(n_samples):
        log_scale = _of_sample(a, problem, code, i, room)
        room[1][i] = log_scale
        if not log_scale <= largest:  # a nan passes on
            largest = log_scale
        if math.isnan(log_scale):
            return np.nan
    room[0][-1] = largest if math.isfinite(largest) else 0.0
    w[:] = 0.0
    if largest == -np.inf:
        return 0.0
    for i in range(n_samples):
        factor = math.exp(room[1][i] - largest)
        if factor > 0.0:
            for k in range(span[i, 0], span[i, 1]):
                w[pair[k]] += factor * room[0][k]
    return largest


@njit(**COMPILED)
def likelihood_weights(a: Any, entries: Any, sizes: tuple[int, int, int], w: Any, values: Any) -> float:
    """C Eq. (19): a token other than the label weighs its probability, the label what balances them.

    Writes them into `w` relative to a scale guessed from the call before, whose logarithm is the last of `values` and comes back; nan
    where the guess was too far off.

    Args:
        a, w, values: pointers to the logits, the weights, and space as in `gradient_weights`.
        entries: pointers to the pair and the log of the count of each entry, the bounds of each sample and its share.
        sizes: the numbers of pairs, samples and entries.
    """
    pair, log_count, span, share = entries
    n_pairs, n_samples, n_entries = sizes
    guess = values[n_entries]
    scale = math.exp(guess) if guess != 0.0 else 1.0
    for k in range(n_pairs):
        w[k] = 0.0
    for i in range(n_samples):
        begin, end = span[2 * i], span[2 * i + 1]
        top = -np.inf
        for k in range(begin, end):
            x = a[pair[k]] + log_count[k]
            values[k] = x
            top = x if x > top else top
        values[begin] -= top
        top += guess
        for k in range(begin + 1, end):
            values[k] -= top
    whole = n_entries - n_entries % N_LANES
    for k in range(0, whole, N_LANES):
        store(values, k, exp(load(values, k)))
    for k in range(whole, n_entries):
        values[k] = exp(values[k])
    biggest = 0.0
    for i in range(n_samples):
        begin, end = span[2 * i], span[2 * i + 1]
        others = 0.0
        for k in range(begin + 1, end):
            others += values[k]
        factor = share[i] / (scale * others + values[begin])
        for k in range(begin + 1, end):
            w[pair[k]] += values[k] * factor
        w[pair[begin]] -= others * factor
        biggest = max(biggest, others * factor)
    if not 1.0 / _FAR < biggest < _FAR:
        if not 1.0 / _TOO_FAR < biggest < _TOO_FAR:
            values[n_entries] = 0.0
            return np.nan
        values[n_entries] = guess + math.log(biggest)
    return guess


@njit(**COMPILED)
def _of_sample(a: Any, problem: Any, code: int, i: int, room: Any) -> float:
    """One sample's weights relative to a scale of their own, written into `values`; returns the scale's logarithm.

    With b the largest logit, gap_x = h_b - h_x and δ = Σ s_x gap_x, the weight of x ≠ b is -ℓ' s_x (gap_x - δ), and that of b balances
    the others. All are taken relative to the probability of the nearest token whose score differs from that of b.
    """
    pair, log_count, score, _, span, share = problem[:6]
    values = room[0]
    begin, end = span[i, 0], span[i, 1]
    best = begin
    for k in range(begin, end):
        values[k] = a[pair[k]] + log_count[k]
        if values[k] > values[best]:
            best = k
    top = values[best]
    total = 0.0
    for k in range(begin, end):
        total += math.exp(values[k] - top)
    log_slope = 0.0
    if code >= CROSS_ENTROPY:
        log_slope = _pull(code, problem, i, top, total, room)
        score = room[3]
    near = -np.inf
    for k in range(begin, end):
        if score[k] != score[best]:
            near = max(near, values[k])
    if near == -np.inf:
        return np.nan if code == LOG and score[best] <= 0.0 else -np.inf
    shortfall = 0.0  # δ e^(top - near)
    for k in range(begin, end):
        if score[k] != score[best]:
            shortfall += math.exp(values[k] - near) * (score[best] - score[k])
    shortfall /= total
    log_ratio = near - top
    small = math.exp(log_ratio) * shortfall
    sign = 1.0
    if code == LOG:
        u, log_u = _sum_and_log(score[best], -shortfall, log_ratio)
        if u <= 0.0:
            return np.nan
        log_slope = -log_u
    elif code == SQUARED:
        sign, log_slope = _sum_and_log(1.0 - score[best], shortfall, log_ratio)
        log_slope += math.log(2.0)
    balance = 0.0
    for k in range(begin, end):
        if k != best:
            gap = score[best] - score[k]
            tied = gap == 0.0  # then its share of δ is all that pulls it
            x = -math.exp(values[k] - top) * shortfall if tied else math.exp(values[k] - near) * (gap - small)
            values[k] = sign * x
            balance += values[k]
    values[best] = -balance
    return log_ratio - math.log(total) + log_slope + math.log(share[i])


@njit(**COMPILED)
def _sum_and_log(base: float, part: float, log_unit: float) -> tuple[float, float]:
    """Sign of base + part·e^log_unit and the logarithm of its modulus, also where the second term underflows and the first is zero."""
    if base == 0.0:
        return math.copysign(1.0, part) if part != 0.0 else 0.0, log_unit + math.log(abs(part))
    total = base + part * math.exp(log_unit)
    return math.copysign(1.0, total) if total != 0.0 else 0.0, math.log(abs(total))


@njit(**COMPILED)
def _pull(code: int, problem: Any, i: int, top: float, total: float, room: Any) -> float:
    """Scores (1_y - π)ᵀ c·e_x of one sample's tokens, up to a factor, written into `score`; returns the logarithm of factor and slope."""
    token, label, head = problem[3], problem[6], problem[7]
    begin, end = problem[4][i, 0], problem[4][i, 1]
    values, _, outputs, score = room
    n_classes = head.shape[1]
    outputs[:] = 0.0
    for k in range(begin, end):
        s = math.exp(values[k] - top) / total
        row = head[token[k]]
        for c in range(n_classes):
            outputs[c] += s * row[c]
    y = label[i]
    own, rival = outputs[y], -np.inf
    for c in range(n_classes):
        if c != y:
            rival = max(rival, outputs[c])
    if rival == -np.inf:  # a vocabulary of one token
        for k in range(begin, end):
            score[k] = 0.0
        return 0.0
    pulled = 0.0
    for c in range(n_classes):
        if c != y:
            outputs[c] = -math.exp(outputs[c] - rival)
            pulled -= outputs[c]
    outputs[y] = pulled
    for k in range(begin, end):
        score[k] = dot(head[token[k]], outputs)
    highest = max(own, rival)
    log_total = highest + math.log(math.exp(own - highest) + pulled * math.exp(rival - highest))
    log_slope = rival - log_total
    if code == SQUARED_PROBABILITY:
        log_slope += math.log(2.0) + math.log(pulled) + rival - log_total + own - log_total
    return log_slope
