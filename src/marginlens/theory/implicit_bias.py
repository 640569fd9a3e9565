r"""The implicit bias of an optimizer: in which norm a diverging run has the largest margin, who proves it, and who has seen it.

Steepest descent in a norm drives the weights, among all that select the same tokens with margin one, towards the direction of

.. math:: \min_x \|x\| \ \text{s.t.}\ \langle a_r, x\rangle \ge 1,

the max-margin problem in that very norm: the rows a_r are key differences, for W times queries. That is a theorem for linear models on
separable data; for attention it is proved for few optimizers, and observed by claims of the ledger for the others.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from typing import Any, ClassVar, NamedTuple

import numpy as np

from marginlens.errors import InputError, whole_number
from marginlens.kinds import declared, kind_of
from marginlens.norms import L1, L2, Frobenius, LInf, Lp, MaxRow, Norm, Nuclear, Spectral
from marginlens.optimizers import (
    Adam,
    Blockwise,
    GradientDescent,
    MirrorDescent,
    NormalizedGD,
    PowerDecay,
    SteepestDescent,
)
from marginlens.optimizers.protocol import as_optimizer
from marginlens.optimizers.schedules import size_at
from marginlens.papers import implements
from marginlens.risk import AttentionRisk, CopyRisk, FactorRisk, MatrixRisk, MulticlassRisk
from marginlens.risk.protocol import starting_points
from marginlens.status import Status
from marginlens.svm import MarginSolution, att_svm
from marginlens.svm.bilinear import bilinear_svm
from marginlens.svm.pairs import token_pairs
from marginlens.theory.assumptions import Check
from marginlens.theory.unproved_steps import UnprovedSteps, optimizer_words, redefines_steps
from marginlens.typing import ArrayLike, FloatArray, IntArray

BY_A = "A Thms 2 and 3, for constant steps up to 1/L_p and the starts that they name"
BY_D = "D (arXiv 2308.16898), around locally optimal tokens, under conditions that are not checked here"
BY_D_FACTORS = "D (arXiv 2308.16898), for the regularisation path of the factors"
BY_FLOW_OF_FACTORS = "arXiv 2403.08699, for gradient flow with the exponential loss from aligned starts"
BY_E = "E (arXiv 2410.14581), around locally optimal tokens from starts in a cone, under conditions that are not checked here"
BY_FAST_RATES = "arXiv 2402.05738, for W with normalised steps, on data of its kind"
BY_C = "C Thm 3, for constant steps up to 1/L"
BY_SOUDRY = "Soudry et al. (arXiv 1710.10345, A's [22]), for plain gradient descent with small enough constant steps"
BY_F_1 = "F (arXiv 2502.04664) Thm 1, for steps η_t ∝ t^-1/2"
BY_F_2 = "F (arXiv 2502.04664) Thm 2, for momentum without look-ahead and steps η_t ∝ t^-1/2"
BY_F_ADAM = "F (arXiv 2502.04664), for β₁ ≤ β₂ and steps η_t ∝ t^-1/2"
BY_ADAM = "arXiv 2406.10650, for β₁ ≤ β₂ and falling steps η_t ∝ t^-a, a ≤ 1"
BY_TWO_FACES = "arXiv 2609.33904, for steps η_t ∝ t^-a with 1/3 < a < 1"
SIGN_ON_FACTORS = (
    "it is steepest descent in max(|Q|∞, |K|∞) and heads for stationary points of the margin problem in that norm, "
    "whose best margin `sign_factor_margin` bounds for all widths"
)
NORM_OF_A_USER = "if its steps are steepest in the norm that it names"
NOT_COVERED = ", which these are not"
MEMORY_ON_FACTORS = (
    "the margin of Q Kᵀ grows faster with every step, and no theorem or claim says what a memory of gradients does then"
)

BY_BATCHES = "arXiv 2602.11557, approximately, by a trade-off between the size of the batches and momentum"
HEAVY_BALL = "no theorem or claim here says what momentum does to plain gradient descent on attention"
BY_DECAY_OF_FACTORS = (
    "with weight decay λ it heads for a stationary point of L(Q Kᵀ) + λ/2 (‖Q‖² + ‖K‖²), whose minima are those of L(W) + λ ‖W‖_* in the "
    "nuclear norm (arXiv 2410.23819); QᵀQ - KᵀK fades like e^(-2λt), t being the sum of the steps"
)

PROVED_BY_F = (L1, L2, LInf, Lp, Spectral, Nuclear)  # entrywise and Schatten norms
LARGEST_GAIN = (
    0.1  # ηγ up to which constant steps in a norm came near its margin in almost all runs; no sharp bound is known
)
RANK_RTOL = (
    1e-3  # of the largest singular value, below which one adds no rank: leaving it out costs no more of the margin
)
PAIRWISE_ROWS = 64  # up to which their largest distance is taken over all pairs, and else twice the longest is
MAX_ROWS = 2_000  # of which distances are taken
_TINY = 1e-300  # in place of a β₂ of zero

ON_P, ON_W, ON_FACTORS, ON_CLASSES = "p", "W", "W = Q Kᵀ", "W of a linear classifier"
ON_BOTH, ON_SEQUENCES = "v and p", "W of next tokens"  # of which claims run descents too


class ImplicitBias(NamedTuple):
    """Which margin the runs of an optimizer on a risk head for; `str` of it is a readable account.

    Attributes:
        optimizer: as it is written in Python.
        variable: whose norm it is: "p", "W", "W = Q Kᵀ" where the factors are trained, or "W of a linear classifier".
        norm: the norm of the margin problem that runs end in; None where it is not known.
        early_norm: another norm that runs head for long before, where there is one.
        proved: who proves it of this variable, for what; empty where nobody is known to.
        proved_of_linear_models: who proves it of linear models on separable data, for what.
        proved_of_paths: who proves it of the regularisation path or of gradient flow, and not of descent.
        observed: ids of the claims of the ledger that ran this optimizer on this variable: constant steps up to this ηγ, factors of this
            width.
        selected: (n_inputs,) the tokens of `solution`: those of the start, else those of the highest scores; None where neither is known.
        solution: the margin problem of these tokens in `norm`, or where a condition fails in the norm that its steps are taken in; None
            where no solver takes it.
        note: what is known where no norm of the variable is; else on what the norm rests, where no theorem or claim says it.
        conditions: what the steps and the memory of the optimizer must meet, each with its numbers; where one fails `norm` is None, or
            `early_norm` where there was one.
    """

    optimizer: str
    variable: str
    norm: Norm | None
    early_norm: Norm | None = None
    proved: tuple[str, ...] = ()
    proved_of_linear_models: tuple[str, ...] = ()
    proved_of_paths: tuple[str, ...] = ()
    observed: tuple[str, ...] = ()
    selected: IntArray | None = None
    solution: MarginSolution | None = None
    note: str = ""
    conditions: tuple[Check, ...] = ()

    @property
    def direction(self) -> FloatArray | None:
        """The max-margin direction of `selected` in `norm`, of norm one, in the shape of the variable; None where there is none."""
        if self.norm is None or self.solution is None or self.solution.status is not Status.OPTIMAL:
            return None
        direction = self.solution.direction
        return direction.T if self.variable in (ON_W, ON_FACTORS) else direction

    def __str__(self) -> str:
        claims = claim_words(self.observed)
        rows = "".join(f"\n  {check}." for check in self.conditions)
        if self.norm is None:
            failed = [check.sentence for check in self.conditions if not check]
            if self.note:
                known = (
                    f"{self.optimizer} heads for the largest margin in no known norm of {self.variable}: {self.note}."
                )
            else:
                reason = f": {'; and '.join(failed)}" if failed else ""
                known = (
                    f"In which norm {self.optimizer} has the largest margin on {self.variable} is not known{reason}."
                )
            return f"{known}{f' Such runs are in {claims}.' if self.observed else ''}{rows}"
        does = {ON_CLASSES: "classify the points", ON_SEQUENCES: "rank the tokens as the priority graphs do"}.get(
            self.variable, "select the same tokens"
        )
        early = ""
        if self.early_norm is not None:
            early = f", after a long time near that of the least {norm_words(self.early_norm)}"
        rests_on = f", {self.note}," if self.note else ""
        sentences = [
            f"{self.optimizer} heads{rests_on} for the {self.variable} of the least {norm_words(self.norm)} among all that "
            f"{does} with margin one{early}."
        ]
        on = "" if self.variable == ON_CLASSES else "On attention "
        if self.proved:
            sentences.append(f"Proved by {'; and by '.join(self.proved)}.")
        if self.observed:
            seen = "Seen by" if self.proved else f"{on}seen, not proved, by" if on else "Seen, not proved, by"
            sentences.append(f"{seen} {claims}.")
        elif not self.proved and (on or not self.proved_of_linear_models):
            nobody = (
                "no proof of it for descent is known here" if self.proved_of_paths else "no proof of it is known here"
            )
            nobody += ", and no claim of the ledger looks at it"
            sentences.append(f"{on}{nobody}." if on else f"{nobody[0].upper()}{nobody[1:]}.")
        if self.proved_of_paths:
            sentences.append(f"Not of descent it is proved by {'; and by '.join(self.proved_of_paths)}.")
        if self.proved_of_linear_models:
            proofs = "; and by ".join(self.proved_of_linear_models)
            sentences.append(f"Of linear models on separable data it is proved by {proofs}.")
        if self.solution is not None and self.selected is not None:
            best = {
                Status.OPTIMAL: f"the best margin in this norm is {float(self.solution.margin):.4g}",
                Status.INFEASIBLE: "there is no margin in any norm",
            }.get(self.solution.status, "the best margin in this norm is not certified")
            sentences.append(f"For the tokens {self.selected.tolist()} {best}.")
        return " ".join(sentences) + rows


def norm_words(norm: Any) -> str:
    """A norm as a sentence calls it."""
    if kind_of(norm) is Lp:
        return f"ℓ{norm.p:g} norm"
    names = {L1: "ℓ1", LInf: "ℓ∞", L2: "Euclidean", Frobenius: "Frobenius", Spectral: "spectral", Nuclear: "nuclear"}
    names[MaxRow] = "max-row"
    kind = type(norm) if type(norm) in names else kind_of(norm)
    return f"{names[kind]} norm" if kind in names else f"norm {type(norm).__name__}"


@implements("X", "N1", "N2", "N5", "N6", "N7")
def implicit_bias(
    optimizer: Any,
    risk: Any,
    *,
    start: ArrayLike | None = None,
    selected: ArrayLike | None = None,
    batch_size: int | None = None,
) -> ImplicitBias | Any:
    """Which norm's margin the runs of an optimizer head for on a risk, who proves it, and the direction for given tokens.

    Constant steps of length η in a norm that is not Euclidean add ηγ to the margin, γ the best margin in that norm, and multiply the weight
    of a row by about e^-ηγ. Long ones let a single row decide each step, and freeze short of the margin; no sharp bound is known, and
    `conditions` asks for ηγ ≤ 0.1, and says which share of the margin runs kept (`least_share`). Euclidean steps add up and need no such
    condition.

    An optimizer with a memory follows the gradients of now only while its memory fades faster than they fall. Each step of length η adds
    ηγ to the margin, γ the best margin in the optimizer's norm, and divides gradients by e^(ηγ): momentum needs ηγ < log(1/β), Adam
    ηγ < ½ log(1/β₂) and β₁ ≤ β₂. Falling steps meet the first two in the end, constant ones do or do not; where they do not, the
    norm is not known, and `conditions` says by which numbers.

    Args:
        optimizer: any of the library's.
        risk: an `AttentionRisk`, `MatrixRisk`, `FactorRisk` or `MulticlassRisk`.
        start: x(0), whose tokens `solution` is about.
        selected: (n_inputs,) the tokens themselves, such as `run.selected`; for a batch (batch, n_inputs).
        batch_size: inputs of each step, all of them by default. Runs on fewer have another limit, unless momentum remembers the gradients
            of about an epoch: 1/(1 - β) ≥ n/b, while ηγ < log(1/β) still holds.
    Returns:
        An `ImplicitBias`, or a list of them for a batch; None for an optimizer or a risk of which nothing is known, such as one of a user's
        that does not say its `norm`.
    """
    rule = as_optimizer(optimizer)
    known = isinstance(risk, AttentionRisk | MatrixRisk | FactorRisk | MulticlassRisk)
    if not known or isinstance(risk, CopyRisk):  # of other losses than of a head's outputs nothing is known
        return None
    if not isinstance(risk, MulticlassRisk) and risk.is_batch:
        n: int = len(risk)
        starts: Any = [None] * n if start is None else starting_points(risk, start)
        chosen: Any = [None] * n if selected is None else selected
        if np.shape(chosen)[:1] != (n,):
            raise InputError("selected", f"of shape (batch, n_inputs) for {n} problems", f"shape {np.shape(chosen)}")
        pairs = enumerate(zip(starts, chosen, strict=True))
        return [_of_one(rule, risk[j], x, tokens, batch_size) for j, (x, tokens) in pairs]
    return _of_one(rule, risk, start, selected, batch_size)


def _of_one(rule: Any, risk: Any, start: Any, selected: Any, batch_size: int | None) -> ImplicitBias | None:
    kinds: dict[Any, str] = {
        AttentionRisk: ON_P,
        MatrixRisk: ON_W,
        FactorRisk: ON_FACTORS,
        MulticlassRisk: ON_CLASSES,
    }
    variable = next(name for kind, name in kinds.items() if isinstance(risk, kind))
    known = _of_factors(rule, risk.shape) if variable == ON_FACTORS else _bias(rule, risk.shape, variable)
    if known is None:
        return None
    if variable == ON_P:
        known = known._replace(proved=tuple(proof for proof in known.proved if proof != BY_FAST_RATES))
    elif variable == ON_W and not risk.shares_query:
        known = known._replace(proved=tuple(BY_D if proof == BY_A else proof for proof in known.proved))
    tokens = None if variable == ON_CLASSES else _tokens(risk, start, selected)
    label = ""
    more: tuple[Check, ...] = ()
    if batch_size is not None and whole_number(batch_size, "batch_size", at_least=1) < risk.n_inputs:
        label, more = "X N7", (_covers_inputs(rule, risk.n_inputs, batch_size),)
        by_momentum = (BY_BATCHES,) if known.proved_of_linear_models and getattr(rule, "momentum", 0.0) > 0.0 else ()
        known = known._replace(proved=(), proved_of_linear_models=by_momentum)
    width = risk.width if isinstance(risk, FactorRisk) else None
    return _checked(rule, known._replace(selected=tokens), lambda norm: _solve(risk, tokens, norm), more, label, width)


def _covers_inputs(rule: Any, n_inputs: int, batch_size: int) -> Check:
    """Whether the memory of an optimizer holds the gradients of about all inputs where steps see some of them."""
    inner = rule.optimizer if isinstance(rule, Blockwise) else rule
    if isinstance(inner, GradientDescent):
        return Check(
            "mini-batches", True, "plain steps of an epoch add up to about a step along the gradient of all inputs"
        )
    share = inner.betas[0] if isinstance(inner, Adam) else getattr(inner, "momentum", 0.0)
    memory, epoch = 1.0 / (1.0 - share), n_inputs / batch_size
    holds = memory >= epoch
    said = f"the memory of {memory:.3g} steps {'spans' if holds else 'is shorter than'} an epoch of {epoch:.3g}"
    if not holds:
        said += ", so that steps follow single batches and end short of the margin"
    return Check("mini-batches", holds, said, {"memory": memory, "epoch": epoch})


def bias_on_sequences(
    rule: Any, shape: tuple[int, ...], solve: Callable[[Norm], MarginSolution | None], acyclic: Check
) -> ImplicitBias | None:
    """The bias on next tokens; `solve` gives the Graph-SVM solution in a norm, None where there is none.

    Where tokens tie, what circling W^cyc does to steps in other norms than the Euclidean, or with a memory, is open.
    """
    known = _bias(rule, shape, ON_SEQUENCES)
    if known is None:
        return None
    plain = kind_of(known.norm) is L2 and known.early_norm is None and not getattr(rule, "momentum", 0.0)
    proved = (BY_C,) if isinstance(rule, GradientDescent) and not redefines_steps(rule) else ()
    return _checked(rule, known._replace(proved=proved), solve, () if plain else (acyclic,))


def _checked(
    rule: Any,
    known: ImplicitBias,
    solve: Callable[[Norm], MarginSolution | None],
    more: tuple[Check, ...] = (),
    label: str = "",
    width: int | None = None,
) -> ImplicitBias:
    """What is known of an optimizer, less what its steps, its memory and the width of factors do not allow on this problem."""
    linear = tuple(_covering(proof, rule) for proof in known.proved_of_linear_models)
    proved = known.proved
    if known.variable == ON_CLASSES:  # a linear model itself
        proved = tuple(proof for proof in linear if proof in known.proved_of_linear_models)
        linear = tuple(proof for proof in linear if proof not in proved)
    first = known.early_norm or known.norm
    solution = None if first is None else solve(first)
    conditions = () if first is None else (*_conditions(rule, solution), *more)
    if first is not None and width is not None:
        conditions = (*conditions, _holds_rank(width, solution))
    found = known._replace(
        proved=proved,
        proved_of_linear_models=linear,
        observed=observed_by(rule, known.variable, label, solution=solution, width=width),
        solution=solution,
        conditions=conditions,
    )
    if known.early_norm is not None and (decay_power(rule) or 0.0) <= 1.0:  # only the early norm depends on the memory
        early = known.early_norm if all(conditions) else None
        return found._replace(solution=None if known.norm is None else solve(known.norm), early_norm=early)
    if all(conditions):
        return found
    return found._replace(norm=None, early_norm=None, proved=(), proved_of_linear_models=(), proved_of_paths=())


# ---- what is known of each optimizer


def _bias(rule: Any, shape: tuple[int, ...], variable: str = "") -> ImplicitBias | None:
    """What is known of an optimizer of points of this shape; of a user's own, that it may say its `norm`; else None."""
    euclidean, known = L2() if len(shape) == 1 else Frobenius(), partial(ImplicitBias, optimizer_words(rule), variable)
    if isinstance(rule, UnprovedSteps):
        return None
    norm = rule.norm if kind_of(rule) is SteepestDescent else declared(rule, "norm")
    if getattr(norm, "needs_matrix", False) and len(shape) != 2:
        raise InputError("optimizer", "one whose norm measures vectors", f"{rule!r}, whose norm measures matrices")
    if redefines_steps(rule):
        return None if norm is None else known(norm, note=NORM_OF_A_USER)
    if getattr(rule, "weight_decay", 0.0) > 0.0:
        return known(None, note=_decay_words(rule, euclidean))
    if isinstance(rule, GradientDescent) and rule.momentum > 0.0:
        return known(None, note=HEAVY_BALL)
    if isinstance(rule, NormalizedGD) and rule.momentum > 0.0:
        return known(euclidean, proved_of_linear_models=(BY_F_2,))
    if isinstance(rule, GradientDescent):
        return known(euclidean, proved=(BY_A,), proved_of_linear_models=(BY_SOUDRY,))
    if isinstance(rule, NormalizedGD):
        return known(euclidean, proved=(BY_FAST_RATES,), proved_of_linear_models=(BY_F_1,))
    if isinstance(rule, MirrorDescent):
        return known(euclidean if rule.p == 2.0 else Lp(rule.p), proved=(BY_E,))
    if isinstance(rule, Adam) and rule.eps == 0.0:
        return known(LInf(), proved_of_linear_models=(BY_F_ADAM, BY_ADAM))
    if isinstance(rule, Adam):
        return known(euclidean, LInf(), proved_of_linear_models=(BY_TWO_FACES,))
    if norm is None:
        return None
    if kind_of(rule) is not SteepestDescent:
        return known(norm, note=NORM_OF_A_USER)
    if kind_of(norm) not in PROVED_BY_F:
        return known(norm)
    with_momentum: tuple[str, ...] = () if rule.nesterov else (BY_F_2,)
    return known(rule.norm, proved_of_linear_models=with_momentum if rule.momentum > 0.0 else (BY_F_1,))


