"""Certificates that a direction is the limit: a point of a run, a tube around it, and a check of the proof in interval arithmetic."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import numpy as np

from marginlens.data.tokens import TokenDataset
from marginlens.directions import length
from marginlens.errors import reject, whole_number
from marginlens.losses.margin import CorrelationLoss, Exponential, Logistic, Loss
from marginlens.optimizers import GradientDescent, NormalizedGD
from marginlens.optimizers.gradient_descent import has_plain_steps
from marginlens.papers import implements
from marginlens.result import Headline, Result, Tabular, drawn
from marginlens.result.drawing import draw_bars
from marginlens.runtime.files import read_result, write_result
from marginlens.theory.assumptions import Check, TheoremVerdict
from marginlens.theory.attraction import SENTENCES, STEEPNESS, WORDS, Missing, Tubes, find_tubes
from marginlens.theory.forecast import Forecast, forecast
from marginlens.theory.intervals import Exact, Proving, distance_after, slope_in
from marginlens.typing import Axes, FloatArray, IntArray

_PROGRESS_LEFT = 0.99  # of θ', so that the number holds with room to spare
_SLOW = 0.1  # share of R² up to which what a row adds is summed up; beyond it the tube grows instead
_LOSSES: dict[str, type[Loss]] = {kind.__name__: kind for kind in (Logistic, Exponential, CorrelationLoss)}


@dataclass(frozen=True, repr=False, eq=False)
class Proof(Result, Tabular):
    """A proof about training from a point on, whose inequalities can be checked anew; `to_frame()` has one row per condition."""

    data: TokenDataset
    head: FloatArray
    loss: Loss
    point: FloatArray
    tolerance: float
    format: ClassVar[str]  # of its files
    not_negative: ClassVar[tuple[str, ...]] = ("tolerance",)  # numbers among the fields
    positive: ClassVar[tuple[str, ...]]
    steps: ClassVar[tuple[str, ...]] = ()  # what a file holds of the optimizer

    @property
    def norm(self) -> float:
        """‖p‖ at the point."""
        return float(length(self.point))

    @abstractmethod
    def verify(self) -> TheoremVerdict:
        """Recompute every inequality of the proof from the data."""

    def requirements(self) -> Iterator[tuple[str, bool, str]]:
        """What the theorem asks of each field: its name, whether it is so, and what it has to be. Fields rely on those before."""
        data = self.data
        yield "data", type(data) is TokenDataset and _is_one_problem(data), "one problem"
        yield "head", _is_vector(self.head, data.d_model), f"{data.d_model} finite numbers"
        yield "loss", type(self.loss) in _LOSSES.values(), f"one of {', '.join(_LOSSES)}"
        yield "point", _is_vector(self.point, data.d_key), f"{data.d_key} finite numbers"
        for name in self.not_negative:
            yield name, _is_number(getattr(self, name)) and getattr(self, name) >= 0.0, "a finite number, at least 0"
        for name in self.positive:
            yield name, _is_number(getattr(self, name)) and getattr(self, name) > 0.0, "a finite number above 0"

    def refused(self) -> tuple[Check, ...]:
        """The condition that the first wrong field fails, none where all fields are as the theorem asks."""
        wrong = next(((name, expected) for name, holds, expected in self.requirements() if not holds), None)
        return () if wrong is None else (Check(wrong[0], False, f"it has to be {wrong[1]}", {"room": float("nan")}),)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the certificate and its problem to a .npz file, which `load` of its class reads."""
        problem = {**self.data.arrays(), "head": self.head, "loss": np.array(type(self.loss).__name__)}
        named = {name: getattr(self, name) for name in (*self.steps, *self._numbers())}
        write_result(path, self.format, problem | named)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """A certificate that `save` wrote. What it says is to be checked by `verify`."""
        names = cls._numbers()
        needed = ("X", "y", "head", "loss", *cls.steps, *names)
        arrays = read_result(path, cls.format, f"a .npz file that {cls.__name__}.save wrote", needed)
        data, head, loss = _problem_of(arrays)
        read: dict[str, Any] = {name: arrays[name] if arrays[name].ndim else float(arrays[name]) for name in names}
        if cls.steps:
            size = float(arrays["size"])
            plain = GradientDescent(size) if size > 0.0 else None
            read["optimizer"] = NormalizedGD(size) if arrays["normalized"] else plain
        return cls(data=data, head=head, loss=loss, **read)

    @classmethod
    def _numbers(cls) -> list[str]:
        """The fields that a file holds by name: all but the problem and the optimizer."""
        return [field.name for field in fields(cls) if field.name not in ("data", "head", "loss", "optimizer")]

    @drawn
    def plot(self, ax: Axes) -> None:
        """Draw how much room each condition of the proof leaves."""
        columns = self._columns()
        draw_bars(ax, columns["condition"], columns["room"], "share of the bound that is left")

    def _columns(self) -> dict[str, Any]:
        checks = self.verify().conditions
        names = {"condition": [check.name for check in checks], "holds": [check.holds for check in checks]}
        return names | {"room": [check.numbers["room"] for check in checks]}


