"""A Thm 3: from a start inside the cone around a locally optimal direction, gradient descent converges to that direction.

Everything is known before training: the theorem's conditions are checked one by one, and its conclusion names the limit.
"""

import numpy as np

import marginlens as ml

# Data: two inputs of two tokens in the plane; token 0 of each scores 1, token 1 scores 0.
data, v = ml.data.figure_8()

# Solve: the locally optimal directions, and the cone of starts around the one that misses the best token of input 1.
optima = ml.locally_optimal_directions(data, v)
for selection, direction, is_global in zip(optima.selections, optima.directions, optima.is_global, strict=True):
    print(f"{'GMM' if is_global else 'LMM'} selects {selection} along {np.round(direction, 4)}")
local = ml.token_optimality(data, v, [0, 1])
cone = ml.basin_cone(data, v, local.selected)

# A start near the edge of the cone, beyond the radius at which nothing of the proof is implicit.
tilt = np.arccos(1.0 - 0.9 * cone.mu)
across = np.array([-local.direction[1], local.direction[0]])
start = 1.1 * cone.proven_radius * (np.cos(tilt) * local.direction + np.sin(tilt) * across)
prediction = ml.predict_limit(data, v, start=start)
print(prediction.verdicts[2])
print(prediction.why)

# Look: so far out a plain step has the length e^(-margin × norm), so normalised steps show the same descent at a visible speed.
run = ml.descend(data, v, optimizer=ml.NormalizedGD(1.0), n_steps=200_000, start=start)
print(f"selected tokens {run.selected}, norm {np.linalg.norm(start):.0f} -> {run.norm:.0f}")
before, after = (ml.angle(p, prediction.direction) for p in (start, run.final))
print(
    f"angle to the predicted direction {before:.4f} -> {after:.6f}, cosine {ml.correlation(run.final, local.direction):.6f}"
)

# What to notice: the limit of plain descent was certain before the first step, though it is not the best direction; normalised steps
# went there too, which is observed and not proved; and the direction proves itself.
print(f"residual of its optimality conditions {local.solution.kkt_residual():.1e}")