def _of_factors(rule: Any, shape: tuple[int, ...]) -> ImplicitBias | None:
    """What is known of training Q and K, points of this shape; the norm is that of W = Q Kᵀ."""
    known = partial(ImplicitBias, optimizer_words(rule), ON_FACTORS)
    inner: Any = rule.optimizer if isinstance(rule, Blockwise) else rule
    if isinstance(inner, UnprovedSteps) or redefines_steps(inner):
        return None
    if getattr(inner, "weight_decay", 0.0) > 0.0:
        by_gradient = isinstance(inner, GradientDescent)
        note = BY_DECAY_OF_FACTORS if by_gradient else _decay_words(inner, Frobenius(), rule)
        return known(None, note=note)
    steepest_in = kind_of(inner.norm) if isinstance(inner, SteepestDescent) else None
    if isinstance(inner, SteepestDescent | GradientDescent | NormalizedGD) and inner.momentum > 0.0:
        return known(None, note=MEMORY_ON_FACTORS)
    if isinstance(inner, GradientDescent | NormalizedGD) or steepest_in is L2:
        return known(Nuclear(), proved_of_paths=(BY_D_FACTORS, BY_FLOW_OF_FACTORS))
    if steepest_in is Spectral and isinstance(rule, Blockwise):
        return known(Spectral())
    if steepest_in is LInf:  # whether by block or not, it is the same
        return known(None, note=SIGN_ON_FACTORS)
    return known(None) if isinstance(inner, SteepestDescent | Adam | MirrorDescent) else None


