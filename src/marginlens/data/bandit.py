"""Contextual bandits: the states, arms and rewards of a log-linear softmax policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from marginlens.data.tokens import TokenDataset
from marginlens.errors import n_axes, rename_arguments
from marginlens.typing import ArrayLike

BANDIT = "bandit"  # the kind of these datasets


def bandit(
    features: ArrayLike | Sequence[ArrayLike],
    rewards: Any,
    *,
    names: Sequence[str] | Sequence[Sequence[str]] | None = None,
    offsets: Any = None,
) -> TokenDataset:
    r"""Make a dataset of the states and arms of a contextual bandit, for a log-linear policy and its exact gradient.

    .. math:: \pi_\theta(a \mid x_i) = \mathrm{softmax}_a\big(\phi(x_i, a)^\top \theta + b_{ia}\big), \qquad
        u_i = \sum_a \pi_\theta(a \mid x_i)\, r_{ia}

    States are the inputs and arms the tokens of all that the library computes, and verdicts say "arm" and "state". A state may
    be a question and its arms the possible answers. The loss says how the policy learns: `CorrelationLoss` is REINFORCE,
    `ArcsineLoss` GRPO and `LogProbability` rejection sampling, the last two for rewards that are 0 or 1.

    Args:
        features: φ, an array (n_arms, d) for one state or (n_states, n_arms, d) for several, or a list with one array (n_arms_i, d)
            per state. An array (batch, n_states, n_arms, d) is a batch of bandits.

        rewards: r in the same form without the last axis; at least 0 for `LogProbability`, from 0 to 1 for `ArcsineLoss`.

        names: the names of the arms, one list of texts that all states share, or one list per state.

        offsets: b in the form of the rewards, the logits of a policy to begin with, which training leaves as they are. Zero by
            default.

    Returns:
        A dataset that needs no head: `predict(data, loss=...)`, `descend(data, loss=...)`.

    Examples:
        >>> import marginlens as ml
        >>> data = ml.data.bandit([[0.0, 1.0], [1.0, 0.0], [-1.0, -1.0]], [1.0, 0.2, 0.0], names=["tea", "coffee", "milk"])
        >>> print(ml.predict(data, loss=ml.losses.CorrelationLoss()).outcome.ends_at)
        “tea” wins
    """
    # One state is given without the axis of states.
    if n_axes(features) == 2:
        features, rewards = np.asarray(features)[None], [rewards]
        offsets = None if offsets is None else [offsets]
    with rename_arguments(keys="features", scores="rewards", tokens="names"):
        data = TokenDataset.of_scores(features, rewards, offsets, kind=BANDIT)
        if names is None:
            return data
        shared = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
        of_states: Any = [names] * data.n_inputs if shared else names
        return data.named(of_states)
