"""The steps that lead to the point of a proof, taken again in intervals, so that rounding in the run is no part of what is believed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from marginlens.optimizers import NormalizedGD
from marginlens.theory.intervals import Exact, Proving, slope_in

BITS_A_STEP = 12  # by which intervals may widen in a step

if TYPE_CHECKING:
    from marginlens.theory.certificate import Certificate


def distance_after(proving: Proving, proof: Certificate, start: Any, n_steps: int) -> Any:
    """An interval that holds the distance of the point of a proof from where exact steps from a start lead.

    The state is the logit of every token and how much of every key has been added to p, so that a step needs only the exact inner
    products of keys: with p = start + Σ c k, logits are k·start + Σ c k·k'. Differences to the leading token of an input are summed, never
    numbers that nearly cancel.
    """
    proving.iv.prec += BITS_A_STEP * n_steps
    iv, number, data = proving.iv, proving.number, proof.data
    real = [(i, t) for i in range(data.n_inputs) for t in range(int(data.lengths[i]))]
    rows = tuple(np.array(real).T)
    keys, begin = Exact.of(data.K[rows]), Exact.of(np.asarray(start, dtype=np.float64))
    exact_scores = Exact.of(data.X[rows]) @ Exact.of(proof.head)
    signs = [int(data.y[i]) for i, _ in real]
    scores = [sign * number(exact_scores, r) for r, sign in enumerate(signs)]
    products = Exact(keys.whole @ keys.whole.T, 2 * keys.power)
    tokens = range(len(real))
    gram = [[number(products, r, s) for s in tokens] for r in tokens]
    at_start = keys @ begin
    logits, added = [number(at_start, r) for r in tokens], [iv.mpf(0) for _ in tokens]
    size = iv.mpf(proof.optimizer.size)
    inputs = [[r for r in tokens if real[r][0] == i] for i in range(data.n_inputs)]
    for _ in range(n_steps):
        weights, pulls = [iv.mpf(0) for _ in tokens], [iv.mpf(0) for _ in tokens]
        led: list[tuple[int, int]] = []
        for members in inputs:
            top = max(members, key=lambda r: logits[r].mid)
            powers = {r: iv.exp(logits[r] - logits[top]) for r in members}
            total = sum(powers.values(), iv.mpf(0))
            mean = sum((powers[r] * scores[r] for r in members), iv.mpf(0)) / total
            slope = slope_in(iv, proof.loss, mean) / data.n_inputs
            for r in members:
                above = sum((powers[s] * (scores[r] - scores[s]) for s in members if s != r), iv.mpf(0)) / total
                weights[r] = slope * powers[r] / total * above
            for r in members:
                if r != top:
                    pulls = [pull + weights[r] * (g - h) for pull, g, h in zip(pulls, gram[r], gram[top], strict=True)]
            led += [(r, top) for r in members if r != top]
        scale = size
        if isinstance(proof.optimizer, NormalizedGD):
            square = sum((weights[r] * (pulls[r] - pulls[top]) for r, top in led), iv.mpf(0))
            scale = size / iv.sqrt(proving.not_negative(square))
        logits = [logit + scale * pull for logit, pull in zip(logits, pulls, strict=True)]
        added = [c + scale * w for c, w in zip(added, weights, strict=True)]
    point = Exact.of(proof.point)
    shift = min(begin.power, point.power)
    apart = Exact(begin.whole * 2 ** (begin.power - shift) - point.whole * 2 ** (point.power - shift), shift)
    beside = keys @ apart
    square = number(apart @ apart) + sum((2 * c * number(beside, r) for r, c in enumerate(added)), iv.mpf(0))
    square += sum(
        (c * g * other for c, row in zip(added, gram, strict=True) for g, other in zip(row, added, strict=True)),
        iv.mpf(0),
    )
    return iv.sqrt(proving.not_negative(square))
