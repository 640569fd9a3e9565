"""Where the ⟨cls⟩ embedding goes after the first step: the limit of the flow, what it selects, and what it cannot select."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from marginlens.data.labelled import as_labelled
from marginlens.data.tokens import FloatArray, IntArray
from marginlens.directions import correlation, unit
from marginlens.dynamics.flow import TIED_LOGITS, UntilLength, UntilNorm
from marginlens.dynamics.trajectory import Trajectory
from marginlens.embeddings.first_step import FirstStep, embedding_flow, first_step
from marginlens.embeddings.models import Parameters
from marginlens.errors import real_array, reject
from marginlens.papers import implements
from marginlens.svm import MarginSolution, Status
from marginlens.svm.vocabulary import vocabulary_svm
from marginlens.theory.assumptions import Check
from marginlens.theory.embedding_conditions import (
    check_class_window,
    check_lemma_13,
    check_theorem_5,
    decisive_of_each,
    decisive_tokens,
)
from marginlens.theory.verdicts import Verdict
from marginlens.theory.vocabulary_selections import (
    FeasibleSelections,
    Selection,
    feasible_selections,
    selected_tokens,
)


@implements("B", "Lemma 21")
def decisive_margin(E: Any, sequences: Any, y: Any = None) -> tuple[MarginSolution, Check]:
    r"""The max-margin solution that selects the decisive token of every sequence and nothing else, and whether its norm is below 4n.

    .. math:: \min \|p\| \ \text{s.t.}\ p^\top (E_{s_*^X} - E_s) \ge 1,\ s \in X \setminus \{s_*^X\},\ X \in \mathcal X_n; \qquad
        \|\hat p\| \le 4n

    The lemma promises it at the widths of Lemma 19 (`check_lemma_19`), which are not asked here: the check is whether it is so.

    Args:
        E: embeddings (n_vocabulary, d_model). sequences, y: data that obey Assumption 4.
    """
    data = as_labelled(sequences, y)
    solution = vocabulary_svm(E, data, decisive_tokens(data))
    norm, bound = 1.0 / float(solution.margin) if solution.margin > 0.0 else np.inf, 4.0 * len(data)
    said = f"‖p̂‖ = {norm:.4g}, and 4n = {bound:g}"
    return solution, Check("B Lemma 21", norm <= bound, said, {"norm": norm, "bound": bound})


@implements("B", "Lemma 20")
def tightest_slack(solution: MarginSolution) -> float:
    r"""How far the tightest constraint of a max-margin problem is from equality, :math:`\min_r |a_r^\top \hat p - b_r|`; it is zero."""
    if not isinstance(solution, MarginSolution) or solution.status is not Status.OPTIMAL or solution.is_batch:
        raise reject("solution", "one problem with a solution other than zero", repr(solution))
    return float(np.min(np.abs(np.asarray(solution.rows) @ solution.x - solution.floor)))


@implements("B", "Lemma 6")
def all_selecting_directions(E: Any, sequences: Any, y: Any = None) -> FloatArray:
    r"""The directions in the span of the embeddings under which all tokens of every sequence tie, so that everything is selected.

    .. math:: q_c^\top E_s = 1_{s \in c} \quad \text{for each set } c \text{ of tokens that sequences connect}

    The loss has no slope along them at any p, so a flow never moves there: its limit cannot select everything.

    Args:
        E: embeddings (n_vocabulary, d_model), linearly independent on the tokens that occur. sequences, y: labelled sequences.
    Returns:
        (n_sets, d_model), one direction for each set, from the set with the smallest id on.
    """
    data, table = as_labelled(sequences, y), real_array(E, "E", ("n_vocabulary", "d_model"))
    used, place = np.unique(data.tokens, return_inverse=True)
    if used[-1] >= len(table):
        raise reject("E", f"at least {used[-1] + 1} rows, one for each token", f"{len(table)} rows")
    first = np.repeat(place[data.offsets[:-1]], data.lengths)
    links = coo_array((np.ones(len(place)), (first, place)), shape=(len(used), len(used)))
    n_sets, member = connected_components(links, directed=False)
    if np.linalg.matrix_rank(table[used]) < len(used):
        raise reject("E", "linearly independent on the tokens that occur", f"rank below {len(used)}")
    wanted = (member == np.arange(n_sets)[:, None]).astype(np.float64)  # (n_sets, n_used)
    return wanted @ np.linalg.pinv(table[used]).T


@implements("B", "§3, one irrelevant token")
def remaining_selections(E: Any, sequences: Any, y: Any = None, *, max_problems: int = 20_000) -> FeasibleSelections:
    r"""The selections that Theorem 5 and Lemma 6 leave: those that hold every decisive token, but for that of everything.

    .. math:: \{ (\mathcal S_X(p))_X : s_*^X \in \mathcal S_X(p)\ \forall X \} \setminus \{ (X)_X \}

    The paper concludes that with a single irrelevant token only the decisive ones are left. They are not: for the sequences {0, 2} and
    {1, 2} of tokens 0 and 1 that decide, {0}, {1, 2} is left too, and {0, 2}, {1}.

    Args:
        E: embeddings (n_vocabulary, d_model). sequences, y: data that obey Assumption 4. max_problems: as `feasible_selections` takes it.
    Returns:
        A `FeasibleSelections`; where only the decisive tokens are left it has one entry.
    """
    data = as_labelled(sequences, y)
    listed = feasible_selections(E, data, required=decisive_tokens(data), max_problems=max_problems)
    left = np.flatnonzero(np.isfinite(listed.margins))
    selections = tuple(listed.selections[k] for k in left)
    return replace(listed, selections=selections, margins=listed.margins[left], directions=listed.directions[left])


@dataclass(frozen=True, repr=False, eq=False)
class EmbeddingPrediction:
    """What Theorem 5 says about one dataset and initialisation, and what the flow does.

    Attributes:
        verdict: B Thm 5 with its conditions. divergence: B Lemma 13 with its own. window: whether the step is outside the window in which
            runs lose a class, which is measured and not proved; None where the data break Assumption 4.
        important: S_c, the ids of completely positive and completely negative tokens.
        step: the first step. run: the flow of p after it.
        selection: the ids that the flow's end selects in each sequence, those that tie included. solution: the max-margin problem of that
            selection. tied: whether the flow ended because tokens that tie balance each other.
        direction: (d_model,) its solution, normed: the limit of p/‖p‖ if the selection lasts; None where the flow ends at a minimum.
        selects_important: whether each important token is selected somewhere (Theorem 5). selects_every_sequence: whether each sequence
            selects its own (Lemma 14), which is more. only_important: whether nothing else is selected.
        lost: the labels none of whose sequences selects an important token of its own.
        why: one sentence. warning: another where a class is lost or the step is inside the window; else empty.
    """

    verdict: Verdict
    divergence: Verdict
    window: Check | None
    important: IntArray
    step: FirstStep
    run: Trajectory
    selection: Selection
    solution: MarginSolution
    tied: bool
    direction: FloatArray | None
    selects_important: bool
    selects_every_sequence: bool
    only_important: bool
    lost: tuple[int, ...]
    why: str
    warning: str

    @property
    def correlation(self) -> float:
        """Cosine between the flow's end and `direction`; nan where there is none."""
        return float("nan") if self.direction is None else float(correlation(self.run.final, self.direction))

    def __repr__(self) -> str:
        applies = "applies" if self.verdict.applies else "does not apply"
        lost = f", class {', '.join(f'{label:+d}' for label in self.lost)} lost" if self.lost else ""
        return (
            f"EmbeddingPrediction(B Thm 5 {applies}, ‖p‖={float(self.run.norm):.4g}, corr={self.correlation:.6f}{lost})"
        )

    def __str__(self) -> str:
        chosen = sorted({int(s) for ids in self.selection for s in ids})
        lines = [str(self.verdict), f"Decisive tokens: {self.important.tolist()}. Selected tokens: {chosen}.", self.why]
        return "\n".join([*lines, self.warning] if self.warning else lines)


