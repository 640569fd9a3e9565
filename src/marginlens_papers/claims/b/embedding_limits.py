"""Lemmas of paper B behind Theorem 5: which selections remain for the flow, and how long their max-margin solutions are."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import scipy

from marginlens.data.labelled import as_labelled
from marginlens.embeddings.one_step import (
    FirstStep,
    as_first_step,
    log_of_pairs,
)
from marginlens.errors import InputError, real_array, real_number
from marginlens.papers import implements, uses
from marginlens.status import Status
from marginlens.svm import MarginSolution
from marginlens.svm.vocabulary import vocabulary_svm
from marginlens.theory.checks import Check, TheoremVerdict
from marginlens.theory.embedding_limits import check_width, decisive_tokens, theorem_5_conditions
from marginlens.typing import ArrayLike, FloatArray
from marginlens.words import Fact
from marginlens_papers.claims.b.feasible_selections import FeasibleSelections, feasible_selections


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
    attention, so that the right-hand side is left at least. If this holds, every such limit selects s_*^X for all X, at any width.

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
    numbers = {"loss": loss, "least": bound, "least_of_a_class": floor + of_class}
    return Check("embedding.missed_tokens", loss < bound, numbers)


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
    r"""Whether Lemma 19 says that the flow goes to only the decisive tokens: Eq. (10), the lead of their margin, and two more widths.

    .. math:: \|\hat p\| < (1 - \mu) \|\hat p'\| \ \text{for every rival}\ \hat p', \qquad
        d \ge \max\Big\{ \Big(\frac{2816\, T n^2 (1 + 2\eta_0)}{\mu}\Big)^4,\
        \Big(2\eta_0 \Big(n \sqrt{2 \log\tfrac{|\mathcal S|^2}{\delta}} + 44 n\Big)\Big)^4 \Big\}

    The rivals are the selections that hold every decisive token, as the proof has it. A lead alone does not move the flow: at small d it
    mostly goes elsewhere (claim B-L19). The earlier version asks for :math:`d \ge (8T(1 - \mu)/(\mu\eta_0))^4` in place of both widths,
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
    by_margin = check_width("embedding.width_margin", d, least)
    by_rate = 4.0 * math.log10(2.0 * eta * (n * math.sqrt(log_of_pairs(size, chance)) + 44.0 * n))
    earlier = max(8.0 * T * (1.0 - lead) / (lead * eta), 1e-300) if lead > 0.0 else math.inf
    shared = theorem_5_conditions(data, eta, d, chance)
    conditions = (
        *shared.values(),
        Check("embedding.margin_lead", lead > 0.0, {"mu": lead}),
        replace(by_margin, numbers={**by_margin.numbers, "earlier_log10_least": 4.0 * math.log10(earlier)}),
        check_width("embedding.width_steps", d, by_rate),
    )
    return TheoremVerdict("B Lemma 19", conditions, Fact("embedding.lemma_19", {"probability": 1.0 - chance}))


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
    return solution, Check("embedding.decisive_norm", norm <= bound, {"norm": norm, "bound": bound})


@implements("B", "Lemma 20")
def tightest_slack(solution: MarginSolution) -> float:
    r"""How far the tightest constraint of a max-margin problem is from equality, :math:`\min_r |a_r^\top \hat p - b_r|`; it is zero."""
    if not isinstance(solution, MarginSolution) or solution.status is not Status.OPTIMAL or solution.is_batch:
        raise InputError("solution", "one problem with a solution other than zero", repr(solution))
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
        raise InputError("E", f"at least {used[-1] + 1} rows, one for each token", f"{len(table)} rows")
    first = np.repeat(place[data.offsets[:-1]], data.lengths)
    links = scipy.sparse.coo_array((np.ones(len(place)), (first, place)), shape=(len(used), len(used)))
    n_sets, member = scipy.sparse.csgraph.connected_components(links, directed=False)
    if np.linalg.matrix_rank(table[used]) < len(used):
        raise InputError("E", "linearly independent on the tokens that occur", f"rank below {len(used)}")
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
        A `FeasibleSelections`; if only the decisive tokens are left, it has one entry.
    """
    data = as_labelled(sequences, y)
    listed = feasible_selections(E, data, required=decisive_tokens(data), max_problems=max_problems)
    left = np.flatnonzero(np.isfinite(listed.margins))
    selections = tuple(listed.selections[k] for k in left)
    return replace(listed, selections=selections, margins=listed.margins[left], directions=listed.directions[left])
