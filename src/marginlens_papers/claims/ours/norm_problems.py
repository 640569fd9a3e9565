"""Problems, optimizers and checks for the claims about X Theorem 4: steepest descent in five norms on p and on W."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

import marginlens as ml
from marginlens.data.counter_based import sphere_problems
from marginlens.norms import Norm
from marginlens.optimizers import Optimizer
from marginlens.risk import AttentionRisk, MatrixRisk
from marginlens.theory import SteepestCertificate
from marginlens.theory.any_norm import SteepestSteps, plan_for, rows_of
from marginlens.theory.scored_tokens import ScoredTokens
from marginlens.typing import FloatArray, IntArray

SEED = 71
SIZES = ((1, 3, 2), (2, 4, 3), (3, 5, 10), (4, 6, 90))  # n, T, d
D_QUERY = 3  # rows of W
ROUNDING = 1e-9  # of a run, relative to what it is compared with


class Rule(NamedTuple):
    """Steepest descent in a norm.

    Attributes:
        norm: the norm.
        on_matrices: whether W is trained, with a query for each input, instead of p.
    """

    norm: Norm
    on_matrices: bool = False

    def make(self, size: float, momentum: float = 0.0) -> Optimizer:
        """Make the optimizer for a length of steps: sign descent, coordinate descent and Muon are those of ℓ∞, ℓ1 and spectral norm."""
        return ml.SteepestDescent(self.norm, size, momentum)


RULES = {
    "sign": Rule(ml.LInf()),
    "coordinate": Rule(ml.L1()),
    "ℓ3": Rule(ml.Lp(3.0)),
    "Muon": Rule(ml.Spectral(), on_matrices=True),
    "max-row": Rule(ml.MaxRow(), on_matrices=True),
}


class Trained(NamedTuple):
    """One problem: what is trained, and its rows as those of vectors."""

    risk: AttentionRisk | MatrixRisk
    problem: ScoredTokens
    shape: tuple[int, ...]


def drawn(
    rule: Rule, n_problems: int, size: tuple[int, int, int], cell: int, *, first: int = 0, seed: int = SEED
) -> Iterator[Trained]:
    """Draw problems of one size, from the one with the number `first` on."""
    data, heads = sphere_problems(first, first + n_problems, *size, seed, cell)
    queries = np.random.default_rng([seed, cell, first]).standard_normal((n_problems, size[0], D_QUERY))
    for j, query in enumerate(queries):
        yield trained_on(rule, data[j], heads[j], query)


def trained_on(rule: Rule, data: ml.TokenDataset, head: FloatArray, query: FloatArray) -> Trained:
    """Make what a rule trains on one problem: p, or W with a query (n_inputs, D_QUERY) for each input."""
    risk = AttentionRisk(data, head)
    if not rule.on_matrices:
        return Trained(risk, ScoredTokens.of_risk(risk), (data.d_model,))
    keys = query[:, None, :, None] * data.X[:, :, None, :]
    wide = data.with_keys(keys.reshape(*data.X.shape[:2], -1))
    return Trained(risk.as_matrix(query), ScoredTokens(wide, head), (D_QUERY, data.d_model))


class Geometry(NamedTuple):
    """γ, D₂ and D of the rows of a selection in a norm; zeros if nothing selects it."""

    margin: float
    widest: float
    longest: float


def geometry(trained: Trained, norm: Norm, selected: IntArray, of_margin: bool) -> Geometry:
    """Compute γ, D₂ and D, of the rows that lead in the proof for short steps, or of all rows."""
    plan = plan_for(trained.problem, selected, SteepestSteps(norm, 1e-300, 0.0), trained.shape)
    a = plan.rows.a
    if of_margin or not plan.gamma > 0.0:
        return Geometry(plan.gamma, plan.widest, plan.longest)
    first, second = np.triu_indices(len(a), 1)
    apart = [norm.dual(row.reshape(trained.shape)) for row in a[first] - a[second]]
    return Geometry(plan.gamma, max(apart, default=0.0), plan.longest)


def contradicts(trained: Trained, proof: SteepestCertificate, point: FloatArray, end: FloatArray, more: int) -> bool:
    """Return whether steps from a proof's point select other tokens, lower the potential by less than it says, or exceed the bracket."""
    rows = rows_of(trained.problem, proof.selected)
    ahead = rows.a @ end.ravel()
    if (ahead <= 0.0).any():
        return True
    leads = (rows.tokens[:, None] == proof.leading).all(axis=-1).any(axis=-1)
    a, log_limits = rows.a[leads], rows.log_slope[leads] + np.log(rows.delta[leads])
    before, after = (float(logsumexp(log_limits - a @ x.ravel())) for x in (point, end))
    slow = after > before - proof.rate * proof.longest * more * (1.0 - ROUNDING)
    return bool(slow or ahead.min() > proof.high * proof.steepest_in.value(end) * (1.0 + ROUNDING))
