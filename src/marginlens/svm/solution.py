"""Solutions of hard-margin problems with their certificates, and the refinement of a solution by its active rows."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
import scipy

from marginlens.arithmetic.directions import length
from marginlens.arithmetic.rounding import EPS, exact_products
from marginlens.errors import InputError, batch_index
from marginlens.kinds import defining_class
from marginlens.norms import L1, L2, LInf, Lp, Norm, Nuclear, Spectral
from marginlens.norms.choice import norm_name, norm_named
from marginlens.result import Displayed, Result, Tabular, axes_for, table
from marginlens.result.drawing import draw_bars, draw_sentence
from marginlens.result.palette import GLOBAL, LOCAL, NEITHER
from marginlens.runtime.files import not_such_a_file, read_result, write_numbers, write_result
from marginlens.status import Status, names_of, statuses
from marginlens.svm.solvers.rows import BilinearRows
from marginlens.svm.solvers.uniqueness import OptimalFace, is_only_solution
from marginlens.typing import Axes, BoolArray, FloatArray, Index, IntArray
from marginlens.words import text

# Optimality counts as proved up to this residual, unless rounding alone leaves more.
KKT_RTOL = 1e-10
# The largest residual that rounding ever excuses.
MAX_KKT_RTOL = 1e-4
# Infeasibility counts as proved up to this Farkas residual.
CERTIFICATE_RTOL = 1e-13
# A row counts as active up to this slack, relative to its lower bound.
ACTIVE_SLACK_RTOL = 1e-9
# Singular values of a solution below this share of the largest count as zero.
MATRIX_RANK_RTOL = 1e-5
# Slack, relative to ‖a_r‖ ‖x‖, that is rounding.
ROUNDOFF_RTOL = 1e-12
# Rows are formed and their equations solved directly if this takes no more operations.
MAX_DIRECT_OPERATIONS = 30_000_000
# Gaps of the bracket of a norm that count as proofs, for these norms and for every other.
GAP_RTOL_BY_NORM: dict[type, float] = {L1: 1e-10, LInf: 1e-10, Lp: 1e-9}
DEFAULT_GAP_RTOL = 1e-8
# The entry "format" of a file that holds a solution.
SOLUTION_FORMAT = "marginlens-solution-1"
# The entry "format" of a .json file that proves a bracket of a margin.
PROOF_FORMAT = "marginlens-margin-1"
# The share of a margin that is left for rounding of the lower end of that bracket.
MARGIN_ROOM = 1e-9
# The entries of a file for rows that are defined by tokens and queries.
_ROW_PARTS = ("X", "Q", "triples", "scale")
# From this `rounding_floor` on, residuals are summed without rounding.
_EXACT_SUMS_ABOVE = MAX_KKT_RTOL / 16.0
# A solution with a smaller `kkt_residual` needs no refinement.
_ACCURATE_RTOL = 1e-12
_MAX_REFINEMENTS = 3
# The share of the gaps that one refinement by products may leave, and how many products it may take.
_LSMR_RTOL, _MAX_LSMR = 1e-4, 1000


class _Bounds(NamedTuple):
    lower: Any
    upper: Any


class Contradiction(NamedTuple):
    """Rows of a margin problem that no vector satisfies together, the heaviest first.

    Attributes:
        pairs: (m, 3) the input, selected token and other token of each row; for retrieval the query, the document that should
            come first, and the one that contradicts it.

        weights: (m,) the share of each row in the proof, in units of its length; they add up to 1, up to rounding.
    """

    pairs: IntArray
    weights: FloatArray


class Bracket(Displayed, Tabular, _Bounds):
    """Two bounds that contain the smallest norm of a margin problem, each a float, or an array (batch,) for a batch.

    `to_frame()` has one row per problem: problem, lower, upper, gap.
    """

    quantities = "lower={lower!r}, upper={upper!r}"
    batch_quantities = "{lower:#} problems, {lower.min:.6g} … {upper.max:.6g}, gaps up to {gap.max:.2g}"
    _columns = table("problem", "lower", "upper", "gap")

    @property
    def is_batch(self) -> bool:
        """True if the bounds are arrays."""
        return np.ndim(self.lower) > 0

    @property
    def gap(self) -> Any:
        """The relative gap (upper - lower)/lower: zero if both bounds are zero or both infinite, infinite if only the lower one
        is zero.
        """
        lower, upper = np.asarray(self.lower, dtype=np.float64), np.asarray(self.upper, dtype=np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            gap = np.where(lower == upper, 0.0, (upper - lower) / lower)
        return gap if gap.ndim else float(gap)


@dataclass(frozen=True, repr=False, eq=False)
class MarginSolution(Result, Tabular):
    r"""The solution of one least-distance problem, or of a batch with a leading batch axis, with its proof.

    .. math:: \min_x \|x\| \ \text{s.t.}\ A x \ge b,\ C x = 0

    Optimal: :math:`x = A^\top\lambda + C^\top\mu`, :math:`\lambda \ge 0`, :math:`\lambda_r (a_r^\top x - b_r) = 0`;
    infeasible: some :math:`y \ge 0` has :math:`A^\top y + C^\top\mu = 0` and :math:`b^\top y > 0`, in every norm. In a norm
    other than the Euclidean one, :math:`A^\top\lambda + C^\top\mu` is not x but has dual norm :math:`\|x\|`, with
    :math:`b^\top\lambda = \|x\|^2`; then `bracket` proves x.

    Attributes:
        rows: (…, n_rows, d) the matrix A; if x is a matrix, `BilinearRows` that represent it.

        lower: (…, n_rows) the lower bounds b >= 0.

        equalities: (…, n_equalities, d) the matrix C, or None; if x is a matrix, `BilinearRows`.

        x: (…, d) the solution, or a matrix whose entries are the unknowns; nan if the problem is infeasible.

        status: a `Status`; for a batch an object array (batch,) of them.

        multipliers: (…, n_rows) lambda >= 0; nan if the problem is infeasible.

        equality_multipliers: (…, n_equalities) mu of either sign, of the solution or the certificate, or None.

        active: (…, n_rows) whether a row holds with equality; zero rows never do.

        certificate: (…, n_rows) the Farkas vector y of infeasible problems, nan for the others; None for one feasible problem.

        pairs: (…, n_rows, 3) the input, selected token and other token behind each row (-1 for padding), or None.

        norm: the norm ‖·‖ of the problem.

    `to_frame()` has one row per constraint: problem (of a batch), row, the row's tokens (input, selected, other; if x is a
    matrix, query, above, below), lower = b_r, value = a_r·x, slack = value - lower, multiplier = λ_r, active, and for an
    infeasible problem certificate = y_r. Values and slacks are in units of the logits.
    """

    rows: FloatArray
    lower: FloatArray
    equalities: FloatArray | None
    x: FloatArray
    status: Any
    multipliers: FloatArray
    equality_multipliers: FloatArray | None
    active: BoolArray
    certificate: FloatArray | None
    pairs: IntArray | None = None
    norm: Norm = L2()
    quantities = "{status.name}, margin={margin:.6g}, {lower.shape[-1]} rows, d={x.shape[-1]}{_norm_words}"
    batch_quantities = "{self:#} problems: {status:tally}, {lower.shape[-1]} rows, d={x.shape[-1]}{_norm_words}"

    @property
    def is_batch(self) -> bool:
        """True if there is a leading batch axis."""
        return self.lower.ndim == 2

    def __len__(self) -> int:
        return len(self.x) if self.is_batch else 1

    def __getitem__(self, index: Index) -> MarginSolution:
        """Return one problem without the batch axis for a whole number; a batch of some for a slice, a mask (batch,) or a list."""
        indices = batch_index(index, len(self), "problems")
        if not self.is_batch:
            if isinstance(indices, int):
                return self
            raise InputError("index", "0 for the solution of one problem, which has no batch axis", repr(index))
        fields: dict[str, Any] = {
            name: value if value is None or name == "norm" else value[indices] for name, value in vars(self).items()
        }
        if isinstance(indices, int) and fields["status"] is not Status.INFEASIBLE:
            fields["certificate"] = None
        return MarginSolution(**fields)

    # ---- what users read off

    @property
    def margin(self) -> Any:
        """The margin 1/‖x‖ per problem: infinite if x = 0 is enough, zero if the problem is infeasible."""
        norm = self._norms()
        with np.errstate(divide="ignore"):
            margin = np.where(np.isnan(norm), 0.0, 1.0 / norm)
        return margin if self.is_batch else float(margin)

    @property
    def direction(self) -> FloatArray:
        """The direction x/‖x‖ in the shape of x: nan if the problem is infeasible, zero if it is trivial."""
        norm = self._norms()[..., None]
        return (self._flat / np.where(norm == 0.0, 1.0, norm)).reshape(self.x.shape)

    @property
    def contradiction(self) -> Contradiction:
        r"""The pairs that contradict each other, which prove that the problem is infeasible: :math:`\sum_r y_r a_r = 0`, y > 0.

        Empty if the problem is feasible.
        """
        if self.is_batch or self.pairs is None:
            got = "a batch" if self.is_batch else "one without pairs of tokens"
            raise InputError("solution", "that of one problem whose rows are pairs of tokens", got)
        y = np.zeros(len(self.lower)) if self.certificate is None else np.nan_to_num(self.certificate)
        row_norms = _row_norms(self.rows)
        weights = y * np.where(row_norms == 0.0, 1.0, row_norms)
        order = np.argsort(-weights, kind="stable")
        shares = weights[order] / max(float(weights.sum()), np.finfo(float).tiny)
        # Rows that carry rounding errors only are no part of the proof.
        count = int(np.sum(np.cumsum(shares[::-1])[::-1] > CERTIFICATE_RTOL))
        return Contradiction(self.pairs[order[:count]], shares[:count])

    @property
    def is_euclidean(self) -> bool:
        """True if the norm is `L2` or `Frobenius`."""
        return defining_class(self.norm) is L2

    @property
    def is_unique(self) -> Any:
        """True if x is the only shortest vector; None if that is not decided; an object array (batch,) for a batch.

        Strictly convex norms (L2, Frobenius, ℓp for 1 < p < ∞) have one shortest vector. For ℓ1 and ℓ∞ this depends on the
        active rows and on the entries at which Aᵀλ + Cᵀμ attains its dual norm. It is not decided for spectral, nuclear, row
        and users' own norms.
        """
        if self.is_batch:
            return np.array([self[j].is_unique for j in range(len(self))], dtype=object)
        return None if self.status is Status.INFEASIBLE else has_unique_minimum(self)

    def rank(self, rtol: float = MATRIX_RANK_RTOL) -> Any:
        """Count the singular values of the matrix x above `rtol` times the largest, per problem; -1 if it is infeasible."""
        if self.x.ndim - self.lower.ndim != 1:
            raise InputError("solution", "one whose x is a matrix", f"one whose x has shape {self.x.shape}")
        finite = np.asarray(np.isfinite(self.x).all(axis=(-2, -1)))
        values = np.linalg.svd(np.where(finite[..., None, None], self.x, 0.0), compute_uv=False)
        ranks = np.where(finite, np.sum(values > rtol * values[..., :1], axis=-1), -1)
        return ranks if self.is_batch else int(ranks)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name, in types that `json.dumps` takes; the norm as it is written in Python."""
        return {**super().to_dict(), "norm": repr(self.norm)}

    # ---- files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write problem, solution and proof to a .npz file that `load` reads, on any machine, or to a .json file.

        A .json file states a bracket of the margin of one problem, 0 at most up to rounding if it is infeasible. It has every
        number to its last digit, for checkers that share no code with this library, such as docs/proofs/check.py.
        """
        if str(path).endswith(".json"):
            write_numbers(path, PROOF_FORMAT, self._proof_of_margin())
            return
        arrays: dict[str, Any] = {"kind": type(self).__name__, "norm": norm_name(self.norm)}
        arrays["status"] = names_of(self.status)
        for name, value in vars(self).items():
            if isinstance(value, BilinearRows):
                arrays |= {f"{name}.{part}": array for part, array in zip(_ROW_PARTS, value.parts, strict=True)}
            elif name not in arrays and value is not None:
                arrays[name] = value
        write_result(path, SOLUTION_FORMAT, arrays)

    def _proof_of_margin(self) -> dict[str, Any]:
        """Return what bounds the margin from both sides, and the bracket with room for rounding."""
        weights = np.asarray(self.certificate if self.status is Status.INFEASIBLE else self.multipliers)
        weights = np.maximum(weights, 0.0)
        if self.is_batch or not self.lower @ weights > 0.0:
            raise InputError("solution", "one problem with multipliers that bound its margin", str(self))
        value, rounding = float(self.lower @ weights), EPS * sum(self.rows.shape)
        blur = rounding * float(weights @ self._dual_row_norms(self.rows)) / value
        high = float(self._over_points(self._combined(weights), is_dual=True)) / value
        upper = np.inf if self.status is Status.INFEASIBLE else self.bracket().upper
        parts: dict[str, Any] = {"x": self.x.ravel(), "multipliers": weights, "rows": self.rows, "lower": self.lower}
        parts |= {"low": max((1.0 - MARGIN_ROOM) / upper - blur, 0.0), "high": (1.0 + rounding) * (high + blur)}
        parts |= {"norm": norm_name(self.norm), "shape": self.x.shape}
        if self.equalities is not None and len(self.equalities):
            parts |= {"equalities": self.equalities, "equality_multipliers": self.equality_multipliers}
        for name, rows in parts.items():
            if isinstance(rows, BilinearRows):
                parts[name] = {part: array.tolist() for part, array in zip(_ROW_PARTS, rows.parts, strict=True)}
        return parts

    @staticmethod
    def load(path: str | os.PathLike[str]) -> MarginSolution:
        """Read the solution in a file that `save` wrote and check its proof again; if it does not hold, the status is INACCURATE."""
        expected = "a .npz file that MarginSolution.save wrote"
        arrays = read_result(path, SOLUTION_FORMAT, expected, ("kind", "norm", "status", "lower", "x", "multipliers"))
        classes: list[type[MarginSolution]] = [MarginSolution, *MarginSolution.__subclasses__()]
        kinds = {kind.__name__: kind for kind in classes}
        try:
            kind = kinds[str(arrays["kind"])]
            taken: dict[str, Any] = {field.name: arrays.get(field.name) for field in fields(kind)}
            for name in ("rows", "equalities"):
                if f"{name}.X" in arrays:
                    taken[name] = BilinearRows(*(arrays[f"{name}.{part}"] for part in _ROW_PARTS))
            taken |= {"status": statuses(arrays["status"]), "norm": norm_named(str(arrays["norm"]))}
            solution = kind(**taken)
            false = (solution.status == Status.TRIVIAL) & (
                solution._flat.any(axis=-1) | (solution.lower > 0.0).any(axis=-1)
            )
            status = np.where(false, np.array(Status.INACCURATE), np.asarray(solution.status))
            return replace(solution, status=status if solution.is_batch else status.item()).with_verified_status()
        except (InputError, KeyError, ValueError, TypeError, IndexError) as problem:
            raise not_such_a_file(path, expected, arrays) from problem

    # ---- how it is shown

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the constraints that determine x, by λ_r ‖a_r‖/‖x‖; if infeasible, those that contradict each other, by their
        weights in the proof.

        A batch is drawn as a histogram of its margins. Return the axes.
        """
        ax = axes_for(ax)
        if self.is_batch:
            margins = np.asarray(self.margin)
            n_infeasible = int(np.sum(margins == 0.0))
            if n_infeasible == len(self):
                draw_sentence(ax, text("solution_plot.all_infeasible", problems=len(self)))
                return ax
            ax.hist(margins[(margins > 0.0) & np.isfinite(margins)], bins="auto", color=LOCAL)
            ax.set(xlabel="margin", ylabel="problems")
            counts = {"infeasible": n_infeasible, "problems": len(self)}
            ax.set_title(text("solution_plot.some_infeasible", **counts) if n_infeasible else "")
            return ax
        infeasible = self.status is Status.INFEASIBLE
        weights = np.asarray(self.certificate if infeasible else self.multipliers)
        scaled = weights * _row_norms(self.rows) * (1.0 if infeasible else float(self.margin))
        # A zero row contradicts its bound by itself, and has no norm to scale its weight.
        weights = weights if infeasible and not np.any(scaled > 0.0) else scaled
        carries = np.nan_to_num(weights) > 0.0
        names = [f"row {r}" for r in range(len(weights))]
        if self.pairs is not None:
            names = [f"{i}: {a} over {t}" for i, a, t in np.asarray(self.pairs).tolist()]
        colours = np.where(carries | self.active, GLOBAL, NEITHER).tolist()
        what = text("solution_plot.proof_weight" if infeasible else "solution_plot.multiplier")
        behind = self._pair_columns()
        draw_bars(
            ax,
            names,
            weights,
            what,
            colours=colours,
            ylabel=f"{behind[0]}: {behind[1]} over {behind[2]}" if self.pairs is not None else "constraint",
        )
        if infeasible:
            ax.set_title(text("solution_plot.contradiction"))
        return ax

    def _pair_columns(self) -> tuple[str, str, str]:
        """Return the column names for the three numbers of a pair."""
        return ("input", "selected", "other")

    def _columns(self) -> dict[str, Any]:
        n_rows = self.lower.shape[-1]
        with np.errstate(invalid="ignore"):
            value = _apply(self.rows, self._flat)
        columns: dict[str, Any] = {}
        if self.is_batch:
            columns["problem"] = np.repeat(np.arange(len(self)), n_rows)
        columns["row"] = np.tile(np.arange(n_rows), len(self) if self.is_batch else 1)
        if self.pairs is not None:
            columns |= dict(zip(self._pair_columns(), self.pairs.reshape(-1, 3).T, strict=True))
        columns |= {"lower": self.lower.ravel(), "value": value.ravel(), "slack": (value - self.lower).ravel()}
        columns |= {"multiplier": self.multipliers.ravel(), "active": self.active.ravel()}
        if self.certificate is not None:
            columns["certificate"] = self.certificate.ravel()
        return columns

    # ---- the check

    @np.errstate(over="ignore", invalid="ignore")
    def kkt_residual(self) -> Any:
        r"""Recompute the largest optimality residual per problem from the stored problem; nan if it is infeasible.

        Every term is dimensionless, and does not change if a row with its lower bound, or the whole problem, is rescaled:

        * distance to each halfspace, :math:`(b_r - a_r^\top x)_+ / (\|a_r\| \|x\|)`, and to each equality plane;
        * stationarity, :math:`\|x - A^\top\lambda - C^\top\mu\| / \|x\|`;
        * sign, :math:`(-\lambda_r)_+ \|a_r\| / \|x\|`;
        * complementarity, :math:`|\lambda_r (a_r^\top x - b_r)| / \|x\|^2`;
        * duality gap, :math:`|\tfrac12\|x\|^2 - b^\top\lambda + \tfrac12\|A^\top\lambda + C^\top\mu\|^2| / \|x\|^2`.

        If `rounding_floor` is above 6e-6, products are summed without rounding: the residual is then exactly that of the stored
        x and multipliers, whatever the order of the rows.

        In a norm other than the Euclidean one, it is the `gap` of the `bracket` plus the largest of these (Euclidean) distances
        to halfspaces and planes.
        """
        if not self.is_euclidean:
            return self._bracket_residual()
        x = self._flat
        norm = length(x)
        scale = np.where(norm == 0.0, 1.0, norm)[..., None]
        row_norms = _row_norms(self.rows)
        unit = np.where(row_norms == 0.0, 1.0, row_norms)
        slack = _apply(self.rows, x) - self.lower
        combined = self._combined(self.multipliers)
        if isinstance(self.rows, np.ndarray) and self.equalities is None:
            # The order of additions would show in these problems.
            for problem in np.argwhere(self.rounding_floor() > _EXACT_SUMS_ABOVE):
                j = tuple(problem)
                slack[j] = exact_products(self.rows[j], x[j], self.lower[j])
                combined[j] = exact_products(self.rows[j].T, self.multipliers[j])
        # No distance is small in units of ‖x‖ if x or the row is zero.
        zero = (row_norms == 0.0) | (norm == 0.0)[..., None]
        violation = np.maximum(-slack, 0.0) / unit / scale
        primal = 0.5 * np.sum((x / scale) ** 2, axis=-1)
        dual = np.sum(self.lower / scale * (self.multipliers / scale), axis=-1) - 0.5 * np.sum(
            (combined / scale) ** 2, axis=-1
        )
        terms = [
            np.where(zero, np.where(self.lower > 0.0, np.inf, 0.0), violation),
            np.maximum(-self.multipliers, 0.0) * unit / scale,
            np.abs(self.multipliers * unit / scale * (slack / unit / scale)),
            length(x - combined)[..., None] / scale,
            np.abs(primal - dual)[..., None],
        ]
        if self.equalities is not None:
            plane = _row_norms(self.equalities)
            terms.append(np.abs(_apply(self.equalities, x)) / np.where(plane == 0.0, 1.0, plane) / scale)
        worst = np.max(np.concatenate(terms, axis=-1), axis=-1, initial=0.0)
        worst = np.where(np.isnan(norm), np.nan, np.where(np.isnan(worst), np.inf, worst))
        return worst if self.is_batch else float(worst)

    @np.errstate(over="ignore", invalid="ignore")
    def rounding_floor(self) -> Any:
        r"""Bound the part of `kkt_residual` that rounding alone may leave, per problem; nan if it is infeasible.

        .. math:: \epsilon \sum_r \lambda_r \|a_r\| / \|x\|, \quad \epsilon = 2^{-52}

        Multipliers in double precision determine x no better than that. It matters only if rows nearly cancel: two rows that
        are opposite up to 1e-9 leave about 1e-6. In a norm other than the Euclidean one, the norm of rows is the dual one, and
        because the bracket compares a_r·x with b_r, the largest ε ‖a_r‖₂ ‖x‖₂/b_r of the active rows counts too.
        """
        norm = self._norms()
        total = np.sum(self.multipliers * self._dual_row_norms(self.rows), axis=-1)
        if self.equalities is not None and self.equality_multipliers is not None:
            total = total + np.sum(np.abs(self.equality_multipliers) * self._dual_row_norms(self.equalities), axis=-1)
        floor = EPS * total / np.where(norm == 0.0, 1.0, norm)
        if not self.is_euclidean:
            binding = self.active & (self.lower > 0.0)
            sizes = _row_norms(self.rows) * length(self._flat)[..., None]
            shares = np.where(binding, sizes / np.where(binding, self.lower, 1.0), 0.0)
            floor = np.maximum(floor, EPS * np.max(shares, axis=-1, initial=0.0))
        return floor if self.is_batch else float(floor)

    @np.errstate(over="ignore", invalid="ignore")
    def certificate_residual(self) -> Any:
        r"""Measure how far the Farkas vector is from a proof of infeasibility; nan if the problem is feasible.

        .. math:: \frac{\|A^\top y + C^\top\mu\|}{\sum_{r:\, b_r > 0} y_r \|a_r\|}

        A value :math:`\rho` proves that every x with A x >= b is longer than 1/rho times the average of :math:`b_r/\|a_r\|`
        over the rows that y weighs. Up to 1e-14 (1e-13 with equalities or if x is a matrix) the problem counts as infeasible:
        rows are rounded differences, which cannot distinguish such a long x from none. The value is infinite if y has a
        negative entry or no weight on a positive lower bound.
        """
        if self.certificate is None:
            return float("nan")
        y, row_norms = self.certificate, _row_norms(self.rows)
        weight = np.sum(np.where(self.lower > 0.0, y * np.where(row_norms == 0.0, 1.0, row_norms), 0.0), axis=-1)
        valid = (weight > 0.0) & (y >= 0.0).all(axis=-1)
        residual = np.where(valid, length(self._combined(y)) / np.where(valid, weight, 1.0), np.inf)
        residual = np.where(np.isnan(y).any(axis=-1), np.nan, np.where(np.isnan(residual), np.inf, residual))
        return residual if self.is_batch else float(residual)

    def is_verified(self) -> Any:
        """Check that `kkt_residual`, per problem, is at most 1e-10, or at most the rounding floor (up to 1e-4) if rows nearly cancel.

        The bound is 1e-9 for ℓp, and 1e-8 for norms of matrices and your own norms.
        """
        if self.is_euclidean:
            return self.kkt_residual() <= np.clip(16.0 * self.rounding_floor(), KKT_RTOL, MAX_KKT_RTOL)
        residual, rtol = self.kkt_residual(), GAP_RTOL_BY_NORM.get(defining_class(self.norm), DEFAULT_GAP_RTOL)
        if np.all(residual <= rtol):
            return residual <= rtol
        return residual <= np.clip(16.0 * self.rounding_floor(), rtol, MAX_KKT_RTOL)

    @np.errstate(over="ignore", invalid="ignore", divide="ignore")
    def bracket(self) -> Bracket:
        r"""Bound the smallest norm :math:`\|x^*\|` from the stored problem, whichever solver found x.

        .. math:: \frac{b^\top\lambda}{\|A^\top\lambda + C^\top\mu\|_*} \le \|x^*\| \le \frac{\|x\|}{\min_{r:\, b_r > 0} a_r^\top x/b_r}

        The upper bound is infinite if x has the wrong sign on a row, or misses an equality. Up to 1e-12 ‖a_r‖₂ ‖x‖₂ counts as
        rounding, for equalities and for rows whose lower bound is at most that. The lower bound is zero if λ proves nothing;
        negative multipliers count as zero. Both bounds are infinite if the problem is infeasible, zero if it is trivial.
        """
        share = self._smallest_share()
        upper = np.where(share > 0.0, self._norms() / share, np.inf)
        multipliers = np.maximum(self.multipliers, 0.0)
        value = np.sum(self.lower * multipliers, axis=-1)
        dual = self._over_points(self._combined(multipliers), is_dual=True)
        lower = np.where(value > 0.0, value / dual, 0.0)
        infeasible = np.asarray(self.status == Status.INFEASIBLE)
        lower, upper = np.where(infeasible, np.inf, lower), np.where(infeasible, np.inf, upper)
        return Bracket(lower, upper) if self.is_batch else Bracket(float(lower), float(upper))

    def _smallest_share(self) -> FloatArray:
        """Compute the smallest a_r·x/b_r per problem: infinite if every lower bound is zero, not positive if x satisfies no
        multiple of b.
        """
        x, positive = self._flat, self.lower > 0.0
        size = length(x)[..., None]
        products = _apply(self.rows, x)
        rounding = ROUNDOFF_RTOL * _row_norms(self.rows) * size
        clear = positive & (products > rounding)
        shares = products / np.where(positive, self.lower, 1.0)
        smallest = np.min(np.where(clear, shares, np.inf), axis=-1, initial=np.inf, keepdims=True)
        asked = self.lower * np.where(np.isfinite(smallest), smallest, 0.0)
        within = (products >= -rounding) & (asked <= rounding) & (np.isfinite(smallest) | ~positive)
        rest = np.where(clear | within, np.inf, np.where(positive, shares, -np.inf))
        share = np.minimum(smallest[..., 0], np.min(rest, axis=-1, initial=np.inf))
        if self.equalities is not None:
            allowed = ROUNDOFF_RTOL * _row_norms(self.equalities) * size
            share = np.where((np.abs(_apply(self.equalities, x)) <= allowed).all(axis=-1), share, -np.inf)
        return np.where(np.isnan(size[..., 0]), np.nan, share)

    def _bracket_residual(self) -> Any:
        """Compute the gap of the bracket plus the largest violation, per problem; nan if it is infeasible."""
        x, norm = self._flat, self._norms()
        scale = np.where(norm == 0.0, 1.0, norm)[..., None]
        violations = [
            np.maximum(self.lower - _apply(self.rows, x), 0.0) / scale / _nonzero(self._dual_row_norms(self.rows))
        ]
        if self.equalities is not None:
            planes = _nonzero(self._dual_row_norms(self.equalities))
            violations.append(np.abs(_apply(self.equalities, x)) / scale / planes)
        worst = np.max(np.concatenate(violations, axis=-1), axis=-1, initial=0.0) + self.bracket().gap
        worst = np.where(np.isnan(norm), np.nan, np.where(np.isnan(worst), np.inf, worst))
        return worst if self.is_batch else float(worst)

    # ---- how solvers fill it in

    @classmethod
    def empty(cls, rows: Any, equalities: Any = None, **fields: Any) -> Self:
        """Make the solution x = 0 for `BilinearRows` with lower bounds of one: correct if there are no rows, and the start of solvers."""
        n, x = len(rows), np.zeros((rows.X.shape[1], rows.Q.shape[1]))
        mu = None if equalities is None else np.zeros(len(equalities))
        inactive = np.zeros(n, dtype=bool)
        return cls(
            rows, np.ones(n), equalities, x, Status.TRIVIAL, np.zeros(n), mu, inactive, None, rows.triples, **fields
        )

    def from_multipliers(
        self, multipliers: FloatArray, mu: FloatArray | None = None, x: FloatArray | None = None
    ) -> Self:
        """Make the refined solution of one problem from its multipliers, and from x if it is known more accurately.

        Its status is OPTIMAL if its own residual confirms it, else INACCURATE.
        """
        unsolved = replace(self, multipliers=multipliers, equality_multipliers=mu, status=Status.INACCURATE)
        x = unsolved._combined(multipliers) if x is None else x
        solution = refined(replace(unsolved, x=x.reshape(self.x.shape)))
        slack = _apply(self.rows, solution._flat) - self.lower
        rounding = ROUNDOFF_RTOL * float(length(solution._flat)) * _row_norms(self.rows)
        active = (slack <= ACTIVE_SLACK_RTOL * self.lower + rounding) | (multipliers > 0.0)
        return replace(solution, active=active, status=Status.OPTIMAL if solution.is_verified() else Status.INACCURATE)

    @np.errstate(over="ignore", invalid="ignore", divide="ignore")
    def in_norm(self, norm: Norm, x: FloatArray, multipliers: FloatArray, mu: FloatArray | None = None) -> Self:
        """Make the solution of the same problem, or batch, in another norm from x (…, d) and multipliers of any scale.

        x is scaled until its tightest row holds with equality, and the multipliers until Aᵀλ + Cᵀμ has the dual norm ‖x‖. The
        status is OPTIMAL if the gap of its own bracket confirms it, else INACCURATE; infeasible and trivial problems remain so.
        """
        solved = np.asarray((self.status != Status.INFEASIBLE) & (self.status != Status.TRIVIAL))
        solution = replace(self, norm=norm, x=x.reshape(self.x.shape), multipliers=multipliers, equality_multipliers=mu)
        share, size = solution._smallest_share(), solution._norms()
        dual = solution._over_points(solution._combined(multipliers), is_dual=True)
        scale = np.where(solved & (share > 0.0) & (share < np.inf), share, 1.0)
        factor = np.where(solved & (dual > 0.0), size / scale / _nonzero(dual), 1.0)[..., None]
        flat, weights = x / scale[..., None], multipliers * factor
        row_norms = _row_norms(self.rows)
        slack = _apply(self.rows, flat) - self.lower
        near = slack <= ACTIVE_SLACK_RTOL * self.lower + ROUNDOFF_RTOL * length(flat)[..., None] * row_norms
        solution = replace(
            solution,
            x=flat.reshape(self.x.shape),
            multipliers=weights,
            equality_multipliers=None if mu is None else mu * factor,
            active=np.where(solved[..., None], (row_norms > 0.0) & (near | (weights > 0.0)), self.active),
        )
        # The gap of the bracket, up to rounding.
        gap = size / share * dual / np.sum(self.lower * multipliers, axis=-1) - 1.0
        proved = ~solved | ((share > 0.0) & (gap <= 0.5 * GAP_RTOL_BY_NORM.get(defining_class(norm), DEFAULT_GAP_RTOL)))
        if not proved.all():
            proved = np.asarray(solution.is_verified())
        verdict = np.where(proved, np.array(Status.OPTIMAL), np.array(Status.INACCURATE))
        status = np.where(solved, verdict, np.asarray(self.status))
        return replace(solution, status=status if self.is_batch else status.item())

    def from_certificate(self, y: FloatArray, mu: FloatArray | None = None) -> Self:
        """Make the solution of one problem refuted by a Farkas vector: INFEASIBLE if its own residual confirms it, else INACCURATE."""
        x, multipliers = np.full_like(self.x, np.nan), np.full_like(y, np.nan)
        return replace(
            self, x=x, multipliers=multipliers, equality_multipliers=mu, certificate=y, status=Status.INFEASIBLE
        ).with_verified_status()

    def with_verified_status(self) -> Self:
        """Return the solution with a status that claims a proof only if its own residual confirms it."""
        lost = np.where(
            self.status == Status.INFEASIBLE,
            ~np.asarray(self.certificate_residual() <= CERTIFICATE_RTOL),
            (self.status == Status.OPTIMAL) & ~np.asarray(self.is_verified()),
        )
        if not self.is_batch:
            return replace(self, status=Status.INACCURATE) if lost else self
        status = self.status.copy()
        status[lost] = Status.INACCURATE
        return replace(self, status=status)

    @property
    def _flat(self) -> FloatArray:
        """Return x with all unknowns in one axis, (…, d)."""
        return self.x.reshape(*self.lower.shape[:-1], -1)

    def _norms(self) -> FloatArray:
        """Compute ‖x‖ per problem."""
        return length(self._flat) if self.is_euclidean else self._over_points(self._flat, is_dual=False)

    def _over_points(self, points: FloatArray, *, is_dual: bool) -> FloatArray:
        """Compute the norm, or the dual norm, of points (…, d) in the shape of x; nan for a point that is not finite."""
        norm: Any = self.norm
        kind = defining_class(norm)
        if kind in (L1, L2, LInf, Lp):
            return power_norms(points, _dual_power(norm.power) if is_dual else norm.power)
        function = norm.dual if is_dual else norm.value
        shape = self.x.shape[self.lower.ndim - 1 :]
        if kind in (Spectral, Nuclear):
            finite = np.asarray(np.isfinite(points).all(axis=-1))
            matrices = np.where(finite[..., None], points, 0.0).reshape(*points.shape[:-1], *shape)
            singular: FloatArray = np.linalg.svd(matrices, compute_uv=False)
            sums = singular.sum(axis=-1) if (kind is Nuclear) != is_dual else singular.max(axis=-1, initial=0.0)
            return np.where(finite, sums, np.nan)
        flat = points.reshape(-1, points.shape[-1])
        values = [function(point.reshape(shape)) if np.isfinite(point).all() else np.nan for point in flat]
        return np.array(values, dtype=np.float64).reshape(points.shape[:-1])

    def _dual_row_norms(self, rows: FloatArray | BilinearRows) -> FloatArray:
        """Compute the dual norms of the rows, (…, n_rows); for norms of matrices the Frobenius norm, which equals the dual norm
        for rows of rank one.
        """
        if self.is_euclidean or getattr(self.norm, "needs_matrix", False):
            return _row_norms(rows)
        return self._over_points(np.asarray(rows), is_dual=True)

    def _norm_words(self) -> str:
        """Return what `repr` says about a norm other than the Euclidean one, and about several shortest vectors."""
        if self.is_euclidean:
            return ""
        several = not self.is_batch and self.is_unique is False
        return f", norm={self.norm!r}{', not unique' if several else ''}"

    def _combined(self, weights: FloatArray) -> FloatArray:
        """Compute Aᵀ weights + Cᵀ mu, (…, d)."""
        combined = _combine(self.rows, weights)
        if self.equalities is not None and self.equality_multipliers is not None:
            combined = combined + _combine(self.equalities, self.equality_multipliers)
        return combined


