"""Presets of the lab: the problems of the ledger's claims in the plane, a few for class, and texts, each by its name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from typing import Any

import numpy as np

from marginlens.data import (
    SequenceDataset,
    basin_example,
    cone_example,
    figure_1a,
    figure_1b,
    figure_1c,
    figure_2,
    figure_3a,
    figure_3b,
    figure_5,
    figure_8,
    norm_example,
    norm_selection_example,
    scored_tokens,
)
from marginlens.errors import reject
from marginlens.lab.problem_files import LabProblem
from marginlens.losses.margin import CorrelationLoss, Logistic
from marginlens.optimizers import Adam, Blockwise, CoordinateDescent, NormalizedGD, Optimizer, SignDescent
from marginlens.theory import basin_cone

FOR_CLASS, PAPER_A, BEYOND, NEXT_TOKENS = "For class", "Figures of paper A", "Beyond the papers", "Next tokens"
HEIGHTS = (1.0, 0.5, 0.0, -0.5, -1.0, -1.5)  # second coordinates of A Fig 1's starts
SCORES = (2.0, 10.0, 100.0)  # C of A Fig 5
CONE_ANGLES = (
    -150.0,
    -80.0,
    -40.0,
    40.0,
    80.0,
    150.0,
)  # degrees from the axis of A Fig 2's cone, beside its two borders
MAX_VOCABULARY = 400  # tokens of the text tab
TEXT = (
    "the cat sat on the mat. the dog sat on the rug. the cat saw the dog. the dog saw the cat. "
    "the bird sat on the cat. the cat sat on the dog."
)


@dataclass(frozen=True)
class Preset:
    """What the lab opens by a name: a problem with its starts and a view, or a text.

    Args:
        name: such as "A-F1b". title, caption: what is seen, in a few words and in a sentence or two. group: where the menu lists it.
        problem: in the plane; the one behind the other tab where the preset is a text. starts: of its runs, 1 to 8.
        view: what the plane shows, where it differs from the page's start. text: settings of the text tab, where the preset is for it.
        claim: the claim of the ledger whose problem it is, or "".
    """

    name: str
    title: str
    caption: str
    group: str
    problem: LabProblem
    starts: tuple[tuple[float, float], ...]
    view: Mapping[str, Any] = field(default_factory=dict)
    text: Mapping[str, Any] = field(default_factory=dict)
    claim: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The preset as the page takes it."""
        facts = {"name": self.name, "title": self.title, "caption": self.caption, "group": self.group}
        facts |= {"claim": self.claim} if self.claim else {}
        return {**facts, **self.state()}

    def state(self) -> dict[str, Any]:
        """The state that it opens, without what is as at the page's start."""
        problem = self.problem.to_dict()
        for key in ("format", "version", "start"):
            del problem[key]
        shown: dict[str, Any] = {
            "preset": self.name,
            "problem": problem,
            "starts": [list(start) for start in self.starts],
        }
        shown["view"] = {"half": _fitting_half(self.problem, self.starts), **self.view}
        return shown | ({"tab": "text", "text": dict(self.text)} if self.text else {})


def _fitting_half(problem: LabProblem, starts: Iterable[tuple[float, float]]) -> float:
    """Half the width of a window that shows all tokens and starts, as a round number."""
    data = problem.data
    points = [data.X[..., :2], data.K, np.array(list(starts))]
    largest = 1.15 * max(float(np.max(np.abs(values), initial=0.0)) for values in points)
    power = 10.0 ** np.floor(np.log10(largest)) if largest > 0.0 else 1.0
    front = next(entry for entry in (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0, np.inf) if entry * power >= largest)
    return float(front * power)


@cache
def presets() -> tuple[Preset, ...]:
    """All presets, in the order of the menu."""
    return tuple(entry for entries in (_for_class, _figures, _beyond, _texts) for entry in entries())


def preset(name: str) -> Preset:
    """The preset of a name, in capitals or not."""
    known = {entry.name.lower(): entry for entry in presets()}
    if not isinstance(name, str) or name.lower() not in known:
        close = get_close_matches(str(name).lower(), known, 1, 0.4)
        advice = f"Did you mean {known[close[0]].name}?" if close else ""
        raise reject("preset", f"one of {', '.join(entry.name for entry in known.values())}", repr(name), advice)
    return known[name.lower()]


def _selection(example: tuple[Any, Any], optimizer: Optimizer, n_steps: int, **run: Any) -> LabProblem:
    data, head = example
    return LabProblem(data, head, optimizer=optimizer, n_steps=n_steps, **run)


# ---- for class


