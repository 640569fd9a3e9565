"""The conditions of X Theorem 4 in intervals: the paragraphs of docs/proofs/any_norm.md in its order, letters and equation numbers.

Like `tube_conditions`, this module decides what "proved" means, shares no code with the search, and takes nothing on trust:

    _setting      Setting, Eqs (2) and (3): rows, sizes and both bounds on γ
    _comparisons  Bounds along the way, Eqs (6) and (7)
    _saturation   Saturation, Eqs (9) and (10)
    _memory       With memory, Eqs (17) to (19)
    _rate         The theorem, Eqs (11) and (12)
    _turns        A sharper step, Eq. (14)
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from flint import arb, arb_mat, ctx

from marginlens.norms import L1, L2, Frobenius, LInf, Lp, MaxRow, Norm, Nuclear, Spectral
from marginlens.theory.exact_rows import ExactRows, exact_rows
from marginlens.theory.intervals import Exact, Proving, steepness_in

if TYPE_CHECKING:
    from marginlens.theory.checks import Check
    from marginlens.theory.steepest_certificate import SteepestCertificate
    from marginlens.typing import FloatArray

KNOWN_NORMS: tuple[type[Norm], ...] = (L1, L2, LInf, Lp, Frobenius, Spectral, Nuclear, MaxRow)
SLOPE_CONDITIONS = ("steepest.selected_scores", "steepest.finite_slope")
NEARLY = 1e-3  # share by which distances in doubles may miss the exact ones
SIZE_BITS = 64  # of lengths of rows, which need no more: a bound that is too large by 1e-15 decides nothing


def steepest_conditions(proof: SteepestCertificate) -> list[Check]:
    """Check the conditions of the theorem on a certificate whose fields are valid, up to the first that does not hold."""
    proving = Proving()
    with proving.until_refuted():
        sizes = Sizes(proving, proof.steepest_in, proof.shape)
        setting = _setting(proving, proof, sizes)
        compared = _comparisons(proving, proof, setting, sizes)
        nu = _saturation(proving, proof, setting, compared, sizes)
        memory = _memory(proving, proof, setting, sizes)
        _rate(proving, proof, setting, compared, proving.largest([nu, memory.error]), memory.lost)
        if len(proof.turns):
            _turns(proving, proof, setting, sizes, nu)
    return proving.checks


_Name = TypeVar("_Name")


class Sizes:
    """Upper bounds on a norm and on its dual norm, for points whose entries are intervals.

    Args:
        proving: the intervals.

        norm: one of `KNOWN_NORMS`.

        shape: the shape of a point: (d,), or (n_rows, n_columns) if the norm is one of matrices.
    """

    def __init__(self, proving: Proving, norm: Norm, shape: tuple[int, ...]) -> None:
        self.proving, self.norm, self.shape = proving, norm, shape

    def value(self, x: Sequence[arb]) -> Any:
        """Bound ‖x‖ from above."""
        return self._bound(x, dual=False)

    def dual(self, x: Sequence[arb]) -> Any:
        """Bound ‖x‖_* from above."""
        return self._bound(x, dual=True)

    def near_longest(self, names: Sequence[_Name], points: FloatArray) -> list[_Name]:
        """Return the names of the points (n, d) in doubles whose exact ones may have the largest dual norm.

        Norms in doubles err by far less than `NEARLY`.
        """
        sizes = self.roughly_dual(points).tolist()
        below = (1.0 - NEARLY) * max(sizes)
        return [name for name, size in zip(names, sizes, strict=True) if not size < below]

    def roughly_dual(self, rows: FloatArray) -> FloatArray:
        """Compute dual norms of rows (n, d) in doubles."""
        norm, matrices = self.norm, rows.reshape(len(rows), -1, self.shape[-1])
        if isinstance(norm, MaxRow):
            return np.asarray(np.sqrt((matrices**2).sum(axis=-1)).sum(axis=-1))
        if isinstance(norm, Spectral | Nuclear):
            values = np.linalg.svd(matrices, compute_uv=False)
            return np.asarray(values.sum(axis=-1) if isinstance(norm, Spectral) else values.max(axis=-1))
        if isinstance(norm, L1):
            return np.asarray(np.abs(rows).max(axis=-1))
        power = 1.0 if isinstance(norm, LInf) else norm.p / (norm.p - 1.0) if isinstance(norm, Lp) else 2.0
        scale = np.abs(rows).max(initial=1e-300)
        return np.asarray(scale * np.sum((np.abs(rows) / scale) ** power, axis=-1) ** (1.0 / power))

    def _bound(self, x: Sequence[arb], dual: bool) -> Any:
        """Bound a norm with few bits."""
        norm, proving = self.norm, self.proving
        with ctx.workprec(SIZE_BITS):
            if isinstance(norm, MaxRow):
                rows = [self._euclidean(row) for row in self._rows(x)]
                return proving.sum(rows).upper() if dual else proving.largest(rows)
            if isinstance(norm, Spectral | Nuclear):
                return self._by_singular_values(x, total=isinstance(norm, Spectral) == dual)
            if isinstance(norm, L1 | LInf):
                sizes = [abs(entry) for entry in x]
                return proving.sum(sizes).upper() if isinstance(norm, LInf) == dual else proving.largest(sizes)
            power = proving.real(norm.p) if isinstance(norm, Lp) else proving.real(2)
            return self._power_norm(x, power / (power - 1) if dual else power).upper()

    def _rows(self, x: Sequence[arb]) -> list[Sequence[arb]]:
        width = self.shape[-1]
        return [x[k : k + width] for k in range(0, len(x), width)]

    def _euclidean(self, x: Sequence[arb]) -> Any:
        row = arb_mat(1, len(x), list(x))
        return self.proving.root((row * row.transpose())[0, 0])

    def _power_norm(self, x: Sequence[arb], power: arb) -> Any:
        """(Σ |x|^q)^(1/q), with roots where q is 2 or 3/2."""
        proving, sizes = self.proving, [abs(entry) for entry in x]
        if power == 2:
            return self._euclidean(x)
        largest = proving.largest(sizes)
        if not largest > 0:
            return proving.real(0)
        shares = [(size / largest).upper() for size in sizes]
        three_halves = power == proving.real(1.5)
        powers = [share * share.sqrt() if three_halves else self._power(share, power) for share in shares]
        return largest * self._power(proving.sum(powers), 1 / power)

    def _power(self, base: arb, power: arb) -> Any:
        return (power * base.log()).exp() if base > 0 else self.proving.real(0)

    def _by_singular_values(self, x: Sequence[arb], total: bool) -> Any:
        """Bound the sum of the singular values, or the largest, by a decomposition of the matrix of midpoints in doubles and the rest.

        With any A and V the matrix is A Vᵀ and a rest. The first has nuclear norm at most Σ ‖a‖‖v‖ over columns of both, and
        spectral norm at most ‖A‖‖V‖. The rest has at most its Frobenius norm times √rank, or times 1.
        """
        middles = np.array([float(entry.mid()) for entry in x]).reshape(self.shape)
        U, s, Vt = np.linalg.svd(middles, full_matrices=False)
        left, right = arb_mat((U * s).T.tolist()), arb_mat(Vt.tolist())
        rest = self._euclidean((arb_mat(self.shape[0], self.shape[1], list(x)) - left.transpose() * right).entries())
        if total:
            lengths = [
                self._euclidean(a) * self._euclidean(v) for a, v in zip(left.tolist(), right.tolist(), strict=True)
            ]
            rank = self.proving.real(len(s)).sqrt()
            return (self.proving.sum(lengths) + rank * rest).upper()
        return ((self._stretch(left) * self._stretch(right)).sqrt() + rest).upper()

    def _stretch(self, vectors: arb_mat) -> Any:
        """Bound the square of the largest singular value of rows that are nearly orthogonal, by Gershgorin's circles."""
        gram = (vectors * vectors.transpose()).tolist()
        return self.proving.largest(self.proving.sum(abs(entry) for entry in row) for row in gram)


