"""Certificates that training converges to a direction: a point of a run, a tube around it, and a check of the whole proof."""

from __future__ import annotations

import os
import sys
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import numpy as np

from marginlens.arithmetic.directions import length
from marginlens.data.tokens import TokenDataset
from marginlens.errors import NOT_NUMBERS, InputError, whole_number
from marginlens.losses.margin import ArcsineLoss, Loss
from marginlens.names import LOSSES
from marginlens.optimizers import GradientDescent, NormalizedGD
from marginlens.optimizers.gradient_descent import has_plain_steps
from marginlens.optimizers.protocol import Optimizer
from marginlens.papers import implements
from marginlens.result import Result, Tabular
from marginlens.runtime.files import read_result, write_numbers, write_result
from marginlens.theory.attraction import BOUNDED_LOSSES, TUBE_LOSSES, Tubes, moving_fact
from marginlens.theory.checks import Check, TheoremVerdict
from marginlens.theory.forecast import Forecast, forecast
from marginlens.theory.intervals import exact_steps
from marginlens.theory.tube_conditions import tube_conditions
from marginlens.typing import ArrayLike, FloatArray, IntArray
from marginlens.words import Fact

_LARGEST = sys.float_info.max
_APART = ("optimizer", "steepest_in", "shape")  # fields about the steps


