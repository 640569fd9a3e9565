r"""The implicit bias of an optimizer: in which norm a diverging run has the largest margin, who proves it, and who has seen it.

Steepest descent in a norm drives the weights, among all that select the same tokens with margin one, towards the direction of

.. math:: \min_x \|x\| \ \text{s.t.}\ \langle a_r, x\rangle \ge 1,

the max-margin problem in that very norm: the rows a_r are key differences, for W times queries. That is a theorem for linear models on
separable data; for attention it is proved for few optimizers, and observed by claims of the ledger for the others.
"""

from __future__ import annotations

from functools import singledispatch
from typing import Any, NamedTuple

import numpy as np

from marginlens.errors import InputError, reject
from marginlens.norms import L1, L2, Frobenius, LInf, Lp, MaxRow, Norm, Nuclear, Spectral
from marginlens.optimizers import (
    Adam,
    Blockwise,
    GradientDescent,
    MirrorDescent,
    NormalizedGD,
    PolyakStep,
    SteepestDescent,
    as_optimizer,
)
from marginlens.papers import implements
from marginlens.risk import AttentionRisk, FactorRisk, MatrixRisk, MulticlassRisk
from marginlens.status import Status
from marginlens.svm import MarginSolution, att_svm
from marginlens.svm.bilinear import bilinear_svm
from marginlens.svm.pairs import token_pairs
from marginlens.typing import ArrayLike, FloatArray, IntArray

BY_A = "A Thms 2 and 3, for constant steps up to 1/L_p and the starts that they name"
BY_D = "D (arXiv 2308.16898), around locally optimal tokens, under conditions that are not checked here"
BY_D_FACTORS = "D (arXiv 2308.16898), for the regularisation path of the factors"
BY_FLOW_OF_FACTORS = "arXiv 2403.08699, for gradient flow with the exponential loss from aligned starts"
BY_E = "E (arXiv 2410.14581), around locally optimal tokens from starts in a cone, under conditions that are not checked here"
BY_F_1 = "F (arXiv 2502.04664) Thm 1, for linear models on separable data with steps η_t ∝ t^-1/2"
BY_F_2 = "F (arXiv 2502.04664) Thm 2, with momentum, for linear models on separable data with steps η_t ∝ t^-1/2"
BY_F_ADAM = "F (arXiv 2502.04664), for linear models on separable data"
BY_ADAM = "arXiv 2406.10650, for linear models on separable data with steps η_t = t^-a"
BY_TWO_FACES = (
    "arXiv 2609.33904, for linear models: steps turn to those of gradient descent when gradients have fallen below ε"
)
BY_FAST_RATES = "arXiv 2402.05738, for W with normalised and Polyak steps, on data of its kind"
SIGN_ON_FACTORS = (
    "it is steepest descent in max(|Q|∞, |K|∞) and, as claim X-N3 saw, heads for stationary points of the margin problem in that norm, "
    "whose best margin `sign_factor_margin` bounds for all widths"
)
ON_LINEAR_MODELS = (BY_F_1, BY_F_2, BY_F_ADAM, BY_ADAM, BY_TWO_FACES)  # the others are about attention

ON_P, ON_W, ON_FACTORS, ON_CLASSES = "p", "W", "W = Q Kᵀ", "W of a linear classifier"
OBSERVED_ON = {ON_P: "X-N2", ON_W: "X-N1", ON_FACTORS: "X-N3"}  # the claims that compare norms, by what is trained
NORMS_OBSERVED_ON = {
    ON_P: (L1, L2, LInf, Lp),
    ON_W: (L1, L2, LInf, Nuclear, Spectral),  # L2 with its other name Frobenius
}