def _for_class() -> Iterator[Preset]:
    start_decides = scored_tokens([[(-1.0, 0.6), (0.0, 0.0), (1.0, 0.6)]], [[1.0, 0.0, 0.8]])
    spread = [[(1.0, 0.3), (-0.4, 0.9), (-0.2, -0.8)], [(0.6, -0.7), (-0.9, 0.1), (0.2, 0.8)]]
    yield Preset(
        "two-tokens",
        "Two tokens: the margin points from one to the other",
        "With two tokens training has a single place to go: the direction from the worse token to the better one. Drag either.",
        FOR_CLASS,
        _selection(scored_tokens([[(1.0, 0.5), (-0.5, -0.5)]], [[1.0, 0.0]]), NormalizedGD(0.1), 2000),
        ((-1.0, 1.0), (0.5, -1.5)),
    )
    yield Preset(
        "start-decides",
        "The start decides which token wins",
        "Two tokens outscore the one between them, so that there are two limits. Drag a start across the border between their basins.",
        FOR_CLASS,
        _selection(start_decides, NormalizedGD(0.1), 2000),
        ((-1.5, -0.5), (1.5, -0.5), (0.0, -2.0)),
        {"basins": True},
    )
    yield Preset(
        "equal-scores",
        "All scores equal: nothing to learn",
        "Where every token scores the same, the risk is flat and training stands still. Raise one score and see it move.",
        FOR_CLASS,
        _selection(scored_tokens(spread, np.full((2, 3), 0.5)), NormalizedGD(0.1), 500),
        ((0.5, 0.5), (-1.0, 0.0)),
    )


# ---- paper A


def _figures() -> Iterator[Preset]:
    step, n_steps = NormalizedGD(0.1), 10_000
    up = tuple((0.0, y) for y in HEIGHTS)
    yield Preset(
        "A-F1a",
        "One input, equal other scores: one limit",
        "The two other tokens score .9 each. From every start training goes to the max-margin direction of the best token (A Thm 2).",
        PAPER_A,
        _selection(figure_1a(), step, n_steps),
        up,
        claim="A-F1a",
    )
    yield Preset(
        "A-F1b",
        "One input, unequal other scores: the start decides",
        "The token (1, 0) outscores its neighbour and so attracts starts of its own; the others go to the optimal token (A Thm 3).",
        PAPER_A,
        _selection(figure_1b(), step, n_steps),
        up,
        {"basins": True},
        claim="A-F1b",
    )
    yield Preset(
        "A-F1c",
        "Three inputs of seven tokens: one direction separates all",
        "The best token of every input scores 1, all others .5. One direction has the largest margin for all three at once.",
        PAPER_A,
        _selection(figure_1c(), step, n_steps),
        tuple((x, 0.0) for x in HEIGHTS),
        claim="A-F1c",
    )
    yield _cone_preset()
    for panel, data, title in (
        ("a", figure_3a(), "Head and attention together: all tokens support the head"),
        ("b", figure_3b(), "Head and attention together: one token needs no margin"),
    ):
        rule = Blockwise(NormalizedGD(0.1))
        yield Preset(
            f"A-F3{panel}",
            title,
            "The head is trained too. Attention keeps a margin where the head has a support vector, and else merely selects (A Thm 6).",
            PAPER_A,
            LabProblem(data, None, optimizer=rule, n_steps=n_steps, trains_head=True, start_head=(-1.0, 0.0)),
            ((0.0, -1.0),),
            claim="A-F3",
        )
    for loss, side, name in ((CorrelationLoss(), "high", "correlation"), (Logistic(), "low", "logistic")):
        for C in SCORES:
            yield Preset(
                f"A-F5-{name}-{C:g}",
                f"The {name} loss leans towards the {side} score, C = {C:g}",
                f"The limit is (1, 0) whatever C, the score of (1, 1), is. On the way the {name} loss leans to the {side} score.",
                PAPER_A,
                _selection(figure_5(C), step, 5000, loss=loss),
                ((0.0, 0.0),),
                claim="A-F5",
            )
    yield Preset(
        "A-F8",
        "Two inputs are enough for two limits",
        "With a single input the scores here would leave one limit. With two, the second input can keep its lower token.",
        PAPER_A,
        _selection(figure_8(), step, n_steps),
        ((0.0, -1.0), (1.0, -1.0)),
        claim="A-F8",
    )


def _cone_preset() -> Preset:
    data, head = cone_example()
    cone = basin_cone(data, head, [0])
    border = float(np.degrees(np.arccos(1.0 - cone.mu)))
    angles = np.radians([*CONE_ANGLES, -border, border]) + np.arctan2(cone.p[1], cone.p[0])
    starts = cone.radius * np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    return Preset(
        "A-F2",
        "A cone from which every start ends at its direction",
        "Starts at the norm R of the theorem. All that lie in the shaded cone stay with the token (1, 0), although (-1, .8) scores higher.",
        PAPER_A,
        LabProblem(data, head, optimizer=NormalizedGD(cone.radius / 40.0), n_steps=150),
        tuple((float(x), float(y)) for x, y in starts),
        {"half": 3.0 * cone.radius, "cones": True},
        claim="A-F2",
    )


