"""One optimizer for each part of a point: head and attention, or the factors of a matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from marginlens.arithmetic.log_scaled import LogScaled
from marginlens.errors import InputError
from marginlens.optimizers.protocol import Optimizer, as_optimizer
from marginlens.typing import FloatArray


@dataclass(frozen=True)
class Blockwise:
    """Move each part of a point by a separate optimizer, which sees only the gradient of that part.

    Args:
        optimizer: the optimizer of every part. The parts of `JointRisk` are v and p, those of `FactorRisk` are Q and K.

    Examples:
        >>> import numpy as np
        >>> import marginlens as ml
        >>> data, heads = ml.data.sphere_tokens(1, n_inputs=3, n_tokens=4, d_model=5, rng=0)
        >>> risk = ml.AttentionRisk(data[0], heads[0])
        >>> factors = risk.as_factors(np.eye(3), 3)
        >>> rule = ml.optimizers.Blockwise(ml.NormalizedGD(0.1))
        >>> ml.theory.implicit_bias(rule, factors).norm
        Nuclear()
    """

    optimizer: Optimizer

    @property
    def batched(self) -> bool:
        """True if the parts' optimizer takes all problems of a batch at once."""
        return bool(getattr(self.optimizer, "batched", False))

    def __post_init__(self) -> None:
        as_optimizer(self.optimizer)

    def init(self, x0: FloatArray) -> Any:
        """Remember the start; once the first gradient shows the parts, each has its own state."""
        return np.array(x0)

    def update(self, gradient: LogScaled, state: Any) -> tuple[FloatArray, Any]:
        """Return the steps of all parts, put together."""
        if gradient.blocks is None:
            raise InputError(
                "optimizer", "Blockwise only for a risk whose points have parts, such as JointRisk", "one that has none"
            )
        places = {name: gradient.place(name) for name in gradient.blocks}
        states = state
        if isinstance(state, np.ndarray):
            states = {name: self.optimizer.init(state[place]) for name, place in places.items()}
        step, following = np.empty_like(gradient.array), {}
        for name, place in places.items():
            step[place], following[name] = self.optimizer.update(gradient.block(name), states[name])
        return step, following
