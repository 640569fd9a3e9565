"""Attention by full maps in float64, written down as a rule is said in words."""

import math

import numpy as np
import torch


def tensors(*shape, seed=0, size=1.0, dtype=torch.float64):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape) * size).to(dtype)


def full_logits(q, k, rule, positions=None):
    """Logits (B, H, T, S), minus infinity where hidden, and what is seen."""
    q, k = q.double(), k.double()
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    logits = q @ k.transpose(2, 3) * (q.shape[-1] ** -0.5 if rule.scale is None else rule.scale)
    i = (torch.arange(q.shape[2]) if positions is None else positions)[:, None]
    j = torch.arange(k.shape[2])
    if rule.bias is not None:
        if callable(rule.bias):
            logits = logits + rule.bias(slice(0, q.shape[2]), slice(0, k.shape[2]))
        else:
            logits = logits + (rule.bias[:, None, None] * (j - i) if rule.bias.ndim == 1 else rule.bias)
    if rule.softcap is not None:
        logits = rule.softcap * torch.tanh(logits / rule.softcap)
    sees = torch.ones_like(logits, dtype=torch.bool)
    if rule.mask is not None:
        sees = sees & (rule.mask if rule.mask.dtype is torch.bool else rule.mask > -1e30)
        logits = logits if rule.mask.dtype is torch.bool else logits + rule.mask
    if rule.causal:
        sees = sees & (j <= i)
    if rule.window is not None:
        sees = sees & ((i - j).abs() < rule.window)
    return logits.masked_fill(~sees, -math.inf), sees


def with_sinks(logits, rule):
    """The logits that compete: those of a learned sink are the last ones."""
    if rule.sinks is None:
        return logits
    return torch.cat((logits, rule.sinks.double()[None, :, None, None].expand(*logits.shape[:3], 1)), dim=-1)
