"""Joint regularisation paths: the head and the attention weights of smallest risk up to a norm for each, as both norms grow."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from marginlens.data.random_tokens import as_generator
from marginlens.data.tokens import TokenDataset, as_dataset
from marginlens.directions import length, unit
from marginlens.dynamics.descend import descend
from marginlens.dynamics.paths.landscape import Landscape
from marginlens.dynamics.paths.projected_newton import ON_THE_EDGE, Region, minimise, pressure
from marginlens.errors import n_axes, real_array, reject, whole_number
from marginlens.losses.margin import Logistic
from marginlens.optimizers import Blockwise, NormalizedGD
from marginlens.papers import implements
from marginlens.risk.joint import JointRisk, attention_output
from marginlens.risk.softmax import attend, centred_keys, logits, probabilities
from marginlens.svm import Status, att_svm, label_svm

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Pair = tuple[FloatArray, FloatArray]
_LOSS = Logistic()
_LEAP = 4.0  # factor by which the balls grow between two rounds of a branch
_LEAN = 30.0  # norms, times the longest token or key less its input's mean, at which descent keeps to the tokens it starts with
_FAR = 3e3  # norms, in the same unit, at which the widest label margin has the lowest risk
_MEMORY = 6  # turns that are mixed
_ROUNDS = 60  # turns of v and p before a branch is left as it is
_STALLED_ROUNDS = 6  # turns in a row without a smaller slope after which they are given up
_RETRIES = 3  # times that joint steps and turns relieve each other
_BRANCHES = 3  # local minima that are followed from one radius to the next
_SETTLED_STARTS = 3  # selections of tokens, the lowest risks first, whose new starts are followed to the end
_MANY_SELECTIONS = 256  # selections up to which all are compared by label margin
_DESCENTS = 16  # selections at the end of joint descents that are starts
_MARGIN_STARTS = 16  # selections whose max-margin pair is a start
_SETTLED = 1e-10  # slope along the boundary, relative to its terms, at which a pair is left alone
_NOISE = 16.0 * np.finfo(float).eps  # relative rounding of margins
_SAME = 1e-7  # difference, relative to the radii, up to which two pairs are one
_MIXED = 1e-3  # attention to other tokens above which an input counts as mixing
_VANISHED = (
    1e-100  # entries of an attention output, relative to the longest token, below which it is a token at the origin
)
_SHORTEST = 40  # halvings of a step before it is given up
_ARMIJO = 1e-4  # share of the predicted decrease that a step must bring
_SHARES = tuple(
    0.5 ** np.arange(low, high) for low, high in ((0, 1), (1, 6), (6, 14), (14, 28))
)  # of a step, tried in turn


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

    Candidates at each radius are the local minima followed from the radius before, the point found there, and new starts: ends of joint
    descent from random pairs, random attention weights of all sizes with the best head for them, and the max-margin pairs of selections
    with a large label margin. Newton steps in v and p together lead each to a local minimum; where the attention saturates, the slope in
    p is exponentially smaller than that in v, and the two are solved in turn, each to rounding relative to its own slope. Candidates
    are compared by the logarithm of the risk, which therefore never rises along the path. Where an input that is no support vector of
    the head is left mixed far out, a slope in p remains that is too small beside the risk for doubles: `kkt_residual` shows it.

    Args:
        data: one problem.
        r, R: (n_radii,) limits on ‖v‖ and ‖p‖, positive; neither may fall. A single number stays as it is along the other.
        restarts: random starts of each kind. More of them make it surer that the minimum is global.
        rng: a `numpy.random.Generator`, or a whole number to seed one.
    Returns:
        A `JointPath`. Check it with `path.kkt_residual()`, and for being global with another `rng` and more restarts.
    """
    as_dataset(data)
    if data.is_batch:
        raise reject("data", "one problem", f"a batch of {len(data)}", "Take one with data[j].")
    sizes = _radii(r, R)
    whole_number(restarts, "restarts", at_least=1)
    with threadpool_limits(1, "blas"):  # matrices this small only wait for each other's threads
        kept = _Search(data, restarts, as_generator(rng)).along(sizes)
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