@dataclass(frozen=True, repr=False, eq=False)
class Certificate(Proof):
    r"""A proof that training converges in direction to the max-margin direction of `selected`, from `point` on.

    Attributes:
        data, head, loss: the problem. selected: (n_inputs,) the tokens. support: (n_support, 2) input and token of those on the margin.
        point: (d_key,) where the proof begins; it holds for every point within `tolerance` of it.
        optimizer: None for the gradient flow, or the steps.
        direction: (d_key,) p̄, the limit. margin: θ, by how much logits of selected tokens lead per unit of norm.
        along, deviation: P_0 = p̄·p and ‖q - q*‖, at the worst point within the tolerance.
        radius, growth: of the tube ‖q - q*‖ ≤ R + (K / 2R)(P - P_0), which is never left. share: ψ of the proof.
        progress: below θ', how far a unit of mass moves along p̄ at least.

    `verify()` checks every inequality of the proof anew, from the data alone. `to_frame()` has one row per condition.
    """

    selected: IntArray
    support: IntArray
    optimizer: Any
    direction: FloatArray
    margin: float
    along: float
    deviation: float
    radius: float
    growth: float
    share: float
    progress: float
    format = "marginlens-certificate-1"
    steps = ("normalized", "size")
    not_negative = ("tolerance", "deviation", "growth")
    positive = ("margin", "radius", "share", "progress")
    quantities = "selects {selected}, margin={margin:.4g}, from norm {norm:.4g} on, tube radius={radius:.4g}, growth={growth:.3g}"

    @property
    def normalized(self) -> bool:
        """Whether the steps are normalised."""
        return type(self.optimizer) is NormalizedGD

    @property
    def size(self) -> float:
        """Of the steps, zero for the flow."""
        return float(getattr(self.optimizer, "size", 0.0))

    @property
    def steps_words(self) -> str:
        """What moves: the flow or the steps, in words."""
        kind = "flow" if self.optimizer is None else type(self.optimizer).__name__
        return WORDS["moving"].get(kind, kind).format(size=f"{self.size:g}")

    def requirements(self) -> Iterator[tuple[str, bool, str]]:
        """What the theorem asks of each field, as for every proof."""
        yield from super().requirements()
        data = self.data
        yield "share", self.share < 1.0, "a number below 1"
        yield "along", _is_number(self.along), "a finite number"
        yield "direction", _is_vector(self.direction, data.d_key), f"{data.d_key} finite numbers"
        expected = "None for the flow, NormalizedGD(size) or GradientDescent(size)"
        yield "optimizer", self.optimizer is None or has_plain_steps(self.optimizer), expected
        selected, support = self.selected, self.support
        yield "selected", _are_indices(selected, (data.n_inputs,), data.lengths), "a token of every input"
        is_list = _are_indices(
            support, (len(support), 2) if np.ndim(support) else (), np.array([data.n_inputs, 1 << 62])
        )
        yield "support", is_list and len(support) > 0, "pairs of an input and a token"
        i, t = support.T
        yield "support", bool((t < data.lengths[i]).all() and (t != selected[i]).all()), "tokens that are not selected"
        yield "support", len(np.unique(support, axis=0)) == len(support), "tokens that are named once"

    def forecast(self, steps: Any) -> Forecast:
        r"""Norm and angle after further steps, or along a further length of the flow: what is predicted, and bounds that are proved.

        The law of residual attention puts p at :math:`P\bar p + q^\star`, so that the angle falls like 1/P. Normalised steps add their
        length to P, or less where they are so long that they go round the ray; plain ones of size η let :math:`e^{\theta P}` grow by
        about :math:`\eta\theta e^{\bar\rho}` each.

        Args:
            steps: how many, or for the flow which length, a number or an array.
        """
        return forecast(self, steps)

    @implements("X", "Thm 1")
    def verify(self, start: Any = None, n_steps: int = 0) -> TheoremVerdict:
        """Recompute every inequality of the proof from the data, in exact products of the given numbers and intervals for the rest.

        It shares no code with the search that found the tube: inner products are exact integers, the max-margin direction is solved for in
        intervals of 300 bits, and a condition holds only where it does for every number of its interval.

        Args:
            n_steps: take the steps that led to the point again, too, in intervals: so many from `start` have to end within the tolerance
                of it. Then nothing is left to believe of the run; it takes milliseconds a step. start: (d_key,), zero if left out.
        """
        whole_number(n_steps, "n_steps", at_least=0)
        checks = list(self.refused()) or _conditions(self)
        if n_steps and not self.refused():
            if self.optimizer is None:
                raise reject("n_steps", "0 for a proof about the gradient flow, which takes no steps", str(n_steps))
            proving = Proving()
            distance = distance_after(
                proving, self, self.data.point(np.zeros(self.data.d_key) if start is None else start, "start"), n_steps
            )
            proving.demand(f"{n_steps:,} exact steps lead to the point", distance, proving.iv.mpf(self.tolerance))
            checks += proving.checks
        return TheoremVerdict("X Thm 1", tuple(checks), f"{self.steps_words} cannot end elsewhere")

    def _headline(self) -> Headline:
        return Headline("proved", f"from norm {self.norm:.4g} on {self.steps_words} cannot end elsewhere.", True)