def _decay_words(rule: Any, euclidean: Norm, of_factors: Any = None) -> str:
    """What weight decay does to the weights, as the end of a sentence; `of_factors` is what trains Q and K, by block or not."""
    if isinstance(rule, GradientDescent):
        return (
            "weight decay keeps its weights finite, and where they come to rest is a stationary point of L + λ/2 ‖x‖² with "
            f"λ = {rule.weight_decay:g}"
        )
    norm = euclidean if isinstance(rule, NormalizedGD) else rule.norm if isinstance(rule, SteepestDescent) else None
    if norm is None:
        return "weight decay keeps its weights from growing without bound, and no theorem or claim here says where they end"
    radius = 1.0 / rule.weight_decay
    whose, advice = "the ball", f"; `path(risk, [{radius:g}], norm=…)` has the point of least risk there"
    if of_factors is not None:  # `path` has balls of other norms than the Euclidean for p and W alone
        whose, advice = "a ball of its own for each factor," if isinstance(of_factors, Blockwise) else "the ball", ""
    return (
        f"weight decay makes its steps those of Frank and Wolfe in {whose} of radius 1/λ = {radius:g} in the {norm_words(norm)}, which "
        f"weights inside never leave and weights outside approach{advice}"
    )


def is_known(rule: Any) -> bool:
    """Whether the library says anything of this optimizer."""
    return _bias(rule.optimizer if isinstance(rule, Blockwise) else rule, (1, 1)) is not None