# ---- beyond the papers


def _beyond() -> Iterator[Preset]:
    yield Preset(
        "X-B",
        "Where every start of Figure 1(b) ends",
        "The plane is divided into basins: each start ends at one of the two max-margin directions.",
        BEYOND,
        _selection(figure_1b(), NormalizedGD(0.1), 5000),
        ((0.0, -1.0), (0.0, 1.0)),
        {"basins": True, "half": 4.0},
        claim="X-B",
    )
    yield Preset(
        "X-B-random",
        "Three directions and a finite minimum share the plane",
        "From some starts the weights stay finite: training stops at a local minimum of the risk instead of going to infinity.",
        BEYOND,
        _selection(basin_example(), NormalizedGD(0.1), 2000),
        ((-3.0, -1.0), (3.0, 3.0), (-3.0, 4.0), (4.0, -4.0)),
        {"basins": True, "half": 6.0},
        claim="X-B",
    )
    rules: dict[str, tuple[str, Optimizer, str]] = {
        "l2": ("Normalised descent", NormalizedGD(0.05), "(2, 1), the max-margin direction in the Euclidean norm"),
        "linf": ("Sign descent", SignDescent(0.05), "(1, 1), the max-margin direction in ℓ∞"),
        "l1": ("Coordinate descent", CoordinateDescent(0.05), "(1, 0), the max-margin direction in ℓ1"),
    }
    for name, (words, rule, limit) in rules.items():
        yield Preset(
            f"X-N2-{name}",
            f"{words} goes to its own margin",
            f"On one and the same problem, {words.lower()} goes to {limit}. The claim shows it in 30 dimensions; this is the plane.",
            BEYOND,
            _selection(norm_example(), rule, 5000),
            ((0.0, 0.0),),
            claim="X-N2",
        )
    for name in ("l2", "linf"):
        words, rule, _ = rules[name]
        chosen = "the optimal token" if name == "l2" else "a token with a lower score"
        yield Preset(
            f"X-N4-{name}",
            f"{words} selects {chosen}",
            "The same data and the same start, zero: which token is selected depends on the norm of the steps. Here in the plane.",
            BEYOND,
            _selection(norm_selection_example(), rule, 3000),
            ((0.0, 0.0),),
            claim="X-N4",
        )
    for name, eps, words in (
        ("0", 0.0, "ε = 0: sign descent for ever"),
        ("1e-4", 1e-4, "ε = 1e-4: bends towards gradient descent"),
    ):
        yield Preset(
            f"X-N5-{name}",
            f"Adam with {words}",
            "Adam moves like sign descent while gradients are above ε, and like gradient descent below it. Here in the plane.",
            BEYOND,
            _selection(norm_example(), Adam(0.01, (0.5, 0.5), eps), 20_000),
            ((0.0, 0.0),),
            claim="X-N5",
        )


# ---- texts


def _texts() -> Iterator[Preset]:
    behind = _selection(figure_1b(), NormalizedGD(0.1), 10_000)  # on the other tab
    starts = tuple((0.0, y) for y in HEIGHTS)
    yield Preset(
        "text",
        "What follows what in a short text",
        "Every word is predicted from the words before it. The graph of a last word says which words win over which.",
        NEXT_TOKENS,
        behind,
        starts,
        text={"source": TEXT, "unit": "words", "window": 6, "last": "the", "prompt": "the cat sat", "count": 12},
    )
    names = [f"e{k + 1}" for k in range(figure_2().n_vocabulary)]
    yield Preset(
        "C-F2",
        "Seven sequences over four tokens",
        "After e1 the four tokens are ranked strictly; after e2 three of them are equal, above the fourth (C Fig 2).",
        NEXT_TOKENS,
        behind,
        starts,
        text={**sequences_text(figure_2(), names), "last": "e2", "prompt": "e3 e1 e2", "draw": "random"},
    )


def sequences_text(data: SequenceDataset, names: Sequence[str]) -> dict[str, Any]:
    """Settings of the text tab with sequences given outright.

    Args:
        data: sequences over one-hot tokens. names: (n_vocabulary,) what the tokens are called.
    """
    if data.n_vocabulary > MAX_VOCABULARY:
        raise reject(
            "data", f"sequences over at most {MAX_VOCABULARY} tokens for the page", f"{data.n_vocabulary} tokens"
        )
    if not np.array_equal(data.E, np.eye(data.n_vocabulary)):
        raise reject("data", "sequences with one-hot embeddings for the page", "embeddings E of their own")
    samples = [data[i][0].tolist() for i in range(len(data))]
    return {"source": "", "sequences": {"names": list(names), "samples": samples, "labels": data.labels.tolist()}}
