"""C, abstract: the trained layer is an automaton, hard retrieval of the top component followed by a fixed soft mix."""

from __future__ import annotations

from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from scipy.special import softmax

import marginlens as ml
from marginlens.data import acyclic_sequences, cyclic_sequences
from marginlens.nexttoken.automaton import TIE, TieBreak
from marginlens.typing import Figure, FloatArray
from marginlens_papers.claim import Claim, Effort, Finding, Progress
from marginlens_papers.claims.random_data import random_sequences

SEED = 3
RADII = np.array([4.0, 15.0, 60.0, 240.0, 1e4, 1e6])
AT_240 = 3
SHOWN = np.array([1.0, 4.0, 12.0])
SHAPES: tuple[tuple[tuple[int, int, int, int], bool], ...] = (  # vocabulary, width, samples, length; cyclic?
    ((6, 8, 6, 4), True),
    ((8, 8, 4, 6), False),
    ((10, 16, 24, 6), True),
    ((12, 10, 20, 6), True),
)
ONE_HOT = (6, 6, 12, 4)  # vocabulary = width, samples, length
SLOW_RADII = np.array(
    [1e3, 1e6]
)  # over the margin; at 1e8 the KKT residual is no longer small compared with the pairs in question
STEP, STEPS = 0.1, 4000  # normalised
CONSTANT_STEPS = 20_000