def has_unique_minimum(solution: MarginSolution) -> bool | None:
    """Return whether the x of one feasible problem is the only one of its norm; None if that is not decided."""
    kind = defining_class(solution.norm)
    if kind in (L2, Lp) or solution.status is Status.TRIVIAL:
        return True
    if kind not in (L1, LInf) or solution.status is not Status.OPTIMAL:
        return None
    rows, norms = np.asarray(solution.rows), _row_norms(solution.rows)
    face = OptimalFace(
        rows / _nonzero(norms)[:, None],
        np.zeros((0, rows.shape[1])) if solution.equalities is None else np.asarray(solution.equalities),
        solution.active,
        solution.multipliers * norms,
        solution.x.reshape(-1),
        solution._combined(solution.multipliers),
    )
    return is_only_solution(face, is_l1=kind is L1)


_Solution = TypeVar("_Solution", bound=MarginSolution)


def refined(solution: _Solution) -> _Solution:
    r"""Refine the solution of one problem: correct x by the rows that it should satisfy with equality.

    .. math:: x \leftarrow x + \arg\min_z \{\|z\| : a_r^\top (x + z) = b_r\ (\lambda_r > 0),\ C (x + z) = 0\}

    If rows nearly cancel, x = Aᵀλ in double precision misses the active rows by rounding errors, which the multipliers amplify
    once more in complementarity; the rows themselves determine x far better. The multipliers stay. Of the first x and up to
    three corrected ones, the one with the smallest `kkt_residual` is returned, so refinement never makes a solution worse.
    """
    best, residual = solution, solution.kkt_residual()
    for _ in range(_MAX_REFINEMENTS):
        if not _ACCURATE_RTOL < residual < np.inf:
            break
        moved = replace(best, x=best.x + _correction(best).reshape(best.x.shape))
        moved_residual = moved.kkt_residual()
        if not moved_residual < residual:
            break
        best, residual = moved, moved_residual
    return best


