"""Regularisation paths of head and attention weights together, under limits on the norm of each.

Candidates at each radius are the local minima followed from the radius before, the point found there, and new starts: ends of
joint descent from random pairs, random attention weights of all sizes with the best head for them, and the max-margin pairs of
selections with a large label margin. Newton steps in v and p together lead each to a local minimum. If the attention saturates,
the gradient in p is exponentially smaller than that in v, and the two are solved in turn, each to rounding relative to its own
gradient. The risk never rises along the path. If an input that is not a support vector of the head stays mixed far out, a
gradient in p remains that is too small for doubles compared with the risk: `kkt_residual` shows it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from marginlens.arithmetic.directions import length, unit
from marginlens.data.tokens import TokenDataset
from marginlens.dynamics.descend import descend
from marginlens.dynamics.paths.path import PathPoints, PathSearch, SearchState, ball_bindings, no_region, path_search
from marginlens.dynamics.paths.projected_newton import (
    BOUNDARY_RTOL,
    LOGIT_ROUNDOFF,
    Ball,
    PositiveRisk,
    TwoBalls,
    kkt_residual,
    minimise,
)
from marginlens.errors import InputError, n_axes, real_array, whole_number
from marginlens.losses.margin import Logistic, compiled_code
from marginlens.optimizers import Blockwise, NormalizedGD
from marginlens.risk.attention import AttentionRisk, KeySpan, SecondOrder
from marginlens.risk.joint import HeadAndAttention, JointRisk, attention_output
from marginlens.risk.softmax import attend, centred_keys, logits, probabilities
from marginlens.svm import Status, att_svm, label_svm
from marginlens.typing import ArrayLike, FloatArray

Pair = HeadAndAttention
JOINT_RESTARTS = 64
JOINT_RADIUS_RATIO = 4.0  # by which the balls grow between two rounds of a branch
NEAR_LOGIT = 30.0  # norms, times the longest token or key less its input's mean, at which descent stays with its tokens
FAR_LOGIT = 3e3  # norms, in the same unit, at which the widest label margin has the lowest risk
ANDERSON_MEMORY = 6  # alternations that are mixed
MAX_ALTERNATIONS = 60  # of v and p before a branch is left as it is
MAX_STALLED = 6  # alternations in a row without a smaller residual after which they are given up
MAX_RETRIES = 3  # times that joint steps and alternations relieve each other
MAX_BRANCHES = 3  # local minima that are followed from one radius to the next
SETTLED_STARTS = 3  # selections of tokens, the lowest risks first, whose new starts are followed to the end
MAX_ENUMERATED = 256  # selections up to which all are compared by label margin
MAX_DESCENDED = 16  # selections at the end of joint descents that are starts
MAX_MARGIN_STARTS = 16  # selections whose max-margin pair is a start
SETTLED_RTOL = 1e-10  # gradient along the boundary, relative to its terms, at which a pair is final
SAME_SIZE_RTOL = 1e-12  # difference of two sizes up to which they are one
SAME_PAIR_RTOL = 1e-7  # difference, relative to the radii, up to which two pairs are one
MIXED_ATTENTION = 1e-3  # attention to other tokens above which an input counts as mixing
VANISHED_OUTPUT = (
    1e-100  # entries of an attention output, relative to the longest token, that belong to a token at the origin
)


@path_search.register(JointRisk)
def joint_search(risk: JointRisk, region: object, restarts: int | None) -> JointSearch:
    """Return the search over v and p, for the log-loss."""
    no_region(region, "a joint risk")
    if type(risk.loss) is not Logistic or compiled_code(risk.loss) < 0:
        raise InputError("loss", "ml.Logistic() for the path of a joint risk", type(risk.loss).__name__)
    n_starts = JOINT_RESTARTS if restarts is None else whole_number(restarts, "restarts", at_least=1)
    return JointSearch(risk.data, n_starts)


def log_mean_loss(margin: FloatArray) -> Any:
    """Compute the log of the mean logistic loss of margins (…, n_inputs), accurate even if every loss underflows; (…,)."""
    far = margin > 30.0  # there log(1 + e^-u) = e^-u to rounding
    logs = np.where(far, -margin, np.log(Logistic().value(np.where(far, 0.0, margin))))
    top = np.max(logs, axis=-1)
    return top + np.log(np.mean(np.exp(logs - top[..., None]), axis=-1))


def _loss_weights(margin: FloatArray, log_value: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return |ℓ'_i| and ℓ''_i over Σ ℓ, each (n_points, n_inputs): ℓ'' = |ℓ'| / (1 + e^-u)."""
    logs = np.asarray(Logistic().log_abs_derivative(margin)) - np.log(margin.shape[-1]) - log_value[:, None]
    weight = np.exp(logs)
    return weight, weight * np.exp(-np.logaddexp(0.0, -margin))