def unknown_words(rule: Any) -> str:
    """That nothing is said of an optimizer, in words."""
    return f"no theorem or claim here is about {optimizer_words(rule)}"


# ---- steps and memory


def check_plain_steps(rule: Any, name: str, largest: float, *, below: bool = False) -> tuple[Check, ...]:
    """Whether an optimizer takes constant steps of plain gradient descent, no longer than `largest`; nothing without an optimizer.

    Args:
        name: of `largest` in words, such as "1/L".
        below: whether steps have to stay below it.
    """
    if rule is None:
        return ()
    if not is_known(rule):
        return (Check("step size", False, unknown_words(rule)),)
    if not isinstance(rule, GradientDescent):
        said = f"the theorem is about constant steps of plain gradient descent, not about {optimizer_words(rule)}"
        return (Check("step size", False, said),)
    holds = rule.size < largest if below else rule.size <= largest
    said = f"η = {rule.size:.4g}, and {name} = {largest:.4g}"
    return (Check("step size", holds, said, {"largest_step": largest}),)


def decay_power(rule: Any) -> float | None:
    """a of steps η_t ∝ t^-a, 0 for constant ones; None for a function of the step, of which nothing is known."""
    size = getattr(rule, "size", 1.0)
    if isinstance(size, PowerDecay):
        return size.power
    return None if callable(size) else 0.0


