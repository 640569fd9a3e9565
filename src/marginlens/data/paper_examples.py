"""The datasets of the papers' figures, and of the claims' own problems in the plane, by name."""

from __future__ import annotations

import numpy as np

from marginlens.data.random_tokens import scored_tokens
from marginlens.data.sequences import SequenceDataset
from marginlens.data.tokens import TokenDataset
from marginlens.papers import implements
from marginlens.typing import FloatArray

Example = tuple[TokenDataset, FloatArray]

_FIGURE_1C = [
    [
        (0.774832, -0.230472),
        (-1.086776, 1.169742),
        (-1.063203, 0.576956),
        (-1.252667, 1.069997),
        (-0.476032, -0.252468),
        (-0.549456, -0.770531),
        (-0.386670, -0.341298),
    ],
    [
        (0.688981, -0.068272),
        (-0.849962, 0.882901),
        (-0.963304, 1.277873),
        (-0.810740, 0.831265),
        (-0.493681, -0.598535),
        (-0.412061, -0.477518),
        (-0.411769, -0.520462),
    ],
    [
        (0.942066, 0.010501),
        (-0.539559, 0.706221),
        (-1.113850, 1.183994),
        (-0.742025, 0.704365),
        (-0.594624, -0.234945),
        (-0.609949, -0.595967),
        (-0.713396, -0.277012),
    ],
]


@implements("A", "Fig 1(a)")
def figure_1a() -> Example:
    """Return one input with three tokens in the plane; both non-optimal tokens score .9, so Assumption B holds.

    Examples:
        >>> import marginlens as ml
        >>> data, head = ml.data.figure_1a()
        >>> data
        TokenDataset(1 inputs × 3 tokens, d_model=3, d_key=2)
    """
    return scored_tokens([[(-0.1, 1.0), (1.0, 0.0), (0.0, 0.0)]], [[1.0, 0.9, 0.9]])


@implements("A", "Fig 1(b)")
def figure_1b() -> Example:
    """Return the tokens of Figure 1(a) with the score of (0, 0) lowered to 0, so that (1, 0) becomes locally optimal.

    Examples:
        >>> import marginlens as ml
        >>> data, head = ml.data.figure_1b()
        >>> print(data.scores(head))
        [[1.  0.9 0. ]]
    """
    return scored_tokens([[(-0.1, 1.0), (1.0, 0.0), (0.0, 0.0)]], [[1.0, 0.9, 0.0]])


@implements("A", "Fig 1(c)", "Fig 4")
def figure_1c() -> Example:
    """Return three inputs with seven tokens each; the first token of each scores 1, the others .5."""
    scores = np.full((3, 7), 0.5)
    scores[:, 0] = 1.0
    return scored_tokens(_FIGURE_1C, scores)


@implements("A", "Fig 3(a)")
def figure_3a() -> TokenDataset:
    """Return three inputs of two tokens in the plane, the first at the origin; the second ones are all support vectors of the head."""
    return _joint_tokens((0.5, 1.0))


@implements("A", "Fig 3(b)")
def figure_3b() -> TokenDataset:
    """Return Figure 3(a) with the last token moved up to (.5, 1.5), so that it is no longer a support vector of the head."""
    return _joint_tokens((0.5, 1.5))


def _joint_tokens(last: tuple[float, float]) -> TokenDataset:
    chosen = [(1.0, 1.0), (1.0, -1.0), last]
    return TokenDataset([[(0.0, 0.0), token] for token in chosen], [1.0, -1.0, 1.0])


@implements("A", "Fig 5")
def figure_5(C: float) -> Example:
    """Return two inputs: optimal tokens (1, 1) with score C and (1, -1) with score 1, and in each the token (0, 0) with score 0."""
    return scored_tokens([[(1.0, 1.0), (0.0, 0.0)], [(1.0, -1.0), (0.0, 0.0)]], [[C, 0.0], [1.0, 0.0]])


@implements("A", "Fig 8")
def figure_8() -> Example:
    """Return two inputs of two tokens in the plane, whose globally optimal direction is not the only locally optimal one.

    The paper prints no coordinates. These are ours, and agree with every sentence about the figure. Token 0 of each input
    scores 1, token 1 scores 0, so that Assumption B holds. The GMM direction (1, 2) selects (0, 0). The selection (0, 1) has
    the separator (1, 0), which keeps the lower token of the second input at a margin of 2: it has no neighbour and is locally
    optimal.
    """
    return scored_tokens([[(0.5, 0.0), (-0.5, 0.0)], [(-1.0, 0.75), (1.0, -0.75)]], [[1.0, 0.0], [1.0, 0.0]])


@implements("C", "Fig 2")
def figure_2() -> SequenceDataset:
    """Return seven sequences over four tokens that satisfy everything the text says about C's Figure 2; the sequences themselves are ours.

    Samples 1 to 3 end in e_1 and rank all four tokens: e_4, e_2, e_3, e_1. Samples 4 to 7 end in e_2 and leave e_1, e_2 and e_3
    equal, above e_4. The last sample has O = {3} and R = {1, 3}. Ids count from 0, so e_1 is token 0; embeddings are unit vectors.

    Examples:
        >>> import marginlens as ml
        >>> graph = ml.priority_graphs(ml.data.figure_2())[0]
        >>> [tokens.tolist() for tokens in graph.components]
        [[3], [1], [2], [0]]
    """
    sequences = [[2, 4, 1], [3, 2, 1], [1, 3, 1], [3, 1, 2], [1, 4, 2], [2, 3, 2], [1, 4, 2]]
    labels = [4, 2, 3, 3, 1, 2, 2]
    return SequenceDataset(np.array(sequences) - 1, np.array(labels) - 1, np.eye(4))


# ---- our own problems in the plane


@implements("A", "Fig 2")
def cone_example() -> Example:
    """Return one input with three tokens: (1, 0) is locally optimal, with a cone wide enough to draw to scale; (-1, .8) is optimal."""
    return scored_tokens([[(1.0, 0.0), (0.0, 0.0), (-1.0, 0.8)]], [[0.6, 0.0, 1.0]])


def basin_example() -> Example:
    """Return two inputs of four tokens; the GMM, two other locally optimal directions or a finite minimum attract starts."""
    keys = [
        [(0.94, -0.81), (-0.56, 0.26), (-0.5, 0.76), (1.31, -0.84)],
        [(-1.39, -1.17), (-1.99, -1.97), (0.0, -1.17), (-2.11, 0.17)],
    ]
    return scored_tokens(keys, [[0.16, 0.13, 0.59, 0.26], [0.59, 0.61, 0.85, 0.27]])


def norm_example() -> Example:
    """Return one input whose max-margin directions are easy to see: (1, 0) in ℓ1, (2, 1) in ℓ2 and (1, 1) in ℓ∞."""
    return scored_tokens([[(2.0, 1.0), (0.0, 0.0), (-1.0, 0.0)]], [[1.0, 0.0, 0.5]])


def norm_selection_example() -> Example:
    """Return one input on which normalised and coordinate descent from zero select the optimal token, and sign descent another."""
    return scored_tokens([[(-1.5, -1.0), (1.0, 1.0), (1.5, 0.5)]], [[0.8, 0.2, 1.0]])
