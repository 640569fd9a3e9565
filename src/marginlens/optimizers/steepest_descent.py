"""Steepest descent in a norm, with step schedules and momentum; sign descent, coordinate descent and Muon are special cases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from marginlens.arithmetic.log_scaled import LogScaled
from marginlens.kinds import inherited_attr
from marginlens.norms import L1, LInf, Norm, Spectral
from marginlens.norms.choice import as_norm, direction_of
from marginlens.optimizers.compiled import STEEPEST, Rule
from marginlens.optimizers.decay import Decaying, as_share, decays, remembers_point, running_sum
from marginlens.optimizers.schedules import StepSize, as_step_size, size_at
from marginlens.typing import FloatArray


class MomentumState(NamedTuple):
    """The number of steps taken, and the running sum of gradients: None before the first step or without momentum."""

    step: int
    total: LogScaled | None


@dataclass(frozen=True, repr=False)
class SteepestDescent(Decaying):
    r"""Take steps of a given length in a norm in the direction that lowers the risk most, to first order.

    .. math:: x \leftarrow x - \eta_t\, s(m_t), \quad s(m) \in \arg\max_{\|s\| \le 1} \langle m, s\rangle, \quad
        m_t = \mu\, m_{t-1} + \nabla L(x)

    With Nesterov's momentum s is taken at :math:`\mu\, m_t + \nabla L(x)`. Sums of gradients are formed in the log domain: a
    gradient far below the smallest float64 keeps its direction, and an old gradient its correct weight.

    Args:
        norm: the norm in which a step has length η_t; its method `steepest` decides between equally good steps.

        size: η, a positive number, or a function t → η_t such as `PowerDecay(size, power)`.

        momentum: μ, at least 0 and below 1. To reach the best margin γ in the norm, the momentum must forget faster than
            gradients fall: ηγ < log(1/μ).

        nesterov: whether to use Nesterov's momentum.

        weight_decay: λ, decoupled as in AdamW; see `marginlens.optimizers.Decaying`.

    Examples:
        >>> import marginlens as ml
        >>> data, heads = ml.data.sphere_tokens(1, n_inputs=3, n_tokens=4, d_model=5, rng=0)
        >>> risk = ml.AttentionRisk(data[0], heads[0])
        >>> run = ml.descend(risk, optimizer=ml.SteepestDescent(ml.Lp(3.0), 0.1), n_steps=1)
        >>> round(ml.Lp(3.0).value(run.final), 6)
        0.1
    """

    norm: Norm
    size: StepSize
    momentum: float = 0.0
    nesterov: bool = False
    batched: ClassVar[bool] = True

    def __post_init__(self) -> None:
        as_norm(self.norm, (1, 1))
        object.__setattr__(self, "size", as_step_size(self.size))
        object.__setattr__(self, "momentum", as_share(self.momentum, "momentum"))
        self.check_decay()

    @remembers_point
    def init(self, x0: FloatArray) -> MomentumState:
        """Start at step zero, without a running sum of gradients."""
        return MomentumState(0, None)

    @decays
    def update(self, gradient: LogScaled, state: MomentumState) -> tuple[FloatArray, MomentumState]:
        """Return -η_t times the steepest direction; zero if the gradient is exactly zero."""
        if state.step == 0:
            as_norm(self.norm, gradient.array.shape[gradient.array.ndim - gradient.axes :])
        total = running_sum(gradient, state.total, self.momentum)
        ahead = gradient if total is None else total
        if total is not None and self.nesterov:
            ahead = gradient.plus(total, self.momentum)
        step = -size_at(self.size, state.step) * direction_of(self.norm, ahead)
        return step, MomentumState(state.step + 1, total)

    def compiled(self, shape: tuple[int, ...]) -> Rule | None:
        """Return the rule of the compiled loop; None for a norm that has no code there."""
        code = inherited_attr(as_norm(self.norm, shape), "code")
        if code is None:
            return None
        power = getattr(self.norm, "power", 2.0)
        return Rule.of(STEEPEST, self.size, code, power=power, momentum=self.momentum, nesterov=self.nesterov)


class _InAFixedNorm(SteepestDescent):
    """Steepest descent in the norm that the class implies."""

    implied: ClassVar[Norm]

    def __init__(
        self,
        size: StepSize,
        momentum: float = 0.0,
        nesterov: bool = False,
        *,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(self.implied, size, momentum, nesterov, weight_decay=weight_decay)

    def __repr__(self) -> str:
        decay = f", weight_decay={self.weight_decay:g}" if self.weight_decay else ""
        return f"{type(self).__name__}({self.size!r}, momentum={self.momentum:g}, nesterov={self.nesterov}{decay})"


@dataclass(frozen=True, init=False, repr=False)
class SignDescent(_InAFixedNorm):
    r"""Steepest descent in ℓ∞: :math:`x \leftarrow x - \eta_t \operatorname{sign}(m_t)`; with momentum it is Signum.

    Examples:
        >>> import numpy as np
        >>> import marginlens as ml
        >>> data, heads = ml.data.sphere_tokens(1, n_inputs=3, n_tokens=4, d_model=5, rng=0)
        >>> risk = ml.AttentionRisk(data[0], heads[0])
        >>> run = ml.descend(risk, optimizer=ml.SignDescent(0.1), n_steps=1)
        >>> np.abs(run.final).tolist()
        [0.1, 0.1, 0.1, 0.1, 0.1]
    """

    implied = LInf()


@dataclass(frozen=True, init=False, repr=False)
class CoordinateDescent(_InAFixedNorm):
    """Steepest descent in ℓ1: a step in the one coordinate whose derivative is largest.

    Examples:
        >>> import numpy as np
        >>> import marginlens as ml
        >>> data, heads = ml.data.sphere_tokens(1, n_inputs=3, n_tokens=4, d_model=5, rng=0)
        >>> risk = ml.AttentionRisk(data[0], heads[0])
        >>> run = ml.descend(risk, optimizer=ml.CoordinateDescent(0.1), n_steps=1)
        >>> int(np.count_nonzero(run.final))
        1
    """

    implied = L1()


@dataclass(frozen=True, init=False, repr=False)
class Muon(_InAFixedNorm):
    r"""Steepest descent of a matrix in the spectral norm, with momentum.

    .. math:: W \leftarrow W - \eta_t U V^\top, \qquad m_t = U \Sigma V^\top

    The polar factor is exact, even for tiny singular values. For the factors of W, use `Blockwise(Muon(size))`, which treats
    each factor as a separate matrix. With constant steps, runs reach the spectral margin γ only if ηγ < log(1/μ), which is .051
    for the usual μ = .95. Otherwise the momentum still remembers old gradients: `Muon(0.5)` stops at about half of the margin
    (claim X-N6). F Thm 2 covers decreasing steps without Nesterov's momentum, `nesterov=False`.

    Examples:
        >>> import numpy as np
        >>> import marginlens as ml
        >>> data, heads = ml.data.sphere_tokens(1, n_inputs=3, n_tokens=4, d_model=5, rng=0)
        >>> risk = ml.AttentionRisk(data[0], heads[0])
        >>> on_W = risk.as_matrix(np.eye(3))
        >>> run = ml.descend(on_W, optimizer=ml.Muon(0.1, momentum=0.0, nesterov=False), n_steps=1)
        >>> np.linalg.svd(run.final, compute_uv=False).round(6).tolist()
        [0.1, 0.1, 0.1]
    """

    implied = Spectral()

    def __init__(
        self,
        size: StepSize,
        momentum: float = 0.95,
        nesterov: bool = True,
        *,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(size, momentum, nesterov, weight_decay=weight_decay)
