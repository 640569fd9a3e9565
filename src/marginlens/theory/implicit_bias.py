r"""The implicit bias of an optimizer: the norm in which a diverging run maximises the margin, who proves it, and who observed it.

Steepest descent in a norm drives the weights, among all that select the same tokens with margin one, towards the direction of

.. math:: \min_x \|x\| \ \text{s.t.}\ \langle a_r, x\rangle \ge 1,

the max-margin problem in that norm. The rows a_r are key differences; for W they are multiplied by queries. This is a theorem
for linear models on separable data. For attention it is proved for few optimizers, and claims of the ledger observed it for the
others. `bias_table` lists what is known of each optimizer.

In a norm other than the Euclidean, constant steps of length η add ηγ to the margin, where γ is the best margin in that norm,
and multiply the weight of a row by about e^-ηγ. Long steps let a single row decide each step and freeze short of the margin. No
sharp bound is known: `conditions` requires ηγ ≤ 0.1, and reports the share of the margin that runs kept (`least_share`).
Euclidean steps add up and need no such condition.

An optimizer with a memory follows the current gradients only if its memory fades faster than they fall. Each step of length η
adds ηγ to the margin, where γ is the best margin in the optimizer's norm, and divides gradients by e^(ηγ). So momentum needs ηγ
< log(1/β), and Adam needs ηγ < ½ log(1/β₂) and β₁ ≤ β₂. Decreasing steps eventually meet the first two conditions; constant
steps may not. If they do not, the norm is not known, and `conditions` has the numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from marginlens.errors import InputError, whole_number
from marginlens.kinds import defining_class
from marginlens.norms import L2, Norm
from marginlens.optimizers import (
    Blockwise,
    GradientDescent,
    Optimizer,
)
from marginlens.optimizers.protocol import as_optimizer
from marginlens.papers import implements
from marginlens.risk import CopyRisk, FactorRisk, MatrixRisk, MulticlassRisk, SoftmaxRisk
from marginlens.risk.protocol import starting_points
from marginlens.status import Status
from marginlens.svm import MarginSolution, att_svm
from marginlens.svm.bilinear import bilinear_svm
from marginlens.svm.pairs import token_pairs
from marginlens.theory.bias_conditions import conditions_on_steps, covers_inputs, holds_rank
from marginlens.theory.bias_table import (
    FACTORS,
    ON_CLASSES,
    ON_FACTORS,
    ON_P,
    ON_SEQUENCES,
    ON_W,
    ON_W_OF_ONE_QUERY,
    PROOF_BATCHES,
    PROVED_BY_F,
    WEIGHTS,
    Shape,
    Training,
    is_known,
    known_row,
    norm_words,
)
from marginlens.theory.checks import Check
from marginlens.theory.observations import claim_words, observed_by
from marginlens.theory.unproved_steps import optimizer_words, part_of, steps_of
from marginlens.typing import ArrayLike, FloatArray, IntArray
from marginlens.words import Fact

Studied = SoftmaxRisk | MatrixRisk | FactorRisk | MulticlassRisk  # risks whose diverging runs have a direction


class ImplicitBias(NamedTuple):
    """The margin that the runs of an optimizer on a risk tend to maximise, as codes and numbers; `str` of it is a readable account.

    Attributes:
        optimizer: its name with the settings that matter.

        variable: whose norm it is: "p", "W", "W = Q Kᵀ" if the factors are trained, or "W of a linear classifier".

        norm: the norm of the margin problem that runs end in; None if it is not known.

        early_norm: another norm whose margin runs approach long before, if there is one.

        proved: who proves it for this variable.

        proved_of_linear_models: who proves it for linear models on separable data, and whether for these steps.

        proved_of_paths: who proves it for the regularisation path or gradient flow, but not for descent.

        observed: ids of the ledger's claims that ran this optimizer on this variable: with constant steps up to this ηγ, and
            factors of this width.

        selected: (n_inputs,) the tokens of `solution`: those of the start, else those of the highest scores; None if neither is known.

        solution: the margin problem of these tokens in `norm`; if a condition fails, in the norm in which the steps are
            steepest. None if no solver handles it.

        note: what is known if no norm is known; otherwise what the norm rests on if no theorem or claim supports it.

        conditions: the conditions on the steps and the memory of the optimizer, each with its numbers. If one fails, `norm` is
            None, or `early_norm` if there is one.
    """

    optimizer: Fact
    variable: str
    norm: Norm | None
    early_norm: Norm | None = None
    proved: tuple[Fact, ...] = ()
    proved_of_linear_models: tuple[Fact, ...] = ()
    proved_of_paths: tuple[Fact, ...] = ()
    observed: tuple[str, ...] = ()
    selected: IntArray | None = None
    solution: MarginSolution | None = None
    note: Fact | None = None
    conditions: tuple[Check, ...] = ()

    @property
    def direction(self) -> FloatArray | None:
        """The max-margin direction of `selected` in `norm`, of norm one, in the shape of the variable; None if there is none."""
        if self.norm is None or self.solution is None or self.solution.status is not Status.OPTIMAL:
            return None
        direction = self.solution.direction
        return direction.T if self.variable in (ON_W, ON_FACTORS) else direction

    @property
    def facts(self) -> tuple[Fact, ...]:
        """Return what is known, one fact per sentence."""
        if self.norm is None:
            return (self._open, *self._runs())
        return (self._limit(self.norm), *self._proofs(), *self._best_margin())

    def __str__(self) -> str:
        return " ".join(map(str, self.facts)) + "".join(f"\n  {check}." for check in self.conditions)

    @property
    def _open(self) -> Fact:
        """State that no norm is known, and why."""
        named = {"optimizer": self.optimizer, "variable": self.variable}
        if self.note:
            return Fact("bias.no_norm", {**named, "note": self.note})
        failed = [check for check in self.conditions if not check]
        return Fact("bias.unknown_norm", {**named, "failed": failed, "case": "failed" if failed else "default"})

    def _runs(self) -> tuple[Fact, ...]:
        return (Fact("bias.runs", {"claims": claim_words(self.observed)}),) if self.observed else ()

    def _limit(self, norm: Norm) -> Fact:
        goals = {ON_CLASSES: "bias.goal.classes", ON_SEQUENCES: "bias.goal.sequences"}
        numbers = {
            "optimizer": self.optimizer,
            "variable": self.variable,
            "norm": norm_words(norm),
            "goal": Fact(goals.get(self.variable, "bias.goal.tokens")),
        }
        if self.early_norm is not None:
            return Fact("bias.limit", {**numbers, "early_norm": norm_words(self.early_norm), "case": "early"})
        return Fact("bias.limit", {**numbers, "note": self.note, "case": "noted" if self.note else "default"})

    def _proofs(self) -> list[Fact]:
        """State who proves it, for what, and who observed it."""
        is_linear = self.variable == ON_CLASSES
        facts = [Fact("bias.proved", {"proof": proof}) for proof in self.proved]
        if self.observed:
            case = "proved" if self.proved else "linear" if is_linear else "default"
            facts.append(Fact("bias.observed", {"claims": claim_words(self.observed), "case": case}))
        elif not self.proved and not (is_linear and self.proved_of_linear_models):
            case = "linear" if is_linear else "path" if self.proved_of_paths else "default"
            facts.append(Fact("bias.unproved", {"case": case}))
        facts += [Fact("bias.proved_of_path", {"proof": proof}) for proof in self.proved_of_paths]
        return facts + [Fact("bias.proved_of_linear", {"proof": proof}) for proof in self.proved_of_linear_models]

    def _best_margin(self) -> tuple[Fact, ...]:
        if self.solution is None or self.selected is None:
            return ()
        cases = {Status.OPTIMAL: "default", Status.INFEASIBLE: "none"}
        numbers = {"selected": self.selected.tolist(), "margin": float(self.solution.margin)}
        return (Fact("bias.margin", {**numbers, "case": cases.get(self.solution.status, "open")}),)


@implements("X", "N1", "N2", "N5", "N6", "N7")
def implicit_bias(
    optimizer: Optimizer,
    risk: Studied,
    *,
    start: ArrayLike | None = None,
    selected: ArrayLike | None = None,
    batch_size: int | None = None,
) -> ImplicitBias | Any:
    r"""Find the norm whose margin an optimizer tends to maximise on a risk, who proves it, and the direction for given tokens.

    .. math:: \lim_{t \to \infty} \frac{x(t)}{\|x(t)\|} \in \arg\max_{\|x\| \le 1} \min_r \langle a_r, x\rangle

    Args:
        optimizer: any of the library's.

        risk: an `AttentionRisk`, `MatrixRisk`, `FactorRisk` or `MulticlassRisk`.

        start: x(0); `solution` is about the tokens that it selects.

        selected: (n_inputs,) the tokens, if they are known, such as `run.selected`; (batch, n_inputs) for a batch.

        batch_size: the number b of inputs in each step, all n by default. Runs on fewer have another limit, unless momentum
            remembers the gradients of about an epoch: 1/(1 - β) ≥ n/b, while ηγ < log(1/β) still holds.

    Returns:
        An `ImplicitBias`, or a list of them for a batch; None if nothing is known of the optimizer or the risk, such as a
        user's own optimizer without a `norm`.

    Raises:
        InputError: if the norm of the optimizer measures matrices and the points are vectors, or if an argument does not fit the risk.

    Examples:
        >>> import marginlens as ml
        >>> data, heads = ml.data.sphere_tokens(1, n_inputs=3, n_tokens=4, d_model=5, rng=0)
        >>> bias = ml.theory.implicit_bias(ml.SignDescent(0.01), ml.AttentionRisk(data[0], heads[0]))
        >>> bias.norm
        LInf()
        >>> bool(bias.conditions[0]), bias.proved
        (True, ())
    """
    rule = as_optimizer(optimizer)
    is_studied = isinstance(risk, Studied)
    if not is_studied or isinstance(risk, CopyRisk):
        # Nothing is known of losses of anything else than a head's outputs.
        return None
    if not isinstance(risk, MulticlassRisk) and risk.is_batch:
        n_problems = len(risk)
        starts: Any = [None] * n_problems if start is None else starting_points(risk, start)
        selections: Any = [None] * n_problems if selected is None else selected
        if np.shape(selections)[:1] != (n_problems,):
            expected = f"of shape (batch, n_inputs) for {n_problems} problems"
            raise InputError("selected", expected, f"shape {np.shape(selections)}")
        pairs = enumerate(zip(starts, selections, strict=True))
        return [_of_one(rule, risk[j], x, tokens, batch_size) for j, (x, tokens) in pairs]
    return _of_one(rule, risk, start, selected, batch_size)


def _of_one(
    optimizer: Optimizer, risk: Any, start: ArrayLike | None, selected: ArrayLike | None, batch_size: int | None
) -> ImplicitBias | None:
    """Find the bias on one problem."""
    kinds: dict[Any, str] = {
        SoftmaxRisk: ON_P,
        MatrixRisk: ON_W,
        FactorRisk: ON_FACTORS,
        MulticlassRisk: ON_CLASSES,
    }
    variable = next(name for kind, name in kinds.items() if isinstance(risk, kind))
    of_one_query = variable == ON_W and risk.shares_query
    bias = _known_bias(optimizer, risk.shape, variable, ON_W_OF_ONE_QUERY if of_one_query else variable)
    if bias is None:
        return None
    tokens = None if variable == ON_CLASSES else _tokens(risk, start, selected)
    label = ""
    more: tuple[Check, ...] = ()
    if batch_size is not None and whole_number(batch_size, "batch_size", at_least=1) < risk.n_inputs:
        label, more = "X N7", (covers_inputs(optimizer, risk.n_inputs, batch_size),)
        steps = steps_of(optimizer)
        by_momentum = bias.proved_of_linear_models and steps.momentum > 0.0
        bias = bias._replace(
            proved=(), proved_of_linear_models=(PROOF_BATCHES.cited_for(steps),) if by_momentum else ()
        )
    width = risk.width if isinstance(risk, FactorRisk) else None
    bias = bias._replace(selected=tokens)
    return _checked(optimizer, bias, lambda norm: _solve(risk, tokens, norm), more, label, width)


def bias_on_sequences(
    optimizer: Optimizer, shape: Shape, solve: Callable[[Norm], MarginSolution | None], acyclic: Check
) -> ImplicitBias | None:
    """Find the bias on next tokens.

    If tokens tie, it is not known how circling around W^cyc affects steps in a norm other than the Euclidean, or steps with a memory.

    Args:
        optimizer: any optimizer.

        shape: of W.

        solve: returns the Graph-SVM solution in a norm, None if there is none.

        acyclic: whether no tokens tie.

    Returns:
        The bias, None if nothing is known of the optimizer.
    """
    bias = _known_bias(optimizer, shape, ON_SEQUENCES, ON_SEQUENCES)
    if bias is None:
        return None
    is_plain = defining_class(bias.norm) is L2 and bias.early_norm is None and steps_of(optimizer).momentum == 0.0
    return _checked(optimizer, bias, solve, () if is_plain else (acyclic,))


def _known_bias(optimizer: Optimizer, shape: Shape, variable: str, proved_on: str) -> ImplicitBias | None:
    """Look up an optimizer of points of this shape in the tables, before its steps are checked."""
    on_factors = variable == ON_FACTORS
    training = Training(
        steps_of(part_of(optimizer) if on_factors else optimizer), shape, isinstance(optimizer, Blockwise)
    )
    steps = training.steps
    if not on_factors and getattr(steps.norm, "needs_matrix", False) and len(shape) != 2:
        raise InputError("optimizer", "one whose norm measures vectors", f"{optimizer!r}, whose norm measures matrices")
    row = known_row(training, FACTORS if on_factors else WEIGHTS)
    if row is None:
        return None
    return ImplicitBias(
        optimizer_words(optimizer),
        variable,
        row.norm(training),
        row.early_norm(training),
        (row.proved[proved_on].fact,) if proved_on in row.proved else (),
        tuple(proof.cited_for(steps) for proof in row.proved_of_linear_models),
        tuple(proof.fact for proof in row.proved_of_paths),
        note=None if row.note is None else row.note(training),
    )


def _checked(
    optimizer: Optimizer,
    bias: ImplicitBias,
    solve: Callable[[Norm], MarginSolution | None],
    more: tuple[Check, ...] = (),
    label: str = "",
    width: int | None = None,
) -> ImplicitBias:
    """Withdraw what the steps, the memory and the width of factors do not allow on this problem."""
    steps = steps_of(optimizer)
    if bias.variable == ON_CLASSES:
        # It is a linear model itself.
        covering = tuple(fact for fact in bias.proved_of_linear_models if "proof" not in fact.numbers)
        others = tuple(fact for fact in bias.proved_of_linear_models if "proof" in fact.numbers)
        bias = bias._replace(proved=covering, proved_of_linear_models=others)
    first = bias.early_norm or bias.norm
    solution = None if first is None else solve(first)
    conditions = () if first is None else (*conditions_on_steps(steps, solution), *more)
    if first is not None and width is not None:
        conditions = (*conditions, holds_rank(width, solution))
    observed = observed_by(optimizer, bias.variable, label, solution=solution, width=width)
    bias = bias._replace(observed=observed, solution=solution, conditions=conditions)
    if bias.early_norm is not None and (steps.power or 0.0) <= 1.0:
        # Only the early norm depends on the memory.
        early = bias.early_norm if all(conditions) else None
        return bias._replace(solution=None if bias.norm is None else solve(bias.norm), early_norm=early)
    if all(conditions):
        return bias
    return bias._replace(norm=None, early_norm=None, proved=(), proved_of_linear_models=(), proved_of_paths=())


# ---- steps that a theorem speaks of


def check_plain_steps(
    optimizer: Optimizer | None, bound: str, largest: float, *, below: bool = False
) -> tuple[Any, ...]:
    """Check that an optimizer takes constant steps of plain gradient descent, no longer than `largest`.

    Args:
        optimizer: the optimizer; if None, there is nothing to check.

        bound: the formula of `largest`, such as "1/L".

        largest: the largest step that is allowed.

        below: whether steps have to stay below it.

    Returns:
        One check, or none.
    """
    if optimizer is None:
        return ()
    if not is_known(optimizer):
        return (Check("step_size.plain", False, {"optimizer": optimizer_words(optimizer), "case": "unknown"}),)
    if not isinstance(optimizer, GradientDescent):
        return (Check("step_size.plain", False, {"optimizer": optimizer_words(optimizer), "case": "other"}),)
    holds = optimizer.size < largest if below else optimizer.size <= largest
    return (Check("step_size.plain", holds, {"size": optimizer.size, "largest_step": largest, "bound": bound}),)


# ---- the margin problem


@dataclass(frozen=True)
class Transposed:
    """A norm of matrices, applied to their transposes."""

    norm: Norm
    needs_matrix: ClassVar[bool] = True

    def value(self, x: FloatArray) -> float:
        """Return ‖xᵀ‖."""
        return self.norm.value(x.T)

    def dual(self, g: FloatArray) -> float:
        """Return ‖gᵀ‖*."""
        return self.norm.dual(g.T)

    def steepest(self, g: FloatArray) -> FloatArray:
        """Return s(gᵀ)ᵀ."""
        return self.norm.steepest(g.T).T


def _tokens(risk: Any, start: ArrayLike | None, selected: ArrayLike | None) -> IntArray | None:
    """Return the tokens in question: the given ones, those that the start selects, or those with the highest scores."""
    of_p = risk if isinstance(risk, SoftmaxRisk) else risk.of_p
    if selected is not None:
        return of_p.selection(selected)
    if start is not None and np.any(start):
        tokens: IntArray = np.asarray(risk.select(start))
        return tokens
    return of_p.data.optimal(of_p.head) if of_p.is_linear else None


def _solve(risk: Any, tokens: IntArray | None, norm: Norm) -> MarginSolution | None:
    """Solve the margin problem of these tokens, in p or in the transpose of W, or that of the classes; None without tokens or a
    solver.
    """
    try:
        if isinstance(risk, MulticlassRisk):
            return _solve_classes(risk, norm)
        if tokens is None:
            return None
        return att_svm(risk.data, tokens, norm=norm) if isinstance(risk, SoftmaxRisk) else _solve_W(risk, tokens, norm)
    except InputError:
        # No solver takes the norm, or the rows are beyond the range of the solvers.
        return None


def _solve_classes(risk: MulticlassRisk, norm: Norm) -> MarginSolution:
    """Solve the margin problem of a linear classifier, whose classes are tokens and whose points are queries."""
    n_classes = risk.shape[0]
    point, other = np.nonzero(np.arange(n_classes) != risk.classes[:, None])
    triples = np.stack([point, risk.classes[point], other], axis=-1)
    return bilinear_svm(np.eye(n_classes), risk.H, triples, norm=norm)


def _solve_W(risk: MatrixRisk | FactorRisk, tokens: IntArray, norm: Norm) -> MarginSolution:
    """Solve the margin problem in the transpose of W. Its rows are columns of W, so norms that distinguish rows from columns
    measure W transposed.
    """
    data, queries = risk.of_p.data, np.atleast_2d(risk.query)
    _, pairs = token_pairs(data, tokens)
    first = pairs[:, 0] * data.n_tokens
    query = np.zeros(len(pairs), dtype=np.int64) if risk.shares_query else pairs[:, 0]
    triples = np.stack([query, first + pairs[:, 1], first + pairs[:, 2]], axis=-1)
    in_norm = norm if defining_class(norm) in PROVED_BY_F else Transposed(norm)
    return bilinear_svm(data.K.reshape(-1, data.d_key), queries, triples, norm=in_norm)
