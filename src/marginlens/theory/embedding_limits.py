"""Theorem 5 of paper B: its conditions and lemmas with their numbers, and where the flow of p goes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import scipy

from marginlens.data.labelled import LabelledSequences, as_labelled
from marginlens.directions import correlation, unit
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
from marginlens.errors import positive_number, real_array, real_number, reject, whole_number
from marginlens.papers import implements, uses
from marginlens.status import Status
from marginlens.svm import MarginSolution
from marginlens.svm.vocabulary import vocabulary_svm
from marginlens.theory.assumptions import Check, TheoremVerdict
from marginlens.theory.prediction import Prediction
from marginlens.theory.vocabulary_selections import (
    FeasibleSelections,
    Selection,
    feasible_selections,
    selected_tokens,
)
from marginlens.typing import ArrayLike, FloatArray, IntArray

_SHARE_ATOL = 1e-12  # shares of a token in sequences are sums of a few ±1/T; below this they cancel
_WINDOW_MIN_GROWTH, _WINDOW_MAX_MOVED = 6.0, 2.5  # fitted: see `check_class_window`


@implements("B", "Assumption 4")
def decisive_tokens(sequences: Any, y: ArrayLike | None = None) -> Selection:
    """The one completely positive or negative token of each sequence, as a selection; the data must obey Assumption 4."""
    data = as_labelled(sequences, y)
    obeyed = check_assumption_4(data)
    if not obeyed.holds:
        raise reject("sequences", "such that each holds one decisive token among irrelevant ones", obeyed.why)
    return _decisive_of_each(data)


def _decisive_of_each(data: LabelledSequences) -> Selection:
    """The completely positive and completely negative tokens of each sequence, none, one or several."""
    decisive = np.abs(token_statistics(data).kind) == 2
    return tuple(np.unique(ids[decisive[ids]]) for ids in np.split(data.tokens, data.offsets[1:-1]))


# ---- Theorem 5 and the lemmas it is made of


@implements("B", "Thm 5", "Eq. (10)", "Lemma 14", "Lemma 18")
def check_theorem_5(
    sequences: Any, y: ArrayLike | None = None, *, rate: float, d_model: int, delta: float = 0.05
) -> TheoremVerdict:
    r"""Assumption 4 and the sizes that Theorem 5 asks for, each with both sides' numbers.

    .. math:: \eta_0 \ge 4 n^2 T^2, \quad d \ge \max\Big\{256,\ \Big(2\log\tfrac{|\mathcal S|^2}{\delta}\Big)^2,\
        (88\eta_0^2 + 111\eta_0 + 2)^8,\ |\mathcal S| + 3\Big\}

    With η₀ ≥ 4n²T² the third bound on d is beyond 10^40 already for n = T = 2: no machine meets it, so the verdict is never that the
    theorem applies. Where what it says comes true is measured: see `check_class_window`.

    All but the bound |S| + 3 are also what Lemma 14 (a limit selects the decisive token of every sequence) and Lemma 18 (it is
    max-margin) ask for; `check_missed_tokens` asks the question of Lemma 14's proof of the numbers at hand, which needs no width.

    The paper's sequences all have T tokens. Where lengths differ, T is the longest, and the step moves E_s by the mean of y times the
    share of s in a sequence, so α_s = 0 does not say that it stays: the last condition looks at what moves.

    Args:
        sequences, y: labelled sequences, or token-id lists and their labels. rate: η₀. d_model: d. delta: δ.
    Returns:
        A verdict; the powers of large numbers are given as their logarithms to base ten.
    """
    conditions = tuple(_conditions(as_labelled(sequences, y), rate, d_model, delta).values())
    conclusion = (
        f"with probability {1.0 - delta:g} the flow diverges, selects every decisive token, and a limit is max-margin"
    )
    return TheoremVerdict("B Thm 5", conditions, conclusion)


@implements("B", "Lemma 13")
def check_lemma_13(step: FirstStep, delta: float = 0.05) -> TheoremVerdict:
    r"""Whether ‖p‖ diverges under the flow after this step: the lemma's premises, and the two that its proof uses.

    .. math:: d \ge \max\Big\{256,\ \Big(2\log\tfrac{|\mathcal S|^2}{\delta}\Big)^2,\ |\mathcal S| + 3\Big\}; \qquad
        \exists s \in \mathcal S_c:\ \gamma_s(X) > \gamma_j(X) \ \text{for all}\ j \in X \setminus \{s\},\ X \ni s

    The proof moves along a p̂ with p̂ᵀE_s = 1 for one decisive token s and 0 for all others, and takes γ_s − γ_j ≥ η₀/(4nT), which the
    premises do not give: after a small step random scores decide. The last two conditions are enough by themselves, for any widths and
    without any chance: then −p̂ᵀ∇L > 0 at every p, so the flow has no point to stay near.

    Args:
        step: the first step, after which the flow starts. delta: δ.
    Returns:
        A verdict; `lead` of its condition on scores is the largest over s of the smallest γ_s − γ_j.
    """
    data, after = as_first_step(step).data, step.after
    found = _conditions(data, step.rate, after.E.shape[1], delta)
    lead, token = _largest_lead(data, np.asarray(after.E @ after.v))
    used = np.unique(data.tokens)
    rank = int(np.linalg.matrix_rank(after.E[used]))
    above = "beats" if lead > 0.0 else "does not beat"
    ahead = f"of all decisive tokens, token {token} does best: it {above} the others of its sequences, by {lead:.4g}"
    conditions = (
        *(found[name] for name in ("assumption", "256", "pairs", "independent", "still")),
        Check("E has full rank (by the proof)", rank == len(used), f"rank {rank} of |S| = {len(used)}", {"rank": rank}),
        Check("γ_s > γ_j for some s (by the proof)", lead > 0.0, ahead if token >= 0 else "no token", {"lead": lead}),
    )
    return TheoremVerdict("B Lemma 13", conditions, f"with probability {1.0 - delta:g} ‖p‖ grows without end")


@implements("B", "Lemma 14")
@uses(
    "B",
    {
        "Eq. (19)": "The loss that is left when a sequence misses its decisive token, with the scores at hand for 1/(2n)."
    },
)
def check_missed_tokens(step: FirstStep) -> Check:
    r"""Whether the loss after the step is too small for any sequence to lose its decisive token: Lemma 14's proof in numbers.

    .. math:: L(E^1, p^1) < \min_X \frac1n \Big[ \log\big(1 + e^{-\max_{j \ne s_*^X} \gamma_j(X)}\big)
        + \sum_{X' \ne X} \log\big(1 + e^{-\max_j \gamma_j(X')}\big) \Big]

    The flow never raises the loss, and along a diverging flow whose direction converges, a decisive token that is not selected loses all
    attention, so that the right-hand side is left at least. Where this holds every such limit selects s_*^X for all X, at any width.

    Args:
        step: the first step, on data that obey Assumption 4.
    Returns:
        A check with `loss` and `least`, and with `least_of_a_class`: the same for all sequences of the label that loses less.
    """
    data, after = as_first_step(step).data, step.after
    decisive = decisive_tokens(data)
    scores = np.asarray(after.E @ after.v)
    best, second = np.empty(len(data)), np.empty(len(data))
    for i, decisive_ids in enumerate(decisive):
        ids, label = data[i]
        others = ids[ids != decisive_ids[0]]
        best[i] = np.max(label * scores[ids])
        second[i] = np.max(label * scores[others], initial=-np.inf)
    least, missed = (np.logaddexp(0.0, -margin) for margin in (best, second))  # losses, (n_samples,)
    missed = np.where(np.isfinite(second), missed, np.inf)  # a sequence of one token selects it
    floor = float(least.mean())
    rise = missed - least
    of_class = min(float(np.sum(rise[data.y == label])) for label in np.unique(data.y)) / len(data)
    bound, loss = floor + float(rise.min()) / len(data), step.loss_after
    sentence = f"L(E¹, p¹) = {loss:.4g}, and a sequence without its decisive token leaves {bound:.4g} or more"
    numbers = {"loss": loss, "least": bound, "least_of_a_class": floor + of_class}
    return Check("B Lemma 14, in numbers", loss < bound, sentence, numbers)


@implements("B", "Lemma 19")
@implements("B'", "Lemma 4.5")
@uses(
    "B",
    {
        "Eq. (28)": "Eq. (15) for the decisive solution, which its proof shows for every rival.",
        "Eq. (29)": "The rival's tight and loose constraints, by which its proof splits the sequences.",
        "Eq. (30)": "Sequences without a tight constraint weigh nothing in its proof.",
        "Eq. (31)": "The rival's slope, split into decisive and irrelevant tokens; the width with μ makes the latter small.",
        "Eq. (32)": "The comparison of slopes for which its proof asks for the width with μ.",
    },
)
def check_lemma_19(step: FirstStep, delta: float = 0.05, *, max_problems: int = 20_000) -> TheoremVerdict:
    r"""Whether Lemma 19 says that the flow goes to the decisive tokens alone: Eq. (10), the lead of their margin, and two more widths.

    .. math:: \|\hat p\| < (1 - \mu) \|\hat p'\| \ \text{for every rival}\ \hat p', \qquad
        d \ge \max\Big\{ \Big(\frac{2816\, T n^2 (1 + 2\eta_0)}{\mu}\Big)^4,\
        \Big(2\eta_0 \Big(n \sqrt{2 \log\tfrac{|\mathcal S|^2}{\delta}} + 44 n\Big)\Big)^4 \Big\}

    The rivals are the selections that hold every decisive token, as the proof has it. A lead alone does not move the flow: at small d it
    mostly goes elsewhere (claim B-L6). The earlier version asks for :math:`d \ge (8T(1 - \mu)/(\mu\eta_0))^4` in place of both widths,
    from all constraints being tight, which complementary slackness does not grant; its number is `earlier_log10_least`.

    Args:
        step: the first step, whose embeddings the margins are taken of; small vocabularies only.
        delta: δ. max_problems: as `feasible_selections` takes it.
    Returns:
        A verdict with the lead μ and the logarithms of both widths to base ten.
    """
    data, eta = as_first_step(step).data, step.rate
    n, T, d = len(data), int(data.lengths.max()), step.after.E.shape[1]
    decisive = decisive_tokens(data)
    found = feasible_selections(step.after.E, data, required=decisive, max_problems=max_problems)
    lead, size = found.margin_lead(decisive), len(np.unique(data.tokens))
    chance = real_number(delta, "delta", "a probability between 0 and 1")
    least = 4.0 * math.log10(2816.0 * T * n**2 * (1.0 + 2.0 * eta) / lead) if lead > 0.0 else math.inf
    by_margin = _check_width("d ≥ (2816 T n² (1 + 2η₀)/μ)⁴", d, least)
    by_rate = 4.0 * math.log10(2.0 * eta * (n * math.sqrt(log_of_pairs(size, chance)) + 44.0 * n))
    earlier = max(8.0 * T * (1.0 - lead) / (lead * eta), 1e-300) if lead > 0.0 else math.inf
    shared = _conditions(data, eta, d, chance)
    conditions = (
        *shared.values(),
        Check("‖p̂‖ < (1 − μ)‖p̂'‖", lead > 0.0, f"μ = {lead:.4g} against every other selection", {"mu": lead}),
        replace(by_margin, numbers={**by_margin.numbers, "earlier_log10_least": 4.0 * math.log10(earlier)}),
        _check_width("d ≥ (2η₀ (n √(2 log(|S|²/δ)) + 44n))⁴", d, by_rate),
    )
    conclusion = f"with probability {1.0 - chance:g} a limit selects the decisive tokens alone, with maximum margin"
    return TheoremVerdict("B Lemma 19", conditions, conclusion)


# ---- where a class is lost


@implements("X", "T5")
def check_class_window(sequences: Any, y: ArrayLike | None = None, *, rate: float) -> Check:
    r"""Whether the first step is outside the window in which the flow tends to lose a whole class; measured, not proved.

    .. math:: 2g \max_{q \ge 1/T} \log\frac{G(q)}{G(1/T)} \ge 6 \quad\text{and}\quad m \le \tfrac52 \log(T |\mathcal S_c|), \qquad
        G(q) = \frac{q (1 - q)}{1 + e^{mq}},\quad g = \frac12 \sum_{s \in \mathcal S_c} m_s^2,\quad
        m_s = \frac{\eta_0}{2} |\alpha_s|,\quad m = \min_s m_s

    The step gives every decisive token ±m_s v. A part a of p along v then lifts the tokens of one label and sinks those of the other. To
    first order, and while random scores play no part, it grows as a power of the slope G(q) of the loss in the decisive logits, where q is
    the attention on the decisive tokens: q rises from 1/T, and a ∝ G(q)^(2g). Where that makes a large before G begins to fall, the class
    that sinks turns to irrelevant tokens with good random scores. Large steps end the window: the risen class has next to no loss left,
    and p comes back. The two constants, 6 and 5/2, are fitted to 17,000 runs of other settings and seeds than those of claim X-T5,
    which counts how many of its own this window names rightly; T is the longest sequence.

    Args:
        sequences, y: data that obey Assumption 4. rate: η₀.
    Returns:
        A check that holds outside the window, with `moved` (m), `gain` (g), `growth` (the logarithm of the factor by which a grows), and
        the window's ends `least_growth` and `largest_moved`.
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
    sentence = (
        f"the step moves decisive scores by {moved:.3g} or more, and the part of p along v can grow by a factor e^{growth:.3g}; runs lose "
        f"a class where that is at least e^{_WINDOW_MIN_GROWTH:g} and the scores move by no more than {largest:.3g}"
    )
    return Check("outside the window of lost classes (measured)", outside, sentence, numbers)


