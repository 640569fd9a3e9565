"""The risk of a mixture-of-experts router that is trained on frozen experts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from marginlens.data.tokens import TokenDataset
from marginlens.errors import InputError, n_axes, real_array, rename_arguments
from marginlens.losses.margin import Logistic, Loss
from marginlens.risk.attention import AttentionRisk
from marginlens.risk.matrix import MatrixRisk
from marginlens.typing import ArrayLike

ROUTER = "router"  # the kind of these datasets


def router(
    inputs: ArrayLike, effects: ArrayLike, *, names: Sequence[str] | None = None, loss: Loss | None = None
) -> MatrixRisk:
    r"""Make the risk of a dense softmax gate that is trained on frozen experts.

    .. math:: L(W) = \frac1n \sum_{i=1}^n \ell\Big(\sum_e \mathrm{softmax}_e(W^\top x_i)\, \gamma_{ie}\Big)

    It is the `MatrixRisk` in which inputs are the queries and each expert's key is a unit vector. W has one column per expert,
    shape (d, n_experts): it is the transpose of the weight (n_experts, d) of a `torch.nn.Linear` gate without bias. For a gate
    with a bias, add a coordinate that is 1 to all inputs.

    Args:
        inputs: x of shape (n_inputs, d), or (batch, n_inputs, d) for independent problems: what the gate reads, a hidden state
            for example. No input may be zero.

        effects: γ of shape (n_inputs, n_experts), or (batch, n_inputs, n_experts): how good the output of each expert is on each
            input, y v·expert(x) for example.

        names: the names of the experts, n_experts texts; verdicts number the experts by default.

        loss: any `Loss`; logistic by default.

    Examples:
        >>> import marginlens as ml
        >>> risk = ml.risk.router([[1.0, 0.2], [-0.3, 1.0]], [[1.0, -1.0, 0.5], [0.0, 0.5, 1.0]])
        >>> risk.shape
        (2, 3)
        >>> print(ml.predict_limit(risk).outcome.ends_at)
        expert 0 wins for input 0, expert 2 for input 1
    """
    axes: tuple[str | int, ...] = ("n_inputs", "n_experts")
    gamma = real_array(effects, "effects", axes if n_axes(effects) < 3 else ("batch", *axes))
    n_experts = gamma.shape[-1]
    x = real_array(inputs, "inputs", (*gamma.shape[:-1], "d"))
    tokens = None if names is None else [_expert_names(names, n_experts)] * gamma.shape[-2]
    keys = np.broadcast_to(np.eye(n_experts), (*gamma.shape, n_experts))
    with rename_arguments(keys="effects", query="inputs"):
        data = TokenDataset.of_scores(keys, gamma, tokens=tokens, kind=ROUTER)
        return AttentionRisk(data, data.own_head, Logistic() if loss is None else loss).as_matrix(x)


def _expert_names(names: object, n_experts: int) -> list[str]:
    """Check names: a text for each expert."""
    listed = list(names) if isinstance(names, list | tuple) else []
    if len(listed) != n_experts or not all(isinstance(name, str) for name in listed):
        raise InputError("names", f"a list of {n_experts} texts, one for each expert", f"{names!r}"[:60])
    return listed
