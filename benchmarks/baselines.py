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


def batched_descent(K: Any, scores: Any, n_steps: int, step: float) -> FloatArray:
    """Normalised descent on p of many problems at once by operations of torch over the whole batch, on the device of the arrays.

    The gradient is formed over pairs of tokens, and the Gram matrix stands in for the keys; weights that underflow are lost.

    Args:
        K: keys (batch, n_inputs, n_tokens, d). scores: (batch, n_inputs, n_tokens). Both NumPy's or CuPy's.
    Returns:
        p of shape (batch, d) after `n_steps` steps from zero, as an array of NumPy.
    """
    torch = _torch()
    with torch.no_grad():
        keys, gamma = (torch.from_dlpack(array) for array in (K, scores))
        batch, n, T, d = keys.shape
        rows = (keys - keys.mean(dim=2, keepdim=True)).reshape(batch, n * T, d)
        gram = rows @ rows.transpose(1, 2)
        a, c = torch.zeros_like(gram[:, :, 0]), torch.zeros_like(gram[:, :, 0])
        for _ in range(n_steps):
            logits = a.reshape(batch, n, T)
            top, best = logits.max(dim=-1, keepdim=True)
            e = torch.exp(logits - top).scatter_(-1, best, 0.0)
            gap = gamma.gather(-1, best) - gamma
            share = 1.0 / (1.0 + e.sum(dim=-1, keepdim=True))
            delta = share * (e * gap).sum(dim=-1, keepdim=True)
            slope = torch.sigmoid(delta - gamma.gather(-1, best))
            w = e * (share * slope * (gap - delta))
            w = w.scatter_(-1, best, -w.sum(dim=-1, keepdim=True)).reshape(batch, n * T)
            h = (gram @ w[:, :, None])[:, :, 0]
            move = step / torch.sqrt((w * h).sum(dim=-1, keepdim=True))
            c -= move * w
            a -= move * h
        p = (c[:, None] @ rows)[:, 0]
        return np.asarray(p.cpu())


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


def _torch() -> Any:
    try:
        import torch
    except ImportError as problem:
        raise missing_extra("torch", "torch", "The autograd baseline") from problem
    return torch


@contextmanager
def _one_thread() -> Iterator[Any]:
    """torch, on one thread for as long as this lasts."""
    torch = _torch()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield torch
    finally:
        torch.set_num_threads(threads)