@implements("B", "Thm 5", "Lemma 14")
def predict_embedding_limit(
    start: Parameters,
    rate: float,
    sequences: Any,
    y: Any = None,
    *,
    delta: float = 0.05,
    until: UntilNorm | UntilLength = UntilNorm(500.0),  # noqa: B008
) -> EmbeddingPrediction:
    r"""Which conditions of Theorem 5 hold, and the max-margin direction of the selection that the flow reaches.

    .. math:: E^1, p^1 \ \text{by one step with}\ \eta_0, \qquad \dot p_t = -\nabla_p L(E^1, p_t), \qquad
        \|p_t\| \to \infty,\quad \frac{p_t}{\|p_t\|} \to p_*(p_\infty),\quad \mathcal S_c \subseteq \bigcup_X \mathcal S_X(p_\infty)

    The theorem leaves open which selection that is; the flow is followed to tell. For a window of step sizes the flow loses the decisive
    tokens of a whole class (claim X-T5): `warning` says so, from where the flow ended and from `check_class_window`.

    Args:
        start: E⁰, p⁰ and v, as `initial_parameters` draws them. rate: η₀. sequences, y: labelled sequences, or ids and labels.
        delta: the probability that may be missed. until: how far to follow the flow.
    Returns:
        An `EmbeddingPrediction`, `str` of which is a readable account; `correlation` says how near the flow has come.
    """
    data = as_labelled(sequences, y)
    step = first_step(start, rate, data)
    E = step.after.E
    run = embedding_flow(step.after, data, until=until)
    tied = run.status is Status.TIED
    selection = selected_tokens(E, run.final, data, tie=TIED_LOGITS if tied else None)
    solution = vocabulary_svm(E, data, selection)
    verdict = check_theorem_5(data, rate=rate, d_model=E.shape[1], delta=delta)
    goes_on = run.status in (Status.COMPLETED, Status.TIED) and solution.status is Status.OPTIMAL
    own = decisive_of_each(data)
    important, chosen = np.unique(np.concatenate(own)), np.unique(np.concatenate(selection))
    has = np.array([bool(np.isin(mine, ids).any()) for mine, ids in zip(own, selection, strict=True)])
    holds = np.array([len(mine) > 0 for mine in own])
    lost = tuple(int(label) for label in np.unique(data.y[holds]) if not has[holds & (data.y == label)].any())
    window = check_class_window(data, rate=rate) if verdict.conditions[0].holds else None
    return EmbeddingPrediction(
        verdict=verdict,
        divergence=check_lemma_13(step, delta),
        window=window,
        important=important,
        step=step,
        run=run,
        selection=selection,
        solution=solution,
        tied=tied,
        direction=unit(solution.x) if goes_on else None,
        selects_important=bool(np.isin(important, chosen).all()),
        selects_every_sequence=bool(has[holds].all()),
        only_important=bool(np.isin(chosen, important).all()),
        lost=lost,
        why=_why(verdict, run, solution),
        warning=_warning(step, run, lost, window),
    )