def _is_one_problem(data: TokenDataset) -> bool:
    """Whether the arrays of a dataset are of one problem and fit together."""
    if data.is_batch or data.X.ndim != 3 or data.K.ndim != 3:
        return False
    inputs, tokens, _ = data.X.shape
    shapes = data.K.shape[:2] == (inputs, tokens) and data.y.shape == (inputs,)
    signs = bool(np.isin(data.y, (-1.0, 1.0)).all())
    lengths = _are_indices(data.lengths - 1, (inputs,), np.full(inputs, tokens))
    return shapes and signs and lengths and bool(np.isfinite(data.X).all() and np.isfinite(data.K).all())


def _is_number(value: Any) -> bool:
    return isinstance(value, float | int) and bool(abs(value) <= np.finfo(np.float64).max)


def _is_vector(value: Any, size: int) -> bool:
    is_real = isinstance(value, np.ndarray) and value.dtype == np.float64
    return is_real and value.shape == (size,) and bool(np.isfinite(value).all())


def _are_indices(value: Any, shape: tuple[int, ...], below: IntArray) -> bool:
    is_whole = isinstance(value, np.ndarray) and np.issubdtype(value.dtype, np.integer)
    return is_whole and value.shape == shape and bool(np.all((value >= 0) & (value < below)))


