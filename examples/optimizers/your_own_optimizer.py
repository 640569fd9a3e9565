"""A Thm 2 speaks of gradient descent; an optimizer of your own is a class with two methods, and works on every risk.

Momentum is the example: it changes how fast weights grow, and not where they point.
"""

from dataclasses import dataclass

import numpy as np

import marginlens as ml


@dataclass(frozen=True)
class Momentum:
    """Heavy-ball momentum: the velocity is the state, which descent carries from step to step."""

    size: float = 2.0
    decay: float = 0.9

    def init(self, x0):
        """The velocity before the first step."""
        return np.zeros_like(x0)

    def update(self, gradient, velocity):
        """The step, which is the new velocity, and the state for the next one."""
        velocity = self.decay * velocity - self.size * gradient.value()
        return velocity, velocity


# Data: one input whose last coordinate is the score, 1 for the optimal token and .2 for the others, so that A Thm 2 leaves no choice of
# limit; and sequences for a next-token layer.
rng = np.random.default_rng(1)
X = np.concatenate([rng.standard_normal((1, 4, 4)), [[[1.0], [0.2], [0.2], [0.2]]]], axis=-1)
data, v = ml.TokenDataset(X, [1.0]), np.array([0.0, 0.0, 0.0, 0.0, 1.0])
sequences = ml.data.acyclic_sequences(4, 6, 3, 4, 0)

# Solve: the predicted directions, and descent with momentum on p, on W, on the factors of W, and on next-token weights.
limit, graph = ml.att_svm(data, data.optimal(v)).x, ml.graph_svm(sequences).x
of_p = ml.AttentionRisk(data, v)
of_W, of_factors = of_p.as_matrix([1.0]), of_p.as_factors([1.0], width=2)
start = 0.1 * rng.standard_normal(of_factors.shape)
plain = ml.descend(of_p, optimizer=ml.GradientDescent(2.0), n_steps=3000)
on_p = ml.descend(of_p, optimizer=Momentum(), n_steps=3000)
on_W = ml.descend(of_W, optimizer=Momentum(), n_steps=3000)
on_factors = ml.descend(of_factors, optimizer=Momentum(), n_steps=3000, start=start)
on_text = ml.descend(sequences, optimizer=Momentum(), n_steps=3000)

# Look: the cosines with the predicted directions.
print(f"p, plain          cosine {ml.correlation(plain.final, limit):.4f}, norm {plain.norm:.2f}")
print(f"p, momentum       cosine {ml.correlation(on_p.final, limit):.4f}, norm {on_p.norm:.2f}")
print(f"W, momentum       cosine {ml.correlation(on_W.final[0], limit):.4f}")
print(f"factors, momentum cosine {ml.correlation(of_factors.vector(on_factors.final), limit):.4f}")
print(f"next tokens       cosine {ml.correlation(on_text.final, graph, axes=2):.4f}")

# What to notice: ten lines make an optimizer; `marginlens.testing.check_optimizer(Momentum())` says whether it keeps the contract.