def _second_order(log_value: FloatArray, rows: FloatArray, weight: FloatArray, hessian: FloatArray) -> SecondOrder:
    """Return a risk to second order from the gradients (n_points, n_inputs, r) of its margins, with weights |ℓ'_i| over the risk."""
    terms = np.einsum("bi,bi->b", weight, np.linalg.norm(rows, axis=-1))
    gradient = -np.einsum("bi,bir->br", weight, rows)
    return PositiveRisk.expansion(gradient, hessian, terms, log_value, log_value)


@dataclass(frozen=True)
class HeadRisk(PositiveRisk):
    """The mean logistic loss of the margins `rows` v as a function of the head v; rows (n_inputs, d_model)."""

    rows: FloatArray

    @property
    def logit_scale(self) -> float:
        """The longest row."""
        return float(np.max(np.linalg.norm(self.rows, axis=-1)))

    def log_value(self, x: FloatArray) -> FloatArray:
        """Return the logarithm of the risk at heads (n_points, d_model)."""
        return log_mean_loss(x @ self.rows.T)

    def second_order(self, x: FloatArray) -> SecondOrder:
        """Return gradient and Hessian at heads (n_points, d_model)."""
        margin = x @ self.rows.T
        value = log_mean_loss(margin)
        weight, curvature = _loss_weights(margin, value)
        hessian = np.einsum("bi,id,ie->bde", curvature, self.rows, self.rows)
        return _second_order(value, np.broadcast_to(self.rows, (len(x), *self.rows.shape)), weight, hessian)


def best_head(rows: FloatArray, r: float, start: FloatArray) -> FloatArray:
    """Find the v of smallest mean logistic loss of the margins `rows` v, (n_inputs,), among those up to norm r."""
    return minimise(HeadRisk(rows), start[None], Ball(r), 100)[0]


@dataclass(frozen=True)
class _PairRisk(PositiveRisk):
    """The risk of v and p side by side, in units `scale` of each, with p by coordinates of the keys' span."""

    data: TokenDataset
    keys: FloatArray
    scale: FloatArray
    logit_scale: float

    def _attend(self, x: FloatArray) -> Any:
        v, c = x[:, : self.data.d_model] * self.scale[0], x[:, self.data.d_model :] * self.scale[1]
        scores = self.data.y[:, None] * np.einsum("itd,bd->bit", self.data.X, v)
        return attend(np.einsum("itr,br->bit", self.keys, c), scores, self.data.mask)

    def log_value(self, x: FloatArray) -> FloatArray:
        """Compute the log of the risk at points (n_points, d_model + r)."""
        return log_mean_loss(self._attend(x).margin)

    def second_order(self, x: FloatArray) -> SecondOrder:
        r"""Return gradient and Hessian at points (n_points, d_model + r).

        .. math:: \nabla^2 L = \tfrac1n \sum_i \ell''_i \nabla m_i \nabla m_i^\top + \ell'_i \nabla^2 m_i,
            \quad m_i = Y_i v^\top X_i^\top s_i
        """
        data, keys, d = self.data, self.keys, self.data.d_model
        at = self._attend(x)
        s = np.exp(at.log_s)
        lead = np.where(data.mask, at.delta[..., None] - at.gap, 0.0)  # γ_t - m_i
        value = log_mean_loss(at.margin)
        weight, curvature = _loss_weights(at.margin, value)
        output = np.einsum("bit,itd->bid", s, data.X)
        off_key = keys - np.einsum("bit,itr->bir", s, keys)[:, :, None, :]  # (n_points, n_inputs, n_tokens, r)
        of_c = np.einsum("bit,bitr->bir", s * lead, off_key)
        rows = np.concatenate([self.scale[0] * data.y[:, None] * output, self.scale[1] * of_c], axis=-1)  # ∇ m_i
        hessian = np.einsum("bi,bim,bil->bml", curvature, rows, rows)
        off_token = data.X - output[:, :, None, :]
        cross = np.einsum("bit,bitd,bitr->bdr", weight[..., None] * data.y[:, None] * s, off_token, off_key)
        hessian[:, :d, d:] -= cross * prod(self.scale)
        hessian[:, d:, :d] -= np.swapaxes(cross, -1, -2) * prod(self.scale)
        within = np.einsum("bit,bitr,bitq->brq", weight[..., None] * s * lead, off_key, off_key)
        hessian[:, d:, d:] -= within * self.scale[1] ** 2
        return _second_order(value, rows, weight, hessian)


