"""Why the automaton outputs what it does: the winning component, its mix, and the chain of priorities below it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

TIE = 1e-7  # heights closer than that, where 1 is the gap of a strict pair, are equal


@dataclass(frozen=True)
class Rival:
    """One token of a sequence: how often it occurs, its height e_xᵀ W^mm e_last, its component (-1: none) and its probability."""

    token: int
    count: int
    height: float
    component: int
    probability: float


@dataclass(frozen=True, repr=False)
class Explanation:
    """The automaton's reasons on one sequence.

    Attributes:
        last: the last token, whose graph decides. rivals: the different tokens of the sequence, highest priority first.
        strict: pairs (i, j) of tokens present that the data rank i ⇒ j, with the Graph-SVM multiplier of each (0: the pair has slack).
        is_known: whether any training sequence ends in `last`; if not, heights come from the embeddings alone.
        names: what to call each token.
    """

    last: int
    rivals: tuple[Rival, ...]
    strict: Mapping[tuple[int, int], float]
    is_known: bool
    names: tuple[str, ...]

    @property
    def winners(self) -> tuple[Rival, ...]:
        """The tokens that keep probability."""
        return tuple(one for one in self.rivals if one.probability > 0.0)

    @property
    def is_ranked(self) -> bool:
        """Whether the winners are one component, so that the data themselves make them equal rather than a coincidence of heights."""
        parts = {one.component for one in self.winners}
        return len(self.winners) == 1 or (len(parts) == 1 and -1 not in parts)

    @property
    def chain(self) -> tuple[tuple[int, ...], ...]:
        """The tokens present, in groups of equal height, highest first."""
        groups: list[list[Rival]] = []
        for one in self.rivals:
            if groups and one.height >= groups[-1][0].height - TIE:
                groups[-1].append(one)
            else:
                groups.append([one])
        return tuple(tuple(one.token for one in group) for group in groups)

    @property
    def reasons(self) -> tuple[tuple[int, int, float], ...]:
        """Pairs (winner, loser, multiplier) that the data themselves rank strictly, the heaviest first."""
        won = {one.token for one in self.winners}
        pairs = [(i, j, weight) for (i, j), weight in self.strict.items() if i in won and j not in won]
        return tuple(sorted(pairs, key=lambda pair: (-pair[2], pair[0], pair[1])))

    def __str__(self) -> str:
        name = self.names
        mix = ", ".join(f"{name[one.token]} ({one.probability:.1%})" for one in self.winners)
        alone = len(self.winners) == 1
        lines = [f"After {name[self.last]} comes {name[self.winners[0].token] if alone else mix}."]
        if not self.is_known:
            lines.append(f"No training sequence ends in {name[self.last]}: the embeddings alone decide.")
        elif not alone:
            made = "form one component" if self.is_ranked else "have the same height, but the data do not compare them"
            lines.append(f"They {made}.")
        if len(self.chain) > 1:
            lines.append(
                "Priority: " + " > ".join(" = ".join(name[token] for token in group) for group in self.chain) + "."
            )
        told = {j for _, j, _ in self.reasons}
        if told:
            pairs = ", ".join(f"{name[i]} over {name[j]}" for i, j, _ in self.reasons[:6])
            more = f" and {len(self.reasons) - 6} more" if len(self.reasons) > 6 else ""
            lines.append(f"Training sequences rank {pairs}{more}.")
        inferred = [one.token for one in self.rivals if one.probability == 0.0 and one.token not in told]
        if inferred and self.is_known:
            listed = ", ".join(name[token] for token in inferred)
            lines.append(f"Inferred by the margin, not seen in training: that this comes before {listed}.")
        return "\n".join(lines)

    def __repr__(self) -> str:
        mix = ", ".join(f"{self.names[one.token]}: {one.probability:.3g}" for one in self.winners)
        return (
            f"Explanation(last={self.names[self.last]}, {{{mix}}}, over {len(self.rivals) - len(self.winners)} others)"
        )