def _correction(solution: MarginSolution) -> FloatArray:
    """Find the shortest z (d,) that closes the gaps of the rows with a multiplier and of the equalities, or comes closest to it."""
    support = np.flatnonzero(solution.multipliers > 0.0)
    blocks: list[Any] = [
        solution.rows[support] if isinstance(solution.rows, np.ndarray) else solution.rows.take(support)
    ]
    goal = solution.lower[support]
    if solution.equalities is not None:
        blocks.append(solution.equalities)
        goal = np.concatenate([goal, np.zeros(len(solution.equalities))])
    norms = np.concatenate([_row_norms(block) for block in blocks])
    unit, x = np.where(norms == 0.0, 1.0, norms), solution.x.reshape(-1)

    def apply(z: FloatArray) -> FloatArray:
        return np.concatenate([_apply(block, z.reshape(-1)) for block in blocks]) / unit

    def combine(weights: FloatArray) -> FloatArray:
        parts = np.split(weights / unit, [len(blocks[0])])
        return sum((_combine(block, part) for block, part in zip(blocks, parts, strict=False)), np.zeros(len(x)))

    gaps = goal / unit - apply(x)
    n, width = len(gaps), len(x)
    if n * width * min(n, width) <= MAX_DIRECT_OPERATIONS:
        formed = np.concatenate([np.asarray(block).reshape(-1, width) for block in blocks]) / unit[:, None]
        return np.asarray(np.linalg.lstsq(formed, gaps)[0], dtype=np.float64)
    operator = scipy.sparse.linalg.LinearOperator((n, width), matvec=apply, rmatvec=combine, dtype=np.float64)
    return np.asarray(
        scipy.sparse.linalg.lsmr(operator, gaps, atol=0.0, btol=_LSMR_RTOL, conlim=0.0, maxiter=_MAX_LSMR)[0]
    )