class ImplicitBias(NamedTuple):
    """Which margin the runs of an optimizer on a risk head for; `str` of it is a readable account.

    Attributes:
        optimizer: as it is written in Python. variable: whose norm it is: "p", "W", "W = Q Kᵀ" where the factors are trained, or "W of a
            linear classifier".
        norm: the norm of the margin problem that runs end in; None where it is not known.
        early_norm: another norm that runs head for long before, where there is one.
        proved: who proves it, for what; empty where nobody is known to. observed: ids of the claims of the ledger that look at it.
        selected: (n_inputs,) the tokens of `solution`: those of the start, else those of the highest scores; None where neither is known.
        solution: the margin problem of these tokens in `norm`; None where no solver takes it.
        note: what is known where no norm of the variable is.
    """

    optimizer: str
    variable: str
    norm: Norm | None
    early_norm: Norm | None = None
    proved: tuple[str, ...] = ()
    observed: tuple[str, ...] = ()
    selected: IntArray | None = None
    solution: MarginSolution | None = None
    note: str = ""

    @property
    def direction(self) -> FloatArray | None:
        """The max-margin direction of `selected` in `norm`, of norm one, in the shape of the variable; None where there is none."""
        if self.solution is None or self.solution.status is not Status.OPTIMAL:
            return None
        direction = self.solution.direction
        return direction.T if self.variable in (ON_W, ON_FACTORS) else direction

    def __str__(self) -> str:
        if self.norm is None:
            if self.note:
                return (
                    f"{self.optimizer} heads for the largest margin in no known norm of {self.variable}: {self.note}."
                )
            return f"In which norm {self.optimizer} has the largest margin on {self.variable} is not known."
        early = ""
        if self.early_norm is not None:
            early = f", after a long time near that of the least {norm_words(self.early_norm)}"
        sentences = [
            f"{self.optimizer} heads for the {self.variable} of the least {norm_words(self.norm)} among all that "
            f"{'classify the points' if self.variable == ON_CLASSES else 'select the same tokens'} with margin one{early}."
        ]
        if self.proved:
            sentences.append(f"Proved by {'; and by '.join(self.proved)}.")
        on_attention = self.variable == ON_CLASSES or any(proof not in ON_LINEAR_MODELS for proof in self.proved)
        if self.observed:
            claims = f"{'claims' if len(self.observed) > 1 else 'claim'} {' and '.join(self.observed)}"
            sentences.append(f"{'Seen' if on_attention else 'On attention seen, not proved,'} by {claims}.")
        elif not on_attention:
            sentences.append("On attention no proof of it is known here, and no claim of the ledger looks at it.")
        if self.solution is not None and self.selected is not None:
            best = {
                Status.OPTIMAL: f"the best margin in this norm is {float(self.solution.margin):.4g}",
                Status.INFEASIBLE: "there is no margin in any norm",
            }.get(self.solution.status, "the best margin in this norm is not certified")
            sentences.append(f"For the tokens {self.selected.tolist()} {best}.")
        return " ".join(sentences)


def norm_words(norm: Norm) -> str:
    """A norm as a sentence calls it."""
    if isinstance(norm, Lp):
        return f"ℓ{norm.p:g} norm"
    names = {L1: "ℓ1", LInf: "ℓ∞", L2: "Euclidean", Frobenius: "Frobenius", Spectral: "spectral", Nuclear: "nuclear"}
    names[MaxRow] = "max-row"
    return f"{names[type(norm)]} norm" if type(norm) in names else repr(norm)


