"""Where the attention weights will go: which theorem applies to a problem, assumption by assumption, and the direction it predicts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from marginlens.data.sequences import SequenceDataset
from marginlens.data.tokens import FloatArray, IntArray, TokenDataset, as_dataset
from marginlens.errors import InputError, reject, whole_number
from marginlens.losses import Logistic, Loss, as_loss, rising_margin
from marginlens.papers import implements
from marginlens.svm import Status
from marginlens.theory.assumptions import (
    Check,
    check_assumption_a,
    check_assumption_b,
    check_separable,
    check_step,
    check_strict_optimum,
)
from marginlens.theory.basin import BasinCone, basin_cone
from marginlens.theory.cones import apart
from marginlens.theory.directional import directional_margin
from marginlens.theory.enumeration import locally_optimal_directions
from marginlens.theory.joint_limits import predict_joint_limit
from marginlens.theory.nexttoken_limits import predict_nexttoken_limit
from marginlens.theory.optimality import TokenOptimality, globally_optimal_direction, token_optimality
from marginlens.theory.problem import one_problem
from marginlens.theory.verdicts import Verdict


@dataclass(frozen=True, repr=False, eq=False)
class LimitPrediction:
    """The candidates for the limit direction of one problem, and the one that is certain, if any.

    Attributes:
        verdicts: one per theorem: A Thm 1 (regularisation path), A Thm 2 (global descent), A Thm 3 (local descent).
        selections: (n_candidates, n_inputs). directions: (n_candidates, d_key), unit. margins: (n_candidates,).
        labels: "GMM" or "LMM" for each candidate.
        complete: whether the candidates are all of P^mm; if not, listing them would have taken too long.
        direction: (d_key,) the limit of gradient descent if a theorem makes it certain, else None; `why` says which or why not.
        path_direction: (d_key,) the limit of the regularisation path by Thm 1, else None.
        basin: index of the candidate whose cone of Eqs (32) and (46) contains the start, else None. cone: that cone.
    """

    verdicts: tuple[Verdict, ...]
    selections: IntArray
    directions: FloatArray
    margins: FloatArray
    labels: tuple[str, ...]
    complete: bool
    direction: FloatArray | None
    path_direction: FloatArray | None
    why: str
    basin: int | None
    cone: BasinCone | None

    def __repr__(self) -> str:
        certain = "certain" if self.direction is not None else "none certain"
        applying = ", ".join(one.citation for one in self.verdicts if one.applies) or "no theorem"
        return f"LimitPrediction({len(self.labels)} candidates, {certain}, {applying} applies)"

    def __str__(self) -> str:
        lines = [str(verdict) for verdict in self.verdicts]
        listed = "all of P^mm" if self.complete else "P^mm is too large to list in full"
        lines.append(f"Candidates ({listed}):" if self.labels else f"Candidates ({listed}): none.")
        for label, selection, margin in list(zip(self.labels, self.selections, self.margins, strict=True))[:10]:
            lines.append(f"  {label} selects {selection.tolist()} with margin {margin:.4g}")
        if len(self.labels) > 10:
            lines.append(f"  and {len(self.labels) - 10} more")
        return "\n".join([*lines, self.why])


@implements("A", "Thm 1", "Thm 2", "Thm 3")
def predict_limit(
    data: TokenDataset | SequenceDataset,
    v: Any = None,
    *,
    loss: Any = None,
    start: Any = None,
    step: Any = None,
    limit: int = 10_000,
) -> Any:
    r"""Which theorem applies to a problem, assumption by assumption, and the direction that p/‖p‖ converges to.

    .. math:: \lim_{R\to\infty} \frac{\bar p(R)}{R} = \frac{p^{mm\star}}{\|p^{mm\star}\|} \ \text{(Thm 1)}, \qquad
        \lim_{t\to\infty} \frac{p(t)}{\|p(t)\|} = \frac{p^{mm\star}}{\|p^{mm\star}\|} \ \text{(Thm 2, } n = 1), \qquad
        = \frac{p^{mm}(\alpha)}{\|p^{mm}(\alpha)\|} \ \text{(Thm 3)}

    Theorem 3 is taken at `BasinCone.proven_radius`, where nothing of its proof is implicit. A start in the cone beyond the paper's radius
    only is reported as `basin`: expected, not certain. Without a start only Theorems 1 and 2 can make a limit certain. Without a head the
    question is about training head and attention together: see `predict_joint_limit`, Theorems 5 and 6. On next-token data it is about W:
    see `predict_nexttoken_limit`, C Theorems 1 to 3.

    Args:
        data: one problem or a batch, or a `SequenceDataset`. v: head (d_model,) or (batch, d_model), or None for a head that is trained
            too; on sequences the head C (n_vocabulary, d_model), or None for C Eᵀ = I.
        loss: any `Loss`, logistic by default; on sequences any `NextTokenLoss`, the log-loss by default.
        start: p(0) of shape (d_key,) or (batch, d_key). step: `ConstantStep(eta)` to check η ≤ 1/L_p; any such step if left out.
        limit: hard-margin problems that listing the candidates may take; beyond it only the GMM and the start's own are given.
    Returns:
        A `LimitPrediction`, a `JointPrediction` without a head or a `NextTokenPrediction` for sequences, `str` of which is a readable
        account; a list of them for a batch. Check it with `descend`, `descend_joint` or `descend_nexttoken`.
    """
    whole_number(limit, "limit", at_least=1)
    if isinstance(data, SequenceDataset):
        if start is not None:
            raise reject("start", "left out for sequences, because C Thm 3 holds from every start", "it")
        return predict_nexttoken_limit(data, head=v, loss=loss, step=step)
    loss = as_loss(Logistic() if loss is None else loss)
    if v is None:
        for name, value in (("start", start), ("step", step)):
            if value is not None:
                raise reject(name, "left out where v is, because Theorems 5 and 6 are about the joint path", "it")
        problems = as_dataset(data).as_batch()
        found = [predict_joint_limit(problems[j], loss=loss, limit=limit) for j in range(len(problems))]
        return found if data.is_batch else found[0]
    head = as_dataset(data).head(v)
    points = None if start is None else data.point(start, "start")
    if not data.is_batch:
        return _predict(data, head, loss, points, step, limit)
    each = range(len(data))
    return [_predict(data[j], head[j], loss, None if points is None else points[j], step, limit) for j in each]


def _predict(
    data: TokenDataset, v: FloatArray, loss: Loss, start: FloatArray | None, step: Any, limit: int
) -> LimitPrediction:
    one_problem(data)
    gmm = globally_optimal_direction(data, v)
    loss_is_fine, separable = check_assumption_a(data, v, loss), check_separable(data, v)
    steps = () if step is None else (check_step(data, v, step, loss),)
    path = Verdict(
        "A Thm 1",
        (loss_is_fine, check_strict_optimum(data, v), separable),
        "the regularisation path converges to the GMM direction",
    )
    alone = data.n_inputs == 1
    ending = (
        "and its direction converges to the GMM direction"
        if alone
        else f"but n = {data.n_inputs} leaves its direction open"
    )
    globally = Verdict(
        "A Thm 2",
        (loss_is_fine, check_assumption_b(data, v), separable, *steps),
        f"the norm of descent diverges from every start, {ending}",
    )
    own, cone, inside = _around(data, v, loss, start)
    locally = Verdict(
        "A Thm 3", (loss_is_fine, *inside, *steps), "descent converges in direction to the LMM that its start selects"
    )
    candidates, complete = _candidates(data, v, gmm, own, limit)
    certain: FloatArray | None = None
    if globally.applies and alone:
        certain, why = gmm.direction, "Certain: the GMM direction, from every start, by A Thm 2 with n = 1."
    elif locally.applies and own is not None:
        certain, why = own.direction, f"Certain: the direction that selects {own.selected.tolist()}, by A Thm 3."
    else:
        why = _why_not(globally, locally, start, cone)
    basin = None
    if own is not None and cone is not None and start is not None and bool(cone.contains(start)):
        basin = next((k for k, one in enumerate(candidates[0]) if np.array_equal(one, own.selected)), None)
    return LimitPrediction(
        verdicts=(path, globally, locally),
        selections=candidates[0],
        directions=candidates[1],
        margins=candidates[2],
        labels=candidates[3],
        complete=complete,
        direction=certain,
        path_direction=gmm.direction if path.applies else None,
        why=why,
        basin=basin,
        cone=cone,
    )


def _around(
    data: TokenDataset, v: FloatArray, loss: Loss, start: FloatArray | None
) -> tuple[TokenOptimality | None, BasinCone | None, tuple[Check, ...]]:
    """The selection that the start makes, its cone if it is locally optimal, and the conditions of Theorem 3 on them.

    Every p in the cone of α selects α, so no other cone can contain the start.
    """
    if start is None or not np.any(start):
        said = "no start was given" if start is None else "the start is zero and selects nothing"
        return None, None, (Check("start in a cone", False, f"{said}, so no cone can contain it"),)
    at = directional_margin(data, start, v)
    if not at.unique:
        return None, None, (Check("locally optimal start", False, "the start selects no unique tokens"),)
    own = token_optimality(data, v, at.selected)
    if own.solution.status is Status.TRIVIAL:
        return (
            own,
            None,
            (Check("locally optimal start", False, "no input has two tokens, so there is nothing to select"),),
        )
    local = bool(own.is_locally_optimal)
    verb = "are" if local else "are not"
    sentence = f"the tokens {at.selected.tolist()} that the start selects {verb} locally optimal, score gap {own.score_gap:.4g}"
    optimal = Check("locally optimal start", local, sentence, {"score_gap": float(own.score_gap)})
    low, high = _score_range(data, v)
    if not local or rising_margin(loss, low, high) is not None:  # no cone where the loss increases
        return own, None, (optimal,)
    cone = basin_cone(data, v, at.selected, loss=loss)
    turn, norm = float(apart(start, cone.p)), float(np.linalg.norm(start))
    narrow = Check(
        "start in cone_μ",
        bool(cone.contains(start, 0.0)),
        f"1 - correlation with p^mm is {turn:.4g}, and μ = {cone.mu:.4g}",
        {"apart": turn, "mu": cone.mu},
    )
    radii = {"norm": norm, "radius": cone.radius, "proven_radius": cone.proven_radius}
    far = Check(
        "start beyond R",
        norm >= cone.proven_radius,
        f"the start's norm is {norm:.4g}; Eq. (46) asks for {cone.radius:.4g}, the full proof for {cone.proven_radius:.4g}",
        radii,
    )
    return own, cone, (optimal, narrow, far)


def _score_range(data: TokenDataset, v: FloatArray) -> tuple[float, float]:
    scores = data.scores(v)[data.mask]
    return float(scores.min()), float(scores.max())


def _candidates(
    data: TokenDataset, v: FloatArray, gmm: TokenOptimality, own: TokenOptimality | None, limit: int
) -> tuple[tuple[IntArray, FloatArray, FloatArray, tuple[str, ...]], bool]:
    """Selections, directions, margins and labels of the candidates, and whether they are all there are."""
    try:
        found = locally_optimal_directions(data, v, limit=limit)
    except InputError:
        some = [gmm] if gmm.is_locally_optimal else []
        if own is not None and own.is_locally_optimal and not (some and np.array_equal(own.selected, gmm.selected)):
            some.append(own)
        selections = np.array([one.selected for one in some], dtype=np.int64).reshape(-1, data.n_inputs)
        directions = np.array([one.direction for one in some]).reshape(-1, data.d_key)
        margins = np.array([one.margin for one in some])
        return (selections, directions, margins, tuple(_label(one.is_globally_optimal) for one in some)), False
    return (found.selections, found.directions, found.margins, tuple(map(_label, found.is_global))), True


def _label(is_global: Any) -> str:
    return "GMM" if is_global else "LMM"


def _why_not(globally: Verdict, locally: Verdict, start: FloatArray | None, cone: BasinCone | None) -> str:
    """One sentence on why the limit of descent is not certain."""
    if start is None:
        reason = "n > 1" if globally.applies else "A Thm 2 does not apply"
        return f"Not certain: {reason}, and without a start A Thm 3 cannot say which candidate descent reaches."
    failed = next(check for check in locally.conditions if not check.holds)
    if failed.name == "start beyond R" and cone is not None and bool(cone.contains(start)):
        return "Expected, not certain: the start lies in the cone of Eqs (32) and (46), but below the norm that the full proof asks for."
    return f"Not certain: {failed.sentence}."