def _covering(proof: str, rule: Any) -> str:
    """A citation of a theorem on falling steps, which says so where these are none of its own."""
    a = decay_power(rule)
    if a is None:
        return f"{proof}, which these are not known to be"
    covered = {BY_SOUDRY: True, BY_ADAM: 0.0 < a <= 1.0, BY_TWO_FACES: 1.0 / 3.0 < a < 1.0}.get(proof, a == 0.5)
    return proof if covered else f"{proof}{NOT_COVERED}"


def _conditions(rule: Any, solution: MarginSolution | None) -> tuple[Check, ...]:
    """What must hold for the steps to follow the gradients of now, and all rows that hold the margin of `solution`."""
    power, momentum = decay_power(rule), getattr(rule, "momentum", 0.0)
    checks = []
    if power is not None and power > 1.0:
        said = f"steps that fall like t^-{power:g} have a finite sum, so that weights stay finite"
        checks.append(Check("sum of steps", False, said, {"power": power}))
    if power == 0.0 and _steps_freeze(rule):
        checks.append(_short_steps(rule, solution))
    if isinstance(rule, Adam):
        first, second = rule.betas
        relation = "does not exceed" if first <= second else "exceeds"
        said = f"β₁ = {first:g} {relation} β₂ = {second:g}"
        checks.append(Check("β₁ ≤ β₂", first <= second, said, {"beta_1": first, "beta_2": second}))
        checks.append(_fades(rule, -0.5 * float(np.log(max(second, _TINY))), "½ log(1/β₂)", solution))
    elif momentum > 0.0:
        checks.append(_fades(rule, -float(np.log(momentum)), "log(1/β)", solution))
    return tuple(checks)