class C_A(Claim):
    labels = ("C Abstract", "C Thm 2", "C Thm 3")

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Build every dataset's automaton, train the layer on it, and compare the two sequence by sequence."""
        count = 100 if effort is Effort.PAPER else 8
        compared = [_compare(j) for j in progress.each(range(count), more=1)]
        acyclic, cyclic = ([each for each in compared if each.is_cyclic is kind] for kind in (False, True))
        batch = ml.descend([each.data for each in acyclic], optimizer=ml.NormalizedGD(STEP), n_steps=STEPS)
        on_acyclic = [each.largest_variation(W) for each, W in zip(acyclic, batch.final, strict=True)]
        on_cyclic = [each.largest_variation(_trained_by_constant_steps(each.data)) for each in cyclic]
        slow = [row for j in range(max(count // 5, 4)) for row in _slow_ties(np.random.default_rng([SEED, 1, j]))]
        pace, losers = np.array([row[0] for row in slow]), np.array([row[1] for row in slow])
        progress.advance()
        redrawn = sum(each.redrawn for each in compared)
        variation = np.array([each.seen for each in compared])
        new_mean = np.array([each.new_mean for each in compared])
        new_largest = np.array([each.new_largest for each in compared])
        numbers = {
            "largest_variation_at_norm_240": float(variation[:, AT_240].max()),
            "median_variation_at_norm_240": float(np.median(variation[:, AT_240])),
            "median_variation_at_norm_15": float(np.median(variation[:, 1])),
            "mean_variation_on_new_sequences": float(new_mean[:, -1].mean()),
            "largest_variation_on_new_sequences": float(new_largest[:, -1].max()),
            "mean_variation_on_new_sequences_at_norm_240": float(new_mean[:, AT_240].mean()),
            "mean_variation_without_the_constant_term": float(np.mean([each.without_offset for each in compared])),
            "undecided_new_sequences": float(sum(each.undecided for each in compared)),
            "largest_variation_of_acyclic_descent": float(np.max(on_acyclic)),
            "median_variation_of_cyclic_descent": float(np.median(on_cyclic)),
            "largest_variation_of_cyclic_descent": float(np.max(on_cyclic)),
            "retrieves_the_label_component": float(np.mean([each.retrieves for each in compared])),
            "smallest_norm": float(np.min([*(each.norm for each in compared), *batch.norm])),
            "slow_smallest_pace": float(pace.min()),
            "slow_largest_pace": float(pace.max()),
            "slow_largest_variation_at_1e3_over_the_margin": float(losers[:, 0].max()),
            "slow_largest_variation_at_1e6_over_the_margin": float(losers[:, 1].max()),
            "slow_sequences": float(len(slow)),
            "datasets": float(count),
            "redrawn": float(redrawn),
        }
        measured = (
            f"On {count} datasets ({redrawn} drawn again because no W separates them) the total variation between automaton and layer on "
            f"the training sequences is at most {numbers['largest_variation_at_norm_240']:.0e} at norm 240 (median over datasets "
            f"{numbers['median_variation_at_norm_15']:.2g} at norm 15, {numbers['median_variation_at_norm_240']:.0e} at 240). After "
            f"descent it is at most {numbers['largest_variation_of_acyclic_descent']:.0e} on the {len(acyclic)} acyclic datasets; on the "
            f"cyclic ones, with constant steps, {numbers['median_variation_of_cyclic_descent']:.1g} in the median and "
            f"{numbers['largest_variation_of_cyclic_descent']:.2g} at most. On new sequences the minimiser is at "
            f"{numbers['mean_variation_on_new_sequences_at_norm_240']:.2g} in the mean at norm 240, where tokens close in height still "
            f"share, and at {numbers['mean_variation_on_new_sequences']:.0e} at norm 1e6 "
            f"({numbers['largest_variation_on_new_sequences']:.0e} at most); if tokens of equal height shared by "
            "$W^cyc$ alone, that would "
            f"be {numbers['mean_variation_without_the_constant_term']:.2g}. Of {len(slow)} one-hot sequences that a slow term decides "
            f"the variation is up to {losers[:, 0].max():.2g} at norm 1e3/margin and {losers[:, 1].max():.2g} at 1e6/margin, and "
            f"$s + log s$ grows by {pace.min():.4f} to {pace.max():.4f} of log R."
        )
        arrays = {
            "variation": variation,
            "fresh": new_mean,
            "shape": np.array([each.shape for each in compared]),
            "example": _example(),
        }
        return Finding(measured, numbers, arrays)

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """Total variation over the norm, and one dataset's next-token probabilities with the automaton's."""
        fig, (left, right) = ml.plotting.figure(2, width=5.6, height=4.6)
        variation, fresh = np.maximum(finding.arrays["variation"], 1e-16), finding.arrays["fresh"]
        for k, (sizes, cyclic) in enumerate(SHAPES):
            rows = variation[finding.arrays["shape"] == k]
            label = f"{'cyclic' if cyclic else 'acyclic'}, K = {sizes[0]}, d = {sizes[1]}, n = {sizes[2]}"
            radii, rows = (
                RADII[: AT_240 + 1],
                rows[:, : AT_240 + 1],
            )  # beyond, W itself is rounded too coarsely to see more
            left.loglog(radii, np.median(rows, axis=0), color=ml.plotting.ACCENTS[k], marker="osD^"[k], label=label)
            left.fill_between(radii, rows.min(axis=0), rows.max(axis=0), color=ml.plotting.ACCENTS[k], alpha=0.15, lw=0)
        left.loglog(
            RADII, fresh.mean(axis=0), color=ml.plotting.INK, ls="--", marker="x", label="new sequences, mean of all"
        )
        left.axhline(1e-3, color=ml.plotting.PATH, lw=1.0, ls=":")
        left.set(xlabel="‖W‖ of the trained layer", ylabel="total variation to the automaton", ylim=(5e-17, 2.0))
        left.set_title("The layer becomes its automaton")
        left.legend(loc="lower right", fontsize=9)
        _draw_example(right, finding.arrays["example"])
        return {"automaton": fig}


class _Compared(NamedTuple):
    """One dataset's automaton, compared with the layers of its path by total variation.

    Attributes:
        data, automaton: the dataset and its closed form. shape: its place in `SHAPES`. redrawn: how many draws had no automaton.
        seen: (n_radii,) the largest total variation over the training sequences. new_mean, new_largest: (n_radii,) over new sequences.
        undecided: how many new sequences the automaton does not decide.
        without_offset: the mean over new sequences at the largest radius if W^cyc alone set the shares of tokens of equal height.
        norm: of the last layer. retrieves: whether the automaton keeps exactly the tokens of the label's component.
    """

    data: ml.SequenceDataset
    automaton: ml.NextTokenAutomaton
    shape: int
    redrawn: int
    seen: FloatArray
    new_mean: FloatArray
    new_largest: FloatArray
    undecided: int
    without_offset: float
    norm: float
    retrieves: bool

    @property
    def is_cyclic(self) -> bool:
        """Whether the data may have cycles."""
        return SHAPES[self.shape][1]

    def largest_variation(self, W: FloatArray) -> float:
        """The largest total variation between the automaton and a layer over the training sequences."""
        return float(self.automaton.total_variation(self.data, W).max())


def _compare(j: int) -> _Compared:
    """Draw the j-th dataset, and compare its automaton with the layers of its path."""
    shape = j % len(SHAPES)
    (sizes, cyclic), rng = SHAPES[shape], np.random.default_rng([SEED, j])
    data, automaton, redrawn = _separable(sizes, cyclic, rng)
    path = ml.path(data, RADII)
    new = _fresh(data, rng)
    on_new = np.stack([automaton.total_variation(new, W) for W in path.points])  # (n_radii, n_sequences)
    return _Compared(
        data=data,
        automaton=automaton,
        shape=shape,
        redrawn=redrawn,
        seen=np.array([automaton.total_variation(data, W).max() for W in path.points]),
        new_mean=on_new.mean(axis=1),
        new_largest=on_new.max(axis=1),
        undecided=int(np.isnan(on_new[0]).sum()),
        without_offset=float(np.mean(_without_offset(automaton, new, path.points[-1]))),
        norm=float(path.norm[-1]),
        retrieves=_retrieves(data, automaton),
    )


def _trained_by_constant_steps(data: ml.SequenceDataset) -> FloatArray:
    """The layer after descent from zero with constant steps of one over the smoothness."""
    optimizer = ml.GradientDescent(1.0 / ml.NextTokenRisk(data).sharp_smoothness())
    return ml.descend(data, optimizer=optimizer, n_steps=CONSTANT_STEPS).final


def _without_offset(automaton: ml.NextTokenAutomaton, new: ml.SequenceDataset, W: FloatArray) -> FloatArray:
    """The total variation on new sequences if W^cyc alone set the shares of tokens of equal height."""
    trained, distance = new.attention(W), np.empty(len(new))
    for i in range(len(new)):
        ids, _ = new[i]
        height = automaton.heights(int(ids[-1]))[ids]
        logits = np.where(
            height >= height.max() - 1e-7, automaton.E[ids] @ automaton.mix.x @ automaton.E[ids[-1]], -np.inf
        )
        distance[i] = 0.5 * np.abs(softmax(logits) - trained[new.offsets[i] : new.offsets[i + 1]]).sum()
    return distance


def _separable(
    sizes: tuple[int, int, int, int], cyclic: bool, rng: np.random.Generator
) -> tuple[ml.SequenceDataset, ml.NextTokenAutomaton, int]:
    """A dataset with an automaton, the automaton, and how many draws had none."""
    for tries in range(1000):
        data = cyclic_sequences(*sizes, rng) if cyclic else acyclic_sequences(*sizes, rng)
        try:
            automaton = ml.NextTokenAutomaton.fit(data)
        except ml.InputError:
            continue
        if automaton.priority.pairs is not None and len(automaton.priority.pairs):
            return data, automaton, tries
    raise ml.InputError(f"No separable dataset of shape {sizes} among 1,000.")


def _slow_ties(rng: np.random.Generator) -> list[tuple[float, FloatArray]]:
    """One-hot tokens of equal height that a slow term decides between: the pace of their logit gap, and the loser's share at two norms.

    Pairs without a multiplier balance at the share s/C_R of those with one, e^-s = s/C_R up to a factor: s + log s grows like log R.
    """
    while True:
        drawn = random_sequences(*ONE_HOT, rng)
        data = ml.SequenceDataset([drawn[i][0] for i in range(len(drawn))], drawn.labels, np.eye(ONE_HOT[0]))
        try:
            automaton = ml.NextTokenAutomaton.fit(data)
        except ml.InputError:
            continue
        ties = []
        for last in automaton.graphs:
            expansion = automaton.expansion(last)
            slow, constant = expansion.slow, expansion.offset + automaton.mix.x
            for ids in ([*pair, last] for pair in combinations(range(ONE_HOT[0]), 2) if slow):
                told = automaton.explain(ids)
                if told.tie is TieBreak.SLOW and len(told.chain[0]) == 2 and len(told.winners) == 1:
                    winner = told.winners[0].token
                    loser = sum(told.chain[0]) - winner
                    gap, offset = (float(W[winner, last] - W[loser, last]) for W in (slow[0], constant))
                    ties += [(winner, loser, last, gap, offset)] if gap > TIE else []
        if ties:
            break
    points = ml.path(data, SLOW_RADII / automaton.priority.margin).points
    found = []
    for winner, loser, last, gap, offset in ties:
        logits = points[:, winner, last] - points[:, loser, last]
        s = (logits - offset) / gap
        pace = (np.diff(s) + np.diff(np.log(s)))[0] / np.log(SLOW_RADII[1] / SLOW_RADII[0])
        found.append((float(pace), 1.0 / (1.0 + np.exp(logits))))
    return found


def _fresh(data: ml.SequenceDataset, rng: np.random.Generator) -> ml.SequenceDataset:
    """As many random sequences of the same lengths, each ending in a last token of the data."""
    sequences = [
        np.append(rng.integers(0, data.n_vocabulary, size - 1), rng.choice(data.last)) for size in data.lengths
    ]
    return ml.SequenceDataset(sequences, [int(sequence[0]) for sequence in sequences], data.E)


def _retrieves(data: ml.SequenceDataset, automaton: ml.NextTokenAutomaton) -> bool:
    """Whether the automaton keeps exactly the tokens of the label's component, in every sequence."""
    for i in range(len(data)):
        ids, label = data[i]
        graph = automaton.graphs[int(ids[-1])]
        selected = set(np.flatnonzero(automaton.predict_proba(ids)).tolist())
        if selected != {int(x) for x in ids if graph.component(int(x)) == graph.component(label)}:
            return False
    return True


def _example() -> dict[str, Any]:
    """One dataset's training sequences as tokens, with the probabilities of automaton and layers of growing norm."""
    data, automaton, _ = _separable(SHAPES[0][0], True, np.random.default_rng(SEED))
    path = ml.path(data, SHOWN)
    rows = []
    for i in range(len(data)):
        ids, label = data[i]
        layers = [
            np.bincount(
                ids, weights=data.attention(W)[data.offsets[i] : data.offsets[i + 1]], minlength=data.n_vocabulary
            )
            for W in path.points
        ]
        rows.append({"ids": ids, "label": label, "automaton": automaton.predict_proba(ids), "layers": np.array(layers)})
    return {"rows": rows, "radii": SHOWN}


def _draw_example(ax: Any, example: dict[str, Any]) -> None:
    """Stacked bars of next-token probabilities: for each sequence the layers of growing norm, then the automaton."""
    rows, radii = example["rows"], example["radii"]
    n_bars = len(radii) + 1
    names = "abcdefghijkl"
    for i, row in enumerate(rows):
        stacks = [*row["layers"], row["automaton"]]
        for k, share in enumerate(stacks):
            base, y = 0.0, -(i * (n_bars + 1.2) + k)
            for token in np.flatnonzero(share > 1e-9):
                ax.barh(y, share[token], left=base, color=ml.plotting.ACCENTS[token % 6], height=0.86, lw=0)
                if share[token] > 0.08:
                    ax.text(
                        base + share[token] / 2, y, names[token], ha="center", va="center", color="white", fontsize=8
                    )
                base += share[token]
            what = "automaton" if k == n_bars - 1 else f"‖W‖ = {radii[k]:g}"
            ax.text(
                1.02, y, what, va="center", fontsize=8, color=ml.plotting.INK if k == n_bars - 1 else ml.plotting.PATH
            )
        middle = -(i * (n_bars + 1.2) + (n_bars - 1) / 2)
        ax.text(
            -0.02, middle, f"{''.join(names[x] for x in row['ids'])} → {names[row['label']]}", ha="right", va="center"
        )
    ax.set(xlim=(0, 1), xlabel="probability of the next token", yticks=[])
    ax.spines["left"].set_visible(False)
    ax.set_title("Six training sequences: layer and automaton")
