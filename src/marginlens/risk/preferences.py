"""Preferences between responses, as DPO and Bradley-Terry models learn them: a softmax over the two responses of a pair."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from marginlens.data.tokens import TokenDataset
from marginlens.errors import InputError, index_array, n_axes, positive_number, rename_arguments
from marginlens.losses.margin import LogProbability
from marginlens.risk.attention import SoftmaxRisk
from marginlens.typing import ArrayLike, IntArray

# The kinds of data whose inputs are pairs of responses, and all responses to a prompt.
PREFERENCE, POLICY = "preference", "policy"


def preferences(
    features: ArrayLike | Sequence[ArrayLike],
    chosen: ArrayLike,
    rejected: ArrayLike,
    *,
    prompts: ArrayLike | None = None,
    reference: ArrayLike | Sequence[ArrayLike] | None = None,
    beta: float = 0.1,
) -> SoftmaxRisk:
    r"""Make the loss of direct preference optimisation (DPO) for a log-linear policy, in its weights θ.

    .. math:: -\frac1n \sum_{i=1}^n \log \sigma\Big(\beta \log \frac{\pi_\theta(w_i)}{\pi_{ref}(w_i)}
        - \beta \log \frac{\pi_\theta(l_i)}{\pi_{ref}(l_i)}\Big), \quad \pi_\theta(y) \propto e^{\varphi(y)^\top \theta}

    The normalising constants cancel, so that each pair is a softmax over two choices with keys β φ and offsets -β log π_ref, and
    the loss is -log of the share of the chosen one. Without a reference and with β = 1, it is a Bradley-Terry reward φ·θ.

    Args:
        features: φ of every response to every prompt: an array (n_prompts, n_responses, d), or a list of arrays
            (n_responses_i, d).

        chosen: (n_pairs,) which of the prompt's responses was preferred in each pair.

        rejected: (n_pairs,) which was not.

        prompts: (n_pairs,) the prompt of each pair. By default there is one pair for each prompt, in order.

        reference: log π_ref of the responses, (n_prompts, n_responses) or a list of lists, up to a constant for each prompt; by
            default all responses to a prompt are equally likely.

        beta: β > 0.

    Returns:
        A risk of θ whose inputs are the pairs: choice 0 is the chosen response and choice 1 the rejected one.
        `ml.theory.winning_responses` says which of all responses wins in the end.

    Examples:
        >>> import marginlens as ml
        >>> features = [[[1.0, 0.0], [0.0, 1.0], [2.0, 0.5]]]
        >>> risk = ml.risk.preferences(features, chosen=[0], rejected=[1])
        >>> print(ml.theory.winning_responses(features, risk))
        Response 2 wins.
        Why: response 2 leads its closest rival, response 0, by 0.354 for each unit of norm.
        Proved ✓
    """
    policy, scale = as_policy(features, reference), positive_number(beta, "beta")
    at = _pairs(policy, chosen, rejected, prompts)
    scores, names = np.broadcast_to([1.0, 0.0], at[1].shape), [["chosen", "rejected"]] * len(at[0])
    return SoftmaxRisk(scale * policy.K[at], scores, -scale * policy.offsets[at], LogProbability(), names, PREFERENCE)


def _pairs(policy: TokenDataset, chosen: ArrayLike, rejected: ArrayLike, prompts: object) -> tuple[IntArray, IntArray]:
    """Check pairs, and return their prompts (n_pairs, 1) and responses (n_pairs, 2)."""
    which = np.arange(policy.n_inputs)
    if prompts is not None:
        which = index_array(prompts, "prompts", "the prompt of each pair, (n_pairs,)", (-1,), below=policy.n_inputs)
    if not len(which):
        raise InputError("prompts", "those of at least one pair", "none")
    expected, counts = "a response to the prompt of each pair, (n_pairs,)", policy.lengths[which]
    first = index_array(chosen, "chosen", expected, (len(which),), below=counts)
    second = index_array(rejected, "rejected", expected, (len(which),), below=counts)
    if np.any(first == second):
        raise InputError(
            "rejected", "another response than the chosen one", f"the same one in pair {np.argmax(first == second)}"
        )
    return which[:, None], np.stack([first, second], axis=-1)


def as_policy(features: Any, reference: Any = None) -> TokenDataset:
    """Check the features of the responses to each prompt, and with a reference its log-probabilities: data whose keys are the features."""
    if not (isinstance(features, Sequence) or n_axes(features) == 3):
        expected = "an array (n_prompts, n_responses, d), or a list with one array (n_responses_i, d) for each prompt"
        raise InputError("features", expected, f"{n_axes(features)} axes")
    with rename_arguments(X="features", y="features", offsets="reference"):
        return TokenDataset(features, np.ones(len(features)), offsets=reference, kind=POLICY)