def _steps_freeze(rule: Any) -> bool:
    """Whether long steps of a rule, all of one length, stop short of the margin: those in every norm but the Euclidean."""
    if isinstance(rule, Adam):
        return True
    norm = rule.norm if kind_of(rule) is SteepestDescent else declared(rule, "norm")
    return norm is not None and hasattr(rule, "size") and kind_of(norm) not in (L2, Frobenius)


def eta_gamma(rule: Any, solution: MarginSolution | None) -> float | None:
    """ηγ of the first step, None where the best margin γ is not known or steps are a function of their own."""
    if (
        solution is None
        or solution.status is not Status.OPTIMAL
        or decay_power(rule) is None
        or not hasattr(rule, "size")
    ):
        return None
    return size_at(rule.size, 0) * float(solution.margin)


def _short_steps(rule: Any, solution: MarginSolution | None) -> Check:
    """Whether constant steps in a norm are so short that they follow all rows that hold the margin, and not one after the other."""
    name, gain = "length of steps", eta_gamma(rule, solution)
    if gain is None:
        return Check(name, False, f"ηγ is to be at most {LARGEST_GAIN:g}, and γ is not known")
    numbers, holds = {"eta_gamma": gain}, gain <= LARGEST_GAIN
    said = f"ηγ = {gain:.4g} is at most {LARGEST_GAIN:g}"
    if not holds:
        said = f"ηγ = {gain:.4g} is above {LARGEST_GAIN:g}, and longer constant steps can freeze short of the margin"
    share = least_share(rule, solution)
    if share is not None:
        numbers["least_share"] = share
        bound = f"1 - ηD²/(8γ) = {share:.2g}"
        kept = f"runs whose norm grows keep at least {bound} of the margin, as measured, not proved"
        said += f"; {kept if share > 0.0 else f'{bound} bounds no share of the margin'}"
    return Check(name, holds, said, numbers)


