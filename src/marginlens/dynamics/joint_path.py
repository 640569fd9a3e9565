"""Joint regularisation paths: the head and the attention weights of smallest risk up to a norm for each, as both norms grow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from marginlens.data.generators import as_generator
from marginlens.data.tokens import TokenDataset, as_dataset
from marginlens.directions import unit
from marginlens.dynamics.attention import attend, centred_keys, logits
from marginlens.dynamics.ball import ON_THE_EDGE, Region, minimise, pressure
from marginlens.dynamics.joint import attention_output, descend_joint
from marginlens.dynamics.landscape import Landscape
from marginlens.dynamics.steps import NormalizedStep
from marginlens.errors import n_axes, real_array, reject, whole_number
from marginlens.losses import Logistic
from marginlens.papers import implements

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Pair = tuple[FloatArray, FloatArray]
_LOSS = Logistic()
_LEAP = 2.0  # factor by which the balls grow between two rounds of a branch
_LEAN = 30.0  # norms, times the longest token or key less its input's mean, at which descent keeps to the tokens it starts with
_FAR = 3e3  # norms, in the same unit, at which the widest label margin has the lowest risk
_MEMORY = 6  # turns that are mixed
_ROUNDS = 60  # turns of v and p before a branch is left as it is
_BRANCHES = 8  # selections that are followed side by side
_SETTLED = 1e-10  # slope along the boundary, relative to its terms, at which a pair is left alone
_NOISE = 16.0 * np.finfo(float).eps  # relative rounding of margins
_SAME = 1e-7  # difference, relative to the radii, up to which two pairs are one
_SHORTEST = 40  # halvings of a step before it is given up


@dataclass(frozen=True, repr=False, eq=False)
class JointPath:
    r"""A finished joint path.

    Attributes:
        r, R: (n_radii,) the limits on ‖v‖ and ‖p‖. v: (n_radii, d_model). p: (n_radii, d_key).
        selected: (n_radii, n_inputs) the largest logits. log_risk: (n_radii,) logarithm of the training risk.
        binds: (n_radii, 2) whether the limit on ‖v‖ and the limit on ‖p‖ is reached.
    """

    r: FloatArray
    R: FloatArray
    v: FloatArray
    p: FloatArray
    selected: IntArray
    log_risk: FloatArray
    binds: BoolArray
    data: TokenDataset

    def kkt_residual(self) -> FloatArray:
        r"""Slopes in v and in p that no limit holds, each relative to the terms it is summed from, (n_radii, 2); recomputed."""
        return np.array(
            [_residual(self.data, (v, p), size) for v, p, *size in zip(self.v, self.p, self.r, self.R, strict=True)]
        )

    def __repr__(self) -> str:
        ends = f"r up to {self.r[-1]:.4g}, R up to {self.R[-1]:.4g}"
        return f"JointPath({len(self.r)} radii, {ends}, selected={self.selected[-1].tolist()})"


@implements("A", "Thm 5", "Thm 6")
def joint_path(data: TokenDataset, r: Any, R: Any, *, restarts: int = 64, rng: Any = 0) -> JointPath:
    r"""The pairs of smallest logistic risk under limits on the norms of head and attention weights.

    .. math:: (v_r, p_R) = \arg\min_{\|v\| \le r,\ \|p\| \le R} L(v, p)

    For given p the problem in v is convex, for given v that in p is the one of `regularization_path`; they are solved in turn, both to
    rounding relative to their own slopes, until neither moves. Such a pair satisfies the joint first-order conditions. Starts are the
    ends of joint descent from random pairs, one for each selection of tokens that it reaches, followed side by side from radius to radius;
    candidates are compared by the logarithm of the risk. Where the best attention keeps mixing tokens while r grows, v and p meet at a
    kink at which turns stall: `kkt_residual` shows it.

    Args:
        data: one problem.
        r, R: (n_radii,) limits on ‖v‖ and ‖p‖, positive; neither may fall. A single number stays as it is along the other.
        restarts: random starts. More of them make it surer that the minimum is global.
        rng: a `numpy.random.Generator`, or a whole number to seed one.
    Returns:
        A `JointPath`. Check it with `path.kkt_residual()`, and for being global with another `rng` and more restarts.
    """
    as_dataset(data)
    if data.is_batch:
        raise reject("data", "one problem", f"a batch of {len(data)}", "Take one with data[j].")
    sizes = _radii(r, R)
    whole_number(restarts, "restarts", at_least=1)
    branches, last = _starts(_in_units(data), restarts, as_generator(rng)), _first(sizes[0], _reach(data))
    branches = [(v * last[0], p * last[1]) for v, p in branches]
    kept: list[Pair] = []
    for size in sizes:
        branches = _distinct(data, [_follow(data, pair, last, size) for pair in branches], size)
        kept.append(branches[0])
        last = size
    v, p = np.stack([pair[0] for pair in kept]), np.stack([pair[1] for pair in kept])
    at = logits(data.repeat(len(p)), p)
    return JointPath(
        r=sizes[:, 0],
        R=sizes[:, 1],
        v=v,
        p=p,
        selected=np.argmax(np.where(data.mask, at, -np.inf), axis=-1),
        log_risk=np.array([_log_risk(data, pair) for pair in kept]),
        binds=np.stack([np.linalg.norm(v, axis=-1), np.linalg.norm(p, axis=-1)], axis=-1)
        >= sizes * (1.0 - ON_THE_EDGE),
        data=data,
    )


def _radii(r: Any, R: Any) -> FloatArray:
    """Limits (n_radii, 2), checked."""
    limits = []
    for value, name in ((r, "r"), (R, "R")):
        one = real_array(value if n_axes(value) else [value], name, ("n_radii",))
        if len(one) == 0 or np.any(one <= 0.0) or np.any(np.diff(one) < 0.0):
            wrong = one[one <= 0.0]
            got = f"{wrong[0]:g}" if len(wrong) else "none" if len(one) == 0 else "radii that fall"
            raise reject(name, "positive numbers, none smaller than the one before", got)
        limits.append(one)
    if len({len(one) for one in limits} - {1}) > 1:
        raise reject("R", f"as many radii as r, {len(limits[0])}", f"{len(limits[1])}")
    return np.stack(np.broadcast_arrays(*limits), axis=-1)


def _first(size: FloatArray, reach: FloatArray) -> FloatArray:
    """Limits to begin at: `size` if that is near, else limits in the same ratio out to `_FAR`, though none below `_LEAN`."""
    nearer = size * min(1.0, _FAR / float(np.max(size * reach)))
    return np.maximum(nearer, np.minimum(size, _LEAN / reach))


def _starts(data: TokenDataset, restarts: int, rng: np.random.Generator) -> list[Pair]:
    """Unit pairs to start from, for data in units: where joint descent ends, one per selection that it reaches, lowest risks first.

    Risks are judged near and far out in turn. Half of the starts are random pairs near zero; half lean towards random tokens, far enough
    out to stay with them where they can.
    """
    v, p = rng.standard_normal((restarts, data.d_model)), rng.standard_normal((restarts, data.d_key))
    chosen = rng.integers(data.lengths, size=(restarts // 2, data.n_inputs))
    each = np.arange(data.n_inputs)
    p[: len(chosen)] = _LEAN * np.nan_to_num(unit(np.sum(data.K[each, chosen], axis=-2)))
    for k, rows in enumerate(data.y[:, None] * data.X[each, chosen]):
        v[k] = _best_head(rows, _LEAN, rows.mean(axis=0))  # tells these tokens' labels apart as well as can be
    run = descend_joint(data.repeat(restarts), step=NormalizedStep(0.1), n_steps=400, start=(v, p))
    pairs = [(unit(run.v[j]), unit(run.p[j])) for j in range(restarts) if np.all(run.norms[j] > 0.0)]
    if not pairs:
        pairs = [(unit(rng.standard_normal(data.d_model)), unit(rng.standard_normal(data.d_key)))]
    orders = [sorted(pairs, key=lambda pair: _log_risk(data, (far * pair[0], far * pair[1]))) for far in (_LEAN, _FAR)]
    found: dict[tuple[int, ...], Pair] = {}
    for pair in (one for both in zip(*orders, strict=True) for one in both):
        found.setdefault(tuple(_attended(data, pair).alpha.tolist()), pair)
    return list(found.values())[:_BRANCHES]


def _reach(data: TokenDataset) -> FloatArray:
    """The lengths of the longest token and of the longest key less its input's mean, (2,)."""
    longest = [np.max(np.linalg.norm(part, axis=-1)) for part in (data.X, centred_keys(data))]
    return np.maximum(longest, 1e-300)


