"""What comes back from every hard-margin problem: the solution, its proof, and the numbers that check the proof."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np
from scipy.sparse.linalg import LinearOperator, lsmr

from marginlens.data.tokens import BoolArray, FloatArray, IntArray
from marginlens.directions import length
from marginlens.errors import batch_index, reject
from marginlens.kernels.linalg import exact_products
from marginlens.result import Result, axes_for
from marginlens.status import Status
from marginlens.svm.solvers.augmented_lagrangian import DIRECT

PROMISED = 1e-10  # residual up to which optimality counts as proved, unless rounding alone leaves more
MOST_AMPLIFIED = 1e-4  # the largest residual that is ever excused by amplification
SHAKY_FLOOR = (
    MOST_AMPLIFIED / 16.0
)  # `rounding_floor` beyond which the residual is computed from products that are summed without rounding
CONTRADICTION = 1e-13  # Farkas residual up to which infeasibility counts as proved


class Rows(Protocol):
    """The rows of one problem that are known by what they do: too wide to be stored, they are never formed for a check."""

    @property
    def shape(self) -> tuple[int, int]:
        """n_rows and the number of unknowns."""
        ...

    @property
    def sizes(self) -> FloatArray:
        """(n_rows,) their norms."""
        ...

    def some(self, places: IntArray) -> Rows:
        """The rows at increasing `places`."""
        ...

    def apply(self, x: FloatArray) -> FloatArray:
        """(n_rows,) the inner product of every row with x, flattened."""
        ...

    def combine(self, weights: FloatArray) -> FloatArray:
        """(d,) the sum of the rows times weights (n_rows,)."""
        ...


@dataclass(frozen=True, repr=False, eq=False)
class MarginSolution(Result):
    r"""The solution of one least-distance problem, or of a batch with a leading batch axis, with its proof.

    .. math:: \min_x \|x\| \ \text{s.t.}\ A x \ge b,\ C x = 0

    Optimal: :math:`x = A^\top\lambda + C^\top\mu`, :math:`\lambda \ge 0`, :math:`\lambda_r (a_r^\top x - b_r) = 0`;
    infeasible: some :math:`y \ge 0` has :math:`A^\top y + C^\top\mu = 0` and :math:`b^\top y > 0`.

    Attributes:
        rows: (…, n_rows, d) the matrix A; in `GraphSolution`, `Rows` that stand for it.
        floor: (…, n_rows) the lower bounds b >= 0.
        equalities: (…, n_equalities, d) the matrix C, or None; in `GraphSolution`, `Rows`.
        x: (…, d) the solution, or a matrix whose entries are the unknowns; nan where the problem is infeasible.
        status: a `Status`; for a batch an object array (batch,) of them.
        multipliers: (…, n_rows) lambda >= 0; nan where the problem is infeasible.
        equality_multipliers: (…, n_equalities) mu of either sign, of the solution or the certificate, or None.
        active: (…, n_rows) whether a row holds with equality; zero rows never do.
        certificate: (…, n_rows) the Farkas vector y where infeasible, nan elsewhere; None for one feasible problem.
        pairs: (…, n_rows, 3) the input, selected token and other token behind each row (-1 for padding), or None.
    """

    rows: FloatArray
    floor: FloatArray
    equalities: FloatArray | None
    x: FloatArray
    status: Any
    multipliers: FloatArray
    equality_multipliers: FloatArray | None
    active: BoolArray
    certificate: FloatArray | None
    pairs: IntArray | None = None

    # ---- shape

    @property
    def is_batch(self) -> bool:
        """Whether there is a leading batch axis."""
        return self.floor.ndim == 2

    def __len__(self) -> int:
        return len(self.x) if self.is_batch else 1

    def __getitem__(self, index: Any) -> MarginSolution:
        """One problem without the batch axis for a whole number; a batch of some for a slice, a mask (batch,) or a list."""
        places = batch_index(index, len(self), "problems")
        if not self.is_batch:
            if isinstance(places, int):
                return self
            raise reject("index", "0 for the solution of one problem, which has no batch axis", repr(index))
        taken: dict[str, Any] = {name: None if value is None else value[places] for name, value in vars(self).items()}
        if isinstance(places, int) and taken["status"] is not Status.INFEASIBLE:
            taken["certificate"] = None
        return MarginSolution(**taken)

    def __repr__(self) -> str:
        size = f"{self.floor.shape[-1]} rows, d={self.x.shape[-1]}"
        if not self.is_batch:
            return f"MarginSolution({self.status.name}, margin={float(self.margin):.6g}, {size})"
        tally = {kind.name: sum(one is kind for one in self.status) for kind in Status}
        counts = ", ".join(f"{count} {name}" for name, count in tally.items() if count)
        return f"MarginSolution({len(self)} problems: {counts}, {size})"

    # ---- what users read off

    @property
    def margin(self) -> Any:
        """1/‖x‖ per problem: infinite where x = 0 is enough, zero where the problem is infeasible."""
        norm = length(self._flat)
        with np.errstate(divide="ignore"):
            margin = np.where(np.isnan(norm), 0.0, 1.0 / norm)
        return margin if self.is_batch else float(margin)

    @property
    def direction(self) -> FloatArray:
        """x/‖x‖ in the shape of x: nan where the problem is infeasible, zero where it is trivial."""
        norm = length(self._flat)[..., None]
        return (self._flat / np.where(norm == 0.0, 1.0, norm)).reshape(self.x.shape)

    def plot(self, ax: Any = None) -> Any:
        """Draw how hard each row holds x, λ_r ‖a_r‖/‖x‖, or for an infeasible problem the weights of its certificate; for a batch how
        its margins are spread. Returns the axes.
        """
        ax = axes_for(ax)
        if self.is_batch:
            margins = np.asarray(self.margin)
            ax.hist(margins[np.isfinite(margins)], bins="auto", color="#0072B2")
            ax.set(xlabel="margin", ylabel="problems")
            return ax
        infeasible = self.status is Status.INFEASIBLE
        weights = self.certificate if infeasible else self.multipliers
        weights = np.asarray(weights) * _sizes(self.rows) * (1.0 if infeasible else float(self.margin))
        ax.bar(np.arange(len(weights)), np.nan_to_num(weights), color=np.where(self.active, "#D55E00", "#0072B2"))
        ax.set(
            xlabel="row (active ones in orange)",
            ylabel="weight in the proof" if infeasible else "multiplier × row norm / ‖x‖",
        )
        return ax

    # ---- the check

    @np.errstate(over="ignore", invalid="ignore")
    def kkt_residual(self) -> Any:
        r"""The largest optimality residual per problem, recomputed from the stored problem; nan where it is infeasible.

        Every term is dimensionless, and unchanged when a row and its floor, or the whole problem, are rescaled:

        * distance to each halfspace, :math:`(b_r - a_r^\top x)_+ / (\|a_r\| \|x\|)`, and to each equality plane;
        * stationarity, :math:`\|x - A^\top\lambda - C^\top\mu\| / \|x\|`;
        * sign, :math:`(-\lambda_r)_+ \|a_r\| / \|x\|`;
        * complementarity, :math:`|\lambda_r (a_r^\top x - b_r)| / \|x\|^2`;
        * duality gap, :math:`|\tfrac12\|x\|^2 - b^\top\lambda + \tfrac12\|A^\top\lambda + C^\top\mu\|^2| / \|x\|^2`.

        It is infinite where the multipliers are beyond the range of double precision. Where `rounding_floor` is above 6e-6 products
        are summed without rounding: the residual is then that of x and the multipliers as they are stored, in whatever order the rows are.
        """
        x = self._flat
        norm = length(x)
        scale = np.where(norm == 0.0, 1.0, norm)[..., None]
        size = _sizes(self.rows)
        unit = np.where(size == 0.0, 1.0, size)
        slack = _apply(self.rows, x) - self.floor
        combined = self._combined(self.multipliers)
        if isinstance(self.rows, np.ndarray) and self.equalities is None:
            for where in np.argwhere(self.rounding_floor() > SHAKY_FLOOR):  # where the order of additions would show
                j = tuple(where)
                slack[j] = exact_products(self.rows[j], x[j], self.floor[j])
                combined[j] = exact_products(self.rows[j].T, self.multipliers[j])
        hopeless = (size == 0.0) | (norm == 0.0)[..., None]  # no distance in units of ‖x‖ is small
        violation = np.maximum(-slack, 0.0) / unit / scale
        terms = [
            np.where(hopeless, np.where(self.floor > 0.0, np.inf, 0.0), violation),
            np.maximum(-self.multipliers, 0.0) * unit / scale,
            np.abs(self.multipliers * unit / scale * (slack / unit / scale)),
            length(x - combined)[..., None] / scale,
            self._gap(combined / scale, scale),
        ]
        if self.equalities is not None:
            plane = _sizes(self.equalities)
            terms.append(np.abs(_apply(self.equalities, x)) / np.where(plane == 0.0, 1.0, plane) / scale)
        worst = np.max(np.concatenate(terms, axis=-1), axis=-1, initial=0.0)
        worst = np.where(np.isnan(norm), np.nan, np.where(np.isnan(worst), np.inf, worst))
        return worst if self.is_batch else float(worst)

    @np.errstate(over="ignore", invalid="ignore")
    def rounding_floor(self) -> Any:
        r"""What rounding alone may leave of `kkt_residual`, per problem; nan where it is infeasible.

        .. math:: \epsilon \sum_r \lambda_r \|a_r\| / \|x\|, \quad \epsilon = 2^{-52}

        Multipliers in double precision determine x no better than that. It matters only where rows nearly cancel: two rows
        opposite up to 1e-9 leave about 1e-6.
        """
        size, norm = _sizes(self.rows), length(self._flat)
        pushed = np.sum(self.multipliers * size, axis=-1)
        if self.equalities is not None and self.equality_multipliers is not None:
            planes = _sizes(self.equalities)
            pushed = pushed + np.sum(np.abs(self.equality_multipliers) * planes, axis=-1)
        floor = 2.0**-52 * pushed / np.where(norm == 0.0, 1.0, norm)
        return floor if self.is_batch else float(floor)

    @np.errstate(over="ignore", invalid="ignore")
    def certificate_residual(self) -> Any:
        r"""How far the Farkas vector is from a proof of infeasibility; nan where the problem is feasible.

        .. math:: \frac{\|A^\top y + C^\top\mu\|}{\sum_{r:\, b_r > 0} y_r \|a_r\|}

        A value :math:`\rho` proves that every x with A x >= b is longer than 1/rho times the average of
        :math:`b_r/\|a_r\|` over the rows that y weighs. Up to 1e-14, or 1e-13 with equalities and where x is a matrix, that counts as
        none: rows are differences that were rounded, and do not tell an x that long from no x. It is infinite where y has a
        negative entry or no weight on a positive floor, and where the proof is beyond the range of double precision.
        """
        if self.certificate is None:
            return float("nan")
        y, size = self.certificate, _sizes(self.rows)
        counted = self.floor > 0.0
        weight = np.sum(np.where(counted, y * np.where(size == 0.0, 1.0, size), 0.0), axis=-1)
        distance = length(self._combined(y))
        valid = (weight > 0.0) & (y >= 0.0).all(axis=-1)
        residual = np.where(valid, distance / np.where(valid, weight, 1.0), np.inf)
        residual = np.where(np.isnan(y).any(axis=-1), np.nan, np.where(np.isnan(residual), np.inf, residual))
        return residual if self.is_batch else float(residual)

    def keeps_promise(self) -> Any:
        """Whether `kkt_residual`, per problem, is at most 1e-10 or what rounding may leave where rows nearly cancel, never above 1e-4."""
        allowed = np.clip(16.0 * self.rounding_floor(), PROMISED, MOST_AMPLIFIED)
        return self.kkt_residual() <= allowed

    @property
    def _flat(self) -> FloatArray:
        """(…, d) x with all unknowns in one axis."""
        return self.x.reshape(*self.floor.shape[:-1], -1)

    def _combined(self, weights: FloatArray) -> FloatArray:
        """Aᵀ weights + Cᵀ mu, shape (…, d)."""
        combined = _combine(self.rows, weights)
        if self.equalities is not None and self.equality_multipliers is not None:
            combined = combined + _combine(self.equalities, self.equality_multipliers)
        return combined

    def _gap(self, combined: FloatArray, scale: FloatArray) -> FloatArray:
        """The duality gap over ‖x‖², shape (…, 1), from Aᵀλ + Cᵀμ already divided by ‖x‖."""
        primal = 0.5 * np.sum((self._flat / scale) ** 2, axis=-1)
        dual = np.sum(self.floor / scale * (self.multipliers / scale), axis=-1) - 0.5 * np.sum(combined**2, axis=-1)
        return np.abs(primal - dual)[..., None]


def _apply(rows: FloatArray | Rows, x: FloatArray) -> FloatArray:
    """(…, n_rows) the inner products with x (…, d)."""
    return np.matmul(rows, x[..., None])[..., 0] if isinstance(rows, np.ndarray) else rows.apply(x)


def _combine(rows: FloatArray | Rows, weights: FloatArray) -> FloatArray:
    """(…, d) the sum of the rows times weights (…, n_rows)."""
    if isinstance(rows, np.ndarray):
        return np.matmul(np.swapaxes(rows, -1, -2), weights[..., None])[..., 0]
    return rows.combine(weights)


def _sizes(rows: FloatArray | Rows) -> FloatArray:
    """(…, n_rows) the norms."""
    return length(rows) if isinstance(rows, np.ndarray) else rows.sizes


ACCURATE = 1e-12  # `kkt_residual` up to which a solution needs no refinement
_STEPS = 3
_GAIN = 1e-4  # of what the tight rows miss, what one step by products may leave
_PRODUCTS = 1000  # of one such step
_Solution = TypeVar("_Solution", bound=MarginSolution)


def refined(solution: _Solution) -> _Solution:
    r"""The solution of one problem, with x corrected by the rows that it should satisfy with equality.

    .. math:: x \leftarrow x + \arg\min_z \{\|z\| : a_r^\top (x + z) = b_r\ (\lambda_r > 0),\ C (x + z) = 0\}

    The multipliers stay. Of the first x and up to three corrected ones, that of the smallest `kkt_residual` comes back: refinement never
    makes a solution worse.
    """
    best, residual = solution, solution.kkt_residual()
    for _ in range(_STEPS):
        if not ACCURATE < residual < np.inf:
            break
        moved = replace(best, x=best.x + _correction(best).reshape(best.x.shape))
        now = moved.kkt_residual()
        if not now < residual:
            break
        best, residual = moved, now
    return best


def _correction(solution: MarginSolution) -> FloatArray:
    """(d,) the shortest z that closes the gaps of the rows with a multiplier and of the equalities, or comes closest to it."""
    tight = np.flatnonzero(solution.multipliers > 0.0)
    blocks = [_Block(solution.rows, tight, solution.floor[tight])]
    if solution.equalities is not None:
        n = len(solution.equalities)
        blocks.append(_Block(solution.equalities, np.arange(n), np.zeros(n)))
    x = solution.x.reshape(-1)
    gaps = np.concatenate([block.gaps(x) for block in blocks])
    n, width = len(gaps), len(x)
    if n * width * min(n, width) <= DIRECT:
        return np.linalg.lstsq(np.concatenate([block.formed() for block in blocks]), gaps)[0]
    edges = np.cumsum([len(block.size) for block in blocks])[:-1]
    operator = LinearOperator(
        (n, width),
        matvec=lambda z: np.concatenate([block.apply(z.reshape(-1)) for block in blocks]),
        rmatvec=lambda w: sum(block.combine(part) for block, part in zip(blocks, np.split(w, edges), strict=True)),
        dtype=np.float64,
    )
    return np.asarray(lsmr(operator, gaps, atol=0.0, btol=_GAIN, conlim=0.0, maxiter=_PRODUCTS)[0])


class _Block:
    """Some rows of a problem, scaled to norm one, with the values that their products with x should have."""

    def __init__(self, rows: Any, some: Any, goal: FloatArray) -> None:
        self._rows = rows[some] if isinstance(rows, np.ndarray) else rows.some(some)
        size = length(self._rows) if isinstance(rows, np.ndarray) else self._rows.sizes
        self.size, self._goal = np.where(size == 0.0, 1.0, size), goal

    def gaps(self, x: FloatArray) -> FloatArray:
        return self._goal / self.size - self.apply(x)

    def apply(self, x: FloatArray) -> FloatArray:
        products = self._rows @ x if isinstance(self._rows, np.ndarray) else self._rows.apply(x)
        return np.asarray(products / self.size)

    def combine(self, weights: FloatArray) -> FloatArray:
        scaled = weights / self.size
        return np.asarray(
            scaled @ self._rows if isinstance(self._rows, np.ndarray) else self._rows.combine(scaled).reshape(-1)
        )

    def formed(self) -> FloatArray:
        return np.asarray(np.asarray(self._rows) / self.size[:, None])