def least_share(rule: Any, solution: MarginSolution | None) -> float | None:
    r"""A share of the margin that all measured runs of constant steps without memory kept whose norm went on growing.

    .. math:: 1 - \frac{\eta D^2}{8\gamma}, \qquad D = \max_{r, s} \|a_r - a_s\|_*

    One step lowers :math:`\log \sum_r e^{-\langle a_r, x\rangle}` by at least :math:`\eta(\gamma - \eta D^2/8)`, by Hoeffding's lemma. That
    the loss of attention does the same is not proved here. None for steps with a memory, and where γ or the rows are not known.
    """
    gain = eta_gamma(rule, solution)
    if gain is None or solution is None or kind_of(rule) is not SteepestDescent or rule.momentum > 0.0:
        return None
    if len(solution.rows) > MAX_ROWS:
        return None
    rows = np.asarray(solution.rows).reshape(-1, *solution.x.shape)
    if len(rows) <= PAIRWISE_ROWS:
        diameter = max((rule.norm.dual(a - b) for k, a in enumerate(rows) for b in rows[:k]), default=0.0)
    else:
        diameter = 2.0 * max(rule.norm.dual(a) for a in rows)
    size = gain / float(solution.margin)
    return 1.0 - size * float(diameter) ** 2 / (8.0 * float(solution.margin))


def _holds_rank(width: int, solution: MarginSolution | None) -> Check:
    """Whether factors of this width can hold the max-margin solution of all W."""
    if solution is None or solution.status is not Status.OPTIMAL:
        return Check("width", False, f"the rank of the max-margin W, which the width {width} must hold, is not known")
    rank = int(np.linalg.matrix_rank(solution.direction, tol=RANK_RTOL * np.linalg.norm(solution.direction, 2)))
    relation = "holds" if width >= rank else "cannot hold"
    said = f"the width {width} {relation} the max-margin W, which has rank {rank}"
    return Check("width", width >= rank, said, {"width": width, "rank": rank})


def _fades(rule: Any, rate: float, words: str, solution: MarginSolution | None) -> Check:
    """Whether the memory of old gradients fades faster, e^-rate a step, than steps of this size make gradients fall, e^-ηγ."""
    name, power = "memory", decay_power(rule)
    if solution is None or solution.status is not Status.OPTIMAL:
        lacking = "no solver gives it" if solution is None else solution.status.sentence.rstrip(".").lower()
        return Check(name, False, f"ηγ is to stay below {words} = {rate:.4g}, and γ is not known ({lacking})")
    if power is None:
        return Check(
            name, False, f"how η_t γ compares with {words} = {rate:.4g} is not known of a function of the step"
        )
    fall = size_at(rule.size, 0) * float(solution.margin)
    numbers = {"eta_gamma": fall, "memory_rate": rate, "ratio": fall / rate}
    if power == 0.0 or fall <= rate:
        relation = "is below" if fall < rate else "is not below"
        meaning = "" if fall < rate else ", so that old gradients outweigh new ones"
        return Check(name, fall < rate, f"ηγ = {fall:.4g} {relation} {words} = {rate:.4g}{meaning}", numbers)
    n_steps = (fall / rate) ** (1.0 / power)
    said = f"η_t γ, {fall:.4g} at first, is below {words} = {rate:.4g} from step {n_steps:,.0f} on"
    return Check(name, True, said, {**numbers, "first_step": n_steps})


# ---- which claims ran it


def run_kind(rule: Any) -> tuple[Any, ...] | None:
    """What optimizers share that differ in the size of their steps alone; None for one that is unknown or has a schedule of its own."""
    if isinstance(rule, Blockwise):
        inner = run_kind(rule.optimizer)
        by_entry = kind_of(getattr(rule.optimizer, "norm", None)) is LInf  # the same by block or not
        return inner if inner is None or by_entry else ("by block", *inner)
    power = decay_power(rule)
    if power is None or not is_known(rule) or getattr(rule, "weight_decay", 0.0) > 0.0:
        return None
    if isinstance(rule, NormalizedGD):
        return ("steepest", "Euclidean norm", rule.momentum, False, power)
    if isinstance(rule, GradientDescent) and rule.momentum > 0.0:
        return None
    if isinstance(rule, SteepestDescent):
        norm = "Euclidean norm" if kind_of(rule.norm) is L2 else norm_words(rule.norm)
        return ("steepest", norm, rule.momentum, rule.nesterov and rule.momentum > 0.0, power)
    if isinstance(rule, Adam):
        return ("Adam", rule.betas, rule.eps > 0.0, power)
    if isinstance(rule, MirrorDescent):
        return ("mirror", rule.p, rule.normalized, power)
    return (type(rule).__name__,)