@implements("X", "N1", "N2", "N5")
def implicit_bias(
    optimizer: Any, risk: Any, *, start: ArrayLike | None = None, selected: ArrayLike | None = None
) -> ImplicitBias | None:
    """Which norm's margin the runs of an optimizer head for on a risk of one problem, who proves it, and the direction for given tokens.

    Args:
        optimizer: any of the library's. risk: an `AttentionRisk`, `MatrixRisk`, `FactorRisk` or `MulticlassRisk`.
        start: x(0), whose tokens `solution` is about. selected: (n_inputs,) the tokens themselves, such as `run.selected`.
    Returns:
        An `ImplicitBias`; None for an optimizer or a risk of which nothing is known, a user's own for instance.
    """
    rule = as_optimizer(optimizer)
    if isinstance(risk, MulticlassRisk):
        return _of_classes(rule, risk)
    if not isinstance(risk, AttentionRisk | MatrixRisk | FactorRisk):
        return None
    if risk.is_batch:
        raise reject("risk", "of one problem", f"a batch of {len(risk)}", "Take risk[j].")
    variable = {AttentionRisk: ON_P, MatrixRisk: ON_W}.get(type(risk), ON_FACTORS)
    known = _of_factors(rule) if variable == ON_FACTORS else _bias(rule, risk.shape)
    if known is None:
        return None
    proved = [proof for proof in known.proved if variable == ON_W or proof != BY_FAST_RATES]
    if isinstance(risk, MatrixRisk) and not risk.shares_query:
        proved = [BY_D if proof == BY_A else proof for proof in proved]
    tokens = _tokens(risk, start, selected)
    solution = None if known.norm is None or tokens is None else _solve(risk, tokens, known.norm)
    fields = known._replace(proved=tuple(proved))._asdict()
    return ImplicitBias(_words(rule), variable, selected=tokens, solution=solution, **fields)


# ---- what is known of each optimizer


class _Known(NamedTuple):
    """The fields of an `ImplicitBias` that the optimizer and the kind of variable decide."""

    norm: Norm | None
    early_norm: Norm | None = None
    proved: tuple[str, ...] = ()
    observed: tuple[str, ...] = ()
    note: str = ""


@singledispatch
def _bias(rule: Any, shape: tuple[int, ...]) -> _Known | None:
    """What is known of an optimizer of points of this shape; None for one of a user's own."""
    return None


def _euclidean(shape: tuple[int, ...]) -> Norm:
    return L2() if len(shape) == 1 else Frobenius()


def _observed(norm: Norm, shape: tuple[int, ...]) -> tuple[str, ...]:
    """The claim that looks at steepest descent in this norm on points of this shape."""
    variable = ON_P if len(shape) == 1 else ON_W
    return (OBSERVED_ON[variable],) if isinstance(norm, NORMS_OBSERVED_ON[variable]) else ()


@_bias.register
def _(rule: GradientDescent, shape: tuple[int, ...]) -> _Known:
    return _Known(_euclidean(shape), proved=(BY_A,))


@_bias.register
def _(rule: NormalizedGD, shape: tuple[int, ...]) -> _Known:
    norm = _euclidean(shape)
    return _Known(norm, proved=(BY_F_1, BY_FAST_RATES), observed=_observed(norm, shape))


@_bias.register
def _(rule: PolyakStep, shape: tuple[int, ...]) -> _Known:
    return _Known(_euclidean(shape), proved=(BY_FAST_RATES,))


@_bias.register
def _(rule: SteepestDescent, shape: tuple[int, ...]) -> _Known | None:
    norm = rule.norm
    if getattr(norm, "needs_matrix", False) and len(shape) != 2:
        raise reject("optimizer", "one whose norm measures vectors", f"{rule!r}, whose norm measures matrices")
    if not isinstance(norm, L1 | L2 | LInf | Lp | Spectral | Nuclear | MaxRow):
        return None
    proof = (BY_F_2 if rule.momentum > 0.0 else BY_F_1,)
    return _Known(
        norm,
        proved=() if isinstance(norm, MaxRow) else proof,  # F has entrywise and Schatten norms
        observed=() if rule.momentum > 0.0 else _observed(norm, shape),
    )


@_bias.register
def _(rule: Adam, shape: tuple[int, ...]) -> _Known:
    if rule.eps == 0.0:
        return _Known(LInf(), proved=(BY_F_ADAM, BY_ADAM), observed=("X-N5",))
    return _Known(_euclidean(shape), LInf(), proved=(BY_TWO_FACES,), observed=("X-N5",))


@_bias.register
def _(rule: MirrorDescent, shape: tuple[int, ...]) -> _Known:
    norm = _euclidean(shape) if rule.p == 2.0 else Lp(rule.p)
    return _Known(norm, proved=(BY_E,), observed=("E-1",))