def _apply(rows: FloatArray | BilinearRows, x: FloatArray) -> FloatArray:
    """Compute the inner products (…, n_rows) of the rows with x (…, d)."""
    return np.matmul(rows, x[..., None])[..., 0] if isinstance(rows, np.ndarray) else rows.apply(x)


def _combine(rows: FloatArray | BilinearRows, weights: FloatArray) -> FloatArray:
    """Compute the sum (…, d) of the rows times weights (…, n_rows)."""
    if isinstance(rows, np.ndarray):
        return np.matmul(np.swapaxes(rows, -1, -2), weights[..., None])[..., 0]
    return rows.combine(weights).reshape(-1)


def _dual_power(power: float) -> float:
    """Return q with 1/p + 1/q = 1."""
    if power == 1.0:
        return np.inf
    return 1.0 if power == np.inf else power / (power - 1.0)


def power_norms(points: FloatArray, power: float) -> FloatArray:
    """Compute the ℓp norms of points (…, d), for p from one to infinity, without intermediate overflow or underflow."""
    if power == 2.0:
        return length(points)
    sizes = np.abs(points)
    largest = np.max(sizes, axis=-1, initial=0.0)
    if power == np.inf:
        return largest
    scale = np.where((largest == 0.0) | ~np.isfinite(largest), 1.0, largest)
    return scale * np.sum((sizes / scale[..., None]) ** power, axis=-1) ** (1.0 / power)


def _nonzero(values: FloatArray) -> FloatArray:
    """Replace zeros by one."""
    return np.where(values == 0.0, 1.0, values)


def _row_norms(rows: FloatArray | BilinearRows) -> FloatArray:
    """Compute the norms (…, n_rows)."""
    return length(rows) if isinstance(rows, np.ndarray) else rows.row_norms
