"""Preferences between responses, as DPO and Bradley-Terry models learn them: a softmax over the two responses of a pair."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from marginlens.data.tokens import TokenDataset
from marginlens.errors import InputError, index_array, n_axes, positive_number, rename_arguments
from marginlens.losses.margin import LogProbability
from marginlens.risk.attention import SoftmaxRisk
from marginlens.typing import ArrayLike

# The kinds of data whose inputs are pairs of responses, and all responses to a prompt.
PREFERENCE, POLICY = "preference", "policy"
_FEATURES = "an array (n_prompts, n_responses, d), or a list with one array (n_responses_i, d) for each prompt"


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

    The normalising constants of the policy cancel, so that each pair is a softmax over two choices with keys β φ and offsets
    -β log π_ref, whose loss is -log of the share of the chosen one. Without a reference and with β = 1, this is the
    Bradley-Terry model, a reward φ·θ.

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
        >>> risk = ml.risk.preferences(features, chosen=[0], rejected=[1], beta=1.0)
        >>> float(risk.value([0.0, 0.0]).round(4))
        0.6931
        >>> print(ml.theory.winning_responses(features, risk))
        Response 2 wins.
        Why: response 2 leads its closest rival, response 0, by 0.354 for each unit of norm.
        Proved ✓
    """
    policy = as_policy(features, reference)
    counts = policy.lengths
    which = np.arange(len(counts))
    if prompts is not None:
        which = index_array(prompts, "prompts", "the prompt of each pair, (n_pairs,)", (-1,), below=len(counts))
    first, second = (
        index_array(
            given, name, "a response of the prompt of each pair, (n_pairs,)", (len(which),), below=counts[which]
        )
        for given, name in ((chosen, "chosen"), (rejected, "rejected"))
    )
    if np.any(first == second):
        pair = int(np.argmax(first == second))
        raise InputError("rejected", "another response than the chosen one", f"response {first[pair]} in pair {pair}")
    scale = positive_number(beta, "beta")
    at = which[:, None], np.stack([first, second], axis=-1)  # (n_pairs, 2)
    scores, names = np.broadcast_to([1.0, 0.0], at[1].shape), [["chosen", "rejected"]] * len(which)
    return SoftmaxRisk(scale * policy.K[at], scores, -scale * policy.offsets[at], LogProbability(), names, PREFERENCE)


def as_policy(features: Any, reference: Any = None) -> TokenDataset:
    """Check the features of the responses to each prompt, and with a reference its log-probabilities: data whose keys are the features."""
    if not (isinstance(features, Sequence) or n_axes(features) == 3):
        raise InputError("features", _FEATURES, f"{n_axes(features)} axes")
    with rename_arguments(X="features", y="features", offsets="reference"):
        return TokenDataset(features, np.ones(len(features)), offsets=reference, kind=POLICY)