def _of_factors(rule: Any) -> _Known | None:
    """What is known of training Q and K; the norm is that of W = Q Kᵀ."""
    inner, claims = rule.optimizer if isinstance(rule, Blockwise) else rule, (OBSERVED_ON[ON_FACTORS],)
    steepest_in = inner.norm if isinstance(inner, SteepestDescent) else None
    if isinstance(inner, GradientDescent | NormalizedGD) or isinstance(steepest_in, L2):
        return _Known(Nuclear(), proved=(BY_D_FACTORS, BY_FLOW_OF_FACTORS), observed=claims)
    if isinstance(steepest_in, Spectral) and isinstance(rule, Blockwise):
        return _Known(Spectral(), observed=claims)
    if isinstance(steepest_in, LInf):  # whether by block or not, it is the same
        return _Known(None, observed=claims, note=SIGN_ON_FACTORS)
    return _Known(None) if isinstance(inner, SteepestDescent | Adam | MirrorDescent | PolyakStep) else None


def _of_classes(rule: Any, risk: MulticlassRisk) -> ImplicitBias | None:
    """What is known of linear classifiers, with their margin problem: tokens are classes, queries are points."""
    known = _bias(rule, risk.shape)
    if known is None or known.norm is None:
        return None
    n_classes = risk.shape[0]
    point, other = np.nonzero(np.arange(n_classes) != risk.classes[:, None])
    triples = np.stack([point, risk.classes[point], other], axis=-1)
    proved = tuple(proof for proof in known.proved if proof in ON_LINEAR_MODELS)
    solution = bilinear_svm(np.eye(n_classes), risk.H, triples, norm=known.norm)
    return ImplicitBias(_words(rule), ON_CLASSES, known.norm, known.early_norm, proved, ("F-1",), None, solution)


def _words(rule: Any) -> str:
    """The optimizer as it is written, without what never changes its bias."""
    if isinstance(rule, Blockwise):
        return f"Blockwise({_words(rule.optimizer)})"
    name = type(rule).__name__
    if name == "SteepestDescent":
        return f"SteepestDescent({rule.norm!r})"
    if isinstance(rule, Adam):
        return f"Adam with ε = {rule.eps:g}"
    return f"MirrorDescent with p = {rule.p:g}" if isinstance(rule, MirrorDescent) else name


# ---- the margin problem


def _tokens(risk: Any, start: Any, selected: Any) -> IntArray | None:
    """The tokens that are asked about: given ones, those that the start selects, or those of the highest scores."""
    of_p = risk if isinstance(risk, AttentionRisk) else risk.of_p
    if selected is not None:
        return of_p.selection(selected)
    if start is not None and np.any(start):
        tokens: IntArray = np.asarray(risk.select(start))
        return tokens
    return of_p.data.optimal(of_p.head) if of_p.is_linear else None


def _solve(risk: Any, tokens: IntArray, norm: Norm) -> MarginSolution | None:
    """The margin problem of these tokens, in p or in the transpose of W; None where no solver takes it.

    The rows of the transpose are not those of W, so the problem in the norm of rows is left out.
    """
    if isinstance(norm, MaxRow):
        return None
    try:
        if isinstance(risk, AttentionRisk):
            return att_svm(risk.data, tokens, norm=norm)
        data, queries = risk.of_p.data, np.atleast_2d(risk.query)
        _, pairs = token_pairs(data, tokens)
        first = pairs[:, 0] * data.n_tokens
        query = np.zeros(len(pairs), dtype=np.int64) if risk.shares_query else pairs[:, 0]
        triples = np.stack([query, first + pairs[:, 1], first + pairs[:, 2]], axis=-1)
        return bilinear_svm(data.X.reshape(-1, data.d_model), queries, triples, norm=norm)
    except InputError:  # a norm without a solver, or rows beyond the range of the solvers
        return None
