"""
A regularisation path for every limit
=====================================

The point of least risk in a growing ball goes to the global max-margin direction. Kept to a cone around a locally optimal direction, it
goes to that one instead (A Thm 4). A path is followed by continuation: `resume` goes on from the radii that it has to larger ones.

`Open its problem in the lab <../../lab/index.html#A-F2>`_
"""

import matplotlib.pyplot as plt
import numpy as np

import marginlens as ml

plt.rcParams.update(ml.plotting.STYLE)
RADII = np.geomspace(0.5, 30.0, 12)
LARGER = np.geomspace(40.0, 1e4, 12)

# %%
# Three tokens in the plane: (1, 0) is locally optimal, although (-1, .8) scores higher.
data, v = ml.data.cone_example()
optima = ml.locally_optimal_directions(data, v)
print(optima)

# %%
# One path in the whole plane, and one in the cone around each locally optimal direction; then all go on to larger balls.
regions = {"the whole plane": None}
for direction, is_global in zip(optima.directions, optima.is_global, strict=True):
    regions[f"a cone around the {'global' if is_global else 'local'} direction"] = ml.dynamics.Cone(direction, 0.1, 0.4)
paths = {name: ml.path(data, RADII, head=v, region=region) for name, region in regions.items()}
paths = {name: path.resume(LARGER) for name, path in paths.items()}
for name, path in paths.items():
    print(f"{name}: residual at most {np.nanmax(path.kkt_residual()):.0e}")

# %%
# The plane, with logarithmic distances from the origin; dashed rays are the two max-margin directions.
fig, ax = plt.subplots(figsize=(6.4, 4.6), layout="constrained", subplot_kw={"projection": "polar"})
for direction in optima.directions:
    ax.axvline(np.arctan2(direction[1], direction[0]), color=ml.plotting.NEITHER, ls="--", lw=1.2)
styles = zip(paths.items(), (ml.plotting.INK, ml.plotting.GLOBAL, ml.plotting.LOCAL), ("o", "s", "^"), strict=True)
for (name, path), colour, marker in styles:
    turned = np.arctan2(path.points[:, 1], path.points[:, 0])
    size = 9 if path is paths["the whole plane"] else 5
    ax.plot(turned, np.log10(path.radii), marker, ls="-", color=colour, label=name, markersize=size)
ax.set(thetamin=0, thetamax=180, rlim=(-1.0, 4.2), rticks=[0, 2, 4])
ax.set_xlabel("direction of the best p in a ball", labelpad=-30)
ax.set_ylabel("radius of the ball, powers of ten", labelpad=30)
ax.set_title("Each cone has a path and a limit of its own")
fig.legend(title="least risk in", loc="outside lower center")
plt.show()
