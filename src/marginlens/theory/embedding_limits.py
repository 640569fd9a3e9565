"""Theorem 5 of paper B: the tokens that p selects, the conditions and lemmas with their numbers, and the limit of the flow of p."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import scipy

from marginlens.arithmetic.directions import correlation, unit
from marginlens.data.labelled import LabelledSequences, as_labelled
from marginlens.dynamics.flow import TIED_LOGITS, UntilLength, UntilNorm
from marginlens.dynamics.trajectory import Trajectory
from marginlens.embeddings.models import Parameters
from marginlens.embeddings.one_step import (
    FirstStep,
    as_first_step,
    embedding_flow,
    first_step,
    log_of_pairs,
    mean_signed_share,
)
from marginlens.embeddings.statistics import check_assumption_4, token_statistics
from marginlens.errors import InputError, nonnegative_number, positive_number, real_array, real_number, whole_number
from marginlens.papers import implements, uses
from marginlens.status import Status
from marginlens.svm import MarginSolution
from marginlens.svm.vocabulary import token_lists, vocabulary_svm
from marginlens.theory.checks import Check, TheoremVerdict
from marginlens.theory.prediction import Prediction
from marginlens.typing import ArrayLike, FloatArray, IntArray
from marginlens.words import Fact

Selection = tuple[IntArray, ...]  # the token ids selected in each sequence, ascending

TIE_RTOL = (
    2.0**-40
)  # logits that differ by less, relative to the larger of both Σ_j |E_sj p_j|, tie: what rounding leaves


class TokenRanks(NamedTuple):
    """The tokens of each sequence by their logits: the largest, the second largest, and those below; ids ascending."""

    selected: Selection
    secondary: Selection
    below: Selection


@implements("B", "Definition 15")
@uses(
    "B",
    {
        "Eq. (20)": "The second selection, its attribute secondary.",
        "Eq. (21)": "The tokens below both, its attribute below.",
    },
)
def token_ranks(
    E: ArrayLike, p: ArrayLike, sequences: LabelledSequences | Iterable[ArrayLike], *, tie: float | None = None
) -> TokenRanks:
    r"""Rank the tokens of every sequence: the selected ones, the secondary selection, and the rest.

    .. math:: \mathcal S_X(p) = \arg\max_{s \in X} p^\top E_s,\quad \mathcal S^2_X(p) = \arg\max_{s \in X \setminus \mathcal S_X(p)}
        p^\top E_s,\quad \mathcal S^<_X(p) = X \setminus (\mathcal S_X(p) \cup \mathcal S^2_X(p))

    Args:
        E: embeddings (n_vocabulary, d_model).

        p: (d_model,).

        sequences: token-id lists, an array, or `LabelledSequences`.

        tie: logits that differ from the largest by at most this count as equal; by default the rounding error of the two logits that
            are compared, however long the embeddings of other tokens are.

    Returns:
        A `TokenRanks` with one array of ids for each sequence; `secondary` and `below` may be empty.

    Examples:
        >>> import numpy as np
        >>> import marginlens as ml
        >>> ranks = ml.theory.token_ranks(np.eye(3), [3.0, 2.0, 1.0], [[0, 1, 2], [1, 2]])
        >>> [ids.tolist() for ids in ranks.selected], [ids.tolist() for ids in ranks.below]
        ([[0], [1]], [[2], []])
    """
    table = real_array(E, "E", ("n_vocabulary", "d_model"))
    query = real_array(p, "p", (table.shape[1],))
    given = 0.0 if tie is None else nonnegative_number(tie, "tie")
    rounding = np.abs(table) @ np.abs(query) * TIE_RTOL  # what a sum of products can lose: Σ_j |E_sj p_j|, not ‖E_s‖‖p‖
    widths = rounding if tie is None else np.full(len(table), given)  # (n_vocabulary,)
    logits = table @ query
    parts = [_ranks(np.unique(ids), logits, widths) for ids in token_lists(sequences, len(table))]
    return TokenRanks(*(tuple(ranked) for ranked in zip(*parts, strict=True)))


@implements("B", "Eq. (8)")
def selected_tokens(
    E: ArrayLike, p: ArrayLike, sequences: LabelledSequences | Iterable[ArrayLike], *, tie: float | None = None
) -> Selection:
    r"""Find the tokens that p selects in each sequence: those with the largest logit.

    .. math:: \mathcal S_X(p) = \{\hat s : \hat s = \arg\max_{s \in X} p^\top E_s\}

    Args:
        E, p, sequences, tie: as `token_ranks` takes them.

    Returns:
        One ascending array of token ids for each sequence, as `vocabulary_svm` takes them.

    Examples:
        >>> import numpy as np
        >>> import marginlens as ml
        >>> [ids.tolist() for ids in ml.theory.selected_tokens(np.eye(3), [3.0, 2.0, 1.0], [[0, 1, 2], [1, 2]])]
        [[0], [1]]
    """
    return token_ranks(E, p, sequences, tie=tie).selected


def _ranks(ids: IntArray, logits: FloatArray, widths: FloatArray) -> tuple[IntArray, IntArray, IntArray]:
    groups, left = [], ids
    for _ in range(2):
        top = left[np.argmax(logits[left])] if len(left) else -1
        first = logits[left] >= logits[top] - np.maximum(widths[left], widths[top])
        groups.append(left[first])
        left = left[~first]
    return groups[0], groups[1], left


_SHARE_ATOL = 1e-12  # shares of a token in sequences are sums of a few ±1/T; below this they cancel
_WINDOW_MIN_GROWTH, _WINDOW_MAX_MOVED = 6.0, 2.5  # fitted: see `check_class_window`


@implements("B", "Assumption 4")
def decisive_tokens(sequences: LabelledSequences | Iterable[ArrayLike], y: ArrayLike | None = None) -> Selection:
    """Find the one completely positive or negative token of each sequence; the data must obey Assumption 4.

    Examples:
        >>> import marginlens as ml
        >>> [ids.tolist() for ids in ml.theory.decisive_tokens([[0, 2], [1, 2]], [1, -1])]
        [[0], [1]]
    """
    data = as_labelled(sequences, y)
    obeyed = check_assumption_4(data)
    if not obeyed.holds:
        raise InputError("sequences", "such that each holds one decisive token among irrelevant ones", obeyed.why)
    return _decisive_of_each(data)


def _decisive_of_each(data: LabelledSequences) -> Selection:
    """Find the completely positive and completely negative tokens of each sequence: none, one or several."""
    decisive = np.abs(token_statistics(data).kind) == 2
    return tuple(np.unique(ids[decisive[ids]]) for ids in np.split(data.tokens, data.offsets[1:-1]))


# ---- Theorem 5 and the lemmas it is made of


@implements("B", "Thm 5", "Eq. (10)", "Lemma 14", "Lemma 18")
def check_theorem_5(
    sequences: LabelledSequences | Iterable[ArrayLike],
    y: ArrayLike | None = None,
    *,
    rate: float,
    d_model: int,
    delta: float = 0.05,
) -> TheoremVerdict:
    r"""Check Assumption 4 and the sizes that Theorem 5 requires, each with the numbers of both sides.

    .. math:: \eta_0 \ge 4 n^2 T^2, \quad d \ge \max\Big\{256,\ \Big(2\log\tfrac{|\mathcal S|^2}{\delta}\Big)^2,\
        (88\eta_0^2 + 111\eta_0 + 2)^8,\ |\mathcal S| + 3\Big\}

    With η₀ ≥ 4n²T² the third bound on d is beyond 10^40 already for n = T = 2: no machine meets it, so the verdict is never
    that the theorem applies. `check_class_window` reports what was measured about when its conclusion holds.

    Lemma 14 (a limit selects the decisive token of every sequence) and Lemma 18 (it is max-margin) require all of them except
    the bound `|S| + 3`. `check_missed_tokens` checks what the proof of Lemma 14 needs of the given numbers, without a bound on
    the width.

    The paper's sequences all have T tokens. If lengths differ, T is the longest, and the step moves E_s by the mean of y times
    the share of s in a sequence, so a token with α_s = 0 may still move: the last condition checks which tokens move.

    Args:
        sequences, y: labelled sequences, or token-id lists and their labels.

        rate: η₀.

        d_model: d.

        delta: δ.

    Returns:
        A verdict; powers of large numbers are given by their logarithms to base ten.

    Examples:
        >>> import marginlens as ml
        >>> verdict = ml.theory.check_theorem_5([[0, 2], [1, 2]], [1, -1], rate=64.0, d_model=512)
        >>> [check.code for check in verdict.failed]
        ['embedding.width_rate']
    """
    conditions = tuple(theorem_5_conditions(as_labelled(sequences, y), rate, d_model, delta).values())
    return TheoremVerdict("B Thm 5", conditions, Fact("embedding.theorem_5", {"probability": 1.0 - delta}))


@implements("B", "Lemma 13")
def check_lemma_13(step: FirstStep, delta: float = 0.05) -> TheoremVerdict:
    r"""Check whether ‖p‖ diverges under the flow after this step: the lemma's premises, and the two conditions that its proof uses.

    .. math:: d \ge \max\Big\{256,\ \Big(2\log\tfrac{|\mathcal S|^2}{\delta}\Big)^2,\ |\mathcal S| + 3\Big\}; \qquad
        \exists s \in \mathcal S_c:\ \gamma_s(X) > \gamma_j(X) \ \text{for all}\ j \in X \setminus \{s\},\ X \ni s

    The proof moves along a p̂ with p̂ᵀE_s = 1 for one decisive token s and 0 for all others, and uses γ_s − γ_j ≥ η₀/(4nT). The
    premises do not imply that: after a small step, random scores decide. The last two conditions are sufficient by themselves,
    for any width and with certainty: then −p̂ᵀ∇L > 0 at every p, so the flow has no point to stay near.

    Args:
        step: the first step; the flow starts after it.

        delta: δ.

    Returns:
        A verdict; `lead` of its condition on scores is the largest over s of the smallest γ_s − γ_j.
    """
    data, after = as_first_step(step).data, step.after
    found = theorem_5_conditions(data, step.rate, after.E.shape[1], delta)
    lead, token = _largest_lead(data, np.asarray(after.E @ after.v))
    used = np.unique(data.tokens)
    rank = int(np.linalg.matrix_rank(after.E[used]))
    leader = {"lead": lead, "token": token} if token >= 0 else {"lead": lead, "case": "none"}
    conditions = (
        *(found[name] for name in ("assumption", "256", "pairs", "independent", "still")),
        Check("embedding.full_rank", rank == len(used), {"rank": rank, "size": len(used)}),
        Check("embedding.leading_score", lead > 0.0, leader),
    )
    return TheoremVerdict("B Lemma 13", conditions, Fact("embedding.lemma_13", {"probability": 1.0 - delta}))


# ---- where a class is lost


@implements("X", "T5")
def check_class_window(
    sequences: LabelledSequences | Iterable[ArrayLike], y: ArrayLike | None = None, *, rate: float
) -> Check:
    r"""Check whether the first step is outside the window in which the flow tends to lose a whole class; measured, not proved.

    .. math:: 2g \max_{q \ge 1/T} \log\frac{G(q)}{G(1/T)} \ge 6 \quad\text{and}\quad m \le \tfrac52 \log(T |\mathcal S_c|), \qquad
        G(q) = \frac{q (1 - q)}{1 + e^{mq}},\quad g = \frac12 \sum_{s \in \mathcal S_c} m_s^2,\quad
        m_s = \frac{\eta_0}{2} |\alpha_s|,\quad m = \min_s m_s

    The step gives every decisive token ±m_s v. A component a of p along v then raises the tokens of one label and lowers those
    of the other. To first order, and while random scores play no part, it grows as a power of the slope G(q) of the loss in the
    decisive logits, where q is the attention on the decisive tokens: q rises from 1/T, and a ∝ G(q)^(2g). If a becomes large
    before G begins to fall, the class whose logits fall turns to irrelevant tokens with good random scores. Large steps end the
    window: the other class has almost no loss left, and p comes back. The two constants, 6 and 5/2, are fitted to 17,000 runs
    with other settings and seeds than those of claim X-T5, which counts how many of its own runs the window classifies
    correctly; T is the longest sequence.

    Args:
        sequences, y: data that obey Assumption 4.

        rate: η₀.

    Returns:
        A check that holds outside the window, with `moved` (m), `gain` (g), `growth` (the logarithm of the factor by which a grows), and
        the window's ends `least_growth` and `largest_moved`.

    Examples:
        >>> import marginlens as ml
        >>> ml.theory.check_class_window([[0, 2], [1, 2]], [1, -1], rate=10.0).holds
        True
    """
    data, eta = as_labelled(sequences, y), positive_number(rate, "rate")
    decisive = np.unique(np.concatenate(decisive_tokens(data)))
    T = int(data.lengths.max())
    all_moved = 0.5 * eta * np.abs(mean_signed_share(data)[decisive])
    gain, moved = 0.5 * float(all_moved @ all_moved), float(all_moved.min())
    growth = 2.0 * gain * _largest_rise(T, moved)
    largest = _WINDOW_MAX_MOVED * math.log(T * len(decisive))
    outside = growth < _WINDOW_MIN_GROWTH or moved > largest
    numbers = {
        "moved": moved,
        "gain": gain,
        "growth": growth,
        "least_growth": _WINDOW_MIN_GROWTH,
        "largest_moved": largest,
    }
    return Check("embedding.window", outside, numbers)


def _largest_rise(T: int, moved: float) -> float:
    """Maximise log G(q) − log G(1/T) over q ≥ 1/T, where G(q) = q(1 − q)/(1 + e^(m q)); 0 if G falls from there on."""

    def log_slope(q: float) -> float:
        return math.log(q) + math.log1p(-q) - float(np.logaddexp(0.0, moved * q))

    def derivative(q: float) -> float:
        return 1.0 / q - 1.0 / (1.0 - q) - moved * float(scipy.special.expit(moved * q))

    if T <= 2 or derivative(1.0 / T) <= 0.0:
        return 0.0
    top = float(
        scipy.optimize.brentq(derivative, 1.0 / T, 0.5)
    )  # log G is concave, and its derivative at 1/2 is negative
    return log_slope(top) - log_slope(1.0 / T)


# ---- parts


def theorem_5_conditions(data: LabelledSequences, rate: float, d_model: int, delta: float) -> dict[str, Check]:
    """Check every premise of the theorem, by a short name; the lemmas use some of them."""
    eta, d = positive_number(rate, "rate"), whole_number(d_model, "d_model", at_least=1)
    n, T, size = len(data), int(data.lengths.max()), len(np.unique(data.tokens))
    obeyed, least = check_assumption_4(data), 4.0 * n**2 * T**2
    pairs = log_of_pairs(size, real_number(delta, "delta", "a probability between 0 and 1")) ** 2
    power = 8.0 * math.log10(88.0 * eta**2 + 111.0 * eta + 2.0)
    broken = {"offending": float(len(obeyed.offending)), "reason": obeyed.why.rstrip(".")}
    return {
        "assumption": Check("embedding.assumption_4", obeyed.holds, broken),
        "rate": Check("embedding.rate", eta >= least, {"least": least, "rate": eta, "n_samples": n, "length": T}),
        "256": Check("embedding.width_256", d >= 256, {"least": 256.0, "d": d}),
        "pairs": Check("embedding.width_pairs", d >= pairs, {"least": pairs, "d": d, "size": size}),
        "power": check_width("embedding.width_rate", d, power),
        "independent": Check("embedding.width_independent", d >= size + 3, {"least": float(size + 3), "d": d}),
        "still": _irrelevant_tokens_stay(data),
    }


def check_width(code: str, d: int, log10_least: float) -> Check:
    """Compare d with a bound by their logarithms to base ten."""
    return Check(code, math.log10(d) >= log10_least, {"log10_d": math.log10(d), "log10_least": log10_least})


def _irrelevant_tokens_stay(data: LabelledSequences) -> Check:
    """Return whether the step moves no irrelevant token; always true if all sequences have one length."""
    irrelevant = token_statistics(data).kind == 0
    share = np.abs(np.where(irrelevant, mean_signed_share(data), 0.0))
    moved, shortest, longest = float(share.max(initial=0.0)), int(data.lengths.min()), int(data.lengths.max())
    numbers = {"largest_share": moved, "shortest": shortest, "longest": longest, "token": int(share.argmax())}
    case = "default" if shortest == longest else "ragged"
    return Check("embedding.irrelevant_tokens", moved <= _SHARE_ATOL, {**numbers, "case": case})


def _largest_lead(data: LabelledSequences, scores: FloatArray) -> tuple[float, int]:
    """Find the decisive token with the largest lead in score over the other tokens of its sequences, and that lead."""
    smallest: dict[int, float] = {}
    for i, decisive_ids in enumerate(_decisive_of_each(data)):
        ids, label = data[i]
        for s in decisive_ids.tolist():
            others: IntArray = ids[ids != s]
            if len(others):
                lead = float(label * scores[s] - np.max(label * scores[others]))
                smallest[s] = min(smallest.get(s, math.inf), lead)
    best = max(smallest, key=lambda s: smallest[s], default=-1)
    return smallest.get(best, -math.inf), best


class EmbeddingDetails(NamedTuple):
    """The quantities behind the verdict of Theorem 5, and the run of the flow.

    Attributes:
        verdict: B Thm 5 with its conditions.

        divergence: B Lemma 13 with its own.

        window: whether the step is outside the window in which runs lose a class (measured, not proved); None if the data
            violate Assumption 4.

        important: S_c, the ids of completely positive and completely negative tokens.

        step: the first step.

        run: the flow of p after it.

        selection: the ids that the flow's end selects in each sequence, including ties.

        solution: the max-margin problem of that selection.

        tied: whether the flow ended because tied tokens balance each other.

        correlation: cosine between the flow's end and the predicted direction; nan if there is none.

        selects_important: whether each important token is selected somewhere (Theorem 5).

        selects_every_sequence: whether each sequence selects its own important token (Lemma 14), a stronger condition.

        only_important: whether nothing else is selected.

        lost: the labels none of whose sequences selects an important token of its own.

        warning: that a class is lost, or that the step is inside the window; else None.
    """

    verdict: TheoremVerdict
    divergence: TheoremVerdict
    window: Check | None
    important: IntArray
    step: FirstStep
    run: Trajectory
    selection: Selection
    solution: MarginSolution
    tied: bool
    correlation: float
    selects_important: bool
    selects_every_sequence: bool
    only_important: bool
    lost: tuple[int, ...]
    warning: Fact | None


@implements("B", "Thm 5", "Lemma 14")
def predict_embedding_limit(
    start: Parameters,
    rate: float,
    sequences: LabelledSequences | Iterable[ArrayLike],
    y: ArrayLike | None = None,
    *,
    delta: float = 0.05,
    until: UntilNorm | UntilLength = UntilNorm(500.0),
) -> Prediction:
    r"""Check the conditions of Theorem 5, and find the max-margin direction of the selection that the flow reaches.

    .. math:: E^1, p^1 \ \text{by one step with}\ \eta_0, \qquad \dot p_t = -\nabla_p L(E^1, p_t), \qquad
        \|p_t\| \to \infty,\quad \frac{p_t}{\|p_t\|} \to p_*(p_\infty),\quad \mathcal S_c \subseteq \bigcup_X \mathcal S_X(p_\infty)

    The theorem does not say which selection that is, so the flow is followed. In a window of step sizes the flow loses the
    decisive tokens of a whole class (claim X-T5); `details.warning` reports this, judging by the end of the flow and by
    `check_class_window`.

    Args:
        start: E⁰, p⁰ and v, as `initial_parameters` draws them.

        rate: η₀.

        sequences, y: labelled sequences, or ids and labels.

        delta: δ, the probability with which the theorem may fail.

        until: how far to follow the flow.

    Returns:
        A `Prediction` with `EmbeddingDetails`. Its direction is the limit of p/‖p‖ if the selection lasts; it is certain only
        if the verdict applies, and None if the flow ends at a minimum. `details.correlation` says how close the flow has come.
    """
    data = as_labelled(sequences, y)
    step = first_step(start, rate, data)
    run = embedding_flow(step.after, data, until=until)
    details = _details(data, step, run, delta)
    goes_on = run.status in (Status.COMPLETED, Status.TIED) and details.solution.status is Status.OPTIMAL
    selected = np.unique(np.concatenate(details.selection))
    facts = [_limit(details), *([Fact("embedding.tied")] if goes_on and details.tied else [])]
    facts += [] if details.warning is None else [details.warning]
    tokens = Fact("embedding.tokens", {"decisive": details.important.tolist(), "selected": selected.tolist()})
    return Prediction(
        "embedding flow",
        (details.verdict,),
        tuple(facts),
        (tokens,),
        direction=unit(details.solution.x) if goes_on else None,
        details=details,
    )


def _details(data: LabelledSequences, step: FirstStep, run: Trajectory, delta: float) -> EmbeddingDetails:
    """Collect the quantities behind the prediction from a run of the flow."""
    E, rate, tied = step.after.E, step.rate, run.status is Status.TIED
    selection = selected_tokens(E, run.final, data, tie=TIED_LOGITS if tied else None)
    solution = vocabulary_svm(E, data, selection)
    verdict = check_theorem_5(data, rate=rate, d_model=E.shape[1], delta=delta)
    goes_on = run.status in (Status.COMPLETED, Status.TIED) and solution.status is Status.OPTIMAL
    decisive = _decisive_of_each(data)
    important, selected = np.unique(np.concatenate(decisive)), np.unique(np.concatenate(selection))
    has = np.array([bool(np.isin(ids, picked).any()) for ids, picked in zip(decisive, selection, strict=True)])
    holds = np.array([len(ids) > 0 for ids in decisive])
    lost = tuple(int(label) for label in np.unique(data.y[holds]) if not has[holds & (data.y == label)].any())
    window = check_class_window(data, rate=rate) if verdict.conditions[0].holds else None
    return EmbeddingDetails(
        verdict=verdict,
        divergence=check_lemma_13(step, delta),
        window=window,
        important=important,
        step=step,
        run=run,
        selection=selection,
        solution=solution,
        tied=tied,
        correlation=float(correlation(run.final, solution.x)) if goes_on else float("nan"),
        selects_important=bool(np.isin(important, selected).all()),
        selects_every_sequence=bool(has[holds].all()),
        only_important=bool(np.isin(selected, important).all()),
        lost=lost,
        warning=_warning(step, run, lost, window),
    )


def _limit(details: EmbeddingDetails) -> Fact:
    """State the limit of the flow, and how certain it is."""
    run, numbers = details.run, {"norm": float(details.run.norm), "correlation": details.correlation}
    if run.status not in (Status.COMPLETED, Status.TIED):
        return Fact("embedding.stuck", {"norm": float(run.norm)})
    if details.solution.status is not Status.OPTIMAL:
        return Fact("embedding.no_limit", {"norm": float(run.norm), "status": Fact(details.solution.status.value)})
    failed = [check.name for check in details.verdict.failed]
    return Fact("embedding.limit", {**numbers, "failed": failed, "case": "expected" if failed else "certain"})


def _warning(step: FirstStep, run: Trajectory, lost: tuple[int, ...], window: Check | None) -> Fact | None:
    """Return the warning about Theorem 5's selection; None if nothing speaks against it."""
    is_inside = window is not None and not window.holds
    if lost:
        first, last = (float(p @ step.after.v) for p in (step.after.p, run.final))
        numbers = {"classes": [f"{label:+d}" for label in lost], "first": first, "last": last}
        return Fact("embedding.class_lost", {**numbers, "case": "inside" if is_inside else "outside"})
    if window is not None and is_inside:
        return Fact("embedding.in_window", {"moved": window.numbers["moved"]})
    return None