class _Setting(NamedTuple):
    """Rows, the leading ones among them, their sizes, and bounds on γ."""

    rows: ExactRows
    a: list[list[Any]]
    leading: list[int]  # 𝒢
    others: list[int]  # 𝒪
    longest: Any  # D
    widest: Any  # D₂
    gamma: Any  # a lower bound on γ
    terms: list[Any]  # of the potential, at the point
    potential: Any  # F_0 in the ball around the point
    at_point: list[Any]  # a_r · p_0


def _setting(proving: Proving, proof: SteepestCertificate, sizes: Sizes) -> _Setting:
    """Setting: leading rows score lower than the selected token; p̂ bounds γ from below and π from above, Eq. (3)."""
    rows = exact_rows(proving, proof.data, proof.head, proof.loss, proof.selected)
    stated = {tuple(token) for token in proof.leading.tolist()}
    leading = [r for r, token in enumerate(rows.tokens) if token in stated]
    others = [r for r in range(len(rows.tokens)) if r not in set(leading)]
    proving.require("steepest.leading_rows", len(leading) == len(stated))
    proving.require("steepest.other_rows", len(others) == len(proof.multipliers), rows=len(others))
    proving.require("steepest.leading_scores", all(rows.delta[r] > 0 for r in leading))
    a = proving.numbers(rows.a)
    witness = [proving.real(entry) for entry in proof.witness.tolist()]
    proving.at_most("steepest.witness", sizes.value(witness), proving.real(1))
    lead = proving.product([a[r] for r in leading], [[entry] for entry in witness])
    gamma = proving.smallest(entry for [entry] in lead)
    proving.demand("steepest.margin", proving.real(0), gamma)
    pi = [proving.real(weight) for weight in proof.weights.tolist()]
    total = proving.sum(pi)
    [mean] = proving.product([[weight / total for weight in pi]], [a[r] for r in leading])
    proving.at_most("steepest.high", sizes.dual(mean), proving.real(proof.high))
    # The leading rows in doubles.
    i, t = proof.leading.T
    roughly = proof.data.K[i, proof.selected[i]] - proof.data.K[i, t]
    exact_point = Exact.of(proof.point)
    at_point = [entry for [entry] in proving.numbers(rows.a @ exact_point)]
    longest = proving.largest(sizes.dual(a[r]) for r in sizes.near_longest(leading, roughly))
    widest = proving.largest(sizes.dual(row) for row in _farthest(proving, rows, leading, roughly, sizes))
    terms = [rows.c[r] * rows.delta[r] * proving.exp(-at_point[r]) for r in leading]
    potential = proving.sum(terms) * proving.exp(longest * proving.real(proof.tolerance))
    return _Setting(rows, a, leading, others, longest, widest, gamma, terms, potential, at_point)