def _largest_rise(T: int, moved: float) -> float:
    """The largest of log G(q) − log G(1/T) over q from 1/T on, where G(q) = q(1 − q)/(1 + e^(m q)); 0 where G falls from there on."""

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


def _conditions(data: LabelledSequences, rate: float, d_model: int, delta: float) -> dict[str, Check]:
    """Every premise of the theorem by a short name; the lemmas take some of them."""
    eta, d = positive_number(rate, "rate"), whole_number(d_model, "d_model", at_least=1)
    n, T, size = len(data), int(data.lengths.max()), len(np.unique(data.tokens))
    obeyed, least = check_assumption_4(data), 4.0 * n**2 * T**2
    pairs = log_of_pairs(size, real_number(delta, "delta", "a probability between 0 and 1")) ** 2
    power = 8.0 * math.log10(88.0 * eta**2 + 111.0 * eta + 2.0)
    broken = {"offending": float(len(obeyed.offending))}
    said = f"η₀ = {eta:g}, and 4n²T² = {least:g} for n = {n}, T = {T}"
    bound = f"d = {d}, and the bound is {pairs:.1f} for |S| = {size}"
    return {
        "assumption": Check("B Assumption 4", obeyed.holds, obeyed.why.rstrip("."), broken),
        "rate": Check("η₀ ≥ 4n²T²", eta >= least, said, {"least": least}),
        "256": Check("d ≥ 256", d >= 256, f"d = {d}", {"least": 256.0}),
        "pairs": Check("d ≥ (2 log(|S|²/δ))²", d >= pairs, bound, {"least": pairs}),
        "power": _check_width("d ≥ (88η₀² + 111η₀ + 2)⁸", d, power),
        "independent": Check(
            "d ≥ |S| + 3", d >= size + 3, f"d = {d}, and |S| + 3 = {size + 3}", {"least": float(size + 3)}
        ),
        "still": _irrelevant_tokens_stay(data),
    }


