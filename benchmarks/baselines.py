"""The ordinary way of training attention, written plainly: what the exact compiled loop is measured against."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from marginlens.data import SequenceDataset, TokenDataset
from marginlens.errors import missing_extra
from marginlens.typing import FloatArray


def autograd_descent(data: TokenDataset, v: FloatArray, n_steps: int, step: float) -> FloatArray:
    """Normalised gradient descent on p by torch autograd in float64, one problem at a time on one thread: the usual notebook loop.

    Args:
        data: a batch of problems whose inputs all have the same length. v: (batch, d_model).
    Returns:
        p of shape (batch, d_key) after `n_steps` steps from zero.
    """
    ends = []
    with _one_thread() as torch:
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
    return np.stack(ends)


def autograd_nexttoken(ds: SequenceDataset, n_steps: int, step: float) -> FloatArray:
    """Normalised gradient descent on W by torch autograd in float64 on one thread, for the log-loss under C Eᵀ = I.

    Args:
        ds: a dataset whose sequences all have the same length.
    Returns:
        W of shape (d_model, d_model) after `n_steps` steps from zero.
    """
    with _one_thread() as torch:
        X = torch.tensor(ds.E[ds.tokens].reshape(len(ds), -1, ds.d_model))
        query = X[:, -1].clone()
        is_label = torch.tensor(ds.is_label.reshape(len(ds), -1).astype(np.float64))
        W = torch.zeros(ds.d_model, ds.d_model, dtype=torch.float64, requires_grad=True)
        for _ in range(n_steps):
            logits = (X @ (query @ W.T)[:, :, None])[:, :, 0]
            likelihood = (torch.softmax(logits, dim=-1) * is_label).sum(dim=-1)
            loss = -torch.log(likelihood).mean()
            (gradient,) = torch.autograd.grad(loss, W)
            with torch.no_grad():
                W -= step * gradient / gradient.norm()
        return W.detach().numpy()


@contextmanager
def _one_thread() -> Iterator[Any]:
    """torch, on one thread for as long as this lasts."""
    try:
        import torch
    except ImportError as problem:
        raise missing_extra("torch", "torch", "The autograd baseline") from problem
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield torch
    finally:
        torch.set_num_threads(threads)