def _farthest(
    proving: Proving, rows: ExactRows, leading: list[int], roughly: FloatArray, sizes: Sizes
) -> list[list[Any]]:
    """Return the differences of the leading rows that are farthest apart, as intervals."""
    first, second = np.tril_indices(len(leading), -1)
    if not len(first):
        return []
    pairs = [(leading[j], leading[k]) for j, k in zip(first.tolist(), second.tolist(), strict=True)]
    return proving.numbers(rows.a.differences(sizes.near_longest(pairs, roughly[first] - roughly[second])))


class _Compared(NamedTuple):
    """What each row is at most, at x = 0: e^(-a_r·p) ≤ φ_r, and how other rows compare with leading ones."""

    phi: dict[int, Any]
    mass: dict[int, Any]  # m_r on 𝒪
    rest: dict[int, Any]  # ‖v_r‖_* on 𝒪


def _comparisons(proving: Proving, proof: SteepestCertificate, setting: _Setting, sizes: Sizes) -> _Compared:
    """Bounds along the way: φ_r of leading rows, and of the others by Eqs (6) and (7) in the ball around the point."""
    leading, others, a, at = setting.leading, setting.others, setting.a, setting.at_point
    limit = [setting.rows.c[s] * setting.rows.delta[s] for s in leading]
    phi = {s: setting.potential / size for s, size in zip(leading, limit, strict=True)}
    mass: dict[int, Any] = {}
    rest: dict[int, Any] = {}
    if not others:
        return _Compared(phi, mass, rest)
    mu = [[proving.real(weight) for weight in row] for row in proof.multipliers.tolist()]
    combined = proving.product(mu, [[*a[s], at[s]] for s in leading])
    logs = [proving.log(phi[s]) for s in leading]
    for r, weights, (*sums, sum_at) in zip(others, mu, combined, strict=True):
        mass[r] = proving.sum(weights)
        rest[r] = sizes.dual([entry - other for entry, other in zip(a[r], sums, strict=True)])
        behind = sum_at - at[r] + rest[r] * proving.real(proof.tolerance)
        phi[r] = proving.exp(behind + proving.dot(weights, logs))
    return _Compared(phi, mass, rest)


