"""The finite part of a next-token decoder on fixed contexts: log-odds of the tokens that follow, and what cross-entropy can fall to."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy

from marginlens.data.contexts import ContextDataset, as_contexts
from marginlens.graphs.subspace import CyclicSubspace
from marginlens.losses.next_token import LogLoss
from marginlens.nexttoken.cyclic_minimum import minimise
from marginlens.nexttoken.cyclic_risk import CyclicRisk
from marginlens.papers import implements
from marginlens.result import Result
from marginlens.runtime.threads import single_blas_thread
from marginlens.status import Status
from marginlens.typing import FloatArray, IntArray

MAX_BASIS_ENTRIES = (
    4_000_000  # up to so many numbers of generators, a basis of F is found by a singular value decomposition
)
COMPATIBLE_RTOL = 1e-9  # what the log-odds may miss, relative to one and the largest of them, where some W has them all
_SINGULAR_RTOL = 1e-10  # singular values of generators of unit length below this share of the largest count as zero
_GRADIENT_ATOL = 1e-10  # at which a minimum counts as found, for embeddings of length one


@dataclass(frozen=True, repr=False, eq=False)
class SupportSubspace(CyclicSubspace):
    r"""The data subspace F: what tells tokens that follow the same context apart. It is S_cyc with supports for components.

    .. math:: \mathcal F = \mathrm{span}\{(e_z - e_{z'})\,h_j^\top :\ z, z' \in \mathcal S_j\}

    Attributes:
        E: (0, n_vocabulary); tokens are unit vectors, whose table is not formed.
        queries: the contexts with several tokens.
        ends: (n_queries, d_model) their embeddings.
        tokens, columns, groups: as of `CyclicSubspace`, with contexts for last tokens.
    """

    ends: FloatArray = field(default_factory=lambda: np.zeros((0, 1)))
    scales = None
    independent = False
    factor = None
    _near = None
    quantities = "{n_groups} contexts with several tokens, {n_generators} generators, W is {shape!s}"

    @property
    def shape(self) -> tuple[int, int]:
        """That of W: (n_vocabulary, d_model)."""
        return self.E.shape[1], self.ends.shape[1]

    @property
    def reach(self) -> float:
        """The most by which a W of norm one moves a logit."""
        return float(np.linalg.norm(self.ends, axis=1).max(initial=0.0)) or 1.0

    @cached_property
    def rank(self) -> int:
        """The dimension of F, where a basis is quickly found; else how many generators it has."""
        return len(self._reduced[0]) if self._spanned else self.n_generators

    @property
    def _spanned(self) -> bool:
        return self.n_generators * len(np.unique(self.tokens)) * self.ends.shape[1] <= MAX_BASIS_ENTRIES

    def cells(self, W: FloatArray) -> FloatArray:
        """(…, n_cells) the logits e_zᵀ W h_j of each cell."""
        return np.asarray(np.einsum("...cd,cd->...c", W[..., self.tokens, :], self.ends[self.columns]))

    def lift(self, values: FloatArray) -> FloatArray:
        """(n_vocabulary, d_model) Σ values[c] e_z h_jᵀ over the cells."""
        cells = (values, (self.tokens, self.columns))
        return np.asarray(scipy.sparse.csr_array(cells, shape=(self.shape[0], len(self.queries))) @ self.ends)

    def table_basis(self) -> FloatArray:
        """(n_cells, rank) the centred logits of each basis matrix."""
        return np.ascontiguousarray(self.centre(self.cells(self.basis)).T)

    @cached_property
    def _reduced(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """An orthonormal basis (rank, r·d_model) over the r tokens in use, the table of these (n_vocabulary, r), and the identity."""
        used, place = np.unique(self.tokens, return_inverse=True)
        d = self.ends.shape[1]
        h = self.ends[self.columns[self.free]]
        unit = h / np.maximum(np.linalg.norm(h, axis=1, keepdims=True), np.finfo(float).tiny)
        generators = np.zeros((self.n_generators, len(used), d))
        rows = np.arange(self.n_generators)
        generators[rows, place.reshape(-1)[self.free]] = unit
        generators[rows, place.reshape(-1)[self.first]] = -unit
        _, values, right = np.linalg.svd(generators.reshape(self.n_generators, -1), full_matrices=False)
        inside = values > _SINGULAR_RTOL * values.max(initial=0.0)
        return right[inside], np.eye(self.shape[0])[:, used], np.eye(d)


@implements("G", "Eq. (5)")
def support_subspace(data: ContextDataset) -> SupportSubspace:
    """The subspace F of decoders W that tells tokens apart which follow the same context; `project(W)` is the part of W in it."""
    several = np.flatnonzero(as_contexts(data).sizes > 1)
    kept = np.isin(data.context, several)
    column = np.searchsorted(several, data.context[kept])
    chosen = data.H[several]
    ends = chosen.toarray() if scipy.sparse.issparse(chosen) else chosen
    return SupportSubspace(np.empty((0, data.n_vocabulary)), several, data.token[kept], column, column, ends)


class _Supports(NamedTuple):
    """What `CyclicRisk` asks of its samples: here one for each context with several tokens."""

    offsets: IntArray
    share: FloatArray
    labels: IntArray
    log_counts: FloatArray


class SupportRisk(CyclicRisk):
    r"""The cross-entropy of contexts with several tokens among these alone, as a function of their logits.

    .. math:: \mathcal L_{\mathcal F}(M) = -\sum_{j:\, |\mathcal S_j| > 1} \hat\pi_j \sum_{z \in \mathcal S_j} \hat p_{jz}
        \log \frac{e^{M_{zj}}}{\sum_{z' \in \mathcal S_j} e^{M_{z'j}}}
    """

    power = 0
    scores = None
    is_likelihood = True

    def __init__(self, data: ContextDataset, space: SupportSubspace) -> None:
        self.space, self.loss = space, LogLoss()
        self.sample, self.cell = space.columns, np.arange(len(space.columns))
        self.probability = data.probability[np.isin(data.context, space.queries)]
        offsets = np.append(np.searchsorted(space.columns, np.arange(len(space.queries))), len(space.columns))
        supports = _Supports(offsets, data.share[space.queries], space.queries, np.zeros(len(space.columns)))
        self.problem = supports  # type: ignore[assignment]

    def _likelihood(self, logits: FloatArray, s: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Losses -Σ p log s, and slopes s - p."""
        starts = self.problem.offsets[:-1]
        total = np.repeat(np.logaddexp.reduceat(logits, starts), np.diff(self.problem.offsets))
        return np.add.reduceat(self.probability * (total - logits), starts), s - self.probability


@dataclass(frozen=True, repr=False, eq=False)
class FinitePart(Result):
    r"""W* with what checks it, and the cross-entropy that decoders of these data can fall to.

    Attributes:
        data: the problem.
        subspace: F.
        x: (n_vocabulary, d_model) W*, in F; zero where no context has several tokens.
        compatible: whether W* gives tokens that follow a context exactly their log-odds (Def 1).
        misfit: the largest difference between a logit gap of the best fit and its log-odds.
        certificate: (n_cells of F,) where the data are not compatible, weights y that add up to zero in each context, with
            :math:`\sum_c y_c\, e_z h_j^\top = 0` and :math:`\sum_c y_c \log \hat p_c > 0`: no W has the log-odds. None elsewhere.
        infimum: the cross-entropy at W* among the tokens that follow: the entropy where the data are compatible, more elsewhere.
            It bounds the cross-entropy of every W from below, and separable data come as close to it as you like.
        gradient_norm: of that cross-entropy at x, over ‖h‖ at most.
        status: FINITE, TRIVIAL where F is zero, or INACCURATE.
    """

    data: ContextDataset = field(repr=False)
    subspace: SupportSubspace = field(repr=False)
    x: FloatArray
    compatible: bool
    misfit: float
    certificate: FloatArray | None
    infimum: float
    gradient_norm: float
    status: Status
    quantities = "{status.name}, norm={x:norm}, {compatible:compatible|not compatible}, infimum={infimum:.6g}"

    def distance(self, W: FloatArray) -> float:
        """‖P_F(W) - W*‖, which training brings to zero."""
        return float(np.linalg.norm(self.subspace.project(W) - self.x))

    def certificate_residual(self) -> float:
        """How far the certificate is from a proof: ‖Σ y e_z hᵀ‖ over ‖h‖ times Σ y log p, for y of norm one; nan where there is none."""
        if self.certificate is None:
            return float("nan")
        y = self.certificate / np.linalg.norm(self.certificate)
        logs = np.log(self.data.probability[np.isin(self.data.context, self.subspace.queries)])
        return float(np.linalg.norm(self.subspace.lift(y))) / (self.subspace.reach * float(y @ logs))


@implements("G", "Def 1", "Eq. (4)")
@implements("X", "G1")
def finite_part(data: ContextDataset) -> FinitePart:
    r"""The part of a trained decoder that stays finite: log-odds of tokens that follow a context, on the subspace F.

    .. math:: W^\star \in \mathcal F: \quad (e_z - e_{z'})^\top W^\star h_j = \log(\hat p_{jz} / \hat p_{jz'}), \quad z, z' \in \mathcal S_j

    Where no W has all these differences, it is the minimiser over F of the cross-entropy among the tokens that follow. That one is always
    finite and the only one: every token of a support has a positive probability, and logits determine W on F. No cross-entropy of a W is
    below its value, and where the data are separable W* + γ W^mm comes as close to it as you like.

    Returns:
        A `FinitePart` with W* in `.x`. Check it by `.misfit` or `.gradient_norm`, and that data are not compatible by
        `.certificate_residual()`.
    """
    space = support_subspace(data)
    if not space.n_generators:
        nothing = np.zeros(data.shape)
        return FinitePart(data, space, nothing, True, 0.0, None, data.entropy, 0.0, Status.TRIVIAL)
    risk = SupportRisk(data, space)
    goal = space.centre(np.log(risk.probability))
    with single_blas_thread():  # matrices this small only wait for each other's threads
        x = _least_squares(space, goal)
    left = goal - space.centre(space.cells(x))
    misfit = float(np.ptp(np.append(left, 0.0)))
    compatible = misfit <= COMPATIBLE_RTOL * (1.0 + float(np.abs(goal).max()))
    converged, certificate = True, None
    if not compatible:
        certificate = left
        with single_blas_thread():
            end = minimise(risk, x)
        x, converged = end.W, end.converged
    point = risk.at(space.cells(x))
    gradient = float(np.linalg.norm(space.lift(point.gradient))) / space.reach
    status = Status.FINITE if converged and gradient <= _GRADIENT_ATOL else Status.INACCURATE
    infimum = data.entropy if compatible else point.value
    return FinitePart(data, space, x, compatible, misfit, certificate, infimum, gradient, status)


def _least_squares(space: SupportSubspace, goal: FloatArray) -> FloatArray:
    """The W in F whose centred logits come closest to `goal` (n_cells,)."""
    if space._spanned:
        basis, table = space.basis, space.table_basis()
        z = np.linalg.lstsq(table, goal)[0]
        return np.tensordot(z + np.linalg.lstsq(table, goal - table @ z)[0], basis, axes=1)
    shape = space.shape
    operator = scipy.sparse.linalg.LinearOperator(
        (len(goal), shape[0] * shape[1]),
        matvec=lambda w: space.centre(space.cells(np.ravel(w).reshape(shape))),
        rmatvec=lambda y: space.lift(space.centre(np.ravel(y))).reshape(-1),
    )
    found = scipy.sparse.linalg.lsqr(operator, goal, atol=1e-15, btol=1e-15, conlim=0.0, iter_lim=20 * len(goal))
    return np.asarray(found[0]).reshape(shape)