def _problem_of(arrays: Mapping[str, Any]) -> tuple[TokenDataset, FloatArray, Loss]:
    """The problem in a file of a certificate."""
    kind = _LOSSES.get(str(arrays["loss"]))
    if kind is None:
        raise reject("path", f"a certificate with one of the losses {', '.join(_LOSSES)}", str(arrays["loss"]))
    tokens = {name: arrays.get(name) for name in ("X", "K")}
    if "lengths" in arrays:
        tokens = {
            name: padded if padded is None else [rows[:n] for rows, n in zip(padded, arrays["lengths"], strict=True)]
            for name, padded in tokens.items()
        }
    return TokenDataset(tokens["X"], arrays["y"], K=tokens["K"], W=arrays.get("W")), arrays["head"], kind()


def certificate_of(
    data: TokenDataset, head: FloatArray, loss: Loss, optimizer: Any, point: FloatArray, tubes: Tubes, j: int
) -> Certificate:
    """The certificate of the j-th of some tubes, for its problem."""
    names = ("margin", "along", "deviation", "radius", "growth", "share")
    return Certificate(
        data=data,
        head=head,
        loss=loss,
        selected=tubes.selected[j],
        support=np.argwhere(tubes.support[j]),
        point=point,
        tolerance=float(tubes.blur[j]),
        optimizer=optimizer,
        direction=tubes.direction[j],
        progress=_PROGRESS_LEFT * float(tubes.progress[j]),
        **{name: float(getattr(tubes, name)[j]) for name in names},
    )


@implements("X", "Thm 1")
def certify(
    data: TokenDataset, head: Any, point: Any, *, optimizer: Any = None, loss: Loss | None = None
) -> Certificate:
    """A certificate that training from `point` on converges in direction to the max-margin direction of the tokens that lead there.

    Args:
        data: one problem. head: v (d_model,). point: (d_key,).
        optimizer: `NormalizedGD(size)`, `GradientDescent(size)`, or None for the gradient flow. loss: logistic by default.
    Raises:
        InputError: where the proof does not begin at this point; it says what is missing.
    """
    v, p, risk_loss = data.head(head), data.point(point, "point"), Logistic() if loss is None else loss
    if type(risk_loss) not in STEEPNESS:
        raise reject("loss", f"one of {', '.join(_LOSSES)}, whose slopes the proof bounds", type(risk_loss).__name__)
    tubes = find_tubes(data.as_batch(), v[None], p[None], optimizer, risk_loss)
    if tubes.missing[0]:
        expected = "a point from which the limit is proved"
        raise reject(
            "point", expected, f"one of norm {float(length(p)):.4g} at which {SENTENCES[Missing(tubes.missing[0])]}"
        )
    return certificate_of(data, v, risk_loss, optimizer, p, tubes, 0)


# ---- the proof in intervals