def _in_units(data: TokenDataset) -> TokenDataset:
    """The same problem with the longest token and the longest key of length one: directions of v and p mean the same there."""
    reach, keys = _reach(data), centred_keys(data)
    parts = [(data.X[i, :n] / reach[0], keys[i, :n] / reach[1]) for i, n in enumerate(data.lengths)]
    return TokenDataset([X for X, _ in parts], data.y, K=[K for _, K in parts])


def _attended(data: TokenDataset, pair: Pair) -> Any:
    return attend(logits(data, pair[1]), data.scores(pair[0]), data.mask)


def _log_risk(data: TokenDataset, pair: Pair) -> float:
    return _log_mean_loss(_attended(data, pair).margin)


def _log_mean_loss(margin: FloatArray) -> float:
    """log of the mean logistic loss, accurate where every loss underflows."""
    far = margin > 30.0  # there log(1 + e^-u) = e^-u to rounding
    logs = np.where(far, -margin, np.log(_LOSS.value(np.where(far, 0.0, margin))))
    top = float(np.max(logs))
    return top + float(np.log(np.mean(np.exp(logs - top))))


def _follow(data: TokenDataset, pair: Pair, last: FloatArray, size: FloatArray) -> Pair:
    """A pair that is stationary within the limits `last`, followed to wider ones."""
    n_rounds = max(1, int(np.ceil(np.log(np.max(size / last)) / np.log(_LEAP) - 1e-9)))
    factor = (size / last) ** (1.0 / n_rounds)
    for k in range(n_rounds):
        now = size if k == n_rounds - 1 else last * factor ** (k + 1)
        pair = _settle(data, (pair[0] * factor[0], pair[1] * factor[1]), now)
    return pair