def observed_by(
    rule: Any,
    variable: str,
    label: str = "",
    *,
    solution: MarginSolution | None = None,
    width: int | None = None,
) -> tuple[str, ...]:
    """The ids of the claims that declare runs of this optimizer on this variable, with ηγ and widths as large.

    Args:
        label: of a statement, such as "A Thm 3": only claims about it.
        solution: the margin problem in the norm of the steps, by which constant steps are as long as those of a claim or longer.
        width: of factors.
    """
    kind, gain = listed_kind(rule), eta_gamma(rule, solution)

    def covers(run: dict[str, Any]) -> bool:
        """Whether a claim's run is of this kind, and within what it declares."""
        largest, widths = run.get("eta_gamma"), run.get("widths")
        if largest is not None and (gain is None or gain > largest):
            return False
        if widths is not None and width is not None and not widths[0] <= width <= widths[1]:
            return False
        return bool(run["variable"] == variable and run["kind"] == kind)

    return tuple(
        claim
        for claim, row in _observations().items()
        if kind is not None and (not label or label in row["labels"]) and any(map(covers, row["runs"]))
    )


def listed_kind(rule: Any) -> list[Any] | None:
    """`run_kind` as a file of JSON holds it: with lists instead of tuples."""
    kind: list[Any] | None = json.loads(json.dumps(run_kind(rule)))
    return kind


def claim_words(ids: tuple[str, ...]) -> str:
    """Claims as a sentence names them: "claims A-F9 and X-N2"."""
    return f"{'claims' if len(ids) > 1 else 'claim'} {', '.join(ids[:-1])}{' and ' if ids[1:] else ''}{ids[-1] if ids else ''}"


@cache
def _observations() -> dict[str, dict[str, Any]]:
    """By the id of a claim the descents that it ran, as `make docs` has written them from the claims."""
    rows: dict[str, dict[str, Any]] = json.loads(
        (files("marginlens.theory") / "observed.json").read_text(encoding="utf-8")
    )
    return rows


# ---- the margin problem


@dataclass(frozen=True)
class Transposed:
    """A norm of matrices as it measures their transposes."""

    norm: Norm
    needs_matrix: ClassVar[bool] = True

    def value(self, x: FloatArray) -> float:
        """‖xᵀ‖."""
        return self.norm.value(x.T)

    def dual(self, g: FloatArray) -> float:
        """‖gᵀ‖*."""
        return self.norm.dual(g.T)

    def steepest(self, g: FloatArray) -> FloatArray:
        """s(gᵀ)ᵀ."""
        return self.norm.steepest(g.T).T


def _tokens(risk: Any, start: Any, selected: Any) -> IntArray | None:
    """The tokens that are asked about: given ones, those that the start selects, or those of the highest scores."""
    of_p = risk if isinstance(risk, AttentionRisk) else risk.of_p
    if selected is not None:
        return of_p.selection(selected)
    if start is not None and np.any(start):
        tokens: IntArray = np.asarray(risk.select(start))
        return tokens
    return of_p.data.optimal(of_p.head) if of_p.is_linear else None


def _solve(risk: Any, tokens: Any, norm: Norm) -> MarginSolution | None:
    """The margin problem of these tokens, in p or in the transpose of W, or of the classes; None without tokens or a solver.

    Rows of the transpose are columns of W, so norms that tell them apart are those of W transposed.
    """
    if tokens is None and not isinstance(risk, MulticlassRisk):
        return None
    if isinstance(risk, MatrixRisk | FactorRisk) and kind_of(norm) not in PROVED_BY_F:
        norm = Transposed(norm)
    try:
        if isinstance(risk, AttentionRisk):
            return att_svm(risk.data, tokens, norm=norm)
        if isinstance(risk, MulticlassRisk):  # tokens are classes, queries are points
            n_classes = risk.shape[0]
            point, other = np.nonzero(np.arange(n_classes) != risk.classes[:, None])
            triples = np.stack([point, risk.classes[point], other], axis=-1)
            return bilinear_svm(np.eye(n_classes), risk.H, triples, norm=norm)
        data, queries = risk.of_p.data, np.atleast_2d(risk.query)
        _, pairs = token_pairs(data, tokens)
        first = pairs[:, 0] * data.n_tokens
        query = np.zeros(len(pairs), dtype=np.int64) if risk.shares_query else pairs[:, 0]
        triples = np.stack([query, first + pairs[:, 1], first + pairs[:, 2]], axis=-1)
        return bilinear_svm(data.X.reshape(-1, data.d_model), queries, triples, norm=norm)
    except InputError:  # a norm without a solver, or rows beyond the range of the solvers
        return None