@dataclass(frozen=True)
class JointSearch(PathSearch):
    """Local minima followed from small balls to large ones, with new starts at each of the sizes (r, R) asked for."""

    data: TokenDataset
    restarts: int

    # ---- the search as a path calls it

    def check_radii(self, radii: ArrayLike) -> FloatArray:
        """Check limits (n_radii, 2), from such an array or from a pair (r, R), positive and nondecreasing."""
        if not (isinstance(radii, tuple) and len(radii) == 2):
            array = real_array(radii, "radii", ("n_radii", 2), remedy="Or give a pair (r, R).")
            radii = (array[:, 0], array[:, 1])
        limits = []
        for value, name in zip(radii, ("r", "R"), strict=True):
            limit = real_array(value if n_axes(value) else [value], name, ("n_radii",))
            if len(limit) == 0 or np.any(limit <= 0.0) or np.any(np.diff(limit) < 0.0):
                wrong = limit[limit <= 0.0]
                got = f"{wrong[0]:g}" if len(wrong) else "none" if len(limit) == 0 else "radii that fall"
                raise InputError(name, "positive numbers, none smaller than the one before", got)
            limits.append(limit)
        if len({len(limit) for limit in limits} - {1}) > 1:
            raise InputError("R", f"as many radii as r, {len(limits[0])}", f"{len(limits[1])}")
        return np.stack(np.broadcast_arrays(*limits), axis=-1)

    def begin(self, generator: np.random.Generator) -> SearchState:
        """Draw random starts that serve every size: directions at the end of descents, attention weights and their lengths."""
        directions = replace(self, data=self._in_units())._descended(generator)
        mixing = unit(generator.standard_normal((self.restarts, self.data.d_key)))
        lengths = 10.0 ** generator.uniform(-0.5, np.log10(NEAR_LOGIT), self.restarts) / self.reach[1]
        return SearchState(np.empty((0, 2)), (), ((directions, mixing, lengths), [], (np.zeros(2), [])), generator)

    def follow(self, state: SearchState, size: FloatArray) -> SearchState:
        """Return the best pair found at the next size."""
        starts, branches, (begun, settled) = state.branches
        last = state.radii[-1] if len(state.radii) else size
        carried = [self._grow(pair, last, size) for pair in branches]
        near = self._first_size(size)
        if not np.allclose(near, begun, rtol=SAME_SIZE_RTOL, atol=0.0):  # far out new starts settle at one size for all
            begun, settled = near, self._fresh(near, starts)
        fresh = settled
        if np.any(near < size):
            known = {self._signature(pair) for pair in carried}  # far out each selection has one minimum
            fresh = [self._grow(pair, near, size) for pair in fresh if self._signature(pair) not in known]
        before = state.points[-1:]  # feasible in the wider balls too, so that the risk cannot rise
        ceiling = min((self._log_risk(pair) for pair in before), default=np.inf)
        best = self._lowest([*carried, *fresh, *before], size, ceiling)
        if any(best is pair for pair in before):
            best = self._lowest([self._settle(best, size), best], size, ceiling)
        branches = [best, *self._distinct([*carried, *fresh], best, size)][:MAX_BRANCHES]
        return state.reached(size, best, (starts, branches, (begun, settled)))

    def finish(self, state: SearchState) -> PathPoints:
        """Return points, tokens, log risk and the balls that bind."""
        parts = self.split(state)
        at = logits(self.data.repeat(len(parts.p)), parts.p)
        norms = np.stack([np.linalg.norm(part, axis=-1) for part in parts], axis=-1)
        binds = norms >= state.radii * (1.0 - BOUNDARY_RTOL)
        log_risk = np.array([self._log_risk(pair) for pair in state.points])
        return PathPoints(
            points=np.concatenate(parts, axis=-1),
            selected=np.argmax(np.where(self.data.mask, at, -np.inf), axis=-1),
            log_excess=log_risk,
            excess_sign=np.ones(len(log_risk)),
            binding=ball_bindings(binds),
        )

    def kkt_residual(self, state: SearchState) -> FloatArray:
        """Return the gradients in v and in p that no limit balances, each relative to its terms, (n_radii, 2)."""
        return np.array([self._residual(pair, size) for pair, size in zip(state.points, state.radii, strict=True)])

    def split(self, state: SearchState) -> HeadAndAttention:
        """Return v and p of all points."""
        return HeadAndAttention(*(np.stack(part) for part in zip(*state.points, strict=True)))

    # ---- risks and sizes

    @cached_property
    def reach(self) -> FloatArray:
        """The lengths of the longest token and of the longest key less its input's mean, (2,)."""
        longest = [np.max(np.linalg.norm(part, axis=-1)) for part in (self.data.X, centred_keys(self.data))]
        return np.maximum(longest, 1e-300)

    @cached_property
    def _span(self) -> KeySpan:
        """The risk in p; inputs with one token are left out: their loss does not depend on p."""
        several = self.data.lengths > 1
        data = self.data.take_inputs(several) if 0 < several.sum() < self.data.n_inputs else self.data
        return AttentionRisk(data, np.zeros(self.data.d_model), Logistic()).in_key_span()

    def _of_p(self, v: FloatArray) -> AttentionRisk:
        """Return the risk in p, in coordinates of the keys' span, for one v."""
        return AttentionRisk(self._span.risk.data, v, Logistic())

    def _of_v(self, pair: Pair) -> HeadRisk:
        """Return the risk in v at the attention of a pair."""
        at = self._attended(pair)
        return HeadRisk(self.data.y[:, None] * attention_output(self.data, at.log_s, at.alpha))

    def _attended(self, pair: Pair) -> Any:
        return attend(logits(self.data, pair.p), self.data.scores(pair.v), self.data.mask)

    def _log_risk(self, pair: Pair) -> float:
        return float(log_mean_loss(self._attended(pair).margin))

    def _residual(self, pair: Pair, size: FloatArray) -> tuple[float, float]:
        """Return the gradients of a pair that no limit balances, relative to their terms."""
        of_v = kkt_residual(self._of_v(pair), pair.v, Ball(float(size[0])))
        return of_v, kkt_residual(self._of_p(pair.v), pair.p @ self._span.basis, Ball(float(size[1])))

    def _blur(self, log_risk: float, size: FloatArray) -> float:
        """Return the rounding of a log risk at this size."""
        return LOGIT_ROUNDOFF * (abs(log_risk) + float(np.max(size * self.reach)))

    def _signature(self, pair: Pair) -> Any:
        """Return the tokens to which a pair attends most, and the inputs that it leaves mixed."""
        at = self._attended(pair)
        return tuple(at.alpha.tolist()), tuple((np.max(at.log_s, axis=-1) < np.log1p(-MIXED_ATTENTION)).tolist())

    def _first_size(self, size: FloatArray) -> FloatArray:
        """Return the limits to begin at: `size` if it is near, otherwise limits in the same ratio out to `FAR_LOGIT`, at least
        `NEAR_LOGIT`.
        """
        nearer = size * min(1.0, FAR_LOGIT / float(np.max(size * self.reach)))
        return np.maximum(nearer, np.minimum(size, NEAR_LOGIT / self.reach))

    # ---- from a start to a local minimum

    def _grow(self, pair: Pair, last: FloatArray, size: FloatArray) -> Pair:
        """Follow a pair that is stationary within the limits `last` to wider limits."""
        n_rounds = max(1, int(np.ceil(np.log(np.max(size / last)) / np.log(JOINT_RADIUS_RATIO) - 1e-9)))
        factor = (size / last) ** (1.0 / n_rounds)
        for k in range(n_rounds):
            at = last * factor**k
            ahead = size if k == n_rounds - 1 else last * factor ** (k + 1)
            bound = [np.linalg.norm(x) >= limit * (1.0 - BOUNDARY_RTOL) for x, limit in zip(pair, at, strict=True)]
            ratios = np.where(bound, ahead / at, 1.0)
            pair = self._settle(Pair(*(x * ratio for x, ratio in zip(pair, ratios, strict=True))), ahead)
        return pair

    def _settle(self, pair: Pair, size: FloatArray) -> Pair:
        """Find the local minimum below a pair: joint Newton steps if tokens are mixed, alternation if one gradient hides the other."""
        enough = SETTLED_RTOL + LOGIT_ROUNDOFF * float(np.max(size * self.reach))
        best, left = pair, max(self._residual(pair, size))
        for k in range(MAX_RETRIES):
            before = left
            if left >= enough and (k > 0 or any(self._signature(best)[1])):
                v, p = self._newton(best.v[None], best.p[None], size)
                best, left = self._better(best, left, Pair(v[0], p[0]), size)
            if left >= enough:
                best, left = self._better(best, left, self._alternate(best, size, enough), size)
            if left < enough or (k > 0 and left > 0.5 * before):
                break
        return best

    def _better(self, pair: Pair, left: float, other: Pair, size: FloatArray) -> tuple[Pair, float]:
        """Return the pair of lower risk with its residual; if rounding hides which it is, the one with the smaller residual."""
        residual = max(self._residual(other, size))
        risk, ahead = self._log_risk(pair), self._log_risk(other)
        blur = self._blur(risk, size)
        if ahead < risk - blur or (ahead <= risk + blur and residual < left):
            return other, residual
        return pair, left

    def _newton(self, v: FloatArray, p: FloatArray, size: FloatArray) -> Pair:
        """Take Newton steps in v and p together along the two balls, from starts (n_starts, d_model) and (n_starts, d_key)."""
        basis = self._span.basis
        scale = np.array(
            [size[0], min(float(size[1]), NEAR_LOGIT / self.reach[1])]
        )  # units in which steps are measured
        risk = _PairRisk(self.data, centred_keys(self.data) @ basis, scale, float(np.max(size * self.reach)))
        starts = np.concatenate([v / scale[0], (p @ basis) / scale[1]], axis=-1)
        z = minimise(risk, starts, TwoBalls(size / scale, self.data.d_model))
        return Pair(z[:, : self.data.d_model] * scale[0], (z[:, self.data.d_model :] * scale[1]) @ basis.T)

    def _alternate(self, pair: Pair, size: FloatArray, enough: float) -> Pair:
        """Alternate between the best v for a p and the best p for that v until both gradients are balanced, with Anderson mixing."""
        current, best, smallest, since = pair, pair, np.inf, 0
        rounds: list[tuple[FloatArray, FloatArray]] = []  # p before and after
        for _ in range(MAX_ALTERNATIONS):
            v = minimise(self._of_v(current), current.v[None], Ball(float(size[0])), 100)[0]
            c = minimise(self._of_p(v), (current.p @ self._span.basis)[None], Ball(float(size[1])))
            after = Pair(v, c[0] @ self._span.basis.T)
            left = max(self._residual(after, size))
            rounds = [*rounds, (current.p, after.p)][-ANDERSON_MEMORY:] if left < 2.0 * smallest else []
            since = 0 if left < 0.5 * smallest else since + 1
            if left < smallest:
                best, smallest = after, left
            if left < enough or since > MAX_STALLED:
                break
            current = Pair(v, _mixed(rounds, float(size[1]))) if rounds else best  # begin anew where mixing led astray
        return best

    # ---- starts

    def _in_units(self) -> TokenDataset:
        """Scale the problem to a longest token and a longest key of length one; directions of v and p mean the same there."""
        data, keys = self.data, centred_keys(self.data)
        parts = [(data.X[i, :n] / self.reach[0], keys[i, :n] / self.reach[1]) for i, n in enumerate(data.lengths)]
        return TokenDataset([X for X, _ in parts], data.y, K=[K for _, K in parts])

    def _descended(self, rng: np.random.Generator) -> Pair:
        """Return unit pairs (m, d_model), (m, d_key) at the ends of joint descents, one for each selection, for data in units.

        Half of its starts are random pairs near zero; half lean towards random tokens, far enough out to stay with them where they can.
        The lowest risks come first, judged near and far out in turn.
        """
        data, restarts = self.data, self.restarts
        v, p = rng.standard_normal((restarts, data.d_model)), rng.standard_normal((restarts, data.d_key))
        chosen = rng.integers(data.lengths, size=(restarts // 2, data.n_inputs))
        inputs = np.arange(data.n_inputs)
        p[: len(chosen)] = NEAR_LOGIT * np.nan_to_num(unit(np.sum(data.K[inputs, chosen], axis=-2)))
        for k, rows in enumerate(data.y[:, None] * data.X[inputs, chosen]):
            v[k] = best_head(rows, NEAR_LOGIT, rows.mean(axis=0))  # tells these tokens' labels apart as well as can be
        run = descend(
            JointRisk(data.repeat(restarts)), optimizer=Blockwise(NormalizedGD(0.1)), n_steps=400, start=(v, p)
        )
        last = run.split()
        moved = (length(last.v) > 0.0) & (length(last.p) > 0.0)
        pairs = [Pair(unit(last.v[j]), unit(last.p[j])) for j in np.flatnonzero(moved)]
        if not pairs:
            pairs = [Pair(unit(rng.standard_normal(data.d_model)), unit(rng.standard_normal(data.d_key)))]
        orders = [
            sorted(pairs, key=lambda pair: self._log_risk(Pair(size * pair.v, size * pair.p)))
            for size in (NEAR_LOGIT, FAR_LOGIT)
        ]
        by_selection: dict[Any, Pair] = {}
        for pair in (pair for both in zip(*orders, strict=True) for pair in both):
            by_selection.setdefault(tuple(self._attended(pair).alpha.tolist()), pair)
        return Pair(*(np.stack(parts) for parts in zip(*list(by_selection.values())[:MAX_DESCENDED], strict=True)))

    def _fresh(self, size: FloatArray, starts: Any) -> list[Pair]:
        """Return local minima that new starts lead to, the lowest for each selection of tokens, at most `SETTLED_STARTS`."""
        directions, mixing, lengths = starts
        margins = self._max_margins(size, np.concatenate([mixing, directions.p]))
        p = np.concatenate([np.minimum(lengths, size[1])[:, None] * mixing, margins])
        v = np.concatenate([directions.v * size[0], self._heads(p) * size[0]])
        found = self._newton(v, np.concatenate([directions.p * size[1], p]), size)
        pairs = [Pair(*parts) for parts in zip(*found, strict=True)]
        lowest: dict[Any, Pair] = {}
        for pair in sorted(pairs, key=self._log_risk):
            lowest.setdefault(self._signature(pair), pair)
        return [self._settle(pair, size) for pair in list(lowest.values())[:SETTLED_STARTS]]

    def _max_margins(self, size: FloatArray, p: FloatArray) -> FloatArray:
        """Return max-margin directions of the selections with the largest label margins, at full length, (m, d_key).

        All selections are compared where they are few, else those of the directions `p` (n_directions, d_key).
        """
        lengths = self.data.lengths.tolist()
        if prod(lengths) <= MAX_ENUMERATED:
            selected = np.stack([index.ravel() for index in np.indices(lengths)], axis=-1)
        else:
            at = np.where(self.data.mask, logits(self.data.repeat(len(p)), p), -np.inf)
            selected = np.unique(np.argmax(at, axis=-1), axis=0)
        solution = att_svm(self.data.repeat(len(selected)), selected)
        ok = solution.status == Status.OPTIMAL
        if not ok.any():
            return np.empty((0, self.data.d_key))
        rows = self.data.X[np.arange(self.data.n_inputs), selected[ok]]
        order = np.argsort(-np.asarray(label_svm(rows, self.data.y).margin), kind="stable")[:MAX_MARGIN_STARTS]
        return size[1] * unit(solution.x[ok][order])

    def _heads(self, p: FloatArray) -> FloatArray:
        """Return unit heads of the widest label margin at attention weights (m, d_key), or along the mean output if there is none."""
        many = self.data.repeat(len(p))
        outputs = np.einsum("bit,itd->bid", probabilities(logits(many, p), many.mask), self.data.X)
        outputs = np.where(np.abs(outputs) < VANISHED_OUTPUT * self.reach[0], 0.0, outputs)
        solution = label_svm(outputs, self.data.y)
        mean = np.einsum("i,bid->bd", self.data.y, outputs)
        return np.nan_to_num(unit(np.where((solution.status == Status.OPTIMAL)[:, None], solution.x, mean)))

    # ---- comparisons

    def _lowest(self, pairs: list[Pair], size: FloatArray, ceiling: float) -> Pair:
        """Return the pair of lowest risk, none above the ceiling; if only rounding distinguishes pairs, that of the smallest residual."""
        risks = np.array([self._log_risk(pair) for pair in pairs])
        lowest = float(risks.min())
        highest = max(lowest, min(lowest + self._blur(lowest, size), ceiling))
        near = [pair for pair, risk in zip(pairs, risks, strict=True) if risk <= highest]
        return min(near, key=lambda pair: max(self._residual(pair, size)))

    def _distinct(self, pairs: list[Pair], best: Pair, size: FloatArray) -> list[Pair]:
        """Return pairs by risk, the lowest first, without repetition and without the best."""
        tolerance, distinct = SAME_PAIR_RTOL * size, [best]
        for pair in sorted(pairs, key=self._log_risk):
            if not any(_alike(pair, other, tolerance) for other in distinct):
                distinct.append(pair)
        return distinct[1:]


def _alike(pair: Pair, other: Pair, tolerance: FloatArray) -> bool:
    return all(np.allclose(a, b, rtol=0.0, atol=atol) for a, b, atol in zip(pair, other, tolerance, strict=True))


def _mixed(rounds: list[tuple[FloatArray, FloatArray]], radius: float) -> FloatArray:
    """Mix by Anderson's method: combine the last results so that their beginnings and ends would differ least."""
    ends = np.stack([after for _, after in rounds])
    steps = ends - np.stack([before for before, _ in rounds])
    shares, *_ = np.linalg.lstsq((steps[1:] - steps[:-1]).T, steps[-1], rcond=1e-10)
    mixed = ends[-1] - shares @ (ends[1:] - ends[:-1])
    norm = float(np.linalg.norm(mixed))
    on_edge = np.linalg.norm(ends[-1]) >= radius * (1.0 - BOUNDARY_RTOL)
    return mixed * (radius / norm if norm > radius or (on_edge and norm > 0.0) else 1.0)