def _settle(data: TokenDataset, pair: Pair, size: FloatArray) -> Pair:
    """Turns of v and p until the slopes of both are held by their limits, sped up by mixing the last few turns."""
    here, best, smallest = pair, pair, np.inf
    tried: list[Pair] = []  # where turns of p began and ended
    enough = _SETTLED + _NOISE * float(np.max(size * _reach(data)))
    for _ in range(_ROUNDS):
        turned = _turn(data, here, size)
        left = max(_residual(data, turned, size))
        tried = [*tried, (here[1], turned[1])][-_MEMORY:] if left < 2.0 * smallest else []
        if left < smallest:
            best, smallest = turned, left
        if left < enough:
            break
        here = (turned[0], _mix(tried, float(size[1]))) if tried else best  # where a mixture led astray, begin anew
    return best


def _turn(data: TokenDataset, pair: Pair, size: FloatArray) -> Pair:
    """The best v for the given p, then the best p for that v."""
    v, p = pair
    at = _attended(data, pair)
    v = _best_head(data.y[:, None] * attention_output(data, at.log_s, at.alpha), float(size[0]), v)
    landscape = _landscape(data, v)
    p = minimise(landscape, (p @ landscape.basis)[None], Region(float(size[1])))[0] @ landscape.basis.T
    return v, p


def _landscape(data: TokenDataset, v: FloatArray) -> Landscape:
    """The risk in p for one v. Inputs with one token are left out: their loss does not depend on p."""
    several = np.flatnonzero(data.lengths > 1)
    if 0 < len(several) < data.n_inputs:
        tokens, keys = ([part[i, : data.lengths[i]] for i in several] for part in (data.X, data.K))
        data = TokenDataset(tokens, data.y[several], K=keys)
    return Landscape(data, v, _LOSS)


def _mix(turns: list[Pair], radius: float) -> FloatArray:
    """Anderson mixing: the combination of the last ends of turns whose beginnings and ends would differ least."""
    ends = np.stack([after for _, after in turns])
    steps = ends - np.stack([before for before, _ in turns])
    shares, *_ = np.linalg.lstsq((steps[1:] - steps[:-1]).T, steps[-1], rcond=1e-10)
    mixed = ends[-1] - shares @ (ends[1:] - ends[:-1])
    norm = float(np.linalg.norm(mixed))
    edge = float(np.linalg.norm(ends[-1])) >= radius * (1.0 - ON_THE_EDGE)
    return mixed * (radius / norm if norm > radius or (edge and norm > 0.0) else 1.0)


