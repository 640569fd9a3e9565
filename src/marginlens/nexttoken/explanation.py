"""Why the automaton outputs what it does: the winning component, its mix, and the chain of priorities below it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

TIE = 1e-7  # heights closer than that, where 1 is the gap of a strict pair, are equal


class TieBreak(Enum):
    """What decided between tokens of equal height that the data do not compare; the value is the sentence that users read."""

    NONE = ""
    OFFSET = "the constant term of the trained weights sets their shares"
    SLOW = "weights that grow only like the logarithm of the norm decide, so a layer shows it at enormous norms alone"
    UNKNOWN = "their shares are not known"

    def __repr__(self) -> str:
        return f"TieBreak.{self.name}"


@dataclass(frozen=True)
class Rival:
    """One token of a sequence: its count, its height e_xᵀ W^mm e_last, its component (-1: none), its probability (nan: unknown)."""

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
        tie: what decided where the highest tokens are not one component. reason: why their shares are unknown, where they are.
        implied: the tokens present that the data rank below the winners, directly or through ties and chains of rankings.
    """

    last: int
    rivals: tuple[Rival, ...]
    strict: Mapping[tuple[int, int], float]
    is_known: bool
    names: tuple[str, ...]
    tie: TieBreak = TieBreak.NONE
    reason: str = ""
    implied: frozenset[int] = frozenset()

    @property
    def winners(self) -> tuple[Rival, ...]:
        """The tokens that keep probability, or that may where shares are unknown."""
        return tuple(one for one in self.rivals if one.probability != 0.0)

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
        name, top = self.names, self.chain[0]
        mix = ", ".join(f"{name[rival.token]} ({rival.probability:.1%})" for rival in self.winners)
        if self.tie is TieBreak.UNKNOWN:
            mix = "one of " + ", ".join(name[rival.token] for rival in self.winners)
        single = len(self.winners) == 1
        lines = [f"After {name[self.last]} comes {name[self.winners[0].token] if single else mix}."]
        if not self.is_known:
            lines.append(f"No training sequence ends in {name[self.last]}: the embeddings alone decide.")
        if self.tie is not TieBreak.NONE:
            tokens = ", ".join(name[token] for token in top)
            why = f": {self.reason}" if self.reason else ""
            lines.append(f"{tokens} have the same height, but the data do not compare them: {self.tie.value}{why}.")
        elif self.is_known and not single:
            lines.append("They form one component.")
        if len(self.chain) > 1:
            lines.append(
                "Priority: " + " > ".join(" = ".join(name[token] for token in group) for group in self.chain) + "."
            )
        ranked = {j for _, j, _ in self.reasons}
        if ranked:
            pairs = ", ".join(f"{name[i]} over {name[j]}" for i, j, _ in self.reasons[:6])
            more = f" and {len(self.reasons) - 6} more" if len(self.reasons) > 6 else ""
            lines.append(f"Training sequences rank {pairs}{more}.")
        chained = [rival.token for rival in self.rivals if rival.token in self.implied - ranked]
        if chained:
            listed = ", ".join(name[token] for token in chained)
            lines.append(f"Ties and chains of such rankings put this before {listed}.")
        inferred = [rival.token for rival in self.rivals if rival.token not in {*ranked, *top, *self.implied}]
        if inferred and self.is_known:
            listed = ", ".join(name[token] for token in inferred)
            lines.append(f"Inferred by the margin, not seen in training: that this comes before {listed}.")
        return "\n".join(lines)

    def __repr__(self) -> str:
        mix = ", ".join(f"{self.names[one.token]}: {one.probability:.3g}" for one in self.winners)
        return (
            f"Explanation(last={self.names[self.last]}, {{{mix}}}, over {len(self.rivals) - len(self.winners)} others)"
        )
