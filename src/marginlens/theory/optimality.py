"""Which selections are locally and globally optimal, and which tokens stand in their way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from marginlens.data.tokens import BoolArray, FloatArray, IntArray, TokenDataset, as_dataset
from marginlens.directions import length
from marginlens.papers import implements
from marginlens.svm import MarginSolution, Status, att_svm
from marginlens.theory.problem import plain, score_differences

NEIGHBOUR_TOLERANCE = 1e-9  # slack of a constraint, relative to ‖k_α - k_t‖ ‖p‖, up to which it counts as tight


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
        score_gap=plain(np.where(feasible, gap, np.nan)),
        is_feasible=plain(feasible),
        is_locally_optimal=plain(feasible & (gap > 0.0)),
        is_globally_optimal=plain(feasible & np.all(~other | (difference >= 0.0), axis=(-2, -1))),
        optimum_is_unique=plain(_unique_optimum(data, v)),
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
    """Tokens whose constraint holds with equality, (…, n_inputs, n_tokens)."""
    slack = np.matmul(solution.rows, solution.x[..., None])[..., 0] - solution.floor
    room = length(solution.rows) * length(solution.x)[..., None]
    tight = slack <= NEIGHBOUR_TOLERANCE * room  # false where x is nan
    pairs = np.asarray(solution.pairs)
    neighbours = np.zeros(data.mask.shape, dtype=np.bool_)
    where = np.nonzero(tight & (pairs[..., 0] >= 0))
    neighbours[(*where[:-1], pairs[where][:, 0], pairs[where][:, 2])] = True
    return neighbours


def _unique_optimum(data: TokenDataset, v: Any) -> Any:
    """Whether no other token ties with the highest score of its input, (…)."""
    difference, other = score_differences(data, v, data.optimal(v))
    return np.all(~other | (difference > 0.0), axis=(-2, -1))
