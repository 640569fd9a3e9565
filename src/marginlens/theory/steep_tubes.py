"""The search for tubes of X Theorem 1 under a loss whose slopes grow as attention saturates, -2 arcsin √u; the core has that for others.

Letters and equation numbers are those of docs/proofs/attraction.md, and the conditions those that `tube_conditions` proves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from marginlens.arithmetic.directions import length
from marginlens.typing import BoolArray, FloatArray, IntArray

SHARES = (0.1, 0.3, 0.5)  # ψ
FACTORS = (1.02, 1.1, 1.3, 1.6, 2.2)  # R over the deviation
SUMMANDS = (0.1, 0.3, 1.0, 3.0)  # R less the deviation, over 1/max ‖a^⊥‖
ROOM = 1e-6  # share of a constant that is left to rounding
ROOM_AROUND = 0.01  # the same of the radius of the ball around the point
LARGEST_RADIUS = 1e100  # beyond, squares leave the range of doubles, and no tube is that wide
PAIRWISE_ROWS = 64  # up to which the spread of the rows is taken over all pairs
NO_SLACK = 1e-9  # by which share of the margin rows without a multiplier have to be beyond it


class SteepTube(NamedTuple):
    """The constants of a tube, in the order of those of the core."""

    along: float
    deviation: float
    radius: float
    growth: float
    share: float
    step: float
    progress: float


@dataclass(frozen=True)
class SteepRows:
    """The rows of one problem whose selected tokens score 1.

    Attributes:
        a: (m, d) differences of keys.
        delta: (m,) Δ.
        lead: (m,) b_α - b_t.
        input: (m,) the input of each.
        multiplier: (m,) λ, zero beyond the margin.
        direction: p̄.
        theta: the margin.
        n_inputs: n.
    """

    a: FloatArray
    delta: FloatArray
    lead: FloatArray
    input: IntArray
    multiplier: FloatArray
    direction: FloatArray
    theta: float
    n_inputs: int

    @property
    def support(self) -> BoolArray:
        """S."""
        return self.multiplier > 0.0

    def anchor(self) -> tuple[FloatArray, float]:
        """Return q* and 2ρ̄ of Eq. (16)."""
        S, weight = self.support, self.multiplier[self.support]
        of_input = np.bincount(self.input, self.multiplier)[self.input[S]]
        rho = np.log(self.delta[S] / (self.n_inputs**2 * weight * of_input)) - self.lead[S]
        level = self.theta * float(weight @ rho)
        anchor: FloatArray = np.linalg.lstsq(self.a[S], rho - level, rcond=None)[0].astype(np.float64)
        return anchor, level


def find_steep_tube(
    rows: SteepRows, point: FloatArray, blur: float, size: float, *, normalized: bool
) -> SteepTube | None:
    """Find the tube of the smallest radius among a few that is proved around a point; None if there is none."""
    anchor, level = rows.anchor()
    P = float(point @ rows.direction)
    around = (1.0 + ROOM_AROUND) * blur
    deviation = float(length(point - P * rows.direction - anchor)) + around + 1e-9 * float(length(anchor))
    search = _Search(rows, rows.a @ anchor + rows.lead, level, P - around, deviation, size, normalized)
    unit = 1.0 / max(float(np.max(search.wide)), 1e-300)
    radii = [max(factor * deviation, 1e-3 * unit) for factor in FACTORS]
    radii += [deviation + summand * unit for summand in SUMMANDS]
    with np.errstate(all="ignore"):
        for share in SHARES:
            grown = [max(1.02 * deviation, factor**2 * search.growing(share)) for factor in FACTORS if normalized]
            for radius in (*radii, *grown):
                tube = search.tube(radius, share) if radius < LARGEST_RADIUS else None
                if tube is not None:
                    return tube
    return None


class _Search:
    """The conditions for tubes around one point."""

    def __init__(
        self,
        rows: SteepRows,
        at: FloatArray,
        level: float,
        along: float,
        deviation: float,
        size: float,
        normalized: bool,
    ) -> None:
        self.rows, self.at, self.level = rows, at, level
        self.P_0, self.deviation, self.size, self.normalized = along, deviation, size, normalized
        self.along = rows.a @ rows.direction
        beside = rows.a - np.outer(self.along, rows.direction)
        self.wide, self.sigma = length(beside), np.where(rows.support, 0.0, self.along - rows.theta)
        lower = beside[rows.delta > 0.0]
        squares = np.sum(lower**2, axis=1)
        self.spread = float(np.sqrt(max(0.0, np.max(squares[:, None] + squares - 2.0 * lower @ lower.T))))
        if len(self.at) > PAIRWISE_ROWS:
            self.spread = 2.0 * float(np.sqrt(squares.max()))
        # where other rows of an input with support are relative to the mean of that, and their part of it
        self.of_input = np.bincount(rows.input, rows.multiplier)[rows.input]
        mean = np.zeros((rows.input.max() + 1, rows.a.shape[1]))
        np.add.at(mean, rows.input, rows.multiplier[:, None] * beside)
        self.adds = ~rows.support & (rows.delta > 0.0) & (self.of_input > 0.0)
        safe = np.where(self.of_input > 0.0, self.of_input, 1.0)
        self.apart = length(beside - mean[rows.input] / safe[:, None])
        self.share = rows.delta / (rows.n_inputs * safe) ** 2

    def growing(self, psi: float) -> float:
        """Return a radius at which normalised steps of this size may go on around the ray without reaching other rows."""
        others = ~self.rows.support
        steepest = np.max(self.wide / self.along)
        steepest = max(steepest, np.max((self.wide / self.sigma)[others], initial=0.0))
        steepest = max(steepest, np.max((self.apart / self.sigma)[self.adds], initial=0.0))
        A2 = self.spread**2 / (4.0 * (1.0 - psi))
        return float(1.02 * self.size**2 * A2 / (8.0 * self.rows.theta) * steepest)

    def tube(self, R: float, psi: float) -> SteepTube | None:
        """Return the tube of radius R if it is proved."""
        rows, S, P_0, n = self.rows, self.rows.support, self.P_0, self.rows.n_inputs
        near = np.exp(self.wide * R - self.along * P_0 - self.at)
        epsilon = np.bincount(rows.input, near)[rows.input]
        plus = np.zeros(rows.input.max() + 1)
        np.maximum.at(plus, rows.input, rows.delta)
        plus = plus[rows.input]
        lost = (epsilon * plus)[S] / rows.delta[S]
        if not ((epsilon < 1.0).all() and (lost < 1.0).all()):
            return None
        added = np.where(self.adds, self.share * np.exp(self.apart * R - self.level - self.sigma * P_0 - self.at), 0.0)
        most = float(np.bincount(rows.input, added).max())
        direct = float(np.max(-0.5 * np.log1p(-epsilon[S]) - np.log1p(-lost)))
        sizes = np.maximum(np.sqrt(rows.delta), epsilon * np.sqrt(plus)) / n
        exponent = 0.5 * (self.wide * R - self.level - self.sigma * P_0 - self.at) + direct + 0.5 * most
        tau = np.where(S, 0.0, rows.theta * sizes * np.exp(exponent))
        progress = (1.0 - ROOM) * (rows.theta - float(tau @ self.along))
        if not progress > 0.0:
            return None
        e, h = float(tau @ self.wide), self.size
        if not self.normalized:
            h *= float((sizes * np.sqrt(near)) @ length(rows.a))
        A2 = self.spread**2 / (4.0 * (1.0 - psi))
        grown, sideways = 0.0, h * e**2 / (progress * psi)
        if h * A2 > (1.0 - ROOM) * progress:
            grown, sideways = h**2 * A2 / 4.0, e**2 / (A2 * psi)
        growth = (1.0 + ROOM) * grown / progress
        kappa = growth / (2.0 * R)
        s, d = float(np.min(self.along - self.wide * kappa)), 0.5 * (self.sigma - self.wide * kappa)[~S]
        rate = float(np.min((self.sigma - self.apart * kappa)[self.adds], initial=np.inf))
        if not (s > 0.0 and rate > 0.0 and (d > 0.0).all()):
            return None
        drift = 2.0 * direct * (1.0 / s + h) + (most * (1.0 / rate + h) if most > 0.0 else 0.0)
        steady = R / d + kappa / d**2 + h * R
        waning = (R + 2.0 * kappa / (np.e * d)) * (2.0 / d + h)
        drift += float((tau * self.wide)[~S] @ np.where(d * R > kappa, steady, waning))
        if len(d):
            drift += 0.5 * sideways * (0.5 / float(d.min()) + h)
        if not self.deviation**2 + 2.0 * drift / progress <= (1.0 - ROOM) * R**2:
            return None
        return SteepTube(P_0, self.deviation, R, growth, psi, h, progress)
