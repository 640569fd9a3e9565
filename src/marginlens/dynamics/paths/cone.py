"""Where a local regularisation path may be: a cone around an axis, cut off below a norm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from marginlens.directions import unit
from marginlens.errors import positive_number, real_array, reject
from marginlens.result import Described


@dataclass(frozen=True, repr=False, eq=False)
class Cone(Described):
    r"""The points that correlate with the axis by at least 1 - mu and are at least as long as the radius.

    .. math:: C_{\mu,R_0}(q) = \{ p : \langle p/\|p\|, q \rangle \ge 1 - \mu,\ \|p\| \ge R_0 \}, \quad 0 < \mu < 2

    Args:
        axis: (d_key,) any nonzero vector; kept as a unit vector. mu: the width. radius: R₀ > 0.
    """

    axis: Any
    mu: float
    radius: float
    quantities = "d_key={axis:#}, mu={mu:.4g}, radius={radius:.4g}"

    def __post_init__(self) -> None:
        axis = unit(real_array(self.axis, "cone.axis", ("d_key",)))
        if not axis.size or not np.isfinite(axis).all():
            raise reject("cone.axis", "a vector that is not zero", "zero" if axis.size else "an empty one")
        mu = positive_number(self.mu, "cone.mu")
        if mu >= 2.0:
            raise reject("cone.mu", "a width between 0 and 2, both excluded", mu)
        for name, value in (("axis", axis), ("mu", mu), ("radius", positive_number(self.radius, "cone.radius"))):
            object.__setattr__(self, name, value)

    @property
    def half_angle(self) -> float:
        """The largest angle with the axis, in radians: its cosine is 1 - mu, computed without that cancellation."""
        return float(2.0 * np.arcsin(np.sqrt(0.5 * self.mu)))