def _saturation(
    proving: Proving, proof: SteepestCertificate, setting: _Setting, compared: _Compared, sizes: Sizes
) -> Any:
    """Saturation: ε_i, ζ of Eq. (9), and ν of Eq. (10)."""
    rows, delta, phi = setting.rows, setting.rows.delta, compared.phi
    zero, one = proving.real(0), proving.real(1)
    epsilon: dict[int, Any] = {}
    plus: dict[int, Any] = {}
    minus: dict[int, Any] = {}
    inputs = rows.input
    for i in set(inputs):
        own = [r for r, j in enumerate(inputs) if j == i]
        epsilon[i] = proving.sum(phi[r] for r in own)
        plus[i] = proving.largest([zero, *(delta[r] for r in own)])
        minus[i] = proving.largest([zero, *(-delta[r] for r in own)])
    proving.demand("steepest.epsilon", proving.largest(epsilon.values()), one)
    lost = {r: epsilon[inputs[r]] * plus[inputs[r]] / delta[r] for r in setting.leading}
    proving.demand("steepest.leading_forward", proving.largest(lost.values()), one)
    by_row = [[values[i] for i in inputs] for values in (epsilon, plus)]
    steep = steepness_in(proving, SLOPE_CONDITIONS, proof.loss, rows.score, *by_row)
    errors = []
    for r in setting.leading:
        e, up, down = epsilon[inputs[r]], plus[inputs[r]], minus[inputs[r]]
        errors.append(proving.exp(e * (steep[r] * up + down / delta[r])) - 1)
        errors.append(1 - (1 - e) * (1 - lost[r]) * proving.exp(-e * steep[r] * down))
    omega = zero
    for r in setting.others:
        e, up, down = epsilon[inputs[r]], plus[inputs[r]], minus[inputs[r]]
        bound = rows.c[r] * proving.exp(steep[r] * e * up) * (abs(delta[r]) + e * proving.largest([up, down]))
        omega += bound * sizes.dual(setting.a[r]) * phi[r] / setting.potential
    return proving.largest(errors) * setting.longest + omega


class _Memory(NamedTuple):
    """What momentum costs: κ, and J + q d_0 now and J in the limit."""

    error: Any
    lost: tuple[Any, Any]


