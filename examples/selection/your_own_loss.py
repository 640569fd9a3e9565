"""A Assumption A: the theory needs a smooth decreasing loss, not the logistic one; a loss of your own is a small class.

The direction that descent reaches does not depend on it; how fast each input pulls along the way does.
"""

from dataclasses import dataclass

import numpy as np

import marginlens as ml


@dataclass(frozen=True)
class HeavyTail(ml.losses.Loss):
    """ℓ(u) = -arctan(u): it decreases everywhere, and its slope fades like a power, not like an exponential."""

    def value(self, u):
        """ℓ(u)."""
        return -np.arctan(u)

    def log_abs_derivative(self, u):
        """log|ℓ'(u)|; its sign is read off the value."""
        return -np.log1p(np.square(u))


# Data: one input, whose optimal token scores 1 and the others the same, so that A Thm 2 leaves no choice of limit.
rng = np.random.default_rng(0)
data, v = ml.data.scored_tokens(rng.standard_normal((1, 5, 3)), [[1.0, 0.2, 0.2, 0.2, 0.2]])

# Solve: what the theorem predicts for this loss, and descent with it beside the losses that come with the library.
prediction = ml.predict_limit(data, v, loss=HeavyTail())
print(prediction.why)
losses = (HeavyTail(), ml.Logistic(), ml.Exponential(), ml.CorrelationLoss())
runs = {type(loss).__name__: ml.descend(data, v, loss=loss, n_steps=1000) for loss in losses}

# Look: the cosine with the predicted direction under each loss.
for name, run in runs.items():
    print(f"{name:12} cosine {ml.correlation(run.final, prediction.direction):.6f}, norm {run.norm:.0f}")

# What to notice: four losses, one direction. A head of your own works the same way, given the extra `torch`:
try:
    import torch
except ImportError:
    print("The nonlinear head is left out: it needs pip install 'marginlens[torch]'.")
else:
    run = ml.descend(data, lambda features: torch.tanh(features @ torch.as_tensor(v)), n_steps=300)
    cosine = ml.correlation(run.final, prediction.direction)
    print(f"tanh head    cosine {cosine:.6f} after 300 steps")
