"""Where the ⟨cls⟩ embedding goes after the first step: Theorem 5's conditions with their numbers, and the limit of the flow."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from marginlens.data.labelled import as_labelled
from marginlens.data.tokens import FloatArray, IntArray
from marginlens.directions import correlation, unit
from marginlens.dynamics.flow import UntilLength, UntilNorm, gradient_flow
from marginlens.dynamics.flow_embeddings import embedding_tokens
from marginlens.dynamics.trajectory import DescentStatus, Trajectory
from marginlens.embeddings.one_step import FirstStep, first_step
from marginlens.embeddings.parameters import Parameters
from marginlens.embeddings.proved import log_of_pairs
from marginlens.embeddings.statistics import check_assumption_4, token_statistics
from marginlens.errors import positive_number, real_array, real_number, reject, whole_number
from marginlens.papers import implements
from marginlens.svm import MarginSolution, Status
from marginlens.svm.vocabulary import vocabulary_svm
from marginlens.theory.assumptions import Check
from marginlens.theory.verdicts import Verdict
from marginlens.theory.vocabulary_selections import Selection, selected_tokens


@implements("B", "Thm 5", "Eq. (10)")
def check_theorem_5(sequences: Any, y: Any = None, *, rate: float, d_model: int, delta: float = 0.05) -> Verdict:
    r"""Assumption 4 and the sizes that Theorem 5 asks for, each with both sides' numbers.

    .. math:: \eta_0 \ge 4 n^2 T^2, \quad d \ge \max\Big\{256,\ \Big(2\log\tfrac{|\mathcal S|^2}{\delta}\Big)^2,\
        (88\eta_0^2 + 111\eta_0 + 2)^8,\ |\mathcal S| + 3\Big\}

    With η₀ ≥ 4n²T² the third bound on d is beyond 10^40 already for n = T = 2: no machine meets it, so the verdict is never that the
    theorem applies. What it says happens far earlier all the same.

    Args:
        sequences, y: labelled sequences, or token-id lists and their labels. rate: η₀. d_model: d. delta: δ.
    Returns:
        A verdict; the powers of large numbers are given as their logarithms to base ten.
    """
    data = as_labelled(sequences, y)
    eta, d = positive_number(rate, "rate"), whole_number(d_model, "d_model", at_least=1)
    n, T = len(data), int(data.lengths.max())
    size = len(np.unique(data.tokens))
    obeyed, least = check_assumption_4(data), 4.0 * n**2 * T**2
    pairs = log_of_pairs(size, real_number(delta, "delta", "a probability between 0 and 1")) ** 2
    power = 8.0 * math.log10(88.0 * eta**2 + 111.0 * eta + 2.0)
    told = f"d = {d}, and "
    conditions = (
        Check("B Assumption 4", obeyed.holds, obeyed.why.rstrip("."), {"offending": float(len(obeyed.offending))}),
        Check(
            "η₀ ≥ 4n²T²", eta >= least, f"η₀ = {eta:g}, and 4n²T² = {least:g} for n = {n}, T = {T}", {"least": least}
        ),
        Check("d ≥ 256", d >= 256, f"d = {d}", {"least": 256.0}),
        Check("d ≥ (2 log(|S|²/δ))²", d >= pairs, f"{told}the bound is {pairs:.1f} for |S| = {size}", {"least": pairs}),
        Check(
            "d ≥ (88η₀² + 111η₀ + 2)⁸",
            math.log10(d) >= power,
            f"log₁₀ d = {math.log10(d):.2f}, and that of the bound is {power:.1f}",
            {"log10_d": math.log10(d), "log10_least": power},
        ),
        Check("d ≥ |S| + 3", d >= size + 3, f"{told}|S| + 3 = {size + 3}", {"least": float(size + 3)}),
    )
    conclusion = (
        f"with probability {1.0 - delta:g} the flow diverges, selects every decisive token, and a limit is max-margin"
    )
    return Verdict("B Thm 5", conditions, conclusion)


@implements("B", "Lemma 21")
def decisive_margin(E: Any, sequences: Any, y: Any = None) -> tuple[MarginSolution, Check]:
    r"""The max-margin solution that selects the decisive token of every sequence and nothing else, and whether its norm is below 4n.

    .. math:: \min \|p\| \ \text{s.t.}\ p^\top (E_{s_*^X} - E_s) \ge 1,\ s \in X \setminus \{s_*^X\},\ X \in \mathcal X_n; \qquad
        \|\hat p\| \le 4n

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