class _Search:
    """Local minima followed from small balls to large ones, with new starts at each of the sizes asked for."""

    def __init__(self, data: TokenDataset, restarts: int, rng: np.random.Generator) -> None:
        self.data, self.reach = data, _reach(data)
        self.directions = _descended(_in_units(data), restarts, rng)
        self.mixing = unit(rng.standard_normal((restarts, data.d_key)))
        self.lengths = 10.0 ** rng.uniform(-0.5, np.log10(_LEAN), restarts) / self.reach[1]

    def along(self, sizes: FloatArray) -> list[Pair]:
        """The best pair found at each size (r, R)."""
        branches: list[Pair] = []
        kept: list[Pair] = []
        for k, size in enumerate(sizes):
            carried = [_follow(self.data, pair, sizes[k - 1], size) for pair in branches]
            near = _first(size, self.reach)
            fresh = self._fresh(near)
            if np.any(near < size):
                known = {_signature(self.data, pair) for pair in carried}  # far out each selection has one minimum
                fresh = [pair for pair in fresh if _signature(self.data, pair) not in known]
                fresh = [_follow(self.data, pair, near, size) for pair in fresh]
            before = kept[-1:]  # feasible here too, so that the risk cannot rise
            ceiling = min((_log_risk(self.data, pair) for pair in before), default=np.inf)
            best = _lowest(self.data, [*carried, *fresh, *before], size, ceiling)
            if any(best is pair for pair in before):
                best = _lowest(self.data, [_settle(self.data, best, size), best], size, ceiling)
            branches = [best, *_distinct(self.data, [*carried, *fresh], best, size)][:_BRANCHES]
            kept.append(best)
        return kept

    def _fresh(self, size: FloatArray) -> list[Pair]:
        """Local minima that new starts lead to, the lowest for each selection of tokens, up to `_SETTLED_STARTS` of them."""
        p = np.concatenate([np.minimum(self.lengths, size[1])[:, None] * self.mixing, self._max_margins(size)])
        v = np.concatenate([self.directions[0] * size[0], self._heads(p) * size[0]])
        p = np.concatenate([self.directions[1] * size[1], p])
        v, p = _newton(self.data, v, p, size)
        heights = [_log_risk(self.data, pair) for pair in zip(v, p, strict=True)]
        lowest: dict[Any, Pair] = {}
        for k in np.argsort(heights, kind="stable"):
            lowest.setdefault(_signature(self.data, (v[k], p[k])), (v[k], p[k]))
        return [_settle(self.data, pair, size) for pair in list(lowest.values())[:_SETTLED_STARTS]]

    def _max_margins(self, size: FloatArray) -> FloatArray:
        """Max-margin directions of the selections with the largest label margins, at full length, (m, d_key)."""
        lengths = self.data.lengths.tolist()
        if prod(lengths) <= _MANY_SELECTIONS:
            selected = np.stack([one.ravel() for one in np.indices(lengths)], axis=-1)
        else:
            p = np.concatenate([self.mixing, self.directions[1]])
            at = np.where(self.data.mask, logits(self.data.repeat(len(p)), p), -np.inf)
            selected = np.unique(np.argmax(at, axis=-1), axis=0)
        found = att_svm(self.data.repeat(len(selected)), selected)
        ok = found.status == Status.OPTIMAL
        if not ok.any():
            return np.empty((0, self.data.d_key))
        rows = self.data.X[np.arange(self.data.n_inputs), selected[ok]]
        order = np.argsort(-np.asarray(label_svm(rows, self.data.y).margin), kind="stable")[:_MARGIN_STARTS]
        return size[1] * unit(found.x[ok][order])

    def _heads(self, p: FloatArray) -> FloatArray:
        """Unit heads of the widest label margin at attention weights (m, d_key); along the mean output where there is none."""
        many = self.data.repeat(len(p))
        outputs = np.einsum("bit,itd->bid", probabilities(logits(many, p), many.mask), self.data.X)
        outputs = np.where(np.abs(outputs) < _VANISHED * self.reach[0], 0.0, outputs)
        found = label_svm(outputs, self.data.y)
        mean = np.einsum("i,bid->bd", self.data.y, outputs)
        return np.nan_to_num(unit(np.where((found.status == Status.OPTIMAL)[:, None], found.x, mean)))


