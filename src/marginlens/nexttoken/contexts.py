"""The finite part of a next-token decoder on fixed contexts: log-odds of the tokens that follow, and the infimum of the cross-entropy."""

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

# Up to so many numbers of generators, a singular value decomposition computes a basis of F.
MAX_BASIS_ENTRIES = 4_000_000
# Largest misfit of log-odds, relative to one and the largest of them, at which some W has them all.
COMPATIBLE_RTOL = 1e-9
# Singular values of generators of unit length below this share of the largest count as zero.
_SINGULAR_RTOL = 1e-10
# Largest gradient of a minimum, for embeddings of length one.
_GRADIENT_ATOL = 1e-10


@dataclass(frozen=True, repr=False, eq=False)
class SupportSubspace(CyclicSubspace):
    r"""The data subspace F, which distinguishes tokens that follow the same context. It is S_cyc with supports as components.

    .. math:: \mathcal F = \mathrm{span}\{(e_z - e_{z'})\,h_j^\top :\ z, z' \in \mathcal S_j\}

    Attributes:
        E: an empty array (0, n_vocabulary): tokens are unit vectors, whose table is not formed.

        queries: the contexts with several tokens.

        ends: (n_queries, d_model) their embeddings.

        tokens: as in `CyclicSubspace`, with contexts instead of last tokens.

        columns: as in `CyclicSubspace`.

        groups: as in `CyclicSubspace`.
    """

    ends: FloatArray = field(default_factory=lambda: np.zeros((0, 1)))
    scales = None
    independent = False
    factor = None
    _near = None
    quantities = "{n_groups} contexts, {n_generators} generators, shape={shape!s}"

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of W, (n_vocabulary, d_model)."""
        return self.E.shape[1], self.ends.shape[1]

    @property
    def reach(self) -> float:
        """The largest change of a logit by a W of norm one."""
        return float(np.linalg.norm(self.ends, axis=1).max(initial=0.0)) or 1.0

    @cached_property
    def rank(self) -> int:
        """The dimension of F if a basis is cheap to compute, otherwise the number of its generators."""
        return len(self._reduced[0]) if self._spanned else self.n_generators

    @property
    def _spanned(self) -> bool:
        return self.n_generators * len(np.unique(self.tokens)) * self.ends.shape[1] <= MAX_BASIS_ENTRIES

    def cells(self, W: FloatArray) -> FloatArray:
        """Compute the logits e_zᵀ W h_j of each cell, (…, n_cells)."""
        return np.asarray(np.einsum("...cd,cd->...c", W[..., self.tokens, :], self.ends[self.columns]))

    def lift(self, values: FloatArray) -> FloatArray:
        """Compute Σ values[c] e_z h_jᵀ over the cells, (n_vocabulary, d_model)."""
        cells = (values, (self.tokens, self.columns))
        return np.asarray(scipy.sparse.csr_array(cells, shape=(self.shape[0], len(self.queries))) @ self.ends)

    def table_basis(self) -> FloatArray:
        """Compute the centred logits of each basis matrix, (n_cells, rank)."""
        return np.ascontiguousarray(self.centre(self.cells(self.basis)).T)

    @cached_property
    def _reduced(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """An orthonormal basis (rank, r·d_model) over the r tokens in use, the table of these (n_vocabulary, r), and the identity."""
        used, row_of = np.unique(self.tokens, return_inverse=True)
        d = self.ends.shape[1]
        h = self.ends[self.columns[self.free]]
        unit = h / np.maximum(np.linalg.norm(h, axis=1, keepdims=True), np.finfo(float).tiny)
        generators = np.zeros((self.n_generators, len(used), d))
        rows = np.arange(self.n_generators)
        generators[rows, row_of.reshape(-1)[self.free]] = unit
        generators[rows, row_of.reshape(-1)[self.first]] = -unit
        _, values, right = np.linalg.svd(generators.reshape(self.n_generators, -1), full_matrices=False)
        inside = values > _SINGULAR_RTOL * values.max(initial=0.0)
        return right[inside], np.eye(self.shape[0])[:, used], np.eye(d)


@implements("G", "Eq. (5)")
def support_subspace(data: ContextDataset) -> SupportSubspace:
    """Compute the subspace F of decoders W, which distinguishes tokens that follow the same context.

    Args:
        data: contexts with the probabilities of their next tokens.

    Returns:
        The subspace; its method `project(W)` is the part of W in it.

    Examples:
        >>> import numpy as np
        >>> from marginlens.data import ContextDataset
        >>> from marginlens.nexttoken import support_subspace
        >>> data = ContextDataset(np.eye(2), [[1, 1, 0], [0, 0, 2]])
        >>> space = support_subspace(data)
        >>> space.rank, space.shape
        (1, (3, 2))
    """
    several = np.flatnonzero(as_contexts(data).sizes > 1)
    pairs = np.isin(data.context, several)
    column = np.searchsorted(several, data.context[pairs])
    embeddings = data.H[several]
    ends = embeddings.toarray() if scipy.sparse.issparse(embeddings) else embeddings
    return SupportSubspace(np.empty((0, data.n_vocabulary)), several, data.token[pairs], column, column, ends)


class _Supports(NamedTuple):
    """The samples of a `CyclicRisk`, one for each context with several tokens."""

    offsets: IntArray
    share: FloatArray
    labels: IntArray
    log_counts: FloatArray


class SupportRisk(CyclicRisk):
    r"""The cross-entropy of contexts with several tokens, restricted to these tokens, as a function of their logits.

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
        """Compute the losses -Σ p log s, and the slopes s - p."""
        starts = self.problem.offsets[:-1]
        total = np.repeat(np.logaddexp.reduceat(logits, starts), np.diff(self.problem.offsets))
        return np.add.reduceat(self.probability * (total - logits), starts), s - self.probability