@implements("B", "Assumption 4")
def decisive_tokens(sequences: Any, y: Any = None) -> Selection:
    """The one completely positive or negative token of each sequence, as a selection; the data must obey Assumption 4."""
    data = as_labelled(sequences, y)
    obeyed = check_assumption_4(data)
    if not obeyed.holds:
        raise reject("sequences", "such that each holds one decisive token among irrelevant ones", obeyed.why)
    decisive = np.abs(token_statistics(data).kind) == 2
    return tuple(np.unique(ids[decisive[ids]]) for ids in np.split(data.tokens, data.offsets[1:-1]))


@dataclass(frozen=True, repr=False, eq=False)
class EmbeddingPrediction:
    """What Theorem 5 says about one dataset and initialisation, and what the flow does.

    Attributes:
        verdict: B Thm 5 with its conditions. important: S_c, the ids of completely positive and completely negative tokens.
        step: the first step. run: the flow of p after it.
        selection: the ids that the flow's end selects in each sequence. solution: the max-margin problem of that selection.
        direction: (d_model,) its solution, normed: the limit of p/‖p‖ if the selection lasts; None where the flow ends at a minimum.
        selects_important: whether each important token is selected somewhere. only_important: whether nothing else is.
        why: one sentence.
    """

    verdict: Verdict
    important: IntArray
    step: FirstStep
    run: Trajectory
    selection: Selection
    solution: MarginSolution
    direction: FloatArray | None
    selects_important: bool
    only_important: bool
    why: str

    @property
    def correlation(self) -> float:
        """Cosine between the flow's end and `direction`; nan where there is none."""
        return float("nan") if self.direction is None else float(correlation(self.run.final, self.direction))

    def __repr__(self) -> str:
        applies = "applies" if self.verdict.applies else "does not apply"
        return f"EmbeddingPrediction(B Thm 5 {applies}, ‖p‖={float(self.run.norm):.4g}, corr={self.correlation:.6f})"

    def __str__(self) -> str:
        chosen = sorted({int(s) for ids in self.selection for s in ids})
        lines = [str(self.verdict), f"Decisive tokens: {self.important.tolist()}. Selected tokens: {chosen}."]
        return "\n".join([*lines, self.why])


@implements("B", "Thm 5")
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

    The theorem leaves open which selection that is; the flow is followed to tell.

    Args:
        start: E⁰, p⁰ and v, as `initial_parameters` draws them. rate: η₀. sequences, y: labelled sequences, or ids and labels.
        delta: the probability that may be missed. until: how far to follow the flow.
    Returns:
        An `EmbeddingPrediction`, `str` of which is a readable account; `correlation` says how near the flow has come.
    """
    data = as_labelled(sequences, y)
    step = first_step(start, rate, data)
    E, v = step.after.E, step.after.v
    verdict = check_theorem_5(data, rate=rate, d_model=E.shape[1], delta=delta)
    run = gradient_flow(embedding_tokens(E, data), v, start=step.after.p, until=until)
    selection = selected_tokens(E, run.final, data)
    solution = vocabulary_svm(E, data, selection)
    important = np.flatnonzero(np.abs(token_statistics(data).kind) == 2)
    chosen = np.unique(np.concatenate(selection))
    goes_on = run.status is DescentStatus.COMPLETED and solution.status is Status.OPTIMAL
    return EmbeddingPrediction(
        verdict=verdict,
        important=important,
        step=step,
        run=run,
        selection=selection,
        solution=solution,
        direction=unit(solution.x) if goes_on else None,
        selects_important=bool(np.isin(important, chosen).all()),
        only_important=bool(np.isin(chosen, important).all()),
        why=_why(verdict, run, solution),
    )


def _why(verdict: Verdict, run: Trajectory, solution: MarginSolution) -> str:
    if run.status is not DescentStatus.COMPLETED:
        return f"No limit known: the flow is at a zero of the gradient, or as good as, at ‖p‖ = {float(run.norm):.4g}."
    if solution.status is not Status.OPTIMAL:
        return f"No limit: of the selection at ‖p‖ = {float(run.norm):.4g} one must say: {solution.status.value}"
    near = float(correlation(run.final, solution.x))
    failed = [check.name for check in verdict.conditions if not check.holds]
    sure = "Certain by B Thm 5" if verdict.applies else f"Expected, not certain, for want of {', '.join(failed)}"
    return f"{sure}: p goes to the max-margin direction of this selection; at ‖p‖ = {float(run.norm):.4g} the cosine is {near:.6f}."