def _best_head(rows: FloatArray, r: float, start: FloatArray) -> FloatArray:
    """The v of smallest mean logistic loss of the margins `rows` v, (n_inputs,), among those up to norm r: Newton steps along the ball."""
    v = start * min(1.0, r / max(float(np.linalg.norm(start)), 1e-300))
    enough = 1e-13 + _NOISE * r * float(np.max(np.linalg.norm(rows, axis=-1)))
    for _ in range(100):
        gradient, hessian, size = _head_slope(rows, v)
        held = _held(v, gradient, r)
        slope = held @ gradient
        if np.linalg.norm(slope) <= enough * size or size == 0.0:
            break
        on_ball = held.trace() < len(v) - 0.5
        outward = -float(gradient @ v) / r**2 if on_ball else 0.0  # the ball's own curvature, times its multiplier
        bent = held @ (hessian + outward * np.eye(len(v))) @ held
        values, vectors = np.linalg.eigh(bent)
        floor = np.linalg.norm(slope) / (4.0 * r)
        step = -held @ vectors @ ((vectors.T @ slope) / np.maximum(np.abs(values), floor))
        here, left, share = _log_mean_loss(rows @ v), float(np.linalg.norm(slope)) / size, 1.0
        for _ in range(_SHORTEST):
            trial = v + share * step
            norm = float(np.linalg.norm(trial))
            trial = trial * (r / norm if on_ball or norm > r else 1.0)
            ahead, _, ahead_size = _head_slope(rows, trial)
            rest = float(np.linalg.norm(_held(trial, ahead, r) @ ahead)) / ahead_size
            change = _log_mean_loss(rows @ trial) - here
            if change <= 1e-4 * share * float(slope @ step) or (
                abs(change) <= _NOISE * abs(here) + 1e-15 and rest < 0.7 * left
            ):
                v = trial
                break
            share *= 0.5
        else:
            break
    return v


def _head_slope(rows: FloatArray, v: FloatArray) -> tuple[FloatArray, FloatArray, float]:
    """Gradient and second derivative of the log of the mean loss in v, and the gradient's size if nothing in it cancelled."""
    margin = rows @ v
    logs = np.asarray(_LOSS.log_abs_derivative(margin)) - np.log(margin.size) - _log_mean_loss(margin)
    weight = np.exp(logs)  # |ℓ'_i| / Σ ℓ
    gradient = -(weight @ rows)
    curvature = weight * np.exp(-np.logaddexp(0.0, -margin))  # ℓ'' = |ℓ'| / (1 + e^-u)
    hessian = (rows * curvature[:, None]).T @ rows - np.outer(gradient, gradient)
    return gradient, hessian, float(weight @ np.linalg.norm(rows, axis=-1))


def _held(x: FloatArray, gradient: FloatArray, size: float) -> FloatArray:
    """Projection onto the directions that the ball leaves free at x, (d, d)."""
    identity = np.eye(len(x))
    if np.linalg.norm(x) < size * (1.0 - ON_THE_EDGE) or gradient @ x > 0.0:
        return identity
    u = x / np.linalg.norm(x)
    return identity - np.outer(u, u)


def _residual(data: TokenDataset, pair: Pair, size: Any) -> tuple[float, float]:
    """Slopes of a pair that no limit holds, relative to their terms."""
    at = _attended(data, pair)
    rows = data.y[:, None] * attention_output(data, at.log_s, at.alpha)
    gradient, _, terms = _head_slope(rows, pair[0])
    of_v = float(np.linalg.norm(_held(pair[0], gradient, float(size[0])) @ gradient)) / terms if terms > 0.0 else 0.0
    landscape = _landscape(data, pair[0])
    c = (pair[1] @ landscape.basis)[None]
    seen = landscape.view(c)
    left = float(np.linalg.norm(pressure(Region(float(size[1])), c, seen.gradient).slope))
    return of_v, left / float(seen.size[0]) if seen.size[0] > 0.0 else 0.0


def _distinct(data: TokenDataset, pairs: list[Pair], size: FloatArray) -> list[Pair]:
    """Pairs by risk, the lowest first, without repetition."""
    kept: list[Pair] = []
    for pair in sorted(pairs, key=lambda one: _log_risk(data, one)):
        if not any(_alike(pair, one, size) for one in kept):
            kept.append(pair)
    return kept


def _alike(one: Pair, other: Pair, size: FloatArray) -> bool:
    return all(np.allclose(a, b, atol=_SAME * s) for a, b, s in zip(one, other, size, strict=True))