@dataclass(frozen=True, repr=False, eq=False)
class FinitePart(Result):
    r"""The finite part W* with its checks, and the infimum of the cross-entropy of decoders on these data.

    Attributes:
        data: the problem.

        subspace: F.

        x: (n_vocabulary, d_model) W*, in F; zero if no context has several tokens.

        compatible: whether W* gives tokens that follow a context exactly their log-odds (Def 1).

        misfit: the largest difference between a logit gap of the best fit and its log-odds.

        certificate: (n_cells of F,) if the data are not compatible, weights y that add up to zero in each context, with
            :math:`\sum_c y_c\, e_z h_j^\top = 0` and :math:`\sum_c y_c \log \hat p_c > 0`, so that no W has the log-odds. Else None.

        infimum: the cross-entropy at W* among the tokens that follow: the entropy if the data are compatible, more otherwise.
            It bounds the cross-entropy of every W from below, and on separable data the cross-entropy comes arbitrarily close to it.

        gradient_norm: the norm of the gradient of that cross-entropy at x, divided by the largest ‖h‖.

        status: FINITE, TRIVIAL if F is zero, or INACCURATE.
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
        """Compute ‖P_F(W) - W*‖, which training brings to zero."""
        return float(np.linalg.norm(self.subspace.project(W) - self.x))

    def certificate_residual(self) -> float:
        """Measure the error of the certificate: ‖Σ y e_z hᵀ‖ over ‖h‖ times Σ y log p, for y of norm one; nan if there is none."""
        if self.certificate is None:
            return float("nan")
        y = self.certificate / np.linalg.norm(self.certificate)
        logs = np.log(self.data.probability[np.isin(self.data.context, self.subspace.queries)])
        return float(np.linalg.norm(self.subspace.lift(y))) / (self.subspace.reach * float(y @ logs))


@implements("G", "Def 1", "Eq. (4)")
@implements("X", "G1")
def finite_part(data: ContextDataset) -> FinitePart:
    r"""Find the part of a trained decoder that stays finite: log-odds of tokens that follow a context, on the subspace F.

    .. math:: W^\star \in \mathcal F: \quad (e_z - e_{z'})^\top W^\star h_j = \log(\hat p_{jz} / \hat p_{jz'}), \quad z, z' \in \mathcal S_j

    If no W has all these differences, W* is the minimiser over F of the cross-entropy among the tokens that follow. It is always finite
    and unique: every token of a support has a positive probability, and logits determine W on F. No W has a cross-entropy below its value,
    and if the data are separable, W* + γ W^mm comes arbitrarily close to it.

    Args:
        data: contexts with the probabilities of their next tokens.

    Returns:
        A `FinitePart` with W* in `.x`. Check it by `.misfit` or `.gradient_norm`, and that data are not compatible by
        `.certificate_residual()`.

    Examples:
        >>> import numpy as np
        >>> from marginlens.data import ContextDataset
        >>> from marginlens.nexttoken import finite_part
        >>> data = ContextDataset(np.eye(2), [[3, 1, 0], [0, 0, 2]])
        >>> part = finite_part(data)
        >>> gap = part.x[0, 0] - part.x[1, 0]
        >>> print(round(float(np.exp(gap)), 6))  # the odds 3 : 1 of the tokens that follow context 0
        3.0
    """
    space = support_subspace(data)
    if not space.n_generators:
        nothing = np.zeros(data.shape)
        return FinitePart(data, space, nothing, True, 0.0, None, data.entropy, 0.0, Status.TRIVIAL)
    risk = SupportRisk(data, space)
    goal = space.centre(np.log(risk.probability))
    # Threads only wait for each other on matrices this small.
    with single_blas_thread():
        x = _least_squares(space, goal)
    residual = goal - space.centre(space.cells(x))
    misfit = float(np.ptp(np.append(residual, 0.0)))
    compatible = misfit <= COMPATIBLE_RTOL * (1.0 + float(np.abs(goal).max()))
    converged, certificate = True, None
    if not compatible:
        certificate = residual
        with single_blas_thread():
            end = minimise(risk, x)
        x, converged = end.W, end.converged
    point = risk.at(space.cells(x))
    gradient = float(np.linalg.norm(space.lift(point.gradient))) / space.reach
    status = Status.FINITE if converged and gradient <= _GRADIENT_ATOL else Status.INACCURATE
    infimum = data.entropy if compatible else point.value
    return FinitePart(data, space, x, compatible, misfit, certificate, infimum, gradient, status)


def _least_squares(space: SupportSubspace, goal: FloatArray) -> FloatArray:
    """Find the W in F whose centred logits come closest to `goal` (n_cells,)."""
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
    solution = scipy.sparse.linalg.lsqr(operator, goal, atol=1e-15, btol=1e-15, conlim=0.0, iter_lim=20 * len(goal))
    return np.asarray(solution[0]).reshape(shape)