def _descended(data: TokenDataset, restarts: int, rng: np.random.Generator) -> Pair:
    """Unit pairs (m, d_model), (m, d_key) for data in units: where joint descent ends, one for each selection that it reaches.

    Half of its starts are random pairs near zero; half lean towards random tokens, far enough out to stay with them where they can.
    The lowest risks come first, judged near and far out in turn.
    """
    v, p = rng.standard_normal((restarts, data.d_model)), rng.standard_normal((restarts, data.d_key))
    chosen = rng.integers(data.lengths, size=(restarts // 2, data.n_inputs))
    each = np.arange(data.n_inputs)
    p[: len(chosen)] = _LEAN * np.nan_to_num(unit(np.sum(data.K[each, chosen], axis=-2)))
    for k, rows in enumerate(data.y[:, None] * data.X[each, chosen]):
        v[k] = best_head(rows, _LEAN, rows.mean(axis=0))  # tells these tokens' labels apart as well as can be
    run = descend(JointRisk(data.repeat(restarts)), optimizer=Blockwise(NormalizedGD(0.1)), n_steps=400, start=(v, p))
    last = run.split()
    moved = (length(last.v) > 0.0) & (length(last.p) > 0.0)
    pairs = [(unit(last.v[j]), unit(last.p[j])) for j in np.flatnonzero(moved)]
    if not pairs:
        pairs = [(unit(rng.standard_normal(data.d_model)), unit(rng.standard_normal(data.d_key)))]
    orders = [sorted(pairs, key=lambda pair: _log_risk(data, (far * pair[0], far * pair[1]))) for far in (_LEAN, _FAR)]
    found: dict[Any, Pair] = {}
    for pair in (one for both in zip(*orders, strict=True) for one in both):
        found.setdefault(tuple(_attended(data, pair).alpha.tolist()), pair)
    v, p = (np.stack(parts) for parts in zip(*list(found.values())[:_DESCENTS], strict=True))
    return v, p


def _signature(data: TokenDataset, pair: Pair) -> Any:
    """Which tokens a pair attends to most, and which inputs it leaves mixed."""
    at = _attended(data, pair)
    return tuple(at.alpha.tolist()), tuple((np.max(at.log_s, axis=-1) < np.log1p(-_MIXED)).tolist())


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
    return float(log_mean_loss(_attended(data, pair).margin))


def log_mean_loss(margin: FloatArray) -> Any:
    """log of the mean logistic loss of margins (…, n_inputs), accurate where every loss underflows; (…,)."""
    far = margin > 30.0  # there log(1 + e^-u) = e^-u to rounding
    logs = np.where(far, -margin, np.log(_LOSS.value(np.where(far, 0.0, margin))))
    top = np.max(logs, axis=-1)
    return top + np.log(np.mean(np.exp(logs - top[..., None]), axis=-1))


def _follow(data: TokenDataset, pair: Pair, last: FloatArray, size: FloatArray) -> Pair:
    """A pair that is stationary within the limits `last`, followed to wider ones."""
    n_rounds = max(1, int(np.ceil(np.log(np.max(size / last)) / np.log(_LEAP) - 1e-9)))
    factor = (size / last) ** (1.0 / n_rounds)
    for k in range(n_rounds):
        at = last * factor**k
        ahead = size if k == n_rounds - 1 else last * factor ** (k + 1)
        bound = [np.linalg.norm(x) >= limit * (1.0 - ON_THE_EDGE) for x, limit in zip(pair, at, strict=True)]
        v, p = (x * (ratio if held else 1.0) for x, ratio, held in zip(pair, ahead / at, bound, strict=True))
        pair = _settle(data, (v, p), ahead)
    return pair


def _settle(data: TokenDataset, pair: Pair, size: FloatArray) -> Pair:
    """The local minimum below a pair: joint Newton steps where tokens are mixed, turns of v and p where one slope hides the other."""
    enough = _SETTLED + _NOISE * float(np.max(size * _reach(data)))
    best, left = pair, max(_residual(data, pair, size))
    for k in range(_RETRIES):
        before = left
        if left >= enough and (k > 0 or any(_signature(data, best)[1])):
            v, p = _newton(data, best[0][None], best[1][None], size)
            best, left = _better(data, (best, left), (v[0], p[0]), size)
        if left >= enough:
            best, left = _better(data, (best, left), _turns(data, best, size, enough), size)
        if left < enough or (k > 0 and left > 0.5 * before):
            break
    return best


def _better(data: TokenDataset, best: tuple[Pair, float], other: Pair, size: FloatArray) -> tuple[Pair, float]:
    """The pair of lower risk with the slope that no limit holds; where rounding hides which it is, the one with less slope."""
    pair, left = best
    slope = max(_residual(data, other, size))
    risk, ahead = _log_risk(data, pair), _log_risk(data, other)
    blur = _NOISE * (abs(risk) + float(np.max(size * _reach(data))))
    if ahead < risk - blur or (ahead <= risk + blur and slope < left):
        return other, slope
    return pair, left


def _turns(data: TokenDataset, pair: Pair, size: FloatArray, enough: float) -> Pair:
    """Turns of v and p until the slopes of both are held by their limits, sped up by mixing the last few turns."""
    current, best, smallest, since = pair, pair, np.inf, 0
    tried: list[Pair] = []  # where turns of p began and ended
    for _ in range(_ROUNDS):
        turned = _turn(data, current, size)
        left = max(_residual(data, turned, size))
        tried = [*tried, (current[1], turned[1])][-_MEMORY:] if left < 2.0 * smallest else []
        since = 0 if left < 0.5 * smallest else since + 1
        if left < smallest:
            best, smallest = turned, left
        if left < enough or since > _STALLED_ROUNDS:
            break
        current = (turned[0], _mix(tried, float(size[1]))) if tried else best  # where a mixture led astray, begin anew
    return best


def _turn(data: TokenDataset, pair: Pair, size: FloatArray) -> Pair:
    """The best v for the given p, then the best p for that v."""
    v, p = pair
    at = _attended(data, pair)
    v = best_head(data.y[:, None] * attention_output(data, at.log_s, at.alpha), float(size[0]), v)
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


@dataclass(frozen=True)
class _JointView:
    """log of the risk at pairs (batch,), with its slope and curvature in (v, p) side by side.

    Attributes:
        value: (batch,). gradient: (batch, m), m = d_model + rank of the keys. hessian: (batch, m, m).
        size: (batch,) the gradient's length if no two of its terms cancelled.
    """

    value: FloatArray
    gradient: FloatArray
    hessian: FloatArray
    size: FloatArray


def _newton(data: TokenDataset, v: FloatArray, p: FloatArray, size: FloatArray, max_steps: int = 60) -> Pair:
    """Newton steps in v and p together along the two balls, from starts (batch, d_model) and (batch, d_key)."""
    landscape = _landscape_basis(data)
    keys = centred_keys(data) @ landscape
    scale = np.array([size[0], min(float(size[1]), _LEAN / _reach(data)[1])])  # units in which steps are measured
    split, radii = data.d_model, size / scale
    z = np.concatenate([v / scale[0], (p @ landscape) / scale[1]], axis=-1)
    moving = np.arange(len(z))
    for _ in range(max_steps):
        seen = _view(data, keys, z[moving], scale)
        free, outward = _free_directions(z[moving], seen.gradient, split, radii)
        slope = np.einsum("bij,bj->bi", free, seen.gradient)
        length = np.linalg.norm(slope, axis=-1)
        go = length > 1e-13 * seen.size
        if not go.any():
            break
        moving, slope, length, free = moving[go], slope[go], length[go], free[go]
        curvature = seen.hessian[go] + outward[go][:, :, None] * np.eye(z.shape[-1])
        values, vectors = np.linalg.eigh(free @ curvature @ free)
        along = np.einsum("bij,bi->bj", vectors, slope)
        step = -np.einsum("bij,bj->bi", vectors, along / np.maximum(np.abs(values), 0.25 * length[:, None]))
        step = np.einsum("bij,bj->bi", free, step)
        new = _line_search(
            data, keys, z[moving], (step, slope, outward[go] > 0.0), seen.value[go], (scale, split, radii)
        )
        moved = np.any(new != z[moving], axis=-1)
        z[moving] = new
        moving = moving[moved]
        if len(moving) == 0:
            break
    return z[:, :split] * scale[0], (z[:, split:] * scale[1]) @ landscape.T


def _line_search(
    data: TokenDataset, keys: FloatArray, z: FloatArray, move: Any, value: FloatArray, limits: Any
) -> FloatArray:
    """Points after the longest share of a step, moved back onto the balls, that lowers the risk; the same points where none does."""
    (step, slope, held), (scale, split, radii) = move, limits
    expected = np.sum(slope * step, axis=-1)
    new, waiting = z.copy(), np.arange(len(z))
    for shares in _SHARES:
        each, share = np.repeat(waiting, len(shares)), np.tile(shares, len(waiting))
        trial = _onto_balls(z[each] + share[:, None] * step[each], held[each], split, radii)
        change = _values(data, keys, trial, scale) - value[each]
        accepted = (change <= _ARMIJO * share * expected[each]).reshape(len(waiting), -1)
        first, taken = np.argmax(accepted, axis=-1), accepted.any(axis=-1)
        new[waiting[taken]] = trial.reshape(*accepted.shape, -1)[taken, first[taken]]
        waiting = waiting[~taken]
        if len(waiting) == 0:
            break
    return new


def _onto_balls(z: FloatArray, held: BoolArray, split: int, radii: FloatArray) -> FloatArray:
    """Points (batch, m) with both blocks inside their balls, on them where they were held there."""
    blocks = []
    for block, bound, radius in zip(np.split(z, [split], axis=-1), (held[:, 0], held[:, -1]), radii, strict=True):
        norm = np.linalg.norm(block, axis=-1)
        factor = np.where(bound | (norm > radius), radius / np.maximum(norm, 1e-300), 1.0)
        blocks.append(block * factor[:, None])
    return np.concatenate(blocks, axis=-1)


def _free_directions(
    z: FloatArray, gradient: FloatArray, split: int, radii: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Projections (batch, m, m) onto the directions that the balls leave free, and each coordinate's multiplier over its radius."""
    free = np.broadcast_to(np.eye(z.shape[-1]), (*z.shape, z.shape[-1])).copy()
    outward = np.zeros_like(z)
    for block, radius in ((slice(0, split), radii[0]), (slice(split, None), radii[1])):
        x, g = z[:, block], gradient[:, block]
        norm = np.linalg.norm(x, axis=-1)
        pull = -np.sum(g * x, axis=-1)
        bound = (norm >= radius * (1.0 - ON_THE_EDGE)) & (pull > 0.0)
        u = np.where(bound[:, None], x / np.maximum(norm, 1e-300)[:, None], 0.0)
        free[:, block, block] -= u[:, :, None] * u[:, None, :]
        outward[:, block] = np.where(bound, pull / radius**2, 0.0)[:, None]
    return free, outward


def _landscape_basis(data: TokenDataset) -> FloatArray:
    """Orthonormal columns (d_key, rank) that span the key differences: nothing else of p changes the risk."""
    return _landscape(data, np.zeros(data.d_model)).basis


def _values(data: TokenDataset, keys: FloatArray, z: FloatArray, scale: FloatArray) -> FloatArray:
    """log of the risk at points (batch, m) in units of `scale`."""
    v, c = z[:, : data.d_model] * scale[0], z[:, data.d_model :] * scale[1]
    scores = data.y[:, None] * np.einsum("itd,bd->bit", data.X, v)
    return log_mean_loss(attend(np.einsum("itr,br->bit", keys, c), scores, data.mask).margin)


def _view(data: TokenDataset, keys: FloatArray, z: FloatArray, scale: FloatArray) -> _JointView:
    r"""log of the risk to second order at points (batch, m) in units of `scale`.

    .. math:: \nabla^2 \log L = \sum_i \tfrac{\ell''_i}{\Sigma \ell} \nabla m_i \nabla m_i^\top
        + \tfrac{\ell'_i}{\Sigma \ell} \nabla^2 m_i - g g^\top, \quad m_i = Y_i v^\top X_i^\top s_i
    """
    v, c = z[:, : data.d_model] * scale[0], z[:, data.d_model :] * scale[1]
    scores = data.y[:, None] * np.einsum("itd,bd->bit", data.X, v)
    at = attend(np.einsum("itr,br->bit", keys, c), scores, data.mask)
    s, margin = np.exp(at.log_s), at.margin
    lead = np.where(data.mask, at.delta[..., None] - at.gap, 0.0)  # γ_t - m_i
    value = log_mean_loss(margin)
    weight = np.exp(
        np.asarray(_LOSS.log_abs_derivative(margin)) - np.log(margin.shape[-1]) - value[:, None]
    )  # |ℓ'_i| / Σ ℓ
    bend = weight * np.exp(-np.logaddexp(0.0, -margin))  # ℓ''_i / Σ ℓ
    output = np.einsum("bit,itd->bid", s, data.X)
    off_key = keys - np.einsum("bit,itr->bir", s, keys)[:, :, None, :]  # (batch, n_inputs, n_tokens, r)
    of_c = np.einsum("bit,bitr->bir", s * lead, off_key)
    rows = np.concatenate([scale[0] * data.y[:, None] * output, scale[1] * of_c], axis=-1)  # ∇ m_i
    gradient = -np.einsum("bi,bim->bm", weight, rows)
    hessian = np.einsum("bi,bim,bil->bml", bend, rows, rows) - gradient[:, :, None] * gradient[:, None, :]
    off_token = data.X - output[:, :, None, :]
    cross = (
        np.einsum("bit,bitd,bitr->bdr", weight[..., None] * data.y[:, None] * s, off_token, off_key)
        * scale[0]
        * scale[1]
    )
    d = data.d_model
    hessian[:, :d, d:] -= cross
    hessian[:, d:, :d] -= np.swapaxes(cross, -1, -2)
    hessian[:, d:, d:] -= (
        np.einsum("bit,bitr,bitq->brq", weight[..., None] * s * lead, off_key, off_key) * scale[1] ** 2
    )
    return _JointView(value, gradient, hessian, np.einsum("bi,bi->b", weight, np.linalg.norm(rows, axis=-1)))


def best_head(rows: FloatArray, r: float, start: FloatArray) -> FloatArray:
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
        log_risk, left, share = log_mean_loss(rows @ v), float(np.linalg.norm(slope)) / size, 1.0
        for _ in range(_SHORTEST):
            trial = v + share * step
            norm = float(np.linalg.norm(trial))
            trial = trial * (r / norm if on_ball or norm > r else 1.0)
            ahead, _, ahead_size = _head_slope(rows, trial)
            rest = float(np.linalg.norm(_held(trial, ahead, r) @ ahead)) / ahead_size
            change = log_mean_loss(rows @ trial) - log_risk
            if change <= 1e-4 * share * float(slope @ step) or (
                abs(change) <= _NOISE * abs(log_risk) + 1e-15 and rest < 0.7 * left
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
    logs = np.asarray(_LOSS.log_abs_derivative(margin)) - np.log(margin.size) - log_mean_loss(margin)
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


def _lowest(data: TokenDataset, pairs: list[Pair], size: FloatArray, ceiling: float) -> Pair:
    """The pair of lowest risk, none above the ceiling; among those that rounding alone tells apart, the one with the least slope."""
    risks = np.array([_log_risk(data, pair) for pair in pairs])
    blur = _NOISE * (abs(float(risks.min())) + float(np.max(size * _reach(data))))
    highest = max(float(risks.min()), min(float(risks.min()) + blur, ceiling))
    near = [pair for pair, risk in zip(pairs, risks, strict=True) if risk <= highest]
    return min(near, key=lambda pair: max(_residual(data, pair, size)))


def _distinct(data: TokenDataset, pairs: list[Pair], best: Pair, size: FloatArray) -> list[Pair]:
    """Pairs by risk, the lowest first, without repetition and without the best."""
    kept = [best]
    for pair in sorted(pairs, key=lambda one: _log_risk(data, one)):
        if not any(_alike(pair, one, size) for one in kept):
            kept.append(pair)
    return kept[1:]


def _alike(one: Pair, other: Pair, size: FloatArray) -> bool:
    return all(np.allclose(a, b, atol=_SAME * s) for a, b, s in zip(one, other, size, strict=True))
