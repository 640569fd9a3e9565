"""The norm in which each optimizer is known to maximise the margin: two tables, with the proof behind each row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from marginlens.kinds import defining_class
from marginlens.norms import L1, L2, Frobenius, LInf, Lp, MaxRow, Norm, Nuclear, Spectral
from marginlens.optimizers import Adam, GradientDescent, MirrorDescent, NormalizedGD, Optimizer, SteepestDescent
from marginlens.theory.unproved_steps import Steps, optimizer_words, part_of, steps_of
from marginlens.words import Fact

ON_P, ON_W, ON_FACTORS, ON_CLASSES = "p", "W", "W = Q Kᵀ", "W of a linear classifier"
ON_BOTH, ON_SEQUENCES = "v and p", "W of next tokens"  # claims run descents on them, too
ON_W_OF_ONE_QUERY = "W of one query"  # W where all inputs share the query: A speaks of it
PROVED_BY_F = (L1, L2, LInf, Lp, Spectral, Nuclear)  # entrywise and Schatten norms

Shape = tuple[int, ...]


# ---- who proves what


class Proof(NamedTuple):
    """A theorem, with the schedules that it covers: steps η_t ∝ t^-a for these a."""

    code: str
    covers: Callable[[float], bool] = lambda power: True

    @property
    def fact(self) -> Fact:
        """The citation of the theorem for steps that it covers."""
        return Fact(self.code)

    def cited_for(self, steps: Steps) -> Fact:
        """Cite the theorem, with a remark if it does not cover the schedule of these steps."""
        if steps.power is None:
            return Fact("proof.may_not_cover", {"proof": self.fact})
        return self.fact if self.covers(steps.power) else Fact("proof.does_not_cover", {"proof": self.fact})


def _like_root(power: float) -> bool:
    return power == 0.5


PROOF_A, PROOF_C = Fact("proof.a"), Fact("proof.c")
_A, _C, _D, _E = Proof("proof.a"), Proof("proof.c"), Proof("proof.d"), Proof("proof.e")
_FAST_RATES = Proof("proof.fast_rates")
_SOUDRY = Proof("proof.soudry")
_F_1, _F_2, _F_ADAM = (Proof(f"proof.{name}", _like_root) for name in ("f_1", "f_2", "f_adam"))
_ADAM = Proof("proof.adam", lambda power: 0.0 < power <= 1.0)
_TWO_FACES = Proof("proof.two_faces", lambda power: 1.0 / 3.0 < power < 1.0)
PROOF_BATCHES = Proof("proof.batches", _like_root)
_D_PATH, _FACTOR_FLOW = Proof("proof.d_path"), Proof("proof.factor_flow")


# ---- norms


_NORMS = {
    L1: "norm.l1",
    LInf: "norm.linf",
    L2: "norm.euclidean",
    Frobenius: "norm.frobenius",
    Spectral: "norm.spectral",
    Nuclear: "norm.nuclear",
    MaxRow: "norm.max_row",
}


def norm_words(norm: Norm) -> Fact:
    """Name a norm."""
    if isinstance(norm, Lp) and defining_class(norm) is Lp:
        return Fact("norm.lp", {"p": norm.p})
    kind = type(norm) if type(norm) in _NORMS else defining_class(norm)
    return Fact(_NORMS[kind]) if kind in _NORMS else Fact("norm.other", {"name": type(norm).__name__})


# ---- what is known: the first row that fits


class Training(NamedTuple):
    """The steps, the shape of a point, and whether each factor moves by an optimizer of its own."""

    steps: Steps
    shape: Shape
    by_block: bool = False


def _always(training: Training) -> bool:
    return True


def _remembers(training: Training) -> bool:
    return training.steps.momentum > 0.0


def _decays(training: Training) -> bool:
    return training.steps.weight_decay > 0.0 and not training.steps.redefined


def _is_in(*norms: type[Norm]) -> Callable[[Training], bool]:
    return lambda training: defining_class(training.steps.norm) in norms


def _unknown(training: Training) -> None:
    return None


def _euclidean(training: Training) -> Norm:
    return L2() if len(training.shape) == 1 else Frobenius()


def _its_own(training: Training) -> Norm | None:
    return training.steps.norm


def _of_potential(training: Training) -> Norm:
    power = getattr(training.steps.optimizer, "p", 2.0)
    return _euclidean(training) if power == 2.0 else Lp(power)


def _fixed(norm: Norm) -> Callable[[Training], Norm]:
    return lambda training: norm


def _note(code: str) -> Callable[[Training], Fact]:
    return lambda training: Fact(code)


def _decay_note(training: Training) -> Fact:
    """State what weight decay does to weights."""
    steps = training.steps
    if steps.kind is GradientDescent:
        return Fact("bias.decay.stationary", {"weight_decay": steps.weight_decay})
    norm = _euclidean(training) if steps.kind is NormalizedGD else steps.norm
    if norm is None or steps.kind not in (NormalizedGD, SteepestDescent):
        return Fact("bias.decay.no_theorem")
    return Fact("bias.decay.ball", {"radius": 1.0 / steps.weight_decay, "norm": norm_words(norm)})


def _factor_decay_note(training: Training) -> Fact:
    """State what weight decay does to factors."""
    if training.steps.kind is GradientDescent:
        return Fact("bias.decay.factors")
    known = _decay_note(training)
    # `path` has balls of other norms than the Euclidean for p and W alone.
    return Fact(known.code, {**known.numbers, "case": "by_block" if training.by_block else "factors"})


class Row(NamedTuple):
    """A row of the tables: the norm in which steps of a kind maximise the margin, and who proves it.

    Attributes:
        kind: the class whose steps it is about, None for every optimizer.

        applies: whether it is about this training.

        norm, early_norm: the norm of the margin problem that runs end in, and the one that they approach long before.

        proved: who proves it, by variable.

        proved_of_linear_models: who proves it for linear models on separable data.

        proved_of_paths: who proves it for the regularisation path or the gradient flow.

        note: what is known if no norm is known, or what the norm rests on.
    """

    kind: type | None
    applies: Callable[[Training], bool] = _always
    norm: Callable[[Training], Norm | None] = _unknown
    early_norm: Callable[[Training], Norm | None] = _unknown
    proved: Mapping[str, Proof] = MappingProxyType({})
    proved_of_linear_models: tuple[Proof, ...] = ()
    proved_of_paths: tuple[Proof, ...] = ()
    note: Callable[[Training], Fact] | None = None


WEIGHTS = (
    Row(None, lambda it: it.steps.redefined and it.steps.norm is not None, _its_own, note=_note("bias.own_norm")),
    Row(None, _decays, note=_decay_note),
    Row(GradientDescent, _remembers, note=_note("bias.heavy_ball")),
    Row(
        GradientDescent,
        norm=_euclidean,
        proved={ON_P: _A, ON_W_OF_ONE_QUERY: _A, ON_W: _D, ON_SEQUENCES: _C},
        proved_of_linear_models=(_SOUDRY,),
    ),
    Row(NormalizedGD, _remembers, _euclidean, proved_of_linear_models=(_F_2,)),
    Row(
        NormalizedGD,
        norm=_euclidean,
        proved={ON_W_OF_ONE_QUERY: _FAST_RATES, ON_W: _FAST_RATES},
        proved_of_linear_models=(_F_1,),
    ),
    Row(MirrorDescent, norm=_of_potential, proved={ON_P: _E, ON_W_OF_ONE_QUERY: _E, ON_W: _E}),
    Row(Adam, lambda it: it.steps.eps == 0.0, _fixed(LInf()), proved_of_linear_models=(_F_ADAM, _ADAM)),
    Row(Adam, norm=_euclidean, early_norm=_fixed(LInf()), proved_of_linear_models=(_TWO_FACES,)),
    Row(SteepestDescent, lambda it: not _is_in(*PROVED_BY_F)(it), _its_own),
    Row(SteepestDescent, lambda it: not _remembers(it), _its_own, proved_of_linear_models=(_F_1,)),
    Row(SteepestDescent, lambda it: it.steps.nesterov, _its_own),
    Row(SteepestDescent, norm=_its_own, proved_of_linear_models=(_F_2,)),
    Row(None, lambda it: it.steps.norm is not None, _its_own, note=_note("bias.own_norm")),
)

_ON_NUCLEAR_PATHS = Row(None, norm=_fixed(Nuclear()), proved_of_paths=(_D_PATH, _FACTOR_FLOW))
FACTORS = (
    Row(None, _decays, note=_factor_decay_note),
    *(
        Row(kind, _remembers, note=_note("bias.factor_memory"))
        for kind in (GradientDescent, NormalizedGD, SteepestDescent)
    ),
    _ON_NUCLEAR_PATHS._replace(kind=GradientDescent),
    _ON_NUCLEAR_PATHS._replace(kind=NormalizedGD),
    _ON_NUCLEAR_PATHS._replace(kind=SteepestDescent, applies=_is_in(L2)),
    Row(SteepestDescent, lambda it: it.by_block and _is_in(Spectral)(it), _fixed(Spectral())),
    # Whether by block or not, sign descent is the same.
    Row(SteepestDescent, _is_in(LInf), note=_note("bias.sign_on_factors")),
    *(Row(kind) for kind in (SteepestDescent, Adam, MirrorDescent)),
)


def known_row(training: Training, table: tuple[Row, ...] = WEIGHTS) -> Row | None:
    """Find the first row of a table that is about a training; None if nothing is known of it."""
    rows = (row for row in table if row.kind in (None, training.steps.kind) and row.applies(training))
    return next(rows, None)


def is_known(optimizer: Optimizer) -> bool:
    """Return whether the library knows anything about an optimizer."""
    return known_row(Training(steps_of(part_of(optimizer)), (1, 1))) is not None


def unknown_words(optimizer: Optimizer) -> Fact:
    """State that no theorem or claim is about an optimizer."""
    return Fact("bias.unknown_optimizer", {"optimizer": optimizer_words(optimizer)})