def _why(verdict: Verdict, run: Trajectory, solution: MarginSolution) -> str:
    at = f"at ‖p‖ = {float(run.norm):.4g}"
    if run.status not in (Status.COMPLETED, Status.TIED):
        return f"No limit known: the flow is at a zero of the gradient, or as good as, {at}."
    if solution.status is not Status.OPTIMAL:
        return f"No limit: of the selection {at} one must say: {solution.status.value}"
    near = float(correlation(run.final, solution.x))
    failed = [check.name for check in verdict.conditions if not check.holds]
    sure = "Certain by B Thm 5" if verdict.applies else f"Expected, not certain, for want of {', '.join(failed)}"
    ties = (
        " Tokens tie: their pulls balance to nine digits, the flow goes on too slowly to follow."
        if run.status is Status.TIED
        else ""
    )
    return f"{sure}: p goes to the max-margin direction of this selection; {at} the cosine is {near:.6f}.{ties}"


def _warning(step: FirstStep, run: Trajectory, lost: tuple[int, ...], window: Check | None) -> str:
    """What to know before taking Theorem 5's selection for granted; empty where nothing speaks against it."""
    inside = window is not None and not window.holds
    if lost:
        names = " and ".join(f"{label:+d}" for label in lost)
        first, last = (float(p @ step.after.v) for p in (step.after.p, run.final))
        where = "inside" if inside else "outside"
        return (
            f"No sequence of class {names} selects its decisive token; ⟨p, v⟩ went from {first:.3g} to {last:.3g} on the way. The step is "
            f"{where} the window in which runs lose a class (claim X-T5: measured, not proved)."
        )
    if inside:
        numbers = window.numbers if window is not None else {}
        return (
            f"The step moves decisive scores by {numbers['moved']:.3g}: inside the window in which most runs lose a class (claim X-T5: "
            "measured, not proved). This one did not; another initialisation may."
        )
    return ""