def _check_width(name: str, d: int, log10_least: float) -> Check:
    """A bound on d that is compared by its logarithm to base ten."""
    said = f"log₁₀ d = {math.log10(d):.2f}, and that of the bound is {log10_least:.1f}"
    return Check(name, math.log10(d) >= log10_least, said, {"log10_d": math.log10(d), "log10_least": log10_least})


def _irrelevant_tokens_stay(data: LabelledSequences) -> Check:
    """Whether the step moves no irrelevant token: always so where all sequences have one length."""
    irrelevant = token_statistics(data).kind == 0
    share = np.abs(np.where(irrelevant, mean_signed_share(data), 0.0))
    moved, shortest, longest = float(share.max(initial=0.0)), int(data.lengths.min()), int(data.lengths.max())
    lengths = f"all sequences have {longest} tokens" if shortest == longest else f"lengths are {shortest} to {longest}"
    holds = moved <= _SHARE_ATOL
    what = "so the step leaves irrelevant tokens" if holds else f"so the step moves token {int(share.argmax())}"
    by = "" if holds else f", whose α_s is 0, by {moved:.4g} · η₀/2 along v"
    return Check("irrelevant tokens stay", holds, f"{lengths}, {what}{by}", {"largest_share": moved})


def _largest_lead(data: LabelledSequences, scores: FloatArray) -> tuple[float, int]:
    """The largest over decisive tokens of the smallest score by which they lead the other tokens of their sequences, and which."""
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


