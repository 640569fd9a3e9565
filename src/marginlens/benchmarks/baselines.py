"""The ordinary way of training attention, written plainly: what the exact compiled loop is measured against."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from marginlens.data import TokenDataset
from marginlens.errors import missing_extra

FloatArray = npt.NDArray[np.float64]


def autograd_descent(data: TokenDataset, v: FloatArray, n_steps: int, step: float) -> FloatArray:
    """Normalised gradient descent on p by torch autograd in float64, one problem at a time on one thread: the usual notebook loop.

    Args:
        data: a batch of problems whose inputs all have the same length. v: (batch, d_model).
    Returns:
        p of shape (batch, d_key) after `n_steps` steps from zero.
    """
    try:
        import torch
    except ImportError as problem:
        raise missing_extra("torch", "torch", "The autograd baseline") from problem
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        ends = []
        for j in range(len(data)):
            X, K = torch.tensor(data.X[j]), torch.tensor(data.K[j])
            y, head = torch.tensor(data.y[j]), torch.tensor(v[j])
            p = torch.zeros(data.d_key, dtype=torch.float64, requires_grad=True)
            for _ in range(n_steps):
                attention = torch.softmax(K @ p, dim=-1)
                output = torch.einsum("it,itd,d->i", attention, X, head)
                loss = torch.nn.functional.softplus(-y * output).mean()
                (gradient,) = torch.autograd.grad(loss, p)
                with torch.no_grad():
                    p -= step * gradient / gradient.norm()
            ends.append(p.detach().numpy())
    finally:
        torch.set_num_threads(threads)
    return np.stack(ends)