def _conditions(proof: Certificate) -> list[Check]:
    """The inequalities of docs/proofs/attraction.md, in its order and letters."""
    proving = Proving()
    iv, number, demand, largest = proving.iv, proving.number, proving.demand, proving.largest

    # rows a = k_α - k_t and their score differences Δ, of the inputs whose output depends on p
    data, alpha = proof.data, [int(t) for t in proof.selected]
    scores = Exact.of(data.X) @ Exact.of(proof.head)
    signed = Exact(scores.whole * data.y.astype(np.int64).astype(object)[:, None], scores.power)
    keys = Exact.of(data.K)
    places = []
    for i in range(data.n_inputs):
        real = range(int(data.lengths[i]))
        varies = len({signed.whole[i, t] for t in real}) > 1 and len({tuple(keys.whole[i, t]) for t in real}) > 1
        places += [(i, t) for t in real if varies and t != alpha[i]]
    if not places:
        return proving.refused("something to select", "no input depends on p")
    a = Exact(np.array([keys.whole[i, alpha[i]] - keys.whole[i, t] for i, t in places]), keys.power)
    point = Exact.of(proof.point)
    gram, at_point = Exact(a.whole @ a.whole.T, 2 * a.power), a @ point
    m = range(len(places))
    G = [[number(gram, r, s) for s in m] for r in m]
    delta = [number(Exact(signed.whole[i, alpha[i]] - signed.whole[i, t], signed.power)) for i, t in places]
    carrying = {(int(i), int(t)) for i, t in proof.support}
    support = [r for r in m if places[r] in carrying]
    if len(support) < len(carrying):
        return proving.refused("support", "an input whose output does not depend on p is among those on the margin")

    # p^mm = Σ μ a with a·p^mm = 1 on the support, θ = 1/‖p^mm‖, and multipliers λ with Σ λ a = p̄
    solve = proving.solver([[G[r][s] for s in support] for r in support])
    mu = solve([iv.mpf(1) for _ in support])
    if any(not weight > 0 for weight in mu) or any(not delta[r] > 0 for r in support):
        return proving.refused("support", "a multiplier or a score difference on the margin is not positive")
    theta = 1 / iv.sqrt(sum(mu, iv.mpf(0)))
    lam = [weight * theta for weight in mu]

    def over_support(r: int, weights: Any) -> Any:
        return sum((weight * G[r][s] for weight, s in zip(weights, support, strict=True)), iv.mpf(0))

    along = [theta if r in support else over_support(r, lam) for r in m]
    others = [r for r in m if r not in support]
    slack = {r: along[r] - theta for r in others}
    within = [places[r] for r in others if not slack[r] > 0]
    if within:
        i, t = within[0]
        return proving.refused("beyond the margin", f"token {t} of input {i} is not beyond the margin")
    wide = [iv.sqrt(proving.not_negative(G[r][r] - along[r] ** 2)) for r in m]

    # the anchor q* = Σ y a with a·q* = log(C/λ) - ρ̄ on the support
    n = data.n_inputs
    slope = {i: slope_in(iv, proof.loss, number(Exact(signed.whole[i, alpha[i]], signed.power))) / n for i in range(n)}
    rho = [iv.log(slope[places[r][0]] * delta[r] / weight) for r, weight in zip(support, lam, strict=True)]
    level = theta * sum((weight * value for weight, value in zip(lam, rho, strict=True)), iv.mpf(0))
    y = solve([value - level for value in rho])
    at_anchor = [over_support(r, y) for r in m]
    tolerance = iv.mpf(proof.tolerance)
    toward = [number(at_point, s) for s in support]
    P = sum((weight * value for weight, value in zip(lam, toward, strict=True)), iv.mpf(0))
    squared_anchor = sum((weight * at_anchor[s] for weight, s in zip(y, support, strict=True)), iv.mpf(0))
    across = sum((weight * value for weight, value in zip(y, toward, strict=True)), iv.mpf(0))
    W = proving.not_negative(number(point @ point) - P**2 - 2 * across + squared_anchor)
    P, deviation = P - tolerance, iv.sqrt(W) + tolerance

    # the bounds at radius R
    R, psi = iv.mpf(proof.radius), iv.mpf(proof.share)
    steepness = iv.mpf(STEEPNESS[type(proof.loss)])
    near = [iv.exp(wide[r] * R - along[r] * P - at_anchor[r]) for r in m]
    inputs = sorted({i for i, _ in places})
    eps = {i: sum((near[r] for r in m if places[r][0] == i), iv.mpf(0)) for i in inputs}
    raised = {i: largest([iv.mpf(0), *(delta[r] for r in m if places[r][0] == i)]) for i in inputs}
    fallen = {i: largest([iv.mpf(0), *(-delta[r] for r in m if places[r][0] == i)]) for i in inputs}
    of = [places[r][0] for r in m]
    if not demand("attention on other tokens", largest(eps.values()), iv.mpf(1)):
        return proving.checks
    if not demand(
        "scores on the margin stay lower", largest(eps[of[r]] * raised[of[r]] / delta[r] for r in support), iv.mpf(1)
    ):
        return proving.checks
    high = largest(eps[of[r]] * (steepness * raised[of[r]] + fallen[of[r]] / delta[r]) for r in support)
    low = largest(
        eps[of[r]] * steepness * fallen[of[r]]
        - iv.log(1 - eps[of[r]])
        - iv.log(1 - eps[of[r]] * raised[of[r]] / delta[r])
        for r in support
    )
    variation = high + low
    pull = [slope[of[r]] * iv.exp(steepness * eps[of[r]] * raised[of[r]]) for r in m]
    bound = [abs(delta[r]) + eps[of[r]] * largest([raised[of[r]], fallen[of[r]]]) for r in m]
    forward = [r for r in others if delta[r] > 0 and eps[of[r]] * raised[of[r]] < delta[r]]
    backward = [r for r in others if r not in forward]
    mass = {r: theta * pull[r] * iv.exp(-level - slack[r] * P - at_anchor[r]) for r in others}
    o = {r: mass[r] * (delta[r] + eps[of[r]] * fallen[of[r]]) for r in forward}
    tau = {r: mass[r] * bound[r] * iv.exp(wide[r] * R + low) for r in backward}
    lost = sum((tau[r] * along[r] for r in backward), iv.mpf(0))
    if not demand("tokens of higher score pull less", lost, theta):
        return proving.checks
    progress = theta - lost
    if not demand("progress", iv.mpf(proof.progress), progress):
        return proving.checks
    if isinstance(proof.optimizer, NormalizedGD):
        step = iv.mpf(proof.optimizer.size)
    else:
        size = iv.mpf(getattr(proof.optimizer, "size", 0.0))
        step = size * sum((pull[r] * bound[r] * near[r] * iv.sqrt(G[r][r]) for r in m), iv.mpf(0))
    lower = [r for r in m if delta[r] > 0]
    apart = [G[r][r] + G[s][s] - 2 * G[r][s] - (along[r] - along[s]) ** 2 for r in lower for s in lower if s < r]
    spread = iv.sqrt(proving.not_negative(largest([iv.mpf(0), *apart])))
    if len(places) > 64:
        spread = 2 * largest(wide[r] for r in lower)
    A2 = spread**2 / (4 * (1 - psi))
    slow = [r for r in forward if not o[r] < iv.mpf(_SLOW) * R**2 * theta * slack[r]]
    fading = [r for r in forward if r not in slow]
    widest = largest(wide[r] for r in support)
    e = widest * (iv.exp(variation) - 1) / 2 + sum((o[r] * wide[r] for r in forward), iv.mpf(0)) * iv.exp(low)
    e += sum((tau[r] * wide[r] for r in backward), iv.mpf(0))
    sideways = e**2 / (A2 * psi) if step.b > 0 and spread.b > 0 else iv.mpf(0)
    growth = iv.mpf(0) if step * A2 <= progress else step**2 * A2 / 4
    growth += 2 * iv.log(1 + sum((o[r] for r in slow), iv.mpf(0)))
    growth = (growth + (sideways if slow else 0)) / progress
    kappa = growth / (2 * R)
    if not demand("the tube stays ahead", largest(kappa * wide[r] / along[r] for r in m), iv.mpf(1)):
        return proving.checks
    decay = {r: slack[r] - wide[r] * kappa for r in backward}
    if backward and not demand(
        "the tube stays beside", largest(kappa * (wide[r] + 1 / R) / slack[r] for r in backward), iv.mpf(1)
    ):
        return proving.checks
    rate = proving.smallest([along[r] - wide[r] * kappa for r in m])
    drift = variation * (1 / rate + step)
    drift += sum((o[r] * (1 / slack[r] + step) for r in fading), iv.mpf(0))
    drift += sum(
        (tau[r] * wide[r] * (R / decay[r] + kappa / decay[r] ** 2 + step * R) for r in backward),
        iv.mpf(0),
    )
    slowest = proving.smallest([rate, *(slack[r] for r in fading), *decay.values()])
    drift += 0 if slow else sideways / 2 * (1 / (2 * slowest) + step)
    demand("the drift fits into the tube", deviation**2 + 2 * drift / progress, R**2)
    return proving.checks