def _memory(proving: Proving, proof: SteepestCertificate, setting: _Setting, sizes: Sizes) -> _Memory:
    """With memory: J of Eq. (17), and κ, σ and d_0 of what is remembered at the point, Eqs (18) and (19)."""
    zero, beta = proving.real(0), proving.real(proof.momentum)
    if proof.momentum == 0.0:
        return _Memory(zero, (zero, zero))
    longest, widest, rho = setting.longest, setting.widest, proving.real(proof.tolerance)
    growth = proving.exp(proving.real(proof.longest) * longest)
    proving.demand("steepest.memory_length", beta * growth, proving.real(1))
    lost = []
    for length in (proving.real(proof.longest), proving.real(proof.limit)):
        b = beta * proving.exp(length * longest)
        lost.append(b / (1 - b) * length * proving.square(widest) / 4)
    weights = [proving.real(weight) for weight in proof.remembered.tolist()]
    size = proving.sum(weights)
    if not size > 0:
        proving.require("steepest.no_memory", not proof.memory.any())
        return _Memory(zero, (lost[0], lost[1]))
    total = proving.sum(setting.terms)
    sigma = size * proving.exp(longest * rho) / total
    proving.at_most("steepest.memory_size", sigma * (1 - beta * growth), growth)
    leads = [setting.a[r] for r in setting.leading]
    [mean, here] = proving.product([[w / size for w in weights], [term / total for term in setting.terms]], leads)
    away = sizes.dual([x - y for x, y in zip(mean, here, strict=True)]) + widest * (widest * rho / 4).tanh()
    memory = [proving.real(entry) / size for entry in proof.memory.tolist()]
    error = sizes.dual([x - y for x, y in zip(memory, mean, strict=True)]) + rho * longest
    return _Memory(error, (lost[0] + beta * sigma / (1 + beta * sigma) * away, lost[1]))


def _rate(
    proving: Proving, proof: SteepestCertificate, setting: _Setting, compared: _Compared, nu: arb, lost: tuple[arb, arb]
) -> None:
    """The theorem: g > 0 is at most γ - δ, Eq. (11), no other row outruns it, and the bracket of Eq. (12)."""
    g, h = proving.real(proof.rate), proving.real(proof.longest)
    square, by_range = proving.square(setting.widest) / 8, not len(proof.turns)
    if by_range:
        proving.at_most("steepest.rate", g + 2 * nu + h * square + lost[0], setting.gamma)
    for r in setting.others:
        i, t = setting.rows.tokens[r]
        ahead = (compared.mass[r] - 1) * g
        proving.demand("steepest.outrun", compared.rest[r], ahead, token=t, input=i)
    if by_range or proof.limit == 0.0:
        low = proving.real(proof.low) + proving.real(proof.limit) * square + lost[1]
        proving.at_most("steepest.low", low, setting.gamma)


def _turns(proving: Proving, proof: SteepestCertificate, setting: _Setting, sizes: Sizes, nu: arb) -> None:
    """A sharper step: what is left of the potential after a step to each vertex of the unit ball, by the dual of Eq. (14)."""
    d, norm, h = len(proof.point), proof.steepest_in, proving.real(proof.longest)
    known = isinstance(norm, L1 | LInf)
    count = 2 * d if isinstance(norm, L1) else 2**d
    proving.require("steepest.vertices", known and len(proof.turns) == count)
    signs = (proving.real(1), proving.real(-1))
    if isinstance(norm, L1):
        corners = [[sign * int(j == k) for j in range(d)] for sign in signs for k in range(d)]
    else:
        corners = [list(corner) for corner in product(signs, repeat=d)]
    columns = [list(column) for column in zip(*(setting.a[r] for r in setting.leading), strict=True)]
    duals = [[proving.real(entry) for entry in row] for row in proof.turns.tolist()]
    left, in_limit = [], []
    with ctx.workprec(SIZE_BITS):
        leads, pulls = proving.product(corners, columns), proving.product([z for _, *z in duals], columns)
        for (kappa, *z), lead, pull in zip(duals, leads, pulls, strict=True):
            slope = kappa + sizes.value(z)
            terms = [proving.exp(-h * x) + slope * x - y for x, y in zip(lead, pull, strict=True)]
            in_limit.append(proving.largest(terms) - kappa * setting.gamma)
            left.append(in_limit[-1] + 2 * nu * slope)
    proving.at_most("steepest.turn", proving.largest(left), proving.exp(-proving.real(proof.rate) * h))
    if proof.limit > 0.0:
        proving.at_most("steepest.turn_low", proving.largest(in_limit), proving.exp(-proving.real(proof.low) * h))