@implements("B", "Lemma 21")
def decisive_margin(E: ArrayLike, sequences: Any, y: ArrayLike | None = None) -> tuple[MarginSolution, Check]:
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
    return float(np.min(np.abs(np.asarray(solution.rows) @ solution.x - solution.lower)))


@implements("B", "Lemma 6")
def all_selecting_directions(E: ArrayLike, sequences: Any, y: ArrayLike | None = None) -> FloatArray:
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
    links = scipy.sparse.coo_array((np.ones(len(place)), (first, place)), shape=(len(used), len(used)))
    n_sets, member = scipy.sparse.csgraph.connected_components(links, directed=False)
    if np.linalg.matrix_rank(table[used]) < len(used):
        raise reject("E", "linearly independent on the tokens that occur", f"rank below {len(used)}")
    wanted = (member == np.arange(n_sets)[:, None]).astype(np.float64)  # (n_sets, n_used)
    return wanted @ np.linalg.pinv(table[used]).T


@implements("B", "§3, one irrelevant token")
def remaining_selections(
    E: ArrayLike, sequences: Any, y: ArrayLike | None = None, *, max_problems: int = 20_000
) -> FeasibleSelections:
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


class EmbeddingDetails(NamedTuple):
    """What stands behind the verdict of Theorem 5, and what the flow does.

    Attributes:
        verdict: B Thm 5 with its conditions. divergence: B Lemma 13 with its own. window: whether the step is outside the window in which
            runs lose a class, which is measured and not proved; None where the data break Assumption 4.
        important: S_c, the ids of completely positive and completely negative tokens.
        step: the first step. run: the flow of p after it.
        selection: the ids that the flow's end selects in each sequence, those that tie included. solution: the max-margin problem of that
            selection. tied: whether the flow ended because tokens that tie balance each other.
        correlation: cosine between the flow's end and the predicted direction; nan where there is none.
        selects_important: whether each important token is selected somewhere (Theorem 5). selects_every_sequence: whether each sequence
            selects its own (Lemma 14), which is more. only_important: whether nothing else is selected.
        lost: the labels none of whose sequences selects an important token of its own.
        warning: a sentence where a class is lost or the step is inside the window; else empty.
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
    warning: str


@implements("B", "Thm 5", "Lemma 14")
def predict_embedding_limit(
    start: Parameters,
    rate: float,
    sequences: Any,
    y: ArrayLike | None = None,
    *,
    delta: float = 0.05,
    until: UntilNorm | UntilLength = UntilNorm(500.0),
) -> Prediction:
    r"""Which conditions of Theorem 5 hold, and the max-margin direction of the selection that the flow reaches.

    .. math:: E^1, p^1 \ \text{by one step with}\ \eta_0, \qquad \dot p_t = -\nabla_p L(E^1, p_t), \qquad
        \|p_t\| \to \infty,\quad \frac{p_t}{\|p_t\|} \to p_*(p_\infty),\quad \mathcal S_c \subseteq \bigcup_X \mathcal S_X(p_\infty)

    The theorem leaves open which selection that is; the flow is followed to tell. For a window of step sizes the flow loses the decisive
    tokens of a whole class (claim X-T5): `details.warning` says so, from where the flow ended and from `check_class_window`.

    Args:
        start: E⁰, p⁰ and v, as `initial_parameters` draws them. rate: η₀. sequences, y: labelled sequences, or ids and labels.
        delta: the probability that may be missed. until: how far to follow the flow.
    Returns:
        A `Prediction` with `EmbeddingDetails`. Its direction is the limit of p/‖p‖ if the selection lasts, certain only where the verdict
        applies, and None where the flow ends at a minimum; `details.correlation` says how near the flow has come.
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
    decisive = _decisive_of_each(data)
    important, chosen = np.unique(np.concatenate(decisive)), np.unique(np.concatenate(selection))
    has = np.array([bool(np.isin(ids, picked).any()) for ids, picked in zip(decisive, selection, strict=True)])
    holds = np.array([len(ids) > 0 for ids in decisive])
    lost = tuple(int(label) for label in np.unique(data.y[holds]) if not has[holds & (data.y == label)].any())
    window = check_class_window(data, rate=rate) if verdict.conditions[0].holds else None
    warning = _warning(step, run, lost, window)
    near = float(correlation(run.final, solution.x)) if goes_on else float("nan")
    return Prediction(
        "embedding flow",
        (verdict,),
        f"{_why(verdict, run, solution, near)} {warning}".rstrip(),
        (f"Decisive tokens: {important.tolist()}. Selected tokens: {chosen.tolist()}.",),
        direction=unit(solution.x) if goes_on else None,
        details=EmbeddingDetails(
            verdict=verdict,
            divergence=check_lemma_13(step, delta),
            window=window,
            important=important,
            step=step,
            run=run,
            selection=selection,
            solution=solution,
            tied=tied,
            correlation=near,
            selects_important=bool(np.isin(important, chosen).all()),
            selects_every_sequence=bool(has[holds].all()),
            only_important=bool(np.isin(chosen, important).all()),
            lost=lost,
            warning=warning,
        ),
    )


def _why(verdict: TheoremVerdict, run: Trajectory, solution: MarginSolution, near: float) -> str:
    at = f"at ‖p‖ = {float(run.norm):.4g}"
    if run.status not in (Status.COMPLETED, Status.TIED):
        return f"No limit known: the flow is at a zero of the gradient, or as good as, {at}."
    if solution.status is not Status.OPTIMAL:
        return f"No limit: of the selection {at} one must say: {solution.status.value}"
    failed = ", ".join(check.name for check in verdict.failed)
    sure = f"Expected, not certain, for want of {failed}" if failed else "Certain by B Thm 5"
    slow = " Tokens tie: their pulls balance to nine digits, the flow goes on too slowly to follow."
    ties = slow if run.status is Status.TIED else ""
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
            f"The step moves decisive scores by {numbers['moved']:.3g}: inside the window in which many runs lose a class (claim X-T5: "
            "measured, not proved). This one did not; another initialisation may."
        )
    return ""