@dataclass(frozen=True, repr=False, eq=False)
class Proof(Result, Tabular):
    """A proof about training from a point on, whose inequalities can be checked again; `to_frame()` has one row per condition."""

    data: TokenDataset
    head: FloatArray
    loss: Loss
    point: FloatArray
    tolerance: float
    format: ClassVar[str]  # of its files
    not_negative: ClassVar[tuple[str, ...]] = ("tolerance",)  # numbers among the fields
    positive: ClassVar[tuple[str, ...]]
    steps: ClassVar[tuple[str, ...]] = ()  # what a file holds of the optimizer
    losses: ClassVar[tuple[type[Loss], ...]] = BOUNDED_LOSSES  # that the theorem is about
    covers_offsets: ClassVar[bool] = False  # whether the theorem is about logits with offsets too

    @property
    def norm(self) -> float:
        """‖p‖ at the point."""
        return float(length(self.point))

    @abstractmethod
    def verify(self) -> TheoremVerdict:
        """Recompute every inequality of the proof from the data."""

    def requirements(self) -> Iterator[tuple[str, bool, Fact]]:
        """Return the theorem's requirements of each field: its name, whether it meets them, and what it must be.

        They are in order: each may rely on those before it.
        """
        data = self.data
        yield "data", type(data) is TokenDataset and _is_one_problem(data), Fact("field.one_problem")
        yield "data", self.covers_offsets or not data.has_offsets, Fact("field.no_offsets")
        yield "head", is_array(self.head, (data.d_model,)), Fact("field.vector", {"size": data.d_model})
        yield (
            "loss",
            type(self.loss) in self.losses,
            Fact("field.loss", {"losses": [kind.__name__ for kind in self.losses]}),
        )
        yield "point", is_array(self.point, (data.d_key,)), Fact("field.vector", {"size": data.d_key})
        for name in self.not_negative:
            yield name, is_number(getattr(self, name)) and getattr(self, name) >= 0.0, Fact("field.not_negative")
        for name in self.positive:
            yield name, is_number(getattr(self, name)) and getattr(self, name) > 0.0, Fact("field.positive")

    def refused(self) -> tuple[Check, ...]:
        """Return the condition that the first wrong field fails; none if all fields are as the theorem requires."""
        wrong = next(((name, expected) for name, holds, expected in self.requirements() if not holds), None)
        if wrong is None:
            return ()
        field, expected = wrong
        return (Check("proof.field", False, {"room": float("nan"), "field": field, "expected": expected}),)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the certificate and its problem to a .npz file, which `load` of its class reads, or to a .json file.

        A .json file has every number to its last digit, for checkers that share no code with this library, such as
        docs/proofs/check.py.
        """
        problem = {**self.data.arrays(), "head": self.head, "loss": np.array(LOSSES.name_of(self.loss))}
        named = {name: getattr(self, name) for name in self._numbers()}
        arrays = problem | named | self._arrays_of_steps()
        if not str(path).endswith(".json"):
            write_result(path, self.format, arrays)
            return
        arrays.pop("W", None)
        write_numbers(path, self.format, arrays | {"K": self.data.K})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a certificate that `save` wrote. Check what it states by `verify`."""
        names = cls._numbers()
        needed = ("X", "y", "head", "loss", *cls.steps, *names)
        expected = f"a .npz file that {cls.__name__}.save wrote"
        arrays = read_result(path, cls.format, expected, needed)
        try:
            data, head, loss = _problem_of(arrays)
            read: dict[str, Any] = {name: arrays[name] if arrays[name].ndim else float(arrays[name]) for name in names}
            read |= cls._read_steps(arrays)
        except InputError:
            raise
        except (*NOT_NUMBERS, IndexError) as problem:
            raise InputError("path", expected, "one whose arrays do not fit together") from problem
        return cls(data=data, head=head, loss=loss, **read)

    @classmethod
    def _numbers(cls) -> list[str]:
        """Return the fields that a file holds as they are, by name: all but the problem and the steps."""
        return [field.name for field in fields(cls) if field.name not in (*_APART, "data", "head", "loss")]

    def _arrays_of_steps(self) -> dict[str, Any]:
        """Return what a file holds of the steps, under the names in `steps`."""
        return {}

    @classmethod
    def _read_steps(cls, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields that `_arrays_of_steps` wrote."""
        return {}

    def _columns(self) -> dict[str, Any]:
        checks = self.verify().conditions
        names = {"condition": [check.name for check in checks], "holds": [check.holds for check in checks]}
        return names | {"room": [check.numbers["room"] for check in checks]}


@dataclass(frozen=True, repr=False, eq=False)
class Certificate(Proof):
    r"""A proof that training converges in direction to the max-margin direction of `selected`, from `point` on.

    Attributes:
        data, head, loss: the problem.

        selected: (n_inputs,) the tokens.

        support: (n_support, 2) input and token of each pair on the margin.

        point: (d_key,) where the proof begins; it holds for every point within `tolerance` of it.

        optimizer: None for the gradient flow, or the steps.

        direction: (d_key,) p̄ of Eq. (1), the limit.

        margin: θ of Eq. (1), by how much the logits of the selected tokens lead per unit of norm.

        along, deviation: P_0 = p̄·p and ‖q - q*‖ of the theorem, at the worst point within the tolerance.

        radius, growth: R and K of the tube ‖q - q*‖ ≤ R + (K / 2R)(P - P_0), which training never leaves; K by Eq. (13).

        share: ψ of Eq. (11).

        progress: a lower bound on θ' of Eq. (8), how far a unit of mass moves along p̄.

    The equations are those of docs/proofs/attraction.md.

    `verify()` checks every inequality of the proof again, from the data alone. `to_frame()` has one row per condition.
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
    losses = TUBE_LOSSES
    covers_offsets = True
    not_negative = ("tolerance", "deviation", "growth")
    positive = ("margin", "radius", "share", "progress")
    quantities = "selects {selected}, margin={margin:.4g}, from norm {norm:.4g} on, tube radius={radius:.4g}, growth={growth:.3g}"

    @property
    def normalized(self) -> bool:
        """True if the steps are normalised."""
        return type(self.optimizer) is NormalizedGD

    @property
    def size(self) -> float:
        """The size of the steps, zero for the flow."""
        return float(getattr(self.optimizer, "size", 0.0))

    @property
    def steps_words(self) -> str:
        """The flow or the steps, in words."""
        return str(moving_fact(self.optimizer))

    def requirements(self) -> Iterator[tuple[str, bool, Fact]]:
        """Return the theorem's requirements of each field, as for every proof."""
        yield from super().requirements()
        data = self.data
        yield "share", self.share < 1.0, Fact("field.below_one")
        yield "along", is_number(self.along), Fact("field.finite")
        yield "direction", is_array(self.direction, (data.d_key,)), Fact("field.vector", {"size": data.d_key})
        size = getattr(self.optimizer, "size", 0.0)
        is_plain = self.optimizer is None or (is_number(size) and has_plain_steps(self.optimizer))
        yield "optimizer", is_plain, Fact("field.optimizer")
        selected, support = self.selected, self.support
        yield "selected", are_indices(selected, (data.n_inputs,), data.lengths), Fact("field.selection")
        shape, below = (max(1, np.size(support) // 2), 2), np.array([data.n_inputs, data.n_tokens])
        yield "support", are_indices(support, shape, below), Fact("field.tokens")
        i, t = support.T
        is_unselected = bool((t < data.lengths[i]).all() and (t != selected[i]).all())
        yield "support", is_unselected, Fact("field.not_selected")
        yield "support", len(np.unique(support, axis=0)) == len(support), Fact("field.distinct")

    def _arrays_of_steps(self) -> dict[str, Any]:
        if self.optimizer is not None and not has_plain_steps(self.optimizer):
            # A file would state the same for plain steps of that size.
            raise InputError("certificate", "one for the flow, or for plain or normalised steps", repr(self.optimizer))
        return {"normalized": self.normalized, "size": self.size}

    @classmethod
    def _read_steps(cls, arrays: Mapping[str, Any]) -> dict[str, Any]:
        size = float(arrays["size"])
        plain = GradientDescent(size) if size != 0.0 else None
        return {"optimizer": NormalizedGD(size) if arrays["normalized"] else plain}

    def forecast(self, steps: ArrayLike) -> Forecast:
        r"""Predict norm and angle after further steps, or after a further length of the flow, with proved bounds.

        The law of residual attention puts p at :math:`P\bar p + q^\star`, so the angle falls like 1/P. Normalised steps add
        their length to P, or less if they are so long that they circle around the ray; plain steps of size η let
        :math:`e^{\theta P}` grow by about :math:`\eta\theta e^{\bar\rho}` each.

        Args:
            steps: how many further steps, or for the flow what further length; a number or an array.

        Examples:
            >>> import marginlens as ml
            >>> data, heads = ml.data.sphere_tokens(1, n_inputs=3, n_tokens=4, d_model=5, rng=0)
            >>> risk = ml.AttentionRisk(data[0], heads[0])
            >>> point = ml.descend(risk, optimizer=ml.NormalizedGD(1.0), n_steps=300).final
            >>> proof = ml.theory.certify(data[0], heads[0], point, optimizer=ml.NormalizedGD(1.0))
            >>> angle = proof.forecast(1000).angle
            >>> bool(angle.low[0] <= angle.predicted[0] <= angle.high[0])
            True
        """
        if type(self.loss) is ArcsineLoss:
            raise InputError("certificate", "one for another loss, whose pace is bounded", type(self.loss).__name__)
        return forecast(self, steps)

    @implements("X", "Thm 1")
    def verify(self, start: ArrayLike | None = None, n_steps: int = 0) -> TheoremVerdict:
        """Recompute every inequality of the proof from the data, with exact products of the given numbers and intervals for the rest.

        It shares no code with the search that found the tube: inner products are exact integers, the max-margin direction is
        computed in intervals of 300 bits, and a condition holds only if it holds for every number of its interval. Every field
        is checked: if the theorem does not allow a number of the certificate, or the data do not confirm it, the verdict has a
        condition that fails.

        Args:
            n_steps: also repeat the steps that led to the point, in intervals: so many steps from `start` must end within the
                tolerance of it. Then nothing about the run is taken on trust. This takes about a millisecond per step.

            start: (d_key,), zero by default.

        Examples:
            >>> import marginlens as ml
            >>> data, heads = ml.data.sphere_tokens(1, n_inputs=3, n_tokens=4, d_model=5, rng=0)
            >>> risk = ml.AttentionRisk(data[0], heads[0])
            >>> point = ml.descend(risk, optimizer=ml.NormalizedGD(1.0), n_steps=300).final
            >>> proof = ml.theory.certify(data[0], heads[0], point, optimizer=ml.NormalizedGD(1.0))
            >>> verdict = proof.verify()
            >>> verdict.applies, verdict.conditions[-1].code
            (True, 'tube.drift')
        """
        whole_number(n_steps, "n_steps", at_least=0)
        refused = self.refused()
        checks = list(refused) or tube_conditions(self)
        if n_steps and not refused:
            if self.optimizer is None:
                raise InputError("n_steps", "0 for a proof about the gradient flow, which takes no steps", str(n_steps))
            begin = self.data.point(np.zeros(self.data.d_key) if start is None else start, "start")
            checks += exact_steps(self, begin, n_steps)
        # A field that is refused may be the optimizer, whose steps then have no name.
        conclusion = Fact("tube.unproved") if refused else Fact("tube.proved", {"steps": self.steps_words})
        return TheoremVerdict("X Thm 1", tuple(checks), conclusion)


def _is_one_problem(data: TokenDataset) -> bool:
    """Return whether the arrays of a dataset are of one problem and fit together."""
    if data.is_batch or data.X.ndim != 3 or data.K.ndim != 3:
        return False
    inputs, tokens, _ = data.X.shape
    shapes = data.K.shape[:2] == (inputs, tokens) and data.y.shape == (inputs,)
    signs = bool(np.isin(data.y, (-1.0, 1.0)).all())
    lengths = are_indices(data.lengths - 1, (inputs,), np.full(inputs, tokens))
    arrays = is_array(data.offsets, (inputs, tokens)) and all(np.isfinite(part).all() for part in (data.X, data.K))
    return shapes and signs and lengths and bool(arrays)


def is_number(value: object) -> bool:
    """Return whether a field is a finite number."""
    return isinstance(value, float | int) and type(value) is not bool and bool(-_LARGEST <= value <= _LARGEST)


def is_array(value: object, shape: tuple[int, ...]) -> bool:
    """Return whether a field is an array of this shape with finite doubles."""
    if not (type(value) is np.ndarray and value.dtype == np.float64):
        return False
    return value.shape == shape and bool(np.isfinite(value).all())


def are_indices(value: object, shape: tuple[int, ...], below: IntArray) -> bool:
    """Return whether a field is an array of this shape with whole numbers from 0 on and below these."""
    if not (type(value) is np.ndarray and np.issubdtype(value.dtype, np.integer)):
        return False
    return value.shape == shape and bool(np.all((value >= 0) & (value < below)))


def _problem_of(arrays: Mapping[str, Any]) -> tuple[TokenDataset, FloatArray, Loss]:
    """Read the problem from a file of a certificate."""
    try:
        kind = LOSSES.class_named(str(arrays["loss"]))
    except InputError as problem:
        raise InputError("path", f"a certificate whose loss is {problem.expected}", problem.got) from problem
    tokens: dict[str, Any] = {name: arrays.get(name) for name in ("X", "K", "logit_offsets")}
    if "lengths" in arrays:
        tokens = {
            name: padded if padded is None else [rows[:n] for rows, n in zip(padded, arrays["lengths"], strict=True)]
            for name, padded in tokens.items()
        }
    data = TokenDataset(tokens["X"], arrays["y"], K=tokens["K"], W=arrays.get("W"), offsets=tokens["logit_offsets"])
    return data, arrays["head"], kind()


def certificate_of(
    data: TokenDataset,
    head: FloatArray,
    loss: Loss,
    optimizer: Optimizer | None,
    point: FloatArray,
    tubes: Tubes,
    j: int,
) -> Certificate:
    """Make the certificate of the j-th of several tubes, for its problem."""
    names = ("margin", "along", "deviation", "radius", "growth", "share", "progress")
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
        **{name: float(getattr(tubes, name)[j]) for name in names},
    )
