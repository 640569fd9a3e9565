"""Which selections are locally and globally optimal, and which tokens stand in their way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from marginlens.data.tokens import BoolArray, FloatArray, IntArray, TokenDataset, as_dataset
from marginlens.directions import as_scalar, length
from marginlens.papers import implements
from marginlens.svm import MarginSolution, Status, att_svm
from marginlens.theory.problem import score_differences

NEIGHBOUR_TOLERANCE = (
    1e-12  # slack of a constraint, relative to the terms that were summed for it, that rounding alone can leave
)
SOLVER_SLACK_RTOL = 1e-9  # slack, relative to ‖k_α - k_t‖ ‖p‖, below which the p of the solver does not yet decide
_RANK_RTOL = 1e-12  # singular values of unit rows, relative to the largest, below which the rows count as dependent


@dataclass(frozen=True, repr=False, eq=False)
class TokenOptimality:
    """What a selection α amounts to; for a batch every field has a leading batch axis.

    Attributes:
        solution: the ATT-SVM of α. selected: α, (…, n_inputs).
        neighbours: (…, n_inputs, n_tokens) the SVM-neighbours, tokens whose constraint is tight whatever its multiplier.
        score_gap: (…) the smallest γ_α - γ_t over neighbours t: inf where there is none, nan where α is infeasible.
        is_feasible: (…) whether some p selects α.
        is_locally_optimal: (…) whether α is feasible and scores above all its neighbours.
        is_globally_optimal: (…) whether α is feasible and attains the highest score of every input.
        optimum_is_unique: (…) whether the highest score of every input belongs to one token; a fact about data and head.
    """

    solution: MarginSolution
    selected: IntArray
    neighbours: BoolArray
    score_gap: Any
    is_feasible: Any
    is_locally_optimal: Any
    is_globally_optimal: Any
    optimum_is_unique: Any

    @property
    def direction(self) -> FloatArray:
        """p^mm/‖p^mm‖, (…, d_key); nan where α is infeasible, zero where there is nothing to separate."""
        return self.solution.direction

    @property
    def margin(self) -> Any:
        """1/‖p^mm‖ per problem."""
        return self.solution.margin

    def __repr__(self) -> str:
        if self.selected.ndim == 1:
            kind = "globally" if self.is_globally_optimal else "locally" if self.is_locally_optimal else "not"
            kind = f"{kind} optimal" if self.is_feasible else "infeasible"
            return f"TokenOptimality({self.selected.tolist()}, {kind}, score_gap={self.score_gap:.4g}, margin={self.margin:.4g})"
        counts = [int(np.sum(x)) for x in (self.is_feasible, self.is_locally_optimal, self.is_globally_optimal)]
        return f"TokenOptimality({len(self.selected)} problems: {counts[0]} feasible, {counts[1]} locally, {counts[2]} globally optimal)"


@implements("A", "Def 2")
def token_optimality(data: TokenDataset, v: Any, selected: Any) -> TokenOptimality:
    r"""Whether the selected tokens are locally or globally optimal, with the neighbours and the score gap that decide it.

    .. math:: \mathcal T_i = \{t : (k_{i\alpha_i} - k_{it})^\top p^{mm}(\alpha) = 1\}, \qquad
        \alpha \text{ is locally optimal} \iff \gamma_{i\alpha_i} > \gamma_{it} \ \forall t \in \mathcal T_i

    Args:
        data: one problem or a batch. v: head (d_model,) or (batch, d_model).
        selected: (n_inputs,) or (batch, n_inputs): the token index alpha_i of each input.
    Returns:
        A `TokenOptimality`. `solution.kkt_residual()` checks the margin behind it, `solution.certificate_residual()` a
        claim of infeasibility.
    """
    solution = att_svm(as_dataset(data), selected)
    alpha = data.selection(selected)
    difference, other = score_differences(data, v, alpha)
    neighbours = _tight(data, solution)
    feasible = np.array([one in (Status.OPTIMAL, Status.TRIVIAL) for one in np.atleast_1d(solution.status)])
    feasible = feasible.reshape(data.batch_shape)
    gap = np.min(np.where(neighbours, difference, np.inf), axis=(-2, -1))
    return TokenOptimality(
        solution=solution,
        selected=alpha,
        neighbours=neighbours,
        score_gap=as_scalar(np.where(feasible, gap, np.nan)),
        is_feasible=as_scalar(feasible),
        is_locally_optimal=as_scalar(feasible & (gap > 0.0)),
        is_globally_optimal=as_scalar(feasible & np.all(~other | (difference >= 0.0), axis=(-2, -1))),
        optimum_is_unique=as_scalar(_unique_optimum(data, v)),
    )


@implements("A", "Def 1")
def globally_optimal_direction(data: TokenDataset, v: Any) -> TokenOptimality:
    r"""The globally optimal max-margin (GMM) direction, whether it exists, and whether the optimal tokens are unique.

    .. math:: p^{mm\star} = p^{mm}(\mathrm{opt}), \qquad \mathrm{opt}_i \in \arg\max_t \gamma_{it}

    Args:
        data: one problem or a batch. v: head (d_model,) or (batch, d_model).
    Returns:
        The optimality of opt, the first token where several tie: `direction` is the GMM direction, `is_feasible` says
        whether it exists, `optimum_is_unique` whether another choice of opt could give another one.
    """
    return token_optimality(data, v, as_dataset(data).optimal(v))


def _tight(data: TokenDataset, solution: MarginSolution) -> BoolArray:
    """Tokens whose constraint holds with equality, (…, n_inputs, n_tokens).

    A slack is rounding where it is small beside the terms :math:`(|k_{\\alpha j}| + |k_{tj}|)\\,|p_j|` that were summed for it. Where the
    other token is far away the error of p itself may leave more; such slacks are computed again, with what they inherit from p.
    """
    slack = np.matmul(solution.rows, solution.x[..., None])[..., 0] - solution.floor
    pairs = np.asarray(solution.pairs)
    real = pairs[..., 0] >= 0
    keys = np.abs(data.K)
    terms = np.einsum("...itd,...d->...it", keys, np.abs(solution.x))
    tight = real & (slack <= NEIGHBOUR_TOLERANCE * _at_pair(terms, pairs))  # false where x is nan
    doubtful = real & ~tight & (slack <= SOLVER_SLACK_RTOL * length(solution.rows) * length(solution.x)[..., None])
    for j in np.argwhere(doubtful.any(axis=-1)):
        problem = tuple(j)
        entries = _at_pair(np.moveaxis(keys[problem], -1, 0), pairs[(*problem, None)]).T
        one = solution[int(j[0])] if solution.is_batch else solution
        tight[problem] |= _tight_after_refinement(one, entries, doubtful[problem])
    neighbours = np.zeros(data.mask.shape, dtype=np.bool_)
    where = np.nonzero(tight)
    neighbours[(*where[:-1], pairs[where][:, 0], pairs[where][:, 2])] = True
    return neighbours


def _at_pair(values: FloatArray, pairs: IntArray) -> FloatArray:
    """The sum of `values`, (…, n_inputs, n_tokens), over the two tokens of each pair, (…, n_pairs); anything for padding."""
    named = np.maximum(pairs, 0)
    first = named[..., 0] * values.shape[-1]  # where the tokens of an input begin
    flat = values.reshape(*values.shape[:-2], -1)
    selected, other = (np.take_along_axis(flat, first + named[..., k], axis=-1) for k in (1, 2))
    return np.asarray(selected + other)


def _tight_after_refinement(solution: MarginSolution, entries: FloatArray, doubtful: BoolArray) -> BoolArray:
    r"""Which doubtful rows of one problem are tight at the p that solves the active equations to rounding, (n_rows,).

    Rounding every key by a relative ε moves the slack of row t by at most ε times

    .. math:: e_t^\top |p| + \sum_{r \in S} |c_r|\, e_r^\top |p| + \sum_{r \in S} \lambda_r\, e_r^\top |a_t^\perp|,
        \qquad a_t = \sum_{r \in S} c_r a_r + a_t^\perp

    where S are the rows with a positive multiplier and e_r = \|k_α\| + \|k_t\|, entry by entry, is `entries`, (n_rows, d_key).
    """
    fallback = doubtful.copy()
    support = solution.multipliers > 0.0
    rows, size = solution.rows[support], length(solution.rows[support])[:, None]
    if solution.status is not Status.OPTIMAL or not support.any():
        return fallback
    left, scales, right = np.linalg.svd(rows / size, full_matrices=False)
    if scales[-1] <= _RANK_RTOL * scales[0]:
        return fallback
    inverse = (right.T / scales) @ left.T / size.T  # (d_key, n_support), of the rows as they are
    p = inverse @ solution.floor[support]
    p = p + inverse @ (solution.floor[support] - rows @ p)
    if length(p - solution.x) > SOLVER_SLACK_RTOL * length(p):
        return fallback
    target = solution.rows[doubtful]
    coefficients = target @ inverse  # (n_doubtful, n_support)
    across = target - coefficients @ rows
    inherited = np.abs(coefficients) @ (entries[support] @ np.abs(p))
    turned = np.abs(across) @ (solution.multipliers[support] @ entries[support])
    allowed = NEIGHBOUR_TOLERANCE * (entries[doubtful] @ np.abs(p) + inherited + turned)
    tight = np.zeros_like(doubtful)
    tight[doubtful] = target @ p - solution.floor[doubtful] <= allowed
    return tight


def _unique_optimum(data: TokenDataset, v: Any) -> Any:
    """Whether no other token ties with the highest score of its input, (…)."""
    difference, other = score_differences(data, v, data.optimal(v))
    return np.all(~other | (difference > 0.0), axis=(-2, -1))
