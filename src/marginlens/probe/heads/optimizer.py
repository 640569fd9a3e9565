"""How a head was trained: what Adam, Muon and SGD leave in its layer's weights, its margins in their norms, and whether weights decayed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import chdtr

from marginlens.errors import positive_number
from marginlens.norms import Frobenius, LInf, Norm, Spectral
from marginlens.probe.heads.key_query import KeyQueryMap
from marginlens.probe.heads.max_margin import LOW_QUANTILE, QuerySample, selected_tokens
from marginlens.status import Status
from marginlens.svm.bilinear import bilinear_svm
from marginlens.theory.factor_decay import factor_balance
from marginlens.typing import ArrayLike, FloatArray

DECAY_LEVEL = 1e-3  # share of heads without decay that are called decayed
OPTIMIZERS = ("Adam", "Muon", "SGD")
MIN_PROBABILITY = 0.75  # of the likeliest, below which the rule is undecided
# What is looked at in W_Q and W_K of a layer, all of their heads side by side: the logarithm of each, the mean of the two.
WEIGHT_FEATURES = (
    "singular values: lower quartile",
    "singular values: upper quartile",
    "singular values: 90%",
    "singular values: largest",
    "entries: kurtosis",
    "squares: spread over columns",
    "squares: spread over rows",
)
# The two linear discriminants of these features, and where the three optimizers are in their plane, with a spread of 1 each: fitted by
# `python -m benchmarks.optimizers` to 1,080 layers, whose features are in its results; a test fits them again.
_DISCRIMINANTS = np.array(
    [
        [-0.665, 3.895],
        [3.425, -3.812],
        [-2.592, -2.721],
        [-7.011, -0.557],
        [0.038, 3.849],
        [1.208, -1.698],
        [3.384, 0.184],
    ]
)
_CENTRES = np.array(
    [
        [-15.068, -0.074],
        [-12.869, -0.682],
        [-13.137, 0.828],
    ]
)

# Between which the features of these layers lie: beyond, the rule says nothing.
_LEAST = np.array([-2.776, -1.506, -1.073, 0.56, 0.492, -2.269, -2.04])
_MOST = np.array([-0.526, 0.289, 0.679, 2.041, 2.701, 0.712, 0.277])


class OptimizerGuess(NamedTuple):
    """Which optimizer the weights of a layer look like: "Adam-like", "Muon-like", "SGD-like" or "undecided", and the odds of each.

    Attributes:
        word: the likeliest, where its probability is at least `MIN_PROBABILITY` and no feature is beyond those of all layers that the
            rule was made by.
        probabilities: (3,) of `OPTIMIZERS`, each as likely as the others beforehand.
    """

    word: str
    probabilities: FloatArray


def weight_features(W: FloatArray) -> FloatArray:
    """(7,) `WEIGHT_FEATURES` of a matrix (d_model, heads d_head), relative to the root mean square of singular values or entries."""
    # Its eigenvalues are much faster than an SVD, and precise enough.
    gram = W.T @ W if W.shape[0] >= W.shape[1] else W @ W.T
    values = np.sqrt(np.maximum(np.linalg.eigvalsh(gram), 0.0))
    values /= np.sqrt(np.mean(np.square(values)))
    squares = np.square(W) / np.mean(np.square(W))
    spectrum = np.quantile(values, (0.25, 0.75, 0.9, 1.0))
    rest = (np.mean(np.square(squares)), np.std(squares.mean(axis=0)), np.std(squares.mean(axis=1)))
    return np.asarray(np.log(np.maximum([*spectrum, *rest], 1e-12)))


def optimizer_like(heads: Sequence[KeyQueryMap]) -> OptimizerGuess:
    """Which optimizer the weights of one layer look like, by a linear rule that was made on small transformers.

    Muon's steps have singular values of one size, and lift many of them together. Adam's lift few, and lower most against the largest;
    SGD's are of low rank too, but leave the random weights that training began with as they were. Where training moved weights little,
    or by gradients of full rank, all three look alike, and the rule is undecided. How often it is right, docs/probe.md says.

    Args:
        heads: of one layer, all of them: an optimizer makes steps of the whole W_Q and W_K.
    """
    keys = {head.W_K.tobytes(): head.W_K for head in heads}  # several heads may share one
    factors = (np.column_stack([head.W_Q for head in heads]), np.column_stack(list(keys.values())))
    if any(not np.any(factor) for factor in factors):
        return OptimizerGuess("undecided", np.full(3, 1.0 / 3.0))
    return guess_of(np.mean([weight_features(factor) for factor in factors], axis=0))


def guess_of(features: FloatArray) -> OptimizerGuess:
    """What the rule says of features (7,)."""
    apart = np.sum(np.square(features @ _DISCRIMINANTS - _CENTRES), axis=1)
    odds = np.exp(-0.5 * (apart - apart.min()))
    probabilities = odds / odds.sum()
    best = int(np.argmax(probabilities))
    is_known = np.all(features >= _LEAST) and np.all(features <= _MOST)
    is_clear = probabilities[best] >= MIN_PROBABILITY and is_known
    return OptimizerGuess(f"{OPTIMIZERS[best]}-like" if is_clear else "undecided", probabilities)


class MarginShares(NamedTuple):
    """The margin of a head at its own selections over the best that any W has there, in the norm that each optimizer descends in.

    Attributes:
        linf, spectral, frobenius: the margin that 95% of the constraints exceed, with W of norm 1, over the largest smallest margin.
    """

    linf: float
    spectral: float
    frobenius: float


def margin_shares(sample: QuerySample, head: KeyQueryMap) -> MarginShares:
    r"""The share of the largest margin in three norms that a head has at the selections that it makes itself.

    .. math:: \frac{q_{5\%}\,(x_{\alpha} - x_t)^\top W z / \|W\|}{\max_{\|V\| \le 1} \min\, (x_\alpha - x_t)^\top V z}

    Steepest descent in a norm goes to the W of largest margin in it: Adam in that of the largest entry, Muon in the spectral norm,
    gradient descent in the Frobenius norm. Queries are (z, 1) where the head has a bias. nan where no W makes all selections.

    Args:
        sample: tokens and queries of the layer, from `sample_queries`; few, since the spectral norm takes seconds for a hundred rows.
    """
    has_bias = bool(head.b_Q.any())
    W, queries = (head.augmented, sample.augmented) if has_bias else (head.matrix, sample.tokens[sample.queries])
    tokens, triples = sample.tokens[np.unique(sample.visible)], sample.constraints(selected_tokens(sample, head))
    shares = []
    norms: tuple[Norm, ...] = (LInf(), Spectral(), Frobenius())
    for norm in norms:
        solution = bilinear_svm(tokens, queries, triples, norm=norm)
        size = norm.value(W)
        if solution.status is not Status.OPTIMAL or size == 0.0:
            shares.append(float("nan"))
            continue
        gaps = solution.rows.apply(W) / size
        shares.append(float(np.quantile(gaps, LOW_QUANTILE)) / solution.margin)
    return MarginShares(*shares)


class HeadDecay(NamedTuple):
    """How balanced a head is, against what its initialisation had.

    Attributes:
        ratio: ‖QᵀQ - KᵀK‖² over its mean at initialisation: e^(-4λt) after a time t of gradient flow with weight decay λ.
        total_decay: λt, estimated as -¼ log ratio; for steps η of t = Σ η. Zero or below where nothing was lost.
        p_value: the share of heads that are so balanced at initialisation. decayed: whether that is below `DECAY_LEVEL`.
        excess: ½ (‖Q‖² + ‖K‖²)/‖Q Kᵀ‖_* - 1, zero for balanced factors.
    """

    ratio: float
    total_decay: float
    p_value: float
    decayed: bool
    excess: float


def head_decay(Q: ArrayLike, K: ArrayLike, init_std: float) -> HeadDecay:
    r"""Whether a head's query and key weights are more balanced than they began, as weight decay makes them.

    Gradient descent without decay keeps :math:`D = Q^\top Q - K^\top K` as it was, but for terms of the order of the step; with decay λ it
    fades like :math:`e^{-2\lambda t}`. At independent normal entries of standard deviation σ, :math:`\|D\|_F^2 / (4 d \sigma^4)` is nearly
    :math:`\chi^2` with w(w+1)/2 degrees of freedom, d the rows of either factor and w the head's width.

    The law is that of gradient descent and its flow; Adam keeps no such balance, so that of its heads the answer says what D is
    and proves nothing. Rotary positions and norms of queries and keys mix the columns: it is about heads without them.

    Args:
        Q: (d_model, d_head) the query weights, a column for each entry of a query. K: (d_model, d_head) the key weights.
        init_std: σ, the standard deviation of both at initialisation, such as `config.initializer_range`.
    """
    balance = factor_balance(Q, K)
    std, rows, width = positive_number(init_std, "init_std"), np.shape(Q)[0], len(balance.imbalance)
    degrees = 0.5 * width * (width + 1.0)
    square = float(np.sum(balance.imbalance**2)) / (2.0 * (rows + np.shape(K)[0]) * std**4)
    p_value = float(chdtr(degrees, square))
    with np.errstate(divide="ignore"):
        total = -0.25 * float(np.log(square / degrees))
    relative = balance.excess / balance.nuclear_norm if balance.nuclear_norm > 0.0 else np.inf
    return HeadDecay(square / degrees, total, p_value, p_value < DECAY_LEVEL, relative)
