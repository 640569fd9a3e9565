"""Adam with both of its running means in the log domain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from marginlens.arithmetic.log_scaled import LogScaled
from marginlens.errors import InputError, nonnegative_number
from marginlens.optimizers.compiled import ADAM, Rule
from marginlens.optimizers.decay import Decaying, as_share, decays, remembers_point
from marginlens.optimizers.schedules import StepSize, as_step_size, size_at
from marginlens.typing import FloatArray


class AdamState(NamedTuple):
    """The number of steps taken, m as signs and logarithms of its entries, and the logarithms of v; all arrays have the iterate's shape."""

    step: int
    sign: FloatArray
    log_mean: FloatArray
    log_square: FloatArray


@dataclass(frozen=True, repr=False)
class Adam(Decaying):
    r"""Adam, exact even if gradients are far below the smallest float64, for ε = 0 and any ε > 0.

    .. math:: m \leftarrow \beta_1 m + (1 - \beta_1) g, \quad v \leftarrow \beta_2 v + (1 - \beta_2) g^2, \quad
        x \leftarrow x - \eta_t \frac{m / (1 - \beta_1^{t+1})}{\sqrt{v / (1 - \beta_2^{t+1})} + \varepsilon}

    While :math:`\sqrt v \gg \varepsilon`, steps are those of sign descent if the memory is short enough. Once gradients fall
    below ε, they are those of gradient descent with momentum and step size η/ε. A weight whose gradient has always been zero
    does not move.

    Towards the ℓ∞ margin γ, each step divides gradients by :math:`e^{\eta\gamma}`, while √v can fall at most by the factor
    :math:`\beta_2^{-1/2}`. If ηγ < ½ log(1/β₂) and β₁ ≤ β₂, runs with ε = 0 reach the margin. Otherwise √v still remembers
    older gradients, and the margin grows by only ½ log(1/β₂) per step. For the usual β₂ = .999 this is 5e-4: after 400,000
    steps of size .01 runs have about .6 of the ℓ∞ margin (claim X-N6). If β₁ > √β₂, steps can grow without bound. The theorems
    assume β₁ ≤ β₂ and decreasing steps.

    Args:
        size: η, a positive number, or a function t → η_t such as `PowerDecay(size, power)`.

        betas: β₁ and β₂, each at least 0 and below 1.

        eps: ε, at least 0.

        weight_decay: λ, decoupled as in AdamW.

    Examples:
        >>> import numpy as np
        >>> import marginlens as ml
        >>> data, heads = ml.data.sphere_tokens(1, n_inputs=3, n_tokens=4, d_model=5, rng=0)
        >>> risk = ml.AttentionRisk(data[0], heads[0])
        >>> run = ml.descend(risk, optimizer=ml.Adam(0.01), n_steps=1)
        >>> np.abs(run.final).round(6).tolist()
        [0.01, 0.01, 0.01, 0.01, 0.01]
    """

    size: StepSize
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 0.0
    batched: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", as_step_size(self.size))
        try:
            first, second = self.betas
        except (TypeError, ValueError) as problem:
            raise InputError("betas", "two numbers, each at least 0 and below 1", repr(self.betas)) from problem
        object.__setattr__(self, "betas", (as_share(first, "betas"), as_share(second, "betas")))
        object.__setattr__(self, "eps", nonnegative_number(self.eps, "eps"))
        self.check_decay()

    @remembers_point
    def init(self, x0: FloatArray) -> AdamState:
        """Start with both means zero."""
        nothing = np.full(np.shape(x0), -np.inf)
        return AdamState(0, np.zeros(np.shape(x0)), nothing, nothing)

    @decays
    def update(self, gradient: LogScaled, state: AdamState) -> tuple[FloatArray, AdamState]:
        """Return -η_t m̂/(√v̂ + ε)."""
        (first, second), step = self.betas, state.step
        # The logarithm of zero is -inf.
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log(np.abs(gradient.array)) + gradient.aligned(gradient.log_scale)
            sign, log_mean = _signed_sum(
                (state.sign, state.log_mean + np.log(first)), (np.sign(gradient.array), logs + np.log1p(-first))
            )
            log_square = np.logaddexp(state.log_square + np.log(second), 2.0 * logs + np.log1p(-second))
            numerator = log_mean - np.log1p(-(first ** (step + 1.0)))
            root = 0.5 * (log_square - np.log1p(-(second ** (step + 1.0))))
            ratio = np.exp(numerator - np.logaddexp(root, np.log(self.eps)))
        move = -size_at(self.size, step) * np.where(sign == 0.0, 0.0, sign * ratio)
        return move, AdamState(step + 1, sign, log_mean, log_square)

    def compiled(self, shape: tuple[int, ...]) -> Rule:
        """Return the rule of the compiled loop."""
        first, second = self.betas
        return Rule.of(ADAM, self.size, beta_1=first, beta_2=second, eps=self.eps)


def _signed_sum(a: tuple[FloatArray, FloatArray], b: tuple[FloatArray, FloatArray]) -> tuple[FloatArray, FloatArray]:
    """Return the sign and logarithm of the sum of two numbers given by theirs."""
    largest = np.maximum(a[1], b[1])
    safe = np.where(np.isfinite(largest), largest, 0.0)
    total = a[0] * np.exp(a[1] - safe) + b[0] * np.exp(b[1] - safe)
    return np.sign(total), safe + np.log(np.abs(total))
