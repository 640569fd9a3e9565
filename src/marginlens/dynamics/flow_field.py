"""The direction of steepest descent and its derivative in the span of one problem's keys, exact at any norm."""

from __future__ import annotations

from typing import Any

import numpy as np

from marginlens.data.tokens import FloatArray, TokenDataset
from marginlens.dynamics.paths.landscape import Landscape
from marginlens.losses.margin import Loss, compiled_code
from marginlens.risk.kernels.gradient_coefficients import pair_weights

_LOST = 1e-9  # a gradient this small beside its own terms has no direction that an integrator could follow in double precision
_NEWTON = 8  # steps to a minimum close by


class SteepestDescent:
    r"""The field of arc-length gradient flow in coordinates c of the keys' span, p = start outside it + `basis` c.

    .. math:: F(c) = -\frac{g}{\|g\|}, \qquad F'(c) = -\Big(I - \frac{g g^\top}{\|g\|^2}\Big) \frac{\nabla^2 L}{\|g\|}, \quad g = \nabla L

    Gradient and curvature share one factor, which cancels; so neither underflows, however small the risk has become.
    """

    def __init__(self, data: TokenDataset, v: Any, loss: Loss) -> None:
        self.landscape = Landscape(data, v, loss)
        keys = self.landscape.keys
        self._keys = np.ascontiguousarray(keys.reshape(data.mask.size, keys.shape[-1]))  # (n_inputs * n_tokens, r)
        self._sizes = np.linalg.norm(self._keys, axis=-1)
        self._code = compiled_code(loss) if self.landscape.is_linear else -1
        if self._code >= 0:
            scores = data.scores(v)
            self._scores = np.where(np.isfinite(scores), scores, 0.0)
            self._lengths = np.ascontiguousarray(data.lengths)

    @property
    def basis(self) -> FloatArray:
        """(d_key, r) orthonormal columns."""
        return self.landscape.basis

    def gradient(self, c: FloatArray) -> tuple[FloatArray, float]:
        """A positive multiple of ∇L at c, (r,), and the length it would have if no two of its terms cancelled."""
        if self._code < 0:
            view = self.landscape.view(c[None])
            return view.gradient[0], float(view.size[0])
        weights = np.empty(len(self._keys))
        pair_weights(self._keys @ c, self._scores, self._lengths, self._code, weights)
        return weights @ self._keys, float(np.abs(weights) @ self._sizes)

    def is_stationary(self, c: FloatArray) -> bool:
        """Whether the gradient at c is zero beside its own terms, to nine digits."""
        g, size = self.gradient(c)
        return not float(np.linalg.norm(g)) > _LOST * size

    def has_ties(self, c: FloatArray, width: float) -> bool:
        """Whether some input has different tokens within `width` of its largest logit, and some token is farther behind."""
        data, keys = self.landscape.data, self.landscape.keys
        logits = np.where(data.mask, self.landscape.logits(c[None])[0], -np.inf)
        near = logits >= logits.max(axis=-1, keepdims=True) - width
        differ = any(np.ptp(rows[chosen], axis=0).any() for rows, chosen in zip(keys, near, strict=True))
        return differ and bool(np.any(data.mask & ~near))

    def minimum_within(self, c: FloatArray, radius: float) -> FloatArray | None:
        """The minimum of the risk that Newton's method finds from c, (r,), if it is no farther away than `radius`; else None."""
        here = c
        for _ in range(_NEWTON):
            view = self.landscape.view(here[None])
            if np.linalg.eigvalsh(view.hessian[0])[0] <= 0.0:
                return None
            try:
                move = np.linalg.solve(view.hessian[0], view.gradient[0])
            except np.linalg.LinAlgError:  # eigenvalues that only rounding keeps above zero
                return None
            here = here - move
            if not float(np.linalg.norm(here - c)) <= radius:
                return None
            if float(np.linalg.norm(move)) <= 1e-6 * radius:
                return here
        return None

    def __call__(self, s: float, c: FloatArray) -> FloatArray:
        """F(c); nan where the gradient is exactly zero, which no step of an integrator accepts."""
        g, _ = self.gradient(c)
        norm = float(np.linalg.norm(g))
        return -g / norm if norm > 0.0 else np.full_like(g, np.nan)

    def jacobian(self, s: float, c: FloatArray) -> FloatArray:
        """F'(c), (r, r)."""
        view = self.landscape.view(c[None])
        norm = max(float(np.linalg.norm(view.gradient[0])), np.finfo(float).tiny)
        along, bend = view.gradient[0] / norm, view.hessian[0] / norm
        return np.outer(along, along @ bend) - bend
